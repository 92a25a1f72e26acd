"""engram_gate_fwd, CUDA: the gated value of a looked-up embedding, added to each residual stream.

    rstd_x = 1 / sqrt(mean(x^2) + eps), rstd_k = 1 / sqrt(mean(k^2) + eps)
    dot = sum(x * w * k), z = dot * rstd_x * rstd_k / sqrt(hidden)
    gate = sigmoid(copysign(sqrt(max(|z|, clamp_value)), z))
    out = x + gate * v

With many tokens num_sms * blocks_per_sm blocks stay and walk over them: a thread owns columns
(columns_cuda.py) of all streams, so that v is read once; copies of the next token to shared memory
start as soon as this one's values are in registers, and no other thread reads them, so that they
need no barrier. With so few tokens a block that starting this costs more than it hides, a block
walks over them with one stream of each (forward_cuda.py). With hidden at run time, or where shared
memory is too small, see generic_fwd_cuda.py.
On-chip: 18 * hidden bytes of x and kv in shared memory, 16 * hidden of weights above 2560 if they
fit; registers 10 * columns words of data.
Parameters: hidden a multiple of 256 (or of 512 above 5120) for the ring, of 64 otherwise.
Numerics: fp32 sums in a fixed order; out rounded once. A token's result does not depend on others
nor on how many blocks share it: the sums have one order.
Reference: tilewheel.reference.engram.engram_gate_fwd.
Source: original.
"""

# No `from __future__ import annotations`: T.prim_func evaluates its annotations.
from typing import TYPE_CHECKING

import tilelang.language as T

from tilewheel_kernels.engram.columns_cuda import (
    COLUMN,
    STREAMS,
    WARP,
    commit_async,
    copy_async,
    element,
    fma,
    from_stream,
    shared_bytes,
    store_column,
    sum_over_block,
    wait_async,
)
from tilewheel_kernels.engram.forward_cuda import (
    add_to_sums,
    by_streams,
    gate_of,
    save,
)
from tilewheel_kernels.engram.generic_fwd_cuda import generic

if TYPE_CHECKING:
    from tvm.tirx import PrimFunc

# The kernels bound every index and place every barrier themselves.
PASS_CONFIGS: dict[str, object] = {
    "tl.disable_safe_memory_legalize": True,
    "tl.disable_thread_storage_sync": True,
}

_MAX_ONE_COLUMN = 5120
_MAX_CACHED_WEIGHTS = 2560
_SCRATCH_BYTES = 4096
# Up to how many tokens for each block a block with one stream is faster than the ring, as measured.
_STREAMS_UP_TO = {2048: 2, 2560: 16, 4096: 4, 5120: 8, 7168: 4}


def engram_gate_fwd(*, hidden: int | None) -> "PrimFunc":
    """Return the kernel for one hidden; None leaves it to run time.

    Raises ValueError for a hidden that is no multiple of 64.
    """
    if hidden is None:
        return generic(None)
    if hidden % 64 != 0:
        raise ValueError(f"hidden: is {hidden}, must be a multiple of 64")
    columns = 1 if hidden <= _MAX_ONE_COLUMN else 2
    if hidden % (columns * COLUMN * WARP) or 18 * hidden + _SCRATCH_BYTES > shared_bytes():
        return generic(hidden)
    return _pipelined(hidden, columns)


