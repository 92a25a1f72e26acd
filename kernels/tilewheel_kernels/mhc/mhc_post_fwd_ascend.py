"""mhc_post_fwd for Ascend: the new residual streams of hyper-connections, SIMD on the vector cores.

    out[t, o] = post_mix[t, o] * x[t] + sum over streams m of comb_mix[t, m, o] * residual[t, m]

Method: the 20 weights of a token are registers that hold one number in all 64 lanes. A step is 64
channels: x and four streams in, four streams out.

One block (vector core) owns every num_vec_cores-th tile, a tile being one part of one token. Parts
are equal, of 2048 channels at most and of 256 at least where a few tokens spread over all cores.
Tiles are double-buffered; no two share an element of out, so that their stores need no order.
UB bytes: 2 * 2048 * 2 * (1 + 4 + 4) + 192: 72 KiB.
Parameters: hidden a multiple of 64. There is no check at run time here; the launcher has them.
Numerics: fp32 with fused multiply-add, x first and then the streams in turn, rounded once to
nearest even; beyond bfloat16 infinite. A channel gives the same bits in any batch, on any number
of cores.
Reference: tilewheel.reference.mhc.post_fwd.
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

if TYPE_CHECKING:
    from tvm.tirx import PrimFunc

PASS_CONFIGS: dict[str, object] = {}

MIN_CHANNELS = 256  # of a tile: 512 bytes of each row


def mhc_post_fwd(*, hidden: int | None, num_vec_cores: int | None) -> "PrimFunc":
    """Return the kernel (x, residual, post_mix, comb_mix, out, num_vec_cores)."""
    if num_vec_cores is not None:
        raise ValueError(f"num_vec_cores: is {num_vec_cores}, must be any")
    streams = list(range(STREAMS))  # a loop over a list unrolls while tracing
    num_tokens = T.dynamic("num_tokens")
    registers = T.dynamic("hidden_64") if hidden is None else hidden // LANES
    channels = registers * LANES

    @T.prim_func
    def mhc_post_fwd_ascend(
        x: T.Tensor((num_tokens, channels), T.bfloat16),
        residual: T.Tensor((num_tokens, STREAMS, channels), T.bfloat16),
        post_mix: T.Tensor((num_tokens, STREAMS), T.float32),
        comb_mix: T.Tensor((num_tokens, STREAMS, STREAMS), T.float32),
        out: T.Tensor((num_tokens, STREAMS, channels), T.bfloat16),
        num_vec_cores: T.int32,
    ) -> None:
        with T.Kernel(num_vec_cores) as core:
            x_ub = T.alloc_shared((1, MAX_CHANNELS), T.bfloat16)
            residual_ub = T.alloc_shared((STREAMS, MAX_CHANNELS), T.bfloat16)
            post_ub = T.alloc_shared((1, STREAMS), T.float32)
            comb_ub = T.alloc_shared((STREAMS, STREAMS), T.float32)
            out_ub = T.alloc_shared((STREAMS, MAX_CHANNELS), T.bfloat16)
            T.annotate_buffer_versions({x_ub: 2, residual_ub: 2, post_ub: 2, comb_ub: 2, out_ub: 2})

            # Two tiles for each core where that leaves parts wide enough.
            part_channels = T.alloc_var(T.int32)
            num_parts = T.alloc_var(T.int32)
            halves = 2 * num_vec_cores
            share = T.truncdiv(num_tokens * registers + halves - 1, halves)
            wanted = T.min(share, MAX_CHANNELS // LANES) * LANES
            part_channels = T.max(wanted, MIN_CHANNELS)
            num_parts = T.truncdiv(channels + part_channels - 1, part_channels)
            part_channels = T.truncdiv(registers + num_parts - 1, num_parts) * LANES
            num_tiles = T.truncdiv(num_tokens * num_parts - core + num_vec_cores - 1, num_vec_cores)
            for i in T.Pipelined(num_tiles, num_stages=2):
                token = T.alloc_var(T.int64)
                first = T.alloc_var(T.int32)
                width = T.alloc_var(T.int32)
                tile = i * num_vec_cores + core
                token = T.cast(T.truncdiv(tile, num_parts), "int64")
                first = T.truncmod(tile, num_parts) * part_channels
                width = T.min(part_channels, channels - first)
                T.assume_no_conflict(out)

                # load
                T.copy(x[token : token + 1, first : first + width], x_ub[0:1, 0:width])
                T.copy(
                    residual[token, 0:STREAMS, first : first + width],
                    residual_ub[0:STREAMS, 0:width],
                )
                T.copy(post_mix[token : token + 1, 0:STREAMS], post_ub)
                T.copy(comb_mix[token, 0:STREAMS, 0:STREAMS], comb_ub)

                # compute
                with T.SimdVF():
                    post = T.simd.alloc_local((STREAMS,), T.float32)
                    comb = T.simd.alloc_local((STREAMS, STREAMS), T.float32)
                    value = T.simd.alloc_local((STREAMS,), T.float32)
                    total = T.simd.alloc_var(T.float32)
                    for o in streams:
                        post[o] = T.simd.vld(post_ub[0, o], dist="BRC_B32")
                        for m in streams:
                            comb[m, o] = T.simd.vld(comb_ub[m, o], dist="BRC_B32")
                    for c in T.serial(T.truncdiv(width, LANES)):
                        branch = load_float32(x_ub, 0, c * LANES)
                        for m in streams:
                            value[m] = load_float32(residual_ub, m, c * LANES)
                        for o in streams:
                            total = T.simd.vmul(branch, post[o])
                            for m in streams:
                                T.simd.vmula(total, value[m], comb[m, o])
                            store_bfloat16(out_ub, o, c * LANES, total)

                # store
                T.copy(out_ub[0:STREAMS, 0:width], out[token, 0:STREAMS, first : first + width])

    return mhc_post_fwd_ascend
