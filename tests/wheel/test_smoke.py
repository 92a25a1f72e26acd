"""Wheels in a fresh environment: no compiler, no network, no TileLang, nothing to write to."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tilewheel.version import VERSION

DISTRIBUTIONS = ("tilewheel", "tilewheel-cu13", "tilewheel-ascend-sim")

CALL = """
import torch
import tilewheel as tw

scores = torch.randn(50, 256)
with tw.backend("ascend-sim"):
    idx = tw.moe.topk_gate(scores, num_topk=8)
assert torch.equal(idx, tw.reference.moe.topk_gate(scores, 8))
print(tw.__version__, tw.why("topk_gate", device="cuda-sm_90a", num_experts=256, num_topk=8))
"""


@pytest.fixture(scope="module")
def environment(make_environment: Callable[..., Any], dist: Path) -> Iterator[Any]:
    """Return an environment with the wheels installed, all of whose packages are read-only."""
    fresh = make_environment("torch", "apache-tvm-ffi")
    before = fresh.files()
    fresh.install("--no-compile", "tilewheel[cu13,ascend-sim]", links=dist)
    packages = [path for path in fresh.site.iterdir() if path.name.startswith("tilewheel")]
    for path in (p for package in packages for p in (package, *package.rglob("*"))):
        path.chmod(0o555 if path.is_dir() else 0o444)
    installed = fresh.files()
    yield fresh
    assert fresh.files() == installed
    for path in (p for package in packages for p in (package, *package.rglob("*")) if p.is_dir()):
        path.chmod(0o755)
    done = fresh.pip("uninstall", "--yes", *DISTRIBUTIONS)
    assert done.returncode == 0, done.stderr
    assert fresh.files() == before


def artifacts(environment: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(environment.run("tilewheel", "list", "--json"))[
        "artifacts"
    ]
    return found


def test_every_artifact_of_both_wheels_is_listed_with_its_source(environment: Any) -> None:
    found = artifacts(environment)
    assert {item["source"] for item in found} == {
        f"tilewheel-cu13 {VERSION}",
        f"tilewheel-ascend-sim {VERSION}",
    }
    files = [path.stem for path in environment.site.glob("tilewheel_*/*/*.so")]
    assert sorted(item["key"] for item in found) == sorted(files)


def test_environment_names_each_installed_package_of_artifacts(environment: Any) -> None:
    printed = environment.run("tilewheel", "env", "--json")
    assert json.loads(printed)["problems"] == []
    for name in DISTRIBUTIONS[1:]:
        assert f"{name} {VERSION}" in printed
        assert str(environment.site / name.replace("-", "_")) in printed


def test_hash_of_every_file_is_right(environment: Any) -> None:
    count = len(artifacts(environment))
    printed = environment.run("tilewheel", "verify", "--hash")
    assert printed == f"{count} of {count} artifacts right in place, size and hash\n"


def test_every_simulated_artifact_is_exact(environment: Any) -> None:
    tree = json.loads(environment.run("tilewheel", "selftest", "*-ascend_sim-*", "--json"))
    assert tree["exact"] == len(tree["rows"]) > 0


def test_operators_run_on_the_simulator_and_explain_the_choice_for_a_gpu(environment: Any) -> None:
    printed = environment.run("python", "-c", CALL)
    key = "topk_gate-num_experts=256-num_topk=8-cuda-sm_90a"
    assert printed.startswith(
        f"{VERSION} topk_gate num_experts=256 num_topk=8 on cuda-sm_90a: {key}\n"
    )
    assert f"from tilewheel-cu13 {VERSION}: " in printed


BESIDE = """
import os
import torch
import tilewheel as tw

scores = torch.randn(50, 256)
with tw.backend("ascend-sim"), tw.simulator.race_detection():
    idx = tw.moe.topk_gate(scores, num_topk=8)
assert torch.equal(idx, tw.reference.moe.topk_gate(scores, 8))
kernel = tw.load("topk_gate", device="ascend-sim", num_experts=256, num_topk=8)
print(kernel.path)
with open("/proc/self/maps") as file:
    print(*sorted({line.split()[-1] for line in file if "libtilewheel_ascend_sim" in line}))
