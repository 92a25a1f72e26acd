"""The build report as one HTML page: everything is in it, and nothing in it but its own runs.

Keys and messages are text whatever is in them: the template escapes all, and the page's policy
allows no script and no style but the two of this package, by their hash.
"""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import jinja2
from markupsafe import Markup

from tilewheel_build import report_plots as plots
from tilewheel_build.report import FailedRow, Report, Row, Run
from tilewheel_build.report_totals import (
    Totals,
    by_operator,
    kib,
    lanes,
    on_chip_share,
    seconds,
    size,
    totals,
)
from tilewheel_build.verified import NONE

_TEMPLATES = Path(__file__).parent / "templates"
_SOURCES = {"local": "local cache", "remote": "remote cache", None: "unknown"}
# Neither HTML nor a reader has a use for them; a compiler's output has escape sequences.
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|[\x00-\x08\x0b-\x1f\x7f-\x9f]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """One number at the top of the page; ``kind`` colours it."""

    title: str
    value: str
    note: str = ""
    kind: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """One plot with what explains it; ``legend`` has a colour's class and its name."""

    title: str
    image: Markup
    legend: tuple[tuple[str, str], ...]
    note: str
    is_wide: bool


def page(report: Report) -> str:
    """Return the page of a report."""
    report = _without_controls(report)
    style, script = _asset("report.css"), _asset("report.js")
    text: str = (
        _environment()
        .get_template("report.html.j2")
        .render(
            report=report,
            tiles=tiles(report),
            facts=facts(report),
            plots=_plots(report),
            operators=by_operator(report),
            style=Markup(style),
            script=Markup(script),
            policy="; ".join(
                (
                    "default-src 'none'",
                    f"style-src {_hash(style)}",
                    f"script-src {_hash(script)}",
                    "base-uri 'none'",
                    "form-action 'none'",
                )
            ),
        )
    )
    return text


_Record = TypeVar("_Record", Report, Run, Row, FailedRow)


def _without_controls(report: Report) -> Report:
    def cleaned(record: _Record) -> _Record:
        texts: dict[str, Any] = {}
        for field in fields(record):
            value = getattr(record, field.name)
            if isinstance(value, str):
                texts[field.name] = _CONTROL.sub("", value)
        return replace(record, **texts)

    return replace(
        cleaned(report),
        runs=tuple(map(cleaned, report.runs)),
        artifacts=tuple(map(cleaned, report.artifacts)),
        failures=tuple(map(cleaned, report.failures)),
    )


@cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters.update(
        kib=kib,
        seconds=lambda value: "-" if value is None else f"{value:.2f}",
        number=lambda value: "-" if value is None else str(value),
        percent=lambda value: "-" if value is None else f"{value:.0%}",
        mib=lambda value: "-" if value is None else f"{value / (1 << 20):.0f}",
        verification=lambda value: (
            "not run here" if value == NONE else value.removeprefix("device:")
        ),
        source=lambda value: _SOURCES.get(value, value),
        on_chip_share=on_chip_share,
    )
    return environment


