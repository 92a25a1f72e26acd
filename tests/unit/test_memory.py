"""Memory: what is measured of a process, what a machine has left, what starts beside what."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tilewheel.manifest import Launch, Resources
from tilewheel_build import driver
from tilewheel_build.measured import Cost, Measured
from tilewheel_build.memory import (
    EXPECTED_BYTES,
    Admission,
    available_bytes,
    measured_peak,
    tree_bytes,
)
from tilewheel_build.pool import run_units
from tilewheel_build.unit import UnitFacts

MIB = 1 << 20
HOLD = "import sys, time; held = b'x' * (200 << 20); print('held', flush=True); sys.stdin.read()"


def test_peak_counts_children_and_stays_when_they_have_ended() -> None:
    before = tree_bytes(os.getpid())
    with measured_peak() as peak_bytes:
        with subprocess.Popen(
            [sys.executable, "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as child:
            assert child.stdout is not None
            assert child.stdout.readline() == b"held\n"
            time.sleep(0.5)
            assert tree_bytes(os.getpid()) > before + 190 * MIB
            child.communicate()
        assert tree_bytes(os.getpid()) < before + 100 * MIB
    assert before + 190 * MIB < peak_bytes() < before + 400 * MIB


def test_peak_counts_this_process() -> None:
    before = tree_bytes(os.getpid())
    with measured_peak() as peak_bytes:
        held = b"x" * (100 * MIB)
        time.sleep(0.3)
        del held
    assert peak_bytes() > before + 90 * MIB


def test_process_that_has_ended_takes_nothing(tmp_path: Path) -> None:
    assert tree_bytes(1, proc=tmp_path) == 0


def write(root: Path, files: dict[str, object]) -> None:
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"{content}\n")


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """Return a directory that stands for /proc and /sys of a machine with 4000 MiB left."""
    write(
        tmp_path,
        {
            "proc/meminfo": f"MemTotal: {8000 * 1024} kB\nMemAvailable: {4000 * 1024} kB",
            "proc/self/cgroup": "0::/system/job",
        },
    )
    return tmp_path


def left(machine: Path) -> float:
    return available_bytes(machine / "proc", machine / "cgroup") / MIB


def limit(machine: Path, group: str, maximum: object, current: int, inactive: int) -> None:
    write(
        machine / "cgroup" / group,
        {
            "memory.max": maximum,
            "memory.current": current * MIB,
            "memory.stat": f"anon 1\ninactive_file {inactive * MIB}",
        },
    )


def test_machine_without_groups_has_what_the_kernel_says(machine: Path) -> None:
    assert left(machine) == 4000


def test_group_limits_what_is_left_and_files_in_memory_do_not_count(machine: Path) -> None:
    limit(machine, "system/job", 1000 * MIB, current=700, inactive=200)
    assert left(machine) == 500


def test_group_above_limits_as_well_and_one_without_limit_does_not(machine: Path) -> None:
    limit(machine, "system/job", "max", current=700, inactive=0)
    limit(machine, "system", 900 * MIB, current=800, inactive=0)
    assert left(machine) == 100
    limit(machine, "system", 900 * MIB, current=950, inactive=0)
    assert left(machine) == 0


def test_this_machine_has_memory_left() -> None:
    assert available_bytes() > 0


def test_unit_starts_only_where_those_running_leave_room() -> None:
    admission = Admission(3 * EXPECTED_BYTES)
    assert admission.fits(["a", "a"], "a")
    assert not admission.fits(["a", "a", "a"], "a")


def test_units_of_a_kind_are_taken_to_need_what_the_largest_did() -> None:
    admission = Admission(2 * EXPECTED_BYTES)
    admission.learn("large", 2 * EXPECTED_BYTES)
    admission.learn("large", MIB)
    admission.learn("small", MIB)
    assert not admission.fits(["large"], "small")
    assert not admission.fits(["small"], "large")
    assert admission.fits(["small"] * 100, "new")


def overlap(place: Path) -> int:
    """Return how many of these ran when this one did."""
    mark = place / f"{os.getpid()}-{time.monotonic_ns()}"
    mark.touch()
    time.sleep(0.3)
    count = len(list(place.iterdir()))
    mark.unlink()
    return count


@pytest.mark.parametrize("allowed", [1, 2])
def test_pool_starts_what_is_admitted_and_always_one(tmp_path: Path, allowed: int) -> None:
    asked: set[int] = set()

    def admit(running: Sequence[Path], unit: Path) -> bool:
        asked.add(len(running))
        return len(running) < allowed

    found = [count for _, count in run_units(overlap, [tmp_path] * 4, 3, admit)]
    assert len(found) == 4
    assert max(count for count in found if isinstance(count, int)) <= allowed
    assert asked == set(range(1, allowed + 1))


def test_local_runner_admits_by_what_the_operator_took_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def unit(operator: str, *siblings: str) -> Any:
        target = SimpleNamespace(backend="cuda")
        key = SimpleNamespace(operator=operator, target=target)
        return SimpleNamespace(variant=SimpleNamespace(key=key), siblings=siblings)

    facts = UnitFacts(
        sha256="",
        size_bytes=0,
        arguments=(),
        launch=Launch(
            kernel="", parameters=(), grid=(), block=(1, 1, 1), dynamic_shared_bytes=0, pdl=False
        ),
        resources=Resources(),
        lower_s=0.0,
        compile_s=0.0,
        peak_bytes=100 * MIB,
    )
    # What has a sibling takes that one's device code: its peak says nothing of a compilation.
    small, others = unit("small"), [unit("other"), unit("small", "sibling")]
    answers: list[bool] = []

    measured = Measured(facts=facts, cost=Cost(cpu_s=1.0, link_s=0.0, is_link_only=False))

    def pool(function: object, units: object, jobs: int, admit: Any, started: Any) -> Any:
        assert jobs == 3
        answers.append(admit([small], small))
        started(small, "1")
        yield small, measured
        answers.extend((admit([small], small), admit([small] * 2, small)))
        answers.extend(admit([small], other) for other in others)

    monkeypatch.setattr(driver, "run_units", pool)
    starts: list[object] = []
    run = driver.local_runner(3, 200 * MIB)
    assert list(run([small], lambda *start: starts.append(start))) == [(small, measured)]
    assert starts == [(small, "1")]
    assert answers == [False, True, False, False, False]


def wait_until_marked(place: Path) -> None:
    """Wait for another unit to make a mark, or make one."""
    if place.name == "first":
        while not (place.parent / "mark").exists():
            time.sleep(0.01)
    else:
        place.touch()


def test_each_unit_starts_in_the_first_place_that_is_free(tmp_path: Path) -> None:
    units = [tmp_path / "first", tmp_path / "second", tmp_path / "mark"]
    starts: list[tuple[str, str]] = []
    found = run_units(
        wait_until_marked, units, 2, started=lambda unit, worker: starts.append((unit.name, worker))
    )
    assert {outcome for _, outcome in found} == {None}
    assert starts == [("first", "1"), ("second", "2"), ("mark", "2")]
