"""Lowering: one kernel factory call to device source and the facts that the launcher needs.

Runs in a worker process, one variant at a time. TileLang is imported only here. No GPU, NPU or
driver is needed: the target is always explicit.
"""

from __future__ import annotations

import importlib
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tilewheel.key import Value
from tilewheel_build.c_expression import ExpressionError, Extent, extent, symbols_in, to_c
from tilewheel_build.errors import LoweringError


@dataclass(frozen=True, slots=True, kw_only=True)
class LoweredTensor:
    """A tensor parameter as the kernel declares it. ``strides`` is empty for row-major."""

    name: str
    dtype: str
    shape: tuple[Extent, ...]
    strides: tuple[Extent, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoweredScalar:
    """A scalar parameter as the kernel declares it."""

    name: str
    dtype: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Lowered:
    """Device source with its launch facts. ``parameters`` is in the device function's order."""

    source: str
    kernel: str
    tensors: tuple[LoweredTensor, ...]
    scalars: tuple[LoweredScalar, ...]
    parameters: tuple[LoweredScalar, ...]
    grid: tuple[str, ...]
    block: tuple[int, int, int]
    dynamic_shared_bytes: int
    pdl: bool
    warnings: tuple[str, ...]


def lower_kernel(
    *,
    kernels_root: Path,
    kernel: str,
    operator: str,
    bindings: Mapping[str, Value | None],
    tvm_target: Mapping[str, str],
) -> Lowered:
    """Call the kernel factory and lower the function that it returns.

    Args:
        kernels_root: directory that holds ``tilewheel_kernels``.
        kernel: the kernel file below ``tilewheel_kernels``, e.g. ``moe/topk_gate_cuda.py``.
        operator: name of the factory in that file.
        bindings: the variant's parameters; None for the ones decided at run time.
        tvm_target: the target's kind and attributes.

    Raises:
        LoweringError: the factory refused the parameters, TileLang failed, or the lowered function
            is not one that the launcher can launch.
    """
    module = _import_kernel(kernels_root, kernel)
    factory = getattr(module, operator, None)
    if factory is None:
        raise LoweringError(f"{kernel}: has no function {operator}, must define the factory")
    from tilelang import tvm
    from tilelang.engine.lower import lower

    target = tvm.target.Target(dict(tvm_target))
    try:
        with target:  # a kernel may ask what the architecture has
            function = factory(**bindings)
    except (TypeError, ValueError) as error:
        raise LoweringError(f"{kernel}: {operator}: {error}") from error
    except Exception as error:
        # TileLang reads the kernel's body inside the factory and raises types of its own.
        raise LoweringError(f"{kernel}: {operator}: {type(error).__name__}: {error}") from error
    pass_configs = dict(getattr(module, "PASS_CONFIGS", {}))

    with _captured_stderr() as stderr_text:
        try:
            with target, tvm.transform.PassContext(opt_level=3, config=pass_configs):
                artifact = lower(
                    function,
                    target=target,
                    enable_host_codegen=False,
                    enable_device_compile=False,
                )
        except Exception as error:
            # TVM raises many types (its own, RuntimeError, AssertionError); all mean the same here.
            raise LoweringError(
                f"{kernel}: {operator}: TileLang failed: {error}\n{stderr_text()}"
            ) from error
        warnings = tuple(line for line in stderr_text().splitlines() if "arning" in line)
    try:
        return _facts(function, artifact, warnings, where=f"{kernel}: {operator}")
    except ExpressionError as error:
        raise LoweringError(f"{kernel}: {operator}: {error}") from error


def _import_kernel(kernels_root: Path, kernel: str) -> Any:
    root = str(kernels_root)
    if root not in sys.path:
        sys.path.insert(0, root)
    name = "tilewheel_kernels." + kernel.removesuffix(".py").replace("/", ".")
    try:
        return importlib.import_module(name)
    except Exception as error:
        raise LoweringError(f"{kernel}: cannot be imported: {error!r}") from error


@contextmanager
def _captured_stderr() -> Iterator[Callable[[], str]]:
    """Collect what the compiler's C++ side logs: a dropped buffer version appears nowhere else."""
    sys.stderr.flush()
    saved = os.dup(2)
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 2)

        def text() -> str:
            sys.stderr.flush()
            file.seek(0)
            return file.read().decode(errors="replace")

        try:
            yield text
        finally:
            os.dup2(saved, 2)
            os.close(saved)


