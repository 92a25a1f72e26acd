"""What a kernel is selected for: one device as a value, and the functions that ask the machine.

Nothing here runs at import. ``resolve`` asks torch where torch is loaded already, else the CUDA
driver itself, so that the command line explains a machine without torch.
"""

from __future__ import annotations

import ctypes
import sys
from dataclasses import dataclass

from tilewheel.errors import KeyFormatError, nearest
from tilewheel.key import Target

# Code for these architectures uses features that run on exactly this one ("a" targets).
_EXACT_ARCHS = {(9, 0): "sm_90a", (10, 0): "sm_100a", (12, 0): "sm_120a"}

# The first driver branch that speaks each CUDA version (CUDA release notes, table 3). A binary's
# minimum driver is a branch, while libcuda reports a CUDA version; with the forward compatibility
# package it is libcuda's that counts.
_DRIVER_BRANCHES = (
    (13010, 590),
    (13000, 580),
    (12090, 575),
    (12080, 570),
    (12060, 560),
    (12050, 555),
    (12040, 550),
    (12030, 545),
    (12020, 535),
    (12010, 530),
    (12000, 525),
)

PROPERTIES = {
    "cuda": ("driver", "num_sms"),
    "ascend": ("num_vec_cores",),
    "ascend-sim": ("num_vec_cores",),
}
"""The names that a device of each backend may have a value for."""

_SIMULATED_VEC_CORES = 64

