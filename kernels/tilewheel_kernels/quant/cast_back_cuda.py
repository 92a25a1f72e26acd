"""cast_back, CUDA: data times scale in fp32, rounded once.

    out[t, c] = cast(data[t, c] * sf[t // block_tokens, c // block_channels])

Four lanes own 64 channels of a row, a thread 16 of them as vectors of 16 bytes of out: lane i has
vector i of each four, so that every store fills whole sectors of 32 bytes, which it would not with
16 adjacent channels a thread.
No shared memory; registers hold 16 floats.
Run time: hidden a multiple of 64, block_channels a multiple of 16; any strides of sf; any stride
between rows of data, but only rows at multiples of 16 bytes are read by vectors.
Numerics: exact, rounded to nearest even. Exponent byte 0 of packed scales is 0; where sf lacks a
block its scale is 0.
Reference: tilewheel.reference.quant.cast_back. Source: original.
"""

from typing import TYPE_CHECKING

import tilelang.language as T

from tilewheel_kernels.quant.arithmetic_cuda import e2m1_value, multiply
from tilewheel_kernels.quant.row_cast_cuda import RUN, THREADS, Rows, load_scale, strided_sf

if TYPE_CHECKING:
    from tvm.tirx import PrimFunc

PASS_CONFIGS: dict[str, object] = {"tl.disable_safe_memory_legalize": True}

_LANES = 4
_VECTOR = {"bfloat16": 8, "float32": 4}


def cast_back(*, data_dtype: str, sf_dtype: str, out_dtype: str) -> "PrimFunc":
    """Return the kernel (data, sf, out, block_tokens, block_channels)."""
    vector = _VECTOR[out_dtype]
    num_vectors = RUN // vector
    is_e2m1 = data_dtype == "int8"
    width = vector // 2 if is_e2m1 else vector  # elements of data in a vector
    rows = Rows(segment=_LANES * RUN)
    data_type = rows.x_tensor("data", data_dtype)
    out_type = rows.data_tensor(out_dtype)
    token_blocks, channel_words = T.dynamic("token_blocks"), T.dynamic("channel_words")
    sf_type = strided_sf("sf", (token_blocks, channel_words), sf_dtype)

    @T.prim_func
    def cast_back(
        data: data_type,
        sf: sf_type,
        out: out_type,
        block_tokens: T.int32,
        block_channels: T.int32,
    ):
        with T.Kernel(rows.num_blocks, threads=THREADS) as block:
            thread = T.get_thread_binding()
            row, first = rows.place(block, thread)
            # place gives 16 adjacent channels to each lane.
            channel = first - (thread % _LANES) * (RUN - vector)
            inside = row < rows.num_tokens
            data_local = T.alloc_local((num_vectors, width), data_dtype)
            values_local = T.alloc_local((num_vectors, vector), "float32")
            out_local = T.alloc_local((num_vectors, vector), out_dtype)
            scale_local = T.alloc_local((num_vectors,), "float32")
            T.pdl_sync()

            # load
            if inside:
                for v in T.unroll(num_vectors):
                    column = T.truncdiv(channel + v * _LANES * vector, vector // width)
                    if data.strides[0] % 16 == 0:
                        for i in T.vectorized(width):
                            data_local[v, i] = data[row, column + i]
                    else:
                        for i in T.unroll(width):
                            data_local[v, i] = data[row, column + i]
            for v in T.unroll(num_vectors):
                load_scale(
                    *(sf, scale_local, v, row, channel + v * _LANES * vector, inside),
                    *(block_tokens, block_channels),
                )

            # compute
            for v in T.unroll(num_vectors):
                if is_e2m1:
                    for i in T.unroll(width):
                        pair = T.cast(T.cast(data_local[v, i], "uint8"), "uint32")
                        values_local[v, 2 * i] = e2m1_value(pair & T.uint32(15))
                        values_local[v, 2 * i + 1] = e2m1_value(pair >> T.uint32(4))
                else:
                    for i in T.vectorized(vector):
                        values_local[v, i] = T.cast(data_local[v, i], "float32")
                for i in T.unroll(vector):
                    values_local[v, i] = multiply(values_local[v, i], scale_local[v])
                for i in T.vectorized(vector):
                    out_local[v, i] = T.cast(values_local[v, i], out_dtype)
            T.pdl_trigger()

            # store
            if inside:
                for v in T.unroll(num_vectors):
                    for i in T.vectorized(vector):
                        out[row, channel + v * _LANES * vector + i] = out_local[v, i]

    return cast_back
