"""engram_gate_bwd, CUDA, for any hidden: see engram_gate_bwd_cuda.py for the mathematics.

Four blocks share a part, one for each stream, and walk over its tokens. Up to 3072 channels a
thread has one column (backward_cuda.py). Above it has several: first the sum of g * v, then the
gradients, with g read a second time from the cache; each block makes a quarter of grad_v.
The first columns of the next token are loaded while the block works on this one. What the tokens
add to the weight's gradient is summed in shared memory, where each column belongs to one thread.
On-chip: 4 * hidden bytes of sums in shared memory, 64 KB where hidden is known at run time.
Parameters: hidden a multiple of 64, at most 16384.
Source: original.
"""

# No `from __future__ import annotations`: T.prim_func evaluates its annotations.
from typing import TYPE_CHECKING

import tilelang.language as T

from tilewheel_kernels.engram.backward_cuda import by_streams
from tilewheel_kernels.engram.columns_cuda import (
    COLUMN,
    STREAMS,
    WARP,
    element,
    fma,
    gradient_factors,
    load_saved,
    store_column,
    store_zeros,
    sum_over_block,
)

if TYPE_CHECKING:
    from tvm.tirx import PrimFunc

_THREADS = 384
_MAX_HIDDEN = 16384


@T.macro
def _load_token(words, tensors, token, stream, thread, columns):  # type: ignore[no-untyped-def]
    """Load a thread's first column of v, g, x and k, or zeros behind the last one."""
    for i in T.unroll(16):
        words[i] = T.uint32(0)
    if thread < columns:
        words[T.Ramp(0, 1, 4)] = T.ldg128(tensors[2][token, STREAMS, thread * COLUMN])
        words[T.Ramp(4, 1, 4)] = T.ldg128(tensors[0][token, stream, thread * COLUMN])
        words[T.Ramp(8, 1, 4)] = T.ldg128(tensors[1][token, stream, thread * COLUMN])
        words[T.Ramp(12, 1, 4)] = T.ldg128(tensors[2][token, stream, thread * COLUMN])


@T.macro
def _load_numbers(numbers_local, saved, token, stream, thread):  # type: ignore[no-untyped-def]
    """Load a stream's saved numbers and, in lane i, the gate of stream i % 4."""
    load_saved(numbers_local, saved, token, stream)
    numbers_local[4] = T.reinterpret(T.ldg32(saved[1][token, thread % STREAMS]), "float32")


@T.macro
def _gradients(  # type: ignore[no-untyped-def]
    outputs, sums_shared, words, w_local, factors, token, stream, column, is_masked
):
    """Gradients of a column of a stream from its g, x and k, which begin at the fifth word."""
    sums_local = T.alloc_local((COLUMN,), "float32")
    grad_x_local = T.alloc_local((COLUMN,), "bfloat16")
    grad_k_local = T.alloc_local((COLUMN,), "bfloat16")
    if is_masked:
        T.stg128(outputs[0][token, stream, column * COLUMN], words[T.Ramp(4, 1, 4)])
        store_zeros(outputs[1], token, stream, column * COLUMN)
    else:
        for half in T.unroll(2):
            for e in T.vectorized(4):
                sums_local[half * 4 + e] = sums_shared[half, column, e]
        for i in T.unroll(COLUMN):
            a_x = factors[0] * element(words, 16 + i)
            a_k = factors[0] * element(words, 24 + i)
            b_x = factors[1] * element(words, 16 + i)
            b_k = factors[2] * element(words, 24 + i)
            grad_x_local[i] = T.cast(fma(a_k, w_local[i], element(words, 8 + i) - b_x), "bfloat16")
            grad_k_local[i] = T.cast(fma(a_x, w_local[i], -b_k), "bfloat16")
            sums_local[i] = fma(a_x, element(words, 24 + i), sums_local[i])
        for half in T.unroll(2):
            for e in T.vectorized(4):
                sums_shared[half, column, e] = sums_local[half * 4 + e]
        store_column(outputs[0], token, stream, column * COLUMN, grad_x_local)
        store_column(outputs[1], token, stream, column * COLUMN, grad_k_local)


