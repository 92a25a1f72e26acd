"""Selecting the simulator: for one thread or task, from many at once, and after a fork."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import tilewheel as tw

PRELUDE = """
import os, threading
import torch
import tilewheel as tw
from tilewheel.backend import active
torch.set_num_threads(1)
scores = torch.randn(37, 256, generator=torch.Generator().manual_seed(1))
expected = tw.reference.moe.topk_gate(scores, 8)

def is_right():
    return torch.equal(tw.moe.topk_gate(scores, 8), expected)
"""


@pytest.fixture
def run(run_script: Callable[..., list[str]]) -> Callable[[str], list[str]]:
    """Return the function that runs a script in a process of its own and gives what it printed."""
    if not any(
        entry.artifact.key.target.backend == "ascend-sim"
        and dict(entry.artifact.key.parameters).get("num_experts") == 256
        for entry in tw.artifacts("topk_gate")
    ):
        pytest.skip("topk_gate for 256 experts is not built for ascend-sim")
    return lambda text: run_script(f"{PRELUDE}\n{text}")


def test_choice_holds_for_its_thread_only(run: Callable[[str], list[str]]) -> None:
    printed = run(
        """
together = threading.Barrier(8)
seen = [None] * 8

def call(number):
    together.wait()
    if number % 2:
        with tw.backend("ascend-sim"):
            seen[number] = (active(), all(is_right() for _ in range(5)))
    else:
        seen[number] = (active(), is_right())

with tw.backend("ascend-sim"):
    threads = [threading.Thread(target=call, args=(number,)) for number in range(8)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    print(active())
print(active())
print(seen)
"""
    )
    assert printed == ["ascend-sim", "None", str([(None, True), ("ascend-sim", True)] * 4)]


def test_simulator_runs_in_a_forked_child_and_in_its_parent(
    run: Callable[[str], list[str]],
) -> None:
    printed = run(
        """
with tw.backend("ascend-sim"):
    print("parent", is_right(), flush=True)
    child = os.fork()
    if child == 0:
        right = active() == "ascend-sim" and is_right()
        with tw.simulator.race_detection():
            right = right and is_right()
        os._exit(0 if right else 1)
    print("child", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    print("parent", is_right())
"""
    )
    assert printed == ["parent True", "child 0", "parent True"]


def test_fork_before_the_first_launch_leaves_both_able_to_launch(
    run: Callable[[str], list[str]],
) -> None:
    printed = run(
        """
child = os.fork()
with tw.backend("ascend-sim"):
    right = is_right()
if child == 0:
    os._exit(0 if right else 1)
print(right, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    )
    assert printed == ["True 0"]
