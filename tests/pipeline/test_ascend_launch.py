"""What a launcher asks of AscendCL, seen by a stand-in that records the calls.

Each test runs in a process of its own, where ``libascendcl.so`` is the stand-in and the artifact
comes from a stand-in compiler: tensors only claim to be on an NPU.
"""

from __future__ import annotations

import difflib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
KEY = "shift-hidden=256-num_vec_cores=any-staged=true-ascend-dav_3510"

PRELUDE = """
import ctypes, sys, threading
sys.modules["torch"] = None
import tvm_ffi
from claimed import claimed

def recording():
    return ctypes.CDLL("libascendcl.so")

def attempt(function, *arguments):
    try:
        function(*arguments)
    except Exception as error:
        print(f"{type(error).__name__}: {error}")

module = tvm_ffi.load_module(artifact)

def shift(device=0, rows=3, cores=8):
    x, y = (claimed(rows, 256, device=(12, device)) for _ in "xy")
    module["shift"](x, y, True, 1, 2, 0.5, cores)
"""

LOAD = [
    "aclrtGetDevice",
    "aclrtBinaryLoadFromData ld.lld,bisheng size=SIZE options=(nil) device=0",
    "aclrtBinaryGetFunction 0x7000 shift_kernel",
]


@dataclass(frozen=True)
class Run:
    """What one process did: the library's calls in order, and what it printed."""

    calls: list[str]
    printed: list[str]

    @property
    def names(self) -> list[str]:
        return [call.split()[0].removeprefix("aclrt") for call in self.calls]

    @property
    def launches(self) -> list[dict[str, str]]:
        return [
            dict(part.split("=", 1) for part in call.split()[2:])
            for call in self.calls
            if call.startswith("aclrtLaunchKernelWithHostArgs")
        ]


def compile_library(folder: Path, *flags: str) -> Path:
    folder.mkdir()
    command = [sys.executable, "-m", "ziglang", "cc", "-shared", "-fPIC", "-O1", *flags]
    command += ["-Wl,-soname,libascendcl.so", str(HERE / "recording_acl.c")]
    environment = {**os.environ, "ZIG_LOCAL_CACHE_DIR": str(folder.parent / "zig")}
    subprocess.run([*command, "-o", str(folder / "libascendcl.so")], check=True, env=environment)
    return folder


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory, needs_compilers: None) -> Path:
    """Return the directory of the recording library."""
    return compile_library(tmp_path_factory.mktemp("acl") / "current")


@pytest.fixture
def drive(
    ascend_built: Any,
    library: Path,
    tmp_path: Path,
    no_cann: dict[str, str],
    run_script: Callable[..., list[str]],
) -> Callable[..., Run]:
    """Return the function that runs a script on the recording library."""

    def run(script: str, *, path: Path = library, **variables: str) -> Run:
        log = tmp_path / "calls.txt"
        artifact = str(ascend_built.artifact(KEY))
        places = {
            **no_cann,
            "LD_LIBRARY_PATH": str(path),
            "PYTHONPATH": os.pathsep.join([str(HERE), str(HERE.parents[1] / "runtime")]),
            "RECORDING_LOG": str(log),
        }
        text = f"artifact = {artifact!r}\n{PRELUDE}\n{script}"
        printed = run_script(text, **{**places, **variables})
        calls = log.read_text().splitlines() if log.exists() else []
        return Run(calls=calls, printed=printed)

    return run


def image_bytes(built: Any) -> int:
    """Return the size of the stand-in's device image: two marks before the source."""
    source: Path = built.artifact(KEY).with_suffix(".asc")
    return len("ld.lld,bisheng,") + source.stat().st_size


def test_first_call_loads_the_image_and_the_second_only_launches(
    drive: Callable[..., Run], ascend_built: Any
) -> None:
    run = drive("recording().recording_current(0); shift(); shift()")
    load = [call.replace("SIZE", str(image_bytes(ascend_built))) for call in LOAD]
    assert run.calls[:3] == load
    assert run.calls[3:5] == run.calls[5:7]
    assert run.names[3:] == ["GetDevice", "LaunchKernelWithHostArgs"] * 2
    assert run.calls[4].startswith("aclrtLaunchKernelWithHostArgs 0x7100 blocks=8 stream=(nil) ")


def test_arguments_are_packed_in_the_device_functions_order(drive: Callable[..., Run]) -> None:
    run = drive(
        """
x = claimed(3, 256, data=0x11100, byte_offset=0x20, device=(12, 0))
module["shift"](x, claimed(3, 256, data=0x33300, device=(12, 0)), True, -2, -3, 1.5, 64)
"""
    )
    (launch,) = run.launches
    packed = [
        ("x", "2011010000000000"),
        ("y", "0033030000000000"),
        ("base", "fdffffffffffffff"),
        ("enabled", "01000000"),
        ("factor", "0000c03f"),
        ("num_tokens", "03000000"),
        ("num_vec_cores", "40000000"),
        ("offset", "feffffff"),
        ("the end, to a multiple of 8", "00000000"),
    ]
    assert launch["arguments"] == "".join(value for _, value in packed)
    assert launch["placeholders"] == "(nil),0"


