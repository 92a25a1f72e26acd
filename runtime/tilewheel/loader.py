"""From an artifact to a callable: checks the file, loads it, keeps the handle.

The handle table is the runtime's only table of loaded code. It is safe to use from many threads;
a forked child starts with an empty one.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tilewheel.device import Device
from tilewheel.discovery import Entry
from tilewheel.errors import ArtifactLoadError
from tilewheel.ffi import tvm_ffi
from tilewheel.key import Key
from tilewheel.log import logger
from tilewheel.manifest import Artifact, Library

_SYMBOL_PREFIX = "__tvm_ffi_"
_PREPARE = "prepare"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Kernel:
    """A loaded artifact, bound to a device. Call it with the tensors and scalars of its arguments.

    ``function`` is what a call runs, for callers that count nanoseconds. Arguments that come from
    the device (such as ``num_sms``) are in it already. The artifact checks every argument and
    raises ``TypeError`` or ``ValueError``; it launches on the caller's current stream. It reads
    memory as it lies, so that a lazily negated view must be resolved first (``resolve_neg``).
    """

    artifact: Artifact
    path: Path
    device: Device
    function: Callable[..., Any]
    module: Any
    entry: Entry

    def __reduce__(self) -> tuple[Callable[..., Kernel], tuple[Entry, Device]]:
        # A copy is the same handle; another process loads the same artifact.
        return load, (self.entry, self.device)

    @property
    def key(self) -> Key:
        """The artifact's key."""
        return self.artifact.key

    def __repr__(self) -> str:
        return f"<Kernel {self.key} on {self.device}>"

    def __call__(self, *arguments: object) -> None:
        """Launch the kernel; outputs are among the arguments and are written in place."""
        self.function(*arguments)

    def prepare(self) -> None:
        """Load the device code onto the device now, so that the first launch does not have to.

        Raises:
            ArtifactLoadError: there is no driver, it is too old, or it refuses the code.
        """
        prepare = getattr(self.module, _PREPARE, None)
        if prepare is None:
            return  # nothing to load ahead: the simulator's code is on the host already
        try:
            prepare(self.device.index)
        except Exception as error:
            raise ArtifactLoadError(
                f"{self.key}: cannot be prepared on {self.device}: {error}"
            ) from error


_lock = threading.RLock()
_kernels: dict[tuple[Path, Device], Kernel] = {}


def load(entry: Entry, device: Device, *, verify: bool = False) -> Kernel:
    """Return the kernel of an artifact for a device, loading it at the first call.

    ``verify`` compares the file's SHA-256 to the manifest's; for overlays that is always done.

    Raises:
        ArtifactLoadError: the file is missing, truncated, changed, outside its package, or no
            shared object with the entry function.
    """
    with _lock:
        kernel = _kernels.get((entry.path, device))
        if kernel is None or verify:
            path, *libraries = check_files(entry, verify=verify)
        if kernel is None:
            kernel = _open(entry, path, libraries, device)
            _kernels[entry.path, device] = kernel
        return kernel


def clear() -> None:
    """Forget all handles. Kernels that callers hold stay usable."""
    with _lock:
        _kernels.clear()


def check_files(entry: Entry, *, verify: bool) -> tuple[Path, ...]:
    """Return the artifact's file and its libraries', once place and size of each are right.

    With ``verify``, and always for an overlay, their hashes must be right too.

    Raises:
        ArtifactLoadError: they are not; the message says which.
    """
    files: tuple[Artifact | Library, ...] = (entry.artifact, *entry.libraries)
    verify = verify or entry.is_overlay
    return tuple(_check_file(entry, file, verify=verify) for file in files)


