"""The host side of an artifact: a C function that checks its arguments and launches the kernel.

Pure functions from (variant, lowered kernel) to C source and to the argument list of the manifest.
What the checks compare with comes from the lowered kernel; the spec adds names, roles, alignment
and the domains of run-time parameters, and a kernel that contradicts its spec is refused.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tilewheel.key import ANY
from tilewheel.manifest import Argument
from tilewheel_build.c_expression import Extent, dimension_name, symbols_in
from tilewheel_build.dtypes import DTYPES, INTEGER_RANGES
from tilewheel_build.errors import LoweringError
from tilewheel_build.lower import Lowered, LoweredTensor
from tilewheel_build.spec import Tensor
from tilewheel_build.variant import Variant, limits, multiples, tensors

TEMPLATES = Path(__file__).parent / "templates"

DEVICE_ARGUMENTS = {"cuda": ("num_sms",), "ascend": ("num_vec_cores",)}
"""Scalars that a kernel may take beside its spec's: the loader reads them off the device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LauncherFacts:
    """What differs between backends in the launcher's context."""

    template: str
    device_name: str
    image_file: str
    minimum_driver: str
    extra: tuple[tuple[str, Any], ...] = ()


def arguments(variant: Variant, lowered: Lowered) -> tuple[Argument, ...]:
    """Return the entry function's arguments in calling order: tensors, scalars, device numbers."""
    present = {tensor.name: tensor for tensor in tensors(variant)}
    listed = []
    for tensor in variant.spec.tensors:
        bound = present.get(tensor.name)
        listed.append(
            Argument(
                name=tensor.name,
                kind="tensor",
                dtype=bound.dtype if bound else "none",
                role=tensor.role,
                shape=_public_shape(variant, bound) if bound else (),
            )
        )
    listed += [
        Argument(name=scalar.name, kind="scalar", dtype=scalar.dtype)
        for scalar in variant.spec.scalars
    ]
    listed += [
        Argument(name=name, kind="device", dtype=dtype)
        for name, dtype in _device_scalars(variant, lowered)
    ]
    return tuple(listed)


def check_contract(variant: Variant, lowered: Lowered) -> None:
    """Raise LoweringError with every way in which the kernel differs from its spec."""
    problems = list(_contract_problems(variant, lowered))
    if problems:
        raise LoweringError("\n".join(f"{variant.key}: {problem}" for problem in problems))


def launcher_source(variant: Variant, lowered: Lowered, facts: LauncherFacts) -> str:
    """Return the launcher's C source."""
    template = _environment().get_template(facts.template)
    return str(template.render(_context(variant, lowered, facts)))


@cache
def _environment() -> Any:
    import jinja2

    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


def _context(variant: Variant, lowered: Lowered, facts: LauncherFacts) -> dict[str, Any]:
    listed = arguments(variant, lowered)
    index = {argument.name: i for i, argument in enumerate(listed)}
    kernel_tensors = {tensor.name: tensor for tensor in lowered.tensors}
    present = {tensor.name: tensor for tensor in tensors(variant)}
    tensor_rows = []
    for tensor in variant.spec.tensors:
        bound = present.get(tensor.name)
        if bound is None:
            tensor_rows.append({"name": tensor.name, "index": index[tensor.name], "absent": True})
            continue
        tensor_rows.append(_tensor_row(bound, kernel_tensors[tensor.name], index[tensor.name]))
    sizes, checks = _sizes_and_checks(variant, lowered)
    return {
        "key": str(variant.key),
        "operator": variant.spec.operator,
        "kernel": lowered.kernel,
        "arch": variant.key.target.arch,
        "argument_names": [argument.name for argument in listed],
        "tensors": tensor_rows,
        "first_tensor": next(iter(present)),
        "outputs": [t.name for t in present.values() if t.role in ("out", "inout")],
        "scalars": _scalar_rows(variant, listed),
        "sizes": sizes,
        "limits": _limit_rows(variant, lowered, {size["symbol"] for size in sizes}),
        "multiples": _multiple_rows(variant, lowered),
        "checks": checks,
        "grid": lowered.grid,
        "block": lowered.block,
        "dynamic_shared_bytes": lowered.dynamic_shared_bytes,
        "pdl": lowered.pdl,
        "parameters": _parameter_rows(lowered),
        "device_name": facts.device_name,
        "image_file": facts.image_file,
        "minimum_driver": facts.minimum_driver,
        **dict(facts.extra),
    }


def _tensor_row(tensor: Tensor, kernel_tensor: LoweredTensor, index: int) -> dict[str, Any]:
    dtype = DTYPES[tensor.dtype]
    return {
        "name": tensor.name,
        "index": index,
        "absent": False,
        "dtype": tensor.dtype,
        "ndim": len(kernel_tensor.shape),
        "alignment": effective_alignment(tensor, kernel_tensor),
        "dl_code": dtype.code,
        "dl_bits": dtype.bits,
        "dl_lanes": dtype.lanes,
        "row_major": not kernel_tensor.strides,
    }


