"""The per-token casts on CUDA: one scale for each group of num_per_channels channels of a token.

    amax = max(clamp_min, max |x|) of the group, in fp32
    float32 sf: sf = amax / max, data = cast(x * (max / amax))
    round_sf:   sf = 2^ceil(log2(amax * (1 / max))), data = cast(x * (1 / sf)); where sf is int32,
                its words hold four exponent bytes each
    e4m3 sf:    sf = cast(amax / max), data = cast(x / sf)

A thread owns 16 adjacent channels, a group is 1 to 8 adjacent lanes, and a segment of 128 channels
(or of the channels of one word of sf) lies in one warp. Segments are numbered through all rows, so
that every hidden size fills its blocks and one token spreads over hidden / 2048 of them. There is
no loop and no shared memory; registers hold 16 floats a thread. Half as much work a block takes 1.6
times as long on H200: launching blocks then sets the pace.
The size of a group and the order of sf come at run time: 8 to 48 more instructions of some 250 than
with constants, for an eighth of the artifacts.
Run time: num_per_channels in {16, 32, 64, 128}; hidden a multiple of 64; any stride
between rows of x, but only rows at multiples of 16 bytes are read 16 bytes at a time.
From bfloat16 to e2m1 with round_sf everything is done on pairs in bfloat16, exactly: Hopper has no
fp4 conversion, and float32 arithmetic would take longer than the memory.
Numerics: exact, see arithmetic_cuda.py; a NaN does not count in amax, which is at most the largest
finite float32. A row's result does not depend on its batch.
Reference: tilewheel.reference.quant.
Source: original.
"""

import tilelang.language as T

from tilewheel_kernels.quant.arithmetic_cuda import (
    FLOAT32_MAX,
    as_e4m3,
    as_float,
    ceil_exponent,
    divide,
    e2m1_nibble,
    e2m1_nibbles_of_pair,
    e2m1_value,
    largest_magnitude_of_pairs,
    magnitude,
    maximum,
    minimum,
    multiply,
    power_of_two,
)

RUN = 16
THREADS = 128
MAX_GROUP = 128
_VECTOR_BYTES = 16
_BYTES = {"bfloat16": 2, "float32": 4, "float8_e4m3fn": 1, "int8": 1}


def check(*, sf_dtype: str, round_sf: bool) -> None:
    """Raise a ValueError for a combination that these kernels do not have."""
    if sf_dtype not in ("float32", "int32", "float8_e4m3fn"):
        raise ValueError(f"sf_dtype: is {sf_dtype}, must be float32, int32 or float8_e4m3fn")
    if sf_dtype == "int32" and not round_sf:
        raise ValueError("sf_dtype: is int32, must be another without round_sf")
    if sf_dtype == "float8_e4m3fn" and round_sf:
        raise ValueError("sf_dtype: is float8_e4m3fn, must be another with round_sf")


