"""The per-token casts on Ascend: one scale for each group of 32 channels of a token.

    amax = max(clamp_min, max |x|) of the group, in fp32
    float32 sf: sf = amax / max, data = cast(x * (max / amax))
    round_sf:   sf = 2^ceil(log2(amax * (1 / max))), data = cast(x * (1 / sf)); where sf is int16,
                its words hold two exponent bytes each

Method: a step is 256 channels in four registers of 64 lanes, lane i of register k holding channel
4 i + k. A group is then 8 lanes in each: their maximum is what a reduction over 32-byte blocks
gives, and the load that spreads a number over a block spreads a scale. Conversions write and read
byte k of each 32-bit lane, so that the four registers come back as one in the order of channels.

A block (vector core) owns tiles as tiles_ascend.py deals them out.
Run time: hidden a multiple of 64; any stride between rows, and any address: only UB asks for
32-byte alignment. num_per_channels is there for CUDA's sake and must be 32. There is no check here;
the launcher and the public functions have them.
Numerics: exact. amax is found on bits, which order like magnitudes, so that NaN does not count and
the float unit's treatment of it does not matter; division is TileLang's exact one, whose operands
and results are normal numbers; every other product is rounded once.
Reference: tilewheel.reference.quant.
Source: original.
"""

import tilelang.ascend.language as T

from tilewheel_kernels.quant.tiles_ascend import COL_MAJOR_ROWS, GROUP, LANES, STEP, whole

STEP_GROUPS = STEP // GROUP
MAX_VALUE = {"float8_e4m3fn": 448.0, "int8": 6.0}
BITS_DTYPE = {"bfloat16": "int16", "float32": "int32"}
FLOAT32_MAX_BITS = 0x7F7FFFFF
FLOAT32_INF_BITS = 0x7F800000
BFLOAT16_INF_BITS = 0x7F80


def check(
    *,
    num_vec_cores: int | None,
    sf_dtype: str = "float32",
    round_sf: bool = True,
) -> None:
    """Raise a ValueError for a combination that these kernels do not have."""
    if num_vec_cores is not None:
        raise ValueError(f"num_vec_cores: is {num_vec_cores}, must be any")
    if sf_dtype not in ("float32", "int16"):
        raise ValueError(f"sf_dtype: is {sf_dtype}, must be float32 or int16")
    if sf_dtype == "int16" and not round_sf:
        raise ValueError("sf_dtype: is int16, must be float32 without round_sf")


def as_int32(register):
    return T.reinterpret(register, f"int32x{LANES}")


def as_float32(register):
    return T.reinterpret(register, f"float32x{LANES}")


def as_bytes(register):
    return T.reinterpret(register, "uint8x256")


@T.macro
def magnitude(bits, dtype, infinity):  # type: ignore[no-untyped-def]
    """Return the bits of |x|, 0 for a NaN."""
    size = T.simd.vand(bits, T.simd.vdup(infinity | (infinity - 1), dtype))
    is_nan = T.simd.vcmps(size, infinity, op="gt")
    return T.simd.vsel(T.simd.vdup(0, dtype), size, is_nan)


@T.macro
def find_amax(x_bits_ub, amax_bits_ub, num_rows, num_channels):  # type: ignore[no-untyped-def]
    """Put the bits of each group's max |x| as a float32 into amax_bits_ub."""
    first_block = T.simd.pset(32, "PAT_VL8")
    for r in T.serial(num_rows):
        for s in T.serial(T.truncdiv(num_channels + STEP - 1, STEP)):
            if x_bits_ub.dtype == "int16":
                even, odd = T.simd.vld2(x_bits_ub[r, s * STEP], dist="DINTLV_B16")
                pairs = T.simd.vmax(
                    magnitude(even, T.int16, BFLOAT16_INF_BITS),
                    magnitude(odd, T.int16, BFLOAT16_INF_BITS),
                )
                # A block is 16 lanes of two channels. Zeros below make a float32 of a bfloat16.
                zero = T.simd.vdup(0, T.int16)
                wide, _ = T.simd.vintlv(zero, T.simd.vcgmax(pairs))
                amax = as_int32(wide)
            else:
                even, odd = T.simd.vld2(x_bits_ub[r, s * STEP], dist="DINTLV_B32")
                even_behind, odd_behind = T.simd.vld2(
                    x_bits_ub[r, s * STEP + 2 * LANES], dist="DINTLV_B32"
                )
                pairs = T.simd.vmax(
                    magnitude(even, T.int32, FLOAT32_INF_BITS),
                    magnitude(odd, T.int32, FLOAT32_INF_BITS),
                )
                pairs_behind = T.simd.vmax(
                    magnitude(even_behind, T.int32, FLOAT32_INF_BITS),
                    magnitude(odd_behind, T.int32, FLOAT32_INF_BITS),
                )
                first, second = T.simd.vdintlv(pairs, pairs_behind)
                amax = T.simd.vcgmax(T.simd.vmax(first, second))
            T.simd.vsts(amax_bits_ub[r, s * STEP_GROUPS], amax, first_block)


