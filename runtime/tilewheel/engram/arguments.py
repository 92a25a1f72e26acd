"""Checks of the arguments that the Engram operators have in common."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, bfloat16, float32

from tilewheel import checks
from tilewheel.reference.engram import STREAMS

_MAX_HIDDEN = 16384
_LEAST = 1.1754943508222875e-38  # the smallest normal float32


def like(where: str, x: Tensor, shape: tuple[int, ...], dtype: torch.dtype, first: Tensor) -> None:
    """Refuse what is no contiguous tensor of this shape and dtype on the device of ``first``."""
    checks.shaped(where, x, like=first, name="the others", shape=shape, of=dtype)
    checks.contiguous(where, x)


def weight(where: str, x: Tensor) -> int:
    """Return hidden once ``x`` is a contiguous bfloat16 [4, hidden]."""
    checks.dense(where, x, (bfloat16,))
    if x.ndim != 2 or x.shape[0] != STREAMS:
        raise ValueError(f"{where}: shape is {tuple(x.shape)}, must be [{STREAMS}, hidden]")
    hidden: int = x.shape[1]
    checks.hidden(where, hidden, _MAX_HIDDEN)
    checks.contiguous(where, x)
    return hidden


def apart(where: str, x: Tensor, *others: tuple[str, Tensor | None]) -> None:
    """Refuse a tensor that is written and shares memory with one of the named others."""
    for name, other in others:
        if other is not None:
            checks.separate(where, x, name, other)


def gate_inputs(
    operator: str, x: Tensor, kv: Tensor, weight_fused: Tensor, mask: Tensor | None
) -> None:
    """Check what forward and backward of the gate have in common."""
    hidden = checks.streams(f"{operator}: x", x, STREAMS, _MAX_HIDDEN)
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
    if not _LEAST <= number <= checks.FLOAT32_MAX:  # so a NaN and an infinity fail as well
        raise ValueError(f"{where}: is {value}, must be a positive normal float32")
    return number
