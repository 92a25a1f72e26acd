"""Transforms of activations in plain PyTorch, on any device."""

from __future__ import annotations

import torch
from torch import Tensor


def apply_rotary(
    query: Tensor,
    cos_sin_cache: Tensor,
    key: Tensor | None = None,
    positions: Tensor | None = None,
    *,
    interleaved: bool = False,
    conjugate: bool = False,
    seqlen_offset: int = 0,
) -> None:
    """Rotate the pairs of each row of ``query`` and ``key`` by their token's angles, in place.

    Args:
        query: [num_tokens, num_heads, head_dim] or [num_sequences, num_tokens, num_heads,
            head_dim], bfloat16 or float32.
        cos_sin_cache: [cache_rows, head_dim] float32, cosines in the first half, sines in the
            second.
        key: as ``query`` but for the number of heads.
        positions: one number for each token; None counts them within each sequence.
        interleaved: whether neighbours are pairs, and not the halves of a row.
        conjugate: whether to rotate back: sines are negated.
        seqlen_offset: added to each position.

    Products and sums are rounded to float32 one by one. A token whose position is not a row of the
    cache keeps its values.
    """
    if positions is None:
        positions = torch.arange(query.shape[-3], device=query.device)
    positions = (positions.to(torch.int64) + seqlen_offset).expand(query.shape[:-2])
    is_inside = (positions >= 0) & (positions < len(cos_sin_cache))
    if len(cos_sin_cache) == 0:
        return
    angles = cos_sin_cache[positions.clamp(0, len(cos_sin_cache) - 1)]
    cos, sin = angles.unsqueeze(-2).chunk(2, dim=-1)
    if conjugate:
        sin = -sin
    for x in (query, key):
        if x is not None:
            rotated = _rotated(x.to(torch.float32), cos, sin, interleaved).to(x.dtype)
            x.copy_(torch.where(is_inside[..., None, None], rotated, x))


def _rotated(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    if interleaved:
        first, second = x[..., 0::2], x[..., 1::2]
    else:
        first, second = x.chunk(2, dim=-1)
    pair = (first * cos - second * sin, first * sin + second * cos)
    return torch.stack(pair, dim=-1).flatten(-2) if interleaved else torch.cat(pair, dim=-1)
