"""The benchmarks: what they measure, what they write, and the page made of it, without a GPU."""

from __future__ import annotations

import argparse
import copy
import importlib
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

import tilewheel as tw
from tilewheel import dispatch
from tilewheel.families import FAMILIES
from tilewheel.ffi import tvm_ffi
from tilewheel.key import Key

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "bench"))  # scripts, not a package

import cold_start  # noqa: E402
import host_time  # noqa: E402
import measure  # noqa: E402
import report  # noqa: E402
import run as bench_run  # noqa: E402
import warm_peer  # noqa: E402
from cases import BUILDERS, CASES, HOST_CASES, Case, case_of, tensors_of  # noqa: E402

SPECS = [yaml.safe_load(path.read_text()) for path in sorted((ROOT / "specs").glob("*/*.yaml"))]
ON_CUDA = {spec["operator"] for spec in SPECS if "cuda" in spec["backends"]}
EVERY_CASE = {case.name: case for case in (*CASES, *HOST_CASES)}


def release_keys() -> list[Key]:
    keys = [
        Key.parse(line)
        for path in sorted((ROOT / "tests" / "golden").glob("*.txt"))
        for line in path.read_text().splitlines()
    ]
    return [key for key in keys if str(key.target) == "cuda-sm_90a"]


def addresses(values: Any) -> set[int]:
    return {tensor.data_ptr() for tensor in tensors_of(values)}


def test_every_operator_with_cuda_artifacts_is_measured():
    assert set(BUILDERS) == ON_CUDA
    assert {case.operator for case in CASES} == ON_CUDA
    assert {case.operator for case in HOST_CASES} == ON_CUDA


def test_names_of_cases_are_unique():
    assert len({case.name for case in CASES}) == len(CASES)
    assert len({case.name for case in HOST_CASES}) == len(HOST_CASES)


@pytest.mark.parametrize("key", release_keys(), ids=str)
def test_every_variant_has_a_case_of_its_own_parameters(key):
    wanted = dict(key.parameters)
    case = case_of(key.operator, wanted)
    assert case.operator == key.operator
    found = dict(case.parameters)
    assert set(found) == set(wanted)
    assert {name: found[name] for name in wanted if wanted[name] != "any"} == {
        name: value for name, value in wanted.items() if value != "any"
    }
    assert case.bytes(2) >= case.bytes(1) > 0


@pytest.mark.parametrize("case", EVERY_CASE.values(), ids=EVERY_CASE)
def test_what_torch_composes_is_what_ours_returns(case: Case):
    torch.manual_seed(0)
    inputs = case.inputs(3, "cpu")
    ours = list(tensors_of(case.allocating(tw, copy.deepcopy(inputs))))
    assert ours
    if case.eager is None:
        assert case.operator == "stochastic_cast"
        return
    for x, y in zip(ours, tensors_of(case.eager(inputs)), strict=True):
        # The eager gradient of a weight is one partial sum.
        whole = x.sum(0, keepdim=True) if x.shape != y.shape else x
        assert (whole.shape, whole.dtype) == (y.shape, y.dtype)
        allowed = 0.01 * whole.double().abs().max()
        near = (whole.double() - y.double()).abs() <= allowed
        # e2m1: torch has no operator that rounds ties to even.
        assert near.double().mean() > 0.98


@pytest.mark.parametrize("case", EVERY_CASE.values(), ids=EVERY_CASE)
def test_preallocated_call_writes_what_it_is_given(case: Case):
    if case.preallocated is None:
        assert case.ours is case.allocating
        return
    assert case.ours is case.preallocated
    inputs = case.inputs(2, "cpu")
    written = addresses(case.preallocated(tw, inputs)) & addresses(inputs)
    # pre_big_fuse_fwd takes one of its three results.
    assert len(written) == (1 if "pre_big" in case.name else len(written))
    assert written


