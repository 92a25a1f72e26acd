"""engram_gate_bwd for Ascend: the gradients of the Engram gate, SIMD on the vector cores.

With g = grad_out, s = 1 / sqrt(hidden), for each stream of each token:
    z = dot * rstd_x * rstd_k * s
    grad_z = sum(g * v) * gate * (1 - gate) / (2 * sqrt(|z|)), or 0 where |z| < clamp_value
    a = grad_z * s * rstd_x * rstd_k
    grad_x = g + a * w * k - (a * dot * rstd_x^2 / hidden) * x
    grad_k = a * w * x - (a * dot * rstd_k^2 / hidden) * k
    grad_w_partial[p] += a * x * k, p being the part that has the token
and for each token grad_v = sum over the streams of gate * g. A masked token gives grad_x = g, bit
for bit, and zeros, and its x, kv and saved numbers do not count.

Method: three passes over a row in UB, for the sum, for the gradients of x, k and w, and for those
channels of v that the row is in charge of: each of the four rows of a token has a quarter, for
which it loads that quarter of g of all streams.

One block (vector core) owns every num_vec_cores-th item, an item being one stream of a part: it
keeps that stream's weights and their gradient in UB. Part p has the p-th run of ceil(num_tokens /
num_parts) tokens. Items of a part are neighbours, so that they run at the same time and v and the
quarters of g come from the L2 cache. Rows beyond MAX_TILE channels, which only hidden at run time
can have, are two items each, halves of the row that both sum all of it.
UB bytes: 8 * hidden for w and its gradient, 21 * hidden for each of BLOCK_CHANNELS // hidden rows
(at least 1, at most 8) of g, x, k, v, quarters of g and of grad_v in two versions, 4 KiB for
numbers: 207 KiB for 7168 channels. grad_x and grad_k take the places of x and k. With hidden at run
time 29 * MAX_TILE and the same 4 KiB, 236 KiB: v, quarters of g, and the other half of g and v are
there once.
Parameters: hidden a multiple of 64, at most 16384, also at run time; num_masked is num_tokens or 0.
Run-time values are not checked here.
Numerics: float32, products fused with the sums they are added to; sums over channels one
multiply-add for each channel and lane, then over 64 lanes; sums over tokens and over streams in
order. grad_x and grad_kv are rounded once, to nearest even. A row gives the same bits whatever part
it is in.
Reference: tilewheel.reference.engram.engram_gate_bwd.
Source: original.
"""

from typing import TYPE_CHECKING

import tilelang.ascend.language as T

from tilewheel_kernels.engram.row_gradients_ascend import (
    find_factors,
    find_gradients,
    sum_rows,
    sum_streams,
)
from tilewheel_kernels.engram.rows_ascend import (
    LANES,
    MASK_BYTES,
    MAX_HIDDEN,
    MAX_ROWS,
    PITCH,
    STREAMS,
    channels_of,
    check,
)

if TYPE_CHECKING:
    from tvm.tirx import PrimFunc

PASS_CONFIGS: dict[str, object] = {}

BLOCK_CHANNELS = 8192  # of one DMA: 16 KiB
MAX_TILE = MAX_HIDDEN // 2


