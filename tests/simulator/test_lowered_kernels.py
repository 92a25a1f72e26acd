"""Kernels as TileLang lowers them: right, free of violations, every lost flag found."""

from __future__ import annotations

import re
from typing import Any

import ml_dtypes
import numpy as np
import pytest

HIDDEN = 256
NUM_CORES = 4
PIPES = re.compile(r"asc_sync_(?:notify|wait)\((PIPE_\w+), (PIPE_\w+), ")


def lower(function: Any) -> tuple[str, int]:
    """Return the AscendC source and the UB bytes of a kernel."""
    from tilelang import tvm
    from tilelang.engine.lower import lower as lower_module

    target = tvm.target.Target("ascend")
    with target, tvm.transform.PassContext(opt_level=3):
        artifact = lower_module(
            function, target=target, enable_host_codegen=False, enable_device_compile=False
        )
    (device,) = artifact.device_mod.functions.values()
    return artifact.kernel_source, int(device.attrs.get("dyn_shared_memory_buf", 0))


@pytest.fixture(scope="module")
def kernels() -> Any:
    import lowered_kernels

    return lowered_kernels


@pytest.fixture(scope="module")
def cast_source(kernels: Any) -> tuple[str, int]:
    return lower(kernels.cast_e4m3(HIDDEN, NUM_CORES))


def run_cast(program: Any, ub_bytes: int, num_tokens: int) -> None:
    x = np.random.default_rng(num_tokens).standard_normal((num_tokens, HIDDEN)) * 200
    x = x.astype(ml_dtypes.bfloat16)
    y = np.zeros((num_tokens, HIDDEN), np.uint8)
    program.run("cast_kernel", x, y, num_tokens, blocks=NUM_CORES, ub_bytes=ub_bytes)
    expected = np.clip(x.astype(np.float32), -448, 448).astype(ml_dtypes.float8_e4m3fn)
    assert (y == expected.view(np.uint8)).all()


@pytest.mark.usefixtures("each_mode")
@pytest.mark.parametrize("num_tokens", [0, 1, 3, 4, 29])
def test_a_lowered_kernel_is_exact(
    compile_source: Any, cast_source: tuple[str, int], simulator: Any, num_tokens: int
) -> None:
    source, ub_bytes = cast_source
    run_cast(compile_source(source), ub_bytes, num_tokens)
    assert simulator.statistics().ub_high_water_bytes <= ub_bytes


def directions(source: str) -> list[tuple[str, str]]:
    return sorted(set(PIPES.findall(source)))


def without(source: str, call: str, source_pipe: str, destination_pipe: str) -> str:
    """Delete the matching synchronisation statements and keep the lines."""
    return re.sub(rf"asc_sync_{call}\({source_pipe}, {destination_pipe}, .*?\);\n", "\n", source)


def test_every_lost_pair_of_pipes_is_a_race(
    compile_source: Any, cast_source: tuple[str, int], simulator: Any
) -> None:
    source, ub_bytes = cast_source
    pairs = directions(source)
    assert len(pairs) >= 4
    simulator.set_race_detection(True)
    for pair in pairs:
        program = compile_source(without(source, "(?:notify|wait)", *pair))
        with pytest.raises(RuntimeError, match="race at ub offset"):
            run_cast(program, ub_bytes, 29)


@pytest.mark.parametrize(
    ("call", "text"),
    [("notify", "flag is not set"), ("wait", "flag is (?:already|still) set")],
)
def test_a_lost_half_of_a_pair_breaks_the_flag_protocol(
    compile_source: Any, cast_source: tuple[str, int], call: str, text: str
) -> None:
    source, ub_bytes = cast_source
    program = compile_source(without(source, call, "PIPE_MTE2", "PIPE_V"))
    with pytest.raises(RuntimeError, match=text):
        run_cast(program, ub_bytes, 29)


def test_a_lost_load_leaves_the_result_undefined(
    compile_source: Any, cast_source: tuple[str, int]
) -> None:
    source, ub_bytes = cast_source
    program = compile_source(re.sub(r"asc_copy_gm2ub_align.*\n", "\n", source))
    with pytest.raises(RuntimeError, match="have no defined value, must be written before"):
        run_cast(program, ub_bytes, 1)


def test_too_little_ub_is_an_error(compile_source: Any, cast_source: tuple[str, int]) -> None:
    source, ub_bytes = cast_source
    with pytest.raises(RuntimeError, match=rf"must end within {ub_bytes - 32} bytes"):
        run_cast(compile_source(source), ub_bytes - 32, 29)


