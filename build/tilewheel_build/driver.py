"""From a request to published artifacts: plan, build what the cache lacks, publish the rest."""

from __future__ import annotations

import errno
import hashlib
import platform
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from tilewheel.key import Key
from tilewheel.manifest import RUNTIME_ABI, SCHEMA_VERSION, Artifact, Library, Manifest
from tilewheel.version import VERSION
from tilewheel_build.backends import BACKENDS
from tilewheel_build.cache import Cache, Level, store
from tilewheel_build.checkout import source_state
from tilewheel_build.errors import (
    ArtifactError,
    CompilationError,
    LoweringError,
    OptionError,
    ToolchainError,
    WorkerError,
)
from tilewheel_build.fingerprint import driver_hash, fingerprint, fingerprint_inputs
from tilewheel_build.host_compiler import MACHINES
from tilewheel_build.measured import Cost, Measured, build_measured
from tilewheel_build.memory import Admission
from tilewheel_build.pool import run_units
from tilewheel_build.process import TIMEOUT_S
from tilewheel_build.publish import publish
from tilewheel_build.unit import ARTIFACT, Unit, UnitFacts, read_unit, source_name
from tilewheel_build.variant import Variant, limits, multiples, profiles_of
from tilewheel_build.verified import verification_status


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Directories of one checkout. ``out`` holds everything that a build writes."""

    root: Path
    out: Path

    @property
    def kernels(self) -> Path:
        """Directory that holds ``tilewheel_kernels``."""
        return self.root / "kernels"

    def artifacts(self, machine: str) -> Path:
        """Return where artifacts are published, one sub-directory for each backend.

        Those for another processor lie beside this machine's own, which the runtime finds.
        """
        own = machine == platform.machine()
        return self.out / ("artifacts" if own else f"artifacts-{machine}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """What ran a unit, and from when to when, in seconds of this process's ``time.monotonic``."""

    worker: str
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A variant that could not be built, with the message that its worker raised."""

    key: Key
    message: str
    work: Path
    exit_code: int
    span: Span | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """A variant whose artifact is in the cache; ``level`` had it, or it was built at ``cost``."""

    unit: Unit
    facts: UnitFacts
    level: Level | None = None
    cost: Cost | None = None
    span: Span | None = None

    @property
    def cached(self) -> bool:
        """Whether it was there before this build."""
        return self.level is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildResult:
    """Everything that a build did, in key order."""

    built: tuple[Built, ...]
    failures: tuple[Failure, ...]


DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
"""Errors of a directory that cannot hold what is built; another one can be chosen."""

Event = Literal["started", "cached", "built", "failed"]

Observer = Callable[[Key, Event], None]
"""Called in the driver's process with a key and what became of it; one that starts ends later."""

Started = Callable[[Unit, str], None]
"""Called with a unit and the name of what runs it now; again where it has to start anew."""

Outcomes = Iterator[tuple[Unit, Measured | BaseException]]

Runner = Callable[[Sequence[Unit], Started], Outcomes]
"""Brings units into the local cache and gives each with its facts or its error, as they finish."""


def local_runner(jobs: int, memory_bytes: int | None = None) -> Runner:
    """Return the runner that uses up to ``jobs`` processes of this machine.

    It starts no more than fit into ``memory_bytes``, or into what the machine has where that is
    None: each operator's units are taken to need what the largest of them so far did.
    """
    admission = Admission(memory_bytes)

    def kind(unit: Unit) -> str:
        # Where a sibling's device code is there only the launcher is compiled, in far less memory.
        work = "link" if unit.siblings else "compile"
        return f"{unit.variant.key.operator} {unit.variant.key.target.backend} {work}"

    def fits(running: Sequence[Unit], unit: Unit) -> bool:
        return admission.fits([kind(other) for other in running], kind(unit))

    def run(units: Sequence[Unit], started: Started) -> Outcomes:
        for unit, outcome in run_units(build_measured, units, jobs, fits, started):
            if isinstance(outcome, Measured):
                admission.learn(kind(unit), outcome.facts.peak_bytes)
            yield unit, outcome

    return run


def local_cache(layout: Layout) -> Cache:
    """Return the cache that a build uses where nothing else is said."""
    return Cache(directory=layout.out / "cache")


