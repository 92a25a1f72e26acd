"""What is said of a build while it runs."""

from __future__ import annotations

import io
import os
import pty
import sys
import time

import pytest
from rich.console import Console

from tilewheel.key import Key
from tilewheel_build import progress
from tilewheel_build.progress import Tally, duration, is_for_people, status, watch

A, B, C = (Key.parse(f"scale-hidden={n}-cuda-sm_90a") for n in (1, 2, 3))


class Clock:
    """A clock that stands still until it is told otherwise."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_running_units_have_an_age_and_the_oldest_comes_first() -> None:
    clock = Clock()
    tally = Tally(3, clock)
    tally.count(B, "started")
    clock.now_s += 5
    tally.count(A, "started")
    clock.now_s += 1
    assert tally.running() == [(B, 6.0), (A, 1.0)]
    assert tally.count(B, "built") == 6.0
    assert tally.running() == [(A, 1.0)]


def test_unit_that_starts_anew_is_as_old_as_its_last_start() -> None:
    clock = Clock()
    tally = Tally(1, clock)
    tally.count(A, "started")
    clock.now_s += 5
    tally.count(A, "started")
    assert tally.running() == [(A, 0.0)]


def test_news_of_a_start_that_comes_after_the_end_is_too_late() -> None:
    tally = Tally(2, Clock())
    assert tally.count(A, "built") is None
    tally.count(A, "started")
    assert tally.running() == []


def test_time_left_is_that_of_the_units_so_far() -> None:
    clock = Clock()
    tally = Tally(5, clock)
    assert tally.left_s() is None
    tally.count(A, "started")
    clock.now_s += 10
    assert tally.left_s() is None
    tally.count(A, "failed")
    tally.count(B, "started")
    tally.count(C, "started")
    clock.now_s += 4
    # Two run for 6 s more, two wait: 32 s of work for two workers.
    assert tally.left_s() == 16.0
    assert status(tally) == "1/5, 1 failed, 14 s, about 16 s left"


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0 s"), (59.4, "59 s"), (59.6, "1:00"), (3725, "1:02:05")]
)
def test_durations_are_short(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(("width", "has_bar"), [(80, True), (25, False)])
def test_narrow_terminal_gets_the_numbers_rather_than_a_bar(width: int, has_bar: bool) -> None:
    clock = Clock()
    tally = Tally(3, clock)
    tally.count(A, "cached")
    tally.count(B, "started")
    clock.now_s += 5
    console = Console(file=io.StringIO(), width=width, color_system=None, legacy_windows=False)
    with console.capture() as shown:
        console.print(progress.picture("cuda", tally, width))
    lines = [line.rstrip() for line in shown.get().splitlines()]
    assert lines[-1].startswith("cuda ")
    assert lines[-1].endswith(" 1/3, 1 cached, 5 s")
    assert ("━" in lines[-1]) == has_bar
    assert lines[0].endswith("5 s")
    assert max(map(len, lines)) <= width


def test_log_gets_a_line_for_each_unit_that_ends(capsys: pytest.CaptureFixture[str]) -> None:
    with watch("cuda", 3) as observe:
        observe(A, "cached")
        observe(B, "started")
        observe(B, "built")
        observe(C, "started")
        observe(C, "failed")
    assert capsys.readouterr() == (
        "",
        f"cuda: 1 of 3 from the cache, 2 to do\nbuilt   {B}  0.0 s, 2/3\nfailed  {C}  0.0 s, 3/3\n",
    )


def test_log_of_what_the_cache_had_is_empty(capsys: pytest.CaptureFixture[str]) -> None:
    with watch("cuda", 1) as observe:
        observe(A, "cached")
    assert capsys.readouterr() == ("", "")


def test_log_of_a_long_unit_says_that_it_still_runs(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "HEARTBEAT_S", 0.02)
    with watch("cuda", 2) as observe:
        observe(A, "started")
        deadline = time.monotonic() + 10
        printed = ""
        while "running" not in printed:
            assert time.monotonic() < deadline
            time.sleep(0.01)
            printed += capsys.readouterr().err
    assert f"\ncuda: 0/2, 0 s; running: {A} 0 s\n" in printed


PERSON = {"TERM": "xterm-256color"}


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        (PERSON, True),
        ({**PERSON, "CI": "true"}, False),
        ({**PERSON, "NO_COLOR": "1"}, False),
        ({**PERSON, "CI": "", "NO_COLOR": ""}, True),
        ({"TERM": "dumb"}, False),
        ({}, False),
    ],
)
def test_terminal_gets_a_display_unless_someone_is_against_it(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], expected: bool
) -> None:
    for name in ("TERM", "CI", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    master, slave = pty.openpty()
    try:
        with os.fdopen(slave, "w") as terminal:
            monkeypatch.setattr(sys, "stderr", terminal)
            assert is_for_people() is expected
        monkeypatch.setattr(sys, "stderr", io.StringIO())
        assert not is_for_people()
    finally:
        os.close(master)
