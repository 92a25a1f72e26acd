"""The YAML that specs are written in: plain data, with nothing left to a YAML tool's taste.

Scalars resolve as in the YAML 1.2 core schema, minus the spellings that YAML 1.1 reads otherwise:
``yes``, ``on``, ``010``, ``0o10``, ``0x10``, ``1_000`` and ``2024-01-01`` are strings, and refused
wherever a bool or a number is meant. Anchors, aliases, tags, merge keys, directives, duplicate
keys, keys that are not strings and further documents are errors, each with its line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import yaml
from yaml import events

from tilewheel_build.spec_errors import Problems, join, show

MAX_SIZE_BYTES = 1024 * 1024
MAX_DEPTH = 16

BROKEN = object()
"""Stands for a value that was reported already, so that nothing more is said about it."""

_INT = re.compile(r"-?(0|[1-9][0-9]*)")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+\.[0-9]*|[0-9]+(?=[eE]))([eE][-+]?[0-9]+)?")
_SPECIAL_FLOAT = re.compile(r"([-+]?)\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_NULLS = ("", "~", "null", "Null", "NULL")
_TRUES = ("true", "True", "TRUE")
_FALSES = ("false", "False", "FALSE")
_INT_LIMIT = 2**63


def read_yaml(raw: bytes | str, problems: Problems) -> object:
    """Return the document as dicts, lists and scalars, or ``BROKEN`` where nothing can be read."""
    text = _decode(raw, problems)
    if text is None:
        return BROKEN
    try:
        return _Builder(text, problems).document()
    except _TooDeepError as error:
        problems.add("", f"nests deeper than {MAX_DEPTH} levels ({error})", "must be flatter")
    except yaml.MarkedYAMLError as error:
        line = f" at line {error.problem_mark.line + 1}" if error.problem_mark else ""
        problems.add("", f"is not YAML{line} ({error.problem})", "must be YAML 1.2")
    except (yaml.YAMLError, ValueError, OverflowError) as error:
        problem = " ".join(str(error).split())
        problems.add("", f"is not YAML ({problem})", "must be YAML 1.2")
    return BROKEN


def _decode(raw: bytes | str, problems: Problems) -> str | None:
    data = raw if isinstance(raw, bytes) else raw.encode("utf-8", errors="surrogatepass")
    if len(data) > MAX_SIZE_BYTES:
        problems.add("", f"is over {MAX_SIZE_BYTES} bytes", "must be at most that")
        return None
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        problems.add("", f"is not UTF-8 at line {line}", "must be UTF-8", hint="save it as UTF-8")
        return None


class _TooDeepError(Exception):
    """The document nests deeper than this reader follows."""


class _Builder:
    """Builds the tree from the parser's events, noting what a spec may not contain."""

    def __init__(self, text: str, problems: Problems) -> None:
        self.events: Iterator[events.Event] = iter(yaml.parse(text, Loader=yaml.SafeLoader))
        self.problems = problems

    def document(self) -> object:
        next(self.events)
        start = next(self.events)
        if isinstance(start, events.StreamEndEvent):
            return None
        if isinstance(start, events.DocumentStartEvent) and (start.version or start.tags):
            self.problems.add("", "has a % directive", "must have none", hint="remove the line")
        tree = self.node(next(self.events), "", 0)
        next(self.events)
        following = next(self.events)
        if not isinstance(following, events.StreamEndEvent):
            line = _line(following)
            self.problems.add("", f"has a second document at line {line}", "must be one document")
        return tree

    def node(self, event: events.Event, path: str, depth: int) -> object:
        if depth > MAX_DEPTH:
            raise _TooDeepError(f"line {_line(event)}")
        if isinstance(event, events.AliasEvent):
            self.refuse(path, event, f"is the alias *{event.anchor}", "write the value out")
            return BROKEN
        if getattr(event, "anchor", None) is not None:
            anchor = getattr(event, "anchor", "")
            self.refuse(path, event, f"has the anchor &{anchor}", "remove the anchor")
        tag = getattr(event, "tag", None)
        if tag is not None:
            short = tag.replace("tag:yaml.org,2002:", "!!")
            self.refuse(path, event, f"has the tag {short}", "remove the tag")
        value: object
        if isinstance(event, events.SequenceStartEvent):
            value = self.sequence(path, depth)
        elif isinstance(event, events.MappingStartEvent):
            value = self.mapping(path, depth)
        else:
            value = self.scalar(event, path)
        return value if tag is None else BROKEN

    def sequence(self, path: str, depth: int) -> list[object]:
        items: list[object] = []
        while not isinstance(event := next(self.events), events.SequenceEndEvent):
            items.append(self.node(event, f"{path}[{len(items)}]", depth + 1))
        return items

    def mapping(self, path: str, depth: int) -> dict[str, object]:
        tree: dict[str, object] = {}
        lines: dict[str, int] = {}
        while not isinstance(event := next(self.events), events.MappingEndEvent):
            plain = isinstance(event, events.ScalarEvent) and event.implicit[0]
            key = self.node(event, path, depth + 1)
            name = key if isinstance(key, str) else show(key)
            place = join(path, name)
            value = self.node(next(self.events), place, depth + 1)
            if key is BROKEN:
                continue
            if key == "<<" and plain:
                self.refuse(place, event, "is a merge key", "write the fields out")
            elif not isinstance(key, str):
                finding = f"has {name} as a key (line {_line(event)})"
                self.problems.add(path, finding, "must have names as keys")
            elif key in tree:
                self.problems.add(
                    place,
                    f"is written twice (lines {lines[key]} and {_line(event)})",
                    "must be written once",
                    hint="remove or rename one of them",
                )
            else:
                tree[key] = value
                lines[key] = _line(event)
        return tree

    def scalar(self, event: events.Event, path: str) -> object:
        if not isinstance(event, events.ScalarEvent):
            raise AssertionError(f"unexpected event {event}")
        text = event.value
        if not event.implicit[0]:
            return str(text)
        value = _resolve(text)
        if isinstance(value, int) and not -_INT_LIMIT <= value < _INT_LIMIT:
            self.problems.add(path, f"is {show(text)}", "must fit into 64 bits")
            return BROKEN
        return value

    def refuse(self, path: str, event: events.Event, finding: str, hint: str) -> None:
        self.problems.add(path, f"{finding} (line {_line(event)})", "must be plain data", hint=hint)


def _resolve(text: str) -> object:
    """Return what a plain scalar stands for."""
    if text in _NULLS:
        return None
    if text in _TRUES or text in _FALSES:
        return text in _TRUES
    if _INT.fullmatch(text):
        # Longer digit strings are out of range anyway, and Python refuses to convert huge ones.
        return int(text) if len(text) <= 20 else _INT_LIMIT
    if _FLOAT.fullmatch(text):
        return float(text)
    special = _SPECIAL_FLOAT.fullmatch(text)
    if special:
        return float("nan") if special[3] else float(f"{special[1]}inf")
    return text


def _line(event: events.Event) -> int:
    return event.start_mark.line + 1 if event.start_mark else 0
