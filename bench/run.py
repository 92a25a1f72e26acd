"""Runs every GPU benchmark and names its records by the device: DIRECTORY/<device>_<what>.jsonl.

python bench/run.py [--out DIRECTORY] [--only NAME] [--tokens 1,64,4096] [--profile NAME]
    [--no-peer]
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import measure

HERE = Path(__file__).resolve().parent

_SCRIPTS = {"kernel_step": "kernel_time"}


def slug(device: str) -> str:
    """Return a device's name for files: ``NVIDIA H200`` is h200."""
    words = re.sub(r"[^a-z0-9]+", "_", device.lower()).strip("_")
    return words.removeprefix("nvidia_")


def commands(options: argparse.Namespace, device: str) -> Iterator[list[str]]:
    """Yield the command line of each benchmark."""
    peer = ["--no-peer"] if options.no_peer else []
    only = ["--only", options.only] if options.only else []
    own = {
        "kernel_time": [*only, *(["--tokens", options.tokens] if options.tokens else [])],
        "kernel_step": ["--steps", *only],
        "host_time": only,
        "cold_start": ["--profile", options.profile] if options.profile else [],
    }
    for name, arguments in own.items():
        output = options.out / f"{slug(device)}_{name}.jsonl"
        script = HERE / f"{_SCRIPTS.get(name, name)}.py"
        yield [sys.executable, str(script), str(output), *arguments, *peer]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=HERE / "results")
    parser.add_argument("--only", default="", help="cases whose name holds this")
    parser.add_argument("--tokens", default="", help="numbers of tokens of kernel_time")
    parser.add_argument("--profile", default="", help="profile of cold_start")
    parser.add_argument("--no-peer", action="store_true")
    options = parser.parse_args()
    device = measure.describe()["device"]
    options.out.mkdir(parents=True, exist_ok=True)
    codes = [
        subprocess.run(command, check=False).returncode for command in commands(options, device)
    ]
    print(f"records are in {options.out}; python bench/report.py && python bench/plot.py read them")
    return max(codes)


if __name__ == "__main__":
    sys.exit(main())