# CUdevice_attribute values of cuda.h.
_MULTIPROCESSOR_COUNT = 16
_COMPUTE_CAPABILITY_MAJOR = 75
_COMPUTE_CAPABILITY_MINOR = 76


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One device. ``properties`` holds what selection and launchers may ask for by name.

    ``PROPERTIES`` lists the names; ``driver`` is the driver's branch, e.g. 580. A property that is
    not known is absent, and ``name`` is empty where only a target is known.
    """

    backend: str
    arch: str
    name: str
    index: int
    properties: tuple[tuple[str, int], ...] = ()

    def property(self, name: str) -> int | None:
        """Return one property, or None where it is not known."""
        return dict(self.properties).get(name)

    def __str__(self) -> str:
        if not self.name:
            return str(Target(backend=self.backend, arch=self.arch))
        return f"{self.backend}:{self.index} ({self.name}, {self.arch})"


def cuda_arch(major: int, minor: int) -> str:
    """Return the architecture whose code a device of this compute capability runs."""
    return _EXACT_ARCHS.get((major, minor), f"sm_{major}{minor}")


def driver_branch(cuda_version: int) -> int | None:
    """Return the driver branch of a CUDA version as libcuda reports it (13000 is 13.0)."""
    for version, branch in _DRIVER_BRANCHES:
        if cuda_version >= version:
            return branch
    return None


def simulated(*, num_vec_cores: int = _SIMULATED_VEC_CORES) -> Device:
    """Return the device that the Ascend functional simulator stands for."""
    return Device(
        backend="ascend-sim",
        arch="dav_3510",
        name="functional simulator",
        index=0,
        properties=(("num_vec_cores", num_vec_cores),),
    )


def of_target(target: Target) -> Device:
    """Return a device of a target that need not be in this machine, for explanations."""
    if target == Target(backend="ascend-sim", arch="dav_3510"):
        return simulated()
    return Device(backend=target.backend, arch=target.arch, name="", index=0)


def resolve(device: object) -> Device:
    """Return the device that a caller names.

    Accepted: a ``Device``; a torch device or its text (``cuda``, ``cuda:1``, ``npu:0``);
    ``ascend-sim``; a target (``cuda-sm_90a``); None for this machine's current device.

    Raises:
        ValueError: the text names no device.
        RuntimeError: the machine has no such device.
    """
    if isinstance(device, Device):
        return device
    text = _current_type() if device is None else str(device)
    if text == "ascend-sim":
        return simulated()
    kind, _, number = text.partition(":")
    if kind in ("cuda", "npu") and (number.isdecimal() or text == kind):
        index = int(number) if number else None
        return _cuda(index) if kind == "cuda" else _npu(index)
    if "-" in text and ":" not in text:
        try:
            target = Target.parse(text)
        except KeyFormatError as error:
            raise ValueError(f"device: {error}") from error
        if target.backend not in PROPERTIES:
            known = ", ".join(nearest(target.backend, PROPERTIES))
            raise ValueError(f"device: backend: is {target.backend!r}, must be one of {known}")
        return of_target(target)
    raise ValueError(
        f"device: is {text!r}, must be cuda[:N], npu[:N], ascend-sim, a target such as "
        "cuda-sm_90a, or None\n"
        "hint: CPU tensors go to the reference; select the simulator with device='ascend-sim'"
    )


def cuda_devices() -> tuple[Device, ...]:
    """Return the CUDA devices of this machine by asking libcuda (this initialises the driver)."""
    driver = _driver()
    if driver is None or driver.cuInit(0) != 0:
        return ()
    count = ctypes.c_int()
    if driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return ()
    return tuple(_cuda_by_driver(driver, index) for index in range(count.value))


def npu_devices() -> tuple[Device, ...]:
    """Return the NPUs of this machine; this imports torch_npu.

    Raises:
        RuntimeError: torch_npu cannot be imported.
    """
    from tilewheel import npu

    return tuple(_npu(index) for index in range(npu.device_count()))


def cuda_driver_version() -> int | None:
    """Return the CUDA version that libcuda reports, 13000 for 13.0, or None where there is none."""
    driver = _driver()
    version = ctypes.c_int()
    if driver is None or driver.cuDriverGetVersion(ctypes.byref(version)) != 0:
        return None
    return version.value


def _current_type() -> str:
    torch = sys.modules.get("torch")
    if torch is not None and getattr(torch, "npu", None) is not None and torch.npu.is_available():
        return "npu"
    return "cuda"


def _cuda(index: int | None) -> Device:
    torch = sys.modules.get("torch")
    if torch is not None and torch.version.cuda is not None:
        return _cuda_by_torch(index)
    devices = cuda_devices()
    if (index or 0) >= len(devices):
        raise RuntimeError(
            f"device: is 'cuda:{index or 0}', this machine has {len(devices)} CUDA devices"
        )
    return devices[index or 0]


def _cuda_by_torch(index: int | None) -> Device:
    import torch

    count = torch.cuda.device_count()
    if (index or 0) >= count:
        raise RuntimeError(f"device: is 'cuda:{index or 0}', this machine has {count} CUDA devices")
    if index is None:
        index = torch.cuda.current_device()
    found = torch.cuda.get_device_properties(index)
    return Device(
        backend="cuda",
        arch=cuda_arch(found.major, found.minor),
        name=found.name,
        index=index,
        properties=_cuda_properties(found.multi_processor_count),
    )


def _cuda_by_driver(driver: ctypes.CDLL, index: int) -> Device:
    handle = ctypes.c_int()
    driver.cuDeviceGet(ctypes.byref(handle), index)
    name = ctypes.create_string_buffer(256)
    driver.cuDeviceGetName(name, len(name), handle)

    def attribute(number: int) -> int:
        value = ctypes.c_int()
        driver.cuDeviceGetAttribute(ctypes.byref(value), number, handle)
        return value.value

    return Device(
        backend="cuda",
        arch=cuda_arch(attribute(_COMPUTE_CAPABILITY_MAJOR), attribute(_COMPUTE_CAPABILITY_MINOR)),
        name=name.value.decode(errors="replace"),
        index=index,
        properties=_cuda_properties(attribute(_MULTIPROCESSOR_COUNT)),
    )


def _cuda_properties(num_sms: int) -> tuple[tuple[str, int], ...]:
    version = cuda_driver_version()
    branch = None if version is None else driver_branch(version)
    known = () if branch is None else (("driver", branch),)
    return (*known, ("num_sms", num_sms))


def _driver() -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None


def _npu(index: int | None) -> Device:
    from tilewheel import npu

    number, name, arch, num_vec_cores = npu.describe(index)
    properties = () if num_vec_cores is None else (("num_vec_cores", num_vec_cores),)
    return Device(backend="ascend", arch=arch, name=name, index=number, properties=properties)