@T.macro
def clamped(amax_bits, clamp_min):  # type: ignore[no-untyped-def]
    """Return amax of 64 groups as float32, an infinity as the largest finite number."""
    finite = as_float32(T.simd.vmins(amax_bits, FLOAT32_MAX_BITS))
    return T.simd.vmaxs(finite, clamp_min)


@T.macro
def ceil_exponent(amax, inverse_max):  # type: ignore[no-untyped-def]
    """Return the biased exponent of 2^ceil(log2(amax * inverse_max))."""
    bits = as_int32(T.simd.vmul(amax, inverse_max))
    # A mantissa that is not zero carries into the exponent.
    return T.simd.vshrs(T.simd.vadds(bits, 0x7FFFFF), 23)


@T.macro
def divided(a, b):  # type: ignore[no-untyped-def]
    """Return the quotient, rounded to nearest even."""
    return T.simd.vdiv(a, b, precision="exact")


@T.macro
def store_scales(  # type: ignore[no-untyped-def]
    amax_bits_ub,
    sf_ub,
    inverse_ub,
    num_rows,
    clamp_min,
    max_value,
    is_packed,
    round_sf,
    col_major,
    needs_inverse,
):
    """Turn amax into scales as sf has them and, if needed, into what x is multiplied by.

    amax_bits_ub and inverse_ub are given as registers of 64 groups, which are one row, or two of
    the narrower tiles of column-major sf. Packed sf is given as bytes where it is row-major.
    """
    rows_per_register = 2 if col_major else 1
    registers = [0, 1] if is_packed and col_major else [0]
    rows_per_turn = len(registers) * rows_per_register
    largest = T.simd.vdup(max_value, T.float32)
    inverse_max = divided(T.simd.vdup(1.0, T.float32), largest)
    for t in T.serial(T.truncdiv(num_rows + rows_per_turn - 1, rows_per_turn)):
        exponent = T.simd.alloc_local((2,), T.int32)
        for j in registers:
            k = t * len(registers) + j
            amax = clamped(T.simd.vld(amax_bits_ub[k, 0]), clamp_min)
            if round_sf:
                exponent[j] = ceil_exponent(amax, inverse_max)
            if not is_packed:
                if round_sf:
                    sf = as_float32(T.simd.vshls(exponent[j], 23))
                else:
                    sf = divided(amax, largest)
                store_float32_sf(sf_ub, sf, k, col_major)
            if needs_inverse:
                if round_sf:
                    opposite = T.simd.vsub(T.simd.vdup(254, T.int32), exponent[j])
                    inverse = as_float32(T.simd.vshls(opposite, 23))
                else:
                    inverse = divided(largest, amax)
                T.simd.vsts(inverse_ub[k, 0], inverse)
        if is_packed:
            if col_major:
                store_transposed_words(sf_ub, exponent, t)
            else:
                T.simd.vsts(sf_ub[t, 0], exponent[0], dist="PK4_B32")


