"""Sums over a build report, as a whole and for each operator, and how numbers are written."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tilewheel_build.report import FailedRow, Report, Row, Run
from tilewheel_build.verified import NONE


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """A whole report in numbers; ``cpu_s`` is what this build itself spent.

    The shards of a merge ran beside each other: ``wall_s`` is the longest.
    """

    num_artifacts: int
    num_failed: int
    num_built: int
    num_linked: int
    num_local: int
    num_remote: int
    num_verified: int
    size_bytes: int
    wall_s: float | None
    cpu_s: float | None
    peak_bytes: int | None

    @property
    def num_cached(self) -> int:
        """Artifacts that no compiler ran for."""
        return self.num_local + self.num_remote


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorTotals:
    """The artifacts of one operator and backend; seconds are those of their compilation."""

    operator: str
    backend: str
    num_artifacts: int
    num_failed: int
    num_cached: int
    num_verified: int
    size_bytes: int
    lower_s: float | None
    compile_s: float | None
    link_s: float | None
    max_registers: int | None
    num_spilled: int
    max_on_chip: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """One unit in a worker's lane."""

    row: Row | FailedRow
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """What one worker ran, in order; ``share`` is how much of its run's time it was busy."""

    name: str
    intervals: tuple[Interval, ...]
    share: float


def totals(report: Report) -> Totals:
    """Return the sums of a report."""
    rows = report.artifacts
    sources = [row.source for row in rows]
    return Totals(
        num_artifacts=len(rows),
        num_failed=len(report.failures),
        num_built=sources.count("built"),
        num_linked=sources.count("linked"),
        num_local=sources.count("local"),
        num_remote=sources.count("remote"),
        num_verified=sum(row.verification != NONE for row in rows),
        size_bytes=sum(row.size_bytes for row in rows),
        wall_s=max((run.wall_s for run in report.runs if run.wall_s is not None), default=None),
        cpu_s=sum_known(row.cpu_s for row in rows),
        peak_bytes=max(
            (row.peak_bytes for row in rows if row.peak_bytes and row.cpu_s is not None),
            default=None,
        ),
    )


def by_operator(report: Report) -> list[OperatorTotals]:
    """Return the sums of each operator and backend, the one that takes most bytes first."""
    names = {(item.operator, item.backend) for item in report.units}
    sums = []
    for operator, backend in sorted(names):
        rows = [r for r in report.artifacts if (r.operator, r.backend) == (operator, backend)]
        failed = [r for r in report.failures if (r.operator, r.backend) == (operator, backend)]
        sums.append(_operator(operator, backend, rows, len(failed)))
    return sorted(sums, key=lambda item: (-item.size_bytes, item.operator, item.backend))


def _operator(operator: str, backend: str, rows: Sequence[Row], num_failed: int) -> OperatorTotals:
    shares = [share for share in map(on_chip_share, rows) if share is not None]
    return OperatorTotals(
        operator=operator,
        backend=backend,
        num_artifacts=len(rows),
        num_failed=num_failed,
        num_cached=sum(row.source in ("local", "remote") for row in rows),
        num_verified=sum(row.verification != NONE for row in rows),
        size_bytes=sum(row.size_bytes for row in rows),
        lower_s=sum_known(row.lower_s for row in rows),
        compile_s=sum_known(row.compile_s for row in rows),
        link_s=sum_known(row.link_s for row in rows),
        max_registers=max((r.registers for r in rows if r.registers is not None), default=None),
        num_spilled=sum(bool(row.spill_bytes) for row in rows),
        max_on_chip=max(shares, default=None),
    )


def on_chip_share(row: Row) -> float | None:
    """Return how much of the limit a row's shared memory or unified buffer is."""
    if row.on_chip_bytes is None or not row.on_chip_limit_bytes:
        return None
    return row.on_chip_bytes / row.on_chip_limit_bytes


def lanes(report: Report) -> list[Lane]:
    """Return what is known of when workers ran what, a lane for each worker of each run."""
    found: dict[tuple[int, str], list[Interval]] = {}
    for row in report.units:
        if row.worker is not None and row.start_s is not None and row.end_s is not None:
            interval = Interval(row=row, start_s=row.start_s, end_s=max(row.start_s, row.end_s))
            found.setdefault((row.run, row.worker), []).append(interval)
    ends: dict[int, float] = {}
    for (run, _), intervals in found.items():
        ends[run] = max([ends.get(run, 0.0), *(item.end_s for item in intervals)])
    starts = {
        run: min(item.start_s for (at, _), items in found.items() if at == run for item in items)
        for run in ends
    }
    return [
        Lane(
            name=_lane_name(report.runs[run], worker, has_shards=len(report.runs) > 1),
            intervals=tuple(sorted(intervals, key=lambda item: item.start_s)),
            share=_share(intervals, ends[run] - starts[run]),
        )
        for (run, worker), intervals in sorted(found.items(), key=_lane_order)
    ]


def _lane_order(item: tuple[tuple[int, str], list[Interval]]) -> tuple[int, int, str]:
    run, worker = item[0]
    return run, int(worker) if worker.isdecimal() and len(worker) < 9 else 0, worker


def _lane_name(run: Run, worker: str, *, has_shards: bool) -> str:
    name = f"worker {worker}" if worker.isdecimal() else worker
    return f"shard {run.shard}, {name}" if has_shards and run.shard else name


def _share(intervals: Iterable[Interval], whole_s: float) -> float:
    busy_s = sum(item.end_s - item.start_s for item in intervals)
    return min(1.0, busy_s / whole_s) if whole_s > 0 else 1.0


def sum_known(values: Iterable[float | None]) -> float | None:
    """Return the sum of the numbers that are known, or None where none is."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def kib(size_bytes: int) -> str:
    """Return bytes in KiB, for columns."""
    return f"{size_bytes / 1024:.1f}"


def size(size_bytes: float) -> str:
    """Return bytes with the unit that fits."""
    unit = "B"
    for larger in ("KiB", "MiB", "GiB"):
        if size_bytes < 1000:
            break
        size_bytes, unit = size_bytes / 1024, larger
    digits = 0 if unit == "B" or size_bytes >= 99.95 else 1
    return f"{size_bytes:.{digits}f} {unit}"


def seconds(value: float) -> str:
    """Return seconds as a person writes them: ``4.2 s``, ``3:05 min``, ``1:02:03 h``."""
    if value < 59.95:
        return f"{value:.1f} s"
    whole = round(value)
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes}:{rest:02} min"
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02} h"
