"""Compiling kernels and the runtime library of the simulator.

Both are two commands, compile and link, and the second is the compiler's command for C: zig's for
C++ would first build its C++ library, even to leave it out, and neither needs one. Names are
relative to the work directory and no path ends up in the output, so equal inputs give equal bytes.
"""

from __future__ import annotations

import importlib.util
import platform
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from tilewheel_build.errors import ToolchainError
from tilewheel_build.process import TIMEOUT_S, run_tool
from tilewheel_build.simulator.rewrite import RewrittenSource, rewrite_source
from tilewheel_build.toolchain import tilelang_source

ROOT = Path(__file__).parent
INCLUDE = ROOT / "include"
RUNTIME = ROOT / "runtime"

GLIBC = "2.28"

_COMMON_FLAGS = (
    "-std=c++20",
    "-O2",
    "-g0",
    "-fPIC",
    "-fvisibility=hidden",
    "-fno-exceptions",
    "-fno-rtti",
    # Zig turns the undefined-behaviour sanitizer on by default.
    "-fno-sanitize=undefined",
)
KERNEL_FLAGS = (
    *_COMMON_FLAGS,
    "-w",
    # A product and a sum in the source are two roundings; only vmula and vmadd fuse.
    "-ffp-contract=off",
    "-fno-math-errno",
    "-fno-trapping-math",
    # Integer arithmetic of the device wraps; registers are reinterpreted by casts.
    "-fwrapv",
    "-fno-strict-aliasing",
    # Violations leave by longjmp: no frame of a kernel is ever unwound.
    "-fno-asynchronous-unwind-tables",
)
RUNTIME_FLAGS = (*_COMMON_FLAGS, "-Wall", "-Wextra", "-Werror", "-Wno-missing-field-initializers")
LINK_FLAGS = (
    *("-shared", "-s", "-g0", "-fno-sanitize=undefined", "-nodefaultlibs"),
    *("-Wl,--build-id=none", "-Wl,--gc-sections", "-lc", "-lm", "-lpthread", "-ldl"),
)
# vmula is a fused multiply-add: without the instruction it is a library call for each lane. The
# runtime library refuses to load a kernel on a processor without these.
MACHINE_FLAGS = {"x86_64": ("-mavx2", "-mfma"), "aarch64": ()}


def default_compiler(machine: str | None = None) -> tuple[str, ...]:
    """Return the C++ compiler command: zig's clang if its package is installed, else g++ of PATH.

    Clang's code for these kernels is up to 2.8 times as fast as that of g++, and zig links for an
    old glibc and for another processor.

    Raises:
        ToolchainError: neither is there.
    """
    if importlib.util.find_spec("ziglang") is not None:
        target = f"{machine or platform.machine()}-linux-gnu.{GLIBC}"
        return (sys.executable, "-m", "ziglang", "c++", "-target", target)
    if shutil.which("g++") is not None:
        return ("g++",)
    raise ToolchainError(
        "simulator: no C++ compiler is installed, must be the package ziglang or g++\n"
        "hint: pip install ziglang"
    )


def kernel_commands(
    *, compiler: Sequence[str], include: Path, source: str, output: str, machine: str
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the compile and the link command of a rewritten source in the work directory."""
    compiled = f"{source}.o"
    compile_command = (
        *compiler,
        *KERNEL_FLAGS,
        *MACHINE_FLAGS.get(machine, ()),
        # The simulator's directory comes first: it has its own philox.
        *("-I", str(INCLUDE), "-I", str(include)),
        *(f"-ffile-prefix-map={INCLUDE}=simulator", f"-ffile-prefix-map={include}=tilelang"),
        *("-c", source, "-o", compiled),
    )
    return compile_command, (*_linker(compiler), compiled, *LINK_FLAGS, "-o", output)


def _linker(compiler: Sequence[str]) -> tuple[str, ...]:
    """Return the command that links: of zig the one for C."""
    return tuple("cc" if word == "c++" else word for word in compiler)


def compile_kernel(
    source: str,
    *,
    out: Path,
    compiler: Sequence[str],
    include: Path | None = None,
    machine: str | None = None,
    environment: Mapping[str, str] | None = None,
    timeout_s: float = TIMEOUT_S,
) -> RewrittenSource:
    """Compile one generated AscendC source to the host shared object ``out``.

    Args:
        source: what TileLang's lowering returns.
        out: written; its directory must exist.
        compiler: a C++ compiler command, such as ``default_compiler()``.
        include: TileLang's ``src`` directory; by default that of the installed package.
        machine: the processor to compile for; by default this one.
        environment: added to the compiler's environment.
        timeout_s: how long the compiler may take, and the linker.

    Raises:
        ValueError: the source is not understood.
        CompilationError: the compiler refuses it.
    """
    rewritten = rewrite_source(source)
    # Beside the output: what a killed build leaves is in its work directory and goes with it.
    with tempfile.TemporaryDirectory(prefix=".tilewheel-sim-", dir=out.parent) as directory:
        work = Path(directory)
        (work / "kernel.cc").write_text(rewritten.text, encoding="utf-8")
        for command in kernel_commands(
            compiler=compiler,
            include=include or tilelang_source(),
            source="kernel.cc",
            output="kernel.so",
            machine=machine or platform.machine(),
        ):
            run_tool(command, cwd=work, environment=environment, timeout_s=timeout_s)
        shutil.move(work / "kernel.so", out)
    return rewritten


def compile_runtime(
    out: Path,
    *,
    compiler: Sequence[str],
    flags: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> None:
    """Compile the runtime library (ACL's ABI, scheduler and checks) to ``out``, under its name."""
    with tempfile.TemporaryDirectory(prefix=".tilewheel-sim-", dir=out.parent) as directory:
        work = Path(directory)
        objects = []
        for source in sorted(RUNTIME.glob("*.cc")):
            objects.append(f"{source.stem}.o")
            run_tool(
                [
                    *(*compiler, *RUNTIME_FLAGS, *flags),
                    *("-I", str(INCLUDE), "-I", str(ROOT)),
                    f"-ffile-prefix-map={ROOT}=simulator",
                    *("-c", str(source), "-o", objects[-1]),
                ],
                cwd=work,
                environment=environment,
            )
        run_tool(
            [*_linker(compiler), *objects, *LINK_FLAGS, f"-Wl,-soname,{out.name}", "-o", out.name],
            cwd=work,
            environment=environment,
        )
        shutil.move(work / out.name, out)
