"""What the CUDA kernels of engram_gate_bwd at a known hidden share, see engram_gate_bwd_cuda.py.

Source: original.
"""

import tilelang.language as T

from tilewheel_kernels.engram.columns_cuda import (
    COLUMN,
    STREAMS,
    WARP,
    element,
    element_again,
    fma,
    gradient_factors,
    load_saved,
    store_column,
    store_zeros,
    sum_over_block,
)


@T.macro
def gradients(  # type: ignore[no-untyped-def]
    grad_x_local, grad_k_local, sums_local, words, w_local, factors, offsets
):
    """Gradients of a column of a stream; adds to the sums of the weight's gradient.

    ``words`` are those of g, x and k, ``factors`` are (a, b_x, b_k), and ``offsets`` the column's
    first element in g, x, k, the sums and the weights.
    """
    for i in T.unroll(COLUMN):
        x = element(words[1], offsets[1] + i)
        k = element(words[2], offsets[2] + i)
        w = w_local[offsets[4] + i]
        a_x = factors[0] * x
        a_k = factors[0] * k
        b_x = factors[1] * x
        g = element_again(words[0], offsets[0] + i)
        grad_x_local[i] = T.cast(fma(a_k, w, g - b_x), "bfloat16")
        b_k = factors[2] * k
        grad_k_local[i] = T.cast(fma(a_x, w, -b_k), "bfloat16")
        sums_local[offsets[3] + i] = fma(a_x, k, sums_local[offsets[3] + i])


@T.macro
def add_to_grad_v(grad_v_local, g_words, gate, offset):  # type: ignore[no-untyped-def]
    for i in T.unroll(COLUMN):
        grad_v_local[i] = fma(gate, element(g_words, offset + i), grad_v_local[i])


@T.macro
def load_weights(w_local, weight_fused, stream, channel):  # type: ignore[no-untyped-def]
    """Load a column of weights by instructions that stay in place."""
    words = T.alloc_local((8,), "uint32")
    for half in T.unroll(2):
        words[T.Ramp(half * 4, 1, 4)] = T.ldg128(weight_fused[stream, channel + half * 4])
    for i in T.unroll(COLUMN):
        w_local[i] = T.reinterpret(words[i], "float32")


@T.macro
def store_grad_v(grad_kv, grad_v_local, token, channel, is_masked):  # type: ignore[no-untyped-def]
    grad_local = T.alloc_local((COLUMN,), "bfloat16")
    for i in T.unroll(COLUMN):
        grad_local[i] = T.cast(
            T.if_then_else(is_masked, T.float32(0.0), grad_v_local[i]), "bfloat16"
        )
    store_column(grad_kv, token, STREAMS, channel, grad_local)


@T.macro
def add_products(values_local, g_words, v_words, stream, offsets):  # type: ignore[no-untyped-def]
    """Add a column of a stream to its sum of g * v; ``offsets`` are its first elements."""
    for i in T.unroll(COLUMN):
        values_local[stream] = fma(
            element(g_words, offsets[0] + i), element(v_words, offsets[1] + i), values_local[stream]
        )


