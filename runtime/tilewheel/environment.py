"""What an installation consists of, for ``tilewheel env``: versions, driver, devices, manifests."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from importlib import metadata
from typing import Any

import tilewheel
from tilewheel import device, discovery
from tilewheel.device import Device
from tilewheel.discovery import Catalog
from tilewheel.key import Target
from tilewheel.manifest import RUNTIME_ABI, SCHEMA_VERSION

_PACKAGES = ("torch", "torch_npu", "apache-tvm-ffi", "torch_c_dlpack_ext")
_NOT_INSTALLED = "not installed"


def describe(catalog: Catalog, environment: Mapping[str, str]) -> tuple[dict[str, Any], list[str]]:
    """Return the description as a JSON value, and what kept parts of it from being found."""
    devices, problems = _devices()
    tree = {
        "tilewheel": tilewheel.__version__,
        "manifest_schema": ".".join(map(str, SCHEMA_VERSION)),
        "runtime_abi": RUNTIME_ABI,
        "python": platform.python_version(),
        "platform": _platform(),
        "packages": _packages(),
        "driver": {"cuda": _cuda_driver()},
        "devices": {
            str(found): {
                "target": str(Target(backend=found.backend, arch=found.arch)),
                **dict(found.properties),
            }
            for found in devices
        },
        "manifests": {
            str(found.root): {
                "source": found.source,
                "overlay": found.is_overlay,
                "backend": found.manifest.backend,
                "tilewheel": found.manifest.tilewheel_version,
                "commit": found.manifest.source_commit,
                "dirty": found.manifest.source_dirty,
                "archs": sorted({a.key.target.arch for a in found.manifest.artifacts}),
                "num_artifacts": len(found.manifest.artifacts),
                "size_bytes": sum(a.size_bytes for a in found.manifest.artifacts),
            }
            for found in catalog.manifests
        },
        "variables": {
            name: environment.get(name, "") for name in (discovery.VARIABLE, "TILEWHEEL_LOG")
        },
    }
    return tree, [*catalog.problems, *problems]


def _platform() -> str:
    """Return what ``platform.platform()`` does; that one starts a process to learn it."""
    system = os.uname()
    libc = "".join(platform.libc_ver())
    return f"{system.sysname}-{system.release}-{system.machine}-with-{libc}"


def _packages() -> dict[str, str]:
    """Return the versions of what the runtime uses, and of the packages that bring artifacts."""
    found = {name: _version(name) for name in _PACKAGES}
    for point in metadata.entry_points(group=discovery.GROUP):
        if point.dist is not None:
            found[point.dist.metadata["Name"]] = point.dist.version
    return found


def _version(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return _NOT_INSTALLED


def _cuda_driver() -> str:
    version = device.cuda_driver_version()
    if version is None:
        return _NOT_INSTALLED
    branch = device.driver_branch(version)
    text = f"CUDA {version // 1000}.{version % 1000 // 10}"
    return text if branch is None else f"{text}, branch {branch}"


def _devices() -> tuple[list[Device], list[str]]:
    found = [*device.cuda_devices(), device.simulated()]
    if _version("torch_npu") == _NOT_INSTALLED:
        return found, []
    try:
        return [*found, *device.npu_devices()], []
    except Exception as error:  # torch_npu without CANN may fail in any way, and so may torch then
        return found, [f"torch_npu: {error}"]