def _pipelined(hidden: int, columns: int) -> "PrimFunc":
    """Build the kernel whose blocks stay and copy the next token while they work on this one."""
    threads = hidden // COLUMN // columns
    warps = threads // WARP
    ring_bytes = 18 * hidden
    # Narrow weights stay in the L1 cache, and more blocks fit; wide ones do not.
    keeps_weights = (
        hidden > _MAX_CACHED_WEIGHTS and ring_bytes + 16 * hidden + _SCRATCH_BYTES <= shared_bytes()
    )
    on_chip = ring_bytes + 16 * hidden * keeps_weights + _SCRATCH_BYTES
    blocks_per_sm = max(1, min(shared_bytes() // on_chip, 1024 // threads, 3))
    most_tokens = _STREAMS_UP_TO.get(hidden, 4)
    value = 2 * STREAMS  # the ring's slots: x of the streams, k of the streams, v
    num_tokens = T.dynamic("num_tokens")
    num_masked = T.dynamic("num_masked")
    num_saved = T.dynamic("num_saved")

    @T.prim_func
    def engram_gate_fwd(
        x: T.Tensor((num_tokens, STREAMS, hidden), "bfloat16"),
        kv: T.Tensor((num_tokens, STREAMS + 1, hidden), "bfloat16"),
        weight_fused: T.Tensor((STREAMS, hidden), "float32"),
        image_token_mask: T.Tensor((num_masked,), "bool"),
        out: T.Tensor((num_tokens, STREAMS, hidden), "bfloat16"),
        dot: T.Tensor((num_saved, STREAMS), "float32"),
        gate: T.Tensor((num_saved, STREAMS), "float32"),
        rstd_x: T.Tensor((num_saved, STREAMS), "float32"),
        rstd_k: T.Tensor((num_saved, STREAMS), "float32"),
        eps: T.float32,
        clamp_value: T.float32,
        num_sms: T.int32,
    ):
        with T.Kernel(
            T.min(num_tokens * STREAMS, T.max(num_sms * blocks_per_sm, STREAMS)), threads=threads
        ) as block:
            thread = T.get_thread_binding()
            slots = T.max(num_sms * blocks_per_sm, STREAMS)
            walkers = T.min(num_tokens, slots // STREAMS)
            T.annotate_min_blocks_per_sm(blocks_per_sm)
            ring_shared = T.alloc_shared((2 * STREAMS + 1, columns, threads, 4), "uint32")
            if keeps_weights:
                w_shared = T.alloc_shared((STREAMS, columns, 2, threads, 4), "float32")
            partial_shared = T.alloc_shared((2, 3, STREAMS, warps), "float32")
            x_words = T.alloc_local((STREAMS * columns * 4,), "uint32")
            v_words = T.alloc_local((columns * 4,), "uint32")
            k_words = T.alloc_local((4,), "uint32")
            w_local = T.alloc_local((COLUMN,), "float32")
            out_local = T.alloc_local((COLUMN,), "bfloat16")
            values_local = T.alloc_local((3 * STREAMS,), "float32")
            sums_local = T.alloc_local((3,), "float32")
            gate_local = T.alloc_local((2,), "float32")
            token = T.alloc_var("int64", init=T.cast(block, "int64"))
            is_masked = T.alloc_var("bool", init=False)
            is_next_masked = T.alloc_var("bool", init=False)
            T.pdl_sync()
            if num_tokens <= slots * most_tokens:
                if block // STREAMS < walkers:
                    by_streams(
                        (x, kv, weight_fused, out),
                        (dot, gate, rstd_x, rstd_k),
                        image_token_mask,
                        partial_shared,
                        block,
                        walkers,
                        thread,
                        (columns, threads, hidden, True),
                        (num_tokens, num_masked, num_saved),
                        (eps, clamp_value),
                        True,
                    )
            else:
                # load: the weights and the first token
                if num_masked > 0:
                    is_next_masked = image_token_mask[token]
                for m in T.unroll(STREAMS):
                    for c in T.unroll(columns):
                        channel = (c * threads + thread) * COLUMN
                        copy_async(ring_shared[m, c, thread, 0], x[token, m, channel])
                        copy_async(ring_shared[STREAMS + m, c, thread, 0], kv[token, m, channel])
                        if keeps_weights:
                            for half in T.unroll(2):
                                copy_async(
                                    w_shared[m, c, half, thread, 0],
                                    weight_fused[m, channel + half * 4],
                                )
                    commit_async()
                for c in T.unroll(columns):
                    channel = (c * threads + thread) * COLUMN
                    copy_async(ring_shared[value, c, thread, 0], kv[token, STREAMS, channel])
                commit_async()

                for step in T.unroll(
                    T.truncdiv(num_tokens - 1 - block, slots) + 1, unroll_factor=1
                ):
                    next_token = token + T.cast(slots, "int64")
                    has_next = next_token < T.cast(num_tokens, "int64")
                    is_masked = is_next_masked
                    if (num_masked > 0) & has_next:
                        is_next_masked = image_token_mask[next_token]
                    for i in T.unroll(3 * STREAMS):
                        values_local[i] = T.float32(0.0)

                    # load and compute: the sums; each slot is filled again once it has been read
                    for m in T.unroll(STREAMS):
                        wait_async(STREAMS)
                        T.sync_warp()
                        for c in T.unroll(columns):
                            channel = (c * threads + thread) * COLUMN
                            offset = (m * columns + c) * 4
                            x_words[T.Ramp(offset, 1, 4)] = T.lds128(ring_shared[m, c, thread, 0])
                            k_words[T.Ramp(0, 1, 4)] = T.lds128(
                                ring_shared[STREAMS + m, c, thread, 0]
                            )
                            if has_next:
                                copy_async(ring_shared[m, c, thread, 0], x[next_token, m, channel])
                                copy_async(
                                    ring_shared[STREAMS + m, c, thread, 0],
                                    kv[next_token, m, channel],
                                )
                            for half in T.unroll(2):
                                for e in T.vectorized(4):
                                    if keeps_weights:
                                        w_local[half * 4 + e] = w_shared[m, c, half, thread, e]
                                    else:
                                        w_local[half * 4 + e] = weight_fused[
                                            m, channel + half * 4 + e
                                        ]
                            add_to_sums(
                                values_local,
                                x_words,
                                k_words,
                                w_local,
                                m,
                                STREAMS,
                                (2 * offset, 0, 0),
                            )
                        commit_async()
                    wait_async(STREAMS)
                    T.sync_warp()
                    for c in T.unroll(columns):
                        channel = (c * threads + thread) * COLUMN
                        v_words[T.Ramp(c * 4, 1, 4)] = T.lds128(ring_shared[value, c, thread, 0])
                        if has_next:
                            copy_async(
                                ring_shared[value, c, thread, 0], kv[next_token, STREAMS, channel]
                            )
                    commit_async()
                    sum_over_block(
                        sums_local,
                        values_local,
                        partial_shared,
                        step % 2,
                        thread,
                        3,
                        warps,
                        STREAMS,
                    )
                    gate_of(gate_local, sums_local, hidden, eps, clamp_value)

                    # store
                    save(
                        (dot, gate, rstd_x, rstd_k),
                        gate_local,
                        sums_local,
                        num_saved,
                        token,
                        thread,
                        is_masked,
                        0,
                        STREAMS,
                    )
                    for m in T.unroll(STREAMS):
                        gate_local[1] = from_stream(gate_local[0], m, STREAMS)
                        for c in T.unroll(columns):
                            channel = (c * threads + thread) * COLUMN
                            if is_masked:
                                T.stg128(
                                    out[token, m, channel],
                                    x_words[T.Ramp((m * columns + c) * 4, 1, 4)],
                                )
                            else:
                                for i in T.vectorized(COLUMN):
                                    out_local[i] = T.cast(
                                        fma(
                                            gate_local[1],
                                            element(v_words, c * COLUMN + i),
                                            element(x_words, (m * columns + c) * COLUMN + i),
                                        ),
                                        "bfloat16",
                                    )
                                store_column(out, token, m, channel, out_local)
                    token = next_token
            T.pdl_trigger()

    return engram_gate_fwd