def effective_alignment(tensor: Tensor, kernel_tensor: LoweredTensor) -> int:
    """Return the alignment that the launcher asks of the data pointer, in bytes.

    The spec's alignment is what a kernel may use for wide accesses. A tensor sliced along its first
    dimension keeps only the alignment of its rows, and such a slice must stay usable, so kernels
    get the greatest common divisor of both; always at least the size of an element.
    """
    element_bytes = DTYPES[tensor.dtype].size_bytes
    if len(kernel_tensor.shape) < 2 or kernel_tensor.strides:
        return max(tensor.alignment, element_bytes)
    row_bytes = element_bytes
    for size in kernel_tensor.shape[1:]:
        row_bytes *= size.constant if size.constant is not None else size.factor
    return max(math.gcd(tensor.alignment, row_bytes), element_bytes)


def _extents(lowered: Lowered) -> Iterator[tuple[str, str, Extent]]:
    """Yield (C access, label in messages, extent) for every size and run-time stride."""
    for tensor in lowered.tensors:
        for field, extents in (("shape", tensor.shape), ("strides", tensor.strides)):
            for i, size in enumerate(extents):
                label = f"{tensor.name}.{'shape' if field == 'shape' else 'stride()'}[{i}]"
                access = f"tensor_{tensor.name}->shape[{i}]"
                if field == "strides":
                    access = f"stride_of(tensor_{tensor.name}, {i})"
                yield access, label, size


