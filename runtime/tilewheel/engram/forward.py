"""The Engram gate, forward."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor, bfloat16, empty, float32
from torch.autograd.graph import increment_version
from torch.compiler import is_compiling

from tilewheel import checks, torch_ops
from tilewheel.backend import active
from tilewheel.dispatch import bind, bound
from tilewheel.engram import arguments
from tilewheel.reference import engram as reference
from tilewheel.reference.engram import STREAMS

_Results = tuple[Tensor, Tensor | None, Tensor | None, Tensor | None, Tensor | None]


class _Call(NamedTuple):
    """The arguments of ``engram_gate_fwd``, in the order of its operators of torch."""

    x: Tensor
    kv: Tensor
    weight_fused: Tensor
    mask: Tensor | None
    eps: float
    clamp_value: float
    save_for_backward: bool = False
    inplace: bool = False


def fused_weight(
    weight_hidden: Tensor, weight_embed: Tensor, *, out: Tensor | None = None
) -> Tensor:
    """Return the product of the two norm weights, which is all that the gate needs of them.

    Exact, short of overflow and of subnormal products; deterministic. Not differentiable:
    ``grad_w_reduce`` is its gradient.

    Args:
        weight_hidden: [4, hidden] bfloat16, contiguous, RMS norm weight of the streams, on CUDA,
            NPU or CPU; hidden is a multiple of 64 up to 16384. CUDA and NPU need the addresses of
            all tensors aligned to 16 bytes.
        weight_embed: the same for the keys.
        out: where to write the result, [4, hidden] float32, contiguous; None allocates it.

    Returns:
        [4, hidden] float32, contiguous; ``out`` if given.

    Raises:
        TypeError: an argument is of a wrong type or dtype.
        ValueError: an argument's shape, layout, device or value is not as above.
        NoArtifactError: no installed artifact fits the device and these values.
        ArtifactLoadError: the artifact that fits cannot be loaded.

    A CPU tensor goes to the reference, or to the backend selected with ``tilewheel.backend``.
    Launches on the current stream; can be captured in a CUDA graph once its artifact is loaded
    (``tilewheel.preload``).
    """
    if not is_compiling():
        product = _fast_fused_weight(weight_hidden, weight_embed, out)
        if product is not None:
            return product
    hidden = arguments.weight("fused_weight: weight_hidden", weight_hidden)
    shape = (STREAMS, hidden)
    arguments.like("fused_weight: weight_embed", weight_embed, shape, bfloat16, weight_hidden)
    if out is not None:
        checks.output(
            "fused_weight: out",
            out,
            like=weight_hidden,
            name="weight_hidden",
            shape=shape,
            of=float32,
        )
        arguments.apart("fused_weight: out", out, ("weight_embed", weight_embed))
    if is_compiling() or torch_ops.is_traced(weight_hidden, weight_embed, out):
        result: Tensor = _fused_weight_op(weight_hidden, weight_embed)
        return result if out is None else out.copy_(result)
    return _fused_weight(weight_hidden, weight_embed, out)


def _fast_fused_weight(
    weight_hidden: Tensor, weight_embed: Tensor, out: Tensor | None
) -> Tensor | None:
    """Launch what is loaded already; None leaves the call to the checks that explain."""
    try:
        launch = bound.get(("fused_weight", weight_hidden.device, weight_hidden.shape[1], active()))
    except (AttributeError, IndexError):  # no matrix
        return None
    if launch is None or not checks.are_plain(weight_hidden, weight_embed):
        return None
    if out is None:
        product = empty(weight_hidden.shape, dtype=float32, device=weight_hidden.device)
    elif checks.is_writable(out, weight_hidden, weight_embed):
        product = out
    else:
        return None
    if not checks.launched(launch, weight_hidden, weight_embed, product):
        return None
    if out is not None:
        increment_version(out)
    return product


def _fused_weight(weight_hidden: Tensor, weight_embed: Tensor, out: Tensor | None = None) -> Tensor:
    launch = bind("fused_weight", weight_hidden.device, hidden=weight_hidden.shape[1])
    if launch is None:
        product = reference.fused_weight(weight_hidden.detach(), weight_embed.detach())
        return product if out is None else out.copy_(product)
    if out is None:
        out = empty(weight_hidden.shape, dtype=float32, device=weight_hidden.device)
    launch(weight_hidden, weight_embed, out)
    increment_version(out)
    return out


def _fused_weight_fake(weight_hidden: Tensor, weight_embed: Tensor) -> Tensor:
    return weight_hidden.new_empty(weight_hidden.shape, dtype=float32)


def engram_gate_fwd(
    x: Tensor,
    kv: Tensor,
    weight_fused: Tensor,
    eps: float,
    clamp_value: float,
    save_for_backward: bool = True,
    image_token_mask: Tensor | None = None,
    inplace: bool = False,
) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None, Tensor | None]:
    """Add the gated value of each token's embedding to its four residual streams.

    For each token and stream, with key k and value v from ``kv``::

        rstd_x = 1 / sqrt(mean(x^2) + eps), rstd_k = 1 / sqrt(mean(k^2) + eps)
        dot = sum(x * weight_fused * k)
        z = dot * rstd_x * rstd_k / sqrt(hidden)
        gate = sigmoid(copysign(sqrt(max(abs(z), clamp_value)), z))
        out = x + gate * v

    Sums are float32, in a fixed order; out is rounded once to bfloat16, to nearest even. A dot of
    zero counts as positive; a NaN in z makes the stream's result NaN. Deterministic; a token's
    result does not depend on the others in the batch, nor on what is saved or written in place.
    Not differentiable: ``tilewheel.modeling.EngramGate`` is.

    Args:
        x: [num_tokens, 4, hidden] bfloat16, contiguous, on CUDA, NPU or CPU; written if
            ``inplace``. hidden is a multiple of 64 up to 16384. CUDA and NPU need the addresses of
            all tensors aligned to 16 bytes.
        kv: [num_tokens, 5, hidden] bfloat16, contiguous: the keys of the four streams, and the
            value that they share.
        weight_fused: [4, hidden] float32, contiguous, as from ``fused_weight``.
        eps: added to the mean squares, a positive float32.
        clamp_value: least magnitude under the root, a positive float32.
        save_for_backward: whether to return the numbers that ``engram_gate_bwd`` needs.
        image_token_mask: [num_tokens] bool, contiguous: tokens that pass through unchanged; their
            four numbers are 0 and their kv does not count. None for no mask.
        inplace: whether to write the result to ``x``; excludes ``save_for_backward``.

    Returns:
        (out, dot, gate, rstd_x, rstd_k): out as ``x``, and ``x`` itself if ``inplace``; the others
        [num_tokens, 4] float32, or None without ``save_for_backward``.

    Raises:
        TypeError: an argument is of a wrong type or dtype.
        ValueError: an argument's shape, layout, device or value is not as above.
        NoArtifactError: no installed artifact fits the device and these values.
        ArtifactLoadError: the artifact that fits cannot be loaded.

    A CPU tensor goes to the reference, or to the backend selected with ``tilewheel.backend``.
    Launches on the current stream; can be captured in a CUDA graph once its artifact is loaded
    (``tilewheel.preload``).

    Source: Conditional Memory via Scalable Lookup (Engram), arXiv 2601.07372, section 2.3.
    """
    given = (x, kv, weight_fused, image_token_mask, eps, clamp_value, save_for_backward, inplace)
    if is_compiling():
        return _traced(_Call(*given))
    try:
        # The launcher checks tensors and numbers itself; what it cannot see goes the longer way.
        if (
            checks.are_plain(x, kv, weight_fused, image_token_mask)
            and type(save_for_backward) is bool
            and inplace is False
            and type(eps) is type(clamp_value) is float
        ):
            launch = bound.get(("engram_gate_fwd", x.device, x.shape[2], active()))
            if launch is not None and x.shape[0]:
                return _launch(launch, *given)
    except Exception:
        # The explanation is worth its time only now.
        _check(_Call(*given))
        raise
    call = _Call(*given)
    if torch_ops.is_traced(x, kv, weight_fused, image_token_mask):
        return _traced(call)
    _check(call)
    return _run(call)


def _launch(
    launch: Any,
    x: Tensor,
    kv: Tensor,
    weight_fused: Tensor,
    mask: Tensor | None,
    eps: float,
    clamp_value: float,
    save_for_backward: bool,
    inplace: bool,
    *,
    own_memory: bool = False,
) -> _Results:
    """Launch on plain tensors; with ``own_memory`` the saved numbers share none with each other."""
    device = x.device
    out = x if inplace else empty(x.shape, dtype=bfloat16, device=device)
    no_mask, none = _absent(device)
    if mask is None:
        mask = no_mask
    elif mask.shape[0] != x.shape[0]:
        raise ValueError("engram_gate_fwd: image_token_mask: has another length than x")
    if not save_for_backward:
        launch(x, kv, weight_fused, mask, out, none, none, none, none, eps, clamp_value)
        return out, None, None, None, None
    shape = (x.shape[0], STREAMS)
    if own_memory:
        dot, gate, rstd_x, rstd_k = (empty(shape, dtype=float32, device=device) for _ in range(4))
    else:
        # One allocation: on a GPU each takes as long as the launch.
        dot, gate, rstd_x, rstd_k = empty((4, *shape), dtype=float32, device=device).unbind()
    launch(x, kv, weight_fused, mask, out, dot, gate, rstd_x, rstd_k, eps, clamp_value)
    return out, dot, gate, rstd_x, rstd_k


@cache
def _absent(device: Any) -> tuple[Tensor, Tensor]:
    """Return a mask and saved numbers without elements: they have no memory to go stale."""
    mask = empty(0, dtype=torch.bool, device=device)
    return mask, empty((0, STREAMS), dtype=float32, device=device)


def absent_mask(device: Any) -> Tensor:
    """Return what stands for no mask in a launch."""
    return _absent(device)[0]


def _run(call: _Call, *, own_memory: bool = False) -> _Results:
    """Run ``engram_gate_fwd`` on real tensors that are checked."""
    x, kv, weight_fused, mask, eps, clamp_value, save_for_backward, inplace = call
    launch = bind("engram_gate_fwd", x.device, hidden=x.shape[2])
    if launch is None or not x.shape[0]:
        with torch.no_grad():
            out, *saved = reference.engram_gate_fwd(
                x, kv, weight_fused, eps, clamp_value, image_token_mask=mask
            )
        if inplace:
            out = x.copy_(out)
        if not save_for_backward:
            return out, None, None, None, None
        return out, saved[0], saved[1], saved[2], saved[3]
    numbers = (float(eps), float(clamp_value))
    values = (x, kv, weight_fused, mask, *numbers, save_for_backward, inplace)
    result = _launch(launch, *values, own_memory=own_memory)
    if inplace:
        # What an operator of torch does when it writes: autograd notices if it had saved x.
        increment_version(x)
    return result


def _traced(call: _Call) -> _Results:
    _check(call)
    if call.inplace:
        _inplace_op(*call[:6])
        return call.x, None, None, None, None
    out, dot, gate, rstd_x, rstd_k = _fwd_op(*call[:7])
    if not call.save_for_backward:
        return out, None, None, None, None
    return out, dot, gate, rstd_x, rstd_k


def _run_op(*values: Any) -> tuple[Tensor, ...]:
    call = _Call(*values)
    # Results of an operator of torch may not be views of one memory.
    out, *saved = _run(call, own_memory=True)
    if call.save_for_backward:
        return (out, *(each for each in saved if each is not None))
    return (out, *(empty((0, STREAMS), dtype=float32, device=out.device) for _ in range(4)))


def _fake_op(*values: Any) -> tuple[Tensor, ...]:
    call = _Call(*values)
    _check(call)
    x = call.x
    shape = (x.shape[0] if call.save_for_backward else 0, STREAMS)
    return (x.new_empty(x.shape), *(x.new_empty(shape, dtype=float32) for _ in range(4)))


def _run_inplace_op(*values: Any) -> None:
    _run(_Call(*values)._replace(inplace=True))


def _fake_inplace_op(*values: Any) -> None:
    _check(_Call(*values)._replace(inplace=True))


def _check(call: _Call) -> None:
    """Refuse arguments that are not as ``engram_gate_fwd`` says."""
    x, kv, weight_fused, mask, eps, clamp_value, save_for_backward, inplace = call
    arguments.gate_inputs("engram_gate_fwd", x, kv, weight_fused, mask)
    arguments.positive("engram_gate_fwd: eps", eps)
    arguments.positive("engram_gate_fwd: clamp_value", clamp_value)
    checks.flag("engram_gate_fwd: save_for_backward", save_for_backward)
    checks.flag("engram_gate_fwd: inplace", inplace)
    if not inplace:
        return
    if save_for_backward:
        raise ValueError(
            "engram_gate_fwd: inplace: is True, must be False with save_for_backward: the backward "
            "pass needs x"
        )
    if x.requires_grad and torch.is_grad_enabled():
        raise ValueError(
            "engram_gate_fwd: x: requires gradients, must not: it is written in place\n"
            "hint: use torch.no_grad(), or tilewheel.modeling.EngramGate"
        )
    others = (("kv", kv), ("weight_fused", weight_fused), ("image_token_mask", mask))
    arguments.apart("engram_gate_fwd: x", x, *others)


_fused_weight_op = torch_ops.define(
    "fused_weight(Tensor weight_hidden, Tensor weight_embed) -> Tensor",
    _fused_weight,
    _fused_weight_fake,
)
_fwd_op = torch_ops.define(
    "engram_gate_fwd(Tensor x, Tensor kv, Tensor weight_fused, Tensor? image_token_mask, "
    "float eps, float clamp_value, bool save_for_backward) "
    "-> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    _run_op,
    _fake_op,
)
_inplace_op = torch_ops.define(
    "engram_gate_fwd_(Tensor(a!) x, Tensor kv, Tensor weight_fused, Tensor? image_token_mask, "
    "float eps, float clamp_value) -> ()",
    _run_inplace_op,
    _fake_inplace_op,
)
