"""What the CUDA kernels of engram_gate_fwd share, see engram_gate_fwd_cuda.py.

Source: original.
"""

import tilelang.language as T

from tilewheel_kernels.engram.columns_cuda import (
    COLUMN,
    STREAMS,
    WARP,
    element,
    fma,
    from_stream,
    inverse_root,
    sigmoid,
    sum_over_block,
)


@T.macro
def gate_of(gate_local, sums_local, hidden, eps, clamp_value):  # type: ignore[no-untyped-def]
    """Turn the sums (x^2, k^2, x * w * k) of a lane's stream into rstd_x, rstd_k, and the gate."""
    size = T.cast(hidden, "float32")
    sums_local[0] = inverse_root(sums_local[0] * (T.float32(1.0) / size) + eps)
    sums_local[1] = inverse_root(sums_local[1] * (T.float32(1.0) / size) + eps)
    z = sums_local[2] * sums_local[0] * sums_local[1] * inverse_root(size)
    gate_local[0] = z
    # A comparison, because a maximum would lose a NaN.
    magnitude = T.abs(gate_local[0])
    gate_local[1] = T.sqrt(T.if_then_else(magnitude < clamp_value, clamp_value, magnitude))
    gate_local[0] = sigmoid(T.call_extern("float32", "copysignf", gate_local[1], gate_local[0]))


@T.macro
def save(  # type: ignore[no-untyped-def]
    saved, gate_local, sums_local, num_saved, token, thread, is_masked, first, streams
):
    """Write a token's numbers for the backward pass, from the first lane of each stream."""
    if (num_saved > 0) & (thread < WARP) & (thread % (WARP // streams) == 0):
        stream = first + thread // (WARP // streams)
        zero = T.float32(0.0)
        saved[0][token, stream] = T.if_then_else(is_masked, zero, sums_local[2])
        saved[1][token, stream] = T.if_then_else(is_masked, zero, gate_local[0])
        saved[2][token, stream] = T.if_then_else(is_masked, zero, sums_local[0])
        saved[3][token, stream] = T.if_then_else(is_masked, zero, sums_local[1])


@T.macro
def add_to_sums(  # type: ignore[no-untyped-def]
    values_local, x_words, k_words, w_local, stream, streams, offset
):
    """Add a column of a stream to its sums of x^2, k^2 and x * w * k."""
    for i in T.unroll(COLUMN):
        a = element(x_words, offset + i)
        b = element(k_words, i)
        values_local[stream] = fma(a, a, values_local[stream])
        values_local[streams + stream] = fma(b, b, values_local[streams + stream])
        values_local[2 * streams + stream] = fma(
            a * w_local[i], b, values_local[2 * streams + stream]
        )


@T.macro
def few_tokens(  # type: ignore[no-untyped-def]
    tensors, saved, partial_shared, token, is_masked, first, thread, sizes, constants
):
    """Do some streams of a token, from memory: with few tokens several blocks share each.

    ``tensors`` are x, kv, weight_fused and out, ``sizes`` how many streams and columns, threads,
    channels and tokens to save there are, ``constants`` eps and clamp_value.
    """
    streams, columns, threads, hidden, num_saved = sizes
    x_words = T.alloc_local((streams * columns * 4,), "uint32")
    k_words = T.alloc_local((streams * columns * 4,), "uint32")
    v_words = T.alloc_local((columns * 4,), "uint32")
    one_words = T.alloc_local((4,), "uint32")
    w_local = T.alloc_local((streams * columns * COLUMN,), "float32")
    one_local = T.alloc_local((COLUMN,), "float32")
    out_local = T.alloc_local((COLUMN,), "bfloat16")
    values_local = T.alloc_local((3 * streams,), "float32")
    sums_local = T.alloc_local((3,), "float32")
    gate_local = T.alloc_local((2,), "float32")
    for i in T.unroll(3 * streams):
        values_local[i] = T.float32(0.0)
    for j in T.unroll(streams):
        for c in T.unroll(columns):
            channel = (c * threads + thread) * COLUMN
            offset = (j * columns + c) * 4
            x_words[T.Ramp(offset, 1, 4)] = T.ldg128(tensors[0][token, first + j, channel])
            k_words[T.Ramp(offset, 1, 4)] = T.ldg128(tensors[1][token, first + j, channel])
            for half in T.unroll(2):
                for e in T.vectorized(4):
                    w_local[2 * offset + half * 4 + e] = tensors[2][
                        first + j, channel + half * 4 + e
                    ]
    for c in T.unroll(columns):
        channel = (c * threads + thread) * COLUMN
        v_words[T.Ramp(c * 4, 1, 4)] = T.ldg128(tensors[1][token, STREAMS, channel])
    for j in T.unroll(streams):
        for c in T.unroll(columns):
            offset = (j * columns + c) * 4
            for i in T.unroll(4):
                one_words[i] = k_words[offset + i]
            for i in T.unroll(COLUMN):
                one_local[i] = w_local[2 * offset + i]
            add_to_sums(values_local, x_words, one_words, one_local, j, streams, 2 * offset)
    sum_over_block(sums_local, values_local, partial_shared, 0, thread, 3, threads // WARP, streams)
    gate_of(gate_local, sums_local, hidden, *constants)
    save(saved, gate_local, sums_local, num_saved, token, thread, is_masked, first, streams)
    for j in T.unroll(streams):
        gate_local[1] = from_stream(gate_local[0], j, streams)
        for c in T.unroll(columns):
            channel = (c * threads + thread) * COLUMN
            offset = (j * columns + c) * 4
            if is_masked:
                T.stg128(tensors[3][token, first + j, channel], x_words[T.Ramp(offset, 1, 4)])
            else:
                for i in T.vectorized(COLUMN):
                    out_local[i] = T.cast(
                        fma(
                            gate_local[1],
                            element(v_words, c * COLUMN + i),
                            element(x_words, 2 * offset + i),
                        ),
                        "bfloat16",
                    )
                for i in T.vectorized(COLUMN):
                    tensors[3][token, first + j, channel + i] = out_local[i]
