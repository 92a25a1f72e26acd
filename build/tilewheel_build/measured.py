"""What building a unit cost, beside the facts of its artifact: these go into no cache."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tilewheel_build.process import recorded_runs
from tilewheel_build.unit import ARTIFACT, Unit, UnitFacts, build_unit

_LINKED = (ARTIFACT, "libtvm_ffi.so")
"""What the runs that make up a link write: the artifact, and the stub that it is linked with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Processor time of the process and its compilers, and what linking took of the time.

    ``is_link_only`` says that the device code was there already: lowering and compiling are those
    of the build that made it.
    """

    cpu_s: float
    link_s: float
    is_link_only: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A finished unit."""

    facts: UnitFacts
    cost: Cost


@contextmanager
def measured_cost() -> Iterator[Callable[[], Cost]]:
    """Watch what this process and its compilers do; what it yields returns the cost so far."""
    before = sum(os.times()[:4])
    with recorded_runs() as runs:
        yield lambda: Cost(
            cpu_s=sum(os.times()[:4]) - before,
            link_s=sum(run.seconds for run in runs if run.output in _LINKED),
            is_link_only=all(run.output in _LINKED for run in runs),
        )


def build_measured(unit: Unit) -> Measured:
    """Build a unit in this process."""
    with measured_cost() as cost:
        facts = build_unit(unit)
    return Measured(facts=facts, cost=cost())
