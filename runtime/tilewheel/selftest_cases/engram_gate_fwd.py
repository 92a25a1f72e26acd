"""Self-test of engram_gate_fwd: with and without a mask and saving, and in place."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from tilewheel.key import Value
from tilewheel.reference import engram
from tilewheel.selftest_cases import Case
from tilewheel.selftest_cases.engram_inputs import (
    CLAMP_VALUE,
    EPS,
    ROUNDED,
    SUMMED,
    gate_inputs,
    hidden_sizes,
)


def cases(parameters: dict[str, Value], device: str) -> Iterator[Case]:
    """Yield the calls for one variant."""
    for hidden in hidden_sizes(parameters):
        # num_tokens, whether there is a mask, whether numbers are saved, whether in place.
        for num_tokens, has_mask, saves, inplace in (
            (0, False, True, False),
            (1, False, True, False),
            (13, True, True, False),
            (13, False, False, True),
        ):
            x, kv, weight, mask = gate_inputs(num_tokens, hidden)
            expected = engram.engram_gate_fwd(
                x.double(),
                kv.double(),
                weight,
                EPS,
                CLAMP_VALUE,
                image_token_mask=mask if has_mask else None,
            )
            streams = x.to(device, copy=True)
            out = streams if inplace else torch.empty_like(streams)
            saved = [torch.empty((num_tokens if saves else 0, 4), device=device) for _ in range(4)]
            yield Case(
                name=f"num_tokens={num_tokens} hidden={hidden} mask={has_mask} saves={saves} "
                f"inplace={inplace}",
                arguments=(
                    streams,
                    kv.to(device),
                    weight.to(device),
                    (mask if has_mask else mask[:0]).to(device),
                    out,
                    *saved,
                    EPS,
                    CLAMP_VALUE,
                ),
                expected=dict(enumerate(expected[: 5 if saves else 1], start=4)),
                difference=_difference,
            )


def _difference(actual: Any, expected: Any) -> str:
    how = ROUNDED if actual.dtype is torch.bfloat16 else SUMMED
    return str(how(actual.double(), expected))
