"""Mixes of hyper-connections on Ascend, for up to 64 tokens at a time.

A lane is a token. Each of the 24 mixes is a register, and rows and columns of comb are sums of
registers: nothing crosses lanes, and a token's bits do not depend on its neighbours.
"""

import tilelang.ascend.language as T

from tilewheel_kernels.mhc.channels_ascend import LANES, STREAMS

MIXES = 2 * STREAMS + STREAMS * STREAMS
COMB = 2 * STREAMS  # the first mix of comb
TILE_SPLITS = 16
TILE_TOKENS = 8  # their mixes are whole registers
TILE_REGISTERS = TILE_TOKENS * MIXES // LANES
# Lists, because a loop over range() is traced while a loop over a list is unrolled.
STREAM_LIST = list(range(STREAMS))
ROWS = [[STREAMS * m + o for o in STREAM_LIST] for m in STREAM_LIST]
COLUMNS = [list(column) for column in zip(*ROWS, strict=True)]


@T.macro
def add_partials(  # type: ignore[no-untyped-def]
    gemm_out_mul, gemm_out_sqrsum, num_splits, first_token, batch, mul_sum_ub, sqrsum_sum_ub
):
    """Add up the partials of up to 64 tokens, split by split."""
    mul_ub = T.alloc_shared((TILE_SPLITS, TILE_TOKENS, MIXES), T.float32)
    # Rows more, because a load of the last row's 8 tokens reads a whole register.
    sqrsum_ub = T.alloc_shared((TILE_SPLITS + LANES // TILE_TOKENS - 1, TILE_TOKENS), T.float32)
    part_ub = T.view(mul_ub, (TILE_SPLITS, TILE_TOKENS * MIXES), T.float32)
    sum_ub = T.view(mul_sum_ub, (MIXES, LANES), T.float32)
    T.annotate_buffer_versions({mul_ub: 2, sqrsum_ub: 2})
    registers = list(range(TILE_REGISTERS))

    with T.SimdVF():
        zero = T.simd.vdup(0.0, T.float32)
        for k in T.serial(MIXES):
            T.simd.vsts(sum_ub[k, 0], zero)
        T.simd.vsts(sqrsum_sum_ub[0, 0], zero)

    num_turns = T.truncdiv(num_splits + TILE_SPLITS - 1, TILE_SPLITS)
    num_tiles = T.truncdiv(batch + TILE_TOKENS - 1, TILE_TOKENS) * num_turns
    for i in T.Pipelined(num_tiles, num_stages=2):
        tile = T.alloc_var(T.int32)
        split = T.alloc_var(T.int32)
        splits = T.alloc_var(T.int32)
        token = T.alloc_var(T.int32)
        tokens = T.alloc_var(T.int32)
        tile = T.truncdiv(i, num_turns)
        split = (i - tile * num_turns) * TILE_SPLITS
        splits = T.min(TILE_SPLITS, num_splits - split)
        token = first_token + tile * TILE_TOKENS
        tokens = T.min(TILE_TOKENS, batch - tile * TILE_TOKENS)

        # load
        for j in T.serial(tokens):
            T.copy(
                gemm_out_mul[split : split + splits, token + j, 0:MIXES],
                mul_ub[0:splits, j, 0:MIXES],
            )
        T.copy(
            gemm_out_sqrsum[split : split + splits, token : token + tokens],
            sqrsum_ub[0:splits, 0:tokens],
        )

        # compute
        with T.SimdVF():
            total = T.simd.alloc_local((TILE_REGISTERS,), T.float32)
            total_sqrsum = T.simd.alloc_var(T.float32)
            own_tokens = T.simd.pset(32, "PAT_VL8")
            for k in registers:
                total[k] = T.simd.vld(sum_ub[tile * TILE_REGISTERS + k, 0])
            total_sqrsum = T.simd.vld(sqrsum_sum_ub[0, tile * TILE_TOKENS])
            for s in T.serial(splits):
                for k in registers:
                    total[k] = T.simd.vadd(total[k], T.simd.vld(part_ub[s, k * LANES]))
                total_sqrsum = T.simd.vadd(total_sqrsum, T.simd.vld(sqrsum_ub[s, 0]))
            for k in registers:
                T.simd.vsts(sum_ub[tile * TILE_REGISTERS + k, 0], total[k])
            T.simd.vsts(sqrsum_sum_ub[0, tile * TILE_TOKENS], total_sqrsum, own_tokens)


def whole(buffer, access: str):
    """Return the address of a UB buffer whose every element a gather or scatter may touch.

    Write it where it is used: bound to a name, it is no address any more.
    """
    return T.access_ptr(buffer[0, 0], access, extent=buffer.shape[0] * buffer.shape[1])


def as_uint32(register):
    return T.reinterpret(register, f"uint32x{LANES}")


# Functions and not macros, whose parameters would rename the scalars that they are given: the
# launcher knows those by name.
def reciprocal(values):
    return T.simd.vdiv(T.simd.vdup(1.0, T.float32), values, precision="ftz_true")


def sigmoid(values):
    return reciprocal(T.simd.vadds(T.simd.vexp(T.simd.vneg(values)), 1.0))


def reciprocal_root(sums, count, eps):
    """Return 1 / sqrt(sums / count + eps), count being an int32 scalar."""
    counts = T.simd.vcvt(T.simd.vdup(count, T.int32), T.float32)
    root = T.simd.vsqrt(T.simd.vadds(T.simd.vdiv(sums, counts), eps))
    return T.simd.vdiv(T.simd.vdup(1.0, T.float32), root)


def line_sum(comb, line):
    """Return the sum of a row or column."""
    a, b, c, d = (comb[k] for k in line)
    return T.simd.vadd(T.simd.vadd(a, b), T.simd.vadd(c, d))


@T.macro
def divide(comb, line, divisor):  # type: ignore[no-untyped-def]
    """Divide the four registers of a row or column."""
    inverse = reciprocal(divisor)
    for k in line:
        comb[k] = T.simd.vmul(comb[k], inverse)


@T.macro
def load_mix(sources, k, kind, rstd):  # type: ignore[no-untyped-def]
    """Return mix k of 64 tokens, scaled and shifted; kind is 0 for pre, 1 for post, 2 for comb."""
    place = T.simd.vadds(T.simd.vmuls(T.simd.vci(0, T.int32), MIXES), k)
    mix = T.simd.vmul(T.simd.vgather2(whole(sources[0], "r"), as_uint32(place)), rstd)
    scaled = T.simd.vmul(mix, T.simd.vld(sources[2][0, kind], dist="BRC_B32"))
    return T.simd.vadd(scaled, T.simd.vld(sources[3][0, k], dist="BRC_B32"))


@T.macro
def store_token_major(buffer, k, values):  # type: ignore[no-untyped-def]
    """Store number k of each of 64 tokens."""
    place = T.simd.vadds(T.simd.vmuls(T.simd.vci(0, T.int32), buffer.shape[1]), k)
    T.simd.vscatter(values, whole(buffer, "w"), as_uint32(place))


@T.macro
def compute_mixes(  # type: ignore[no-untyped-def]
    sources,
    results,
    num_squares,
    rms_eps,
    pre_eps,
    sinkhorn_eps,
    post_mult,
    sinkhorn_repeat,
):
    """Turn the sums of 64 tokens into pre, a row for each stream, and post and comb by token."""
    rstd = reciprocal_root(T.simd.vld(sources[1][0, 0]), num_squares, rms_eps)
    for m in STREAM_LIST:
        pre = T.simd.vadds(sigmoid(load_mix(sources, m, 0, rstd)), pre_eps)
        T.simd.vsts(results[0][m, 0], pre)
    for o in STREAM_LIST:
        post = T.simd.vmuls(sigmoid(load_mix(sources, STREAMS + o, 1, rstd)), post_mult)
        store_token_major(results[1], o, post)

    comb = T.simd.alloc_local((STREAMS * STREAMS,), T.float32)
    for row in ROWS:
        for k in row:
            comb[k] = load_mix(sources, COMB + k, 2, rstd)
        largest = T.simd.vmax(
            T.simd.vmax(comb[row[0]], comb[row[1]]), T.simd.vmax(comb[row[2]], comb[row[3]])
        )
        for k in row:
            comb[k] = T.simd.vexpdif(comb[k], largest)
        divide(comb, row, line_sum(comb, row))
        for k in row:
            comb[k] = T.simd.vadds(comb[k], sinkhorn_eps)
    for column in COLUMNS:
        divide(comb, column, T.simd.vadds(line_sum(comb, column), sinkhorn_eps))
    for _ in T.serial(sinkhorn_repeat - 1):
        for row in ROWS:
            divide(comb, row, T.simd.vadds(line_sum(comb, row), sinkhorn_eps))
        for column in COLUMNS:
            divide(comb, column, T.simd.vadds(line_sum(comb, column), sinkhorn_eps))
    for row in ROWS:
        for k in row:
            store_token_major(results[2], k, comb[k])
