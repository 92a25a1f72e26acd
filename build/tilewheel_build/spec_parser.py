"""From the YAML tree of one spec to its values, noting everything that is wrong on the way."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from tilewheel_build.dtypes import DTYPES, INTEGER_RANGES
from tilewheel_build.spec_errors import choice, guess, join, show
from tilewheel_build.spec_fields import (
    KNOWN_ARCHS,
    PROFILE_PATTERN,
    REQUIRED_PROFILES,
    SPEC_BACKENDS,
    is_choice,
    is_int,
)
from tilewheel_build.spec_reader import Domains, SpecReader, spelling
from tilewheel_build.spec_types import (
    Axis,
    Backend,
    Dimension,
    OperatorSpec,
    Parameter,
    Profile,
    Scalar,
    Tensor,
)
from tilewheel_build.yaml_reader import BROKEN

_T = TypeVar("_T")


def parse_tree(reader: SpecReader, tree: object) -> OperatorSpec | None:
    """Return what could be read; it is a valid spec only if there are no problems."""
    fields = reader.record(OperatorSpec, tree, "")
    if fields is None:
        return None
    parameters = reader.entries(fields["parameters"], "parameters", _parameter)
    own: dict[str, tuple[Parameter | None, ...]] = {
        name: (parameter,) for name, parameter in parameters.items()
    }
    backends = reader.entries(
        fields["backends"],
        "backends",
        partial(_backend, own=own),
        check_name=False,
    )
    every = dict(own)
    for backend in _present(backends):
        for parameter in backend.parameters:
            every[parameter.name] = (*every.get(parameter.name, ()), parameter)
    dimensions = reader.entries(fields["dimensions"], "dimensions", _dimension)
    return OperatorSpec(
        path=reader.problems.where,
        operator=fields["operator"] or "",
        family=fields["family"] or "",
        summary=fields["summary"] or "",
        source=fields["source"] or "",
        notes=fields["notes"] or "",
        parameters=_present(parameters),
        points=reader.matches(fields["points"], "points", own),
        grid=_grid(reader, fields["grid"], own),
        exclude=reader.matches(fields["exclude"], "exclude", own),
        profiles=_profiles(reader, fields["profiles"], every),
        dimensions=_present(dimensions),
        tensors=_present(
            reader.entries(
                fields["tensors"],
                "tensors",
                partial(_tensor, domains=own, dimensions=dimensions),
            )
        ),
        scalars=_present(reader.entries(fields["scalars"], "scalars", _scalar)),
        backends=_present(backends),
    )


def _parameter(
    reader: SpecReader, name: str, node: object, path: str, *, of_backend: bool = False
) -> Parameter | None:
    count = len(reader.problems.errors)
    fields = reader.record(Parameter, node, path, of_backend=of_backend)
    if fields is None or len(reader.problems.errors) > count or not isinstance(node, dict):
        return None
    _domain(reader, fields, node, path)
    if len(reader.problems.errors) > count:
        return None
    values = fields.pop("values", ())
    fields["choices"] = tuple(fields["choices"])
    parameter = Parameter(name=name, **fields)
    if not of_backend:
        return parameter
    return replace(parameter, values=reader.values(values, f"{path}.values", (parameter,)))


def _domain(
    reader: SpecReader, fields: Mapping[str, Any], node: Mapping[str, object], path: str
) -> None:
    """Note bounds and choices that do not fit the parameter's type or each other."""
    kind, choices = fields["type"], fields["choices"]
    reason = f"it is a {kind}" if kind != "int" else "it has choices" if choices else ""
    if not reason:
        for bound in ("minimum", "maximum"):
            if bound not in node:
                reader.problems.add(join(path, bound), "is missing", "must be an integer")
    for field in ("minimum", "maximum", "multiple_of", *(["choices"] if kind == "bool" else [])):
        if reason and field in node:
            reader.problems.add(join(path, field), "is given", f"must be absent: {reason}")
    if kind == "string" and not choices:
        reader.problems.add(join(path, "choices"), "is missing", "must be a list of strings")
    wanted = "an integer" if kind == "int" else "a word of [A-Za-z0-9_]+, and not any"
    for i, item in enumerate(choices if kind != "bool" else ()):
        if item is not BROKEN and not (is_int(item) if kind == "int" else is_choice(item)):
            reader.problems.add(
                f"{path}.choices[{i}]",
                f"is {show(item)}",
                f"must be {wanted}",
                hint=spelling(item, wanted),
            )
    reader.unique(choices, f"{path}.choices")
    reader.ordered(fields, path)


