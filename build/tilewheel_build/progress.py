"""What a person sees of a build: a progress bar on a terminal, plain lines elsewhere, tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from tilewheel.key import Key
from tilewheel_build.driver import BuildResult, Observer


@contextmanager
def watch(console: Console, title: str, total: int) -> Iterator[Observer]:
    """Yield an observer that shows the progress of ``total`` variants."""
    if not console.is_terminal:

        def line(key: Key, event: str) -> None:
            if event != "cached":
                console.print(f"{event:7} {key}", highlight=False, soft_wrap=True)

        yield line
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console) as progress:
        task = progress.add_task(title, total=total)

        def advance(key: Key, event: str) -> None:
            progress.update(task, advance=1)
            if event == "failed":
                progress.console.print(f"failed  {key}", style="red", highlight=False)

        yield advance


def artifact_table(results: Sequence[BuildResult]) -> Table:
    """Return one row for each built artifact."""
    table = Table(box=None, pad_edge=False)
    table.add_column("artifact", no_wrap=True)
    for title in ("KiB", "registers", "spills", "shared", "lower s", "compile s", "from"):
        table.add_column(title, justify="right")
    for item in (item for result in results for item in result.built):
        facts = item.facts
        resources = facts.resources
        shared = facts.launch.dynamic_shared_bytes + (resources.static_shared_bytes or 0)
        table.add_row(
            str(item.unit.variant.key),
            f"{facts.size_bytes / 1024:.1f}",
            _or_dash(resources.registers),
            _or_dash(resources.spill_bytes),
            str(shared),
            f"{facts.lower_s:.2f}",
            f"{facts.compile_s:.2f}",
            "cache" if item.cached else "build",
        )
    return table


def _or_dash(value: int | None) -> str:
    return "-" if value is None else str(value)
