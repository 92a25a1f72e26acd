"""The casts with one scale for each group of channels of a token."""

from __future__ import annotations

from typing import Any

from torch import Tensor, bfloat16, empty, float32, int8
from torch.autograd.graph import increment_version
from torch.compiler import is_compiling

from tilewheel import checks, torch_ops
from tilewheel.dispatch import bind
from tilewheel.key import Value
from tilewheel.quant import forms
from tilewheel.quant.back import cast_back, check_pair
from tilewheel.quant.forms import NAMES, Form
from tilewheel.reference import quant as reference

Pair = tuple[Tensor, Tensor]


def per_token_cast(
    x: Tensor | Pair,
    fmt: str,
    num_per_channels: int,
    *,
    x_block_size: tuple[int, int] | None = None,
    clamp_min: float | None = None,
    round_sf: bool = False,
    use_packed_ue8m0: bool = False,
    use_e4m3_sf: bool = False,
    use_tma_aligned_col_major_sf: bool = False,
    out: Pair | None = None,
) -> Pair:
    """Quantise each group of ``num_per_channels`` channels of a token with a scale of its own.

    The arithmetic is in float32, casts round to nearest even and saturate, and the result is that
    of ``tilewheel.reference``, bit for bit; a token's does not depend on the batch. amax is the
    group's max |x|, at least ``clamp_min``; max is 448 (e4m3) or 6 (e2m1). Not differentiable.

    - sf = amax / max, data = cast(x * (max / amax)).
    - ``round_sf``: sf = 2^ceil(log2(amax * (1 / max))), data = cast(x * (1 / sf)).
    - ``use_e4m3_sf``: sf = cast(amax / max), data = cast(x / sf).

    A NaN does not count in amax and becomes NaN (e4m3) or 6 (e2m1). An infinity counts as the
    largest finite float32 and saturates; the finite values beside it become zeros.

    Args:
        x: [num_tokens, hidden] bfloat16 or float32, any stride between rows and 1 within, on CUDA,
            NPU or CPU; hidden is a multiple of 64. It is copied first where its address is not a
            multiple of 16 bytes; CUDA is fastest where rows are 16 bytes' multiples apart. Or a
            quantised pair (data, sf) to quantise anew from data * sf.
        fmt: ``e4m3`` or ``e2m1``.
        num_per_channels: 16, 32, 64 or 128; the last group is shorter where it does not divide
            hidden. Ascend has 32.
        x_block_size: (tokens, channels) that share a scale of a pair ``x``; only with a pair.
        clamp_min: least amax, so that scales stay normal numbers; None is 1e-4 (e4m3), 6 * 2^-126
            (e2m1), and with ``use_e4m3_sf`` 448 * 2^-9 and 6 * 2^-9.
        round_sf: make scales powers of two.
        use_packed_ue8m0: store scales as biased exponent bytes, the first in the lowest byte and
            unused ones 0: four in an int32, on Ascend two in an int16. Needs ``round_sf``.
        use_e4m3_sf: store scales as float8_e4m3fn. CUDA only, not with ``round_sf``.
        use_tma_aligned_col_major_sf: sf is column-major, strides (1, ld); on CUDA ld is num_tokens
            rounded up to 16 bytes, and the padding's content is not defined.
        out: (data, sf) to write, as returned, without memory in common with ``x``; None allocates.

    Returns:
        data, float8_e4m3fn [num_tokens, hidden] or int8 [num_tokens, hidden // 2], and sf
        [num_tokens, groups], packed [num_tokens, ceil(groups / 4)].

    Raises:
        TypeError: an argument is of a wrong type or dtype.
        ValueError: an argument's shape, layout, device or value is not as above.
        NoArtifactError: no installed artifact fits the device and these values.
        ArtifactLoadError: the artifact that fits cannot be loaded.

    A CPU tensor goes to the reference, or to the backend selected with ``tilewheel.backend``.
    Launches on the current stream; can be captured in a CUDA graph once its artifact is loaded.

    Source: OCP Microscaling Formats (MX) v1.0; OCP 8-bit floating point.
    """
    where = "per_token_cast"
    form = forms.form(
        where,
        fmt,
        num_per_channels,
        round_sf,
        use_packed_ue8m0,
        use_e4m3_sf,
        use_tma_aligned_col_major_sf,
    )
    least = forms.clamp_min(where, form, clamp_min)
    if isinstance(x, tuple):
        return _recast(where, x, x_block_size, form, least, out)
    if x_block_size is not None:
        raise ValueError(f"{where}: x_block_size: is {x_block_size}, must be None for a tensor x")
    if not is_compiling() and isinstance(x, Tensor):
        result = _fast_cast(x, form, least, out)
        if result is not None:
            return result
    return _cast(where, x, form, least, out)


