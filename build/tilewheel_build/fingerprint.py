"""What an artifact is made from, as one hash: the same in any directory and on any day."""

from __future__ import annotations

import ast
import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

from tilewheel_build.host_compiler import FLAGS, GLIBC
from tilewheel_build.spec_types import Dimension, Scalar, Tensor
from tilewheel_build.variant import Variant, limits, parameters, tensors

DRIVER_SOURCES = (
    "backends.py",
    "c_expression.py",
    "dtypes.py",
    "elf.py",
    "host_compiler.py",
    "launcher.py",
    "lower.py",
    "templates/arguments.h",
    "templates/launcher.c.j2",
    "unit.py",
)
"""The driver's files that decide what any backend's artifact contains, below this package."""


def fingerprint_inputs(
    variant: Variant,
    *,
    kernels_root: Path,
    machine: str,
    toolchain: Mapping[str, str],
    flags: tuple[str, ...],
    sources: tuple[str, ...],
) -> dict[str, Any]:
    """Return what an artifact is made from: key, contract, sources, tools and flags, as JSON."""
    return {
        "key": str(variant.key),
        "machine": machine,
        "tensors": [_contract(tensor) for tensor in tensors(variant)],
        "arguments": [[tensor.name, tensor.role] for tensor in variant.spec.tensors],
        "scalars": [_contract(scalar) for scalar in variant.spec.scalars],
        "limits": [list(limit) for limit in limits(variant)],
        "multiples": [[p.name, p.multiple_of] for p in parameters(variant)],
        "dimensions": [_contract(dimension) for dimension in variant.spec.dimensions],
        "kernel": kernel_hashes(kernels_root, variant.backend.kernel),
        "driver": driver_hash(sources),
        "toolchain": dict(toolchain),
        "flags": [*flags, *FLAGS, GLIBC],
    }


def _contract(item: Tensor | Scalar | Dimension) -> dict[str, Any]:
    """Return what launcher and kernel depend on: all but the words."""
    return {name: value for name, value in asdict(item).items() if name != "meaning"}


def fingerprint(inputs: Mapping[str, Any]) -> str:
    """Return 64 hex digits over the inputs of one artifact."""
    return hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()


def kernel_hashes(kernels_root: Path, kernel: str) -> dict[str, str]:
    """Return the hashes of a kernel file and of each ``tilewheel_kernels`` module it imports."""
    package = kernels_root / "tilewheel_kernels"
    hashes: dict[str, str] = {}
    waiting = [package / kernel]
    while waiting:
        path = waiting.pop()
        name = path.relative_to(kernels_root).as_posix()
        if name in hashes:
            continue
        source = path.read_bytes()
        hashes[name] = hashlib.sha256(source).hexdigest()
        for module in _imported_modules(source, path.relative_to(kernels_root)):
            waiting += _module_files(module, kernels_root)
    return hashes


@cache  # of the file's content: every variant of an operator asks for the same few
def _imported_modules(source: bytes, path: Path) -> frozenset[str]:
    """Return every name that may be a module that the file imports, made absolute."""
    # Importing a module runs the __init__ of each package around it.
    modules = {".".join(path.parts[:-1])}
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return frozenset(modules)  # lowering reports it, for the variants of this kernel only
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            package = path.parts[: len(path.parts) - node.level] if node.level else ()
            base = ".".join([*package, *([node.module] if node.module else [])])
            modules |= {base, *(f"{base}.{alias.name}" for alias in node.names)}
    return frozenset(modules)


def _module_files(module: str, kernels_root: Path) -> list[Path]:
    parts = module.split(".")
    if parts[0] != "tilewheel_kernels":
        return []
    folders = [kernels_root.joinpath(*parts[: i + 1]) for i in range(len(parts))]
    files = [*(folder / "__init__.py" for folder in folders), folders[-1].with_suffix(".py")]
    return [file for file in files if file.is_file()]


@cache
def driver_hash(sources: tuple[str, ...] = ()) -> str:
    """Return one hash over the driver's own files: those of every backend and ``sources``."""
    root = Path(__file__).parent
    digest = hashlib.sha256()
    for name in (*DRIVER_SOURCES, *sources):
        path = root / name
        files = sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]
        for file in files:
            if "__pycache__" not in file.parts:
                digest.update(file.relative_to(root).as_posix().encode())
                digest.update(hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()
