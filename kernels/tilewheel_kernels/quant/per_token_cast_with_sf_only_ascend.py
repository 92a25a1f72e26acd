"""per_token_cast_with_sf_only for Ascend: the scales of per_token_cast, for any largest value.

The mathematics, the method, the tiles and the numerics are those of row_cast_ascend.py.
UB bytes: 2 * (x + sf) + 4 / 32 for each of the 16384 channels of a tile, x and sf being the bytes
of a channel: 70 KiB for bfloat16, 134 KiB for float32.
Reference: tilewheel.reference.quant.per_token_cast_with_sf_only.
Source: original.
"""

from typing import TYPE_CHECKING

import tilelang.ascend.language as T

from tilewheel_kernels.quant.row_cast_ascend import BITS_DTYPE, check, find_amax, store_scales
from tilewheel_kernels.quant.tiles_ascend import GROUP, LANES, Tiles, place, plan

if TYPE_CHECKING:
    from tvm.tirx import PrimFunc

PASS_CONFIGS: dict[str, object] = {}


def per_token_cast_with_sf_only(
    *,
    x_dtype: str,
    sf_dtype: str,
    round_sf: bool,
    col_major_sf: bool,
    num_vec_cores: int | None,
) -> "PrimFunc":
    """Return the kernel (x, sf, clamp_min, max_value, num_per_channels, num_vec_cores)."""
    check(
        num_vec_cores=num_vec_cores,
        sf_dtype=sf_dtype,
        round_sf=round_sf,
    )
    tiles = Tiles.for_sf(col_major=col_major_sf)
    rows, channels, groups = tiles.block_rows, tiles.block_channels, tiles.block_groups
    registers = rows * groups // LANES
    is_packed = sf_dtype == "int16"
    sf_channels = 2 * GROUP if is_packed else GROUP  # of an element
    # Exponent bytes of adjacent groups are words already.
    stores_bytes = is_packed and not col_major_sf
    x_type = tiles.strided("x", x_dtype)
    sf_type = tiles.sf(sf_dtype, col_major=col_major_sf)

    @T.prim_func
    def per_token_cast_with_sf_only_ascend(
        x: x_type,
        sf: sf_type,
        clamp_min: T.float32,
        max_value: T.float32,
        num_per_channels: T.int32,
        num_vec_cores: T.int32,
    ) -> None:
        with T.Kernel(num_vec_cores) as core:
            x_ub = T.alloc_shared((rows, channels), x_dtype)
            sf_ub = T.alloc_shared(tiles.sf_block(sf_dtype, col_major=col_major_sf), sf_dtype)
            amax_bits_ub = T.alloc_shared((registers, LANES), T.int32)
            x_bits_ub = T.view(x_ub, (rows, channels), BITS_DTYPE[x_dtype])
            sf_view_ub = T.view(sf_ub, (registers, LANES), T.uint8) if stores_bytes else sf_ub
            amax_rows_ub = T.view(amax_bits_ub, (rows, groups), T.int32)
            T.annotate_buffer_versions({x_ub: 2, sf_ub: 2})

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
                        *(amax_bits_ub, sf_view_ub, None, num_rows, clamp_min, max_value),
                        *(is_packed, round_sf, col_major_sf, False),
                    )

                # store
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

    return per_token_cast_with_sf_only_ascend
