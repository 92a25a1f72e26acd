"""The Ascend build with stand-ins for CANN's compilers: in one step, and in two on two machines."""

from __future__ import annotations

import json
import platform
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

LATE = "shift-hidden=256-num_vec_cores=any-staged=false-ascend-dav_3510"
AHEAD = "shift-hidden=256-num_vec_cores=any-staged=true-ascend-dav_3510"
HINT = (
    "hint: source CANN's set_env.sh or set BISHENG_HOME and ASCEND_HOME_PATH; or build with "
    "--source-only and finish on a machine with CANN (python -m tilewheel_build finish DIR)\n"
)
AGAIN = "hint: run `build --source-only` again with this checkout and copy the whole directory\n"
OWN = platform.machine()
OTHER = {"x86_64": "aarch64", "aarch64": "x86_64"}[OWN]
NAME_ONE = "hint: name a directory that `build --source-only` wrote, e.g. out/sources/ascend\n"


@pytest.fixture(scope="module")
def manifest(ascend_built: Any) -> dict[str, Any]:
    tree: dict[str, Any] = json.loads((ascend_built.artifacts / "manifest.json").read_text())
    return tree


def artifact(manifest: dict[str, Any], key: str) -> dict[str, Any]:
    return next(item for item in manifest["artifacts"] if item["key"] == key)


def files(folder: Path) -> dict[str, bytes]:
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


@pytest.fixture
def fresh(ascend_built: Any, tmp_path: Path) -> Any:
    """Return the checkout with an output of the test's own, which is empty."""
    out = tmp_path / "out"
    (out / "cache").mkdir(parents=True)
    # What zig compiled of the C library serves every output.
    (out / "cache" / "zig").symlink_to(ascend_built.out / "cache" / "zig")
    return replace(ascend_built, out=out)


@pytest.fixture
def sources(ascend_sources: Path, tmp_path: Path) -> Path:
    """Return a copy of the packed sources that the test may change."""
    shutil.copytree(ascend_sources, tmp_path / "sources")
    return tmp_path / "sources"


def written(checkout: Any) -> list[str]:
    """Return what a command left in the output of a fresh checkout."""
    return [path for path in files(checkout.out) if not path.startswith("cache/zig")]


def test_build_without_bisheng_ends_with_4_before_anything_is_lowered(
    fresh: Any, no_cann: dict[str, str]
) -> None:
    done = fresh.run("build", "--target", "ascend-sim,ascend", PATH="", **no_cann)
    assert (done.returncode, done.stdout) == (4, "")
    assert done.stderr == (
        "bisheng: is not installed (looked in PATH), must be the one of CANN 9.1 or newer\n" + HINT
    )
    assert written(fresh) == []


def test_artifact_for_another_processor_is_the_same_bytes_from_either_way(
    ascend_built: Any, fresh: Any, stand_in: Any, tmp_path: Path
) -> None:
    """Its launcher hands the size of the device code on, which no padding may add to."""
    chosen = ("--target", "ascend", "--only", AHEAD, "--jobs", "1")

    def build(checkout: Any, machine: str) -> bytes:
        done = checkout.run("build", *chosen, "--machine", machine, **stand_in.variables)
        assert done.returncode == 0, done.stdout + done.stderr
        folder = "artifacts" if machine == OWN else f"artifacts-{machine}"
        path: Path = checkout.out / folder / "ascend" / "dav_3510" / f"{AHEAD}.so"
        return path.read_bytes()

    compiled = build(fresh, OTHER)
    calls = stand_in.calls
    linked = build(fresh, OWN)
    assert stand_in.calls == calls  # the compiler ran for the first only
    assert linked == ascend_built.artifact(AHEAD).read_bytes()

    out = tmp_path / "second"
    shutil.copytree(ascend_built.out / "cache", out / "cache", symlinks=True)
    assert build(replace(ascend_built, out=out), OTHER) == compiled
    assert stand_in.calls == calls


def test_build_publishes_a_manifest_the_artifacts_and_their_sources(ascend_built: Any) -> None:
    assert sorted(ascend_built.published()) == [
        f"dav_3510/{LATE}.asc",
        f"dav_3510/{LATE}.so",
        f"dav_3510/{AHEAD}.asc",
        f"dav_3510/{AHEAD}.so",
        "manifest.json",
    ]
    assert ascend_built.leftovers() == []
    assert replace(ascend_built, backend="ascend-sim").leftovers() == []


def test_artifact_holds_what_the_linker_made(ascend_built: Any) -> None:
    published = ascend_built.published()
    image = b"ld.lld,bisheng," + published[f"dav_3510/{AHEAD}.asc"]
    assert image in published[f"dav_3510/{AHEAD}.so"]


def test_verify_finds_nothing_wrong_but_the_dropped_buffer_version(ascend_built: Any) -> None:
    done = ascend_built.run("verify", "--target", "ascend,ascend-sim")
    assert (done.returncode, done.stdout) == (7, "2 manifests, 1 problems\n")
    assert done.stderr == f"{LATE}: TileLang dropped 1 requested buffer versions, must keep all\n"


