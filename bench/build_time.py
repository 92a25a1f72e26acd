"""How long builds take on this machine's CPU, and how large what they make is. Writes JSON lines.

python bench/build_time.py OUTPUT.jsonl [--only GLOB] [--profile NAME] [--archs sm_90a,dav_3510]
    [--repeats N] [--out DIR] [--wheels DIR] [--artifacts DIR]

Everything is built by the command line of the driver, in a temporary directory with empty caches.
BENCH_QUICK=1 takes four operators.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import cpu
from builds import (
    TARGETS,
    BuiltUnit,
    Place,
    Took,
    build,
    built_units,
    cached_targets,
    dask_cluster,
    one_of_each,
    variants_of,
)
from spread import spread
from tilewheel import manifest
from tilewheel_build import option_types
from tilewheel_build.backends import BACKENDS
from tilewheel_build.checkout import ROOT
from tilewheel_build.elf import parse_shared_object
from tilewheel_build.errors import OptionError
from tilewheel_build.launcher import TEMPLATES
from tilewheel_build.unit import ARGUMENTS_HEADER, ARTIFACT, FACTS, LAUNCHER, link
from tilewheel_build.variant import SelectionError, Variant

QUICK_OPERATORS = ("topk_gate", "apply_rotary", "fused_weight", "grad_w_reduce")
SCALED_OPERATORS = ("topk_gate", "fused_weight", "grad_w_reduce", "mhc_post_fwd", "cast_back")
"""What is built again for each number of workers, for CUDA: no unit lasts much longer than others,
and nothing but units is built."""

WARM_REPEATS = 3

ONE_OF_EACH = "one of each operator"
PROFILES = ("release", "dev", "smoke")
"""The largest that is there whole is the one whose sizes and rebuild are measured."""


def first_build(keys: Sequence[str], work: Path, write: cpu.Write) -> None:
    """Measure what only the first build on a machine pays: the C library of the launchers."""
    took = build(keys, Place(out=work / "first", cache=work / "first/cache"))
    _say(f"first build of {len(keys)} on a machine", [took])
    write(kind="build_first", case=f"{len(keys)} artifacts", runs=1, **_times([took]))


def unit_times(
    variants: Sequence[Variant], work: Path, repeats: int, remote: str, write: cpu.Write
) -> Place:
    """Measure each variant on its own: a cold command on one core. Return where all of them are."""
    core = max(os.sched_getaffinity(0))
    places = [
        Place(
            out=work / f"units-{number}",
            cache=work / f"units-{number}/cache",
            # One of them fills the cache that is shared.
            remote="" if number else remote,
        )
        for number in range(repeats)
    ]
    for place in places:
        _copy_libraries(work / "first/cache", place.cache)
    for variant in variants:
        key = str(variant.key)
        commands = [build([key], place, core=core) for place in places]
        units = [built_units(place)[key] for place in places]
        facts = [unit.facts for unit in units]
        links = [link_time(variant, unit, work / "link") for unit in units]
        write(
            kind="build_unit",
            operator=variant.key.operator,
            target=str(variant.key.target),
            key=key,
            runs=repeats,
            lower=spread([fact.lower_s for fact in facts], "s"),
            compile=spread([fact.compile_s for fact in facts], "s"),
            link=spread(links, "s"),
            cold=spread([fact.lower_s + fact.compile_s for fact in facts], "s"),
            command=spread([took.wall_s for took in commands], "s"),
            command_cpu=spread([took.cpu_s for took in commands], "s"),
            size_bytes=facts[0].size_bytes,
        )
        _say(key, commands)
    return places[0]


def _copy_libraries(source: Path, target: Path) -> None:
    """Copy what units need and are not: the simulator's library would count for the first one."""
    for entry in source.iterdir():
        if entry.name != "zig" and not (entry / FACTS).exists():
            shutil.copytree(entry, target / entry.name)


def link_time(variant: Variant, unit: BuiltUnit, work: Path) -> float:
    """Return the seconds of the last step of a unit, done once more on its finished files."""
    backend = BACKENDS[variant.key.target.backend]
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    image = parse_shared_object((unit.entry / ARTIFACT).read_bytes()).image
    (work / f"kernel{backend.image_suffix}").write_bytes(image)
    shutil.copyfile(unit.entry / LAUNCHER, work / LAUNCHER)
    shutil.copyfile(TEMPLATES / ARGUMENTS_HEADER, work / ARGUMENTS_HEADER)
    started = time.perf_counter()
    link(
        unit.facts,
        work=work,
        target=variant.key.target,
        machine=platform.machine(),
        zig_cache=work / "zig",
    )
    return time.perf_counter() - started


def rebuild_times(
    keys: Sequence[str], full: Place, remote: str, work: Path, write: cpu.Write
) -> Path:
    """Measure builds that have nothing to compile; return an output directory with everything."""
    local = [Place(out=work / f"local-{n}", cache=full.cache) for n in range(WARM_REPEATS)]
    fetched = [
        Place(out=work / f"remote-{n}", cache=work / f"remote-{n}/cache", remote=remote)
        for n in range(WARM_REPEATS)
    ]
    for case, places in (
        ("from the local cache", local),
        ("unchanged", local),
        ("from a remote cache (file://)", fetched),
    ):
        times = [build(keys, place) for place in places]
        _rebuilt(case, ONE_OF_EACH, ",".join(TARGETS), keys, times, write)
    return local[0].out


def _rebuilt(
    case: str,
    profile: str,
    target: str,
    keys: Sequence[str],
    times: Sequence[Took],
    write: cpu.Write,
) -> None:
    _say(f"{len(keys)} artifacts, {case}", times)
    write(
        kind="build_rebuild",
        case=case,
        profile=profile,
        target=target,
        num_artifacts=len(keys),
        runs=len(times),
        **_times(times),
    )


