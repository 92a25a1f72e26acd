"""apply_rotary for Ascend: rotary position embedding of query and key, SIMD on the vector cores.

    position = p[t] + seqlen_offset, where p[t] is given or t mod sequence_length
    c[i], s[i] = cos_sin_cache[position, i], cos_sin_cache[position, head_dim / 2 + i]
    a, b = a * c[i] - b * s[i], a * s[i] + b * c[i]
for each pair a, b = x[i], x[head_dim / 2 + i], or x[2 i], x[2 i + 1] if interleaved; s is negated
if conjugate. A token whose position is not a row of the cache keeps its values.

Method: a row is one or two registers of 64 lanes. Every lane computes x * c + partner * s, the sign
of s being that of its place in the pair; the partner is in another lane, or in the other register.

One block (vector core) owns ceil(num_tokens * chunks / num_vec_cores) consecutive chunks of query
and as many of key, a chunk being BLOCK_ROWS heads of one token or what is left of them. Chunks are
double-buffered.
UB bytes: 2 tensors * 2 versions * head_dim * (2 * BLOCK_ROWS * element bytes + 4): 33 KiB for 64
bfloat16, 130 KiB for 128 float32.
Parameters: head_dim is 64 or 128. Rows may lie anywhere in GM: only UB asks for 32-byte alignment.
Numerics: exact. Every product and every sum is rounded to fp32 by itself (no fused multiply-add),
the result once to dtype, to nearest even. Adding the product with -s gives the bits of subtracting
the product with s.
Reference: tilewheel.reference.transform.apply_rotary.
Source: original.
"""

from typing import TYPE_CHECKING

import tilelang.ascend.language as T

if TYPE_CHECKING:
    from tvm.tirx import PrimFunc

PASS_CONFIGS: dict[str, object] = {}

LANES = 64  # 32-bit lanes of a vector register
BLOCK_ROWS = 32  # heads of one DMA: 4 KiB or more, and two chunks of the 64 heads of one token
NOWHERE = -0x7FFFFFFF  # no position, also after adding the largest seqlen_offset


