"""Compile sources for the simulator once a session, and launch them through its ACL ABI."""

from __future__ import annotations

import ctypes
import struct
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tilewheel_build.simulator import (
    KernelEntry,
    RewrittenSource,
    compile_kernel,
    compile_runtime,
    default_compiler,
)

# Test files import what they share, which is no test, from this folder by name.
sys.path.insert(0, str(Path(__file__).parent))

Array = np.ndarray[Any, Any]

UB_BYTES = 248 * 1024
INCLUDES = (
    "#include <tl_templates/ascend/common.h>\n"
    "#include <tl_templates/ascend/debug.h>\n"
    "#include <tl_templates/ascend/simd_inst.h>\n"
)


class SimulationError(RuntimeError):
    """What a launch reported."""


class Region(ctypes.Structure):
    _fields_ = (
        ("base", ctypes.c_void_p),
        ("size_bytes", ctypes.c_uint64),
        ("is_writable", ctypes.c_int32),
    )


class Statistics(ctypes.Structure):
    _fields_ = (
        ("ub_high_water_bytes", ctypes.c_uint64),
        ("dma_bytes", ctypes.c_uint64),
        ("num_notifies", ctypes.c_uint64),
    )


class UbAttribute(ctypes.Structure):
    _fields_ = (("id", ctypes.c_int32), ("value", ctypes.c_uint32 * 4))


class LaunchConfig(ctypes.Structure):
    _fields_ = (("attributes", ctypes.POINTER(UbAttribute)), ("count", ctypes.c_size_t))


class Simulator:
    """The runtime library, as a launcher sees it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.library = ctypes.CDLL(str(path))
        self.library.aclGetRecentErrMsg.restype = ctypes.c_char_p
        self.library.aclrtBinaryLoadFromData.argtypes = (
            ctypes.c_char_p,
            ctypes.c_size_t,
            ctypes.c_void_p,
            ctypes.c_void_p,
        )

    def check(self, code: int) -> None:
        if code != 0:
            raise SimulationError(self.library.aclGetRecentErrMsg().decode())

    def load(self, image: bytes) -> ctypes.c_void_p:
        handle = ctypes.c_void_p()
        self.check(
            self.library.aclrtBinaryLoadFromData(image, len(image), None, ctypes.byref(handle))
        )
        return handle

    def function(self, binary: ctypes.c_void_p, name: str) -> ctypes.c_void_p:
        function = ctypes.c_void_p()
        self.check(
            self.library.aclrtBinaryGetFunction(binary, name.encode(), ctypes.byref(function))
        )
        return function

    def launch(
        self, function: ctypes.c_void_p, blocks: int, arguments: bytes, ub_bytes: int
    ) -> None:
        attribute = UbAttribute(2, (ctypes.c_uint32 * 4)(ub_bytes))
        config = LaunchConfig(ctypes.pointer(attribute), 1)
        self.check(
            self.library.aclrtLaunchKernelWithHostArgs(
                function,
                ctypes.c_uint32(blocks),
                None,
                ctypes.byref(config),
                ctypes.c_char_p(arguments),
                ctypes.c_size_t(len(arguments)),
                None,
                ctypes.c_size_t(0),
            )
        )

    def set_race_detection(self, enabled: bool) -> None:
        self.library.tilewheel_simulator_set_race_detection(int(enabled))

    def set_max_threads(self, count: int) -> None:
        self.library.tilewheel_simulator_set_max_threads(count)

    def set_regions(self, *tensors: tuple[Array, bool]) -> None:
        regions = (Region * len(tensors))(
            *(Region(tensor.ctypes.data, tensor.nbytes, writable) for tensor, writable in tensors)
        )
        self.check(
            self.library.tilewheel_simulator_set_regions(regions, ctypes.c_size_t(len(tensors)))
        )

    def statistics(self) -> Statistics:
        statistics = Statistics()
        self.library.tilewheel_simulator_get_statistics(ctypes.byref(statistics))
        return statistics


def pack(kernel: KernelEntry, values: Sequence[Any]) -> bytes:
    """Pack arguments as a launcher does; arrays go by address."""
    block = bytearray(kernel.argument_bytes)
    assert len(values) == len(kernel.parameters), (kernel, len(values))
    for parameter, value in zip(kernel.parameters, values, strict=True):
        if parameter.type == "float":
            data = struct.pack("<f", value)
        elif isinstance(value, np.ndarray):
            data = struct.pack("<Q", value.ctypes.data)
        else:
            data = int(value).to_bytes(parameter.size_bytes, "little", signed=int(value) < 0)
        block[parameter.offset : parameter.offset + parameter.size_bytes] = data
    return bytes(block)


@dataclass(frozen=True)
class Program:
    """The kernels of one compiled source."""

    simulator: Simulator
    image: bytes
    rewritten: RewrittenSource
    binary: ctypes.c_void_p

    def run(self, name: str, *values: Any, blocks: int = 1, ub_bytes: int = UB_BYTES) -> None:
        kernel = next(kernel for kernel in self.rewritten.kernels if kernel.name == name)
        function = self.simulator.function(self.binary, name)
        self.simulator.launch(function, blocks, pack(kernel, values), ub_bytes)

    def error_of(self, name: str, *values: Any, **options: Any) -> str:
        """Run a kernel, which must fail, and return what the launch reported."""
        with pytest.raises(SimulationError) as caught:
            self.run(name, *values, **options)
        return str(caught.value)


Compile = Callable[[str], Program]


@pytest.fixture(scope="session")
def compiler() -> tuple[str, ...]:
    return default_compiler()


@pytest.fixture(scope="session")
def simulator(tmp_path_factory: pytest.TempPathFactory, compiler: tuple[str, ...]) -> Simulator:
    path = tmp_path_factory.mktemp("simulator") / "libtilewheel_ascend_sim.so"
    compile_runtime(path, compiler=compiler)
    return Simulator(path)


@pytest.fixture(scope="session")
def compile_source(
    tmp_path_factory: pytest.TempPathFactory,
    compiler: tuple[str, ...],
    simulator: Simulator,
) -> Compile:
    """Compile AscendC, given without TileLang's includes; equal sources are compiled once."""
    programs: dict[str, Program] = {}
    directory = tmp_path_factory.mktemp("kernels")

    def compile_once(source: str) -> Program:
        if source not in programs:
            path = directory / f"{len(programs)}.so"
            text = source if "ascend/common.h" in source else INCLUDES + source
            rewritten = compile_kernel(text, out=path, compiler=compiler)
            image = path.read_bytes()
            programs[source] = Program(simulator, image, rewritten, simulator.load(image))
        return programs[source]

    return compile_once


