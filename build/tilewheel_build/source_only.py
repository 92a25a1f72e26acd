"""Building on two machines: sources where TileLang is, artifacts where the device compiler is.

``pack`` lowers variants and writes, for each, its device source and launcher with all that the
artifact's manifest entry needs. ``finish`` compiles such a directory to published artifacts, with
the fingerprints that a build on one machine would have given them.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from tilewheel.errors import ManifestError
from tilewheel.key import Key
from tilewheel.manifest import FILE_NAME, Artifact, Manifest, read
from tilewheel_build.backends import BACKENDS, Backend
from tilewheel_build.driver import (
    Failure,
    Layout,
    Observer,
    build_libraries,
    describe,
    failure,
    local_cache,
    new_manifest,
    unit_inputs,
)
from tilewheel_build.errors import ArtifactError, ToolchainError
from tilewheel_build.fingerprint import driver_hash, fingerprint
from tilewheel_build.pool import run_units
from tilewheel_build.process import TIMEOUT_S
from tilewheel_build.publish import publish
from tilewheel_build.unit import (
    ARGUMENTS_HEADER,
    ARTIFACT,
    FACTS,
    LAUNCHER,
    UnitFacts,
    compile_sources,
    facts_from_json,
    write_sources,
)
from tilewheel_build.variant import Variant
from tilewheel_build.verified import verification_status

INPUTS = "inputs.json"
HASHES = "hashes.json"
"""The hash of each other file of a unit, since the directory travels between machines."""

UNKNOWN_SHA256 = "0" * 64
"""Stands in a source manifest for the hash of what is not compiled yet."""

_NAME_ONE = "hint: name a directory that `build --source-only` wrote, e.g. out/sources/ascend"
_AGAIN = "hint: run `build --source-only` again with this checkout and copy the whole directory"


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceUnit:
    """One variant to lower into ``folder``."""

    variant: Variant
    kernels_root: Path
    folder: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishUnit:
    """One lowered variant to compile in ``work``, a copy of its folder.

    ``inputs`` is what its fingerprint was made from where it was lowered.
    """

    entry: Artifact
    facts: UnitFacts
    inputs: dict[str, Any]
    folder: Path
    work: Path
    machine: str
    zig_cache: Path
    timeout_s: float

    @property
    def key(self) -> Key:
        """The artifact's key."""
        return self.entry.key


def sources_directory(layout: Layout, backend: str) -> Path:
    """Return where ``pack`` writes."""
    return layout.out / "sources" / backend


def pack(
    variants: Sequence[Variant],
    *,
    layout: Layout,
    backend: str,
    jobs: int,
    machine: str,
    observe: Observer = lambda key, event: None,
) -> tuple[int, tuple[Failure, ...]]:
    """Lower the variants into ``sources_directory``; return how many succeeded, and the others."""
    packages = BACKENDS[backend].package_versions()
    units = [
        SourceUnit(
            variant=variant,
            kernels_root=layout.kernels,
            folder=layout.out / "work" / str(variant.key),
        )
        for variant in variants
    ]
    artifacts = []
    failures = []
    files: dict[str, Path] = {}
    for unit, outcome in run_units(
        _pack_unit, units, jobs, started=lambda unit, _: observe(unit.variant.key, "started")
    ):
        key = unit.variant.key
        observe(key, "built" if isinstance(outcome, UnitFacts) else "failed")
        if not isinstance(outcome, UnitFacts):
            failures.append(failure(key, unit.folder, outcome))
            continue
        inputs = unit_inputs(unit.variant, layout.kernels, machine, dict(packages))
        _write_json(unit.folder / INPUTS, inputs)
        _write_json(unit.folder / HASHES, _hashes(unit.folder))
        files |= {f"{key}/{path.name}": path for path in unit.folder.iterdir()}
        artifacts.append(
            describe(
                unit.variant,
                replace(outcome, sha256=UNKNOWN_SHA256),
                layout=layout,
                machine=machine,
                identity=fingerprint(inputs),
                toolchain=packages,
            )
        )
    if artifacts:
        manifest = new_manifest(layout, backend, artifacts)
        publish(sources_directory(layout, backend), manifest, files)
    for artifact in artifacts:
        shutil.rmtree(layout.out / "work" / str(artifact.key), ignore_errors=True)
    return len(artifacts), tuple(sorted(failures, key=lambda item: item.key.sort_key()))


