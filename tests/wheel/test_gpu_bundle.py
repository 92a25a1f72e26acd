"""The folder for a GPU machine: it installs itself from its wheels and runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tilewheel.version import VERSION

ROOT = Path(__file__).parents[2]
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"


def bundle(out: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    script = [sys.executable, str(ROOT / "wheels" / "gpu_bundle.py"), "--out", str(out)]
    return subprocess.run([*script, *arguments], capture_output=True, text=True, check=False)


def test_bundle_runs_its_wheels_and_tests(
    make_environment: Callable[..., Any], dist: Path, tmp_path: Path
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "artifacts").symlink_to(dist.parent / "out" / "artifacts")
    made = bundle(tmp_path / "out", "--python", PYTHON)
    if "No matching distribution" in made.stderr or "connection" in made.stderr.lower():
        pytest.skip(f"no index has what the bundle needs: {made.stderr[-300:]}")
    assert made.returncode == 0, made.stdout + made.stderr
    folder = tmp_path / "out" / "gpu-bundle"
    names = sorted(path.name.partition("-")[0] for path in (folder / "wheels").iterdir())
    assert names == [
        "apache_tvm_ffi",
        "tilewheel",
        "tilewheel_cu13",
        "torch_c_dlpack_ext",
        "typing_extensions",
    ]

    machine = make_environment("torch", "pytest", "pip", "numpy")
    done = subprocess.run(
        [str(folder / "run.sh"), str(tmp_path / "results"), "test"],
        env={"PATH": os.environ["PATH"], "PYTHON": str(machine.root / "bin" / "python")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    results = tmp_path / "results"
    shown = (results / "env.txt").read_text()
    assert f"tilewheel-cu13 {VERSION}" in shown
    assert f"{folder}/site/tilewheel_cu13" in shown
    assert "artifacts right in place, size and hash" in (results / "verify.txt").read_text()
    rows = json.loads((results / "selftest.json").read_text())["rows"]
    assert {row["status"] for row in rows} <= {"exact", "skipped"}
    assert len(rows) == len(list(dist.parent.glob("out/artifacts/cuda/*/*.so")))
    tests = (results / "tests.txt").read_text().splitlines()
    assert " skipped" in tests[-1] or " passed" in tests[-1]


def test_bundle_over_its_limit_is_refused(dist: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    made = bundle(tmp_path / "out")
    assert made.returncode == 3
    assert made.stderr.endswith("has no manifest\nhint: run `make build`\n")
    (tmp_path / "out" / "artifacts").symlink_to(dist.parent / "out" / "artifacts")
    made = bundle(tmp_path / "out", "--python", PYTHON, "--limit-mb", "0.1")
    if "No matching distribution" in made.stderr or "connection" in made.stderr.lower():
        pytest.skip(f"no index has what the bundle needs: {made.stderr[-300:]}")
    assert made.returncode == 7
    assert made.stderr.endswith("must be at most 0.1 MB, see --limit-mb\n")
