"""Checks of finished wheels and sdists, read from the files: python wheels/check_wheel.py dist

Prints a table of sizes and every problem found; ends with 7 where there is one.
"""

from __future__ import annotations

import argparse
import base64
import csv
import hashlib
import io
import re
import stat
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from email.message import Message
from email.parser import BytesParser
from pathlib import Path, PurePosixPath

from packaging.requirements import Requirement

from check_installs import install_problems
from distributions import GLIBC_TAG, ROOT, RUNTIME, Distribution, FileName, parse_file_name
from tilewheel.errors import ManifestError
from tilewheel.manifest import FILE_NAME, RUNTIME_ABI, read
from tilewheel.version import VERSION
from tilewheel_build.elf import read_shared_object
from tilewheel_build.errors import ArtifactError
from tilewheel_build.host_compiler import MACHINES
from tilewheel_build.verify import verify_directory

LARGEST = 10
"""How many artifacts the table of a wheel names."""

TAGS = {
    True: frozenset({"py3-none-any"}),
    False: frozenset(f"py3-none-{GLIBC_TAG}_{machine}" for machine in MACHINES),
}
"""The tags that the runtime's wheel may have, and those of data wheels."""

COMPILERS = re.compile(
    r"(^|/)(tilelang|tvm|tvm_ffi|tilewheel_build|tilewheel_kernels|ziglang|jinja2|yaml|nvidia"
    r"|nvcc|ptxas|bisheng|ld\.lld|libcuda[a-z]*\.so[.0-9]*|libnv\w*\.so[.0-9]*|libtvm\w*\.so)(/|$)"
)
"""What a machine that only runs artifacts has no use for, or gets from its driver."""

CUDA_SYMBOL = re.compile(r"_*(cu[A-Z]|cuda|nvrtc|nv[A-Z]|cublas)")

BUILD_PATH = re.compile(rb"(?<![\w.)*/])/(?:home|root|tmp|work|github|__w|builds?)/[\w./-]+")
"""Directories that only a build machine has."""

SDIST_NEEDS = (
    *("CMakeLists.txt", "LICENSE", "PKG-INFO", "README.md", "pyproject.toml", "version.py"),
    "runtime/tilewheel/__init__.py",
)
SDIST_OF_DATA_NEEDS = (
    "build/tilewheel_build/__main__.py",
    "build/tilewheel_build/templates/launcher.c.j2",
    "build/tilewheel_build/simulator/runtime/acl.cc",
    "verified.json",
)
"""Beside these, every spec and kernel."""

SDIST_REFUSES = re.compile(
    r"(^|/)(\.git|\.venv|out|dist|tests|__pycache__|[^/]*\.(pyc|so|cubin))(/|$)"
)