def build(
    variants: Sequence[Variant],
    *,
    layout: Layout,
    backend: str,
    machine: str,
    cache: Cache,
    run: Runner,
    timeout_s: float = TIMEOUT_S,
    observe: Observer = lambda key, event: None,
) -> BuildResult:
    """Build the variants of one backend and publish those that succeeded.

    Where none did, what was published before stays. ``timeout_s`` is how long one run of the device
    compiler may take.

    Raises:
        ToolchainError: a tool is missing; nothing was started.
        ClusterError: what ``run`` runs on went away; nothing of this backend was published.
    """
    units = plan_units(
        variants, layout=layout, backend=backend, machine=machine, cache=cache, timeout_s=timeout_s
    )
    result = build_units(units, cache, run, observe)
    if result.built:
        manifest, files = collect(
            result.built, layout=layout, backend=backend, machine=machine, cache=cache
        )
        publish(layout.artifacts(machine) / backend, manifest, files)
    return result


def build_units(
    units: Sequence[Unit],
    cache: Cache,
    run: Runner,
    observe: Observer = lambda key, event: None,
) -> BuildResult:
    """Bring units into the cache: ``run`` builds those that neither of its levels has."""
    built: list[Built] = []
    missing: list[Unit] = []
    found = cache.locate([unit.fingerprint for unit in units])
    for unit in units:
        level = found.get(unit.fingerprint)
        facts = read_unit(unit.cache) if level else None
        if facts is None:
            missing.append(unit)
        else:
            built.append(Built(unit=unit, facts=facts, level=level))
            observe(unit.variant.key, "cached")
    failures: list[Failure] = []
    starts: dict[Key, tuple[str, float]] = {}

    def started(unit: Unit, worker: str) -> None:
        starts[unit.variant.key] = worker, time.monotonic()
        observe(unit.variant.key, "started")

    for unit, outcome in run(_with_siblings(missing, cache), started) if missing else ():
        key = unit.variant.key
        worker, start_s = starts.get(key, ("", 0.0))
        span = Span(worker=worker, start_s=start_s, end_s=time.monotonic()) if worker else None
        if isinstance(outcome, Measured):
            cache.share(unit.fingerprint)
            built.append(Built(unit=unit, facts=outcome.facts, cost=outcome.cost, span=span))
        else:
            failures.append(replace(failure(key, unit.work, outcome), span=span))
        observe(key, "built" if isinstance(outcome, Measured) else "failed")
    built.sort(key=lambda item: item.unit.variant.key.sort_key())
    failures.sort(key=lambda item: item.key.sort_key())
    return BuildResult(built=tuple(built), failures=tuple(failures))


def _with_siblings(units: Sequence[Unit], cache: Cache) -> list[Unit]:
    """Return the units with those siblings only that the cache has, after fetching them."""
    found = cache.find([path.name for unit in units for path in unit.siblings])
    return [
        replace(unit, siblings=tuple(path for path in unit.siblings if path.name in found))
        for unit in units
    ]


def plan_units(
    variants: Iterable[Variant],
    *,
    layout: Layout,
    backend: str,
    machine: str,
    cache: Cache,
    timeout_s: float = TIMEOUT_S,
) -> tuple[Unit, ...]:
    """Return the units of work for the variants; raises ToolchainError when a tool is missing."""
    described = BACKENDS[backend]
    toolchain = dict(described.toolchain())
    others = [name for name in MACHINES if name != machine and described.has_portable_image]
    units = []
    for variant in variants:
        inputs = unit_inputs(variant, layout.kernels, machine, toolchain)
        identity = fingerprint(inputs)
        siblings = [fingerprint({**inputs, "machine": name}) for name in others]
        units.append(
            Unit(
                variant=variant,
                fingerprint=identity,
                kernels_root=layout.kernels,
                cache=cache.path(identity),
                siblings=tuple(cache.path(sibling) for sibling in siblings),
                work=layout.out / "work" / str(variant.key),
                machine=machine,
                timeout_s=timeout_s,
            )
        )
    return tuple(units)


def unit_inputs(
    variant: Variant, kernels_root: Path, machine: str, toolchain: Mapping[str, str]
) -> dict[str, Any]:
    """Return what the artifact of a variant is made from, with the kernels below a directory."""
    backend = BACKENDS[variant.key.target.backend]
    return fingerprint_inputs(
        variant,
        kernels_root=kernels_root,
        machine=machine,
        toolchain=toolchain,
        flags=backend.flags,
        sources=backend.sources,
    )


