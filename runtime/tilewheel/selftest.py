"""Runs every artifact that this machine can run, against the reference.

One function for each operator makes its cases: fixed inputs with the values that the contract
speaks of, and what the reference gives for them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from tilewheel import device as devices
from tilewheel import loader
from tilewheel.device import PROPERTIES, Device
from tilewheel.discovery import Entry
from tilewheel.key import ANY, Value
from tilewheel.select import Request, misfits

EXACT = "exact"
MISMATCH = "mismatch"
FAILED = "failed"
SKIPPED = "skipped"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One call: inputs, the outputs it writes into, and their right content, on the CPU."""

    name: str
    inputs: tuple[Any, ...]
    outputs: tuple[Any, ...]
    expected: tuple[Any, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """The result for one artifact; ``reason`` says why where it is not ``exact``."""

    key: str
    status: str
    reason: str
    time_ms: float


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
        return Row(key=str(key), status=status, reason=reason, time_ms=elapsed_ms)

    device = next((d for d in available if d.backend == key.target.backend), None)
    if device is None:
        return row(SKIPPED, f"no {key.target.backend} device that torch can use")
    properties = PROPERTIES.get(device.backend, ())
    own = tuple(pair for pair in key.parameters if pair[0] not in properties)
    reasons, _ = misfits(entry.artifact, Request(operator=key.operator, parameters=own), device)
    if reasons:
        return row(SKIPPED, "; ".join(reasons))
    cases = _CASES.get(key.operator)
    if cases is None:
        return row(SKIPPED, f"no self-test for operator {key.operator}")
    try:
        kernel = loader.load(entry, device, verify=True)
        kernel.prepare()
        for case in cases(dict(own), _torch_device(device)):
            kernel(*case.inputs, *case.outputs)
            difference = _difference(case)
            if difference:
                return row(MISMATCH, f"{case.name}: {difference}")
    except Exception as error:  # whatever one artifact does, the others are still tested
        return row(FAILED, f"{type(error).__name__}: {error}")
    return row(EXACT)


def _torch_device(device: Device) -> str:
    kinds = {"cuda": f"cuda:{device.index}", "ascend": f"npu:{device.index}", "ascend-sim": "cpu"}
    return kinds[device.backend]


def _difference(case: Case) -> str:
    """Return where the outputs differ from what they must be, bit for bit; empty if nowhere."""
    for output, expected in zip(case.outputs, case.expected, strict=True):
        wrong = (output.cpu() != expected).nonzero()
        if len(wrong):
            place = tuple(wrong[0].tolist())
            return (
                f"{len(wrong)} of {expected.numel()} differ; at {place} is "
                f"{output[place].item()}, must be {expected[place].item()}"
            )
    return ""


def _topk_gate_cases(parameters: dict[str, Value], device: str) -> Iterator[Case]:
    import torch

    from tilewheel.reference import moe

    sizes = [(parameters["num_experts"], parameters["num_topk"])]
    if ANY in sizes[0]:
        sizes = [(1, 1), (33, 5), (160, 8), (1024, 32)]
    for num_experts, num_topk in sizes:
        for num_tokens in (0, 1, 133):
            generator = torch.Generator().manual_seed(num_tokens)
            scores = torch.randn((num_tokens, num_experts), generator=generator)
            scores[1::4] = (scores[1::4] * 2).round() / 2  # many equal scores, 0.0 beside -0.0
            scores[2::16] = 0.0
            scores[3::32, -1] = torch.nan
            scores[7::32, 0] = -torch.inf
            idx = torch.empty((num_tokens, num_topk), dtype=torch.int64, device=device)
            yield Case(
                name=f"num_tokens={num_tokens} num_experts={num_experts} num_topk={num_topk}",
                inputs=(scores.to(device),),
                outputs=(idx,),
                expected=(moe.topk_gate(scores, int(num_topk)),),
            )


_CASES: dict[str, Callable[[dict[str, Value], str], Iterator[Case]]] = {
    "topk_gate": _topk_gate_cases,
}
