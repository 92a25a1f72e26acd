"""Self-test of per_token_recast: blocks of one token, of a few, and larger than the tensor."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from tilewheel.key import Value
from tilewheel.reference import quant
from tilewheel.selftest_cases import Case
from tilewheel.selftest_cases.quantised import FMT, SIZES, empty_sf, torch_dtype, values


def cases(parameters: dict[str, Value], device: str) -> Iterator[Case]:
    """Yield the calls for one variant."""
    fmt = FMT[str(parameters["data_dtype"])]
    x_fmt = FMT[str(parameters["x_dtype"])]
    col_major = bool(parameters["col_major_sf"])
    for num_tokens, hidden in SIZES:
        for block in ((1, 32), (3, 128), (128, 48)):
            x, _ = quant.per_token_cast(values(num_tokens, hidden, torch.float32), x_fmt, 32)
            generator = torch.Generator().manual_seed(hidden)
            shape = (-(-num_tokens // block[0]), -(-hidden // block[1]))
            x_sf = torch.rand(shape, generator=generator).mul_(5)
            data, sf = quant.per_token_cast(
                (x, x_sf),
                fmt,
                int(parameters["num_per_channels"]),
                x_block_size=block,
                round_sf=bool(parameters["round_sf"]),
                sf_dtype=torch_dtype(parameters["sf_dtype"]),
            )
            yield Case(
                name=f"num_tokens={num_tokens} hidden={hidden} block={block}",
                arguments=(
                    x.to(device),
                    x_sf.to(device),
                    torch.empty_like(data, device=device),
                    empty_sf(sf, col_major=col_major, device=device),
                    quant.CLAMP_MIN[fmt],
                    *block,
                ),
                expected={2: data, 3: sf.t() if col_major else sf},
            )