def _pack_unit(unit: SourceUnit) -> UnitFacts:
    shutil.rmtree(unit.folder, ignore_errors=True)
    unit.folder.mkdir(parents=True)
    facts = write_sources(unit.variant, unit.kernels_root, unit.folder)
    # How long it took is of no use elsewhere: equal trees give equal directories.
    _write_json(unit.folder / FACTS, asdict(replace(facts, lower_s=0.0)))
    return facts


def _write_json(path: Path, tree: object) -> None:
    path.write_text(json.dumps(tree, sort_keys=True, indent=1) + "\n")


def _hashes(folder: Path) -> dict[str, str]:
    files = sorted(path for path in folder.iterdir() if path.name != HASHES)
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def finish(
    directory: Path,
    *,
    layout: Layout,
    jobs: int,
    machine: str,
    timeout_s: float = TIMEOUT_S,
    observe: Observer = lambda key, event: None,
) -> tuple[int, tuple[Failure, ...]]:
    """Compile what ``pack`` wrote and publish it below ``layout.artifacts(machine)``.

    Raises:
        ToolchainError: a tool is missing or another than the one that lowered; nothing was started.
        ArtifactError: the directory is not as ``pack`` of this driver wrote it; likewise.
    """
    manifest, backend = _source_manifest(directory)
    toolchain = backend.toolchain()
    units = [
        _finish_unit_of(
            artifact, backend, directory, layout=layout, machine=machine, timeout_s=timeout_s
        )
        for artifact in manifest.artifacts
    ]
    _check_lowering_tool(units, toolchain)
    done: dict[str, Artifact] = {}
    failures = []
    files: dict[str, Path] = {}
    for unit, outcome in run_units(
        _finish_unit, units, jobs, started=lambda unit, _: observe(unit.key, "started")
    ):
        observe(unit.key, "built" if isinstance(outcome, UnitFacts) else "failed")
        if not isinstance(outcome, UnitFacts):
            failures.append(failure(unit.key, unit.work, outcome))
            continue
        artifact = _finished(unit, outcome, toolchain, layout.root)
        done[str(unit.key)] = artifact
        files[artifact.path] = unit.work / ARTIFACT
        source = unit.folder / ("kernel" + backend.source_suffix)
        files[artifact.path.removesuffix(".so") + backend.source_suffix] = source
    if done:
        libraries, library_files = build_libraries(
            layout, backend.name, machine, local_cache(layout)
        )
        finished = replace(manifest, artifacts=tuple(done.values()), libraries=libraries)
        publish(layout.artifacts(machine) / backend.name, finished, files | library_files)
    for key in done:
        shutil.rmtree(layout.out / "work" / key, ignore_errors=True)
    return len(done), tuple(sorted(failures, key=lambda item: item.key.sort_key()))


def _source_manifest(directory: Path) -> tuple[Manifest, Backend]:
    """Return the manifest that ``pack`` wrote, and its backend."""
    try:
        manifest = read(directory / FILE_NAME)
    except ManifestError as error:
        raise ArtifactError(f"{error}\n{_NAME_ONE}") from error
    backend = BACKENDS.get(manifest.backend)
    if backend is None:
        raise ArtifactError(
            f"{directory / FILE_NAME}: backend: is {manifest.backend!r}, must be one of "
            f"{', '.join(BACKENDS)}"
        )
    if any(artifact.sha256 != UNKNOWN_SHA256 for artifact in manifest.artifacts):
        raise ArtifactError(
            f"{directory}: holds finished artifacts, must hold lowered sources\n{_NAME_ONE}"
        )
    return manifest, backend


