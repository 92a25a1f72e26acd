"""The build report: its JSON, its sums, and the text that a build prints of it."""

from __future__ import annotations

import json
import platform
import re
import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from report_rows import RUN, report, row

from tilewheel_build import report_cli
from tilewheel_build.errors import ArtifactError
from tilewheel_build.report import FailedRow, Report, Row, Run, dump, parse, read
from tilewheel_build.report_totals import by_operator, lanes, seconds, size, totals

ROOT = Path(__file__).resolve().parents[2]
BUILT = row(
    "scale-hidden=128-cuda-sm_90a",
    verification="device:NVIDIA H200",
    spill_bytes=16,
    on_chip_bytes=116224,
)
CACHED = replace(
    BUILT,
    key="scale-hidden=256-cuda-sm_90a",
    source="local",
    verification="none",
    registers=32,
    spill_bytes=0,
    link_s=None,
    cpu_s=None,
    peak_bytes=900 << 20,
    worker=None,
    start_s=None,
    end_s=None,
)
FETCHED = replace(
    CACHED,
    key="scale-hidden=128-num_vec_cores=any-ascend_sim-dav_3510",
    backend="ascend-sim",
    source="remote",
    registers=None,
    spill_bytes=None,
)
FAILED = FailedRow(
    key="scale-hidden=512-cuda-sm_90a",
    operator="scale",
    backend="cuda",
    arch="sm_90a",
    machine="x86_64",
    message="nvcc ended with 1",
    exit_code=6,
    worker="2",
    start_s=5.0,
    end_s=20.0,
)
REPORT = report(BUILT, CACHED, FETCHED, failures=(FAILED,))


def test_report_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    path.write_text(dump(REPORT))
    assert read(path) == REPORT
    assert json.loads(path.read_text())["schema_version"] == [1, 0]


def changed(**fields: Any) -> str:
    return json.dumps({**json.loads(dump(REPORT)), **fields})


def changed_row(**fields: Any) -> str:
    tree = json.loads(dump(REPORT))
    tree["artifacts"][1].update(fields)
    return json.dumps(tree)


def test_newer_minor_version_and_unknown_fields_are_read() -> None:
    assert parse(changed(schema_version=[1, 7], more=1), where="r") == REPORT


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "r: is not readable JSON: "),
        pytest.param("[" * 100000, "r: is not readable JSON: ", id="nested"),
        ("[]", "r: is a list, must be an object"),
        (changed(schema_version=[2, 0]), "r: schema_version: is [2, 0], must be [1, ...]\nhint: "),
        (changed(schema_version="1.0"), "r: schema_version: is 1.0, must be [1, ...]\nhint: "),
        (changed(artifacts=None), "r: artifacts: is None, must be a list"),
        (changed(failures=[1]), "r: failures[0]: is 1, must be an object"),
        (changed(command=3), "r: command: is 3, must be str"),
        (changed(source_dirty=1), "r: source_dirty: is 1, must be bool | None"),
        (changed_row(size_bytes=1.5), "r: artifacts[1]: size_bytes: is 1.5, must be int"),
        (changed_row(size_bytes=True), "r: artifacts[1]: size_bytes: is True, must be int"),
        (changed_row(size_bytes=-1), "r: artifacts[1]: size_bytes: is -1, must be int"),
        (
            changed_row(lower_s=float("nan")),
            "r: artifacts[1]: lower_s: is nan, must be float | Non",
        ),
        pytest.param(
            changed_row(size_bytes=10**400), "r: artifacts[1]: size_bytes: is 1000", id="huge"
        ),
        (changed_row(source="copied"), "r: artifacts[1]: source: is 'copied', must be Source | No"),
        (changed_row(run=1), f"r: {CACHED.key}: run: is 1, must be one of runs"),
        (
            dump(REPORT).replace('"sha256"', '"hash"', 1),
            "r: artifacts[0]: sha256: is missing, must be given",
        ),
    ],
    ids=lambda value: value[:40] if value.startswith("r: ") else "text",
)
def test_what_is_no_report_is_refused_with_the_field(text: str, message: str) -> None:
    with pytest.raises(ArtifactError) as raised:
        parse(text, where="r")
    assert str(raised.value).startswith(message)


def test_missing_report_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=r"report.json: cannot be read: "):
        read(tmp_path / "report.json")


def test_totals_count_what_this_build_did() -> None:
    sums = totals(REPORT)
    assert (sums.num_artifacts, sums.num_failed, sums.num_built) == (3, 1, 1)
    assert (sums.num_local, sums.num_remote, sums.num_cached, sums.num_verified) == (1, 1, 2, 1)
    assert (sums.size_bytes, sums.wall_s, sums.cpu_s) == (6144, 40.0, 9.5)
    # What came from the cache took its memory in another build.
    assert sums.peak_bytes == 600 << 20


