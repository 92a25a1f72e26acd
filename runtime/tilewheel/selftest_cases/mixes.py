"""Inputs of the mHC operators and how their results may differ, shared by self-test and tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tilewheel import compare

POST_RELATIVE = 1e-5
"""post_mix, comb_mix: float32 sums of other order and reciprocals of 1 or 2 units in the last
place, carried through an exponential of mixes up to about 10 and a normalisation that corrects
itself; measured below 2e-6."""
BF16_RELATIVE = 2.0**-7
"""One step of bfloat16 of the result: a float32 next to a rounding boundary may fall on either
side."""
BF16_ABSOLUTE = 2.0**-18
"""What four products of float32 of size 1 to 8 leave where they cancel."""

mixes: Callable[[Any, Any], str] = compare.within(1e-12, POST_RELATIVE)
channels: Callable[[Any, Any], str] = compare.within(8 * BF16_ABSOLUTE, BF16_RELATIVE)
normalised_channels: Callable[[Any, Any], str] = compare.within(
    32 * BF16_ABSOLUTE, 2 * BF16_RELATIVE
)
"""With output norm a value is rounded twice, and next to a tie the other way each time; weights up
to 2 scale the rest."""


def pre_inputs(
    num_splits: int, num_tokens: int, hidden: int, *, row: int = 24
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return gemm_out_mul, gemm_out_sqrsum, scale, base, residual as a server's GEMM leaves them.

    ``row`` floats lie between the tokens of gemm_out_mul.
    """
    generator = torch.Generator().manual_seed(num_splits + 7 * num_tokens + hidden)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    residual = normal(num_tokens, 4, hidden).to(torch.bfloat16)
    # Mixes of about 1.5 after the division by the root mean square.
    products = normal(num_splits, num_tokens, row) * (1.5 / num_splits**0.5)
    share = torch.rand((num_splits, num_tokens), generator=generator) + 0.5
    squares = residual.float().square().sum((1, 2)) * share / share.sum(0)
    return products[..., :24], squares, normal(3), normal(24), residual


def post_inputs(num_tokens: int, hidden: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return x, residual, post_mix, comb_mix."""
    generator = torch.Generator().manual_seed(num_tokens + hidden)
    x = torch.randn((num_tokens, hidden), generator=generator).to(torch.bfloat16)
    residual = torch.randn((num_tokens, 4, hidden), generator=generator).to(torch.bfloat16)
    post_mix = 2 * torch.rand((num_tokens, 4), generator=generator)
    comb_mix = torch.rand((num_tokens, 4, 4), generator=generator)
    return x, residual, post_mix, comb_mix / comb_mix.sum(1, keepdim=True)
