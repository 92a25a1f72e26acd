"""Halves of per_token_cast: only the scales, or only the data."""

from __future__ import annotations

from typing import Any

from torch import Tensor, empty, float32
from torch.compiler import is_compiling

from tilewheel import checks, torch_ops
from tilewheel.dispatch import bind
from tilewheel.quant import forms
from tilewheel.quant.forms import NAMES, Form
from tilewheel.quant.per_token import Pair, aligned, flags, plain_values, reference_cast
from tilewheel.reference import quant as reference

_FLAGS = "bool round_sf, bool use_packed_ue8m0, bool use_e4m3_sf, bool use_tma_aligned_col_major_sf"


def per_token_cast_with_sf_only(
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
) -> Tensor:
    """Return the scales that ``per_token_cast`` gives for these arguments, without the data.

    Other things are as ``per_token_cast`` says.
    """
    where = "per_token_cast_with_sf_only"
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
    if x_block_size is None and not is_compiling():
        scales = _fast_sf_only(x, form, least)
        if scales is not None:
            return scales
    values = plain_values(where, x, x_block_size)
    if is_compiling() or torch_ops.is_traced(values):
        result: Tensor = _sf_only_op(values, *flags(form), least)
        return result
    return _sf_only(values, form, least)


def _fast_sf_only(x: Any, form: Form, least: float) -> Tensor | None:
    """Launch what is loaded already on a plain tensor; None leaves the call to the checks."""
    if not isinstance(x, Tensor):
        return None
    name = "per_token_cast_with_sf_only"
    launch = forms.loaded(name, x, *forms.names(form, x)[1:])
    if launch is None:
        return None
    sf = forms.empty_sf(form, x.shape[0], x.shape[1], x.device)
    argument = forms.as_argument(sf, col_major=form.is_col_major)
    is_done = checks.launched(launch, x, argument, least, form.max_value, form.num_per_channels)
    return sf if is_done else None


def _sf_only(x: Tensor, form: Form, least: float) -> Tensor:
    where = "per_token_cast_with_sf_only"
    size = forms.group_size(where, form, x.device)
    launch = bind(
        where,
        x.device,
        x_dtype=NAMES[x.dtype],
        sf_dtype=NAMES[form.sf_dtype(x.device)],
        round_sf=form.round_sf,
        **forms.layout(x.device, col_major=form.is_col_major),
    )
    if launch is None:
        return reference_cast(x, form, least)[1]
    sf = forms.empty_sf(form, x.shape[0], x.shape[1], x.device)
    if x.shape[0]:
        argument = forms.as_argument(sf, col_major=form.is_col_major)
        launch(aligned(x), argument, least, form.max_value, size)
    return sf


def _sf_only_run(x: Tensor, *arguments: Any) -> Tensor:
    form = forms.form("per_token_cast_with_sf_only", *arguments[:-1])
    return _sf_only(x, form, arguments[-1])


def _sf_only_fake(x: Tensor, *arguments: Any) -> Tensor:
    form = forms.form("per_token_cast_with_sf_only", *arguments[:-1])
    return forms.empty_sf(form, x.shape[0], x.shape[1], x.device)


def per_token_cast_with_precomputed_sf(
    x: Tensor | Pair,
    fmt: str,
    num_per_channels: int,
    sf: Tensor,
    *,
    x_block_size: tuple[int, int] | None = None,
) -> Tensor:
    """Return cast(x * (1 / sf)) for scales that exist already; 1 / sf is rounded to float32.

    For scales that are powers of two that is the data of ``per_token_cast``. Exact.

    Args:
        x: as for ``per_token_cast``.
        fmt: ``e4m3`` or ``e2m1``.
        num_per_channels: 16, 32, 64 or 128. Ascend has 32.
        sf: [num_tokens, groups] float32, contiguous, on the device of ``x``.
        x_block_size: as for ``per_token_cast``.
    """
    where = "per_token_cast_with_precomputed_sf"
    form = _plain_form(fmt, num_per_channels)
    if x_block_size is None and not is_compiling():
        data = _fast_precomputed(x, form, sf)
        if data is not None:
            return data
    values = plain_values(where, x, x_block_size)
    checks.dense(f"{where}: sf", sf, (float32,))
    forms.check_sf(f"{where}: sf", sf, values, values.shape[1], (1, num_per_channels))
    checks.contiguous(f"{where}: sf", sf)
    if is_compiling() or torch_ops.is_traced(values, sf):
        result: Tensor = _precomputed_op(values, fmt, num_per_channels, sf)
        return result
    return _precomputed(values, form, sf)


def _plain_form(fmt: str, size: int) -> Form:
    return forms.form("per_token_cast_with_precomputed_sf", fmt, size, False, False, False, False)


def _fast_precomputed(x: Any, form: Form, sf: Any) -> Tensor | None:
    """Launch what is loaded already on plain tensors; None leaves the call to the checks."""
    if not isinstance(x, Tensor):
        return None
    # Empty where Ascend has no such kernel, which no key is.
    data_name = forms.names(form, x)[:1]
    launch = forms.loaded("per_token_cast_with_precomputed_sf", x, *data_name)
    if launch is None or not forms.are_plain_scales(sf, x, (1, form.num_per_channels)):
        return None
    data = empty((x.shape[0], form.data_width(x.shape[1])), dtype=form.data_dtype, device=x.device)
    is_done = checks.launched(launch, x, sf, data, form.num_per_channels)
    return data if is_done else None


def _precomputed(x: Tensor, form: Form, sf: Tensor) -> Tensor:
    where = "per_token_cast_with_precomputed_sf"
    size = forms.group_size(where, form, x.device)
    launch = bind(
        where,
        x.device,
        x_dtype=NAMES[x.dtype],
        data_dtype=NAMES[form.data_dtype],
    )
    if launch is None:
        return reference.per_token_cast_with_precomputed_sf(x.detach(), form.fmt, size, sf)
    shape = (x.shape[0], form.data_width(x.shape[1]))
    data = empty(shape, dtype=form.data_dtype, device=x.device)
    if x.shape[0]:
        launch(aligned(x), sf, data, size)
    return data


def _precomputed_run(x: Tensor, fmt: str, size: int, sf: Tensor) -> Tensor:
    return _precomputed(x, _plain_form(fmt, size), sf)


def _precomputed_fake(x: Tensor, fmt: str, size: int, sf: Tensor) -> Tensor:
    form = _plain_form(fmt, size)
    return x.new_empty((x.shape[0], form.data_width(x.shape[1])), dtype=form.data_dtype)


_sf_only_op = torch_ops.define(
    f"per_token_cast_with_sf_only(Tensor x, str fmt, int num_per_channels, {_FLAGS}, "
    "float clamp_min) -> Tensor",
    _sf_only_run,
    _sf_only_fake,
)
_precomputed_op = torch_ops.define(
    "per_token_cast_with_precomputed_sf(Tensor x, str fmt, int num_per_channels, Tensor sf) "
    "-> Tensor",
    _precomputed_run,
    _precomputed_fake,
)