def failure(key: Key, work: Path, error: BaseException) -> Failure:
    """Return the report of a unit that raised ``error``, or whose worker died."""
    known = (LoweringError, CompilationError, ToolchainError, ArtifactError, WorkerError)
    message = str(error) if isinstance(error, known) else f"{type(error).__name__}: {error}"
    exit_code = getattr(error, "exit_code", 1)
    if isinstance(error, BrokenProcessPool):
        message = "the worker process died (killed, or out of memory)"
    if isinstance(error, OSError) and error.errno in DISK_FULL:
        message = f"{error.filename or work}: cannot be written: {error.strerror}"
        exit_code = OptionError.exit_code
    return Failure(key=key, message=message, work=work, exit_code=exit_code)


def collect(
    built: Sequence[Built], *, layout: Layout, backend: str, machine: str, cache: Cache
) -> tuple[Manifest, dict[str, Path]]:
    """Return the manifest of what was built, and where the files to publish with it are."""
    files: dict[str, Path] = {}
    artifacts = []
    toolchain = BACKENDS[backend].toolchain()
    for item in built:
        artifact = describe(
            item.unit.variant,
            item.facts,
            layout=layout,
            machine=machine,
            identity=item.unit.fingerprint,
            toolchain=toolchain,
        )
        artifacts.append(artifact)
        files[artifact.path] = item.unit.cache / ARTIFACT
        source = source_name(item.unit.variant)
        suffix = Path(source).suffix
        files[artifact.path.removesuffix(".so") + suffix] = item.unit.cache / source
    libraries, library_files = build_libraries(layout, backend, machine, cache)
    return new_manifest(layout, backend, artifacts, libraries), files | library_files


def build_libraries(
    layout: Layout, backend: str, machine: str, cache: Cache
) -> tuple[tuple[Library, ...], dict[str, Path]]:
    """Return the libraries that a backend's artifacts open by name, and where their files are."""
    described = BACKENDS[backend]
    if described.compile_library is None:
        return (), {}
    inputs = [driver_hash(described.sources), machine, *map(str, described.toolchain())]
    identity = hashlib.sha256("\n".join([*inputs, *described.flags]).encode()).hexdigest()
    name = described.library_name()
    path = cache.path(identity) / name
    if not cache.find([identity]):
        # As for a unit: what a killed build leaves is in the work directory, where the next one
        # removes it, and the cache gets the finished file as a whole.
        work = layout.out / "work" / name
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir(parents=True)
        described.compile_library(work / name, machine, cache.directory / "zig")
        store(path.parent, {name: (work / name).read_bytes()})
        shutil.rmtree(work, ignore_errors=True)
        cache.share(identity)
    content = path.read_bytes()
    library = Library(
        path=name,
        sha256=hashlib.sha256(content).hexdigest(),
        size_bytes=len(content),
    )
    return (library,), {name: path}


def describe(
    variant: Variant,
    facts: UnitFacts,
    *,
    layout: Layout,
    machine: str,
    identity: str,
    toolchain: Iterable[tuple[str, str]],
) -> Artifact:
    """Return the manifest's entry of one artifact."""
    backend = BACKENDS[variant.key.target.backend]
    flags = (("flags", " ".join(backend.flags)), ("machine", machine))
    return Artifact(
        key=variant.key,
        path=f"{variant.key.target.arch}/{variant.key}.so",
        sha256=facts.sha256,
        size_bytes=facts.size_bytes,
        entry=f"__tvm_ffi_{variant.spec.operator}",
        arguments=facts.arguments,
        launch=facts.launch,
        limits=limits(variant),
        multiples=multiples(variant),
        resources=facts.resources,
        minimum_driver=backend.minimum_driver,
        toolchain=tuple(sorted((*toolchain, *flags))),
        fingerprint=identity,
        profiles=profiles_of(variant),
        verification=verification_status(layout.root, facts.sha256),
    )


def new_manifest(
    layout: Layout, backend: str, artifacts: Sequence[Artifact], libraries: Sequence[Library] = ()
) -> Manifest:
    """Return a manifest of this checkout's state."""
    commit, dirty = source_state(layout.root)
    return Manifest(
        schema_version=SCHEMA_VERSION,
        tilewheel_version=VERSION,
        runtime_abi=RUNTIME_ABI,
        backend=backend,
        source_commit=commit,
        source_dirty=dirty,
        artifacts=tuple(artifacts),
        libraries=tuple(libraries),
    )
