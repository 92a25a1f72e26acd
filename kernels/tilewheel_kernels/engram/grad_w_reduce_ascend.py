"""grad_w_reduce for Ascend: sums partial gradients into those of two weights, SIMD.

    grad_w = sum over p of grad_w_partial[p], for p = 0, 1, ...
    grad_weight_hidden += grad_w * weight_embed, grad_weight_embed += grad_w * weight_hidden

One block (vector core) owns every num_vec_cores-th piece of a stream's row, of up to MOST_CHANNELS
channels: as many pieces as there are cores, where rows are that long. It walks the parts in
double-buffered blocks of BLOCK_PARTS and keeps the sum in UB.
UB bytes: (8 * BLOCK_PARTS + 16) * MOST_CHANNELS, 144 KiB.
Parameters: hidden a multiple of 64, num_parts at least 1, both also at run time.
Numerics: float32, one part after the other; the product is fused with the addition.
Reference: tilewheel.reference.engram.grad_w_reduce.
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

MOST_CHANNELS = 1024
BLOCK_PARTS = 16


def grad_w_reduce(*, hidden: int | None, num_vec_cores: int | None) -> "PrimFunc":
    """Return the kernel for rows of one width, or of any, and any number of vector cores."""
    check(hidden=hidden, num_vec_cores=num_vec_cores)
    channels = channels_of(hidden)
    num_parts = T.dynamic("num_parts")

    @T.prim_func
    def grad_w_reduce_ascend(
        grad_w_partial: T.Tensor((num_parts, STREAMS, channels), T.float32),
        weight_hidden: T.Tensor((STREAMS, channels), T.bfloat16),
        weight_embed: T.Tensor((STREAMS, channels), T.bfloat16),
        grad_weight_hidden: T.Tensor((STREAMS, channels), T.float32),
        grad_weight_embed: T.Tensor((STREAMS, channels), T.float32),
        num_vec_cores: T.int32,
    ) -> None:
        with T.Kernel(num_vec_cores) as core:
            partial_ub = T.alloc_shared((BLOCK_PARTS, MOST_CHANNELS), T.float32)
            grad_w_ub = T.alloc_shared((1, MOST_CHANNELS), T.float32)
            hidden_ub = T.alloc_shared((1, MOST_CHANNELS), T.bfloat16)
            embed_ub = T.alloc_shared((1, MOST_CHANNELS), T.bfloat16)
            grad_hidden_ub = T.alloc_shared((1, MOST_CHANNELS), T.float32)
            grad_embed_ub = T.alloc_shared((1, MOST_CHANNELS), T.float32)
            T.annotate_buffer_versions({partial_ub: 2})

            num_pieces, piece_channels = pieces_of(channels, MOST_CHANNELS, num_vec_cores)
            num_items = num_pieces * STREAMS
            for i in T.serial(T.truncdiv(num_items - core + num_vec_cores - 1, num_vec_cores)):
                h, c, num_channels = piece_at(i * num_vec_cores + core, piece_channels, channels)
                with T.SimdVF():
                    for s in T.serial(T.truncdiv(num_channels, LANES)):
                        T.simd.vsts(grad_w_ub[0, s * LANES], T.simd.vdup(0.0, T.float32))
                for block in T.Pipelined(
                    T.truncdiv(num_parts + BLOCK_PARTS - 1, BLOCK_PARTS), num_stages=2
                ):
                    part = T.alloc_var(T.int32)
                    num_rows = T.alloc_var(T.int32)
                    part = block * BLOCK_PARTS
                    num_rows = T.min(BLOCK_PARTS, num_parts - block * BLOCK_PARTS)

                    # load
                    T.copy(
                        grad_w_partial[part : part + num_rows, h, c : c + num_channels],
                        partial_ub[0:num_rows, 0:num_channels],
                    )

                    # compute
                    with T.SimdVF():
                        add_parts(partial_ub, grad_w_ub, num_rows, num_channels)

                # load
                with T.Stage(0), T.Task():
                    T.copy(
                        weight_hidden[h : h + 1, c : c + num_channels],
                        hidden_ub[0:1, 0:num_channels],
                    )
                    T.copy(
                        weight_embed[h : h + 1, c : c + num_channels], embed_ub[0:1, 0:num_channels]
                    )
                    T.copy(
                        grad_weight_hidden[h : h + 1, c : c + num_channels],
                        grad_hidden_ub[0:1, 0:num_channels],
                    )
                    T.copy(
                        grad_weight_embed[h : h + 1, c : c + num_channels],
                        grad_embed_ub[0:1, 0:num_channels],
                    )

                # compute
                with T.SimdVF():
                    add_product(grad_hidden_ub, grad_w_ub, embed_ub, num_channels)
                    add_product(grad_embed_ub, grad_w_ub, hidden_ub, num_channels)

                # store
                with T.Stage(0), T.Task():
                    T.copy(
                        grad_hidden_ub[0:1, 0:num_channels],
                        grad_weight_hidden[h : h + 1, c : c + num_channels],
                    )
                    T.copy(
                        grad_embed_ub[0:1, 0:num_channels],
                        grad_weight_embed[h : h + 1, c : c + num_channels],
                    )

    return grad_w_reduce_ascend


@T.macro
def add_parts(partial_ub, grad_w_ub, num_rows, num_channels):  # type: ignore[no-untyped-def]
    """Add the rows, first to last, to the sum."""
    total = T.simd.alloc_var(T.float32)
    for s in T.serial(T.truncdiv(num_channels, LANES)):
        total = T.simd.vld(grad_w_ub[0, s * LANES])
        for r in T.serial(num_rows):
            total = T.simd.vadd(total, T.simd.vld(partial_ub[r, s * LANES]))
        T.simd.vsts(grad_w_ub[0, s * LANES], total)


@T.macro
def add_product(grad_ub, grad_w_ub, weight_ub, num_channels):  # type: ignore[no-untyped-def]
    """Add the gradient of the product, times the other weight, to a weight's gradient."""
    total = T.simd.alloc_var(T.float32)
    for s in T.serial(T.truncdiv(num_channels, LANES)):
        total = T.simd.vld(grad_ub[0, s * LANES])
        T.simd.vmula(total, T.simd.vld(grad_w_ub[0, s * LANES]), unpacked(weight_ub, 0, s * LANES))
        T.simd.vsts(grad_ub[0, s * LANES], total)
