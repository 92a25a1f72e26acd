"""per_token_cast_with_precomputed_sf, CUDA: rows to e4m3 or e2m1 by scales that exist already.

    data = cast(x * (1 / sf)), the quotient rounded in fp32, one for each group

The layout of threads and the numerics are those of row_cast_cuda.py. On-chip: registers only.
Reference: tilewheel.reference.quant.per_token_cast_with_precomputed_sf. Source: original.
"""

from typing import TYPE_CHECKING

import tilelang.language as T

from tilewheel_kernels.quant.arithmetic_cuda import divide, multiply
from tilewheel_kernels.quant.row_cast_cuda import (
    RUN,
    THREADS,
    Rows,
    decode,
    load_row,
    raw_width,
    store_data,
)

if TYPE_CHECKING:
    from tvm.tirx import PrimFunc

PASS_CONFIGS: dict[str, object] = {"tl.disable_safe_memory_legalize": True}


def per_token_cast_with_precomputed_sf(*, x_dtype: str, data_dtype: str) -> "PrimFunc":
    """Return the kernel (x, sf, data, num_per_channels)."""
    rows = Rows()
    x_type = rows.x_tensor("x", x_dtype)
    sf_type = T.Tensor((rows.num_tokens, rows.num_words), "float32")
    data_type = rows.data_tensor(data_dtype)

    @T.prim_func
    def per_token_cast_with_precomputed_sf(
        x: x_type, sf: sf_type, data: data_type, num_per_channels: rows.num_per_channels
    ):
        with T.Kernel(rows.num_blocks, threads=THREADS) as block:
            row, channel = rows.place(block, T.get_thread_binding())
            inside = (row < rows.num_tokens) & (channel < rows.hidden)
            x_local = T.alloc_local((raw_width(x_dtype),), x_dtype)
            values_local = T.alloc_local((RUN,), "float32")
            factor_local = T.alloc_local((1,), "float32")
            T.pdl_sync()

            # load
            factor_local[0] = T.float32(1.0)
            if inside:
                factor_local[0] = sf[row, T.cast(rows.group_of(channel), "int64")]
            load_row(x, x_local, row, channel, inside)

            # compute
            factor_local[0] = divide(T.float32(1.0), factor_local[0])
            decode(x_local, values_local, x_dtype)
            for i in T.unroll(RUN):
                values_local[i] = multiply(values_local[i], factor_local[0])
            T.pdl_trigger()

            # store
            if inside:
                store_data(data, values_local, row, channel, data_dtype)

    return per_token_cast_with_precomputed_sf
