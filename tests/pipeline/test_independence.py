"""A machine that only runs artifacts: no compiler, no build tools, nothing that may be written."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
RUNTIME = HERE.parents[1] / "runtime"

PRELUDE = (HERE.parent / "bare.py").read_text()

USE = """
import torch
import tilewheel as tw

HOPPER = tw.Device(
    backend="cuda", arch="sm_90a", name="NVIDIA H200", index=0,
    properties=(("driver", 580), ("num_sms", 132)),
)
for entry in tw.artifacts():
    print(entry.artifact.key)
kernel = tw.load("scale", device=HOPPER, hidden=128, with_bias=False)
print(kernel)
try:
    kernel(torch.zeros(2, 128), None, torch.zeros(2, 128), 1.0, 0)
except ValueError as error:
    print(error)
try:
    kernel.prepare()
except tw.ArtifactLoadError as error:
    print(error)
idx = tw.moe.topk_gate(torch.tensor([[0.5, 2.0, 1.0, 2.0]]), 3)
print(idx.tolist())
"""

PRINTED = [
    "scale-hidden=128-with_bias=false-cuda-sm_90a",
    "scale-hidden=any-with_bias=true-cuda-sm_90a",
    "stage-hidden=16384-cuda-sm_90a",
    "<Kernel scale-hidden=128-with_bias=false-cuda-sm_90a on cuda:0 (NVIDIA H200, sm_90a)>",
    "scale: x: is on device type 1, must be on a CUDA device",
    "scale-hidden=128-with_bias=false-cuda-sm_90a: cannot be prepared on "
    "cuda:0 (NVIDIA H200, sm_90a): scale: no CUDA driver: libcuda.so.1: cannot open shared object "
    "file: No such file or directory, must be installed with version 580 or newer",
    "[[1, 3, 2]]",
]


@pytest.fixture
def bare(built: Any, tmp_path: Path) -> Callable[[str], subprocess.CompletedProcess[str]]:
    """Return the function that runs a script in an empty environment and an unwritable place."""
    place = tmp_path / "place"
    place.mkdir(mode=0o555)

    def run(script: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, "-c", PRELUDE + script],
            env={
                "PATH": "",
                "HOME": str(place),
                "TMPDIR": str(place),
                "PYTHONPATH": str(RUNTIME),
                "PYTHONDONTWRITEBYTECODE": "1",
                "TILEWHEEL_ARTIFACTS": str(built.out / "artifacts"),
            },
            cwd=place,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert list(place.iterdir()) == []
        return done

    return run


def test_artifacts_are_found_loaded_and_called_without_compiler_or_writing(
    bare: Callable[[str], subprocess.CompletedProcess[str]],
) -> None:
    pytest.importorskip("torch")
    done = bare(USE)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == PRINTED


def test_torch_without_its_exchange_interface_starts_no_compiler(
    bare: Callable[[str], subprocess.CompletedProcess[str]],
) -> None:
    pytest.importorskip("torch")
    hide = """
import torch
for name in ("__dlpack_c_exchange_api__", "__c_dlpack_exchange_api__"):
    if hasattr(torch.Tensor, name):
        delattr(torch.Tensor, name)
sys.modules["torch_c_dlpack_ext"] = None
"""
    check = """
print([name for name in vars(torch.Tensor) if "exchange_api" in name])
"""
    done = bare(hide + USE + check)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [*PRINTED, "[]"]


def test_watch_of_these_tests_sees_writing_and_processes(
    bare: Callable[[str], subprocess.CompletedProcess[str]],
) -> None:
    assert bare("open('file', 'w')").returncode == 99
    assert bare("os.open('file', os.O_CREAT)").returncode == 99
    assert bare("os.mkdir('folder')").returncode == 99
    assert bare("import subprocess; subprocess.Popen(['true'])").returncode == 99
    assert bare("os.system('true')").returncode == 99
    assert bare("import socket; socket.create_connection(('127.0.0.1', 9))").returncode == 99


def test_import_and_listing_load_neither_torch_nor_tvm_ffi(
    bare: Callable[[str], subprocess.CompletedProcess[str]],
) -> None:
    done = bare(
        "import tilewheel; tilewheel.artifacts()\n"
        "print([name for name in ('torch', 'tvm_ffi') if name in sys.modules])"
    )
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr
