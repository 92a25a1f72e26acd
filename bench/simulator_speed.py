"""Speed of the Ascend functional simulator, and what a process pays to begin. Writes JSON lines.

python bench/simulator_speed.py OUTPUT.jsonl [--only NAME]

Simulator and torch get one thread each. The artifacts are those that tilewheel finds; operators
without one are passed over. BENCH_QUICK=1 repeats less.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

import cpu
import tilewheel as tw
from simulator_cases import SimulatorCase, cases
from spread import spread
from tilewheel import discovery, loader
from tilewheel.discovery import Entry

BACKEND = "ascend-sim"
REPEATS = 5 if cpu.QUICK else 11
PROCESSES = 3 if cpu.QUICK else 9
CALL_MS = 20.0
"""A repeat calls until this has passed: timers and the interpreter are noise below it."""

START = """
import json, time
marks = []
def mark(phase):
    marks.append((phase, time.perf_counter(), time.process_time()))
mark("")
import torch
mark("import torch")
import tilewheel
mark("import tilewheel, after torch")
from dataclasses import replace
from tilewheel import device, discovery, loader
found = [e for e in discovery.catalog().entries if e.artifact.key.target.backend == "ascend-sim"]
# An overlay is hashed when it is loaded, an installed package is not.
first, second = (replace(entry, is_overlay=False) for entry in found[:2])
place = device.simulated()
mark("read the manifests")
loader.load(first, place)
mark("first load (with tvm-ffi's import)")
kernel = loader.load(second, place)
mark("load one more artifact")
assert callable(kernel.function)
print(json.dumps({phase: (wall - before[1], cpu - before[2])
    for before, (phase, wall, cpu) in zip(marks, marks[1:])}))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("output", type=Path)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    entries = [
        entry
        for entry in discovery.catalog().entries
        if entry.artifact.key.target.backend == BACKEND
    ]
    if len(entries) < 2:
        raise SystemExit(
            f"simulator_speed: {len(entries)} artifacts of {BACKEND} are built, must be 2 or more\n"
            f"hint: make build TARGET={BACKEND} PROFILE=smoke"
        )
    torch.set_num_threads(1)
    _use_one_thread(entries)
    built = {entry.artifact.key.operator for entry in entries}
    with cpu.records(options.output) as write:
        for case in cases():
            if case.operator in built and options.only in case.name:
                measure(case, write)
        start(write)


def measure(case: SimulatorCase, write: cpu.Write) -> None:
    """Time one case in the simulator, with race detection and without, and the reference."""
    plain, _ = time_ms(case.reference)
    for races in (False, True):
        with tw.backend(BACKEND):
            if races:
                with tw.simulator.race_detection():
                    ours, processor = time_ms(case.ours)
            else:
                ours, processor = time_ms(case.ours)
        median_ms = statistics.median(ours)
        write(
            kind="simulator",
            operator=case.operator,
            case=case.name,
            races=races,
            num_threads=1,
            runs=REPEATS,
            ours=spread(ours, "ms"),
            # Less than the time that passes where others use the machine.
            ours_cpu=spread(processor, "ms"),
            elements_per_s=round(case.num_elements / median_ms * 1e3),
            reference=spread(plain, "ms"),
        )
        print(
            f"{case.name:56} {'races' if races else '':5} {median_ms:9.3f} ms"
            f"  reference {statistics.median(plain):9.3f} ms",
            flush=True,
        )


def time_ms(call: Callable[[], object]) -> tuple[list[float], list[float]]:
    """Return milliseconds a call that pass, and those of the processor, for each repeat."""
    call()
    begin = time.perf_counter()
    call()
    num_calls = max(1, round(CALL_MS / 1e3 / (time.perf_counter() - begin)))
    passed, processor = [], []
    for _ in range(REPEATS):
        begin, begin_cpu = time.perf_counter(), time.process_time()
        for _ in range(num_calls):
            call()
        processor.append((time.process_time() - begin_cpu) * 1e3 / num_calls)
        passed.append((time.perf_counter() - begin) * 1e3 / num_calls)
    return passed, processor


def start(write: cpu.Write) -> None:
    """Time import and load in fresh processes."""
    runs = []
    for _ in range(PROCESSES):
        done = subprocess.run(
            [sys.executable, "-c", START], capture_output=True, text=True, check=True
        )
        runs.append(json.loads(done.stdout.splitlines()[-1]))
    for phase in runs[0]:
        times, processor = ([run[phase][n] * 1e3 for run in runs] for n in range(2))
        print(f"{phase:56} {statistics.median(times):15.3f} ms", flush=True)
        write(
            kind="cpu_start",
            phase=phase,
            runs=PROCESSES,
            wall=spread(times, "ms"),
            cpu=spread(processor, "ms"),
        )


def _use_one_thread(entries: Sequence[Entry]) -> None:
    for root in {entry.root for entry in entries}:
        entry = next(entry for entry in entries if entry.root == root)
        for library in loader.open_libraries(entry):
            library.tilewheel_simulator_set_max_threads(1)


if __name__ == "__main__":
    main()
