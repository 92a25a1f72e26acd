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


CASES = (
    topk_gate(72, 6),
    topk_gate(256, 8),
    topk_gate(384, 6),
    topk_gate(896, 16),
    # No specialised artifact: the generic one answers.
    topk_gate(144, 8),
)
