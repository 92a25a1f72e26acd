"""Loading: file checks, handles, arguments that come from the device, threads and forks."""

from __future__ import annotations

import copy
import ctypes
import dataclasses
import errno
import hashlib
import os
import pickle
import threading
from pathlib import Path

import pytest
import torch

import tilewheel as tw
from tilewheel import discovery, loader
from tilewheel.device import Device, simulated
from tilewheel.discovery import Entry
from tilewheel.errors import ArtifactLoadError
from tilewheel.ffi import tvm_ffi
from tilewheel.manifest import Argument, Library

KEY = "topk_gate-num_experts=4-num_topk=2-ascend_sim-dav_3510"
SIMULATOR = simulated()
SCORES = torch.tensor([[1.0, 4.0, 4.0, 2.0]])


@pytest.fixture(autouse=True)
def _empty_table():
    loader.clear()
    yield
    loader.clear()


@pytest.fixture
def entry(tmp_path, install):
    """Return the function that installs the artifact and gives its catalogue entry."""

    def make(*flags: str, is_overlay: bool = False, **changes: object) -> Entry:
        described = install(tmp_path, KEY, *flags, **changes)
        return Entry(artifact=described, root=tmp_path, source="pkg 1.0", is_overlay=is_overlay)

    return make


def failure(entry: Entry, *, verify: bool = False) -> str:
    with pytest.raises(ArtifactLoadError) as caught:
        loader.load(entry, SIMULATOR, verify=verify)
    return str(caught.value)


def test_loaded_kernel_runs(entry):
    kernel = loader.load(entry(), SIMULATOR)
    idx = torch.empty((1, 2), dtype=torch.int64)
    kernel(SCORES, idx)
    assert idx.tolist() == [[1, 2]]
    assert str(kernel.key) == KEY
    assert kernel.path.name == f"{KEY}.so"
    assert repr(kernel) == f"<Kernel {KEY} on ascend-sim:0 (functional simulator, dav_3510)>"


def test_tensor_that_requires_gradients_is_taken(entry):
    idx = torch.empty((1, 2), dtype=torch.int64)
    loader.load(entry(), SIMULATOR)(SCORES.clone().requires_grad_(), idx)
    assert idx.tolist() == [[1, 2]]


def test_error_of_the_artifact_reaches_the_caller(entry):
    with pytest.raises(TypeError, match="topk_gate: scores: must be a tensor"):
        loader.load(entry(), SIMULATOR)(1, 2)


def test_call_without_device_arguments_is_the_bare_function(entry):
    kernel = loader.load(entry(), SIMULATOR)
    assert type(kernel.function) is type(kernel.module.topk_gate)


def test_device_argument_is_appended(entry):
    arguments = (
        Argument(name="scores", kind="tensor", dtype="float32"),
        Argument(name="idx", kind="tensor", dtype="int64", role="out"),
        Argument(name="num_vec_cores", kind="device", dtype="int32"),
    )
    idx = torch.empty((1, 2), dtype=torch.int64)
    loader.load(entry(arguments=arguments), SIMULATOR)(SCORES, idx)
    assert idx.tolist() == [[64, 2]]


def test_device_argument_that_the_device_does_not_tell_is_reported(entry):
    arguments = (Argument(name="num_sms", kind="device", dtype="int32"),)
    assert failure(entry(arguments=arguments)) == (
        f"{KEY}: needs num_sms, which ascend-sim:0 (functional simulator, dav_3510) does not tell"
    )


def test_second_load_gives_the_same_kernel(entry):
    described = entry()
    assert loader.load(described, SIMULATOR) is loader.load(described, SIMULATOR)


def test_every_device_has_its_own_kernel(entry):
    described = entry()
    other = simulated(num_vec_cores=72)
    assert loader.load(described, SIMULATOR) is not loader.load(described, other)


