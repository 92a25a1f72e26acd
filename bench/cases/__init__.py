"""What is measured: every operator that has CUDA artifacts, ours beside the peer's and torch's."""

from __future__ import annotations

from collections.abc import Callable

from cases.case import ANY, Case, tensors_of
from cases.engram import engram_gate_bwd, engram_gate_fwd, fused_weight, grad_w_reduce
from cases.mhc import mhc_post_fwd, mhc_pre_big_fuse_fwd
from cases.moe import topk_gate
from cases.quant import (
    cast_back,
    per_token_cast,
    per_token_cast_with_precomputed_sf,
    per_token_cast_with_sf_only,
    per_token_recast,
    stochastic_cast,
)
from cases.transform import apply_rotary

__all__ = ["BUILDERS", "CASES", "HOST_CASES", "Case", "case_of", "tensors_of"]

BUILDERS: dict[str, Callable[..., Case]] = {
    builder.__name__: builder
    for builder in (
        topk_gate,
        per_token_cast,
        cast_back,
        per_token_recast,
        per_token_cast_with_sf_only,
        per_token_cast_with_precomputed_sf,
        stochastic_cast,
        apply_rotary,
        mhc_pre_big_fuse_fwd,
        mhc_post_fwd,
        fused_weight,
        engram_gate_fwd,
        engram_gate_bwd,
        grad_w_reduce,
    )
}
"""From an operator to the function that takes the values of a variant's parameters."""


def case_of(operator: str, parameters: dict[str, int | str]) -> Case:
    """Return the case of a variant; what it leaves to run time (``any``) gets a usual value."""
    return BUILDERS[operator](**parameters)


_BF16, _F32, _E4M3, _E2M1 = "bfloat16", "float32", "float8_e4m3fn", "int8"

CASES = (
    topk_gate(72, 6),
    topk_gate(256, 8),
    topk_gate(384, 6),
    topk_gate(896, 16),
    topk_gate(ANY, ANY),
    per_token_cast(_BF16, _E4M3, _F32, False),
    per_token_cast(_BF16, _E4M3, "int32", True, col_major=True),
    per_token_cast(_BF16, _E2M1, _F32, True),
    cast_back(_E4M3, _F32, _BF16),
    cast_back(_E2M1, _F32, _BF16),
    per_token_recast(_E2M1, _E4M3, _F32, True),
    per_token_cast_with_sf_only(_BF16, _F32, True),
    per_token_cast_with_precomputed_sf(_BF16, _E4M3),
    stochastic_cast(_BF16, _E4M3, False),
    apply_rotary(_BF16, 64, False),
    apply_rotary(_BF16, 64, True, with_positions=True),
    mhc_pre_big_fuse_fwd(4096),
    mhc_pre_big_fuse_fwd(4096, num_splits=16),
    mhc_pre_big_fuse_fwd(4096, num_splits=64),
    mhc_pre_big_fuse_fwd(7168),
    mhc_pre_big_fuse_fwd(4096, True),
    mhc_pre_big_fuse_fwd(7168, True),
    mhc_post_fwd(4096),
    mhc_post_fwd(7168),
    fused_weight(ANY),
    *(case(hidden) for case in (engram_gate_fwd, engram_gate_bwd) for hidden in (2560, 5120, 7168)),
    engram_gate_fwd(ANY),
    engram_gate_bwd(ANY),
    grad_w_reduce(ANY),
)
"""Whose kernels are timed."""

HOST_CASES = (
    topk_gate(256, 6),
    per_token_cast(_BF16, _E4M3, _F32, True),
    per_token_cast(_BF16, _E4M3, "int32", True, col_major=True),
    cast_back(_E4M3, _F32, _BF16),
    per_token_recast(_E2M1, _E4M3, _F32, True),
    per_token_cast_with_sf_only(_BF16, _F32, True),
    per_token_cast_with_precomputed_sf(_BF16, _E4M3),
    stochastic_cast(_BF16, _E4M3, False),
    apply_rotary(_BF16, 64, True),
    mhc_pre_big_fuse_fwd(4096),
    mhc_post_fwd(4096),
    fused_weight(ANY),
    engram_gate_fwd(5120),
    engram_gate_bwd(5120),
    grad_w_reduce(ANY),
)
"""Whose calls are timed on the host, where the shape hardly matters."""
