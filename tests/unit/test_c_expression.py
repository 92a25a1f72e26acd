"""Expressions as TVM writes them, turned into C. The classes here have TVM's names and fields."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from tilewheel_build.c_expression import ExpressionError, Extent, extent, symbols_in, to_c


@dataclass
class IntImm:
    value: int

    def __int__(self) -> int:
        return self.value


@dataclass
class Var:
    name: str


@dataclass
class Cast:
    value: Any


@dataclass
class Binary:
    a: Any
    b: Any


class Add(Binary): ...


class Sub(Binary): ...


class Mul(Binary): ...


class FloorDiv(Binary): ...


class FloorMod(Binary): ...


class Min(Binary): ...


class Max(Binary): ...


class LT(Binary): ...


@dataclass
class Select:
    condition: Any
    true_value: Any
    false_value: Any


@dataclass
class Op:
    name: str


@dataclass
class Call:
    op: Any
    args: tuple[Any, ...]


N, M = Var("n"), Var("m")


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        (7, "7"),
        (IntImm(64), "64"),
        (N, "dim_n"),
        (Cast(N), "dim_n"),
        (Add(N, IntImm(3)), "(dim_n + 3)"),
        (Sub(N, M), "(dim_n - dim_m)"),
        (Mul(IntImm(64), N), "(64 * dim_n)"),
        (FloorDiv(Add(N, IntImm(3)), IntImm(4)), "((dim_n + 3) / 4)"),
        (FloorMod(N, IntImm(4)), "(dim_n % 4)"),
        (Min(N, IntImm(8)), "(dim_n < 8 ? dim_n : 8)"),
        (Max(N, IntImm(8)), "(dim_n > 8 ? dim_n : 8)"),
        (Select(LT(N, M), N, IntImm(1)), "((dim_n < dim_m) ? dim_n : 1)"),
        (Call(Op("tirx.shift_right"), (N, IntImm(2))), "(dim_n >> 2)"),
        (Call(Op("tir.shift_left"), (N, IntImm(2))), "(dim_n << 2)"),
    ],
)
def test_expression_becomes_c(expression: Any, text: str) -> None:
    assert to_c(expression) == text


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        (FloorDiv(N, M), "(dim_m == 0 ? 0 : (dim_n / dim_m))"),
        (FloorMod(N, M), "(dim_m == 0 ? 0 : (dim_n % dim_m))"),
    ],
)
def test_division_by_a_run_time_zero_gives_zero(expression: Any, text: str) -> None:
    assert to_c(expression) == text


@pytest.mark.parametrize(
    ("expression", "found"),
    [
        (IntImm(64), Extent(text="64", constant=64)),
        (N, Extent(text="dim_n", symbol="n")),
        (Cast(N), Extent(text="dim_n", symbol="n")),
        (Mul(IntImm(64), N), Extent(text="(64 * dim_n)", symbol="n", factor=64)),
        (Mul(N, IntImm(64)), Extent(text="(dim_n * 64)", symbol="n", factor=64)),
        (Mul(N, M), Extent(text="(dim_n * dim_m)")),
        (Add(N, IntImm(1)), Extent(text="(dim_n + 1)")),
    ],
)
def test_extent_is_a_constant_a_multiple_of_a_symbol_or_derived(
    expression: Any, found: Extent
) -> None:
    assert extent(expression) == found


def test_operation_that_the_launcher_cannot_evaluate_is_refused() -> None:
    with pytest.raises(ExpressionError) as caught:
        to_c(Call(Op("tirx.exp"), (N,)))
    assert str(caught.value) == (
        "grid or shape: has Call in Call(op=Op(name='tirx.exp'), args=(Var(name='n'),)), must be "
        "made of integers, run-time sizes and + - * // % min max shift"
    )


def test_symbols_are_the_run_time_values_of_an_expression() -> None:
    assert symbols_in("((dim_num_tokens + 3) / dim_m)") == {"num_tokens", "m"}
    assert symbols_in("132") == frozenset()
