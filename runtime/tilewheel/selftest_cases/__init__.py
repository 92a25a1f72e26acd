"""One module for each operator: ``cases(parameters, device)`` yields its self-test."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tilewheel import compare


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One call: the artifact's arguments in order, and what they must hold afterwards.

    ``expected`` maps the place of an argument to its content on the CPU. ``difference`` says how a
    result differs, in words; bit for bit unless the operator's contract gives a tolerance.
    """

    name: str
    arguments: tuple[Any, ...]
    expected: dict[int, Any]
    difference: Callable[[Any, Any], str] = compare.bits
