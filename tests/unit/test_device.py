"""Devices as values, and the texts that name them."""

from __future__ import annotations

import ctypes
import sys
from types import SimpleNamespace

import pytest
import torch

from tilewheel import npu
from tilewheel.device import Device, cuda_arch, cuda_devices, driver_branch, resolve, simulated


@pytest.mark.parametrize(
    ("capability", "arch"),
    [
        ((9, 0), "sm_90a"),
        ((10, 0), "sm_100a"),
        ((12, 0), "sm_120a"),
        ((8, 9), "sm_89"),
        ((10, 3), "sm_103"),
        ((12, 1), "sm_121"),
    ],
)
def test_arch_of_a_compute_capability_matches_exactly(capability, arch):
    assert cuda_arch(*capability) == arch


@pytest.mark.parametrize(
    ("version", "branch"),
    [
        (13000, 580),
        (13010, 590),
        (13090, 590),
        (12080, 570),
        (12070, 560),
        (12000, 525),
        (11080, None),
    ],
)
def test_driver_branch_of_a_cuda_version(version, branch):
    assert driver_branch(version) == branch


def test_simulated_device_has_64_vector_cores():
    assert resolve("ascend-sim") == simulated()
    assert simulated().property("num_vec_cores") == 64
    assert str(simulated()) == "ascend-sim:0 (functional simulator, dav_3510)"


def test_device_resolves_to_itself():
    device = Device(backend="cuda", arch="sm_90a", name="H200", index=3)
    assert resolve(device) is device


def test_target_resolves_to_a_device_without_properties():
    device = resolve("cuda-sm_90a")
    assert (device.backend, device.arch, device.properties) == ("cuda", "sm_90a", ())
    assert str(device) == "cuda-sm_90a"
    assert resolve("ascend_sim-dav_3510") == simulated()


@pytest.mark.parametrize("text", ["cpu", "cuda:x", "cuda:-1", "ascend-sim:0", "gpu", ""])
def test_text_that_names_no_device_is_refused(text):
    with pytest.raises(ValueError, match="device: is ") as caught:
        resolve(text)
    assert str(caught.value) == (
        f"device: is {text!r}, must be cuda[:N], npu[:N], ascend-sim, a target such as "
        "cuda-sm_90a, or None\n"
        "hint: CPU tensors go to the reference; select the simulator with device='ascend-sim'"
    )


def test_target_that_is_not_well_formed_is_refused():
    with pytest.raises(ValueError, match=r"^device: arch: is 'SM', must be a snake_case name"):
        resolve("cuda-SM")


def test_target_of_an_unknown_backend_is_refused():
    with pytest.raises(ValueError, match="device: backend: ") as caught:
        resolve("ascends-dav_3510")
    assert str(caught.value) == (
        "device: backend: is 'ascends', must be one of ascend, ascend-sim, cuda"
    )


def test_target_of_an_unknown_arch_is_a_device_that_no_artifact_is_for():
    assert str(resolve("cuda-sm_999")) == "cuda-sm_999"


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")
def test_missing_cuda_device_is_reported():
    for device in (None, "cuda", torch.device("cuda", 0)):
        with pytest.raises(RuntimeError, match="device: is 'cuda:0', this machine has 0 CUDA"):
            resolve(device)


LIBCUDA_C = r"""
#include <string.h>
int cuInit(unsigned flags) { return flags; }
int cuDeviceGetCount(int *count) { return *count = 2, 0; }
int cuDeviceGet(int *device, int index) { return *device = 40 + index, 0; }
int cuDeviceGetName(char *name, int size, int device) {
  return strncpy(name, device == 41 ? "NVIDIA H200" : "NVIDIA B200", size), 0;
}
int cuDeviceGetAttribute(int *value, int attribute, int device) {
  *value = attribute == 16 ? 132 : attribute == 75 ? (device == 41 ? 9 : 10) : 0;
  return 0;
}
int cuDriverGetVersion(int *version) { return *version = 13000, 0; }
"""

H200 = Device(
    backend="cuda",
    arch="sm_90a",
    name="NVIDIA H200",
    index=1,
    properties=(("driver", 580), ("num_sms", 132)),
)


@pytest.fixture
def libcuda(compile_c, monkeypatch):
    """Stand in for the CUDA driver of a machine with a B200 and an H200."""
    library = ctypes.CDLL(str(compile_c(LIBCUDA_C)))
    monkeypatch.setattr("tilewheel.device._driver", lambda: library)


def test_cuda_devices_are_described_by_the_driver(libcuda):
    first, second = cuda_devices()
    assert (first.arch, first.name, first.index) == ("sm_100a", "NVIDIA B200", 0)
    assert second == H200


def test_cuda_device_is_described_by_torch(libcuda, monkeypatch):
    found = SimpleNamespace(major=9, minor=0, name="NVIDIA H200", multi_processor_count=132)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: found)
    assert resolve("cuda") == H200
    assert resolve(torch.device("cuda", 1)) == H200
    with pytest.raises(RuntimeError, match="device: is 'cuda:2', this machine has 2 CUDA devices"):
        resolve("cuda:2")


@pytest.fixture
def torch_npu(monkeypatch):
    """Stand in for torch_npu, which cannot be imported without CANN."""
    module = SimpleNamespace(
        npu=SimpleNamespace(
            device_count=lambda: 2,
            current_device=lambda: 1,
            get_device_name=lambda index: "Ascend950DT",
            get_device_properties=lambda index: SimpleNamespace(vector_core_num=72),
            current_stream=lambda index: SimpleNamespace(npu_stream=40 + index),
        ),
        _C=SimpleNamespace(_npu_getCurrentRawStream=lambda index: 50 + index),
    )
    monkeypatch.setitem(sys.modules, "torch_npu", module)
    return module


def test_npu_is_described(torch_npu):
    assert resolve("npu") == Device(
        backend="ascend",
        arch="dav_3510",
        name="Ascend950DT",
        index=1,
        properties=(("num_vec_cores", 72),),
    )
    with pytest.raises(RuntimeError, match="device: is 'npu:2', this machine has 2 NPUs"):
        resolve("npu:2")


def test_unknown_npu_matches_no_artifact():
    assert npu.arch_of("Ascend910B3") == "unknown"


def test_npu_stream_is_taken_raw_where_torch_npu_gives_it(torch_npu):
    assert npu.stream_getter()(1) == 51
    del torch_npu._C._npu_getCurrentRawStream
    assert npu.stream_getter()(1) == 41


def test_npu_without_torch_npu_is_reported(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch_npu", None)
    with pytest.raises(RuntimeError) as caught:
        resolve("npu:0")
    assert str(caught.value).startswith("device: is an NPU, but torch_npu cannot be imported: ")
    assert str(caught.value).endswith(
        "\nhint: install torch_npu for this torch, and source CANN's set_env.sh"
    )
