"""From a request to published artifacts: plan, build what the cache lacks, publish the rest."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import subprocess
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path

from tilewheel.key import Key
from tilewheel.manifest import RUNTIME_ABI, SCHEMA_VERSION, Artifact, Library, Manifest
from tilewheel.version import VERSION
from tilewheel_build.backends import BACKENDS
from tilewheel_build.errors import CompilationError, LoweringError, ToolchainError
from tilewheel_build.fingerprint import driver_hash, fingerprint
from tilewheel_build.publish import publish
from tilewheel_build.unit import ARTIFACT, Unit, UnitFacts, build_unit, read_unit, source_name
from tilewheel_build.variant import Variant, limits, profiles_of
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

    @property
    def artifacts(self) -> Path:
        """Directory of the published artifacts, one sub-directory for each backend."""
        return self.out / "artifacts"


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A variant that could not be built, with the message that its worker raised."""

    key: Key
    message: str
    work: Path
    exit_code: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """A variant whose artifact is in the cache."""

    unit: Unit
    facts: UnitFacts
    cached: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildResult:
    """Everything that a build did, in key order."""

    built: tuple[Built, ...]
    failures: tuple[Failure, ...]


Observer = Callable[[Key, str], None]
"""Called in the driver's process with a key and ``cached``, ``built`` or ``failed``."""


def build(
    variants: Sequence[Variant],
    *,
    layout: Layout,
    backend: str,
    jobs: int,
    machine: str,
    observe: Observer = lambda key, event: None,
) -> BuildResult:
    """Build the variants of one backend and publish those that succeeded.

    Where none did, what was published before stays.

    Raises:
        ToolchainError: a tool is missing; nothing was started.
    """
    units = plan_units(variants, layout=layout, backend=backend, machine=machine)
    built: list[Built] = []
    missing: list[Unit] = []
    for unit in units:
        facts = read_unit(unit.cache)
        if facts is None:
            missing.append(unit)
        else:
            built.append(Built(unit=unit, facts=facts, cached=True))
            observe(unit.variant.key, "cached")
    failures: list[Failure] = []
    for unit, outcome in _run(missing, jobs):
        if isinstance(outcome, UnitFacts):
            built.append(Built(unit=unit, facts=outcome, cached=False))
        else:
            failures.append(_failure(unit, outcome))
        observe(unit.variant.key, "built" if isinstance(outcome, UnitFacts) else "failed")
    built.sort(key=lambda item: item.unit.variant.key.sort_key())
    failures.sort(key=lambda item: item.key.sort_key())
    if built:
        _publish(built, layout=layout, backend=backend)
    return BuildResult(built=tuple(built), failures=tuple(failures))


def plan_units(
    variants: Iterable[Variant], *, layout: Layout, backend: str, machine: str
) -> tuple[Unit, ...]:
    """Return the units of work for the variants; raises ToolchainError when a tool is missing."""
    toolchain = dict(BACKENDS[backend].toolchain())
    units = []
    for variant in variants:
        identity = fingerprint(
            variant,
            kernels_root=layout.kernels,
            machine=machine,
            toolchain=toolchain,
            flags=BACKENDS[backend].flags,
            sources=BACKENDS[backend].sources,
        )
        units.append(
            Unit(
                variant=variant,
                fingerprint=identity,
                kernels_root=layout.kernels,
                cache=layout.out / "cache" / identity,
                work=layout.out / "work" / str(variant.key),
                machine=machine,
            )
        )
    return tuple(units)


def _run(units: Sequence[Unit], jobs: int) -> Iterable[tuple[Unit, UnitFacts | BaseException]]:
    """Yield each unit with its facts or its error, as they finish.

    A worker that is killed (out of memory, say) breaks its pool and takes the innocent units with
    it; those left run again one at a time, each in a pool of its own: only the culprit fails.
    """
    left = list(units)
    if not left:
        return
    for unit, outcome in _run_pool(left, max(1, min(jobs, len(left)))):
        if not isinstance(outcome, BrokenProcessPool):
            left.remove(unit)
            yield unit, outcome
    for unit in left:
        yield from _run_pool([unit], 1)


