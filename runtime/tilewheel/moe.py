"""Mixture-of-experts operators."""

from __future__ import annotations

from torch import Tensor, empty, float32, int64
from torch.autograd.graph import increment_version
from torch.compiler import is_compiling

from tilewheel import checks, torch_ops
from tilewheel.backend import active
from tilewheel.dispatch import bind, bound
from tilewheel.reference import moe as reference

__all__ = ["topk_gate"]

_MAX_EXPERTS = 1024
_MAX_TOPK = 32


def topk_gate(scores: Tensor, num_topk: int, *, out: Tensor | None = None) -> Tensor:
    """Return the indices of each token's ``num_topk`` largest scores, largest first.

    Of equal scores the smaller index comes first; -0.0 equals 0.0. A token with a score that is
    NaN or infinite gets -1 in all its places: nothing traps and nothing synchronises. The result
    is exact and deterministic, and a token's does not depend on the others in the batch. Not
    differentiable.

    Args:
        scores: [num_tokens, num_experts] float32, contiguous, on CUDA, NPU or CPU; num_experts is
            1 to 1024. It may require gradients. CUDA and NPU need its address aligned to 16 bytes
            or, if less, to the largest power of two that divides the bytes of a token.
        num_topk: how many indices for each token, 1 to min(num_experts, 32).
        out: where to write the result, [num_tokens, num_topk] int64, contiguous, on the device of
            ``scores`` and without memory in common with it; None allocates it.

    Returns:
        [num_tokens, num_topk] int64, contiguous, on the device of ``scores``; ``out`` if given.

    Raises:
        TypeError: an argument is of a wrong type or dtype.
        ValueError: an argument's shape, layout, device or value is not as above.
        NoArtifactError: no installed artifact fits the device and these values.
        ArtifactLoadError: the artifact that fits cannot be loaded.

    A CPU tensor goes to the reference, or to the backend selected with ``tilewheel.backend``.
    Launches on the current stream; can be captured in a CUDA graph once its artifact is loaded
    (``tilewheel.preload``).

    Source: DeepSeek-V3 Technical Report, arXiv 2412.19437, section 2.1.2.
    """
    if is_compiling():
        return _topk_gate_traced(scores, num_topk, out)
    try:
        # Only what the launcher cannot see (common memory, a pending negation), or what must not
        # depend on whether the artifact is loaded already; the launcher checks the rest.
        if (
            type(scores) is Tensor
            and type(num_topk) is int
            and scores.dtype is float32
            and scores.is_contiguous()
            and checks.are_plain(scores)
        ):
            num_tokens, num_experts = scores.shape
            device = scores.device
            launch = bound.get(("topk_gate", device, num_experts, num_topk, active()))
            if launch is not None and num_tokens:
                if out is None:
                    idx = empty((num_tokens, num_topk), dtype=int64, device=device)
                    launch(scores, idx)
                    return idx
                # A generic launcher takes num_topk from the shape.
                if checks.is_writable(out, scores) and out.shape == (num_tokens, num_topk):
                    launch(scores, out)
                    increment_version(out)
                    return out
    except Exception:
        # The explanation is worth its time only now.
        _check_topk_gate(scores, num_topk)
        if out is not None:
            _check_topk_gate_out(out, scores, num_topk)
        raise
    if torch_ops.is_traced(scores, out):
        return _topk_gate_traced(scores, num_topk, out)
    return _topk_gate_checked(scores, num_topk, out)


def _topk_gate_checked(scores: Tensor, num_topk: int, out: Tensor | None = None) -> Tensor:
    """Run ``topk_gate`` on real tensors, with every check made here."""
    num_topk = _check_topk_gate(scores, num_topk)
    if out is not None:
        _check_topk_gate_out(out, scores, num_topk)
    num_tokens, num_experts = scores.shape
    launch = bind("topk_gate", scores.device, num_experts=num_experts, num_topk=num_topk)
    if launch is None:
        idx = reference.topk_gate(scores.detach(), num_topk)
        return idx if out is None else out.copy_(idx)
    idx = empty((num_tokens, num_topk), dtype=int64, device=scores.device) if out is None else out
    if num_tokens:
        launch(scores, idx)
        if out is not None:
            increment_version(out)
    return idx


def _topk_gate_traced(scores: Tensor, num_topk: int, out: Tensor | None) -> Tensor:
    num_topk = _check_topk_gate(scores, num_topk)
    if out is None:
        return _topk_gate_op(scores, num_topk)
    _check_topk_gate_out(out, scores, num_topk)
    return out.copy_(_topk_gate_op(scores, num_topk))


def _topk_gate_fake(scores: Tensor, num_topk: int) -> Tensor:
    _check_topk_gate(scores, num_topk)
    return scores.new_empty((scores.shape[0], num_topk), dtype=int64)


def _check_topk_gate(scores: Tensor, num_topk: int) -> int:
    """Return ``num_topk`` as an int once both arguments are as ``topk_gate`` says."""
    checks.dense("topk_gate: scores", scores, (float32,), "call .float()")
    if scores.ndim != 2:
        raise ValueError(
            f"topk_gate: scores: shape is {tuple(scores.shape)}, must be [num_tokens, num_experts]"
        )
    num_experts = scores.shape[1]
    if not 1 <= num_experts <= _MAX_EXPERTS:
        raise ValueError(
            f"topk_gate: scores: num_experts is {num_experts}, must be 1 to {_MAX_EXPERTS}"
        )
    checks.contiguous("topk_gate: scores", scores)
    number = checks.integer("topk_gate: num_topk", num_topk, 1, _MAX_TOPK)
    if number > num_experts:
        raise ValueError(
            f"topk_gate: num_topk: is {number}, must be at most num_experts ({num_experts})"
        )
    return number


def _check_topk_gate_out(out: Tensor, scores: Tensor, num_topk: int) -> None:
    shape = (scores.shape[0], num_topk)
    checks.output("topk_gate: out", out, like=scores, name="scores", shape=shape, of=int64)


_topk_gate_op = torch_ops.define(
    "topk_gate(Tensor scores, int num_topk) -> Tensor", _topk_gate_checked, _topk_gate_fake
)
