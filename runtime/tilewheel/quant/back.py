"""From a quantised pair back to values."""

from __future__ import annotations

from typing import Any

from torch import Tensor, bfloat16, empty, float8_e4m3fn, float32, int8
from torch.autograd.graph import increment_version
from torch.compiler import is_compiling

from tilewheel import checks, torch_ops
from tilewheel.dispatch import bind
from tilewheel.quant import forms
from tilewheel.quant.forms import NAMES
from tilewheel.reference import quant as reference

_DTYPES = {"bf16": bfloat16, "f32": float32}
_VECTOR_BYTES = 16


def cast_back(
    x: tuple[Tensor, Tensor],
    fmt: str,
    x_block_size: tuple[int, int],
    *,
    out: Tensor | None = None,
) -> Tensor:
    """Return the values of a quantised tensor: data * sf in float32, rounded once.

    Exact: the result is that of ``tilewheel.reference``, bit for bit (NaN payloads apart), and a
    token's does not depend on the batch. Not differentiable.

    Args:
        x: (data, sf) as from ``per_token_cast``. data is float8_e4m3fn [num_tokens, hidden] or int8
            [num_tokens, hidden // 2], hidden a multiple of 64, any stride between rows and 1
            within. sf is [token blocks, channel blocks] float32 or float8_e4m3fn, or packed
            exponent bytes: int32 (CUDA, CPU) or int16 (Ascend, CPU); row-major or column-major with
            any leading dimension. Byte b is 2^(b - 127), byte 0 is 0.
        fmt: ``bf16`` or ``f32``, the type of the result.
        x_block_size: (tokens, channels) that share a scale; channels a multiple of 16.
        out: [num_tokens, hidden] to write, contiguous, without memory in common with ``x``; None
            allocates it.

    Raises:
        TypeError: an argument is of a wrong type or dtype.
        ValueError: an argument's shape, layout, device or value is not as above.
        NoArtifactError: no installed artifact fits the device and these values.
        ArtifactLoadError: the artifact that fits cannot be loaded.

    A CPU tensor goes to the reference, or to the backend selected with ``tilewheel.backend``.

    Source: OCP Microscaling Formats (MX) v1.0; OCP 8-bit floating point.
    """
    if fmt not in _DTYPES:
        raise ValueError(f"cast_back: fmt: is {fmt!r}, must be 'bf16' or 'f32'")
    block = forms.block_size("cast_back: x_block_size", x_block_size)
    if not is_compiling():
        values = _fast_cast_back(x, fmt, block, out)
        if values is not None:
            return values
    hidden = check_pair("cast_back: x", x, block)
    data, sf = x
    if out is not None:
        shape = (data.shape[0], hidden)
        checks.output("cast_back: out", out, like=data, name="x", shape=shape, of=_DTYPES[fmt])
        checks.separate("cast_back: out", out, "x[1]", sf)
    if is_compiling() or torch_ops.is_traced(data, sf, out):
        result: Tensor = _cast_back_op(data, sf, fmt, *block)
        return result if out is None else out.copy_(result)
    return _cast_back(data, sf, fmt, *block, out)


def per_token_cast_back(
    x: tuple[Tensor, Tensor],
    fmt: str,
    num_per_channels: int,
    *,
    out: Tensor | None = None,
) -> Tensor:
    """Return ``cast_back`` of a pair with scales for ``num_per_channels`` channels of a token."""
    return cast_back(x, fmt, (1, num_per_channels), out=out)


def check_pair(where: str, x: Any, block: tuple[int, int]) -> int:
    """Return hidden once ``x`` is a quantised pair with scales for the block size."""
    if not isinstance(x, tuple) or len(x) != 2:
        raise TypeError(f"{where}: is {checks.kind(x)}, must be (data, sf)")
    hidden = forms.check_rows(f"{where}[0]", x[0], (float8_e4m3fn, int8))
    forms.check_sf(f"{where}[1]", x[1], x[0], hidden, block)
    return hidden


def _fast_cast_back(x: Any, fmt: str, block: tuple[int, int], out: Tensor | None) -> Tensor | None:
    """Launch what is loaded already on a plain pair; None leaves the call to the checks."""
    if not isinstance(x, tuple) or len(x) != 2 or type(x[0]) is not Tensor:
        return None
    data, sf = x
    sf_name = NAMES.get(sf.dtype) if type(sf) is Tensor else None
    # Never a key of Ascend, whose kernels take some scales transposed: those have col_major_sf.
    launch = forms.loaded("cast_back", data, sf_name, NAMES[_DTYPES[fmt]])
    if launch is None or not forms.are_plain_scales(sf, data, block):
        return None
    shape = (data.shape[0], data.shape[1] * (2 if data.dtype is int8 else 1))
    if out is None:
        values = empty(shape, dtype=_DTYPES[fmt], device=data.device)
    elif checks.is_writable(out, data, sf) and out.shape == shape:
        values = out
    else:
        return None
    if not checks.launched(launch, data, sf, values, *block):
        return None
    if out is not None:
        increment_version(out)
    return values


def _cast_back(
    data: Tensor,
    sf: Tensor,
    fmt: str,
    block_tokens: int,
    block_channels: int,
    out: Tensor | None = None,
) -> Tensor:
    dtype = _DTYPES[fmt]
    col_major = forms.is_col_major(sf)
    if not col_major and sf.stride(1) != 1 and forms.is_ascend(sf.device):
        sf = sf.contiguous()
    launch = bind(
        "cast_back",
        data.device,
        data_dtype=NAMES[data.dtype],
        sf_dtype=NAMES[sf.dtype],
        out_dtype=NAMES[dtype],
        **forms.layout(data.device, col_major=col_major),
    )
    if launch is None:
        values = reference.cast_back((data, sf), fmt, (block_tokens, block_channels))
        return values if out is None else out.copy_(values)
    if out is None:
        hidden = data.shape[1] * (2 if data.dtype == int8 else 1)
        out = empty((data.shape[0], hidden), dtype=dtype, device=data.device)
    if data.shape[0]:
        if data.data_ptr() % _VECTOR_BYTES:
            data = data.contiguous().clone()
        launch(data, forms.as_argument(sf, col_major=col_major), out, block_tokens, block_channels)
        increment_version(out)
    return out


def _cast_back_fake(
    data: Tensor, sf: Tensor, fmt: str, block_tokens: int, block_channels: int
) -> Tensor:
    hidden = data.shape[1] * (2 if data.dtype == int8 else 1)
    return data.new_empty((data.shape[0], hidden), dtype=_DTYPES[fmt])


_cast_back_op = torch_ops.define(
    "cast_back(Tensor data, Tensor sf, str fmt, int block_tokens, int block_channels) -> Tensor",
    _cast_back,
    _cast_back_fake,
)