def test_threads_share_one_kernel(entry):
    described = entry()
    barrier = threading.Barrier(8)
    loaded = []

    def work():
        barrier.wait()
        loaded.append(loader.load(described, SIMULATOR))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(loaded) == 8
    assert len(set(map(id, loaded))) == 1


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_forked_child_starts_with_an_empty_table_and_a_free_lock(entry):
    loader.load(entry(), SIMULATOR)
    child = os.fork()
    if child == 0:
        os._exit(0 if is_free(loader._lock) and not loader._kernels else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert len(loader._kernels) == 1
    assert is_free(loader._lock)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("module", [loader, discovery])
def test_fork_waits_for_a_thread_that_reads_or_loads(module):
    held, release, finished = threading.Event(), threading.Event(), []

    def hold():
        with module._lock:
            held.set()
            release.wait()
            finished.append(True)

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait()
    threading.Timer(0.2, release.set).start()
    child = os.fork()
    if child == 0:
        os._exit(0 if finished and is_free(module._lock) else 1)
    holder.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert is_free(module._lock)


def is_free(lock) -> bool:
    """Return whether another thread can take the lock."""
    taken = []

    def take():
        if lock.acquire(timeout=1):
            taken.append(True)
            lock.release()

    thread = threading.Thread(target=take)
    thread.start()
    thread.join()
    return bool(taken)


def test_copy_of_a_kernel_is_that_kernel(entry):
    kernel = loader.load(entry(), SIMULATOR)
    assert copy.copy(kernel) is kernel
    assert copy.deepcopy({"kernel": kernel})["kernel"] is kernel


def test_pickled_kernel_is_loaded_again(entry):
    described = entry()  # once: it writes the file, which may not change while it is open
    kernel = loader.load(described, SIMULATOR)
    text = pickle.dumps(kernel)
    loader.clear()
    again = pickle.loads(text)
    assert again is not kernel
    assert again is loader.load(described, SIMULATOR)
    idx = torch.empty((1, 2), dtype=torch.int64)
    again(SCORES, idx)
    assert idx.tolist() == [[1, 2]]


def test_missing_file_is_reported(entry):
    described = entry()
    described.path.unlink()
    assert failure(described) == (
        f"{KEY}: {described.path} is missing, must be the file that the manifest lists\n"
        "hint: reinstall pkg 1.0"
    )


def test_directory_in_place_of_the_file_is_reported(entry):
    described = entry()
    described.path.unlink()
    described.path.mkdir()
    assert failure(described, verify=True) == (
        f"{KEY}: {described.path} is no file, must be one\nhint: reinstall pkg 1.0"
    )


def test_file_that_cannot_be_read_is_reported(entry, monkeypatch):
    described = entry()

    def refuse(path: Path) -> bytes:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(Path, "read_bytes", refuse)
    assert failure(described, verify=True) == (
        f"{KEY}: {described.path} cannot be read: Permission denied\nhint: reinstall pkg 1.0"
    )


def test_truncated_file_is_reported(entry):
    described = entry()
    size_bytes = described.path.stat().st_size
    os.truncate(described.path, 100)
    assert failure(described) == (
        f"{KEY}: {described.path} is 100 bytes, must be {size_bytes}\nhint: reinstall pkg 1.0"
    )


def change_last_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    # A new file in its place: writing into one that is loaded changes code that may still run.
    path.unlink()
    path.write_bytes(content)


def test_changed_overlay_is_always_refused(entry):
    described = entry(is_overlay=True)
    change_last_byte(described.path)
    message = failure(described)
    assert message.startswith(f"{KEY}: sha256 of {described.path} is ")
    assert message.endswith(
        f", must be {described.artifact.sha256}\nhint: build the artifact and its manifest again"
    )


def test_changed_file_of_a_package_is_refused_on_demand(entry):
    described = entry()
    loader.load(described, SIMULATOR)
    change_last_byte(described.path)
    loader.load(described, SIMULATOR)
    assert "sha256 of" in failure(described, verify=True)


def test_link_out_of_the_package_is_refused(entry, tmp_path):
    described = entry()
    outside = tmp_path.parent / f"{tmp_path.name}_outside.so"
    described.path.rename(outside)
    described.path.symlink_to(outside)
    assert failure(described) == (
        f"{KEY}: {described.path} leads to {outside}, must stay below {tmp_path}\n"
        "hint: reinstall pkg 1.0"
    )


def test_folder_that_is_a_link_out_of_the_package_is_refused(entry, tmp_path):
    described = entry()
    outside = tmp_path.parent / f"{tmp_path.name}_outside"
    described.path.parent.rename(outside)
    described.path.parent.symlink_to(outside)
    assert failure(described) == (
        f"{KEY}: {described.path} leads to {outside}/{KEY}.so, must stay below {tmp_path}\n"
        "hint: reinstall pkg 1.0"
    )


def test_link_to_itself_is_refused(entry):
    described = entry()
    described.path.unlink()
    described.path.symlink_to(described.path.name)
    assert failure(described).startswith(f"{KEY}: {described.path} is missing, must be the file")


def test_library_outside_the_package_is_refused(entry, library, tmp_path):
    outside = tmp_path.parent / f"{tmp_path.name}_libtest.so"
    (tmp_path / "libtest.so").rename(outside)
    (tmp_path / "libtest.so").symlink_to(outside)
    described = dataclasses.replace(entry(), libraries=(library,))
    assert failure(described) == (
        f"{KEY}: {tmp_path}/libtest.so leads to {outside}, must stay below {tmp_path}\n"
        "hint: reinstall pkg 1.0"
    )


def test_public_call_never_runs_a_changed_overlay(overlay, install):
    path = overlay / install(overlay, KEY).path
    change_last_byte(path)
    with tw.backend("ascend-sim"), pytest.raises(ArtifactLoadError, match="sha256 of"):
        tw.moe.topk_gate(SCORES, 2)


def test_file_that_is_no_shared_object_is_reported(entry):
    described = entry()
    described.path.write_bytes(b"x" * described.path.stat().st_size)
    message = failure(described)
    assert message.startswith(f"{KEY}: {described.path} cannot be loaded: ")
    assert "invalid ELF header" in message


def test_missing_entry_function_is_reported(entry):
    described = entry(entry="__tvm_ffi_other")
    assert failure(described) == (
        f"{KEY}: {described.path} does not export __tvm_ffi_other, which its manifest names"
    )


def test_kernel_of_an_npu_runs_on_its_current_stream(entry, monkeypatch):
    monkeypatch.setattr("tilewheel.npu.stream_getter", lambda: lambda index: 4096 + index)
    ffi = tvm_ffi()
    npu = ffi.device(12, 1)
    streams = []
    device = Device(backend="ascend", arch="dav_3510", name="Ascend950DT", index=1)
    call = loader._bind(
        lambda *_: streams.append(ffi.get_raw_stream(npu)), entry().artifact, device
    )
    call()
    assert streams == [4097]


@pytest.fixture
def library(tmp_path, compile_c):
    """Return a library of the manifest that sets an environment variable when it is opened."""
    source = """
    #include <stdlib.h>
    __attribute__((constructor)) static void open_(void) { setenv("TW_OPENED", "1", 1); }
    """
    content = compile_c(source).read_bytes()
    (tmp_path / "libtest.so").write_bytes(content)
    digest = hashlib.sha256(content).hexdigest()
    return Library(path="libtest.so", sha256=digest, size_bytes=len(content))


def test_libraries_of_the_manifest_are_opened_first(entry, library):
    getenv = ctypes.CDLL(None).getenv
    getenv.restype = ctypes.c_char_p
    assert getenv(b"TW_OPENED") is None
    loader.load(dataclasses.replace(entry(), libraries=(library,)), SIMULATOR)
    assert getenv(b"TW_OPENED") == b"1"


def test_library_is_checked_as_the_artifact_is(entry, library, tmp_path):
    change_last_byte(tmp_path / "libtest.so")
    described = dataclasses.replace(entry(is_overlay=True), libraries=(library,))
    assert failure(described).startswith(f"{KEY}: sha256 of {tmp_path}/libtest.so is ")


def test_prepare_loads_the_device_code(entry):
    assert loader.load(entry(), SIMULATOR).prepare() is None


def test_failure_to_prepare_is_reported(entry):
    device = Device(backend="cuda", arch="sm_90a", name="H200", index=7)
    with pytest.raises(ArtifactLoadError) as caught:
        loader.load(entry(), device).prepare()
    assert str(caught.value) == (
        f"{KEY}: cannot be prepared on cuda:7 (H200, sm_90a): no CUDA driver"
    )
