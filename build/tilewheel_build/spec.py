"""Specs: the contract of each operator and the grid of its variants, read from ``specs/``.

``parse_spec`` is pure; ``load_spec``, ``load_specs`` and ``check_kernel_files`` read files.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from tilewheel_build.dtypes import DTYPES
from tilewheel_build.spec_errors import Problems, SpecError, guess
from tilewheel_build.spec_fields import KNOWN_ARCHS, REQUIRED_PROFILES, SPEC_BACKENDS
from tilewheel_build.spec_parser import parse_tree
from tilewheel_build.spec_reader import SpecReader
from tilewheel_build.spec_rules import check_rules
from tilewheel_build.spec_types import (
    Axis,
    Backend,
    Dimension,
    Match,
    OperatorSpec,
    Parameter,
    Profile,
    Scalar,
    Tensor,
)
from tilewheel_build.yaml_reader import MAX_SIZE_BYTES, read_yaml

__all__ = [
    "DTYPES",
    "KERNELS_FOLDER",
    "KNOWN_ARCHS",
    "REQUIRED_PROFILES",
    "SPECS_FOLDER",
    "SPEC_BACKENDS",
    "Axis",
    "Backend",
    "Dimension",
    "Match",
    "OperatorSpec",
    "Parameter",
    "Profile",
    "Scalar",
    "SpecError",
    "Tensor",
    "check_kernel_files",
    "load_spec",
    "load_specs",
    "parse_spec",
    "read_file",
]

SPECS_FOLDER = "specs"
KERNELS_FOLDER = "kernels/tilewheel_kernels"


def parse_spec(raw: bytes | str, *, where: str) -> OperatorSpec:
    """Read the text of one spec.

    Args:
        raw: the file's content.
        where: the file's path relative to the repository, ``specs/<family>/<operator>.yaml``; it
            stands in every error, and the spec must name the same operator and family.

    Raises:
        SpecError: the text is no valid spec; every finding is in ``errors``.
    """
    problems = Problems(where)
    tree = read_yaml(raw, problems)
    spec = parse_tree(SpecReader(problems), tree)
    if spec is not None:
        check_rules(spec, problems)
    if spec is None or problems.errors:
        raise SpecError(problems.errors)
    return spec


def load_spec(path: Path, *, root: Path) -> OperatorSpec:
    """Read one spec file below the repository ``root``.

    Raises:
        SpecError: the file cannot be read or is no valid spec.
    """
    where = _relative(path, root)
    return parse_spec(read_file(path, where), where=where)


def read_file(path: Path, where: str) -> bytes:
    """Return the content of a file, cut where it is longer than any that is accepted.

    Raises:
        SpecError: the file cannot be read.
    """
    try:
        with path.open("rb") as file:
            return file.read(MAX_SIZE_BYTES + 1)
    except OSError as error:
        reason = error.strerror or str(error)
        raise SpecError([f"{where}: cannot be read ({reason}), must be a readable file"]) from error


def load_specs(root: Path) -> tuple[OperatorSpec, ...]:
    """Read every ``specs/<family>/<operator>.yaml`` below ``root``, sorted by path.

    Raises:
        SpecError: with the findings of all files; also where there is no spec, a YAML file is
            elsewhere or ends otherwise, or two specs define the same operator.
    """
    errors: list[str] = []
    specs: dict[str, OperatorSpec] = {}
    folder = root / SPECS_FOLDER
    paths = sorted(path for path in folder.rglob("*") if path.suffix in (".yaml", ".yml"))
    if not paths:
        errors.append(f"{SPECS_FOLDER}: has no spec, must have {SPECS_FOLDER}/<family>/*.yaml")
    for path in paths:
        where = _relative(path, root)
        if path.suffix != ".yaml" or len(path.relative_to(folder).parts) != 2:
            errors.append(f"{where}: is misplaced, must be {SPECS_FOLDER}/<family>/<operator>.yaml")
            continue
        try:
            spec = load_spec(path, root=root)
        except SpecError as error:
            errors += error.errors
            continue
        first = specs.setdefault(spec.operator, spec)
        if first is not spec:
            errors.append(
                f"{where}: operator: is {spec.operator}, must differ from that of {first.path}"
            )
    if errors:
        raise SpecError(errors)
    return tuple(specs.values())


def check_kernel_files(specs: Iterable[OperatorSpec], *, root: Path) -> None:
    """Check that each kernel that the specs name is a file below ``root``.

    Raises:
        SpecError: naming every missing file, and the one that was probably meant.
    """
    errors = []
    folder = root / KERNELS_FOLDER
    for spec in specs:
        for backend in spec.backends:
            if (folder / backend.kernel).is_file():
                continue
            known = [path.relative_to(folder).as_posix() for path in folder.rglob("*.py")]
            action = guess(backend.kernel, known) or f"create {KERNELS_FOLDER}/{backend.kernel}"
            errors.append(
                f"{spec.path}: backends.{backend.name}.kernel: is {backend.kernel!r}, "
                f"must be a file below {KERNELS_FOLDER}\nhint: {action}"
            )
    if errors:
        raise SpecError(errors)


def _relative(path: Path, root: Path) -> str:
    try:
        return path.absolute().relative_to(root.absolute()).as_posix()
    except ValueError:
        return path.as_posix()
