"""stochastic_cast, CUDA: per_token_cast with stochastic rounding of the data.

    y = x * (max / amax), or x * (1 / sf) with round_sf; between the neighbours lower and upper of
    the format data is upper if (y - lower) / (upper - lower) + r >= 1, else lower
    r = the highest 20 (e4m3) or 22 (e2m1) bits of a word of Philox4x32-10, as a fraction

Scales, the layout of threads and other numerics are those of row_cast_cuda.py. A thread's 16
elements take the 16 words of four counters (place / 16, its high word * 4 + call, offset).
On-chip: registers only. Values are clamped to the format's largest first; a NaN stays NaN (e4m3) or
becomes 6 (e2m1). Reference: tilewheel.reference.quant.stochastic_cast. Source: original.
"""

from typing import TYPE_CHECKING

import tilelang.language as T

from tilewheel_kernels.quant.arithmetic_cuda import (
    MAX_VALUE,
    magnitude,
    minimum,
    philox_round,
    rounded_stochastically,
)
from tilewheel_kernels.quant.row_cast_cuda import (
    RUN,
    THREADS,
    Rows,
    decode,
    find_amax,
    load_row,
    raw_width,
    scale_values,
    store_data,
    store_sf,
)

if TYPE_CHECKING:
    from tvm.tirx import PrimFunc

PASS_CONFIGS: dict[str, object] = {"tl.disable_safe_memory_legalize": True}

_NUM_ROUNDS = 10
_KEY_STEP = (0x9E3779B9, 0xBB67AE85)
_SMALLEST_NORMAL = {"float8_e4m3fn": 2.0**-6, "int8": 1.0}
_DROPPED_BITS = {"float8_e4m3fn": 20, "int8": 22}


def stochastic_cast(*, x_dtype: str, data_dtype: str, round_sf: bool) -> "PrimFunc":
    """Return the kernel (x, data, sf, clamp_min, num_per_channels, seed, offset)."""
    rows = Rows()
    x_type = rows.x_tensor("x", x_dtype)
    data_type = rows.data_tensor(data_dtype)
    sf_type = rows.sf_tensor("float32")
    max_value = MAX_VALUE[data_dtype]
    smallest_normal, dropped_bits = _SMALLEST_NORMAL[data_dtype], _DROPPED_BITS[data_dtype]

    @T.prim_func
    def stochastic_cast(
        x: x_type,
        data: data_type,
        sf: sf_type,
        clamp_min: T.float32,
        num_per_channels: rows.num_per_channels,
        seed: T.int64,
        offset: T.int64,
    ):
        with T.Kernel(rows.num_blocks, threads=THREADS) as block:
            row, channel = rows.place(block, T.get_thread_binding())
            inside = (row < rows.num_tokens) & (channel < rows.hidden)
            x_local = T.alloc_local((raw_width(x_dtype),), x_dtype)
            values_local = T.alloc_local((RUN,), "float32")
            amax_local = T.alloc_local((1,), "float32")
            counter_local = T.alloc_local((4,), "uint32")
            key_local = T.alloc_local((2,), "uint32")
            next_local = T.alloc_local((4,), "uint32")
            T.pdl_sync()

            # load
            load_row(x, x_local, row, channel, inside)

            # compute
            decode(x_local, values_local, x_dtype)
            find_amax(amax_local, values_local, clamp_min, rows)
            scale_values(values_local, amax_local, max_value, "float32", round_sf)
            place = (row * rows.hidden + channel) // RUN
            for call in T.unroll(RUN // 4):
                counter_local[0] = T.cast(place, "uint32")
                counter_local[1] = T.cast((place >> 32) * 4 + call, "uint32")
                counter_local[2] = T.cast(offset, "uint32")
                counter_local[3] = T.cast(offset >> 32, "uint32")
                key_local[0] = T.cast(seed, "uint32")
                key_local[1] = T.cast(seed >> 32, "uint32")
                for _ in T.unroll(_NUM_ROUNDS):
                    mixed = philox_round(counter_local, key_local)
                    for word in [0, 1, 2, 3]:
                        next_local[word] = mixed[word]
                    for word in [0, 1, 2, 3]:
                        counter_local[word] = next_local[word]
                    for word in [0, 1]:
                        key_local[word] = key_local[word] + T.uint32(_KEY_STEP[word])
                for word in [0, 1, 2, 3]:
                    value = values_local[call * 4 + word]
                    size = minimum(magnitude(value), T.float32(max_value))
                    clamped = T.call_extern("float32", "copysignf", size, value)
                    rounded = rounded_stochastically(
                        clamped, counter_local[word], smallest_normal, dropped_bits
                    )
                    values_local[call * 4 + word] = T.if_then_else(T.isnan(value), value, rounded)
            T.pdl_trigger()

            # store
            store_sf(sf, amax_local, row, channel, inside, rows, max_value, round_sf)
            if inside:
                store_data(data, values_local, row, channel, data_dtype)

    return stochastic_cast