def test_totals_of_a_merge_take_the_longest_shard() -> None:
    runs = (replace(RUN, shard="1/2"), replace(RUN, shard="2/2", wall_s=55.0))
    assert totals(replace(REPORT, runs=runs)).wall_s == 55.0


def test_operators_are_summed_for_each_backend() -> None:
    cuda, ascend = by_operator(REPORT)
    assert (cuda.operator, cuda.backend, cuda.num_artifacts, cuda.num_failed) == (
        *("scale", "cuda"),
        *(2, 1),
    )
    assert (cuda.size_bytes, cuda.lower_s, cuda.compile_s, cuda.link_s) == (4096, 4.0, 14.0, 1.0)
    assert (cuda.max_registers, cuda.num_spilled, cuda.max_on_chip) == (40, 1, 0.5)
    assert (ascend.num_artifacts, ascend.num_cached, ascend.max_registers) == (1, 1, None)
    assert (ascend.compile_s, ascend.link_s) == (7.0, None)


def test_lanes_hold_what_each_worker_ran() -> None:
    first, second = lanes(REPORT)
    assert (first.name, [item.row for item in first.intervals], first.share) == (
        "worker 1",
        [BUILT],
        0.5,
    )
    assert (second.name, [item.row for item in second.intervals]) == ("worker 2", [FAILED])
    assert second.share == 0.75


def test_lanes_of_shards_are_named_after_them() -> None:
    runs = (replace(RUN, shard="1/2"), replace(RUN, shard="2/2"))
    rows = (BUILT, replace(BUILT, key="b", run=1, worker="tcp://10.0.0.2:99"))
    found = lanes(replace(REPORT, runs=runs, artifacts=rows, failures=()))
    assert [lane.name for lane in found] == [
        "shard 1/2, worker 1",
        "shard 2/2, tcp://10.0.0.2:99",
    ]


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 KiB"), (1 << 20, "1.0 MiB"), (822083584, "784 MiB")],
)
def test_sizes_are_short(value: int, text: str) -> None:
    assert size(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.04, "0.0 s"), (59.94, "59.9 s"), (59.96, "1:00 min"), (3599, "59:59 min")],
)
def test_seconds_are_short(value: float, text: str) -> None:
    assert seconds(value) == text
    assert seconds(7325) == "2:02:05 h"


def test_report_for_another_processor_has_its_name(tmp_path: Path) -> None:
    other = {"x86_64": "aarch64", "aarch64": "x86_64"}[platform.machine()]
    assert report_cli.build_path(tmp_path, platform.machine()) == tmp_path / "report.json"
    assert report_cli.build_path(tmp_path, other) == tmp_path / f"report-{other}.json"


def test_json_is_all_that_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report_cli.tell(REPORT, tmp_path / "report.json", has_json=True)
    assert parse(capsys.readouterr().out, where="out") == REPORT


def test_few_artifacts_are_printed_one_by_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report_cli.tell(REPORT, tmp_path / "report.json", has_json=False)
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split() == [
        *(BUILT.key, "2.0", "40", "16", "116224", "2.00", "7.00", "built"),
    ]
    assert lines[-2:] == [
        f"report: {tmp_path}/report.html",
        "3 artifacts (2 from the cache), 1 failed",
    ]


@pytest.mark.parametrize("columns", [None, 40, 100])
def test_no_number_is_cut_off_beside_a_long_key(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    columns: int | None,
) -> None:
    long = replace(BUILT, key=f"scale-{'name' * 40}=[/1]-cuda-sm_90a")
    if columns is not None:
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
        monkeypatch.setenv("COLUMNS", str(columns))
    report_cli.tell(replace(REPORT, artifacts=(long,)), tmp_path / "report.json", has_json=False)
    plain = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out)
    head, first, *rest = plain.splitlines()
    assert head.split() == [
        *("artifact", "KiB", "registers", "spills", "on-chip", "lower", "s", "compile", "s", "from")
    ]
    key, *numbers = first.split()
    assert numbers == ["2.0", "40", "16", "116224", "2.00", "7.00", "built"]
    assert "".join([key, *rest[:-2]]).replace(" ", "") == long.key
    assert len(rest) == 2 or columns is not None


def test_of_many_artifacts_their_operators_are_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    many = tuple(replace(BUILT, key=f"scale-hidden={n}-cuda-sm_90a") for n in range(41))
    report_cli.tell(replace(REPORT, artifacts=many), tmp_path / "report.json", has_json=False)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4
    assert lines[1].split() == [
        *("scale", "cuda", "41", "1", "0", "82.0", "40", "41", "82.00", "328.00"),
    ]


def test_every_field_is_documented() -> None:
    section = (ROOT / "docs" / "scale.md").read_text().split("## The report")[1].split("\n## ")[0]
    named = set(re.findall(r"`(\w+)`", section))
    names = {field.name for kind in (Report, Run, Row, FailedRow) for field in fields(kind)}
    assert names <= named
