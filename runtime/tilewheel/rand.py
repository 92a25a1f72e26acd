"""Random numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_compiling

from tilewheel import checks, npu, torch_ops
from tilewheel.backend import active
from tilewheel.dispatch import bind
from tilewheel.random_state import SEED_END, state

__all__ = ["randn", "randn_like", "set_seed"]

_DTYPES = {torch.float32: "float32", torch.bfloat16: "bfloat16"}
_TORCH_DEVICES = ("cuda", "cpu", "meta")


def randn(
    *size: int | Sequence[int],
    dtype: torch.dtype = torch.float32,
    device: torch.device | str | int | None = None,
) -> Tensor:
    """Return a tensor of independent standard normal numbers.

    On CUDA and CPU this is ``torch.randn`` with torch's own generator: ``torch.manual_seed`` seeds
    it, and it can be captured in a CUDA graph. On an NPU, and on the CPU where the simulator is
    selected (``tilewheel.backend``), it is a kernel: Philox 4x32-10 and Box-Muller. Each call takes
    the next numbers of the process's generator, which ``set_seed`` seeds; they depend on the seed
    and on the sizes of the calls before, not on the number of vector cores. bfloat16 is the float32
    number rounded once. Threads never get the same numbers, and neither does a forked child.
    ``torch.utils.checkpoint`` does not bring this generator back: draw outside what it repeats.

    Args:
        *size: the shape, as numbers or as one sequence; no size gives a 0-dimensional tensor.
        dtype: ``torch.float32`` or ``torch.bfloat16``.
        device: on CUDA, NPU, CPU or meta; None is torch's default device.

    Returns:
        [*size] ``dtype``, contiguous, on ``device``. It does not require gradients.

    Raises:
        TypeError: an argument is of a wrong type, or ``dtype`` is another one.
        ValueError: a size is negative, or ``device`` is none of these.
        RuntimeError: the NPU's current stream is being captured into a graph: each replay would
            repeat the numbers. On an NPU or the simulator also: the call is inside ``torch.vmap``.
        NoArtifactError: no installed artifact fits the device.
        ArtifactLoadError: the artifact that fits cannot be loaded.

    Source: J. Salmon et al., Parallel Random Numbers: As Easy as 1, 2, 3 (SC 2011); G. Box,
    M. Muller, A Note on the Generation of Random Normal Deviates (1958).
    """
    return _draw("randn", _shape(size), dtype, _device(device))


def randn_like(tensor: Tensor) -> Tensor:
    """Return ``randn`` of the shape, dtype and device of a tensor, contiguous in any case.

    Args:
        tensor: float32 or bfloat16, on CUDA, NPU, CPU or meta, of any layout; it is not read.

    Raises:
        TypeError: ``tensor`` is no tensor, or of another dtype.
        ValueError, RuntimeError, NoArtifactError, ArtifactLoadError: as ``randn``.
    """
    if not isinstance(tensor, Tensor):
        raise TypeError(f"randn_like: tensor: is {checks.kind(tensor)}, must be a torch.Tensor")
    _check_device_type("randn_like: tensor", tensor.device)
    return _draw("randn_like: tensor", tensor.shape, tensor.dtype, tensor.device)


def set_seed(seed: int) -> None:
    """Make the numbers of the kernel begin again, at the beginning of a seed.

    The same calls then give the same numbers. It is for NPU and simulator: on CUDA and CPU numbers
    come from torch's generator, which this leaves alone (``torch.manual_seed`` seeds it). Without
    a seed a process takes one from the operating system at its first call.

    A child that is forked later goes on in a sequence of its own, which is the same one each time
    for the n-th child after ``set_seed``. Processes that are not forked from each other, such as
    ranks, repeat each other's numbers if they are given the same seed.

    Args:
        seed: 0 to 2^63 - 1.

    Raises:
        TypeError: ``seed`` is no int.
        ValueError: ``seed`` is out of range.
    """
    state.set_seed(checks.integer("set_seed: seed", seed, 0, SEED_END - 1))


def _draw(where: str, shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    if not isinstance(dtype, torch.dtype):
        raise TypeError(f"{where}: dtype: is {checks.kind(dtype)}, must be a torch.dtype")
    if dtype not in _DTYPES:
        raise TypeError(f"{where}: dtype: is {dtype}, must be torch.float32 or torch.bfloat16")
    if device.type in ("cuda", "meta"):
        return torch.randn(shape, dtype=dtype, device=device)
    # A traced call decides between torch and the simulator when it runs, not when it is traced.
    if is_compiling():
        return _randn_op(shape, dtype=dtype, device=device)
    if device.type == "cpu" and active() is None:
        return torch.randn(shape, dtype=dtype, device=device)
    if torch_ops.is_intercepted():
        return _randn_op(shape, dtype=dtype, device=device)
    return _randn_kernel(shape, dtype=dtype, device=device)


def _randn_kernel(shape: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Run the kernel, or torch where a traced call turns out to be on a plain CPU."""
    if device.type != "npu" and active() is None:
        return torch.randn(shape, dtype=dtype, device=device)
    if device.type == "npu" and npu.is_capturing():
        raise RuntimeError(
            "randn: the current stream is being captured into a graph, must not be: each replay "
            "would repeat the numbers\n"
            "hint: draw before the graph runs, into a tensor that it reads"
        )
    out = torch.empty(shape, dtype=dtype, device=device)
    if out.numel():
        launch = bind("randn", out.device, dtype=_DTYPES[dtype])
        assert launch is not None  # only plain CPU tensors have none
        reserved = state.reserve(out.numel())
        launch(out.view(-1), reserved.seed, reserved.sequence, reserved.offset)
    return out


def _randn_fake(shape: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.empty(shape, dtype=dtype, device=device)


def _randn_in_vmap(shape: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
    raise RuntimeError(
        "randn: is inside torch.vmap, must not be: it would give every item the same numbers\n"
        "hint: draw all numbers outside and map over them"
    )


def _shape(size: tuple[Any, ...]) -> Sequence[int]:
    if len(size) == 1 and isinstance(size[0], (tuple, list)):
        size = tuple(size[0])
    return [
        # A symbolic size is torch's to check: a comparison here would pin it while tracing.
        value
        if isinstance(value, torch.SymInt)
        else checks.integer(f"randn: size[{i}]", value, 0, SEED_END - 1)
        for i, value in enumerate(size)
    ]


def _device(device: Any) -> torch.device:
    if device is None:
        found = torch.empty(0).device  # torch.get_default_device cannot be traced
    elif isinstance(device, torch.device):
        found = device
    elif isinstance(device, (str, int)) and not isinstance(device, bool):
        try:
            found = torch.device(device)
        except RuntimeError:
            raise ValueError(
                f"randn: device: is {device!r}, must be on cuda, npu, cpu or meta"
            ) from None
    else:
        raise TypeError(
            f"randn: device: is {checks.kind(device)}, must be a torch.device, str or int"
        )
    _check_device_type("randn: device", found)
    return found


def _check_device_type(where: str, device: torch.device) -> None:
    if device.type not in (*_TORCH_DEVICES, "npu"):
        raise ValueError(f"{where}: is on {device}, must be on cuda, npu, cpu or meta")


_randn_op = torch_ops.define(
    "randn(SymInt[] size, *, ScalarType dtype, Device device) -> Tensor",
    _randn_kernel,
    _randn_fake,
    in_vmap=_randn_in_vmap,
    is_random=True,
)
