"""What a launcher asks of the CUDA driver, seen by a stand-in that records the calls.

Each test runs in a process of its own, where ``libcuda.so.1`` is the stand-in.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent

PRELUDE = """
import ctypes, sys, threading
sys.modules["torch"] = None
import tvm_ffi
from claimed import claimed
recording = ctypes.CDLL("libcuda.so.1")

def load(key):
    return tvm_ffi.load_module(f"{artifacts}/{key}.so")

def attempt(function, *arguments):
    try:
        function(*arguments)
    except Exception as error:
        print(f"{type(error).__name__}: {error}")

plain = load("scale-hidden=128-with_bias=false-cuda-sm_90a")
biased = load("scale-hidden=any-with_bias=true-cuda-sm_90a")
stage = load("stage-hidden=16384-cuda-sm_90a")

def scale(device=0, rows=3):
    x, y = (claimed(rows, 128, device=(2, device)) for _ in "xy")
    plain["scale"](x, None, y, 1.0, 0)
"""

LOAD = [
    "cuInit 0",
    "cuDeviceGet 0",
    "cuDevicePrimaryCtxRetain 0",
    "cuCtxPushCurrent 0",
    "cuThreadExchangeStreamCaptureMode 2",
    "cuLibraryLoadData ELF options=0",
    "cuLibraryGetKernel scale_kernel",
    "cuKernelGetFunction ",
    "cuThreadExchangeStreamCaptureMode 0",
    "cuCtxPopCurrent 0",
]


@dataclass(frozen=True)
class Run:
    """What one process did: the driver's calls in order, and what it printed."""

    calls: list[str]
    printed: list[str]

    @property
    def launches(self) -> list[str]:
        return [call for call in self.calls if call.startswith("cuLaunchKernelEx")]


def compile_driver(folder: Path, *flags: str) -> Path:
    from tilewheel_build.cuda import cuda_include

    folder.mkdir()
    command = [sys.executable, "-m", "ziglang", "cc", "-shared", "-fPIC", "-O1", *flags]
    command += [f"-I{cuda_include()}", "-Wl,-soname,libcuda.so.1", str(HERE / "recording_driver.c")]
    cache = {name: str(folder.parent / "zig") for name in ZIG_CACHES}
    environment = {**os.environ, **cache}
    subprocess.run([*command, "-o", str(folder / "libcuda.so.1")], check=True, env=environment)
    return folder


ZIG_CACHES = ("ZIG_GLOBAL_CACHE_DIR", "ZIG_LOCAL_CACHE_DIR")


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory, needs_compilers: None) -> Path:
    """Return the directory of the recording driver."""
    return compile_driver(tmp_path_factory.mktemp("driver") / "current")


@pytest.fixture
def drive(
    built: Any, driver: Path, tmp_path: Path, run_script: Callable[..., list[str]]
) -> Callable[..., Run]:
    """Return the function that runs a script on the recording driver."""

    def run(script: str, *, library: Path = driver, **variables: str) -> Run:
        log = tmp_path / "calls.txt"
        folder = built.artifacts / "sm_90a"
        places = {
            "LD_LIBRARY_PATH": str(library),
            "PYTHONPATH": str(HERE),
            "RECORDING_LOG": str(log),
        }
        text = f"artifacts = {str(folder)!r}\n{PRELUDE}\n{script}"
        printed = run_script(text, **{**places, **variables})
        calls = log.read_text().splitlines() if log.exists() else []
        return Run(calls=calls, printed=printed)

    return run


def test_first_call_loads_the_image_and_the_second_only_launches(
    drive: Callable[..., Run],
) -> None:
    run = drive("recording.recording_current(0); scale(); scale()")
    launch = (
        "cuLaunchKernelEx grid=3x1x1 block=64x1x1 shared=0 stream=(nil) attributes=none "
        "device=0 extra=0 parameters="
    )
    assert run.calls == [*LOAD, launch, launch]


