"""The mixes of hyper-connections on CUDA: the four pre of one token, post and comb of up to 32.

Sums over splits are shared by the first 4 warps of a block. For post and comb a lane takes each of
the 24 mixes and warp w takes splits w, w + 4, ...; then a thread takes one mix of one token, and at
last a thread takes the 16 numbers of one token's comb. Their normalisation is a chain of
2 sinkhorn_repeat steps, which no second thread would shorten: an exchange costs as much as a sum.
The matrix K stays and only its row factors r and column factors c change, comb[i, j] = r[i] *
K[i, j] * c[j]: dividing the rows of comb by their sums + eps makes
1 / r[i] = sum_j K[i, j] * c[j] + eps / (r[i] before), and the columns likewise.
The block of threads calls all of these together; each barrier is written here.
"""

import tilelang.language as T

from tilewheel_kernels.mhc.streams_cuda import NUM_STREAMS

NUM_MIXES = 24
MAX_TOKENS = 32  # whose post and comb a block makes
NUM_WARPS = 4  # that sum splits
PRE_LANES = 8  # lanes that share a split for pre: four mixes, the sum of squares, three idle
NUM_COLUMNS = NUM_MIXES + 1  # mixes and the sum of squares
COMB_STRIDE = NUM_STREAMS * NUM_STREAMS + 1  # odd: the tokens of a warp lie in different banks
_LANES = 32
_PRE_GROUPS = NUM_WARPS * _LANES // PRE_LANES
_FEW_LOADS = 4
_MANY_LOADS = 16  # of a thread, in flight together


def exp(x):
    """The library's exponential: an approximate one loses digits where |x| is large."""
    return T.call_extern("float32", "expf", x)


def load(element, is_wanted):
    """A float32, or 0: loads without branches, in the order in which they are written."""
    return T.reinterpret(T.ldg32(element, pred=is_wanted), "float32")


@T.macro
def load_splits(
    gemm_out_mul, gemm_out_sqrsum, load_local, column, squares_column, splits, token, is_wanted
):
    """Read splits first, first + step, ... of a column of mixes; 0 behind the last split."""
    place, count, first, step = splits
    for k in T.unroll(count):
        split = first + k * step
        is_inside = is_wanted & (split < gemm_out_mul.shape[0])
        load_local[2 * (place + k)] = load(
            gemm_out_mul[split, token, column], is_inside & (column < squares_column)
        )
        load_local[2 * (place + k) + 1] = load(
            gemm_out_sqrsum[split, token], is_inside & (column == squares_column)
        )


def loaded(load_local, k):
    """One of the two is 0."""
    return load_local[2 * k] + load_local[2 * k + 1]


