"""topk_gate, CUDA."""

from typing import TYPE_CHECKING

import tilelang.language as T

if TYPE_CHECKING:
    from tvm.tirx import PrimFunc

PASS_CONFIGS: dict[str, object] = {"tl.disable_thread_storage_sync": True, "tl.disable_safe_memory_legalize": True}

_MAX_EXPERTS = 1024
_MAX_TOPK = 32
_LANES = 32
_LOWEST = -3.4028234663852886e38  # the smallest finite float: loses every tie against a real score, having a larger index
_KEY_NONE = -0x7FFFFFFF  # below the key of every finite score (the analyzer of TVM overflows on -2**31)


def topk_gate(*, num_experts: int | None, num_topk: int | None) -> "PrimFunc":
    """Build the kernel for one (num_experts, num_topk); None leaves the value to run time."""
    if num_experts is not None and not 1 <= num_experts <= _MAX_EXPERTS:
        raise ValueError(f"topk_gate: num_experts: is {num_experts}, must be in 1..{_MAX_EXPERTS}")
    limit = min(num_experts or _MAX_TOPK, _MAX_TOPK)
    if num_topk is not None and not 1 <= num_topk <= limit:
        raise ValueError(f"topk_gate: num_topk: is {num_topk}, must be in 1..{limit}")
    if num_experts is None or num_topk is None or num_experts % 4:
        return _by_chunk(num_experts, num_topk)
    return _by_list(num_experts, num_topk)


def _sorting_network(n: int) -> list[tuple[int, int]]:
    """Return Batcher's odd-even merge sort for n wires as (upper, lower) pairs."""
    pairs = []
    p = 1
    while p < n:
        k = p
        while k >= 1:
            for j in range(k % p, n - k, 2 * k):
                for i in range(min(k, n - j - k)):
                    if (i + j) // (2 * p) == (i + j + k) // (2 * p):
                        pairs.append((i + j, i + j + k))
            k //= 2
        p *= 2
    return pairs


def _order_key(x):
    bits = T.reinterpret(T.call_extern("float32", "__fadd_rn", x, T.float32(0.0)), "int32")
    return bits ^ ((bits >> 31) & T.int32(0x7FFFFFFF))


def _from_key(key):
    return T.reinterpret(key ^ ((key >> 31) & T.int32(0x7FFFFFFF)), "float32")


@T.macro
def _select_by_chunk(scores, idx, row, lane, num_experts, num_topk, batch):
    """Select one row's experts with one warp, for any number of experts and any ties; -1 everywhere if a score is not finite."""
    x_local = T.alloc_local((batch,), "float32")
    finite = T.alloc_var("float32")
    head = T.alloc_var("int32")
    key = T.alloc_var("int32")
    gone = T.alloc_var("uint32")
    won = T.alloc_var("int32")
    finite = 0.0
    head = _KEY_NONE
    gone = 0
    won = 0
    # load: lane c keeps the largest key of the 32 experts from 32 * c on
    for b in T.serial(T.ceildiv(num_experts, batch * _LANES)):
        for c in T.unroll(batch):
            x_local[c] = T.float32(_LOWEST)
            if (b * batch + c) * _LANES + lane < num_experts:
                x_local[c] = scores[row, (b * batch + c) * _LANES + lane]
        for c in T.unroll(batch):
            finite = T.call_extern("float32", "__fmaf_rn", x_local[c], T.float32(0.0), finite)
            chunk_best = T.warp_reduce_max(_order_key(x_local[c]))
            if lane == b * batch + c:
                head = chunk_best
    # compute
    for r in T.unroll(num_topk, unroll_factor=1):
        best = T.warp_reduce_max(head)
        chunk = _first_lane(head == best)
        key = _KEY_NONE
        if chunk * _LANES + lane < num_experts:
            if ((gone >> T.cast(chunk, "uint32")) & 1) == 0:
                key = _order_key(scores[row, chunk * _LANES + lane])
        first = _first_lane(key == best)
        if lane == first:
            gone = gone | (T.uint32(1) << T.cast(chunk, "uint32"))
            key = _KEY_NONE
        rest = T.warp_reduce_max(key)
        if lane == chunk:
            head = rest
        if lane == r:
            won = chunk * _LANES + first
    bad = T.any_sync(T.if_then_else(finite == 0.0, 0, 1))
    # store
    if lane < num_topk:
        idx[row, lane] = T.if_then_else(bad != 0, T.int64(-1), T.cast(won, "int64"))