@pytest.mark.parametrize(
    ("x_name", "y_name", "x_dtype", "y_dtype"),
    [
        ("bfloat16", "float8_e4m3fn", ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn),
        ("float16", "bfloat16", np.float16, ml_dtypes.bfloat16),
    ],
)
def test_a_lowered_simt_kernel_agrees_with_numpy(
    compile_source: Any,
    kernels: Any,
    simulator: Any,
    x_name: str,
    y_name: str,
    x_dtype: Any,
    y_dtype: Any,
) -> None:
    source, ub_bytes = lower(kernels.exp_rows(512, 3, x_name, y_name))
    program = compile_source(source)
    x = np.random.default_rng(7).integers(-4, 5, (10, 512)).astype(x_dtype)
    wide = x.astype(np.float32)
    exact = np.exp(wide) * (1 / np.sqrt(np.abs(wide) + 1))
    for races in (False, True):
        simulator.set_race_detection(races)
        y, s = np.zeros((10, 512), y_dtype), np.zeros(10, np.float32)
        values = {"x": x.view(np.uint8), "y": y.view(np.uint8), "s": s, "num_rows": 10}
        kernel = program.rewritten.kernels[0]
        arguments = [values[parameter.name] for parameter in kernel.parameters]
        program.run(kernel.name, *arguments, blocks=3, ub_bytes=ub_bytes or 4096)
        assert (s == wide.sum(1)).all()
        assert np.allclose(y.astype(np.float32), exact, rtol=0.07)


def test_lowered_random_numbers_are_normal_and_repeatable(
    compile_source: Any, kernels: Any
) -> None:
    source, _ = lower(kernels.normal_numbers(1024, 8))
    program = compile_source(source)
    draws = []
    for seed in (1, 1, 2):
        y = np.zeros(8 * 1024, ml_dtypes.bfloat16)
        program.run("normal_numbers_kernel", y.view(np.uint8), seed, blocks=8)
        draws.append(y.astype(np.float64))
    assert (draws[0] == draws[1]).all()
    assert (draws[0] != draws[2]).any()
    assert abs(draws[0].mean()) < 0.05
    assert abs(draws[0].std() - 1) < 0.05


# ---- topk_gate

TOPK_CASES = [(72, 6), (256, 8), (896, 16)]


@pytest.fixture(scope="module")
def topk_sources() -> dict[tuple[int, int], tuple[str, int]]:
    module = pytest.importorskip("tilewheel_kernels.moe.topk_gate_ascend")
    return {
        (experts, topk): lower(
            module.topk_gate(num_experts=experts, num_topk=topk, num_vec_cores=8)
        )
        for experts, topk in TOPK_CASES
    }


def run_topk(program: Any, ub_bytes: int, experts: int, topk: int, num_tokens: int) -> None:
    scores = np.random.default_rng(experts).integers(-9, 9, (num_tokens, experts))
    scores = scores.astype(np.float32)
    if num_tokens > 3:
        scores[3, experts // 2] = np.nan
    idx = np.full((num_tokens, topk), -7, np.int64)
    name = program.rewritten.kernels[0].name
    values = {"scores": scores, "idx": idx, "num_tokens": num_tokens}
    arguments = [values[p.name] for p in program.rewritten.kernels[0].parameters]
    program.run(name, *arguments, blocks=8, ub_bytes=ub_bytes)
    expected = np.argsort(-scores, axis=1, kind="stable")[:, :topk]
    expected[~np.isfinite(scores).all(1)] = -1
    assert (idx == expected).all()


@pytest.mark.usefixtures("each_mode")
@pytest.mark.parametrize(("experts", "topk"), TOPK_CASES)
def test_topk_gate_is_exact_and_free_of_violations(
    compile_source: Any, topk_sources: Any, experts: int, topk: int
) -> None:
    source, ub_bytes = topk_sources[experts, topk]
    program = compile_source(source)
    for num_tokens in (1, 9, 200):
        run_topk(program, ub_bytes, experts, topk, num_tokens)


def test_every_lost_pair_of_pipes_of_topk_gate_is_a_race(
    compile_source: Any, topk_sources: Any, simulator: Any
) -> None:
    source, ub_bytes = topk_sources[72, 6]
    simulator.set_race_detection(True)
    for pair in directions(source):
        program = compile_source(without(source, "(?:notify|wait)", *pair))
        with pytest.raises(RuntimeError, match="race at ub offset"):
            run_topk(program, ub_bytes, 72, 6, 400)
