"""The simulator backend: the same AscendC, compiled for the CPU with the functional simulator."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

from tilewheel_build.host_compiler import zig_environment
from tilewheel_build.simulator import compile_kernel, compile_runtime, default_compiler
from tilewheel_build.simulator.compile import (
    GLIBC,
    INCLUDE,
    KERNEL_FLAGS,
    LINK_FLAGS,
    RUNTIME,
    RUNTIME_FLAGS,
)
from tilewheel_build.toolchain import package_versions

PACKAGES = ("tilelang", "ziglang")
FLAGS = (*KERNEL_FLAGS, *RUNTIME_FLAGS)


@cache
def library_name() -> str:
    """Return the file name of the runtime library, which is also the name that artifacts open.

    Of two open libraries with one name the loader serves the first for both, so the name carries a
    hash of what the library is made from: an overlay and an installed package each get their own.
    """
    digest = hashlib.sha256()
    for text in (*RUNTIME_FLAGS, *LINK_FLAGS, GLIBC, *map(str, package_versions(["ziglang"]))):
        digest.update(text.encode() + b"\n")
    for path in sorted(p for root in (RUNTIME, INCLUDE) for p in root.rglob("*") if p.is_file()):
        digest.update(path.relative_to(RUNTIME.parent).as_posix().encode() + b"\n")
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return f"libtilewheel_ascend_sim-{digest.hexdigest()[:12]}.so"


def compile_device(
    *, work: Path, source: str, output: str, machine: str, zig_cache: Path, timeout_s: float
) -> None:
    """Compile ``work/source`` to the host shared object ``work/output``."""
    compile_kernel(
        (work / source).read_text(),
        out=work / output,
        compiler=default_compiler(machine),
        machine=machine,
        environment=zig_environment(zig_cache),
        timeout_s=timeout_s,
    )


def compile_library(out: Path, machine: str, zig_cache: Path) -> None:
    """Compile the simulator's runtime library, which stands in for libascendcl, to ``out``."""
    compile_runtime(out, compiler=default_compiler(machine), environment=zig_environment(zig_cache))
