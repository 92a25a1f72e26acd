"""Making the build report: of what a build did, or of what the shards of a merge report."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

from tilewheel.key import Key, Target
from tilewheel.manifest import Artifact
from tilewheel.version import VERSION
from tilewheel_build import report
from tilewheel_build.ascend import UB_LIMIT_BYTES, UB_LIMIT_SIMT_BYTES
from tilewheel_build.backends import BACKENDS
from tilewheel_build.checkout import source_state
from tilewheel_build.cuda import SHARED_LIMIT_BYTES
from tilewheel_build.driver import BuildResult, Built, Failure, Span
from tilewheel_build.errors import ArtifactError
from tilewheel_build.report import FailedRow, Report, Row, Run
from tilewheel_build.shard import Merged, Shard
from tilewheel_build.unit import source_name
from tilewheel_build.verified import verification_status


class Clock:
    """When a build started, by the calendar and by the clock that its spans are measured with."""

    def __init__(self) -> None:
        self.started = datetime.now(timezone.utc).isoformat(timespec="seconds")
        self.start_s = time.monotonic()

    def since_start(self) -> float:
        """Return the seconds since then."""
        return time.monotonic() - self.start_s


def build_report(
    results: Sequence[BuildResult],
    *,
    root: Path,
    machine: str,
    clock: Clock,
    jobs: int | None,
    shard: Shard | None = None,
) -> Report:
    """Return the report of a build that has just ended; without ``jobs`` a cluster ran it."""
    commit, is_dirty = source_state(root)
    return Report(
        command="build",
        tilewheel_version=VERSION,
        source_commit=commit,
        source_dirty=is_dirty,
        runs=(
            Run(
                machine=machine,
                shard=None if shard is None else str(shard),
                started=clock.started,
                wall_s=round(clock.since_start(), 3),
                executor="dask" if jobs is None else "local",
                jobs=jobs,
            ),
        ),
        artifacts=tuple(
            _row(item, root, machine, clock) for result in results for item in result.built
        ),
        failures=tuple(
            _failed_row(item, machine, clock) for result in results for item in result.failures
        ),
    )


def merge_report(merged: Sequence[Merged], warn: Callable[[str], None]) -> Report:
    """Return the report of a merge: of each artifact what its shard reports, if it does."""
    runs: list[Run] = []
    rows: list[Row] = []
    for whole in merged:
        reported: dict[tuple[str, str], Row] = {}
        for shard, directory in whole.shards:
            unknown = Run(machine=whole.machine, shard=str(shard))
            shard_run, shard_rows = _shard_report(directory, unknown, warn)
            if shard_run not in runs:
                runs.append(shard_run)
            index = runs.index(shard_run)
            for row in shard_rows:
                reported[row.key, row.sha256] = replace(row, run=index)
        for artifact in sorted(whole.manifest.artifacts, key=lambda item: item.key.sort_key()):
            row = _manifest_row(artifact, whole)
            found = reported.get((row.key, row.sha256))
            rows.append(
                row if found is None else replace(found, verification=artifact.verification)
            )
    first = merged[0].manifest
    return Report(
        command="merge",
        tilewheel_version=first.tilewheel_version,
        source_commit=first.source_commit,
        source_dirty=first.source_dirty,
        runs=tuple(runs),
        artifacts=tuple(rows),
        failures=(),
    )


def _shard_report(
    directory: Path, unknown: Run, warn: Callable[[str], None]
) -> tuple[Run, tuple[Row, ...]]:
    """Return what the report beside a shard's manifest tells; a shard without one is as good."""
    path = directory / report.FILE_NAME
    if not path.is_file():
        return unknown, ()
    try:
        found = report.read(path)
    except ArtifactError as error:
        warn(f"{error}; what it says is left out of the report")
        return unknown, ()
    return found.runs[0] if found.runs else unknown, found.artifacts