@pytest.fixture
def everything_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put an empty function in the place of every artifact, for CPU tensors too."""
    nothing = tvm_ffi().convert(lambda *_: None)
    table: dict[tuple[object, ...], Any] = {
        ("per_token_recast", torch.device("cpu"), "int8", "float8_e4m3fn", "float32", True, None): (
            nothing
        )
    }

    def bind(operator: str, device: Any, **parameters: Any) -> Any:
        return table.setdefault((operator, device, *parameters.values(), None), nothing)

    for family in FAMILIES:
        importlib.import_module(f"tilewheel.{family}")
    for name, module in list(sys.modules.items()):
        if not name.startswith("tilewheel."):
            continue
        if getattr(module, "bound", None) is dispatch.bound and module is not dispatch:
            monkeypatch.setattr(module, "bound", table)
        if getattr(module, "bind", None) is not None:
            monkeypatch.setattr(module, "bind", bind)
    monkeypatch.setattr(dispatch, "bound", table)


class Peer:
    """Stands for the peer: whatever is called returns nothing."""

    def __getattr__(self, name: str) -> Any:
        return Peer()

    def __call__(self, *arguments: object, **more: object) -> None:
        return None


@pytest.mark.parametrize("case", HOST_CASES, ids=[case.name for case in HOST_CASES])
def test_every_case_has_its_host_times(everything_loaded, case: Case):
    timed = host_time.rows(case, Peer(), "cpu", with_compile=True)
    always = {"empty TVM-FFI call", "artifact", "allocating", "torch.ops", "torch.compile"}
    assert always <= set(timed) <= set(host_time.COLUMNS)
    assert ("preallocated" in timed) == (case.preallocated is not None)
    assert ("peer" in timed) == (case.peer is not None)
    assert ("torch.empty of the outputs" in timed) == (
        case.operator not in ("apply_rotary", "grad_w_reduce")
    )
    for what in set(timed) - {"torch.compile"}:
        timed[what]()


def test_every_host_time_has_a_column_in_the_table():
    assert list(report.HOST_COLUMNS) == list(host_time.COLUMNS)


def test_zero_tokens_are_a_view_of_any_tensor():
    tokens = host_time.NUM_TOKENS
    assert host_time.without_tokens(torch.zeros(16, tokens, 24)).shape == (16, 0, 24)
    assert host_time.without_tokens(torch.zeros(tokens, 64)).shape == (0, 64)
    weight = torch.zeros(4, 64)
    assert host_time.without_tokens(weight) is weight
    assert host_time.without_tokens(3) == 3


def test_budgets_are_judged_by_ratios_of_one_run():
    times = {"empty TVM-FFI call": 1.0, "artifact": 4.0, "preallocated": 5.0, "allocating": 9.0}
    assert list(host_time.verdicts({**times, "peer": 20.0})) == [
        "preallocated: 5.00 x an empty call, budget 1.5 x: missed; "
        "1.00 x of it above the bare artifact",
        "allocating: 0.45 x the peer, budget 0.5 x: met",
    ]
    assert list(host_time.verdicts({**times, "preallocated": 1.5, "peer": 18.0})) == [
        "preallocated: 1.50 x an empty call, budget 1.5 x: met; "
        "-2.50 x of it above the bare artifact",
        "allocating: 0.50 x the peer, budget 0.5 x: missed",
    ]


def test_runs_stop_where_the_next_would_end_too_late():
    assert len(cold_start.repeat(dict, 3, time.monotonic() + 60)) == 3
    assert cold_start.repeat(dict, 3, time.monotonic() - 1) == []

    def slow() -> dict[str, float]:
        time.sleep(0.2)
        return {}

    assert len(cold_start.repeat(slow, 9, time.monotonic() + 0.3)) == 1


def test_cold_start_has_a_record_for_each_phase_and_says_how_many_runs():
    runs = [{"import": 0.02, "all, after torch": 0.3}, {"import": 0.04, "all, after torch": 0.5}]
    first, second = cold_start.records_of("tilewheel", "kimi-k2", runs)
    assert first == {
        "kind": "cold_start",
        "profile": "kimi-k2",
        "who": "tilewheel",
        "phase": "import",
        "median_ms": 30.0,
        "min_ms": 20.0,
        "max_ms": 40.0,
        "times_ms": [20.0, 40.0],
        "runs": 2,
    }
    assert second["phase"] == "all, after torch"


@pytest.mark.parametrize("module", ["first_calls", "cases"])
def test_nothing_of_a_library_is_there_before_its_clock_starts(module):
    code = f"import sys, {module}; print([m for m in ('tilewheel', 'measure') if m in sys.modules])"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=ROOT / "bench", capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_what_is_compiled_beforehand_is_every_case_that_the_peer_has(monkeypatch):
    gate = ("topk_gate", {"num_experts": 160, "num_topk": 4})
    norm = ("mhc_pre_big_fuse_fwd", {"hidden": 64, "output_norm": True})
    monkeypatch.setattr(cold_start, "wanted_of", lambda profile: [gate, norm])
    warm_peer.cases_of.cache_clear()
    names = set(warm_peer.cases_of("p"))
    warm_peer.cases_of.cache_clear()
    with_peer = {name for name, case in EVERY_CASE.items() if case.peer is not None}
    assert names == with_peer | {"topk_gate E160 k4"}


def test_peer_is_asked_for_what_it_has():
    norm = ("mhc_pre_big_fuse_fwd", {"hidden": "any", "output_norm": True})
    gate = ("topk_gate", {"num_experts": 256, "num_topk": 6})
    assert cold_start.with_peer([norm, gate]) == [gate]


MACHINE = {"device": "D", "cuda": "13.0", "versions": {"torch": "2"}, "run": "d_x"}


def kernel_record(case: str, **more: Any) -> dict[str, Any]:
    ours = {"ours": {"median_us": 2.0}, "gb_s": 50.0, "ceiling_gb_s": 100}
    return {"kind": "kernel_time", "case": case, "num_tokens": 64, **MACHINE, **ours, **more}


def test_tables_are_made_of_the_records():
    records = [
        kernel_record("a", eager={"median_us": 9.0}),
        kernel_record("a", peer={"median_us": 4.0}),
        kernel_record("b"),
    ]
    kernels = report.kernel_time(records).splitlines()
    assert kernels[0] == "D, CUDA 13.0; torch 2."
    assert kernels[-2:] == [
        "| a | 64 | 2.00 | 50 | 50% | 4.00 | 2.00 x |",
        "| b | 64 | 2.00 | 50 | 50% | - | - |",
    ]
    assert report.eager(records).splitlines()[-1] == "| a | 64 | 2.00 | 50% | 9.00 | 4.5 x |"


def test_curve_of_a_case_is_of_one_run():
    peer = {"peer": {"median_us": 4.0}}
    few = [kernel_record("a", run="first", ours={"median_us": 7.0}, **peer)]
    many = [kernel_record("a", run="z", num_tokens=count, **peer) for count in (64, 256)]
    shown = report.one_a_shape([*few, *many], "peer")
    assert [(row["num_tokens"], row["run"]) for row in shown] == [(64, "z"), (256, "z")]


def test_host_times_of_a_case_are_a_row_with_its_ratios():
    times = {"empty TVM-FFI call": 1.0, "preallocated": 3.0, "allocating": 5.0, "peer": 20.0}
    records = [
        {"kind": "host_time", "case": "a", "what": what, "median_us": us, **MACHINE}
        for what, us in times.items()
    ]
    assert report.host_time(records).splitlines()[-1] == (
        "| a | - | 1.00 | - | - | 3.00 | 5.00 | - | - | 20.00 | 3.00 x | 0.25 x |"
    )


def test_cold_starts_of_a_profile_stand_side_by_side():
    runs = {"ours": ([0.01, 0.03], 0.1), "peer": ([5.0], 9.0)}
    records = [
        {**record, **MACHINE}
        for who, (imports, total) in runs.items()
        for record in cold_start.records_of(
            who, "p", [{"import": s, "all, after torch": total} for s in imports]
        )
    ]
    assert report.cold_start(records).splitlines()[-5:] == [
        "",
        "| phase | ours, 2 runs | peer, 1 run |",
        "|---|--:|--:|",
        "| import | 20.0 (10.0-30.0) | 5000.0 |",
        "| all, after torch | 100.0 (100.0-100.0) | 9000.0 |",
    ]


def test_page_names_the_largest_step_of_a_case():
    def step(case: str, num_tokens: int, before: float, after: float) -> dict[str, object]:
        times = {"ours": {"median_us": before}, "following": {"median_us": after}}
        return kernel_record(case, kind="kernel_step", num_tokens=num_tokens, **times)

    rows = [step("a", 1, 1.0, 1.1), step("a", 132, 4.0, 5.0), step("b", 64, 2.0, 1.9)]
    lines = report.kernel_step(rows).splitlines()
    assert lines[-2:] == [
        "| a | 1.25 x | 132 to 133 | 4.00 to 5.00 |",
        "| b | 0.95 x | 64 to 65 | 2.00 to 1.90 |",
    ]


def test_page_without_records_says_so():
    page = "".join(f"<!-- {name} -->\nbefore\n<!-- end -->\n" for name in report.SECTIONS)
    assert report.page(page, []).count("No record yet.") == len(report.SECTIONS)
    assert "before" not in report.page(page, [])


def test_page_shows_the_records_that_are_kept():
    text = report.PAGE.read_text()
    assert report.page(text, report.read_records()) == text, "run: python bench/report.py"


def test_every_record_says_what_machine_it_was_taken_on():
    for record in report.read_records():
        assert {"kind", "device", "versions"} <= set(record), record
        assert {"num_sms", "cuda"} <= set(record) or {"num_cores", "load_average"} <= set(record)
        # A section for each, but for those that share one.
        shared = {"build_first", "build_scaling", "build_rebuild", "wheel_size"}
        assert record["kind"] in {*report.SECTIONS, *shared}


def test_records_are_named_by_the_device(tmp_path):
    options = argparse.Namespace(out=tmp_path, only="gate", tokens="64", profile="", no_peer=True)
    kernel, step, host, cold = bench_run.commands(options, "NVIDIA GeForce RTX 5090")
    assert kernel[1:] == [
        str(ROOT / "bench" / "kernel_time.py"),
        str(tmp_path / "geforce_rtx_5090_kernel_time.jsonl"),
        *("--only", "gate", "--tokens", "64", "--no-peer"),
    ]
    assert step[1:] == [
        str(ROOT / "bench" / "kernel_time.py"),
        str(tmp_path / "geforce_rtx_5090_kernel_step.jsonl"),
        *("--steps", "--only", "gate", "--no-peer"),
    ]
    assert host[2:] == [
        *(str(tmp_path / "geforce_rtx_5090_host_time.jsonl"), "--only", "gate", "--no-peer")
    ]
    assert cold[2:] == [str(tmp_path / "geforce_rtx_5090_cold_start.jsonl"), "--no-peer"]
    assert bench_run.slug("NVIDIA H200") == "h200"


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_machine_without_a_gpu_is_told_so(tmp_path):
    command = [sys.executable, str(ROOT / "bench" / "run.py"), "--out", str(tmp_path / "results")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("bench: torch finds no CUDA device here, must have one\nhint: ")
    assert not (tmp_path / "results").exists()


def test_summary_names_its_unit():
    assert measure.summary([3.0, 1.0, 2.0], unit="ms") == {
        "median_ms": 2.0,
        "min_ms": 1.0,
        "max_ms": 3.0,
        "times_ms": [3.0, 1.0, 2.0],
    }


def test_error_of_a_measurement_is_one_short_line():
    assert measure.short(ValueError("a" * 200 + "\nb")) == "ValueError: " + "a" * 90


def test_profile_of_the_cold_start_is_in_the_specs():
    assert any(cold_start.PROFILE in spec["profiles"] for spec in SPECS)
