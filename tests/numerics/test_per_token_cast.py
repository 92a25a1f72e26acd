"""per_token_cast and its halves on every backend: the reference's bytes, for values that matter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import tilewheel as tw
from tilewheel import compare
from tilewheel.selftest_cases.quantised import values

HIDDEN = [64, 576, 1408, 2048, 2880, 7168]
NUM_TOKENS = [0, 1, 2, 3, 17, 130]
FLOAT32_SF: dict[str, Any] = {}
ROUND: dict[str, Any] = {"round_sf": True}
PACKED: dict[str, Any] = {"round_sf": True, "use_packed_ue8m0": True}
E4M3_SF: dict[str, Any] = {"use_e4m3_sf": True}
FORMS = [
    pytest.param(form | {"use_tma_aligned_col_major_sf": col_major}, id=name + "-col" * col_major)
    for name, form in (
        ("float32", FLOAT32_SF),
        ("round", ROUND),
        ("packed", PACKED),
        ("e4m3", E4M3_SF),
    )
    for col_major in (False, True)
]


def sf_dtype(machine: Any, form: dict[str, Any]) -> torch.dtype:
    if form.get("use_packed_ue8m0"):
        return torch.int32 if machine.backend == "cuda" else torch.int16
    return torch.float8_e4m3fn if form.get("use_e4m3_sf") else torch.float32


def expected(
    machine: Any, x: Any, fmt: str, size: int, form: dict[str, Any], **others: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    return tw.reference.quant.per_token_cast(
        x,
        fmt,
        size,
        round_sf=form.get("round_sf", False),
        sf_dtype=sf_dtype(machine, form),
        **others,
    )


def run(machine: Any, x: torch.Tensor, fmt: str, size: int, **flags: Any) -> Any:
    """Call the operator, or skip where this machine's artifacts do not cover the request."""
    return or_skip(machine, size, lambda: tw.quant.per_token_cast(x, fmt, size, **flags))


def or_skip(machine: Any, size: int, call: Callable[[], Any]) -> Any:
    if machine.backend != "cuda" and size != 32:
        pytest.skip("Ascend has groups of 32 channels")
    try:
        return call()
    except tw.NoArtifactError as error:
        pytest.skip(str(error).splitlines()[0])


