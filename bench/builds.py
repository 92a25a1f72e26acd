"""Runs the build driver as a user does, and reads what it left: for ``build_time.py``."""

from __future__ import annotations

import importlib
import json
import os
import platform
import re
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tilewheel import manifest
from tilewheel_build.cache import Cache
from tilewheel_build.checkout import ROOT
from tilewheel_build.driver import Layout, plan_units
from tilewheel_build.spec import load_specs
from tilewheel_build.unit import UnitFacts, read_unit
from tilewheel_build.variant import Variant, expand, select

TARGETS = ("cuda", "ascend-sim")
_START_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Took:
    """Seconds of a build: what passed, and what its processes had of the processors."""

    wall_s: float
    cpu_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltUnit:
    """What a build says of a unit, its seconds included, and the directory of its files."""

    facts: UnitFacts
    entry: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a build writes: its output directory and its cache, and a shared one behind that."""

    out: Path
    cache: Path
    remote: str = ""


def variants_of(profile: str, archs: Sequence[str] | None, only: str) -> tuple[Variant, ...]:
    """Return the variants of a profile for every target that any machine can build."""
    specs = load_specs(ROOT)
    everything = [v for name in TARGETS for spec in specs for v in expand(spec, name, archs)]
    return select(everything, profile=profile, only=[only] if only else [])


def one_of_each(variants: Sequence[Variant]) -> tuple[Variant, ...]:
    """Return the first variant of each operator and target."""
    first: dict[tuple[str, str], Variant] = {}
    for variant in variants:
        first.setdefault((variant.key.operator, str(variant.key.target)), variant)
    return tuple(first.values())


def build(
    keys: Sequence[str],
    place: Place,
    *,
    jobs: int = 1,
    dask: str = "",
    core: int | None = None,
) -> Took:
    """Build what the cache lacks of the keys with the command line.

    ``core`` keeps the driver, its workers and their compilers on one core.
    """
    command = [
        *(sys.executable, "-m", "tilewheel_build", "build"),
        *("--target", ",".join(TARGETS), "--out", str(place.out), "--cache", str(place.cache)),
        *("--jobs", str(jobs)),
        *(["--remote-cache", place.remote] if place.remote else []),
        *(["--dask", dask] if dask else []),
        *(word for key in keys for word in ("--only", key)),
    ]
    pin = None if core is None else lambda: os.sched_setaffinity(0, {core})
    started, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, capture_output=True, text=True, check=False, preexec_fn=pin)
    elapsed, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise SystemExit(f"build: ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    if not re.search(rf"^{len(keys)} artifacts ", done.stdout, re.MULTILINE):
        raise SystemExit(f"build: must have made {len(keys)} artifacts:\n{done.stdout}")
    return Took(
        wall_s=elapsed,
        cpu_s=after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
    )


def built_units(place: Place) -> dict[str, BuiltUnit]:
    """Return what is known of each published artifact, by key.

    The only place that knows where a build keeps its seconds.
    """
    found = {}
    for path in sorted(place.out.glob("artifacts/*/manifest.json")):
        for artifact in manifest.read(path).artifacts:
            entry = place.cache / artifact.fingerprint
            facts = read_unit(entry)
            assert facts is not None, artifact.key
            found[str(artifact.key)] = BuiltUnit(facts=facts, entry=entry)
    return found


def cached_targets(variants: Sequence[Variant], place: Place) -> list[str]:
    """Return the targets of whose variants a build would find all in the local cache."""
    cache = Cache(directory=place.cache)
    layout = Layout(root=ROOT, out=place.out)
    whole = []
    for target in TARGETS:
        units = plan_units(
            [variant for variant in variants if variant.key.target.backend == target],
            layout=layout,
            backend=target,
            machine=platform.machine(),
            cache=cache,
        )
        wanted = {unit.fingerprint for unit in units}
        if wanted and cache.find(sorted(wanted)) == wanted:
            whole.append(target)
    return whole


@contextmanager
def dask_cluster(place: Path, num_workers: int) -> Iterator[str]:
    """Start a scheduler and workers with one thread each on this machine; yield the address."""
    place.mkdir()
    file = place / "scheduler.json"
    processes: list[subprocess.Popen[bytes]] = []

    def start(*arguments: str) -> None:
        program = str(Path(sys.executable).with_name("dask"))
        with (place / "log.txt").open("ab") as log:
            processes.append(
                subprocess.Popen(
                    [program, *arguments, "--host", "127.0.0.1", "--no-dashboard"],
                    env={**os.environ, "PYTHONPATH": os.pathsep.join(_SOURCES)},
                    cwd=place,
                    stdout=log,
                    stderr=log,
                )
            )

    try:
        start("scheduler", "--port", "0", "--scheduler-file", str(file))
        # It exists before its content does, which ends with a brace.
        _wait_for(lambda: file.exists() and file.read_text().rstrip().endswith("}"))
        address: str = json.loads(file.read_text())["address"]
        for _ in range(num_workers):
            options = ("--nthreads", "1", "--no-nanny", "--local-directory", str(place))
            start("worker", address, *options)
        _wait_for_workers(address, num_workers)
        yield address
    finally:
        for process in reversed(processes):
            process.kill()
        for process in processes:
            process.wait(timeout=30)


_SOURCES = (str(ROOT / "runtime"), str(ROOT / "build"))


def _wait_for(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + _START_S
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit(f"dask: the scheduler has not started in {_START_S:g} s")
        time.sleep(0.05)


def _wait_for_workers(address: str, num_workers: int) -> None:
    client = importlib.import_module("distributed").Client(
        address, timeout=_START_S, set_as_default=False
    )
    try:
        client.wait_for_workers(num_workers, timeout=_START_S)
    finally:
        client.close(timeout=2)
