"""Cases of the mixture-of-experts operators."""

from __future__ import annotations

from typing import Any

import torch

from cases.case import ANY, Case


def topk_gate(num_experts: int | str, num_topk: int | str) -> Case:
    experts = 144 if num_experts == ANY else int(num_experts)
    topk = 8 if num_topk == ANY else int(num_topk)

    def inputs(num_tokens: int, device: str) -> tuple[torch.Tensor, torch.Tensor]:
        scores = torch.randn((num_tokens, experts), device=device)
        return scores, torch.empty((num_tokens, topk), dtype=torch.int64, device=device)

    def allocating(tw: Any, tensors: Any) -> Any:
        return tw.moe.topk_gate(tensors[0], topk)

    def preallocated(tw: Any, tensors: Any) -> Any:
        return tw.moe.topk_gate(tensors[0], topk, out=tensors[1])

    def peer(tile_kernels: Any, tensors: Any) -> Any:
        return tile_kernels.moe.topk_gate(tensors[0], topk)

    return Case(
        name=f"topk_gate E{experts} k{topk}",
        operator="topk_gate",
        parameters=(("num_experts", experts), ("num_topk", topk)),
        inputs=inputs,
        allocating=allocating,
        preallocated=preallocated,
        peer=peer,
        # Of equal scores torch.topk may take any.
        eager=lambda tensors: torch.topk(tensors[0], topk).indices,
        bytes=lambda num_tokens: num_tokens * (4 * experts + 8 * topk),
    )
