"""Channels of bfloat16 rows, 64 of them a step, for the hyper-connection kernels on Ascend.

A step is half of what a register of bfloat16 holds, so that any multiple of 64 channels is whole
steps. Unpacking while loading and packing while storing keep channel i in lane i.
"""

import tilelang.ascend.language as T

LANES = 64  # 32-bit lanes of a vector register, and channels of a step
STREAMS = 4
MAX_CHANNELS = 2048  # of a tile: 16 KiB of residual


@T.macro
def load_float32(buffer, row, channel):  # type: ignore[no-untyped-def]
    """Return 64 channels of a bfloat16 row as float32."""
    return T.simd.vcvt(T.simd.vld(buffer[row, channel], dist="UNPK_B16"), T.float32)


@T.macro
def store_bfloat16(buffer, row, channel, values):  # type: ignore[no-untyped-def]
    """Round 64 channels to bfloat16, to nearest even, and store them."""
    # Without saturation: what is beyond bfloat16 becomes infinite.
    rounded = T.simd.vcvt(values, T.bfloat16, sat=False)
    T.simd.vsts(buffer[row, channel], rounded, dist="PK_B32")
