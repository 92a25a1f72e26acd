"""Fixtures that every test may use: the backends that this machine can run."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

# One cache of the C compiler for all builds that tests make: a cold one costs seconds.
ZIG_CACHE = Path(__file__).parents[1] / "out" / "cache" / "zig"
os.environ.setdefault("ZIG_GLOBAL_CACHE_DIR", str(ZIG_CACHE))


@pytest.fixture(scope="session")
def run_script() -> Callable[..., list[str]]:
    """Return the function that runs a script in a process of its own and gives what it printed."""

    def run(text: str, **variables: str) -> list[str]:
        done = subprocess.run(
            [sys.executable, "-c", text],
            env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1", **variables},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    return run


@dataclass(frozen=True)
class Machine:
    """A backend to test: the device of its tensors and the name that selects it."""

    backend: str
    device: str
    detects_races: bool = False


@pytest.fixture(
    params=[
        pytest.param(Machine(backend="cuda", device="cuda"), id="cuda", marks=pytest.mark.gpu),
        pytest.param(Machine(backend="ascend-sim", device="cpu"), id="ascend-sim"),
        pytest.param(
            Machine(backend="ascend-sim", device="cpu", detects_races=True), id="ascend-sim-races"
        ),
    ]
)
def machine(request: pytest.FixtureRequest) -> Iterator[Machine]:
    """Run the test once on each backend; tensors on ``machine.device`` go to its artifacts."""
    import torch

    import tilewheel as tw

    chosen: Machine = request.param
    if chosen.backend == "cuda" and not torch.cuda.is_available():
        pytest.skip("no CUDA device on this machine")
    if not any(e.artifact.key.target.backend == chosen.backend for e in tw.artifacts()):
        pytest.skip(f"no {chosen.backend} artifacts are built")
    with ExitStack() as stack:
        if chosen.backend == "ascend-sim":
            stack.enter_context(tw.backend(chosen.backend))
        if chosen.detects_races:
            stack.enter_context(tw.simulator.race_detection())
        yield chosen
