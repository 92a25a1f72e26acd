"""Rules that tie the fields of a spec together: where it stands, its names, and its grid."""

from __future__ import annotations

from pathlib import PurePosixPath

from tilewheel.errors import KeyFormatError
from tilewheel.key import Key, Target, format_parameters
from tilewheel_build.grid import (
    backend_axes,
    backend_bindings,
    combine,
    covers,
    num_combinations,
    operator_bindings,
)
from tilewheel_build.spec_errors import Problems
from tilewheel_build.spec_fields import REQUIRED_PROFILES
from tilewheel_build.spec_types import Backend, Match, OperatorSpec

MAX_BINDINGS = 10_000
"""Most bindings that one spec may ask for, so that a slip in a grid cannot stall the driver."""

LOAD_ARGUMENTS = ("device", "operator")
"""What ``tilewheel.load`` takes beside the parameters, which it takes by keyword."""

PREPARE = "prepare"
"""Artifacts export a function of this name beside the operator's."""

_ANOTHER_NAME = "must be another name"


def check_rules(spec: OperatorSpec, problems: Problems) -> None:
    """Note every rule that the spec breaks, as far as the fields that it needs were readable."""
    _check_place(spec, problems)
    _check_names(spec, problems)
    if problems.touch("parameters", "points", "grid"):
        return
    _check_coverage(spec, problems)
    if problems.touch("parameters", "points", "grid", "exclude", "backends"):
        return
    for backend in spec.backends:
        axes = (*spec.grid, *backend_axes(backend))
        count = num_combinations(spec.points, axes)
        if count > MAX_BINDINGS:
            problems.add(
                f"backends.{backend.name}",
                f"has {count} bindings",
                f"must have at most {MAX_BINDINGS}",
            )
    if problems.touch("backends"):
        return
    _check_excludes(spec, problems)
    if not operator_bindings(spec):
        return
    expanded = {backend.name: backend_bindings(spec, backend) for backend in spec.backends}
    for backend in spec.backends if spec.operator else ():
        _check_keys(spec, backend, expanded[backend.name], problems)
    _check_profiles(spec, expanded, problems)


def _check_place(spec: OperatorSpec, problems: Problems) -> None:
    path = PurePosixPath(spec.path)
    if spec.operator and spec.operator != path.stem:
        problems.add(
            "operator",
            f"is {spec.operator}",
            f"must be {path.stem}, as the file",
            hint=f"rename the file to {spec.operator}.yaml, or the operator to {path.stem}",
        )
    if spec.family and path.parent.name not in ("", spec.family):
        problems.add(
            "family",
            f"is {spec.family}",
            f"must be {path.parent.name}, as the folder",
            hint=f"move the file to specs/{spec.family}, or write {path.parent.name}",
        )


def _check_names(spec: OperatorSpec, problems: Problems) -> None:
    """Note names that mean two things, and dimensions that mean nothing."""
    if spec.operator == PREPARE:
        problems.add("operator", f"is {PREPARE}, as a function of every artifact", _ANOTHER_NAME)
    named = [
        *(("parameters", item.name) for item in spec.parameters),
        *(("dimensions", item.name) for item in spec.dimensions),
        *(("tensors", item.name) for item in spec.tensors),
        *(("scalars", item.name) for item in spec.scalars),
        *(
            (f"backends.{part.name}.parameters", item.name)
            for part in spec.backends
            for item in part.parameters
        ),
    ]
    owner: dict[str, str] = {}
    for section, name in named:
        if section.endswith("parameters") and name in LOAD_ARGUMENTS:
            problems.add(f"{section}.{name}", "is an argument of tilewheel.load", _ANOTHER_NAME)
        other = owner.setdefault(name, section)
        # Two backends may each have a parameter of the same name.
        if other != section and not (section[:8] == other[:8] == "backends"):
            problems.add(f"{section}.{name}", f"has a name that is in {other} too", _ANOTHER_NAME)
    if problems.touch("tensors"):
        return
    used = {size for tensor in spec.tensors for size in tensor.shape}
    for dimension in spec.dimensions:
        if dimension.name not in used:
            problems.add(
                f"dimensions.{dimension.name}", "is in no shape", "must be a size of some tensor"
            )