def test_manifest_holds_the_launch_as_it_happens(manifest: dict[str, Any]) -> None:
    # Pointers, then scalars by size and name: the order of the device function.
    order = ["x", "y", "base", "enabled", "factor", "num_tokens", "num_vec_cores", "offset"]
    assert artifact(manifest, AHEAD)["launch"] == {
        "kernel": "shift_kernel",
        "parameters": order,
        "grid": ["dim_num_vec_cores", "1", "1"],
        "block": [1, 1, 1],
        "dynamic_shared_bytes": 4096,
        "pdl": False,
    }
    # Two versions of one row, one of the other.
    assert artifact(manifest, LATE)["launch"]["dynamic_shared_bytes"] == 3072


def test_manifest_counts_the_buffer_versions_that_were_dropped(manifest: dict[str, Any]) -> None:
    dropped = {
        key: artifact(manifest, key)["resources"]["dropped_buffer_versions"]
        for key in (AHEAD, LATE)
    }
    assert dropped == {AHEAD: 0, LATE: 1}


def test_manifest_names_the_compiler_and_its_flags(manifest: dict[str, Any]) -> None:
    found = artifact(manifest, AHEAD)
    assert found["toolchain"]["bisheng"] == "stand-in bisheng 9.1.0"
    assert found["toolchain"]["flags"] == (
        "-O2 -fPIC -std=c++20 -mllvm -cce-aicore-dcpreload-args=false "
        "-m aicorelinux -Ttext 0 --no-mmap-output-file"
    )
    assert found["minimum_driver"] == "CANN 9.1"
    assert found["verification"] == "none"


def test_manifest_marks_what_the_loader_takes_from_the_device(manifest: dict[str, Any]) -> None:
    kinds = [(item["name"], item["kind"]) for item in artifact(manifest, AHEAD)["arguments"]]
    assert kinds == [
        ("x", "tensor"),
        ("y", "tensor"),
        ("enabled", "scalar"),
        ("offset", "scalar"),
        ("base", "scalar"),
        ("factor", "scalar"),
        ("num_vec_cores", "device"),
    ]


def test_source_only_writes_nothing_but_the_sources(ascend_sources: Path) -> None:
    out = ascend_sources.parents[1]
    each = ("arguments.h", "facts.json", "hashes.json", "inputs.json", "kernel.asc", "launcher.c")
    assert list(files(out)) == [
        "sources/.lock",
        "sources/ascend/manifest.json",
        *(f"sources/ascend/{key}/{name}" for key in (LATE, AHEAD) for name in each),
    ]


def finish(checkout: Any, folder: Path, *arguments: str, **variables: str) -> Any:
    return checkout.run("finish", str(folder), *arguments, **variables)


def test_sources_finished_elsewhere_give_the_bytes_of_a_build_in_one_step(
    ascend_built: Any, sources: Path, fresh: Any, stand_in: Any
) -> None:
    done = finish(fresh, sources, "--jobs", "2", **stand_in.variables)
    assert done.returncode == 0, done.stderr
    assert "2 artifacts, 0 failed" in done.stdout
    assert fresh.published() == ascend_built.published()
    assert fresh.leftovers() == []
    assert [call.split()[0] for call in stand_in.calls] == ["bisheng"] * 2 + ["ld.lld"] * 2


def test_finish_without_bisheng_ends_with_4_and_touches_nothing(
    ascend_sources: Path, fresh: Any, no_cann: dict[str, str]
) -> None:
    before = files(ascend_sources)
    done = finish(fresh, ascend_sources, PATH="", **no_cann)
    assert (done.returncode, done.stdout) == (4, "")
    assert done.stderr.startswith("bisheng: is not installed (looked in PATH), must be ")
    assert done.stderr.endswith(HINT)
    assert written(fresh) == []
    assert files(ascend_sources) == before


def test_failing_compiler_is_reported_and_its_work_is_kept(
    sources: Path, fresh: Any, stand_in: Any
) -> None:
    stand_in.behave("fail")
    done = finish(fresh, sources, "--jobs", "2", **stand_in.variables)
    assert done.returncode == 6
    assert "0 artifacts, 2 failed" in done.stdout
    _, late, ahead = done.stderr.split("\nfailed: ")
    assert late.startswith(f"{LATE}\n{stand_in.home}/bin/bisheng -O2 -fPIC ")
    assert ahead.startswith(f"{AHEAD}\n{stand_in.home}/bin/bisheng -O2 -fPIC ")
    assert ahead.endswith(
        " --cce-aicore-only kernel.asc -o kernel.rel.o\n"
        "ended with 3:\n"
        "kernel.asc:7: no such intrinsic\n"
        f"kept: {fresh.out}/work/{AHEAD}\n"
    )
    assert (fresh.out / "work" / AHEAD / "kernel.asc").is_file()
    assert (fresh.out / "work" / AHEAD / "launcher.c").is_file()
    assert not fresh.artifacts.exists()


