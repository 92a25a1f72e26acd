"""mhc_post_fwd, CUDA: the new residual streams of hyper-connections.

    out[t, o] = post_mix[t, o] * x[t] + sum over m of comb_mix[t, m, o] * residual[t, m]

A thread owns a vector of 8 channels of one token, in all streams: five loads of 16 bytes, 20
coefficients (the same for the threads of a token, so from L1), four stores of 16 bytes. A block
owns THREADS consecutive vectors and may hold the end of one token and the start of the next.
On-chip: no shared memory; registers of a thread: 20 of vectors, 20 of coefficients.
Parameters: hidden is decided at run time, a multiple of 64.
Numerics: float32 with fused multiply-add, post first and then the streams in order, rounded once.
In place: a thread reads its channels in every stream before it writes, and no other thread reads
them: out may be residual.
Reference: tilewheel.reference.mhc.post_fwd.
Source: original.
"""

# No `from __future__ import annotations`: T.prim_func evaluates its annotations.
from typing import TYPE_CHECKING

import tilelang.language as T

from tilewheel_kernels.mhc.streams_cuda import NUM_STREAMS, VECTOR, WORDS, channel

if TYPE_CHECKING:
    from tvm.tirx import PrimFunc

# The kernel bounds every index itself; this pass would check every access a second time.
PASS_CONFIGS: dict[str, object] = {"tl.disable_safe_memory_legalize": True}

_THREADS = 64
_BLOCKS_PER_SM = 14  # 72 registers a thread


def mhc_post_fwd(*, hidden: int | None) -> "PrimFunc":
    """Return the kernel for any number of channels that is a multiple of 64.

    Raises ValueError for a fixed number: it would gain nothing.
    """
    if hidden is not None:
        raise ValueError(f"hidden: is {hidden}, must be any")
    num_tokens = T.dynamic("num_tokens")
    hidden_64 = T.dynamic("hidden_64")
    channels = hidden_64 * 64
    num_vectors = T.cast(hidden_64, "uint32") * 8

    @T.prim_func
    def mhc_post_fwd(
        x: T.Tensor((num_tokens, channels), "bfloat16"),
        residual: T.Tensor((num_tokens, NUM_STREAMS, channels), "bfloat16"),
        post_mix: T.Tensor((num_tokens, NUM_STREAMS), "float32"),
        comb_mix: T.Tensor((num_tokens, NUM_STREAMS, NUM_STREAMS), "float32"),
        out: T.Tensor((num_tokens, NUM_STREAMS, channels), "bfloat16"),
    ):
        with T.Kernel(
            T.ceildiv(T.cast(num_tokens, "int64") * hidden_64 * 8, _THREADS), threads=_THREADS
        ) as block:
            T.annotate_min_blocks_per_sm(_BLOCKS_PER_SM)
            thread = T.get_thread_binding()
            x_words = T.alloc_local((WORDS,), "uint32")
            words_local = T.alloc_local((NUM_STREAMS * WORDS,), "uint32")
            post_local = T.alloc_local((NUM_STREAMS,), "float32")
            comb_local = T.alloc_local((NUM_STREAMS * NUM_STREAMS,), "float32")
            pair_local = T.alloc_local((2,), "float32")
            out_local = T.alloc_local((NUM_STREAMS * VECTOR,), "bfloat16")
            token = T.alloc_var("int64", init=0)  # a variable: inlined, it is computed at every use
            place = T.alloc_var("int32", init=0)  # in vectors
            # 2**32 vectors of four streams fit no device.
            vector = T.cast(block, "uint32") * _THREADS + T.cast(thread, "uint32")
            row = T.truncdiv(vector, num_vectors)
            token = T.cast(row, "int64")
            place = T.cast(vector - row * num_vectors, "int32")
            T.pdl_sync()
            if token < num_tokens:
                # load
                x_words[T.Ramp(0, 1, 4)] = T.ldg128(x[token, place * VECTOR])
                for m in T.unroll(NUM_STREAMS):
                    words_local[T.Ramp(m * WORDS, 1, 4)] = T.ldg128(
                        residual[token, m, place * VECTOR]
                    )
                for o in T.vectorized(NUM_STREAMS):
                    post_local[o] = post_mix[token, o]
                for m in T.unroll(NUM_STREAMS):
                    for o in T.vectorized(NUM_STREAMS):
                        comb_local[m * NUM_STREAMS + o] = comb_mix[token, m, o]
                T.pdl_trigger()

                # compute and store
                # By pairs of channels: results take the registers of what they were made from.
                for w in T.unroll(WORDS):
                    for o in T.unroll(NUM_STREAMS):
                        for e in T.unroll(2):
                            pair_local[e] = post_local[o] * channel(x_words, 0, 2 * w + e)
                            for m in T.unroll(NUM_STREAMS):
                                pair_local[e] = pair_local[e] + comb_local[
                                    m * NUM_STREAMS + o
                                ] * channel(words_local, m * WORDS, 2 * w + e)
                        for e in T.vectorized(2):
                            out_local[o * VECTOR + 2 * w + e] = T.cast(pair_local[e], "bfloat16")
                for o in T.unroll(NUM_STREAMS):
                    for i in T.vectorized(VECTOR):
                        out[token, o, place * VECTOR + i] = out_local[o * VECTOR + i]

    return mhc_post_fwd
