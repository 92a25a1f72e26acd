"""Small TileLang kernels for the tests: a double-buffered SIMD one, and SIMT ones."""

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


def exp_rows(columns: int, num_cores: int, x_dtype: Any, y_dtype: Any) -> Any:
    """Return the SIMT kernel (x, y, s): ``y = exp(x) * rsqrt(|x| + 1)``, ``s = sum(x, 1)``."""
    num_rows = T.dynamic("num_rows")

    @T.prim_func
    def exp_rows(
        x: T.Tensor((num_rows, columns), x_dtype),
        y: T.Tensor((num_rows, columns), y_dtype),
        s: T.Tensor((num_rows,), T.float32),
    ) -> None:
        with T.Kernel(num_cores) as core:
            for w in T.serial(T.ceildiv(num_rows, num_cores)):
                row = w * num_cores + core
                if row < num_rows:
                    with T.SimtVF(threads=128):
                        values = T.alloc_fragment((columns,), T.float32)
                        total = T.alloc_fragment((1,), T.float32)
                        for j in T.Parallel(columns):
                            values[j] = T.cast(x[row, j], T.float32)
                        T.reduce_sum(values, total, dim=0)
                        for j in T.Parallel(columns):
                            y[row, j] = T.cast(
                                T.exp(values[j]) * T.rsqrt(T.abs(values[j]) + 1.0), y_dtype
                            )
                        s[row] = total[0]

    return exp_rows


def normal_numbers(count: int, num_cores: int) -> Any:
    """Return the SIMT kernel (y, seed): normal deviates in bf16, ``count`` for each core."""

    @T.prim_func
    def normal_numbers(y: T.Tensor((num_cores * count,), T.bfloat16), seed: T.int64) -> None:
        with T.Kernel(num_cores) as core, T.SimtVF(threads=128):
            T.rng_init(seed)
            for j in T.Parallel(count):
                y[core * count + j] = T.rng_rand_float(dist="normal")

    return normal_numbers