def test_parameters_arrive_in_the_device_functions_order(drive: Callable[..., Run]) -> None:
    run = drive(
        """
x = claimed(3, 128, strides=(512, 1), data=0x11100, byte_offset=0x20)
biased["scale"](x, claimed(128, data=0x22200), claimed(3, 128, data=0x33300), 1.5, -2)
""",
        RECORDING_SIZES="8,8,8,4,4,4,4,4",
    )
    # bias, x, y, factor = 1.5, num_chunks = 2, num_tokens = 3, row_stride = 512, shift = -2
    assert run.launches[0].rpartition("parameters=")[2].split(",") == [
        "0022020000000000",
        "2011010000000000",
        "0033030000000000",
        "0000c03f",
        "02000000",
        "03000000",
        "00020000",
        "feffffff",
    ]


def test_grid_follows_the_sizes_of_the_call(drive: Callable[..., Run]) -> None:
    run = drive(
        """
for rows, width in ((1, 64), (7, 256), (7, 320), (1000, 4096)):
    biased["scale"](claimed(rows, width), claimed(width), claimed(rows, width), 1.0, 0)
"""
    )
    assert [call.split()[1] for call in run.launches] == [
        "grid=1x1x1",
        "grid=7x1x1",
        "grid=7x2x1",
        "grid=1000x16x1",
    ]


def test_grid_may_come_from_scalars_and_the_block_may_have_two_dimensions(
    drive: Callable[..., Run],
) -> None:
    run = drive(
        """
tensors = (claimed(4, 16384), claimed(4, 16384), claimed(4, 3, dtype="int32"))
stage["stage"](*tensors, True, 2, 132)
"""
    )
    assert run.launches[0].split()[1:4] == ["grid=132x2x1", "block=32x4x1", "shared=65536"]


def test_shared_memory_above_48_kib_is_announced_once_for_each_device(
    drive: Callable[..., Run],
) -> None:
    run = drive(
        """
for device in (0, 0, 1):
    at = dict(device=(2, device))
    tensors = (claimed(4, 16384, **at), claimed(4, 16384, **at), claimed(4, 3, dtype="int32", **at))
    stage["stage"](*tensors, True, 1, 132)
"""
    )
    assert [call for call in run.calls if "Attribute" in call] == [
        "cuKernelSetAttribute 8=65536 device=0",
        "cuKernelSetAttribute 8=65536 device=1",
    ]
    assert len(run.launches) == 3


def test_programmatic_launch_is_asked_for_only_where_the_kernel_waits(
    drive: Callable[..., Run],
) -> None:
    run = drive(
        """
scale()
biased["scale"](claimed(3, 128), claimed(128), claimed(3, 128), 1.0, 0)
"""
    )
    assert [call.split()[5] for call in run.launches] == ["attributes=none", "attributes=6=1"]


def test_callers_stream_is_passed_on(drive: Callable[..., Run]) -> None:
    run = drive(
        """
with tvm_ffi.use_raw_stream(tvm_ffi.device("cuda", 0), 0xabc0):
    scale(0)
    scale(1)
scale(0)
"""
    )
    assert [call.split()[4] for call in run.launches] == [
        "stream=0xabc0",
        "stream=(nil)",
        "stream=(nil)",
    ]


def test_launch_on_another_device_enters_and_leaves_its_context(drive: Callable[..., Run]) -> None:
    run = drive(
        """
recording.recording_current(0)
plain["prepare"](1)
scale(1)
print(recording.recording_depth())
"""
    )
    assert [call.split(" grid")[0] for call in run.calls[10:]] == [
        "cuCtxPushCurrent 1",
        "cuLaunchKernelEx",
        "cuCtxPopCurrent 1",
    ]
    assert "device=1" in run.launches[0]
    assert run.printed == ["1"]


def test_thread_without_a_context_gets_one_for_the_launch_only(drive: Callable[..., Run]) -> None:
    run = drive("recording.recording_current(-1); scale(); print(recording.recording_depth())")
    assert [call.split(" grid")[0] for call in run.calls[10:]] == [
        "cuCtxPushCurrent 0",
        "cuLaunchKernelEx",
        "cuCtxPopCurrent 0",
    ]
    assert run.printed == ["0"]


def test_image_is_loaded_once_and_shared_by_the_devices(drive: Callable[..., Run]) -> None:
    run = drive("scale(0); scale(1); scale(0)")
    assert [call.split()[0] for call in run.calls].count("cuLibraryLoadData") == 1
    assert [call for call in run.calls if "Retain" in call] == [
        "cuDevicePrimaryCtxRetain 0",
        "cuDevicePrimaryCtxRetain 1",
    ]


