"""What is wrong with a spec: one line for each finding, all findings of a file together."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

MAX_SHOWN_LENGTH = 60


class SpecError(ValueError):
    """Specs cannot be used. ``errors`` holds every finding, ``str()`` joins them by newlines."""

    exit_code = 2

    def __init__(self, errors: Sequence[str]) -> None:
        self.errors = tuple(errors)
        super().__init__(self.errors)

    def __str__(self) -> str:
        return "\n".join(self.errors)


class Problems:
    """The findings about one file, collected so that all are reported at once."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.errors: list[str] = []
        self._paths: list[str] = []

    def add(self, path: str, finding: str, demand: str, *, hint: str = "") -> None:
        """Note that the field at ``path`` (the whole file if empty) is not what it must be."""
        place = f"{self.where}: {path}" if path else self.where
        action = f"\nhint: {hint}" if hint else ""
        self.errors.append(f"{place}: {finding}, {demand}{action}")
        self._paths.append(path)

    def touch(self, *sections: str) -> bool:
        """Return whether a finding lies in one of the top-level fields, or concerns the file."""
        return any(not path or path.split(".")[0].split("[")[0] in sections for path in self._paths)


def show(value: object) -> str:
    """Return a value as an error message names it: short, and as the file writes it."""
    if value is None:
        return "empty"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return "a mapping" if value else "an empty mapping"
    if isinstance(value, (list, tuple)):
        return "a list" if value else "an empty list"
    text = repr(value)
    return text if len(text) <= MAX_SHOWN_LENGTH else f"{text[: MAX_SHOWN_LENGTH - 3]}..."


def nearest(name: str, known: Iterable[str]) -> list[str]:
    """Return the known names, those most like ``name`` first, equals in alphabetical order."""

    def distance(candidate: str) -> tuple[float, str]:
        return (-difflib.SequenceMatcher(None, name, candidate).ratio(), candidate)

    return sorted(known, key=distance)


def choice(name: object, known: Iterable[str]) -> str:
    """Return ``must be one of ...`` (``must be x`` for a single name), nearest first."""
    ordered = nearest(str(name), known)
    if not ordered:
        return "must be absent: none is declared"
    return f"must be {'one of ' if len(ordered) > 1 else ''}{', '.join(ordered)}"


def guess(name: object, known: Iterable[str]) -> str:
    """Return ``write x`` where a known name is so near that it was probably meant, else nothing."""
    close = difflib.get_close_matches(str(name), sorted(known), n=1, cutoff=0.7)
    return f"write {close[0]}" if close else ""


def join(path: str, name: str) -> str:
    """Return the path of the field ``name`` inside the mapping at ``path``."""
    return f"{path}.{name}" if path else name
