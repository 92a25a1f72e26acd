"""The name of one variant: operator, bound parameters, target.

``topk_gate-num_experts=256-num_topk=8-cuda-sm_90a`` is file stem, test id, glob subject and
error text. Grammar: ``operator ("-" name "=" value)* "-" backend "-" arch``; names are snake_case,
values are integers, ``true``/``false`` or ``[A-Za-z0-9_]+``, parameters are sorted by name, and the
whole is at most 200 characters. The value ``any`` means "decided at run time".
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeGuard

from tilewheel.errors import KeyFormatError

Value = int | bool | str
"""A parameter's value. The string ``any`` is reserved: the value comes at run time."""

ANY = "any"
MAX_KEY_LENGTH = 200

_NAME = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
_WORD = re.compile(r"[A-Za-z0-9_]+")
_INT = re.compile(r"0|-?[1-9][0-9]*")


def is_name(text: str) -> bool:
    """Return whether ``text`` is a snake_case name of the key grammar."""
    return _NAME.fullmatch(text) is not None


def is_value(value: object) -> TypeGuard[Value]:
    """Return whether ``value`` can stand in a key and be read back with its type."""
    if isinstance(value, (bool, int)):
        return True
    if not isinstance(value, str) or _WORD.fullmatch(value) is None:
        return False
    # `12` and `true` as strings would come back as an int and a bool.
    return _INT.fullmatch(value) is None and value not in ("true", "false")


def format_value(value: Value) -> str:
    """Return ``value`` as it stands in a key."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def parse_value(text: str) -> Value:
    """Return the value that ``text`` stands for in a key."""
    if len(text) > MAX_KEY_LENGTH:  # Python refuses to read integers of thousands of digits
        raise KeyFormatError(f"value: is {len(text)} characters, must be at most {MAX_KEY_LENGTH}")
    if text in ("true", "false"):
        return text == "true"
    if _INT.fullmatch(text):
        return int(text)
    if _WORD.fullmatch(text):
        return text
    raise KeyFormatError(f"value: is {text!r}, must be an integer, true, false or [A-Za-z0-9_]+")


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Target:
    """A backend and an architecture, for example ``cuda-sm_90a``."""

    backend: str
    arch: str

    def __post_init__(self) -> None:
        # A key splits at "-", so the backend `ascend-sim` is written `ascend_sim` inside it.
        if not is_name(self.backend.replace("-", "_")):
            raise KeyFormatError(f"backend: is {self.backend!r}, must be a snake_case name")
        if not is_name(self.arch):
            raise KeyFormatError(f"arch: is {self.arch!r}, must be a snake_case name")

    def __str__(self) -> str:
        return f"{self.backend.replace('-', '_')}-{self.arch}"

    @classmethod
    def parse(cls, text: str) -> Target:
        """Read a target as ``str()`` prints it; a backend may also be written with its hyphen."""
        backend, separator, arch = text.rpartition("-")
        if not separator:
            raise KeyFormatError(f"target: is {text!r}, must be <backend>-<arch>, e.g. cuda-sm_90a")
        return cls(backend=backend.replace("_", "-"), arch=arch)


def sort_parameters(parameters: Mapping[str, Value]) -> tuple[tuple[str, Value], ...]:
    """Return the parameters as the sorted pairs that a key holds."""
    return tuple(sorted(parameters.items()))


def format_parameters(parameters: Iterable[tuple[str, Value]]) -> str:
    """Return ``a=1 b=true``: parameters as the command line takes them."""
    return " ".join(f"{name}={format_value(value)}" for name, value in parameters)


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """The identity of one artifact. ``str(key)`` and ``Key.parse`` are each other's inverse."""

    operator: str
    parameters: tuple[tuple[str, Value], ...]
    target: Target

    def __post_init__(self) -> None:
        if not is_name(self.operator):
            raise KeyFormatError(f"operator: is {self.operator!r}, must be a snake_case name")
        names = [name for name, _ in self.parameters]
        if names != sorted(set(names)):
            raise KeyFormatError(
                f"{self.operator}: parameters are {', '.join(names)}, must be sorted and unique"
            )
        for name, value in self.parameters:
            if not is_name(name):
                raise KeyFormatError(f"parameter: is {name!r}, must be a snake_case name")
            if not is_value(value):
                raise KeyFormatError(
                    f"{name}: is {value!r}, must be an int, a bool or a string of [A-Za-z0-9_]+"
                )
        if len(str(self)) > MAX_KEY_LENGTH:
            raise KeyFormatError(
                f"key: is {len(str(self))} characters, must be at most {MAX_KEY_LENGTH}: {self}"
            )

    def __str__(self) -> str:
        bound = "".join(f"-{name}={format_value(value)}" for name, value in self.parameters)
        return f"{self.operator}{bound}-{self.target}"

    @classmethod
    def parse(cls, text: str) -> Key:
        """Read a key as ``str()`` prints it."""
        parts = text.split("-")
        # A negative value brings a "-" of its own: `offset=-1` splits into `offset=` and `1`.
        joined: list[str] = []
        for part in parts:
            if joined and joined[-1].endswith("="):
                joined[-1] += f"-{part}"
            else:
                joined.append(part)
        if len(joined) < 3:
            raise KeyFormatError(
                f"key: is {text!r}, must be <operator>-<name>=<value>...-<backend>-<arch>"
            )
        operator, *bound, backend, arch = joined
        parameters = []
        for part in bound:
            name, separator, value = part.partition("=")
            if not separator:
                raise KeyFormatError(f"key: has {part!r} in {text!r}, must be <name>=<value>")
            parameters.append((name, parse_value(value)))
        return cls(
            operator=operator,
            parameters=tuple(parameters),
            target=Target.parse(f"{backend}-{arch}"),
        )

    def sort_key(self) -> tuple[str, str, tuple[tuple[str, int, int, str], ...]]:
        """Order keys by operator, target and parameters, integers by size and ``any`` last."""
        ordered = []
        for name, value in self.parameters:
            rank = 2 if value == ANY else 0 if isinstance(value, int) else 1
            number = int(value) if isinstance(value, int) else 0
            ordered.append((name, rank, number, str(value)))
        return (self.operator, str(self.target), tuple(ordered))
