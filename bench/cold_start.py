"""Time to the first results of all operators of a profile, in fresh processes, phase by phase.

python bench/cold_start.py OUTPUT.jsonl [--profile NAME] [--runs N] [--cold-runs N] [--warm-runs N]
    [--cache DIRECTORY] [--seconds S] [--no-peer]

The clock starts when torch is imported, its CUDA context exists and the inputs are made; what came
before is a phase of its own. A call is done when the device is. The peer runs what it has of the
same cases, with an empty compilation cache and then with the one that this filled. No run begins
that would not end within S seconds, judged by the one before it of its kind; records say how many
there were.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import measure
from first_calls import TOTAL, Run
from record_file import record_file

PROFILE = "deepseek-v4-flash"
NUM_TOKENS = 64
RUNS = 5
OURS, PEER_COLD, PEER_WARM = "tilewheel", "peer, cold cache", "peer, warm cache"
BUDGET_MS = 500.0
FIRST_CALLS = Path(__file__).with_name("first_calls.py")


def wanted_of(profile: str) -> list[tuple[str, dict[str, Any]]]:
    """Return operator and parameters of each CUDA artifact of a profile that is installed."""
    import tilewheel

    keys = [
        entry.artifact.key
        for entry in tilewheel.artifacts()
        if profile in entry.artifact.profiles and entry.artifact.key.target.backend == "cuda"
    ]
    wanted = {(key.operator, tuple(key.parameters)) for key in keys}
    if not wanted:
        known = {name for entry in tilewheel.artifacts() for name in entry.artifact.profiles}
        raise SystemExit(f"--profile: is {profile!r}, must be one of {', '.join(sorted(known))}")
    return [(operator, dict(parameters)) for operator, parameters in sorted(wanted, key=str)]


def spawn(
    library_name: str, wanted: Sequence[tuple[str, dict[str, Any]]], environment: dict[str, str]
) -> Run:
    """Return what ``first_calls`` says in a fresh process."""
    done = subprocess.run(
        [sys.executable, str(FIRST_CALLS), library_name, str(NUM_TOKENS), json.dumps(wanted)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"cold start of {library_name} failed:\n{done.stderr[-2000:]}")
    run: Run = json.loads(done.stdout.splitlines()[-1])
    return run


def repeat(one: Callable[[], Run], num_runs: int, deadline: float) -> list[Run]:
    """Run until there are enough or the next would not end before the deadline."""
    runs: list[Run] = []
    longest = 0.0
    while len(runs) < num_runs and time.monotonic() + longest < deadline:
        begin = time.monotonic()
        runs.append(one())
        longest = max(longest, time.monotonic() - begin)
    return runs


def records_of(who: str, profile: str, runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Return a record for each phase."""
    records = []
    for phase in runs[0]:
        record = {"kind": "cold_start", "profile": profile, "who": who, "phase": phase}
        times = measure.summary([run[phase] * 1000 for run in runs], unit="ms")
        records.append({**record, **times, "runs": len(runs)})
    return records


def with_peer(wanted: Sequence[tuple[str, dict[str, Any]]]) -> list[tuple[str, dict[str, Any]]]:
    """Return what the peer has of the cases."""
    from cases import case_of

    return [(name, values) for name, values in wanted if case_of(name, values).peer is not None]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("output", type=Path)
    parser.add_argument("--profile", default=PROFILE)
    parser.add_argument("--runs", type=int, default=RUNS, help="of tilewheel")
    parser.add_argument("--cold-runs", type=int, default=RUNS, help="of the peer, empty cache")
    parser.add_argument("--warm-runs", type=int, default=RUNS, help="of the peer, filled cache")
    parser.add_argument("--cache", type=Path, help="where the peer's caches are kept")
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--no-peer", action="store_true")
    options = parser.parse_args()
    deadline = time.monotonic() + options.seconds
    machine = measure.describe()
    wanted = wanted_of(options.profile)
    with record_file(options.output) as write:

        def series(who: str, one: Callable[[], Run], num_runs: int) -> None:
            runs = repeat(one, num_runs, deadline)
            for record in records_of(who, options.profile, runs) if runs else ():
                print(f"{who:18} {record['phase']:48} {record['median_ms']:9.1f} ms", flush=True)
                write({**record, **machine})

        series(OURS, lambda: spawn("tilewheel", wanted, {}), options.runs)
        print(f"budget of {OURS}, {TOTAL}: {BUDGET_MS:g} ms")
        if not options.no_peer and measure.has_peer():
            _peer_series(series, with_peer(wanted), options)


def _peer_series(
    series: Callable[[str, Callable[[], Run], int], None],
    wanted: Sequence[tuple[str, dict[str, Any]]],
    options: argparse.Namespace,
) -> None:
    """Time the peer with empty caches, then with the one that the first of those runs filled."""
    with tempfile.TemporaryDirectory() as folder:
        caches = options.cache or Path(folder)
        empty = (caches / str(number) for number in itertools.count())
        cold = lambda: spawn("tile_kernels", wanted, peer_environment(next(empty)))  # noqa: E731
        series(PEER_COLD, cold, options.cold_runs)
        if options.warm_runs and not (caches / "0").is_dir():
            raise SystemExit(f"--cache: {caches}/0 is missing, must be what a cold run left")
        warm = peer_environment(caches / "0")
        series(PEER_WARM, lambda: spawn("tile_kernels", wanted, warm), options.warm_runs)


def peer_environment(cache: Path) -> dict[str, str]:
    """Return where the peer is to keep what it compiles."""
    cache.mkdir(parents=True, exist_ok=True)
    return {"TILELANG_CACHE_DIR": str(cache), "HOME": str(cache)}


if __name__ == "__main__":
    main()
