"""Where the pinned compilers are and which versions they have."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Iterable
from pathlib import Path

from tilewheel_build.errors import ToolchainError

HINT = "hint: run `make setup`, which installs every pinned tool into .venv"


def package_versions(names: Iterable[str]) -> tuple[tuple[str, str], ...]:
    """Return (distribution, version) for each name, sorted.

    Raises:
        ToolchainError: one or more are not installed; all are named.
    """
    found = []
    missing = []
    for name in sorted(names):
        try:
            found.append((name, importlib.metadata.version(name)))
        except importlib.metadata.PackageNotFoundError:
            missing.append(name)
    if missing:
        raise ToolchainError(f"not installed: {', '.join(missing)}\n{HINT}")
    return tuple(found)


def package_directory(import_name: str) -> Path:
    """Return the directory of an installed package without importing it."""
    try:
        spec = importlib.util.find_spec(import_name)
    except ModuleNotFoundError:
        spec = None
    locations = list(spec.submodule_search_locations or ()) if spec is not None else []
    if not locations:
        raise ToolchainError(f"not installed: {import_name}\n{HINT}")
    return Path(locations[0])


def distribution_file(distribution: str, suffix: str) -> Path:
    """Return the installed file of a distribution whose path ends with ``suffix``."""
    try:
        files = importlib.metadata.files(distribution) or []
    except importlib.metadata.PackageNotFoundError as error:
        raise ToolchainError(f"not installed: {distribution}\n{HINT}") from error
    for file in files:
        if str(file).endswith(suffix):
            return Path(str(file.locate())).resolve()
    raise ToolchainError(f"{distribution}: has no file {suffix}\n{HINT}")


def tilelang_source() -> Path:
    """Return TileLang's directory of device headers (``tl_templates``)."""
    return package_directory("tilelang") / "src"


def tilelang_cutlass() -> Path:
    """Return the CUTLASS headers that TileLang's CUDA headers include."""
    return package_directory("tilelang") / "3rdparty" / "cutlass" / "include"


def tvm_ffi_include() -> Path:
    """Return the directory of ``tvm/ffi/c_api.h``."""
    return package_directory("tvm_ffi") / "include"