def main(arguments: Sequence[str]) -> int:
    """Check every wheel and sdist that is named, or that lies in a folder that is named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("paths", nargs="+", type=Path, help="wheels, sdists, or their folder")
    options = parser.parse_args(arguments)
    files = [file for path in options.paths for file in _files(path)]
    if not files:
        print("no wheel and no sdist: run `make wheel`", file=sys.stderr)
        return 3
    problems = [f"{path.name}: {problem}" for path in files for problem in check(path)]
    for path in files:
        if path.suffix == ".whl":
            with suppress(Exception):  # it is damaged or foreign, which is a problem already
                print(size_table(path))
    for folder in sorted({path.parent for path in files}):
        problems += install_problems([path for path in files if path.parent == folder])
    for problem in problems:
        print(problem, file=sys.stderr)
    print(f"{len(files)} files, {len(problems)} problems")
    return 7 if problems else 0


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    return sorted([*path.glob("*.whl"), *path.glob("*.tar.gz")])


def check(path: Path) -> list[str]:
    """Return every problem of one file."""
    try:
        name = parse_file_name(path.name)
    except ValueError as error:
        return [str(error)]
    if name.version != VERSION:
        return [f"version: is {name.version}, must be {VERSION}, which version.py says"]
    problems = []
    with tempfile.TemporaryDirectory() as directory:
        found = (
            _wheel_problems(path, name, Path(directory))
            if path.suffix == ".whl"
            else _sdist_problems(path, name)
        )
        try:
            for problem in found:
                problems.append(problem)
        except Exception as error:  # a damaged file makes a reader of its format raise anything
            problems.append(f"cannot be read: {type(error).__name__}: {error}")
    return problems


def size_table(path: Path) -> str:
    """Return the wheel's size, its budget and its largest artifacts as text."""
    budget_bytes = parse_file_name(path.name).distribution.budget_bytes
    with zipfile.ZipFile(path) as archive:
        members = [item for item in archive.infolist() if item.filename.endswith(".so")]
    lines = [
        f"{path.name}: {path.stat().st_size / 1e6:.2f} MB of {budget_bytes / 1e6:.0f} MB, "
        f"{len(members)} shared objects, {sum(m.file_size for m in members) / 1e6:.2f} MB unpacked"
    ]
    for item in sorted(members, key=lambda m: (-m.compress_size, m.filename))[:LARGEST]:
        sizes = f"{item.compress_size / 1e3:8.1f} kB {item.file_size / 1e3:8.1f} kB unpacked"
        lines.append(f"  {sizes}  {PurePosixPath(item.filename).stem}")
    return "\n".join(lines)


def _wheel_problems(path: Path, name: FileName, directory: Path) -> Iterator[str]:
    distribution = name.distribution
    size_bytes = path.stat().st_size
    if size_bytes > distribution.budget_bytes:
        yield f"is {size_bytes} bytes, must be at most {distribution.budget_bytes}"
    with zipfile.ZipFile(path) as archive:
        unsafe = list(_member_problems(archive.infolist()))
        yield from unsafe
        if unsafe:
            return
        archive.extractall(directory)
    info = directory / f"{distribution.name.replace('-', '_')}-{name.version}.dist-info"
    members = {p.relative_to(directory).as_posix() for p in directory.rglob("*") if p.is_file()}
    yield from _record_problems(directory, info, members)
    yield from _wheel_file_problems(info, name)
    yield from metadata_problems(_message(info / "METADATA"), distribution, name.version)
    for member in sorted(members):
        if not member.startswith((f"{distribution.package}/", f"{info.name}/")):
            yield f"{member}: must lie in {distribution.package} or {info.name}"
        if COMPILERS.search(member):
            yield f"{member}: is part of a compiler or driver, must not be in a wheel"
        for found in sorted(set(BUILD_PATH.findall((directory / member).read_bytes()))):
            yield f"{member}: holds the path {found.decode()}, must hold none of a build machine"
    if distribution == RUNTIME:
        yield from _runtime_problems(members)
    else:
        yield from _data_problems(path, name, directory / distribution.package, info)


def _member_problems(members: Sequence[zipfile.ZipInfo]) -> Iterator[str]:
    """Refuse what would leave the folder that a wheel is unpacked to, before it is."""
    names = [item.filename for item in members]
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield f"{name}: is in the archive twice"
    for item in members:
        parts = PurePosixPath(item.filename).parts
        if item.filename.startswith("/") or ".." in parts or "\\" in item.filename:
            yield f"{item.filename}: leaves the folder that the wheel is unpacked to"
        if stat.S_ISLNK(item.external_attr >> 16):
            yield f"{item.filename}: is a symbolic link, must be a file"


def _record_problems(directory: Path, info: Path, members: set[str]) -> Iterator[str]:
    listed = {}
    for number, row in enumerate(csv.reader(io.StringIO((info / "RECORD").read_text())), 1):
        if len(row) == 3:
            listed[row[0]] = row[1]
        else:
            yield f"RECORD: line {number}: has {len(row)} fields, must have path, hash and size"
    for name in sorted(members ^ set(listed)):
        yield f"{name}: is {'not in' if name in members else 'only in'} RECORD"
    for name in sorted(members & set(listed)):
        digest = hashlib.sha256((directory / name).read_bytes()).digest()
        expected = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
        if listed[name] != f"sha256={expected}" and name != f"{info.name}/RECORD":
            yield f"{name}: differs from its hash in RECORD"


