"""The report of real builds: what it says is what was published, and what failed."""

from __future__ import annotations

import json
import platform
import shutil
from pathlib import Path
from typing import Any

import pytest

from tilewheel_build.report import Report, Row, parse, read
from tilewheel_build.report_page import page

HERE = Path(__file__).parent
STAGE = "stage-hidden=16384-cuda-sm_90a"
BROKEN = "broken-mode=device_code-cuda-sm_90a"
OTHER = {"x86_64": "aarch64", "aarch64": "x86_64"}[platform.machine()]


def facts(row: Row) -> dict[str, object]:
    """Return what a manifest has too."""
    names = ("key", "sha256", "size_bytes", "verification", "arch")
    return {
        **{name: getattr(row, name) for name in names},
        **{name: getattr(row, name) for name in ("registers", "spill_bytes")},
        "on_chip_bytes": row.on_chip_bytes,
    }


def published(checkout: Any, artifacts: Path | None = None) -> list[dict[str, object]]:
    """Return the same of the manifest."""
    path = (artifacts or checkout.artifacts) / "manifest.json"
    return [
        {
            **{
                name: item[name] for name in ("key", "sha256", "size_bytes", "verification", "arch")
            },
            **{name: item["resources"][name] for name in ("registers", "spill_bytes")},
            "on_chip_bytes": item["launch"]["dynamic_shared_bytes"]
            + item["resources"]["static_shared_bytes"],
        }
        for item in json.loads(path.read_text())["artifacts"]
    ]


def report_of(checkout: Any, name: str = "report.json") -> Report:
    path = checkout.out / name
    report = read(path)
    assert path.with_suffix(".html").read_text() == page(report)
    return report


def test_first_build_reports_what_it_published_and_what_that_cost(built: Any) -> None:
    report = report_of(built)
    assert [facts(row) for row in report.artifacts] == published(built)
    (run,) = report.runs
    assert (run.machine, run.executor, run.jobs, run.shard) == (
        *(platform.machine(), "local"),
        *(2, None),
    )
    assert report.failures == ()
    assert {row.source for row in report.artifacts} == {"built"}
    assert {row.worker for row in report.artifacts} == {"1", "2"}
    for row in report.artifacts:
        assert row.lower_s is not None
        assert row.compile_s is not None
        assert row.link_s is not None
        assert row.start_s is not None
        assert row.end_s is not None
        assert run.wall_s is not None
        assert min(row.lower_s, row.compile_s, row.link_s, row.cpu_s or 0) > 0
        # The parts are parts of the whole, which is part of the build.
        assert row.lower_s + row.compile_s + row.link_s <= row.end_s - row.start_s
        assert row.end_s <= run.wall_s
        assert row.on_chip_limit_bytes == 232448
        assert (row.peak_bytes or 0) > 100 << 20


def test_report_is_no_artifact(built: Any) -> None:
    assert not [name for name in built.published() if "report" in name]


def test_warm_build_reports_the_cache_and_the_seconds_of_the_first(copy: Any) -> None:
    before = report_of(copy)
    assert copy.run("build", PATH="").returncode == 0
    after = report_of(copy)
    assert {row.source for row in after.artifacts} == {"local"}
    assert {row.worker for row in after.artifacts} == {None}
    assert {row.cpu_s for row in after.artifacts} == {None}
    for old, new in zip(before.artifacts, after.artifacts, strict=True):
        assert facts(new) == facts(old)
        assert new.lower_s == old.lower_s
        assert new.compile_s == pytest.approx((old.compile_s or 0) + (old.link_s or 0), abs=0.002)


def test_build_reports_what_came_from_a_url(copy: Any, tmp_path: Path) -> None:
    pytest.importorskip("fsspec")
    remote = ("--remote-cache", (tmp_path / "remote").as_uri(), "--only", "stage*")
    shutil.rmtree(copy.out / "report.json", ignore_errors=True)
    entries = [path for path in (copy.out / "cache").iterdir() if len(path.name) == 64]
    kernel = copy.kernel("stage_cuda.py")
    kernel.write_text(kernel.read_text() + "\n# changed\n")
    assert copy.run("build", *remote).returncode == 0
    (new,) = {path for path in (copy.out / "cache").iterdir() if len(path.name) == 64} - set(
        entries
    )
    shutil.rmtree(new)
    assert copy.run("build", *remote, PATH="").returncode == 0
    assert [row.source for row in report_of(copy).artifacts] == ["remote"]


def test_failures_are_reported_with_their_message(copy: Any) -> None:
    shutil.copytree(HERE / "broken", copy.root, dirs_exist_ok=True)
    done = copy.run("build", "--only", "stage*", "--only", BROKEN, "--json")
    assert done.returncode == 6
    report = report_of(copy)
    assert parse(done.stdout, where="stdout") == report
    assert [row.key for row in report.artifacts] == [STAGE]
    (failed,) = report.failures
    assert (failed.key, failed.exit_code, failed.worker) == (BROKEN, 6, "1")
    assert failed.message in done.stderr
    assert 'error: identifier "no_such_function" is undefined' in failed.message
    text = (copy.out / "report.html").read_text()
    assert "identifier &#34;no_such_function&#34; is undefined" in text


def test_build_where_everything_fails_is_reported_too(copy: Any) -> None:
    shutil.copytree(HERE / "broken", copy.root, dirs_exist_ok=True)
    assert copy.run("build", "--only", "broken-mode=factory-*").returncode == 5
    report = report_of(copy)
    assert (len(report.artifacts), len(report.failures)) == (0, 1)


