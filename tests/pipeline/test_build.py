"""The build driver on a small checkout: what it publishes, builds again and refuses."""

from __future__ import annotations

import errno
import importlib.metadata
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

PLAIN = "scale-hidden=128-with_bias=false-cuda-sm_90a"
BIASED = "scale-hidden=any-with_bias=true-cuda-sm_90a"
STAGE = "stage-hidden=16384-cuda-sm_90a"


def events(stderr: str) -> list[str]:
    """Return ``built KEY`` and ``failed KEY`` of each line that begins so, in key order."""
    lines = [line.split() for line in stderr.splitlines()]
    return sorted(" ".join(line[:2]) for line in lines if line and line[0] in ("built", "failed"))


@pytest.fixture(scope="module")
def manifest(built: Any) -> dict[str, Any]:
    tree: dict[str, Any] = json.loads((built.artifacts / "manifest.json").read_text())
    return tree


def artifact(manifest: dict[str, Any], key: str) -> dict[str, Any]:
    return next(item for item in manifest["artifacts"] if item["key"] == key)


def test_build_publishes_a_manifest_the_artifacts_and_their_sources(built: Any) -> None:
    assert sorted(built.published()) == [
        "manifest.json",
        f"sm_90a/{PLAIN}.cu",
        f"sm_90a/{PLAIN}.so",
        f"sm_90a/{BIASED}.cu",
        f"sm_90a/{BIASED}.so",
        f"sm_90a/{STAGE}.cu",
        f"sm_90a/{STAGE}.so",
    ]


def test_build_leaves_no_work_behind(built: Any) -> None:
    assert built.leftovers() == []


def test_verify_finds_nothing_wrong_with_a_fresh_build(built: Any) -> None:
    done = built.run("verify")
    assert (done.returncode, done.stdout, done.stderr) == (0, "1 manifests, 0 problems\n", "")


def test_manifest_lists_the_arguments_in_calling_order(manifest: dict[str, Any]) -> None:
    assert [
        (item["name"], item["kind"], item["dtype"], item["role"], item["shape"])
        for item in artifact(manifest, PLAIN)["arguments"]
    ] == [
        ("x", "tensor", "float32", "in", ["num_tokens", 128]),
        ("bias", "tensor", "none", "in", []),
        ("y", "tensor", "float32", "out", ["num_tokens", 128]),
        ("factor", "scalar", "float32", "in", []),
        ("shift", "scalar", "int32", "in", []),
    ]


def test_manifest_marks_what_the_loader_takes_from_the_device(manifest: dict[str, Any]) -> None:
    kinds = [(item["name"], item["kind"]) for item in artifact(manifest, STAGE)["arguments"]]
    assert kinds == [
        ("x", "tensor"),
        ("y", "tensor"),
        ("codes", "tensor"),
        ("enabled", "scalar"),
        ("num_splits", "scalar"),
        ("num_sms", "device"),
    ]


def test_manifest_holds_the_launch_as_it_happens(manifest: dict[str, Any]) -> None:
    assert artifact(manifest, STAGE)["launch"] == {
        "kernel": "stage_kernel",
        "parameters": ["codes", "x", "y", "enabled", "num_rows", "num_sms", "num_splits"],
        "grid": ["dim_num_sms", "dim_num_splits", "1"],
        "block": [32, 4, 1],
        "dynamic_shared_bytes": 65536,
        "pdl": False,
    }
    assert artifact(manifest, BIASED)["launch"]["pdl"] is True


def test_manifest_holds_limits_profiles_driver_and_entry(manifest: dict[str, Any]) -> None:
    found = artifact(manifest, BIASED)
    assert found["limits"] == {"hidden": [64, 4096]}
    assert found["profiles"] == ["dev", "release"]
    assert found["minimum_driver"] == "580"
    assert found["entry"] == "__tvm_ffi_scale"
    assert found["verification"] == "none"
    assert found["resources"]["spill_bytes"] == 0


def test_source_outside_git_has_no_commit(manifest: dict[str, Any]) -> None:
    assert (manifest["source_commit"], manifest["source_dirty"]) == (None, None)


def test_source_inside_a_foreign_repository_has_no_commit(copy: Any) -> None:
    commands = (
        ["init", "-q"],
        ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "--allow-empty", "-m", "a"],
    )
    for command in commands:
        subprocess.run(["git", "-C", str(copy.root.parent), *command], check=True)
    assert copy.run("build").returncode == 0
    manifest = json.loads(copy.published()["manifest.json"])
    assert (manifest["source_commit"], manifest["source_dirty"]) == (None, None)


def test_unchanged_tree_is_published_from_the_cache_without_any_compiler(copy: Any) -> None:
    before = copy.published()
    done = copy.run("build", PATH="")
    assert done.returncode == 0, done.stderr
    assert events(done.stderr) == []
    assert "3 artifacts (3 from the cache), 0 failed" in done.stdout
    assert copy.published() == before


