"""topk_gate for Ascend: the num_topk best experts of every token, SIMD on the vector cores.

    idx[t, r] = the expert of rank r when the scores of row t are ordered by
                (score descending, expert ascending), 0 <= r < num_topk;
    idx[t, :] = -1 when row t holds a NaN or an infinity; -0.0 equals 0.0.

Method: scores become int32 keys of the same order. A register holds a group of 64 experts, expert
64 g + l in lane l. Every lane sorts its candidates, one from each group, once; slot 0 then holds
the best candidate of each lane, so that a rank costs one maximum, one minimum over the tied
experts, and one shift of the winning lane's list.

One block (vector core) owns ceil(num_tokens / num_vec_cores) consecutive rows, the last blocks
fewer or none, and walks them in double-buffered blocks of BLOCK_TOKENS rows.
UB bytes: 2 * BLOCK_TOKENS * 4 * (padded_experts + 2 * MAX_TOPK), padded_experts being num_experts
rounded up to whole passes, 1024 when it is decided at run time: 8 KiB for 64 experts, 60 KiB for
896, 68 KiB at most.
Parameters: 1 <= num_experts <= 1024, 1 <= num_topk <= min(num_experts, 32), also where one of them
is decided at run time: this code does not check run-time values, its launcher does.
Numerics: exact, and each row independent of every other row and of num_vec_cores. Only integer
operations touch the scores, so that the float unit's treatment of subnormals, zeros and NaN
does not matter.
Reference: torch.sort(scores, dim=1, descending=True, stable=True).indices[:, :num_topk].
Source: original.
"""

from typing import TYPE_CHECKING

import tilelang.ascend.language as T

if TYPE_CHECKING:
    from tvm.tirx import PrimFunc

PASS_CONFIGS: dict[str, object] = {}

LANES = 64  # 32-bit lanes of a vector register
MAX_GROUPS = 8  # groups of one pass: each keeps two registers, a key and an expert
BLOCK_TOKENS = 8  # rows of one DMA: 2 KiB or more, and two blocks already at 16 rows a core
MAX_EXPERTS = 1024
MAX_TOPK = 32  # 32 int64 fill one vector register
INT32_MIN, INT32_MAX = -(2**31), 2**31 - 1
MAX_FINITE_BITS = 0x7F7FFFFF


