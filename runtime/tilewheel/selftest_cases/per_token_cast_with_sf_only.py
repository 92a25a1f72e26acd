"""Self-test of per_token_cast_with_sf_only: the scales of per_token_cast, for both formats."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import torch

from tilewheel.key import Value
from tilewheel.reference import quant
from tilewheel.selftest_cases import Case
from tilewheel.selftest_cases.quantised import (
    SIZES,
    as_argument,
    empty_sf,
    group_sizes,
    place,
    sf_layouts,
    torch_dtype,
    values,
)


def cases(parameters: dict[str, Value], device: str) -> Iterator[Case]:
    """Yield the calls for one variant."""
    sf_dtype = torch_dtype(parameters["sf_dtype"])
    defaults = quant.CLAMP_MIN_E4M3_SF if sf_dtype == torch.float8_e4m3fn else quant.CLAMP_MIN
    choices = itertools.product(SIZES, group_sizes(parameters), sf_layouts(parameters))
    for (num_tokens, hidden), size, col_major in choices:
        for fmt in ("e4m3", "e2m1"):
            x = values(num_tokens, hidden, torch_dtype(parameters["x_dtype"]))
            sf = quant.per_token_cast_with_sf_only(
                x, fmt, size, round_sf=bool(parameters["round_sf"]), sf_dtype=sf_dtype
            )
            written = empty_sf(sf, col_major=col_major, device=device)
            yield Case(
                name=f"{num_tokens}x{hidden} groups of {size} {col_major=} {fmt}",
                arguments=(
                    place(x, device),
                    as_argument(written, parameters),
                    defaults[fmt],
                    quant.MAX_VALUE[fmt],
                    size,
                ),
                expected={1: as_argument(sf, parameters)},
            )
