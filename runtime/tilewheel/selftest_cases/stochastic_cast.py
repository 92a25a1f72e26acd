"""Self-test of stochastic_cast: the reference draws the same bits."""

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
    group_sizes,
    place,
    torch_dtype,
    values,
)


def cases(parameters: dict[str, Value], device: str) -> Iterator[Case]:
    """Yield the calls for one variant."""
    fmt = FMT[str(parameters["data_dtype"])]
    for (num_tokens, hidden), size in itertools.product(SIZES, group_sizes(parameters)):
        for seed, offset in ((0, 0), (-(2**40) - 3, 2**33 + 1)):
            x = values(num_tokens, hidden, torch_dtype(parameters["x_dtype"]))
            data, sf = quant.stochastic_cast(
                x, fmt, size, seed=seed, offset=offset, round_sf=bool(parameters["round_sf"])
            )
            yield Case(
                name=f"{num_tokens}x{hidden} groups of {size} {seed=}",
                arguments=(
                    place(x, device),
                    torch.empty_like(data, device=device),
                    torch.empty_like(sf, device=device),
                    quant.CLAMP_MIN[fmt],
                    size,
                    seed,
                    offset,
                ),
                expected={1: data, 2: sf},
            )