@pytest.fixture(scope="session")
def compile_file(compile_source: Compile) -> Compile:
    """Compile a source file of this directory."""
    return lambda name: compile_source(Path(__file__).with_name(name).read_text())


@pytest.fixture(autouse=True)
def _default_settings(simulator: Simulator) -> Iterator[None]:
    yield
    simulator.set_race_detection(False)
    simulator.set_max_threads(0)
    simulator.set_regions()


@pytest.fixture(params=[False, True], ids=["plain", "races"])
def each_mode(request: pytest.FixtureRequest, simulator: Simulator) -> bool:
    """Run the test without and with race detection."""
    simulator.set_race_detection(request.param)
    return bool(request.param)


def copy_in(ub: str, gm: str, size: int) -> str:
    return (
        f"  asc_copy_gm2ub_align((__ubuf__ uint8_t*)({ub}), (__gm__ uint8_t*)({gm}), 1, {size}, 0, "
        f"0, 0, static_cast<asc_load_l2_cache_mode>(0), {size}, {size});\n"
    )


def copy_out(gm: str, ub: str, size: int) -> str:
    return (
        f"  asc_copy_ub2gm_align((__gm__ uint8_t*)({gm}), (__ubuf__ uint8_t*)({ub}), 1, {size}, "
        f"static_cast<asc_store_l2_cache_mode>(4), {size}, {size});\n"
    )


@dataclass(frozen=True)
class VectorOp:
    """A kernel that applies ``body`` to blocks of bytes: inputs a, b, ... to the output.

    ``body`` reads the UB buffers ``a_ub``, ... and writes ``out_ub``; m8, m16 and m32 are full
    masks.
    """

    name: str
    inputs: tuple[str, ...]
    output: str
    body: str
    in_bytes: int = 256
    out_bytes: int = 256

    def source(self) -> str:
        names = "abcd"[: len(self.inputs)]
        parameters = [f"__gm__ {t} *{x}" for x, t in zip(names, self.inputs, strict=True)]
        parameters += [f"__gm__ {self.output} *out", "int32_t count"]
        text = f'extern "C" __global__ __vector__ void {self.name}({", ".join(parameters)}) {{\n'
        text += "  asc_init();\n"
        for index, (x, type_) in enumerate(zip(names, self.inputs, strict=True)):
            text += f"  __ubuf__ {type_} *{x}_ub = (__ubuf__ {type_} *){index * 1024};\n"
        text += f"  __ubuf__ {self.output} *out_ub = (__ubuf__ {self.output} *)8192;\n"
        for width in (8, 16, 32):
            text += f"  vector_bool m{width} = asc_create_mask_b{width}(PAT_ALL);\n"
        text += "  for (int64_t i = 0; i < count; ++i) {\n"
        for x in names:
            text += copy_in(f"{x}_ub", f"(__gm__ uint8_t*){x} + i * {self.in_bytes}", self.in_bytes)
        text += f"  asc_sync();\n  {{\n{self.body}\n  }}\n  asc_sync();\n"
        gm = f"(__gm__ uint8_t*)out + i * {self.out_bytes}"
        text += copy_out(gm, "out_ub", self.out_bytes)
        return text + "  asc_sync();\n  }\n}\n"

    def __call__(self, program: Program, *inputs: Array, dtype: Any) -> Array:
        """Run on the inputs, each padded with zeros to whole blocks; return all output elements."""
        count = max(-(-x.nbytes // self.in_bytes) for x in inputs)
        padded = []
        for x in inputs:
            block = np.zeros(count * self.in_bytes, np.uint8)
            block[: x.nbytes] = np.ascontiguousarray(x).view(np.uint8).reshape(-1)
            padded.append(block)
        out = np.zeros(count * self.out_bytes, np.uint8)
        program.run(self.name, *padded, out, count, ub_bytes=16384)
        return out.view(dtype)


@pytest.fixture(scope="session")
def compile_ops(compile_source: Compile) -> Callable[[Sequence[VectorOp]], Program]:
    def compile_all(ops: Sequence[VectorOp]) -> Program:
        return compile_source("".join(op.source() for op in ops))

    return compile_all


@pytest.fixture(scope="session")
def vector_op() -> type[VectorOp]:
    return VectorOp


@pytest.fixture(scope="session")
def apply(compile_ops: Callable[[Sequence[VectorOp]], Program]) -> Callable[..., Array]:
    """Run one of the instructions in register_ops.py; all are one program."""
    import register_ops

    ops = register_ops.operations(VectorOp)
    program = compile_ops(list(ops.values()))

    def run(name: str, *inputs: Array) -> Array:
        op = ops[name]
        return np.asarray(op(program, *inputs, dtype=register_ops.NUMPY[op.output]))

    return run
