"""The CUDA backend's command line and what it reads from ptxas. No compiler is started."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tilewheel.manifest import Resources
from tilewheel_build import cuda
from tilewheel_build.errors import CompilationError, ToolchainError
from tilewheel_build.spec import KNOWN_ARCHS

PTXAS = """\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'k' for 'sm_90a'
ptxas info    : Function properties for k
    16 bytes stack frame, 24 bytes spill stores, 40 bytes spill loads
ptxas info    : Used 252 registers, used 1 barriers, 16 bytes cumulative stack size, 2048 bytes smem
"""


def test_target_is_explicit() -> None:
    assert cuda.tvm_target("sm_90a") == {"kind": "cuda", "arch": "sm_90a"}


def test_ptxas_output_gives_registers_spills_and_shared_memory() -> None:
    assert cuda.parse_ptxas(PTXAS) == Resources(
        registers=252, spill_bytes=64, static_shared_bytes=2048
    )


def test_kernel_without_spills_and_shared_memory_has_zero_of_them() -> None:
    printed = "ptxas info    : Used 10 registers, used 0 barriers"
    assert cuda.parse_ptxas(printed) == Resources(
        registers=10, spill_bytes=0, static_shared_bytes=0
    )


def test_ptxas_that_prints_no_register_count_is_a_toolchain_error() -> None:
    with pytest.raises(ToolchainError, match=r"^ptxas: printed no register count:\nnothing$"):
        cuda.parse_ptxas("nothing")


def test_each_known_architecture_has_a_limit_of_shared_memory() -> None:
    assert sorted(cuda.SHARED_LIMIT_BYTES) == sorted(KNOWN_ARCHS["cuda"])


@pytest.fixture
def no_tools(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every tool be found, and print what ptxas prints instead of running one."""
    monkeypatch.setattr(cuda, "nvcc", lambda: Path("/pip/bin/nvcc"))
    monkeypatch.setattr(cuda, "tilelang_source", lambda: Path("/pip/tilelang/src"))
    monkeypatch.setattr(cuda, "tilelang_cutlass", lambda: Path("/pip/cutlass/include"))
    monkeypatch.setattr(cuda, "run_tool", lambda command, cwd, timeout_s: PTXAS)
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")


def test_command_compiles_for_one_architecture_with_relative_names(no_tools: None) -> None:
    assert cuda.compile_command(arch="sm_90a", source="kernel.cu", output="kernel.cubin") == [
        "/pip/bin/nvcc",
        "-ccbin",
        "g++",
        "--cubin",
        "-O3",
        "-std=c++20",
        "-w",
        "-Xptxas",
        "-v",
        "-gencode=arch=compute_90a,code=sm_90a",
        "-I/pip/tilelang/src",
        "-I/pip/cutlass/include",
        "kernel.cu",
        "-o",
        "kernel.cubin",
    ]


def test_block_may_use_all_of_the_shared_memory(no_tools: None, tmp_path: Path) -> None:
    resources = cuda.compile_device(
        work=tmp_path, source="a.cu", output="a", arch="sm_90a", shared_bytes=232448 - 2048
    )
    assert resources.static_shared_bytes == 2048


def test_block_that_needs_more_shared_memory_than_there_is_is_refused(
    no_tools: None, tmp_path: Path
) -> None:
    with pytest.raises(CompilationError) as caught:
        cuda.compile_device(
            work=tmp_path, source="a.cu", output="a", arch="sm_120a", shared_bytes=101376
        )
    assert str(caught.value) == (
        "shared memory: is 103424 bytes a block, must be at most 101376 on sm_120a"
    )


def test_missing_host_compiler_is_named(
    no_tools: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(ToolchainError) as caught:
        cuda.compile_device(work=tmp_path, source="a.cu", output="a", arch="sm_90a", shared_bytes=0)
    assert str(caught.value) == (
        "g++: is not on PATH, must be installed for nvcc\nhint: install the system's C++ compiler"
    )