def _first_lane(predicate):
    ballot = T.cast(T.ballot_sync(predicate), "uint32")
    return (T.call_extern("int32", "__ffs", ballot) - 1) & (_LANES - 1)


def _top_network(run: int, depth: int) -> list[tuple[int, int]]:
    """Return (keep larger, keep smaller or -1) wire pairs that leave the depth largest of run wires sorted in front."""
    pairs = []
    for start in range(0, run, depth):
        size = min(depth, run - start)
        pairs += [(start + hi, start + lo) for hi, lo in _sorting_network(size)]
        if start == 0:
            continue
        # The larger half of two sorted lists is bitonic, and log2(depth) half-cleaners sort it.
        pairs += [(depth - 1 - i, -1 - (start + i)) for i in range(size)]
        step = depth // 2
        while step:
            pairs += [(i, i + step) for i in range(depth) if not i & step]
            step //= 2
    return pairs


def _by_list(
    num_experts: int, num_topk: int, warps: int = 8, pdl: bool = True, min_blocks: int = 1, depth_cap: int = 4, rows_cap: int = 32, div: int = 8192,
) -> "PrimFunc":
    num_tokens = T.dynamic("num_tokens")
    vectors = num_experts // 4
    run_vectors = -(-vectors // _LANES)
    run = 4 * run_vectors
    depth = min(run, depth_cap)
    network = _top_network(run, depth)
    max_rows = min(_LANES // num_topk, rows_cap)
    pack = 2 if num_topk % 2 == 0 else 1

    @T.prim_func
    def topk_gate(
        scores: T.Tensor((num_tokens, num_experts), "float32"),
        idx: T.Tensor((num_tokens, num_topk), "int64"),
    ):
        with T.Kernel(T.ceildiv(num_tokens, warps * T.min(max_rows, num_tokens // div + 1)), threads=warps * _LANES) as block:
            if min_blocks > 1:
                T.annotate_min_blocks_per_sm(min_blocks)
            thread = T.get_thread_binding()
            lane = thread % _LANES
            warp = thread // _LANES
            rows = T.min(max_rows, num_tokens // div + 1)
            first_row = (block * warps + warp) * rows
            won_shared = T.alloc_shared((warps, _LANES), "int64")
            won_local = T.alloc_local((num_topk,), "int64")
            row = T.alloc_var("int32", init=0)
            position = T.alloc_var("int32", init=0)
            x_local = T.alloc_local((run,), "float32")
            key_local = T.alloc_local((depth,), "int32")
            finite = T.alloc_var("float32", init=0.0)
            redo = T.alloc_var("uint32", init=0)
            equal = T.alloc_var("uint32", init=0)
            lanes_below = (T.uint32(1) << T.cast(lane, "uint32")) - T.uint32(1)
            if pdl:
                T.pdl_sync()
            for q in T.unroll(rows, unroll_factor=1):
                row = T.min(first_row + q, num_tokens - 1)
                # load
                for v in T.unroll(run_vectors):
                    if lane * run_vectors + v < vectors:
                        for e in T.vectorized(4):
                            x_local[v * 4 + e] = scores[row, lane * run + v * 4 + e]
                    else:
                        for e in T.vectorized(4):
                            x_local[v * 4 + e] = T.float32(_LOWEST)
                # compute
                finite = 0.0
                for i in T.unroll(run):
                    finite = T.call_extern("float32", "__fmaf_rn", x_local[i], T.float32(0.0), finite)
                for upper, lower in network:
                    if lower >= 0:
                        hi = T.max(x_local[upper], x_local[lower])
                        lo = T.min(x_local[upper], x_local[lower])
                        x_local[upper] = hi
                        x_local[lower] = lo
                    else:
                        x_local[upper] = T.max(x_local[upper], x_local[-1 - lower])
                for d in T.unroll(depth):
                    key_local[d] = _order_key(x_local[d])
                for r in T.unroll(num_topk):
                    best = T.warp_reduce_max(key_local[0])
                    tied = T.cast(T.ballot_sync(key_local[0] == best), "uint32")
                    won_local[r] = (T.cast(best, "int64") << 32) | T.cast(tied, "int64")
                    if (key_local[0] == best) & ((tied & lanes_below) == 0):
                        for d in T.unroll(depth - 1):
                            key_local[d] = key_local[d + 1]
                        key_local[depth - 1] = _KEY_NONE
                if lane == 0:
                    for r in T.unroll(num_topk // pack):
                        for e in T.vectorized(pack):
                            won_shared[warp, q * num_topk + r * pack + e] = won_local[r * pack + e]
                if run > depth:
                    dry = T.any_sync(T.if_then_else((finite == 0.0) & (key_local[0] != _KEY_NONE), 0, 1))
                    redo = redo | (T.cast(dry, "uint32") << T.cast(q, "uint32"))
                else:
                    dry = T.any_sync(T.if_then_else(finite == 0.0, 0, 1))
                    redo = redo | (T.cast(dry, "uint32") << T.cast(q, "uint32"))
            if pdl:
                T.pdl_trigger()
            T.sync_warp()
            # resolve
            won_key = T.cast(won_shared[warp, lane] >> 32, "int32")
            won_tied = T.cast(won_shared[warp, lane], "uint32")
            owner = (T.call_extern("int32", "__ffs", won_tied) - 1) & (_LANES - 1)
            same_key = T.shfl_up(won_key, 1) == won_key
            same_owner = T.shfl_up(owner, 1) == owner
            starts = T.cast(T.ballot_sync((lane % num_topk == 0) | (not (same_key & same_owner))), "uint32")
            seen = lane - 31 + T.call_extern("int32", "__clz", starts & (lanes_below * 2 + 1))
            q_mine = lane // num_topk
            if (q_mine < rows) & (first_row + q_mine < num_tokens):
                value = _from_key(won_key)
                row = T.min(first_row + q_mine, num_tokens - 1)
                for v in T.unroll(run_vectors):
                    if owner * run_vectors + v < vectors:
                        for e in T.vectorized(4):
                            x_local[v * 4 + e] = scores[row, owner * run + v * 4 + e]
                for i in T.unroll(run):
                    equal = equal | T.if_then_else(x_local[i] == value, T.uint32(1 << i), T.uint32(0))
                for _ in T.unroll(seen, unroll_factor=1):
                    equal = equal & (equal - 1)
                # store
                expert = owner * run + T.call_extern("int32", "__ffs", equal) - 1
                idx[first_row + q_mine, lane % num_topk] = T.cast(expert, "int64")
            if redo != 0:
                T.sync_warp()
                for q in T.unroll(rows, unroll_factor=1):
                    if ((redo >> T.cast(q, "uint32")) & 1) != 0:
                        _select_by_chunk(scores, idx, T.min(first_row + q, num_tokens - 1), lane, num_experts, num_topk, 4)

    return topk_gate


def _by_chunk(num_experts: int | None, num_topk: int | None, warps: int = 4, batch: int = 8, pdl: bool = True, min_blocks: int = 1) -> "PrimFunc":
    num_tokens = T.dynamic("num_tokens")
    experts = T.dynamic("num_experts") if num_experts is None else num_experts
    topk = T.dynamic("num_topk") if num_topk is None else num_topk

    @T.prim_func
    def topk_gate(
        scores: T.Tensor((num_tokens, experts), "float32"),
        idx: T.Tensor((num_tokens, topk), "int64"),
    ):
        with T.Kernel(T.ceildiv(num_tokens, warps), threads=warps * _LANES) as block:
            if min_blocks > 1:
                T.annotate_min_blocks_per_sm(min_blocks)
            thread = T.get_thread_binding()
            row = T.cast(block, "int64") * warps + thread // _LANES
            if pdl:
                T.pdl_sync()
                T.pdl_trigger()
            if row < num_tokens:
                _select_by_chunk(scores, idx, row, thread % _LANES, experts, topk, batch)

    return topk_gate
