"""Typed access to the YAML tree of a spec; whatever is refused is noted and left out."""

from __future__ import annotations

import keyword
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from tilewheel.key import ANY, Value, format_value, sort_parameters
from tilewheel_build.dtypes import DTYPES
from tilewheel_build.grid import domain_error
from tilewheel_build.spec_errors import Problems, choice, guess, join, show
from tilewheel_build.spec_fields import NAME, Form, yaml_fields
from tilewheel_build.spec_types import Match, Parameter
from tilewheel_build.yaml_reader import BROKEN

Domains = Mapping[str, tuple[Parameter | None, ...]]
"""The parameters that a name may mean; None for one that was reported already."""

_T = TypeVar("_T")


class SpecReader:
    """Reads records, values and matches, and notes in ``problems`` what is wrong with them."""

    def __init__(self, problems: Problems) -> None:
        self.problems = problems

    def record(
        self, kind: type, node: object, path: str, *, of_backend: bool = False
    ) -> dict[str, Any] | None:
        """Return the fields of a mapping: accepted ones, defaults, None for the refused."""
        if node is BROKEN:
            return None
        if not isinstance(node, dict):
            self.problems.add(path, f"is {show(node)}", "must be a mapping")
            return None
        known = yaml_fields(kind, of_backend=of_backend)
        for name in node:
            if name not in known:
                self.problems.add(
                    join(path, name),
                    "is an unknown field",
                    choice(name, known),
                    hint=guess(name, set(known) - set(node)),
                )
        fields: dict[str, Any] = {}
        for name, field in known.items():
            fields[name] = None if field.required else field.default
            if name not in node:
                if field.required:
                    self.problems.add(join(path, name), "is missing", f"must be {field.form.words}")
            elif self.accept(field.form, node[name], join(path, name)):
                fields[name] = node[name]
        return fields

    def accept(self, form: Form, value: object, path: str) -> bool:
        """Return whether ``value`` is of that form, and note it if not."""
        if value is BROKEN or form.accepts(value):
            return value is not BROKEN
        demand = choice(value, form.choices) if form.choices else f"must be {form.words}"
        self.problems.add(path, f"is {show(value)}", demand, hint=spelling(value, demand))
        return False

    def entries(
        self,
        node: Any,
        path: str,
        read: Callable[[SpecReader, str, object, str], _T | None],
        *,
        check_name: bool = True,
    ) -> dict[str, _T | None]:
        """Return each entry of a mapping; None for one that was noted as a problem."""
        found = {}
        for name, value in (node or {}).items():
            place = join(path, name)
            if check_name and not NAME.accepts(name):
                self.problems.add(path, f"has the name {show(name)}", f"must be {NAME.words}")
            elif check_name and (keyword.iskeyword(name) or name in (*DTYPES, ANY)):
                self.problems.add(place, "is a reserved word", "must be another name")
            found[name] = read(self, name, value, place)
        return found

    def value(self, node: object, path: str, domain: tuple[Parameter | None, ...]) -> Value | None:
        """Return ``node`` if it lies in one of the domains."""
        if node is BROKEN:
            return None
        if not isinstance(node, (int, str)):
            demand = "must be an integer, true, false or a word"
            if len(domain) == 1 and domain[0] is not None:
                demand = domain_error(domain[0], "") or demand
            self.problems.add(path, f"is {show(node)}", demand, hint=spelling(node, demand))
            return None
        errors = [None if known is None else domain_error(known, node) for known in domain]
        if errors and all(errors):
            demand = str(errors[0])
            self.problems.add(path, f"is {show(node)}", demand, hint=spelling(node, demand))
            return None
        return node

    def values(
        self, node: list[object], path: str, domain: tuple[Parameter | None, ...]
    ) -> tuple[Value, ...]:
        found = [self.value(item, f"{path}[{i}]", domain) for i, item in enumerate(node)]
        self.unique(node, path)
        return tuple(value for value in found if value is not None)

    def match(self, node: object, path: str, domains: Domains) -> Match | None:
        if node is BROKEN:
            return None
        if not isinstance(node, dict) or not node:
            hint = "write all in place of the list" if path.startswith("profiles.") else ""
            self.problems.add(
                path, f"is {show(node)}", "must be a mapping that binds a parameter", hint=hint
            )
            return None
        pairs: dict[str, Value] = {}
        for name, value in node.items():
            place = join(path, name)
            if name not in domains:
                self.problems.add(
                    place,
                    "is an unknown parameter",
                    choice(name, domains),
                    hint=guess(name, domains),
                )
                continue
            checked = self.value(value, place, domains[name])
            if checked is not None:
                pairs[name] = checked
        return sort_parameters(pairs) if len(pairs) == len(node) else None

    def matches(self, node: Any, path: str, domains: Domains) -> tuple[Match, ...]:
        found = self.places(node, path, domains)
        return tuple(match for match in found if match is not None)

    def places(self, node: Any, path: str, domains: Domains) -> list[Match | None]:
        """Return each match of a list in its place; None for one that was noted as a problem."""
        items = list(node or ())
        found = [self.match(item, f"{path}[{i}]", domains) for i, item in enumerate(items)]
        self.unique(items, path)
        return found

    def unique(self, items: Iterable[object], path: str) -> None:
        """Note each item that stands in a list a second time."""
        first: dict[str, int] = {}
        for i, item in enumerate(items):
            if item is BROKEN:
                continue
            # The sorted text: {a: 1, b: 2} is {b: 2, a: 1}, and 1 is not true.
            text = repr(sorted(item.items(), key=str)) if isinstance(item, dict) else repr(item)
            if text in first:
                self.problems.add(
                    f"{path}[{i}]", f"is the same as {path}[{first[text]}]", "must be unique"
                )
            first.setdefault(text, i)

    def ordered(self, fields: Mapping[str, Any], path: str) -> None:
        """Note a least value above the largest one."""
        low, high = fields["minimum"], fields["maximum"]
        if low is not None and high is not None and low > high:
            self.problems.add(
                join(path, "minimum"), f"is {low}", f"must be at most maximum ({high})"
            )


def spelling(value: object, demand: str) -> str:
    """Return how to write what was probably meant: a bool, a number, or a quoted string."""
    if "true or false" in demand and isinstance(value, str):
        word = value.lower()
        if word in ("yes", "on", "y"):
            return "write true"
        if word in ("no", "off", "n"):
            return "write false"
    if "integer" in demand and isinstance(value, str) and re.match(r"[-+]?[0-9]", value):
        return "write the integer in plain decimal digits"
    if "integer" in demand and isinstance(value, float) and value.is_integer():
        return f"write {int(value)}"
    if ("text" in demand or "word" in demand) and isinstance(value, (bool, int, float)):
        return f"quote it: '{format_value(value) if not isinstance(value, float) else value}'"
    return ""
