"""Host time of a call of each operator: ours in every form, the peer, and the floors beside them.

python bench/host_time.py OUTPUT.jsonl [--only NAME] [--no-peer] [--no-compile]
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

import measure
import tilewheel as tw
from cases import HOST_CASES, Case, tensors_of
from record_file import record_file
from tilewheel import dispatch
from tilewheel.ffi import tvm_ffi

# No other dimension of a case has this size, so that zero tokens can be made of any tensor.
NUM_TOKENS = 61
# Their partial sums are as many as these tokens and never none.
_NEED_TOKENS = ("engram_gate_bwd", "grad_w_reduce")

EMPTY = "torch.empty of the outputs"
FFI = "empty TVM-FFI call"
CHECKED = "artifact, no launch"
ARTIFACT = "artifact"
PREALLOCATED = "preallocated"
ALLOCATING = "allocating"
OPS = "torch.ops"
COMPILED = "torch.compile"
PEER = "peer"
COLUMNS = (EMPTY, FFI, CHECKED, ARTIFACT, PREALLOCATED, ALLOCATING, OPS, COMPILED, PEER)

BUDGET_OF_EMPTY_CALL = 1.5
BUDGET_OF_PEER = 0.5

Timed = dict[str, Callable[[], object]]


def launch_of(case: Case, tensors: Any) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Return the function that the public call launches, and the arguments that it gives it."""
    case.ours(tw, tensors)
    seen: list[tuple[Callable[..., Any], tuple[Any, ...]]] = []

    def record(function: Callable[..., Any], *arguments: Any) -> None:
        seen.append((function, arguments))
        function(*arguments)

    known = {key: value for key, value in dispatch.bound.items() if key[0] == case.operator}
    dispatch.bound.update({key: partial(record, value) for key, value in known.items()})
    try:
        case.ours(tw, tensors)
    finally:
        dispatch.bound.update(known)
    (found,) = seen
    return found


def without_tokens(argument: Any) -> Any:
    """Return a tensor's view of zero tokens; what has no tokens as it is."""
    if isinstance(argument, torch.Tensor):
        for dim, size in enumerate(argument.shape):
            if size == NUM_TOKENS:
                return argument.narrow(dim, 0, 0)
    return argument


class _Recorder(TorchDispatchMode):
    """Notes the calls of ``torch.ops.tilewheel``, which a public call makes when it is traced."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Callable[[], object]] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func.namespace == "tilewheel":
            self.calls.append(partial(func.overloadpacket, *args, **(kwargs or {})))
        return func(*args, **(kwargs or {}))


def ops_of(case: Case, tensors: Any) -> Callable[[], object]:
    """Return a call of the operator of torch that stands for the public function."""
    known = dict(dispatch.bound)
    # What is loaded is launched without a look at dispatch modes.
    dispatch.bound.clear()
    with _Recorder() as recorder:
        case.allocating(tw, tensors)
    dispatch.bound.update(known)
    if len(recorder.calls) == 1:
        return recorder.calls[0]

    def all_of_them() -> None:
        for call in recorder.calls:
            call()

    return all_of_them


def rows(case: Case, peer: Any, device: str, *, with_compile: bool) -> Timed:
    """Return what to time, by the columns' names."""
    tensors = case.inputs(NUM_TOKENS, device)
    function, arguments = launch_of(case, tensors)
    given = tuple(argument for argument in arguments if isinstance(argument, torch.Tensor))
    empty = tvm_ffi().convert(lambda *_: None)
    timed: Timed = {}
    known = {tensor.data_ptr() for tensor in tensors_of(tensors)}
    made = [t for t in tensors_of(case.allocating(tw, tensors)) if t.data_ptr() not in known]
    if made:
        like = [(tensor.shape, tensor.dtype, tensor.device) for tensor in made]
        timed[EMPTY] = lambda: [torch.empty(s, dtype=t, device=d) for s, t, d in like]
    timed[FFI] = lambda: empty(*given)
    nothing = tuple(without_tokens(argument) for argument in arguments)
    changed = any(new is not old for new, old in zip(nothing, arguments, strict=True))
    if changed and case.operator not in _NEED_TOKENS:
        timed[CHECKED] = partial(function, *nothing)
    timed[ARTIFACT] = partial(function, *arguments)
    if case.preallocated is not None:
        timed[PREALLOCATED] = partial(case.preallocated, tw, tensors)
    timed[ALLOCATING] = partial(case.allocating, tw, tensors)
    timed[OPS] = ops_of(case, tensors)
    if with_compile:
        torch._dynamo.reset()
        allocating = case.allocating
        compiled = torch.compile(lambda inputs: allocating(tw, inputs), fullgraph=True)
        timed[COMPILED] = partial(compiled, tensors)
    if peer is not None and case.peer is not None:
        timed[PEER] = partial(case.peer, peer, tensors)
    return timed


def verdicts(times: dict[str, float]) -> Iterator[str]:
    """Yield a line for each budget that the medians of one case, by column, can be held to."""
    if PREALLOCATED in times:
        ratio = times[PREALLOCATED] / times[FFI]
        verdict = "met" if ratio <= BUDGET_OF_EMPTY_CALL else "missed"
        own = (times[PREALLOCATED] - times[ARTIFACT]) / times[FFI]
        yield (
            f"preallocated: {ratio:.2f} x an empty call, budget {BUDGET_OF_EMPTY_CALL} x: "
            f"{verdict}; {own:.2f} x of it above the bare artifact"
        )
    if PEER in times:
        ratio = times[ALLOCATING] / times[PEER]
        verdict = "met" if ratio < BUDGET_OF_PEER else "missed"
        yield f"allocating: {ratio:.2f} x the peer, budget {BUDGET_OF_PEER} x: {verdict}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("output", type=Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--no-peer", action="store_true")
    parser.add_argument("--no-compile", action="store_true")
    options = parser.parse_args()
    machine = measure.describe()
    peer = None if options.no_peer else measure.peer()
    with record_file(options.output) as write:
        for case in (case for case in HOST_CASES if options.only in case.name):
            print(case.name, flush=True)
            medians: dict[str, float] = {}
            timed = rows(case, peer, "cuda", with_compile=not options.no_compile)
            for what, call in timed.items():
                try:
                    call()
                    times = measure.host_time_us(call)
                except Exception as error:
                    print(f"  {what:30} failed: {measure.short(error)}", flush=True)
                    continue
                medians[what] = statistics.median(times)
                print(f"  {what:30} {medians[what]:7.2f} us", flush=True)
                record = {"kind": "host_time", "operator": case.operator, "case": case.name}
                record |= {"what": what, **measure.summary(times), **machine}
                write(record)
            for line in verdicts(medians):
                print(f"  {line}", flush=True)


if __name__ == "__main__":
    main()
