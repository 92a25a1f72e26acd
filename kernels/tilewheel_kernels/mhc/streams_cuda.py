"""Vectors of bfloat16 channels on CUDA, which the kernels of this folder share."""

import tilelang.language as T

NUM_STREAMS = 4
VECTOR = 8  # channels of a vector: 16 bytes
WORDS = VECTOR // 2


def channel(words_local, first, i):
    """Channel i of the vector in words_local[first:first + 4], as a float32."""
    # A bfloat16 is the upper half of a float32; the first of two is the lower half of a word.
    high = words_local[first + i // 2] << T.uint32(16 - i % 2 * 16)
    return T.reinterpret(high & T.uint32(0xFFFF0000), "float32")
