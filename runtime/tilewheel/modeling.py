"""Autograd functions built on the operators."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from tilewheel import engram

__all__ = ["EngramGate", "engram_gate"]


class EngramGate(torch.autograd.Function):  # type: ignore[misc]
    """The Engram gate with its gradients: ``EngramGate.apply(x, kv, weight_hidden, ...)``.

    ``engram_gate`` says what the arguments are. The gradients of the weights are summed in float32.
    A weight that carries ``main_grad``, a contiguous float32 tensor of its shape, has its gradient
    added to that and gets no ``grad``; ``grad_added_to_main_grad`` is set to True where the weight
    has such an attribute. Others get a bfloat16 ``grad`` as usual. Differentiable once.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        kv: Tensor,
        weight_hidden: Tensor,
        weight_embed: Tensor,
        eps: float,
        clamp_value: float,
        image_token_mask: Tensor | None = None,
    ) -> Tensor:
        """Return out of ``engram_gate_fwd`` and keep what the backward pass needs."""
        weight_fused = engram.fused_weight(weight_hidden, weight_embed)
        out, *saved = engram.engram_gate_fwd(
            x, kv, weight_fused, eps, clamp_value, image_token_mask=image_token_mask
        )
        ctx.save_for_backward(
            x, kv, weight_hidden, weight_embed, weight_fused, *saved, image_token_mask
        )
        # Not through the saved tensors: hooks may replace those, and main_grad would be lost.
        ctx.weights = (weight_hidden, weight_embed)
        ctx.clamp_value = clamp_value
        return out

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Any, ...]:
        """Return the gradients of the tensors; those of weights go to ``main_grad`` if there."""
        (x, kv, weight_hidden, weight_embed, weight_fused, dot, gate, rstd_x, rstd_k, mask) = (
            ctx.saved_tensors
        )
        grad_x, grad_kv, partial = engram.engram_gate_bwd(
            grad_out.contiguous(),
            x,
            kv,
            weight_fused,
            dot,
            gate,
            rstd_x,
            rstd_k,
            ctx.clamp_value,
            mask,
        )
        grads: list[Tensor | None] = [None, None]
        if any(ctx.needs_input_grad[2:4]):
            wanted = ctx.needs_input_grad[2:4]
            buffers = [
                _buffer(weight, is_wanted)
                for weight, is_wanted in zip(ctx.weights, wanted, strict=True)
            ]
            engram.grad_w_reduce(partial, weight_hidden, weight_embed, *buffers)
            grads = [
                _finished(weight, buffer) if is_wanted else None
                for weight, buffer, is_wanted in zip(ctx.weights, buffers, wanted, strict=True)
            ]
        return grad_x, grad_kv, *grads, None, None, None


def engram_gate(
    x: Tensor,
    kv: Tensor,
    weight_hidden: Tensor,
    weight_embed: Tensor,
    eps: float,
    clamp_value: float,
    image_token_mask: Tensor | None = None,
) -> Tensor:
    """Return ``x`` with the gated value added to each stream; differentiable.

    Where no gradient is recorded nothing is kept for a backward pass.

    Args:
        x: [num_tokens, 4, hidden] bfloat16, contiguous: residual streams.
        kv: [num_tokens, 5, hidden] bfloat16, contiguous: four keys and the value.
        weight_hidden: [4, hidden] bfloat16, contiguous: RMS norm weight of the streams.
        weight_embed: [4, hidden] bfloat16, contiguous: RMS norm weight of the keys.
        eps: added to the mean squares, a positive float32.
        clamp_value: least magnitude under the root, a positive float32; below it the gate is
            constant.
        image_token_mask: [num_tokens] bool: tokens that pass through unchanged.

    Returns:
        [num_tokens, 4, hidden] bfloat16.

    Raises:
        What ``tilewheel.engram.engram_gate_fwd`` raises.

    Deterministic, forward and backward. ``EngramGate`` says where the gradients of the weights go.
    """
    tensors = (x, kv, weight_hidden, weight_embed)
    if torch.is_grad_enabled() and any(
        isinstance(tensor, Tensor) and tensor.requires_grad for tensor in tensors
    ):
        out: Tensor = EngramGate.apply(*tensors, eps, clamp_value, image_token_mask)
        return out
    weight_fused = engram.fused_weight(weight_hidden, weight_embed)
    return engram.engram_gate_fwd(x, kv, weight_fused, eps, clamp_value, False, image_token_mask)[0]


def _buffer(weight: Tensor, is_wanted: bool) -> Tensor:
    """Return where a weight's gradient is summed, in float32."""
    main_grad = getattr(weight, "main_grad", None)
    if is_wanted and main_grad is not None:
        return main_grad
    return torch.zeros(weight.shape, dtype=torch.float32, device=weight.device)


def _finished(weight: Any, buffer: Tensor) -> Tensor | None:
    """Return the gradient that autograd is to hand on, None where ``main_grad`` has it."""
    if getattr(weight, "main_grad", None) is None:
        return buffer.to(weight.dtype)
    if hasattr(weight, "grad_added_to_main_grad"):
        weight.grad_added_to_main_grad = True
    return None