def _message(path: Path) -> Message:
    return BytesParser().parsebytes(path.read_bytes())


def _wheel_file_problems(info: Path, name: FileName) -> Iterator[str]:
    message = _message(info / "WHEEL")
    is_runtime = name.distribution == RUNTIME
    if name.tag not in TAGS[is_runtime]:
        yield f"tag: is {name.tag}, must be one of {', '.join(sorted(TAGS[is_runtime]))}"
    if message.get_all("Tag") != [name.tag]:
        yield f"WHEEL: Tag is {message.get_all('Tag')}, must be {name.tag} as in the file name"
    pure = str(is_runtime).lower()
    if message["Root-Is-Purelib"] != pure:
        yield f"WHEEL: Root-Is-Purelib is {message['Root-Is-Purelib']}, must be {pure}"


def metadata_problems(message: Message, distribution: Distribution, version: str) -> Iterator[str]:
    """Yield what is wrong with METADATA or PKG-INFO: name, version, licence and dependencies."""
    expected = {
        "Name": distribution.name,
        "Version": version,
        "License-Expression": "Apache-2.0",
        "License-File": "LICENSE",
        "Requires-Python": ">=3.10",
    }
    for field, value in expected.items():
        if message[field] != value:
            yield f"METADATA: {field} is {message[field]}, must be {value}"
    found = {str(Requirement(text)) for text in message.get_all("Requires-Dist") or []}
    if found != set(requirements(distribution)):
        wanted = ", ".join(sorted(requirements(distribution)))
        yield f"METADATA: requires {', '.join(sorted(found)) or 'nothing'}, must require {wanted}"


def requirements(distribution: Distribution) -> tuple[str, ...]:
    """Return what a distribution requires: any torch, or a runtime of the same ABI."""
    abi = f"==0.{RUNTIME_ABI}.*"
    if distribution != RUNTIME:
        return (f"tilewheel{abi}",)
    extras = ("cu13", "ascend", "ascend-sim")
    return (
        "torch",
        "apache-tvm-ffi<0.2,>=0.1",
        *(f'tilewheel-{extra}{abi}; extra == "{extra}"' for extra in extras),
    )


def _runtime_problems(members: set[str]) -> Iterator[str]:
    for member in sorted(members):
        if PurePosixPath(member).suffix in (".so", ".c", ".cu", ".asc"):
            yield f"{member}: must not be in the runtime's wheel, which runs on any platform"
    tracked = {
        f"tilewheel/{p.relative_to(ROOT / 'runtime' / 'tilewheel').as_posix()}"
        for p in (ROOT / "runtime" / "tilewheel").rglob("*")
        if p.is_file() and "__pycache__" not in p.parts
    }
    for name in sorted(tracked - members):
        yield f"{name}: is missing, must be packed as it is in the source tree"