@T.macro
def _load(words, numbers_local, tensors, saved, token, stream, thread, shape):  # type: ignore[no-untyped-def]
    """Load a thread's columns of g, x, k and v, and its share of g for a quarter of grad_v.

    Of that, each column's thread makes two channels. ``numbers_local`` gets the stream's saved
    numbers and, in lane i, the gate of stream i % 4.
    """
    columns, threads, hidden, is_whole = shape
    for c in T.unroll(columns):
        column = c * threads + thread
        channel = column * COLUMN
        if not is_whole:
            for i in T.unroll(20):
                words[c * 20 + i] = T.uint32(0)
        if is_whole or channel < hidden:
            words[T.Ramp(c * 20 + 12, 1, 4)] = T.ldg128(tensors[2][token, STREAMS, channel])
            words[T.Ramp(c * 20, 1, 4)] = T.ldg128(tensors[0][token, stream, channel])
            for m in T.unroll(STREAMS):
                words[c * 20 + 16 + m] = T.ldg32(
                    tensors[0][token, m, 2 * (stream * (hidden // COLUMN) + column)]
                )
            words[T.Ramp(c * 20 + 4, 1, 4)] = T.ldg128(tensors[1][token, stream, channel])
            words[T.Ramp(c * 20 + 8, 1, 4)] = T.ldg128(tensors[2][token, stream, channel])
    load_saved(numbers_local, saved, token, stream)
    numbers_local[4] = T.reinterpret(T.ldg32(saved[1][token, thread % STREAMS]), "float32")


@T.macro
def _grad_v(grad_kv, words, gates_local, token, offset, channel, is_masked):  # type: ignore[no-untyped-def]
    """The value's gradient in two channels, from a word of each stream's g."""
    sums_local = T.alloc_local((2,), "float32")
    grad_local = T.alloc_local((2,), "bfloat16")
    for i in T.unroll(2):
        sums_local[i] = T.float32(0.0)
        for m in T.unroll(STREAMS):
            sums_local[i] = fma(gates_local[m], element(words, (offset + m) * 2 + i), sums_local[i])
        grad_local[i] = T.cast(T.if_then_else(is_masked, T.float32(0.0), sums_local[i]), "bfloat16")
    for i in T.vectorized(2):
        grad_kv[token, STREAMS, channel + i] = grad_local[i]


@T.macro
def by_streams(  # type: ignore[no-untyped-def]
    tensors, outputs, saved, mask, partial_shared, block, thread, shape, sizes, clamp_value
):
    """Do one stream of a part's tokens and a quarter of their grad_v, from memory.

    The next token is loaded into registers while the block works on this one. ``tensors`` are
    grad_out, x, kv and weight_fused, ``shape`` how many columns a thread has, threads, channels,
    and whether these are all of the threads' columns, ``sizes`` tokens, masked tokens and parts.
    """
    columns, threads, hidden, is_whole = shape
    num_tokens, num_masked, num_parts = sizes
    words = T.alloc_local((columns * 20,), "uint32")
    next_words = T.alloc_local((columns * 20,), "uint32")
    w_local = T.alloc_local((columns * COLUMN,), "float32")
    sums_local = T.alloc_local((columns * COLUMN,), "float32")
    grad_x_local = T.alloc_local((COLUMN,), "bfloat16")
    grad_k_local = T.alloc_local((COLUMN,), "bfloat16")
    values_local = T.alloc_local((1,), "float32")
    total_local = T.alloc_local((1,), "float32")
    numbers_local = T.alloc_local((5,), "float32")
    next_local = T.alloc_local((5,), "float32")
    gates_local = T.alloc_local((STREAMS,), "float32")
    factor_local = T.alloc_local((3,), "float32")
    mask_local = T.alloc_local((2,), "int32")
    part = block // STREAMS
    stream = block % STREAMS
    mask_local[1] = 0
    # load: the weights and the first token
    for i in T.unroll(columns * COLUMN):
        sums_local[i] = T.float32(0.0)
        w_local[i] = T.float32(0.0)
    if part < num_tokens:
        for c in T.unroll(columns):
            channel = (c * threads + thread) * COLUMN
            if is_whole or channel < hidden:
                for half in T.unroll(2):
                    for e in T.vectorized(4):
                        w_local[c * COLUMN + half * 4 + e] = tensors[3][
                            stream, channel + half * 4 + e
                        ]
        _load(next_words, next_local, tensors, saved, T.cast(part, "int64"), stream, thread, shape)
        if num_masked > 0:
            mask_local[1] = T.cast(mask[part], "int32")

    num_steps = T.max(T.truncdiv(num_tokens - part + num_parts - 1, num_parts), 0)
    for step in T.unroll(num_steps, unroll_factor=1):
        token = T.cast(part, "int64") + T.cast(step, "int64") * T.cast(num_parts, "int64")
        next_token = token + T.cast(num_parts, "int64")
        for i in T.unroll(columns * 20):
            words[i] = next_words[i]
        for i in T.unroll(5):
            numbers_local[i] = next_local[i]
        mask_local[0] = mask_local[1]
        if next_token < T.cast(num_tokens, "int64"):
            _load(next_words, next_local, tensors, saved, next_token, stream, thread, shape)
            if num_masked > 0:
                mask_local[1] = T.cast(mask[next_token], "int32")
        is_masked = mask_local[0] != 0

        # compute and store: grad_v; compute: grad_gate
        for m in T.unroll(STREAMS):
            gates_local[m] = T.shfl_sync(numbers_local[4], m)
        values_local[0] = T.float32(0.0)
        for c in T.unroll(columns):
            column = c * threads + thread
            if is_whole or column * COLUMN < hidden:
                _grad_v(
                    outputs[1],
                    words,
                    gates_local,
                    token,
                    c * 20 + 16,
                    2 * (stream * (hidden // COLUMN) + column),
                    is_masked,
                )
            add_products(values_local, words, words, 0, (c * 40, c * 40 + 24))
        sum_over_block(
            total_local, values_local, partial_shared, step % 2, thread, 1, threads // WARP, 1
        )
        gradient_factors(factor_local, numbers_local, total_local[0], hidden, clamp_value)

        # compute and store: the other gradients
        for c in T.unroll(columns):
            channel = (c * threads + thread) * COLUMN
            if is_whole or channel < hidden:
                if is_masked:
                    T.stg128(outputs[0][token, stream, channel], words[T.Ramp(c * 20, 1, 4)])
                    store_zeros(outputs[1], token, stream, channel)
                else:
                    gradients(
                        grad_x_local,
                        grad_k_local,
                        sums_local,
                        (words, words, words),
                        w_local,
                        factor_local,
                        (c * 40, c * 40 + 8, c * 40 + 16, c * COLUMN, c * COLUMN),
                    )
                    store_column(outputs[0], token, stream, channel, grad_x_local)
                    store_column(outputs[1], token, stream, channel, grad_k_local)

    # store: what the part's tokens add up to
    for c in T.unroll(columns):
        channel = (c * threads + thread) * COLUMN
        if is_whole or channel < hidden:
            for half in T.unroll(2):
                for e in T.vectorized(4):
                    outputs[2][T.cast(part, "int64"), stream, channel + half * 4 + e] = sums_local[
                        c * COLUMN + half * 4 + e
                    ]
