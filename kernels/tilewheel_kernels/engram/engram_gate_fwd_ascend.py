"""engram_gate_fwd for Ascend: the gated value of a looked-up embedding, SIMD on the vector cores.

    rstd_x = 1 / sqrt(mean(x^2) + eps), rstd_k = 1 / sqrt(mean(k^2) + eps)
    dot = sum(x * w * k) + 0, z = dot * rstd_x * rstd_k / sqrt(hidden)
    gate = sigmoid(copysign(sqrt(max(|z|, clamp_value)), z))
    out = x + gate * v
for each stream of each token; a masked token gives out = x, bit for bit, and zeros.

Method: two passes over a row in UB, one that sums and one that adds the gated value; between them
one register holds a number of up to eight rows, so that roots and quotients are computed once for
all of them. sigmoid(-s) is exp(-s) / (1 + exp(-s)): nothing overflows.

One block (vector core) owns ceil(4 num_tokens / num_vec_cores) consecutive rows, those of stream 0
of all tokens first: its weights stay in UB, and a few tokens spread over four cores each. Cores
with the same tokens run at the same time, so that v comes from the L2 cache for three of the four.
UB bytes: 4 * hidden for the weights, 16 * hidden for each of BLOCK_CHANNELS // hidden rows (at
least 1, at most 8) of x, k, v and out in two versions, 4 KiB for numbers: 144 KiB for 7168
channels. With hidden at run time 14 * 16384 and the same 4 KiB, 228 KiB: one version of k, v and
out suffices where the two passes are separate, k being read by the first only, v by the second.
Parameters: hidden a multiple of 64, at most 16384, also at run time; num_masked and num_saved are
num_tokens or 0. Run-time values are not checked here.
Numerics: sums in float32, one fused multiply-add for each channel and lane and a sum over 64 lanes,
the same for every row. x + gate * v is fused, then rounded once to nearest even. A sum that is not
finite makes out NaN.
Reference: tilewheel.reference.engram.engram_gate_fwd.
Source: original.
"""

from typing import TYPE_CHECKING

import tilelang.ascend.language as T

from tilewheel_kernels.engram.rows_ascend import (
    LANES,
    MASK_BYTES,
    MAX_HIDDEN,
    MAX_ROWS,
    PITCH,
    STREAMS,
    channels_of,
    check,
    is_masked_row,
    reciprocals,
    store_sum,
    unpacked,
)

if TYPE_CHECKING:
    from tvm.tirx import PrimFunc

PASS_CONFIGS: dict[str, object] = {}

BLOCK_CHANNELS = 8192  # of one DMA: 16 KiB


