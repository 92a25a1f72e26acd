"""Each problem with artifacts and their manifest that check_wheel.py can report."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from tampering import FILE, INFO, KEY, Members, check, describe, read, write

from tilewheel.version import VERSION


def test_artifacts_for_another_processor_than_the_tag_are_reported(
    members: Members, sound: Path, tmp_path: Path
) -> None:
    machines = {"x86_64": "aarch64", "aarch64": "x86_64"}
    built = sound.stem.rpartition("2_28_")[2]
    tag = f"{INFO}/WHEEL"
    members[tag] = members[tag].replace(built.encode(), machines[built].encode())
    path = write(tmp_path / sound.name.replace(built, machines[built]), members)
    problems = check(path)
    claim = f"artifacts are for {built}, must be for {machines[built]} as in the tag"
    assert problems[0] == f"manifest.json: {claim}"
    assert problems[1].startswith("auditwheel: ")


def test_file_that_the_manifest_does_not_list_is_reported(members: Members, tampered: Any) -> None:
    members["tilewheel_cu13/sm_90a/kernel.cu"] = b""
    assert tampered(members) == [
        "sm_90a/kernel.cu: is not in the manifest, must be listed or absent"
    ]


def test_artifact_that_differs_from_its_hash_is_reported(members: Members, tampered: Any) -> None:
    members[FILE] = members[FILE][:-1] + b"\1"
    assert tampered(members) == [f"{KEY}: sm_90a/{KEY}.so: sha256 differs from the manifest's"]


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"backend": "ascend"}, "backend is ascend, must be cuda"),
        ({"tilewheel_version": "9"}, f"tilewheel_version is 9, must be {VERSION}"),
        ({"runtime_abi": 9}, "runtime_abi is 9, must be 1"),
        ({"schema_version": [9, 0]}, None),
    ],
)
def test_manifest_of_something_else_is_reported(
    members: Members, tampered: Any, changes: dict[str, Any], problem: str | None
) -> None:
    describe(members, **changes)
    problems = tampered(members)
    if problem is None:
        assert problems[0].startswith("manifest.json: schema_version: is 9.0, must be 1.x")
    else:
        assert problems == [f"manifest.json: {problem}"]


def test_library_that_is_not_allowed_is_reported(members: Members, tampered: Any) -> None:
    assert members[FILE].count(b"libc.so.6\0") == 1
    members[FILE] = members[FILE].replace(b"libc.so.6\0", b"libX.so.6\0")
    describe(members)
    problems = tampered(members)
    assert problems[0].startswith(f"{KEY}: needs libX.so.6, must need only libc.so.6")
    assert problems[1].startswith("auditwheel: ")


def test_symbol_version_that_the_tag_does_not_promise_is_reported(
    members: Members, tampered: Any
) -> None:
    (version,) = set(re.findall(rb"GLIBC_2\.[0-9.]+(?=\0)", members[FILE]))
    newer = b"GLIBC_2.34".ljust(len(version), b"\0")
    members[FILE] = with_version(members[FILE], version, newer)
    describe(members)
    problems = tampered(members)
    assert problems[0] == f"{KEY}: needs glibc 2.34, must run on 2.28"
    assert problems[-1].startswith("auditwheel: is fit for manylinux_2_3")
    assert "needs GLIBC_2.34" in problems[-1]


def with_version(content: bytes, old: bytes, new: bytes) -> bytes:
    """Replace a symbol version and the hash of its name that stands beside it."""

    def elf_hash(name: bytes) -> bytes:
        value = 0
        for byte in name:
            value = (value << 4) + byte
            high = value & 0xF0000000
            value = (value ^ (high >> 24)) & ~high & 0xFFFFFFFF
        return value.to_bytes(4, "little")

    changed = content.replace(old + b"\0", new + b"\0")
    return changed.replace(elf_hash(old), elf_hash(new.rstrip(b"\0")))


def test_exported_symbol_of_cuda_is_reported(members: Members, tampered: Any) -> None:
    name = b"\0__tvm_ffi_prepare\0"
    assert members[FILE].count(name) == 1
    members[FILE] = members[FILE].replace(name, b"\0cuLaunchKernelExx\0")
    describe(members)
    assert f"{KEY}.so: exports cuLaunchKernelExx, must export no symbol of CUDA" in tampered(
        members
    )


def test_simulator_without_its_library_is_reported(dist: Path, tmp_path: Path) -> None:
    (path,) = dist.glob("tilewheel_ascend_sim-*.whl")
    members = read(path)
    name = "tilewheel_ascend_sim/manifest.json"
    tree = json.loads(members[name])
    (library,) = tree.pop("libraries")
    members[name] = json.dumps({**tree, "libraries": []}).encode()
    del members[f"tilewheel_ascend_sim/{library['path']}"]
    assert check(write(tmp_path / path.name, members)) == [
        "manifest.json: lists no library, must list the simulator's, which artifacts open"
    ]