def _finish_unit_of(
    artifact: Artifact,
    backend: Backend,
    directory: Path,
    *,
    layout: Layout,
    machine: str,
    timeout_s: float,
) -> FinishUnit:
    """Return the unit of one entry, once its files are those that ``pack`` wrote."""
    folder = directory / str(artifact.key)
    names = (f"kernel{backend.source_suffix}", LAUNCHER, ARGUMENTS_HEADER, FACTS, INPUTS)
    try:
        recorded = json.loads((folder / HASHES).read_text())
        found = _hashes(folder)
        if wrong := [name for name in names if name not in found or name not in recorded]:
            raise ArtifactError(f"{folder}: lacks {', '.join(wrong)}, must be complete\n{_AGAIN}")
        if wrong := [name for name in names if found[name] != recorded[name]]:
            raise ArtifactError(
                f"{folder}: {', '.join(wrong)} changed, must be as written\n{_AGAIN}"
            )
        facts = facts_from_json(json.loads((folder / FACTS).read_text()))
        inputs = json.loads((folder / INPUTS).read_text())
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ArtifactError(f"{folder}: is not complete: {error}\n{_AGAIN}") from error
    if fingerprint(inputs) != artifact.fingerprint or inputs.get("key") != str(artifact.key):
        raise ArtifactError(f"{folder}: is not what the manifest lists\n{_AGAIN}")
    if inputs["driver"] != driver_hash(backend.sources):
        raise ArtifactError(f"{folder}: was written by another version of the driver\n{_AGAIN}")
    return FinishUnit(
        entry=artifact,
        facts=facts,
        inputs=inputs,
        folder=folder,
        work=layout.out / "work" / str(artifact.key),
        machine=machine,
        zig_cache=layout.out / "cache" / "zig",
        timeout_s=timeout_s,
    )


def _check_lowering_tool(
    units: Sequence[FinishUnit], toolchain: tuple[tuple[str, str], ...]
) -> None:
    """Sources compile under the headers of the TileLang that lowered them, or not at all."""
    present = dict(toolchain)["tilelang"]
    for unit in units:
        lowered_by = unit.inputs["toolchain"]["tilelang"]
        if lowered_by != present:
            raise ToolchainError(
                f"tilelang: is {present}, must be {lowered_by}, which lowered {unit.key}\n"
                f"hint: pip install tilelang=={lowered_by}"
            )


def _finish_unit(unit: FinishUnit) -> UnitFacts:
    suffix = BACKENDS[unit.key.target.backend].source_suffix
    shutil.rmtree(unit.work, ignore_errors=True)
    unit.work.mkdir(parents=True)
    for name in (f"kernel{suffix}", LAUNCHER, ARGUMENTS_HEADER):
        shutil.copyfile(unit.folder / name, unit.work / name)
    return compile_sources(
        unit.facts,
        work=unit.work,
        target=unit.key.target,
        machine=unit.machine,
        zig_cache=unit.zig_cache,
        timeout_s=unit.timeout_s,
    )


def _finished(
    unit: FinishUnit, facts: UnitFacts, toolchain: tuple[tuple[str, str], ...], root: Path
) -> Artifact:
    # What compiles here brings its versions; TileLang's is the same on both sides.
    inputs = {**unit.inputs, "toolchain": dict(toolchain), "machine": unit.machine}
    recorded = {**dict(unit.entry.toolchain), **dict(toolchain), "machine": unit.machine}
    return replace(
        unit.entry,
        sha256=facts.sha256,
        size_bytes=facts.size_bytes,
        resources=facts.resources,
        toolchain=tuple(sorted(recorded.items())),
        fingerprint=fingerprint(inputs),
        verification=verification_status(root, facts.sha256),
    )
