"""topk_gate, CUDA: the indices of the num_topk largest scores of every token, largest first.

    idx[t, 0], ..., idx[t, num_topk - 1] = the first num_topk entries of the permutation that sorts
    scores[t, :] in descending order; equal scores (-0.0 equals 0.0) keep ascending index order.
    A row with a NaN or an infinity has no such order: all its entries are -1.

One warp owns one row, a block owns 4 rows (8 where num_experts <= 128); warps share nothing.
On-chip: no shared memory; registers of a lane about 4 * (run + 3 * min(run, num_topk)) bytes,
run = 4 * ceil(num_experts / 128) being the experts of one lane; the generic kernel 32 registers.
Parameters: 1 <= num_topk <= min(num_experts, 32), num_experts <= 1024; None is "at run time".
With both given and num_experts % 4 == 0 rows are read 16 bytes at a time (scores aligned to 16
bytes); otherwise the generic kernel reads 4 bytes and asks for no more alignment than that.
Numerics: exact; scores are only compared, so a row's result does not depend on its batch. The time
does not depend on the scores.
Reference: torch.sort(scores, dim=1, descending=True, stable=True).indices[:, :num_topk].
Source: original.
"""

# No `from __future__ import annotations`: T.prim_func evaluates its annotations, and as strings
# they would not see the factory's local names.
from typing import TYPE_CHECKING

import tilelang.language as T

if TYPE_CHECKING:
    from tvm.tirx import PrimFunc

# The kernels bound every index themselves; this pass would check every access a second time.
PASS_CONFIGS: dict[str, object] = {"tl.disable_safe_memory_legalize": True}

_MAX_EXPERTS = 1024
_MAX_TOPK = 32
_LANES = 32
# Padding behind the last expert: finite, and its larger index loses every tie with a real score.
_LOWEST = -3.4028234663852886e38
# Below the key of every finite score. Not -2**31: TVM's analyzer overflows when it negates that.
_KEY_NONE = -0x7FFFFFFF


def topk_gate(*, num_experts: int | None, num_topk: int | None) -> "PrimFunc":
    """Return the kernel for one (num_experts, num_topk); None leaves a value to run time.

    Raises ValueError for a combination that the operator does not allow.
    """
    if num_experts is not None and not 1 <= num_experts <= _MAX_EXPERTS:
        raise ValueError(f"num_experts: is {num_experts}, must be in 1..{_MAX_EXPERTS}")
    max_topk = _MAX_TOPK if num_experts is None else min(num_experts, _MAX_TOPK)
    if num_topk is not None and not 1 <= num_topk <= max_topk:
        raise ValueError(f"num_topk: is {num_topk}, must be in 1..{max_topk}")
    if num_experts is None or num_topk is None or num_experts % 4 != 0:
        return _generic(num_experts, num_topk)
    return _specialised(num_experts, num_topk)


def _order_key(score):
    """Map a float to an int32 of the same order; the addition makes -0.0 and 0.0 one key."""
    # A call, because the compiler would drop a plain `score + 0.0`.
    bits = T.reinterpret(T.call_extern("float32", "__fadd_rn", score, T.float32(0.0)), "int32")
    return bits ^ ((bits >> 31) & T.int32(0x7FFFFFFF))


def _score_of(key):
    return T.reinterpret(key ^ ((key >> 31) & T.int32(0x7FFFFFFF)), "float32")


def _add_finite_check(check, score):
    """Accumulate score * 0: the sum stays 0 while scores are finite and is NaN ever after."""
    return T.call_extern("float32", "__fmaf_rn", score, T.float32(0.0), check)


def _ballot(predicate):
    return T.cast(T.ballot_sync(predicate), "uint32")


def _lowest_bit(mask):
    return T.call_extern("int32", "__ffs", mask) - 1


def _bit(position):
    return T.uint32(1) << T.cast(position, "uint32")


