"""What the CUDA kernels of the Engram gate share: a thread owns columns of all four streams.

A column is 8 adjacent channels, 16 bytes of bfloat16. Its owner holds it for the four streams, so
that the value of a token is read once and what is summed over streams stays in one thread. Only the
sums over hidden cross threads: ``sum_over_block`` makes them with one barrier and in an order that
depends on the kernel alone.
Source: original.
"""

import tilelang.language as T
from tilelang import tvm

STREAMS = 4
COLUMN = 8
WARP = 32
_GROUP = 8  # lanes that add up the sums of the warps
_SHARED_BYTES = 227 * 1024
_SMALL_SHARED_BYTES = 99 * 1024
_SMALL_SHARED_ARCHS = ("sm_86", "sm_89", "sm_120a", "sm_121a")


def shared_bytes() -> int:
    """Shared memory that a block may have on the architecture that is being built for."""
    target = tvm.target.Target.current(allow_none=True)
    is_small = target is not None and str(target.attrs["arch"]) in _SMALL_SHARED_ARCHS
    return _SMALL_SHARED_BYTES if is_small else _SHARED_BYTES


def element(words, i):
    """Element i, as float32, of bfloat16 values that lie two in a word."""
    # A bfloat16 is the upper half of a float32; the first of two is the lower half of a word.
    high = words[i // 2] << T.cast(16 - i % 2 * 16, "uint32")
    return T.reinterpret(high & T.uint32(0xFFFF0000), "float32")


def element_again(words, i):
    """The same by another instruction.

    The compiler does not see that they are equal, so that it does not keep the floats in registers,
    twice as many as the words, from one use to a later one.
    """
    selector = T.if_then_else(i % 2 == 0, T.uint32(0x1044), T.uint32(0x3244))
    return T.reinterpret(
        T.call_extern("uint32", "__byte_perm", words[i // 2], T.uint32(0), selector), "float32"
    )


def fma(a, b, c):
    return T.call_extern("float32", "__fmaf_rn", a, b, c)


def sigmoid(y):
    # Fast, and 0 where the denominator is above 2**126, as it should be.
    return T.call_extern("float32", "__fdividef", T.float32(1.0), T.float32(1.0) + T.exp(-y))


def inverse_root(value):
    return T.rsqrt(value)


@T.macro
def sum_over_warp(sums_local, values_local, lane, count, streams):  # type: ignore[no-untyped-def]
    """Sum count x streams values over a warp; each lane gets the sums of its stream.

    A step that halves the values which a lane keeps takes fewer exchanges than summing all of them
    everywhere. The order does not depend on ``streams``.
    """
    half_local = T.alloc_local((2 * count,), "float32")
    is_upper = (lane & 16) != 0
    is_odd = (lane & 8) != 0
    for i in T.unroll(count):
        if streams == 4:
            for j in T.unroll(2):
                first = values_local[4 * i + j]
                second = values_local[4 * i + 2 + j]
                sent = T.if_then_else(is_upper, first, second)
                kept = T.if_then_else(is_upper, second, first)
                half_local[2 * i + j] = kept + T.shfl_xor(sent, 16)
        elif streams == 2:
            first = values_local[2 * i]
            second = values_local[2 * i + 1]
            sent = T.if_then_else(is_upper, first, second)
            kept = T.if_then_else(is_upper, second, first)
            sums_local[i] = kept + T.shfl_xor(sent, 16)
        else:
            sums_local[i] = values_local[i] + T.shfl_xor(values_local[i], 16)
    for i in T.unroll(count):
        if streams == 4:
            sent = T.if_then_else(is_odd, half_local[2 * i], half_local[2 * i + 1])
            kept = T.if_then_else(is_odd, half_local[2 * i + 1], half_local[2 * i])
            sums_local[i] = kept + T.shfl_xor(sent, 8)
        else:
            sums_local[i] = sums_local[i] + T.shfl_xor(sums_local[i], 8)
    for step in [4, 2, 1]:
        for i in T.unroll(count):
            sums_local[i] = sums_local[i] + T.shfl_xor(sums_local[i], step)


@T.macro
def sum_over_block(  # type: ignore[no-untyped-def]
    sums_local, values_local, partial_shared, slot, thread, count, warps, streams
):
    """Sum count x streams values over a block; a lane gets the sums of stream ``lane_stream``.

    One barrier; whoever calls it twice in a row alternates ``slot`` between 0 and 1. The order does
    not depend on ``streams``.
    """
    lane = thread % WARP
    stream = lane // (WARP // streams)
    sum_over_warp(sums_local, values_local, lane, count, streams)
    if lane % (WARP // streams) == 0:
        for i in T.unroll(count):
            partial_shared[slot, i, stream, thread // WARP] = sums_local[i]
    T.sync_threads()
    for i in T.unroll(count):
        sums_local[i] = T.float32(0.0)
        for j in T.unroll(-(-warps // _GROUP)):
            other = j * _GROUP + lane % _GROUP
            if other < warps:
                sums_local[i] = sums_local[i] + partial_shared[slot, i, stream, other]
    for step in [4, 2, 1]:
        for i in T.unroll(count):
            sums_local[i] = sums_local[i] + T.shfl_xor(sums_local[i], step)


def from_stream(value, stream, streams):
    """What the lanes of a stream hold, after ``sum_over_block``."""
    return T.shfl_sync(value, stream * (WARP // streams))


def copy_async(destination, source):
    """Start copying 16 bytes to shared memory; whoever reads them waits with ``wait_async``."""
    return T.call_extern(
        "handle", "tl::cp_async_gs<16>", T.address_of(destination), T.address_of(source)
    )


def commit_async():
    return T.call_extern("handle", "tl::cp_async_commit")


def wait_async(pending):
    """Wait for this thread's copies but for the last ``pending`` groups."""
    return T.call_extern("handle", f"tl::cp_async_wait<{pending}>")


@T.macro
def store_column(tensor, token, row, channel, values_local):  # type: ignore[no-untyped-def]
    """Write a column of bfloat16 by one instruction; the compiler would make several of some."""
    T.stg128(tensor[token, row, channel], T.reinterpret(values_local[T.Ramp(0, 1, 8)], "uint32x4"))


@T.macro
def store_zeros(tensor, token, row, channel):  # type: ignore[no-untyped-def]
    T.stg128(tensor[token, row, channel], T.Broadcast(T.uint32(0), 4))


@T.macro
def load_saved(saved_local, saved, token, stream):  # type: ignore[no-untyped-def]
    """Read the four saved numbers of a token's stream, by instructions that stay in place."""
    for i in [0, 1, 2, 3]:
        saved_local[i] = T.reinterpret(T.ldg32(saved[i][token, stream]), "float32")


@T.macro
def gradient_factors(  # type: ignore[no-untyped-def]
    factors_local, saved_local, grad_gate, hidden, clamp_value
):
    """Put (a, b_x, b_k) of a stream into ``factors_local``, see engram_gate_bwd_cuda.py.

    ``saved_local`` holds dot, gate, rstd_x and rstd_k.
    """
    size = T.cast(hidden, "float32")
    scale = inverse_root(size)
    magnitude = T.abs(saved_local[0] * saved_local[2] * saved_local[3] * scale)
    slope = saved_local[1] * (T.float32(1.0) - saved_local[1]) * T.float32(0.5)
    grad_z = grad_gate * slope * inverse_root(magnitude)
    factors_local[0] = T.if_then_else(
        magnitude < clamp_value, T.float32(0.0), grad_z * scale * saved_local[2] * saved_local[3]
    )
    b = factors_local[0] * saved_local[0] * (T.float32(1.0) / size)
    factors_local[1] = b * saved_local[2] * saved_local[2]
    factors_local[2] = b * saved_local[3] * saved_local[3]
