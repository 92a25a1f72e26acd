"""A small double-buffered TileLang kernel for the tests: bf16 to e4m3, row by row."""

from __future__ import annotations

from typing import Any

import tilelang.ascend.language as T


def cast_e4m3(hidden: int, num_cores: int) -> Any:
    """Return the kernel (x, y): ``y[m, :] = e4m3(x[m, :])``; ``hidden`` is a multiple of 64."""
    num_tokens = T.dynamic("num_tokens")

    @T.prim_func
    def cast(
        x: T.Tensor((num_tokens, hidden), T.bfloat16),
        y: T.Tensor((num_tokens, hidden), T.float8_e4m3fn),
    ) -> None:
        with T.Kernel(num_cores) as core:
            x_ub = T.alloc_shared((1, hidden), T.bfloat16)
            y_ub = T.alloc_shared((1, hidden), T.float8_e4m3fn)
            T.annotate_buffer_versions({x_ub: 2, y_ub: 2})
            for w in T.Pipelined(T.ceildiv(num_tokens, num_cores), num_stages=2):
                row = w * num_cores + core
                if row < num_tokens:
                    T.copy(x[row, 0], x_ub)
                    with T.SimdVF():
                        for c in T.serial(hidden // 64):
                            raw = T.simd.vld(x_ub[0, c * 64], dist="UNPK_B16")
                            wide = T.simd.vcvt(raw, T.float32)
                            narrow = T.simd.vcvt(wide, T.float8_e4m3fn)
                            mask = T.simd.pset(32, "PAT_ALL")
                            T.simd.vsts(y_ub[0, c * 64], narrow, mask, dist="PK4_B32")
                    T.copy(y_ub, y[row, 0])

    return cast
