"""The gradients of the Engram gate."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor, bfloat16, empty, float32
from torch.autograd.graph import increment_version
from torch.compiler import is_compiling, is_dynamo_compiling

from tilewheel import checks, torch_ops
from tilewheel.backend import active
from tilewheel.device import resolve
from tilewheel.dispatch import bind, bound
from tilewheel.engram import arguments
from tilewheel.engram.forward import absent_mask
from tilewheel.reference import engram as reference
from tilewheel.reference.engram import STREAMS

_SAVED = ("dot", "gate", "rstd_x", "rstd_k")
_MAX_PARTS = 65536
# Of the CUDA kernels that copy through shared memory, by hidden: blocks on a multiprocessor, and
# from how many tokens a block on a part for each block is faster than for each four, as measured.
# The kernel for any other hidden has two blocks, each with one stream of a part.
_RINGS = {2048: (2, 16), 2560: (2, 8), 4096: (1, 32), 5120: (1, 8), 7168: (1, 2)}


def engram_gate_bwd(
    grad_out: Tensor,
    x: Tensor,
    kv: Tensor,
    weight_fused: Tensor,
    dot: Tensor,
    gate: Tensor,
    rstd_x: Tensor,
    rstd_k: Tensor,
    clamp_value: float,
    image_token_mask: Tensor | None = None,
    *,
    num_parts: int | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of ``engram_gate_fwd``, those of the weight as partial sums.

    For each token and stream, with g = grad_out, s = 1 / sqrt(hidden) and z as in the forward
    pass::

        grad_z = sum(g * v) * gate * (1 - gate) / (2 * sqrt(abs(z))), 0 where abs(z) < clamp_value
        a = grad_z * s * rstd_x * rstd_k
        grad_x = g + a * weight_fused * k - (a * dot * rstd_x^2 / hidden) * x
        grad_k = a * weight_fused * x - (a * dot * rstd_k^2 / hidden) * k
        grad_v = sum over the streams of gate * g

    Sums are float32, in a fixed order; grad_x and grad_kv are rounded once to bfloat16, to nearest
    even, and a token's do not depend on the others in the batch, nor on ``num_parts``. The partial
    sums do; for equal shapes, devices and ``num_parts`` all results are the same bits. Not
    differentiable.

    Args:
        grad_out: [num_tokens, 4, hidden] bfloat16, contiguous, on the device of ``x``: the gradient
            of out. CUDA and NPU need the addresses of all tensors aligned to 16 bytes.
        x: as in ``engram_gate_fwd``, unchanged since.
        kv: as in ``engram_gate_fwd``, unchanged since.
        weight_fused: as in ``engram_gate_fwd``, unchanged since.
        dot: [num_tokens, 4] float32, contiguous, as ``engram_gate_fwd`` returned it.
        gate: as ``dot``.
        rstd_x: as ``dot``.
        rstd_k: as ``dot``.
        clamp_value: as in ``engram_gate_fwd``, a positive float32.
        image_token_mask: as in ``engram_gate_fwd``: a masked token's grad_x is its grad_out, its
            grad_kv is 0, and it does not count in grad_w_partial, whatever its other values are.
        num_parts: how many partial sums, 1 to 65536. Each is one block on CUDA, or four if that
            many fit at once; None chooses what fills the device, and not more than num_tokens.

    Returns:
        (grad_x, grad_kv, grad_w_partial): as ``x``; as ``kv``; [num_parts, 4, hidden] float32,
        which ``grad_w_reduce`` sums.

    Raises:
        TypeError: an argument is of a wrong type or dtype.
        ValueError: an argument's shape, layout, device or value is not as above.
        NoArtifactError: no installed artifact fits the device and these values.
        ArtifactLoadError: the artifact that fits cannot be loaded.

    A CPU tensor goes to the reference, or to the backend selected with ``tilewheel.backend``.
    Launches on the current stream; can be captured in a CUDA graph once its artifact is loaded
    (``tilewheel.preload``).

    Source: the derivative of equation 4 of Engram, arXiv 2601.07372, section 2.3.
    """
    tensors = (grad_out, x, kv, weight_fused, dot, gate, rstd_x, rstd_k)
    if is_compiling():
        # The operator's fake checks; Dynamo bans parts of the checks inside a backward pass.
        return _call_op(tensors, clamp_value, image_token_mask, num_parts)
    try:
        # The launcher checks tensors and numbers itself; what it cannot see goes the longer way.
        is_plain = checks.are_plain(*tensors, image_token_mask)
        if is_plain and type(clamp_value) is float and num_parts is None:
            num_tokens, _, hidden = x.shape
            launch = bound.get(("engram_gate_bwd", x.device, hidden, active()))
            if launch is not None and num_tokens:
                few, many, least = _known_part_counts(x.device, hidden, active())
                num_parts = min(num_tokens, many if num_tokens >= least else few)
                return _launch(launch, tensors, clamp_value, image_token_mask, num_parts)
    except Exception:
        # The explanation is worth its time only now.
        _check(tensors, clamp_value, image_token_mask)
        raise
    _check(tensors, clamp_value, image_token_mask)
    if torch_ops.is_traced(*tensors, image_token_mask):
        return _call_op(tensors, clamp_value, image_token_mask, num_parts)
    return _run(tensors, clamp_value, image_token_mask, _parts(x, num_parts))