@T.macro
def store_float32_sf(sf_ub, sf, k, col_major):  # type: ignore[no-untyped-def]
    """Store 64 scales, those of two rows where sf is column-major."""
    if col_major:
        lane = T.simd.vci(0, T.int32)
        group = T.simd.vand(lane, T.simd.vdup(LANES // 2 - 1, T.int32))
        row = T.simd.vadds(T.simd.vshrs(lane, 5), 2 * k)
        place = T.simd.vadd(T.simd.vmuls(group, COL_MAJOR_ROWS), row)
        T.simd.vscatter(sf, whole(sf_ub, "w"), T.reinterpret(place, f"uint32x{LANES}"))
    else:
        T.simd.vsts(sf_ub[k, 0], sf)


@T.macro
def store_transposed_words(sf_ub, exponent, t):  # type: ignore[no-untyped-def]
    """Store the exponents of four rows as 16 words each, word by word."""
    low, high = T.simd.vdintlv(exponent[0], exponent[1])
    words = T.simd.vpack(T.simd.vor(low, T.simd.vshls(high, 8)))
    lane = T.simd.vci(0, T.int16)
    word = T.simd.vand(lane, T.simd.vdup(LANES // 4 - 1, T.int16))
    row = T.simd.vadds(T.simd.vshrs(lane, 4), T.cast(4 * t, "int16"))
    place = T.simd.vadd(T.simd.vmuls(word, COL_MAJOR_ROWS), row)
    half = T.simd.pset(16, "PAT_VL64")
    T.simd.vscatter(words, whole(sf_ub, "w"), T.reinterpret(place, "uint16x128"), half)


@T.macro
def load_values(x_ub, r, s):  # type: ignore[no-untyped-def]
    """Return a step as four float32 registers, lane i of register k being channel 4 i + k."""
    if x_ub.dtype == "bfloat16":
        even, odd = T.simd.vld2(x_ub[r, s * STEP], dist="DINTLV_B16")
        v0 = T.simd.vcvt(even, T.float32, part=0)
        v1 = T.simd.vcvt(odd, T.float32, part=0)
        v2 = T.simd.vcvt(even, T.float32, part=1)
        v3 = T.simd.vcvt(odd, T.float32, part=1)
    else:
        even, odd = T.simd.vld2(x_ub[r, s * STEP], dist="DINTLV_B32")
        even_behind, odd_behind = T.simd.vld2(x_ub[r, s * STEP + 2 * LANES], dist="DINTLV_B32")
        v0, v2 = T.simd.vdintlv(even, even_behind)
        v1, v3 = T.simd.vdintlv(odd, odd_behind)
    return v0, v1, v2, v3


@T.macro
def store_e4m3(data_bytes_ub, r, s, values):  # type: ignore[no-untyped-def]
    """Cast a step to e4m3 and store it; NaN becomes 0x7f whatever its sign."""
    part = T.simd.alloc_local((4,), T.uint8)
    for k in [0, 1, 2, 3]:
        part[k] = as_bytes(T.simd.vcvt(values[k], T.float8_e4m3fn, part=k))
    code = T.simd.vor(T.simd.vor(part[0], part[1]), T.simd.vor(part[2], part[3]))
    is_negative_nan = T.simd.vcmps(code, 0xFF, op="eq")
    T.simd.vsts(
        data_bytes_ub[r, s * STEP], T.simd.vsel(T.simd.vdup(0x7F, T.uint8), code, is_negative_nan)
    )


@T.macro
def rounded_to_odd(value):  # type: ignore[no-untyped-def]
    """Return bits whose upper half is a bfloat16 that rounds on as the float32 does.

    A value that bfloat16 lacks becomes the odd one of its neighbours, which no tie of a narrower
    format is.
    """
    bits = as_int32(value)
    # What is lost carries into the lowest bit that is kept.
    lost = T.simd.vand(bits, T.simd.vdup(0xFFFF, T.int32))
    return T.simd.vor(bits, T.simd.vadds(lost, 0xFFFF))


@T.macro
def e2m1_pairs(first, second, part, is_bfloat16):  # type: ignore[no-untyped-def]
    """Return bytes of codes of first (low nibbles) and second in byte ``part`` of each lane."""
    if is_bfloat16:
        low, high = as_int32(first), as_int32(second)
    else:
        low, high = rounded_to_odd(first), rounded_to_odd(second)
    low_half = T.simd.vshrs(T.reinterpret(low, f"uint32x{LANES}"), 16)
    high_half = T.simd.vand(high, T.simd.vdup(-0x10000, T.int32))
    pairs = T.simd.vor(as_int32(low_half), high_half)
    bits = T.reinterpret(pairs, "int16x128")
    # The format has no NaN: 6, as for infinity.
    size = T.simd.vand(bits, T.simd.vdup(0x7FFF, T.int16))
    is_nan = T.simd.vcmps(size, BFLOAT16_INF_BITS, op="gt")
    chosen = T.simd.vsel(T.simd.vdup(BFLOAT16_INF_BITS, T.int16), bits, is_nan)
    codes = T.simd.vcvt(T.reinterpret(chosen, "bfloat16x128"), "float4_e2m1fn", part=part)
    return as_bytes(codes)


@T.macro
def store_e2m1(data_bytes_ub, r, s, values, is_bfloat16):  # type: ignore[no-untyped-def]
    """Cast a step to e2m1 and store it; ``is_bfloat16`` says that bfloat16 has all values."""
    codes = T.simd.vor(
        e2m1_pairs(values[0], values[1], 0, is_bfloat16),
        e2m1_pairs(values[2], values[3], 1, is_bfloat16),
    )
    T.simd.vsts(data_bytes_ub[r, s * (STEP // 2)], codes, dist="PK_B32")


@T.macro
def cast_rows(  # type: ignore[no-untyped-def]
    x_ub, inverse_ub, data_bytes_ub, num_rows, num_channels, is_e2m1, is_bfloat16
):
    """Multiply each channel by its group's number in inverse_ub and cast it."""
    for r in T.serial(num_rows):
        for s in T.serial(T.truncdiv(num_channels + STEP - 1, STEP)):
            v0, v1, v2, v3 = load_values(x_ub, r, s)
            # A number for each block of 8 lanes, that is for 32 channels.
            factor = T.simd.vld(inverse_ub[r, s * STEP_GROUPS], dist="E2B_B32")
            scaled = T.simd.alloc_local((4,), T.float32)
            scaled[0] = T.simd.vmul(v0, factor)
            scaled[1] = T.simd.vmul(v1, factor)
            scaled[2] = T.simd.vmul(v2, factor)
            scaled[3] = T.simd.vmul(v3, factor)
            if is_e2m1:
                store_e2m1(data_bytes_ub, r, s, scaled, is_bfloat16)
            else:
                store_e4m3(data_bytes_ub, r, s, scaled)