def _data_problems(path: Path, name: FileName, package: Path, info: Path) -> Iterator[str]:
    distribution = name.distribution
    entry_points = (info / "entry_points.txt").read_text() if info.is_dir() else ""
    point = f"{distribution.name.removeprefix('tilewheel-')} = {distribution.package}"
    if entry_points.split("\n")[:2] != ["[tilewheel.artifacts]", point]:
        yield f"entry_points.txt: must announce {point} in the group tilewheel.artifacts"
    try:
        manifest = read(package / FILE_NAME)
    except ManifestError as error:
        yield str(error).replace(f"{package}/", "")
        return
    if manifest.backend != distribution.target:
        yield f"{FILE_NAME}: backend is {manifest.backend}, must be {distribution.target}"
    if manifest.tilewheel_version != name.version:
        yield (
            f"{FILE_NAME}: tilewheel_version is {manifest.tilewheel_version}, "
            f"must be {name.version}"
        )
    if manifest.runtime_abi != RUNTIME_ABI:
        yield f"{FILE_NAME}: runtime_abi is {manifest.runtime_abi}, must be {RUNTIME_ABI}"
    machines = {dict(artifact.toolchain).get("machine") for artifact in manifest.artifacts}
    if machines != {name.machine}:
        found = ", ".join(sorted(map(str, machines))) or "none"
        yield f"{FILE_NAME}: artifacts are for {found}, must be for {name.machine} as in the tag"
    if manifest.backend == "ascend-sim" and not manifest.libraries:
        yield f"{FILE_NAME}: lists no library, must list the simulator's, which artifacts open"
    allowed = {"__init__.py", FILE_NAME}
    allowed |= {artifact.path for artifact in manifest.artifacts}
    allowed |= {library.path for library in manifest.libraries}
    for file in sorted(package.rglob("*")):
        relative = file.relative_to(package).as_posix()
        if file.is_file() and relative not in allowed:
            yield f"{relative}: is not in the manifest, must be listed or absent"
    for problem in verify_directory(package):
        yield problem.replace(f"{package}/", "")
    for file in sorted(package.rglob("*.so")):
        with suppress(ArtifactError):  # reported already
            for symbol in read_shared_object(file).exported:
                if CUDA_SYMBOL.match(symbol):
                    yield f"{file.name}: exports {symbol}, must export no symbol of CUDA"
    yield from _auditwheel_problems(path, name)


def _auditwheel_problems(path: Path, name: FileName) -> Iterator[str]:
    """Compare the tag with the symbol versions that the files really need."""
    from auditwheel.architecture import Architecture
    from auditwheel.error import AuditwheelError
    from auditwheel.libc import Libc
    from auditwheel.wheel_abi import analyze_wheel_abi

    try:
        found = analyze_wheel_abi(
            Libc.GLIBC,
            Architecture(name.machine),
            path,
            # It comes with its own distribution, which the runtime requires.
            frozenset({"libtvm_ffi.so"}),
            disable_isa_ext_check=False,
            allow_graft=False,
        )
    except (AuditwheelError, OSError, ValueError) as error:
        yield f"auditwheel: {error}"
        return
    claimed = found.policies.get_policy_by_name(f"{GLIBC_TAG}_{name.machine}")
    if found.overall_policy < claimed:
        needs = sorted(name for names in found.versioned_symbols.values() for name in names)
        yield (
            f"auditwheel: is fit for {found.overall_policy.name}, must be for {claimed.name}; "
            f"needs {', '.join(needs)}"
        )


def _sdist_problems(path: Path, name: FileName) -> Iterator[str]:
    distribution = name.distribution
    root = f"{distribution.name.replace('-', '_')}-{name.version}"
    with tarfile.open(path) as archive:
        members = archive.getmembers()
        has_info = f"{root}/PKG-INFO" in archive.getnames()
        info = archive.extractfile(f"{root}/PKG-INFO") if has_info else None
        message = BytesParser().parsebytes(info.read() if info is not None else b"")
    names = set()
    for member in members:
        relative = member.name.removeprefix(f"{root}/")
        names.add(relative)
        if not member.name.startswith(f"{root}/") or ".." in PurePosixPath(member.name).parts:
            yield f"{member.name}: must lie in {root}"
        if not member.isfile():
            yield f"{relative}: is no regular file, must be one"
        if SDIST_REFUSES.search(relative):
            yield f"{relative}: must not be in an sdist"
    yield from metadata_problems(message, distribution, name.version)
    needs = set(SDIST_NEEDS)
    if distribution != RUNTIME:
        sources = [*ROOT.glob("specs/*/*.yaml"), *ROOT.glob("kernels/**/*.py")]
        needs |= {*SDIST_OF_DATA_NEEDS, *(s.relative_to(ROOT).as_posix() for s in sources)}
    for missing in sorted(needs - names):
        yield f"{missing}: is missing, must be in the sdist so that a wheel can be built from it"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
