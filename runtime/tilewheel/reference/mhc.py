"""Manifold-constrained hyper-connections in plain PyTorch, on any device."""

from __future__ import annotations

import torch
from torch import Tensor

_NUM_STREAMS = 4


def pre_big_fuse_fwd(
    gemm_out_mul: Tensor,
    gemm_out_sqrsum: Tensor,
    scale: Tensor,
    base: Tensor,
    residual: Tensor,
    rms_eps: float,
    pre_eps: float,
    sinkhorn_eps: float,
    post_mult: float,
    sinkhorn_repeat: int,
    *,
    norm_weight: Tensor | None = None,
    norm_eps: float = 1e-6,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return (post_mix, comb_mix, layer_input) of each token, computed in float32.

    Args:
        gemm_out_mul: [num_splits, num_tokens, 24] float32, partials of the mixes: 4 pre, 4 post,
            16 comb.
        gemm_out_sqrsum: [num_splits, num_tokens] float32, partial sums of squares.
        scale: [3] float32, of pre, post and comb.
        base: [24] float32, added to the scaled mixes.
        residual: [num_tokens, 4, hidden] bfloat16.
        rms_eps: added to the mean square of the residual.
        pre_eps: added to pre.
        sinkhorn_eps: added to comb after the softmax and to every sum that divides it.
        post_mult: factor of post.
        sinkhorn_repeat: how many times columns are normalised.
        norm_weight: [hidden] bfloat16; None leaves layer_input as it is.
        norm_eps: added to the mean square of layer_input.

    Given float64 tensors it computes in float64, rounding to bfloat16 where the operator does.
    """
    dtype = gemm_out_mul.dtype
    num_tokens, _, hidden = residual.shape
    mean_square = gemm_out_sqrsum.sum(0) / (_NUM_STREAMS * hidden)
    mixes = gemm_out_mul.sum(0) * torch.rsqrt(mean_square + rms_eps)[:, None]
    pre, post, comb = mixes.split((_NUM_STREAMS, _NUM_STREAMS, _NUM_STREAMS**2), dim=1)
    pre_base, post_base, comb_base = base.split((_NUM_STREAMS, _NUM_STREAMS, _NUM_STREAMS**2))
    pre = torch.sigmoid(pre * scale[0] + pre_base) + pre_eps
    post_mix = post_mult * torch.sigmoid(post * scale[1] + post_base)
    comb = (comb * scale[2] + comb_base).view(num_tokens, _NUM_STREAMS, _NUM_STREAMS)
    comb = torch.softmax(comb, dim=2) + sinkhorn_eps
    comb = comb / (comb.sum(1, keepdim=True) + sinkhorn_eps)
    for _ in range(sinkhorn_repeat - 1):
        comb = comb / (comb.sum(2, keepdim=True) + sinkhorn_eps)
        comb = comb / (comb.sum(1, keepdim=True) + sinkhorn_eps)
    y = (pre[:, :, None] * residual.to(dtype)).sum(1)
    layer_input = y.to(torch.bfloat16)
    if norm_weight is not None:
        rstd = torch.rsqrt(y.square().mean(1, keepdim=True) + norm_eps)
        layer_input = (layer_input.to(dtype) * rstd * norm_weight.to(dtype)).to(torch.bfloat16)
    return post_mix, comb, layer_input


def post_fwd(x: Tensor, residual: Tensor, post_mix: Tensor, comb_mix: Tensor) -> Tensor:
    """Return the new residual streams: post_mix[o] * x + sum_m comb_mix[m, o] * residual[m].

    Args:
        x: [num_tokens, hidden] bfloat16.
        residual: [num_tokens, 4, hidden] bfloat16.
        post_mix: [num_tokens, 4] float32.
        comb_mix: [num_tokens, 4, 4] float32, the source stream first.

    Sums are in the dtype of ``post_mix``, one term after the other, and rounded once.
    """
    dtype = post_mix.dtype
    total = post_mix[:, :, None] * x.to(dtype)[:, None]
    for m in range(_NUM_STREAMS):
        total = total + comb_mix[:, m, :, None] * residual[:, m, None].to(dtype)
    return total.to(torch.bfloat16)
