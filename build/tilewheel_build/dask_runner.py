"""Building on an existing Dask cluster: units go out, entries come back, or it is said what failed.

Scheduler and workers need this checkout's packages and the tools of ``requirements-dev.txt``. Dask
gives the unit of a worker that died to another; what the cluster returns goes into the local cache
at once, so that a build after a lost cluster goes on where that one stopped.
"""

from __future__ import annotations

import asyncio
import importlib
import shutil
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tilewheel_build.cache import store_entry
from tilewheel_build.driver import Runner
from tilewheel_build.entry import EntryError, check, unpack
from tilewheel_build.errors import (
    ArtifactError,
    ClusterError,
    OptionError,
    ToolchainError,
    WorkerError,
)
from tilewheel_build.remote_unit import RemoteOutcome, RemoteUnit, build_remote_unit, remote_unit
from tilewheel_build.unit import Unit, UnitFacts, read_unit

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
    try:
        client = distributed.Client(address, timeout=CONNECT_S, set_as_default=False)
    except (OSError, ValueError, TypeError, asyncio.TimeoutError) as error:
        raise OptionError(
            f"--dask: no scheduler answers at {address}: {error}\n"
            "hint: start one with `dask scheduler`, and `dask worker ADDRESS` on each machine"
        ) from error
    try:
        yield lambda units: _run(client, address, units, no_workers_s)
    finally:
        with suppress(OSError, RuntimeError):  # whoever went away cannot be told
            client.close(timeout=2)


def build_on_worker(unit: RemoteUnit) -> RemoteOutcome:
    """Build a unit in a Dask worker; what it leaves there goes when the worker ends."""
    distributed = importlib.import_module("distributed")
    scratch = Path(distributed.get_worker().local_directory) / "tilewheel"
    return build_remote_unit(unit, scratch)


def _run(
    client: Any, address: str, units: Sequence[Unit], no_workers_s: float
) -> Iterator[tuple[Unit, UnitFacts | BaseException]]:
    executor = client.get_executor(pure=False)
    running: dict[Future[RemoteOutcome], Unit] = {}
    idle_since_s = time.monotonic()
    try:
        for unit in units:
            running[executor.submit(build_on_worker, remote_unit(unit))] = unit
        while running:
            done, _ = wait(running, timeout=_LOOK_EVERY_S, return_when=FIRST_COMPLETED)
            for future in done:
                if future.cancelled():  # by the client, when it loses the scheduler
                    continue
                unit = running.pop(future)
                yield unit, _outcome(unit, future)
            if client.status != "running" or any(future.cancelled() for future in done):
                raise _lost(f"the scheduler at {address} went away", units, running)
            if client.scheduler_info(n_workers=-1)["workers"]:
                idle_since_s = time.monotonic()
            elif time.monotonic() - idle_since_s > no_workers_s:
                reason = f"the cluster at {address} has had no worker for {no_workers_s:g} s"
                raise _lost(reason, units, running)
    finally:
        with suppress(OSError, RuntimeError):
            executor.shutdown(wait=False)


def _lost(reason: str, units: Sequence[Unit], running: dict[Future[Any], Unit]) -> ClusterError:
    return ClusterError(
        f"--dask: {reason}: {len(running)} of {len(units)} units are left, nothing was published\n"
        "hint: start the cluster and build again; what was finished is in the cache"
    )


def _outcome(unit: Unit, future: Future[RemoteOutcome]) -> UnitFacts | BaseException:
    killed = importlib.import_module("distributed").KilledWorker
    error = future.exception()
    if isinstance(error, killed):
        return WorkerError(
            f"the workers that it was given died (killed, or out of memory): {error}"
        )
    if error is not None:
        return error
    outcome = future.result()
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
    return read_unit(unit.cache) or ArtifactError("what the worker returned cannot be read")
