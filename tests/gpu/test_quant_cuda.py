"""What only a GPU shows of the casts: graphs, streams, large tensors, bare artifacts."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tilewheel as tw
from tilewheel import compare

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine"),
]


BFLOAT16, FLOAT32 = torch.bfloat16, torch.float32
WIDE = 7168
NUM_LAST = 64


def rows(
    num_tokens: int,
    hidden: int = 2880,
    dtype: torch.dtype = BFLOAT16,
    device: str = "cuda",
) -> torch.Tensor:
    generator = torch.Generator(device=device).manual_seed(num_tokens)
    return torch.randn((num_tokens, hidden), generator=generator, device=device).to(dtype)


def behind(last: torch.Tensor, value: int = 0) -> torch.Tensor:
    """Return ``last`` behind rows of ``value``; with WIDE channels more than 2^31 values in all."""
    shape = (2**31 // WIDE + 300, last.shape[1])
    x = torch.full(shape, value, dtype=last.dtype, device="cuda")
    x[-len(last) :] = last
    return x


def is_zero(tensor: torch.Tensor) -> bool:
    """Return whether all but the last rows are zero bytes."""
    return not bool(tensor[:-NUM_LAST].view(torch.uint8).any())


def check(x: torch.Tensor, data: torch.Tensor, sf: torch.Tensor, fmt: str, size: int) -> None:
    wanted = tw.reference.quant.per_token_cast(x, fmt, size)
    assert compare.bits(data, wanted[0]) == ""
    assert compare.bits(sf, wanted[1]) == ""


def test_graph_capture_of_the_first_call_and_replay() -> None:
    x = rows(129)
    graph = torch.cuda.CUDAGraph()
    # The first calls with these artifacts in the process: they load inside the capture.
    with torch.cuda.graph(graph):
        data, sf = tw.quant.per_token_cast(x, "e4m3", 128)
        back = tw.quant.cast_back((data, sf), "f32", (1, 128))
    for _ in range(2):
        x.mul_(1.7)
        graph.replay()
        check(x, data, sf, "e4m3", 128)
        wanted = tw.reference.quant.cast_back((data, sf), "f32", (1, 128))
        assert compare.bits(back, wanted) == ""


def test_a_replayed_graph_repeats_stochastic_bits() -> None:
    x = rows(33, 576)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        data, _ = tw.quant.stochastic_cast(x, "e4m3", 128, seed=5)
    graph.replay()
    first = data.view(torch.uint8).clone()
    graph.replay()
    assert torch.equal(first, data.view(torch.uint8))


def test_kernels_run_on_the_callers_stream() -> None:
    x = rows(4096)
    side = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(50_000_000)
        x.mul_(3)
        data, sf = tw.quant.per_token_cast(x, "e4m3", 128)
    assert not side.query()
    side.synchronize()
    check(x, data, sf, "e4m3", 128)


@pytest.mark.parametrize(("fmt", "size"), [("e4m3", 128), ("e2m1", 32)])
def test_more_than_two_to_the_31_values(fmt: str, size: int) -> None:
    last = rows(NUM_LAST, WIDE)
    x = behind(last)
    assert x.numel() > 2**31
    data, sf = tw.quant.per_token_cast(x, fmt, size, round_sf=fmt == "e2m1")
    wanted = tw.reference.quant.per_token_cast(last, fmt, size, round_sf=fmt == "e2m1")
    assert compare.bits(data[-NUM_LAST:], wanted[0]) == ""
    assert compare.bits(sf[-NUM_LAST:], wanted[1]) == ""
    assert is_zero(data)
    del x
    back = tw.quant.cast_back((data, sf), "bf16", (1, size))
    wanted_back = tw.reference.quant.cast_back(wanted, "bf16", (1, size))
    assert compare.bits(back[-NUM_LAST:], wanted_back) == ""
    assert is_zero(back)


@pytest.mark.parametrize(("dtype", "is_packed"), [(BFLOAT16, True), (FLOAT32, False)])
def test_scales_alone_of_more_than_two_to_the_31_values(
    dtype: torch.dtype, is_packed: bool
) -> None:
    last = rows(NUM_LAST, WIDE, dtype)
    flags: Any = {"round_sf": is_packed, "use_packed_ue8m0": is_packed}
    sf = tw.quant.per_token_cast_with_sf_only(behind(last), "e4m3", 32, **flags)
    for part, x in ((sf[-NUM_LAST:], last), (sf[:NUM_LAST], torch.zeros_like(last))):
        wanted = tw.reference.quant.per_token_cast_with_sf_only(
            x, "e4m3", 32, round_sf=is_packed, sf_dtype=torch.int32 if is_packed else FLOAT32
        )
        assert compare.bits(part, wanted) == ""
    assert bool((sf[:-NUM_LAST] == sf[0]).all())


@pytest.mark.parametrize(("fmt", "dtype"), [("e4m3", BFLOAT16), ("e2m1", FLOAT32)])
def test_more_than_two_to_the_31_values_with_given_scales(fmt: str, dtype: torch.dtype) -> None:
    last = rows(NUM_LAST, WIDE, dtype)
    sf = tw.reference.quant.per_token_cast_with_sf_only(last, fmt, 64)
    data = tw.quant.per_token_cast_with_precomputed_sf(behind(last), fmt, 64, behind(sf, 1))
    wanted = tw.reference.quant.per_token_cast_with_precomputed_sf(last, fmt, 64, sf)
    assert compare.bits(data[-NUM_LAST:], wanted) == ""
    assert is_zero(data)


@pytest.mark.parametrize(("x_fmt", "fmt"), [("e4m3", "e2m1"), ("e2m1", "e4m3")])
def test_more_than_two_to_the_31_quantised_values(x_fmt: str, fmt: str) -> None:
    last, last_sf = tw.reference.quant.per_token_cast(rows(NUM_LAST, WIDE), x_fmt, 128)
    # Bytes: torch does not fill every tensor of float8.
    x = behind(last.view(torch.uint8)).view(last.dtype), behind(last_sf, 1)
    data, sf = tw.quant.per_token_cast(x, fmt, 32, x_block_size=(1, 128), round_sf=True)
    wanted = tw.reference.quant.per_token_cast(
        (last, last_sf), fmt, 32, x_block_size=(1, 128), round_sf=True
    )
    assert compare.bits(data[-NUM_LAST:], wanted[0]) == ""
    assert compare.bits(sf[-NUM_LAST:], wanted[1]) == ""
    assert is_zero(data)


@pytest.mark.parametrize(("fmt", "dtype"), [("e4m3", BFLOAT16), ("e2m1", FLOAT32)])
def test_more_than_two_to_the_31_values_rounded_stochastically(
    fmt: str, dtype: torch.dtype
) -> None:
    last = rows(NUM_LAST, WIDE, dtype)
    x = behind(last)
    options: Any = {"seed": -3, "offset": 2**33 + 5, "round_sf": fmt == "e2m1"}
    data, sf = tw.quant.stochastic_cast(x, fmt, 128, **options)
    wanted = tw.reference.quant.stochastic_cast(
        last, fmt, 128, **options, first_token=len(x) - NUM_LAST
    )
    assert compare.bits(data[-NUM_LAST:], wanted[0]) == ""
    assert compare.bits(sf[-NUM_LAST:], wanted[1]) == ""
    assert is_zero(data)


def test_column_major_scales_of_many_words_and_tokens() -> None:
    """Words times the leading dimension exceed 2^31 elements, where 32-bit places would wrap."""
    hidden = 7168
    num_tokens = 2**31 // 55 // 4 * 4
    memory = torch.zeros((56, num_tokens), device="cuda")
    x = rows(64, hidden)
    out = (
        torch.empty((64, hidden), dtype=torch.float8_e4m3fn, device="cuda"),
        memory.t()[:64],
    )
    tw.quant.per_token_cast(x, "e4m3", 128, use_tma_aligned_col_major_sf=True, out=out)
    check(x, out[0], out[1], "e4m3", 128)


def test_compile_with_a_dynamic_number_of_tokens() -> None:
    def cast(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return tw.quant.per_token_cast(x * 2.0, "e4m3", 128)

    compiled = torch.compile(cast, fullgraph=True, dynamic=True, backend="aot_eager")
    for num_tokens in (2, 7, 64):
        x = rows(num_tokens)
        check(x * 2.0, *compiled(x), "e4m3", 128)


def test_torch_ops_pass_opcheck() -> None:
    x = rows(5, 576)
    ops = torch.ops.tilewheel
    flags = ("e4m3", 128, True, True, False, True)
    sf = tw.quant.per_token_cast(x, "e4m3", 128)[1]
    torch.library.opcheck(ops.per_token_cast.default, (x, *flags, 1e-4))
    torch.library.opcheck(ops.per_token_cast_with_sf_only.default, (x, *flags, 1e-4))
    arguments = (x, "e4m3", 128, sf)
    torch.library.opcheck(ops.per_token_cast_with_precomputed_sf.default, arguments)
    # Its schema test computes with the inputs, which torch cannot do in float8.
    pair = tw.quant.per_token_cast(x, "e2m1", 32)
    torch.library.opcheck(ops.cast_back.default, (*pair, "bf16", 1, 32))
    arguments = (x, "e4m3", 128, False, 1e-4, 3, 0)
    torch.library.opcheck(ops.stochastic_cast.default, arguments)


def test_the_bare_artifact_checks_its_arguments() -> None:
    kernel = tw.load(
        "per_token_cast",
        device="cuda",
        x_dtype="bfloat16",
        data_dtype="float8_e4m3fn",
        sf_dtype="float32",
        round_sf=False,
    )
    x = rows(4, 576)
    data = torch.empty((4, 576), dtype=torch.float8_e4m3fn, device="cuda")
    sf = torch.empty((4, 5), device="cuda")
    kernel(x, data, sf, 1e-4, 128)
    check(x, data, sf, "e4m3", 128)
    with pytest.raises(TypeError, match="x: is float32, must be bfloat16"):
        kernel(x.float(), data, sf, 1e-4, 128)
    with pytest.raises(ValueError, match=r"sf.shape\[1\]: is 4, must be 5"):
        kernel(x, data, sf[:, :4].contiguous(), 1e-4, 128)
    with pytest.raises(ValueError, match=r"data.shape\[0\]: is 3, must be 4"):
        kernel(x, data[:3], sf, 1e-4, 128)
    with pytest.raises(ValueError, match="x: data pointer is aligned to 2 bytes, must be to 16"):
        kernel(rows(4, 640)[:, 1:577], data, sf, 1e-4, 128)
    with pytest.raises(ValueError, match=r"x.shape\[1\]"):
        kernel(x[:, :512], data, sf, 1e-4, 128)
    with pytest.raises(ValueError, match="num_per_channels: is 48, must be one of 16, 32, 64, 128"):
        kernel(x, data, sf, 1e-4, 48)
    kernel(x[:0], data[:0], sf[:0], 1e-4, 128)


def test_scales_that_lack_blocks_are_not_read_beyond() -> None:
    """The public function refuses this; the bare artifact must still not touch other memory."""
    kernel = tw.load(
        "cast_back",
        device="cuda",
        data_dtype="float8_e4m3fn",
        sf_dtype="float32",
        out_dtype="bfloat16",
    )
    data = torch.ones((4, 256), device="cuda").to(torch.float8_e4m3fn)
    out = torch.empty((4, 256), dtype=torch.bfloat16, device="cuda")
    kernel(data, torch.ones((2, 1), device="cuda"), out, 1, 128)
    assert out[:, ::128].tolist() == [[1, 0], [1, 0], [0, 0], [0, 0]]


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one CUDA device on this machine")
def test_tensors_on_another_device_than_the_current_one() -> None:
    x = rows(30, 576, FLOAT32, "cuda:1")
    low = x.to(BFLOAT16)
    block: Any = {"x_block_size": (1, 128), "round_sf": True}
    quant, reference = tw.quant, tw.reference.quant
    with torch.cuda.device(0):
        pair = quant.per_token_cast(low, "e4m3", 128)
        results = (
            *pair,
            quant.cast_back(pair, "bf16", (1, 128)),
            quant.per_token_cast_with_sf_only(x, "e4m3", 128),
            quant.per_token_cast_with_precomputed_sf(low, "e4m3", 128, pair[1]),
            *quant.per_token_cast(pair, "e2m1", 32, **block),
            *quant.stochastic_cast(low, "e4m3", 128, seed=3),
        )
        assert torch.cuda.current_device() == 0
    assert all(result.device.index == 1 for result in results)
    wanted = (
        *reference.per_token_cast(low, "e4m3", 128),
        reference.cast_back(pair, "bf16", (1, 128)),
        reference.per_token_cast_with_sf_only(x, "e4m3", 128),
        reference.per_token_cast_with_precomputed_sf(low, "e4m3", 128, pair[1]),
        *reference.per_token_cast(pair, "e2m1", 32, **block),
        *reference.stochastic_cast(low, "e4m3", 128, seed=3),
    )
    problems = [compare.bits(mine, right) for mine, right in zip(results, wanted, strict=True)]
    assert problems == [""] * len(wanted)
    with pytest.raises(ValueError, match=r"x\[1\]: is on cuda:0, must be on cuda:1 like data"):
        quant.cast_back((pair[0], pair[1].to("cuda:0")), "bf16", (1, 128))


def test_preload_makes_a_profile_ready() -> None:
    loaded = tw.preload(device="cuda", profile="deepseek-v4-flash", operators=("per_token_cast",))
    assert loaded
    assert all(one.error is None for one in loaded)
