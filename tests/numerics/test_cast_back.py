"""cast_back on every backend: data times scale, rounded once, for every byte and form of scales."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tilewheel as tw
from tilewheel import compare

FORMS = [
    (torch.float32, False),
    (torch.float32, True),
    (torch.int32, False),
    (torch.int32, True),
    (torch.int16, False),
    (torch.int16, True),
    (torch.float8_e4m3fn, False),
    (torch.float8_e4m3fn, True),
]


def run(machine: Any, pair: Any, fmt: str, block: tuple[int, int], **others: Any) -> torch.Tensor:
    """Call the operator, or skip where this machine's artifacts do not cover the request."""
    try:
        return tw.quant.cast_back(pair, fmt, block, **others)
    except tw.NoArtifactError as error:
        pytest.skip(str(error).splitlines()[0])


def pair(
    num_tokens: int,
    hidden: int,
    x_fmt: str,
    block: tuple[int, int],
    sf_dtype: torch.dtype = torch.float32,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Data of all bytes in turn, so NaN too, and scales of many sizes."""
    width = hidden if x_fmt == "e4m3" else hidden // 2
    data = torch.arange(num_tokens * width).view(num_tokens, width).to(torch.uint8)
    data = data.view(torch.float8_e4m3fn if x_fmt == "e4m3" else torch.int8)
    shape = (-(-num_tokens // block[0]), -(-hidden // block[1]))
    generator = torch.Generator().manual_seed(hidden)
    if sf_dtype in (torch.int32, torch.int16):
        size = sf_dtype.itemsize
        words = (*shape[:1], -(-shape[1] // size) * size)
        exponents = torch.randint(0, 255, words, dtype=torch.uint8, generator=generator)
        return data, exponents.view(sf_dtype)
    return data, (torch.randn(shape, generator=generator) * 9).to(sf_dtype)


@pytest.mark.parametrize("fmt", ["bf16", "f32"])
@pytest.mark.parametrize("x_fmt", ["e4m3", "e2m1"])
@pytest.mark.parametrize(("sf_dtype", "col_major"), FORMS)
@pytest.mark.parametrize("block", [(1, 32), (1, 128), (128, 128), (3, 48), (32, 32)])
def test_every_form_is_exact(
    machine: Any,
    block: tuple[int, int],
    sf_dtype: torch.dtype,
    col_major: bool,
    x_fmt: str,
    fmt: str,
) -> None:
    for num_tokens, hidden in ((130, 576), (3, 2880), (1, 64)):
        data, sf = pair(num_tokens, hidden, x_fmt, block, sf_dtype)
        wanted = tw.reference.quant.cast_back((data, sf), fmt, block)
        on_device = sf.to(machine.device)
        if col_major:
            on_device = on_device.t().contiguous().t()
        actual = run(machine, (data.to(machine.device), on_device), fmt, block)
        assert compare.bits(actual, wanted) == ""


@pytest.mark.parametrize("num_tokens", [0, 1, 2, 5, 63])
@pytest.mark.parametrize("hidden", [64, 1408, 2048, 2880, 7168])
def test_every_size_is_exact(machine: Any, hidden: int, num_tokens: int) -> None:
    data, sf = pair(num_tokens, hidden, "e4m3", (1, 32))
    wanted = tw.reference.quant.cast_back((data, sf), "bf16", (1, 32))
    actual = run(machine, (data.to(machine.device), sf.to(machine.device)), "bf16", (1, 32))
    assert compare.bits(actual, wanted) == ""


def test_a_cast_and_back_keeps_values_of_the_format(machine: Any) -> None:
    grid = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.5, -1, -1.5, -2, -3, -4, -6, 0.0])
    x = (grid * 0.25).repeat(3, 8).to(torch.bfloat16).to(machine.device)
    try:
        quantised = tw.quant.per_token_cast(x, "e2m1", 32, round_sf=True)
    except tw.NoArtifactError as error:
        pytest.skip(str(error).splitlines()[0])
    assert torch.equal(run(machine, quantised, "bf16", (1, 32)).cpu(), x.cpu())


def test_any_row_stride_and_any_address(machine: Any) -> None:
    data, sf = pair(9, 256, "e4m3", (1, 32))
    wide = data.to(machine.device)
    for begin in (0, 16, 1, 61):
        part = wide[:, begin : begin + 192]
        scales = sf[:, :6].to(machine.device)
        wanted = tw.reference.quant.cast_back((part.cpu(), sf[:, :6]), "bf16", (1, 32))
        assert compare.bits(run(machine, (part, scales), "bf16", (1, 32)), wanted) == ""


def test_per_token_cast_back_is_the_form_of_one_token(machine: Any) -> None:
    data, sf = pair(5, 192, "e4m3", (1, 32))
    on_device = (data.to(machine.device), sf.to(machine.device))
    wanted = run(machine, on_device, "f32", (1, 32))
    assert compare.bits(tw.quant.per_token_cast_back(on_device, "f32", 32), wanted.cpu()) == ""


def test_out_is_written_and_returned_and_nothing_beyond_it(machine: Any) -> None:
    data, sf = pair(5, 192, "e4m3", (1, 32))
    memory = torch.full((6 * 192,), 7.0, device=machine.device)
    out = memory[: 5 * 192].view(5, 192)
    on_device = (data.to(machine.device), sf.to(machine.device))
    assert run(machine, on_device, "f32", (1, 32), out=out) is out
    wanted = tw.reference.quant.cast_back((data, sf), "f32", (1, 32))
    assert compare.bits(out, wanted) == ""
    assert bool((memory[5 * 192 :] == 7).all())
