"""Cases of the hyper-connections."""

from __future__ import annotations

from typing import Any

import torch

from cases.case import ANY, Case, bfloat16

_HIDDEN = 4096  # where the artifact leaves it open: DeepSeek-V4-Flash
# DeepSeek-V4: rms_eps, pre_eps, sinkhorn_eps, post_mult, sinkhorn_repeat.
_NUMBERS = (1e-6, 1e-6, 1e-6, 2.0, 20)


def mhc_pre_big_fuse_fwd(
    hidden: int | str, output_norm: bool = False, *, num_splits: int = 1
) -> Case:
    """DeepSeek-V4's constants; the peer has no output norm."""
    size = _HIDDEN if hidden == ANY else int(hidden)

    def inputs(num_tokens: int, device: str) -> tuple[Any, ...]:
        products = torch.randn((num_splits, num_tokens, 24), device=device)
        squares = torch.rand((num_splits, num_tokens), device=device) * size
        scale, base = torch.randn(3, device=device), torch.randn(24, device=device)
        residual = bfloat16(num_tokens, 4, size, device=device)
        weight = bfloat16(size, device=device) if output_norm else None
        results = (
            torch.empty((num_tokens, 4), device=device),
            torch.empty((num_tokens, 4, 4), device=device),
            torch.empty((num_tokens, size), dtype=torch.bfloat16, device=device),
        )
        return (products, squares, scale, base, residual), weight, results

    def allocating(tw: Any, tensors: Any) -> Any:
        arguments, weight, _ = tensors
        return tw.mhc.pre_big_fuse_fwd(*arguments, *_NUMBERS, norm_weight=weight)

    def preallocated(tw: Any, tensors: Any) -> Any:
        arguments, weight, results = tensors
        return tw.mhc.pre_big_fuse_fwd(*arguments, *_NUMBERS, norm_weight=weight, out=results[2])

    def peer(tile_kernels: Any, tensors: Any) -> Any:
        arguments, _, (post_mix, comb_mix, out) = tensors
        tile_kernels.mhc.mhc_pre_big_fuse_fwd(
            *arguments, post_mix, comb_mix.view(-1, 16), out, *_NUMBERS, n_splits=num_splits
        )
        return post_mix, comb_mix, out

    return Case(
        name=f"mhc_pre_big_fuse_fwd{' norm' if output_norm else ''} H{size} S{num_splits}",
        operator="mhc_pre_big_fuse_fwd",
        parameters=(("hidden", size), ("output_norm", output_norm)),
        inputs=inputs,
        allocating=allocating,
        preallocated=preallocated,
        peer=None if output_norm else peer,
        eager=_eager_pre,
        bytes=lambda num_tokens: num_tokens * (5 * 2 * size + num_splits * 4 * 25 + 4 * 20),
    )


def _eager_pre(tensors: Any) -> Any:
    (products, squares, scale, base, residual), weight, _ = tensors
    rms_eps, pre_eps, sinkhorn_eps, post_mult, repeat = _NUMBERS
    mean_square = squares.sum(0) / (4 * residual.shape[2])
    mixes = products.sum(0) * torch.rsqrt(mean_square + rms_eps)[:, None]
    pre = torch.sigmoid(mixes[:, :4] * scale[0] + base[:4]) + pre_eps
    post_mix = post_mult * torch.sigmoid(mixes[:, 4:8] * scale[1] + base[4:8])
    comb = (mixes[:, 8:] * scale[2] + base[8:]).view(-1, 4, 4)
    comb = torch.softmax(comb, dim=2) + sinkhorn_eps
    comb = comb / (comb.sum(1, keepdim=True) + sinkhorn_eps)
    for _ in range(repeat - 1):
        comb = comb / (comb.sum(2, keepdim=True) + sinkhorn_eps)
        comb = comb / (comb.sum(1, keepdim=True) + sinkhorn_eps)
    layer_input = (pre[:, :, None] * residual).sum(1)
    if weight is not None:
        layer_input = torch.nn.functional.rms_norm(
            layer_input, weight.shape, weight.float(), eps=1e-6
        )
    return post_mix, comb, layer_input.to(torch.bfloat16)


def mhc_post_fwd(hidden: int | str) -> Case:
    size = _HIDDEN if hidden == ANY else int(hidden)

    def inputs(num_tokens: int, device: str) -> tuple[Any, ...]:
        x = bfloat16(num_tokens, size, device=device)
        residual = bfloat16(num_tokens, 4, size, device=device)
        post_mix = torch.rand((num_tokens, 4), device=device)
        comb_mix = torch.rand((num_tokens, 4, 4), device=device)
        return (x, residual, post_mix, comb_mix), torch.empty_like(residual)

    def allocating(tw: Any, tensors: Any) -> Any:
        return tw.mhc.post_fwd(*tensors[0])

    def preallocated(tw: Any, tensors: Any) -> Any:
        return tw.mhc.post_fwd(*tensors[0], out=tensors[1])

    def peer(tile_kernels: Any, tensors: Any) -> Any:
        (x, residual, post_mix, comb_mix), out = tensors
        # A batch of one sequence.
        tile_kernels.mhc.mhc_post_fwd(
            x[None], residual[None], post_mix[None, :, :, None], comb_mix[None], out=out[None]
        )
        return out

    def eager(tensors: Any) -> Any:
        x, residual, post_mix, comb_mix = tensors[0]
        mixed = torch.einsum("tmo,tmh->toh", comb_mix, residual.float())
        return (post_mix[:, :, None] * x[:, None] + mixed).to(torch.bfloat16)

    return Case(
        name=f"mhc_post_fwd H{size}",
        operator="mhc_post_fwd",
        parameters=(("hidden", size),),
        inputs=inputs,
        allocating=allocating,
        preallocated=preallocated,
        peer=peer,
        eager=eager,
        bytes=lambda num_tokens: num_tokens * (9 * 2 * size + 4 * 20),
    )
