"""What is measured: one entry for each operator and shape, ours beside the peer's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

import tilewheel as tw


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """An operator at one shape. ``inputs(num_tokens)`` makes one set of inputs and outputs.

    ``ours`` takes such a set and writes its preallocated outputs, ``ours_allocating`` and ``peer``
    allocate theirs, ``bytes(num_tokens)`` is what must move. ``peer`` is None where the peer has no
    such operator.
    """

    name: str
    operator: str
    parameters: tuple[tuple[str, int | str], ...]
    inputs: Callable[[int], Any]
    ours: Callable[[Any], object]
    ours_allocating: Callable[[Any], object]
    bytes: Callable[[int], int]
    peer: Callable[[Any], object] | None = None


def topk_gate(num_experts: int, num_topk: int) -> Case:
    def inputs(num_tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
        scores = torch.randn((num_tokens, num_experts), device="cuda")
        return scores, torch.empty((num_tokens, num_topk), dtype=torch.int64, device="cuda")

    def peer(tensors: Any) -> object:
        import tile_kernels

        return tile_kernels.moe.topk_gate(tensors[0], num_topk)

    return Case(
        name=f"topk_gate E{num_experts} k{num_topk}",
        operator="topk_gate",
        parameters=(("num_experts", num_experts), ("num_topk", num_topk)),
        inputs=inputs,
        ours=lambda tensors: tw.moe.topk_gate(tensors[0], num_topk, out=tensors[1]),
        ours_allocating=lambda tensors: tw.moe.topk_gate(tensors[0], num_topk),
        peer=peer,
        bytes=lambda num_tokens: num_tokens * (4 * num_experts + 8 * num_topk),
    )


def apply_rotary(num_heads: int, interleaved: bool, *, with_positions: bool = False) -> Case:
    """Query of ``num_heads`` heads of 64 bfloat16, positions given (int64) or counted."""

    def inputs(num_tokens: int) -> tuple[Any, Any, Any]:
        query = torch.randn((num_tokens, num_heads, 64), device="cuda").to(torch.bfloat16)
        # Real angles: replays rotate in place, and anything else would grow without bound.
        angles = torch.rand((num_tokens, 32), device="cuda")
        cache = torch.cat((angles.cos(), angles.sin()), dim=-1)
        return query, cache, torch.arange(num_tokens, device="cuda") if with_positions else None

    def ours(tensors: Any) -> object:
        query, cache, positions = tensors
        tw.transform.apply_rotary(query, cache, None, positions, interleaved=interleaved)
        return query

    def peer(tensors: Any) -> object:
        import tile_kernels

        query, cache, positions = tensors
        return tile_kernels.transform.apply_rotary(
            query, cache, positions=positions, interleaved=interleaved
        )

    return Case(
        name=f"apply_rotary {'pairs' if interleaved else 'halves'} {num_heads}x64"
        + (" positions" if with_positions else ""),
        operator="apply_rotary",
        parameters=(("dtype", "bfloat16"), ("head_dim", 64), ("interleaved", interleaved)),
        inputs=inputs,
        ours=ours,
        ours_allocating=ours,
        peer=peer,
        bytes=lambda num_tokens: (
            num_tokens * (2 * 2 * 64 * num_heads + 4 * 64 + 8 * with_positions)
        ),
    )


CASES = (
    topk_gate(72, 6),
    topk_gate(256, 8),
    topk_gate(384, 6),
    topk_gate(896, 16),
    # No specialised artifact: the generic one answers.
    topk_gate(144, 8),
    apply_rotary(64, interleaved=False),
    apply_rotary(64, interleaved=True, with_positions=True),
)
