"""Register instructions that compute, against numpy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from register_ops import Array, assert_bits, integers, normal

Check = Callable[..., Array]

SPECIAL = np.array(
    [0.0, -0.0, 1.0, -1.0, 1e-45, -1e-45, 1.1754944e-38, 3.4028235e38, 0.5, -3.5, np.inf, -np.inf],
    np.float32,
)


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("add_f32", np.add),
        ("sub_f32", np.subtract),
        ("mul_f32", np.multiply),
        ("div_f32", np.divide),
        ("absdif_f32", lambda a, b: np.abs(a - b)),
        ("max_f32", np.maximum),
        ("min_f32", np.minimum),
        ("select_lt", np.minimum),
    ],
)
def test_fp32_arithmetic_is_ieee(apply: Check, name: str, function: Any) -> None:
    a = np.concatenate([np.repeat(SPECIAL, len(SPECIAL)), normal(1)])
    b = np.concatenate([np.tile(SPECIAL, len(SPECIAL)), normal(2)])
    with np.errstate(all="ignore"):
        expected = function(a, b)
    actual = apply(name, a, b)[: len(a)]
    if name in (
        "max_f32",
        "min_f32",
        "select_lt",
        "absdif_f32",
    ):  # the sign of zero is not specified
        assert_bits(actual + np.float32(0), expected + np.float32(0))
    else:
        assert_bits(actual, expected)


def test_exact_division_is_correctly_rounded(apply: Check) -> None:
    a, b = normal(3, 4096, 100.0), normal(4, 4096)
    assert_bits(apply("div_exact", a, b), a / b)


def test_bf16_sum_is_rounded_once(apply: Check) -> None:
    a, b = normal(5).astype(ml_dtypes.bfloat16), normal(6).astype(ml_dtypes.bfloat16)
    expected = (a.astype(np.float32) + b.astype(np.float32)).astype(ml_dtypes.bfloat16)
    assert_bits(apply("add_bf16", a, b)[: len(a)], expected)


@pytest.mark.parametrize(
    ("name", "dtype", "function"),
    [
        ("add_s32", np.int32, np.add),
        ("mul_s32", np.int32, np.multiply),
        ("min_s32", np.int32, np.minimum),
        ("and_u32", np.uint32, np.bitwise_and),
        ("or_u16", np.uint16, np.bitwise_or),
        ("select_ge", np.int32, np.maximum),
        ("low_product", np.uint32, np.multiply),
        ("high_product", np.uint32, lambda a, b: (a.astype(np.uint64) * b >> 32).astype(np.uint32)),
        ("difference", np.uint32, np.subtract),
    ],
)
def test_integer_arithmetic_wraps(apply: Check, name: str, dtype: Any, function: Any) -> None:
    a, b = integers(7, dtype, 256), integers(8, dtype, 256)
    if name == "difference":  # the second subtraction takes the borrow of the first
        expected = a - b - (a < b)
    else:
        with np.errstate(all="ignore"):
            expected = function(a, b)
    assert (apply(name, a, b)[:256] == expected).all()


def test_integer_division_never_traps(apply: Check) -> None:
    a = np.array([7, -7, 7, -(2**31), 5], np.int32)
    b = np.array([2, 2, -2, -1, 0], np.int32)
    assert apply("div_s32", a, b)[:5].tolist() == [3, -3, -3, -(2**31), -1]


def test_carry_flows_into_the_next_sum(apply: Check) -> None:
    a, b = integers(9, np.uint32, 64), integers(10, np.uint32, 64)
    carry = (a.astype(np.uint64) + b) >> 32
    assert (apply("sum_with_carry", a, b) == (a + b + carry.astype(np.uint32))).all()


def test_shifts_by_the_width_or_more_empty_the_register(apply: Check) -> None:
    a = np.array([1, 0x80000000, 0xFFFFFFFF, 5], np.uint32)
    count = np.array([31, 1, 32, 33], np.uint32)
    assert apply("shl_u32", a, count)[:4].tolist() == [0x80000000, 0, 0, 0]
    signed = np.array([-8, 8, -1, -1], np.int32)
    assert apply("shr_s32", signed, np.array([1, 1, 32, 31], np.int32))[:4].tolist() == [
        -4,
        4,
        -1,
        -1,
    ]
    assert apply("shrs_u32", a)[:3].tolist() == [0, 256, 511]


def test_unary_operations(apply: Check) -> None:
    a = np.concatenate([SPECIAL, normal(11, 52)])
    assert_bits(apply("abs_f32", a), np.abs(a))
    assert_bits(apply("neg_f32", a), -a)
    assert (apply("relu_f32", a) == np.maximum(a, 0)).all()
    with np.errstate(over="ignore"):
        assert (apply("muls_f32", a) == a * np.float32(3)).all()
    assert (apply("maxs_f32", a) == np.maximum(a, np.float32(1e-4))).all()
    assert (apply("lrelu_f32", a) == np.where(a >= 0, a, a * np.float32(0.25))).all()
    b = integers(12, np.int32, 64)
    assert (apply("adds_s32", b) == b - 5).all()
    assert (apply("abs_s32", b) == np.abs(b)).all()
    assert (apply("not_u32", b.view(np.uint32)) == ~b.view(np.uint32)).all()
    xored = apply("xor_f32", a, np.full(64, -0.0, np.float32))
    assert_bits(xored, -a)


@pytest.mark.parametrize("name", ["sqrt_f32", "sqrt_exact"])
def test_square_root_is_correctly_rounded(apply: Check, name: str) -> None:
    a = np.abs(np.concatenate([SPECIAL[:10], normal(13, 1014, 1e3), normal(14, 1024, 1e-38)]))
    assert_bits(apply(name, a), np.sqrt(a))


def test_exp_is_correctly_rounded(apply: Check) -> None:
    a = np.linspace(-110, 95, 65536, dtype=np.float32)
    a[:8] = [0.0, -0.0, np.inf, -np.inf, np.nan, 88.72284, -103.97, 1e-45]
    with np.errstate(all="ignore"):
        expected = np.exp(a.astype(np.float64)).astype(np.float32)
    assert_bits(apply("exp_f32", a), expected)
    assert_bits(apply("expdif_f32", a, np.zeros_like(a)), expected)
    normal_results = expected >= np.float32(1.1754944e-38)
    assert_bits(apply("exp_ftz_false", a)[normal_results], expected[normal_results])


def test_ln_is_correctly_rounded(apply: Check) -> None:
    bits = np.linspace(1, 0x7F7FFFFF, 65536).astype(np.uint32)
    a = bits.view(np.float32).copy()
    a[:8] = [0.0, -0.0, 1.0, np.inf, -1.0, np.nan, 0.99999994, 1.0000001]
    with np.errstate(all="ignore"):
        expected = np.log(a.astype(np.float64)).astype(np.float32)
    assert_bits(apply("ln_f32", a), expected)


def test_fused_operations_round_once(apply: Check) -> None:
    a, b, c = normal(15, 64), normal(16, 64), normal(17, 64)
    exact = a.astype(np.float64) * b + c.astype(np.float64)  # exact but for double's own rounding
    assert (apply("mula", a, b, c) == exact.astype(np.float32)).all()
    exact = c.astype(np.float64) * a + b
    assert (apply("madd", a, b, c) == exact.astype(np.float32)).all()
    exact = a.astype(np.float64) * 3 + b
    assert (apply("axpy", a, b) == exact.astype(np.float32)).all()