@T.macro
def _grad_v(grad_kv, grad_out, gates_local, token, column, is_masked):  # type: ignore[no-untyped-def]
    """The value's gradient in a column."""
    all_words = T.alloc_local((STREAMS * 4,), "uint32")
    sums_local = T.alloc_local((COLUMN,), "float32")
    grad_local = T.alloc_local((COLUMN,), "bfloat16")
    for m in T.unroll(STREAMS):
        all_words[T.Ramp(m * 4, 1, 4)] = T.ldg128(grad_out[token, m, column * COLUMN])
    for i in T.unroll(COLUMN):
        sums_local[i] = T.float32(0.0)
        for m in T.unroll(STREAMS):
            sums_local[i] = fma(gates_local[m], element(all_words, m * COLUMN + i), sums_local[i])
        grad_local[i] = T.cast(T.if_then_else(is_masked, T.float32(0.0), sums_local[i]), "bfloat16")
    store_column(grad_kv, token, STREAMS, column * COLUMN, grad_local)


@T.macro
def _many_columns(  # type: ignore[no-untyped-def]
    tensors,
    outputs,
    saved,
    image_token_mask,
    sums_shared,
    partial_shared,
    block,
    thread,
    sizes,
    clamp_value,
):
    """Do one stream of a part's tokens, any number of columns; arguments are as in by_streams."""
    size, num_tokens, num_masked, num_parts = sizes
    grad_out, x, kv, weight_fused = tensors
    grad_x, grad_kv, grad_w_partial = outputs
    warps = _THREADS // WARP
    part = block // STREAMS
    stream = block % STREAMS
    columns = size // COLUMN
    # The quarter of grad_v that this block makes.
    begin = columns * stream // STREAMS
    end = columns * (stream + 1) // STREAMS
    words = T.alloc_local((16,), "uint32")
    next_words = T.alloc_local((16,), "uint32")
    numbers_local = T.alloc_local((5,), "float32")
    next_local = T.alloc_local((5,), "float32")
    values_local = T.alloc_local((1,), "float32")
    total_local = T.alloc_local((1,), "float32")
    gates_local = T.alloc_local((STREAMS,), "float32")
    factor_local = T.alloc_local((3,), "float32")
    w_local = T.alloc_local((COLUMN,), "float32")
    token = T.alloc_var("int64", init=T.cast(part, "int64"))
    is_masked = T.alloc_var("bool", init=False)
    num_steps = T.alloc_var("int32", init=0)
    num_rounds = T.truncdiv(columns + _THREADS - 1, _THREADS)
    if part < num_tokens:
        num_steps = T.truncdiv(num_tokens - 1 - part, num_parts) + 1
        _load_token(next_words, (grad_out, x, kv), token, stream, thread, columns)
        _load_numbers(next_local, saved, token, stream, thread)
    for c in T.unroll(num_rounds, unroll_factor=1):
        column = c * _THREADS + thread
        if column < columns:
            for half in T.unroll(2):
                for e in T.vectorized(4):
                    sums_shared[half, column, e] = T.float32(0.0)

    for step in T.unroll(num_steps, unroll_factor=1):
        # load and compute: grad_gate
        next_token = token + T.cast(num_parts, "int64")
        for i in T.unroll(16):
            words[i] = next_words[i]
        for i in T.unroll(5):
            numbers_local[i] = next_local[i]
        if num_masked > 0:
            is_masked = image_token_mask[token]
        if next_token < T.cast(num_tokens, "int64"):
            _load_token(next_words, (grad_out, x, kv), next_token, stream, thread, columns)
            _load_numbers(next_local, saved, next_token, stream, thread)
        values_local[0] = T.float32(0.0)
        for i in T.unroll(COLUMN):
            values_local[0] = fma(element(words, 8 + i), element(words, i), values_local[0])
        for c in T.unroll(num_rounds - 1, unroll_factor=1):
            column = (c + 1) * _THREADS + thread
            if column < columns:
                v_words = T.alloc_local((4,), "uint32")
                g_words = T.alloc_local((4,), "uint32")
                v_words[T.Ramp(0, 1, 4)] = T.ldg128(kv[token, STREAMS, column * COLUMN])
                g_words[T.Ramp(0, 1, 4)] = T.ldg128(grad_out[token, stream, column * COLUMN])
                for i in T.unroll(COLUMN):
                    values_local[0] = fma(element(g_words, i), element(v_words, i), values_local[0])
        for m in T.unroll(STREAMS):
            gates_local[m] = T.shfl_sync(numbers_local[4], m)
        sum_over_block(total_local, values_local, partial_shared, step % 2, thread, 1, warps, 1)
        gradient_factors(factor_local, numbers_local, total_local[0], size, clamp_value)

        # load, compute and store: gradients, column by column
        for c in T.unroll(num_rounds, unroll_factor=1):
            column = c * _THREADS + thread
            if column < columns:
                for e in T.vectorized(COLUMN):
                    w_local[e] = weight_fused[stream, column * COLUMN + e]
                if c > 0:
                    words[T.Ramp(4, 1, 4)] = T.ldg128(grad_out[token, stream, column * COLUMN])
                    words[T.Ramp(8, 1, 4)] = T.ldg128(x[token, stream, column * COLUMN])
                    words[T.Ramp(12, 1, 4)] = T.ldg128(kv[token, stream, column * COLUMN])
                _gradients(
                    (grad_x, grad_kv),
                    sums_shared,
                    words,
                    w_local,
                    factor_local,
                    token,
                    stream,
                    column,
                    is_masked,
                )
                if (column >= begin) & (column < end):
                    _grad_v(grad_kv, grad_out, gates_local, token, column, is_masked)
        token = next_token
    # store: what the part's tokens add up to
    for c in T.unroll(num_rounds, unroll_factor=1):
        column = c * _THREADS + thread
        if column < columns:
            for half in T.unroll(2):
                for e in T.vectorized(4):
                    grad_w_partial[
                        T.cast(part, "int64"), stream, column * COLUMN + half * 4 + e
                    ] = sums_shared[half, column, e]