def test_build_for_another_processor_reports_beside_this_one(copy: Any) -> None:
    before = (copy.out / "report.json").read_bytes()
    assert copy.run("build", "--machine", OTHER, "--only", "stage*").returncode == 0
    assert (copy.out / "report.json").read_bytes() == before
    (row,) = report_of(copy, f"report-{OTHER}.json").artifacts
    assert (row.machine, row.source) == (OTHER, "linked")
    assert (row.link_s or 0) > 0
    assert [facts(row)] == published(copy, copy.out / f"artifacts-{OTHER}" / "cuda")


def test_merge_puts_the_reports_of_shards_together(copy: Any) -> None:
    kernel = copy.kernel("stage_cuda.py")
    kernel.write_text(kernel.read_text() + "\n# changed\n")
    for index in (1, 2):
        assert copy.run("build", "--shard", f"{index}/2").returncode == 0
    shards = copy.out / "shards"
    done = copy.run("merge", str(shards), "--json")
    assert done.returncode == 0, done.stderr
    report = report_of(copy)
    assert parse(done.stdout, where="stdout") == report
    assert report.command == "merge"
    assert [facts(row) for row in report.artifacts] == published(copy)
    assert [run.shard for run in report.runs] == ["1/2", "2/2"]
    sources = {row.key: row.source for row in report.artifacts}
    assert sources.pop(STAGE) == "built"
    assert set(sources.values()) == {"local"}
    # A row tells of the shard that it was built in.
    for row in report.artifacts:
        shard = str(report.runs[row.run].shard).replace("/", "-of-")
        own = read(shards / platform.machine() / shard / "cuda" / "report.json")
        assert row.key in {item.key for item in own.artifacts}


def test_merge_of_a_shard_without_report_reports_its_manifest(copy: Any) -> None:
    for index in (1, 2):
        assert copy.run("build", "--shard", f"{index}/2").returncode == 0
    first, second = sorted((copy.out / "shards").glob("*/*/cuda"))
    (first / "report.json").unlink()
    (second / "report.json").write_text("{")
    done = copy.run("merge", str(copy.out / "shards"))
    assert done.returncode == 0
    assert f"warning: {second}/report.json: is not readable JSON: " in done.stderr
    report = report_of(copy)
    assert [facts(row) for row in report.artifacts] == published(copy)
    assert {row.source for row in report.artifacts} == {None}
    assert {run.wall_s for run in report.runs} == {None}


def test_page_is_written_again_from_the_json_alone(built: Any, tmp_path: Path) -> None:
    shutil.copyfile(built.out / "report.json", tmp_path / "r.json")
    done = built.run("report", str(tmp_path / "r.json"))
    assert (done.returncode, done.stdout) == (0, f"{tmp_path}/r.html\n")
    assert (tmp_path / "r.html").read_text() == (built.out / "report.html").read_text()
    done = built.run("report", "--html", str(tmp_path / "other" / "page.html"))
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "other" / "page.html").read_text() == (tmp_path / "r.html").read_text()


def test_page_goes_through_a_link_that_stays(built: Any, tmp_path: Path) -> None:
    link = tmp_path / "stdout"
    link.symlink_to("/proc/self/fd/1")  # as /dev/stdout is
    done = built.run("report", "--html", str(link))
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{(built.out / 'report.html').read_text()}{link}\n"
    assert link.is_symlink()


def test_page_that_cannot_be_written_ends_with_2(built: Any, tmp_path: Path) -> None:
    done = built.run("report", "--html", str(tmp_path))
    assert (done.returncode, done.stderr) == (
        2,
        f"--html: {tmp_path} cannot be written: Is a directory\n",
    )
    before = (built.out / "report.json").read_text()
    done = built.run("report", "--html", str(built.out / "report.json"))
    assert done.returncode == 2
    assert done.stderr.endswith("report.json, must not be the report itself\n")
    assert (built.out / "report.json").read_text() == before


def test_path_that_the_terminal_cannot_show_is_no_error(built: Any, tmp_path: Path) -> None:
    page = tmp_path / "ö.html"
    done = built.run("report", "--html", str(page), PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"{tmp_path}/\\xf6.html\n"
    assert page.is_file()


def test_merge_for_another_processor_leaves_the_report_of_this_one(copy: Any) -> None:
    before = (copy.out / "report.json").read_text()
    for index in (1, 2):
        done = copy.run("build", "--machine", OTHER, "--shard", f"{index}/2")
        assert done.returncode == 0, done.stderr
    done = copy.run("merge", str(copy.out / "shards"))
    assert done.returncode == 0, done.stderr
    assert (copy.out / "report.json").read_text() == before
    merged = report_of(copy, f"report-{OTHER}.json")
    assert (merged.command, {row.machine for row in merged.artifacts}) == ("merge", {OTHER})


def test_what_is_no_report_ends_with_7(built: Any, tmp_path: Path) -> None:
    (tmp_path / "r.json").write_text("[]")
    done = built.run("report", str(tmp_path / "r.json"))
    assert (done.returncode, done.stderr) == (
        7,
        f"{tmp_path}/r.json: is a list, must be an object\n",
    )


def test_report_of_shared_json_is_not_asked_for_with_source_only(
    built: Any, tmp_path: Path
) -> None:
    done = built.run("build", "--source-only", "--json", "--out", str(tmp_path / "out"))
    assert (done.returncode, done.stderr) == (
        2,
        "--json: is given, must not be with --source-only\n",
    )
