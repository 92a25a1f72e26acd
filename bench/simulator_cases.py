"""What the simulator is timed on: one call for each operator that it has, beside the reference."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

import tilewheel as tw
from tilewheel import reference


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatorCase:
    """An operator at one size. ``ours`` runs where the simulator is selected.

    ``num_elements`` are those of the largest tensor, whether it is read or written.
    """

    name: str
    operator: str
    num_elements: int
    ours: Callable[[], object]
    reference: Callable[[], object]


def _randn(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def quantised(num_tokens: int = 256, hidden: int = 7168) -> tuple[SimulatorCase, ...]:
    x = _randn(num_tokens, hidden).bfloat16()
    pair = reference.quant.per_token_cast(x, "e4m3", 32)
    size = f"{num_tokens} x {hidden}"
    calls: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
        "per_token_cast": (
            lambda: tw.quant.per_token_cast(x, "e4m3", 32),
            lambda: reference.quant.per_token_cast(x, "e4m3", 32),
        ),
        "per_token_cast_with_sf_only": (
            lambda: tw.quant.per_token_cast_with_sf_only(x, "e4m3", 32),
            lambda: reference.quant.per_token_cast_with_sf_only(x, "e4m3", 32),
        ),
        "per_token_cast_with_precomputed_sf": (
            lambda: tw.quant.per_token_cast_with_precomputed_sf(x, "e4m3", 32, pair[1]),
            lambda: reference.quant.per_token_cast_with_precomputed_sf(x, "e4m3", 32, pair[1]),
        ),
        "cast_back": (
            lambda: tw.quant.cast_back(pair, "bf16", (1, 32)),
            lambda: reference.quant.cast_back(pair, "bf16", (1, 32)),
        ),
    }
    return tuple(
        SimulatorCase(
            name=f"{operator} e4m3 32, {size}",
            operator=operator,
            num_elements=num_tokens * hidden,
            ours=ours,
            reference=plain,
        )
        for operator, (ours, plain) in calls.items()
    )


def topk_gate(num_tokens: int = 1024, num_experts: int = 72, num_topk: int = 6) -> SimulatorCase:
    scores = _randn(num_tokens, num_experts)
    return SimulatorCase(
        name=f"topk_gate k{num_topk}, {num_tokens} x {num_experts}",
        operator="topk_gate",
        num_elements=scores.numel(),
        ours=lambda: tw.moe.topk_gate(scores, num_topk),
        reference=lambda: reference.moe.topk_gate(scores, num_topk),
    )


def apply_rotary(num_tokens: int = 256, num_heads: int = 64) -> SimulatorCase:
    query = _randn(num_tokens, num_heads, 64).bfloat16()
    angles = _randn(num_tokens, 32)
    # Real angles: repeats rotate in place, and anything else would grow without bound.
    cache = torch.cat((angles.cos(), angles.sin()), dim=-1)
    return SimulatorCase(
        name=f"apply_rotary halves, {num_tokens} x {num_heads} x 64",
        operator="apply_rotary",
        num_elements=query.numel(),
        ours=lambda: tw.transform.apply_rotary(query, cache),
        reference=lambda: reference.transform.apply_rotary(query, cache),
    )


def randn(num_tokens: int = 256, hidden: int = 2048) -> SimulatorCase:
    def plain() -> object:
        return reference.rand.randn(num_tokens, hidden, dtype=torch.bfloat16, seed=1)

    return SimulatorCase(
        name=f"randn bf16, {num_tokens} x {hidden}",
        operator="randn",
        num_elements=num_tokens * hidden,
        ours=lambda: tw.rand.randn(num_tokens, hidden, dtype=torch.bfloat16),
        reference=plain,
    )


def mhc(num_tokens: int = 64, hidden: int = 4096) -> tuple[SimulatorCase, ...]:
    x = _randn(num_tokens, hidden).bfloat16()
    residual = _randn(num_tokens, 4, hidden).bfloat16()
    post_mix, comb_mix = _randn(num_tokens, 4), _randn(num_tokens, 4, 4)
    products, squares = _randn(1, num_tokens, 24), _randn(1, num_tokens).square() * hidden
    pre = (products, squares, _randn(3), _randn(24), residual, 1e-6, 1e-6, 1e-6, 2.0, 20)
    size = f"{num_tokens} x 4 x {hidden}"
    return (
        SimulatorCase(
            name=f"mhc_pre_big_fuse_fwd, {size}",
            operator="mhc_pre_big_fuse_fwd",
            num_elements=residual.numel(),
            ours=lambda: tw.mhc.pre_big_fuse_fwd(*pre),
            reference=lambda: reference.mhc.pre_big_fuse_fwd(*pre),
        ),
        SimulatorCase(
            name=f"mhc_post_fwd, {size}",
            operator="mhc_post_fwd",
            num_elements=residual.numel(),
            ours=lambda: tw.mhc.post_fwd(x, residual, post_mix, comb_mix),
            reference=lambda: reference.mhc.post_fwd(x, residual, post_mix, comb_mix),
        ),
    )


def engram(num_tokens: int = 64, hidden: int = 2048) -> tuple[SimulatorCase, ...]:
    x, grad_out = _randn(2, num_tokens, 4, hidden).bfloat16()
    kv, weight = _randn(num_tokens, 5, hidden).bfloat16(), _randn(4, hidden)
    saved = reference.engram.engram_gate_fwd(x, kv, weight, 1e-6, 1e-6)[1:]
    backward = (grad_out, x, kv, weight, *saved, 1e-6)
    weights = _randn(2, 4, hidden).bfloat16()
    partial, grads = _randn(64, 4, hidden), torch.zeros(2, 4, hidden)
    size = f"{num_tokens} x 4 x {hidden}"
    calls: dict[str, tuple[Callable[[], object], Callable[[], object], int, str]] = {
        "engram_gate_fwd": (
            lambda: tw.engram.engram_gate_fwd(x, kv, weight, 1e-6, 1e-6),
            lambda: reference.engram.engram_gate_fwd(x, kv, weight, 1e-6, 1e-6),
            kv.numel(),
            size,
        ),
        "engram_gate_bwd": (
            lambda: tw.engram.engram_gate_bwd(*backward),
            lambda: reference.engram.engram_gate_bwd(*backward),
            kv.numel(),
            size,
        ),
        "fused_weight": (
            lambda: tw.engram.fused_weight(*weights),
            lambda: reference.engram.fused_weight(*weights),
            weight.numel(),
            f"4 x {hidden}",
        ),
        "grad_w_reduce": (
            lambda: tw.engram.grad_w_reduce(partial, *weights, *grads),
            lambda: reference.engram.grad_w_reduce(partial, *weights, *grads),
            partial.numel(),
            f"64 x 4 x {hidden}",
        ),
    }
    return tuple(
        SimulatorCase(
            name=f"{operator}, {shape}",
            operator=operator,
            num_elements=num_elements,
            ours=ours,
            reference=plain,
        )
        for operator, (ours, plain, num_elements, shape) in calls.items()
    )


def cases() -> tuple[SimulatorCase, ...]:
    """Return one case for each operator that has an Ascend kernel."""
    return (*quantised(), topk_gate(), apply_rotary(), randn(), *mhc(), *engram())
