"""Each problem that ``verify`` can report, made by tampering with a copy of a sound artifact."""

from __future__ import annotations

import hashlib
import json
import platform
import shutil
from pathlib import Path
from typing import Any

import pytest

STAGE = "stage-hidden=16384-cuda-sm_90a"
FILE = f"sm_90a/{STAGE}.so"
ALLOWED = "libc.so.6, libdl.so.2, libtvm_ffi.so"


class Copy:
    """An artifact directory with one artifact, and ways to change it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.path = directory / FILE

    def edit(self, **changes: Any) -> None:
        """Change fields of the artifact's entry in the manifest."""
        path = self.directory / "manifest.json"
        tree = json.loads(path.read_text())
        (entry,) = tree["artifacts"]
        for name, value in changes.items():
            entry[name] = {**entry[name], **value} if isinstance(value, dict) else value
        path.write_text(json.dumps(tree))

    def replace(self, content: bytes) -> None:
        """Put another file in the artifact's place and describe it in the manifest."""
        self.path.write_bytes(content)
        self.edit(sha256=hashlib.sha256(content).hexdigest(), size_bytes=len(content))

    def patch(self, old: bytes, new: bytes) -> None:
        """Replace bytes by as many others."""
        content = self.path.read_bytes()
        assert old in content
        assert len(old) == len(new)
        self.replace(content.replace(old, new))

    def problems(self) -> list[str]:
        from tilewheel_build.verify import verify_directory

        return verify_directory(self.directory)


@pytest.fixture
def sound(built: Any, tmp_path: Path) -> Copy:
    directory = tmp_path / "cuda"
    (directory / FILE).parent.mkdir(parents=True)
    shutil.copy(built.artifact(STAGE), directory / FILE)
    tree = json.loads((built.artifacts / "manifest.json").read_text())
    tree["artifacts"] = [item for item in tree["artifacts"] if item["key"] == STAGE]
    (directory / "manifest.json").write_text(json.dumps(tree))
    return Copy(directory)


def test_sound_artifact_has_no_problem(sound: Copy) -> None:
    assert sound.problems() == []


def test_changed_file_is_reported(sound: Copy) -> None:
    sound.path.write_bytes(sound.path.read_bytes() + b"\0")
    assert sound.problems() == [f"{STAGE}: {FILE}: sha256 differs from the manifest's"]


def test_wrong_size_is_reported(sound: Copy) -> None:
    size = sound.path.stat().st_size
    sound.edit(size_bytes=size + 1)
    assert sound.problems() == [f"{STAGE}: {FILE}: is {size} bytes, must be {size + 1}"]


def test_missing_file_is_reported(sound: Copy) -> None:
    sound.path.unlink()
    assert sound.problems() == [
        f"{STAGE}: {FILE}: is missing, must be there as the manifest lists it"
    ]


def test_file_that_the_manifest_does_not_list_is_reported(sound: Copy) -> None:
    for name in ("sm_90a/second.so", "first.so"):
        shutil.copy(sound.path, sound.directory / name)
    assert sound.problems() == [
        "first.so: is not in the manifest, must be listed or absent",
        "sm_90a/second.so: is not in the manifest, must be listed or absent",
    ]


@pytest.mark.parametrize("content", [b"", b"not an ELF file", b"\x7fELF\x02\x01\x01"])
def test_file_that_is_no_shared_object_is_reported(sound: Copy, content: bytes) -> None:
    sound.replace(content)
    (problem,) = sound.problems()
    assert problem.startswith(f"{STAGE}: {sound.path}: is not a readable shared object: ")


def test_truncated_file_is_reported(sound: Copy) -> None:
    content = sound.path.read_bytes()
    sound.replace(content[: len(content) - 2000])
    (problem,) = sound.problems()
    assert problem.startswith(f"{STAGE}: {sound.path}: is not a readable shared object: ")


def test_unreadable_manifest_is_reported(sound: Copy) -> None:
    (sound.directory / "manifest.json").write_text("{")
    (problem,) = sound.problems()
    assert problem.startswith(f"{sound.directory}/manifest.json: is not readable JSON: ")


def test_library_that_is_not_allowed_is_reported(sound: Copy) -> None:
    sound.patch(b"libc.so.6\0", b"libm.so.6\0")
    assert sound.problems() == [f"{STAGE}: needs libm.so.6, must need only {ALLOWED}"]


def test_newer_glibc_is_reported(sound: Copy) -> None:
    sound.patch(b"GLIBC_2.2.5\0", b"GLIBC_2.29\0\0")
    assert sound.problems() == [f"{STAGE}: needs glibc 2.29, must run on 2.28"]


