"""Transforms of activations."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor, bfloat16, empty, float32, int32, int64
from torch.autograd.graph import increment_version
from torch.compiler import is_compiling

from tilewheel import checks, torch_ops
from tilewheel.backend import active
from tilewheel.dispatch import bind, bound
from tilewheel.reference import transform as reference

__all__ = ["apply_rotary"]

_DTYPES = {bfloat16: "bfloat16", float32: "float32"}
_HEAD_DIMS = (64, 128)
_MAX_SEQLEN_OFFSET = 2**30


class _Call(NamedTuple):
    """The arguments of ``apply_rotary``, in the order of its operator of torch."""

    query: Tensor
    cos_sin_cache: Tensor
    key: Tensor | None
    positions: Tensor | None
    interleaved: bool
    conjugate: bool
    seqlen_offset: int


def apply_rotary(
    query: Tensor,
    cos_sin_cache: Tensor,
    key: Tensor | None = None,
    positions: Tensor | None = None,
    *,
    interleaved: bool = False,
    conjugate: bool = False,
    seqlen_offset: int = 0,
) -> None:
    """Rotate each row of ``query`` and ``key`` by the angles of its token's position, in place.

    A row is one head of one token. Its pairs (first, second) become (first * cos - second * sin,
    first * sin + second * cos), with cosines and sines from row ``position`` of the cache. Products
    and sums are rounded to float32 one by one, without fused multiply-add, and the result once to
    the dtype, to nearest even: the result is that of ``tilewheel.reference``, bit for bit (NaN
    payloads apart), and a token's does not depend on the others in the batch. Not differentiable:
    the gradient of a rotation is the rotation of the gradient with ``conjugate``.

    Args:
        query: [num_tokens, num_heads, head_dim] or [num_sequences, num_tokens, num_heads,
            head_dim], bfloat16 or float32, on CUDA, NPU or CPU; written. head_dim is 64 or 128, the
            whole width is rotated. The last stride is 1, the others are free, so that a view such
            as ``q[..., -64:]`` serves as it is; CUDA is fastest where address and strides are
            multiples of 16 bytes. No two elements may share memory.
        cos_sin_cache: [cache_rows, head_dim] float32, contiguous, on the device of ``query``:
            cosines in the first half of a row, sines in the second. CUDA and NPU need its address
            aligned to 16 bytes. What is written may have no memory in common with it, nor with
            ``positions``: that is not checked.
        key: more rows to rotate with the same positions and in the same launch; as ``query``, with
            its own number of heads and strides, and without memory in common with it. Written.
        positions: int32 or int64, [num_tokens] or [num_sequences, num_tokens] like ``query``. None
            counts tokens from 0 within each sequence; a 3-dimensional query is one sequence.
        interleaved: False pairs the halves of a row, (i, head_dim / 2 + i), as in GPT-NeoX and
            Llama; True pairs neighbours, (2 i, 2 i + 1), as in GPT-J and DeepSeek.
        conjugate: whether to rotate back: sines are negated.
        seqlen_offset: added to each position, given or counted; 0 to 2**30.

    A token whose position, after adding ``seqlen_offset``, is negative or not below cache_rows
    keeps its values: nothing is read outside the cache, nothing traps and nothing synchronises.

    Raises:
        TypeError: an argument is of a wrong type or dtype.
        ValueError: an argument's shape, layout, device or value is not as above, or it requires
            gradients while they are recorded.
        NoArtifactError: no installed artifact fits the device and these values.
        ArtifactLoadError: the artifact that fits cannot be loaded.

    A CPU tensor goes to the reference, or to the backend selected with ``tilewheel.backend``.
    Launches on the current stream; can be captured in a CUDA graph once its artifact is loaded
    (``tilewheel.preload``). One launch, but min(num_sequences, num_tokens) where query or key is
    4-dimensional and its strides do not let sequences and tokens be one dimension.

    Source: RoFormer, arXiv 2104.09864, section 3.2.2.
    """
    if is_compiling():
        _traced(_Call(query, cos_sin_cache, key, positions, interleaved, conjugate, seqlen_offset))
        return
    try:
        # Only what the launcher cannot see: it checks the rest, and what is not plain goes the
        # longer way below.
        if (
            checks.are_plain(query, cos_sin_cache, key, positions)
            and query.ndim == 3
            and not query.requires_grad
            and 0 not in query.stride()
            and type(seqlen_offset) is int
            and type(interleaved) is type(conjugate) is bool
        ):
            dtype = _DTYPES.get(query.dtype)
            device = query.device
            selected = active()
            launch = bound.get(
                ("apply_rotary", device, dtype, query.shape[2], interleaved, selected)
            )
            if (
                launch is not None
                and (key is None or _is_plain_key(key, query))
                and (positions is None or _is_plain_positions(positions, query))
            ):
                _launch(
                    launch, query, cos_sin_cache, key, positions, conjugate, seqlen_offset, None
                )
                return
    except Exception:
        # The explanation is worth its time only now.
        _check(_Call(query, cos_sin_cache, key, positions, interleaved, conjugate, seqlen_offset))
        raise
    call = _Call(query, cos_sin_cache, key, positions, interleaved, conjugate, seqlen_offset)
    if torch_ops.is_traced(query, cos_sin_cache, key, positions):
        _traced(call)
    else:
        _run(call)


def _is_plain_key(key: Tensor, query: Tensor) -> bool:
    return (
        key.ndim == 3
        and not key.requires_grad
        and 0 not in key.stride()
        and key.data_ptr() != query.data_ptr()
    )


def _is_plain_positions(positions: Tensor, query: Tensor) -> bool:
    return (
        positions.shape == query.shape[:1]
        and positions.is_contiguous()
        and positions.dtype in (int64, int32)
    )


def _launch(
    launch: Any,
    query: Tensor,
    cos_sin_cache: Tensor,
    key: Tensor | None,
    positions: Tensor | None,
    conjugate: bool,
    seqlen_offset: int,
    sequence_length: int | None,
) -> None:
    """Launch on 3-dimensional tensors; a sequence is all tokens where its length is None."""
    short, long = _no_positions(query.device)
    if positions is not None:
        if positions.dtype is int32:
            short = positions
        else:
            long = positions
    launch(
        query,
        query if key is None else key,
        cos_sin_cache,
        long,
        short,
        key is not None,
        conjugate,
        seqlen_offset,
        max(1, sequence_length or query.shape[0]),
    )
    # What an operator of torch does when it writes: autograd notices if it had saved the values.
    increment_version(query)
    if key is not None:
        increment_version(key)


@cache
def _no_positions(device: Any) -> tuple[Tensor, Tensor]:
    """Return positions without elements, int32 and int64: they have no memory to go stale."""
    return empty(0, dtype=int32, device=device), empty(0, dtype=int64, device=device)


def _run(call: _Call) -> None:
    """Run ``apply_rotary`` on real tensors, with every check made here."""
    offset = _check(call)
    query, cos_sin_cache, key, positions, interleaved, conjugate, _ = call
    if key is not None and key.numel() and key.data_ptr() == query.data_ptr() and query.numel():
        raise ValueError("apply_rotary: key: shares memory with query, must not")
    launch = bind(
        "apply_rotary",
        query.device,
        dtype=_DTYPES[query.dtype],
        head_dim=query.shape[-1],
        interleaved=interleaved,
    )
    if launch is None:
        with torch.no_grad():
            reference.apply_rotary(
                query,
                cos_sin_cache,
                key,
                positions,
                interleaved=interleaved,
                conjugate=conjugate,
                seqlen_offset=offset,
            )
        return
    if query.ndim == 3:
        runs: Any = [(query, key, positions, None)]
    else:
        runs = _three_dimensional(query, key, positions)
    for part, key_part, positions_part, length in runs:
        if positions_part is not None:
            positions_part = positions_part.contiguous()
        _launch(launch, part, cos_sin_cache, key_part, positions_part, conjugate, offset, length)


def _three_dimensional(
    query: Tensor, key: Tensor | None, positions: Tensor | None
) -> Iterator[tuple[Tensor, Tensor | None, Tensor | None, int]]:
    """Yield views (query, key, positions, tokens of a sequence) that cover 4-dimensional tensors.

    One where strides let sequences and tokens be one dimension, else one for each index of the
    shorter of the two.
    """
    num_sequences, num_tokens = query.shape[:2]
    try:
        merged = _merged(query)
        merged_key = None if key is None else _merged(key)
    except RuntimeError:
        if num_sequences <= num_tokens:
            for i in range(num_sequences):
                yield (
                    query[i],
                    None if key is None else key[i],
                    None if positions is None else positions[i],
                    num_tokens,
                )
            return
        # The same token of all sequences: each is a sequence of one.
        for i in range(num_tokens):
            own = torch.full((num_sequences,), i, dtype=int32, device=query.device)
            yield (
                query[:, i],
                None if key is None else key[:, i],
                own if positions is None else positions[:, i],
                1,
            )
        return
    yield merged, merged_key, None if positions is None else positions.reshape(-1), num_tokens


def _merged(x: Tensor) -> Tensor:
    """Return a view with the first two dimensions as one, or raise torch's RuntimeError."""
    return x.view(x.shape[0] * x.shape[1], *x.shape[2:])


