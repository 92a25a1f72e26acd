"""Switches of the Ascend functional simulator, for tests and for kernel authors."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tilewheel import discovery, loader
from tilewheel.errors import NoArtifactError

__all__ = ["race_detection"]

_BACKEND = "ascend-sim"

_lock = threading.Lock()
_depths: dict[str, int] = {}


@contextmanager
def race_detection() -> Iterator[None]:
    """Check that every pair of conflicting accesses is ordered by a synchronisation.

    Holds for the launches of all threads that start inside the ``with`` block. A race raises
    ``RuntimeError`` with kernel, block, source line and buffer. Launches take up to a few times as
    long.

    Raises:
        NoArtifactError: no artifacts for the simulator are installed.
    """
    libraries = _libraries()
    _switch(libraries, 1)
    try:
        yield
    finally:
        _switch(libraries, -1)


def _switch(libraries: list[ctypes.CDLL], step: int) -> None:
    """Count the blocks that are open in each library; detection is on while there is one."""
    with _lock:
        for library in libraries:
            _depths[library._name] = _depths.get(library._name, 0) + step
            library.tilewheel_simulator_set_race_detection(int(_depths[library._name] > 0))


def _libraries() -> list[ctypes.CDLL]:
    found = {}
    for entry in discovery.catalog().entries:
        if entry.artifact.key.target.backend == _BACKEND and entry.root not in found:
            found[entry.root] = loader.open_libraries(entry)
    if not found:
        raise NoArtifactError(
            f"simulator: no {_BACKEND} artifacts are installed\nhint: make build TARGET={_BACKEND}"
        )
    return [library for libraries in found.values() for library in libraries]