class Rows:
    """Sizes of a variant and the places of its threads."""

    def __init__(
        self, *, is_packed: bool = False, segment: int = MAX_GROUP, threads: int = THREADS
    ) -> None:
        self.block = threads * RUN
        self.num_per_channels = T.dynamic("num_per_channels")
        self.is_packed = is_packed
        self.segment = T.max(segment, 4 * self.num_per_channels) if is_packed else segment
        wider = steps_above(self.num_per_channels, 32, 64) if is_packed else 0
        self.segment_shift = log2(segment) + wider
        self.num_tokens = T.dynamic("num_tokens")
        self.hidden_64 = T.dynamic("hidden_64")
        self.hidden = self.hidden_64 * 64

    @property
    def num_words(self):
        """Elements of sf for one token."""
        num_groups = T.ceildiv(self.hidden, self.num_per_channels)
        return T.ceildiv(num_groups, 4) if self.is_packed else num_groups

    def width(self, dtype: str):
        """Elements of a row; int8 holds two values each."""
        return self.hidden_64 * 32 if dtype == "int8" else self.hidden

    @property
    def num_blocks(self):
        num_segments = self.num_tokens * T.ceildiv(self.hidden, self.segment)
        return T.ceildiv(num_segments, T.truncdiv(self.block, self.segment))

    def place(self, block, thread):
        """Return the thread's row (int64) and first channel (int32); both may lie outside."""
        # A power of two: shifts, where a division by a run-time value takes 20 instructions.
        shift = self.segment_shift
        per_row = T.cast((self.hidden + self.segment - 1) >> shift, "uint32")
        per_block = self.block >> shift
        lane_shift = shift - log2(RUN)
        segment = T.cast(block * per_block + (thread >> lane_shift), "uint32")
        row = T.truncdiv(segment, per_row)
        lanes = self.segment >> log2(RUN)
        # RUN outermost, or the compiler would not see that addresses are multiples of it.
        run = T.cast(segment - row * per_row, "int32") * lanes + (thread & (lanes - 1))
        channel = run * RUN
        return T.cast(row, "int64"), channel

    def x_tensor(self, name: str, dtype: str):
        """Return the annotation of a tensor to read, called ``name``."""
        strides = (T.dynamic(f"{name}_stride"), 1)
        return T.StridedTensor((self.num_tokens, self.width(dtype)), strides, dtype)

    def data_tensor(self, dtype: str):
        """Return the annotation of a tensor to write."""
        return T.Tensor((self.num_tokens, self.width(dtype)), dtype)

    def sf_tensor(self, dtype: str):
        """Return the annotation of sf, row-major or column-major."""
        return strided_sf("sf", (self.num_tokens, self.num_words), dtype)

    def group_of(self, channel):
        """Return the group that a channel is in."""
        return channel >> (log2(RUN) + steps_above(self.num_per_channels, 16, 32, 64))


def log2(value):
    """Return the exponent of a power of two."""
    if isinstance(value, int):
        return value.bit_length() - 1
    return T.int32(31) - T.call_extern("int32", "__clz", value)


def steps_above(value, *bounds: int):
    """Return how many of the bounds a value exceeds.

    Without calls: TileLang puts an index with a call into a variable and forgets its divisors.
    """
    return sum((T.cast(value > bound, "int32") for bound in bounds), T.int32(0))


def strided_sf(name: str, shape, dtype: str):
    """Return the annotation of scales with any strides, called ``name``."""
    # int64, because TVM would compute word * stride in 32 bits.
    strides = (T.dynamic(f"{name}_row_stride", "int64"), T.dynamic(f"{name}_stride", "int64"))
    return T.StridedTensor(shape, strides, dtype)


def raw_width(x_dtype: str) -> int:
    """Elements of a thread's part of a row: int8 holds two values each."""
    return RUN // 2 if x_dtype == "int8" else RUN


