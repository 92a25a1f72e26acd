"""engram_gate_bwd, CUDA: gradients of the Engram gate.

    z = dot * rstd_x * rstd_k / sqrt(hidden), grad_gate = sum(g * v)
    a = grad_gate * gate * (1 - gate) / (2 * sqrt(|z|)) * rstd_x * rstd_k / sqrt(hidden),
        or 0 where |z| < clamp_value
    grad_x = g + a * w * k - (a * dot * rstd_x^2 / hidden) * x
    grad_k = a * w * x - (a * dot * rstd_k^2 / hidden) * k
    grad_v = sum over the streams of gate * g
    grad_w_partial[p] = sum over the tokens of part p of a * x * k

Block p is part p and walks over the tokens p, p + num_parts, ...: a thread owns its columns
(columns_cuda.py) of all streams and keeps their sums of a * x * k in registers to the end. Copies
of the next token to shared memory start as soon as this one's values have been read, and no other
thread reads them, so that they need no barrier. g is read twice from there: kept in registers
beside the sums it would spill. With so few parts that four blocks a part fit, each takes one
stream, without a ring (backward_cuda.py). With hidden at run time, or where shared memory is too
small, see generic_bwd_cuda.py.
On-chip: 28 * hidden bytes of g, x and kv in shared memory (30 above 5120), 16 * hidden of weights,
or those of one column, if they fit; registers of a thread: 32 words of sums for each column.
Parameters: hidden a multiple of 256 (or of 512 above 5120) for the ring, of 64 otherwise.
Numerics: fp32 sums in a fixed order; grad_x and grad_kv rounded once, and a token's do not depend
on others nor on num_parts.
Reference: tilewheel.reference.engram.engram_gate_bwd.
Source: original.
"""

# No `from __future__ import annotations`: T.prim_func evaluates its annotations.
from typing import TYPE_CHECKING

import tilelang.language as T

from tilewheel_kernels.engram.backward_cuda import (
    add_products,
    add_to_grad_v,
    by_streams,
    gradients,
    load_weights,
    store_grad_v,
)
from tilewheel_kernels.engram.columns_cuda import (
    COLUMN,
    STREAMS,
    WARP,
    commit_async,
    copy_async,
    from_stream,
    gradient_factors,
    load_saved,
    shared_bytes,
    store_zeros,
    sum_over_block,
    wait_async,
)
from tilewheel_kernels.engram.generic_bwd_cuda import generic

if TYPE_CHECKING:
    from tvm.tirx import PrimFunc

# The kernels bound every index and place every barrier themselves.
PASS_CONFIGS: dict[str, object] = {
    "tl.disable_safe_memory_legalize": True,
    "tl.disable_thread_storage_sync": True,
}

_MAX_ONE_COLUMN = 5120
_SCRATCH_BYTES = 2048


def engram_gate_bwd(*, hidden: int | None) -> "PrimFunc":
    """Return the kernel for one hidden; None leaves it to run time.

    Raises ValueError for a hidden that is no multiple of 64.
    """
    if hidden is None:
        return generic(None)
    if hidden % 64 != 0:
        raise ValueError(f"hidden: is {hidden}, must be a multiple of 64")
    columns = 1 if hidden <= _MAX_ONE_COLUMN else 2
    if (
        hidden % (columns * COLUMN * WARP)
        or (26 + 2 * columns) * hidden + _SCRATCH_BYTES > shared_bytes()
    ):
        return generic(hidden)
    return _pipelined(hidden, columns)


