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
    inverse_root,
    sigmoid,
    store_column,
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
    values_local, x_words, k_words, w_local, stream, streams, offsets
):
    """Add a column of a stream to its sums of x^2, k^2 and x * w * k.

    ``offsets`` are the column's first element in x, k and the weights.
    """
    for i in T.unroll(COLUMN):
        a = element(x_words, offsets[0] + i)
        b = element(k_words, offsets[1] + i)
        values_local[stream] = fma(a, a, values_local[stream])
        values_local[streams + stream] = fma(b, b, values_local[streams + stream])
        values_local[2 * streams + stream] = fma(
            a * w_local[offsets[2] + i], b, values_local[2 * streams + stream]
        )


@T.macro
def _load(words, tensors, token, stream, thread, shape):  # type: ignore[no-untyped-def]
    """Load a thread's columns of x, k and v, or zeros behind the last column."""
    columns, threads, hidden, is_whole = shape
    for c in T.unroll(columns):
        channel = (c * threads + thread) * COLUMN
        if not is_whole:
            for i in T.unroll(12):
                words[c * 12 + i] = T.uint32(0)
        if is_whole or channel < hidden:
            words[T.Ramp(c * 12, 1, 4)] = T.ldg128(tensors[0][token, stream, channel])
            words[T.Ramp(c * 12 + 4, 1, 4)] = T.ldg128(tensors[1][token, stream, channel])
            words[T.Ramp(c * 12 + 8, 1, 4)] = T.ldg128(tensors[1][token, STREAMS, channel])


@T.macro
def _load_weights(w_local, tensors, stream, thread, shape):  # type: ignore[no-untyped-def]
    """Load the weights of a thread's columns, or zeros behind the last column."""
    columns, threads, hidden, is_whole = shape
    for c in T.unroll(columns):
        channel = (c * threads + thread) * COLUMN
        if not is_whole:
            for i in T.unroll(COLUMN):
                w_local[c * COLUMN + i] = T.float32(0.0)
        if is_whole or channel < hidden:
            for half in T.unroll(2):
                for e in T.vectorized(4):
                    w_local[c * COLUMN + half * 4 + e] = tensors[2][stream, channel + half * 4 + e]


@T.macro
def by_streams(  # type: ignore[no-untyped-def]
    tensors, saved, mask, partial_shared, block, walkers, thread, shape, sizes, constants, is_ahead
):
    """Walk over tokens with one stream of each a block, from memory.

    The next token's columns are loaded into registers while the block works on this one, and the
    weights stay there, if the kernel ``is_ahead``; otherwise other blocks hide the wait.
    ``tensors`` are x, kv, weight_fused and out, ``walkers`` how many blocks a stream has, ``shape``
    how many columns a thread has, threads, channels, and whether these are all of the threads'
    columns, ``sizes`` tokens, masked tokens and tokens to save, ``constants`` eps and clamp_value.
    """
    columns, threads, hidden, is_whole = shape
    num_tokens, num_masked, num_saved = sizes
    words = T.alloc_local((columns * 12,), "uint32")
    if is_ahead:
        next_words = T.alloc_local((columns * 12,), "uint32")
    w_local = T.alloc_local((columns * COLUMN,), "float32")
    out_local = T.alloc_local((COLUMN,), "bfloat16")
    values_local = T.alloc_local((3,), "float32")
    sums_local = T.alloc_local((3,), "float32")
    gate_local = T.alloc_local((2,), "float32")
    mask_local = T.alloc_local((2,), "int32")
    stream = block % STREAMS
    first = block // STREAMS
    mask_local[1] = 0
    if is_ahead:
        # load: the weights and the first token
        _load_weights(w_local, tensors, stream, thread, shape)
        _load(next_words, tensors, T.cast(first, "int64"), stream, thread, shape)
        if num_masked > 0:
            mask_local[1] = T.cast(mask[first], "int32")

    for step in T.unroll(T.truncdiv(num_tokens - 1 - first, walkers) + 1, unroll_factor=1):
        token = T.cast(first, "int64") + T.cast(step, "int64") * T.cast(walkers, "int64")
        next_token = token + T.cast(walkers, "int64")
        if is_ahead:
            for i in T.unroll(columns * 12):
                words[i] = next_words[i]
            mask_local[0] = mask_local[1]
            if next_token < T.cast(num_tokens, "int64"):
                _load(next_words, tensors, next_token, stream, thread, shape)
                if num_masked > 0:
                    mask_local[1] = T.cast(mask[next_token], "int32")
        else:
            # load
            _load(words, tensors, token, stream, thread, shape)
            mask_local[0] = 0
            if num_masked > 0:
                mask_local[0] = T.cast(mask[token], "int32")
            _load_weights(w_local, tensors, stream, thread, shape)

        # compute
        for i in T.unroll(3):
            values_local[i] = T.float32(0.0)
        for c in T.unroll(columns):
            add_to_sums(values_local, words, words, w_local, 0, 1, (c * 24, c * 24 + 8, c * COLUMN))
        sum_over_block(
            sums_local, values_local, partial_shared, step % 2, thread, 3, threads // WARP, 1
        )
        gate_of(gate_local, sums_local, hidden, *constants)

        # store
        is_masked = mask_local[0] != 0
        save(saved, gate_local, sums_local, num_saved, token, thread, is_masked, stream, 1)
        for c in T.unroll(columns):
            channel = (c * threads + thread) * COLUMN
            if is_whole or channel < hidden:
                if is_masked:
                    T.stg128(tensors[3][token, stream, channel], words[T.Ramp(c * 12, 1, 4)])
                else:
                    for i in T.vectorized(COLUMN):
                        out_local[i] = T.cast(
                            fma(
                                gate_local[0],
                                element(words, c * 24 + 16 + i),
                                element(words, c * 24 + i),
                            ),
                            "bfloat16",
                        )
                    store_column(tensors[3], token, stream, channel, out_local)
