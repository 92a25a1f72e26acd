"""Building on two machines: sources where TileLang is, artifacts where the device compiler is.

``pack`` lowers variants and writes, for each, its device source and launcher with all that the
artifact's manifest entry needs. ``finish`` compiles such a directory to published artifacts, with
the fingerprints that a build on one machine would have given them.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from tilewheel.errors import ManifestError
from tilewheel.key import Key
from tilewheel.manifest import FILE_NAME, Artifact, read
from tilewheel_build.backends import BACKENDS
from tilewheel_build.driver import (
    Failure,
    Layout,
    Observer,
    describe,
    failure,
    new_manifest,
    unit_inputs,
)
from tilewheel_build.errors import ArtifactError
from tilewheel_build.fingerprint import fingerprint
from tilewheel_build.pool import run_units
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

INPUTS = "inputs.json"
UNKNOWN_SHA256 = "0" * 64
"""Stands in a source manifest for the hash of what is not compiled yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceUnit:
    """One variant to lower into ``folder``."""

    variant: Variant
    kernels_root: Path
    folder: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishUnit:
    """One lowered variant to compile in ``work``, a copy of its folder."""

    key: Key
    folder: Path
    work: Path
    machine: str
    zig_cache: Path


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
    for unit, outcome in run_units(_pack_unit, units, jobs):
        key = unit.variant.key
        observe(key, "built" if isinstance(outcome, UnitFacts) else "failed")
        if not isinstance(outcome, UnitFacts):
            failures.append(failure(key, unit.folder, outcome))
            continue
        inputs = unit_inputs(unit.variant, layout, machine, dict(packages))
        (unit.folder / INPUTS).write_text(json.dumps(inputs, sort_keys=True, indent=1) + "\n")
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
    text = json.dumps(asdict(facts), sort_keys=True, indent=1)
    (unit.folder / FACTS).write_text(text + "\n")
    return facts


def finish(
    directory: Path,
    *,
    layout: Layout,
    jobs: int,
    machine: str,
    observe: Observer = lambda key, event: None,
) -> tuple[int, tuple[Failure, ...]]:
    """Compile what ``pack`` wrote and publish it below ``layout.artifacts``.

    Raises:
        ToolchainError: a tool is missing; nothing was started.
        ArtifactError: the directory is not one of ``pack``.
    """
    try:
        manifest = read(directory / FILE_NAME)
    except ManifestError as error:
        raise ArtifactError(str(error)) from error
    backend = BACKENDS[manifest.backend]
    toolchain = backend.toolchain()
    units = {
        artifact.key: FinishUnit(
            key=artifact.key,
            folder=directory / str(artifact.key),
            work=layout.out / "work" / str(artifact.key),
            machine=machine,
            zig_cache=layout.out / "cache" / "zig",
        )
        for artifact in manifest.artifacts
    }
    entries = {artifact.key: artifact for artifact in manifest.artifacts}
    done: dict[str, Artifact] = {}
    failures = []
    files: dict[str, Path] = {}
    for unit, outcome in run_units(_finish_unit, list(units.values()), jobs):
        observe(unit.key, "built" if isinstance(outcome, UnitFacts) else "failed")
        if not isinstance(outcome, UnitFacts):
            failures.append(failure(unit.key, unit.work, outcome))
            continue
        artifact = _finished(entries[unit.key], unit, outcome, toolchain)
        done[str(unit.key)] = artifact
        source = "kernel" + backend.source_suffix
        files[artifact.path] = unit.work / ARTIFACT
        files[artifact.path.removesuffix(".so") + backend.source_suffix] = unit.folder / source
    if done:
        finished = replace(manifest, artifacts=tuple(done.values()))
        publish(layout.artifacts / manifest.backend, finished, files)
    for key in done:
        shutil.rmtree(layout.out / "work" / key, ignore_errors=True)
    return len(done), tuple(sorted(failures, key=lambda item: item.key.sort_key()))


def _finish_unit(unit: FinishUnit) -> UnitFacts:
    suffix = BACKENDS[unit.key.target.backend].source_suffix
    shutil.rmtree(unit.work, ignore_errors=True)
    unit.work.mkdir(parents=True)
    try:
        for name in (f"kernel{suffix}", LAUNCHER, ARGUMENTS_HEADER):
            shutil.copyfile(unit.folder / name, unit.work / name)
        facts = facts_from_json(json.loads((unit.folder / FACTS).read_text()))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ArtifactError(f"{unit.folder}: is not complete: {error}") from error
    return compile_sources(
        facts,
        work=unit.work,
        target=unit.key.target,
        machine=unit.machine,
        zig_cache=unit.zig_cache,
    )


def _finished(
    artifact: Artifact,
    unit: FinishUnit,
    facts: UnitFacts,
    toolchain: tuple[tuple[str, str], ...],
) -> Artifact:
    inputs = json.loads((unit.folder / INPUTS).read_text())
    # What was lowered there keeps its versions; what compiles here brings its own.
    inputs["toolchain"] = {**dict(toolchain), "tilelang": inputs["toolchain"]["tilelang"]}
    inputs["machine"] = unit.machine
    recorded = {**dict(artifact.toolchain), **inputs["toolchain"], "machine": unit.machine}
    return replace(
        artifact,
        sha256=facts.sha256,
        size_bytes=facts.size_bytes,
        resources=facts.resources,
        toolchain=tuple(sorted(recorded.items())),
        fingerprint=fingerprint(inputs),
    )