def _run_pool(units: Sequence[Unit], jobs: int) -> Iterable[tuple[Unit, UnitFacts | BaseException]]:
    # Spawned, not forked: TileLang must start fresh and the driver may have threads.
    executor = ProcessPoolExecutor(
        jobs, mp_context=multiprocessing.get_context("spawn"), initializer=_end_with_parent
    )
    futures: dict[Future[UnitFacts], Unit] = {}
    try:
        futures = {executor.submit(build_unit, unit): unit for unit in units}
        for future in as_completed(futures):
            error = future.exception()
            yield futures[future], future.result() if error is None else error
    except BaseException:
        for process in list((executor._processes or {}).values()):
            process.terminate()
        raise
    finally:
        executor.shutdown(wait=True, cancel_futures=True)


def _end_with_parent() -> None:
    """Make this worker end when the driver is killed: its queue alone would keep it waiting."""
    parent = multiprocessing.parent_process()

    def watch() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _failure(unit: Unit, error: BaseException) -> Failure:
    known = (LoweringError, CompilationError, ToolchainError)
    message = str(error) if isinstance(error, known) else f"{type(error).__name__}: {error}"
    if isinstance(error, BrokenProcessPool):
        message = "the worker process died (killed, or out of memory)"
    return Failure(
        key=unit.variant.key,
        message=message,
        work=unit.work,
        exit_code=getattr(error, "exit_code", 1),
    )


def _publish(built: Sequence[Built], *, layout: Layout, backend: str) -> None:
    files: dict[str, Path] = {}
    artifacts = []
    for item in built:
        artifact = _artifact(item, layout)
        artifacts.append(artifact)
        files[artifact.path] = item.unit.cache / ARTIFACT
        source = source_name(item.unit.variant)
        suffix = Path(source).suffix
        files[artifact.path.removesuffix(".so") + suffix] = item.unit.cache / source
    libraries = []
    library = _library(layout, backend, built[0].unit.machine)
    if library is not None:
        name = BACKENDS[backend].library
        files[name] = library
        content = library.read_bytes()
        digest = hashlib.sha256(content).hexdigest()
        libraries.append(Library(path=name, sha256=digest, size_bytes=len(content)))
    commit, dirty = source_state(layout.root)
    manifest = Manifest(
        schema_version=SCHEMA_VERSION,
        tilewheel_version=VERSION,
        runtime_abi=RUNTIME_ABI,
        backend=backend,
        source_commit=commit,
        source_dirty=dirty,
        artifacts=tuple(artifacts),
        libraries=tuple(libraries),
    )
    publish(layout.artifacts / backend, manifest, files)


def _library(layout: Layout, backend: str, machine: str) -> Path | None:
    """Return the library that a backend's artifacts open by name; None if they open none."""
    described = BACKENDS[backend]
    if described.compile_library is None:
        return None
    inputs = [driver_hash(described.sources), machine, *map(str, described.toolchain())]
    identity = hashlib.sha256("\n".join([*inputs, *described.flags]).encode()).hexdigest()
    path = layout.out / "cache" / identity / described.library
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_name(f".{path.name}.{os.getpid()}")
        described.compile_library(unfinished, machine)
        os.replace(unfinished, path)
    return path


def _artifact(item: Built, layout: Layout) -> Artifact:
    variant = item.unit.variant
    backend = BACKENDS[variant.key.target.backend]
    flags = (("flags", " ".join(backend.flags)), ("machine", item.unit.machine))
    return Artifact(
        key=variant.key,
        path=f"{variant.key.target.arch}/{variant.key}.so",
        sha256=item.facts.sha256,
        size_bytes=item.facts.size_bytes,
        entry=f"__tvm_ffi_{variant.spec.operator}",
        arguments=item.facts.arguments,
        launch=item.facts.launch,
        limits=limits(variant),
        resources=item.facts.resources,
        minimum_driver=backend.minimum_driver,
        toolchain=tuple(sorted((*backend.toolchain(), *flags))),
        fingerprint=item.unit.fingerprint,
        profiles=profiles_of(variant),
        verification=verification_status(layout.root, item.facts.sha256),
    )


def source_state(root: Path) -> tuple[str | None, bool | None]:
    """Return the commit and whether tracked files differ from it; None where git knows neither."""

    def git(*arguments: str) -> str | None:
        try:
            done = subprocess.run(
                ["git", "-C", str(root), *arguments],
                capture_output=True,
                text=True,
                check=False,
                env={
                    **os.environ,
                    "GIT_OPTIONAL_LOCKS": "0",
                    # A source tree without git, unpacked inside another repository, is not its.
                    "GIT_CEILING_DIRECTORIES": str(root.resolve().parent),
                },
            )
        except OSError:
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    commit = git("rev-parse", "HEAD")
    if commit is None:
        return None, None
    return commit, bool(git("status", "--porcelain", "--untracked-files=no"))
