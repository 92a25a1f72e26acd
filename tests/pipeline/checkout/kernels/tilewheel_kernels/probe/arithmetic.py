"""What ``scale`` computes for one element; a module of its own that the kernel imports."""

import tilelang.language as T


def scaled(x, factor, shift):
    return x * factor + T.cast(shift, "float32")
