"""Self-test of cast_back: every byte of data, scales of every size, blocks of several shapes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import torch
from torch import Tensor

from tilewheel.key import Value
from tilewheel.reference import quant
from tilewheel.selftest_cases import Case
from tilewheel.selftest_cases.quantised import (
    SIZES,
    as_argument,
    empty_sf,
    place,
    sf_layouts,
    torch_dtype,
)

_FMT = {"bfloat16": "bf16", "float32": "f32"}
_BLOCKS = ((1, 32), (1, 128), (3, 48))


def cases(parameters: dict[str, Value], device: str) -> Iterator[Case]:
    """Yield the calls for one variant."""
    data_dtype = torch_dtype(parameters["data_dtype"])
    sf_dtype = torch_dtype(parameters["sf_dtype"])
    for (num_tokens, hidden), block in itertools.product(SIZES, _BLOCKS):
        for col_major in sf_layouts(parameters):
            generator = torch.Generator().manual_seed(hidden)
            width = hidden // 2 if data_dtype == torch.int8 else hidden
            shape = (num_tokens, width + 16)
            wide = torch.randint(-128, 128, shape, dtype=torch.int8, generator=generator)
            data = wide.view(data_dtype)[:, :width]
            sf = _scales(num_tokens, hidden, block, sf_dtype, generator)
            fmt = _FMT[str(parameters["out_dtype"])]
            out = quant.cast_back((data, sf), fmt, block)
            on_device = empty_sf(sf, col_major=col_major, device=device).copy_(sf)
            yield Case(
                name=f"{num_tokens}x{hidden} {block=} {col_major=}",
                arguments=(
                    place(data, device),
                    as_argument(on_device, parameters),
                    torch.empty_like(out, device=device),
                    *block,
                ),
                expected={2: out},
            )


def _scales(
    num_tokens: int,
    hidden: int,
    block: tuple[int, int],
    dtype: torch.dtype,
    generator: torch.Generator,
) -> Tensor:
    per_word = {torch.int32: 4, torch.int16: 2}.get(dtype, 1)
    num_groups = -(-hidden // block[1])
    shape = (-(-num_tokens // block[0]), -(-num_groups // per_word))
    if per_word > 1:
        exponents = torch.randint(
            0, 255, (*shape, per_word), dtype=torch.uint8, generator=generator
        )
        return exponents.view(dtype).squeeze(-1)
    return (torch.randn(shape, generator=generator) * 20).to(dtype)
