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
    from_stream,
    gradient_factors,
    load_saved,
    sum_over_block,
)


@T.macro
def gradients(  # type: ignore[no-untyped-def]
    grad_x_local, grad_k_local, sums_local, words, w_local, factors, offsets
):
    """Gradients of a column of a stream; adds to the sums of the weight's gradient.

    ``words`` are those of g, x and k, ``factors`` are (a, b_x, b_k), and ``offsets`` the column's
    first element in g, in the sums, and in x and k.
    """
    for i in T.unroll(COLUMN):
        x = element(words[1], offsets[2] + i)
        k = element(words[2], offsets[2] + i)
        a_x = factors[0] * x
        a_k = factors[0] * k
        b_x = factors[1] * x
        g = element_again(words[0], offsets[0] + i)
        grad_x_local[i] = T.cast(fma(a_k, w_local[i], g - b_x), "bfloat16")
        b_k = factors[2] * k
        grad_k_local[i] = T.cast(fma(a_x, w_local[i], -b_k), "bfloat16")
        sums_local[offsets[1] + i] = fma(a_x, k, sums_local[offsets[1] + i])


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
    for i in T.vectorized(COLUMN):
        grad_kv[token, STREAMS, channel + i] = grad_local[i]


@T.macro
def few_parts(  # type: ignore[no-untyped-def]
    tensors, outputs, saved, mask, partial_shared, part, group, thread, sizes, clamp_value
):
    """Do some streams of a part's tokens, from memory: with few parts several blocks share each.

    ``group`` says which streams and which part of grad_v; ``sizes`` are how many streams a block
    has, columns, threads, channels, tokens, masked tokens and parts.
    """
    streams, columns, threads, hidden, num_tokens, num_masked, num_parts = sizes
    g_words = T.alloc_local((streams * columns * 4,), "uint32")
    x_words = T.alloc_local((streams * columns * 4,), "uint32")
    k_words = T.alloc_local((streams * columns * 4,), "uint32")
    v_words = T.alloc_local((columns * 4,), "uint32")
    all_words = T.alloc_local((STREAMS * 4,), "uint32")
    w_local = T.alloc_local((COLUMN,), "float32")
    sums_local = T.alloc_local((streams * columns * COLUMN,), "float32")
    grad_v_local = T.alloc_local((COLUMN,), "float32")
    grad_x_local = T.alloc_local((COLUMN,), "bfloat16")
    grad_k_local = T.alloc_local((COLUMN,), "bfloat16")
    values_local = T.alloc_local((streams,), "float32")
    total_local = T.alloc_local((1,), "float32")
    saved_local = T.alloc_local((5,), "float32")
    gate_local = T.alloc_local((STREAMS + 1,), "float32")
    own_local = T.alloc_local((3,), "float32")
    factor_local = T.alloc_local((3,), "float32")
    mask_local = T.alloc_local((1,), "int32")
    first = group * streams
    for i in T.unroll(streams * columns * COLUMN):
        sums_local[i] = T.float32(0.0)
    num_steps = T.max(T.truncdiv(num_tokens - part + num_parts - 1, num_parts), 0)
    for step in T.unroll(num_steps, unroll_factor=1):
        token = T.cast(part, "int64") + T.cast(step, "int64") * T.cast(num_parts, "int64")
        # load
        for c in T.unroll(columns):
            channel = (c * threads + thread) * COLUMN
            v_words[T.Ramp(c * 4, 1, 4)] = T.ldg128(tensors[2][token, STREAMS, channel])
            for j in T.unroll(streams):
                offset = (j * columns + c) * 4
                g_words[T.Ramp(offset, 1, 4)] = T.ldg128(tensors[0][token, first + j, channel])
        load_saved(saved_local, saved, token, first + thread % WARP // (WARP // streams))
        gate_local[STREAMS] = T.reinterpret(T.ldg32(saved[1][token, thread % STREAMS]), "float32")
        mask_local[0] = 0
        if num_masked > 0:
            mask_local[0] = T.cast(mask[token], "int32")
        for j in T.unroll(streams):
            for c in T.unroll(columns):
                channel = (c * threads + thread) * COLUMN
                offset = (j * columns + c) * 4
                x_words[T.Ramp(offset, 1, 4)] = T.ldg128(tensors[1][token, first + j, channel])
                k_words[T.Ramp(offset, 1, 4)] = T.ldg128(tensors[2][token, first + j, channel])
        for m in T.unroll(STREAMS):
            gate_local[m] = T.shfl_sync(gate_local[STREAMS], m)

        # compute and store: grad_v
        for c in T.unroll(columns):
            column = c * threads + thread
            if column // (columns * threads // (STREAMS // streams)) == group:
                for m in T.unroll(STREAMS):
                    all_words[T.Ramp(m * 4, 1, 4)] = T.ldg128(tensors[0][token, m, column * COLUMN])
                for i in T.unroll(COLUMN):
                    grad_v_local[i] = T.float32(0.0)
                for m in T.unroll(STREAMS):
                    add_to_grad_v(grad_v_local, all_words, gate_local[m], m * COLUMN)
                store_grad_v(outputs[1], grad_v_local, token, column * COLUMN, mask_local[0] != 0)

        # compute: grad_gate
        for j in T.unroll(streams):
            values_local[j] = T.float32(0.0)
            for c in T.unroll(columns):
                for i in T.unroll(COLUMN):
                    values_local[j] = fma(
                        element(g_words, (j * columns + c) * COLUMN + i),
                        element(v_words, c * COLUMN + i),
                        values_local[j],
                    )
        sum_over_block(
            total_local,
            values_local,
            partial_shared,
            step % 2,
            thread,
            1,
            threads // WARP,
            streams,
        )
        gradient_factors(own_local, saved_local, total_local[0], hidden, clamp_value)

        # compute and store: the other gradients
        for j in T.unroll(streams):
            for i in T.unroll(3):
                factor_local[i] = from_stream(own_local[i], j, streams)
            for c in T.unroll(columns):
                channel = (c * threads + thread) * COLUMN
                offset = (j * columns + c) * 4
                if mask_local[0] != 0:
                    T.stg128(outputs[0][token, first + j, channel], g_words[T.Ramp(offset, 1, 4)])
                    for i in T.vectorized(COLUMN):
                        outputs[1][token, first + j, channel + i] = T.cast(0.0, "bfloat16")
                else:
                    for half in T.unroll(2):
                        for e in T.vectorized(4):
                            w_local[half * 4 + e] = tensors[3][first + j, channel + half * 4 + e]
                    gradients(
                        grad_x_local,
                        grad_k_local,
                        sums_local,
                        (g_words, x_words, k_words),
                        w_local,
                        factor_local,
                        (2 * offset, 2 * offset, 2 * offset),
                    )
                    for i in T.vectorized(COLUMN):
                        outputs[0][token, first + j, channel + i] = grad_x_local[i]
                    for i in T.vectorized(COLUMN):
                        outputs[1][token, first + j, channel + i] = grad_k_local[i]

    # store: what the part's tokens add up to
    for j in T.unroll(streams):
        for c in T.unroll(columns):
            channel = (c * threads + thread) * COLUMN
            for half in T.unroll(2):
                for e in T.vectorized(4):
                    outputs[2][T.cast(part, "int64"), first + j, channel + half * 4 + e] = (
                        sums_local[(j * columns + c) * COLUMN + half * 4 + e]
                    )
