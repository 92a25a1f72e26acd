"""mhc_pre_big_fuse_fwd for Ascend: mixes of hyper-connections and the layer's input, SIMD.

    mixes = sum over splits of gemm_out_mul * rsqrt(sum of gemm_out_sqrsum / (4 hidden) + rms_eps)
    pre = sigmoid(mixes[0:4] * scale[0] + base[0:4]) + pre_eps
    post_mix = post_mult * sigmoid(mixes[4:8] * scale[1] + base[4:8])
    comb_mix = sinkhorn(softmax of rows of (mixes[8:24] * scale[2] + base[8:24]) + sinkhorn_eps)
    y = sum over streams m of pre[m] * residual[m]
    layer_input = y, or y * rsqrt(mean of y^2 + norm_eps) * norm_weight with y rounded before

Method: a lane is a token while there are mixes. Each of the 24 is then a register of 64 tokens,
and rows and columns of comb are sums of registers. A lane is a channel afterwards.

One block (vector core) owns ceil(num_tokens / num_vec_cores) consecutive tokens, the last blocks
fewer or none, in batches of 64. For a batch it adds up the partials, 16 splits of 8 tokens a tile,
then computes the mixes, then walks the residual in tiles of one token and up to 2048 channels.
With the norm, y of as many tokens as fit stays in UB until their sums of squares are known, and
each part of norm_weight is loaded once for all of them.
All tiles are double-buffered; no two share an element of layer_input.
UB bytes: 24 KiB of partials, 32 KiB of residual, 8 KiB of layer_input, 13 KiB of mixes; with the
norm 128 KiB of y, 8 KiB of norm_weight and 8 KiB of sums more: 78 KiB and 222 KiB.
Parameters: hidden a multiple of 64, at most 65536 with the norm. There is no check at run time
here; the launcher has them.
Numerics: fp32. Splits, streams and parts are added in turn. exp, the quotients of sigmoid and
Sinkhorn (a reciprocal each row or column) and square roots are the instructions' own. A token
gives the same bits in any batch, on any number of cores.
Reference: tilewheel.reference.mhc.pre_big_fuse_fwd.
Source: original.
"""

from typing import TYPE_CHECKING

import tilelang.ascend.language as T

from tilewheel_kernels.mhc.channels_ascend import (
    LANES,
    MAX_CHANNELS,
    STREAMS,
    load_float32,
    store_bfloat16,
)
from tilewheel_kernels.mhc.mixes_ascend import (
    MIXES,
    STREAM_LIST,
    add_partials,
    compute_mixes,
    reciprocal_root,
)

if TYPE_CHECKING:
    from tvm.tirx import PrimFunc

PASS_CONFIGS: dict[str, object] = {}

ROW_STEPS = 1024  # steps of 64 channels whose y stays in UB
MAX_PARTS = ROW_STEPS * LANES // MAX_CHANNELS


