"""How far a build is, on standard error: a live display on a terminal, plain lines elsewhere."""

from __future__ import annotations

import os
import select
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

from rich.console import Console, ConsoleDimensions, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from tilewheel.key import Key
from tilewheel_build.driver import Event, Observer

HEARTBEAT_S = 60.0
"""After so long without a line, logs get one that says what is running."""

_SHOWN = 8
_BAR_WIDTH = 24
# Of a terminal that does not say.
_WIDTH, _HEIGHT = 80, 25
_REFRESHES_PER_S = 4
_LOOK_EVERY_S = 0.1


class Tally:
    """What became of the variants so far. Runners report from several threads."""

    def __init__(self, total: int, now: Callable[[], float] = time.monotonic) -> None:
        self.total = total
        self.counts: dict[Event, int] = {"cached": 0, "built": 0, "failed": 0}
        self._now = now
        self._started_s = now()
        self._starts: dict[Key, float] = {}
        self._ended: set[Key] = set()
        self._spent_s = 0.0
        self._lock = threading.Lock()

    def count(self, key: Key, event: Event) -> float | None:
        """Take an event in; return how long the unit ran if it has ended."""
        with self._lock:
            if event == "started":
                # News of a start may come late.
                if key not in self._ended:
                    self._starts[key] = self._now()
                return None
            self._ended.add(key)
            self.counts[event] += 1
            start_s = self._starts.pop(key, None)
            if start_s is None:
                return None
            seconds = self._now() - start_s
            self._spent_s += seconds
            return seconds

    @property
    def num_done(self) -> int:
        """How many variants need nothing more."""
        return sum(self.counts.values())

    @property
    def elapsed_s(self) -> float:
        """Seconds since the start."""
        return self._now() - self._started_s

    def running(self) -> list[tuple[Key, float]]:
        """Return what is running with its age in seconds, the oldest first."""
        with self._lock:
            found = [(key, self._now() - start_s) for key, start_s in self._starts.items()]
        return sorted(found, key=lambda item: -item[1])

    def left_s(self) -> float | None:
        """Return about how long it will take still, from the mean of what has ended."""
        ended = self.counts["built"] + self.counts["failed"]
        ages = [age_s for _, age_s in self.running()]
        if not ended or not ages:
            return None
        mean_s = self._spent_s / ended
        waiting = self.total - self.num_done - len(ages)
        return (waiting * mean_s + sum(max(0.0, mean_s - age) for age in ages)) / len(ages)


@contextmanager
def watch(title: str, total: int) -> Iterator[Observer]:
    """Yield an observer that shows the progress of ``total`` variants."""
    tally = Tally(total)
    showing = _live(title, tally) if is_for_people() else _plain(title, tally)
    with showing as observe:
        yield observe


def is_for_people() -> bool:
    """Return whether a live display is of use: on a terminal that can, with nobody against it."""
    plain = [name for name in ("CI", "NO_COLOR") if os.environ.get(name)]
    return sys.stderr.isatty() and os.environ.get("TERM", "dumb") != "dumb" and not plain


@contextmanager
def _plain(title: str, tally: Tally) -> Iterator[Observer]:
    spoken = threading.Event()
    ended = threading.Event()
    is_announced = False

    def say(line: str) -> None:
        spoken.set()
        print(line, file=sys.stderr, flush=True)

    def observe(key: Key, event: Event) -> None:
        nonlocal is_announced
        seconds = tally.count(key, event)
        if event == "started" and not is_announced:
            is_announced = True
            cached = tally.counts["cached"]
            say(f"{title}: {cached} of {tally.total} from the cache, {tally.total - cached} to do")
        if event in ("built", "failed"):
            took = "" if seconds is None else f"{seconds:.1f} s, "
            say(f"{event:7} {key}  {took}{tally.num_done}/{tally.total}")

    def beat() -> None:
        while not ended.wait(HEARTBEAT_S):
            if not spoken.is_set() and tally.running():
                say(f"{title}: {status(tally)}; running: {_ages(tally)}")
            spoken.clear()

    heart = threading.Thread(target=beat, daemon=True)
    heart.start()
    try:
        yield observe
    finally:
        ended.set()
        heart.join()


def _ages(tally: Tally) -> str:
    running = tally.running()
    named = [f"{key} {duration(age_s)}" for key, age_s in running[:_SHOWN]]
    more = len(running) - len(named)
    return ", ".join(named) + (f" and {more} more" if more else "")