def check(actual: tuple[torch.Tensor, ...], wanted: tuple[torch.Tensor, ...]) -> None:
    for result, right in zip(actual, wanted, strict=True):
        assert compare.bits(result, right) == ""


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("size", [16, 32, 64, 128])
@pytest.mark.parametrize("fmt", ["e4m3", "e2m1"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_every_form_is_exact(
    machine: Any, dtype: torch.dtype, fmt: str, size: int, form: dict[str, Any]
) -> None:
    for num_tokens, hidden in ((17, 2880), (130, 576)):
        x = values(num_tokens, hidden, dtype)
        data, sf = run(machine, x.to(machine.device), fmt, size, **form)
        check((data, sf), expected(machine, x, fmt, size, form))


@pytest.mark.parametrize("num_tokens", NUM_TOKENS)
@pytest.mark.parametrize("hidden", HIDDEN)
@pytest.mark.parametrize("form", [FLOAT32_SF, PACKED | {"use_tma_aligned_col_major_sf": True}])
@pytest.mark.parametrize("size", [32, 128])
def test_every_size_is_exact(
    machine: Any, size: int, form: dict[str, Any], hidden: int, num_tokens: int
) -> None:
    x = values(num_tokens, hidden, torch.bfloat16)
    actual = run(machine, x.to(machine.device), "e4m3", size, **form)
    check(actual, expected(machine, x, "e4m3", size, form))


@pytest.mark.parametrize("fmt", ["e4m3", "e2m1"])
@pytest.mark.parametrize("size", [32, 128])
def test_every_bfloat16_is_exact(machine: Any, size: int, fmt: str) -> None:
    every = torch.arange(65536, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)
    x = every.view(256, 256).t().contiguous()
    for form in (FLOAT32_SF, ROUND):
        actual = run(machine, x.to(machine.device), fmt, size, **form)
        check(actual, expected(machine, x, fmt, size, form))


def test_halves_between_all_neighbours_of_e2m1_take_the_even_code(machine: Any) -> None:
    group = torch.tensor([6, 0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5, -0.25, -5, 0, -0.0, 1, 2, 3, 4.0])
    x = group.repeat(2, 4)
    data, sf = run(machine, x.to(machine.device), "e2m1", 32)
    assert sf.cpu().tolist() == [[1.0, 1.0]] * 2
    low, high = data.cpu()[0, :8] & 15, (data.cpu()[0, :8] >> 4) & 15
    assert low.tolist() == [7, 2, 4, 6, 8, 0, 2, 5]
    assert high.tolist() == [0, 2, 4, 6, 14, 8, 4, 6]


def test_scales_just_above_a_power_of_two_round_up(machine: Any) -> None:
    x = torch.zeros((3, 64))
    x[0, 0], x[1, 0], x[2, 0] = 448.0, torch.tensor(448.0).nextafter(torch.tensor(1e9)), 447.0
    _, sf = run(machine, x.to(machine.device), "e4m3", 32, round_sf=True)
    assert sf.cpu()[:, 0].tolist() == [1.0, 2.0, 1.0]


@pytest.mark.parametrize("fmt", ["e4m3", "e2m1"])
@pytest.mark.parametrize("form", [FLOAT32_SF, ROUND])
def test_what_is_not_finite_stays_in_its_group(machine: Any, form: Any, fmt: str) -> None:
    x = values(6, 128, torch.float32).nan_to_num(0, 0, 0)
    clean = run(machine, x.to(machine.device), fmt, 32, **form)
    x[1, 5], x[2, 40], x[3, 70] = torch.nan, torch.inf, -torch.inf
    data, sf = run(machine, x.to(machine.device), fmt, 32, **form)
    check((data, sf), expected(machine, x, fmt, 32, form))
    assert bool(sf.cpu().isfinite().all())
    assert torch.equal(sf.cpu()[4:], clean[1].cpu()[4:])
    assert torch.equal(sf.cpu()[1, 1:], clean[1].cpu()[1, 1:])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_any_row_stride_and_any_address(machine: Any, dtype: torch.dtype) -> None:
    wide = torch.randn((9, 300)).to(dtype).to(machine.device)
    for begin, end in ((0, 192), (8, 200), (1, 193), (43, 299)):
        x = wide[:, begin:end]
        actual = run(machine, x, "e4m3", 32)
        check(actual, expected(machine, x.cpu(), "e4m3", 32, FLOAT32_SF))
    odd = torch.randn((9, 195)).to(dtype).to(machine.device)[:, :192]
    check(run(machine, odd, "e2m1", 32), expected(machine, odd.cpu(), "e2m1", 32, FLOAT32_SF))


def test_a_row_broadcast_over_all_tokens(machine: Any) -> None:
    x = torch.randn((1, 128)).to(machine.device).expand(5, 128)
    check(run(machine, x, "e4m3", 32), expected(machine, x.cpu(), "e4m3", 32, FLOAT32_SF))


def test_a_row_gives_the_same_bytes_alone_and_in_a_batch(machine: Any) -> None:
    x = values(33, 576, torch.bfloat16).to(machine.device)
    data, sf = run(machine, x, "e4m3", 32)
    for i in (0, 7, 32):
        alone = run(machine, x[i : i + 1], "e4m3", 32)
        check(alone, (data[i : i + 1].cpu(), sf[i : i + 1].cpu()))


@pytest.mark.parametrize("clamp_min", [1e-4, 0.75, 4000.0])
def test_clamp_min_is_a_run_time_value(machine: Any, clamp_min: float) -> None:
    x = values(5, 128, torch.bfloat16)
    actual = run(machine, x.to(machine.device), "e4m3", 32, clamp_min=clamp_min)
    check(actual, expected(machine, x, "e4m3", 32, FLOAT32_SF, clamp_min=clamp_min))


@pytest.mark.parametrize("num_tokens", [1, 2, 3, 4, 5, 63])
@pytest.mark.parametrize("form", [ROUND, PACKED])
def test_column_major_scales_are_padded_and_nothing_else_is_written(
    machine: Any, form: Any, num_tokens: int
) -> None:
    x = values(num_tokens, 576, torch.bfloat16)
    flags = form | {"use_tma_aligned_col_major_sf": True}
    sf = run(machine, x.to(machine.device), "e4m3", 32, **flags)[1]
    padded = -(-num_tokens // 4) * 4 if machine.backend == "cuda" else num_tokens
    assert sf.stride() == (1, padded)
    memory = torch.full((sf.shape[1], padded), 7, dtype=sf.dtype, device=sf.device)
    data = torch.empty((num_tokens, 576), dtype=torch.float8_e4m3fn, device=sf.device)
    out = (data, memory.t()[:num_tokens])
    assert run(machine, x.to(machine.device), "e4m3", 32, out=out, **flags)[1] is out[1]
    check(out, expected(machine, x, "e4m3", 32, form))
    assert bool((memory[:, num_tokens:] == 7).all())


@pytest.mark.parametrize("fmt", ["e4m3", "e2m1"])
def test_out_is_written_and_returned_and_nothing_beyond_it(machine: Any, fmt: str) -> None:
    for num_tokens in (1, 2, 31):
        x = values(num_tokens, 576, torch.bfloat16).to(machine.device)
        width = 576 if fmt == "e4m3" else 288
        memory = torch.full(((num_tokens + 1) * width,), 7, dtype=torch.int8, device=x.device)
        scales = torch.full(((num_tokens + 1) * 18,), 7.0, device=x.device)
        data = memory[: num_tokens * width].view(num_tokens, width)
        if fmt == "e4m3":
            data = data.view(torch.float8_e4m3fn)
        out = (data, scales[: num_tokens * 18].view(num_tokens, 18))
        for _ in range(2):
            result = run(machine, x, fmt, 32, out=out)
            assert (result[0] is out[0], result[1] is out[1]) == (True, True)
        check(out, expected(machine, x.cpu(), fmt, 32, FLOAT32_SF))
        assert bool((memory[num_tokens * width :] == 7).all())
        assert bool((scales[num_tokens * 18 :] == 7).all())


@pytest.mark.parametrize("x_fmt", ["e4m3", "e2m1"])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("size", "block"), [(32, (1, 32)), (128, (128, 128)), (32, (3, 64))])
def test_a_quantised_pair_is_quantised_anew(
    machine: Any, size: int, block: tuple[int, int], form: dict[str, Any], x_fmt: str
) -> None:
    data, _ = tw.reference.quant.per_token_cast(values(130, 2880, torch.float32), x_fmt, 32)
    sf = torch.rand((-(-130 // block[0]), -(-2880 // block[1]))) * 7
    pair = (data.to(machine.device), sf.to(machine.device))
    for fmt in ("e4m3", "e2m1"):
        actual = run(machine, pair, fmt, size, x_block_size=block, **form)
        wanted = expected(machine, (data, sf), fmt, size, form, x_block_size=block)
        check(actual, wanted)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("size", [32, 128])
@pytest.mark.parametrize("fmt", ["e4m3", "e2m1"])
def test_scales_alone_are_those_of_the_cast(machine: Any, fmt: str, size: int, form: Any) -> None:
    x = values(18, 2880, torch.bfloat16)
    on_device = x.to(machine.device)
    sf = or_skip(
        *(machine, size),
        lambda: tw.quant.per_token_cast_with_sf_only(on_device, fmt, size, **form),
    )
    assert compare.bits(sf, expected(machine, x, fmt, size, form)[1]) == ""


@pytest.mark.parametrize(("fmt", "size"), [("e4m3", 128), ("e2m1", 32), ("e4m3", 32)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_data_for_given_scales(machine: Any, dtype: torch.dtype, fmt: str, size: int) -> None:
    x = values(18, 2880, dtype)
    sf = torch.rand((18, -(-2880 // size))) * 0.02 + 1e-5
    arguments = (x.to(machine.device), fmt, size, sf.to(machine.device))
    data = or_skip(
        *(machine, size), lambda: tw.quant.per_token_cast_with_precomputed_sf(*arguments)
    )
    wanted = tw.reference.quant.per_token_cast_with_precomputed_sf(x, fmt, size, sf)
    assert compare.bits(data, wanted) == ""


@pytest.mark.parametrize(("fmt", "size"), [("e4m3", 128), ("e2m1", 32)])
@pytest.mark.parametrize("round_sf", [False, True])
def test_stochastic_rounding_draws_the_bits_of_the_reference(
    machine: Any, round_sf: bool, fmt: str, size: int
) -> None:
    x = values(18, 2880, torch.bfloat16 if fmt == "e4m3" else torch.float32)
    arguments: dict[str, Any] = {"seed": -(2**50) - 77, "offset": 2**35 + 3, "round_sf": round_sf}
    on_device = x.to(machine.device)
    actual = or_skip(
        *(machine, size), lambda: tw.quant.stochastic_cast(on_device, fmt, size, **arguments)
    )
    check(actual, tw.reference.quant.stochastic_cast(x, fmt, size, **arguments))
