"""Loading: file checks, handles, arguments that come from the device, threads and forks."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
import torch

from tilewheel import loader
from tilewheel.device import Device, simulated
from tilewheel.discovery import Entry
from tilewheel.errors import ArtifactLoadError
from tilewheel.manifest import Argument

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
    assert kernel.function == kernel.module.topk_gate or callable(kernel.function)
    assert type(kernel.function).__module__.startswith("tvm_ffi")


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
    held, release = threading.Event(), threading.Event()

    def hold():
        with loader._lock:
            held.set()
            release.wait()

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait()
    child = os.fork()
    if child == 0:
        free = loader._lock.acquire(timeout=1)
        os._exit(0 if free and not loader._kernels else 1)
    release.set()
    holder.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert len(loader._kernels) == 1


def test_missing_file_is_reported(entry):
    described = entry()
    described.path.unlink()
    assert failure(described) == (
        f"{KEY}: {described.path} is missing, must be the file that the manifest lists\n"
        "hint: reinstall pkg 1.0"
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


def test_prepare_loads_the_device_code(entry):
    assert loader.load(entry(), SIMULATOR).prepare() is None


def test_failure_to_prepare_is_reported(entry):
    device = Device(backend="cuda", arch="sm_90a", name="H200", index=7)
    with pytest.raises(ArtifactLoadError) as caught:
        loader.load(entry(), device).prepare()
    assert str(caught.value) == (
        f"{KEY}: cannot be prepared on cuda:7 (H200, sm_90a): no CUDA driver"
    )