def engram_gate_bwd(*, hidden: int | None, num_vec_cores: int | None) -> "PrimFunc":
    """Return the kernel for rows of one width, or of any, and any number of vector cores."""
    check(hidden=hidden, num_vec_cores=num_vec_cores)
    if hidden is not None and hidden > MAX_TILE:
        raise ValueError(f"hidden: is {hidden}, must be at most {MAX_TILE} or any")
    width = MAX_TILE if hidden is None else hidden
    quarter = -(-width // (STREAMS * LANES)) * LANES
    rows = max(1, min(MAX_ROWS, BLOCK_CHANNELS // width)) if hidden else 1
    versions = 1 if hidden is None else 2
    other_width = width if hidden is None else LANES
    has_equal_quarters = hidden == STREAMS * quarter
    channels = channels_of(hidden)
    num_tokens = T.dynamic("num_tokens")
    num_masked = T.dynamic("num_masked")
    num_parts = T.dynamic("num_parts")
    num_tiles = T.truncdiv(channels + MAX_TILE - 1, MAX_TILE) if hidden is None else 1

    @T.prim_func
    def engram_gate_bwd_ascend(
        grad_out: T.Tensor((num_tokens, STREAMS, channels), T.bfloat16),
        x: T.Tensor((num_tokens, STREAMS, channels), T.bfloat16),
        kv: T.Tensor((num_tokens, STREAMS + 1, channels), T.bfloat16),
        weight_fused: T.Tensor((STREAMS, channels), T.float32),
        dot: T.Tensor((num_tokens, STREAMS), T.float32),
        gate: T.Tensor((num_tokens, STREAMS), T.float32),
        rstd_x: T.Tensor((num_tokens, STREAMS), T.float32),
        rstd_k: T.Tensor((num_tokens, STREAMS), T.float32),
        image_token_mask: T.Tensor((num_masked,), T.bool),
        grad_x: T.Tensor((num_tokens, STREAMS, channels), T.bfloat16),
        grad_kv: T.Tensor((num_tokens, STREAMS + 1, channels), T.bfloat16),
        grad_w_partial: T.Tensor((num_parts, STREAMS, channels), T.float32),
        clamp_value: T.float32,
        num_vec_cores: T.int32,
    ) -> None:
        with T.Kernel(num_vec_cores) as core:
            g_ub = T.alloc_shared((rows, width), T.bfloat16)
            x_ub = T.alloc_shared((rows, width), T.bfloat16)
            k_ub = T.alloc_shared((rows, width), T.bfloat16)
            v_ub = T.alloc_shared((rows, width), T.bfloat16)
            g_other_ub = T.alloc_shared((1, other_width), T.bfloat16)
            v_other_ub = T.alloc_shared((1, other_width), T.bfloat16)
            g_quarters_ub = T.alloc_shared((rows, STREAMS, quarter), T.bfloat16)
            grad_v_ub = T.alloc_shared((rows, quarter), T.bfloat16)
            w_ub = T.alloc_shared((1, width), T.float32)
            grad_w_ub = T.alloc_shared((1, width), T.float32)
            mask_ub = T.alloc_shared((MASK_BYTES,), T.bool)
            mask_bytes_ub = T.view(mask_ub, (MASK_BYTES,), T.uint8)
            dot_ub = T.alloc_shared((MAX_ROWS, PITCH), T.float32)
            gate_ub = T.alloc_shared((MAX_ROWS, PITCH), T.float32)
            rstd_x_ub = T.alloc_shared((MAX_ROWS, PITCH), T.float32)
            rstd_k_ub = T.alloc_shared((MAX_ROWS, PITCH), T.float32)
            grad_gate_ub = T.alloc_shared((MAX_ROWS, PITCH), T.float32)
            kept_ub = T.alloc_shared((MAX_ROWS, PITCH), T.float32)
            a_ub = T.alloc_shared((MAX_ROWS, PITCH), T.float32)
            b_x_ub = T.alloc_shared((MAX_ROWS, PITCH), T.float32)
            b_k_ub = T.alloc_shared((MAX_ROWS, PITCH), T.float32)
            T.annotate_buffer_versions({g_ub: 2, x_ub: 2, k_ub: 2, grad_v_ub: 2, mask_ub: 2})
            T.annotate_buffer_versions({v_ub: versions, g_quarters_ub: versions})
            T.annotate_buffer_versions({dot_ub: 2, gate_ub: 2, rstd_x_ub: 2, rstd_k_ub: 2})

            num_items = num_parts * STREAMS * num_tiles
            share = T.truncdiv(num_tokens + num_parts - 1, num_parts)
            for i in T.serial(T.truncdiv(num_items - core + num_vec_cores - 1, num_vec_cores)):
                part = T.alloc_var(T.int32)
                h = T.alloc_var(T.int32)
                num_part_tokens = T.alloc_var(T.int32)
                item = i * num_vec_cores + core
                part = T.truncdiv(item, STREAMS * num_tiles)
                h = T.truncmod(item, STREAMS)
                num_part_tokens = T.max(T.min(share, num_tokens - part * share), 0)
                if hidden is None:
                    c, num_channels, other, num_other = halves(item, num_tiles, channels)
                else:
                    c, num_channels, other, num_other = 0, hidden, 0, 0

                with T.Stage(0):
                    T.copy(weight_fused[h : h + 1, c : c + num_channels], w_ub[0:1, 0:num_channels])
                with T.SimdVF():
                    for s in T.serial(T.truncdiv(num_channels, LANES)):
                        T.simd.vsts(grad_w_ub[0, s * LANES], T.simd.vdup(0.0, T.float32))

                for block in T.Pipelined(
                    T.truncdiv(num_part_tokens + rows - 1, rows), num_stages=2
                ):
                    token = T.alloc_var(T.int64)
                    num_rows = T.alloc_var(T.int32)
                    masked_rows = T.alloc_var(T.int32)
                    token = T.cast(part * share + block * rows, "int64")
                    num_rows = T.min(rows, num_part_tokens - block * rows)
                    masked_rows = T.min(num_rows, num_masked)
                    if has_equal_quarters:
                        num_quarter = quarter
                        q = h * quarter
                    else:
                        q, num_quarter = quarter_of(c, num_channels, h)
                    # Nothing is stored twice. All is one stage, in the order written: TileLang's
                    # own search for a schedule takes a minute.
                    T.assume_no_conflict(grad_x)
                    T.assume_no_conflict(grad_kv)

                    # load
                    with T.Stage(0), T.Task():
                        T.copy(
                            image_token_mask[token : token + masked_rows], mask_ub[0:masked_rows]
                        )
                        load_numbers(dot, dot_ub, token, num_rows)
                        load_numbers(gate, gate_ub, token, num_rows)
                        load_numbers(rstd_x, rstd_x_ub, token, num_rows)
                        load_numbers(rstd_k, rstd_k_ub, token, num_rows)
                        T.copy(
                            grad_out[token : token + num_rows, h, c : c + num_channels],
                            g_ub[0:num_rows, 0:num_channels],
                        )
                        T.copy(
                            kv[token : token + num_rows, STREAMS, c : c + num_channels],
                            v_ub[0:num_rows, 0:num_channels],
                        )
                        if hidden is None:
                            T.copy(
                                grad_out[token : token + num_rows, h, other : other + num_other],
                                g_other_ub[0:num_rows, 0:num_other],
                            )
                            T.copy(
                                kv[token : token + num_rows, STREAMS, other : other + num_other],
                                v_other_ub[0:num_rows, 0:num_other],
                            )
                    with T.Stage(0), T.Task():
                        T.copy(
                            x[token : token + num_rows, h, c : c + num_channels],
                            x_ub[0:num_rows, 0:num_channels],
                        )
                        T.copy(
                            kv[token : token + num_rows, h, c : c + num_channels],
                            k_ub[0:num_rows, 0:num_channels],
                        )
                    with T.Stage(0):
                        T.copy(
                            grad_out[token : token + num_rows, 0:STREAMS, q : q + num_quarter],
                            g_quarters_ub[0:num_rows, 0:STREAMS, 0:num_quarter],
                        )

                    # compute
                    with T.SimdVF():
                        sum_rows(
                            *(g_ub, v_ub, g_other_ub, v_other_ub, mask_bytes_ub),
                            *(grad_gate_ub, kept_ub, num_rows, num_masked),
                            *(num_channels, num_other, hidden is None),
                        )
                        T.simd.mem_bar("VST_VLD")
                        find_factors(
                            *(dot_ub, gate_ub, rstd_x_ub, rstd_k_ub, grad_gate_ub, kept_ub),
                            *(a_ub, b_x_ub, b_k_ub, clamp_value, channels),
                        )
                    with T.SimdVF():
                        find_gradients(
                            *(g_ub, x_ub, k_ub, w_ub, grad_w_ub, a_ub, b_x_ub, b_k_ub),
                            *(mask_bytes_ub, h, num_rows, num_masked, num_channels),
                        )
                    with T.SimdVF():
                        sum_streams(
                            *(g_quarters_ub, gate_ub, mask_bytes_ub, grad_v_ub),
                            *(num_rows, num_masked, num_quarter),
                        )

                    # store
                    with T.Stage(0), T.Task():
                        T.copy(
                            x_ub[0:num_rows, 0:num_channels],
                            grad_x[token : token + num_rows, h, c : c + num_channels],
                        )
                        T.copy(
                            k_ub[0:num_rows, 0:num_channels],
                            grad_kv[token : token + num_rows, h, c : c + num_channels],
                        )
                    T.copy(
                        grad_v_ub[0:num_rows, 0:num_quarter],
                        grad_kv[token : token + num_rows, STREAMS, q : q + num_quarter],
                    )

                T.copy(
                    grad_w_ub[0:1, 0:num_channels],
                    grad_w_partial[part : part + 1, h, c : c + num_channels],
                )

    return engram_gate_bwd_ascend


@T.macro
def halves(item, num_tiles, channels):  # type: ignore[no-untyped-def]
    """Return an item's first channel and their number, and the same of the rest of the row."""
    c = T.alloc_var(T.int32)
    num_channels = T.alloc_var(T.int32)
    other = T.alloc_var(T.int32)
    num_other = T.alloc_var(T.int32)
    half = T.truncdiv(T.truncdiv(channels, LANES) + num_tiles - 1, num_tiles) * LANES
    c = T.truncmod(T.truncdiv(item, STREAMS), num_tiles) * half
    num_channels = T.min(half, channels - c)
    other = half - c
    num_other = channels - num_channels
    return c, num_channels, other, num_other


@T.macro
def quarter_of(c, num_channels, h):  # type: ignore[no-untyped-def]
    """Return the first channel of an item's h-th quarter, in whole registers, and their number."""
    q = T.alloc_var(T.int32)
    num_quarter = T.alloc_var(T.int32)
    most = T.truncdiv(num_channels + STREAMS * LANES - 1, STREAMS * LANES) * LANES
    q = c + h * most
    num_quarter = T.max(T.min(most, c + num_channels - q), 0)
    return q, num_quarter


@T.macro
def load_numbers(numbers, numbers_ub, token, num_rows):  # type: ignore[no-untyped-def]
    """Load a number for each stream of some tokens."""
    T.copy(numbers[token : token + num_rows, 0:STREAMS], numbers_ub[0:num_rows, 0:STREAMS])