def apply_rotary(
    *, dtype: str, head_dim: int, interleaved: bool, num_vec_cores: int | None
) -> "PrimFunc":
    """Return the kernel for rows of one type, width and pairing, for any number of vector cores."""
    if head_dim not in (LANES, 2 * LANES):
        raise ValueError(f"head_dim: is {head_dim}, must be {LANES} or {2 * LANES}")
    if num_vec_cores is not None:
        raise ValueError(f"num_vec_cores: is {num_vec_cores}, must be any")
    half = head_dim // 2
    num_registers = head_dim // LANES
    registers = list(range(num_registers))  # a loop over a list unrolls while tracing
    is_pair_split = not interleaved and num_registers == 2

    num_tokens = T.dynamic("num_tokens")
    num_heads = T.dynamic("num_heads")
    num_key_heads = T.dynamic("num_key_heads")
    cache_rows = T.dynamic("cache_rows")
    num_positions = T.dynamic("num_positions")
    num_positions_int32 = T.dynamic("num_positions_int32")
    # Heads, stride of tokens, stride of heads.
    query_layout = (
        num_heads,
        T.dynamic("query_stride", "int64"),
        T.dynamic("query_head_stride", "int64"),
    )
    key_layout = (
        num_key_heads,
        T.dynamic("key_stride", "int64"),
        T.dynamic("key_head_stride", "int64"),
    )

    # Tuples, because a macro's parameters rename the sizes and strides that they are given, and the
    # launcher knows those by name.
    @T.macro
    def rotate_rows(x, layout, core, num_vec_cores, tables, scalars):
        x_ub = T.alloc_shared((BLOCK_ROWS, head_dim), dtype)
        y_ub = T.alloc_shared((BLOCK_ROWS, head_dim), dtype)
        table_ub = T.alloc_shared((1, head_dim), T.float32)
        T.annotate_buffer_versions({x_ub: 2, y_ub: 2, table_ub: 2})

        # truncdiv: a floor division by a run-time value adds a remainder and a sign test.
        num_chunks = T.truncdiv(layout[0] + BLOCK_ROWS - 1, BLOCK_ROWS)
        num_blocks = num_tokens * num_chunks
        share = T.truncdiv(num_blocks + num_vec_cores - 1, num_vec_cores)
        begin = core * share
        end = T.min(begin + share, num_blocks)
        backwards = T.if_then_else(scalars[0], T.float32(-1.0), T.float32(1.0))
        for i in T.Pipelined(T.max(end - begin, 0), num_stages=2):
            token = T.truncdiv(begin + i, num_chunks)
            head = (begin + i - token * num_chunks) * BLOCK_ROWS
            position = scalars[1] + T.if_then_else(
                token < num_positions,
                tables[1][token],
                T.if_then_else(
                    token < num_positions_int32,
                    T.cast(tables[2][token], "int64"),
                    T.if_then_else(
                        num_positions + num_positions_int32 == 0,
                        T.cast(T.truncmod(token, scalars[2]), "int64"),
                        T.int64(NOWHERE),
                    ),
                ),
            )
            is_inside = (position >= 0) & (position < T.cast(cache_rows, "int64"))
            row = T.if_then_else(is_inside, T.cast(position, "int32"), 0)
            # No rows, and therefore no DMA, for a token without a position in the cache.
            num_rows = T.if_then_else(is_inside, T.min(BLOCK_ROWS, layout[0] - head), 0)

            # load
            T.copy(tables[0][row : row + 1, 0:head_dim], table_ub)
            T.copy(x[token, head : head + num_rows, 0:head_dim], x_ub[0:num_rows, 0:head_dim])

            # compute
            with T.SimdVF():
                lane = T.simd.vci(0, T.int32)
                cos = T.simd.alloc_local((num_registers,), T.float32)
                sin = T.simd.alloc_local((num_registers,), T.float32)
                value = T.simd.alloc_local((num_registers,), T.float32)
                # Where the pair of a lane is in the table, where its partner is, and its own place.
                if interleaved:
                    angle = T.simd.vshrs(lane, 1)
                    partner_lane = T.simd.vxor(lane, T.simd.vdup(1, T.int32))
                    is_first = T.simd.vcmp(lane, partner_lane, op="lt")
                else:
                    angle = T.simd.vand(lane, T.simd.vdup(half - 1, T.int32))
                    partner_lane = T.simd.vxor(lane, T.simd.vdup(half, T.int32))
                    is_first = T.simd.vcmps(lane, half, op="lt")
                plus = T.simd.vdup(1.0, T.float32)
                minus = T.simd.vdup(-1.0, T.float32)
                for k in registers:
                    if num_registers == 1:
                        table = T.simd.vld(table_ub[0, 0])
                        cos[k] = T.simd.vselr(table, angle)
                        sin[k] = T.simd.vselr(table, T.simd.vadds(angle, half))
                    elif interleaved:
                        shifted = T.simd.vadds(angle, k * (LANES // 2))
                        cos[k] = T.simd.vselr(T.simd.vld(table_ub[0, 0]), shifted)
                        sin[k] = T.simd.vselr(T.simd.vld(table_ub[0, half]), shifted)
                    else:
                        cos[k] = T.simd.vld(table_ub[0, 0])
                        sin[k] = T.simd.vld(table_ub[0, half])
                    if is_pair_split:
                        place = plus if k else minus
                    else:
                        place = T.simd.vsel(minus, plus, is_first)
                    sin[k] = T.simd.vmul(sin[k], T.simd.vmuls(place, backwards))
                for r in T.serial(num_rows):
                    for k in registers:
                        if dtype == "bfloat16":
                            raw = T.simd.vld(x_ub[r, k * LANES], "UNPK_B16")
                            value[k] = T.simd.vcvt(raw, T.float32)
                        else:
                            value[k] = T.simd.vld(x_ub[r, k * LANES])
                    for k in registers:
                        if is_pair_split:
                            partner = value[1 - k]
                        else:
                            partner = T.simd.vselr(value[k], partner_lane)
                        rotated = T.simd.vadd(
                            T.simd.vmul(value[k], cos[k]), T.simd.vmul(partner, sin[k])
                        )
                        if dtype == "bfloat16":
                            # Without saturation: what is beyond bfloat16 becomes infinite.
                            rounded = T.simd.vcvt(rotated, T.bfloat16, sat=False)
                            T.simd.vsts(y_ub[r, k * LANES], rounded, dist="PK_B32")
                        else:
                            T.simd.vsts(y_ub[r, k * LANES], rotated)

            # store
            T.copy(y_ub[0:num_rows, 0:head_dim], x[token, head : head + num_rows, 0:head_dim])

    @T.prim_func
    def apply_rotary_ascend(
        query: T.StridedTensor((num_tokens, num_heads, head_dim), (*query_layout[1:], 1), dtype),
        key: T.StridedTensor((num_tokens, num_key_heads, head_dim), (*key_layout[1:], 1), dtype),
        cos_sin_cache: T.Tensor((cache_rows, head_dim), T.float32),
        positions: T.Tensor((num_positions,), T.int64),
        positions_int32: T.Tensor((num_positions_int32,), T.int32),
        has_key: T.bool,
        conjugate: T.bool,
        seqlen_offset: T.int64,
        sequence_length: T.int32,
        num_vec_cores: T.int32,
    ) -> None:
        with T.Kernel(num_vec_cores) as core:
            rotate_rows(
                query,
                query_layout,
                core,
                num_vec_cores,
                (cos_sin_cache, positions, positions_int32),
                (conjugate, seqlen_offset, sequence_length),
            )
            if has_key:
                rotate_rows(
                    key,
                    key_layout,
                    core,
                    num_vec_cores,
                    (cos_sin_cache, positions, positions_int32),
                    (conjugate, seqlen_offset, sequence_length),
                )

    return apply_rotary_ascend