def status(tally: Tally) -> str:
    """Return the numbers of the bar, as words."""
    words = [f"{tally.num_done}/{tally.total}"]
    for event in ("cached", "failed"):
        if tally.counts[event]:
            words.append(f"{tally.counts[event]} {event}")
    words.append(duration(tally.elapsed_s))
    left_s = tally.left_s()
    if left_s is not None:
        words.append(f"about {duration(left_s)} left")
    return ", ".join(words)


def duration(seconds: float) -> str:
    """Return seconds as a person writes them: ``42 s``, ``3:05``, ``1:02:03``."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, hours = whole // 60 % 60, whole // 3600
    return f"{hours}:{minutes:02}:{whole % 60:02}" if hours else f"{minutes}:{whole % 60:02}"


@contextmanager
def _live(title: str, tally: Tally) -> Iterator[Observer]:
    with _terminal() as (terminal, lines):
        console = Console(file=terminal, highlight=False, markup=False, emoji=False)

        def say(line: str, style: str = "") -> None:
            console.print(Text.from_ansi(line, style=style), soft_wrap=True)

        def render() -> RenderableType:
            # None of the standard streams need be the terminal, where rich looks for its size.
            size = os.get_terminal_size(terminal.fileno())
            console.size = ConsoleDimensions(size.columns or _WIDTH, size.lines or _HEIGHT)
            return picture(title, tally, console.width)

        def observe(key: Key, event: Event) -> None:
            tally.count(key, event)
            if event == "failed":
                say(f"failed  {key}", "red")

        live = Live(
            get_renderable=render,
            console=console,
            refresh_per_second=_REFRESHES_PER_S,
            redirect_stdout=False,
            redirect_stderr=False,
            transient=True,
        )
        with lines(say), live:
            yield observe
        if tally.num_done > tally.counts["cached"]:
            say(f"{title}: {status(tally)}")


def picture(title: str, tally: Tally, width: int) -> RenderableType:
    """Return what is running and how far it is; where a bar would leave no room, without one."""
    rows = Table.grid(padding=(0, 1), expand=True)
    rows.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
    rows.add_column(no_wrap=True, justify="right")
    running = tally.running()
    for key, age_s in running[:_SHOWN]:
        rows.add_row(Text(f"  {key}", style="dim"), Text(duration(age_s)))
    if len(running) > _SHOWN:
        rows.add_row(Text(f"  and {len(running) - _SHOWN} more", style="dim"), Text())
    words = status(tally)
    cells: list[RenderableType] = [Text(title, style="bold")]
    if width > len(title) + _BAR_WIDTH + len(words) + 2:
        total = max(1, tally.total)
        cells.append(ProgressBar(total=total, completed=tally.num_done, width=_BAR_WIDTH))
    cells.append(Text(words, style="red" if tally.counts["failed"] else ""))
    bar = Table.grid(padding=(0, 1))
    for _ in cells:
        bar.add_column(no_wrap=True, overflow="ellipsis")
    bar.add_row(*cells)
    return Group(rows, bar)


@contextmanager
def _terminal() -> Iterator[tuple[TextIO, Callable[[Callable[[str], None]], _Lines]]]:
    """Take the terminal away from descriptor 2, which compilers and workers inherit.

    Yield it, and what brings the lines that they write to a function as long as a block runs.
    """
    sys.stderr.flush()
    with os.fdopen(os.dup(2), "w", encoding="utf-8", errors="replace") as terminal:
        reader, writer = os.pipe()
        os.dup2(writer, 2)
        os.close(writer)
        try:
            yield terminal, lambda say: _Lines(reader, say)
        finally:
            sys.stderr.flush()
            os.dup2(terminal.fileno(), 2)
            os.close(reader)


class _Lines:
    """Reads a pipe and gives each line to a function, until the block ends and it is empty."""

    def __init__(self, descriptor: int, say: Callable[[str], None]) -> None:
        self._descriptor = descriptor
        self._say = say
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        sys.stderr.flush()
        self._ended.set()
        self._thread.join()

    def _read(self) -> None:
        # Not to the end of the pipe: helpers of multiprocessing keep it open.
        rest = b""
        while True:
            is_last = self._ended.is_set()
            wait_s = 0 if is_last else _LOOK_EVERY_S
            ready = select.select([self._descriptor], [], [], wait_s)[0]
            if ready:
                *lines, rest = (rest + os.read(self._descriptor, 1 << 16)).split(b"\n")
                for line in lines:
                    self._say(line.decode(errors="replace"))
            elif is_last:
                break
        if rest:
            self._say(rest.decode(errors="replace"))
