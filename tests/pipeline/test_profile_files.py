"""Profiles in files, from a model's configuration to the artifacts that a server loads."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
MODEL = ROOT / "tests/unit/data/models/deepseek-v4-flash.json"
PLAIN = "scale-hidden=128-with_bias=false-cuda-sm_90a"
BIASED = "scale-hidden=any-with_bias=true-cuda-sm_90a"


def profiles(directory: Path) -> dict[str, list[str]]:
    """Return the profiles of each artifact in the manifest of a directory."""
    tree = json.loads((directory / "manifest.json").read_text())
    return {artifact["key"]: artifact["profiles"] for artifact in tree["artifacts"]}


def test_build_publishes_what_the_file_selects_under_its_name(copy: Any, tmp_path: Path) -> None:
    path = tmp_path / "my-model.yaml"
    path.write_text("scale: [{hidden: 128}]\n")
    done = copy.run("build", "--profile", str(path), "--target", "cuda")
    assert done.returncode == 0, done.stderr
    assert "1 artifacts (1 from the cache), 0 failed" in done.stdout
    assert "my-model" in profiles(copy.artifacts)[PLAIN]
    assert list(profiles(copy.artifacts)) == [PLAIN]


def test_shards_of_a_file_merge_to_its_build(copy: Any, tmp_path: Path) -> None:
    path = tmp_path / "my-model.yaml"
    path.write_text("scale: all\n")
    for shard in ("1/2", "2/2"):
        done = copy.run("build", "--profile", str(path), "--target", "cuda", "--shard", shard)
        assert done.returncode == 0, done.stderr
    assert copy.run("merge", str(copy.out / "shards")).returncode == 0
    found = profiles(copy.artifacts)
    assert sorted(found) == [PLAIN, BIASED]
    assert all("my-model" in names for names in found.values())


def test_lower_takes_a_file(copy: Any, tmp_path: Path) -> None:
    path = tmp_path / "my-model.yaml"
    path.write_text("scale: [{hidden: any}]\n")
    done = copy.run("lower", "--profile", str(path), "--target", "cuda")
    assert done.stdout == f"{copy.out}/lowered/cuda/sm_90a/{BIASED}.cu\n"


def test_a_wrong_file_ends_with_2_before_anything_is_built(copy: Any, tmp_path: Path) -> None:
    before = copy.published()
    path = tmp_path / "my-model.yaml"
    path.write_text("scale: [{hidden: 127}]\nstages: all\n")
    done = copy.run("build", "--profile", str(path), "--target", "cuda")
    assert done.returncode == 2
    assert [line.partition(": is ")[0] for line in done.stderr.splitlines() if ": is " in line] == [
        f"{path}: scale[0].hidden",
        f"{path}: stages",
    ]
    assert copy.published() == before


@pytest.fixture(scope="module")
def v4(tmp_path_factory: pytest.TempPathFactory, ascend_built: Any) -> Any:
    """Return this repository with a directory where the router of a model was built from a file."""
    out = tmp_path_factory.mktemp("v4")
    checkout = replace(ascend_built, root=ROOT, out=out, backend="ascend-sim")
    # What zig compiled of the C++ library takes two minutes anew.
    (out / "cache").mkdir()
    (out / "cache" / "zig").symlink_to(ascend_built.out / "cache" / "zig")
    done = checkout.run("grid", "--model", str(MODEL), "--target", "ascend-sim")
    assert done.returncode == 0, done.stderr
    profile = str(checkout.out / "profiles" / "deepseek-v4-flash.yaml")
    only = ("--target", "ascend-sim", "--only", "topk_gate-*", "--jobs", "1")
    done = checkout.run("build", "--profile", profile, *only)
    assert done.returncode == 0, done.stdout + done.stderr
    return checkout


ROUTER = "topk_gate-num_experts=256-num_topk=6-num_vec_cores=any-ascend_sim-dav_3510"


def test_what_was_built_for_a_model_is_installed_then(v4: Any) -> None:
    done = v4.run(
        "grid",
        *("--model", str(MODEL), "--target", "ascend-sim"),
        TILEWHEEL_ARTIFACTS=str(v4.out / "artifacts"),
    )
    assert f"  installed      {ROUTER}\n" in done.stdout


def test_a_server_preloads_the_profile_by_its_name(
    v4: Any, run_script: Callable[..., list[str]]
) -> None:
    script = (
        "import tilewheel as tw\n"
        "for loaded in tw.preload(device='ascend-sim', profile='deepseek-v4-flash',"
        " operators=('topk_gate',)):\n"
        "    print(loaded.key, loaded.error)\n"
    )
    printed = run_script(script, TILEWHEEL_ARTIFACTS=str(v4.out / "artifacts"))
    assert printed == [f"{ROUTER} None"]
