"""A processor that lacks what kernels are compiled for gets an error, no illegal instruction."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.skipif(
    platform.machine() != "x86_64", reason="kernels for 64-bit Arm need no feature"
)


@pytest.fixture(scope="module")
def cpuid(tmp_path_factory: pytest.TempPathFactory, compiler: tuple[str, ...]) -> Any:
    path = tmp_path_factory.mktemp("cpuid") / "cpuid.so"
    source = Path(__file__).with_name("cpuid.cc")
    flags = ("-std=c++20", "-O1", "-shared", "-fPIC", "-fno-sanitize=undefined")
    libraries = ("-nodefaultlibs", "-lc")
    subprocess.run([*compiler, *flags, str(source), *libraries, "-o", str(path)], check=True)
    return ctypes.CDLL(str(path))


def _load(simulator: Any, cpuid: Any, feature: tuple[int, int, int], queue: Any) -> None:
    reason = cpuid.hide_feature(*map(ctypes.c_uint, feature))
    if reason:
        queue.put(f"cannot hide: {os.strerror(reason)}")
        return
    try:
        simulator.load(b"not an elf image")
    except RuntimeError as error:
        queue.put(str(error))


@pytest.mark.parametrize(
    ("feature", "is_refused"),
    [
        pytest.param((7, 1 << 5, 0), True, id="avx2"),
        pytest.param((1, 0, 1 << 12), True, id="fma"),
        pytest.param((1, 0, 1 << 27), True, id="osxsave"),
        # A feature that kernels do not use: what refuses them above is the check.
        pytest.param((7, 1 << 18, 0), False, id="rdseed"),
    ],
)
def test_processor_without_a_needed_feature_is_refused(
    simulator: Any, cpuid: Any, feature: tuple[int, int, int], is_refused: bool
) -> None:
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=_load, args=(simulator, cpuid, feature, queue))
    child.start()
    message = queue.get(timeout=30)
    child.join(30)
    if message.startswith("cannot hide: "):
        pytest.skip("this processor's cpuid instruction cannot fault")
    refusal = "aclrtBinaryLoadFromData: this cpu lacks avx2 or fma, must be x86-64-v3"
    assert (message == refusal) == is_refused
