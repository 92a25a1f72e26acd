"""Happens-before races between pipes, and stores that a load in the same function may not see."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

LOAD = (
    "asc_copy_gm2ub_align((__ubuf__ uint8_t*)(x_ub{at}), (__gm__ uint8_t*)(x), 1, 256, 0, 0, 0, "
    "static_cast<asc_load_l2_cache_mode>(0), 256, 256);"
)
STORE = (
    "asc_copy_ub2gm_align((__gm__ uint8_t*)(x), (__ubuf__ uint8_t*)(x_ub{at}), 1, 256, "
    "static_cast<asc_store_l2_cache_mode>(4), 256, 256);"
)
COMPUTE = "kernel_simd_vf_0(x_ub);"


def notify(source: str, destination: str, event: int = 0) -> str:
    return f"asc_sync_notify(PIPE_{source}, PIPE_{destination}, static_cast<event_t>({event}));"


def wait(source: str, destination: str, event: int = 0) -> str:
    return notify(source, destination, event).replace("notify", "wait")


def flag(source: str, destination: str) -> str:
    return f"{notify(source, destination)}\n  {wait(source, destination)}"


KERNELS = {
    "ordered": [LOAD, flag("MTE2", "V"), COMPUTE, flag("V", "MTE3"), STORE],
    "no_wait_for_load": [LOAD, COMPUTE, flag("V", "MTE3"), STORE],
    "no_wait_for_compute": [LOAD, flag("MTE2", "V"), COMPUTE, STORE],
    "wrong_direction": [LOAD, flag("V", "MTE2"), COMPUTE, flag("V", "MTE3"), STORE],
    "transitive": [LOAD, flag("MTE2", "S"), flag("S", "V"), COMPUTE, flag("V", "MTE3"), STORE],
    "by_scalar_wait": [LOAD, flag("MTE2", "S"), COMPUTE, flag("V", "S"), STORE],
    "full_barriers": [LOAD, "asc_sync();", COMPUTE, "asc_sync_pipe(PIPE_ALL);", STORE],
    "pipe_barrier_only": [LOAD, "asc_sync_pipe(PIPE_MTE2);", COMPUTE, flag("V", "MTE3"), STORE],
    "locks": [
        "asc_lock(PIPE_MTE2, 0, ASC_LOCK_BLOCK);",
        LOAD,
        "asc_unlock(PIPE_MTE2, 0, ASC_LOCK_BLOCK);",
        "asc_lock(PIPE_V, 0, ASC_LOCK_BLOCK);",
        COMPUTE,
        "asc_unlock(PIPE_V, 0, ASC_LOCK_BLOCK);",
        "asc_lock(PIPE_MTE3, 0, ASC_LOCK_BLOCK);",
        STORE,
        "asc_unlock(PIPE_MTE3, 0, ASC_LOCK_BLOCK);",
    ],
    "different_locks": [
        "asc_lock(PIPE_MTE2, 0, ASC_LOCK_BLOCK);",
        LOAD,
        "asc_unlock(PIPE_MTE2, 0, ASC_LOCK_BLOCK);",
        "asc_lock(PIPE_V, 1, ASC_LOCK_BLOCK);",
        COMPUTE,
        "asc_unlock(PIPE_V, 1, ASC_LOCK_BLOCK);",
    ],
    "overwritten_while_read": [
        *(LOAD, flag("MTE2", "V"), COMPUTE),
        LOAD,
    ],
    "overwritten_while_stored": [
        *(LOAD, flag("MTE2", "MTE3"), STORE),
        LOAD,
    ],
    "recycled_version": [
        *(LOAD.format(at=""), flag("MTE2", "V"), COMPUTE),
        *(LOAD.format(at=" + 64"), LOAD.format(at="")),
    ],
    "two_versions": [
        *(LOAD.format(at=""), flag("MTE2", "V"), COMPUTE),
        LOAD.format(at=" + 64"),
    ],
}
VECTOR_FUNCTIONS = """
__simd_vf__ inline void kernel_simd_vf_0(__ubuf__ float* x_ub) {
  auto m = asc_create_mask_b32(PAT_ALL);
  auto v = simd_inst::vlds_norm<float>(x_ub, 0);
  simd_inst::vsts_norm(simd_inst::vadds(v, 1.0f, m, MODE_ZEROING), x_ub, 0, m);
}
__simd_vf__ inline void unfenced_simd_vf_1(__ubuf__ float* x_ub) {
  auto m = asc_create_mask_b32(PAT_ALL);
  simd_inst::vsts_norm(simd_inst::vdup<float>(1.0f, m, MODE_ZEROING), x_ub, 0, m);
  auto v = simd_inst::vlds_brc_elem<float>(x_ub + 3, 0);
  simd_inst::vsts_norm(v, x_ub + 64, 0, m);
}
__simd_vf__ inline void fenced_simd_vf_2(__ubuf__ float* x_ub) {
  auto m = asc_create_mask_b32(PAT_ALL);
  simd_inst::vsts_norm(simd_inst::vdup<float>(1.0f, m, MODE_ZEROING), x_ub, 0, m);
  simd_inst::mem_bar(VST_VLD);
  auto v = simd_inst::vlds_brc_elem<float>(x_ub + 3, 0);
  simd_inst::vsts_norm(v, x_ub + 64, 0, m);
}
__simd_vf__ inline void wrong_fence_simd_vf_3(__ubuf__ float* x_ub) {
  auto m = asc_create_mask_b32(PAT_ALL);
  simd_inst::vsts_norm(simd_inst::vdup<float>(1.0f, m, MODE_ZEROING), x_ub, 0, m);
  simd_inst::mem_bar(VLD_VST);
  auto v = simd_inst::vlds_brc_elem<float>(x_ub + 3, 0);
  simd_inst::vsts_norm(v, x_ub + 64, 0, m);
}
__simd_vf__ inline void neighbours_simd_vf_4(__ubuf__ float* x_ub) {
  auto m = asc_create_mask_b32(PAT_ALL);
  for (int32_t i = 0; i < 8; ++i) {
    auto v = simd_inst::vlds_brc_elem<float>(x_ub + i, 0);
    simd_inst::vsts_1st(v, x_ub + i, 0, m);
  }
}
"""


def kernel(name: str, statements: list[str]) -> str:
    body = "\n  ".join(statements).format(at="")
    return (
        f'extern "C" __global__ __vector__ void {name}(__gm__ float *x) {{\n'
        f"  __ubuf__ float *x_ub = (__ubuf__ float *)0;\n  {body}\n}}\n"
    )


@pytest.fixture(scope="module")
def program(compile_source: Any) -> Any:
    text = VECTOR_FUNCTIONS + "".join(kernel(*item) for item in KERNELS.items())
    for index, name in enumerate(
        ["twice_kernel", "unfenced", "fenced", "wrong_fence", "neighbours"], start=0
    ):
        if index == 0:
            text += kernel(name, [LOAD, "asc_sync();", COMPUTE, COMPUTE])
        else:
            text += kernel(f"run_{name}", [LOAD, "asc_sync();", f"{name}_simd_vf_{index}(x_ub);"])
    return compile_source(text)


@pytest.mark.parametrize(
    "name",
    [
        "ordered",
        "transitive",
        "by_scalar_wait",
        "full_barriers",
        "locks",
        "two_versions",
        "twice_kernel",
        "run_fenced",
        "run_neighbours",
    ],
)
def test_ordered_accesses_are_no_race(program: Any, simulator: Any, name: str) -> None:
    simulator.set_race_detection(True)
    program.run(name, np.zeros(64, np.float32))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("no_wait_for_load", "PIPE_V reads while PIPE_MTE2 may still write it"),
        ("no_wait_for_compute", "PIPE_MTE3 reads while PIPE_V may still write it"),
        ("wrong_direction", "PIPE_V reads while PIPE_MTE2 may still write it"),
        ("pipe_barrier_only", "PIPE_V reads while PIPE_MTE2 may still write it"),
        ("different_locks", "PIPE_V reads while PIPE_MTE2 may still write it"),
        ("overwritten_while_read", "PIPE_MTE2 writes while PIPE_V may still write it"),
        ("overwritten_while_stored", "PIPE_MTE2 writes while PIPE_MTE3 may still read it"),
        ("recycled_version", "PIPE_MTE2 writes while PIPE_V may still write it"),
        ("run_unfenced", "must be separated by mem_bar(VST_VLD)"),
        ("run_wrong_fence", "must be separated by mem_bar(VST_VLD)"),
    ],
)
def test_unordered_accesses_are_a_race(program: Any, simulator: Any, name: str, text: str) -> None:
    x = np.zeros(64, np.float32)
    program.run(name, x)  # the race is invisible in program order
    simulator.set_race_detection(True)
    with pytest.raises(RuntimeError) as caught:
        program.run(name, x)
    assert text in str(caught.value)
