"""Running units of work in worker processes: one that fails or dies takes no other along."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from typing import TypeVar

_Unit = TypeVar("_Unit")
_Result = TypeVar("_Result")


def run_units(
    function: Callable[[_Unit], _Result], units: Sequence[_Unit], jobs: int
) -> Iterator[tuple[_Unit, _Result | BaseException]]:
    """Yield each unit with what ``function`` returned or raised, as they finish.

    A worker that is killed (out of memory, say) breaks its pool and takes the innocent units with
    it; those left run again one at a time, each in a pool of its own: only the culprit fails.
    """
    left = list(units)
    if not left:
        return
    for unit, outcome in _run_pool(function, left, max(1, min(jobs, len(left)))):
        if not isinstance(outcome, BrokenProcessPool):
            left.remove(unit)
            yield unit, outcome
    for unit in left:
        yield from _run_pool(function, [unit], 1)


def _run_pool(
    function: Callable[[_Unit], _Result], units: Sequence[_Unit], jobs: int
) -> Iterator[tuple[_Unit, _Result | BaseException]]:
    # Spawned, not forked: TileLang must start fresh and the driver may have threads.
    executor = ProcessPoolExecutor(
        jobs, mp_context=multiprocessing.get_context("spawn"), initializer=_end_with_parent
    )
    futures: dict[Future[_Result], _Unit] = {}
    try:
        futures = {executor.submit(function, unit): unit for unit in units}
        for future in as_completed(futures):
            error = future.exception()
            yield futures[future], future.result() if error is None else error
    except BaseException:
        for process in list((executor._processes or {}).values()):
            process.terminate()
        raise
    finally:
        executor.shutdown(wait=True, cancel_futures=True)


def _end_with_parent() -> None:
    """Make this worker end when the driver is killed: its queue alone would keep it waiting."""
    parent = multiprocessing.parent_process()

    def watch() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