def _launch(
    launch: Any,
    tensors: tuple[Tensor, ...],
    clamp_value: float,
    mask: Tensor | None,
    num_parts: int,
) -> tuple[Tensor, Tensor, Tensor]:
    x, kv, weight_fused = tensors[1:4]
    device = x.device
    if mask is None:
        mask = absent_mask(device)
    elif mask.shape[0] != x.shape[0]:
        raise ValueError("engram_gate_bwd: image_token_mask: has another length than x")
    grad_x = empty(x.shape, dtype=bfloat16, device=device)
    grad_kv = empty(kv.shape, dtype=bfloat16, device=device)
    partial = empty((num_parts, *weight_fused.shape), dtype=float32, device=device)
    launch(*tensors, mask, grad_x, grad_kv, partial, clamp_value)
    return grad_x, grad_kv, partial


@cache
def _num_cores(device: Any, selected: str | None) -> int:
    """Return how many cores share the work on a torch device."""
    if device.type == "cuda":
        return resolve(device).property("num_sms") or 1
    if device.type == "npu":
        return resolve(device).property("num_vec_cores") or 1
    if device.type == "cpu" and selected is not None:
        return resolve(selected).property("num_vec_cores") or 1
    return 1


def _part_counts(device: Any, hidden: int, num_cores: int) -> tuple[int, int, int]:
    """Return the parts for few tokens, those for many, and how many tokens are many."""
    if device.type != "cuda":
        return num_cores, num_cores, 1
    per_core, least_tokens = _RINGS.get(hidden, (2, 0))
    blocks = num_cores * per_core
    few = max(1, blocks // STREAMS)
    return (few, blocks, blocks * least_tokens) if least_tokens else (few, few, 1)


@cache
def _known_part_counts(device: Any, hidden: int, selected: str | None) -> tuple[int, int, int]:
    """Remember them for calls that are not traced."""
    return _part_counts(device, hidden, _num_cores(device, selected))


def _active_cores(device: Any) -> int:
    return _num_cores(device, active())


# What torch.compiler.assume_constant_result does, which imports the compiler for it: 2 s.
_active_cores._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _num_parts(x: Tensor) -> int:
    """Return what fills the device and is at least 1 and at most the number of tokens."""
    num_tokens: int = x.shape[0]
    few, many, least_tokens = _part_counts(x.device, int(x.shape[2]), _active_cores(x.device))
    # All keep a traced number of tokens symbolic. Dynamo of torch 2.11 has no sym_min of two plain
    # numbers and takes the builtins of any; elsewhere the builtins would make the number plain.
    lower, higher = (min, max) if is_dynamo_compiling() else (torch.sym_min, torch.sym_max)
    most = few + (many - few) * lower(1, num_tokens // least_tokens)
    return higher(1, lower(num_tokens, most))


def _parts(x: Tensor, num_parts: int | None) -> int:
    if num_parts is None:
        return _num_parts(x)
    return checks.integer("engram_gate_bwd: num_parts", num_parts, 1, _MAX_PARTS)


def _run(
    tensors: tuple[Tensor, ...], clamp_value: float, mask: Tensor | None, num_parts: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Run ``engram_gate_bwd`` on real tensors that are checked."""
    x = tensors[1]
    launch = bind("engram_gate_bwd", x.device, hidden=x.shape[2])
    if launch is None or not x.shape[0]:
        with torch.no_grad():
            grad_out, x, kv, weight_fused, dot, gate, rstd_x, rstd_k = tensors
            return reference.engram_gate_bwd(
                grad_out,
                x,
                kv,
                weight_fused,
                dot,
                gate,
                rstd_x,
                rstd_k,
                clamp_value,
                image_token_mask=mask,
                num_parts=num_parts,
            )
    return _launch(launch, tensors, float(clamp_value), mask, num_parts)


def _call_op(
    tensors: tuple[Tensor, ...], clamp_value: float, mask: Tensor | None, num_parts: int | None
) -> tuple[Tensor, Tensor, Tensor]:
    parts = _parts(tensors[1], num_parts)
    grads: tuple[Tensor, Tensor, Tensor] = _bwd_op(*tensors, mask, clamp_value, parts)
    return grads


def _run_op(*values: Any) -> tuple[Tensor, Tensor, Tensor]:
    *tensors, mask, clamp_value, num_parts = values
    return _run(tuple(tensors), clamp_value, mask, num_parts)


def _fake_op(*values: Any) -> tuple[Tensor, Tensor, Tensor]:
    *tensors, mask, clamp_value, num_parts = values
    _check(tuple(tensors), clamp_value, mask)
    _, x, kv, weight_fused = tensors[:4]
    partial = weight_fused.new_empty((num_parts, *weight_fused.shape))
    return x.new_empty(x.shape), kv.new_empty(kv.shape), partial


def _check(tensors: tuple[Tensor, ...], clamp_value: float, mask: Tensor | None) -> None:
    """Refuse arguments that are not as ``engram_gate_bwd`` says."""
    grad_out, x, kv, weight_fused, *saved = tensors
    arguments.gate_inputs("engram_gate_bwd", x, kv, weight_fused, mask)
    arguments.like("engram_gate_bwd: grad_out", grad_out, tuple(x.shape), bfloat16, x)
    for name, tensor in zip(_SAVED, saved, strict=True):
        if tensor is None:
            raise TypeError(
                f"engram_gate_bwd: {name}: is None, must be a torch.Tensor\n"
                "hint: call engram_gate_fwd with save_for_backward"
            )
        shape = (x.shape[0], STREAMS)
        arguments.like(f"engram_gate_bwd: {name}", tensor, shape, float32, x)
    arguments.positive("engram_gate_bwd: clamp_value", clamp_value)


def grad_w_reduce(
    grad_w_partial: Tensor,
    weight_hidden: Tensor,
    weight_embed: Tensor,
    grad_weight_hidden: Tensor,
    grad_weight_embed: Tensor,
) -> None:
    """Add the gradients of the two norm weights to two buffers.

    With grad_w the sum of the partial sums, in float32 and in an order that depends on num_parts
    alone: grad_weight_hidden += grad_w * weight_embed, grad_weight_embed += grad_w *
    weight_hidden. Deterministic. Not differentiable.

    Args:
        grad_w_partial: [num_parts, 4, hidden] float32, contiguous, as from ``engram_gate_bwd``, on
            CUDA, NPU or CPU. CUDA and NPU need the addresses of all tensors aligned to 16 bytes.
        weight_hidden: [4, hidden] bfloat16, contiguous.
        weight_embed: as ``weight_hidden``.
        grad_weight_hidden: [4, hidden] float32, contiguous, added to; shares memory with no other
            argument.
        grad_weight_embed: as ``grad_weight_hidden``.

    Raises:
        TypeError: an argument is of a wrong type or dtype.
        ValueError: an argument's shape, layout, device or value is not as above.
        NoArtifactError: no installed artifact fits the device and these values.
        ArtifactLoadError: the artifact that fits cannot be loaded.

    A CPU tensor goes to the reference, or to the backend selected with ``tilewheel.backend``.
    Launches on the current stream; can be captured in a CUDA graph once its artifact is loaded
    (``tilewheel.preload``).
    """
    tensors = (grad_w_partial, weight_hidden, weight_embed, grad_weight_hidden, grad_weight_embed)
    if is_compiling():
        _reduce_op(*tensors)  # its fake checks
        return
    if _fast_reduce(*tensors):
        return
    _check_reduce(*tensors)
    if torch_ops.is_traced(*tensors):
        _reduce_op(*tensors)
    else:
        _reduce(*tensors)


def _fast_reduce(
    grad_w_partial: Tensor,
    weight_hidden: Tensor,
    weight_embed: Tensor,
    grad_weight_hidden: Tensor,
    grad_weight_embed: Tensor,
) -> bool:
    """Launch what is loaded already; False leaves the call to the checks that explain."""
    inputs = (grad_w_partial, weight_hidden, weight_embed)
    try:
        hidden = grad_w_partial.shape[2]
        launch = bound.get(("grad_w_reduce", grad_w_partial.device, hidden, active()))
    except (AttributeError, IndexError):  # no tensor of three dimensions
        return False
    if (
        launch is None
        or not checks.are_plain(*inputs)
        or not checks.is_writable(grad_weight_hidden, *inputs)
        or not checks.is_writable(grad_weight_embed, grad_weight_hidden, *inputs)
        or not checks.launched(launch, *inputs, grad_weight_hidden, grad_weight_embed)
    ):
        return False
    increment_version(grad_weight_hidden)
    increment_version(grad_weight_embed)
    return True


def _reduce(
    grad_w_partial: Tensor,
    weight_hidden: Tensor,
    weight_embed: Tensor,
    grad_weight_hidden: Tensor,
    grad_weight_embed: Tensor,
) -> None:
    tensors = (grad_w_partial, weight_hidden, weight_embed, grad_weight_hidden, grad_weight_embed)
    launch = bind("grad_w_reduce", grad_w_partial.device, hidden=grad_w_partial.shape[2])
    if launch is None:
        with torch.no_grad():
            reference.grad_w_reduce(*tensors)
        return
    launch(*tensors)
    # What an operator of torch does when it writes: autograd notices if it had saved the values.
    increment_version(grad_weight_hidden)
    increment_version(grad_weight_embed)


def _check_reduce(
    grad_w_partial: Tensor,
    weight_hidden: Tensor,
    weight_embed: Tensor,
    grad_weight_hidden: Tensor,
    grad_weight_embed: Tensor,
) -> None:
    """Refuse arguments that are not as ``grad_w_reduce`` says."""
    hidden = arguments.weight("grad_w_reduce: weight_hidden", weight_hidden)
    shape = (STREAMS, hidden)
    where = "grad_w_reduce: grad_w_partial"
    checks.dense(where, grad_w_partial, (float32,))
    if grad_w_partial.ndim != 3 or grad_w_partial.shape[1:] != shape:
        raise ValueError(
            f"{where}: shape is {tuple(grad_w_partial.shape)}, must be "
            f"[num_parts, {STREAMS}, {hidden}]"
        )
    if grad_w_partial.shape[0] < 1:
        raise ValueError(f"{where}: num_parts is 0, must be at least 1")
    checks.contiguous(where, grad_w_partial)
    where = "grad_w_reduce: weight_hidden"
    checks.same_device(where, weight_hidden, grad_w_partial, "the others")
    arguments.like("grad_w_reduce: weight_embed", weight_embed, shape, bfloat16, grad_w_partial)
    others: list[tuple[str, Tensor | None]] = [
        ("weight_hidden", weight_hidden),
        ("weight_embed", weight_embed),
    ]
    for name, grad in (
        ("grad_weight_hidden", grad_weight_hidden),
        ("grad_weight_embed", grad_weight_embed),
    ):
        where = f"grad_w_reduce: {name}"
        partial = "grad_w_partial"
        checks.output(where, grad, like=grad_w_partial, name=partial, shape=shape, of=float32)
        arguments.apart(where, grad, *others)
        others.append((name, grad))


_bwd_op = torch_ops.define(
    "engram_gate_bwd(Tensor grad_out, Tensor x, Tensor kv, Tensor weight_fused, Tensor dot, "
    "Tensor gate, Tensor rstd_x, Tensor rstd_k, Tensor? image_token_mask, float clamp_value, "
    "SymInt num_parts) -> (Tensor, Tensor, Tensor)",
    _run_op,
    _fake_op,
)
_reduce_op = torch_ops.define(
    "grad_w_reduce(Tensor grad_w_partial, Tensor weight_hidden, Tensor weight_embed, "
    "Tensor(a!) grad_weight_hidden, Tensor(b!) grad_weight_embed) -> ()",
    _reduce,
    _check_reduce,
)
