"""A build report that tests of its JSON and of its page start from."""

from __future__ import annotations

from dataclasses import replace

from tilewheel_build.report import FailedRow, Report, Row, Run

RUN = Run(
    machine="x86_64",
    shard=None,
    started="2026-11-30T09:00:00+00:00",
    wall_s=40.0,
    executor="local",
    jobs=2,
)


def row(key: str, **fields: object) -> Row:
    """Return a row of a CUDA artifact that this build compiled."""
    plain = Row(
        key=key,
        operator="scale",
        backend="cuda",
        arch="sm_90a",
        machine="x86_64",
        sha256="a" * 64,
        size_bytes=2048,
        source="built",
        verification="none",
        registers=40,
        spill_bytes=0,
        on_chip_bytes=1024,
        on_chip_limit_bytes=232448,
        lower_s=2.0,
        compile_s=7.0,
        link_s=1.0,
        cpu_s=9.5,
        peak_bytes=600 << 20,
        worker="1",
        start_s=0.0,
        end_s=10.0,
    )
    return replace(plain, **fields)  # type: ignore[arg-type]


def report(*rows: Row, failures: tuple[FailedRow, ...] = ()) -> Report:
    return Report(
        command="build",
        tilewheel_version="0.1.0",
        source_commit="0123456789abcdef",
        source_dirty=True,
        runs=(RUN,),
        artifacts=rows,
        failures=failures,
    )
