"""What make runs for the variables of its command line."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")


def commands(target: str, *variables: str) -> list[str]:
    """Return the command lines of a target, spaces between words made one."""
    done = subprocess.run(
        ["make", "--dry-run", "--old-file=.venv/.installed", target, *variables],
        cwd=ROOT,
        env={"PATH": os.environ["PATH"]},  # without the variables of a make around the tests
        capture_output=True,
        text=True,
        check=True,
    )
    return [" ".join(line.split()) for line in done.stdout.splitlines()]


def test_build_tests_what_it_built():
    built, tested = commands("build", "OUT=/tmp/an out", "JOBS=3")
    assert built.endswith(" --profile 'dev' --out '/tmp/an out' --jobs '3'")
    assert tested == (
        "TILEWHEEL_ARTIFACTS='/tmp/an out/artifacts' .venv/bin/python -m tilewheel selftest"
    )
    assert commands("selftest", "OUT=/tmp/an out") == [tested]
    assert commands("selftest") == [".venv/bin/python -m tilewheel selftest"]


@pytest.mark.parametrize("target", ["build", "list", "lower", "verify"])
def test_target_and_directory_reach_the_driver(target):
    first = commands(target, "TARGET=cuda,ascend", "OUT=/tmp/an out")[0]
    assert f"-m tilewheel_build {target} --target 'cuda,ascend' " in first
    assert " --out '/tmp/an out'" in first


def test_words_with_spaces_stay_one_argument():
    (line,) = commands("list", "ARCHS=sm_90a, sm_100a", "ONLY=a *")
    assert line.endswith(" --archs 'sm_90a, sm_100a' --only 'a *'")


def test_wheels_are_made_for_both_processors_and_checked():
    made, checked = commands("wheel", "TARGET=cuda", "PROFILE=release", "DIST=/tmp/a dist")
    assert made.startswith(".venv/bin/python wheels/make_wheels.py --target 'cuda' ")
    assert made.endswith(" --machines 'x86_64,aarch64' --dist '/tmp/a dist' --sdist")
    assert " --profile 'release' " in made
    assert checked == ".venv/bin/python wheels/check_wheel.py '/tmp/a dist'"
    assert commands("index") == [".venv/bin/python wheels/make_index.py 'dist'"]
    assert commands("gpu-bundle", "OUT=/tmp/o") == [
        ".venv/bin/python wheels/gpu_bundle.py --out '/tmp/o'"
    ]
