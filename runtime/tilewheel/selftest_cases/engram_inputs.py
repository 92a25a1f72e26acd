"""Inputs of the Engram operators for their self-tests, and how near the results must be."""

from __future__ import annotations

import torch
from torch import Tensor

from tilewheel import compare
from tilewheel.key import ANY, Value

# Against float64: one rounding to bfloat16 (at most 2**-8 of a value) after float32 arithmetic.
ROUNDED = compare.within(1e-5, 2**-8)
# float32 sums over hidden, against float64; near zero to the size of the terms.
SUMMED = compare.within(1e-4, 1e-5)
EPS = 1e-6
CLAMP_VALUE = 1e-6


def hidden_sizes(parameters: dict[str, Value]) -> tuple[int, ...]:
    """Return the hidden of a variant, or some that a generic one must serve."""
    hidden = parameters["hidden"]
    return (64, 576, 2560) if hidden == ANY else (int(hidden),)


def gate_inputs(num_tokens: int, hidden: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return x, kv, weight_fused and a mask; some tokens are all zeros."""
    generator = torch.Generator().manual_seed(num_tokens + hidden)
    x = torch.randn((num_tokens, 4, hidden), generator=generator).bfloat16()
    kv = torch.randn((num_tokens, 5, hidden), generator=generator).bfloat16()
    x[3::7] = 0.0
    weight = 1 + 0.2 * torch.randn((4, hidden), generator=generator)
    mask = torch.arange(num_tokens) % 5 == 2
    return x, kv, weight, mask
