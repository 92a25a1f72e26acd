"""Register instructions that mask, move, reduce, load and store, against numpy."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from register_ops import Array, integers, normal

Check = Callable[..., Array]


def test_merging_keeps_inactive_lanes(apply: Check) -> None:
    a, b = integers(18, np.int32, 64) // 2, integers(19, np.int32, 64)
    expected = np.where(np.arange(64) < 7, a + 10, b)
    assert (apply("merge_adds", a, b) == expected).all()


def test_zeroing_clears_inactive_lanes(apply: Check) -> None:
    a = normal(20, 64)
    lanes = np.arange(64)
    assert (apply("first_five", a) == np.where(lanes < 5, a + np.float32(1), 0)).all()
    assert (apply("every_fourth", a) == np.where(lanes % 4 == 0, a + np.float32(1), 0)).all()


def test_broadcasts_and_ramps(apply: Check) -> None:
    a = normal(21, 64)
    assert (apply("dup_low", a) == a[0]).all()
    assert (apply("dup_high", a) == a[63]).all()
    zero = np.zeros(64, np.int32)
    assert (apply("ramp_up", zero) == 7 + np.arange(64)).all()
    assert (apply("ramp_down", zero) == 7 - np.arange(64)).all()
    b = np.arange(64, dtype=np.int32) % 5
    assert (apply("select_eqs", b, zero - 1) == np.where(b == 3, 3, -1)).all()


def test_reductions(apply: Check) -> None:
    a = np.random.default_rng(22).integers(-99, 99, 64).astype(np.float32)  # sums are exact
    assert apply("sum_f32", a)[0] == a.sum()
    assert (apply("sum_f32", a)[1:] == 0).all()
    assert (apply("block_sum", a)[:8] == a.reshape(8, 8).sum(1)).all()
    assert (apply("block_max", a)[:8] == a.reshape(8, 8).max(1)).all()
    assert (apply("block_min", a)[:8] == a.reshape(8, 8).min(1)).all()
    assert (apply("pair_sum", a)[:32] == a.reshape(32, 2).sum(1)).all()
    small = np.full(128, 32767, np.int16)
    assert apply("sum_s16", small)[0] == 128 * 32767


def test_extremes_come_with_the_first_lane_that_has_them(apply: Check) -> None:
    a = np.array([1, 5, 3, 5] * 16, np.float32)
    result = apply("max_lane", a)
    assert (result[0], result.view(np.uint32)[1]) == (5, 1)
    b = np.array([4, 2, 9, 2] * 16, np.int32)
    assert apply("min_lane", b)[:2].tolist() == [2, 1]


def test_interleaving_and_its_inverse(apply: Check) -> None:
    a, b = np.arange(128, dtype=np.uint16), np.arange(1000, 1128, dtype=np.uint16)
    mixed = np.stack([a, b], 1).reshape(-1)
    assert (apply("intlv0", a, b) == mixed[:128]).all()
    assert (apply("intlv1", a, b) == mixed[128:]).all()
    assert (apply("dintlv0", mixed[:128], mixed[128:]) == a).all()
    assert (apply("dintlv1", mixed[:128], mixed[128:]) == b).all()


def test_packing_and_squeezing(apply: Check) -> None:
    a = integers(23, np.uint32, 64)
    low = (a & 0xFFFF).astype(np.uint16)
    zero = np.zeros(64, np.uint16)
    assert (apply("pack_low", a) == np.concatenate([low, zero])).all()
    assert (apply("pack_high", a) == np.concatenate([zero, low])).all()
    c = integers(24, np.uint8, 256)
    assert (apply("unpack_low", c) == c[:128]).all()
    assert (apply("unpack_high", c) == c[128:]).all()
    d = integers(25, np.int32, 64)
    kept = d[d > 0]
    assert (apply("squeeze", d) == np.concatenate([kept, np.zeros(64 - len(kept))])).all()
    assert (apply("count_before", d) == np.cumsum(d > 0) - (d > 0)).all()


def test_gathers_and_scatters(apply: Check) -> None:
    a = integers(26, np.uint32, 64)
    order = np.random.default_rng(27).permutation(64).astype(np.uint32)
    assert (apply("lane_gather", a, order) == a[order]).all()
    assert (apply("lane_gather", a, order + 64) == a[order]).all()
    assert (apply("gather_u32", a, order) == a[order]).all()
    scattered = np.empty(64, np.uint32)
    scattered[order] = a
    assert (apply("scatter", a, order) == scattered).all()
    c = integers(28, np.uint8, 256)
    index = np.random.default_rng(29).integers(0, 256, 128).astype(np.uint16)
    assert (apply("gather_u8", c, index) == c[index]).all()


def test_load_distributions(apply: Check) -> None:
    a = normal(30, 64)
    assert (apply("load_brc", a) == a[3]).all()
    b = integers(31, np.uint8, 256)
    assert (apply("load_us", b) == np.repeat(b[:128], 2)).all()
    assert (apply("load_unpack4", b).reshape(64, 4) == np.c_[b[:64], np.zeros((64, 3))]).all()
    c = integers(32, np.uint16, 128)
    assert (apply("load_unpack", c).reshape(64, 2) == np.c_[c[:64], np.zeros(64)]).all()
    assert (apply("load_block", c).reshape(8, 16) == c[:16]).all()
    d = integers(33, np.uint32, 64)
    assert (apply("load_e2b", d) == np.repeat(d[8:16], 8)).all()
    e = integers(34, np.uint16, 256)
    assert (apply("load_deintlv", e) == e[1::2]).all()
    assert (apply("load_ds", e) == e[0::2]).all()
    f = integers(35, np.uint32, 128)
    assert (apply("load_post", f) == f[8:72]).all()


def test_store_distributions(apply: Check) -> None:
    a, b = integers(36, np.uint32, 64), np.arange(64, dtype=np.uint32)
    assert (apply("store_masked", a, b) == np.where(b > 9, b, a)).all()
    first = apply("store_first", a, b)
    assert first[5] == b[0]
    assert (np.delete(first, 5) == np.delete(a, 5)).all()
    assert (apply("store_pack", a) == np.r_[(a & 0xFFFF), np.full(64, 7)]).all()
    assert (apply("store_quarter", a) == np.r_[(a & 0xFF), np.full(192, 7)]).all()
    blocks = np.full((8, 8), 7, np.uint32)
    blocks[0::2] = a[:32].reshape(4, 8)
    assert (apply("store_blocks", a) == blocks.reshape(-1)).all()


def test_predicate_operations(apply: Check) -> None:
    a, b = integers(37, np.int32, 64), integers(38, np.int32, 64)
    positive = (a > 0).astype(int) + (b > 0)
    assert (apply("predicates", a, b) == np.array([-1, 1, 2])[positive]).all()
    assert (apply("predicate_memory", a) == np.where(a > 0, a, 0)).all()
    assert (apply("predicate_interleave", a) == np.where(a > 0, a, 0)).all()


def test_histograms(apply: Check) -> None:
    a = integers(39, np.uint8, 256)
    counts = np.bincount(a, minlength=256)
    assert (apply("histogram", a) == counts[128:]).all()
    assert (apply("cumulative", a) == np.cumsum(counts)[:128]).all()
