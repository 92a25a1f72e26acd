"""Checks of built artifacts, read from the files: the contract of an artifact, as code."""

from __future__ import annotations

import hashlib
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tilewheel.errors import ManifestError
from tilewheel.manifest import FILE_NAME, Artifact, Manifest, read
from tilewheel_build.cuda import CUOBJDUMP_RESERVE_BYTES, SHARED_LIMIT_BYTES, cuobjdump
from tilewheel_build.elf import read_shared_object
from tilewheel_build.errors import ArtifactError, CompilationError, ToolchainError
from tilewheel_build.host_compiler import GLIBC
from tilewheel_build.process import run_tool

ALLOWED_NEEDED = frozenset({"libc.so.6", "libdl.so.2", "libtvm_ffi.so"})
"""glibc before 2.34 keeps dlopen in libdl; newer ones ship an empty libdl."""

ALLOWED_PATHS = frozenset({b"/usr/local/Ascend/ascend-toolkit/latest"})
"""Where CANN installs itself: a launcher looks there last."""

_ABSOLUTE_PATH = re.compile(rb"/(?:home|root|tmp|usr|opt|mnt|srv|var|work|build|github)/[\w./-]*")
_ELF_MACHINES = {"EM_X86_64": "x86_64", "EM_AARCH64": "aarch64"}


def verify_directory(directory: Path) -> list[str]:
    """Return every problem of one backend's artifact directory; an empty list means sound."""
    try:
        manifest = read(directory / FILE_NAME)
    except ManifestError as error:
        return [str(error)]
    problems = []
    for artifact in manifest.artifacts:
        problems += [f"{artifact.key}: {problem}" for problem in _problems(directory, artifact)]
    return problems + _strangers(directory, manifest)


def _strangers(directory: Path, manifest: Manifest) -> list[str]:
    listed = {artifact.path for artifact in manifest.artifacts}
    listed |= {library.path for library in manifest.libraries}
    found = {path.relative_to(directory).as_posix() for path in directory.rglob("*.so")}
    return [
        f"{path}: is not in the manifest, must be listed or absent"
        for path in sorted(found - listed)
    ]


def _problems(directory: Path, artifact: Artifact) -> Iterator[str]:
    path = directory / artifact.path
    if not path.is_file():
        yield f"{artifact.path}: is missing, must be there as the manifest lists it"
        return
    try:
        data = path.read_bytes()
        shared = read_shared_object(path)
    except (OSError, ArtifactError) as error:
        yield str(error)
        return
    if hashlib.sha256(data).hexdigest() != artifact.sha256:
        yield f"{artifact.path}: sha256 differs from the manifest's"
        return
    if len(data) != artifact.size_bytes:
        yield f"{artifact.path}: is {len(data)} bytes, must be {artifact.size_bytes}"
    for name in sorted(set(shared.needed) - ALLOWED_NEEDED):
        yield f"needs {name}, must need only {', '.join(sorted(ALLOWED_NEEDED))}"
    expected = {artifact.entry, "__tvm_ffi_prepare"}
    if set(shared.exported) != expected:
        yield f"exports {', '.join(shared.exported)}, must export {', '.join(sorted(expected))}"
    oldest = tuple(int(part) for part in GLIBC.split("."))
    if shared.glibc > oldest:
        yield f"needs glibc {'.'.join(map(str, shared.glibc))}, must run on {GLIBC}"
    machine = dict(artifact.toolchain).get("machine", "")
    if _ELF_MACHINES.get(shared.machine) != machine:
        yield f"is for {shared.machine}, must be for {machine}"
    if artifact.resources.dropped_buffer_versions:
        yield (
            f"TileLang dropped {artifact.resources.dropped_buffer_versions} requested buffer "
            "versions, must keep all"
        )
    for found in sorted(set(_ABSOLUTE_PATH.findall(data)) - ALLOWED_PATHS):
        yield f"holds the path {found.decode(errors='replace')}, must hold none"
    if not shared.image:
        yield "holds no device image"
    elif artifact.key.target.backend == "cuda":
        yield from _cubin_problems(shared.image, artifact)


def _cubin_problems(image: bytes, artifact: Artifact) -> Iterator[str]:
    arch = artifact.key.target.arch
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "image.cubin").write_bytes(image)
        try:
            header = run_tool([str(cuobjdump()), "-elf", "image.cubin"], cwd=Path(folder))
            usage = run_tool([str(cuobjdump()), "-res-usage", "image.cubin"], cwd=Path(folder))
        except (CompilationError, ToolchainError) as error:
            yield str(error)
            return
    built_for = re.search(r"\bsm=(\w+)", header)
    if built_for is None or f"sm_{built_for.group(1)}" != arch:
        yield f"device code is for {built_for and built_for.group(1)}, must be for {arch}"
    numbers = {name: int(value) for name, value in re.findall(r"(\w+):(\d+)", usage)}
    if numbers.get("REG") != artifact.resources.registers:
        yield f"uses {numbers.get('REG')} registers, manifest says {artifact.resources.registers}"
    static_bytes = numbers.get("SHARED", 0) - CUOBJDUMP_RESERVE_BYTES.get(arch, 0)
    shared_bytes = static_bytes + artifact.launch.dynamic_shared_bytes
    if shared_bytes > SHARED_LIMIT_BYTES[arch]:
        yield f"needs {shared_bytes} bytes of shared memory, {arch} has {SHARED_LIMIT_BYTES[arch]}"
    if artifact.launch.kernel not in header:
        yield f"device code has no kernel {artifact.launch.kernel}"
