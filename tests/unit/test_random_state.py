"""The generator's places: reserved once, by threads, after forks, and again with the same seed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import tilewheel
from tilewheel.random_state import RandomState, Reservation

RUNTIME = Path(tilewheel.__file__).parents[1]


def seeded(seed: int = 5) -> RandomState:
    state = RandomState()
    state.set_seed(seed)
    return state


def test_reservations_follow_each_other_in_blocks_of_four() -> None:
    state = seeded()
    assert [state.reserve(n).offset for n in (1, 4, 5, 0, 2**40, 3)] == [
        0,
        4,
        8,
        16,
        16,
        2**40 + 16,
    ]
    assert state.reserve(1) == Reservation(seed=5, sequence=0, offset=2**40 + 20)


def test_set_seed_begins_again() -> None:
    state = seeded()
    state.reserve(100)
    state.set_seed(2**63 - 1)
    assert state.reserve(1) == Reservation(seed=2**63 - 1, sequence=0, offset=0)


def test_without_a_seed_one_comes_from_the_operating_system() -> None:
    seeds = {RandomState().reserve(1).seed for _ in range(10)}
    assert len(seeds) == 10
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_a_sequence_that_is_used_up_is_followed_by_another() -> None:
    state = seeded()
    first, second, third = state.reserve(2**63 - 4), state.reserve(4), state.reserve(1)
    assert (first.sequence, first.offset) == (0, 0)
    assert (second.sequence, second.offset) == (0, 2**63 - 4)
    assert third.sequence not in (0, first.sequence)
    assert 0 < third.sequence < 2**63
    assert third.offset == 0


def test_threads_never_get_the_same_place() -> None:
    state = seeded()

    def reserve(_: int) -> list[int]:
        return [state.reserve(5).offset for _ in range(1000)]

    with ThreadPoolExecutor(8) as pool:
        offsets = sorted(offset for found in pool.map(reserve, range(8)) for offset in found)
    assert offsets == [8 * i for i in range(8000)]


FORK = """
import json, os, threading
from tilewheel.random_state import state

def show():
    r = state.reserve(1)
    return [r.seed, r.sequence, r.offset]

def in_child(work):
    reader, writer = os.pipe()
    if os.fork() == 0:
        os.write(writer, json.dumps(work()).encode())
        os._exit(0)
    os.wait()
    return json.loads(os.read(reader, 65536))
"""


def run(script: str) -> Any:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORK + script],
        env={**os.environ, "PYTHONPATH": str(RUNTIME)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return json.loads(done.stdout)


FAMILY = """
state.set_seed(5)
show()
found = [in_child(show), in_child(lambda: [show(), show()][1]), in_child(lambda: in_child(show))]
print(json.dumps([*found, show()]))
"""


def test_children_go_on_in_sequences_of_their_own_and_the_parent_in_its_own() -> None:
    first, second, grandchild, parent = run(FAMILY)
    assert parent == [5, 0, 4]
    assert [first[0], second[0], grandchild[0]] == [5, 5, 5]
    assert len({0, first[1], second[1], grandchild[1]}) == 4
    assert [first[2], second[2], grandchild[2]] == [0, 4, 0]


def test_children_repeat_with_the_seed() -> None:
    assert run(FAMILY) == run(f"in_child(show)\n{FAMILY}")


def test_a_child_of_an_unseeded_process_does_not_repeat_it() -> None:
    before, child, parent = run(
        "print(json.dumps([show(), in_child(show), show()]))",
    )
    assert parent == [before[0], 0, 4]
    assert child[:2] != before[:2]
    child, parent = run("print(json.dumps([in_child(show), show()]))")
    assert child[0] != parent[0]


def test_fork_waits_for_threads_that_reserve_and_the_child_can_reserve() -> None:
    count = run(
        """
stop = []
def reserve():
    while not stop:
        state.reserve(4)
threads = [threading.Thread(target=reserve) for _ in range(4)]
for thread in threads:
    thread.start()
sequences = {in_child(show)[1] for _ in range(20)}
stop.append(True)
for thread in threads:
    thread.join()
print(len(sequences))
"""
    )
    assert count == 20
