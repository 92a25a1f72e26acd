"""Cases of the Engram operators."""

from __future__ import annotations

from typing import Any

import torch

from cases.case import ANY, Case, bfloat16

_GENERIC = 3072  # a hidden size that no artifact specialises
_HIDDEN = 5120  # where no artifact specialises one: DeepSeek-V4.1-Flash
_EPS = _CLAMP = 1e-6
_MAX_PARTS = 132


def engram_gate_fwd(hidden: int | str) -> Case:
    size = _GENERIC if hidden == ANY else int(hidden)

    def inputs(num_tokens: int, device: str) -> tuple[torch.Tensor, ...]:
        x = bfloat16(num_tokens, 4, size, device=device)
        kv = bfloat16(num_tokens, 5, size, device=device)
        return x, kv, torch.randn((4, size), device=device)

    def ours(tw: Any, tensors: Any) -> Any:
        return tw.engram.engram_gate_fwd(*tensors, _EPS, _CLAMP)

    def peer(tile_kernels: Any, tensors: Any) -> Any:
        return tile_kernels.engram.engram_gate_fwd(*tensors, _EPS, _CLAMP)

    def eager(tensors: Any) -> Any:
        x, kv, weight = tensors
        streams, keys, value = x.float(), kv[:, :4].float(), kv[:, 4:].float()
        rstd_x = torch.rsqrt(streams.square().mean(-1) + _EPS)
        rstd_k = torch.rsqrt(keys.square().mean(-1) + _EPS)
        dot = (streams * weight * keys).sum(-1)
        z = dot * rstd_x * rstd_k * size**-0.5
        gate = torch.sigmoid(torch.copysign(z.abs().clamp(min=_CLAMP).sqrt(), z))
        return (streams + gate[..., None] * value).to(x.dtype), dot, gate, rstd_x, rstd_k

    return Case(
        name=f"engram_gate_fwd d{size}",
        operator="engram_gate_fwd",
        parameters=(("hidden", size),),
        inputs=inputs,
        allocating=ours,
        peer=peer,
        eager=eager,
        bytes=lambda num_tokens: num_tokens * (2 * 13 * size + 4 * 16) + 16 * size,
    )


def engram_gate_bwd(hidden: int | str) -> Case:
    size = _GENERIC if hidden == ANY else int(hidden)
    forward = engram_gate_fwd(hidden)

    def inputs(num_tokens: int, device: str) -> tuple[torch.Tensor, ...]:
        x, kv, weight = forward.inputs(num_tokens, device)
        assert forward.eager is not None
        saved = forward.eager((x, kv, weight))[1:]
        return (bfloat16(num_tokens, 4, size, device=device), x, kv, weight, *saved)

    def ours(tw: Any, tensors: Any) -> Any:
        return tw.engram.engram_gate_bwd(*tensors, _CLAMP)

    def peer(tile_kernels: Any, tensors: Any) -> Any:
        return tile_kernels.engram.engram_gate_bwd(*tensors, _CLAMP)

    return Case(
        name=f"engram_gate_bwd d{size}",
        operator="engram_gate_bwd",
        parameters=(("hidden", size),),
        inputs=inputs,
        allocating=ours,
        peer=peer,
        eager=_eager_bwd,
        bytes=lambda num_tokens: num_tokens * (2 * 22 * size + 4 * 16) + 16 * size,
    )


def _eager_bwd(tensors: Any) -> Any:
    """Return the gradients; that of the weight is one partial sum."""
    grad_out, x, kv, weight, dot, gate, rstd_x, rstd_k = tensors
    hidden = x.shape[2]
    g, streams, keys, value = grad_out.float(), x.float(), kv[:, :4].float(), kv[:, 4:].float()
    z = (dot * rstd_x * rstd_k * hidden**-0.5).abs()
    grad_z = (g * value).sum(-1) * gate * (1 - gate) * 0.5 * z.clamp(min=_CLAMP).rsqrt()
    grad_z = torch.where(z < _CLAMP, 0.0, grad_z)
    a = grad_z * hidden**-0.5 * rstd_x * rstd_k
    of_x = (a * dot * rstd_x.square() / hidden)[..., None]
    of_k = (a * dot * rstd_k.square() / hidden)[..., None]
    a = a[..., None]
    grad_x = (g + a * weight * keys - of_x * streams).to(x.dtype)
    grad_k = a * weight * streams - of_k * keys
    grad_v = (gate[..., None] * g).sum(1, keepdim=True)
    grad_kv = torch.cat((grad_k, grad_v), dim=1).to(kv.dtype)
    return grad_x, grad_kv, (a * streams * keys).sum(0, keepdim=True)


def fused_weight(hidden: int | str) -> Case:
    """The tokens do not matter."""
    size = _HIDDEN if hidden == ANY else int(hidden)

    def inputs(num_tokens: int, device: str) -> tuple[torch.Tensor, ...]:
        pair = bfloat16(4, size, device=device), bfloat16(4, size, device=device)
        return (*pair, torch.empty((4, size), device=device))

    def allocating(tw: Any, tensors: Any) -> Any:
        return tw.engram.fused_weight(*tensors[:2])

    def preallocated(tw: Any, tensors: Any) -> Any:
        return tw.engram.fused_weight(*tensors[:2], out=tensors[2])

    def peer(tile_kernels: Any, tensors: Any) -> Any:
        return tile_kernels.engram.fused_weight(*tensors[:2])

    return Case(
        name=f"fused_weight d{size}",
        operator="fused_weight",
        parameters=(("hidden", size),),
        inputs=inputs,
        allocating=allocating,
        preallocated=preallocated,
        peer=peer,
        eager=lambda tensors: tensors[0].float() * tensors[1].float(),
        bytes=lambda num_tokens: 4 * size * (2 + 2 + 4),
    )


def grad_w_reduce(hidden: int | str) -> Case:
    """A partial sum for each token, up to one for each multiprocessor of an H200."""
    size = _HIDDEN if hidden == ANY else int(hidden)

    def parts(num_tokens: int) -> int:
        return max(1, min(num_tokens, _MAX_PARTS))

    def inputs(num_tokens: int, device: str) -> tuple[torch.Tensor, ...]:
        partial = torch.randn((parts(num_tokens), 4, size), device=device)
        weights = bfloat16(4, size, device=device), bfloat16(4, size, device=device)
        grads = torch.zeros((4, size), device=device), torch.zeros((4, size), device=device)
        return (partial, *weights, *grads)

    def ours(tw: Any, tensors: Any) -> Any:
        tw.engram.grad_w_reduce(*tensors)
        return tensors[3:]

    def peer(tile_kernels: Any, tensors: Any) -> Any:
        tile_kernels.engram.grad_w_reduce(*tensors)
        return tensors[3:]

    def eager(tensors: Any) -> Any:
        partial, weight_hidden, weight_embed, grad_hidden, grad_embed = tensors
        grad = partial.sum(0)
        return grad_hidden.addcmul_(grad, weight_embed.float()), grad_embed.addcmul_(
            grad, weight_hidden.float()
        )

    return Case(
        name=f"grad_w_reduce d{size}",
        operator="grad_w_reduce",
        parameters=(("hidden", size),),
        inputs=inputs,
        allocating=ours,
        preallocated=ours,
        peer=peer,
        eager=eager,
        bytes=lambda num_tokens: 4 * size * (4 * parts(num_tokens) + 2 * 2 + 4 * 4),
    )
