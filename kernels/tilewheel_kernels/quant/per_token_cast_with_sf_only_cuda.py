"""per_token_cast_with_sf_only, CUDA: the scales of per_token_cast, without its data.

The mathematics, the layout of threads and the numerics are those of row_cast_cuda.py; the format's
largest value is an argument.
On-chip: registers only. Reference: tilewheel.reference.quant.per_token_cast_with_sf_only.
Source: original.
"""

from typing import TYPE_CHECKING

import tilelang.language as T

from tilewheel_kernels.quant.row_cast_cuda import (
    RUN,
    Rows,
    check,
    decode,
    find_amax,
    find_amax_of_pairs,
    load_row,
    raw_width,
    store_sf,
)

if TYPE_CHECKING:
    from tvm.tirx import PrimFunc

PASS_CONFIGS: dict[str, object] = {"tl.disable_safe_memory_legalize": True}

# Twice those of the casts, which write as well: launching blocks would set the pace again.
_THREADS = 256


def per_token_cast_with_sf_only(*, x_dtype: str, sf_dtype: str, round_sf: bool) -> "PrimFunc":
    """Return the kernel (x, sf, clamp_min, max_value, num_per_channels)."""
    check(sf_dtype=sf_dtype, round_sf=round_sf)
    rows = Rows(is_packed=sf_dtype == "int32", threads=_THREADS)
    x_type = rows.x_tensor("x", x_dtype)
    sf_type = rows.sf_tensor(sf_dtype)

    @T.prim_func
    def per_token_cast_with_sf_only(
        x: x_type,
        sf: sf_type,
        clamp_min: T.float32,
        max_value: T.float32,
        num_per_channels: rows.num_per_channels,
    ):
        with T.Kernel(rows.num_blocks, threads=_THREADS) as block:
            row, channel = rows.place(block, T.get_thread_binding())
            inside = (row < rows.num_tokens) & (channel < rows.hidden)
            x_local = T.alloc_local((raw_width(x_dtype),), x_dtype)
            if x_dtype == "bfloat16":
                pairs_local = T.view(x_local, (RUN // 2,), "bfloat16x2")
            else:
                values_local = T.alloc_local((RUN,), "float32")
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

    return per_token_cast_with_sf_only