def _traced(call: _Call) -> None:
    offset = _check(call)
    _apply_rotary_op(*call[:-1], offset)


def _run_op(*values: Any) -> None:
    _run(_Call(*values))


def _fake_op(*values: Any) -> None:
    _check(_Call(*values))


def _check(call: _Call) -> int:
    """Return ``seqlen_offset`` as an int once every argument is as ``apply_rotary`` says."""
    query, cos_sin_cache, key, positions, interleaved, conjugate, seqlen_offset = call
    _check_rows("query", query)
    head_dim = query.shape[-1]
    if key is not None:
        _check_rows("key", key)
        if key.dtype is not query.dtype:
            raise TypeError(
                f"apply_rotary: key: dtype is {key.dtype}, must be {query.dtype} like query"
            )
        if key.ndim != query.ndim or (*key.shape[:-2], key.shape[-1]) != (
            *query.shape[:-2],
            head_dim,
        ):
            raise ValueError(
                f"apply_rotary: key: shape is {tuple(key.shape)}, must be that of query "
                f"{tuple(query.shape)} but for the heads"
            )
    checks.dense("apply_rotary: cos_sin_cache", cos_sin_cache, (float32,))
    if cos_sin_cache.ndim != 2 or cos_sin_cache.shape[1] != head_dim:
        raise ValueError(
            f"apply_rotary: cos_sin_cache: shape is {tuple(cos_sin_cache.shape)}, must be "
            f"[cache_rows, {head_dim}]"
        )
    checks.contiguous("apply_rotary: cos_sin_cache", cos_sin_cache)
    if positions is not None:
        checks.dense("apply_rotary: positions", positions, (int32, int64))
        if positions.shape != query.shape[:-2]:
            raise ValueError(
                f"apply_rotary: positions: shape is {tuple(positions.shape)}, must be "
                f"{tuple(query.shape[:-2])} like query's tokens"
            )
    for name, tensor in (("key", key), ("cos_sin_cache", cos_sin_cache), ("positions", positions)):
        if tensor is not None:
            checks.same_device(f"apply_rotary: {name}", tensor, query, "query")
    for name, flag in (("interleaved", interleaved), ("conjugate", conjugate)):
        checks.flag(f"apply_rotary: {name}", flag)
    return _offset(seqlen_offset)


