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


_DATA_DTYPE = {"e4m3": "float8_e4m3fn", "e2m1": "int8"}


def per_token_cast(name: str, fmt: str, size: int, hidden: int = 7168, **flags: bool) -> Case:
    width = hidden // 2 if fmt == "e2m1" else hidden
    num_groups = -(-hidden // size)
    sf_bytes = num_groups * (1 if flags.get("use_packed_ue8m0") else 4)

    def inputs(num_tokens: int) -> tuple[Any, Any]:
        x = torch.randn((num_tokens, hidden), device="cuda").to(torch.bfloat16)
        return x, tw.quant.per_token_cast(x, fmt, size, **flags)

    def peer(tensors: Any) -> object:
        import tile_kernels

        return tile_kernels.quant.per_token_cast(tensors[0], fmt, size, **flags)

    return Case(
        name=f"per_token_cast {name}",
        operator="per_token_cast",
        parameters=(
            ("x_dtype", "bfloat16"),
            ("data_dtype", _DATA_DTYPE[fmt]),
            ("sf_dtype", "int32" if flags.get("use_packed_ue8m0") else "float32"),
            ("round_sf", flags.get("round_sf", False)),
        ),
        inputs=inputs,
        ours=lambda tensors: tw.quant.per_token_cast(
            tensors[0], fmt, size, out=tensors[1], **flags
        ),
        ours_allocating=lambda tensors: tw.quant.per_token_cast(tensors[0], fmt, size, **flags),
        peer=peer,
        bytes=lambda num_tokens: num_tokens * (2 * hidden + width + sf_bytes),
    )


def per_token_recast(hidden: int = 7168) -> Case:
    """From e2m1 with a scale for 32 channels to e4m3 with one for 128: weights of experts."""

    def inputs(num_tokens: int) -> Any:
        x = torch.randn((num_tokens, hidden), device="cuda").to(torch.bfloat16)
        return tw.quant.per_token_cast(x, "e2m1", 32, round_sf=True)

    def ours(pair: Any) -> object:
        return tw.quant.per_token_cast(pair, "e4m3", 128, x_block_size=(1, 32), round_sf=True)

    def peer(pair: Any) -> object:
        import tile_kernels

        return tile_kernels.quant.per_token_cast(pair, "e4m3", 128, (1, 32), round_sf=True)

    return Case(
        name="per_token_cast of e2m1 32 to e4m3 128",
        operator="per_token_recast",
        parameters=(
            ("x_dtype", "int8"),
            ("data_dtype", "float8_e4m3fn"),
            ("sf_dtype", "float32"),
            ("round_sf", True),
        ),
        inputs=inputs,
        ours=ours,
        ours_allocating=ours,
        peer=peer,
        bytes=lambda num_tokens: num_tokens * (hidden // 2 + hidden // 8 + hidden + hidden // 32),
    )


def half_of_a_cast(operator: str, hidden: int = 7168) -> Case:
    """One of the casts that give scales alone, data alone, or data rounded stochastically."""
    flags = {"round_sf": True} if operator == "per_token_cast_with_sf_only" else {}

    def inputs(num_tokens: int) -> tuple[Any, Any]:
        x = torch.randn((num_tokens, hidden), device="cuda").to(torch.bfloat16)
        return x, tw.quant.per_token_cast_with_sf_only(x, "e4m3", 128)

    def ours(tensors: Any) -> object:
        x, sf = tensors
        if operator == "per_token_cast_with_precomputed_sf":
            return tw.quant.per_token_cast_with_precomputed_sf(x, "e4m3", 128, sf)
        if operator == "stochastic_cast":
            return tw.quant.stochastic_cast(x, "e4m3", 128, seed=1)
        return tw.quant.per_token_cast_with_sf_only(x, "e4m3", 128, **flags)

    def peer(tensors: Any) -> object:
        import tile_kernels

        x, sf = tensors
        if operator == "per_token_cast_with_precomputed_sf":
            return tile_kernels.quant.per_token_cast_with_precomputed_sf(x, "e4m3", 128, sf)
        return tile_kernels.quant.per_token_cast_with_sf_only(x, "e4m3", 128, **flags)

    written = {"per_token_cast_with_sf_only": hidden // 32}
    moved = written.get(operator, hidden + hidden // 32)
    named = {
        "per_token_cast_with_sf_only": (("sf_dtype", "float32"), ("round_sf", True)),
        "per_token_cast_with_precomputed_sf": (("data_dtype", "float8_e4m3fn"),),
        "stochastic_cast": (("data_dtype", "float8_e4m3fn"), ("round_sf", False)),
    }
    return Case(
        name=f"{operator} e4m3 128",
        operator=operator,
        parameters=(("x_dtype", "bfloat16"), *named[operator]),
        inputs=inputs,
        ours=ours,
        ours_allocating=ours,
        # The peer's stochastic rounding needs sm_100a.
        peer=None if operator == "stochastic_cast" else peer,
        bytes=lambda num_tokens: num_tokens * (2 * hidden + moved),
    )


def cast_back(fmt: str, size: int, hidden: int = 7168) -> Case:
    width = hidden // 2 if fmt == "e2m1" else hidden

    def inputs(num_tokens: int) -> tuple[Any, Any]:
        x = torch.randn((num_tokens, hidden), device="cuda").to(torch.bfloat16)
        return tw.quant.per_token_cast(x, fmt, size), torch.empty_like(x)

    def peer(tensors: Any) -> object:
        import tile_kernels

        return tile_kernels.quant.cast_back(tensors[0], "bf16", (1, size))

    return Case(
        name=f"cast_back {fmt} {size} bf16",
        operator="cast_back",
        parameters=(
            ("data_dtype", _DATA_DTYPE[fmt]),
            ("sf_dtype", "float32"),
            ("out_dtype", "bfloat16"),
        ),
        inputs=inputs,
        ours=lambda tensors: tw.quant.cast_back(tensors[0], "bf16", (1, size), out=tensors[1]),
        ours_allocating=lambda tensors: tw.quant.cast_back(tensors[0], "bf16", (1, size)),
        peer=peer,
        bytes=lambda num_tokens: num_tokens * (2 * hidden + width + 4 * -(-hidden // size)),
    )


def apply_rotary(num_heads: int, interleaved: bool, *, with_positions: bool = False) -> Case:
    """Query of ``num_heads`` heads of 64 bfloat16, positions given (int64) or counted."""

    def inputs(num_tokens: int) -> tuple[Any, Any, Any]:
        query = torch.randn((num_tokens, num_heads, 64), device="cuda").to(torch.bfloat16)
        # Real angles: replays rotate in place, and anything else would grow without bound.
        angles = torch.rand((num_tokens, 32), device="cuda")
        cache = torch.cat((angles.cos(), angles.sin()), dim=-1)
        return query, cache, torch.arange(num_tokens, device="cuda") if with_positions else None

    def ours(tensors: Any) -> object:
        query, cache, positions = tensors
        tw.transform.apply_rotary(query, cache, None, positions, interleaved=interleaved)
        return query

    def peer(tensors: Any) -> object:
        import tile_kernels

        query, cache, positions = tensors
        return tile_kernels.transform.apply_rotary(
            query, cache, positions=positions, interleaved=interleaved
        )

    return Case(
        name=f"apply_rotary {'pairs' if interleaved else 'halves'} {num_heads}x64"
        + (" positions" if with_positions else ""),
        operator="apply_rotary",
        parameters=(("dtype", "bfloat16"), ("head_dim", 64), ("interleaved", interleaved)),
        inputs=inputs,
        ours=ours,
        ours_allocating=ours,
        peer=peer,
        bytes=lambda num_tokens: (
            num_tokens * (2 * 2 * 64 * num_heads + 4 * 64 + 8 * with_positions)
        ),
    )


CASES = (
    topk_gate(72, 6),
    topk_gate(256, 8),
    topk_gate(384, 6),
    topk_gate(896, 16),
    # No specialised artifact: the generic one answers.
    topk_gate(144, 8),
    per_token_cast("e4m3 128", "e4m3", 128),
    per_token_cast(
        "e4m3 128 ue8m0 col",
        "e4m3",
        128,
        round_sf=True,
        use_packed_ue8m0=True,
        use_tma_aligned_col_major_sf=True,
    ),
    per_token_cast("e2m1 32 round", "e2m1", 32, round_sf=True),
    cast_back("e4m3", 128),
    cast_back("e2m1", 32),
    per_token_recast(),
    half_of_a_cast("per_token_cast_with_sf_only"),
    half_of_a_cast("per_token_cast_with_precomputed_sf"),
    half_of_a_cast("stochastic_cast"),
    apply_rotary(64, interleaved=False),
    apply_rotary(64, interleaved=True, with_positions=True),
)
