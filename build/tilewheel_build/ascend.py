"""The Ascend backend: TileLang's AscendC to one aibin, with CANN's bisheng and its ld.lld.

CANN comes from no package registry, so the tools are looked for where CANN's own environment script
puts them. The commands are the ones TileLang itself runs.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from tilewheel.manifest import Resources
from tilewheel_build.errors import CompilationError, ToolchainError
from tilewheel_build.lower import Lowered
from tilewheel_build.process import TIMEOUT_S, run_tool
from tilewheel_build.toolchain import tilelang_source

PACKAGES = ("tilelang",)

MINIMUM_DRIVER = "CANN 9.1"
"""TileLang's device headers are written for this release's bisheng."""

BISHENG_FLAGS = ("-O2", "-fPIC", "-std=c++20", "-mllvm", "-cce-aicore-dcpreload-args=false")
LINK_FLAGS = ("-m", "aicorelinux", "-Ttext", "0", "--no-mmap-output-file")

UB_LIMIT_BYTES = 248 * 1024
UB_LIMIT_SIMT_BYTES = 216 * 1024
"""A kernel with SIMT code keeps 32 KB of UB for thread contexts."""

ACL_LIBRARY = "libascendcl.so"
ACL_TITLE = (
    f"AscendCL library, must be that of {MINIMUM_DRIVER} or newer, on the loader's path or below "
    "$ASCEND_HOME_PATH"
)

_DROPPED = "did not enable multi-buffering"


def tvm_target(arch: str) -> dict[str, str]:
    """Return the TVM target of an architecture."""
    return {"kind": "ascend", "arch": arch.replace("_", "-")}


def find_bisheng(environment: Mapping[str, str]) -> Path:
    """Return the AscendC compiler: ``$BISHENG_HOME/bin``, then PATH.

    Raises:
        ToolchainError: it is in none of them; the message names each place and the CANN needed.
    """
    places = []
    if environment.get("BISHENG_HOME"):
        places.append(Path(environment["BISHENG_HOME"]) / "bin" / "bisheng")
    return _find("bisheng", places, environment)


def find_linker(environment: Mapping[str, str]) -> Path:
    """Return the CCE-capable ld.lld: CANN's directories, beside bisheng, then PATH.

    A system's own ld.lld lacks the emulation ``aicorelinux``, so PATH comes last.
    """
    places = []
    for name in ("BISHENG_HOME", "ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME"):
        if environment.get(name):
            root = Path(environment[name])
            places += [root / "bin" / "ld.lld", root / "ld.lld"]
    # Without bisheng the search goes on: whoever needs it asks for it and reports it.
    with suppress(ToolchainError):
        places.append(find_bisheng(environment).with_name("ld.lld"))
    return _find("ld.lld", places, environment)


def _find(name: str, places: list[Path], environment: Mapping[str, str]) -> Path:
    for place in places:
        if place.is_file() and os.access(place, os.X_OK):
            return place
    found = shutil.which(name, path=environment.get("PATH", ""))
    if found is not None:
        return Path(found)
    looked = ", ".join([*(str(place) for place in places), "PATH"])
    raise ToolchainError(
        f"{name}: is not installed (looked in {looked}), must be the one of {MINIMUM_DRIVER} or "
        "newer\n"
        "hint: source CANN's set_env.sh or set BISHENG_HOME and ASCEND_HOME_PATH; or build with "
        "--source-only and finish on a machine with CANN (python -m tilewheel_build finish DIR)"
    )


def compile_commands(
    *, bisheng: Path, linker: Path, arch: str, include: Path, source: str, output: str
) -> tuple[list[str], list[str]]:
    """Return the two command lines, with names relative to the work directory."""
    relocatable = source.removesuffix(".asc") + ".rel.o"
    compile_command = [
        str(bisheng),
        *BISHENG_FLAGS,
        f"--npu-arch={arch.replace('_', '-')}",
        f"-I{include}",
        "--cce-aicore-only",
        source,
        "-o",
        relocatable,
    ]
    return compile_command, [str(linker), *LINK_FLAGS, relocatable, "-o", output]


def tool_versions() -> tuple[tuple[str, str], ...]:
    """Return the compiler's name and version; both tools must be there.

    Raises:
        ToolchainError: bisheng or its linker is missing, or bisheng does not run.
    """
    bisheng = find_bisheng(os.environ)
    find_linker(os.environ)
    try:
        lines = run_tool([str(bisheng), "--version"], cwd=Path.cwd(), timeout_s=60).splitlines()
    except CompilationError as error:
        raise ToolchainError(f"bisheng: does not run, must tell its version\n{error}") from error
    return (("bisheng", lines[0].strip() if lines else "unknown"),)


def compile_device(
    *, work: Path, source: str, output: str, arch: str, timeout_s: float = TIMEOUT_S
) -> None:
    """Compile ``work/source`` to the aibin ``work/output``."""
    for command in compile_commands(
        bisheng=find_bisheng(os.environ),
        linker=find_linker(os.environ),
        arch=arch,
        include=tilelang_source(),
        source=source,
        output=output,
    ):
        run_tool(command, cwd=work, timeout_s=timeout_s)


def check_lowered(lowered: Lowered) -> Resources:
    """Return what the lowering tells of resources; refuse a kernel that does not fit the UB.

    TileLang drops a requested buffer version silently but for a warning, so the warnings count.
    """
    limit = UB_LIMIT_SIMT_BYTES if "asc_vf_call" in lowered.source else UB_LIMIT_BYTES
    if lowered.dynamic_shared_bytes > limit:
        raise CompilationError(
            f"unified buffer: is {lowered.dynamic_shared_bytes} bytes, must be at most {limit}"
        )
    dropped = sum(_DROPPED in warning for warning in lowered.warnings)
    return Resources(dropped_buffer_versions=dropped)


def argument_layout(lowered: Lowered) -> tuple[tuple[int, ...], int]:
    """Return the offset of each device parameter and the size of the whole, as ACL packs them."""
    sizes = {"handle": 8, "int64": 8, "uint64": 8, "float64": 8}
    small = {"int8": 1, "uint8": 1, "int16": 2, "uint16": 2}
    offsets = []
    end = 0
    for parameter in lowered.parameters:
        size = sizes.get(parameter.dtype) or small.get(parameter.dtype, 4)
        alignment = max(size, 4)
        end = (end + alignment - 1) // alignment * alignment
        offsets.append(end)
        end += size
    return tuple(offsets), max(8, (end + 7) // 8 * 8)
