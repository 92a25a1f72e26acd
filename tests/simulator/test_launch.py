"""Loading, launching, threads, fork, reproducibility: what a launcher and a wheel depend on."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tilewheel_build.simulator import compile_kernel, compile_runtime, kernel_commands

INCLUDES = "#include <tl_templates/ascend/common.h>\n#include <tl_templates/ascend/simd_inst.h>\n"


def add_source(value: int) -> str:
    text = Path(__file__).with_name("add.asc").read_text()
    return INCLUDES + text.replace("VALUE", f"{value}.0f")


@pytest.fixture(scope="module")
def add_one(compile_source: Any) -> Any:
    return compile_source(add_source(1))


def test_the_marker_tells_the_simulator_from_acl(simulator: Any) -> None:
    assert ctypes.c_int.in_dll(simulator.library, "tilewheel_simulator_marker").value == 1
    device = ctypes.c_int32(-1)
    assert simulator.library.aclrtGetDevice(ctypes.byref(device)) == 0
    assert device.value == 0


def test_binaries_with_reused_descriptors_stay_apart(
    simulator: Any, add_one: Any, compile_source: Any
) -> None:
    two = compile_source(add_source(2))
    for _ in range(50):  # both are loaded again and again, and never taken for one another
        handles = [simulator.load(program.image) for program in (add_one, two)]
        for handle, program, expected in zip(handles, (add_one, two), (1, 2), strict=True):
            x = np.zeros(64, np.float32)
            function = simulator.function(handle, "add_some")
            block = x.ctypes.data.to_bytes(8, "little") + (1).to_bytes(4, "little") + bytes(4)
            simulator.launch(function, 1, block, 4096)
            assert (x == expected).all(), program.rewritten.kernels
        for handle in handles:
            simulator.check(simulator.library.aclrtBinaryUnLoad(handle))


def test_scalars_and_pointers_are_unpacked(add_one: Any) -> None:
    x = np.zeros((10, 64), np.float32)
    add_one.run("add_some", x, 9, 0.5, blocks=4)
    assert (x[:9] == 1.5).all()
    assert (x[9] == 0).all()


def test_bad_requests_are_errors(simulator: Any, add_one: Any) -> None:
    def error_of(call: Any, *arguments: Any) -> str:
        with pytest.raises(RuntimeError) as caught:
            call(*arguments)
        return str(caught.value)

    assert "dlopen" not in error_of(simulator.load, b"not an elf image")
    text = error_of(simulator.function, add_one.binary, "no_such_kernel")
    assert text == ("aclrtBinaryGetFunction: binary has no kernel no_such_kernel, must define it")
    function = simulator.function(add_one.binary, "add_some")
    assert error_of(simulator.launch, function, 1, bytes(8), 4096) == (
        "add_some: arguments have 8 bytes, must have 16"
    )
    assert error_of(simulator.launch, function, 1, bytes(16), 253953) == (
        "add_some: needs 253953 bytes of ub, must need at most 253952"
    )
    assert "must have at most 65535" in error_of(simulator.launch, function, 65536, bytes(16), 64)
    simulator.launch(function, 0, bytes(16), 64)


def test_launches_from_many_threads_are_independent(add_one: Any) -> None:
    arrays = [np.zeros((64, 64), np.float32) for _ in range(8)]

    def work(x: Any) -> None:
        for _ in range(20):
            add_one.run("add_some", x, 64, 0.0, blocks=8)

    threads = [threading.Thread(target=work, args=(x,)) for x in arrays]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all((x == 20).all() for x in arrays)


def test_errors_stay_on_their_thread(add_one: Any, simulator: Any) -> None:
    texts = {}

    def work(name: str) -> None:
        try:
            simulator.function(add_one.binary, name)
        except RuntimeError as error:
            texts[name] = str(error)

    threads = [threading.Thread(target=work, args=(f"missing_{i}",)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(name in text for name, text in texts.items())
    assert len(texts) == 8


def _run_in_child(program: Any, queue: Any) -> None:
    x = np.zeros((16, 64), np.float32)
    program.run("add_some", x, 16, 0.0, blocks=16)
    queue.put(float(x.sum()))


def test_a_forked_child_can_launch(add_one: Any) -> None:
    x = np.zeros((64, 64), np.float32)
    add_one.run("add_some", x, 64, 0.0, blocks=8)
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=_run_in_child, args=(add_one, queue))
    child.start()
    assert queue.get(timeout=30) == 16 * 64
    child.join(30)
    assert child.exitcode == 0


def test_repeated_failures_leak_neither_memory_nor_threads(add_one: Any) -> None:
    x = np.zeros((8, 64), np.float32)

    def fail() -> None:
        with pytest.raises(RuntimeError, match="must end within 128 bytes"):
            add_one.run("add_some", x, 8, 0.0, blocks=8, ub_bytes=128)

    def resident_kilobytes() -> int:
        status = Path("/proc/self/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0])

    for _ in range(20):
        fail()
    before, threads = resident_kilobytes(), len(os.listdir("/proc/self/task"))
    for _ in range(200):
        fail()
    assert resident_kilobytes() - before < 4096
    assert len(os.listdir("/proc/self/task")) == threads


def test_the_callers_rounding_mode_does_not_matter(add_one: Any) -> None:
    libm = ctypes.CDLL("libm.so.6")
    upward = 0x800 if os.uname().machine == "x86_64" else 0x400000
    x = np.full(64, 2.0**24, np.float32)
    assert libm.fesetround(upward) == 0
    try:
        add_one.run("add_some", x, 1, 0.0)
        assert libm.fegetround() == upward
    finally:
        libm.fesetround(0)
    assert (x == 2.0**24).all()


def test_equal_sources_give_equal_bytes_without_paths(
    tmp_path: Path, compiler: tuple[str, ...]
) -> None:
    images = []
    for name in ("one", "another"):
        (tmp_path / name).mkdir()
        out = tmp_path / name / "kernel.so"
        compile_kernel(add_source(1), out=out, compiler=compiler)
        images.append(out.read_bytes())
    assert images[0] == images[1]
    for part in (sys.prefix, str(tmp_path.parent), tempfile.gettempdir(), "tilewheel_build"):
        assert part.encode() not in images[0]


def test_linking_builds_no_library_for_cpp() -> None:
    _, link = kernel_commands(
        compiler=("python", "-m", "ziglang", "c++", "-target", "x86_64-linux-gnu.2.28"),
        include=Path("include"),
        source="kernel.cc",
        output="kernel.so",
        machine="x86_64",
    )
    assert link[:7] == (
        *("python", "-m", "ziglang", "cc", "-target", "x86_64-linux-gnu.2.28"),
        "kernel.cc.o",
    )


def test_the_runtime_needs_only_libc(simulator: Any) -> None:
    from elftools.elf.elffile import ELFFile

    with simulator.path.open("rb") as stream:
        dynamic = ELFFile(stream).get_section_by_name(".dynamic")
        needed = {tag.needed for tag in dynamic.iter_tags("DT_NEEDED")}
        soname = [tag.soname for tag in dynamic.iter_tags("DT_SONAME")]
    allowed = {"libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2"}
    assert {name for name in needed if not name.startswith("ld-linux")} <= allowed
    assert soname == ["libtilewheel_ascend_sim.so"]


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="this is the only implementation here")
def test_portable_fibers_behave_like_the_assembly(
    tmp_path: Path, compiler: tuple[str, ...], simulator: Any
) -> None:
    source = INCLUDES + Path(__file__).with_name("turn.asc").read_text()
    path = tmp_path / "libportable.so"
    compile_runtime(path, compiler=compiler, flags=("-DTILEWHEEL_SIM_UCONTEXT",))
    out = tmp_path / "turn.so"
    compile_kernel(source, out=out, compiler=compiler)
    portable = type(simulator)(path)
    for runtime in (simulator, portable):
        x = np.arange(96, dtype=np.int32)
        function = runtime.function(runtime.load(out.read_bytes()), "turn")
        runtime.launch(function, 1, x.ctypes.data.to_bytes(8, "little"), 4096)
        assert (x == (np.arange(96) ^ 1)[::-1]).all()
