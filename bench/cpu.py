"""What each record of a benchmark on the CPU says of the machine, and how it is written."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Protocol

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
    """Yield a function that adds a record to ``path``, one JSON line.

    An old file is replaced at the end: who is interrupted keeps it, and has the new records in
    ``<path>.part``.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.part")
    with part.open("w") as file:

        def write(**fields: object) -> None:
            file.write(json.dumps({**fields, **describe()}) + "\n")
            file.flush()

        yield write
    part.replace(path)


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
