"""One unit of work: lower and compile one variant into a directory of its own.

A function of (variant, kernel sources, toolchain, machine): it reads nothing else, so that it can
run in any process and be cached by its fingerprint.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from tilewheel.key import Target
from tilewheel.manifest import Argument, Launch, Resources
from tilewheel_build.backends import BACKENDS, DeviceJob
from tilewheel_build.cache import store
from tilewheel_build.elf import parse_shared_object
from tilewheel_build.entry import EntryError, check, read_directory
from tilewheel_build.errors import ArtifactError
from tilewheel_build.host_compiler import compile_launcher
from tilewheel_build.launcher import (
    TEMPLATES,
    LauncherFacts,
    arguments,
    check_contract,
    launcher_source,
)
from tilewheel_build.lower import Lowered, lower_kernel
from tilewheel_build.memory import measured_peak
from tilewheel_build.process import TIMEOUT_S
from tilewheel_build.variant import Variant, bindings

ARTIFACT = "artifact.so"
LAUNCHER = "launcher.c"
ARGUMENTS_HEADER = "arguments.h"
FACTS = "facts.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """A variant to build and where: ``cache`` receives the finished directory.

    ``siblings`` are where the same variant lies in the cache once it is built for another
    processor; its device code is then taken from there.
    """

    variant: Variant
    fingerprint: str
    kernels_root: Path
    cache: Path
    work: Path
    machine: str
    timeout_s: float
    siblings: tuple[Path, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitFacts:
    """What is known of a built artifact, beside the file itself.

    ``image_bytes`` is the size of the device code that it embeds, whose section ends in padding.
    ``peak_bytes`` is the most memory that the process that built it and its compilers held.
    """

    sha256: str
    size_bytes: int
    arguments: tuple[Argument, ...]
    launch: Launch
    resources: Resources
    lower_s: float
    compile_s: float
    image_bytes: int = 0
    peak_bytes: int = 0


def source_name(variant: Variant) -> str:
    """Return the file name of the device source inside a unit's directory."""
    return "kernel" + BACKENDS[variant.key.target.backend].source_suffix


def lower_variant(variant: Variant, kernels_root: Path) -> Lowered:
    """Lower one variant and check the result against its spec."""
    backend = BACKENDS[variant.key.target.backend]
    lowered = lower_kernel(
        kernels_root=kernels_root,
        kernel=variant.backend.kernel,
        operator=variant.spec.operator,
        bindings=bindings(variant),
        tvm_target=backend.tvm_target(variant.key.target.arch),
    )
    check_contract(variant, lowered)
    return lowered


def build_unit(unit: Unit) -> UnitFacts:
    """Build one variant into ``unit.cache``; on failure the work directory stays for inspection.

    Raises:
        LoweringError, CompilationError, ToolchainError: see the message; nothing is published.
    """
    shutil.rmtree(unit.work, ignore_errors=True)
    unit.work.mkdir(parents=True)
    target, zig_cache = unit.variant.key.target, unit.cache.parent / "zig"
    with measured_peak() as peak_bytes:
        image = _copy_sibling(unit)
        if image is not None:
            done = link(
                image, work=unit.work, target=target, machine=unit.machine, zig_cache=zig_cache
            )
        else:
            done = compile_sources(
                write_sources(unit.variant, unit.kernels_root, unit.work),
                work=unit.work,
                target=target,
                machine=unit.machine,
                zig_cache=zig_cache,
                timeout_s=unit.timeout_s,
            )
    result = replace(done, peak_bytes=peak_bytes())
    names = (ARTIFACT, source_name(unit.variant), LAUNCHER)
    files = {name: (unit.work / name).read_bytes() for name in names}
    files[FACTS] = (json.dumps(asdict(result), sort_keys=True, indent=1) + "\n").encode()
    store(unit.cache, files)
    shutil.rmtree(unit.work, ignore_errors=True)
    return result


def _copy_sibling(unit: Unit) -> UnitFacts | None:
    """Copy device code and launcher of a finished sibling into the work directory, if there is one.

    What decides them is in its fingerprint, which differs from the unit's in the processor only.
    """
    backend = BACKENDS[unit.variant.key.target.backend]
    for sibling in unit.siblings:
        entry = _read_entry(sibling)
        if entry is None:
            continue
        facts, files = entry
        image = parse_shared_object(files[ARTIFACT]).image[: facts.image_bytes]
        (unit.work / ("kernel" + backend.image_suffix)).write_bytes(image)
        for name in (source_name(unit.variant), LAUNCHER):
            (unit.work / name).write_bytes(files[name])
        shutil.copyfile(TEMPLATES / ARGUMENTS_HEADER, unit.work / ARGUMENTS_HEADER)
        return facts
    return None


