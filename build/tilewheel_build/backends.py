"""The table of backends: how each names its target, compiles device source and launches it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tilewheel.manifest import Resources
from tilewheel_build import ascend, cuda, host_compiler
from tilewheel_build.lower import Lowered
from tilewheel_build.toolchain import package_versions, tvm_ffi_include


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """What the driver needs to know of one backend; all of it is called in worker processes."""

    name: str
    source_suffix: str
    image_suffix: str
    packages: tuple[str, ...]
    flags: tuple[str, ...]
    minimum_driver: str
    device_name: str
    launcher_template: str
    tvm_target: Callable[[str], dict[str, str]]
    compile_device: Callable[[Path, str, str, str, Lowered], Resources]
    launcher_includes: Callable[[], tuple[Path, ...]]
    launcher_extra: Callable[[Lowered], tuple[tuple[str, Any], ...]]

    def toolchain(self) -> tuple[tuple[str, str], ...]:
        """Return (package, version) of every tool that this backend's artifacts are made with."""
        return package_versions((*self.packages, *host_compiler.PACKAGES))


def _compile_cuda(work: Path, source: str, output: str, arch: str, lowered: Lowered) -> Resources:
    return cuda.compile_device(
        work=work,
        source=source,
        output=output,
        arch=arch,
        shared_bytes=lowered.dynamic_shared_bytes,
    )


def _nothing(lowered: Lowered) -> tuple[tuple[str, Any], ...]:
    return ()


def _acl_context(
    lowered: Lowered, *, library: str, title: str, device_type: str, search_toolkit: bool
) -> tuple[tuple[str, Any], ...]:
    offsets, size_bytes = ascend.argument_layout(lowered)
    return (
        ("acl_library", library),
        ("acl_title", title),
        ("device_type", device_type),
        ("search_toolkit", search_toolkit),
        ("argument_offsets", offsets),
        ("argument_bytes", size_bytes),
    )


BACKENDS: dict[str, Backend] = {
    "cuda": Backend(
        name="cuda",
        source_suffix=".cu",
        image_suffix=".cubin",
        packages=cuda.PACKAGES,
        flags=cuda.NVCC_FLAGS,
        minimum_driver=cuda.MINIMUM_DRIVER,
        device_name="a CUDA device",
        launcher_template="launcher_cuda.c.j2",
        tvm_target=cuda.tvm_target,
        compile_device=_compile_cuda,
        launcher_includes=lambda: (tvm_ffi_include(), cuda.cuda_include()),
        launcher_extra=_nothing,
    ),
    "ascend": Backend(
        name="ascend",
        source_suffix=".asc",
        image_suffix=".aibin",
        packages=ascend.PACKAGES,
        flags=(*ascend.BISHENG_FLAGS, *ascend.LINK_FLAGS),
        minimum_driver=ascend.MINIMUM_DRIVER,
        device_name="an Ascend NPU",
        launcher_template="launcher_ascend.c.j2",
        tvm_target=ascend.tvm_target,
        compile_device=ascend.compile_device,
        launcher_includes=lambda: (tvm_ffi_include(),),
        launcher_extra=lambda lowered: _acl_context(
            lowered,
            library="libascendcl.so",
            title="AscendCL library (part of CANN)",
            device_type="kDLExtDev",
            search_toolkit=True,
        ),
    ),
}