def test_changed_module_that_a_kernel_imports_rebuilds_its_variants_only(copy: Any) -> None:
    module = copy.kernel("arithmetic.py")
    module.write_text(module.read_text().replace("x * factor", "factor * x * T.float32(2)"))
    before = copy.published()
    done = copy.run("build", "--jobs", "2")
    assert done.returncode == 0, done.stderr
    assert events(done.stderr) == [f"built {PLAIN}", f"built {BIASED}"]
    after = copy.published()
    changed = {name for name in before if before[name] != after[name]}
    assert f"sm_90a/{PLAIN}.so" in changed
    assert f"sm_90a/{STAGE}.so" not in changed
    assert copy.run("verify").returncode == 0


@pytest.mark.parametrize("name", ["artifact.so", "kernel.cu", "launcher.c", "facts.json"])
def test_incomplete_cache_entry_is_built_again(copy: Any, name: str) -> None:
    from tilewheel_build.unit import read_unit

    (entry,) = (
        path
        for path in (copy.out / "cache").iterdir()
        if path.name != "zig" and "stage" in (path / "kernel.cu").read_text()
    )
    assert read_unit(entry) is not None
    (entry / name).unlink()
    assert read_unit(entry) is None


def test_altered_artifact_in_the_cache_is_not_used(copy: Any) -> None:
    from tilewheel_build.unit import read_unit

    entry = next(path for path in (copy.out / "cache").iterdir() if path.name != "zig")
    (entry / "artifact.so").write_bytes(b"altered")
    assert read_unit(entry) is None


def test_leftover_of_a_killed_publication_is_removed(copy: Any) -> None:
    stale = copy.out / "artifacts" / ".cuda-killed"
    stale.mkdir()
    (stale / "manifest.json").write_text("{}")
    assert copy.run("build").returncode == 0
    assert copy.leftovers() == []


def test_one_glob_publishes_what_it_selects(copy: Any) -> None:
    assert copy.run("build", "--only", "stage*").returncode == 0
    assert sorted(copy.published()) == ["manifest.json", f"sm_90a/{STAGE}.cu", f"sm_90a/{STAGE}.so"]


def test_lower_writes_the_device_source_of_each_variant(copy: Any) -> None:
    done = copy.run("lower", "--only", "stage*")
    path = copy.out / "lowered" / "cuda" / "sm_90a" / f"{STAGE}.cu"
    assert (done.returncode, done.stdout) == (0, f"{path}\n")
    assert path.read_bytes() == copy.published()[f"sm_90a/{STAGE}.cu"]


def test_list_prints_keys_where_no_compiler_can_be_imported(built: Any) -> None:
    script = (
        "import sys\n"
        "for name in ('tilelang', 'tvm', 'tvm_ffi', 'torch', 'ziglang', 'jinja2'):\n"
        "    sys.modules[name] = None\n"
        "from tilewheel_build.cli import main\n"
        f"sys.exit(main({built.command('list')[3:]!r}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout.splitlines()) == (0, [PLAIN, BIASED, STAGE])


@pytest.fixture
def cli(
    built: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str]]:
    """Return the function that runs a command here, with an output of its own."""
    from tilewheel_build.cli import main

    def run(name: str, *arguments: str) -> tuple[int, str]:
        places = ["--root", str(built.root), "--out", str(tmp_path / "out")]
        code = main([name, *places, *arguments])
        return code, capsys.readouterr().err

    return run


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--only", "nothing*"), "only: 'nothing*' matches none of 3 variants, must match one"),
        (("--archs", "sm_80"), "nothing selected: no variant fits target, archs, profile and glob"),
    ],
)
def test_selection_of_nothing_ends_with_3(
    cli: Callable[..., tuple[int, str]], arguments: tuple[str, ...], message: str
) -> None:
    code, printed = cli("build", *arguments)
    assert code == 3
    assert message in printed


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--profile", "develop"), "profile: is 'develop', must be "),
        (("--archs", "sm_91"), "arch: is 'sm_91', must be "),
        (("--target", "cud"), "--target: is 'cud', must be one of cuda, "),
    ],
)
def test_unknown_name_ends_with_2(
    cli: Callable[..., tuple[int, str]], arguments: tuple[str, ...], message: str
) -> None:
    code, printed = cli("build", *arguments)
    assert code == 2
    assert message in printed


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--jobs", "0", "is '0', must be an integer of at least 1"),
        ("--jobs", "-2", "is '-2', must be an integer of at least 1"),
        ("--jobs", "x", "is 'x', must be an integer of at least 1"),
        ("--compile-timeout", "0", "is '0', must be a number above 0"),
        ("--compile-timeout", "nan", "is 'nan', must be a number above 0"),
        ("--compile-timeout", "inf", "is 'inf', must be a number above 0"),
        ("--compile-timeout", "soon", "is 'soon', must be a number above 0"),
        ("--machine", "pdp11", "invalid choice: 'pdp11' (choose from "),
    ],
)
def test_option_with_a_wrong_value_ends_with_2(
    built: Any, capsys: pytest.CaptureFixture[str], option: str, value: str, message: str
) -> None:
    from tilewheel_build.cli import main

    with pytest.raises(SystemExit) as ended:
        main([*built.command("build")[3:], option, value])
    assert ended.value.code == 2
    assert f"argument {option}: {message}" in capsys.readouterr().err


