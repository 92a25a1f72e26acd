"""Memory: what a unit of work takes, what the machine has left, and how many units fit into it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

EXPECTED_BYTES = 800 << 20
"""What a unit is taken to need before one of its kind was measured: TileLang alone is half."""

SHARE = 0.9
"""Of what is available, so that the estimate may be a little wrong."""

_SAMPLES_EVERY_S = 0.05
_PROC = Path("/proc")
_CGROUPS = Path("/sys/fs/cgroup")


def tree_bytes(root: int, proc: Path = _PROC) -> int:
    """Return the resident memory of a process and all that it started, shared pages each time."""
    total = 0
    waiting = [root]
    while waiting:
        process = proc / str(waiting.pop())
        with suppress(OSError, ValueError, IndexError):  # it has ended meanwhile
            total += int((process / "statm").read_text().split()[1])
            for thread in (process / "task").iterdir():
                waiting += map(int, (thread / "children").read_text().split())
    return total * os.sysconf("SC_PAGE_SIZE")


@contextmanager
def measured_peak() -> Iterator[Callable[[], int]]:
    """Watch this process and its children; what it yields returns the peak so far, in bytes."""
    peak = tree_bytes(os.getpid())
    ended = threading.Event()

    def sample() -> None:
        nonlocal peak
        peak = max(peak, tree_bytes(os.getpid()))

    def watch() -> None:
        while not ended.wait(_SAMPLES_EVERY_S):
            sample()

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield lambda: peak
    finally:
        ended.set()
        watcher.join()
        sample()


def available_bytes(proc: Path = _PROC, cgroups: Path = _CGROUPS) -> int:
    """Return what processes may still take: of the machine, and of the container's limit."""
    amounts = [_machine_bytes(proc)]
    with suppress(OSError, ValueError):
        for line in (proc / "self" / "cgroup").read_text().splitlines():
            hierarchy, _, path = line.split(":", 2)
            group = cgroups / path.lstrip("/")
            # Version 2 has one hierarchy, with the number 0; each group above may have a limit.
            while hierarchy == "0" and (group == cgroups or cgroups in group.parents):
                amounts += _group_bytes(group)
                group = group.parent
    return max(0, min(amounts))


def _machine_bytes(proc: Path) -> int:
    for line in (proc / "meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"{proc}/meminfo: has no MemAvailable")


def _group_bytes(group: Path) -> list[int]:
    """Return what a control group has left, or nothing where it has no limit."""
    with suppress(OSError, ValueError):  # the limit `max` is no number
        limit = int((group / "memory.max").read_text())
        used = int((group / "memory.current").read_text())
        statistics = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        # The kernel gives file pages up before it kills.
        return [limit - used + int(statistics["inactive_file"])]
    return []


class Admission:
    """Decides whether one more unit fits beside those that run, from what its kind took so far.

    ``budget_bytes`` is what all of them may take; None is what the machine has, asked each time.
    """

    def __init__(self, budget_bytes: int | None = None) -> None:
        self._budget_bytes = budget_bytes
        self._peaks: dict[str, int] = {}

    def learn(self, kind: str, peak_bytes: int) -> None:
        """Remember what a unit of a kind took."""
        self._peaks[kind] = max(peak_bytes, self._peaks.get(kind, 0))

    def expected_bytes(self, kind: str) -> int:
        """Return what a unit of a kind is taken to need."""
        return self._peaks.get(kind, EXPECTED_BYTES)

    def fits(self, running: Sequence[str], kind: str) -> bool:
        """Return whether a unit of ``kind`` fits beside those whose kinds are ``running``."""
        needed = sum(map(self.expected_bytes, (*running, kind)))
        return needed <= self._budget()

    def _budget(self) -> float:
        if self._budget_bytes is not None:
            return self._budget_bytes
        # What the units at work hold already is not available, and theirs.
        return SHARE * (available_bytes() + tree_bytes(os.getpid()))
