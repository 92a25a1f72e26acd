"""mhc_pre_big_fuse_fwd, CUDA: mixing coefficients of hyper-connections and the layer's input.

    mixes[t] = sum_s gemm_out_mul[s, t] * rsqrt(sum_s gemm_out_sqrsum[s, t] / (4 hidden) + rms_eps)
    pre = sigmoid(mixes[0:4] * scale[0] + base[0:4]) + pre_eps
    layer_input[t] = sum_m pre[m] * residual[t, m], with output_norm RMS-normalised
    post_mix, comb_mix: from the other mixes, see mixes_cuda.py

Blocks of two kinds, because the microsecond that comb's chain of divisions takes would hold up the
stream. The first ones make post_mix and comb_mix, each of 1, 2, 4, ... or 32 tokens, one where
there are no more than 256. The others stream: a block owns a token, or 128 or 256 vectors of one
without output_norm. A thread owns vectors of 8 channels in all streams and asks for two of them
before it looks at the mixes, so that the latency of memory is paid once; each block makes pre by
itself. With few tokens it asks after it has the mixes: comb is what takes longest then, and the
splits that it waits for would queue behind the residual.
On-chip: 32 * (4 * 25 + 17) + 48 floats of shared memory; registers of a thread: 16 words of each
vector and 8 sums.
Parameters: hidden is decided at run time, a multiple of 64. With output_norm a block of 512 threads
keeps 8192 channels in registers; of wider tokens it stores the rest and reads it again. Half of
these threads would have nothing to load of 4096 channels or less: fixed at such a number, a block
has 256.
Numerics: float32; sums in an order that depends on num_splits and hidden alone. Reciprocals and
square roots are within 1 or 2 units in the last place.
Reference: tilewheel.reference.mhc.pre_big_fuse_fwd.
Source: original.
"""

# No `from __future__ import annotations`: T.prim_func evaluates its annotations.
from typing import TYPE_CHECKING

import tilelang.language as T

from tilewheel_kernels.mhc import mixes_cuda as mixes
from tilewheel_kernels.mhc.streams_cuda import NUM_STREAMS, VECTOR, WORDS, channel

if TYPE_CHECKING:
    from tvm.tirx import PrimFunc

PASS_CONFIGS: dict[str, object] = {
    # The kernel bounds every index itself; this pass would check every access a second time.
    "tl.disable_safe_memory_legalize": True,
    # The kernel has every barrier it needs; this pass would add some, also in divergent code.
    "tl.disable_thread_storage_sync": True,
}

_SLOTS = 2  # vectors that a thread keeps
_THREADS = 128
_NORM_THREADS = 512
_FEW_TOKENS = 256  # a block makes comb for one token up to here, two up to twice as many, ...
_MAX_SHIFT = 5  # ... and 1 << 5 at most
_FEW_VECTORS_PER_SM = 768  # of all tokens: up to here the residual is asked for after the mixes
_BLOCKS_PER_SM = 4  # streaming blocks of two vectors a thread; where fewer, one vector a thread
_MIN_THREADS_PER_SM = 1024  # 64 registers each
_LANES = 32
_TOKEN_WORDS = NUM_STREAMS * WORDS


