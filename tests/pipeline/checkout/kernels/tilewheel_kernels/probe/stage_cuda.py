"""stage, CUDA: persistent blocks, num_sms x num_splits of them."""

import tilelang.language as T


def stage(*, hidden):
    rows = T.dynamic("num_rows")

    @T.prim_func
    def stage(
        x: T.Tensor((rows, hidden), "float32"),
        y: T.Tensor((rows, hidden), "float32"),
        codes: T.Tensor((rows, 3), "int32"),
        enabled: T.bool,
        num_splits: T.int64,
        num_sms: T.int32,
    ):
        with T.Kernel(num_sms, num_splits, threads=(32, 4)) as (first, split):
            row_shared = T.alloc_shared((hidden,), "float32")
            for i in T.serial(T.ceildiv(rows, num_sms)):
                row = i * num_sms + first
                if row < rows and split == 0:
                    T.copy(x[row, 0:hidden], row_shared, disable_tma=True)
                    T.copy(row_shared, y[row, 0:hidden], disable_tma=True)
                    if enabled:
                        for k in T.serial(3):
                            codes[row, k] = row

    return stage