@T.macro
def load_row(x, x_local, row, channel, inside):  # type: ignore[no-untyped-def]
    """Read a thread's part of a row; zeros outside."""
    width = raw_width(x.dtype)
    column = T.truncdiv(channel, RUN // width)
    for i in T.unroll(width):
        x_local[i] = T.cast(0, x.dtype)
    if inside:
        if x.strides[0] % (_VECTOR_BYTES // _BYTES[x.dtype]) == 0:
            for i in T.vectorized(width):
                x_local[i] = x[row, column + i]
        else:
            for i in T.unroll(width):
                x_local[i] = x[row, column + i]


@T.macro
def decode(x_local, values_local, x_dtype):  # type: ignore[no-untyped-def]
    """Turn what was read into float32."""
    if x_dtype == "int8":
        for i in T.unroll(RUN // 2):
            pair = T.cast(T.cast(x_local[i], "uint8"), "uint32")
            values_local[2 * i] = e2m1_value(pair & T.uint32(15))
            values_local[2 * i + 1] = e2m1_value(pair >> T.uint32(4))
    else:
        for i in T.vectorized(RUN):
            values_local[i] = T.cast(x_local[i], "float32")


@T.macro
def find_amax(amax_local, values_local, clamp_min, rows):  # type: ignore[no-untyped-def]
    """Put the group's clamped amax into amax_local[0] of each of its lanes."""
    amax_local[0] = largest_magnitude(values_local)
    share_amax(amax_local, clamp_min, rows)


@T.macro
def find_amax_of_pairs(amax_local, pairs_local, clamp_min, rows):  # type: ignore[no-untyped-def]
    """Do the same for 16 bfloat16 values."""
    pair_local = T.alloc_local((1,), "uint32")
    pair_local[0] = T.reinterpret(largest_magnitude_of_pairs(pairs_local, RUN // 2), "uint32")
    amax_local[0] = maximum(
        T.reinterpret(pair_local[0] << T.uint32(16), "float32"),
        T.reinterpret(pair_local[0] & T.uint32(0xFFFF0000), "float32"),
    )
    share_amax(amax_local, clamp_min, rows)


@T.macro
def share_amax(amax_local, clamp_min, rows):  # type: ignore[no-untyped-def]
    """Take the maximum over the lanes of a group and clamp it.

    A step beyond the group becomes 0, with which a lane reads itself.
    """
    last_lane = (rows.num_per_channels >> log2(RUN)) - 1
    for step in [1, 2, 4]:
        amax_local[0] = maximum(amax_local[0], T.shfl_xor(amax_local[0], step & last_lane))
    amax_local[0] = minimum(maximum(amax_local[0], clamp_min), T.float32(FLOAT32_MAX))


def largest_magnitude(values_local):
    """As a tree: a chain of 16 would be four times as long."""
    level = [magnitude(values_local[i]) for i in range(RUN)]
    while len(level) > 1:
        level = [maximum(a, b) for a, b in zip(level[::2], level[1::2], strict=True)]
    return level[0]


@T.macro
def store_data(data, values_local, row, channel, data_dtype):  # type: ignore[no-untyped-def]
    """Cast 16 scaled channels and write them."""
    if data_dtype == "int8":
        words_local = T.alloc_local((RUN // 8,), "uint32")
        bytes_local = T.view(words_local, (RUN // 2,), "int8")
        for w in T.unroll(RUN // 8):
            words_local[w] = T.uint32(0)
        for i in T.unroll(RUN):
            shifted = e2m1_nibble(values_local[i]) << T.uint32(4 * (i % 8))
            words_local[i // 8] = words_local[i // 8] | shifted
        for i in T.vectorized(RUN // 2):
            data[row, T.truncdiv(channel, 2) + i] = bytes_local[i]
    else:
        data_local = T.alloc_local((RUN,), data_dtype)
        for i in T.vectorized(RUN):
            data_local[i] = T.cast(values_local[i], data_dtype)
        for i in T.vectorized(RUN):
            data[row, channel + i] = data_local[i]


@T.macro
def store_pairs_as_e2m1(data, pairs_local, amax_local, row, channel):  # type: ignore[no-untyped-def]
    """Scale 16 bfloat16 values by a power of two, which is exact, cast them to e2m1 and write them.

    Where a product is subnormal it is rounded, and far below the smallest e2m1 value all the same.
    """
    words_local = T.alloc_local((RUN // 8,), "uint32")
    bytes_local = T.view(words_local, (RUN // 2,), "int8")
    codes_local = T.alloc_local((RUN // 2,), "uint32")
    factor_local = T.alloc_local((1,), "uint32")
    exponent = T.cast(254 - ceil_exponent(amax_local[0], 6.0), "uint32")
    factor_local[0] = exponent * T.uint32(0x00800080)
    for i in T.unroll(RUN // 2):
        scaled = T.mul2(pairs_local[i], T.reinterpret(factor_local[0], "bfloat16x2"))
        codes_local[i] = e2m1_nibbles_of_pair(scaled)
    for w in T.unroll(RUN // 8):
        # Even values of a word in the low halves, odd ones in the high halves, a byte each.
        front = codes_local[4 * w] | (codes_local[4 * w + 1] << T.uint32(8))
        back = codes_local[4 * w + 2] | (codes_local[4 * w + 3] << T.uint32(8))
        even = T.call_extern("uint32", "__byte_perm", front, back, T.uint32(0x5410))
        odd = T.call_extern("uint32", "__byte_perm", front, back, T.uint32(0x7632))
        words_local[w] = even | (odd << T.uint32(4))
    for i in T.vectorized(RUN // 2):
        data[row, T.truncdiv(channel, 2) + i] = bytes_local[i]


@T.macro
def scale_values(values_local, amax_local, max_value, sf_dtype, round_sf):  # type: ignore[no-untyped-def]
    """Scale 16 channels for the cast; amax is clamped already."""
    factor_local = T.alloc_local((1,), "float32")
    if sf_dtype == "float8_e4m3fn":
        factor_local[0] = as_e4m3(divide(amax_local[0], as_float(max_value)))
        for i in T.unroll(RUN):
            values_local[i] = divide(values_local[i], factor_local[0])
    else:
        if round_sf:
            factor_local[0] = power_of_two(254 - ceil_exponent(amax_local[0], max_value))
        else:
            factor_local[0] = divide(as_float(max_value), amax_local[0])
        for i in T.unroll(RUN):
            values_local[i] = multiply(values_local[i], factor_local[0])


@T.macro
def store_sf(  # type: ignore[no-untyped-def]
    sf, amax_local, row, channel, inside, rows, max_value, round_sf
):
    """Write the scale of each group, or the word of each four, from its first lane."""
    if rows.is_packed:
        word_local = T.alloc_local((1,), "int32")
        word_local[0] = 0
        if inside:
            group = rows.group_of(channel)
            word_local[0] = ceil_exponent(amax_local[0], max_value) << (8 * (group & 3))
        for step in [1, 2]:
            lanes = (step * rows.num_per_channels) >> log2(RUN)
            word_local[0] = word_local[0] | T.shfl_xor(word_local[0], lanes)
        if inside & (channel & (4 * rows.num_per_channels - 1) == 0):
            sf[row, T.cast(rows.group_of(channel) >> 2, "int64")] = word_local[0]
    else:
        if inside & (channel & (rows.num_per_channels - 1) == 0):
            value_local = T.alloc_local((1,), "float32")
            if round_sf:
                value_local[0] = power_of_two(ceil_exponent(amax_local[0], max_value))
            else:
                value_local[0] = divide(amax_local[0], as_float(max_value))
            sf[row, T.cast(rows.group_of(channel), "int64")] = T.cast(value_local[0], sf.dtype)


@T.macro
def load_scale(  # type: ignore[no-untyped-def]
    sf, scale_local, slot, row, channel, inside, block_tokens, block_channels
):
    """Read the scale of a block into scale_local[slot]; 0 where sf has no such block.

    Divisors are powers of two as a rule, and the branch is the same for all threads.
    """
    place_local = T.alloc_local((2,), "uint32")
    for i, value, divisor in [
        (0, T.cast(row, "uint32"), T.cast(block_tokens, "uint32")),
        (1, T.cast(channel, "uint32"), T.cast(block_channels, "uint32")),
    ]:
        if divisor & (divisor - T.uint32(1)) == 0:
            place_local[i] = value >> T.cast(log2(divisor), "uint32")
        else:
            place_local[i] = T.truncdiv(value, divisor)
    group = place_local[1]
    word = T.cast(T.truncdiv(group, T.uint32(4 if sf.dtype == "int32" else 1)), "int64")
    first = T.cast(place_local[0], "int64")
    scale_local[slot] = T.float32(0.0)
    if inside & (first < sf.shape[0]) & (word < sf.shape[1]):
        if sf.dtype == "int32":
            shift = T.cast(group & T.uint32(3), "int32") * 8
            scale_local[slot] = power_of_two((sf[first, word] >> shift) & 255)
        else:
            scale_local[slot] = T.cast(sf[first, word], "float32")