def _check_file(entry: Entry, file: Artifact | Library, *, verify: bool) -> Path:
    key = entry.artifact.key
    hint = f"hint: reinstall {entry.source}"
    if entry.is_overlay:
        hint = "hint: build the artifact and its manifest again"
    listed = entry.root / file.path
    try:
        path = listed.resolve(strict=True)
        size_bytes = path.stat().st_size
    except (OSError, RuntimeError) as error:
        raise ArtifactLoadError(
            f"{key}: {listed} is missing, must be the file that the manifest lists\n{hint}"
        ) from error
    if not path.is_relative_to(entry.root.resolve()):
        raise ArtifactLoadError(
            f"{key}: {listed} leads to {path}, must stay below {entry.root}\n{hint}"
        )
    if not path.is_file():
        raise ArtifactLoadError(f"{key}: {path} is no file, must be one\n{hint}")
    if size_bytes != file.size_bytes:
        raise ArtifactLoadError(
            f"{key}: {path} is {size_bytes} bytes, must be {file.size_bytes}\n{hint}"
        )
    if verify:
        try:
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
        except OSError as error:
            raise ArtifactLoadError(
                f"{key}: {path} cannot be read: {error.strerror or error}\n{hint}"
            ) from error
        if digest != file.sha256:
            raise ArtifactLoadError(
                f"{key}: sha256 of {path} is {digest}, must be {file.sha256}\n{hint}"
            )
    return path


def _open(entry: Entry, path: Path, libraries: list[Path], device: Device) -> Kernel:
    artifact = entry.artifact
    try:
        for library in libraries:
            _open_library(library)
        module = tvm_ffi().load_module(str(path))
    except Exception as error:
        raise ArtifactLoadError(f"{artifact.key}: {path} cannot be loaded: {error}") from error
    try:
        function = getattr(module, artifact.entry.removeprefix(_SYMBOL_PREFIX))
    except AttributeError as error:
        raise ArtifactLoadError(
            f"{artifact.key}: {path} does not export {artifact.entry}, which its manifest names"
        ) from error
    logger.debug("loaded %s from %s for %s", artifact.key, path, device)
    return Kernel(
        artifact=artifact,
        path=path,
        device=device,
        function=_bind(function, artifact, device),
        module=module,
        entry=entry,
    )


def open_libraries(entry: Entry) -> tuple[ctypes.CDLL, ...]:
    """Return the libraries that an artifact needs beside its own file, opened.

    Raises:
        ArtifactLoadError: one is missing, changed, or no shared library.
    """
    paths = check_files(entry, verify=False)[1:]
    try:
        return tuple(_open_library(path) for path in paths)
    except OSError as error:
        raise ArtifactLoadError(f"{entry.artifact.key}: {error}") from error


def _open_library(path: Path) -> ctypes.CDLL:
    # The artifact opens it by its name alone, which finds what is open already. ctypes never
    # closes it.
    return ctypes.CDLL(str(path))


def _bind(function: Callable[..., Any], artifact: Artifact, device: Device) -> Callable[..., Any]:
    """Return the function that takes the caller's arguments only."""
    names = [argument.name for argument in artifact.arguments if argument.kind == "device"]
    values = tuple(_device_value(artifact, name, device) for name in names)
    bound = function
    if values:

        def bound(*arguments: object) -> None:
            function(*arguments, *values)

    return _on_npu_stream(bound, device) if device.backend == "ascend" else bound


def _device_value(artifact: Artifact, name: str, device: Device) -> int:
    value = device.property(name)
    if value is None:
        raise ArtifactLoadError(f"{artifact.key}: needs {name}, which {device} does not tell")
    return value


def _on_npu_stream(function: Callable[..., Any], device: Device) -> Callable[..., Any]:
    # tvm_ffi learns the current stream of CUDA tensors from torch itself, that of NPU tensors not.
    from tilewheel import npu

    ffi = tvm_ffi()
    current_stream = npu.stream_getter()
    ffi_device = ffi.device(npu.DLPACK_DEVICE_TYPE, device.index)

    def call(*arguments: object) -> None:
        with ffi.use_raw_stream(ffi_device, current_stream(device.index)):
            function(*arguments)

    return call


def _after_fork_in_child() -> None:
    # Handles of the parent's devices mean nothing here.
    _kernels.clear()
    _lock.release()


# A fork waits for a thread that is loading: the child would inherit, locked for ever, what that
# thread holds inside Python's import and tvm_ffi.
os.register_at_fork(
    before=_lock.acquire,
    after_in_parent=_lock.release,
    after_in_child=_after_fork_in_child,
)