def _grid(reader: SpecReader, node: Any, domains: Domains) -> tuple[Axis, ...]:
    axes: list[Axis] = []
    for name, values in (node or {}).items():
        path = f"grid.{name}"
        if name not in domains:
            reader.problems.add(
                path, "is an unknown parameter", choice(name, domains), hint=guess(name, domains)
            )
        elif not isinstance(values, list) or not values:
            if values is not BROKEN:
                reader.problems.add(path, f"is {show(values)}", "must be a non-empty list")
        else:
            axes.append((name, reader.values(values, path, domains[name])))
    return tuple(axes)


def _profiles(reader: SpecReader, node: Any, domains: Domains) -> tuple[Profile, ...]:
    found = []
    for name, matches in (node or {}).items():
        path = f"profiles.{name}"
        if re.fullmatch(PROFILE_PATTERN, name) is None:
            reader.problems.add(
                "profiles", f"has the name {show(name)}", "must be made of [a-z0-9.-]"
            )
        if matches == "all":
            found.append(Profile(name=name, matches=((),)))
        elif isinstance(matches, list) and matches:
            found.append(Profile(name=name, matches=reader.matches(matches, path, domains)))
        elif matches is not BROKEN:
            reader.problems.add(
                path, f"is {show(matches)}", "must be all or a non-empty list of matches"
            )
    for name in REQUIRED_PROFILES if isinstance(node, dict) else ():
        if name not in node:
            reader.problems.add(
                f"profiles.{name}", "is missing", "must be all or a list of matches"
            )
    return tuple(found)


def _dimension(reader: SpecReader, name: str, node: object, path: str) -> Dimension | None:
    fields = reader.record(Dimension, node, path)
    if fields is None:
        return None
    reader.ordered(fields, path)
    return Dimension(name=name, **fields)


def _tensor(
    reader: SpecReader,
    name: str,
    node: object,
    path: str,
    *,
    domains: Domains,
    dimensions: Mapping[str, Dimension | None],
) -> Tensor | None:
    fields = reader.record(Tensor, node, path)
    if fields is None:
        return None
    parameters = {name: known for name, (known,) in domains.items()}
    _tensor_dtype(reader, fields["dtype"], join(path, "dtype"), parameters)
    sizes = [
        *dimensions,
        *(name for name, known in parameters.items() if known is None or known.type == "int"),
    ]
    for i, size in enumerate(fields["shape"] or ()):
        place = f"{path}.shape[{i}]"
        if is_int(size) and size >= 1:
            continue
        if not isinstance(size, str):
            if size is not BROKEN:
                reader.problems.add(
                    place, f"is {show(size)}", "must be an integer of at least 1 or a name"
                )
        elif size in parameters and size not in sizes:
            reader.problems.add(place, f"is the parameter {size}", "must be an int parameter")
        elif size not in sizes:
            reader.problems.add(
                place,
                f"is {show(size)}",
                choice(size, sizes),
                hint=guess(size, sizes) or f"declare {size} in dimensions",
            )
    when = reader.match(fields["when"], f"{path}.when", domains) if fields["when"] else ()
    shape = tuple(fields["shape"] or ())
    return Tensor(name=name, **{**fields, "shape": shape, "when": when or ()})


