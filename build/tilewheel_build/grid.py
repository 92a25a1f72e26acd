"""Points times grid minus exclude: which bindings a spec asks for. Pure functions."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable

from tilewheel.key import ANY, Value, format_value, sort_parameters
from tilewheel_build.spec_errors import choice
from tilewheel_build.spec_fields import is_int
from tilewheel_build.spec_types import Axis, Backend, Match, OperatorSpec, Parameter


def covers(match: Match, bindings: Match) -> bool:
    """Return whether ``bindings`` binds every parameter of ``match`` to the same value.

    ``any`` is a value like others: it covers ``any`` and nothing else.
    """
    # 1 and true are equal in Python, so the types are compared too.
    typed = {(name, type(value), value) for name, value in bindings}
    return all((name, type(value), value) in typed for name, value in match)


def num_combinations(points: tuple[Match, ...], axes: Iterable[Axis]) -> int:
    """Return how many bindings points times axes make."""
    return max(1, len(points)) * math.prod(len(values) for _, values in axes)


def combine(
    points: tuple[Match, ...], axes: Iterable[Axis], exclude: tuple[Match, ...]
) -> tuple[Match, ...]:
    """Return points times axes minus exclude, each sorted by name, in the order of the spec."""
    named_axes = [[(name, value) for value in values] for name, values in axes]
    found = []
    for point in points:
        for chosen in itertools.product(*named_axes):
            bindings = sort_parameters({**dict(point), **dict(chosen)})
            if not any(covers(match, bindings) for match in exclude):
                found.append(bindings)
    return tuple(found)


def operator_bindings(spec: OperatorSpec) -> tuple[Match, ...]:
    """Return the bindings of the operator's own parameters, before any backend's part."""
    return combine(spec.points or ((),), spec.grid, spec.exclude)


def backend_axes(backend: Backend) -> tuple[Axis, ...]:
    """Return the axes that a backend adds."""
    return tuple((parameter.name, parameter.values) for parameter in backend.parameters)


def backend_bindings(spec: OperatorSpec, backend: Backend) -> tuple[Match, ...]:
    """Return the bindings of all parameters that a backend builds, for each architecture."""
    return combine(operator_bindings(spec), backend_axes(backend), backend.exclude)


def domain_error(parameter: Parameter, value: Value) -> str | None:
    """Return what ``value`` must be to lie in the parameter's domain, or None where it does."""
    if parameter.type == "bool":
        return None if isinstance(value, bool) else "must be true or false"
    if parameter.choices:
        if not isinstance(value, bool) and value in parameter.choices:
            return None
        known = [format_value(item) for item in parameter.choices]
        if parameter.type == "int":
            return f"must be one of {', '.join(known)}"
        return choice(value, known)
    if value == ANY:
        return None
    if not is_int(value) or not isinstance(value, int):
        return "must be an integer or any"
    if parameter.minimum is not None and value < parameter.minimum:
        return f"must be at least {parameter.minimum}"
    if parameter.maximum is not None and value > parameter.maximum:
        return f"must be at most {parameter.maximum}"
    if value % parameter.multiple_of:
        return f"must be a multiple of {parameter.multiple_of}"
    return None
