"""Checks of built artifacts, read from the files: the contract of an artifact, as code."""

from __future__ import annotations

import hashlib
import re
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path

from tilewheel.errors import ManifestError
from tilewheel.manifest import FILE_NAME, Artifact, Library, Manifest, read
from tilewheel_build.cuda import CUOBJDUMP_RESERVE_BYTES, SHARED_LIMIT_BYTES, cuobjdump
from tilewheel_build.elf import SharedObject, parse_shared_object, read_shared_object
from tilewheel_build.errors import ArtifactError, CompilationError, ToolchainError
from tilewheel_build.host_compiler import GLIBC
from tilewheel_build.process import run_tool

ALLOWED_NEEDED = frozenset({"libc.so.6", "libdl.so.2", "libtvm_ffi.so"})
"""glibc before 2.34 keeps dlopen in libdl; newer ones ship an empty libdl."""

ALLOWED_NEEDED_BY_LIBRARIES = frozenset(
    {
        *("libc.so.6", "libdl.so.2", "libm.so.6", "libpthread.so.0"),
        *("ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"),
    }
)
"""All of glibc; its dynamic linker has thread-local storage."""

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
        found = _artifact_problems(directory, artifact)
        problems += [f"{artifact.key}: {problem}" for problem in found]
    machines = {_machine(artifact) for artifact in manifest.artifacts}
    for library in manifest.libraries:
        found = _library_problems(directory, library, machines)
        problems += [f"{library.path}: {problem}" for problem in found]
    return problems + _strangers(directory, manifest)


def _strangers(directory: Path, manifest: Manifest) -> list[str]:
    listed = {artifact.path for artifact in manifest.artifacts}
    listed |= {library.path for library in manifest.libraries}
    found = {path.relative_to(directory).as_posix() for path in directory.rglob("*.so")}
    return [
        f"{path}: is not in the manifest, must be listed or absent"
        for path in sorted(found - listed)
    ]


def _artifact_problems(directory: Path, artifact: Artifact) -> Iterator[str]:
    shared = yield from _listed(directory, artifact)
    if shared is None:
        return
    yield from _object_problems(shared, ALLOWED_NEEDED, {_machine(artifact)})
    expected = {artifact.entry, "__tvm_ffi_prepare"}
    if set(shared.exported) != expected:
        yield f"exports {', '.join(shared.exported)}, must export {', '.join(sorted(expected))}"
    if artifact.resources.dropped_buffer_versions:
        yield (
            f"TileLang dropped {artifact.resources.dropped_buffer_versions} requested buffer "
            "versions, must keep all"
        )
    yield from _path_problems(directory / artifact.path)
    if not shared.image:
        yield "holds no device image"
    elif artifact.key.target.backend == "cuda":
        yield from _cubin_problems(shared.image, artifact)
    elif artifact.key.target.backend == "ascend-sim":
        # The simulator's device code is a shared object of this processor too.
        try:
            image = parse_shared_object(shared.image)
        except ArtifactError as error:
            yield f"device image: {error}"
            return
        found = _object_problems(image, ALLOWED_NEEDED_BY_LIBRARIES, {_machine(artifact)})
        yield from (f"device image: {problem}" for problem in found)


def _library_problems(directory: Path, library: Library, machines: set[str]) -> Iterator[str]:
    shared = yield from _listed(directory, library)
    if shared is not None:
        yield from _object_problems(shared, ALLOWED_NEEDED_BY_LIBRARIES, machines)
        yield from _path_problems(directory / library.path)


def _machine(artifact: Artifact) -> str:
    return dict(artifact.toolchain).get("machine", "")


def _listed(
    directory: Path, listed: Artifact | Library
) -> Generator[str, None, SharedObject | None]:
    """Yield how a file differs from its manifest's entry; return it where it is the one listed."""
    path = directory / listed.path
    if not path.is_file():
        yield f"{listed.path}: is missing, must be there as the manifest lists it"
        return None
    try:
        data = path.read_bytes()
        shared = read_shared_object(path)
    except (OSError, ArtifactError) as error:
        yield str(error)
        return None
    if hashlib.sha256(data).hexdigest() != listed.sha256:
        yield f"{listed.path}: sha256 differs from the manifest's"
        return None
    if len(data) != listed.size_bytes:
        yield f"{listed.path}: is {len(data)} bytes, must be {listed.size_bytes}"
    return shared


def _object_problems(
    shared: SharedObject, allowed: frozenset[str], machines: set[str]
) -> Iterator[str]:
    for name in sorted(set(shared.needed) - allowed):
        yield f"needs {name}, must need only {', '.join(sorted(allowed))}"
    oldest = tuple(int(part) for part in GLIBC.split("."))
    if shared.glibc > oldest:
        yield f"needs glibc {'.'.join(map(str, shared.glibc))}, must run on {GLIBC}"
    if {_ELF_MACHINES.get(shared.machine)} != machines:
        yield f"is for {shared.machine}, must be for {', '.join(sorted(machines))}"


def _path_problems(path: Path) -> Iterator[str]:
    for found in sorted(set(_ABSOLUTE_PATH.findall(path.read_bytes())) - ALLOWED_PATHS):
        yield f"holds the path {found.decode(errors='replace')}, must hold none"


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
