"""scale, CUDA: one block for each row, 64 threads side by side."""

import tilelang.language as T

from .arithmetic import scaled


def scale(*, hidden, with_bias):
    rows = T.dynamic("num_tokens")
    row_stride = T.dynamic("row_stride")
    width = 64 * T.dynamic("num_chunks") if hidden is None else hidden
    return _with_bias(rows, row_stride, width) if with_bias else _plain(rows, row_stride, width)


def _plain(rows, row_stride, width):
    @T.prim_func
    def scale(
        x: T.StridedTensor((rows, width), (row_stride, 1), "float32"),
        y: T.Tensor((rows, width), "float32"),
        factor: T.float32,
        shift: T.int32,
    ):
        with T.Kernel(rows, threads=64) as row:
            lane = T.get_thread_binding()
            for c in T.serial(T.ceildiv(width, 64)):
                y[row, c * 64 + lane] = scaled(x[row, c * 64 + lane], factor, shift)

    return scale


def _with_bias(rows, row_stride, width):
    @T.prim_func
    def scale(
        x: T.StridedTensor((rows, width), (row_stride, 1), "float32"),
        bias: T.Tensor((width,), "float32"),
        y: T.Tensor((rows, width), "float32"),
        factor: T.float32,
        shift: T.int32,
    ):
        with T.Kernel(rows, T.ceildiv(width, 256), threads=64) as (row, column):
            lane = T.get_thread_binding()
            T.pdl_sync()
            for c in T.serial(4):
                if column * 256 + c * 64 + lane < width:
                    y[row, column * 256 + c * 64 + lane] = (
                        scaled(x[row, column * 256 + c * 64 + lane], factor, shift)
                        + bias[column * 256 + c * 64 + lane]
                    )

    return scale