def test_prepare_loads_so_that_the_call_only_launches(drive: Callable[..., Run]) -> None:
    run = drive('recording.recording_current(0); plain["prepare"](0); plain["prepare"](0); scale()')
    assert run.calls[:10] == LOAD
    assert [call.split()[0] for call in run.calls[10:]] == ["cuLaunchKernelEx"]


def test_empty_work_launches_nothing_and_opens_no_driver(drive: Callable[..., Run]) -> None:
    run = drive("scale(rows=0)")
    assert run.calls == []


@pytest.mark.parametrize(
    ("failure", "message"),
    [
        (
            "cuInit=100",
            "cuInit failed with CUDA error 100: CUDA_ERROR_NO_DEVICE: "
            "no CUDA-capable device is detected",
        ),
        (
            "cuDeviceGet=101",
            "finding the device failed with CUDA error 101: unknown error: it failed",
        ),
        (
            "cuDevicePrimaryCtxRetain=2",
            "opening the device failed with CUDA error 2: unknown error: it failed",
        ),
        (
            "cuCtxPushCurrent=201",
            "entering the device's context failed with CUDA error 201: unknown error: it failed",
        ),
        (
            "cuLibraryLoadData=209",
            "loading the device code for sm_90a (driver 580 or newer is needed) failed with CUDA "
            "error 209: CUDA_ERROR_NO_BINARY_FOR_GPU: it failed",
        ),
        (
            "cuLibraryGetKernel=500",
            "finding scale_kernel failed with CUDA error 500: unknown error: it failed",
        ),
        (
            "cuKernelGetFunction=209",
            "loading scale_kernel for sm_90a failed with CUDA error 209: "
            "CUDA_ERROR_NO_BINARY_FOR_GPU: it failed",
        ),
        (
            "cuLaunchKernelEx=719",
            "launching scale_kernel failed with CUDA error 719: "
            "CUDA_ERROR_LAUNCH_FAILED: it failed",
        ),
    ],
)
def test_failing_call_is_named_restores_the_context_and_can_be_tried_again(
    drive: Callable[..., Run], failure: str, message: str
) -> None:
    run = drive(
        """
recording.recording_current(0)
attempt(scale, 1)
print(recording.recording_depth(), recording.recording_capture_mode())
recording.recording_fail(b"", 0)
scale(1)
print(recording.recording_depth())
""",
        RECORDING_FAIL=failure,
    )
    assert run.printed == [f"RuntimeError: scale: {message}", "1 0", "1"]
    assert "device=1" in run.launches[-1]


def test_failing_attribute_is_named(drive: Callable[..., Run]) -> None:
    run = drive(
        'attempt(stage["prepare"], 0); print(recording.recording_depth())',
        RECORDING_FAIL="cuKernelSetAttribute=1",
    )
    assert run.printed == [
        "RuntimeError: stage: raising the dynamic shared memory limit failed with CUDA error 1: "
        "unknown error: it failed",
        "0",
    ]


def test_driver_without_the_launch_function_is_called_too_old(
    drive: Callable[..., Run], driver: Path
) -> None:
    old = compile_driver(driver.parent / "old", "-DNO_LAUNCH")
    run = drive("attempt(scale); attempt(scale)", library=old)
    message = (
        "RuntimeError: scale: the CUDA driver lacks cuLaunchKernelEx, must be version 580 or newer"
    )
    assert run.printed == [message, message]


def test_sixteen_threads_at_once_load_once_and_each_launch(drive: Callable[..., Run]) -> None:
    run = drive(
        """
together = threading.Barrier(16)
left = threading.Lock()
depths = []

def call(number):
    together.wait()
    scale(device=number % 2, rows=number + 1)
    with left:
        depths.append(recording.recording_depth())

threads = [threading.Thread(target=call, args=(number,)) for number in range(16)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
print(depths)
"""
    )
    names = [call.split()[0] for call in run.calls]
    assert names.count("cuInit") == 1
    assert names.count("cuLibraryLoadData") == 1
    assert names.count("cuKernelGetFunction") == 2
    assert sorted(int(call.split("grid=")[1].split("x")[0]) for call in run.launches) == [
        *range(1, 17)
    ]
    assert all(
        f"device={(int(c.split('grid=')[1].split('x')[0]) - 1) % 2}" in c for c in run.launches
    )
    assert run.printed == [str([0] * 16)]