def _facts(function: Any, artifact: Any, warnings: tuple[str, ...], *, where: str) -> Lowered:
    devices = list(artifact.device_mod.functions.values())
    if len(devices) != 1:
        raise LoweringError(f"{where}: lowers to {len(devices)} device functions, must be 1")
    device = devices[0]
    attributes = dict(device.attrs)
    host_attributes = dict(next(iter(artifact.host_mod.functions.values())).attrs)
    if bool(host_attributes.get("tl.has_tma", False)):
        raise LoweringError(
            f"{where}: uses TMA descriptors, must not\nhint: write T.copy(..., disable_tma=True)"
        )
    tensors, scalars = _parameters(function)
    extents = {str(name): value for name, value in attributes["thread_extent"].items()}
    grid = tuple(to_c(extents.get(f"blockIdx.{axis}", 1)) for axis in "xyz")
    block = tuple(int(extents.get(f"threadIdx.{axis}", 1)) for axis in "xyz")
    parameters = tuple(
        LoweredScalar(name=str(parameter.name), dtype=str(parameter.dtype))
        for parameter in device.params
    )
    _check_names(tensors, scalars, parameters, grid, where)
    return Lowered(
        source=str(artifact.kernel_source),
        kernel=str(attributes["global_symbol"]),
        tensors=tensors,
        scalars=scalars,
        parameters=parameters,
        grid=grid,
        block=(block[0], block[1], block[2]),
        dynamic_shared_bytes=int(attributes.get("dyn_shared_memory_buf", 0)),
        pdl=bool(attributes.get("has_cuda_pdl_sync", 0)),
        warnings=warnings,
    )


def _parameters(
    function: Any,
) -> tuple[tuple[LoweredTensor, ...], tuple[LoweredScalar, ...]]:
    tensors = []
    scalars = []
    for parameter in function.params:
        if parameter not in function.buffer_map:
            scalars.append(LoweredScalar(name=str(parameter.name), dtype=str(parameter.dtype)))
            continue
        buffer = function.buffer_map[parameter]
        shape = tuple(extent(size) for size in buffer.shape)
        strides = tuple(extent(size) for size in buffer.strides)
        if strides and _is_row_major(buffer):
            strides = ()
        tensors.append(
            LoweredTensor(
                name=str(buffer.name), dtype=str(buffer.dtype), shape=shape, strides=strides
            )
        )
    return tuple(tensors), tuple(scalars)


def _is_row_major(buffer: Any) -> bool:
    """Return whether each stride is the product of the sizes behind it."""
    from tilelang import tvm

    analyzer = tvm.arith.Analyzer()
    expected: Any = 1
    for size, stride in zip(reversed(buffer.shape), reversed(buffer.strides), strict=True):
        if not analyzer.can_prove_equal(stride, expected):
            return False
        expected = expected * size
    return True


def _check_names(
    tensors: tuple[LoweredTensor, ...],
    scalars: tuple[LoweredScalar, ...],
    parameters: tuple[LoweredScalar, ...],
    grid: tuple[str, ...],
    where: str,
) -> None:
    """Every value that the launch needs must be something that the launcher can compute."""
    bound = {
        size.symbol
        for tensor in tensors
        for size in (*tensor.shape, *tensor.strides)
        if size.symbol is not None
    } | {scalar.name for scalar in scalars}
    names = {tensor.name for tensor in tensors}
    for parameter in parameters:
        if parameter.dtype == "handle" and parameter.name not in names:
            raise LoweringError(
                f"{where}: device parameter {parameter.name} is none of the tensors "
                f"({', '.join(sorted(names))}), must be one\n"
                "hint: a view of a parameter (T.view, T.reshape) gets a name of its own; index the "
                "parameter itself"
            )
        if parameter.dtype != "handle" and parameter.name not in bound:
            raise LoweringError(
                f"{where}: device parameter {parameter.name} is neither a size nor a scalar of "
                f"the function ({', '.join(sorted(str(name) for name in bound))}), must be one"
            )
    for size in grid:
        for symbol in sorted(symbols_in(size) - bound):
            raise LoweringError(f"{where}: grid uses {symbol}, must use sizes and scalars only")