def mhc_pre_big_fuse_fwd(*, hidden: int | None, output_norm: bool) -> "PrimFunc":
    """Return the kernel for hidden channels, or for any multiple of 64.

    Raises ValueError for a fixed number without output_norm or above 4096: it would gain nothing.
    """
    threads = _NORM_THREADS if output_norm else _THREADS
    if hidden is not None:
        threads = _NORM_THREADS // 2
        if not output_norm or hidden > threads * _SLOTS * VECTOR:
            raise ValueError(f"hidden: is {hidden}, must be any")
    num_warps = threads // _LANES
    num_splits = T.dynamic("num_splits")
    num_tokens = T.dynamic("num_tokens")
    hidden_64 = T.dynamic("hidden_64") if hidden is None else hidden // 64
    channels = hidden_64 * 64
    num_vectors = hidden_64 * 8
    shift = sum(T.cast(num_tokens > _FEW_TOKENS << i, "int32") for i in range(_MAX_SHIFT))
    num_mix_blocks = (num_tokens + (1 << shift) - 1) >> shift

    def block_shift(num_sms):
        """The logarithm of a streaming block's vectors, without output_norm."""
        wide = (_SLOTS * threads).bit_length() - 1
        num_wide_blocks = T.cast(num_tokens, "int64") * ((num_vectors + (1 << wide) - 1) >> wide)
        return wide - 1 + T.cast(num_wide_blocks > num_sms * _BLOCKS_PER_SM, "int32")

    def num_parts(num_sms):
        """Streaming blocks of a token, without output_norm."""
        shift = block_shift(num_sms)
        return (num_vectors + (1 << shift) - 1) >> shift

    @T.macro
    def mix_tokens(tensors, post_mix, comb_mix, block, scalars):
        gemm_out_mul, gemm_out_sqrsum, scale, base = tensors
        rms_eps, sinkhorn_eps, post_mult, sinkhorn_repeat = scalars
        thread = T.get_thread_binding()
        partial_shared = T.alloc_shared(
            (mixes.MAX_TOKENS, mixes.NUM_WARPS, mixes.NUM_COLUMNS), "float32"
        )
        comb_shared = T.alloc_shared((mixes.MAX_TOKENS, mixes.COMB_STRIDE), "float32")
        first_token = T.alloc_var("int32", init=0)
        count = T.alloc_var("int32", init=0)
        first_token = block << shift
        count = T.min(1 << shift, num_tokens - first_token)
        shift_shared = T.alloc_shared((2, mixes.NUM_MIXES), "float32")
        factor = T.alloc_var("float32", init=0.0)
        addend = T.alloc_var("float32", init=0.0)
        # Before the wait for the splits.
        factor = mixes.load(scale[T.min(thread // NUM_STREAMS, 2)], thread < mixes.NUM_MIXES)
        addend = mixes.load(base[thread], thread < mixes.NUM_MIXES)
        if thread < mixes.NUM_WARPS * _LANES:
            mixes.sum_splits(
                gemm_out_mul, gemm_out_sqrsum, partial_shared, thread, first_token, count
            )
        if thread < mixes.NUM_MIXES:
            shift_shared[0, thread] = factor
            shift_shared[1, thread] = addend
        T.sync_threads()
        mixes.activate(
            partial_shared,
            comb_shared,
            shift_shared,
            post_mix,
            thread,
            threads,
            (first_token, count),
            channels,
            (rms_eps, sinkhorn_eps, post_mult),
        )
        T.sync_threads()
        T.pdl_trigger()
        if thread < count:
            mixes.normalise(
                comb_shared, comb_mix, thread, first_token + thread, sinkhorn_eps, sinkhorn_repeat
            )

    @T.macro
    def load_streams(residual, words_local, slot, token, vector, end):
        for m in T.unroll(NUM_STREAMS):
            words_local[T.Ramp(slot * _TOKEN_WORDS + m * WORDS, 1, 4)] = T.ldg128(
                residual[token, m, vector * VECTOR], pred=vector < end
            )

    @T.macro
    def mix_streams(words_local, pre_local, y_local, slot):
        first = slot * _TOKEN_WORDS
        for i in T.unroll(VECTOR):
            y_local[slot * VECTOR + i] = pre_local[0] * channel(words_local, first, i)
            for m in T.unroll(1, NUM_STREAMS):
                y_local[slot * VECTOR + i] = y_local[slot * VECTOR + i] + pre_local[m] * channel(
                    words_local, first + m * WORDS, i
                )

    @T.macro
    def store(layer_input, y_local, slot, token, vector, end):
        if vector < end:
            for i in T.vectorized(VECTOR):
                layer_input[token, vector * VECTOR + i] = T.cast(
                    y_local[slot * VECTOR + i], "bfloat16"
                )

    @T.macro
    def add_squares(square_sum, y_local, slot):
        for i in T.unroll(VECTOR):
            y = y_local[slot * VECTOR + i]
            square_sum[0] = square_sum[0] + y * y

    @T.macro
    def scale_values(y_local, slot, weight_words, rstd):
        for i in T.unroll(VECTOR):
            rounded = T.cast(T.cast(y_local[slot * VECTOR + i], "bfloat16"), "float32")
            y_local[slot * VECTOR + i] = rounded * rstd * channel(weight_words, slot * WORDS, i)

    @T.macro
    def normalise_output(tensors, words_local, pre_local, y_local, token, norm_eps):
        """Scale what a block holds of its token, and make what it does not hold."""
        residual, norm_weight, layer_input = tensors
        thread = T.get_thread_binding()
        norm_shared = T.alloc_shared((num_warps,), "float32")
        weight_words = T.alloc_local((_SLOTS * WORDS,), "uint32")
        square_sum = T.alloc_local((1,), "float32")
        rstd = T.alloc_var("float32", init=0.0)
        rest = (num_vectors + threads - 1) // threads - _SLOTS
        square_sum[0] = 0.0
        for k in T.unroll(_SLOTS):
            weight_words[T.Ramp(k * WORDS, 1, 4)] = T.ldg128(
                norm_weight[(k * threads + thread) * VECTOR],
                pred=k * threads + thread < num_vectors,
            )
            add_squares(square_sum, y_local, k)
        more_local = T.alloc_local((VECTOR,), "float32")
        for k in T.unroll(rest, unroll_factor=1):
            vector = (_SLOTS + k) * threads + thread
            load_streams(residual, words_local, 0, token, vector, num_vectors)
            mix_streams(words_local, pre_local, more_local, 0)
            add_squares(square_sum, more_local, 0)
            store(layer_input, more_local, 0, token, vector, num_vectors)
        for step in [16, 8, 4, 2, 1]:
            square_sum[0] = square_sum[0] + T.shfl_xor(square_sum[0], step)
        if thread % _LANES == 0:
            norm_shared[thread // _LANES] = square_sum[0]
        T.sync_threads()
        T.pdl_trigger()
        square_sum[0] = norm_shared[0]
        for i in T.unroll(1, num_warps):
            square_sum[0] = square_sum[0] + norm_shared[i]
        rstd = T.rsqrt(square_sum[0] / T.cast(channels, "float32") + norm_eps)
        for k in T.unroll(_SLOTS):
            scale_values(y_local, k, weight_words, rstd)
            store(layer_input, y_local, k, token, k * threads + thread, num_vectors)
        for k in T.unroll(rest, unroll_factor=1):
            vector = (_SLOTS + k) * threads + thread
            if vector < num_vectors:
                weight_words[T.Ramp(0, 1, 4)] = T.ldg128(norm_weight[vector * VECTOR])
                for i in T.vectorized(VECTOR):
                    more_local[i] = T.cast(layer_input[token, vector * VECTOR + i], "float32")
                scale_values(more_local, 0, weight_words, rstd)
                store(layer_input, more_local, 0, token, vector, num_vectors)

    @T.macro
    def stream(tensors, norm_weight, layer_input, block, num_sms, scalars):
        gemm_out_mul, gemm_out_sqrsum, scale, base, residual = tensors
        rms_eps, pre_eps, norm_eps = scalars
        thread = T.get_thread_binding()
        share_shared = T.alloc_shared((mixes.NUM_WARPS, mixes.PRE_LANES), "float32")
        words_local = T.alloc_local((_SLOTS * _TOKEN_WORDS,), "uint32")
        pre_local = T.alloc_local((NUM_STREAMS,), "float32")
        y_local = T.alloc_local((_SLOTS * VECTOR,), "float32")
        parts = T.alloc_var("int32", init=0)  # variables: inlined, they are computed at every use
        token = T.alloc_var("int32", init=0)
        first = T.alloc_var("int32", init=0)
        end = T.alloc_var("int32", init=0)
        token = block
        end = num_vectors
        if not output_norm:
            parts = num_parts(num_sms)
            token = T.cast(T.truncdiv(T.cast(block, "uint32"), T.cast(parts, "uint32")), "int32")
            first = (block - token * parts) << block_shift(num_sms)
            end = T.min(first + (1 << block_shift(num_sms)), num_vectors)
        first = first + thread

        is_late = (num_tokens <= _FEW_TOKENS) & (
            T.cast(num_tokens, "int64") * num_vectors <= num_sms * _FEW_VECTORS_PER_SM
        )

        # load
        if not is_late:
            for k in T.unroll(_SLOTS):
                load_streams(residual, words_local, k, token, first + k * threads, end)
        mixes.find_pre(
            gemm_out_mul,
            gemm_out_sqrsum,
            scale,
            base,
            share_shared,
            pre_local,
            token,
            channels,
            (rms_eps, pre_eps),
        )
        if is_late:
            # Comb takes longest here: its splits must not queue behind the residual.
            for k in T.unroll(_SLOTS):
                load_streams(residual, words_local, k, token, first + k * threads, end)

        # compute and store
        for k in T.unroll(_SLOTS):
            mix_streams(words_local, pre_local, y_local, k)
        if output_norm:
            normalise_output(
                (residual, norm_weight, layer_input),
                words_local,
                pre_local,
                y_local,
                token,
                norm_eps,
            )
        else:
            T.pdl_trigger()
            for k in T.unroll(_SLOTS):
                store(layer_input, y_local, k, token, first + k * threads, end)

    @T.macro
    def body(tensors, norm_weight, results, block, num_sms, scalars):
        post_mix, comb_mix, layer_input = results
        rms_eps, pre_eps, sinkhorn_eps, post_mult, sinkhorn_repeat, norm_eps = scalars
        T.annotate_min_blocks_per_sm(_MIN_THREADS_PER_SM // threads)
        T.pdl_sync()
        if block < num_mix_blocks:
            mix_tokens(
                tensors[:4],
                post_mix,
                comb_mix,
                block,
                (rms_eps, sinkhorn_eps, post_mult, sinkhorn_repeat),
            )
        else:
            stream(
                tensors,
                norm_weight,
                layer_input,
                block - num_mix_blocks,
                num_sms,
                (rms_eps, pre_eps, norm_eps),
            )

    mul_type = T.StridedTensor(
        (num_splits, num_tokens, mixes.NUM_MIXES),
        (T.dynamic("mul_split_stride", "int64"), T.dynamic("mul_token_stride", "int64"), 1),
        "float32",
    )
    sqrsum_type = T.StridedTensor(
        (num_splits, num_tokens), (T.dynamic("sqrsum_split_stride", "int64"), 1), "float32"
    )
    residual_type = T.Tensor((num_tokens, NUM_STREAMS, channels), "bfloat16")
    comb_type = T.Tensor((num_tokens, NUM_STREAMS, NUM_STREAMS), "float32")

    if output_norm:

        @T.prim_func
        def mhc_pre_big_fuse_fwd(
            gemm_out_mul: mul_type,
            gemm_out_sqrsum: sqrsum_type,
            scale: T.Tensor((3,), "float32"),
            base: T.Tensor((mixes.NUM_MIXES,), "float32"),
            residual: residual_type,
            norm_weight: T.Tensor((channels,), "bfloat16"),
            post_mix: T.Tensor((num_tokens, NUM_STREAMS), "float32"),
            comb_mix: comb_type,
            layer_input: T.Tensor((num_tokens, channels), "bfloat16"),
            rms_eps: T.float32,
            pre_eps: T.float32,
            sinkhorn_eps: T.float32,
            post_mult: T.float32,
            sinkhorn_repeat: T.int32,
            norm_eps: T.float32,
            num_sms: T.int32,
        ):
            with T.Kernel(num_mix_blocks + num_tokens, threads=threads) as block:
                body(
                    (gemm_out_mul, gemm_out_sqrsum, scale, base, residual),
                    norm_weight,
                    (post_mix, comb_mix, layer_input),
                    block,
                    num_sms,
                    (rms_eps, pre_eps, sinkhorn_eps, post_mult, sinkhorn_repeat, norm_eps),
                )

    else:

        @T.prim_func
        def mhc_pre_big_fuse_fwd(
            gemm_out_mul: mul_type,
            gemm_out_sqrsum: sqrsum_type,
            scale: T.Tensor((3,), "float32"),
            base: T.Tensor((mixes.NUM_MIXES,), "float32"),
            residual: residual_type,
            post_mix: T.Tensor((num_tokens, NUM_STREAMS), "float32"),
            comb_mix: comb_type,
            layer_input: T.Tensor((num_tokens, channels), "bfloat16"),
            rms_eps: T.float32,
            pre_eps: T.float32,
            sinkhorn_eps: T.float32,
            post_mult: T.float32,
            sinkhorn_repeat: T.int32,
            norm_eps: T.float32,
            num_sms: T.int32,
        ):
            with T.Kernel(
                num_mix_blocks + T.cast(num_tokens, "int64") * num_parts(num_sms), threads=threads
            ) as block:
                body(
                    (gemm_out_mul, gemm_out_sqrsum, scale, base, residual),
                    None,
                    (post_mix, comb_mix, layer_input),
                    block,
                    num_sms,
                    (rms_eps, pre_eps, sinkhorn_eps, post_mult, sinkhorn_repeat, norm_eps),
                )

    return mhc_pre_big_fuse_fwd
