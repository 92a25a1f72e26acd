"""per_token_cast with stochastic rounding."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.compiler import is_compiling

from tilewheel import checks, torch_ops
from tilewheel.dispatch import bind
from tilewheel.quant import forms
from tilewheel.quant.forms import NAMES, Form
from tilewheel.quant.per_token import Pair, aligned, empty_pair, plain_values
from tilewheel.reference import quant as reference


def stochastic_cast(
    x: Tensor | Pair,
    fmt: str,
    num_per_channels: int,
    *,
    seed: int,
    offset: int = 0,
    x_block_size: tuple[int, int] | None = None,
    clamp_min: float | None = None,
    round_sf: bool = False,
) -> Pair:
    """Quantise as ``per_token_cast`` does, but round the data stochastically and unbiased.

    A scaled value between two of the format becomes the upper one with the probability of its
    distance from the lower one, in steps of 2^-20 (e4m3) or 2^-22 (e2m1) of theirs; values of the
    format stay as they are. The bits are Philox4x32-10: the same seed and offset give the same
    data, bit for bit that of ``tilewheel.reference``, and a replayed graph repeats them. CUDA and
    CPU. Not differentiable.

    Args:
        x: as for ``per_token_cast``.
        fmt: ``e4m3`` or ``e2m1``.
        num_per_channels: 16, 32, 64 or 128.
        seed: key of the random bits, a 64-bit int.
        offset: which of the seed's sequences, 0 to 2^63 - 1; take another one for each call.
        x_block_size: as for ``per_token_cast``.
        clamp_min: as for ``per_token_cast``.
        round_sf: make scales powers of two.

    Returns:
        (data, sf) as from ``per_token_cast``, sf float32 and row-major.
    """
    where = "stochastic_cast"
    form = _plain_form(fmt, num_per_channels, round_sf)
    least = forms.clamp_min(where, form, clamp_min)
    seed = checks.integer(f"{where}: seed", seed, -(2**63), 2**63 - 1)
    offset = checks.integer(f"{where}: offset", offset, 0, 2**63 - 1)
    if x_block_size is None and not is_compiling():
        pair = _fast_stochastic(x, form, least, seed, offset)
        if pair is not None:
            return pair
    values = plain_values(where, x, x_block_size)
    if is_compiling() or torch_ops.is_traced(values):
        pair = _stochastic_op(values, fmt, num_per_channels, round_sf, least, seed, offset)
        return pair[0], pair[1]
    return _stochastic_cast(values, form, least, seed, offset)


def _plain_form(*flags: Any) -> Form:
    return forms.form("stochastic_cast", *flags, False, False, False)


def _fast_stochastic(x: Any, form: Form, least: float, seed: int, offset: int) -> Pair | None:
    """Launch what is loaded already on a plain tensor; None leaves the call to the checks."""
    data_name, _, round_sf = form.cuda_names
    launch = forms.loaded("stochastic_cast", x, data_name, round_sf)
    if launch is None:
        return None
    data, sf = empty_pair(form, x, x.shape[1])
    is_done = checks.launched(launch, x, data, sf, least, form.num_per_channels, seed, offset)
    return (data, sf) if is_done else None


def _stochastic_cast(x: Tensor, form: Form, least: float, seed: int, offset: int) -> Pair:
    size = form.num_per_channels
    launch = bind(
        "stochastic_cast",
        x.device,
        x_dtype=NAMES[x.dtype],
        data_dtype=NAMES[form.data_dtype],
        round_sf=form.round_sf,
    )
    if launch is None:
        return reference.stochastic_cast(
            x.detach(),
            form.fmt,
            size,
            seed=seed,
            offset=offset,
            clamp_min=least,
            round_sf=form.round_sf,
        )
    data, sf = empty_pair(form, x, x.shape[1])
    if x.shape[0]:
        launch(aligned(x), data, sf, least, size, seed, offset)
    return data, sf


def _stochastic_run(x: Tensor, *arguments: Any) -> Pair:
    return _stochastic_cast(x, _plain_form(*arguments[:3]), *arguments[3:])


def _stochastic_fake(x: Tensor, *arguments: Any) -> Pair:
    return empty_pair(_plain_form(*arguments[:3]), x, x.shape[1])


_stochastic_op = torch_ops.define(
    "stochastic_cast(Tensor x, str fmt, int num_per_channels, bool round_sf, float clamp_min, "
    "int seed, int offset) -> (Tensor, Tensor)",
    _stochastic_run,
    _stochastic_fake,
)
