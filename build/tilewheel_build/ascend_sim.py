"""The simulator backend: the same AscendC, compiled for the CPU against the functional simulator."""

from __future__ import annotations

from pathlib import Path

from tilewheel.manifest import Resources
from tilewheel_build.ascend import check_resources
from tilewheel_build.lower import Lowered
from tilewheel_build.simulator import compile_kernel, compile_runtime, default_compiler
from tilewheel_build.simulator.compile import KERNEL_FLAGS, RUNTIME_NAME

PACKAGES = ("tilelang", "ziglang")
FLAGS = KERNEL_FLAGS


def compile_device(work: Path, source: str, output: str, machine: str, lowered: Lowered) -> Resources:
    """Compile ``work/source`` to the host shared object ``work/output``."""
    resources = check_resources(lowered)
    compile_kernel(
        (work / source).read_text(),
        out=work / output,
        compiler=default_compiler(machine),
        machine=machine,
    )
    return resources


def compile_library(out: Path, machine: str) -> None:
    """Compile the simulator's runtime library, which stands in for libascendcl, to ``out``."""
    compile_runtime(out / RUNTIME_NAME, compiler=default_compiler(machine))
