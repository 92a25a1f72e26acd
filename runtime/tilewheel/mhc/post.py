"""``post_fwd``: the new residual streams of hyper-connections."""

from __future__ import annotations

import torch
from torch import Tensor, bfloat16, empty, float32
from torch.autograd.graph import increment_version
from torch.compiler import is_compiling

from tilewheel import checks, torch_ops
from tilewheel.backend import active
from tilewheel.dispatch import bind, bound
from tilewheel.mhc.streams import NUM_STREAMS, check_like, check_out, check_residual, is_same
from tilewheel.reference import mhc as reference


def post_fwd(
    x: Tensor,
    residual: Tensor,
    post_mix: Tensor,
    comb_mix: Tensor,
    *,
    out: Tensor | None = None,
) -> Tensor:
    """Return the new residual streams from the layer's output and the old streams.

    ``new[o] = post_mix[o] * x + sum over streams m of comb_mix[m, o] * residual[m]`` in float32,
    rounded once: within one step of bfloat16 of the reference, counted at the largest product that
    is summed. Deterministic; a token's result does not depend on the batch. Not differentiable.

    Args:
        x: [num_tokens, hidden] bfloat16, the layer's output.
        residual: [num_tokens, 4, hidden] bfloat16; hidden is a multiple of 64 up to 65536.
        post_mix: [num_tokens, 4] float32.
        comb_mix: [num_tokens, 4, 4] float32, the source stream first.
        out: where to write, as ``residual``; may be ``residual`` itself, which is then updated in
            place, and may otherwise have no memory in common with an input. None allocates it.

    All are contiguous and on one device; CUDA and NPU need addresses aligned to 16 bytes.

    Returns:
        [num_tokens, 4, hidden] bfloat16, contiguous; ``out`` if given.

    Raises:
        TypeError: an argument is of a wrong type or dtype.
        ValueError: an argument's shape, layout, device or value is not as above.
        NoArtifactError: no installed artifact fits the device and these values.
        ArtifactLoadError: the artifact that fits cannot be loaded.

    CPU tensors go to the reference, or to the backend selected with ``tilewheel.backend``. Launches
    on the current stream; can be captured in a CUDA graph once its artifact is loaded
    (``tilewheel.preload``).

    Source: mHC: Manifold-Constrained Hyper-Connections, arXiv 2512.24880, section 4.
    """
    if is_compiling():
        return _post_traced(x, residual, post_mix, comb_mix, out)
    try:
        # Only what the launcher cannot see; it checks the rest.
        if checks.are_plain(x, residual, post_mix, comb_mix):
            num_tokens, _, hidden = residual.shape
            device = residual.device
            launch = bound.get(("mhc_post_fwd", device, hidden, active()))
            if launch is not None and num_tokens:
                if out is None:
                    new = empty(residual.shape, dtype=bfloat16, device=device)
                    launch(x, residual, post_mix, comb_mix, new)
                    return new
                if checks.is_writable(out, residual, x, post_mix, comb_mix) or (
                    checks.is_writable(out, x, post_mix, comb_mix) and is_same(out, residual)
                ):
                    launch(x, residual, post_mix, comb_mix, out)
                    increment_version(out)
                    return out
    except Exception:
        # The explanation is worth its time only now.
        _check_post(x, residual, post_mix, comb_mix, out)
        raise
    if torch_ops.is_traced(x, residual, post_mix, comb_mix, out):
        return _post_traced(x, residual, post_mix, comb_mix, out)
    return _post_checked(x, residual, post_mix, comb_mix, out)


def _post_checked(
    x: Tensor,
    residual: Tensor,
    post_mix: Tensor,
    comb_mix: Tensor,
    out: Tensor | None = None,
) -> Tensor:
    """Run ``post_fwd`` on real tensors, with every check made here."""
    _check_post(x, residual, post_mix, comb_mix, out)
    launch = bind("mhc_post_fwd", residual.device, hidden=residual.shape[2])
    if launch is None:
        with torch.no_grad():
            new = reference.post_fwd(x, residual, post_mix, comb_mix)
            return new if out is None else out.copy_(new)
    new = empty(residual.shape, dtype=bfloat16, device=residual.device) if out is None else out
    if residual.shape[0]:
        launch(x, residual, post_mix, comb_mix, new)
        if out is not None:
            increment_version(out)
    return new


def _post_traced(
    x: Tensor, residual: Tensor, post_mix: Tensor, comb_mix: Tensor, out: Tensor | None
) -> Tensor:
    _check_post(x, residual, post_mix, comb_mix, out)
    new: Tensor = _post_op(x, residual, post_mix, comb_mix)
    return new if out is None else out.copy_(new)


def _post_fake(x: Tensor, residual: Tensor, post_mix: Tensor, comb_mix: Tensor) -> Tensor:
    _check_post(x, residual, post_mix, comb_mix, None)
    return residual.new_empty(residual.shape)


def _check_post(
    x: Tensor, residual: Tensor, post_mix: Tensor, comb_mix: Tensor, out: Tensor | None
) -> None:
    where = "mhc.post_fwd"
    num_tokens, hidden = check_residual(where, residual)
    for name, tensor, shape, of in (
        ("x", x, (num_tokens, hidden), bfloat16),
        ("post_mix", post_mix, (num_tokens, NUM_STREAMS), float32),
        ("comb_mix", comb_mix, (num_tokens, NUM_STREAMS, NUM_STREAMS), float32),
    ):
        check_like(where, name, tensor, shape, residual, of)
    if out is not None:
        inputs = (("x", x), ("post_mix", post_mix), ("comb_mix", comb_mix))
        check_out(where, out, residual, tuple(residual.shape), inputs, is_replaceable=True)


_post_op = torch_ops.define(
    "mhc_post_fwd(Tensor x, Tensor residual, Tensor post_mix, Tensor comb_mix) -> Tensor",
    _post_checked,
    _post_fake,
)
