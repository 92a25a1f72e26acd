"""Profiles in files of their own: a mapping from operator to ``all`` or a list of partial matches.

The file's stem is the profile's name. For the build that takes the file it is a profile like those
that specs name themselves, and it replaces one of the same name: manifests list it, and so
``tilewheel.preload`` knows it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from tilewheel_build.grid import backend_bindings
from tilewheel_build.spec import SpecError, read_file
from tilewheel_build.spec_errors import Problems, choice, guess, show
from tilewheel_build.spec_fields import PROFILE_PATTERN
from tilewheel_build.spec_parser import profile_matches, with_backends
from tilewheel_build.spec_reader import SpecReader
from tilewheel_build.spec_rules import check_match
from tilewheel_build.spec_types import Match, OperatorSpec, Profile
from tilewheel_build.yaml_reader import BROKEN, read_yaml

SUFFIXES = (".yaml", ".yml")


def is_profile_file(profile: str | None) -> bool:
    """Return whether what stands for a profile on the command line is the path of a file."""
    return profile is not None and profile.endswith(SUFFIXES)


def load_profile(path: Path, specs: Iterable[OperatorSpec]) -> tuple[str, tuple[OperatorSpec, ...]]:
    """Return the name of a profile file, and the specs with that profile.

    Raises:
        SpecError: the file cannot be read or does not fit the specs; every finding is in
            ``errors``.
    """
    known = {spec.operator: spec for spec in specs}
    matches = parse_profile(read_file(path, str(path)), where=str(path), specs=known)
    name = path.stem
    return name, tuple(
        replace(
            spec,
            profiles=(
                *(profile for profile in spec.profiles if profile.name != name),
                Profile(name=name, matches=matches.get(operator, ())),
            ),
        )
        for operator, spec in known.items()
    )


def parse_profile(
    raw: bytes | str, *, where: str, specs: Mapping[str, OperatorSpec]
) -> dict[str, tuple[Match, ...]]:
    """Return the matches of each operator that the text of a profile file names.

    Raises:
        SpecError: the text is no profile of these specs; every finding is in ``errors``.
    """
    problems = Problems(where)
    reader = SpecReader(problems)
    stem = Path(where).stem
    if re.fullmatch(PROFILE_PATTERN, stem) is None:
        problems.add("", f"has the name {show(stem)}", "must be made of [a-z0-9.-]")
    tree = read_yaml(raw, problems)
    found: dict[str, tuple[Match, ...]] = {}
    if not isinstance(tree, dict) or not tree:
        if tree is not BROKEN:
            demand = "must be a non-empty mapping from operator to matches"
            problems.add("", f"is {show(tree)}", demand)
        tree = {}
    for operator, node in tree.items():
        if operator not in specs:
            problems.add(
                operator,
                "is an unknown operator",
                choice(operator, specs),
                hint=guess(operator, specs),
            )
            continue
        found[operator] = _matches(reader, specs[operator], node)
    if problems.errors:
        raise SpecError(problems.errors)
    return found


def _matches(reader: SpecReader, spec: OperatorSpec, node: object) -> tuple[Match, ...]:
    own = {parameter.name: (parameter,) for parameter in spec.parameters}
    domains = with_backends(own, spec.backends)
    everything = tuple(
        bound for backend in spec.backends for bound in backend_bindings(spec, backend)
    )
    found = []
    for i, match in enumerate(profile_matches(reader, node, spec.operator, domains)):
        if match is not None:
            check_match(match, everything, f"{spec.operator}[{i}]", reader.problems)
            found.append(match)
    return tuple(found)
