"""per_token_cast for Ascend: bfloat16 or float32 rows to e4m3 or e2m1 and their scales.

The mathematics, the method, the tiles and the numerics are those of row_cast_ascend.py.
UB bytes: 2 * (x + data + sf) + 8 / 32 for each of the 16384 channels of a tile, x, data and sf
being the bytes of a channel: 104 KiB for bfloat16 to e4m3, 168 KiB for float32.
Reference: tilewheel.reference.quant.per_token_cast.
Source: original.
"""

from typing import TYPE_CHECKING

import tilelang.ascend.language as T

from tilewheel_kernels.quant.row_cast_ascend import (
    BITS_DTYPE,
    MAX_VALUE,
    cast_rows,
    check,
    find_amax,
    store_scales,
)
from tilewheel_kernels.quant.tiles_ascend import GROUP, LANES, Tiles, place, plan

if TYPE_CHECKING:
    from tvm.tirx import PrimFunc

PASS_CONFIGS: dict[str, object] = {}


def per_token_cast(
    *,
    x_dtype: str,
    data_dtype: str,
    sf_dtype: str,
    round_sf: bool,
    col_major_sf: bool,
    num_vec_cores: int | None,
) -> "PrimFunc":
    """Return the kernel (x, data, sf, clamp_min, num_per_channels, num_vec_cores)."""
    check(
        num_vec_cores=num_vec_cores,
        sf_dtype=sf_dtype,
        round_sf=round_sf,
    )
    tiles = Tiles.for_sf(col_major=col_major_sf)
    rows, channels, groups = tiles.block_rows, tiles.block_channels, tiles.block_groups
    is_e2m1 = data_dtype == "int8"
    data_channels = 2 if is_e2m1 else 1  # of an element
    data_width = channels // data_channels
    registers = rows * groups // LANES
    is_packed = sf_dtype == "int16"
    sf_channels = 2 * GROUP if is_packed else GROUP
    # Exponent bytes of adjacent groups are words already.
    stores_bytes = is_packed and not col_major_sf
    # A bfloat16 times a power of two is one again; below the normal numbers the bits that it loses
    # are far below the smallest e2m1 value.
    is_bfloat16 = x_dtype == "bfloat16" and round_sf
    max_value = MAX_VALUE[data_dtype]
    x_type = tiles.strided("x", x_dtype)
    data_type = tiles.dense(data_dtype)
    sf_type = tiles.sf(sf_dtype, col_major=col_major_sf)

    @T.prim_func
    def per_token_cast_ascend(
        x: x_type,
        data: data_type,
        sf: sf_type,
        clamp_min: T.float32,
        num_per_channels: T.int32,
        num_vec_cores: T.int32,
    ) -> None:
        with T.Kernel(num_vec_cores) as core:
            x_ub = T.alloc_shared((rows, channels), x_dtype)
            data_ub = T.alloc_shared((rows, data_width), data_dtype)
            sf_ub = T.alloc_shared(tiles.sf_block(sf_dtype, col_major=col_major_sf), sf_dtype)
            amax_bits_ub = T.alloc_shared((registers, LANES), T.int32)
            inverse_ub = T.alloc_shared((registers, LANES), T.float32)
            x_bits_ub = T.view(x_ub, (rows, channels), BITS_DTYPE[x_dtype])
            data_bytes_ub = T.view(data_ub, (rows, data_width), T.uint8)
            sf_view_ub = T.view(sf_ub, (registers, LANES), T.uint8) if stores_bytes else sf_ub
            amax_rows_ub = T.view(amax_bits_ub, (rows, groups), T.int32)
            inverse_rows_ub = T.view(inverse_ub, (rows, groups), T.float32)
            T.annotate_buffer_versions({x_ub: 2, data_ub: 2, sf_ub: 2})

            num_parts, part_channels, tile_rows = plan(tiles, num_vec_cores)
            num_tiles = tiles.count(num_parts, tile_rows, core, num_vec_cores)
            for i in T.Pipelined(num_tiles, num_stages=2):
                row, num_rows, channel, num_channels = place(
                    tiles, i * num_vec_cores + core, num_parts, part_channels, tile_rows
                )

                # load
                T.copy(
                    x[row : row + num_rows, channel : channel + num_channels],
                    x_ub[0:num_rows, 0:num_channels],
                )

                # compute
                with T.SimdVF():
                    find_amax(x_bits_ub, amax_rows_ub, num_rows, num_channels)
                    T.simd.mem_bar("VST_VLD")
                    store_scales(
                        *(amax_bits_ub, sf_view_ub, inverse_ub, num_rows, clamp_min, max_value),
                        *(is_packed, round_sf, col_major_sf, True),
                    )
                    T.simd.mem_bar("VST_VLD")
                    cast_rows(
                        *(x_ub, inverse_rows_ub, data_bytes_ub, num_rows, num_channels),
                        *(is_e2m1, is_bfloat16),
                    )

                # store
                column = T.truncdiv(channel, data_channels)
                width = T.truncdiv(num_channels, data_channels)
                T.copy(
                    data_ub[0:num_rows, 0:width],
                    data[row : row + num_rows, column : column + width],
                )
                word = T.truncdiv(channel, sf_channels)
                num_words = T.truncdiv(num_channels, sf_channels)
                if col_major_sf:
                    T.copy(
                        sf_ub[0:num_words, 0:num_rows],
                        sf[word : word + num_words, row : row + num_rows],
                    )
                else:
                    T.copy(
                        sf_ub[0:num_rows, 0:num_words],
                        sf[row : row + num_rows, word : word + num_words],
                    )

    return per_token_cast_ascend
