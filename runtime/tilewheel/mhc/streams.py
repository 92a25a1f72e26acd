"""The checks that the hyper-connection operators share."""

from __future__ import annotations

from torch import Tensor, bfloat16, dtype, float32

from tilewheel import checks, torch_ops

NUM_STREAMS = 4
_MAX_HIDDEN = 65536


def is_same(out: Tensor, replaced: Tensor) -> bool:
    """Return whether ``out`` is exactly the memory of ``replaced``."""
    return bool(out.data_ptr() == replaced.data_ptr() and out.shape == replaced.shape)


def check_residual(where: str, residual: Tensor) -> tuple[int, int]:
    """Return num_tokens and hidden."""
    hidden = checks.streams(f"{where}: residual", residual, NUM_STREAMS, _MAX_HIDDEN)
    return residual.shape[0], hidden


def check_like(
    where: str,
    name: str,
    tensor: Tensor,
    shape: tuple[int, ...],
    residual: Tensor,
    of: dtype = float32,
) -> None:
    checks.shaped(f"{where}: {name}", tensor, like=residual, name="residual", shape=shape, of=of)
    checks.contiguous(f"{where}: {name}", tensor)


def check_out(
    where: str,
    out: Tensor,
    residual: Tensor,
    shape: tuple[int, ...],
    inputs: tuple[tuple[str, Tensor | None], ...],
    *,
    is_replaceable: bool = False,
) -> None:
    is_traced = torch_ops.is_traced(residual, out)
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
