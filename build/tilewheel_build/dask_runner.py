"""Building on an existing Dask cluster: units go out, entries come back, or it is said what failed.

Scheduler and workers need this checkout's packages and the tools of ``requirements-dev.txt``. Dask
gives the unit of a worker that died to another; what the cluster returns goes into the local cache
at once, so that a build after a lost cluster goes on where that one stopped.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import shutil
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from tilewheel_build.cache import store_entry
from tilewheel_build.driver import Outcomes, Runner, Started
from tilewheel_build.entry import EntryError, check, unpack
from tilewheel_build.errors import (
    ArtifactError,
    ClusterError,
    OptionError,
    ToolchainError,
    WorkerError,
)
from tilewheel_build.measured import Measured
from tilewheel_build.remote_unit import RemoteOutcome, RemoteUnit, build_remote_unit, remote_unit
from tilewheel_build.unit import Unit, read_unit

_Task = TypeVar("_Task")
_Result = TypeVar("_Result")

CONNECT_S = 15.0
"""How long the scheduler may take to answer."""

NO_WORKERS_S = 60.0
"""How long a cluster may be without any worker before the build gives up."""

_LOOK_EVERY_S = 1.0


@contextmanager
def cluster_runner(address: str, no_workers_s: float = NO_WORKERS_S) -> Iterator[Runner]:
    """Yield a runner on the cluster whose scheduler is at ``address``.

    Raises:
        ToolchainError: Dask is not installed.
        OptionError: no scheduler answers there.
    """
    try:
        distributed = importlib.import_module("distributed")
    except ImportError as error:
        raise ToolchainError(
            f"--dask: needs distributed, which is not installed: {error}\n"
            "hint: python -m pip install -r requirements-dev.txt"
        ) from error
    # What it logs of a lost connection, with tracebacks, the errors here say in a line.
    for name in list(logging.root.manager.loggerDict):
        if name.startswith("distributed"):
            logging.getLogger(name).setLevel(logging.CRITICAL)
    try:
        # An address without a port would fail too, half a minute later and with a traceback.
        distributed.comm.get_address_host_port(address)
        client = distributed.Client(address, timeout=CONNECT_S, set_as_default=False)
    except (OSError, ValueError, TypeError, asyncio.TimeoutError) as error:
        raise OptionError(
            f"--dask: no scheduler answers at {address}: {error}\n"
            "hint: start one with `dask scheduler`, and `dask worker ADDRESS` on each machine"
        ) from error
    try:
        yield lambda units, started: _run(client, address, units, started, no_workers_s)
    finally:
        with suppress(OSError, RuntimeError):  # whoever went away cannot be told
            client.close(timeout=2)


def build_on_worker(unit: RemoteUnit, topic: str) -> RemoteOutcome:
    """Build a unit in a Dask worker; what it leaves there goes when the worker ends.

    Who listens to ``topic`` hears that it starts, and where.
    """
    worker = importlib.import_module("distributed").get_worker()
    worker.log_event(topic, [unit.fingerprint, worker.address])
    scratch = Path(worker.local_directory) / "tilewheel"
    return build_remote_unit(unit, scratch)


def _run(
    client: Any, address: str, units: Sequence[Unit], started: Started, no_workers_s: float
) -> Outcomes:
    tasks = [remote_unit(unit) for unit in units]
    by_fingerprint = {unit.fingerprint: unit for unit in units}

    def hear(event: tuple[float, tuple[str, str]]) -> None:
        fingerprint, worker = event[1]
        started(by_fingerprint[fingerprint], worker)

    topic = f"tilewheel-{uuid.uuid4().hex}"
    client.subscribe_topic(topic, hear)
    try:
        for number, outcome in run_tasks(
            partial(build_on_worker, topic=topic),
            tasks,
            client=client,
            address=address,
            no_workers_s=no_workers_s,
        ):
            yield units[number], _finished(units[number], outcome)
    finally:
        with suppress(OSError, RuntimeError):  # the scheduler may have gone away
            client.unsubscribe_topic(topic)


def run_tasks(
    function: Callable[[_Task], _Result],
    tasks: Sequence[_Task],
    *,
    client: Any,
    address: str,
    no_workers_s: float = NO_WORKERS_S,
) -> Iterator[tuple[int, _Result | BaseException]]:
    """Yield the number of each task with what ``function`` returned or raised, as they finish.

    Dask gives the tasks of a worker that died to others, and blames all of them when that happens
    again and again. So those that it gives up run once more, one at a time: only the culprit fails.

    Raises:
        ClusterError: the scheduler went away, or there was no worker for ``no_workers_s``.
    """
    killed = importlib.import_module("distributed").KilledWorker
    executor = client.get_executor(pure=False)
    suspects = []
    num_left = len(tasks)

    def run(numbers: Sequence[int]) -> Iterator[tuple[int, Future[_Result]]]:
        running = {executor.submit(function, tasks[number]): number for number in numbers}
        with_workers_s = time.monotonic()
        while running:
            done, _ = wait(running, timeout=_LOOK_EVERY_S, return_when=FIRST_COMPLETED)
            cancelled = {future for future in done if future.cancelled()}
            for future in done - cancelled:
                yield running.pop(future), future
            # The client cancels everything when it loses the scheduler.
            if cancelled or (running and client.status != "running"):
                raise lost(f"the scheduler at {address} went away")
            if client.scheduler_info(n_workers=-1)["workers"]:
                with_workers_s = time.monotonic()
            elif time.monotonic() - with_workers_s > no_workers_s:
                raise lost(f"the cluster at {address} has had no worker for {no_workers_s:g} s")

    def lost(reason: str) -> ClusterError:
        return ClusterError(
            f"--dask: {reason}: {num_left} of {len(tasks)} units are left, none was published\n"
            "hint: start the cluster and build again; what was finished is in the cache"
        )

    try:
        for number, future in run(range(len(tasks))):
            if isinstance(future.exception(), killed):
                suspects.append(number)
                continue
            num_left -= 1
            yield number, future.exception() or future.result()
        for suspect in suspects:
            for number, future in run([suspect]):
                error = future.exception()
                num_left -= 1
                if isinstance(error, killed):
                    error = WorkerError(f"the workers that had it died, one by one: {error}")
                yield number, error or future.result()
    finally:
        with suppress(OSError, RuntimeError):
            executor.shutdown(wait=False)


def _finished(unit: Unit, outcome: RemoteOutcome | BaseException) -> Measured | BaseException:
    """Put what a worker returned into the local cache, or its work directory beside the others."""
    # Dask's words for a scheduler or worker that lacks a module.
    if isinstance(outcome, ImportError) or "deserializ" in str(outcome):
        return ToolchainError(
            f"the cluster cannot import what builds: {outcome}\n"
            "hint: install the same checkout and requirements-dev.txt for scheduler and workers"
        )
    if isinstance(outcome, BaseException):
        return outcome
    try:
        files = unpack(outcome.content)
        if outcome.error is not None:
            shutil.rmtree(unit.work, ignore_errors=True)
            unit.work.mkdir(parents=True)
            for name, content in files.items():
                (unit.work / name).write_bytes(content)
            return outcome.error
        check(files, unit.fingerprint)
        store_entry(unit.cache, files)
    except EntryError as wrong:
        return ArtifactError(f"what the worker returned {wrong}")
    except OSError as full:
        return full
    facts = read_unit(unit.cache)
    if facts is None:
        return ArtifactError("what the worker returned cannot be read")
    assert outcome.cost is not None
    return Measured(facts=facts, cost=outcome.cost)