@T.macro
def sum_splits(gemm_out_mul, gemm_out_sqrsum, partial_shared, thread, first_token, num_tokens):
    """Put each warp's share of the sums of tokens into partial_shared."""
    num_splits = gemm_out_mul.shape[0]
    warp = thread // _LANES
    lane = thread % _LANES
    load_local = T.alloc_local((2 * _MANY_LOADS,), "float32")
    total = T.alloc_var("float32", init=0.0)
    tensors = (gemm_out_mul, gemm_out_sqrsum)
    if (num_splits <= NUM_WARPS * _FEW_LOADS) & (num_tokens > 1):
        # Several tokens at once.
        for b in T.unroll((num_tokens + _FEW_LOADS - 1) // _FEW_LOADS, unroll_factor=1):
            for q in T.unroll(_FEW_LOADS):
                slot = b * _FEW_LOADS + q
                splits = (q * _FEW_LOADS, _FEW_LOADS, warp, NUM_WARPS)
                load_splits(
                    *tensors,
                    load_local,
                    lane,
                    NUM_MIXES,
                    splits,
                    first_token + slot,
                    slot < num_tokens,
                )
            for q in T.unroll(_FEW_LOADS):
                total = 0.0
                for k in T.unroll(_FEW_LOADS):
                    total = total + loaded(load_local, q * _FEW_LOADS + k)
                if lane < NUM_COLUMNS:
                    partial_shared[b * _FEW_LOADS + q, warp, lane] = total
    else:
        batch = NUM_WARPS * _MANY_LOADS
        for slot in T.unroll(num_tokens, unroll_factor=1):
            token = first_token + slot
            total = 0.0
            if num_splits <= NUM_WARPS * _FEW_LOADS:
                splits = (0, _FEW_LOADS, warp, NUM_WARPS)
                load_splits(*tensors, load_local, lane, NUM_MIXES, splits, token, True)
                for k in T.unroll(_FEW_LOADS):
                    total = total + loaded(load_local, k)
            else:
                for b in T.unroll((num_splits + batch - 1) // batch, unroll_factor=1):
                    splits = (0, _MANY_LOADS, b * batch + warp, NUM_WARPS)
                    load_splits(*tensors, load_local, lane, NUM_MIXES, splits, token, True)
                    for k in T.unroll(_MANY_LOADS):
                        total = total + loaded(load_local, k)
            if lane < NUM_COLUMNS:
                partial_shared[slot, warp, lane] = total


def _total(partial_shared, slot, column):
    """The sum of the warps' shares."""
    return (partial_shared[slot, 0, column] + partial_shared[slot, 1, column]) + (
        partial_shared[slot, 2, column] + partial_shared[slot, 3, column]
    )


def mean_of_squares(square_sum, hidden):
    return square_sum * T.fast_rcp(T.cast(hidden * NUM_STREAMS, "float32"))


@T.macro
def activate(
    partial_shared, comb_shared, shift_shared, post_mix, thread, threads, tokens, hidden, scalars
):
    """Write post_mix, and the softmax of comb's rows to comb_shared; a thread for each mix."""
    first_token, count = tokens
    rms_eps, sinkhorn_eps, post_mult = scalars
    value = T.alloc_var("float32", init=0.0)
    largest = T.alloc_var("float32", init=0.0)
    row_sum = T.alloc_var("float32", init=0.0)
    slot = T.alloc_var("int32", init=0)
    mix = T.alloc_var("int32", init=0)
    for b in T.unroll((count * NUM_MIXES + threads - 1) // threads, unroll_factor=1):
        # Four neighbours are one row of comb, also behind the last token, for the exchanges.
        slot = (b * threads + thread) // NUM_MIXES
        mix = (b * threads + thread) - slot * NUM_MIXES
        is_inside = slot < count
        owner = T.min(slot, count - 1)
        is_comb = mix >= 2 * NUM_STREAMS
        mean_square = mean_of_squares(_total(partial_shared, owner, NUM_MIXES), hidden)
        value = _total(partial_shared, owner, mix) * T.rsqrt(mean_square + rms_eps)
        value = value * shift_shared[0, mix] + shift_shared[1, mix]
        largest = T.max(value, T.shfl_xor(value, 1))
        largest = T.max(largest, T.shfl_xor(largest, 2))
        value = exp(T.if_then_else(is_comb, value - largest, -value))
        row_sum = value + T.shfl_xor(value, 1)
        row_sum = row_sum + T.shfl_xor(row_sum, 2)
        if is_inside & is_comb:
            comb_shared[slot, mix - 2 * NUM_STREAMS] = value * T.fast_rcp(row_sum) + sinkhorn_eps
        if is_inside & (not is_comb) & (mix >= NUM_STREAMS):
            sigmoid = T.fast_rcp(T.float32(1.0) + value)
            post_mix[first_token + slot, mix - NUM_STREAMS] = post_mult * sigmoid


@T.macro
def normalise(comb_shared, comb_mix, slot, token, sinkhorn_eps, sinkhorn_repeat):
    """Normalise a token's comb by one thread, and write it."""
    k_local = T.alloc_local((NUM_STREAMS * NUM_STREAMS,), "float32")
    row_local = T.alloc_local((NUM_STREAMS,), "float32")
    column_local = T.alloc_local((NUM_STREAMS,), "float32")
    row_inverse = T.alloc_local((NUM_STREAMS,), "float32")
    column_inverse = T.alloc_local((NUM_STREAMS,), "float32")
    for i in T.unroll(NUM_STREAMS * NUM_STREAMS):
        k_local[i] = comb_shared[slot, i]
    for i in T.unroll(NUM_STREAMS):
        row_local[i] = 1.0
        row_inverse[i] = 1.0
        column_inverse[i] = 1.0
    columns = (k_local, row_local, column_local, column_inverse, sinkhorn_eps, 1, NUM_STREAMS)
    rows = (k_local, column_local, row_local, row_inverse, sinkhorn_eps, NUM_STREAMS, 1)
    scale_by_sums(*columns)
    for _ in T.unroll(sinkhorn_repeat - 1, unroll_factor=1):
        scale_by_sums(*rows)
        scale_by_sums(*columns)
    for i in T.unroll(NUM_STREAMS):
        for j in T.unroll(NUM_STREAMS):
            k_local[i * NUM_STREAMS + j] = (
                row_local[i] * k_local[i * NUM_STREAMS + j] * column_local[j]
            )
        for j in T.vectorized(NUM_STREAMS):
            comb_mix[token, i, j] = k_local[i * NUM_STREAMS + j]


@T.macro
def scale_by_sums(k_local, others, factors, inverses, sinkhorn_eps, own_step, other_step):
    """Make the factors of the columns from those of the rows, or the other way round."""
    for i in T.unroll(NUM_STREAMS):
        # Two chains of two: this is where the time goes.
        left = sinkhorn_eps * inverses[i] + k_local[i * own_step] * others[0]
        right = k_local[i * own_step + 2 * other_step] * others[2]
        inverses[i] = (left + k_local[i * own_step + other_step] * others[1]) + (
            right + k_local[i * own_step + 3 * other_step] * others[3]
        )
    for i in T.unroll(NUM_STREAMS):
        factors[i] = T.fast_rcp(inverses[i])


@T.macro
def find_pre(
    gemm_out_mul, gemm_out_sqrsum, scale, base, share_shared, pre_local, token, hidden, scalars
):
    """Put the four pre of a token into every thread of a block."""
    rms_eps, pre_eps = scalars
    thread = T.get_thread_binding()
    load_local = T.alloc_local((2 * _FEW_LOADS,), "float32")
    total = T.alloc_var("float32", init=0.0)
    mean_square = T.alloc_var("float32", init=0.0)
    factor = T.alloc_var("float32", init=0.0)
    addend = T.alloc_var("float32", init=0.0)
    column = thread % PRE_LANES
    # Before the wait for the splits.
    factor = load(scale[0], True)
    addend = load(base[thread % NUM_STREAMS], True)
    batch = _PRE_GROUPS * _FEW_LOADS
    if thread < NUM_WARPS * _LANES:
        for b in T.unroll((gemm_out_mul.shape[0] + batch - 1) // batch, unroll_factor=1):
            splits = (0, _FEW_LOADS, b * batch + thread // PRE_LANES, _PRE_GROUPS)
            load_splits(
                gemm_out_mul, gemm_out_sqrsum, load_local, column, NUM_STREAMS, splits, token, True
            )
            for k in T.unroll(_FEW_LOADS):
                total = total + loaded(load_local, k)
        total = total + T.shfl_xor(total, PRE_LANES)
        total = total + T.shfl_xor(total, 2 * PRE_LANES)
        if thread % _LANES < PRE_LANES:
            share_shared[thread // _LANES, column] = total
    T.sync_threads()
    total = (share_shared[0, column] + share_shared[1, column]) + (
        share_shared[2, column] + share_shared[3, column]
    )
    mean_square = mean_of_squares(T.shfl_sync(total, NUM_STREAMS), hidden)
    total = total * T.rsqrt(mean_square + rms_eps) * factor + addend
    total = T.fast_rcp(T.float32(1.0) + exp(-total)) + pre_eps
    for m in T.unroll(NUM_STREAMS):
        pre_local[m] = T.shfl_sync(total, m)
