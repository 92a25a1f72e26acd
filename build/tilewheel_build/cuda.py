"""The CUDA backend: TileLang's CUDA C++ to one cubin for one architecture, with pip's nvcc."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from tilewheel.manifest import Resources
from tilewheel_build.errors import CompilationError, ToolchainError
from tilewheel_build.process import TIMEOUT_S, run_tool
from tilewheel_build.toolchain import (
    distribution_file,
    tilelang_cutlass,
    tilelang_source,
)

PACKAGES = (
    "tilelang",
    "nvidia-cuda-nvcc",
    "nvidia-cuda-crt",
    "nvidia-nvvm",
    "nvidia-cuda-runtime",
    "nvidia-cuda-cccl",
)
"""The CUDA packages are of one minor version: with a newer crt or nvvm, ptxas refuses the PTX."""

MINIMUM_DRIVER = "580"
"""Cubins of CUDA 13 need this driver."""

SHARED_LIMIT_BYTES = {
    "sm_80": 166912,
    "sm_89": 101376,
    "sm_90a": 232448,
    "sm_100a": 232448,
    "sm_103a": 232448,
    "sm_120a": 101376,
}
"""Shared memory that one block may have (CUDA C++ programming guide, compute capabilities)."""

CUOBJDUMP_RESERVE_BYTES = {"sm_90a": 1024, "sm_100a": 1024, "sm_103a": 1024, "sm_120a": 1024}
"""What cuobjdump adds to a kernel's shared memory for the system; the limit leaves it out."""

HOST_COMPILER = "g++"
"""What nvcc preprocesses with: the one tool that pip does not bring."""

_MODULE_ID = re.compile(rb"(_INTERNAL_|_GLOBAL__N__)[0-9a-f]{8}(?=_)")

NVCC_FLAGS = ("--cubin", "-O3", "-std=c++20", "-w", "-Xptxas", "-v")
"""``-w`` silences TileLang's headers, whose warnings are many; the kernels are generated."""


def tvm_target(arch: str) -> dict[str, str]:
    """Return the TVM target; it is always explicit, as "auto" needs a GPU."""
    return {"kind": "cuda", "arch": arch}


def nvcc() -> Path:
    """Return pip's nvcc, which needs no system CUDA."""
    return distribution_file("nvidia-cuda-nvcc", "/bin/nvcc")


def cuda_include() -> Path:
    """Return the directory of ``cuda.h``."""
    return distribution_file("nvidia-cuda-runtime", "/include/cuda.h").parent


def compile_command(*, arch: str, source: str, output: str) -> list[str]:
    """Return the nvcc command line for one kernel, with names relative to the work directory."""
    number = arch.removeprefix("sm_")
    return [
        str(nvcc()),
        "-ccbin",
        HOST_COMPILER,
        *NVCC_FLAGS,
        f"-gencode=arch=compute_{number},code={arch}",
        f"-I{tilelang_source()}",
        f"-I{tilelang_cutlass()}",
        source,
        "-o",
        output,
    ]


def without_module_id(cubin: bytes) -> bytes:
    """Return a cubin whose names of internal linkage do not depend on the directory.

    nvcc writes a hash of the source's absolute path into them, and no flag changes that. They are
    names only: nothing looks them up.
    """
    return _MODULE_ID.sub(rb"\g<1>00000000", cubin)


def compile_device(
    *,
    work: Path,
    source: str,
    output: str,
    arch: str,
    shared_bytes: int,
    timeout_s: float = TIMEOUT_S,
) -> Resources:
    """Compile ``work/source`` to the cubin ``work/output`` and return what ptxas reports.

    Raises:
        CompilationError: nvcc failed, or the kernel needs more shared memory than the arch has.
        ToolchainError: nvcc or the host compiler that it calls is missing.
    """
    if shutil.which(HOST_COMPILER) is None:
        raise ToolchainError(
            f"{HOST_COMPILER}: is not on PATH, must be installed for nvcc\n"
            "hint: install the system's C++ compiler"
        )
    command = compile_command(arch=arch, source=source, output=output)
    printed = run_tool(command, cwd=work, timeout_s=timeout_s)
    image = work / output
    if image.exists():
        image.write_bytes(without_module_id(image.read_bytes()))
    resources = parse_ptxas(printed)
    total = shared_bytes + (resources.static_shared_bytes or 0)
    if total > SHARED_LIMIT_BYTES[arch]:
        raise CompilationError(
            f"shared memory: is {total} bytes a block, must be at most "
            f"{SHARED_LIMIT_BYTES[arch]} on {arch}"
        )
    return resources


def parse_ptxas(printed: str) -> Resources:
    """Read registers, spills and static shared memory from the output of ``ptxas -v``."""
    registers = re.search(r"Used (\d+) registers", printed)
    if registers is None:
        raise ToolchainError(f"ptxas: printed no register count:\n{printed[-500:]}")
    spills = re.findall(r"(\d+) bytes spill (?:stores|loads)", printed)
    shared = re.search(r"(\d+) bytes smem", printed)
    return Resources(
        registers=int(registers.group(1)),
        spill_bytes=sum(int(count) for count in spills),
        static_shared_bytes=int(shared.group(1)) if shared else 0,
    )


def cuobjdump() -> Path:
    """Return the tool that reads cubins: it is newer than nvcc and reads those of older ones."""
    return distribution_file("nvidia-cuda-cuobjdump", "/bin/cuobjdump")