def generic(hidden: int | None) -> "PrimFunc":
    """Build the kernel for any number of columns."""
    warps = _THREADS // WARP
    num_tokens = T.dynamic("num_tokens")
    num_masked = T.dynamic("num_masked")
    num_parts = T.dynamic("num_parts")
    size = T.dynamic("hidden_64") * 64 if hidden is None else hidden
    max_columns = (_MAX_HIDDEN if hidden is None else hidden) // COLUMN

    @T.prim_func
    def engram_gate_bwd(
        grad_out: T.Tensor((num_tokens, STREAMS, size), "bfloat16"),
        x: T.Tensor((num_tokens, STREAMS, size), "bfloat16"),
        kv: T.Tensor((num_tokens, STREAMS + 1, size), "bfloat16"),
        weight_fused: T.Tensor((STREAMS, size), "float32"),
        dot: T.Tensor((num_tokens, STREAMS), "float32"),
        gate: T.Tensor((num_tokens, STREAMS), "float32"),
        rstd_x: T.Tensor((num_tokens, STREAMS), "float32"),
        rstd_k: T.Tensor((num_tokens, STREAMS), "float32"),
        image_token_mask: T.Tensor((num_masked,), "bool"),
        grad_x: T.Tensor((num_tokens, STREAMS, size), "bfloat16"),
        grad_kv: T.Tensor((num_tokens, STREAMS + 1, size), "bfloat16"),
        grad_w_partial: T.Tensor((num_parts, STREAMS, size), "float32"),
        clamp_value: T.float32,
    ):
        with T.Kernel(num_parts * STREAMS, threads=_THREADS) as block:
            T.annotate_min_blocks_per_sm(2)
            thread = T.get_thread_binding()
            sums_shared = T.alloc_shared((2, max_columns, 4), "float32")
            partial_shared = T.alloc_shared((2, 1, 1, warps), "float32")
            T.pdl_sync()
            if size <= _THREADS * COLUMN:
                by_streams(
                    (grad_out, x, kv, weight_fused),
                    (grad_x, grad_kv, grad_w_partial),
                    (dot, gate, rstd_x, rstd_k),
                    image_token_mask,
                    partial_shared,
                    block,
                    thread,
                    (1, _THREADS, size, False),
                    (num_tokens, num_masked, num_parts),
                    clamp_value,
                )
            else:
                _many_columns(
                    (grad_out, x, kv, weight_fused),
                    (grad_x, grad_kv, grad_w_partial),
                    (dot, gate, rstd_x, rstd_k),
                    image_token_mask,
                    sums_shared,
                    partial_shared,
                    block,
                    thread,
                    (size, num_tokens, num_masked, num_parts),
                    clamp_value,
                )
            T.pdl_trigger()

    return engram_gate_bwd
