"""How the benchmarks measure, and what each record says of the machine it was taken on."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import statistics
import time
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import torch

import tilewheel
from spread import spread

L2_FLUSH_BYTES = 192 * 2**20
"""More than any L2 (60 MB on H200): what inputs rotate through and what is overwritten."""


def describe() -> dict[str, Any]:
    """Return device and versions: part of every record.

    Raises:
        SystemExit: this machine has no NVIDIA GPU that torch can use.
    """
    if not torch.cuda.is_available():
        raise SystemExit(
            "bench: torch finds no CUDA device here, must have one\n"
            "hint: make gpu-bundle packs what another machine needs to run this"
        )
    versions = {"tilewheel": tilewheel.__version__, "torch": torch.__version__}
    for name in ("apache-tvm-ffi", "tile-kernels", "tilelang", "torch-c-dlpack-ext"):
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    properties = torch.cuda.get_device_properties(0)
    return {
        "device": properties.name,
        "num_sms": properties.multi_processor_count,
        "cuda": torch.version.cuda,
        "versions": versions,
    }


def has_peer() -> bool:
    """Return whether the JIT peer (tile-kernels) can be measured beside us."""
    return importlib.util.find_spec("tile_kernels") is not None


def peer() -> ModuleType | None:
    """Return the JIT peer, or None where it is not installed."""
    return importlib.import_module("tile_kernels") if has_peer() else None


def short(error: Exception) -> str:
    """Return an error's type and the beginning of its first line."""
    first = str(error).partition("\n")[0]
    return f"{type(error).__name__}: {first[:90]}"


def graph_time_us(calls: Sequence[Callable[[], object]], *, num_replays: int = 20) -> list[float]:
    """Return microseconds a call for each replay of a graph that holds all ``calls`` in a row.

    Kernel time, not host time: the host launches once a replay. The calls differ in their inputs,
    and what they have of the L2 is overwritten before each replay, so that each finds its own
    outside it, however small.
    """
    flush = torch.empty(L2_FLUSH_BYTES, dtype=torch.uint8, device="cuda")
    for call in calls:
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    times = []
    for _ in range(num_replays + 3):
        start = torch.cuda.Event(enable_timing=True)
        stop = torch.cuda.Event(enable_timing=True)
        flush.zero_()
        start.record()
        graph.replay()
        stop.record()
        stop.synchronize()
        times.append(start.elapsed_time(stop) * 1000 / len(calls))
    return times[3:]


def host_time_us(
    call: Callable[[], object], *, num_calls: int = 1000, repeats: int = 11
) -> list[float]:
    """Return microseconds of the host a call, one number for each repeat.

    So many that ``compare.py``'s rank test can tell. The queue is drained between repeats and is
    short enough not to fill, so that no call waits for the device.
    """
    batch = min(num_calls, 500)
    times = []
    for _ in range(repeats + 1):
        spent = 0.0
        for _ in range(num_calls // batch):
            torch.cuda.synchronize()
            begin = time.perf_counter()
            for _ in range(batch):
                call()
            spent += time.perf_counter() - begin
        times.append(spent * 1e6 / (num_calls // batch * batch))
    torch.cuda.synchronize()
    return times[1:]


def ceiling_gb_s(size_bytes: int = 2**30) -> float:
    """Return the memory ceiling in GB/s: an elementwise kernel's bytes read plus bytes written.

    A device-to-device ``copy_`` goes through the driver's memcpy, which is slower than a kernel.
    """
    source = torch.randn(size_bytes // 4, device="cuda")
    target = torch.empty_like(source)
    times = graph_time_us([lambda: torch.neg(source, out=target)] * 3)
    return 2 * size_bytes / statistics.median(times) / 1e3


def summary(times: Sequence[float], *, unit: str = "us") -> dict[str, Any]:
    """Return median, least, greatest and all of some times."""
    return spread(times, unit)
