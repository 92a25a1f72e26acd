"""Self-test of topk_gate: ties, zeros of both signs and non-finite scores."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from tilewheel.key import ANY, Value
from tilewheel.reference import moe
from tilewheel.selftest_cases import Case


def cases(parameters: dict[str, Value], device: str) -> Iterator[Case]:
    """Yield the calls for one variant."""
    sizes = [(parameters["num_experts"], parameters["num_topk"])]
    if ANY in sizes[0]:
        sizes = [(1, 1), (33, 5), (160, 8), (1024, 32)]
    for num_experts, num_topk in sizes:
        for num_tokens in (0, 1, 133):
            generator = torch.Generator().manual_seed(num_tokens)
            scores = torch.randn((num_tokens, int(num_experts)), generator=generator)
            scores[1::4] = (scores[1::4] * 2).round() / 2  # many equal scores, 0.0 beside -0.0
            scores[2::16] = 0.0
            scores[3::32, -1] = torch.nan
            scores[7::32, 0] = -torch.inf
            idx = torch.empty((num_tokens, int(num_topk)), dtype=torch.int64, device=device)
            yield Case(
                name=f"num_tokens={num_tokens} num_experts={num_experts} num_topk={num_topk}",
                arguments=(scores.to(device), idx),
                expected={1: moe.topk_gate(scores, int(num_topk))},
            )
