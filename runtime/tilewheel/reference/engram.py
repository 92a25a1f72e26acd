"""The Engram gate and its gradients in plain PyTorch, on any device.

Everything is computed in float64 and rounded once, to the dtype of the result. Given float64 inputs
the results are float64, so that the gradients can be compared with those of autograd.
"""

from __future__ import annotations

import torch
from torch import Tensor

STREAMS = 4


def fused_weight(weight_hidden: Tensor, weight_embed: Tensor) -> Tensor:
    """Return the product of two [4, hidden] bfloat16 tensors in float32, which is exact."""
    wide = torch.promote_types(weight_hidden.dtype, torch.float32)
    return weight_hidden.to(wide) * weight_embed.to(wide)


def engram_gate_fwd(
    x: Tensor,
    kv: Tensor,
    weight_fused: Tensor,
    eps: float,
    clamp_value: float,
    *,
    image_token_mask: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return (out, dot, gate, rstd_x, rstd_k) of the Engram gate.

    Args:
        x: [num_tokens, 4, hidden] bfloat16 or float64.
        kv: [num_tokens, 5, hidden] of the same dtype: four keys and the value.
        weight_fused: [4, hidden] float32 or float64.
        eps: added to the mean squares.
        clamp_value: least magnitude under the root.
        image_token_mask: [num_tokens] bool; where true, out is x and the other results are 0.

    Returns:
        out as x; dot, gate, rstd_x, rstd_k [num_tokens, 4] float32, or float64 as x. A dot of zero
        counts as positive.
    """
    stats = torch.promote_types(x.dtype, torch.float32)
    streams, keys, value = x.double(), kv[:, :STREAMS].double(), kv[:, STREAMS:].double()
    rstd_x = (streams.square().mean(dim=-1) + eps).rsqrt()
    rstd_k = (keys.square().mean(dim=-1) + eps).rsqrt()
    dot = (streams * weight_fused.double() * keys).sum(dim=-1) + 0.0  # -0 becomes +0
    z = dot * rstd_x * rstd_k * x.shape[-1] ** -0.5
    gate = torch.sigmoid(torch.copysign(z.abs().clamp(min=clamp_value).sqrt(), z))
    out = (streams + gate.unsqueeze(-1) * value).to(x.dtype)
    saved = (dot, gate, rstd_x, rstd_k)
    if image_token_mask is not None:
        masked = image_token_mask[:, None]
        out = torch.where(masked.unsqueeze(-1), x, out)
        saved = tuple(torch.where(masked, 0.0, number) for number in saved)
    dot, gate, rstd_x, rstd_k = (number.to(stats) for number in saved)
    return out, dot, gate, rstd_x, rstd_k


def engram_gate_bwd(
    grad_out: Tensor,
    x: Tensor,
    kv: Tensor,
    weight_fused: Tensor,
    dot: Tensor,
    gate: Tensor,
    rstd_x: Tensor,
    rstd_k: Tensor,
    clamp_value: float,
    *,
    image_token_mask: Tensor | None = None,
    num_parts: int = 1,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return (grad_x, grad_kv, grad_w_partial), the gradients of ``engram_gate_fwd``.

    Args:
        grad_out: gradient of out, as x.
        x, kv, weight_fused, clamp_value, image_token_mask: as in ``engram_gate_fwd``.
        dot, gate, rstd_x, rstd_k: what it returned.
        num_parts: how many partial sums; part p takes the tokens p, p + num_parts, ...

    Returns:
        grad_x as x, grad_kv as kv, grad_w_partial [num_parts, 4, hidden] as dot. A masked token's
        grad_x is grad_out, its grad_kv is 0 and it adds nothing to grad_w_partial.
    """
    hidden = x.shape[-1]
    g, streams, keys, value = (t.double() for t in (grad_out, x, kv[:, :STREAMS], kv[:, STREAMS:]))
    dot_, gate_, rstd_x_, rstd_k_ = (t.double() for t in (dot, gate, rstd_x, rstd_k))
    scale = hidden**-0.5
    z = (dot_ * rstd_x_ * rstd_k_ * scale).abs()
    grad_gate = (g * value).sum(dim=-1)
    grad_z = grad_gate * gate_ * (1 - gate_) * 0.5 * z.clamp(min=clamp_value).rsqrt()
    grad_z = torch.where(z < clamp_value, 0.0, grad_z)
    a = grad_z * scale * rstd_x_ * rstd_k_
    b_x = (a * dot_ * rstd_x_.square() / hidden).unsqueeze(-1)
    b_k = (a * dot_ * rstd_k_.square() / hidden).unsqueeze(-1)
    a = a.unsqueeze(-1)
    weight = weight_fused.double()
    grad_x = (g + a * weight * keys - b_x * streams).to(x.dtype)
    grad_k = a * weight * streams - b_k * keys
    grad_v = (gate_.unsqueeze(-1) * g).sum(dim=1, keepdim=True)
    grad_kv = torch.cat((grad_k, grad_v), dim=1).to(kv.dtype)
    grad_w = a * streams * keys
    if image_token_mask is not None:
        masked = image_token_mask[:, None, None]
        grad_x = torch.where(masked, grad_out, grad_x)
        grad_kv = torch.where(masked, 0.0, grad_kv)
        grad_w = torch.where(masked, 0.0, grad_w)
    partial = grad_w.new_zeros((num_parts, *grad_w.shape[1:]))
    part = torch.arange(grad_w.shape[0], device=x.device) % num_parts
    return grad_x, grad_kv, partial.index_add_(0, part, grad_w).to(dot.dtype)


def grad_w_reduce(
    grad_w_partial: Tensor,
    weight_hidden: Tensor,
    weight_embed: Tensor,
    grad_weight_hidden: Tensor,
    grad_weight_embed: Tensor,
) -> None:
    """Add the gradients of the two weights to ``grad_weight_hidden`` and ``grad_weight_embed``.

    Args:
        grad_w_partial: [num_parts, 4, hidden] float32, partial sums of the gradient of the product.
        weight_hidden, weight_embed: [4, hidden] bfloat16.
        grad_weight_hidden, grad_weight_embed: [4, hidden] float32, written.
    """
    grad_w = grad_w_partial.double().sum(dim=0)
    for grad, other in (
        (grad_weight_hidden, weight_embed),
        (grad_weight_embed, weight_hidden),
    ):
        grad.copy_(grad.double() + grad_w * other.double())
