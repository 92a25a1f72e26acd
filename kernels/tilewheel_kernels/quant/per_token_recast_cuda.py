"""per_token_recast, CUDA: per_token_cast of a tensor that is quantised already.

    x = data * sf of the given pair in fp32, then as per_token_cast

The mathematics, the layout of threads and the numerics are those of row_cast_cuda.py.
On-chip: registers only. Reference: tilewheel.reference.quant.per_token_cast. Source: original.
"""

from typing import TYPE_CHECKING

import tilelang.language as T

from tilewheel_kernels.quant.arithmetic_cuda import MAX_VALUE, multiply
from tilewheel_kernels.quant.row_cast_cuda import (
    RUN,
    THREADS,
    Rows,
    check,
    decode,
    find_amax,
    load_row,
    load_scale,
    raw_width,
    scale_values,
    store_data,
    store_sf,
    strided_sf,
)

if TYPE_CHECKING:
    from tvm.tirx import PrimFunc

PASS_CONFIGS: dict[str, object] = {"tl.disable_safe_memory_legalize": True}


def per_token_recast(
    *,
    x_dtype: str,
    data_dtype: str,
    sf_dtype: str,
    round_sf: bool,
) -> "PrimFunc":
    """Return the kernel (x, x_sf, data, sf, scalars)."""
    check(sf_dtype=sf_dtype, round_sf=round_sf)
    rows = Rows(is_packed=sf_dtype == "int32")
    x_type = rows.x_tensor("x", x_dtype)
    x_sf_shape = (T.dynamic("x_sf_rows"), T.dynamic("x_sf_columns"))
    x_sf_type = strided_sf("x_sf", x_sf_shape, "float32")
    data_type = rows.data_tensor(data_dtype)
    sf_type = rows.sf_tensor(sf_dtype)
    max_value = MAX_VALUE[data_dtype]

    @T.prim_func
    def per_token_recast(
        x: x_type,
        x_sf: x_sf_type,
        data: data_type,
        sf: sf_type,
        clamp_min: T.float32,
        num_per_channels: rows.num_per_channels,
        block_tokens: T.int32,
        block_channels: T.int32,
    ):
        with T.Kernel(rows.num_blocks, threads=THREADS) as block:
            row, channel = rows.place(block, T.get_thread_binding())
            inside = (row < rows.num_tokens) & (channel < rows.hidden)
            x_local = T.alloc_local((raw_width(x_dtype),), x_dtype)
            values_local = T.alloc_local((RUN,), "float32")
            amax_local = T.alloc_local((1,), "float32")
            scale_local = T.alloc_local((1,), "float32")
            T.pdl_sync()

            # load
            load_row(x, x_local, row, channel, inside)
            load_scale(x_sf, scale_local, 0, row, channel, inside, block_tokens, block_channels)

            # compute
            decode(x_local, values_local, x_dtype)
            for i in T.unroll(RUN):
                values_local[i] = multiply(values_local[i], scale_local[0])
            find_amax(amax_local, values_local, clamp_min, rows)
            scale_values(values_local, amax_local, max_value, sf_dtype, round_sf)
            T.pdl_trigger()

            # store
            store_sf(sf, amax_local, row, channel, inside, rows, max_value, round_sf)
            if inside:
                store_data(data, values_local, row, channel, data_dtype)

    return per_token_recast
