"""Which artifacts this machine has: manifests of installed packages and of ``TILEWHEEL_ARTIFACTS``.

A package announces its artifacts in the entry-point group ``tilewheel.artifacts``. The value
``package`` stands for that package's directory, which is found without importing the package; the
value ``module:function`` is called and returns directories. A directory holds a manifest, or
sub-directories that do. One package's broken manifest never hides another's artifacts.
"""

from __future__ import annotations

import importlib.util
import os
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tilewheel import manifest
from tilewheel.errors import ManifestError
from tilewheel.log import logger

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "tilewheel.artifacts"
VARIABLE = "TILEWHEEL_ARTIFACTS"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One artifact, the directory of its manifest, and the package or variable that named it.

    ``libraries`` are the manifest's, which must be open before the artifact is.
    The file of an overlay can be replaced by anyone who may write there, so it is always hashed.
    """

    artifact: manifest.Artifact
    root: Path
    source: str
    is_overlay: bool
    libraries: tuple[manifest.Library, ...] = ()

    @property
    def path(self) -> Path:
        """The artifact's file."""
        return self.root / self.artifact.path


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A manifest that was read, its directory, and the package or variable that named it."""

    manifest: manifest.Manifest
    root: Path
    source: str
    is_overlay: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Catalog:
    """All artifacts found, overlays first, and what kept others from being found.

    ``manifests`` are those that the entries come from.
    """

    entries: tuple[Entry, ...]
    problems: tuple[str, ...] = ()
    manifests: tuple[Found, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Source:
    name: str
    directory: Path
    is_overlay: bool


_lock = threading.RLock()
_catalog: Catalog | None = None


def catalog() -> Catalog:
    """Return what is installed; read once in a process, see ``refresh``."""
    global _catalog
    found = _catalog
    if found is None:
        with _lock:
            if _catalog is None:
                from importlib.metadata import entry_points

                _catalog = find(entry_points(group=GROUP), os.environ)
                for problem in _catalog.problems:
                    logger.warning("%s", problem)
            found = _catalog
    return found


def refresh() -> None:
    """Forget what was found, so that the next call reads packages and environment again."""
    global _catalog
    with _lock:
        _catalog = None


def find(entry_points: Iterable[EntryPoint], environment: Mapping[str, str]) -> Catalog:
    """Read every manifest that the entry points and the environment name."""
    manifests: list[Found] = []
    problems: list[str] = []
    seen: set[Path] = set()
    for source in _sources(entry_points, environment, problems):
        for root in _roots(source, problems):
            if root not in seen:
                seen.add(root)
                manifests.extend(_read(root, source, problems))
    entries = tuple(entry for found in manifests for entry in _entries(found))
    return Catalog(entries=entries, problems=tuple(problems), manifests=tuple(manifests))


def _sources(
    entry_points: Iterable[EntryPoint], environment: Mapping[str, str], problems: list[str]
) -> Iterator[_Source]:
    for text in environment.get(VARIABLE, "").split(os.pathsep):
        if text:
            yield _Source(name=VARIABLE, directory=Path(text), is_overlay=True)
    for point in sorted(entry_points, key=lambda point: (point.name, point.value)):
        name = _source_name(point)
        try:
            directories = _directories(point)
        except Exception as error:  # a package's own code, or its import, may fail in any way
            problems.append(
                f"{name}: entry point {point.value!r} cannot be read: "
                f"{type(error).__name__}: {error}"
            )
            continue
        for directory in directories:
            yield _Source(name=name, directory=directory, is_overlay=False)


def _source_name(point: EntryPoint) -> str:
    distribution = point.dist
    if distribution is None:
        return point.name
    return f"{distribution.metadata['Name']} {distribution.version}"


def _directories(point: EntryPoint) -> list[Path]:
    if ":" in point.value:
        return [Path(directory) for directory in point.load()()]
    spec = importlib.util.find_spec(point.value)
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(f"no package {point.value!r}")
    return [Path(location) for location in spec.submodule_search_locations]


def _roots(source: _Source, problems: list[str]) -> list[Path]:
    """Return the directories with a manifest: the source's own, else its sub-directories'."""
    directory = source.directory
    try:
        if (directory / manifest.FILE_NAME).is_file():
            return [directory.resolve()]
        children = sorted(directory.iterdir())
    except OSError as error:
        problems.append(f"{source.name}: {directory} cannot be read: {error.strerror or error}")
        return []
    roots = []
    for child in children:
        try:
            if (child / manifest.FILE_NAME).is_file():
                roots.append(child.resolve())
        except OSError as error:
            problems.append(f"{source.name}: {child} cannot be read: {error.strerror or error}")
    if not roots:
        problems.append(
            f"{source.name}: {directory} holds no {manifest.FILE_NAME}, "
            "must hold one or have sub-directories that do"
        )
    return roots


def _read(root: Path, source: _Source, problems: list[str]) -> list[Found]:
    path = root / manifest.FILE_NAME
    try:
        found = manifest.read(path)
    except ManifestError as error:
        problems.append(f"{source.name}: {error}")
        return []
    if found.runtime_abi != manifest.RUNTIME_ABI:
        problems.append(
            f"{source.name}: {path}: runtime_abi: is {found.runtime_abi}, "
            f"must be {manifest.RUNTIME_ABI} for this release\n"
            f"hint: install or build artifacts of a release 0.{manifest.RUNTIME_ABI}.x"
        )
        return []
    return [Found(manifest=found, root=root, source=source.name, is_overlay=source.is_overlay)]


def _entries(found: Found) -> Iterator[Entry]:
    for artifact in found.manifest.artifacts:
        yield Entry(
            artifact=artifact,
            root=found.root,
            source=found.source,
            is_overlay=found.is_overlay,
            libraries=found.manifest.libraries,
        )


# A fork waits for a thread that is reading: the child would inherit what that thread has locked.
os.register_at_fork(
    before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release
)
