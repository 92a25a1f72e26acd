"""``build`` and ``merge`` on the command line: what they do, say and report."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial

from rich.console import Console

from tilewheel_build import cache_cli, report, report_cli
from tilewheel_build.dask_runner import cluster_runner
from tilewheel_build.driver import (
    BuildResult,
    Failure,
    Layout,
    Runner,
    build,
    local_runner,
    plan_units,
)
from tilewheel_build.progress import watch
from tilewheel_build.publish import write_text
from tilewheel_build.report_record import Clock, build_report, merge_report
from tilewheel_build.shard import Shard, build_shard, deal, merge, shard_directory
from tilewheel_build.variant import Variant


def run(
    chosen: Mapping[str, tuple[Variant, ...]],
    layout: Layout,
    options: argparse.Namespace,
    errors: Console,
) -> int:
    """Build the chosen variants of each backend; return the exit code."""
    clock = Clock()
    results: dict[str, BuildResult] = {}
    shard: Shard | None = options.shard
    build_share = build if shard is None else partial(build_shard, shard=shard)
    with ExitStack() as stack:
        cache = stack.enter_context(cache_cli.cache_of(options, layout.out, _warning(errors)))
        for backend, variants in chosen.items():
            # Every tool is looked for before the first unit starts: a missing one fails early.
            plan_units(
                variants[:1], layout=layout, backend=backend, machine=options.machine, cache=cache
            )
        runner = stack.enter_context(_runner(options))
        for backend, variants in chosen.items():
            total = len(variants if shard is None else deal(variants, shard))
            with watch(backend, total) as observe:
                results[backend] = build_share(
                    variants,
                    layout=layout,
                    backend=backend,
                    machine=options.machine,
                    cache=cache,
                    run=runner,
                    timeout_s=options.compile_timeout,
                    observe=observe,
                )
        # Device sources are read from the cache, which may shrink once it is let go.
        record = build_report(
            list(results.values()),
            root=layout.root,
            machine=options.machine,
            clock=clock,
            jobs=options.jobs if options.dask is None else None,
            shard=shard,
        )
    path = report_cli.build_path(layout.out, options.machine)
    report_cli.write(record, path)
    for backend, result in results.items():
        if shard is not None and not result.failures:
            place = shard_directory(layout, options.machine, backend, shard)
            write_text(place / report.FILE_NAME, report.dump(record))
    report_cli.tell(record, path, has_json=options.json)
    return tell_failures([f for result in results.values() for f in result.failures], errors)


def run_merge(layout: Layout, options: argparse.Namespace, errors: Console) -> int:
    """Publish shards as one build; return the exit code."""
    merged = merge(options.directories, layout)
    record = merge_report(merged, _warning(errors))
    machines = {whole.machine for whole in merged}
    path = (
        report_cli.build_path(layout.out, machines.pop())
        if len(machines) == 1
        else layout.out / report.FILE_NAME
    )
    report_cli.write(record, path)
    if options.json:
        report_cli.tell(record, path, has_json=True)
    else:
        for whole in merged:
            print(f"{len(whole.manifest.artifacts)} artifacts in {whole.directory}")
        print(f"report: {path.with_suffix('.html')}")
    return 0


def tell_failures(failures: Sequence[Failure], errors: Console) -> int:
    """Print each failure in full; return the exit code of a build that had them."""
    for failed in failures:
        errors.print(f"\nfailed: {failed.key}\n{failed.message}\nkept: {failed.work}")
    return max((failed.exit_code for failed in failures), default=0)


@contextmanager
def _runner(options: argparse.Namespace) -> Iterator[Runner]:
    if options.dask is None:
        yield local_runner(options.jobs, options.memory)
        return
    with cluster_runner(options.dask) as run:
        yield run


def _warning(errors: Console) -> Callable[[str], None]:
    return lambda message: errors.print(f"warning: {message}")
