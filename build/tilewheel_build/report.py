"""The build report: what a build made, from where, at what cost, and what failed; as JSON.

It is written beside the artifacts it tells of, never into them. The reader refuses another major
version and ignores fields that it does not know.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

from tilewheel_build.errors import ArtifactError

SCHEMA_VERSION = (1, 0)
"""Major and minor version of the format."""

FILE_NAME = "report.json"

Source = Literal["built", "linked", "local", "remote"]
"""Compiled by this build; only linked, around device code that was there; or out of a cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One invocation that built something: the build itself, or each of the shards of a merge.

    ``started`` is the date and time in UTC (ISO 8601), ``executor`` is ``local`` or ``dask``. What
    a shard without a report took is not known, nor is the ``source`` of its rows.
    """

    machine: str
    shard: str | None
    started: str | None = None
    wall_s: float | None = None
    executor: str | None = None
    jobs: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One artifact.

    ``lower_s`` and ``compile_s`` are wall-clock seconds of whoever compiled it, in this build or
    before. ``link_s`` and ``cpu_s`` (processor time, compilers included) are known of what this
    build made; else the link is part of ``compile_s``. ``on_chip_bytes`` is shared memory of a
    block or the unified buffer of a core. ``worker`` ran it from ``start_s`` to ``end_s``, in
    seconds since its run started; ``run`` is the index of that run.
    """

    key: str
    operator: str
    backend: str
    arch: str
    machine: str
    sha256: str
    size_bytes: int
    source: Source | None
    verification: str
    registers: int | None = None
    spill_bytes: int | None = None
    on_chip_bytes: int | None = None
    on_chip_limit_bytes: int | None = None
    dropped_buffer_versions: int | None = None
    lower_s: float | None = None
    compile_s: float | None = None
    link_s: float | None = None
    cpu_s: float | None = None
    peak_bytes: int | None = None
    worker: str | None = None
    start_s: float | None = None
    end_s: float | None = None
    run: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedRow:
    """One variant that could not be built."""

    key: str
    operator: str
    backend: str
    arch: str
    machine: str
    message: str
    exit_code: int
    worker: str | None = None
    start_s: float | None = None
    end_s: float | None = None
    run: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What one ``build`` or ``merge`` did."""

    command: str
    tilewheel_version: str
    source_commit: str | None
    source_dirty: bool | None
    runs: tuple[Run, ...]
    artifacts: tuple[Row, ...]
    failures: tuple[FailedRow, ...]

    @property
    def units(self) -> tuple[Row | FailedRow, ...]:
        """All that the report tells of, what failed too."""
        return (*self.artifacts, *self.failures)


def dump(report: Report) -> str:
    """Return the report's JSON text."""
    tree = {"schema_version": list(SCHEMA_VERSION), **asdict(report)}
    return json.dumps(tree, indent=1, allow_nan=False) + "\n"


def read(path: Path) -> Report:
    """Return the report in a file.

    Raises:
        ArtifactError: it cannot be read, or is no report of this major version.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ArtifactError(f"{path}: cannot be read: {error}") from error
    return parse(text, where=str(path))


def parse(text: str, *, where: str) -> Report:
    """Return the report that ``dump`` wrote; raises ArtifactError where it is none."""
    try:
        tree: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ArtifactError(f"{where}: is not readable JSON: {error}") from error
    if not isinstance(tree, dict):
        raise ArtifactError(f"{where}: is a {type(tree).__name__}, must be an object")
    version = tree.get("schema_version")
    if not isinstance(version, list) or version[:1] != [SCHEMA_VERSION[0]]:
        raise ArtifactError(
            f"{where}: schema_version: is {version}, must be [{SCHEMA_VERSION[0]}, ...]\n"
            "hint: read it with the release that wrote it"
        )
    lists = {
        name: tuple(
            _parsed(kind, item, f"{where}: {name}[{index}]")
            for index, item in enumerate(_list(tree, name, where))
        )
        for name, kind in (("runs", Run), ("artifacts", Row), ("failures", FailedRow))
    }
    report = _parsed(Report, {**tree, **lists}, where)
    for item in report.units:
        if not 0 <= item.run < len(report.runs):
            raise ArtifactError(f"{where}: {item.key}: run: is {item.run}, must be one of runs")
    return report


def _list(tree: Mapping[str, Any], name: str, where: str) -> list[Any]:
    items = tree.get(name)
    if not isinstance(items, list):
        raise ArtifactError(f"{where}: {name}: is {items!r:.50}, must be a list")
    return items


_Record = TypeVar("_Record")

_TOO_LARGE = 1 << 63

_TYPES: dict[str, tuple[type, ...]] = {
    "str": (str,),
    "int": (int,),
    "float": (float, int),
    "bool": (bool,),
    "None": (type(None),),
    "Source": (str,),
}


def _parsed(kind: type[_Record], tree: Any, where: str) -> _Record:
    """Return a record whose fields have the types that its class declares."""
    if not isinstance(tree, dict):
        raise ArtifactError(f"{where}: is {tree!r:.50}, must be an object")
    values = {}
    for field in fields(kind):  # type: ignore[arg-type]
        name, declared = field.name, str(field.type)
        if name not in tree:
            raise ArtifactError(f"{where}: {name}: is missing, must be given")
        value = tree[name]
        if not declared.startswith("tuple") and not _fits(value, declared):
            raise ArtifactError(f"{where}: {name}: is {value!r:.50}, must be {declared}")
        values[name] = value
    return kind(**values)


def _fits(value: Any, declared: str) -> bool:
    allowed = tuple(kind for word in declared.split(" | ") for kind in _TYPES[word])
    if not isinstance(value, allowed) or (isinstance(value, bool) and bool not in allowed):
        return False
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return 0 <= value < _TOO_LARGE
    return not declared.startswith("Source") or value in (None, *get_args(Source))