def mhc_pre_big_fuse_fwd(
    *, hidden: int | None, output_norm: bool, num_vec_cores: int | None
) -> "PrimFunc":
    """Return the kernel (tensors and scalars of the spec, num_vec_cores)."""
    if num_vec_cores is not None:
        raise ValueError(f"num_vec_cores: is {num_vec_cores}, must be any")
    num_splits = T.dynamic("num_splits")
    num_tokens = T.dynamic("num_tokens")
    hidden_64 = T.dynamic("hidden_64") if hidden is None else hidden // LANES
    channels = hidden_64 * LANES
    # int64, because TVM would compute split * stride in 32 bits.
    mul_strides = (T.dynamic("mul_split_stride", "int64"), T.dynamic("mul_stride", "int64"), 1)
    sqrsum_strides = (T.dynamic("sqrsum_split_stride", "int64"), 1)

    mul_type = T.StridedTensor((num_splits, num_tokens, MIXES), mul_strides, T.float32)
    sqrsum_type = T.StridedTensor((num_splits, num_tokens), sqrsum_strides, T.float32)
    scale_type = T.Tensor((3,), T.float32)
    base_type = T.Tensor((MIXES,), T.float32)
    residual_type = T.Tensor((num_tokens, STREAMS, channels), T.bfloat16)
    weight_type = T.Tensor((channels,), T.bfloat16)
    post_type = T.Tensor((num_tokens, STREAMS), T.float32)
    comb_type = T.Tensor((num_tokens, STREAMS, STREAMS), T.float32)
    input_type = T.Tensor((num_tokens, channels), T.bfloat16)

    @T.macro
    def fuse(
        gemm_out_mul,
        gemm_out_sqrsum,
        scale,
        base,
        residual,
        norm_weight,
        post_mix,
        comb_mix,
        layer_input,
        rms_eps,
        pre_eps,
        sinkhorn_eps,
        post_mult,
        sinkhorn_repeat,
        norm_eps,
        core,
        num_vec_cores,
    ):
        scale_ub = T.alloc_shared((1, 3), T.float32)
        base_ub = T.alloc_shared((1, MIXES), T.float32)
        mul_sum_ub = T.alloc_shared((LANES, MIXES), T.float32)
        # Twice as long, because a load for the last tile's tokens reads a whole register.
        sqrsum_sum_ub = T.alloc_shared((1, 2 * LANES), T.float32)
        pre_ub = T.alloc_shared((STREAMS, LANES), T.float32)
        post_ub = T.alloc_shared((LANES, STREAMS), T.float32)
        comb_ub = T.alloc_shared((LANES, STREAMS * STREAMS), T.float32)
        comb_rows_ub = T.view(comb_ub, (LANES, STREAMS, STREAMS), T.float32)

        share = T.alloc_var(T.int32)
        begin = T.alloc_var(T.int32)
        share = T.truncdiv(num_tokens + num_vec_cores - 1, num_vec_cores)
        begin = core * share
        share = T.max(T.min(share, num_tokens - begin), 0)
        num_parts = T.alloc_var(T.int32)
        part_steps = T.alloc_var(T.int32)
        num_parts = T.truncdiv(channels + MAX_CHANNELS - 1, MAX_CHANNELS)
        part_steps = T.truncdiv(hidden_64 + num_parts - 1, num_parts)
        T.copy(scale[0:3], scale_ub[0, 0:3])
        T.copy(base[0:MIXES], base_ub[0, 0:MIXES])
        for b in T.serial(T.truncdiv(share + LANES - 1, LANES)):
            token = T.alloc_var(T.int32)
            batch = T.alloc_var(T.int32)
            token = begin + b * LANES
            batch = T.min(LANES, share - b * LANES)
            add_partials(
                *(gemm_out_mul, gemm_out_sqrsum, num_splits, token, batch),
                *(mul_sum_ub, sqrsum_sum_ub),
            )
            with T.SimdVF():
                compute_mixes(
                    (mul_sum_ub, sqrsum_sum_ub, scale_ub, base_ub),
                    (pre_ub, post_ub, comb_ub),
                    STREAMS * channels,
                    *(rms_eps, pre_eps, sinkhorn_eps, post_mult, sinkhorn_repeat),
                )
            T.copy(post_ub[0:batch, 0:STREAMS], post_mix[token : token + batch, 0:STREAMS])
            T.copy(
                comb_rows_ub[0:batch, 0:STREAMS, 0:STREAMS],
                comb_mix[token : token + batch, 0:STREAMS, 0:STREAMS],
            )
            if output_norm:
                write_normalised(
                    *(residual, norm_weight, layer_input, pre_ub),
                    *(token, batch, hidden_64, num_parts, part_steps, norm_eps),
                )
            else:
                write_plain(
                    *(residual, layer_input, pre_ub),
                    *(token, batch, hidden_64, num_parts, part_steps),
                )

    if output_norm:

        @T.prim_func
        def mhc_pre_big_fuse_fwd_ascend(
            gemm_out_mul: mul_type,
            gemm_out_sqrsum: sqrsum_type,
            scale: scale_type,
            base: base_type,
            residual: residual_type,
            norm_weight: weight_type,
            post_mix: post_type,
            comb_mix: comb_type,
            layer_input: input_type,
            rms_eps: T.float32,
            pre_eps: T.float32,
            sinkhorn_eps: T.float32,
            post_mult: T.float32,
            sinkhorn_repeat: T.int32,
            norm_eps: T.float32,
            num_vec_cores: T.int32,
        ) -> None:
            with T.Kernel(num_vec_cores) as core:
                fuse(
                    *(gemm_out_mul, gemm_out_sqrsum, scale, base, residual, norm_weight),
                    *(post_mix, comb_mix, layer_input),
                    *(rms_eps, pre_eps, sinkhorn_eps, post_mult, sinkhorn_repeat, norm_eps),
                    *(core, num_vec_cores),
                )

    else:

        @T.prim_func
        def mhc_pre_big_fuse_fwd_ascend(
            gemm_out_mul: mul_type,
            gemm_out_sqrsum: sqrsum_type,
            scale: scale_type,
            base: base_type,
            residual: residual_type,
            post_mix: post_type,
            comb_mix: comb_type,
            layer_input: input_type,
            rms_eps: T.float32,
            pre_eps: T.float32,
            sinkhorn_eps: T.float32,
            post_mult: T.float32,
            sinkhorn_repeat: T.int32,
            norm_eps: T.float32,
            num_vec_cores: T.int32,
        ) -> None:
            with T.Kernel(num_vec_cores) as core:
                fuse(
                    *(gemm_out_mul, gemm_out_sqrsum, scale, base, residual, None),
                    *(post_mix, comb_mix, layer_input),
                    *(rms_eps, pre_eps, sinkhorn_eps, post_mult, sinkhorn_repeat, norm_eps),
                    *(core, num_vec_cores),
                )

    return mhc_pre_big_fuse_fwd_ascend


