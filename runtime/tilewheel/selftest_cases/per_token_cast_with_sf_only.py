"""Self-test of per_token_cast_with_sf_only: the scales of per_token_cast, for both formats."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from tilewheel.key import Value
from tilewheel.reference import quant
from tilewheel.selftest_cases import Case
from tilewheel.selftest_cases.quantised import SIZES, empty_sf, place, torch_dtype, values


def cases(parameters: dict[str, Value], device: str) -> Iterator[Case]:
    """Yield the calls for one variant."""
    col_major = bool(parameters["col_major_sf"])
    sf_dtype = torch_dtype(parameters["sf_dtype"])
    defaults = quant.CLAMP_MIN_E4M3_SF if sf_dtype == torch.float8_e4m3fn else quant.CLAMP_MIN
    for num_tokens, hidden in SIZES:
        for fmt in ("e4m3", "e2m1"):
            x = values(num_tokens, hidden, torch_dtype(parameters["x_dtype"]))
            sf = quant.per_token_cast_with_sf_only(
                x,
                fmt,
                int(parameters["num_per_channels"]),
                round_sf=bool(parameters["round_sf"]),
                sf_dtype=sf_dtype,
            )
            yield Case(
                name=f"num_tokens={num_tokens} hidden={hidden} fmt={fmt}",
                arguments=(
                    place(x, device),
                    empty_sf(sf, col_major=col_major, device=device),
                    defaults[fmt],
                    quant.MAX_VALUE[fmt],
                ),
                expected={1: sf.t() if col_major else sf},
            )
