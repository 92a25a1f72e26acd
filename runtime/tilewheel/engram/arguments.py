"""Checks of the arguments that the Engram operators have in common."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, bfloat16, float32

from tilewheel import checks
from tilewheel.reference.engram import STREAMS

_LEAST = 1.1754943508222875e-38  # the smallest normal float32
_MAX = 3.4028234663852886e38
_HIDDEN_MULTIPLE = 64
_MAX_HIDDEN = 16384


def streams(where: str, x: Tensor, rows: int = STREAMS) -> int:
    """Return hidden once ``x`` is a contiguous bfloat16 [num_tokens, rows, hidden]."""
    checks.dense(where, x, (bfloat16,))
    if x.ndim != 3 or x.shape[1] != rows:
        raise ValueError(
            f"{where}: shape is {tuple(x.shape)}, must be [num_tokens, {rows}, hidden]"
        )
    hidden: int = x.shape[2]
    if hidden % _HIDDEN_MULTIPLE or not _HIDDEN_MULTIPLE <= hidden <= _MAX_HIDDEN:
        raise ValueError(
            f"{where}: hidden is {hidden}, must be a multiple of {_HIDDEN_MULTIPLE} up to "
            f"{_MAX_HIDDEN}"
        )
    checks.contiguous(where, x)
    return hidden


def weight(where: str, x: Tensor, dtype: torch.dtype) -> int:
    """Return hidden once ``x`` is a contiguous [4, hidden]."""
    checks.dense(where, x, (dtype,))
    if x.ndim != 2 or x.shape[0] != STREAMS:
        raise ValueError(f"{where}: shape is {tuple(x.shape)}, must be [{STREAMS}, hidden]")
    hidden: int = x.shape[1]
    if hidden % _HIDDEN_MULTIPLE or not _HIDDEN_MULTIPLE <= hidden <= _MAX_HIDDEN:
        raise ValueError(
            f"{where}: hidden is {hidden}, must be a multiple of {_HIDDEN_MULTIPLE} up to "
            f"{_MAX_HIDDEN}"
        )
    checks.contiguous(where, x)
    return hidden


def like(where: str, x: Tensor, shape: tuple[Any, ...], dtype: torch.dtype, first: Tensor) -> None:
    """Refuse what is no contiguous tensor of this shape and dtype on the device of ``first``."""
    checks.dense(where, x, (dtype,))
    if tuple(x.shape) != shape:
        raise ValueError(f"{where}: shape is {tuple(x.shape)}, must be {shape}")
    same_device(where, x, first)
    checks.contiguous(where, x)


def same_device(where: str, x: Tensor, first: Tensor) -> None:
    """Refuse a tensor that is elsewhere than ``first``."""
    if x.device != first.device:
        raise ValueError(f"{where}: is on {x.device}, must be on {first.device} like the others")


def apart(where: str, x: Tensor, *others: tuple[str, Tensor | None]) -> None:
    """Refuse a tensor that is written and shares memory with one of the named others."""
    for name, other in others:
        if other is not None:
            checks.separate(where, x, name, other)


def gate_inputs(
    operator: str, x: Tensor, kv: Tensor, weight_fused: Tensor, mask: Tensor | None
) -> None:
    """Check what forward and backward of the gate have in common."""
    hidden = streams(f"{operator}: x", x)
    shape = (x.shape[0], STREAMS + 1, hidden)
    like(f"{operator}: kv", kv, shape, bfloat16, x)
    like(f"{operator}: weight_fused", weight_fused, (STREAMS, hidden), float32, x)
    if mask is not None:
        like(f"{operator}: image_token_mask", mask, (x.shape[0],), torch.bool, x)


def positive(where: str, value: Any) -> float:
    """Return ``value`` as a float once it is a positive, normal float32."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{where}: is {checks.kind(value)}, must be a float")
    number = float(value)
    if not _LEAST <= number <= _MAX:  # so a NaN and an infinity fail as well
        raise ValueError(f"{where}: is {value}, must be a positive normal float32")
    return number


def flag(where: str, value: Any) -> None:
    """Refuse what is no bool."""
    if not isinstance(value, bool):
        raise TypeError(f"{where}: is {checks.kind(value)}, must be a bool")