def scaling(keys: Sequence[str], repeats: int, work: Path, write: cpu.Write) -> None:
    """Measure the same build with one worker, two, and two of a Dask cluster."""

    def measure(workers: str, jobs: int, dask: str = "") -> None:
        times = []
        for number in range(repeats):
            out = work / f"scaling-{workers.replace(' ', '-')}-{number}"
            times.append(build(keys, Place(out=out, cache=out / "cache"), jobs=jobs, dask=dask))
            shutil.rmtree(out)
        _say(f"{len(keys)} artifacts, {workers}", times)
        case = f"{len(keys)} artifacts"
        measured = _times(times)
        if dask:
            del measured["cpu"]  # the workers are not this process's children
        write(kind="build_scaling", case=case, workers=workers, runs=repeats, **measured)

    measure("1 process", 1)
    measure("2 processes", 2)
    with dask_cluster(work / "dask", 2) as address:
        measure("2 Dask workers", 1, dask=address)


def sizes(artifacts: Path, profile: str, write: cpu.Write) -> None:
    """Write the bytes of published artifacts, by operator and in all, for each target."""
    by_target: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for path in sorted(artifacts.glob("*/manifest.json")):
        for artifact in manifest.read(path).artifacts:
            named = by_target[str(artifact.key.target)]
            for operator in (artifact.key.operator, "all"):
                named[operator].append(artifact.size_bytes)
    for target, operators in by_target.items():
        for operator, found in sorted(operators.items()):
            write(
                kind="artifact_size",
                profile=profile,
                target=target,
                operator=operator,
                num_artifacts=len(found),
                size_bytes=sum(found),
            )


def checkout(out: Path, archs: Sequence[str], work: Path, write: cpu.Write) -> None:
    """Measure sizes and rebuild of the largest profile that the checkout has in its cache."""
    place = Place(out=work / "checkout", cache=out / "cache")
    for profile in PROFILES:
        variants = variants_of(profile, archs, "")
        targets = cached_targets(variants, place)
        if not targets:
            continue
        keys = [str(v.key) for v in variants if v.key.target.backend in targets]
        named = ",".join(targets)
        _rebuilt("from the local cache", profile, named, keys, [build(keys, place)], write)
        times = [build(keys, place) for _ in range(WARM_REPEATS)]
        _rebuilt("unchanged", profile, named, keys, times, write)
        sizes(place.out / "artifacts", profile, write)
        return
    print(f"{place.cache}: holds no profile whole, its rebuild is not measured", flush=True)


def wheels(directory: Path, write: cpu.Write) -> None:
    """Write the bytes of each wheel in a directory."""
    for path in sorted(directory.glob("*.whl")):
        name, *_, tag = path.stem.split("-")
        write(kind="wheel_size", wheel=name, tag=tag, size_bytes=path.stat().st_size)


def _times(times: Sequence[Took]) -> dict[str, Any]:
    return {
        "wall": spread([took.wall_s for took in times], "s"),
        "cpu": spread([took.cpu_s for took in times], "s"),
    }


def _say(what: str, times: Sequence[Took]) -> None:
    wall, processor = (
        statistics.median(getattr(took, name) for took in times) for name in ("wall_s", "cpu_s")
    )
    print(f"{what:80.80} {wall:8.2f} s, {processor:8.2f} s of processors", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("output", type=Path)
    parser.add_argument("--only", default="", help="glob over keys: these are timed one by one")
    parser.add_argument("--profile", default="smoke", help="where one of each operator is from")
    parser.add_argument("--archs", default="sm_90a,dav_3510")
    parser.add_argument("--repeats", type=option_types.jobs, default=1, help="of each cold build")
    parser.add_argument("--out", type=Path, default=ROOT / "out", help="the checkout's builds")
    parser.add_argument("--wheels", type=Path, default=ROOT / "dist")
    parser.add_argument("--artifacts", type=Path, help="where to leave what was built")
    options = parser.parse_args()
    archs = options.archs.split(",")
    try:
        variants = variants_of(options.profile, archs, options.only)
    except (OptionError, SelectionError) as error:
        parser.error(str(error))
    chosen = variants if options.only else one_of_each(variants)
    if cpu.QUICK:
        chosen = tuple(v for v in chosen if v.key.operator in QUICK_OPERATORS)
    if not chosen:
        parser.error(f"--only: {options.only!r} leaves nothing of the four operators")
    keys = [str(variant.key) for variant in chosen]
    scaled = [
        str(v.key)
        for v in (chosen if cpu.QUICK else variants)
        if v.key.operator in SCALED_OPERATORS and v.key.target.backend == "cuda"
    ]
    with (
        tempfile.TemporaryDirectory(prefix="tilewheel-bench-") as directory,
        cpu.records(options.output) as write,
    ):
        work = Path(directory)
        os.environ["ZIG_GLOBAL_CACHE_DIR"] = str(work / "zig")
        remote = f"file://{work}/shared"
        first_build([key for key in keys if key.startswith("topk_gate-")] or keys, work, write)
        full = unit_times(chosen, work, options.repeats, remote, write)
        everything = rebuild_times(keys, full, remote, work, write)
        sizes(everything / "artifacts", ONE_OF_EACH, write)
        scaling(scaled or keys, 1 if cpu.QUICK else 2, work, write)
        checkout(options.out, archs, work, write)
        wheels(options.wheels, write)
        if options.artifacts is not None:
            shutil.rmtree(options.artifacts, ignore_errors=True)
            shutil.copytree(everything / "artifacts", options.artifacts)


if __name__ == "__main__":
    main()
