"""A unit of work that travels: with its kernel's sources there, with the finished entry back.

The machine that builds it needs this package and the tools, but shares no directory with the one
that asks. It refuses a unit whose fingerprint it cannot reproduce.
"""

from __future__ import annotations

import importlib
import shutil
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tilewheel_build.backends import BACKENDS
from tilewheel_build.cache import store_entry
from tilewheel_build.driver import unit_inputs
from tilewheel_build.entry import EntryError, pack, read_directory, unpack
from tilewheel_build.errors import ToolchainError
from tilewheel_build.fingerprint import fingerprint, kernel_hashes
from tilewheel_build.measured import Cost, measured_cost
from tilewheel_build.unit import Unit, build_unit
from tilewheel_build.variant import Variant

_KERNELS = "tilewheel_kernels"

# Lowering redirects this process's standard error and imports kernels by name: one at a time.
_one_at_a_time = threading.Lock()


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteUnit:
    """A variant to build elsewhere.

    ``sources`` are the kernel's file and all that it imports, by their path below the kernels'
    root. ``inputs`` is what the fingerprint was made from. ``siblings`` are the packed entries of
    the unit's siblings, by fingerprint.
    """

    variant: Variant
    fingerprint: str
    inputs: Mapping[str, Any]
    sources: Mapping[str, bytes]
    siblings: Mapping[str, bytes]
    machine: str
    timeout_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteOutcome:
    """A packed entry and what it cost, or the error and the packed files of the work directory."""

    content: bytes
    cost: Cost | None = None
    error: Exception | None = None


def remote_unit(unit: Unit) -> RemoteUnit:
    """Return a unit with all that it is made from."""
    root = unit.kernels_root
    names = kernel_hashes(root, unit.variant.backend.kernel)
    siblings = {}
    for path in unit.siblings:
        with suppress(EntryError):  # someone removed it meanwhile
            siblings[path.name] = pack(read_directory(path))
    return RemoteUnit(
        variant=unit.variant,
        fingerprint=unit.fingerprint,
        inputs=_inputs(unit.variant, root, unit.machine),
        sources={name: (root / name).read_bytes() for name in names},
        siblings=siblings,
        machine=unit.machine,
        timeout_s=unit.timeout_s,
    )


def build_remote_unit(unit: RemoteUnit, scratch: Path) -> RemoteOutcome:
    """Build a unit that came from elsewhere, below ``scratch``, and return what it gave."""
    scratch.mkdir(parents=True, exist_ok=True)
    with _one_at_a_time, tempfile.TemporaryDirectory(prefix="unit-", dir=scratch) as place:
        root, work = Path(place) / "kernels", Path(place) / "work"
        # Beside it is zig's cache, which serves every unit that is built here.
        entry = scratch / "cache" / unit.fingerprint
        try:
            for name, content in unit.sources.items():
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                (root / name).write_bytes(content)
            for name, content in unit.siblings.items():
                store_entry(Path(place) / "siblings" / name, unpack(content))
            _check(unit, root)
            with _kernels_of(root), measured_cost() as cost:
                build_unit(
                    Unit(
                        variant=unit.variant,
                        fingerprint=unit.fingerprint,
                        kernels_root=root,
                        cache=entry,
                        work=work,
                        machine=unit.machine,
                        timeout_s=unit.timeout_s,
                        siblings=tuple(Path(place) / "siblings" / name for name in unit.siblings),
                    )
                )
            return RemoteOutcome(content=pack(read_directory(entry)), cost=cost())
        except Exception as error:
            files = {}
            with suppress(OSError):
                files = {p.name: p.read_bytes() for p in work.iterdir() if p.is_file()}
            return RemoteOutcome(content=pack(files), error=error)
        finally:
            shutil.rmtree(entry, ignore_errors=True)


def _inputs(variant: Variant, kernels_root: Path, machine: str) -> dict[str, Any]:
    toolchain = dict(BACKENDS[variant.key.target.backend].toolchain())
    return unit_inputs(variant, kernels_root, machine, toolchain)


def _check(unit: RemoteUnit, kernels_root: Path) -> None:
    inputs = _inputs(unit.variant, kernels_root, unit.machine)
    if fingerprint(inputs) == unit.fingerprint:
        return
    names = sorted({*inputs, *unit.inputs})
    differing = [name for name in names if inputs.get(name) != unit.inputs.get(name)]
    here, there = inputs["toolchain"], unit.inputs["toolchain"]
    tools = [
        f"{name} is {here.get(name)}, must be {there.get(name)}"
        for name in sorted({*here, *there})
        if here.get(name) != there.get(name)
    ]
    raise ToolchainError(
        f"the worker differs in {', '.join(differing)}: {'; '.join(tools) or 'its own files'}\n"
        "hint: install the same checkout and the same requirements-dev.txt on every worker"
    )


@contextmanager
def _kernels_of(root: Path) -> Iterator[None]:
    """Forget the kernels of other units: they have the same module names, and other content."""

    def forget() -> None:
        for name in [name for name in sys.modules if name.partition(".")[0] == _KERNELS]:
            del sys.modules[name]
        importlib.invalidate_caches()

    forget()
    try:
        yield
    finally:
        forget()
        with suppress(ValueError):
            sys.path.remove(str(root))