def write_sources(variant: Variant, kernels_root: Path, work: Path) -> UnitFacts:
    """Lower one variant and write its device source and launcher into ``work``.

    The facts that come back have neither hash nor size: ``compile_sources`` completes them, here or
    on another machine.
    """
    backend = BACKENDS[variant.key.target.backend]
    started = time.perf_counter()
    lowered = lower_variant(variant, kernels_root)
    resources = backend.check_lowered(lowered)
    (work / source_name(variant)).write_text(lowered.source)
    facts = LauncherFacts(
        template=backend.launcher_template,
        device_name=backend.device_name,
        image_file="kernel" + backend.image_suffix,
        minimum_driver=backend.minimum_driver,
        extra=backend.launcher_extra(lowered),
    )
    (work / LAUNCHER).write_text(launcher_source(variant, lowered, facts))
    shutil.copyfile(TEMPLATES / ARGUMENTS_HEADER, work / ARGUMENTS_HEADER)
    return UnitFacts(
        sha256="",
        size_bytes=0,
        arguments=arguments(variant, lowered),
        launch=Launch(
            kernel=lowered.kernel,
            parameters=tuple(parameter.name for parameter in lowered.parameters),
            grid=lowered.grid,
            block=lowered.block,
            dynamic_shared_bytes=lowered.dynamic_shared_bytes,
            pdl=lowered.pdl,
        ),
        resources=resources,
        lower_s=time.perf_counter() - started,
        compile_s=0.0,
    )


def compile_sources(
    facts: UnitFacts,
    *,
    work: Path,
    target: Target,
    machine: str,
    zig_cache: Path,
    timeout_s: float = TIMEOUT_S,
) -> UnitFacts:
    """Compile what ``write_sources`` wrote into ``work`` to the artifact there.

    ``timeout_s`` is how long one run of the device compiler may take.
    """
    backend = BACKENDS[target.backend]
    started = time.perf_counter()
    reported = backend.compile_device(
        DeviceJob(
            work=work,
            source="kernel" + backend.source_suffix,
            output="kernel" + backend.image_suffix,
            arch=target.arch,
            machine=machine,
            shared_bytes=facts.launch.dynamic_shared_bytes,
            zig_cache=zig_cache,
            timeout_s=timeout_s,
        )
    )
    known = {name: value for name, value in asdict(reported).items() if value is not None}
    linked = link(
        replace(facts, resources=replace(facts.resources, **known)),
        work=work,
        target=target,
        machine=machine,
        zig_cache=zig_cache,
    )
    return replace(linked, compile_s=time.perf_counter() - started)


def link(
    facts: UnitFacts, *, work: Path, target: Target, machine: str, zig_cache: Path
) -> UnitFacts:
    """Compile launcher and device code in ``work`` to the artifact there."""
    backend = BACKENDS[target.backend]
    image = "kernel" + backend.image_suffix
    compile_launcher(
        work=work,
        source=LAUNCHER,
        output=ARTIFACT,
        machine=machine,
        includes=backend.launcher_includes(),
        image_sha256=_sha256(work / image),
        zig_cache=zig_cache,
    )
    return replace(
        facts,
        sha256=_sha256(work / ARTIFACT),
        size_bytes=(work / ARTIFACT).stat().st_size,
        image_bytes=(work / image).stat().st_size,
    )


def read_unit(cache: Path) -> UnitFacts | None:
    """Return the facts of a cached unit, or None if it is absent, incomplete or altered."""
    entry = _read_entry(cache)
    return None if entry is None else entry[0]


def _read_entry(cache: Path) -> tuple[UnitFacts, dict[str, bytes]] | None:
    """Return facts and files of a cached unit, the very bytes that were checked."""
    try:
        files = read_directory(cache)
        check(files, cache.name)
        return facts_from_json(json.loads(files[FACTS])), files
    except (EntryError, ValueError, KeyError, TypeError):
        return None


def facts_from_json(tree: dict[str, Any]) -> UnitFacts:
    launch = tree["launch"]
    return UnitFacts(
        sha256=tree["sha256"],
        size_bytes=tree["size_bytes"],
        arguments=tuple(
            Argument(**{**item, "shape": tuple(item["shape"])}) for item in tree["arguments"]
        ),
        launch=Launch(
            **{
                **launch,
                "parameters": tuple(launch["parameters"]),
                "grid": tuple(launch["grid"]),
                "block": tuple(launch["block"]),
            }
        ),
        resources=Resources(**tree["resources"]),
        lower_s=tree["lower_s"],
        compile_s=tree["compile_s"],
        image_bytes=tree["image_bytes"],
        peak_bytes=tree.get("peak_bytes", 0),
    )


def _sha256(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise ArtifactError(f"{path.name}: cannot be read: {error.strerror}") from error
