"""The benchmarks of the CPU side: what they choose to build, what they write, their tables."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import yaml

ROOT = Path(__file__).parents[2]
BENCH = ROOT / "bench"


@pytest.fixture
def module(monkeypatch) -> Callable[[str], ModuleType]:
    monkeypatch.syspath_prepend(str(BENCH))
    return importlib.import_module


def times(median: float, unit: str = "s") -> dict[str, float]:
    return {f"median_{unit}": median, f"min_{unit}": median, f"max_{unit}": median}


def machine() -> dict[str, object]:
    versions = {"tilewheel": "0.1.0", "ziglang": "0.17.1"}
    return {"device": "A", "num_cores": 2, "load_average": 0.5, "versions": versions}


def test_one_variant_of_each_operator_and_target_is_built(module):
    builds = module("builds")
    everything = builds.variants_of("smoke", ["sm_90a", "dav_3510"], "topk_gate-*")
    assert [str(variant.key) for variant in builds.one_of_each(everything)] == [
        "topk_gate-num_experts=72-num_topk=6-cuda-sm_90a",
        "topk_gate-num_experts=72-num_topk=6-num_vec_cores=any-ascend_sim-dav_3510",
    ]


def test_what_is_not_in_the_cache_is_not_called_cached(module, tmp_path):
    builds = module("builds")
    variants = builds.variants_of("smoke", ["sm_90a"], "topk_gate-*")
    place = builds.Place(out=tmp_path, cache=tmp_path / "cache")
    assert builds.cached_targets(variants, place) == []


def test_a_build_that_fails_ends_the_benchmark_with_its_words(module, tmp_path):
    builds = module("builds")
    place = builds.Place(out=tmp_path / "out", cache=tmp_path / "cache")
    with pytest.raises(SystemExit, match=r"build: ended with 3:\n(.*\n)*only: 'no_such-key'"):
        builds.build(["no_such-key"], place)


def test_records_have_machine_versions_and_load(module, tmp_path):
    cpu = module("cpu")
    path = tmp_path / "a" / "b.jsonl"
    with cpu.records(path) as write:
        write(kind="one", runs=1)
        part = path.with_name("b.jsonl.part")
        assert len(part.read_text().splitlines()) == 1  # what is measured is not lost
        write(kind="two", runs=2)
    first, second = (json.loads(line) for line in path.read_text().splitlines())
    assert (first["kind"], second["kind"]) == ("one", "two")
    assert first["num_cores"] == len(os.sched_getaffinity(0))
    assert first["device"]
    assert first["load_average"] >= 0
    assert {"tilewheel", "python", "torch", "tilelang", "ziglang"} <= set(first["versions"])


def test_interrupted_benchmark_keeps_the_records_of_before(module, tmp_path):
    path = tmp_path / "results.jsonl"
    path.write_text("old\n")

    def interrupted() -> None:
        with module("cpu").records(path) as write:
            write(kind="a")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert path.read_text() == "old\n"
    assert json.loads((tmp_path / "results.jsonl.part").read_text())["kind"] == "a"
    with module("cpu").records(path) as write:
        write(kind="b")
    assert [file.name for file in tmp_path.iterdir()] == ["results.jsonl"]
    assert json.loads(path.read_text())["kind"] == "b"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--only", "nonsense*"], "only: 'nonsense*' matches none of "),
        (["--profile", "nonsense"], "profile: is 'nonsense', must be one of "),
        (["--archs", "sm_1"], "'sm_1'"),
        (["--repeats", "0"], "--repeats: is '0', must be an integer of at least 1"),
    ],
)
def test_wrong_words_are_refused_before_anything_is_measured(tmp_path, arguments, message):
    output = tmp_path / "results.jsonl"
    done = subprocess.run(
        [sys.executable, str(BENCH / "build_time.py"), str(output), *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_all_repeats_are_kept(module):
    assert module("spread").spread([3.0, 1.0, 2.00004], "ms") == {
        "median_ms": 2.0,
        "min_ms": 1.0,
        "max_ms": 3.0,
        "times_ms": [3.0, 1.0, 2.0],
    }


def test_wheels_are_written_by_distribution_and_tag(module, tmp_path):
    name = "tilewheel_cu13-0.1.0-py3-none-manylinux_2_28_x86_64.whl"
    (tmp_path / name).write_bytes(b"12345")
    found = []
    module("build_time").wheels(tmp_path, lambda **fields: found.append(fields))
    assert found == [
        {
            "kind": "wheel_size",
            "wheel": "tilewheel_cu13",
            "tag": "manylinux_2_28_x86_64",
            "size_bytes": 5,
        }
    ]


def test_a_budget_that_is_missed_says_so(module):
    unit = {"kind": "build_unit", "operator": "o", "target": "t", **machine()}
    rebuilt = {"kind": "build_rebuild", "case": "unchanged", "num_artifacts": 9, "wall": times(2)}
    lines = module("report_cpu").budgets(
        [
            {**unit, "cold": times(4.5), "command_cpu": times(5)},
            {**unit, "operator": "p", "cold": times(6), "command_cpu": times(7)},
            rebuilt,
        ]
    )
    assert lines.splitlines()[2:] == [
        "| lower and compile one variant, cold, one core | 5 s | 1 of 2 variants; the slowest "
        "6.0 s, p for t; whole commands had 5.0 to 7.0 s of the processor | no |",
        "| build of an unchanged tree | 5 s | 2.00 s for 9 artifacts | yes |",
    ]


def test_workers_are_compared_with_one_of_them(module):
    record = {"kind": "build_scaling", "case": "8 artifacts", **machine()}
    text = module("report_cpu").build_whole(
        [
            {**record, "workers": "1 process", "wall": times(12)},
            {**record, "workers": "2 processes", "wall": times(8)},
        ]
    )
    assert text.splitlines() == [
        "A, 2 cores, load average 0.5 to 0.5; tilewheel 0.1.0, ziglang 0.17.1.",
        "",
        "| build | how | s, median | range | speed-up |",
        "|---|---|--:|--:|--:|",
        "| 8 artifacts | 1 process | 12.00 | 12.00-12.00 | 1.00 x |",
        "| 8 artifacts | 2 processes | 8.00 | 8.00-8.00 | 1.50 x |",
    ]


def test_the_tables_of_the_page_are_those_of_the_records():
    command = [sys.executable, str(BENCH / "report.py"), "--check"]
    assert subprocess.run(command, check=False).returncode == 0, "run: python bench/report.py"


def test_every_operator_with_an_ascend_kernel_is_timed_on_the_simulator(module):
    specs = [yaml.safe_load(path.read_text()) for path in (ROOT / "specs").glob("*/*.yaml")]
    on_ascend = {spec["operator"] for spec in specs if "ascend" in spec["backends"]}
    assert {case.operator for case in module("simulator_cases").cases()} == on_ascend


def test_the_budget_of_the_simulator_is_of_a_case_that_is_measured(module):
    names = {case.name for case in module("simulator_cases").cases()}
    assert module("report_cpu").SIMULATED_CAST in names


def test_the_simulator_is_timed_beside_the_reference(tmp_path):
    import tilewheel as tw

    simulated = [e.artifact.key for e in tw.artifacts() if "ascend_sim" in str(e.artifact.key)]
    if len(simulated) < 2 or "fused_weight" not in {key.operator for key in simulated}:
        pytest.skip("no ascend-sim artifacts are built")
    output = tmp_path / "speed.jsonl"
    subprocess.run(
        [sys.executable, str(BENCH / "simulator_speed.py"), str(output), "--only", "fused_weight"],
        env={**os.environ, "BENCH_QUICK": "1"},
        check=True,
    )
    records = [json.loads(line) for line in output.read_text().splitlines()]
    plain, races, *started = records
    assert [record["races"] for record in (plain, races)] == [False, True]
    assert plain["case"] == races["case"] == "fused_weight, 4 x 2048"
    assert len(plain["ours"]["times_ms"]) == len(plain["reference"]["times_ms"]) == plain["runs"]
    assert {"import tilewheel, after torch", "load one more artifact"} <= {
        record["phase"] for record in started
    }