@T.macro
def load_pre(pre_ub, row, pre):  # type: ignore[no-untyped-def]
    """Fill four registers with the weights of one token's streams."""
    for m in STREAM_LIST:
        pre[m] = T.simd.vld(pre_ub[m, row], dist="BRC_B32")


@T.macro
def write_plain(  # type: ignore[no-untyped-def]
    residual, layer_input, pre_ub, first_token, batch, hidden_64, num_parts, part_steps
):
    """Write layer_input of up to 64 tokens without the norm."""
    residual_ub = T.alloc_shared((STREAMS, MAX_CHANNELS), T.bfloat16)
    out_ub = T.alloc_shared((1, MAX_CHANNELS), T.bfloat16)
    T.annotate_buffer_versions({residual_ub: 2, out_ub: 2})
    for i in T.Pipelined(batch * num_parts, num_stages=2):
        row = T.alloc_var(T.int32)
        first = T.alloc_var(T.int32)
        width = T.alloc_var(T.int32)
        row = T.truncdiv(i, num_parts)
        first = (i - row * num_parts) * part_steps
        width = T.min(part_steps, hidden_64 - first)
        token = T.cast(first_token + row, "int64")
        T.assume_no_conflict(layer_input)

        # load
        T.copy(
            residual[token, 0:STREAMS, first * LANES : (first + width) * LANES],
            residual_ub[0:STREAMS, 0 : width * LANES],
        )

        # compute
        with T.SimdVF():
            pre = T.simd.alloc_local((STREAMS,), T.float32)
            y = T.simd.alloc_var(T.float32)
            load_pre(pre_ub, row, pre)
            for c in T.serial(width):
                y = T.simd.vmul(load_float32(residual_ub, 0, c * LANES), pre[0])
                for m in STREAM_LIST[1:]:
                    T.simd.vmula(y, load_float32(residual_ub, m, c * LANES), pre[m])
                store_bfloat16(out_ub, 0, c * LANES, y)

        # store
        T.copy(
            out_ub[0, 0 : width * LANES],
            layer_input[token, first * LANES : (first + width) * LANES],
        )


