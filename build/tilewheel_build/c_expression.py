"""TVM integer expressions as C over ``int64_t`` values, and what the launcher can solve for."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

_BINARY = {"Add": "+", "Sub": "-", "Mul": "*"}
_DIVIDE = {"FloorDiv": "/", "Div": "/", "FloorMod": "%", "Mod": "%"}
_COMPARE = {"LT": "<", "LE": "<=", "GT": ">", "GE": ">=", "EQ": "==", "NE": "!="}


class ExpressionError(ValueError):
    """An expression uses an operation that the launcher cannot evaluate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """One extent of a shape or stride: a constant, ``factor * symbol``, or any other expression.

    The launcher binds a symbol from the first extent of the form ``factor * symbol`` that has it
    and checks every other extent against its expression.
    """

    text: str
    constant: int | None = None
    symbol: str | None = None
    factor: int = 1


def dimension_name(name: str) -> str:
    """Return the C variable that holds the run-time value called ``name``."""
    return f"dim_{name}"


def extent(expression: Any) -> Extent:
    """Classify one extent of a buffer."""
    kind = type(expression).__name__
    if isinstance(expression, int) or kind == "IntImm":
        value = int(expression)
        return Extent(text=str(value), constant=value)
    if kind == "Cast":
        return extent(expression.value)
    if kind == "Var":
        return Extent(text=to_c(expression), symbol=str(expression.name))
    if kind == "Mul":
        for factor, variable in ((expression.a, expression.b), (expression.b, expression.a)):
            if type(factor).__name__ == "IntImm" and type(variable).__name__ == "Var":
                return Extent(text=to_c(expression), symbol=str(variable.name), factor=int(factor))
    return Extent(text=to_c(expression))


def to_c(expression: Any) -> str:
    """Return a C expression with ``int64_t`` arithmetic.

    Extents are never negative, so floor division and C's truncating division agree. A division by
    a run-time value that is zero gives zero: it would end the process.
    """
    kind = type(expression).__name__
    if isinstance(expression, int) or kind == "IntImm":
        return str(int(expression))
    if kind == "Var":
        return dimension_name(str(expression.name))
    if kind == "Cast":
        return to_c(expression.value)
    if kind in _BINARY:
        return f"({to_c(expression.a)} {_BINARY[kind]} {to_c(expression.b)})"
    if kind in _DIVIDE:
        a, b = to_c(expression.a), to_c(expression.b)
        divided = f"({a} {_DIVIDE[kind]} {b})"
        return divided if symbols_in(b) == frozenset() else f"({b} == 0 ? 0 : {divided})"
    if kind in ("Min", "Max"):
        a, b = to_c(expression.a), to_c(expression.b)
        return f"({a} {'<' if kind == 'Min' else '>'} {b} ? {a} : {b})"
    if kind in _COMPARE:
        return f"({to_c(expression.a)} {_COMPARE[kind]} {to_c(expression.b)})"
    if kind == "Select":
        condition = to_c(expression.condition)
        return f"({condition} ? {to_c(expression.true_value)} : {to_c(expression.false_value)})"
    if kind == "Call" and str(getattr(expression.op, "name", "")) in _SHIFTS:
        shift = _SHIFTS[str(expression.op.name)]
        return f"({to_c(expression.args[0])} {shift} {to_c(expression.args[1])})"
    raise ExpressionError(
        f"grid or shape: has {kind} in {expression}, must be made of integers, run-time sizes "
        "and + - * // % min max shift"
    )


_SHIFTS = {
    "tirx.shift_left": "<<",
    "tirx.shift_right": ">>",
    "tir.shift_left": "<<",
    "tir.shift_right": ">>",
}


def symbols_in(text: str) -> frozenset[str]:
    """Return the names of the run-time values that a C expression of this module uses."""
    return frozenset(re.findall(r"\bdim_(\w+)", text))