def test_blocks_follow_the_call_and_ub_bytes_are_attribute_2(drive: Callable[..., Run]) -> None:
    run = drive("shift(cores=1); shift(cores=64, rows=5)")
    assert [launch["blocks"] for launch in run.launches] == ["1", "64"]
    assert [launch["attributes"] for launch in run.launches] == ["2=4096,0,0,0"] * 2


def test_callers_stream_is_passed_on(drive: Callable[..., Run]) -> None:
    run = drive(
        """
with tvm_ffi.use_raw_stream(tvm_ffi.device(12, 0), 0xabc0):
    shift(0)
    shift(1)
shift(0)
"""
    )
    assert [launch["stream"] for launch in run.launches] == ["0xabc0", "(nil)", "(nil)"]


def test_loader_passes_torch_npus_stream_and_vector_cores(
    drive: Callable[..., Run], ascend_built: Any
) -> None:
    run = drive(
        """
import types
stream = types.SimpleNamespace(_npu_getCurrentRawStream=lambda index: 0x5000 + index)
npu = types.SimpleNamespace(
    device_count=lambda: 2,
    get_device_name=lambda index: "Ascend950PR",
    get_device_properties=lambda index: types.SimpleNamespace(vector_core_num=56),
)
sys.modules["torch_npu"] = types.SimpleNamespace(npu=npu, _C=stream)
import tilewheel as tw
kernel = tw.load("shift", device="npu:1", hidden=256, staged=True)
kernel.prepare()
x, y = (claimed(3, 256, device=(12, 1)) for _ in "xy")
kernel(x, y, True, 1, 2, 0.5)
print(kernel)
""",
        TILEWHEEL_ARTIFACTS=str(ascend_built.artifacts),
    )
    (launch,) = run.launches
    assert (launch["stream"], launch["blocks"], launch["device"]) == ("0x5001", "56", "1")
    assert run.names.count("BinaryLoadFromData") == 1
    assert run.printed == [f"<Kernel {KEY} on ascend:1 (Ascend950PR, dav_3510)>"]


def test_launch_on_another_device_sets_it_and_goes_back(drive: Callable[..., Run]) -> None:
    run = drive(
        """
recording().recording_current(0)
module["prepare"](1)
shift(1)
print(recording().recording_device())
"""
    )
    assert [call.split(" 0x7")[0] for call in run.calls] == [
        "aclrtGetDevice",
        "aclrtSetDevice 1",
        run.calls[2],
        "aclrtBinaryGetFunction",
        "aclrtSetDevice 0",
        "aclrtGetDevice",
        "aclrtSetDevice 1",
        "aclrtLaunchKernelWithHostArgs",
        "aclrtSetDevice 0",
    ]
    assert run.calls[2].endswith("device=1")
    assert run.launches[0]["device"] == "1"
    assert run.printed == ["0"]


def test_thread_without_a_device_keeps_the_one_that_was_set(drive: Callable[..., Run]) -> None:
    run = drive("shift(1); print(recording().recording_device())")
    assert [call for call in run.calls if "SetDevice" in call] == ["aclrtSetDevice 1"]
    assert run.printed == ["1"]


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("aclrtSetDevice", "aclrtSetDevice"),
        ("aclrtBinaryLoadFromData", "loading the device code"),
        ("aclrtBinaryGetFunction", "finding shift_kernel"),
        ("aclrtLaunchKernelWithHostArgs", "launching shift_kernel"),
    ],
)
def test_failing_call_is_named_goes_back_and_can_be_tried_again(
    drive: Callable[..., Run], name: str, what: str
) -> None:
    run = drive(
        """
recording().recording_current(0)
attempt(shift, 1)
print(recording().recording_device())
recording().recording_fail(b"")
shift(1)
print(recording().recording_device())
""",
        RECORDING_FAIL=f"{name}=507",
    )
    message = f"RuntimeError: shift: {what} failed with ACL error 507: E507: {name} went wrong"
    assert run.printed == [message, "0", "0"]
    assert run.launches[-1]["device"] == "1"
    # What was loaded is not loaded again.
    assert run.names.count("BinaryLoadFromData") == (2 if name == "aclrtBinaryLoadFromData" else 1)


def test_library_that_cannot_tell_the_reason_is_used_anyway(
    drive: Callable[..., Run], library: Path
) -> None:
    silent = compile_library(library.parent / "silent", "-DNO_MESSAGE")
    run = drive(
        "attempt(shift)", path=silent, RECORDING_FAIL="aclrtLaunchKernelWithHostArgs=361001"
    )
    assert run.printed == [
        "RuntimeError: shift: launching shift_kernel failed with ACL error 361001: no message"
    ]


