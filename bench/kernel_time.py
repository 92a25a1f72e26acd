"""Kernel time by CUDA graph replay: ours, the peer's and torch's own operators, in one run.

python bench/kernel_time.py OUTPUT.jsonl [--only NAME] [--tokens 1,64,4096] [--no-peer]
    [--no-eager] [--seconds S]
python bench/kernel_time.py OUTPUT.jsonl --steps [--only NAME] [--seconds S]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

import measure
import tilewheel as tw
from cases import CASES, Case
from record_file import record_file

TOKENS = (1, 16, 64, 256, 1024, 4096, 16384, 65536)

STEPS = (1, 32, 64, 66, 132, 264, 528, 1024)
"""Numbers of tokens after which a kernel may need a block, a wave or a way of working more.

They are those of 132 multiprocessors with half a block to eight each, and powers of two.
"""


Timed = tuple[dict[str, Any], str]


def time_case(case: Case, num_tokens: int, call: Callable[[Any], object]) -> list[float]:
    size_bytes = max(1, case.bytes(num_tokens))
    num_sets = max(3, min(64, measure.L2_FLUSH_BYTES // size_bytes))
    sets = [case.inputs(num_tokens, "cuda") for _ in range(num_sets)]
    return measure.graph_time_us([partial(call, tensors) for tensors in sets])


def beside(
    name: str, case: Case, num_tokens: int, call: Callable[[Any], object], record: dict[str, Any]
) -> str:
    """Measure a call, note it in the record beside ours, and return what to print of it."""
    try:
        times = time_case(case, num_tokens, call)
    except Exception as error:
        torch.cuda.synchronize()
        return f"  {name} failed: {measure.short(error)}"
    record[name] = measure.summary(times)
    median = record[name]["median_us"]
    return f"  {name} {median:8.2f} us {median / record['ours']['median_us']:6.2f}x"


def measured(case: Case, num_tokens: int) -> tuple[dict[str, Any], float]:
    """Return the record of ours, and its median in microseconds."""
    times = time_case(case, num_tokens, partial(case.ours, tw))
    return measure.summary(times), statistics.median(times)


def size_record(case: Case, num_tokens: int, options: argparse.Namespace, peer: Any) -> Timed:
    """Return the record of a case at a number of tokens, and what to print of it."""
    ours, median = measured(case, num_tokens)
    gb_s = case.bytes(num_tokens) / median / 1e3
    record = {"kind": "kernel_time", "ours": ours, "gb_s": round(gb_s, 1)}
    line = f"ours {median:8.2f} us {gb_s:7.0f} GB/s"
    if case.peer is not None and peer is not None:
        line += beside("peer", case, num_tokens, partial(case.peer, peer), record)
    if case.eager is not None and not options.no_eager:
        line += beside("eager", case, num_tokens, case.eager, record)
    return record, line


def step_record(case: Case, num_tokens: int) -> Timed:
    """Return the record of a case with one token more, and what to print of it."""
    ours, before = measured(case, num_tokens)
    following, after = measured(case, num_tokens + 1)
    record = {"kind": "kernel_step", "ours": ours, "following": following}
    line = f"{before:8.2f} us, with one more {after:8.2f} us {after / before:5.2f}x"
    return record, line


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("output", type=Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--tokens", default=",".join(map(str, TOKENS)))
    parser.add_argument("--steps", action="store_true", help="time one token more at a time")
    parser.add_argument("--no-peer", action="store_true")
    parser.add_argument("--no-eager", action="store_true")
    parser.add_argument("--seconds", type=float, default=float("inf"))
    options = parser.parse_args()
    deadline = time.monotonic() + options.seconds
    machine = measure.describe()
    peer = None if options.no_peer or options.steps else measure.peer()
    ceiling_gb_s = round(measure.ceiling_gb_s())
    print(f"{machine['device']}: memory ceiling {ceiling_gb_s} GB/s")
    all_tokens = STEPS if options.steps else [int(text) for text in options.tokens.split(",")]
    with record_file(options.output) as write:
        for case in (case for case in CASES if options.only in case.name):
            for num_tokens in all_tokens:
                if time.monotonic() > deadline:
                    print(f"stopped after {options.seconds:g} s, before {case.name}")
                    return
                if options.steps:
                    record, line = step_record(case, num_tokens)
                else:
                    record, line = size_record(case, num_tokens, options, peer)
                print(f"{case.name:24} T={num_tokens:6} {line}", flush=True)
                what = {"operator": case.operator, "case": case.name, "num_tokens": num_tokens}
                record |= {**what, "ceiling_gb_s": ceiling_gb_s, **machine}
                write(record)


if __name__ == "__main__":
    main()
