"""The build report on the command line: ``report``, and what ``build`` prints and writes of it."""

from __future__ import annotations

import argparse
import platform
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tilewheel_build.errors import OptionError
from tilewheel_build.publish import write_text
from tilewheel_build.report import FILE_NAME, Report, Row, dump, read
from tilewheel_build.report_totals import OperatorTotals, by_operator, kib, sum_known, totals

_LEAST_WIDTH, _PIPE_WIDTH = 90, 1000
"""A terminal gets folded keys, so that numbers stay whole; others get lines as long as they are."""

_ROWS_PRINTED = 40
"""Of more artifacts than this only their operators are printed; the page has them all."""


def add_build_options(command: argparse.ArgumentParser) -> None:
    """Add the options of the commands that make a report."""
    command.add_argument(
        "--json", action="store_true", help="print the report as JSON, and no tables"
    )


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the arguments of ``report``."""
    command.add_argument(
        "report", nargs="?", type=Path, help=f"what a build wrote (default: <out>/{FILE_NAME})"
    )
    command.add_argument(
        "--html", type=Path, metavar="PATH", help="where to write (default: beside the report)"
    )


def run(options: argparse.Namespace, out: Path) -> None:
    """Run ``report``."""
    source: Path = options.report or out / FILE_NAME
    target: Path = options.html or source.with_suffix(".html")
    page = _page(read(source))
    if target.resolve() == source.resolve():
        raise OptionError(f"--html: is {target}, must not be the report itself")
    try:
        write_text(target, page)
    except OSError as error:
        raise OptionError(f"--html: {target} cannot be written: {error.strerror}") from error
    print(target)


def build_path(out: Path, machine: str) -> Path:
    """Return where a build writes its report; those for another processor have its name."""
    name = FILE_NAME if machine == platform.machine() else f"report-{machine}.json"
    return out / name


def write(report: Report, path: Path) -> None:
    """Write the report and its page."""
    write_text(path, dump(report))
    write_text(path.with_suffix(".html"), _page(report))


def _page(report: Report) -> str:
    # The other commands need no jinja2.
    from tilewheel_build.report_page import page

    return page(report)


def tell(report: Report, path: Path, *, has_json: bool) -> None:
    """Print what a build did."""
    if has_json:
        sys.stdout.write(dump(report))
        return
    console = Console(
        highlight=False, markup=False, width=None if sys.stdout.isatty() else _PIPE_WIDTH
    )
    console.width = max(console.width, _LEAST_WIDTH)
    rows = report.artifacts
    console.print(artifact_table(rows) if len(rows) <= _ROWS_PRINTED else operator_table(report))
    sums = totals(report)
    print(f"report: {path.with_suffix('.html')}")
    print(
        f"{sums.num_artifacts} artifacts ({sums.num_cached} from the cache), "
        f"{sums.num_failed} failed"
    )


def artifact_table(rows: Sequence[Row]) -> Table:
    """Return one line for each artifact."""
    table = _table("artifact", "KiB", "registers", "spills", "on-chip", "lower s", "compile s")
    table.add_column("from", no_wrap=True)
    for row in rows:
        table.add_row(
            row.key,
            kib(row.size_bytes),
            *map(_or_dash, (row.registers, row.spill_bytes, row.on_chip_bytes)),
            _seconds(row.lower_s),
            _seconds(row.compile_s),
            row.source,
        )
    return table


def operator_table(report: Report) -> Table:
    """Return one line for each operator of a backend."""
    titles = ("artifacts", "failed", "cached", "KiB", "registers", "spilled", "lower s")
    table = _table("operator", *titles, "compile s")
    for item in by_operator(report):
        table.add_row(*_operator_cells(item))
    return table


def _operator_cells(item: OperatorTotals) -> tuple[str, ...]:
    return (
        f"{item.operator} {item.backend}",
        str(item.num_artifacts),
        str(item.num_failed),
        str(item.num_cached),
        kib(item.size_bytes),
        _or_dash(item.max_registers),
        str(item.num_spilled),
        _seconds(item.lower_s),
        _seconds(sum_known((item.compile_s, item.link_s))),
    )


def _table(first: str, *titles: str) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column(first, overflow="fold")
    for title in titles:
        table.add_column(title, justify="right", no_wrap=True)
    return table


def _or_dash(value: int | None) -> str:
    return "-" if value is None else str(value)


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
