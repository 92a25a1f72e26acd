"""Cases of the transforms."""

from __future__ import annotations

from typing import Any

import torch

from cases.case import Case


def apply_rotary(
    dtype: str = "bfloat16",
    head_dim: int = 64,
    interleaved: bool = False,
    *,
    num_heads: int = 64,
    with_positions: bool = False,
) -> Case:
    """Query of ``num_heads`` heads, positions given (int64) or counted."""
    element = getattr(torch, dtype)

    def inputs(num_tokens: int, device: str) -> tuple[Any, Any, Any]:
        query = torch.randn((num_tokens, num_heads, head_dim), device=device).to(element)
        # Real angles: replays rotate in place, and anything else would grow without bound.
        angles = torch.rand((num_tokens, head_dim // 2), device=device)
        cache = torch.cat((angles.cos(), angles.sin()), dim=-1)
        return query, cache, torch.arange(num_tokens, device=device) if with_positions else None

    def ours(tw: Any, tensors: Any) -> Any:
        query, cache, positions = tensors
        tw.transform.apply_rotary(query, cache, None, positions, interleaved=interleaved)
        return query

    def peer(tile_kernels: Any, tensors: Any) -> Any:
        query, cache, positions = tensors
        return tile_kernels.transform.apply_rotary(
            query, cache, positions=positions, interleaved=interleaved
        )

    def eager(tensors: Any) -> Any:
        query, cache, positions = tensors
        angles = cache if positions is None else cache[positions]
        cos, sin = angles[:, None].chunk(2, dim=-1)
        x = query.float()
        if interleaved:
            first, second = x[..., 0::2], x[..., 1::2]
        else:
            first, second = x.chunk(2, dim=-1)
        pair = (first * cos - second * sin, first * sin + second * cos)
        if interleaved:
            return query.copy_(torch.stack(pair, dim=-1).flatten(-2))
        return query.copy_(torch.cat(pair, dim=-1))

    words = ("apply_rotary", "pairs" if interleaved else "halves", f"{num_heads}x{head_dim}")
    words += ("float32",) * (dtype == "float32") + ("positions",) * with_positions
    row = 2 * element.itemsize * head_dim * num_heads
    return Case(
        name=" ".join(words),
        operator="apply_rotary",
        parameters=(("dtype", dtype), ("head_dim", head_dim), ("interleaved", interleaved)),
        inputs=inputs,
        allocating=ours,
        preallocated=ours,
        peer=peer,
        eager=eager,
        bytes=lambda num_tokens: num_tokens * (row + 4 * head_dim + 8 * with_positions),
    )