"""


def test_overlay_comes_first_and_has_its_own_simulator(environment: Any, tmp_path: Path) -> None:
    installed = environment.site / "tilewheel_ascend_sim"
    (library,) = installed.glob("libtilewheel_ascend_sim-*.so")
    name = re.sub("-[0-9a-f]{12}", "-0123456789ab", library.name)
    # As another build would be: all the names of the library are others, of the same length.
    overlay = tmp_path / "overlay"
    (overlay / "dav_3510").mkdir(parents=True)
    tree = json.loads((installed / "manifest.json").read_text())
    for entry in (*tree["artifacts"], *tree["libraries"]):
        content = (installed / entry["path"]).read_bytes()
        assert library.name.encode() in content
        content = content.replace(library.name.encode(), name.encode())
        entry["path"] = entry["path"].replace(library.name, name)
        entry["sha256"] = hashlib.sha256(content).hexdigest()
        (overlay / entry["path"]).write_bytes(content)
    (overlay / "manifest.json").write_text(json.dumps(tree))

    variables = {"TILEWHEEL_ARTIFACTS": str(overlay)}
    listed = json.loads(environment.run("tilewheel", "list", "--json", **variables))["artifacts"]
    assert {item["source"] for item in listed} == {
        "TILEWHEEL_ARTIFACTS",
        f"tilewheel-cu13 {VERSION}",
        f"tilewheel-ascend-sim {VERSION}",
    }
    path, libraries = environment.run("python", "-c", BESIDE, **variables).splitlines()
    assert Path(path).is_relative_to(overlay)
    assert sorted(libraries.split()) == sorted([str(overlay / name), str(library)])


def test_changed_file_is_found(make_environment: Callable[..., Any], dist: Path) -> None:
    fresh = make_environment("torch", "apache-tvm-ffi")
    fresh.install("--no-compile", "tilewheel", "tilewheel-ascend-sim", links=dist)
    path = sorted(fresh.site.glob("tilewheel_ascend_sim/*/*.so"))[0]
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    done = fresh.start("tilewheel", "verify", "--hash")
    assert done.returncode == 7
    assert f"sha256 of {path} is " in done.stdout
    assert f"hint: reinstall tilewheel-ascend-sim {VERSION}" in done.stdout


def test_watch_of_this_environment_sees_writing(environment: Any, tmp_path: Path) -> None:
    done = environment.start("python", "-c", f"open({str(tmp_path / 'file')!r}, 'w')")
    assert done.returncode == 99
    assert environment.start("python", "-c", "import tilelang").returncode == 1


@pytest.mark.parametrize(
    "version",
    [
        pytest.param("==0.1.0", id="oldest"),
        pytest.param("==0.1.7", id="middle"),
        pytest.param(">=0.1,<0.2", id="newest"),
    ],
)
def test_artifacts_run_under_every_release_of_tvm_ffi(
    version: str, make_environment: Callable[..., Any], dist: Path, tmp_path: Path
) -> None:
    fresh = make_environment("torch")
    done = fresh.pip("download", "--no-deps", "--dest", str(tmp_path), f"apache-tvm-ffi{version}")
    if done.returncode:
        pytest.skip(f"no index has apache-tvm-ffi{version} for this Python: {done.stderr[-300:]}")
    fresh.install("--no-deps", "apache-tvm-ffi", links=tmp_path)
    fresh.install("--no-compile", "tilewheel[ascend-sim]", links=dist)
    (wheel,) = tmp_path.glob("*.whl")
    found = re.match(r"apache_tvm_ffi-([0-9.]+(?:post[0-9]+)?)-", wheel.name)
    assert found is not None
    script = "from importlib import metadata; print(metadata.version('apache-tvm-ffi'))"
    assert fresh.run("python", "-c", script) == f"{found[1]}\n"
    tree = json.loads(fresh.run("tilewheel", "selftest", "*-ascend_sim-*", "--json"))
    assert tree["exact"] == len(tree["rows"]) > 0
    assert fresh.run("python", "-c", CALL).startswith(f"{VERSION} ")