def topk_gate(
    *, num_experts: int | None, num_topk: int | None, num_vec_cores: int | None
) -> "PrimFunc":
    """Return the kernel (scores, idx[, num_vec_cores]); None leaves a value to run time."""
    _check(num_experts, num_topk, num_vec_cores)
    # A row of more groups takes several passes. The best so far then ride along in slot 0: all
    # their experts are smaller than those of the pass, and the sort is stable.
    num_groups = 4 if num_experts is None else _ceildiv(num_experts, LANES)
    num_passes = _ceildiv(num_groups, MAX_GROUPS)
    num_groups = _ceildiv(num_groups, num_passes)
    pass_experts = num_groups * LANES
    padded_experts = MAX_EXPERTS if num_experts is None else num_passes * pass_experts
    first_slot = 1 if num_experts is None or num_passes > 1 else 0
    depth = first_slot + num_groups
    # Lists, because a loop over range() is traced while a loop over a list is unrolled. A group is
    # partial if, in the last pass, it ends after the last expert.
    last_pass = padded_experts - pass_experts
    groups = [
        (g, num_experts is None or last_pass + (g + 1) * LANES > num_experts)
        for g in range(num_groups)
    ]
    # Insertion sort as a network: exchanging neighbours only, and only if less, keeps it stable.
    network = [upper for last in range(1, depth) for upper in reversed(range(last))]

    num_tokens = T.dynamic("num_tokens")
    experts = T.dynamic("num_experts") if num_experts is None else num_experts
    topk = T.dynamic("num_topk") if num_topk is None else num_topk

    @T.macro
    def select_rows(scores, idx, num_vec_cores, core):  # type: ignore[no-untyped-def]
        scores_ub = T.alloc_shared((BLOCK_TOKENS, padded_experts), T.float32)
        idx_ub = T.alloc_shared((BLOCK_TOKENS, MAX_TOPK), T.int64)
        bits_ub = T.view(scores_ub, (BLOCK_TOKENS, padded_experts), T.int32)
        words_ub = T.view(idx_ub, (BLOCK_TOKENS, 2 * MAX_TOPK), T.int32)
        T.annotate_buffer_versions({scores_ub: 2, idx_ub: 2})

        # truncdiv: a floor division by a run-time value adds a remainder and a sign test.
        share = T.truncdiv(num_tokens + num_vec_cores - 1, num_vec_cores)
        begin = core * share
        end = T.min(begin + share, num_tokens)
        for block in T.Pipelined(T.ceildiv(T.max(end - begin, 0), BLOCK_TOKENS), num_stages=2):
            row = begin + block * BLOCK_TOKENS
            num_rows = T.min(BLOCK_TOKENS, end - row)

            # load
            T.copy(scores[row : row + num_rows, 0:experts], scores_ub[0:num_rows, 0:experts])

            # compute
            with T.SimdVF():
                lane = T.simd.vci(0, T.int32)
                zero = T.simd.vdup(0, T.int32)
                minus_one = T.simd.vdup(-1, T.int32)
                magnitude_mask = T.simd.vdup(INT32_MAX, T.int32)
                never = T.simd.vdup(INT32_MIN, T.int32)  # below the key of every score
                nowhere = T.simd.vdup(INT32_MAX, T.int32)  # above every expert
                key = T.simd.alloc_local((depth,), T.int32)
                expert = T.simd.alloc_local((depth,), T.int32)
                top_key = T.simd.alloc_var(T.int32)  # lane r: the key of rank r
                top_expert = T.simd.alloc_var(T.int32)
                largest = T.simd.alloc_var(T.int32)
                for r in T.serial(num_rows):
                    top_key = never
                    top_expert = nowhere
                    largest = zero
                    for p in T.serial(T.ceildiv(experts, pass_experts)):
                        if first_slot == 1:
                            key[0] = top_key
                            expert[0] = top_expert
                        for g, is_partial in groups:
                            slot = first_slot + g
                            offset = p * pass_experts + g * LANES
                            # Sign and magnitude to two's complement: -0.0 and 0.0 both give 0.
                            raw = T.simd.vld(bits_ub[r, offset])
                            magnitude = T.simd.vand(raw, magnitude_mask)
                            negative = T.simd.vcmps(raw, 0, op="lt")
                            signed_key = T.simd.vsel(
                                T.simd.vsub(zero, magnitude), magnitude, negative
                            )
                            expert[slot] = T.simd.vadds(lane, offset)
                            if is_partial:
                                inside = T.simd.vcmps(expert[slot], experts, op="lt")
                                magnitude = T.simd.vsel(magnitude, zero, inside)
                                signed_key = T.simd.vsel(signed_key, never, inside)
                            largest = T.simd.vmax(largest, magnitude)
                            key[slot] = signed_key
                        for upper in network:
                            lower = upper + 1
                            swap = T.simd.vcmp(key[upper], key[lower], op="lt")
                            greater_key = T.simd.vmax(key[upper], key[lower])
                            greater_expert = T.simd.vsel(expert[lower], expert[upper], swap)
                            key[lower] = T.simd.vmin(key[upper], key[lower])
                            expert[lower] = T.simd.vsel(expert[upper], expert[lower], swap)
                            key[upper] = greater_key
                            expert[upper] = greater_expert
                        for rank in T.serial(topk):
                            best = T.simd.vdupv(T.simd.vcmax(key[0]))
                            # A select and a full minimum, no masked one: what an inactive lane
                            # contributes to a masked reduction is not specified.
                            is_tied = T.simd.vcmp(key[0], best, op="eq")
                            tied = T.simd.vsel(expert[0], nowhere, is_tied)
                            first = T.simd.vdupv(T.simd.vcmin(tied))
                            is_winner = T.simd.vcmp(tied, first, op="eq")
                            for upper in T.unroll(depth - 1, explicit=True):
                                key[upper] = T.simd.vsel(key[upper + 1], key[upper], is_winner)
                                expert[upper] = T.simd.vsel(
                                    expert[upper + 1], expert[upper], is_winner
                                )
                            key[depth - 1] = T.simd.vsel(never, key[depth - 1], is_winner)
                            is_rank = T.simd.vcmps(lane, rank, op="eq")
                            top_expert = T.simd.vsel(first, top_expert, is_rank)
                            if first_slot == 1:
                                top_key = T.simd.vsel(best, top_key, is_rank)
                    is_bad = T.simd.vcmps(
                        T.simd.vdupv(T.simd.vcmax(largest)), MAX_FINITE_BITS, op="gt"
                    )
                    low = T.simd.vsel(minus_one, top_expert, is_bad)
                    high = T.simd.vsel(minus_one, zero, is_bad)
                    words, _ = T.simd.vintlv(low, high)
                    T.simd.vsts(words_ub[r, 0], words)

            # store
            T.copy(idx_ub[0:num_rows, 0:topk], idx[row : row + num_rows, 0:topk])

    if num_vec_cores is None:

        @T.prim_func
        def topk_gate_ascend(
            scores: T.Tensor((num_tokens, experts), T.float32),
            idx: T.Tensor((num_tokens, topk), T.int64),
            num_vec_cores: T.int32,
        ) -> None:
            with T.Kernel(num_vec_cores) as core:
                select_rows(scores, idx, num_vec_cores, core)

    else:

        @T.prim_func
        def topk_gate_ascend(
            scores: T.Tensor((num_tokens, experts), T.float32),
            idx: T.Tensor((num_tokens, topk), T.int64),
        ) -> None:
            with T.Kernel(num_vec_cores) as core:
                select_rows(scores, idx, num_vec_cores, core)

    return topk_gate_ascend


def _ceildiv(value: int, divisor: int) -> int:
    return -(-value // divisor)


def _check(num_experts: int | None, num_topk: int | None, num_vec_cores: int | None) -> None:
    """Raise a ValueError that names every parameter which this kernel cannot take."""
    max_topk = min(num_experts or MAX_EXPERTS, MAX_TOPK)
    limits = (("num_experts", num_experts, MAX_EXPERTS), ("num_topk", num_topk, max_topk))
    errors = [
        f"topk_gate: {name}: is {value}, must be in 1..{most}"
        for name, value, most in limits
        if value is not None and not 1 <= value <= most
    ]
    if num_vec_cores is not None and num_vec_cores < 1:
        errors.append(f"topk_gate: num_vec_cores: is {num_vec_cores}, must be at least 1")
    if errors:
        raise ValueError("\n".join(errors))
