"""cast_back for Ascend: data times scale in fp32, rounded once.

    out[t, c] = cast(data[t, c] * sf[t // block_tokens, c // block_channels])

Method: a step is 256 channels in four registers of 64 lanes, lane i of register k holding channel
4 i + k, as in row_cast_ascend.py. Scales are gathered first, one for each run of 16 channels,
which no block divides; four adjacent lanes of a step are one run. The block of a run is a quotient
by a number known at run time: a product in fp32, half a run above the quotient's jumps, where it is
exact for hidden below 2^25. The scales of a tile are one rectangle of sf, whatever the blocks are.

A block (vector core) owns tiles as tiles_ascend.py deals them out.
UB bytes: 2 * (data + out) + 12 / 16, with packed scales 8 / 16, for each of the 16384 channels of a
tile, data and out being the bytes of a channel, and one row of scales: 109 KiB for e4m3 to
bfloat16, 173 KiB to float32.
Parameters: hidden a multiple of 64, block_channels a multiple of 16, both at run time; any stride
between rows of data and of sf, which has a scale for every block: run-time values are not checked
here.
Numerics: exact, rounded to nearest even; beyond bfloat16 infinite. Exponent byte 0 is 0.
Reference: tilewheel.reference.quant.cast_back.
Source: original.
"""

from typing import TYPE_CHECKING

import tilelang.ascend.language as T

from tilewheel_kernels.quant.tiles_ascend import LANES, STEP, Tiles, place, plan, whole

if TYPE_CHECKING:
    from tvm.tirx import PrimFunc

PASS_CONFIGS: dict[str, object] = {}

RUN = 16  # channels that share a scale whatever block_channels is
STEP_RUNS = STEP // RUN
SF_ROWS = 16  # pitch of a column of scales: 32 bytes or more


