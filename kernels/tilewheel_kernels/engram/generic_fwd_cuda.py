"""engram_gate_fwd, CUDA, for any hidden: see engram_gate_fwd_cuda.py for the mathematics.

A block takes a token, or with few tokens one stream of it, and reads x and v a second time, from
the cache.
On-chip: less than 1 KB of shared memory for sums.
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
    from_stream,
    sum_over_block,
)
from tilewheel_kernels.engram.forward_cuda import (
    add_to_sums,
    gate_of,
    save,
)

if TYPE_CHECKING:
    from tvm.tirx import PrimFunc

_THREADS = 256
_BLOCKS = 2  # a multiprocessor


@T.macro
def _any_columns(  # type: ignore[no-untyped-def]
    tensors, saved, partial_shared, token, is_masked, first, thread, sizes, constants
):
    """Do some streams of a token, any number of columns; the arguments are as in few_tokens."""
    streams, hidden, num_saved = sizes
    x, kv, weight_fused, out = tensors
    threads = _THREADS
    x_words = T.alloc_local((4,), "uint32")
    v_words = T.alloc_local((4,), "uint32")
    w_local = T.alloc_local((COLUMN,), "float32")
    out_local = T.alloc_local((COLUMN,), "bfloat16")
    values_local = T.alloc_local((3 * streams,), "float32")
    sums_local = T.alloc_local((3,), "float32")
    gate_local = T.alloc_local((2,), "float32")
    gates_local = T.alloc_local((streams,), "float32")
    num_rounds = T.truncdiv(hidden // COLUMN + threads - 1, threads)
    for i in T.unroll(3 * streams):
        values_local[i] = T.float32(0.0)

    # load and compute: the sums
    for c in T.unroll(num_rounds, unroll_factor=1):
        column = c * threads + thread
        if column < hidden // COLUMN:
            for j in T.unroll(streams):
                x_words[T.Ramp(0, 1, 4)] = T.ldg128(x[token, first + j, column * COLUMN])
                v_words[T.Ramp(0, 1, 4)] = T.ldg128(kv[token, first + j, column * COLUMN])
                for e in T.vectorized(COLUMN):
                    w_local[e] = weight_fused[first + j, column * COLUMN + e]
                add_to_sums(values_local, x_words, v_words, w_local, j, streams, 0)
    sum_over_block(sums_local, values_local, partial_shared, 0, thread, 3, threads // WARP, streams)
    gate_of(gate_local, sums_local, hidden, *constants)

    # store
    save(saved, gate_local, sums_local, num_saved, token, thread, is_masked, first, streams)
    for j in T.unroll(streams):
        gates_local[j] = from_stream(gate_local[0], j, streams)
    for c in T.unroll(num_rounds, unroll_factor=1):
        column = c * threads + thread
        if column < hidden // COLUMN:
            v_words[T.Ramp(0, 1, 4)] = T.ldg128(kv[token, STREAMS, column * COLUMN])
            for j in T.unroll(streams):
                x_words[T.Ramp(0, 1, 4)] = T.ldg128(x[token, first + j, column * COLUMN])
                if is_masked:
                    T.stg128(out[token, first + j, column * COLUMN], x_words[T.Ramp(0, 1, 4)])
                else:
                    for i in T.vectorized(COLUMN):
                        out_local[i] = T.cast(
                            fma(gates_local[j], element(v_words, i), element(x_words, i)),
                            "bfloat16",
                        )
                    for i in T.vectorized(COLUMN):
                        out[token, first + j, column * COLUMN + i] = out_local[i]


def generic(hidden: int | None) -> "PrimFunc":
    """Build the kernel with one token a block and any number of columns."""
    threads = _THREADS
    warps = threads // WARP
    num_tokens = T.dynamic("num_tokens")
    num_masked = T.dynamic("num_masked")
    num_saved = T.dynamic("num_saved")
    size = T.dynamic("hidden_64") * 64 if hidden is None else hidden

    @T.prim_func
    def engram_gate_fwd(
        x: T.Tensor((num_tokens, STREAMS, size), "bfloat16"),
        kv: T.Tensor((num_tokens, STREAMS + 1, size), "bfloat16"),
        weight_fused: T.Tensor((STREAMS, size), "float32"),
        image_token_mask: T.Tensor((num_masked,), "bool"),
        out: T.Tensor((num_tokens, STREAMS, size), "bfloat16"),
        dot: T.Tensor((num_saved, STREAMS), "float32"),
        gate: T.Tensor((num_saved, STREAMS), "float32"),
        rstd_x: T.Tensor((num_saved, STREAMS), "float32"),
        rstd_k: T.Tensor((num_saved, STREAMS), "float32"),
        eps: T.float32,
        clamp_value: T.float32,
        num_sms: T.int32,
    ):
        with T.Kernel(
            T.max(num_tokens, T.min(num_tokens * STREAMS, num_sms * _BLOCKS)),
            threads=threads,
        ) as block:
            thread = T.get_thread_binding()
            token = T.alloc_var("int64", init=T.cast(block, "int64"))
            partial_shared = T.alloc_shared((1, 3, STREAMS, warps), "float32")
            is_masked = T.alloc_var("bool", init=False)
            T.pdl_sync()
            if num_tokens * STREAMS <= num_sms * _BLOCKS:
                token = T.cast(block // STREAMS, "int64")
                if token < T.cast(num_tokens, "int64"):
                    if num_masked > 0:
                        is_masked = image_token_mask[token]
                    _any_columns(
                        (x, kv, weight_fused, out),
                        (dot, gate, rstd_x, rstd_k),
                        partial_shared,
                        token,
                        is_masked,
                        block % STREAMS,
                        thread,
                        (1, size, num_saved),
                        (eps, clamp_value),
                    )
            elif block < num_tokens:
                if num_masked > 0:
                    is_masked = image_token_mask[token]
                _any_columns(
                    (x, kv, weight_fused, out),
                    (dot, gate, rstd_x, rstd_k),
                    partial_shared,
                    token,
                    is_masked,
                    0,
                    thread,
                    (STREAMS, size, num_saved),
                    (eps, clamp_value),
                )
            T.pdl_trigger()

    return engram_gate_fwd
