"""What each record of a benchmark on the CPU says of the machine, and how it is written."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Protocol

from record_file import record_file
from tilewheel.version import VERSION

PACKAGES = (
    "torch",
    "apache-tvm-ffi",
    "tilelang",
    "nvidia-cuda-nvcc",
    "ziglang",
    "distributed",
)
"""The references, lowering, the two compilers and the cluster."""

QUICK = bool(os.environ.get("BENCH_QUICK"))
"""Whether to measure less, to see that everything works."""


class Write(Protocol):
    def __call__(self, **fields: object) -> None: ...


def describe() -> dict[str, Any]:
    """Return machine, versions and load of this moment: part of every record."""
    return {**_machine(), "load_average": round(os.getloadavg()[0], 2), "versions": _versions()}


@contextmanager
def records(path: Path) -> Iterator[Write]:
    """Yield a function that adds a record to ``path``, with what ``describe`` says."""
    with record_file(path) as write:
        yield lambda **fields: write({**fields, **describe()})


@cache
def _machine() -> dict[str, Any]:
    return {"device": _model(), "num_cores": len(os.sched_getaffinity(0))}


def _model() -> str:
    """Return the processor's name; Arm's kernel gives none, then the architecture."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.machine()


@cache
def _versions() -> dict[str, str]:
    found = {"tilewheel": VERSION, "python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
