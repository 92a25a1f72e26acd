"""What the Engram kernels on Ascend share: the sizes of a variant and small pieces of vector code.

A row is one stream of one token, hidden channels wide. Registers have 64 lanes of four bytes and
hidden is a multiple of 64, so that a row is a whole number of registers and nothing needs a mask.
A number that belongs to a row, such as its gate, takes 32 bytes in UB: eight lanes, the least that
a DMA can address, and eight rows to a register.
"""

import tilelang.ascend.language as T

STREAMS = 4
LANES = 64  # 32-bit lanes of a vector register
PITCH = 8  # lanes of a number in UB
MAX_ROWS = LANES // PITCH  # rows whose numbers share a register
MAX_HIDDEN = 16384
MASK_BYTES = 32  # the mask of up to MAX_ROWS tokens, in whole 32-byte blocks


def check(*, hidden: int | None, num_vec_cores: int | None) -> None:
    """Raise a ValueError that names every parameter which these kernels cannot take."""
    errors = []
    if hidden is not None and not (LANES <= hidden <= MAX_HIDDEN and hidden % LANES == 0):
        errors.append(
            f"hidden: is {hidden}, must be a multiple of {LANES} in {LANES}..{MAX_HIDDEN}"
        )
    if num_vec_cores is not None:
        errors.append(f"num_vec_cores: is {num_vec_cores}, must be any")
    if errors:
        raise ValueError("\n".join(errors))


def channels_of(hidden: int | None):
    """Return the channels of a row as TileLang has them: a number, or 64 times a run-time size."""
    return T.dynamic("hidden_64") * LANES if hidden is None else hidden


@T.macro
def reciprocals(hidden):  # type: ignore[no-untyped-def]
    """Return 1 / hidden and 1 / sqrt(hidden) in every lane."""
    one = T.simd.vdup(1.0, T.float32)
    width = T.simd.vcvt(T.simd.vdup(hidden, T.int32), T.float32)
    inverse = T.simd.vdiv(one, width)
    return inverse, T.simd.vsqrt(inverse)


@T.macro
def is_masked_row(mask_bytes_ub, r, num_masked):  # type: ignore[no-untyped-def]
    """Return whether row r is masked, as a predicate that is the same for all lanes of any width.

    Without a mask, which num_masked of 0 says, mask_bytes_ub was never loaded.
    """
    byte = T.simd.vld(mask_bytes_ub[r], "BRC_B8")
    counts = T.simd.vdup(T.min(num_masked, 1) * 255, T.uint8)
    return T.simd.vcmps(T.simd.vand(byte, counts), 0, op="ne")


@T.macro
def unpacked(row_ub, r, c):  # type: ignore[no-untyped-def]
    """Return 64 bfloat16 as float32."""
    return T.simd.vcvt(T.simd.vld(row_ub[r, c], "UNPK_B16"), T.float32)


@T.macro
def store_sum(number_ub, r, lanes, first_lanes):  # type: ignore[no-untyped-def]
    """Store the sum of all lanes as the number of row r."""
    T.simd.vsts(number_ub[r, 0], T.simd.vdupv(T.simd.vcadd(lanes)), first_lanes)


@T.macro
def pieces_of(channels, most_channels, num_vec_cores):  # type: ignore[no-untyped-def]
    """Return into how many pieces each of four rows is cut, and the channels of all but the last.

    A piece is whole registers, at most most_channels, and there is one for each core if rows are
    long enough; a last one may be empty.
    """
    num_pieces = T.alloc_var(T.int32)
    piece_channels = T.alloc_var(T.int32)
    num_registers = T.truncdiv(channels, LANES)
    num_pieces = T.max(
        T.truncdiv(channels + most_channels - 1, most_channels),
        T.truncdiv(num_vec_cores, STREAMS),
    )
    piece_channels = T.truncdiv(num_registers + num_pieces - 1, num_pieces) * LANES
    return num_pieces, piece_channels


@T.macro
def piece_at(item, piece_channels, channels):  # type: ignore[no-untyped-def]
    """Return stream, first channel and number of channels of a piece."""
    h = T.alloc_var(T.int32)
    c = T.alloc_var(T.int32)
    num_channels = T.alloc_var(T.int32)
    h = T.truncmod(item, STREAMS)
    c = T.truncdiv(item, STREAMS) * piece_channels
    num_channels = T.max(T.min(piece_channels, channels - c), 0)
    return h, c, num_channels