def _fast_cast(x: Tensor, form: Form, least: float, out: Pair | None) -> Pair | None:
    """Launch what is loaded already on plain tensors; None leaves the call to ``_cast``.

    The launcher checks everything but common memory and pending negations; what it refuses is
    explained by ``_cast``.
    """
    launch = forms.loaded("per_token_cast", x, *forms.names(form, x))
    if launch is None:
        return None
    if out is None:
        data, sf = empty_pair(form, x, x.shape[1])
    elif type(out) is tuple and len(out) == 2 and _is_writable(form, out, x):
        data, sf = out
    else:
        return None
    argument = _sf_argument(form, sf)
    if not checks.launched(launch, x, data, argument, least, form.num_per_channels):
        return None
    if out is not None:
        increment_version(out)
    return data, sf


def _is_writable(form: Form, out: Pair, *inputs: Tensor) -> bool:
    """Return whether a launch may write ``out``: also of scales, which may have any strides."""
    data, sf = out
    if not (checks.is_writable(data, *inputs) and checks.is_writable(sf, *inputs, data)):
        return False
    if not form.is_col_major:
        return bool(sf.is_contiguous())
    if sf.ndim != 2 or sf.stride(0) != 1:
        return False
    leading = sf.stride(1)
    multiple = forms.column_multiple(sf.dtype, sf.device)
    return bool(leading >= sf.shape[0] and leading % multiple == 0)


def _parameters(form: Form, x: Tensor) -> dict[str, Value]:
    """Return the parameters of the cast that serves this form and ``x``."""
    own = ("data_dtype", "sf_dtype", "round_sf", "col_major_sf")
    values = forms.names(form, x)
    return {"x_dtype": NAMES.get(x.dtype, str(x.dtype)), **dict(zip(own, values, strict=False))}


def _sf_argument(form: Form, sf: Tensor) -> Tensor:
    return forms.as_argument(sf, col_major=form.is_col_major)


def _cast(where: str, x: Tensor, form: Form, least: float, out: Pair | None) -> Pair:
    """Run ``per_token_cast`` of a tensor with every check made here."""
    hidden = forms.check_rows(f"{where}: x", x, (bfloat16, float32))
    if out is not None:
        _check_out(where, out, form, x, hidden)
    if is_compiling() or torch_ops.is_traced(x, *_tensors(out)):
        pair = _cast_op(x, *flags(form), least)
        return pair if out is None else (out[0].copy_(pair[0]), out[1].copy_(pair[1]))
    size = forms.group_size(where, form, x.device)
    launch = bind("per_token_cast", x.device, **_parameters(form, x))
    if launch is None:
        pair = reference_cast(x, form, least)
        return pair if out is None else (out[0].copy_(pair[0]), out[1].copy_(pair[1]))
    data, sf = empty_pair(form, x, hidden) if out is None else out
    if x.shape[0]:
        launch(aligned(x), data, _sf_argument(form, sf), least, size)
        if out is not None:
            increment_version(out)
    return data, sf


def _recast(
    where: str,
    x: Pair,
    x_block_size: tuple[int, int] | None,
    form: Form,
    least: float,
    out: Pair | None,
) -> Pair:
    """Quantise a quantised pair: in one launch where there is a kernel for it, else in two."""
    block = _pair_block(where, x_block_size)
    if not is_compiling() and len(x) == 2:
        result = _fast_recast(x, block, form, least, out)
        if result is not None:
            return result
    hidden = check_pair(f"{where}: x", x, block)
    data, x_sf = x
    if out is not None:
        _check_out(where, out, form, data, hidden)
        for i in (0, 1):
            checks.separate(f"{where}: out[{i}]", out[i], "x[1]", x_sf)
    # The kernel takes float32 scales and gives float32 or packed ones.
    fused = (
        data.device.type == "cuda"
        and x_sf.dtype == float32
        and not form.is_e4m3_sf
        and not (is_compiling() or torch_ops.is_traced(data, x_sf, *_tensors(out)))
    )
    if not fused:
        values = cast_back(x, "f32", block)
        return _cast(where, values, form, least, out)
    launch = bind("per_token_recast", data.device, **_parameters(form, data))
    assert launch is not None  # only the CPU has none
    new_data, sf = empty_pair(form, data, hidden) if out is None else out
    if data.shape[0]:
        launch(aligned(data), x_sf, new_data, sf, least, form.num_per_channels, *block)
        if out is not None:
            increment_version(out)
    return new_data, sf


