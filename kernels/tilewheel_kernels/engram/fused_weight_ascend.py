"""fused_weight for Ascend: the product of two weights in float32, SIMD on the vector cores.

    weight_fused[h, c] = weight_hidden[h, c] * weight_embed[h, c]

One block (vector core) owns every num_vec_cores-th piece of a stream's row, of up to MOST_CHANNELS
channels: as many pieces as there are cores, where rows are that long. Pieces are double-buffered.
UB bytes: 16 * MOST_CHANNELS, 32 KiB.
Parameters: hidden a multiple of 64, also at run time.
Numerics: exact, short of overflow and of subnormal results.
Reference: tilewheel.reference.engram.fused_weight.
Source: original.
"""

from typing import TYPE_CHECKING

import tilelang.ascend.language as T

from tilewheel_kernels.engram.rows_ascend import (
    LANES,
    STREAMS,
    channels_of,
    check,
    piece_at,
    pieces_of,
    unpacked,
)

if TYPE_CHECKING:
    from tvm.tirx import PrimFunc

PASS_CONFIGS: dict[str, object] = {}

MOST_CHANNELS = 2048


def fused_weight(*, hidden: int | None, num_vec_cores: int | None) -> "PrimFunc":
    """Return the kernel (weight_hidden, weight_embed, weight_fused, num_vec_cores)."""
    check(hidden=hidden, num_vec_cores=num_vec_cores)
    channels = channels_of(hidden)

    @T.prim_func
    def fused_weight_ascend(
        weight_hidden: T.Tensor((STREAMS, channels), T.bfloat16),
        weight_embed: T.Tensor((STREAMS, channels), T.bfloat16),
        weight_fused: T.Tensor((STREAMS, channels), T.float32),
        num_vec_cores: T.int32,
    ) -> None:
        with T.Kernel(num_vec_cores) as core:
            hidden_ub = T.alloc_shared((1, MOST_CHANNELS), T.bfloat16)
            embed_ub = T.alloc_shared((1, MOST_CHANNELS), T.bfloat16)
            fused_ub = T.alloc_shared((1, MOST_CHANNELS), T.float32)
            T.annotate_buffer_versions({hidden_ub: 2, embed_ub: 2, fused_ub: 2})

            num_pieces, piece_channels = pieces_of(channels, MOST_CHANNELS, num_vec_cores)
            num_items = num_pieces * STREAMS
            for i in T.Pipelined(
                T.truncdiv(num_items - core + num_vec_cores - 1, num_vec_cores), num_stages=2
            ):
                h, c, num_channels = piece_at(i * num_vec_cores + core, piece_channels, channels)
                # Nothing is stored twice.
                T.assume_no_conflict(weight_fused)

                # load
                T.copy(
                    weight_hidden[h : h + 1, c : c + num_channels], hidden_ub[0:1, 0:num_channels]
                )
                T.copy(weight_embed[h : h + 1, c : c + num_channels], embed_ub[0:1, 0:num_channels])

                # compute
                with T.SimdVF():
                    for s in T.serial(T.truncdiv(num_channels, LANES)):
                        T.simd.vsts(
                            fused_ub[0, s * LANES],
                            T.simd.vmul(
                                unpacked(hidden_ub, 0, s * LANES), unpacked(embed_ub, 0, s * LANES)
                            ),
                        )

                # store
                T.copy(fused_ub[0:1, 0:num_channels], weight_fused[h : h + 1, c : c + num_channels])

    return fused_weight_ascend
