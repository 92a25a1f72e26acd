"""Compiling the launcher for the oldest supported glibc, for this or another processor.

``zig cc`` carries the headers and symbol versions of every glibc, so the result depends neither on
the build machine's C library nor on its processor.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from tilewheel_build.process import run_tool

GLIBC = "2.28"
"""The oldest supported glibc: manylinux_2_28."""

MACHINES = ("x86_64", "aarch64")
"""Processors of the machines that artifacts are built for, from any of them."""

PACKAGES = ("ziglang", "apache-tvm-ffi")

FLAGS = (
    "-std=c11",
    "-O2",
    "-g0",
    "-s",
    "-fPIC",
    # zig turns UBSan on by default; its run-time would be linked in.
    "-fno-sanitize=undefined",
    "-fvisibility=hidden",
    "-Wall",
    "-Wextra",
    "-Werror",
)

STUB_SYMBOLS = ("TVMFFIEnvGetStream", "TVMFFIErrorSetRaisedFromCStr")
"""What launchers use of libtvm_ffi. Linking against a stub with its name records the dependency
without the C++ library that the real one brings."""


def compile_launcher(
    *,
    work: Path,
    source: str,
    output: str,
    machine: str,
    includes: Sequence[Path],
    image_sha256: str,
    zig_cache: Path,
) -> None:
    """Compile ``work/source`` and the image it embeds to the shared object ``work/output``.

    Zig caches by inputs but does not see what ``.incbin`` reads, so the image's hash is an input.
    """
    stub = "".join(f"void {symbol}(void) {{}}\n" for symbol in STUB_SYMBOLS)
    (work / "libtvm_ffi.c").write_text(stub)
    _zig(
        [
            *("-shared", "-s", "-fno-sanitize=undefined", "-Wl,-soname,libtvm_ffi.so"),
            *("libtvm_ffi.c", "-o", "libtvm_ffi.so"),
        ],
        work=work,
        machine=machine,
        zig_cache=zig_cache,
    )
    _zig(
        [
            *FLAGS,
            "-I.",
            f"-DTILEWHEEL_IMAGE_SHA256={image_sha256}",
            *(f"-I{path}" for path in includes),
            *("-shared", source, "-L.", "-ltvm_ffi", "-o", output),
        ],
        work=work,
        machine=machine,
        zig_cache=zig_cache,
    )


def _zig(arguments: Sequence[str], *, work: Path, machine: str, zig_cache: Path) -> None:
    target = f"{machine}-linux-gnu.{GLIBC}"
    run_tool(
        [sys.executable, "-m", "ziglang", "cc", "-target", target, *arguments],
        cwd=work,
        environment=zig_environment(zig_cache),
    )


def zig_environment(zig_cache: Path) -> dict[str, str]:
    """Return the variables that keep zig's cache out of the user's home.

    A first link builds the C library's stubs, which takes many seconds: ZIG_GLOBAL_CACHE_DIR in the
    environment shares them between output directories.
    """
    shared = os.environ.get("ZIG_GLOBAL_CACHE_DIR", str(zig_cache))
    return {"ZIG_GLOBAL_CACHE_DIR": shared, "ZIG_LOCAL_CACHE_DIR": str(zig_cache)}