def test_library_of_an_older_cann_is_refused_by_what_it_lacks(
    drive: Callable[..., Run], library: Path
) -> None:
    old = compile_library(library.parent / "old", "-DNO_LAUNCH")
    run = drive("attempt(shift); attempt(shift)", path=old)
    message = (
        "RuntimeError: shift: libascendcl.so lacks aclrtLaunchKernelWithHostArgs, "
        "must be of CANN 9.1 or newer"
    )
    assert run.printed == [message, message]
    assert run.calls == []


MISSING = (
    "RuntimeError: shift: no AscendCL library, must be that of CANN 9.1 or newer, on the loader's "
    "path or below $ASCEND_HOME_PATH: "
)


@pytest.mark.skipif(
    Path("/usr/local/Ascend/ascend-toolkit/latest").exists(), reason="CANN is installed here"
)
def test_missing_library_is_named_with_what_it_must_be(
    drive: Callable[..., Run], tmp_path: Path
) -> None:
    run = drive("attempt(shift)", path=tmp_path, ASCEND_HOME_PATH=str(tmp_path))
    assert run.printed == [
        f"{MISSING}libascendcl.so: cannot open shared object file: No such file or directory"
    ]


@pytest.mark.skipif(
    Path("/usr/local/Ascend/ascend-toolkit/latest").exists(), reason="CANN is installed here"
)
def test_library_that_is_there_but_broken_is_named_by_its_path(
    drive: Callable[..., Run], tmp_path: Path
) -> None:
    (tmp_path / "lib64").mkdir()
    broken = tmp_path / "lib64" / "libascendcl.so"
    broken.write_bytes(b"no library" * 100)
    run = drive("attempt(shift)", path=tmp_path, ASCEND_HOME_PATH=str(tmp_path))
    assert run.printed == [f"{MISSING}{broken}: invalid ELF header"]


@pytest.mark.parametrize("variable", ["ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME"])
@pytest.mark.parametrize("folder", ["lib64", "runtime/lib64"])
def test_library_is_found_in_the_toolkit(
    drive: Callable[..., Run], library: Path, tmp_path: Path, variable: str, folder: str
) -> None:
    (tmp_path / folder).mkdir(parents=True)
    shutil.copy(library / "libascendcl.so", tmp_path / folder)
    run = drive("shift()", path=tmp_path, **{variable: str(tmp_path)})
    assert len(run.launches) == 1


def test_empty_work_launches_nothing_and_opens_no_library(
    drive: Callable[..., Run], tmp_path: Path
) -> None:
    assert drive("shift(rows=0)", path=tmp_path).calls == []


def test_tensor_that_is_not_on_an_npu_is_refused(drive: Callable[..., Run]) -> None:
    run = drive('attempt(module["shift"], *(claimed(3, 256) for _ in "xy"), True, 1, 2, 0.5, 8)')
    assert run.printed == ["ValueError: shift: x: is on device type 2, must be on an Ascend NPU"]
    assert run.calls == []


def test_sixteen_threads_at_once_load_once_on_each_device(drive: Callable[..., Run]) -> None:
    run = drive(
        """
together = threading.Barrier(16)
left = threading.Lock()
devices = []

def call(number):
    recording().recording_current(0)
    together.wait()
    shift(device=number % 2, cores=number + 1)
    with left:
        devices.append(recording().recording_device())

threads = [threading.Thread(target=call, args=(number,)) for number in range(16)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
print(devices)
"""
    )
    loads = [call.split()[-1] for call in run.calls if "BinaryLoadFromData" in call]
    assert sorted(loads) == ["device=0", "device=1"]
    assert run.names.count("BinaryGetFunction") == 2
    launched = sorted((int(launch["blocks"]), launch["device"]) for launch in run.launches)
    assert launched == [(number + 1, str(number % 2)) for number in range(16)]
    assert run.printed == [str([0] * 16)]


def test_launcher_of_the_simulator_differs_in_names_device_and_search_only(
    ascend_built: Any,
) -> None:
    ours = ascend_built.launcher(KEY)
    simulated = ascend_built.launcher(KEY.replace("-ascend-", "-ascend_sim-"))
    changes = [
        line
        for line in difflib.ndiff(ours.splitlines(), simulated.splitlines())
        if line.startswith(("+ ", "- ")) and line[2:].strip()
    ]
    search = ours.partition("  static const char *const roots[]")[2].partition("  return handle;")
    assert "ASCEND_HOME_PATH" in search[0]
    searched = [line for line in search[0].splitlines()[1:] if line.strip()]
    known = (
        "/* Launcher of ",
        ".incbin",
        "#define ACL_LIBRARY ",
        "static bool is_device_type(int32_t type) { return type == ",
        'return fail("RuntimeError", "no ',
        '" lacks %s, must be of ',
        ", must be on ",
    )
    rest = [
        line
        for line in changes
        if line[2:] not in searched
        and "static const char *const roots[]" not in line
        and not any(text in line for text in known)
    ]
    assert rest == []
    types = [line for line in changes if "is_device_type" in line]
    assert [line.split("return ")[1] for line in types] == [
        "type == kDLExtDev; }",
        "type == kDLCPU; }",
    ]
