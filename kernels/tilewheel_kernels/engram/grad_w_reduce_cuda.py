"""grad_w_reduce, CUDA: partial gradients of the fused weight into those of the two norm weights.

    grad_w = sum over p of grad_w_partial[p]
    grad_weight_hidden += grad_w * weight_embed, grad_weight_embed += grad_w * weight_hidden

A block owns 32 quads of 4 adjacent channels of the 4 * hidden, whatever stream they are of. Each of
its 8 warps sums every eighth part for them, nine parts at a time: the loads of all are under way
together, and the 132 parts of an H200 take two such rounds. The first warp then adds the warps'
sums.
On-chip: 4 KB of shared memory for the warps' sums.
Parameters: hidden a multiple of 64.
Numerics: fp32 sums; the order depends on num_parts alone.
Reference: tilewheel.reference.engram.grad_w_reduce.
Source: original.
"""

# No `from __future__ import annotations`: T.prim_func evaluates its annotations.
from typing import TYPE_CHECKING

import tilelang.language as T

from tilewheel_kernels.engram.columns_cuda import STREAMS, WARP, fma

if TYPE_CHECKING:
    from tvm.tirx import PrimFunc

# The kernel bounds every index itself and has one barrier.
PASS_CONFIGS: dict[str, object] = {
    "tl.disable_safe_memory_legalize": True,
    "tl.disable_thread_storage_sync": True,
}

_QUAD = 4
_WARPS = 8
_PARTS_AT_A_TIME = 9


@T.macro
def _load(values, values_local, channel):  # type: ignore[no-untyped-def]
    """Load a quad of a weight or a gradient."""
    for e in T.vectorized(_QUAD):
        values_local[e] = values[0, channel + e]


@T.macro
def _add_gradient(grad, grad_local, weight_local, sum_local, channel):  # type: ignore[no-untyped-def]
    """Add a quad's sums, times the other weight, to a gradient."""
    for e in T.unroll(_QUAD):
        grad_local[e] = fma(sum_local[e], T.cast(weight_local[e], "float32"), grad_local[e])
    for e in T.vectorized(_QUAD):
        grad[0, channel + e] = grad_local[e]


def grad_w_reduce(*, hidden: int | None) -> "PrimFunc":
    """Return the kernel; hidden, None, comes at run time.

    Raises ValueError for a hidden that is no multiple of 64.
    """
    if hidden is not None and hidden % 64 != 0:
        raise ValueError(f"hidden: is {hidden}, must be a multiple of 64")
    num_parts = T.dynamic("num_parts")
    size = T.dynamic("hidden_64") * 64 if hidden is None else hidden

    @T.prim_func
    def grad_w_reduce(
        grad_w_partial: T.Tensor((num_parts, STREAMS, size), "float32"),
        weight_hidden: T.Tensor((STREAMS, size), "bfloat16"),
        weight_embed: T.Tensor((STREAMS, size), "bfloat16"),
        grad_weight_hidden: T.Tensor((STREAMS, size), "float32"),
        grad_weight_embed: T.Tensor((STREAMS, size), "float32"),
    ):
        # hidden is a multiple of 64, so that the quads of four streams fill warps.
        with T.Kernel(size * STREAMS // _QUAD // WARP, threads=_WARPS * WARP) as block:
            thread = T.get_thread_binding()
            lane = thread % WARP
            warp = thread // WARP
            channel = (block * WARP + lane) * _QUAD
            sums_shared = T.alloc_shared((_WARPS, WARP, _QUAD), "float32")
            part_local = T.alloc_local((_PARTS_AT_A_TIME, _QUAD), "float32")
            sum_local = T.alloc_local((_QUAD,), "float32")
            hidden_local = T.alloc_local((_QUAD,), "bfloat16")
            embed_local = T.alloc_local((_QUAD,), "bfloat16")
            grad_hidden_local = T.alloc_local((_QUAD,), "float32")
            grad_embed_local = T.alloc_local((_QUAD,), "float32")
            T.pdl_sync()
            # What the sums are added to is on its way while they are made.
            if warp == 0:
                _load(weight_hidden, hidden_local, channel)
                _load(weight_embed, embed_local, channel)
                _load(grad_weight_hidden, grad_hidden_local, channel)
                _load(grad_weight_embed, grad_embed_local, channel)
            for e in T.unroll(_QUAD):
                sum_local[e] = T.float32(0.0)

            # load and compute; stream 0 and a channel past its end: streams lie in one piece
            stride = _WARPS * _PARTS_AT_A_TIME
            for i in T.unroll(T.truncdiv(num_parts + stride - 1, stride), unroll_factor=1):
                for j in T.unroll(_PARTS_AT_A_TIME):
                    part = i * stride + j * _WARPS + warp
                    for e in T.vectorized(_QUAD):
                        part_local[j, e] = T.float32(0.0)
                    if part < num_parts:
                        for e in T.vectorized(_QUAD):
                            part_local[j, e] = grad_w_partial[T.cast(part, "int64"), 0, channel + e]
                for j in T.unroll(_PARTS_AT_A_TIME):
                    for e in T.unroll(_QUAD):
                        sum_local[e] = sum_local[e] + part_local[j, e]
            for e in T.vectorized(_QUAD):
                sums_shared[warp, lane, e] = sum_local[e]
            T.sync_threads()

            # store
            if warp == 0:
                for j in T.unroll(1, _WARPS):
                    for e in T.unroll(_QUAD):
                        sum_local[e] = sum_local[e] + sums_shared[j, lane, e]
                _add_gradient(
                    grad_weight_hidden, grad_hidden_local, embed_local, sum_local, channel
                )
                _add_gradient(grad_weight_embed, grad_embed_local, hidden_local, sum_local, channel)
            T.pdl_trigger()

    return grad_w_reduce
