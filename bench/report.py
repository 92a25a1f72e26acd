"""Writes the tables of docs/performance.md from the records in bench/results.

python bench/report.py [--check]
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import report_cpu

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "performance.md"
RESULTS = ROOT / "bench" / "results"

Record = dict[str, Any]


def read_records() -> list[Record]:
    records = []
    for path in sorted(RESULTS.glob("*.jsonl")):
        lines = path.read_text().splitlines()
        records += [{**json.loads(line), "run": path.stem} for line in lines]
    return records


def kernel_time(records: list[Record]) -> str:
    rows = [record for record in records if record["kind"] == "kernel_time"]
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


def host_time(records: list[Record]) -> str:
    rows = [record for record in records if record["kind"] == "host_time"]
    lines = [_machine(rows)]
    for run in dict.fromkeys(row["run"] for row in rows):
        lines += ["", f"`{run}`:", "", "| call | us, median | range |", "|---|--:|--:|"]
        for row in (row for row in rows if row["run"] == run):
            spread = f"{row['min_us']:.2f}-{row['max_us']:.2f}"
            lines.append(f"| {row['what']} | {row['median_us']:.2f} | {spread} |")
    return "\n".join(lines)


def cold_start(records: list[Record]) -> str:
    rows = [record for record in records if record["kind"] == "cold_start"]
    lines = [
        _machine(rows),
        "",
        "| who | phase | ms, median | range | runs |",
        "|---|---|--:|--:|--:|",
    ]
    for row in rows:
        lines.append(
            f"| {row['who']} | {row['phase']} | {row['median_ms']:.1f} "
            f"| {row['min_ms']:.1f}-{row['max_ms']:.1f} | {row['runs']} |"
        )
    return "\n".join(lines)


def _machine(rows: list[Record]) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in rows[0]["versions"].items())
    return f"{rows[0]['device']}, CUDA {rows[0]['cuda']}; {versions}."


SECTIONS = {"kernel_time": kernel_time, "host_time": host_time, "cold_start": cold_start}
SECTIONS |= report_cpu.SECTIONS


def page(text: str, records: list[Record]) -> str:
    """Return the page with the text between each pair of markers made anew."""
    for name, section in SECTIONS.items():
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
