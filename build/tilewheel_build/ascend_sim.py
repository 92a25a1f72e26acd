"""The simulator backend: the same AscendC, compiled for the CPU with the functional simulator."""

from __future__ import annotations

from pathlib import Path

from tilewheel_build.host_compiler import zig_environment
from tilewheel_build.simulator import compile_kernel, compile_runtime, default_compiler
from tilewheel_build.simulator.compile import KERNEL_FLAGS, RUNTIME_FLAGS, RUNTIME_NAME

PACKAGES = ("tilelang", "ziglang")
FLAGS = (*KERNEL_FLAGS, *RUNTIME_FLAGS)
LIBRARY = RUNTIME_NAME


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