def _pipelined(hidden: int, columns: int) -> "PrimFunc":
    """Build the kernel whose blocks copy the next token while they work on this one."""
    threads = hidden // COLUMN // columns
    warps = threads // WARP
    # The ring's slots: x and k of each stream, v, then g, which is read twice: more slots than
    # streams take the next token's first ones while grad_gate is computed.
    early = columns
    value, g_slots = 2 * STREAMS, STREAMS + early
    ring_bytes = 2 * (value + 1 + g_slots) * hidden
    keeps_weights = ring_bytes + 16 * hidden + _SCRATCH_BYTES <= shared_bytes()
    # Otherwise those of the first column: loaded ahead they would wait for the sum over the block.
    keeps_first = not keeps_weights and ring_bytes + 32 * threads + _SCRATCH_BYTES <= shared_bytes()
    kept = (STREAMS, columns) if keeps_weights else (1, 1)  # streams, columns
    on_chip = ring_bytes + 16 * hidden * keeps_weights + 32 * threads * keeps_first + _SCRATCH_BYTES
    blocks_per_sm = max(1, min(shared_bytes() // on_chip, 2))
    # Groups of copies: v and early g, then x, k and late g of each stream and column.
    pending = STREAMS * columns
    num_tokens = T.dynamic("num_tokens")
    num_masked = T.dynamic("num_masked")
    num_parts = T.dynamic("num_parts")

    @T.prim_func
    def engram_gate_bwd(
        grad_out: T.Tensor((num_tokens, STREAMS, hidden), "bfloat16"),
        x: T.Tensor((num_tokens, STREAMS, hidden), "bfloat16"),
        kv: T.Tensor((num_tokens, STREAMS + 1, hidden), "bfloat16"),
        weight_fused: T.Tensor((STREAMS, hidden), "float32"),
        dot: T.Tensor((num_tokens, STREAMS), "float32"),
        gate: T.Tensor((num_tokens, STREAMS), "float32"),
        rstd_x: T.Tensor((num_tokens, STREAMS), "float32"),
        rstd_k: T.Tensor((num_tokens, STREAMS), "float32"),
        image_token_mask: T.Tensor((num_masked,), "bool"),
        grad_x: T.Tensor((num_tokens, STREAMS, hidden), "bfloat16"),
        grad_kv: T.Tensor((num_tokens, STREAMS + 1, hidden), "bfloat16"),
        grad_w_partial: T.Tensor((num_parts, STREAMS, hidden), "float32"),
        clamp_value: T.float32,
        num_sms: T.int32,
    ):
        with T.Kernel(
            T.Select(
                num_parts * STREAMS <= num_sms * blocks_per_sm, num_parts * STREAMS, num_parts
            ),
            threads=threads,
        ) as part:
            T.annotate_min_blocks_per_sm(blocks_per_sm)
            thread = T.get_thread_binding()
            lane_stream = thread % WARP // (WARP // STREAMS)
            ring_shared = T.alloc_shared((value + 1 + g_slots, columns, threads, 4), "uint32")
            if keeps_weights or keeps_first:
                w_shared = T.alloc_shared((*kept, 2, threads, 4), "float32")
            partial_shared = T.alloc_shared((2, 1, STREAMS, warps), "float32")
            g_words = T.alloc_local((4,), "uint32")
            v_words = T.alloc_local((4,), "uint32")
            x_words = T.alloc_local((4,), "uint32")
            k_words = T.alloc_local((4,), "uint32")
            w_local = T.alloc_local((COLUMN,), "float32")
            sums_local = T.alloc_local((STREAMS * columns * COLUMN,), "float32")
            grad_v_local = T.alloc_local((COLUMN,), "float32")
            grad_x_local = T.alloc_local((COLUMN,), "bfloat16")
            grad_k_local = T.alloc_local((COLUMN,), "bfloat16")
            values_local = T.alloc_local((STREAMS,), "float32")
            total_local = T.alloc_local((1,), "float32")
            saved_local = T.alloc_local((5,), "float32")
            next_local = T.alloc_local((5,), "float32")
            own_local = T.alloc_local((3,), "float32")
            factor_local = T.alloc_local((3,), "float32")
            gate_local = T.alloc_local((STREAMS,), "float32")
            token = T.alloc_var("int64", init=T.cast(part, "int64"))
            is_masked = T.alloc_var("bool", init=False)
            is_next_masked = T.alloc_var("bool", init=False)
            num_steps = T.alloc_var("int32", init=0)
            T.pdl_sync()
            if num_parts * STREAMS <= num_sms * blocks_per_sm:
                by_streams(
                    (grad_out, x, kv, weight_fused),
                    (grad_x, grad_kv, grad_w_partial),
                    (dot, gate, rstd_x, rstd_k),
                    image_token_mask,
                    partial_shared,
                    part,
                    thread,
                    (columns, threads, hidden, True),
                    (num_tokens, num_masked, num_parts),
                    clamp_value,
                )
            else:
                for i in T.unroll(STREAMS * columns * COLUMN):
                    sums_local[i] = T.float32(0.0)

                # load: the weights and the first token
                if part < num_tokens:
                    num_steps = T.truncdiv(num_tokens - 1 - part, num_parts) + 1
                    for c in T.unroll(columns):
                        channel = (c * threads + thread) * COLUMN
                        copy_async(ring_shared[value, c, thread, 0], kv[token, STREAMS, channel])
                        for m in T.unroll(early):
                            copy_async(
                                ring_shared[value + 1 + m, c, thread, 0],
                                grad_out[token, m, channel],
                            )
                    commit_async()
                    for m in T.unroll(STREAMS):
                        for c in T.unroll(columns):
                            channel = (c * threads + thread) * COLUMN
                            copy_async(ring_shared[2 * m, c, thread, 0], x[token, m, channel])
                            copy_async(ring_shared[2 * m + 1, c, thread, 0], kv[token, m, channel])
                            if early + m < STREAMS:
                                copy_async(
                                    ring_shared[value + 1 + early + m, c, thread, 0],
                                    grad_out[token, early + m, channel],
                                )
                            if keeps_weights or (keeps_first and m + c == 0):
                                for half in T.unroll(2):
                                    copy_async(
                                        w_shared[m, c, half, thread, 0],
                                        weight_fused[m, channel + half * 4],
                                    )
                            commit_async()
                    if num_masked > 0:
                        is_next_masked = image_token_mask[token]
                    load_saved(next_local, (dot, gate, rstd_x, rstd_k), token, lane_stream)
                    next_local[4] = T.reinterpret(T.ldg32(gate[token, thread % STREAMS]), "float32")

                for step in T.unroll(num_steps, unroll_factor=1):
                    next_token = token + T.cast(num_parts, "int64")
                    has_next = next_token < T.cast(num_tokens, "int64")
                    is_masked = is_next_masked
                    for i in T.unroll(5):
                        saved_local[i] = next_local[i]
                    if has_next:
                        if num_masked > 0:
                            is_next_masked = image_token_mask[next_token]
                        load_saved(next_local, (dot, gate, rstd_x, rstd_k), next_token, lane_stream)
                        next_local[4] = T.reinterpret(
                            T.ldg32(gate[next_token, thread % STREAMS]), "float32"
                        )

                    # load, compute and store: grad_gate and grad_v; each slot is filled again once
                    # it has been read for the last time
                    for m in T.unroll(STREAMS):
                        values_local[m] = T.float32(0.0)
                        gate_local[m] = T.shfl_sync(saved_local[4], m)
                    wait_async(early * columns)
                    T.sync_warp()
                    for c in T.unroll(columns):
                        channel = (c * threads + thread) * COLUMN
                        v_words[T.Ramp(0, 1, 4)] = T.lds128(ring_shared[value, c, thread, 0])
                        for i in T.unroll(COLUMN):
                            grad_v_local[i] = T.float32(0.0)
                        for m in T.unroll(STREAMS):
                            slot = value + 1 + T.truncmod(step * STREAMS + m, g_slots)
                            g_words[T.Ramp(0, 1, 4)] = T.lds128(ring_shared[slot, c, thread, 0])
                            add_products(values_local, g_words, v_words, m, (0, 0))
                            add_to_grad_v(grad_v_local, g_words, gate_local[m], 0)
                        if has_next:
                            copy_async(
                                ring_shared[value, c, thread, 0], kv[next_token, STREAMS, channel]
                            )
                            for m in T.unroll(early):
                                slot = value + 1 + T.truncmod((step + 1) * STREAMS + m, g_slots)
                                copy_async(
                                    ring_shared[slot, c, thread, 0],
                                    grad_out[next_token, m, channel],
                                )
                        store_grad_v(grad_kv, grad_v_local, token, channel, is_masked)
                    commit_async()
                    if not keeps_weights and not keeps_first:
                        load_weights(w_local, weight_fused, 0, thread * COLUMN)
                    sum_over_block(
                        total_local,
                        values_local,
                        partial_shared,
                        step % 2,
                        thread,
                        1,
                        warps,
                        STREAMS,
                    )
                    gradient_factors(own_local, saved_local, total_local[0], hidden, clamp_value)

                    # compute and store: a column of one stream after the other
                    for m in T.unroll(STREAMS):
                        for i in T.unroll(3):
                            factor_local[i] = from_stream(own_local[i], m, STREAMS)
                        for c in T.unroll(columns):
                            channel = (c * threads + thread) * COLUMN
                            slot = value + 1 + T.truncmod(step * STREAMS + m, g_slots)
                            wait_async(pending)
                            T.sync_warp()
                            x_words[T.Ramp(0, 1, 4)] = T.lds128(ring_shared[2 * m, c, thread, 0])
                            k_words[T.Ramp(0, 1, 4)] = T.lds128(
                                ring_shared[2 * m + 1, c, thread, 0]
                            )
                            g_words[T.Ramp(0, 1, 4)] = T.lds128(ring_shared[slot, c, thread, 0])
                            if has_next:
                                copy_async(
                                    ring_shared[2 * m, c, thread, 0], x[next_token, m, channel]
                                )
                                copy_async(
                                    ring_shared[2 * m + 1, c, thread, 0],
                                    kv[next_token, m, channel],
                                )
                                if early + m < STREAMS:
                                    copy_async(
                                        ring_shared[slot, c, thread, 0],
                                        grad_out[next_token, early + m, channel],
                                    )
                            if is_masked:
                                T.stg128(grad_x[token, m, channel], g_words[T.Ramp(0, 1, 4)])
                                store_zeros(grad_kv, token, m, channel)
                            else:
                                if keeps_weights or (keeps_first and m + c == 0):
                                    for half in T.unroll(2):
                                        for e in T.vectorized(4):
                                            w_local[half * 4 + e] = w_shared[m, c, half, thread, e]
                                gradients(
                                    grad_x_local,
                                    grad_k_local,
                                    sums_local,
                                    (g_words, x_words, k_words),
                                    w_local,
                                    factor_local,
                                    (0, 0, 0, (m * columns + c) * COLUMN, 0),
                                )
                            if not keeps_weights and m * columns + c + 1 < STREAMS * columns:
                                # The next column's, ahead of the stores and the wait.
                                load_weights(
                                    w_local,
                                    weight_fused,
                                    m + (c + 1) // columns,
                                    ((c + 1) % columns * threads + thread) * COLUMN,
                                )
                            if not is_masked:
                                for i in T.vectorized(COLUMN):
                                    grad_x[token, m, channel + i] = grad_x_local[i]
                                for i in T.vectorized(COLUMN):
                                    grad_kv[token, m, channel + i] = grad_k_local[i]
                            commit_async()
                    token = next_token

                # store: what the part's tokens add up to
                for m in T.unroll(STREAMS):
                    for c in T.unroll(columns):
                        channel = (c * threads + thread) * COLUMN
                        for half in T.unroll(2):
                            for e in T.vectorized(4):
                                grad_w_partial[T.cast(part, "int64"), m, channel + half * 4 + e] = (
                                    sums_local[(m * columns + c) * COLUMN + half * 4 + e]
                                )
            T.pdl_trigger()

    return engram_gate_bwd
