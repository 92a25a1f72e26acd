"""apply_rotary, CUDA: rotary position embedding of query and key, in place.

    position = p[t] + seqlen_offset, where p[t] is given or t mod sequence_length
    c[i], s[i] = cos_sin_cache[position, i], cos_sin_cache[position, head_dim / 2 + i]
    a, b = a * c[i] - b * s[i], a * s[i] + b * c[i]
for each pair a, b = x[i], x[head_dim / 2 + i], or x[2 i], x[2 i + 1] if interleaved; s is negated
if conjugate. A token whose position is not a row of the cache keeps its values.

A row is one head of one token. A thread owns two vectors of 16 bytes of a row, half a row apart:
both members of its pairs, whichever way they are paired. A block owns THREADS / lanes consecutive
rows, lanes being the vectors of half a row; the blocks of query come first, those of key after
them. Small blocks of many to a multiprocessor: the wait for position and then cosine and sine is
hidden by other blocks, and two rows a thread were slower at every size.
On-chip: no shared memory; registers of a thread: 8 of x, and 16 (bfloat16) or 8 of the table.
Parameters: head_dim / 2 is a multiple of a vector's elements. Where an address or a stride is not a
multiple of 16 bytes, the same threads read and write single elements.
Numerics: exact. Every product and every sum is rounded to fp32 by itself (no fused multiply-add),
the result once to dtype, to nearest even.
Reference: tilewheel.reference.transform.apply_rotary.
Source: original.
"""

# No `from __future__ import annotations`: T.prim_func evaluates its annotations.
from typing import TYPE_CHECKING

import tilelang.language as T

if TYPE_CHECKING:
    from tvm.tirx import PrimFunc

# The kernel bounds every index itself; this pass would check every access a second time.
PASS_CONFIGS: dict[str, object] = {"tl.disable_safe_memory_legalize": True}

_VECTOR_BYTES = 16
_ELEMENT_BYTES = {"bfloat16": 2, "float32": 4}
_THREADS = 128
_BLOCKS_PER_SM = 12  # three quarters of the threads there are; 40 registers are enough
_NOWHERE = -0x7FFFFFFF  # no position, also after adding the largest seqlen_offset


# Calls, because nvcc would fuse a plain product and sum into one rounding.
def _mul(a, b):
    return T.call_extern("float32", "__fmul_rn", a, b)


def _add(a, b):
    return T.call_extern("float32", "__fadd_rn", a, b)


def _sub(a, b):
    return T.call_extern("float32", "__fsub_rn", a, b)


def _address(element):
    return T.call_extern("uint64", "reinterpret_cast<uint64_t>", T.address_of(element))


