"""Writes the tables of docs/performance.md from the records in bench/results.

python bench/report.py [--check]
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import report_cpu

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "performance.md"
RESULTS = ROOT / "bench" / "results"

Record = dict[str, Any]

EAGER_TOKENS = (64, 4096)
"""What the table beside torch's operators shows where records have it; the plots show all."""

# The columns of host time: what they are called in records and in the table.
HOST_COLUMNS = {
    "torch.empty of the outputs": "`empty`",
    "empty TVM-FFI call": "empty call",
    "artifact, no launch": "checks",
    "artifact": "artifact",
    "preallocated": "preallocated",
    "allocating": "allocating",
    "torch.ops": "`torch.ops`",
    "torch.compile": "compiled",
    "peer": "peer",
}


def read_records() -> list[Record]:
    records = []
    for path in sorted(RESULTS.glob("*.jsonl")):
        lines = path.read_text().splitlines()
        records += [{**json.loads(line), "run": path.stem} for line in lines]
    return records


def of_kind(records: list[Record], kind: str) -> list[Record]:
    return [record for record in records if record["kind"] == kind]


def one_a_shape(records: list[Record], name: str) -> list[Record]:
    """Return one record for each case and number of tokens: one that has ``name`` if any has.

    Of several it is that of the run with most of them for the case: a curve is of one run.
    """
    rows = of_kind(records, "kernel_time")
    counts = Counter((row["case"], row["run"]) for row in rows if name in row)
    chosen: dict[tuple[str, int], Record] = {}

    def rank(row: Record) -> tuple[bool, int]:
        return name in row, counts[row["case"], row["run"]]

    for row in rows:
        known = chosen.setdefault((row["case"], row["num_tokens"]), row)
        if rank(row) > rank(known):
            chosen[row["case"], row["num_tokens"]] = row
    return list(chosen.values())