def _merge_sort(num_wires: int) -> list[tuple[int, int]]:
    """Return the comparators (larger, smaller) of Batcher's odd-even merge sort."""
    pairs = []
    span = 1
    while span < num_wires:
        step = span
        while step:
            for base in range(step % span, num_wires - step, 2 * step):
                for i in range(base, min(base + step, num_wires - step)):
                    if i // (2 * span) == (i + step) // (2 * span):
                        pairs.append((i, i + step))
            step //= 2
        span *= 2
    return pairs


def _specialised(num_experts: int, num_topk: int) -> "PrimFunc":
    """Build the kernel that keeps a row in the registers of its warp, as one sorted run a lane."""
    num_tokens = T.dynamic("num_tokens")
    num_vectors = num_experts // 4
    run_vectors = -(-num_vectors // _LANES)
    run = 4 * run_vectors
    depth = min(run, num_topk)  # what a lane can win; the compiler drops comparators past it
    # Four-float runs are so little work that launching blocks of 4 warps would set the pace.
    warps = 8 if run == 4 else 4

    @T.prim_func
    def topk_gate(
        scores: T.Tensor((num_tokens, num_experts), "float32"),
        idx: T.Tensor((num_tokens, num_topk), "int64"),
    ):
        with T.Kernel(T.ceildiv(num_tokens, warps), threads=warps * _LANES) as block:
            thread = T.get_thread_binding()
            lane = thread % _LANES
            row = T.cast(block * warps + thread // _LANES, "int64")
            x_local = T.alloc_local((run,), "float32")
            key_local = T.alloc_local((depth,), "int32")
            check = T.alloc_var("float32", init=0.0)
            won_key = T.alloc_var("int32", init=0)
            won_tied = T.alloc_var("uint32", init=1)
            equal = T.alloc_var("uint32", init=0)
            T.pdl_sync()
            if row < num_tokens:
                # load: contiguous runs, so that the lowest lane of a tie also has the lowest index
                for v in T.unroll(run_vectors):
                    if lane * run_vectors + v < num_vectors:
                        for e in T.vectorized(4):
                            x_local[v * 4 + e] = scores[row, lane * run + v * 4 + e]
                    else:
                        for e in T.vectorized(4):
                            x_local[v * 4 + e] = T.float32(_LOWEST)

                # compute: every lane sorts its run, then each round pops the best head of all lanes
                for i in T.unroll(run):
                    check = _add_finite_check(check, x_local[i])
                for upper, lower in _merge_sort(run):
                    larger = T.max(x_local[upper], x_local[lower])
                    smaller = T.min(x_local[upper], x_local[lower])
                    x_local[upper] = larger
                    x_local[lower] = smaller
                for d in T.unroll(depth):
                    key_local[d] = _order_key(x_local[d])
                lanes_below = _bit(lane) - 1
                for r in T.unroll(num_topk):
                    best = T.warp_reduce_max(key_local[0])
                    tied = _ballot(key_local[0] == best)
                    if lane == r:
                        won_key = best
                        won_tied = tied
                    if (key_local[0] == best) & ((tied & lanes_below) == 0):
                        for d in T.unroll(depth - 1):
                            key_local[d] = key_local[d + 1]
                        key_local[depth - 1] = _KEY_NONE

                # Lane r now finds the index of the r-th score in its owner's run. Of the ranks that
                # name one score of one owner, the first is the first such expert, and so on.
                # The mask changes no value; knowing the range saves the compiler 8 to 25 registers.
                owner = _lowest_bit(won_tied) & (_LANES - 1)
                same_key = T.shfl_up(won_key, 1) == won_key
                same_owner = T.shfl_up(owner, 1) == owner
                starts = _ballot((lane == 0) | (not (same_key & same_owner)))
                start = 31 - T.call_extern("int32", "__clz", starts & (lanes_below * 2 + 1))
                if lane < num_topk:
                    score = _score_of(won_key)
                    for v in T.unroll(run_vectors):
                        if owner * run_vectors + v < num_vectors:
                            for e in T.vectorized(4):
                                x_local[v * 4 + e] = scores[row, owner * run + v * 4 + e]
                    for i in T.unroll(run):
                        here = T.if_then_else(x_local[i] == score, T.uint32(1 << i), T.uint32(0))
                        equal = equal | here
                    for _ in T.unroll(lane - start, unroll_factor=1):
                        equal = equal & (equal - 1)
                not_finite = T.any_sync(T.if_then_else(check == 0.0, 0, 1))

                # A trigger long before the end delays the next kernel instead of hiding its launch.
                T.pdl_trigger()

                # store
                if lane < num_topk:
                    expert = T.cast(owner * run + _lowest_bit(equal), "int64")
                    idx[row, lane] = T.if_then_else(not_finite != 0, T.int64(-1), expert)

    return topk_gate


def _generic(num_experts: int | None, num_topk: int | None) -> "PrimFunc":
    """Build the kernel that keeps no row in registers: any num_experts, any num_topk.

    Chunk c is the 32 experts from 32 * c on, and lane c keeps its largest key. Each round takes
    the first chunk that holds the maximum, reads it again (from L1) and takes the first expert
    that has it.
    """
    num_tokens = T.dynamic("num_tokens")
    experts = T.dynamic("num_experts") if num_experts is None else num_experts
    topk = T.dynamic("num_topk") if num_topk is None else num_topk
    warps = 4
    batch = 8  # chunks whose loads are in flight together

    @T.prim_func
    def topk_gate(
        scores: T.Tensor((num_tokens, experts), "float32"),
        idx: T.Tensor((num_tokens, topk), "int64"),
    ):
        with T.Kernel(T.ceildiv(num_tokens, warps), threads=warps * _LANES) as block:
            thread = T.get_thread_binding()
            lane = thread % _LANES
            row = T.cast(block * warps + thread // _LANES, "int64")
            x_local = T.alloc_local((batch,), "float32")
            check = T.alloc_var("float32", init=0.0)
            head = T.alloc_var("int32", init=_KEY_NONE)
            key = T.alloc_var("int32", init=_KEY_NONE)
            taken = T.alloc_var("uint32", init=0)  # bit c: this lane's expert of chunk c is taken
            won = T.alloc_var("int32", init=0)
            T.pdl_sync()
            if row < num_tokens:
                # load
                for b in T.serial(T.ceildiv(experts, batch * _LANES)):
                    for c in T.unroll(batch):
                        x_local[c] = T.float32(_LOWEST)
                        if (b * batch + c) * _LANES + lane < experts:
                            x_local[c] = scores[row, (b * batch + c) * _LANES + lane]
                    for c in T.unroll(batch):
                        check = _add_finite_check(check, x_local[c])
                        chunk_best = T.warp_reduce_max(_order_key(x_local[c]))
                        if lane == b * batch + c:
                            head = chunk_best

                # compute
                for r in T.unroll(topk, unroll_factor=1):
                    best = T.warp_reduce_max(head)
                    chunk = _lowest_bit(_ballot(head == best))
                    key = _KEY_NONE
                    if chunk * _LANES + lane < experts and (taken & _bit(chunk)) == 0:
                        key = _order_key(scores[row, chunk * _LANES + lane])
                    first = _lowest_bit(_ballot(key == best))
                    if lane == first:
                        taken = taken | _bit(chunk)
                        key = _KEY_NONE
                    rest = T.warp_reduce_max(key)
                    if lane == chunk:
                        head = rest
                    if lane == r:
                        won = chunk * _LANES + first
                not_finite = T.any_sync(T.if_then_else(check == 0.0, 0, 1))
                T.pdl_trigger()

                # store
                if lane < topk:
                    expert = T.cast(won, "int64")
                    idx[row, lane] = T.if_then_else(not_finite != 0, T.int64(-1), expert)

    return topk_gate