def _asset(name: str) -> str:
    return (_TEMPLATES / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def tiles(report: Report) -> list[Tile]:
    """Return the numbers that a reader looks for first."""
    sums = totals(report)
    made = f"{sums.num_built} compiled" + (f", {sums.num_linked} linked" if sums.num_linked else "")
    found = [
        Tile(title="artifacts", value=str(sums.num_artifacts), note=made),
        Tile(
            title="failed",
            value=str(sums.num_failed),
            note="see below" if sums.num_failed else "none",
            kind="bad" if sums.num_failed else "good",
        ),
        Tile(
            title="from the cache",
            value=str(sums.num_cached),
            note=f"{sums.num_local} local, {sums.num_remote} remote",
        ),
        Tile(
            title="verified",
            value=f"{sums.num_verified}",
            note=f"of {sums.num_artifacts}, by the file's hash",
        ),
        Tile(title="size", value=size(sums.size_bytes), note="all artifacts"),
    ]
    if sums.wall_s is not None:
        note = "the longest shard" if len(report.runs) > 1 else "start to end"
        found.append(Tile(title="wall time", value=seconds(sums.wall_s), note=note))
    found += _cost_tiles(sums, num_runs=len(report.runs))
    return found


def _cost_tiles(sums: Totals, *, num_runs: int) -> list[Tile]:
    if sums.cpu_s is None:
        return []
    note = "nothing was compiled"
    if num_runs > 1:
        note = "all shards"
    elif sums.wall_s:
        note = f"{sums.cpu_s / sums.wall_s:.1f} processors on average"
    found = [Tile(title="CPU time", value=seconds(sums.cpu_s), note=note)]
    if sums.peak_bytes is not None:
        found.append(Tile(title="memory", value=size(sums.peak_bytes), note="the largest unit"))
    return found


def facts(report: Report) -> list[tuple[str, str]]:
    """Return what the page says of the build as a whole, as (name, value)."""
    commit = "unknown" if report.source_commit is None else report.source_commit[:12]
    if report.source_dirty:
        commit += " with changes"
    found = [("tilewheel", report.tilewheel_version), ("commit", commit)]
    if len(report.runs) == 1:
        return found + _run_facts(report.runs[0])
    found.append(("shards", str(len(report.runs))))
    found.append(("for", ", ".join(sorted({run.machine for run in report.runs})) or "unknown"))
    started = sorted(run.started for run in report.runs if run.started is not None)
    return found + ([("started", _time(started[0]))] if started else [])


def _run_facts(run: Run) -> list[tuple[str, str]]:
    found = [("for", run.machine)]
    if run.shard is not None:
        found.append(("shard", run.shard))
    if run.started is not None:
        found.append(("started", _time(run.started)))
    if run.executor is not None:
        jobs = "" if run.jobs is None else f", {run.jobs} at once"
        found.append(("on", f"{'this machine' if run.executor == 'local' else run.executor}{jobs}"))
    return found


def _time(started: str) -> str:
    return started.replace("T", " ").replace("+00:00", " UTC")


def _plots(report: Report) -> list[Plot]:
    rows, sums = report.artifacts, by_operator(report)
    found = (
        _plot(
            "Seconds of each variant",
            plots.seconds_plot(rows),
            legend=(("s1", "lower"), ("s2", "compile"), ("s3", "link")),
            note=_seconds_note(rows),
            is_wide=True,
        ),
        _plot(
            "Workers over time",
            plots.timeline_plot(lanes(report)),
            legend=_timeline_legend(report),
            note="on the right: how much of the time from first to last unit a worker was busy",
            is_wide=True,
        ),
        _plot("Bytes and artifacts of each operator", plots.sizes_plot(sums)),
        _plot(
            "Shared memory, unified buffer",
            plots.on_chip_plot(rows),
            note="a mark for each artifact that needs any, against what a block or core may have; "
            "on the right: the largest",
        ),
        _plot(
            "Registers of the CUDA artifacts",
            plots.registers_plot(rows),
            legend=(("s1", "no spills"), ("bad", "spills")),
            note=_spill_note(rows),
        ),
    )
    return [plot for plot in found if plot is not None]


def _plot(
    title: str,
    image: Markup | None,
    *,
    legend: tuple[tuple[str, str], ...] = (),
    note: str = "",
    is_wide: bool = False,
) -> Plot | None:
    """Return the plot, or None where nothing is known to draw."""
    if image is None:
        return None
    return Plot(title=title, image=image, legend=legend, note=note, is_wide=is_wide)


def _seconds_note(rows: tuple[Row, ...]) -> str:
    cached = sum(row.source in ("local", "remote") for row in rows)
    if not cached:
        return ""
    return "what came from a cache: as it was when it was compiled, the link within compile"


def _timeline_legend(report: Report) -> tuple[tuple[str, str], ...]:
    found = [("s1", "compiled")]
    if any(row.source == "linked" for row in report.artifacts):
        found.append(("s3", "linked only"))
    if any(isinstance(row, FailedRow) and row.worker for row in report.failures):
        found.append(("bad", "failed"))
    return tuple(found)


def _spill_note(rows: tuple[Row, ...]) -> str:
    spilled = sorted(
        (row for row in rows if row.spill_bytes), key=lambda row: -(row.spill_bytes or 0)
    )
    if not spilled:
        return "nothing spills"
    named = [f"{row.key} ({row.spill_bytes} B)" for row in spilled[:6]]
    more = f" and {len(spilled) - 6} more" if len(spilled) > 6 else ""
    return f"spills: {', '.join(named)}{more}"