def test_other_processor_is_reported(sound: Copy) -> None:
    content = bytearray(sound.path.read_bytes())
    content[18:20] = (183).to_bytes(2, "little")  # e_machine: EM_AARCH64
    sound.replace(bytes(content))
    assert sound.problems() == [f"{STAGE}: is for EM_AARCH64, must be for x86_64"]


def test_absolute_path_is_reported(sound: Copy) -> None:
    sound.patch(b"the CUDA driver lacks", b"/home/someone/k.cu  s")
    assert sound.problems() == [f"{STAGE}: holds the path /home/someone/k.cu, must hold none"]


def test_missing_device_image_is_reported(sound: Copy) -> None:
    sound.patch(b".tilewheel_image\0", b".tilewheel_imagf\0")
    assert sound.problems() == [f"{STAGE}: holds no device image"]


def test_renamed_export_is_reported(sound: Copy) -> None:
    sound.patch(b"\0__tvm_ffi_stage\0", b"\0__tvm_ffi_stagf\0")
    assert sound.problems() == [
        f"{STAGE}: exports __tvm_ffi_prepare, __tvm_ffi_stagf, "
        "must export __tvm_ffi_prepare, __tvm_ffi_stage"
    ]


def test_additional_export_is_reported(sound: Copy, built: Any, tmp_path: Path) -> None:
    from tilewheel_build.cuda import cuda_include
    from tilewheel_build.elf import read_shared_object
    from tilewheel_build.host_compiler import compile_launcher
    from tilewheel_build.launcher import TEMPLATES
    from tilewheel_build.toolchain import tvm_ffi_include

    work = tmp_path / "work"
    work.mkdir()
    (source,) = (
        path.read_text()
        for path in built.out.glob("cache/*/launcher.c")
        if STAGE in path.read_text()
    )
    addition = "\nTILEWHEEL_EXPORT int cuda_version(void);\nint cuda_version(void) { return 1; }\n"
    (work / "launcher.c").write_text(source + addition)
    (work / "kernel.cubin").write_bytes(read_shared_object(sound.path).image)
    shutil.copy(TEMPLATES / "arguments.h", work)
    compile_launcher(
        work=work,
        source="launcher.c",
        output="artifact.so",
        machine=platform.machine(),
        includes=(tvm_ffi_include(), cuda_include()),
        image_sha256="",
        zig_cache=built.out / "cache" / "zig",
    )
    sound.replace((work / "artifact.so").read_bytes())
    assert sound.problems() == [
        f"{STAGE}: exports __tvm_ffi_prepare, __tvm_ffi_stage, cuda_version, "
        "must export __tvm_ffi_prepare, __tvm_ffi_stage"
    ]


def test_device_code_for_another_architecture_is_reported(sound: Copy) -> None:
    key = STAGE.replace("sm_90a", "sm_100a")
    sound.edit(key=key, arch="sm_100a")
    assert sound.problems() == [f"{key}: device code is for 90a, must be for sm_100a"]


def test_device_image_that_is_no_cubin_is_reported(sound: Copy) -> None:
    content = sound.path.read_bytes()
    image = content.index(b"\x7fELF", 4)
    sound.replace(content[:image] + b"junk" + content[image + 4 :])
    (problem,) = sound.problems()
    assert "cuobjdump -elf image.cubin\nended with " in problem


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        (
            {"resources": {"registers": 1}},
            "uses 252 registers, manifest says 1",
        ),
        (
            {"launch": {"dynamic_shared_bytes": 232449}},
            "needs 232449 bytes of shared memory, sm_90a has 232448",
        ),
        (
            {"launch": {"kernel": "other_kernel"}},
            "device code has no kernel other_kernel",
        ),
    ],
)
def test_device_code_that_the_manifest_describes_wrong_is_reported(
    sound: Copy, changes: dict[str, Any], problem: str
) -> None:
    sound.edit(**changes)
    assert sound.problems() == [f"{STAGE}: {problem}"]


def test_all_of_the_shared_memory_may_be_used(sound: Copy) -> None:
    sound.edit(launch={"dynamic_shared_bytes": 232448})
    assert sound.problems() == []


def test_command_prints_problems_and_ends_with_7(copy: Any) -> None:
    copy.artifact(STAGE).unlink()
    done = copy.run("verify")
    assert done.returncode == 7
    assert done.stdout == "1 manifests, 1 problems\n"
    assert done.stderr == f"{STAGE}: {FILE}: is missing, must be there as the manifest lists it\n"


def test_missing_disassembler_is_reported(
    sound: Copy, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from tilewheel_build.errors import ToolchainError

    def missing() -> Path:
        raise ToolchainError("not installed: nvidia-cuda-cuobjdump")

    monkeypatch.setattr("tilewheel_build.verify.cuobjdump", missing)
    assert sound.problems() == [f"{STAGE}: not installed: nvidia-cuda-cuobjdump"]
