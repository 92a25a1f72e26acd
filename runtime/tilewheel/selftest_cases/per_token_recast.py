"""Self-test of per_token_recast: blocks of one token, of a few, and larger than the tensor."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import torch

from tilewheel.key import Value
from tilewheel.reference import quant
from tilewheel.selftest_cases import Case
from tilewheel.selftest_cases.quantised import (
    FMT,
    SIZES,
    empty_sf,
    group_sizes,
    sf_layouts,
    torch_dtype,
    values,
)


def cases(parameters: dict[str, Value], device: str) -> Iterator[Case]:
    """Yield the calls for one variant."""
    for (num_tokens, hidden), size, col_major in itertools.product(
        SIZES, group_sizes(parameters), sf_layouts(parameters)
    ):
        for block in ((1, 32), (3, 128), (128, 48)):
            yield _case(parameters, device, num_tokens, hidden, size, col_major, block)


def _case(
    parameters: dict[str, Value],
    device: str,
    num_tokens: int,
    hidden: int,
    size: int,
    col_major: bool,
    block: tuple[int, int],
) -> Case:
    fmt = FMT[str(parameters["data_dtype"])]
    x_fmt = FMT[str(parameters["x_dtype"])]
    x, _ = quant.per_token_cast(values(num_tokens, hidden, torch.float32), x_fmt, 32)
    generator = torch.Generator().manual_seed(hidden)
    shape = (-(-num_tokens // block[0]), -(-hidden // block[1]))
    x_sf = torch.rand(shape, generator=generator).mul_(5)
    data, sf = quant.per_token_cast(
        (x, x_sf),
        fmt,
        size,
        x_block_size=block,
        round_sf=bool(parameters["round_sf"]),
        sf_dtype=torch_dtype(parameters["sf_dtype"]),
    )
    x_sf_on_device = empty_sf(x_sf, col_major=col_major, device=device).copy_(x_sf)
    return Case(
        name=f"{num_tokens}x{hidden} groups of {size} {col_major=} {block=}",
        arguments=(
            x.to(device),
            x_sf_on_device,
            torch.empty_like(data, device=device),
            empty_sf(sf, col_major=col_major, device=device),
            quant.CLAMP_MIN[fmt],
            size,
            *block,
        ),
        expected={2: data, 3: sf},
    )
