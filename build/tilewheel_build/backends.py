"""The table of backends: how each names its target, compiles device source and launches it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tilewheel.manifest import Resources
from tilewheel_build import ascend, ascend_sim, cuda, host_compiler
from tilewheel_build.lower import Lowered
from tilewheel_build.toolchain import package_versions, tvm_ffi_include


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceJob:
    """One device compilation: ``work/source`` to ``work/output``."""

    work: Path
    source: str
    output: str
    arch: str
    machine: str
    shared_bytes: int
    zig_cache: Path
    timeout_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """What the driver needs to know of one backend.

    ``sources`` are the driver's own files that decide what its artifacts contain, beside those of
    every backend. ``find_tools`` returns (name, version) of what no package version tells and
    raises ToolchainError where it is missing. ``compile_library`` makes the shared library that the
    artifacts open by name, ``library_name()``, if they need one. ``has_portable_image`` says that
    the device code is the same whatever the host's processor is.
    """

    name: str
    source_suffix: str
    image_suffix: str
    packages: tuple[str, ...]
    flags: tuple[str, ...]
    sources: tuple[str, ...]
    minimum_driver: str
    device_name: str
    launcher_template: str
    tvm_target: Callable[[str], dict[str, str]]
    find_tools: Callable[[], tuple[tuple[str, str], ...]]
    check_lowered: Callable[[Lowered], Resources]
    compile_device: Callable[[DeviceJob], Resources]
    launcher_includes: Callable[[], tuple[Path, ...]]
    launcher_extra: Callable[[Lowered], tuple[tuple[str, Any], ...]]
    has_portable_image: bool = True
    library_name: Callable[[], str] = lambda: ""
    compile_library: Callable[[Path, str, Path], None] | None = None

    def toolchain(self) -> tuple[tuple[str, str], ...]:
        """Return (name, version) of every tool that this backend's artifacts are made with.

        Raises:
            ToolchainError: one is missing; the message says which and where it was looked for.
        """
        return tuple(sorted((*self.package_versions(), *self.find_tools())))

    def package_versions(self) -> tuple[tuple[str, str], ...]:
        """Return (name, version) of the tools that are Python packages.

        Raises:
            ToolchainError: one or more are not installed.
        """
        return package_versions({*self.packages, *host_compiler.PACKAGES})


def _compile_cuda(job: DeviceJob) -> Resources:
    return cuda.compile_device(
        work=job.work,
        source=job.source,
        output=job.output,
        arch=job.arch,
        shared_bytes=job.shared_bytes,
        timeout_s=job.timeout_s,
    )


def _compile_ascend(job: DeviceJob) -> Resources:
    ascend.compile_device(
        work=job.work,
        source=job.source,
        output=job.output,
        arch=job.arch,
        timeout_s=job.timeout_s,
    )
    return Resources()


def _compile_ascend_sim(job: DeviceJob) -> Resources:
    ascend_sim.compile_device(
        work=job.work,
        source=job.source,
        output=job.output,
        machine=job.machine,
        zig_cache=job.zig_cache,
        timeout_s=job.timeout_s,
    )
    return Resources()


def _acl_context(
    lowered: Lowered,
    *,
    library: str,
    title: str,
    release: str,
    device_type: str,
    search_toolkit: bool,
) -> tuple[tuple[str, Any], ...]:
    offsets, size_bytes = ascend.argument_layout(lowered)
    return (
        ("acl_library", library),
        ("acl_title", title),
        ("acl_release", release),
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
        sources=("cuda.py", "templates/launcher_cuda.c.j2"),
        minimum_driver=cuda.MINIMUM_DRIVER,
        device_name="a CUDA device",
        launcher_template="launcher_cuda.c.j2",
        tvm_target=cuda.tvm_target,
        find_tools=lambda: (),
        check_lowered=lambda lowered: Resources(),
        compile_device=_compile_cuda,
        launcher_includes=lambda: (tvm_ffi_include(), cuda.cuda_include()),
        launcher_extra=lambda lowered: (),
    ),
    "ascend": Backend(
        name="ascend",
        source_suffix=".asc",
        image_suffix=".aibin",
        packages=ascend.PACKAGES,
        flags=(*ascend.BISHENG_FLAGS, *ascend.LINK_FLAGS),
        sources=("ascend.py", "templates/launcher_ascend.c.j2"),
        minimum_driver=ascend.MINIMUM_DRIVER,
        device_name="an Ascend NPU",
        launcher_template="launcher_ascend.c.j2",
        tvm_target=ascend.tvm_target,
        find_tools=ascend.tool_versions,
        check_lowered=ascend.check_lowered,
        compile_device=_compile_ascend,
        launcher_includes=lambda: (tvm_ffi_include(),),
        launcher_extra=lambda lowered: _acl_context(
            lowered,
            library=ascend.ACL_LIBRARY,
            title=ascend.ACL_TITLE,
            release=f"{ascend.MINIMUM_DRIVER} or newer",
            device_type="kDLExtDev",
            search_toolkit=True,
        ),
    ),
    "ascend-sim": Backend(
        name="ascend-sim",
        source_suffix=".asc",
        image_suffix=".sim.so",
        packages=ascend_sim.PACKAGES,
        flags=ascend_sim.FLAGS,
        sources=("ascend.py", "ascend_sim.py", "simulator", "templates/launcher_ascend.c.j2"),
        minimum_driver="",
        device_name="the CPU, where the simulator runs",
        launcher_template="launcher_ascend.c.j2",
        tvm_target=ascend.tvm_target,
        find_tools=lambda: (),
        check_lowered=ascend.check_lowered,
        compile_device=_compile_ascend_sim,
        launcher_includes=lambda: (tvm_ffi_include(),),
        launcher_extra=lambda lowered: _acl_context(
            lowered,
            library=ascend_sim.library_name(),
            title="simulator library (tilewheel opens it before the artifact)",
            release="the same build",
            device_type="kDLCPU",
            search_toolkit=False,
        ),
        has_portable_image=False,
        library_name=ascend_sim.library_name,
        compile_library=ascend_sim.compile_library,
    ),
}