def test_hanging_compiler_is_stopped_after_the_time_given(
    sources: Path, fresh: Any, stand_in: Any
) -> None:
    stand_in.behave("hang")
    done = finish(fresh, sources, "--compile-timeout", "0.2", "--jobs", "2", **stand_in.variables)
    assert done.returncode == 6
    assert done.stderr.count("ran for 0.2 s, must end sooner\n") == 2
    assert f"kept: {fresh.out}/work/{AHEAD}\n" in done.stderr
    assert not fresh.artifacts.exists()


def lose_manifest(folder: Path) -> str:
    (folder / "manifest.json").unlink()
    return f"{folder}/manifest.json: cannot be read: No such file or directory\n{NAME_ONE}"


def lose_launcher(folder: Path) -> str:
    (folder / AHEAD / "launcher.c").unlink()
    return f"{folder}/{AHEAD}: lacks launcher.c, must be complete\n{AGAIN}"


def lose_unit(folder: Path) -> str:
    shutil.rmtree(folder / LATE)
    return (
        f"{folder}/{LATE}: is not complete: [Errno 2] No such file or directory: "
        f"'{folder}/{LATE}/hashes.json'\n{AGAIN}"
    )


def cut_source(folder: Path) -> str:
    source = folder / AHEAD / "kernel.asc"
    source.write_text(source.read_text()[:100])
    return f"{folder}/{AHEAD}: kernel.asc changed, must be as written\n{AGAIN}"


def exchange_units(folder: Path) -> str:
    (folder / AHEAD).rename(folder / "aside")
    (folder / LATE).rename(folder / AHEAD)
    (folder / "aside").rename(folder / LATE)
    return f"{folder}/{LATE}: is not what the manifest lists\n{AGAIN}"


def name_foreign_backend(folder: Path) -> str:
    change(folder / "manifest.json", backend="metal")
    return f"{folder}/manifest.json: backend: is 'metal', must be one of cuda, ascend, ascend-sim\n"


def come_from_another_driver(folder: Path) -> str:
    from tilewheel_build.fingerprint import fingerprint

    for key in (LATE, AHEAD):
        inputs = change(folder / key / "inputs.json", driver="0" * 64)
        sign(folder, key, fingerprint(inputs))
    return f"{folder}/{LATE}: was written by another version of the driver\n{AGAIN}"


def change(path: Path, **values: Any) -> dict[str, Any]:
    tree: dict[str, Any] = {**json.loads(path.read_text()), **values}
    path.write_text(json.dumps(tree, sort_keys=True, indent=1) + "\n")
    return tree


def sign(folder: Path, key: str, identity: str) -> None:
    """Make hashes and manifest fit inputs that were changed."""
    from tilewheel_build.source_only import _hashes

    change(folder / key / "hashes.json", **_hashes(folder / key))
    tree = json.loads((folder / "manifest.json").read_text())
    artifact(tree, key)["fingerprint"] = identity
    change(folder / "manifest.json", **tree)


@pytest.mark.parametrize(
    "spoil",
    [
        lose_manifest,
        lose_launcher,
        lose_unit,
        cut_source,
        exchange_units,
        name_foreign_backend,
        come_from_another_driver,
    ],
    ids=lambda function: function.__name__,
)
def test_directory_that_is_not_as_it_was_written_is_refused_at_once(
    sources: Path, fresh: Any, stand_in: Any, spoil: Callable[[Path], str]
) -> None:
    message = spoil(sources)
    done = finish(fresh, sources, **stand_in.variables)
    assert (done.returncode, done.stderr) == (7, message)
    assert stand_in.calls == []
    assert written(fresh) == []


def test_published_artifacts_are_no_sources(ascend_built: Any, fresh: Any, stand_in: Any) -> None:
    done = finish(fresh, ascend_built.artifacts, **stand_in.variables)
    assert (done.returncode, done.stderr) == (
        7,
        f"{ascend_built.artifacts}: holds finished artifacts, must hold lowered sources\n"
        f"{NAME_ONE}",
    )


def test_sources_of_another_tilelang_are_refused(sources: Path, fresh: Any, stand_in: Any) -> None:
    from tilewheel_build.fingerprint import fingerprint

    for key in (LATE, AHEAD):
        inputs = json.loads((sources / key / "inputs.json").read_text())
        inputs["toolchain"]["tilelang"] = "0.1.14"
        change(sources / key / "inputs.json", **inputs)
        sign(sources, key, fingerprint(inputs))
    done = finish(fresh, sources, **stand_in.variables)
    assert done.returncode == 4
    assert done.stderr.startswith("tilelang: is ")
    assert done.stderr.endswith(
        f", must be 0.1.14, which lowered {LATE}\nhint: pip install tilelang==0.1.14\n"
    )