def _check_coverage(spec: OperatorSpec, problems: Problems) -> None:
    """Note parameters that are not bound by exactly one of points and grid."""
    if spec.parameters and not spec.points and not spec.grid:
        problems.add(
            "points", "is missing, and so is grid", "must bind the parameters, in one of them"
        )
        return
    coupled = {name for point in spec.points for name, _ in point}
    axes = {name for name, _ in spec.grid}
    for name in sorted(coupled & axes):
        problems.add(f"grid.{name}", "is bound by points too", "must be bound by one of them")
    for i, point in enumerate(spec.points):
        for name in sorted(coupled - {bound for bound, _ in point}):
            first = next(k for k, other in enumerate(spec.points) if name in dict(other))
            problems.add(
                f"points[{i}].{name}", "is missing", f"must be bound, as it is in points[{first}]"
            )
    for parameter in spec.parameters:
        if parameter.name not in coupled | axes:
            problems.add(
                f"parameters.{parameter.name}",
                "is bound by neither points nor grid",
                "must be bound by one of them",
            )


def _check_excludes(spec: OperatorSpec, problems: Problems) -> None:
    everything = combine(spec.points or ((),), spec.grid, ())
    for i, match in enumerate(spec.exclude):
        check_match(match, everything, f"exclude[{i}]", problems)
    if spec.exclude and not operator_bindings(spec):
        problems.add("exclude", "leaves nothing", "must leave a variant")
        return
    for backend in spec.backends:
        everything = combine(operator_bindings(spec), backend_axes(backend), ())
        path = f"backends.{backend.name}.exclude"
        for i, match in enumerate(backend.exclude):
            check_match(match, everything, f"{path}[{i}]", problems)
        if backend.exclude and not backend_bindings(spec, backend):
            problems.add(path, "leaves nothing", "must leave a variant")


def check_match(match: Match, bindings: tuple[Match, ...], path: str, problems: Problems) -> None:
    """Note a match that matches none of the bindings."""
    if not any(covers(match, bound) for bound in bindings):
        problems.add(
            path,
            f"matches nothing ({format_parameters(match)})",
            "must match a binding of the spec",
        )


def _check_keys(
    spec: OperatorSpec, backend: Backend, bindings: tuple[Match, ...], problems: Problems
) -> None:
    """Note the first key of a backend that breaks the key grammar, which bounds its length."""
    # The simulator's keys are the longest ones of the ascend part.
    name = "ascend-sim" if backend.name == "ascend" else backend.name
    for arch in backend.archs:
        for bound in bindings:
            try:
                Key(
                    operator=spec.operator,
                    parameters=bound,
                    target=Target(backend=name, arch=arch),
                )
            except KeyFormatError as error:
                finding, _, demand = str(error).partition(", ")
                problems.add(f"backends.{backend.name}", finding, demand)
                return


def _check_profiles(
    spec: OperatorSpec, expanded: dict[str, tuple[Match, ...]], problems: Problems
) -> None:
    everything = tuple(bound for bindings in expanded.values() for bound in bindings)
    if not everything:
        return
    count = len(problems.errors)
    for profile in spec.profiles:
        for i, match in enumerate(profile.matches):
            check_match(match, everything, f"profiles.{profile.name}[{i}]", problems)
    if len(problems.errors) > count or problems.touch("profiles"):
        return
    for profile in spec.profiles:
        for backend, bindings in expanded.items():
            found = any(covers(match, bound) for match in profile.matches for bound in bindings)
            if profile.name in REQUIRED_PROFILES and bindings and not found:
                problems.add(
                    f"profiles.{profile.name}",
                    f"holds nothing of {backend}",
                    "must hold a variant of every backend",
                )
