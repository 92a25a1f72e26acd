"""The checks that the hyper-connection operators share."""

from __future__ import annotations

import torch
from torch import Tensor, bfloat16, float32

from tilewheel import checks, torch_ops

NUM_STREAMS = 4
_MAX_HIDDEN = 65536


def is_same(out: Tensor, replaced: Tensor) -> bool:
    """Return whether ``out`` is exactly the memory of ``replaced``."""
    return bool(out.data_ptr() == replaced.data_ptr() and out.shape == replaced.shape)


def check_residual(where: str, residual: Tensor) -> tuple[int, int]:
    """Return num_tokens and hidden."""
    checks.dense(f"{where}: residual", residual, (bfloat16,))
    if residual.ndim != 3 or residual.shape[1] != NUM_STREAMS:
        raise ValueError(
            f"{where}: residual: shape is {tuple(residual.shape)}, must be "
            f"[num_tokens, {NUM_STREAMS}, hidden]"
        )
    num_tokens, _, hidden = residual.shape
    if hidden % 64 or not 64 <= hidden <= _MAX_HIDDEN:
        raise ValueError(
            f"{where}: residual: hidden is {hidden}, must be a multiple of 64 up to {_MAX_HIDDEN}"
        )
    checks.contiguous(f"{where}: residual", residual)
    return num_tokens, hidden


def check_like(
    where: str,
    name: str,
    tensor: Tensor,
    shape: tuple[int, ...],
    residual: Tensor,
    of: torch.dtype = float32,
) -> None:
    checks.dense(f"{where}: {name}", tensor, (of,))
    if tuple(tensor.shape) != shape:
        raise ValueError(f"{where}: {name}: shape is {tuple(tensor.shape)}, must be {shape}")
    check_device(where, name, tensor, residual)


def check_device(where: str, name: str, tensor: Tensor, residual: Tensor) -> None:
    if tensor.device != residual.device:
        raise ValueError(
            f"{where}: {name}: is on {tensor.device}, must be on {residual.device} like residual"
        )


def check_out(
    where: str,
    out: Tensor,
    residual: Tensor,
    shape: tuple[int, ...],
    inputs: tuple[tuple[str, Tensor | None], ...],
    *,
    is_replaceable: bool = False,
) -> None:
    is_traced = torch_ops.is_traced(residual)
    if is_replaceable and isinstance(out, Tensor) and not is_traced and is_same(out, residual):
        # What checks.output would refuse as shared memory; the rest of it holds for residual.
        checks.dense(f"{where}: out", out, (bfloat16,))
        checks.contiguous(f"{where}: out", out, hint="")
        if out.requires_grad:
            raise ValueError(f"{where}: out: requires gradients, must not\nhint: call .detach()")
    else:
        checks.output(
            f"{where}: out", out, like=residual, name="residual", shape=shape, of=bfloat16
        )
    for name, tensor in inputs:
        if tensor is not None:
            checks.separate(f"{where}: out", out, name, tensor)
