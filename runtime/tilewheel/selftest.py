"""Runs every artifact that this machine can run, against the reference.

A module of ``selftest_cases`` for each operator makes its cases: fixed inputs with the values that
the contract speaks of, and what the reference gives for them.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase

from tilewheel import device as devices
from tilewheel import loader
from tilewheel.device import PROPERTIES, Device
from tilewheel.discovery import Entry
from tilewheel.key import Value
from tilewheel.select import Request, misfits
from tilewheel.selftest_cases import Case

EXACT = "exact"
MISMATCH = "mismatch"
FAILED = "failed"
SKIPPED = "skipped"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """The result for one artifact; ``reason`` says why where it is not ``exact``."""

    key: str
    status: str
    time_ms: float
    reason: str


def machine() -> tuple[Device, ...]:
    """Return the devices that torch can use here and the simulated one, one for each backend."""
    import torch

    found = [devices.simulated()]
    if torch.cuda.is_available():
        found.append(devices.resolve("cuda:0"))
    if getattr(torch, "npu", None) is not None and torch.npu.is_available():
        found.append(devices.resolve("npu:0"))
    return tuple(found)


def run(entries: tuple[Entry, ...], available: tuple[Device, ...], only: str = "*") -> list[Row]:
    """Return one row for each artifact whose key matches the glob ``only``."""
    return [
        _run(entry, available) for entry in entries if fnmatchcase(str(entry.artifact.key), only)
    ]


def _run(entry: Entry, available: tuple[Device, ...]) -> Row:
    key = entry.artifact.key
    begin_s = time.perf_counter()

    def row(status: str, reason: str = "") -> Row:
        elapsed_ms = (time.perf_counter() - begin_s) * 1e3
        return Row(key=str(key), status=status, time_ms=elapsed_ms, reason=reason)

    device = next((d for d in available if d.backend == key.target.backend), None)
    if device is None:
        return row(SKIPPED, f"no {key.target.backend} device that torch can use")
    properties = PROPERTIES.get(device.backend, ())
    own = tuple(pair for pair in key.parameters if pair[0] not in properties)
    reasons, _ = misfits(entry.artifact, Request(operator=key.operator, parameters=own), device)
    if reasons:
        return row(SKIPPED, "; ".join(reasons))
    cases = _cases(key.operator)
    if cases is None:
        return row(SKIPPED, f"no self-test for operator {key.operator}")
    try:
        kernel = loader.load(entry, device, verify=True)
        kernel.prepare()
        for case in cases(dict(own), _torch_device(device)):
            kernel(*case.arguments)
            for place, expected in case.expected.items():
                difference = case.difference(case.arguments[place], expected)
                if difference:
                    name = entry.artifact.arguments[place].name
                    return row(MISMATCH, f"{case.name}: {name}: {difference}")
    except Exception as error:  # whatever one artifact does, the others are still tested
        return row(FAILED, f"{type(error).__name__}: {error}")
    return row(EXACT)


def _torch_device(device: Device) -> str:
    kinds = {"cuda": f"cuda:{device.index}", "ascend": f"npu:{device.index}", "ascend-sim": "cpu"}
    return kinds[device.backend]


def _cases(operator: str) -> Callable[[dict[str, Value], str], Iterator[Case]] | None:
    name = f"tilewheel.selftest_cases.{operator}"
    if importlib.util.find_spec(name) is None:
        return None
    cases: Callable[[dict[str, Value], str], Iterator[Case]]
    cases = importlib.import_module(name).cases
    return cases
