"""engram_gate_bwd, CUDA, for any hidden: see engram_gate_bwd_cuda.py for the mathematics.

Block p is part p and takes four tokens at a time: first the sums of g * v for all of them, over as
many columns as there are; then, column by column, the gradients, with g read a second time from the
cache. What the tokens add to the weight's gradient is summed in registers and added to the part in
memory, which only this block touches.
On-chip: less than 2 KB of shared memory for sums and factors.
Parameters: hidden a multiple of 64.
Source: original.
"""

# No `from __future__ import annotations`: T.prim_func evaluates its annotations.
from typing import TYPE_CHECKING

import tilelang.language as T

from tilewheel_kernels.engram.columns_cuda import (
    COLUMN,
    STREAMS,
    WARP,
    element,
    fma,
    gradient_factors,
    load_saved,
    sum_over_block,
)

if TYPE_CHECKING:
    from tvm.tirx import PrimFunc

_THREADS = 256
_TOKENS = 4


@T.macro
def _find_factors(  # type: ignore[no-untyped-def]
    factors_shared, mask_shared, saved, mask, total_local, sizes, first, thread, clamp_value
):
    """Put (a, b_x, b_k, gate) of each token and stream into shared memory, from the first warp.

    Lane 8 * s + b takes stream s of token b; ``sizes`` are num_tokens, num_masked and hidden.
    """
    saved_local = T.alloc_local((4,), "float32")
    own_local = T.alloc_local((3,), "float32")
    grad_gate_local = T.alloc_local((1,), "float32")
    b = thread % (WARP // STREAMS)
    stream = thread // (WARP // STREAMS)
    token = first + b
    if (thread < WARP) & (b < _TOKENS) & (token < sizes[0]):
        load_saved(saved_local, saved, token, stream)
        for i in T.unroll(_TOKENS):
            if b == i:
                grad_gate_local[0] = total_local[i]
        gradient_factors(own_local, saved_local, grad_gate_local[0], sizes[2], clamp_value)
        for i in T.unroll(3):
            factors_shared[b, stream, i] = own_local[i]
        factors_shared[b, stream, 3] = saved_local[1]
        if stream == 0:
            mask_shared[b] = 0
            if sizes[1] > 0:
                mask_shared[b] = T.cast(mask[token], "int32")


def generic(hidden: int | None) -> "PrimFunc":
    """Build the kernel for any number of columns."""
    warps = _THREADS // WARP
    num_tokens = T.dynamic("num_tokens")
    num_masked = T.dynamic("num_masked")
    num_parts = T.dynamic("num_parts")
    size = T.dynamic("hidden_64") * 64 if hidden is None else hidden

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
        with T.Kernel(num_parts, threads=_THREADS) as part:
            thread = T.get_thread_binding()
            partial_shared = T.alloc_shared((1, _TOKENS, STREAMS, warps), "float32")
            factors_shared = T.alloc_shared((_TOKENS, STREAMS, 4), "float32")
            mask_shared = T.alloc_shared((_TOKENS,), "int32")
            g_words = T.alloc_local((4,), "uint32")
            x_words = T.alloc_local((4,), "uint32")
            k_words = T.alloc_local((4,), "uint32")
            v_words = T.alloc_local((4,), "uint32")
            w_local = T.alloc_local((COLUMN,), "float32")
            sums_local = T.alloc_local((COLUMN,), "float32")
            grad_v_local = T.alloc_local((_TOKENS, COLUMN), "float32")
            grad_local = T.alloc_local((COLUMN,), "bfloat16")
            values_local = T.alloc_local((_TOKENS * STREAMS,), "float32")
            total_local = T.alloc_local((_TOKENS,), "float32")
            factor_local = T.alloc_local((4,), "float32")
            first = T.alloc_var("int64", init=T.cast(part, "int64") * _TOKENS)
            num_rounds = T.truncdiv(size // COLUMN + _THREADS - 1, _THREADS)
            num_batches = T.truncdiv(num_tokens + _TOKENS - 1, _TOKENS)
            num_steps = T.max(T.truncdiv(num_batches - part + num_parts - 1, num_parts), 1)
            T.pdl_sync()
            for step in T.unroll(num_steps, unroll_factor=1):
                # load and compute: grad_gate of four tokens
                for i in T.unroll(_TOKENS * STREAMS):
                    values_local[i] = T.float32(0.0)
                for c in T.unroll(num_rounds, unroll_factor=1):
                    channel = (c * _THREADS + thread) * COLUMN
                    for b in T.unroll(_TOKENS):
                        if (channel < size) & (first + b < num_tokens):
                            v_words[T.Ramp(0, 1, 4)] = T.ldg128(kv[first + b, STREAMS, channel])
                            for m in T.unroll(STREAMS):
                                g_words[T.Ramp(0, 1, 4)] = T.ldg128(grad_out[first + b, m, channel])
                                for i in T.unroll(COLUMN):
                                    values_local[b * STREAMS + m] = fma(
                                        element(g_words, i),
                                        element(v_words, i),
                                        values_local[b * STREAMS + m],
                                    )
                sum_over_block(total_local, values_local, partial_shared, 0, thread, _TOKENS, warps)
                _find_factors(
                    factors_shared,
                    mask_shared,
                    (dot, gate, rstd_x, rstd_k),
                    image_token_mask,
                    total_local,
                    (num_tokens, num_masked, size),
                    first,
                    thread,
                    clamp_value,
                )
                T.sync_threads()

                # load, compute and store: gradients, column by column
                for c in T.unroll(num_rounds, unroll_factor=1):
                    channel = (c * _THREADS + thread) * COLUMN
                    if channel < size:
                        for b in T.unroll(_TOKENS):
                            for i in T.unroll(COLUMN):
                                grad_v_local[b, i] = T.float32(0.0)
                        for m in T.unroll(STREAMS):
                            for e in T.vectorized(COLUMN):
                                w_local[e] = weight_fused[m, channel + e]
                            for e in T.unroll(COLUMN):
                                sums_local[e] = T.float32(0.0)
                            if step > 0:
                                for e in T.vectorized(COLUMN):
                                    sums_local[e] = grad_w_partial[
                                        T.cast(part, "int64"), m, channel + e
                                    ]
                            for b in T.unroll(_TOKENS):
                                if first + b < num_tokens:
                                    g_words[T.Ramp(0, 1, 4)] = T.ldg128(
                                        grad_out[first + b, m, channel]
                                    )
                                    if mask_shared[b] != 0:
                                        T.stg128(
                                            grad_x[first + b, m, channel], g_words[T.Ramp(0, 1, 4)]
                                        )
                                        for i in T.vectorized(COLUMN):
                                            grad_kv[first + b, m, channel + i] = T.cast(
                                                0.0, "bfloat16"
                                            )
                                    else:
                                        for i in T.vectorized(4):
                                            factor_local[i] = factors_shared[b, m, i]
                                        x_words[T.Ramp(0, 1, 4)] = T.ldg128(
                                            x[first + b, m, channel]
                                        )
                                        k_words[T.Ramp(0, 1, 4)] = T.ldg128(
                                            kv[first + b, m, channel]
                                        )
                                        for i in T.unroll(COLUMN):
                                            a_x = factor_local[0] * element(x_words, i)
                                            sums_local[i] = fma(
                                                a_x, element(k_words, i), sums_local[i]
                                            )
                                            grad_v_local[b, i] = fma(
                                                factor_local[3],
                                                element(g_words, i),
                                                grad_v_local[b, i],
                                            )
                                            b_k = factor_local[2] * element(k_words, i)
                                            grad_local[i] = T.cast(
                                                fma(a_x, w_local[i], -b_k), "bfloat16"
                                            )
                                        for i in T.vectorized(COLUMN):
                                            grad_kv[first + b, m, channel + i] = grad_local[i]
                                        for i in T.unroll(COLUMN):
                                            a_k = factor_local[0] * element(k_words, i)
                                            b_x = factor_local[1] * element(x_words, i)
                                            grad_local[i] = T.cast(
                                                fma(a_k, w_local[i], element(g_words, i) - b_x),
                                                "bfloat16",
                                            )
                                        for i in T.vectorized(COLUMN):
                                            grad_x[first + b, m, channel + i] = grad_local[i]
                            for e in T.vectorized(COLUMN):
                                grad_w_partial[T.cast(part, "int64"), m, channel + e] = sums_local[
                                    e
                                ]
                        for b in T.unroll(_TOKENS):
                            if first + b < num_tokens:
                                for i in T.vectorized(COLUMN):
                                    grad_local[i] = T.cast(grad_v_local[b, i], "bfloat16")
                                for i in T.vectorized(COLUMN):
                                    grad_kv[first + b, STREAMS, channel + i] = grad_local[i]
                first = first + T.cast(num_parts, "int64") * _TOKENS
            T.pdl_trigger()

    return engram_gate_bwd