@T.macro
def write_normalised(  # type: ignore[no-untyped-def]
    residual,
    norm_weight,
    layer_input,
    pre_ub,
    first_token,
    batch,
    hidden_64,
    num_parts,
    part_steps,
    norm_eps,
):
    """Write layer_input of up to 64 tokens with the norm."""
    residual_ub = T.alloc_shared((STREAMS, MAX_CHANNELS), T.bfloat16)
    weight_ub = T.alloc_shared((1, MAX_CHANNELS), T.bfloat16)
    out_ub = T.alloc_shared((1, MAX_CHANNELS), T.bfloat16)
    y_ub = T.alloc_shared((ROW_STEPS, LANES), T.bfloat16)
    squares_ub = T.alloc_shared((MAX_PARTS, LANES), T.float32)
    rstd_ub = T.alloc_shared((1, LANES), T.float32)
    T.annotate_buffer_versions({residual_ub: 2, weight_ub: 2, out_ub: 2})
    group = T.alloc_var(T.int32)
    group = T.min(T.truncdiv(ROW_STEPS, hidden_64), batch)
    for g in T.serial(T.truncdiv(batch + group - 1, group)):
        num_rows = T.alloc_var(T.int32)
        num_rows = T.min(group, batch - g * group)
        for i in T.Pipelined(num_rows * num_parts, num_stages=2):
            row = T.alloc_var(T.int32)
            first = T.alloc_var(T.int32)
            width = T.alloc_var(T.int32)
            row = T.truncdiv(i, num_parts)
            first = (i - row * num_parts) * part_steps
            width = T.min(part_steps, hidden_64 - first)
            token = T.cast(first_token + g * group + row, "int64")

            # load
            T.copy(
                residual[token, 0:STREAMS, first * LANES : (first + width) * LANES],
                residual_ub[0:STREAMS, 0 : width * LANES],
            )

            # compute
            with T.SimdVF():
                pre = T.simd.alloc_local((STREAMS,), T.float32)
                y = T.simd.alloc_var(T.float32)
                squares = T.simd.alloc_var(T.float32)
                load_pre(pre_ub, g * group + row, pre)
                squares = T.simd.vdup(0.0, T.float32)
                for c in T.serial(width):
                    y = T.simd.vmul(load_float32(residual_ub, 0, c * LANES), pre[0])
                    for m in STREAM_LIST[1:]:
                        T.simd.vmula(y, load_float32(residual_ub, m, c * LANES), pre[m])
                    T.simd.vmula(squares, y, y)
                    store_bfloat16(y_ub, row * hidden_64 + first + c, 0, y)
                T.simd.vsts(
                    squares_ub[i - row * num_parts, row], T.simd.vcadd(squares), dist="ONEPT_B32"
                )

        with T.SimdVF():
            total = T.simd.alloc_var(T.float32)
            total = T.simd.vdup(0.0, T.float32)
            for p in T.serial(num_parts):
                total = T.simd.vadd(total, T.simd.vld(squares_ub[p, 0]))
            T.simd.vsts(rstd_ub[0, 0], reciprocal_root(total, hidden_64 * LANES, norm_eps))

        for p in T.Pipelined(num_parts, num_stages=2):
            part_first = T.alloc_var(T.int32)
            part_width = T.alloc_var(T.int32)
            part_first = p * part_steps
            part_width = T.min(part_steps, hidden_64 - part_first)
            T.copy(
                norm_weight[part_first * LANES : (part_first + part_width) * LANES],
                weight_ub[0, 0 : part_width * LANES],
            )
            for r in T.Pipelined(num_rows, num_stages=2):
                token = T.cast(first_token + g * group + r, "int64")
                T.assume_no_conflict(layer_input)

                # compute
                with T.SimdVF():
                    rstd = T.simd.vld(rstd_ub[0, r], dist="BRC_B32")
                    for c in T.serial(part_width):
                        rounded = load_float32(y_ub, r * hidden_64 + part_first + c, 0)
                        weight = load_float32(weight_ub, 0, c * LANES)
                        scaled = T.simd.vmul(T.simd.vmul(rounded, rstd), weight)
                        store_bfloat16(out_ub, 0, c * LANES, scaled)

                # store
                T.copy(
                    out_ub[0, 0 : part_width * LANES],
                    layer_input[token, part_first * LANES : (part_first + part_width) * LANES],
                )
