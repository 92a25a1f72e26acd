"""Host time of an eager call: ours, the bare artifact, the peer, and the floors beside them.

python bench/host_time.py OUTPUT.jsonl
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable
from typing import Any

import torch

import measure
import tilewheel as tw
from cases import CASES
from tilewheel.ffi import tvm_ffi

NUM_TOKENS = 64


def rows(case: Any) -> dict[str, Callable[[], object]]:
    tensors = case.inputs(NUM_TOKENS)
    case.ours(tensors)  # defines the torch op
    kernel = tw.load(case.operator, device="cuda", **dict(case.parameters))
    empty = tvm_ffi().convert(lambda *arguments: None)
    # Zero tokens: every check of the launcher runs, nothing is launched.
    nothing = case.inputs(0)
    output = tensors[1]
    op = getattr(torch.ops.tilewheel, case.operator)
    num_topk = output.shape[1]
    found: dict[str, Callable[[], object]] = {
        "torch.empty of the output": lambda: torch.empty(
            output.shape, dtype=output.dtype, device="cuda"
        ),
        "tvm-ffi call to Python, same tensors": lambda: empty(*tensors),
        "artifact, zero tokens (no launch)": lambda: kernel(*nothing),
        "artifact, preallocated": lambda: kernel(*tensors),
        "public function, preallocated": lambda: case.ours(tensors),
        "public function, allocating": lambda: case.ours_allocating(tensors),
        "torch.ops, allocating": lambda: op(tensors[0], num_topk),
    }
    if measure.has_peer():
        found["peer, allocating"] = lambda: case.peer(tensors)
    return found


def main() -> None:
    machine = measure.describe()
    case = next(case for case in CASES if case.name == "topk_gate E256 k8")
    with open(sys.argv[1], "w") as file:
        for name, call in rows(case).items():
            call()
            times = measure.host_time_us(call)
            print(f"{name:42} {statistics.median(times):7.2f} us", flush=True)
            record = {"kind": "host_time", "case": case.name, "what": name}
            file.write(json.dumps({**record, **measure.summary(times), **machine}) + "\n")


if __name__ == "__main__":
    main()
