"""engram_gate_fwd, CUDA, for any hidden: see engram_gate_fwd_cuda.py for the mathematics.

A block walks over tokens with one stream of each. Up to 3072 channels a thread has one column of it
and loads the next token ahead; up to 6144 it has two, for which registers of three blocks a
multiprocessor do not suffice (forward_cuda.py). Above it has several, and reads x and v a second
time, from the cache.
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
    store_column,
    sum_over_block,
)
from tilewheel_kernels.engram.forward_cuda import (
    add_to_sums,
    by_streams,
    gate_of,
    save,
)

if TYPE_CHECKING:
    from tvm.tirx import PrimFunc

_THREADS = 384
_BLOCKS = 3  # a multiprocessor


@T.macro
def _many_columns(  # type: ignore[no-untyped-def]
    tensors, saved, mask, partial_shared, block, walkers, thread, sizes, constants
):
    """Walk over tokens with one stream of each; arguments are as in ``by_streams``."""
    hidden, num_tokens, num_masked, num_saved = sizes
    x, kv, weight_fused, out = tensors
    x_words = T.alloc_local((4,), "uint32")
    v_words = T.alloc_local((4,), "uint32")
    w_local = T.alloc_local((COLUMN,), "float32")
    out_local = T.alloc_local((COLUMN,), "bfloat16")
    values_local = T.alloc_local((3,), "float32")
    sums_local = T.alloc_local((3,), "float32")
    gate_local = T.alloc_local((2,), "float32")
    mask_local = T.alloc_local((1,), "int32")
    stream = block % STREAMS
    first = block // STREAMS
    num_rounds = T.truncdiv(hidden // COLUMN + _THREADS - 1, _THREADS)
    for step in T.unroll(T.truncdiv(num_tokens - 1 - first, walkers) + 1, unroll_factor=1):
        token = T.cast(first, "int64") + T.cast(step, "int64") * T.cast(walkers, "int64")
        mask_local[0] = 0
        if num_masked > 0:
            mask_local[0] = T.cast(mask[token], "int32")
        is_masked = mask_local[0] != 0

        # load and compute: the sums
        for i in T.unroll(3):
            values_local[i] = T.float32(0.0)
        for c in T.unroll(num_rounds, unroll_factor=2):
            column = c * _THREADS + thread
            if column < hidden // COLUMN:
                x_words[T.Ramp(0, 1, 4)] = T.ldg128(x[token, stream, column * COLUMN])
                v_words[T.Ramp(0, 1, 4)] = T.ldg128(kv[token, stream, column * COLUMN])
                for e in T.vectorized(COLUMN):
                    w_local[e] = weight_fused[stream, column * COLUMN + e]
                add_to_sums(values_local, x_words, v_words, w_local, 0, 1, (0, 0, 0))
        sum_over_block(
            sums_local, values_local, partial_shared, step % 2, thread, 3, _THREADS // WARP, 1
        )
        gate_of(gate_local, sums_local, hidden, *constants)

        # store
        save(saved, gate_local, sums_local, num_saved, token, thread, is_masked, stream, 1)
        for c in T.unroll(num_rounds, unroll_factor=2):
            column = c * _THREADS + thread
            if column < hidden // COLUMN:
                v_words[T.Ramp(0, 1, 4)] = T.ldg128(kv[token, STREAMS, column * COLUMN])
                x_words[T.Ramp(0, 1, 4)] = T.ldg128(x[token, stream, column * COLUMN])
                if is_masked:
                    T.stg128(out[token, stream, column * COLUMN], x_words[T.Ramp(0, 1, 4)])
                else:
                    for i in T.vectorized(COLUMN):
                        out_local[i] = T.cast(
                            fma(gate_local[0], element(v_words, i), element(x_words, i)),
                            "bfloat16",
                        )
                    store_column(out, token, stream, column * COLUMN, out_local)


def generic(hidden: int | None) -> "PrimFunc":
    """Build the kernel for any number of columns."""
    warps = _THREADS // WARP
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
            T.min(num_tokens * STREAMS, T.max(num_sms * _BLOCKS, STREAMS)), threads=_THREADS
        ) as block:
            T.annotate_min_blocks_per_sm(_BLOCKS)
            thread = T.get_thread_binding()
            slots = T.max(num_sms * _BLOCKS, STREAMS)
            walkers = T.min(num_tokens, slots // STREAMS)
            partial_shared = T.alloc_shared((2, 3, 1, warps), "float32")
            T.pdl_sync()
            if block // STREAMS < walkers:
                if size <= _THREADS * COLUMN:
                    by_streams(
                        (x, kv, weight_fused, out),
                        (dot, gate, rstd_x, rstd_k),
                        image_token_mask,
                        partial_shared,
                        block,
                        walkers,
                        thread,
                        (1, _THREADS, size, False),
                        (num_tokens, num_masked, num_saved),
                        (eps, clamp_value),
                        True,
                    )
                elif size <= 2 * _THREADS * COLUMN:
                    by_streams(
                        (x, kv, weight_fused, out),
                        (dot, gate, rstd_x, rstd_k),
                        image_token_mask,
                        partial_shared,
                        block,
                        walkers,
                        thread,
                        (2, _THREADS, size, False),
                        (num_tokens, num_masked, num_saved),
                        (eps, clamp_value),
                        False,
                    )
                else:
                    _many_columns(
                        (x, kv, weight_fused, out),
                        (dot, gate, rstd_x, rstd_k),
                        image_token_mask,
                        partial_shared,
                        block,
                        walkers,
                        thread,
                        (size, num_tokens, num_masked, num_saved),
                        (eps, clamp_value),
                    )
            T.pdl_trigger()

    return engram_gate_fwd
