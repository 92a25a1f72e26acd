"""What make runs for the variables of its command line."""

from __future__ import annotations

import os
import platform
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


def test_shard_is_built_without_a_test_of_what_is_not_published():
    (built,) = commands("build", "SHARD=2/3")
    assert built.endswith(" --shard '2/3'")
    merged, tested = commands("merge", "OUT=/tmp/an out")
    assert merged == (
        ".venv/bin/python -m tilewheel_build merge --out '/tmp/an out' '/tmp/an out/shards'"
    )
    assert tested.endswith(" -m tilewheel selftest")
    assert commands("merge", "SHARDS=/tmp/parts")[0].endswith(" --out 'out' '/tmp/parts'")


def test_caches_cluster_and_memory_are_passed_on():
    built, _ = commands("build", "CACHE=/a b", "REMOTE_CACHE=s3://b/c", "DASK=x:1", "MEMORY=8G")
    assert built.endswith(" --cache '/a b' --remote-cache 's3://b/c' --dask 'x:1' --memory '8G'")


def test_report_of_the_output_directory_is_written_again():
    assert commands("report", "OUT=/tmp/an out") == [
        ".venv/bin/python -m tilewheel_build report --out '/tmp/an out'"
    ]


def test_artifacts_for_another_processor_are_built_and_not_tested():
    other = "aarch64" if platform.machine() == "x86_64" else "x86_64"
    (built,) = commands("build", f"CPU={other}")
    assert built.endswith(f" --machine '{other}'")
    assert len(commands("build", f"CPU={platform.machine()}")) == 2
    assert len(commands("merge", f"CPU={other}")) == 1
    assert commands("verify", f"CPU={other}")[0].endswith(f" --machine '{other}'")
    assert "--machine" not in commands("verify")[0]


@pytest.mark.parametrize("target", ["build", "list", "lower", "verify"])
def test_target_and_directory_reach_the_driver(target):
    first = commands(target, "TARGET=cuda,ascend", "OUT=/tmp/an out")[0]
    assert f"-m tilewheel_build {target} --target 'cuda,ascend' " in first
    assert " --out '/tmp/an out'" in first


@pytest.mark.parametrize("target", ["build", "list", "lower"])
def test_a_profile_may_be_a_file(target):
    first = commands(target, "PROFILE=my profiles/v4.yaml")[0]
    assert " --profile 'my profiles/v4.yaml' " in first


def test_clean_removes_the_output_directory_that_is_named(tmp_path):
    out = tmp_path / "an out"
    (out / "artifacts").mkdir(parents=True)
    # dist is the checkout's: the command runs where it has none.
    (tmp_path / "Makefile").write_text((ROOT / "Makefile").read_text())
    (tmp_path / "out").mkdir()
    make = ["make", "clean", f"OUT={out}"]
    subprocess.run(make, cwd=tmp_path, env={"PATH": os.environ["PATH"]}, check=True)
    assert not out.exists()
    assert (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["OUT", "DIST"])
@pytest.mark.parametrize("out", [".", "..", "/", "out/.."])
def test_clean_never_removes_the_checkout(tmp_path, name, out):
    (tmp_path / "Makefile").write_text((ROOT / "Makefile").read_text())
    (tmp_path / "out").mkdir()
    done = subprocess.run(
        ["make", "clean", f"{name}={out}", "SHELL=/bin/bash"],
        cwd=tmp_path,
        env={"PATH": f"{refuse_rm(tmp_path)}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert f"OUT, DIST: is '{out}', must not hold the checkout" in done.stdout
    assert not (tmp_path / "removed").exists()


def refuse_rm(folder: Path) -> Path:
    """Return a directory whose ``rm`` only says that it was called: a fault must not cost files."""
    stub = folder / "bin" / "rm"
    stub.parent.mkdir()
    stub.write_text(f"#!/bin/sh\ntouch '{folder}/removed'\n")
    stub.chmod(0o755)
    return stub.parent


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
    cached, _ = commands("wheel", "CACHE=/a b", "REMOTE_CACHE=s3://b/c")
    assert " --cache '/a b' --remote-cache 's3://b/c' --machines " in cached
    assert "cache" not in made
    assert commands("gpu-bundle", "OUT=/tmp/o") == [
        ".venv/bin/python wheels/gpu_bundle.py --out '/tmp/o'"
    ]


def test_benchmarks_take_what_to_measure_and_where_to_write():
    assert commands("bench-gpu") == [".venv/bin/python bench/run.py --out 'bench/results'"]
    options = ("RESULTS=/tmp/r", "BENCH_ONLY=a b", "TOKENS=64", "BENCH_PROFILE=kimi-k2")
    line = (
        ".venv/bin/python bench/run.py --out '/tmp/r' --only 'a b' --tokens '64' "
        "--profile 'kimi-k2'"
    )
    assert commands("bench-gpu", *options) == [line]
    assert "make bench-gpu" in " ".join(commands("bench", *options))


def test_benchmarks_of_the_cpu_leave_records_where_the_tables_are_made_from():
    _, built, simulated, reported = commands("bench-cpu")
    assert built == (
        ".venv/bin/python bench/build_time.py 'bench/results/cpu_build_time.jsonl' --out 'out' "
        "--wheels 'dist' --artifacts 'out/bench/artifacts'"
    )
    assert simulated == (
        "TILEWHEEL_ARTIFACTS='out/bench/artifacts' .venv/bin/python bench/simulator_speed.py "
        "'bench/results/cpu_simulator_speed.jsonl'"
    )
    assert reported == ".venv/bin/python bench/report.py && .venv/bin/python bench/plot.py"


def test_a_quick_benchmark_leaves_the_recorded_results_alone():
    lines = commands("bench-cpu", "BENCH_QUICK=1", "OUT=/tmp/o")
    assert "bench/results" not in "".join(lines)
    assert "'/tmp/o/bench/cpu_build_time.jsonl'" in lines[1]
    assert "report.py" not in "".join(lines)