def kernel_time(records: list[Record]) -> str:
    rows = one_a_shape(records, "peer")
    if not rows:
        return _machine(rows)
    lines = [
        _machine(rows),
        "",
        "| case | tokens | us | GB/s | of the ceiling | peer us | ratio |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    for row in rows:
        ours = row["ours"]["median_us"]
        peer = row.get("peer", {}).get("median_us")
        beside = f"{peer:.2f} | {peer / ours:.2f} x" if peer else "- | -"
        share = row["gb_s"] / row["ceiling_gb_s"]
        lines.append(
            f"| {row['case']} | {row['num_tokens']} | {ours:.2f} | {row['gb_s']:.0f} "
            f"| {share:.0%} | {beside} |"
        )
    return "\n".join(lines)


def kernel_step(records: list[Record]) -> str:
    """Return the largest step of each case from a number of tokens to the next."""
    rows = of_kind(records, "kernel_step")
    if not rows:
        return _machine(rows)
    largest: dict[str, Record] = {}
    for row in rows:
        known = largest.setdefault(row["case"], row)
        if _step(row) > _step(known):
            largest[row["case"]] = row
    lines = [_machine(rows), "", "| case | largest step | at tokens | us |", "|---|--:|--:|--:|"]
    for case, row in largest.items():
        ours, following = row["ours"]["median_us"], row["following"]["median_us"]
        count = row["num_tokens"]
        lines.append(
            f"| {case} | {_step(row):.2f} x | {count} to {count + 1} "
            f"| {ours:.2f} to {following:.2f} |"
        )
    return "\n".join(lines)


def _step(row: Record) -> float:
    return float(row["following"]["median_us"] / row["ours"]["median_us"])


def eager(records: list[Record]) -> str:
    rows = [row for row in one_a_shape(records, "eager") if "eager" in row]
    rows = [row for row in rows if row["num_tokens"] in EAGER_TOKENS] or rows
    if not rows:
        return _machine(rows)
    lines = [
        _machine(rows),
        "",
        "| case | tokens | us | of the ceiling | eager us | ratio |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    for row in rows:
        ours, theirs = row["ours"]["median_us"], row["eager"]["median_us"]
        share = row["gb_s"] / row["ceiling_gb_s"]
        lines.append(
            f"| {row['case']} | {row['num_tokens']} | {ours:.2f} | {share:.0%} "
            f"| {theirs:.2f} | {theirs / ours:.1f} x |"
        )
    return "\n".join(lines)


def host_time(records: list[Record]) -> str:
    """Return a row for each case of each run: medians, and what the budgets compare."""
    rows = of_kind(records, "host_time")
    heads = [*HOST_COLUMNS.values(), "preallocated / empty call", "allocating / peer"]
    lines = [_machine(rows)]
    for run in dict.fromkeys(row["run"] for row in rows):
        of_run = [row for row in rows if row["run"] == run]
        lines += ["", f"`{run}`, us:", "", f"| case | {' | '.join(heads)} |"]
        lines.append(f"|---|{'--:|' * len(heads)}")
        for case in dict.fromkeys(row["case"] for row in of_run):
            times = {row["what"]: row["median_us"] for row in of_run if row["case"] == case}
            cells = [_us(times.get(what)) for what in HOST_COLUMNS]
            cells.append(_ratio(times.get("preallocated"), times.get("empty TVM-FFI call")))
            cells.append(_ratio(times.get("allocating"), times.get("peer")))
            lines.append(f"| {case} | {' | '.join(cells)} |")
    return "\n".join(lines)


def cold_start(records: list[Record]) -> str:
    """Return a table for each profile: a row for each phase, a column for each library."""
    rows = of_kind(records, "cold_start")
    lines = [_machine(rows)]
    for profile in dict.fromkeys(row["profile"] for row in rows):
        of_profile = [row for row in rows if row["profile"] == profile]
        # The total last, whoever has which phases.
        phases = dict.fromkeys(row["phase"] for row in of_profile)
        who = {row["who"]: row["runs"] for row in of_profile}
        heads = [f"{name}, {runs} run{'s' * (runs > 1)}" for name, runs in who.items()]
        lines += ["", f"`{profile}`, milliseconds, median and range:", ""]
        lines += [f"| phase | {' | '.join(heads)} |", f"|---|{'--:|' * len(heads)}"]
        for phase in sorted(phases, key=lambda phase: phase.startswith("all")):
            found = {row["who"]: row for row in of_profile if row["phase"] == phase}
            cells = [_range(found[name]) if name in found else "-" for name in who]
            lines.append(f"| {phase} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _us(time_us: float | None) -> str:
    return "-" if time_us is None else f"{time_us:.2f}"


def _ratio(ours: float | None, theirs: float | None) -> str:
    return "-" if ours is None or theirs is None else f"{ours / theirs:.2f} x"


def _range(row: Record) -> str:
    if row["runs"] == 1:
        return f"{row['median_ms']:.1f}"
    return f"{row['median_ms']:.1f} ({row['min_ms']:.1f}-{row['max_ms']:.1f})"


def _machine(rows: list[Record]) -> str:
    if not rows:
        return "No record yet."
    versions = ", ".join(f"{name} {version}" for name, version in rows[0]["versions"].items())
    return f"{rows[0]['device']}, CUDA {rows[0]['cuda']}; {versions}."


SECTIONS = {
    "kernel_time": kernel_time,
    "kernel_step": kernel_step,
    "eager": eager,
    "host_time": host_time,
    "cold_start": cold_start,
    **report_cpu.SECTIONS,
}


def page(text: str, records: list[Record]) -> str:
    """Return the page with the text between each pair of markers made anew."""
    for name, section in SECTIONS.items():
        assert f"<!-- {name} -->" in text, name
        pattern = rf"(<!-- {name} -->\n).*?(<!-- end -->)"
        body = section(records)
        text = re.sub(pattern, lambda m, b=body: f"{m[1]}{b}\n{m[2]}", text, flags=re.DOTALL)
    return text


def main() -> int:
    before = PAGE.read_text()
    after = page(before, read_records())
    if "--check" in sys.argv:
        return 0 if before == after else 1
    PAGE.write_text(after)
    return 0


if __name__ == "__main__":
    sys.exit(main())
