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
    THREADS,
    Rows,
    check,
    decode,
    find_amax,
    load_row,
    raw_width,
    store_sf,
)

if TYPE_CHECKING:
    from tvm.tirx import PrimFunc

PASS_CONFIGS: dict[str, object] = {"tl.disable_safe_memory_legalize": True}


def per_token_cast_with_sf_only(*, x_dtype: str, sf_dtype: str, round_sf: bool) -> "PrimFunc":
    """Return the kernel (x, sf, clamp_min, max_value, num_per_channels)."""
    check(sf_dtype=sf_dtype, round_sf=round_sf)
    rows = Rows(is_packed=sf_dtype == "int32")
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
        with T.Kernel(rows.num_blocks, threads=THREADS) as block:
            row, channel = rows.place(block, T.get_thread_binding())
            inside = (row < rows.num_tokens) & (channel < rows.hidden)
            x_local = T.alloc_local((raw_width(x_dtype),), x_dtype)
            values_local = T.alloc_local((RUN,), "float32")
            amax_local = T.alloc_local((1,), "float32")
            T.pdl_sync()

            # load
            load_row(x, x_local, row, channel, inside)

            # compute
            decode(x_local, values_local, x_dtype)
            find_amax(amax_local, values_local, clamp_min, rows)
            T.pdl_trigger()

            # store
            store_sf(sf, amax_local, row, channel, inside, rows, max_value, round_sf)

    return per_token_cast_with_sf_only
