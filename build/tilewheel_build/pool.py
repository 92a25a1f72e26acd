"""Running units of work in worker processes: one that fails or dies takes no other along."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from typing import TypeVar

from tilewheel_build.process import kill_tree

_Unit = TypeVar("_Unit")
_Result = TypeVar("_Result")


Admit = Callable[[Sequence[_Unit], _Unit], bool]
"""Whether a unit may start beside those that are running; one that would run alone always may."""

Started = Callable[[_Unit, str], None]
"""Called when a unit starts, with the number of its place among those that run, from "1"."""

_ASK_AGAIN_S = 1.0


def run_units(
    function: Callable[[_Unit], _Result],
    units: Sequence[_Unit],
    jobs: int,
    admit: Admit[_Unit] = lambda running, unit: True,
    started: Started[_Unit] = lambda unit, worker: None,
) -> Iterator[tuple[_Unit, _Result | BaseException]]:
    """Yield each unit with what ``function`` returned or raised, as they finish.

    At most ``jobs`` run at once, and only as many as ``admit`` allows. A worker that is killed (out
    of memory, say) breaks its pool and takes the innocent units with it; those left run again one
    at a time, each in a pool of its own: only the culprit fails.
    """
    left = list(units)
    if not left:
        return
    for unit, outcome in _run_pool(function, left, max(1, min(jobs, len(left))), admit, started):
        if not isinstance(outcome, BrokenProcessPool):
            left.remove(unit)
            yield unit, outcome
    for unit in left:
        yield from _run_pool(function, [unit], 1, admit, started)


def _run_pool(
    function: Callable[[_Unit], _Result],
    units: Sequence[_Unit],
    jobs: int,
    admit: Admit[_Unit],
    started: Started[_Unit],
) -> Iterator[tuple[_Unit, _Result | BaseException]]:
    # Spawned, not forked: TileLang must start fresh and the driver may have threads.
    executor = ProcessPoolExecutor(
        jobs, mp_context=multiprocessing.get_context("spawn"), initializer=_prepare_worker
    )
    waiting = deque(units)
    running: dict[Future[_Result], _Unit] = {}
    places: dict[Future[_Result], int] = {}
    try:
        while waiting or running:
            while (
                waiting
                and len(running) < jobs
                and (not running or admit(list(running.values()), waiting[0]))
            ):
                future = executor.submit(function, waiting[0])
                running[future] = waiting.popleft()
                places[future] = min(set(range(1, jobs + 1)) - set(places.values()))
                started(running[future], str(places[future]))
            is_held_back = bool(waiting) and len(running) < jobs
            done, _ = wait(
                running,
                timeout=_ASK_AGAIN_S if is_held_back else None,
                return_when=FIRST_COMPLETED,
            )
            for future in done:
                error = future.exception()
                del places[future]
                yield running.pop(future), future.result() if error is None else error
    except BrokenProcessPool as error:  # it broke before what is left was submitted
        yield from ((unit, error) for unit in (*running.values(), *waiting))
    except BaseException:
        for process in list((executor._processes or {}).values()):
            if process.pid is not None:
                kill_tree(process.pid)
        raise
    finally:
        executor.shutdown(wait=True, cancel_futures=True)


def _prepare_worker() -> None:
    """Make this worker end when the driver is killed: its queue alone would keep it waiting.

    Its compilers end with it.

    What it prints joins the messages: the standard output that it inherited is the driver's alone.
    """
    os.dup2(2, 1)
    parent = multiprocessing.parent_process()

    def watch() -> None:
        if parent is not None:
            parent.join()
            kill_tree(os.getpid())

    threading.Thread(target=watch, daemon=True).start()
