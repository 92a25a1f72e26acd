"""Arithmetic of quantised tensors on CUDA: expressions that the kernels of this folder share.

Every function takes and returns TileLang expressions of one element; what must be exact is written
with intrinsics, which the compiler neither contracts nor reorders.
"""

import tilelang.language as T

MAX_VALUE = {"float8_e4m3fn": 448.0, "int8": 6.0}
FLOAT32_MAX = 3.4028234663852886e38


def as_float(value):
    """A Python number or an expression as float32."""
    return T.float32(value) if isinstance(value, float) else value


def divide(a, b):
    return T.call_extern("float32", "__fdiv_rn", a, b)


def multiply(a, b):
    return T.call_extern("float32", "__fmul_rn", a, b)


def add(a, b):
    return T.call_extern("float32", "__fadd_rn", a, b)


def maximum(a, b):
    """The larger one; of a NaN and a number, the number."""
    return T.call_extern("float32", "fmaxf", a, b)


def minimum(a, b):
    return T.call_extern("float32", "fminf", a, b)


def magnitude(a):
    return T.call_extern("float32", "fabsf", a)


def as_e4m3(a):
    """The nearest e4m3 value, as a float32."""
    return T.cast(T.cast(a, "float8_e4m3fn"), "float32")


def ceil_exponent(amax, max_value):
    """The biased exponent of 2^ceil(log2(amax * (1 / max_value))), an int32."""
    is_constant = isinstance(max_value, float)
    inverse = T.float32(1.0 / max_value) if is_constant else divide(T.float32(1.0), max_value)
    bits = T.reinterpret(multiply(amax, inverse), "int32")
    # A mantissa that is not zero carries into the exponent.
    return (bits + T.int32(0x7FFFFF)) >> 23


def power_of_two(biased_exponent):
    return T.reinterpret(biased_exponent << 23, "float32")


def e2m1_nibble(value):
    """The code of the e2m1 value nearest to a float32, even codes winning ties, as a uint32.

    With p = max(1, the power of two below min(|value|, 6)), the grid's step is p / 2 there, which
    is the spacing of floats from p * 2^22 on: adding p * (2^22 + 3) rounds to the grid. The sum's
    bits then hold log2(p) in the exponent and the number of steps, plus 6, in the lowest bits;
    twice the exponent field is 2 * (149 + log2(p)) = 2 + 2 * log2(p) modulo 8, so that both add up
    to the code, whose lowest three bits are kept.
    """
    size = minimum(magnitude(value), T.float32(6.0))
    power = T.reinterpret(
        T.reinterpret(maximum(size, T.float32(1.0)), "int32") & T.int32(0x7F800000), "float32"
    )
    total = T.reinterpret(
        T.call_extern("float32", "__fmaf_rn", power, T.float32(4194307.0), size), "uint32"
    )
    code = total + (total >> T.uint32(22))
    sign = T.reinterpret(value, "uint32") >> T.uint32(28)
    return (code & T.uint32(7)) | (sign & T.uint32(8))


def both_halves(bits: int):
    """Two equal bfloat16 values."""
    return T.reinterpret(T.uint32(bits * 0x00010001), "bfloat16x2")


def largest_magnitude_of_pairs(pairs_local, num_pairs: int):
    """The largest |value| of bfloat16 pairs as a float32; of a NaN and a number, the number."""
    level = [T.abs2(pairs_local[i]) for i in range(num_pairs)]
    while len(level) > 1:
        level = [T.max2(a, b) for a, b in zip(level[::2], level[1::2], strict=True)]
    return level[0]


def e2m1_nibbles_of_pair(pair):
    """The codes of two bfloat16 values in bits 0 to 3 and 16 to 19 of a uint32.

    As e2m1_nibble, on both halves at once: bfloat16 has the spacing p / 2 from p * 2^6 on, so the
    sum is with p * (2^6 + 3), and the lowest bit of the exponent is bit 7. No carry passes from the
    lower half to the upper one: the lower half's sum stays below 2^16.
    """
    size = T.min2(T.abs2(pair), both_halves(0x40C0))
    power = T.reinterpret(
        T.reinterpret(T.max2(size, both_halves(0x3F80)), "uint32") & T.uint32(0x7F807F80),
        "bfloat16x2",
    )
    total = T.reinterpret(T.fma2(power, both_halves(0x4286), size), "uint32")
    code = (total + (total >> T.uint32(6))) & T.uint32(0x00070007)
    sign = (T.reinterpret(pair, "uint32") >> T.uint32(12)) & T.uint32(0x00080008)
    return code | sign


def e2m1_value(nibble):
    """The float32 value of an e2m1 code in the lowest four bits of a uint32."""
    # Code bits e e m are a float32's lowest exponent bits and highest mantissa bit; scaling by
    # 2^126 turns the exponent right, also of the subnormal 0.5.
    bits = ((nibble & T.uint32(7)) << T.uint32(22)) | ((nibble & T.uint32(8)) << T.uint32(28))
    return multiply(T.reinterpret(bits, "float32"), T.float32(2.0**126))


def philox_round(counter, key):
    """One round of Philox4x32 (Salmon et al., SC 2011) on lists of 4 and 2 uint32 expressions."""
    products = [
        T.cast(counter[0], "uint64") * T.uint64(0xD2511F53),
        T.cast(counter[2], "uint64") * T.uint64(0xCD9E8D57),
    ]
    low = [T.cast(product, "uint32") for product in products]
    high = [T.cast(product >> T.uint64(32), "uint32") for product in products]
    return [high[1] ^ counter[1] ^ key[0], low[1], high[0] ^ counter[3] ^ key[1], low[0]]


def rounded_stochastically(value, random, smallest_normal: float, dropped_bits: int):
    """A float32 that the format holds, up or down by the random bits; its sign is the value's.

    Below the smallest normal number the grid is even; adding that number puts the grid's step at
    the lowest mantissa bit that is kept, as it is above.
    """
    size = magnitude(value)
    is_small = size < T.float32(smallest_normal)
    shifted = T.if_then_else(is_small, add(size, T.float32(smallest_normal)), size)
    noise = T.cast(random >> T.uint32(32 - dropped_bits), "int32")
    bits = (T.reinterpret(shifted, "int32") + noise) & T.int32(-(1 << dropped_bits))
    result = T.reinterpret(bits, "float32")
    result = T.if_then_else(is_small, add(result, T.float32(-smallest_normal)), result)
    return T.call_extern("float32", "copysignf", result, value)