def test_target_named_twice_is_built_once(built: Any) -> None:
    done = built.run("list", "--target", "cuda,cuda")
    assert done.stdout.splitlines() == [PLAIN, BIASED, STAGE]


@pytest.mark.parametrize("name", ["build", "lower"])
def test_output_that_is_no_directory_ends_with_2(
    cli: Callable[..., tuple[int, str]], tmp_path: Path, name: str
) -> None:
    (tmp_path / "out").write_text("")
    assert cli(name) == (
        2,
        f"--out: {tmp_path}/out cannot be written: File exists\n"
        "hint: choose another directory with --out\n",
    )


def test_full_disk_while_publishing_ends_with_2(
    copy: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from tilewheel_build.cli import main

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    before = copy.published()
    monkeypatch.setattr("tilewheel_build.driver.publish", refuse)
    assert main(copy.command("build")[3:]) == 2
    assert capsys.readouterr().err == f"{copy.out}: cannot be written: No space left on device\n"
    assert copy.published() == before


def test_full_disk_in_a_worker_is_reported_with_the_file_and_2() -> None:
    from tilewheel.key import Key
    from tilewheel_build.driver import failure
    from tilewheel_build.pool import run_units

    full = Path("/dev/full")
    ((_, outcome),) = run_units(full.write_text, ["text"], 1)
    assert isinstance(outcome, OSError)
    failed = failure(Key.parse(STAGE), full, outcome)
    assert (failed.message, failed.exit_code) == (
        "/dev/full: cannot be written: No space left on device",
        2,
    )


def test_reader_that_leaves_early_is_no_error_to_speak_of(built: Any) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with built.start("list", stdout=writer, stderr=subprocess.PIPE) as process:
        os.close(writer)
        assert process.communicate()[1] == ""
    assert process.returncode == 141


def test_builds_of_one_output_at_once_build_everything_once(copy: Any) -> None:
    kernel = copy.kernel("scale_cuda.py")
    kernel.write_text(kernel.read_text() + "\n# changed\n")
    running = [copy.start("build", "--jobs", "2") for _ in range(2)]
    printed = [process.communicate(timeout=300)[0] for process in running]
    assert [process.returncode for process in running] == [0, 0], printed
    cached = sorted(text.splitlines()[-1] for text in printed)
    assert cached == [
        "3 artifacts (1 from the cache), 0 failed",
        "3 artifacts (3 from the cache), 0 failed",
    ]
    assert "\n".join(printed).count("another build is running, waiting for it") == 1
    assert copy.leftovers() == []


def test_broken_spec_ends_with_2_and_names_the_field(copy: Any) -> None:
    spec = copy.root / "specs" / "probe" / "stage.yaml"
    spec.write_text(spec.read_text().replace("hidden: 16384", "hidden: 16385"))
    done = copy.run("list")
    assert done.returncode == 2
    assert "specs/probe/stage.yaml: points[0].hidden: is 16385" in done.stderr


def test_missing_kernel_file_ends_with_2(copy: Any) -> None:
    copy.kernel("stage_cuda.py").unlink()
    done = copy.run("build")
    assert done.returncode == 2
    assert "backends.cuda.kernel: is 'probe/stage_cuda.py'" in done.stderr


@pytest.mark.parametrize("name", ["tilelang", "nvidia-cuda-nvcc", "ziglang", "apache-tvm-ffi"])
def test_missing_tool_ends_with_4_and_names_the_package(
    cli: Callable[..., tuple[int, str]], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    version = importlib.metadata.version

    def installed(distribution: str) -> str:
        if distribution == name:
            raise importlib.metadata.PackageNotFoundError(distribution)
        return version(distribution)

    monkeypatch.setattr("importlib.metadata.version", installed)
    code, printed = cli("build")
    assert code == 4
    assert printed == (
        f"not installed: {name}\n"
        "hint: run `make setup`, which installs every pinned tool into .venv\n"
    )


def test_verify_without_artifacts_ends_with_3(
    cli: Callable[..., tuple[int, str]], tmp_path: Path
) -> None:
    assert cli("verify") == (
        3,
        f"{tmp_path}/out/artifacts: has no artifacts\nhint: run `make build`\n",
    )


def test_unreadable_record_of_verified_artifacts_ends_with_7(copy: Any) -> None:
    (copy.root / "verified.json").write_text("[1]")
    done = copy.run("build")
    assert (done.returncode, done.stderr) == (7, "verified.json: is a list, must be an object\n")


def test_manifest_tells_which_artifacts_were_verified(copy: Any, manifest: dict[str, Any]) -> None:
    sha256 = artifact(manifest, STAGE)["sha256"]
    (copy.root / "verified.json").write_text(json.dumps({sha256: "device:NVIDIA H200"}))
    assert copy.run("build").returncode == 0
    after = json.loads(copy.published()["manifest.json"])
    assert artifact(after, STAGE)["verification"] == "device:NVIDIA H200"
    assert artifact(after, PLAIN)["verification"] == "none"