def engram_gate_fwd(*, hidden: int | None, num_vec_cores: int | None) -> "PrimFunc":
    """Return the kernel for rows of one width, or of any, and any number of vector cores."""
    check(hidden=hidden, num_vec_cores=num_vec_cores)
    width = MAX_HIDDEN if hidden is None else hidden
    rows = max(1, min(MAX_ROWS, BLOCK_CHANNELS // width))
    versions = 1 if hidden is None else 2
    channels = channels_of(hidden)
    num_tokens = T.dynamic("num_tokens")
    num_masked = T.dynamic("num_masked")
    num_saved = T.dynamic("num_saved")

    @T.prim_func
    def engram_gate_fwd_ascend(
        x: T.Tensor((num_tokens, STREAMS, channels), T.bfloat16),
        kv: T.Tensor((num_tokens, STREAMS + 1, channels), T.bfloat16),
        weight_fused: T.Tensor((STREAMS, channels), T.float32),
        image_token_mask: T.Tensor((num_masked,), T.bool),
        out: T.Tensor((num_tokens, STREAMS, channels), T.bfloat16),
        dot: T.Tensor((num_saved, STREAMS), T.float32),
        gate: T.Tensor((num_saved, STREAMS), T.float32),
        rstd_x: T.Tensor((num_saved, STREAMS), T.float32),
        rstd_k: T.Tensor((num_saved, STREAMS), T.float32),
        eps: T.float32,
        clamp_value: T.float32,
        num_vec_cores: T.int32,
    ) -> None:
        with T.Kernel(num_vec_cores) as core:
            x_ub = T.alloc_shared((rows, width), T.bfloat16)
            k_ub = T.alloc_shared((rows, width), T.bfloat16)
            v_ub = T.alloc_shared((rows, width), T.bfloat16)
            out_ub = T.alloc_shared((rows, width), T.bfloat16)
            w_ub = T.alloc_shared((1, width), T.float32)
            mask_ub = T.alloc_shared((MASK_BYTES,), T.bool)
            mask_bytes_ub = T.view(mask_ub, (MASK_BYTES,), T.uint8)
            square_x_ub = T.alloc_shared((MAX_ROWS, PITCH), T.float32)
            square_k_ub = T.alloc_shared((MAX_ROWS, PITCH), T.float32)
            product_ub = T.alloc_shared((MAX_ROWS, PITCH), T.float32)
            kept_ub = T.alloc_shared((MAX_ROWS, PITCH), T.float32)
            dot_ub = T.alloc_shared((MAX_ROWS, PITCH), T.float32)
            gate_ub = T.alloc_shared((MAX_ROWS, PITCH), T.float32)
            rstd_x_ub = T.alloc_shared((MAX_ROWS, PITCH), T.float32)
            rstd_k_ub = T.alloc_shared((MAX_ROWS, PITCH), T.float32)
            T.annotate_buffer_versions({x_ub: 2, mask_ub: 2})
            T.annotate_buffer_versions({k_ub: versions, v_ub: versions, out_ub: versions})
            T.annotate_buffer_versions({dot_ub: 2, gate_ub: 2, rstd_x_ub: 2, rstd_k_ub: 2})

            share = T.truncdiv(STREAMS * num_tokens + num_vec_cores - 1, num_vec_cores)
            for h in T.serial(STREAMS):
                begin = T.alloc_var(T.int32)
                end = T.alloc_var(T.int32)
                begin = T.min(T.max(core * share - h * num_tokens, 0), num_tokens)
                end = T.min(T.max((core + 1) * share - h * num_tokens, 0), num_tokens)
                has_rows = T.min(end - begin, 1)
                with T.Stage(0):
                    T.copy(weight_fused[h : h + has_rows, 0:channels], w_ub[0:has_rows, 0:channels])
                for block in T.Pipelined(T.truncdiv(end - begin + rows - 1, rows), num_stages=2):
                    token = T.alloc_var(T.int64)
                    num_rows = T.alloc_var(T.int32)
                    masked_rows = T.alloc_var(T.int32)
                    saved_rows = T.alloc_var(T.int32)
                    token = T.cast(begin + block * rows, "int64")
                    num_rows = T.min(rows, end - begin - block * rows)
                    masked_rows = T.min(num_rows, num_masked)
                    saved_rows = T.min(num_rows, num_saved)

                    # No row is stored twice. All is one stage, in the order written: TileLang's own
                    # search for a schedule takes long.
                    T.assume_no_conflict(out)
                    T.assume_no_conflict(dot)
                    T.assume_no_conflict(gate)
                    T.assume_no_conflict(rstd_x)
                    T.assume_no_conflict(rstd_k)

                    # load
                    with T.Stage(0), T.Task():
                        T.copy(
                            image_token_mask[token : token + masked_rows], mask_ub[0:masked_rows]
                        )
                        T.copy(
                            x[token : token + num_rows, h, 0:channels],
                            x_ub[0:num_rows, 0:channels],
                        )
                        T.copy(
                            kv[token : token + num_rows, h, 0:channels],
                            k_ub[0:num_rows, 0:channels],
                        )
                    with T.Stage(0):
                        T.copy(
                            kv[token : token + num_rows, STREAMS, 0:channels],
                            v_ub[0:num_rows, 0:channels],
                        )

                    # compute
                    with T.SimdVF():
                        sum_rows(
                            *(x_ub, k_ub, w_ub, mask_bytes_ub),
                            *(square_x_ub, square_k_ub, product_ub, kept_ub),
                            *(num_rows, num_masked, channels),
                        )
                        T.simd.mem_bar("VST_VLD")
                        find_gates(
                            *(square_x_ub, square_k_ub, product_ub, kept_ub),
                            *(dot_ub, gate_ub, rstd_x_ub, rstd_k_ub),
                            *(eps, clamp_value, channels),
                        )
                    with T.SimdVF():
                        add_values(
                            *(x_ub, v_ub, gate_ub, mask_bytes_ub, out_ub),
                            *(num_rows, num_masked, channels),
                        )

                    # store
                    with T.Stage(0):
                        T.copy(
                            out_ub[0:num_rows, 0:channels],
                            out[token : token + num_rows, h, 0:channels],
                        )
                    with T.Stage(0), T.Task():
                        T.copy(
                            dot_ub[0:saved_rows, 0:1], dot[token : token + saved_rows, h : h + 1]
                        )
                        T.copy(
                            gate_ub[0:saved_rows, 0:1], gate[token : token + saved_rows, h : h + 1]
                        )
                        T.copy(
                            rstd_x_ub[0:saved_rows, 0:1],
                            rstd_x[token : token + saved_rows, h : h + 1],
                        )
                        T.copy(
                            rstd_k_ub[0:saved_rows, 0:1],
                            rstd_k[token : token + saved_rows, h : h + 1],
                        )

    return engram_gate_fwd_ascend


@T.macro
def sum_rows(  # type: ignore[no-untyped-def]
    x_ub,
    k_ub,
    w_ub,
    mask_bytes_ub,
    square_x_ub,
    square_k_ub,
    product_ub,
    kept_ub,
    num_rows,
    num_masked,
    channels,
):
    """Store each row's sums, and 1 or, where it is masked, 0."""
    first_lanes = T.simd.pset(32, "PAT_VL8")
    zero = T.simd.vdup(0.0, T.float32)
    one = T.simd.vdup(1.0, T.float32)
    square_x = T.simd.alloc_var(T.float32)
    square_k = T.simd.alloc_var(T.float32)
    product = T.simd.alloc_var(T.float32)
    for r in T.serial(num_rows):
        square_x = zero
        square_k = zero
        product = zero
        for s in T.serial(T.truncdiv(channels, LANES)):
            x = unpacked(x_ub, r, s * LANES)
            k = unpacked(k_ub, r, s * LANES)
            T.simd.vmula(square_x, x, x)
            T.simd.vmula(square_k, k, k)
            T.simd.vmula(product, T.simd.vmul(x, T.simd.vld(w_ub[0, s * LANES])), k)
        store_sum(square_x_ub, r, square_x, first_lanes)
        store_sum(square_k_ub, r, square_k, first_lanes)
        store_sum(product_ub, r, product, first_lanes)
        is_masked = is_masked_row(mask_bytes_ub, r, num_masked)
        T.simd.vsts(kept_ub[r, 0], T.simd.vsel(zero, one, is_masked), first_lanes)


@T.macro
def find_gates(  # type: ignore[no-untyped-def]
    square_x_ub,
    square_k_ub,
    product_ub,
    kept_ub,
    dot_ub,
    gate_ub,
    rstd_x_ub,
    rstd_k_ub,
    eps,
    clamp_value,
    channels,
):
    """Turn the sums of up to eight rows into the numbers that belong to them."""
    zero = T.simd.vdup(0.0, T.float32)
    one = T.simd.vdup(1.0, T.float32)
    inverse_hidden, inverse_root = reciprocals(channels)
    square_x = T.simd.vld(square_x_ub[0, 0])
    square_k = T.simd.vld(square_k_ub[0, 0])
    mean_x = T.simd.vadds(T.simd.vmul(square_x, inverse_hidden), eps)
    mean_k = T.simd.vadds(T.simd.vmul(square_k, inverse_hidden), eps)
    rstd_x = T.simd.vdiv(one, T.simd.vsqrt(mean_x))
    rstd_k = T.simd.vdiv(one, T.simd.vsqrt(mean_k))
    dot = T.simd.vadds(T.simd.vld(product_ub[0, 0]), 0.0)  # -0 becomes +0
    z = T.simd.vmul(T.simd.vmul(T.simd.vmul(dot, rstd_x), rstd_k), inverse_root)
    # An infinite sum times zero is NaN; a comparison, unlike a maximum, lets NaN through.
    nothing = T.simd.vmul(T.simd.vadd(square_x, square_k), zero)
    size = T.simd.vabs(T.simd.vadd(z, nothing))
    is_small = T.simd.vcmps(size, clamp_value, op="lt")
    root = T.simd.vsqrt(T.simd.vsel(T.simd.vdup(clamp_value, T.float32), size, is_small))
    decay = T.simd.vexp(T.simd.vneg(root))
    upper = T.simd.vdiv(one, T.simd.vadds(decay, 1.0))
    is_negative = T.simd.vcmps(dot, 0.0, op="lt")
    gate = T.simd.vsel(T.simd.vmul(upper, decay), upper, is_negative)
    is_kept = T.simd.vcmps(T.simd.vld(kept_ub[0, 0]), 0.0, op="ne")
    T.simd.vsts(dot_ub[0, 0], T.simd.vsel(dot, zero, is_kept))
    T.simd.vsts(gate_ub[0, 0], T.simd.vsel(gate, zero, is_kept))
    T.simd.vsts(rstd_x_ub[0, 0], T.simd.vsel(rstd_x, zero, is_kept))
    T.simd.vsts(rstd_k_ub[0, 0], T.simd.vsel(rstd_k, zero, is_kept))


@T.macro
def add_values(  # type: ignore[no-untyped-def]
    x_ub, v_ub, gate_ub, mask_bytes_ub, out_ub, num_rows, num_masked, channels
):
    """Add v, times the gate, to each row that is not masked."""
    total = T.simd.alloc_var(T.float32)
    for r in T.serial(num_rows):
        gate = T.simd.vld(gate_ub[r, 0], "BRC_B32")
        is_masked = is_masked_row(mask_bytes_ub, r, num_masked)
        for s in T.serial(T.truncdiv(channels, LANES)):
            raw = T.simd.vld(x_ub[r, s * LANES], "UNPK_B16")
            total = T.simd.vcvt(raw, T.float32)
            T.simd.vmula(total, unpacked(v_ub, r, s * LANES), gate)
            # Without saturation: what is beyond bfloat16 becomes infinite.
            rounded = T.simd.vcvt(total, T.bfloat16, sat=False)
            T.simd.vsts(out_ub[r, s * LANES], T.simd.vsel(raw, rounded, is_masked), dist="PK_B32")
