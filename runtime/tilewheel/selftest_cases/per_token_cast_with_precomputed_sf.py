"""Self-test of per_token_cast_with_precomputed_sf: scales of any size, also too small ones."""

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
        x = values(num_tokens, hidden, torch_dtype(parameters["x_dtype"]))
        generator = torch.Generator().manual_seed(hidden)
        sf = torch.rand((num_tokens, -(-hidden // size)), generator=generator) * 0.03 + 1e-6
        data = quant.per_token_cast_with_precomputed_sf(x, fmt, size, sf)
        written = torch.empty_like(data, device=device)
        yield Case(
            name=f"{num_tokens}x{hidden} groups of {size}",
            arguments=(place(x, device), sf.to(device), written, size),
            expected={2: data},
        )
