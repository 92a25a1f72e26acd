"""Each problem with a wheel or sdist as such that check_wheel.py can report.

Made by tampering with a sound one; test_check_artifacts.py does so with what a wheel holds.
"""

from __future__ import annotations

import io
import re
import subprocess
import sys
import tarfile
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tampering import FILE, INFO, KEY, Members, check, read, write

from tilewheel.version import VERSION

ROOT = Path(__file__).parents[2]


def test_finished_wheels_and_sdists_have_no_problem(dist: Path, other_dist: Path) -> None:
    command = [sys.executable, str(ROOT / "wheels" / "check_wheel.py"), str(dist), str(other_dist)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("\n8 files, 0 problems\n")
    assert re.search(rf"^ +\d+\.\d kB +\d+\.\d kB unpacked  {KEY}$", done.stdout, re.MULTILINE)
    assert re.search(r"^tilewheel_cu13-\S+: \d\.\d\d MB of 100 MB, ", done.stdout, re.MULTILINE)


def test_unknown_files_and_versions_are_reported(tmp_path: Path) -> None:
    known = "tilewheel, tilewheel-cu13, tilewheel-ascend, tilewheel-ascend-sim"
    assert check(tmp_path / "torch-2.0-py3-none-any.whl") == [
        f"torch-2.0-py3-none-any.whl: is no wheel or sdist of this project, must be of {known}"
    ]
    assert check(tmp_path / "tilewheel-9.9-py3-none-any.whl") == [
        f"version: is 9.9, must be {VERSION}, which version.py says"
    ]


def damaged_deflate() -> bytes:
    """Return a wheel whose one file cannot be decompressed."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a", b"text " * 100)
    content = bytearray(file.getvalue())
    content[31:36] = b"\xff" * 5  # the compressed data begins behind 30 bytes and the name
    return bytes(content)


def truncated_sdist() -> bytes:
    """Return a source distribution that ends too early."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as archive:
        member = tarfile.TarInfo("a")
        member.size = 5000
        archive.addfile(member, io.BytesIO(bytes(range(250)) * 20))
    return file.getvalue()[:-100]


def wheel_without_hash() -> bytes:
    """Return a wheel whose RECORD has a line with a name only, and an empty one."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(f"tilewheel_ascend_sim-{VERSION}.dist-info/RECORD", "a.py\n\n")
    return file.getvalue()


def test_damaged_and_foreign_files_are_reported_and_hide_no_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import check_wheel

    tag = "py3-none-manylinux_2_28_x86_64"
    files = {
        f"tilewheel-{VERSION}-py3-none-any.whl": b"PK",
        f"tilewheel_cu13-{VERSION}-{tag}.whl": damaged_deflate(),
        f"tilewheel_ascend_sim-{VERSION}-{tag}.whl": wheel_without_hash(),
        f"tilewheel_cu13-{VERSION}.tar.gz": truncated_sdist(),
        "torch-2.0-py3-none-any.whl": b"",
    }
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    assert check_wheel.main([str(tmp_path)]) == 7
    printed = capsys.readouterr()
    starts = {
        f"tilewheel-{VERSION}-py3-none-any.whl": "cannot be read: BadZipFile: File is not a zip",
        f"tilewheel_cu13-{VERSION}-{tag}.whl": "cannot be read: error: Error -3 while decompress",
        f"tilewheel_ascend_sim-{VERSION}-{tag}.whl": "RECORD: line 1: has 1 fields, must have path",
        f"tilewheel_cu13-{VERSION}.tar.gz": "cannot be read: EOFError: Compressed file ended",
        "torch-2.0-py3-none-any.whl": "torch-2.0-py3-none-any.whl: is no wheel or sdist of this",
    }
    for name, start in starts.items():
        assert f"\n{name}: {start}" in f"\n{printed.err}"
    assert f"-{VERSION}-{tag}.whl: RECORD: line 2: has 0 fields" in printed.err
    assert printed.out.splitlines()[-1].startswith("5 files, ")


def test_folder_without_files_is_reported(tmp_path: Path) -> None:
    import check_wheel

    assert check_wheel.main([str(tmp_path)]) == 3


def test_size_over_the_budget_is_reported(sound: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import distributions

    small = tuple(replace(d, budget_bytes=1000) for d in distributions.DISTRIBUTIONS)
    monkeypatch.setattr(distributions, "DISTRIBUTIONS", small)
    assert check(sound) == [f"is {sound.stat().st_size} bytes, must be at most 1000"]


@pytest.mark.parametrize(
    ("field", "old", "new", "problem"),
    [
        ("METADATA", f"Version: {VERSION}", "Version: 9", f"Version is 9, must be {VERSION}"),
        ("METADATA", "Name: tilewheel-cu13", "Name: x", "Name is x, must be tilewheel-cu13"),
        (
            "METADATA",
            "tilewheel==0.1.*",
            f"tilewheel=={VERSION}",
            f"requires tilewheel=={VERSION}, must require tilewheel==0.1.*",
        ),
        ("METADATA", "Requires-Dist: tilewheel==0.1.*\n", "", "requires nothing, must require "
         "tilewheel==0.1.*"),
        ("WHEEL", "Root-Is-Purelib: false", "Root-Is-Purelib: true", "Root-Is-Purelib is true, "
         "must be false"),
    ],
)  # fmt: skip
def test_wrong_metadata_is_reported(
    members: Members, tampered: Any, field: str, old: str, new: str, problem: str
) -> None:
    text = members[f"{INFO}/{field}"].decode()
    assert old in text
    members[f"{INFO}/{field}"] = text.replace(old, new).encode()
    assert tampered(members) == [f"{field}: {problem}"]


def test_tag_that_differs_from_the_file_name_is_reported(
    members: Members, sound: Path, tmp_path: Path
) -> None:
    tag = sound.name.removesuffix(".whl").partition(f"{VERSION}-")[2]
    path = write(tmp_path / sound.name.replace("2_28", "2_17"), members)
    other = tag.replace("2_28", "2_17")
    problems = check(path)
    assert problems[0].startswith(
        f"tag: is {other}, must be one of py3-none-manylinux_2_28_aarch64"
    )
    assert problems[1] == f"WHEEL: Tag is ['{tag}'], must be {other} as in the file name"


def test_file_that_record_does_not_have_is_reported(members: Members, tampered: Any) -> None:
    members["tilewheel_cu13/more.txt"] = b""
    members["tilewheel_cu13/__init__.py"] += b"#"
    del members[f"{INFO}/licenses/LICENSE"]
    assert tampered(members, signs=False)[:3] == [
        f"{INFO}/licenses/LICENSE: is only in RECORD",
        "tilewheel_cu13/more.txt: is not in RECORD",
        "tilewheel_cu13/__init__.py: differs from its hash in RECORD",
    ]


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("../tilewheel_cu13.py", "leaves the folder that the wheel is unpacked to"),
        ("/etc/tilewheel.py", "leaves the folder that the wheel is unpacked to"),
        ("tilewheel_cu13/..\\x.py", "leaves the folder that the wheel is unpacked to"),
    ],
)
def test_name_that_leaves_the_folder_is_reported(
    members: Members, tampered: Any, name: str, problem: str
) -> None:
    members[name] = b""
    assert tampered(members) == [f"{name}: {problem}"]


def test_symbolic_link_and_double_name_are_reported(
    members: Members, sound: Path, tmp_path: Path
) -> None:
    path = write(tmp_path / sound.name, members)
    with zipfile.ZipFile(path, "a") as archive:
        link = zipfile.ZipInfo("tilewheel_cu13/link.so")
        link.external_attr = 0o120777 << 16
        archive.writestr(link, "/etc/passwd")
        with pytest.warns(UserWarning, match="Duplicate name"):
            archive.writestr(FILE, b"")
    assert check(path) == [
        f"{FILE}: is in the archive twice",
        "tilewheel_cu13/link.so: is a symbolic link, must be a file",
    ]


@pytest.mark.parametrize(
    "name",
    [
        "tilewheel_build/cli.py",
        "tilewheel_cu13/tilelang/__init__.py",
        "tilewheel_cu13/bin/nvcc",
        "tilewheel_cu13/bin/bisheng",
        "tilewheel_cu13/libcuda.so.1",
        "tilewheel_cu13/libcudart.so.13",
        "tilewheel_cu13/libtvm_ffi.so",
    ],
)
def test_part_of_a_compiler_or_driver_is_reported(
    members: Members, tampered: Any, name: str
) -> None:
    members[name] = b""
    assert f"{name}: is part of a compiler or driver, must not be in a wheel" in tampered(members)


def test_file_outside_the_package_and_its_metadata_is_reported(
    members: Members, tampered: Any
) -> None:
    members["elsewhere.pth"] = b"import os"
    assert tampered(members) == [f"elsewhere.pth: must lie in tilewheel_cu13 or {INFO}"]


def test_path_of_a_build_machine_is_reported(members: Members, tampered: Any) -> None:
    members["tilewheel_cu13/__init__.py"] += b"# made in /home/someone/tilewheel\n"
    assert tampered(members) == [
        "tilewheel_cu13/__init__.py: holds the path /home/someone/tilewheel, "
        "must hold none of a build machine"
    ]


def test_missing_entry_point_is_reported(members: Members, tampered: Any) -> None:
    members[f"{INFO}/entry_points.txt"] = b"[console_scripts]\nx = y:z\n"
    assert tampered(members) == [
        "entry_points.txt: must announce cu13 = tilewheel_cu13 in the group tilewheel.artifacts"
    ]


def test_shared_object_in_the_runtime_is_reported(dist: Path, tmp_path: Path) -> None:
    (path,) = dist.glob("tilewheel-*.whl")
    members = read(path)
    members["tilewheel/fast.so"] = b""
    del members["tilewheel/selftest_cases/topk_gate.py"]
    assert check(write(tmp_path / path.name, members)) == [
        "tilewheel/fast.so: must not be in the runtime's wheel, which runs on any platform",
        "tilewheel/selftest_cases/topk_gate.py: is missing, "
        "must be packed as it is in the source tree",
    ]


def test_upper_bound_on_torch_is_reported(dist: Path, tmp_path: Path) -> None:
    (path,) = dist.glob("tilewheel-*.whl")
    members = read(path)
    name = f"tilewheel-{VERSION}.dist-info/METADATA"
    members[name] = members[name].replace(b"Requires-Dist: torch\n", b"Requires-Dist: torch<3\n")
    (problem,) = check(write(tmp_path / path.name, members))
    assert problem.startswith("METADATA: requires apache-tvm-ffi<0.2,>=0.1, ")
    assert "torch<3, must require apache-tvm-ffi<0.2,>=0.1, " in problem


def test_wheel_that_pip_does_not_take_is_reported(
    members: Members, sound: Path, tmp_path: Path
) -> None:
    from check_installs import install_problems

    text = members[f"{INFO}/METADATA"]
    members[f"{INFO}/METADATA"] = text.replace(f"Version: {VERSION}".encode(), b"Version: 9")
    path = write(tmp_path / sound.name, members)
    (problem,) = install_problems([path])
    assert problem.startswith(f"{path.name}: pip does not install it on ")
    assert install_problems([sound]) == []


def test_incomplete_sdist_is_reported(dist: Path, tmp_path: Path) -> None:
    (path,) = dist.glob("tilewheel_cu13-*.tar.gz")
    root = f"tilewheel_cu13-{VERSION}"
    left_out = ("CMakeLists.txt", "specs/moe/topk_gate.yaml", "PKG-INFO")
    with tarfile.open(path) as old, tarfile.open(tmp_path / path.name, "w:gz") as new:
        for member in old.getmembers():
            if member.name.removeprefix(f"{root}/") not in left_out:
                new.addfile(member, old.extractfile(member))
        for name in (f"{root}/out/a.so", "elsewhere.py"):
            new.addfile(tarfile.TarInfo(name), io.BytesIO())
        link = tarfile.TarInfo(f"{root}/link.py")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        new.addfile(link)
    problems = check(tmp_path / path.name)
    assert problems[:4] == [
        "out/a.so: must not be in an sdist",
        f"elsewhere.py: must lie in {root}",
        "link.py: is no regular file, must be one",
        "METADATA: Name is None, must be tilewheel-cu13",
    ]
    needed = "is missing, must be in the sdist so that a wheel can be built from it"
    assert problems[-3:] == [f"{name}: {needed}" for name in sorted(left_out)]
