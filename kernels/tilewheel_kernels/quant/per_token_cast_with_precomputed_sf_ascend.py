"""per_token_cast_with_precomputed_sf for Ascend: rows to e4m3 or e2m1 by scales that are given.

    data = cast(x * (1 / sf)), the quotient rounded

The method, the tiles and the numerics are those of row_cast_ascend.py. Scales need not be normal
numbers; whether a device flushes such quotients is not known.
UB bytes: 2 * (x + data + 4 / 32) + 4 / 32 for each of the 16384 channels of a tile, x and data
being the bytes of a channel: 102 KiB for bfloat16 to e4m3, 166 KiB for float32.
Reference: tilewheel.reference.quant.per_token_cast_with_precomputed_sf.
Source: original.
"""

from typing import TYPE_CHECKING

import tilelang.ascend.language as T

from tilewheel_kernels.quant.row_cast_ascend import cast_rows, check, divided
from tilewheel_kernels.quant.tiles_ascend import GROUP, LANES, Tiles, place, plan

if TYPE_CHECKING:
    from tvm.tirx import PrimFunc

PASS_CONFIGS: dict[str, object] = {}


def per_token_cast_with_precomputed_sf(
    *, x_dtype: str, data_dtype: str, num_vec_cores: int | None
) -> "PrimFunc":
    """Return the kernel (x, sf, data, num_per_channels, num_vec_cores)."""
    check(num_vec_cores=num_vec_cores)
    tiles = Tiles.for_sf(col_major=False)
    rows, channels, groups = tiles.block_rows, tiles.block_channels, tiles.block_groups
    is_e2m1 = data_dtype == "int8"
    data_channels = 2 if is_e2m1 else 1  # of an element
    data_width = channels // data_channels
    x_type = tiles.strided("x", x_dtype)
    sf_type = tiles.sf("float32", col_major=False)
    data_type = tiles.dense(data_dtype)

    @T.prim_func
    def per_token_cast_with_precomputed_sf_ascend(
        x: x_type,
        sf: sf_type,
        data: data_type,
        num_per_channels: T.int32,
        num_vec_cores: T.int32,
    ) -> None:
        with T.Kernel(num_vec_cores) as core:
            x_ub = T.alloc_shared((rows, channels), x_dtype)
            sf_ub = T.alloc_shared((rows, groups), T.float32)
            data_ub = T.alloc_shared((rows, data_width), data_dtype)
            inverse_ub = T.alloc_shared((rows, groups), T.float32)
            data_bytes_ub = T.view(data_ub, (rows, data_width), T.uint8)
            T.annotate_buffer_versions({x_ub: 2, sf_ub: 2, data_ub: 2})

            num_parts, part_channels, tile_rows = plan(tiles, num_vec_cores)
            num_tiles = tiles.count(num_parts, tile_rows, core, num_vec_cores)
            for i in T.Pipelined(num_tiles, num_stages=2):
                row, num_rows, channel, num_channels = place(
                    tiles, i * num_vec_cores + core, num_parts, part_channels, tile_rows
                )

                # load
                group = T.truncdiv(channel, GROUP)
                num_groups = T.truncdiv(num_channels, GROUP)
                T.copy(
                    x[row : row + num_rows, channel : channel + num_channels],
                    x_ub[0:num_rows, 0:num_channels],
                )
                T.copy(
                    sf[row : row + num_rows, group : group + num_groups],
                    sf_ub[0:num_rows, 0:num_groups],
                )

                # compute
                with T.SimdVF():
                    one = T.simd.vdup(1.0, T.float32)
                    for r in T.serial(num_rows):
                        for k in T.serial(groups // LANES):
                            scale = T.simd.vld(sf_ub[r, k * LANES])
                            T.simd.vsts(inverse_ub[r, k * LANES], divided(one, scale))
                    T.simd.mem_bar("VST_VLD")
                    cast_rows(
                        *(x_ub, inverse_ub, data_bytes_ub, num_rows, num_channels),
                        *(is_e2m1, False),
                    )

                # store
                column = T.truncdiv(channel, data_channels)
                width = T.truncdiv(num_channels, data_channels)
                T.copy(
                    data_ub[0:num_rows, 0:width],
                    data[row : row + num_rows, column : column + width],
                )

    return per_token_cast_with_precomputed_sf_ascend
