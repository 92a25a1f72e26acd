"""fused_weight, CUDA: the product of the two norm weights of the Engram gate.

    weight_fused = weight_hidden * weight_embed

A thread owns 8 adjacent elements of the 4 * hidden, whatever stream they are of. No shared memory.
Parameters: hidden a multiple of 64.
Numerics: exact, as a product of two bfloat16 values fits a float32.
Reference: tilewheel.reference.engram.fused_weight.
Source: original.
"""

# No `from __future__ import annotations`: T.prim_func evaluates its annotations.
from typing import TYPE_CHECKING

import tilelang.language as T

from tilewheel_kernels.engram.columns_cuda import COLUMN, STREAMS

if TYPE_CHECKING:
    from tvm.tirx import PrimFunc

# The kernel bounds every index itself; this pass would check every access a second time.
PASS_CONFIGS: dict[str, object] = {"tl.disable_safe_memory_legalize": True}

_THREADS = 128


def fused_weight(*, hidden: int | None) -> "PrimFunc":
    """Return the kernel; hidden, None, comes at run time.

    Raises ValueError for a hidden that is no multiple of 64.
    """
    if hidden is not None and hidden % 64 != 0:
        raise ValueError(f"hidden: is {hidden}, must be a multiple of 64")
    size = T.dynamic("hidden_64") * 64 if hidden is None else hidden

    @T.prim_func
    def fused_weight(
        weight_hidden: T.Tensor((STREAMS, size), "bfloat16"),
        weight_embed: T.Tensor((STREAMS, size), "bfloat16"),
        weight_fused: T.Tensor((STREAMS, size), "float32"),
    ):
        num_columns = size * STREAMS // COLUMN
        with T.Kernel(T.truncdiv(num_columns + _THREADS - 1, _THREADS), threads=_THREADS) as block:
            column = block * _THREADS + T.get_thread_binding()
            a_local = T.alloc_local((COLUMN,), "bfloat16")
            b_local = T.alloc_local((COLUMN,), "bfloat16")
            product_local = T.alloc_local((COLUMN,), "float32")
            T.pdl_sync()
            if column < num_columns:
                # load; stream 0 and a channel past its end, as the streams lie in one piece
                for i in T.vectorized(COLUMN):
                    a_local[i] = weight_hidden[0, column * COLUMN + i]
                for i in T.vectorized(COLUMN):
                    b_local[i] = weight_embed[0, column * COLUMN + i]

                # compute
                for i in T.vectorized(COLUMN):
                    product_local[i] = T.cast(a_local[i], "float32") * T.cast(b_local[i], "float32")
            T.pdl_trigger()

            # store
            if column < num_columns:
                for i in T.vectorized(COLUMN):
                    weight_fused[0, column * COLUMN + i] = product_local[i]

    return fused_weight
