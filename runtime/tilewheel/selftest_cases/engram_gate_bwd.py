"""Self-test of engram_gate_bwd: with and without a mask, more and fewer parts than tokens."""

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

_PARTIAL = 11


def cases(parameters: dict[str, Value], device: str) -> Iterator[Case]:
    """Yield the calls for one variant."""
    for hidden in hidden_sizes(parameters):
        # num_tokens, num_parts, whether there is a mask.
        for num_tokens, num_parts, has_mask in (
            (0, 2, False),
            (1, 3, False),
            (13, 4, True),
            (9, 1, False),
        ):
            x, kv, weight, mask = gate_inputs(num_tokens, hidden)
            grad_out = gate_inputs(num_tokens, hidden)[1][:, 1:].contiguous()
            masked = mask if has_mask else None
            saved = engram.engram_gate_fwd(x, kv, weight, EPS, CLAMP_VALUE)[1:]
            inputs = (grad_out, x, kv, weight, *saved)
            g, a, b, w, dot, gate, rstd_x, rstd_k = (tensor.double() for tensor in inputs)
            grad_x, grad_kv, partial = engram.engram_gate_bwd(
                g, a, b, w, dot, gate, rstd_x, rstd_k, CLAMP_VALUE, image_token_mask=masked
            )
            yield Case(
                name=f"num_tokens={num_tokens} num_parts={num_parts} hidden={hidden} "
                f"mask={has_mask}",
                arguments=(
                    *(tensor.to(device) for tensor in inputs),
                    (mask if has_mask else mask[:0]).to(device),
                    torch.empty(x.shape, dtype=x.dtype, device=device),
                    torch.empty(kv.shape, dtype=kv.dtype, device=device),
                    torch.empty((num_parts, 4, hidden), device=device),
                    CLAMP_VALUE,
                ),
                # Which tokens a part takes is the backend's business: sums are compared.
                expected={9: grad_x, 10: grad_kv, _PARTIAL: partial},
                difference=_difference,
            )


def _difference(actual: Any, expected: Any) -> str:
    if actual.dtype is torch.bfloat16:
        return str(ROUNDED(actual.double(), expected))
    return str(SUMMED(actual.double().sum(dim=0), expected.sum(dim=0)))
