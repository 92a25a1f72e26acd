"""shift, Ascend: rows dealt out to the vector cores, one row in UB at a time.

Both buffers are asked for twice. A buffer that is written before the loop as well cannot be: where
rows are not staged, TileLang drops the second version of ``x_ub`` and the manifest counts it.
"""

import tilelang.ascend.language as T


def shift(*, hidden, staged, num_vec_cores):
    rows = T.dynamic("num_tokens")

    @T.macro
    def one_row(x, y, x_ub, y_ub, row, enabled, offset, base, factor):
        T.copy(x[row, 0], x_ub)
        with T.SimdVF():
            mask = T.simd.pset(32, "PAT_ALL")
            added = T.cast(offset, "float32") + T.cast(base, "float32")
            for c in T.serial(hidden // 64):
                value = T.simd.vld(x_ub[0, c * 64])
                product = T.simd.vmuls(value, factor, mask)
                T.simd.vsts(y_ub[0, c * 64], T.simd.vadds(product, added, mask), mask)
        if enabled:
            T.copy(y_ub, y[row, 0])

    @T.prim_func
    def shift(
        x: T.Tensor((rows, hidden), "float32"),
        y: T.Tensor((rows, hidden), "float32"),
        enabled: T.bool,
        offset: T.int32,
        base: T.int64,
        factor: T.float32,
        num_vec_cores: T.int32,
    ):
        with T.Kernel(num_vec_cores) as core:
            x_ub = T.alloc_shared((1, hidden), "float32")
            y_ub = T.alloc_shared((1, hidden), "float32")
            T.annotate_buffer_versions({x_ub: 2, y_ub: 2})
            share = T.ceildiv(rows, num_vec_cores)
            if staged:
                for i in T.Pipelined(share, num_stages=2):
                    row = i * num_vec_cores + core
                    if row < rows:
                        one_row(x, y, x_ub, y_ub, row, enabled, offset, base, factor)
            else:
                T.copy(x[0, 0], x_ub)
                for i in T.serial(share):
                    row = i * num_vec_cores + core
                    if row < rows:
                        one_row(x, y, x_ub, y_ub, row, enabled, offset, base, factor)

    return shift