def apply_rotary(*, dtype: str, head_dim: int, interleaved: bool) -> "PrimFunc":
    """Return the kernel for rows of one type, width and pairing.

    Raises ValueError for a width that the threads of a block do not cover with whole vectors.
    """
    width = _VECTOR_BYTES // _ELEMENT_BYTES[dtype]  # elements of a vector, pairs of a thread
    half = head_dim // 2
    lanes = half // width
    if head_dim % (2 * width) != 0 or _THREADS % lanes != 0:
        raise ValueError(
            f"head_dim: is {head_dim}, must be {2 * width} times a divisor of {_THREADS}"
        )
    block_rows = _THREADS // lanes
    parts = 2 if interleaved else 1  # runs of consecutive pairs that a thread owns
    run = width // parts

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

    def pair(p):
        """Return where pair p of a thread lies in its elements of a row."""
        return (2 * p, 2 * p + 1) if interleaved else (p, p + width)

    def element(x_words, i):
        """Return element i of a thread's part of a row, from the words that were loaded."""
        if dtype == "float32":
            return T.reinterpret(x_words[i], "float32")
        # A bfloat16 is the upper half of a float32; the first of two is the lower half of a word.
        high = x_words[i // 2] << T.cast(16 - i % 2 * 16, "uint32")
        return T.reinterpret(high & T.uint32(0xFFFF0000), "float32")

    def num_blocks(heads):
        return T.ceildiv(T.cast(num_tokens, "int64") * heads, block_rows)

    # Tuples, because a macro's parameters rename the sizes and strides that they are given, and the
    # launcher knows those by name.
    @T.macro
    def rotate_rows(x, layout, block, tables, scalars):
        thread = T.get_thread_binding()
        lane = thread % lanes
        x_words = T.alloc_local((8,), "uint32")
        y_local = T.alloc_local((2 * width,), dtype)
        cos_local = T.alloc_local((width,), "float32")
        sin_local = T.alloc_local((width,), "float32")
        position = T.alloc_var("int64", init=_NOWHERE)
        position_int32 = T.alloc_var("int32", init=_NOWHERE)
        start = T.alloc_var("int64", init=0)  # a variable: inlined, it is computed at every use
        is_wide = (
            T.cast((layout[1] | layout[2]) & (width - 1), "uint64") | (_address(x[0, 0, 0]) & 15)
        ) == 0
        # 2**32 rows of 128 bytes or more fit no device.
        row = T.cast(block, "uint32") * block_rows + thread // lanes
        token = T.truncdiv(row, T.cast(layout[0], "uint32"))
        head = row - token * T.cast(layout[0], "uint32")
        # The last block's spare threads read the last token, and write nothing.
        owner = T.min(token, T.cast(num_tokens - 1, "uint32"))
        start = T.cast(owner, "int64") * layout[1] + T.cast(head, "int64") * layout[2]

        # load: x first, as only cosine and sine wait for the position
        if is_wide:
            for part in T.unroll(2):
                # An instruction of its own: nvcc moves a plain load to where its value is used,
                # behind that wait.
                x_words[T.Ramp(part * 4, 1, 4)] = T.ldg128(
                    x[0, 0, start + part * half + lane * width]
                )
        if token < T.cast(num_tokens, "uint32"):
            if token < T.cast(num_positions, "uint32"):
                position = tables[1][token]
            elif token < T.cast(num_positions_int32, "uint32"):
                position_int32 = tables[2][token]
            elif num_positions + num_positions_int32 == 0:
                position_int32 = T.cast(token, "int32")
                if token >= T.cast(scalars[2], "uint32"):
                    position_int32 = T.cast(
                        T.truncmod(token, T.cast(scalars[2], "uint32")), "int32"
                    )
        if num_positions == 0:
            position = T.cast(position_int32, "int64")
        position = position + scalars[1]
        is_inside = T.cast(position, "uint64") < T.cast(cache_rows, "uint64")
        if is_wide and is_inside:
            for part in T.unroll(parts):
                for e in T.vectorized(run):
                    cos_local[part * run + e] = tables[0][
                        position, part * (half // 2) + lane * run + e
                    ]
                for e in T.vectorized(run):
                    sin_local[part * run + e] = tables[0][
                        position, half + part * (half // 2) + lane * run + e
                    ]
        T.pdl_trigger()

        # compute and store
        sign = T.if_then_else(scalars[0], T.float32(-1.0), T.float32(1.0))
        if is_inside:
            if is_wide:
                for p in T.unroll(width):
                    i, j = pair(p)
                    a = element(x_words, i)
                    b = element(x_words, j)
                    c = cos_local[p]
                    s = sin_local[p] * sign
                    y_local[i] = T.cast(_sub(_mul(a, c), _mul(b, s)), dtype)
                    y_local[j] = T.cast(_add(_mul(a, s), _mul(b, c)), dtype)
                for part in T.unroll(2):
                    for e in T.vectorized(width):
                        # Dividing and multiplying shows the compiler an aligned address.
                        x[0, 0, start // width * width + part * half + lane * width + e] = y_local[
                            part * width + e
                        ]
            else:
                for p in T.unroll(width, unroll_factor=1):
                    k = p * lanes + lane
                    i = start + (2 * k if interleaved else k)
                    j = start + (2 * k + 1 if interleaved else half + k)
                    a = T.cast(x[0, 0, i], "float32")
                    b = T.cast(x[0, 0, j], "float32")
                    c = tables[0][position, k]
                    s = tables[0][position, half + k] * sign
                    x[0, 0, i] = T.cast(_sub(_mul(a, c), _mul(b, s)), dtype)
                    x[0, 0, j] = T.cast(_add(_mul(a, s), _mul(b, c)), dtype)

    @T.prim_func
    def apply_rotary(
        query: T.StridedTensor((num_tokens, num_heads, head_dim), (*query_layout[1:], 1), dtype),
        key: T.StridedTensor((num_tokens, num_key_heads, head_dim), (*key_layout[1:], 1), dtype),
        cos_sin_cache: T.Tensor((cache_rows, head_dim), "float32"),
        positions: T.Tensor((num_positions,), "int64"),
        positions_int32: T.Tensor((num_positions_int32,), "int32"),
        has_key: T.bool,
        conjugate: T.bool,
        seqlen_offset: T.int64,
        sequence_length: T.int32,
    ):
        with T.Kernel(
            num_blocks(num_heads) + T.cast(has_key, "int64") * num_blocks(num_key_heads),
            threads=_THREADS,
        ) as block:
            T.annotate_min_blocks_per_sm(_BLOCKS_PER_SM)
            T.pdl_sync()
            if block < num_blocks(num_heads):
                rotate_rows(
                    query,
                    query_layout,
                    block,
                    (cos_sin_cache, positions, positions_int32),
                    (conjugate, seqlen_offset, sequence_length),
                )
            else:
                rotate_rows(
                    key,
                    key_layout,
                    block - num_blocks(num_heads),
                    (cos_sin_cache, positions, positions_int32),
                    (conjugate, seqlen_offset, sequence_length),
                )

    return apply_rotary