def _fast_recast(
    x: Pair, block: tuple[int, int], form: Form, least: float, out: Pair | None
) -> Pair | None:
    """Launch what is loaded already on a plain pair; None leaves the call to ``_recast``."""
    data, x_sf = x
    launch = forms.loaded("per_token_recast", data, *form.cuda_names)
    if launch is None or not forms.are_plain_scales(x_sf, data, block):
        return None
    if out is None:
        new_data, sf = empty_pair(form, data, data.shape[1] * (2 if data.dtype is int8 else 1))
    elif type(out) is tuple and len(out) == 2 and _is_writable(form, out, data, x_sf):
        new_data, sf = out
    else:
        return None
    if not checks.launched(launch, data, x_sf, new_data, sf, least, form.num_per_channels, *block):
        return None
    if out is not None:
        increment_version(out)
    return new_data, sf


def _pair_block(where: str, x_block_size: Any) -> tuple[int, int]:
    if x_block_size is None:
        raise ValueError(f"{where}: x_block_size: is None, must be (tokens, channels) for a pair x")
    return forms.block_size(f"{where}: x_block_size", x_block_size)


def empty_pair(form: Form, x: Tensor, hidden: int) -> Pair:
    """Allocate the result of a cast of ``x`` with ``hidden`` channels."""
    shape = (x.shape[0], form.data_width(hidden))
    data = empty(shape, dtype=form.data_dtype, device=x.device)
    return data, forms.empty_sf(form, x.shape[0], hidden, x.device)


def reference_cast(x: Tensor, form: Form, least: float) -> Pair:
    """Run the reference and lay its scales out as the form says."""
    data, sf = reference.per_token_cast(
        x.detach(),
        form.fmt,
        form.num_per_channels,
        clamp_min=least,
        round_sf=form.round_sf,
        sf_dtype=form.sf_dtype(x.device),
    )
    laid_out = forms.empty_sf(form, x.shape[0], x.shape[1], x.device)
    return data, laid_out.copy_(sf)


def aligned(x: Tensor) -> Tensor:
    """Return ``x``, copied where a kernel could not read 16 bytes at its address."""
    return x if x.data_ptr() % forms.VECTOR_BYTES == 0 else x.contiguous().clone()


def _tensors(out: Any) -> tuple[Any, ...]:
    """Return the tensors of an ``out=`` that need not be checked yet."""
    return out if isinstance(out, tuple) else ()


def _check_out(where: str, out: Any, form: Form, x: Tensor, hidden: int) -> None:
    if not isinstance(out, tuple) or len(out) != 2:
        raise TypeError(f"{where}: out: is {checks.kind(out)}, must be (data, sf)")
    shape = (x.shape[0], form.data_width(hidden))
    checks.output(f"{where}: out[0]", out[0], like=x, name="x", shape=shape, of=form.data_dtype)
    forms.check_out_sf(f"{where}: out[1]", out[1], form, x, hidden)
    checks.separate(f"{where}: out[1]", out[1], "out[0]", out[0])


def flags(form: Form) -> tuple[str, int, bool, bool, bool, bool]:
    """Return a form's flags, as operators of torch take them."""
    return (
        form.fmt,
        form.num_per_channels,
        form.round_sf,
        form.is_packed,
        form.is_e4m3_sf,
        form.is_col_major,
    )


def plain_values(where: str, x: Any, x_block_size: Any) -> Tensor:
    """Return ``x`` once checked; of a pair, data * sf in float32."""
    if isinstance(x, tuple):
        block = _pair_block(where, x_block_size)
        check_pair(f"{where}: x", x, block)
        return cast_back(x, "f32", block)
    if x_block_size is not None:
        raise ValueError(f"{where}: x_block_size: is {x_block_size}, must be None for a tensor x")
    forms.check_rows(f"{where}: x", x, (bfloat16, float32))
    values: Tensor = x
    return values


def _cast_op_run(x: Tensor, *arguments: Any) -> Pair:
    form = forms.form("per_token_cast", *arguments[:-1])
    return _cast("per_token_cast", x, form, arguments[-1], None)


def _cast_op_fake(x: Tensor, *arguments: Any) -> Pair:
    form = forms.form("per_token_cast", *arguments[:-1])
    return empty_pair(form, x, x.shape[1])


_cast_op = torch_ops.define(
    "per_token_cast(Tensor x, str fmt, int num_per_channels, bool round_sf, bool use_packed_ue8m0, "
    "bool use_e4m3_sf, bool use_tma_aligned_col_major_sf, float clamp_min) -> (Tensor, Tensor)",
    _cast_op_run,
    _cast_op_fake,
)