def _sizes_and_checks(
    variant: Variant, lowered: Lowered
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Split the extents into those that define a run-time value and those compared with one."""
    sizes: list[dict[str, Any]] = []
    checks: list[dict[str, Any]] = []
    origin = {scalar.name: scalar.name for scalar in lowered.scalars}
    for access, label, size in _extents(lowered):
        if size.symbol is not None and size.symbol not in origin:
            origin[size.symbol] = label
            sizes.append(
                {"symbol": size.symbol, "factor": size.factor, "access": access, "label": label}
            )
    for access, label, size in _extents(lowered):
        if size.symbol is not None and origin[size.symbol] == label:
            continue
        why = ""
        if size.symbol is not None:
            why = f" ({size.symbol}, as in {origin[size.symbol]})"
        elif size.constant is None:
            why = f" (from {', '.join(sorted(symbols_in(size.text)))})"
        # torch gives empty tensors any strides; nothing reads by them.
        tensor = label.partition(".")[0] if ".stride()" in label else None
        checks.append(
            {"access": access, "label": label, "expected": size.text, "why": why, "empty": tensor}
        )
    for check in checks:
        for symbol in symbols_in(check["expected"]) - set(origin):
            raise LoweringError(
                f"{variant.key}: {check['label']} is computed from {symbol}, which no size or "
                "scalar gives"
            )
    return sizes, checks


def _limit_rows(variant: Variant, lowered: Lowered, symbols: set[str]) -> list[dict[str, Any]]:
    """Bounds of run-time parameters, and of sizes that the device takes in fewer than 64 bits."""
    rows = []
    for name, low, high in limits(variant):
        access, label = _parameter_access(variant, lowered, name)
        rows.append({"access": access, "label": label, "lowest": low, "highest": high})
    for dimension in variant.spec.dimensions:
        where = _size_access(variant, dimension.name)
        largest = INTEGER_RANGES["int64"][1]
        if where is not None and (dimension.minimum or dimension.maximum is not None):
            high = largest if dimension.maximum is None else dimension.maximum
            access, label = where
            row = {"access": access, "label": label, "lowest": dimension.minimum, "highest": high}
            rows.append(row)
    for parameter in lowered.parameters:
        if parameter.name in symbols and parameter.dtype in INTEGER_RANGES:
            high = INTEGER_RANGES[parameter.dtype][1]
            access = dimension_name(parameter.name)
            row = {"access": access, "label": parameter.name, "lowest": 0, "highest": high}
            if parameter.dtype != "int64":
                rows.append(row)
    return rows


def _multiple_rows(variant: Variant, lowered: Lowered) -> list[dict[str, Any]]:
    """Divisors that the spec asks of parameters that are decided at run time."""
    rows = []
    for name, multiple in multiples(variant):
        access, label = _parameter_access(variant, lowered, name)
        rows.append({"access": access, "label": label, "multiple": multiple})
    return rows


def _size_access(variant: Variant, name: str) -> tuple[str, str] | None:
    """Return where the launcher reads a size that some tensor has, and how messages call it."""
    for tensor in tensors(variant):
        for i, size in enumerate(tensor.shape):
            if size == name:
                return f"tensor_{tensor.name}->shape[{i}]", f"{tensor.name}.shape[{i}] ({name})"
    return None


def _parameter_access(variant: Variant, lowered: Lowered, name: str) -> tuple[str, str]:
    where = _size_access(variant, name)
    if where is not None:
        return where
    if any(scalar.name == name for scalar in lowered.scalars):
        return dimension_name(name), name
    raise LoweringError(
        f"{variant.key}: {name} is decided at run time, but no tensor size or scalar carries it"
    )


def _scalar_rows(variant: Variant, listed: tuple[Argument, ...]) -> list[dict[str, Any]]:
    declared = {scalar.name: scalar for scalar in variant.spec.scalars}
    rows = []
    for i, argument in enumerate(listed):
        if argument.kind == "tensor":
            continue
        row: dict[str, Any] = {"name": argument.name, "index": i, "integer": False}
        row |= {"lowest": None, "highest": None, "choices": ()}
        if argument.dtype in INTEGER_RANGES:
            low, high = INTEGER_RANGES[argument.dtype]
            scalar = declared.get(argument.name)
            if argument.kind == "device":
                low = 1
            elif scalar is not None and scalar.choices:
                row |= {"choices": tuple(map(_c_int64, scalar.choices))}
                row |= {"known": ", ".join(map(str, scalar.choices))}
            elif scalar is not None:
                low = low if scalar.minimum is None else max(low, int(scalar.minimum))
                high = high if scalar.maximum is None else min(high, int(scalar.maximum))
            row |= {"integer": True, "lowest": _c_int64(low), "highest": _c_int64(high)}
        elif (scalar := declared.get(argument.name)) is not None:
            row |= {"lowest": _c_double(scalar.minimum), "highest": _c_double(scalar.maximum)}
        rows.append(row)
    return rows


def _c_int64(value: int) -> str:
    # INT64_MIN has no literal in C: its positive part does not fit.
    return "INT64_MIN" if value == -(2**63) else f"INT64_C({value})"


def _c_double(value: float | None) -> str | None:
    return None if value is None else repr(float(value))


def _parameter_rows(lowered: Lowered) -> list[dict[str, str]]:
    rows = []
    for parameter in lowered.parameters:
        if parameter.dtype == "handle":
            value, c_type = f"data_of(tensor_{parameter.name})", "void *"
        else:
            c_type = DTYPES[parameter.dtype].c_type
            integer = parameter.dtype in INTEGER_RANGES
            source = dimension_name(parameter.name) if integer else f"value_{parameter.name}"
            value = f"({c_type}){source}"
        rows.append({"name": parameter.name, "c_type": c_type, "value": value})
    return rows


def _device_scalars(variant: Variant, lowered: Lowered) -> list[tuple[str, str]]:
    declared = {scalar.name for scalar in variant.spec.scalars}
    return [(s.name, s.dtype) for s in lowered.scalars if s.name not in declared]


def _public_shape(variant: Variant, tensor: Tensor) -> tuple[int | str, ...]:
    values = dict(variant.key.parameters)
    shape: list[int | str] = []
    for size in tensor.shape:
        bound = values.get(size, size) if isinstance(size, str) else size
        shape.append(size if bound == ANY else int(bound) if not isinstance(bound, str) else size)
    return tuple(shape)


def _contract_problems(variant: Variant, lowered: Lowered) -> Iterator[str]:
    declared = {tensor.name: tensor for tensor in tensors(variant)}
    actual = {tensor.name: tensor for tensor in lowered.tensors}
    if list(declared) != list(actual):
        yield (
            f"the kernel's tensors are {', '.join(actual)}, must be the spec's, in its order: "
            f"{', '.join(declared)}"
        )
        return
    for name, tensor in declared.items():
        yield from _tensor_problems(variant, tensor, actual[name])
    scalars = {scalar.name: scalar.dtype for scalar in lowered.scalars}
    for scalar in variant.spec.scalars:
        if scalars.get(scalar.name) != scalar.dtype:
            yield (
                f"scalar {scalar.name} is {scalars.get(scalar.name, 'missing')} in the kernel, "
                f"must be {scalar.dtype}"
            )
    known = DEVICE_ARGUMENTS.get(variant.backend.name, ())
    for name, _ in _device_scalars(variant, lowered):
        if name not in known:
            yield (
                f"scalar {name} of the kernel is not in the spec, must be one of its scalars or of "
                f"the device numbers ({', '.join(known)})"
            )


def _tensor_problems(
    variant: Variant, tensor: Tensor, kernel_tensor: LoweredTensor
) -> Iterator[str]:
    if kernel_tensor.dtype != tensor.dtype:
        yield f"{tensor.name} is {kernel_tensor.dtype} in the kernel, must be {tensor.dtype}"
    if len(kernel_tensor.shape) != len(tensor.shape):
        yield (
            f"{tensor.name} is {len(kernel_tensor.shape)}-dimensional in the kernel, "
            f"must be {len(tensor.shape)}-dimensional"
        )
        return
    if bool(kernel_tensor.strides) and tensor.layout == "row_major":
        yield f"{tensor.name} has run-time strides in the kernel, must be row_major"
    values = dict(variant.key.parameters)
    for i, (size, actual) in enumerate(zip(tensor.shape, kernel_tensor.shape, strict=True)):
        expected = values.get(size) if isinstance(size, str) else size
        if isinstance(expected, int) and actual.constant != expected:
            yield f"{tensor.name}.shape[{i}] is {actual.text} in the kernel, must be {expected}"
        if expected == ANY and actual.constant is not None:
            yield f"{tensor.name}.shape[{i}] is {actual.text} in the kernel, must be run-time"
