"""Time from process start to results, in fresh processes, each phase on its own.

python bench/cold_start.py OUTPUT.jsonl
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile

import measure

RUNS = 5

OURS = """
import json, time
import torch
torch.zeros(1, device="cuda"); torch.cuda.synchronize()
scores = torch.randn((64, 256), device="cuda"); torch.cuda.synchronize()
t0 = time.perf_counter()
import tilewheel as tw
t1 = time.perf_counter()
kernel = tw.load("topk_gate", device="cuda", num_experts=256, num_topk=8)
t2 = time.perf_counter()
idx = torch.empty((64, 8), dtype=torch.int64, device="cuda"); torch.cuda.synchronize()
t3 = time.perf_counter()
kernel(scores, idx); torch.cuda.synchronize()
t4 = time.perf_counter()
tw.moe.topk_gate(scores, 8); torch.cuda.synchronize()
t5 = time.perf_counter()
other = tw.load("topk_gate", device="cuda", num_experts=384, num_topk=8)
t6 = time.perf_counter()
print(json.dumps({"import": t1 - t0, "first load (with tvm-ffi's import)": t2 - t1,
    "first launch": t4 - t3, "first public call (operator module's import)": t5 - t4,
    "second load": t6 - t5, "all, after torch": t5 - t0}))
"""

PEER = """
import json, time
import torch
torch.zeros(1, device="cuda"); torch.cuda.synchronize()
scores = torch.randn((64, 256), device="cuda"); torch.cuda.synchronize()
t0 = time.perf_counter()
import tile_kernels
t1 = time.perf_counter()
tile_kernels.moe.topk_gate(scores, 8); torch.cuda.synchronize()
t2 = time.perf_counter()
print(json.dumps({"import": t1 - t0, "first public call": t2 - t1, "all, after torch": t2 - t0}))
"""


def run(program: str, environment: dict[str, str]) -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return {name: float(s) for name, s in json.loads(done.stdout.splitlines()[-1]).items()}


def series(what: str, runs: list[dict[str, float]]) -> list[dict[str, object]]:
    records: list[dict[str, object]] = []
    for name in runs[0]:
        times_ms = [run[name] * 1000 for run in runs]
        print(f"{what:18} {name:48} {statistics.median(times_ms):9.1f} ms", flush=True)
        records.append(
            {
                "kind": "cold_start",
                "who": what,
                "phase": name,
                "median_ms": round(statistics.median(times_ms), 2),
                "min_ms": round(min(times_ms), 2),
                "max_ms": round(max(times_ms), 2),
                "runs": len(runs),
            }
        )
    return records


def main() -> None:
    records = series("tilewheel", [run(OURS, {}) for _ in range(RUNS)])
    if measure.has_peer():
        cold = []
        for _ in range(2):
            with tempfile.TemporaryDirectory() as cache:
                cold.append(run(PEER, {"TILELANG_CACHE_DIR": cache, "HOME": cache}))
        records += series("peer, cold cache", cold)
        with tempfile.TemporaryDirectory() as cache:
            environment = {"TILELANG_CACHE_DIR": cache, "HOME": cache}
            run(PEER, environment)
            warm = [run(PEER, environment) for _ in range(3)]
            records += series("peer, warm cache", warm)
    machine = measure.describe()
    with open(sys.argv[1], "w") as file:
        for record in records:
            file.write(json.dumps({**record, **machine}) + "\n")


if __name__ == "__main__":
    main()
