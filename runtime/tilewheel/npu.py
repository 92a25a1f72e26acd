"""The one place that touches torch_npu, and only once a caller names an NPU.

torch_npu cannot be imported without CANN, so nothing else may import it.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

# DLPack's kDLExtDev, the device type of NPU tensors.
DLPACK_DEVICE_TYPE = 12

# Names as torch_npu reports them begin with the series; one architecture serves a series.
_ARCHS = {"Ascend950": "dav_3510"}


def describe(index: int | None) -> tuple[int, str, str, int | None]:
    """Return (index, name, arch, number of vector cores where known) of one NPU.

    Raises:
        RuntimeError: torch_npu cannot be imported, or there is no such NPU.
    """
    npu: Any = _import_torch_npu().npu
    count = npu.device_count()
    if (index or 0) >= count:
        raise RuntimeError(f"device: is 'npu:{index or 0}', this machine has {count} NPUs")
    if index is None:
        index = int(npu.current_device())
    name = str(npu.get_device_name(index))
    num_vec_cores = getattr(npu.get_device_properties(index), "vector_core_num", None)
    return index, name, arch_of(name), num_vec_cores


def device_count() -> int:
    """Return how many NPUs this machine has.

    Raises:
        RuntimeError: torch_npu cannot be imported.
    """
    return int(_import_torch_npu().npu.device_count())


def arch_of(name: str) -> str:
    """Return the architecture of an NPU by its name; an unknown one matches no artifact."""
    for series, arch in _ARCHS.items():
        if name.startswith(series):
            return arch
    return "unknown"


def stream_getter() -> Callable[[int], int]:
    """Return the function that gives the raw handle of a device's current stream."""
    torch_npu: Any = _import_torch_npu()
    raw = getattr(torch_npu._C, "_npu_getCurrentRawStream", None)
    if raw is not None:
        return lambda index: int(raw(index))
    # About 150 us a call: it builds a stream object.
    return lambda index: int(torch_npu.npu.current_stream(index).npu_stream)


def is_capturing() -> bool:
    """Return whether the current stream is being captured into a graph.

    False where this torch_npu cannot tell: one without graphs captures nothing.
    """
    ask = getattr(_import_torch_npu().npu, "is_current_stream_capturing", None)
    return ask is not None and bool(ask())


def _import_torch_npu() -> ModuleType:
    try:
        import torch_npu
    except ImportError as error:
        raise RuntimeError(
            f"device: is an NPU, but torch_npu cannot be imported: {error}\n"
            "hint: install torch_npu for this torch, and source CANN's set_env.sh"
        ) from error
    module: ModuleType = torch_npu
    return module
