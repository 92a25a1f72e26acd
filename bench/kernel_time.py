"""Kernel time by CUDA graph replay, ours and the peer's in one run. Writes JSON lines.

python bench/kernel_time.py OUTPUT.jsonl [--only NAME] [--tokens 1,64,4096] [--no-peer]
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable
from functools import partial
from typing import Any

import measure
from cases import CASES, Case

TOKENS = (1, 16, 64, 256, 1024, 4096, 16384, 65536)


def time_case(case: Case, num_tokens: int, call: Callable[[Any], object]) -> list[float]:
    size_bytes = max(1, case.bytes(num_tokens))
    num_sets = max(3, min(64, measure.L2_FLUSH_BYTES // size_bytes))
    sets = [case.inputs(num_tokens) for _ in range(num_sets)]
    return measure.graph_time_us([partial(call, tensors) for tensors in sets])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("output")
    parser.add_argument("--only", default="")
    parser.add_argument("--tokens", default=",".join(map(str, TOKENS)))
    parser.add_argument("--no-peer", action="store_true")
    options = parser.parse_args()
    machine = measure.describe()
    with_peer = measure.has_peer() and not options.no_peer
    ceiling_gb_s = measure.ceiling_gb_s()
    print(f"{machine['device']}: memory ceiling {ceiling_gb_s:.0f} GB/s")
    with open(options.output, "w") as file:
        for case in (case for case in CASES if options.only in case.name):
            for num_tokens in map(int, options.tokens.split(",")):
                record = {
                    "kind": "kernel_time",
                    "operator": case.operator,
                    "case": case.name,
                    "num_tokens": num_tokens,
                    "ceiling_gb_s": round(ceiling_gb_s),
                    **machine,
                }
                ours = time_case(case, num_tokens, case.ours)
                median = statistics.median(ours)
                gb_s = case.bytes(num_tokens) / median / 1e3
                record |= {"ours": measure.summary(ours), "gb_s": round(gb_s, 1)}
                line = f"{case.name:24} T={num_tokens:6} ours {median:8.2f} us {gb_s:7.0f} GB/s"
                if case.peer is not None and with_peer:
                    peer = time_case(case, num_tokens, case.peer)
                    record["peer"] = measure.summary(peer)
                    ratio = statistics.median(peer) / median
                    line += f"  peer {statistics.median(peer):8.2f} us  {ratio:5.2f}x"
                print(line, flush=True)
                file.write(json.dumps(record) + "\n")


if __name__ == "__main__":
    main()