def _row(item: Built, root: Path, machine: str, clock: Clock) -> Row:
    facts, cost, key = item.facts, item.cost, item.unit.variant.key
    link_s = cost.link_s if cost else None
    is_link_only = cost is not None and cost.is_link_only
    compile_s = facts.compile_s
    if link_s is not None and not is_link_only:
        # The unit's own clock covers both.
        compile_s = max(0.0, compile_s - link_s)
    row = _artifact_row(
        key,
        machine=machine,
        sha256=facts.sha256,
        size_bytes=facts.size_bytes,
        verification=verification_status(root, facts.sha256),
    )
    resources = facts.resources
    worker, start_s, end_s = _span(item.span, clock)
    return replace(
        row,
        source=item.level or ("linked" if is_link_only else "built"),
        registers=resources.registers,
        spill_bytes=resources.spill_bytes,
        on_chip_bytes=facts.launch.dynamic_shared_bytes + (resources.static_shared_bytes or 0),
        on_chip_limit_bytes=on_chip_limit_bytes(
            key.target, item.unit.cache / source_name(item.unit.variant)
        ),
        dropped_buffer_versions=resources.dropped_buffer_versions,
        lower_s=_rounded(facts.lower_s),
        compile_s=_rounded(compile_s),
        link_s=_rounded(link_s),
        cpu_s=_rounded(cost.cpu_s if cost else None),
        peak_bytes=facts.peak_bytes or None,
        worker=worker,
        start_s=start_s,
        end_s=end_s,
    )


def _manifest_row(artifact: Artifact, whole: Merged) -> Row:
    """Return what the manifest alone tells."""
    resources = artifact.resources
    suffix = BACKENDS[artifact.key.target.backend].source_suffix
    source = whole.directory / (artifact.path.removesuffix(".so") + suffix)
    row = _artifact_row(
        artifact.key,
        machine=whole.machine,
        sha256=artifact.sha256,
        size_bytes=artifact.size_bytes,
        verification=artifact.verification,
    )
    return replace(
        row,
        registers=resources.registers,
        spill_bytes=resources.spill_bytes,
        on_chip_bytes=artifact.launch.dynamic_shared_bytes + (resources.static_shared_bytes or 0),
        on_chip_limit_bytes=on_chip_limit_bytes(artifact.key.target, source),
        dropped_buffer_versions=resources.dropped_buffer_versions,
    )


def _artifact_row(
    key: Key, *, machine: str, sha256: str, size_bytes: int, verification: str
) -> Row:
    return Row(
        key=str(key),
        operator=key.operator,
        backend=key.target.backend,
        arch=key.target.arch,
        machine=machine,
        sha256=sha256,
        size_bytes=size_bytes,
        source=None,
        verification=verification,
    )


def _failed_row(failed: Failure, machine: str, clock: Clock) -> FailedRow:
    worker, start_s, end_s = _span(failed.span, clock)
    return FailedRow(
        key=str(failed.key),
        operator=failed.key.operator,
        backend=failed.key.target.backend,
        arch=failed.key.target.arch,
        machine=machine,
        message=failed.message,
        exit_code=failed.exit_code,
        worker=worker,
        start_s=start_s,
        end_s=end_s,
    )


def _span(span: Span | None, clock: Clock) -> tuple[str | None, float | None, float | None]:
    if span is None:
        return None, None, None
    start_s, end_s = span.start_s - clock.start_s, span.end_s - clock.start_s
    return span.worker, _rounded(start_s), _rounded(end_s)


def on_chip_limit_bytes(target: Target, source: Path) -> int | None:
    """Return what one block or core may have on the chip; ``source`` is the device source."""
    if target.backend == "cuda":
        return SHARED_LIMIT_BYTES.get(target.arch)
    try:
        # As the compiler's check does: SIMT code leaves less.
        return UB_LIMIT_SIMT_BYTES if "asc_vf_call" in source.read_text() else UB_LIMIT_BYTES
    except OSError:
        return None


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)