def _check_rows(name: str, x: Tensor) -> None:
    checks.dense(f"apply_rotary: {name}", x, tuple(_DTYPES))
    if x.ndim not in (3, 4):
        raise ValueError(
            f"apply_rotary: {name}: shape is {tuple(x.shape)}, must be [num_tokens, num_heads, "
            "head_dim] or [num_sequences, num_tokens, num_heads, head_dim]"
        )
    if x.shape[-1] not in _HEAD_DIMS:
        raise ValueError(
            f"apply_rotary: {name}: head_dim is {x.shape[-1]}, must be 64 or 128\n"
            "hint: pass the view that is to be rotated, such as q[..., -64:]"
        )
    if x.stride(-1) != 1:
        raise ValueError(f"apply_rotary: {name}: stride(-1) is {x.stride(-1)}, must be 1")
    for i in range(x.ndim - 1):
        if x.stride(i) == 0 and x.shape[i] > 1:
            raise ValueError(
                f"apply_rotary: {name}: stride({i}) is 0, must not be: elements share memory\n"
                "hint: call .contiguous() and keep the result"
            )
    if x.requires_grad and torch.is_grad_enabled():
        raise ValueError(
            f"apply_rotary: {name}: requires gradients, must not: it is written in place\n"
            "hint: use torch.no_grad(), or a torch.autograd.Function with conjugate in backward"
        )


def _offset(value: Any) -> int:
    where = "apply_rotary: seqlen_offset"
    if not isinstance(value, (int, torch.SymInt)) or isinstance(value, bool):
        return checks.integer(where, value, 0, _MAX_SEQLEN_OFFSET)
    # Not by operator.index: under tracing that would make one graph for each value.
    if value < 0 or value > _MAX_SEQLEN_OFFSET:
        raise ValueError(f"{where}: is {value}, must be 0 to {_MAX_SEQLEN_OFFSET}")
    return value


_apply_rotary_op = torch_ops.define(
    "apply_rotary(Tensor(a!) query, Tensor cos_sin_cache, Tensor(b!)? key, Tensor? positions, "
    "bool interleaved, bool conjugate, SymInt seqlen_offset) -> ()",
    _run_op,
    _fake_op,
)
