"""Argument checks that every operator shares. Each raises with what is wrong and what must be."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from torch import Tensor, bfloat16, dtype, strided
from torch.compiler import is_compiling
from torch.nn import Parameter

from tilewheel import torch_ops

FLOAT32_MAX = 3.4028234663852886e38
_HIDDEN_MULTIPLE = 64


def dense(where: str, tensor: object, dtypes: tuple[dtype, ...], hint: str = "") -> None:
    """Refuse what is no strided tensor of one of ``dtypes``."""
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{where}: is {kind(tensor)}, must be a torch.Tensor")
    if tensor.layout is not strided or tensor.is_nested:
        layout = "nested" if tensor.is_nested else str(tensor.layout)
        raise ValueError(f"{where}: layout is {layout}, must be torch.strided")
    if tensor.dtype not in dtypes:
        hint = "call .dequantize()" if tensor.is_quantized else hint
        known = " or ".join(str(known) for known in dtypes)
        raise TypeError(
            f"{where}: dtype is {tensor.dtype}, must be {known}" + (f"\nhint: {hint}" * bool(hint))
        )
    # Its memory holds the values before the negation, which is all that a kernel sees. Inside a
    # graph, torch resolves it before the operator runs.
    if not is_compiling() and tensor.is_neg():
        raise ValueError(
            f"{where}: is a negated view, must hold its values in memory\nhint: call .resolve_neg()"
        )


def contiguous(where: str, tensor: Tensor, hint: str = "call .contiguous()") -> None:
    """Refuse a tensor that is not contiguous."""
    if not tensor.is_contiguous():
        raise ValueError(
            f"{where}: strides are {tensor.stride()}, must be contiguous"
            + (f"\nhint: {hint}" * bool(hint))
        )


def hidden(where: str, size: int, highest: int) -> None:
    """Refuse a hidden that kernels cannot take."""
    if size % _HIDDEN_MULTIPLE or not _HIDDEN_MULTIPLE <= size <= highest:
        raise ValueError(
            f"{where}: hidden is {size}, must be a multiple of {_HIDDEN_MULTIPLE} up to {highest}"
        )


def streams(where: str, x: Tensor, num_streams: int, max_hidden: int) -> int:
    """Return hidden once ``x`` is a contiguous bfloat16 [num_tokens, num_streams, hidden]."""
    dense(where, x, (bfloat16,))
    if x.ndim != 3 or x.shape[1] != num_streams:
        raise ValueError(
            f"{where}: shape is {tuple(x.shape)}, must be [num_tokens, {num_streams}, hidden]"
        )
    size: int = x.shape[2]
    hidden(where, size, max_hidden)
    contiguous(where, x)
    return size


def same_device(where: str, tensor: Tensor, like: Tensor, name: str) -> None:
    """Refuse a tensor that is elsewhere than ``like``, the argument called ``name``."""
    if tensor.device != like.device:
        raise ValueError(f"{where}: is on {tensor.device}, must be on {like.device} like {name}")


def shaped(
    where: str, tensor: Tensor, *, like: Tensor, name: str, shape: tuple[int, ...], of: dtype
) -> None:
    """Refuse a tensor of another dtype or shape, or elsewhere than ``like``, called ``name``."""
    dense(where, tensor, (of,))
    if tensor.shape != shape:
        raise ValueError(f"{where}: shape is {tuple(tensor.shape)}, must be {shape}")
    same_device(where, tensor, like, name)


def flag(where: str, value: Any) -> None:
    """Refuse what is no bool."""
    if not isinstance(value, bool):
        raise TypeError(f"{where}: is {kind(value)}, must be a bool")


def integer(where: str, value: Any, lowest: int, highest: int) -> int:
    """Return ``value`` as an int; anything with ``__index__`` but a bool is one."""
    # A traced int is an int to isinstance alone: Dynamo does not know hasattr of one.
    if isinstance(value, int) and not isinstance(value, bool):
        number = value
    elif isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{where}: is {kind(value)}, must be an int")
    else:
        number = operator.index(value)
    if not lowest <= number <= highest:
        raise ValueError(f"{where}: is {number}, must be {lowest} to {highest}")
    return number


def output(
    where: str, out: Tensor, *, like: Tensor, name: str, shape: tuple[int, ...], of: dtype
) -> None:
    """Refuse an ``out=`` that is not contiguous, of this shape and dtype, where ``like`` is.

    It may not share memory with ``like``, the argument called ``name``, nor require gradients: the
    operator writes it in place.
    """
    shaped(where, out, like=like, name=name, shape=shape, of=of)
    contiguous(where, out, hint="")
    if out.requires_grad:
        raise ValueError(f"{where}: requires gradients, must not\nhint: call .detach()")
    separate(where, out, name, like)


def are_plain(*tensors: Tensor | None) -> bool:
    """Return whether a kernel may be given tensors as they are, without an operator of torch.

    Not if one is of a subclass, which may have no memory, or a lazily negated view, whose memory a
    kernel would misread; nor inside a dispatch mode or functorch, which are to see the operator.
    """
    # A loop: every call of an operator comes here, and a generator takes a third longer.
    for tensor in tensors:
        if tensor is not None and (
            (type(tensor) is not Tensor and type(tensor) is not Parameter) or tensor.is_neg()
        ):
            return False
    return not torch_ops.is_intercepted()


def launched(launch: Callable[..., Any], *arguments: Any) -> bool:
    """Launch; return False where an argument is refused, so that nothing has run.

    The checks that explain are to say why. What fails otherwise is raised and must not be tried
    again: a kernel may have added to what it writes.
    """
    try:
        launch(*arguments)
    except (TypeError, ValueError):  # what the launcher refuses
        return False
    except RuntimeError:
        # What torch does not hand on comes as the error that a driver's is too.
        if any(isinstance(value, Tensor) and _has_no_layout(value) for value in arguments):
            return False
        raise
    return True


def _has_no_layout(tensor: Tensor) -> bool:
    return bool(
        tensor.is_meta or tensor.is_nested or tensor.is_quantized or tensor.layout is not strided
    )


def is_writable(out: Tensor, *inputs: Tensor | None) -> bool:
    """Return whether a kernel that checks the rest may write ``out`` and read ``inputs``.

    It must be a plain tensor without gradients, and apart from them. What is doubtful is False: the
    checks that explain decide it.
    """
    if type(out) is not Tensor or out.requires_grad or out.is_nested or out.is_neg():
        return False
    try:
        begin = out.data_ptr()
        end = begin + out.nbytes if out.is_contiguous() else _span(out)[1]
        for tensor in inputs:
            # Most inputs lie behind ``out`` or end before it: that takes few numbers of each.
            if tensor is None or (first := tensor.data_ptr()) >= end:
                continue
            if begin < (first + tensor.nbytes if tensor.is_contiguous() else _span(tensor)[1]):
                return False
    except RuntimeError:  # it has no memory of its own: sparse, or of functorch
        return False
    return True


def separate(where: str, out: Tensor, name: str, other: Tensor) -> None:
    """Refuse an ``out=`` that shares memory with the argument called ``name``.

    Traced tensors have no memory yet.
    """
    if not torch_ops.is_traced(out, other) and overlap(out, other):
        raise ValueError(f"{where}: shares memory with {name}, must not")


def overlap(first: Tensor, second: Tensor) -> bool:
    """Return whether two tensors' memory, from first to last element, has bytes in common."""
    (first_begin, first_end), (second_begin, second_end) = _span(first), _span(second)
    if first_begin >= second_end or second_begin >= first_end:
        return False
    return first.device == second.device and not first.is_meta


def _span(tensor: Tensor) -> tuple[int, int]:
    """Return the addresses of a tensor's first byte and behind its last; 0 and 0 without bytes."""
    begin = int(tensor.data_ptr())
    size_bytes = int(tensor.nbytes)
    if not size_bytes:
        return 0, 0
    if tensor.is_contiguous():
        return begin, begin + size_bytes
    sizes = zip(tensor.shape, tensor.stride(), strict=True)
    last = sum((size - 1) * stride for size, stride in sizes)
    return begin, begin + (last + 1) * tensor.element_size()


def kind(value: object) -> str:
    """Return a value's type in words."""
    return f"a {type(value).__name__}"
