"""Mixture-of-experts operators in plain PyTorch, on any device."""

from __future__ import annotations

import torch
from torch import Tensor


def topk_gate(scores: Tensor, num_topk: int) -> Tensor:
    """Return the indices of each token's ``num_topk`` largest scores, largest first.

    Args:
        scores: [num_tokens, num_experts] float32.
        num_topk: how many, 1 to num_experts.

    Returns:
        [num_tokens, num_topk] int64. Of equal scores (-0.0 equals 0.0) the smaller index comes
        first. A token with a NaN or infinite score has -1 in every place.
    """
    idx = torch.sort(scores, dim=-1, descending=True, stable=True).indices[:, :num_topk]
    finite = torch.isfinite(scores).all(dim=-1, keepdim=True)
    return torch.where(finite, idx, -1)
