"""Self-test of per_token_cast_with_precomputed_sf: scales of any size, also too small ones."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from tilewheel.key import Value
from tilewheel.reference import quant
from tilewheel.selftest_cases import Case
from tilewheel.selftest_cases.quantised import FMT, SIZES, place, torch_dtype, values


def cases(parameters: dict[str, Value], device: str) -> Iterator[Case]:
    """Yield the calls for one variant."""
    fmt = FMT[str(parameters["data_dtype"])]
    num_per_channels = int(parameters["num_per_channels"])
    for num_tokens, hidden in SIZES:
        x = values(num_tokens, hidden, torch_dtype(parameters["x_dtype"]))
        generator = torch.Generator().manual_seed(hidden)
        shape = (num_tokens, -(-hidden // num_per_channels))
        sf = torch.rand(shape, generator=generator) * 0.03 + 1e-6
        data = quant.per_token_cast_with_precomputed_sf(x, fmt, num_per_channels, sf)
        yield Case(
            name=f"num_tokens={num_tokens} hidden={hidden}",
            arguments=(place(x, device), sf.to(device), torch.empty_like(data, device=device)),
            expected={2: data},
        )
