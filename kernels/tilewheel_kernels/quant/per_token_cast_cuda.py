"""per_token_cast, CUDA: bfloat16 or float32 rows to e4m3 or e2m1 and their scales.

The mathematics, the layout of threads and the numerics are those of row_cast_cuda.py.
On-chip: registers only. Reference: tilewheel.reference.quant.per_token_cast. Source: original.
"""

from typing import TYPE_CHECKING

import tilelang.language as T

from tilewheel_kernels.quant.arithmetic_cuda import MAX_VALUE
from tilewheel_kernels.quant.row_cast_cuda import (
    RUN,
    THREADS,
    Rows,
    check,
    decode,
    find_amax,
    find_amax_of_pairs,
    load_row,
    raw_width,
    scale_values,
    store_data,
    store_pairs_as_e2m1,
    store_sf,
)

if TYPE_CHECKING:
    from tvm.tirx import PrimFunc

PASS_CONFIGS: dict[str, object] = {"tl.disable_safe_memory_legalize": True}


def per_token_cast(
    *,
    x_dtype: str,
    data_dtype: str,
    sf_dtype: str,
    round_sf: bool,
) -> "PrimFunc":
    """Return the kernel (x, data, sf, clamp_min, num_per_channels)."""
    check(sf_dtype=sf_dtype, round_sf=round_sf)
    rows = Rows(is_packed=sf_dtype == "int32")
    x_type = rows.x_tensor("x", x_dtype)
    data_type = rows.data_tensor(data_dtype)
    sf_type = rows.sf_tensor(sf_dtype)
    max_value = MAX_VALUE[data_dtype]
    # Products with a power of two keep the 8 bits of a bfloat16, so pairs of them will do.
    in_pairs = x_dtype == "bfloat16" and data_dtype == "int8" and round_sf

    @T.prim_func
    def per_token_cast(
        x: x_type,
        data: data_type,
        sf: sf_type,
        clamp_min: T.float32,
        num_per_channels: rows.num_per_channels,
    ):
        with T.Kernel(rows.num_blocks, threads=THREADS) as block:
            row, channel = rows.place(block, T.get_thread_binding())
            inside = (row < rows.num_tokens) & (channel < rows.hidden)
            x_local = T.alloc_local((raw_width(x_dtype),), x_dtype)
            values_local = T.alloc_local((RUN,), "float32")
            if x_dtype == "bfloat16":
                pairs_local = T.view(x_local, (RUN // 2,), "bfloat16x2")
            amax_local = T.alloc_local((1,), "float32")
            T.pdl_sync()

            # load
            load_row(x, x_local, row, channel, inside)

            # compute
            if x_dtype == "bfloat16":
                find_amax_of_pairs(amax_local, pairs_local, clamp_min, rows)
            else:
                decode(x_local, values_local, x_dtype)
                find_amax(amax_local, values_local, clamp_min, rows)
            T.pdl_trigger()

            # store
            store_sf(sf, amax_local, row, channel, inside, rows, max_value, round_sf)
            if inside:
                if in_pairs:
                    store_pairs_as_e2m1(data, pairs_local, amax_local, row, channel)
                else:
                    if x_dtype == "bfloat16":
                        decode(x_local, values_local, x_dtype)
                    scale_values(values_local, amax_local, max_value, sf_dtype, round_sf)
                    store_data(data, values_local, row, channel, data_dtype)

    return per_token_cast