def _tensor_dtype(
    reader: SpecReader, dtype: str | None, path: str, parameters: Mapping[str, Parameter | None]
) -> None:
    if dtype is None or dtype in DTYPES:
        return
    usable = {
        name
        for name, known in parameters.items()
        if known is None or (known.choices and set(known.choices) <= set(DTYPES))
    }
    if dtype in usable:
        return
    if dtype in parameters:
        demand = "must be a string parameter whose choices are all dtypes"
        reader.problems.add(path, f"is the parameter {dtype}", demand)
        return
    known_names = [*DTYPES, *usable]
    reader.problems.add(
        path, f"is {show(dtype)}", choice(dtype, known_names), hint=guess(dtype, known_names)
    )


def _scalar(reader: SpecReader, name: str, node: object, path: str) -> Scalar | None:
    fields = reader.record(Scalar, node, path)
    if fields is None:
        return None
    dtype = fields["dtype"]
    _scalar_choices(reader, fields, path)
    for bound in ("minimum", "maximum"):
        value, place = fields[bound], join(path, bound)
        if value is None or dtype is None:
            continue
        if dtype == "bool":
            reader.problems.add(place, "is given", "must be absent: it is a bool")
        elif dtype in INTEGER_RANGES:
            low, high = INTEGER_RANGES[dtype]
            if not is_int(value):
                reader.problems.add(place, f"is {show(value)}", "must be an integer")
            elif not low <= value <= high:
                reader.problems.add(place, f"is {value}", f"must lie in {low} to {high}")
    reader.ordered(fields, path)
    fields["choices"] = tuple(fields["choices"])
    return Scalar(name=name, **fields)


def _scalar_choices(reader: SpecReader, fields: Mapping[str, Any], path: str) -> None:
    choices, dtype = fields["choices"], fields["dtype"]
    if not choices:
        return
    if dtype is not None and dtype not in INTEGER_RANGES:
        reader.problems.add(f"{path}.choices", "is given", f"must be absent: it is a {dtype}")
    for bound in ("minimum", "maximum"):
        if fields[bound] is not None:
            reader.problems.add(join(path, bound), "is given", "must be absent: it has choices")
    low, high = INTEGER_RANGES.get(dtype, INTEGER_RANGES["int64"])
    for i, item in enumerate(choices):
        if item is not BROKEN and not (is_int(item) and low <= item <= high):
            demand = f"must be an integer in {low} to {high}"
            reader.problems.add(f"{path}.choices[{i}]", f"is {show(item)}", demand)
    reader.unique(choices, f"{path}.choices")


def _backend(
    reader: SpecReader, name: str, node: object, path: str, *, own: Domains
) -> Backend | None:
    if name not in SPEC_BACKENDS:
        if name in KNOWN_ARCHS:
            reader.problems.add(
                path,
                "is written out",
                "must be absent: it follows from ascend",
                hint=f"remove {path}",
            )
        else:
            reader.problems.add(
                path,
                "is an unknown backend",
                choice(name, SPEC_BACKENDS),
                hint=guess(name, SPEC_BACKENDS),
            )
        return None
    fields = reader.record(Backend, node, path)
    if fields is None:
        return None
    for i, arch in enumerate(fields["archs"] or ()):
        if arch is not BROKEN and (not isinstance(arch, str) or arch not in KNOWN_ARCHS[name]):
            known = KNOWN_ARCHS[name]
            reader.problems.add(
                f"{path}.archs[{i}]",
                f"is {show(arch)}",
                choice(arch, known),
                hint=guess(arch, known),
            )
    reader.unique(fields["archs"] or (), f"{path}.archs")
    parameters = reader.entries(
        fields["parameters"],
        f"{path}.parameters",
        partial(_parameter, of_backend=True),
    )
    domains = {**own, **{key: (known,) for key, known in parameters.items()}}
    return Backend(
        name=name,
        kernel=fields["kernel"] or "",
        archs=tuple(str(arch) for arch in fields["archs"] or ()),
        parameters=_present(parameters),
        exclude=reader.matches(fields["exclude"], f"{path}.exclude", domains),
    )


def _present(entries: Mapping[str, _T | None]) -> tuple[_T, ...]:
    return tuple(entry for entry in entries.values() if entry is not None)