def cast_back(
    *,
    data_dtype: str,
    sf_dtype: str,
    col_major_sf: bool,
    out_dtype: str,
    num_vec_cores: int | None,
) -> "PrimFunc":
    """Return the kernel (data, sf, out, block_tokens, block_channels, num_vec_cores)."""
    if num_vec_cores is not None:
        raise ValueError(f"num_vec_cores: is {num_vec_cores}, must be any")
    if sf_dtype not in ("float32", "int16"):
        raise ValueError(f"sf_dtype: is {sf_dtype}, must be float32 or int16")
    tiles = Tiles.for_sf(col_major=col_major_sf)
    rows, channels = tiles.block_rows, tiles.block_channels
    runs = channels // RUN
    is_e2m1 = data_dtype == "int8"
    is_packed = sf_dtype == "int16"
    data_channels = 2 if is_e2m1 else 1  # of an element
    data_type = tiles.strided("data", data_dtype)
    out_type = tiles.dense(out_dtype)
    token_blocks, channel_words = T.dynamic("token_blocks"), T.dynamic("channel_words")
    sf_shape = (channel_words, token_blocks) if col_major_sf else (token_blocks, channel_words)
    sf_type = T.StridedTensor(sf_shape, (T.dynamic("sf_stride", "int64"), 1), sf_dtype)
    sf_block = (runs, SF_ROWS) if col_major_sf else (rows, runs)
    # A step's load of scales reads a whole register.
    factor_rows = rows + 1
    view_dtype = "uint16" if is_e2m1 else data_dtype
    view_width = channels // 4 if is_e2m1 else channels

    @T.prim_func
    def cast_back_ascend(
        data: data_type,
        sf: sf_type,
        out: out_type,
        block_tokens: T.int32,
        block_channels: T.int32,
        num_vec_cores: T.int32,
    ) -> None:
        with T.Kernel(num_vec_cores) as core:
            data_ub = T.alloc_shared((rows, channels // data_channels), data_dtype)
            sf_ub = T.alloc_shared(sf_block, sf_dtype)
            out_ub = T.alloc_shared((rows, channels), out_dtype)
            factor_ub = T.alloc_shared((factor_rows, runs), T.float32)
            codes_ub = T.view(data_ub, (rows, view_width), view_dtype)
            T.annotate_buffer_versions({data_ub: 2, sf_ub: 2, out_ub: 2})

            num_parts, part_channels, tile_rows = plan(tiles, num_vec_cores)
            num_tiles = tiles.count(num_parts, tile_rows, core, num_vec_cores)
            for i in T.Pipelined(num_tiles, num_stages=2):
                row, num_rows, channel, num_channels = place(
                    tiles, i * num_vec_cores + core, num_parts, part_channels, tile_rows
                )
                first_token, num_token_blocks, rest_rows, rows_of_block = token_blocks_of(
                    row, num_rows, block_tokens
                )
                first_word, num_words, is_odd, rest_runs, runs_of_block = channel_blocks_of(
                    *(channel, num_channels, T.min(block_channels, tiles.hidden), is_packed),
                )

                # load
                column = T.truncdiv(channel, data_channels)
                width = T.truncdiv(num_channels, data_channels)
                T.copy(
                    data[row : row + num_rows, column : column + width],
                    data_ub[0:num_rows, 0:width],
                )
                if col_major_sf:
                    T.copy(
                        sf[
                            first_word : first_word + num_words,
                            first_token : first_token + num_token_blocks,
                        ],
                        sf_ub[0:num_words, 0:num_token_blocks],
                    )
                else:
                    T.copy(
                        sf[
                            first_token : first_token + num_token_blocks,
                            first_word : first_word + num_words,
                        ],
                        sf_ub[0:num_token_blocks, 0:num_words],
                    )

                # compute
                with T.SimdVF():
                    gather_factors(
                        *(sf_ub, factor_ub, num_rows, rest_rows, rows_of_block),
                        *(is_odd, rest_runs, runs_of_block, runs, is_packed, col_major_sf),
                    )
                    T.simd.mem_bar("VST_VLD")
                    multiply_rows(codes_ub, factor_ub, out_ub, num_rows, num_channels)

                # store
                T.copy(
                    out_ub[0:num_rows, 0:num_channels],
                    out[row : row + num_rows, channel : channel + num_channels],
                )

    return cast_back_ascend


@T.macro
def token_blocks_of(row, num_rows, block_tokens):  # type: ignore[no-untyped-def]
    """Return a tile's first row of sf, their number, and how its rows meet them.

    Row r of the tile meets row (r + rest_rows) // rows_of_block of its part of sf. Small numbers:
    what is more than a tile away is as far as a tile.
    """
    first = T.alloc_var(T.int64)
    count = T.alloc_var(T.int32)
    rest_rows = T.alloc_var(T.int32)
    rows_of_block = T.alloc_var(T.int32)
    size = T.cast(block_tokens, "int64")
    first = T.truncdiv(row, size)
    count = T.cast(T.truncdiv(row + num_rows - 1, size) - first, "int32") + 1
    rows_of_block = T.min(block_tokens, SF_ROWS)
    to_next = T.min((first + 1) * size - row, T.cast(rows_of_block, "int64"))
    rest_rows = rows_of_block - T.cast(to_next, "int32")
    return first, count, rest_rows, rows_of_block


@T.macro
def channel_blocks_of(channel, num_channels, block_channels, is_packed):  # type: ignore[no-untyped-def]
    """Return a tile's first word of a row of sf, their number, and how its runs meet them.

    Run u of the tile meets block (u + rest_runs) // runs_of_block of its part of sf; in packed sf
    is_odd says that the first one is in the upper half of its word.
    """
    first = T.alloc_var(T.int32)
    count = T.alloc_var(T.int32)
    is_odd = T.alloc_var(T.int32)
    rest_runs = T.alloc_var(T.int32)
    runs_of_block = T.alloc_var(T.int32)
    block = T.truncdiv(channel, block_channels)
    last = T.truncdiv(channel + num_channels - 1, block_channels)
    rest_runs = T.truncdiv(channel - block * block_channels, RUN)
    runs_of_block = T.truncdiv(block_channels, RUN)
    if is_packed:
        first = block >> 1
        count = (last >> 1) - first + 1
        is_odd = block & 1
    else:
        first = block
        count = last - block + 1
        is_odd = 0
    return first, count, is_odd, rest_runs, runs_of_block


@T.macro
def quotient(numbers, divisor):  # type: ignore[no-untyped-def]
    """Return numbers // divisor of small numbers that are not negative, int32."""
    ones = T.simd.vdup(1.0, T.float32)
    inverse = T.simd.vdiv(ones, T.simd.vcvt(T.simd.vdup(divisor, T.int32), T.float32))
    above = T.simd.vadds(T.simd.vcvt(numbers, T.float32), 0.5)
    return T.simd.vcvt(T.simd.vmul(above, inverse), T.int32, round="ROUND_Z")


@T.macro
def gather_factors(  # type: ignore[no-untyped-def]
    sf_ub,
    factor_ub,
    num_rows,
    rest_rows,
    rows_of_block,
    is_odd,
    rest_runs,
    runs_of_block,
    runs,
    is_packed,
    col_major,
):
    """Put the scale of each run of each row into factor_ub."""
    registers = list(range(runs // LANES))
    block = T.simd.alloc_local((2,), T.int32)
    for j in registers:
        run = T.simd.vci(rest_runs + j * LANES, T.int32)
        # Runs behind the tile stay in sf_ub.
        block[j] = T.simd.vmins(quotient(run, runs_of_block), runs - 1)
        if is_packed:
            block[j] = T.simd.vadds(block[j], is_odd)
    for r in T.serial(num_rows):
        token = quotient(T.simd.vdup(rest_rows + r, T.int32), rows_of_block)
        place = T.simd.alloc_local((2,), T.int32)
        for j in registers:
            word = T.simd.vshrs(block[j], 1) if is_packed else block[j]
            if col_major:
                place[j] = T.simd.vadd(T.simd.vmuls(word, SF_ROWS), token)
            else:
                place[j] = T.simd.vadd(T.simd.vmuls(token, runs), word)
        if is_packed:
            if len(registers) == 2:
                places = joined(place[0], place[1])
                blocks = joined(block[0], block[1])
            else:
                places = T.simd.vpack(place[0])
                blocks = T.simd.vpack(block[0])
            words = T.simd.vgather2(whole(sf_ub, "r"), T.reinterpret(places, "uint16x128"))
            # The block's byte becomes the exponent of a bfloat16, which zeros below widen.
            one = T.simd.vdup(1, T.int16)
            shift = T.simd.vshls(T.simd.vand(blocks, one), 3)
            byte = T.simd.vand(T.simd.vshr(words, shift), T.simd.vdup(0xFF, T.int16))
            zero = T.simd.vdup(0, T.int16)
            first, second = T.simd.vintlv(zero, T.simd.vshls(byte, 7))
            T.simd.vsts(factor_ub[r, 0], T.reinterpret(first, f"float32x{LANES}"))
            if len(registers) == 2:
                T.simd.vsts(factor_ub[r, LANES], T.reinterpret(second, f"float32x{LANES}"))
        else:
            for j in registers:
                index = T.reinterpret(place[j], f"uint32x{LANES}")
                T.simd.vsts(factor_ub[r, j * LANES], T.simd.vgather2(whole(sf_ub, "r"), index))


@T.macro
def joined(first, second):  # type: ignore[no-untyped-def]
    """Return the low halves of two int32 registers as one int16 register."""
    return T.simd.vor(T.simd.vpack(first, part=0), T.simd.vpack(second, part=1))


@T.macro
def load_values(codes_ub, r, s):  # type: ignore[no-untyped-def]
    """Return a step as four float32 registers, lane i of register k being channel 4 i + k."""
    if codes_ub.dtype == "uint16":
        words = T.simd.vld(codes_ub[r, s * (STEP // 4)], dist="UNPK_B16")
        codes = T.reinterpret(words, "float4_e2m1fnx512")
        front = T.simd.vcvt(codes, T.bfloat16, part=0)
        back = T.simd.vcvt(codes, T.bfloat16, part=1)
        v0 = T.simd.vcvt(front, T.float32, part=0)
        v1 = T.simd.vcvt(front, T.float32, part=1)
        v2 = T.simd.vcvt(back, T.float32, part=0)
        v3 = T.simd.vcvt(back, T.float32, part=1)
    else:
        codes = T.simd.vld(codes_ub[r, s * STEP])
        v0 = T.simd.vcvt(codes, T.float32, part=0)
        v1 = T.simd.vcvt(codes, T.float32, part=1)
        v2 = T.simd.vcvt(codes, T.float32, part=2)
        v3 = T.simd.vcvt(codes, T.float32, part=3)
    return v0, v1, v2, v3


@T.macro
def bfloat16_pair(first, second):  # type: ignore[no-untyped-def]
    """Return two float32 registers as bfloat16, lanes in turn, in an int16 register."""
    # Without saturation: what is beyond bfloat16 becomes infinite.
    even = T.simd.vcvt(first, T.bfloat16, sat=False, part=0)
    odd = T.simd.vcvt(second, T.bfloat16, sat=False, part=1)
    return T.simd.vor(T.reinterpret(even, "int16x128"), T.reinterpret(odd, "int16x128"))


@T.macro
def multiply_rows(codes_ub, factor_ub, out_ub, num_rows, num_channels):  # type: ignore[no-untyped-def]
    """Multiply each channel by the scale of its run and round it."""
    lane = T.simd.vci(0, T.int32)
    run_of_lane = T.simd.vshrs(lane, 2)
    for r in T.serial(num_rows):
        for s in T.serial(T.truncdiv(num_channels + STEP - 1, STEP)):
            v0, v1, v2, v3 = load_values(codes_ub, r, s)
            factor = T.simd.vselr(T.simd.vld(factor_ub[r, s * STEP_RUNS]), run_of_lane)
            y0 = T.simd.vmul(v0, factor)
            y1 = T.simd.vmul(v1, factor)
            y2 = T.simd.vmul(v2, factor)
            y3 = T.simd.vmul(v3, factor)
            if out_ub.dtype == "bfloat16":
                even = bfloat16_pair(y0, y2)
                odd = bfloat16_pair(y1, y3)
                front, back = T.simd.vintlv(even, odd)
                T.simd.vsts(out_ub[r, s * STEP], T.reinterpret(front, "bfloat16x128"))
                T.simd.vsts(out_ub[r, s * STEP + STEP // 2], T.reinterpret(back, "bfloat16x128"))
            else:
                even, even_behind = T.simd.vintlv(y0, y2)
                odd, odd_behind = T.simd.vintlv(y1, y3)
                first, second = T.simd.vintlv(even, odd)
                third, fourth = T.simd.vintlv(even_behind, odd_behind)
                T.simd.vsts(out_ub[r, s * STEP], first)
                T.simd.vsts(out_ub[r, s * STEP + LANES], second)
                T.simd.vsts(out_ub[r, s * STEP + 2 * LANES], third)
                T.simd.vsts(out_ub[r, s * STEP + 3 * LANES], fourth)
