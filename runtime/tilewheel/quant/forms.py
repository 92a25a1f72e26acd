"""What the flags of the casts come to: dtypes, sizes and memory of data and scales."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.compiler import is_compiling

from tilewheel import checks, torch_ops
from tilewheel.backend import active
from tilewheel.dispatch import bound
from tilewheel.key import Value
from tilewheel.reference.quant import CLAMP_MIN, CLAMP_MIN_E4M3_SF, MAX_VALUE

FORMATS = ("e4m3", "e2m1")
GROUP_SIZES = (16, 32, 64, 128)
_ASCEND_GROUP_SIZE = 32
_MAX_BLOCK = 2**31 - 1
NAMES = {
    torch.bfloat16: "bfloat16",
    torch.float32: "float32",
    torch.float8_e4m3fn: "float8_e4m3fn",
    torch.int8: "int8",
    torch.int32: "int32",
    torch.int16: "int16",
}
"""Parameter values of dtypes."""

_DATA_DTYPE = {"e4m3": torch.float8_e4m3fn, "e2m1": torch.int8}
_GROUPS_PER_WORD = {torch.int32: 4, torch.int16: 2}
_TMA_BYTES = 16
VECTOR_BYTES = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """A target of a cast: format, group size and the form of its scales."""

    fmt: str
    num_per_channels: int
    round_sf: bool
    is_packed: bool
    is_e4m3_sf: bool
    is_col_major: bool
    data_dtype: torch.dtype
    max_value: float
    default_clamp_min: float
    least_clamp_min: float
    cuda_names: tuple[str, str, bool]
    """Values of the parameters data_dtype, sf_dtype and round_sf, in the keys of CUDA."""

    def sf_dtype(self, device: Any) -> torch.dtype:
        """Return the element type of scales for tensors on ``device``."""
        if self.is_packed:
            return torch.int16 if is_ascend(device) else torch.int32
        return torch.float8_e4m3fn if self.is_e4m3_sf else torch.float32

    def num_words(self, hidden: int, sf_dtype: torch.dtype) -> int:
        """Return the elements of sf for one token."""
        num_groups = -(-hidden // self.num_per_channels)
        return -(-num_groups // groups_per_word(sf_dtype))

    def data_width(self, hidden: int) -> int:
        """Return the elements of data for one token."""
        return hidden // 2 if self.fmt == "e2m1" else hidden


def is_ascend(device: Any) -> bool:
    """Return whether tensors on ``device`` go to Ascend kernels, real or simulated."""
    kind = device.type
    return kind == "npu" or (kind == "cpu" and active() is not None)


def names(form: Form, x: Tensor) -> tuple[Value, ...]:
    """Return the values of data_dtype, sf_dtype, round_sf and, on Ascend, col_major_sf in keys.

    Empty where Ascend has no kernel for the group size.
    """
    if x.is_cuda or not is_ascend(x.device):
        return form.cuda_names
    if form.num_per_channels != _ASCEND_GROUP_SIZE:
        return ()
    data_name, _, round_sf = form.cuda_names
    return data_name, NAMES[form.sf_dtype(x.device)], round_sf, form.is_col_major


def loaded(operator: str, x: Any, *names: Value | None) -> Callable[..., Any] | None:
    """Return what to launch on a plain tensor ``x`` whose rows a kernel reads as they are.

    None where the artifact is not loaded yet, or ``x`` needs the checks that explain or a copy. The
    launcher checks the rest of ``x``, but not what it shares memory with.

    Args:
        operator: the operator.
        x: the first argument; its dtype is the first value in the key.
        *names: the values that follow.
    """
    if (
        type(x) is not Tensor
        or x.ndim != 2
        or x.layout is not torch.strided
        or x.is_neg()
        or torch_ops.is_intercepted()
    ):
        return None
    num_tokens, width = x.shape
    dtype = x.dtype
    multiple = 32 if dtype is torch.int8 else 64  # two channels an element
    if not num_tokens or width % multiple or x.data_ptr() % VECTOR_BYTES:
        return None
    return bound.get((operator, x.device, NAMES.get(dtype), *names, active()))


def are_plain_scales(sf: Any, data: Tensor, block: tuple[int, int]) -> bool:
    """Return whether scales fit ``data``, which the launcher of a kernel does not see."""
    if type(sf) is not Tensor or sf.layout is not torch.strided or sf.is_nested or sf.is_neg():
        return False
    num_tokens, width = data.shape
    num_groups = -(-width * (2 if data.dtype is torch.int8 else 1) // block[1])
    words = -(-num_groups // groups_per_word(sf.dtype))
    return tuple(sf.shape) == (-(-num_tokens // block[0]), words)


def group_size(where: str, form: Form, device: Any) -> int:
    """Return num_per_channels, as kernels on ``device`` take it.

    Raises:
        ValueError: kernels there do not have it.
    """
    if form.num_per_channels != _ASCEND_GROUP_SIZE and is_ascend(device):
        raise ValueError(
            f"{where}: num_per_channels: is {form.num_per_channels}, must be {_ASCEND_GROUP_SIZE} "
            "on Ascend"
        )
    return form.num_per_channels


def layout(device: Any, *, col_major: bool) -> dict[str, bool]:
    """Return the parameter for the layout of scales: CUDA kernels take strides instead."""
    return {"col_major_sf": col_major} if is_ascend(device) else {}


def as_argument(sf: Tensor, *, col_major: bool) -> Tensor:
    """Return scales as kernels take them: on Ascend transposed where column-major."""
    return sf.t() if col_major and is_ascend(sf.device) else sf


def groups_per_word(sf_dtype: torch.dtype) -> int:
    """Return how many scales one element holds."""
    return _GROUPS_PER_WORD.get(sf_dtype, 1)


_forms: dict[tuple[object, ...], Form] = {}


def form(where: str, *flags: Any) -> Form:
    """Return the form that the flags ask for; equal flags give the same object.

    Args:
        where: the operator, for messages.
        *flags: fmt, num_per_channels, round_sf, use_packed_ue8m0, use_e4m3_sf and
            use_tma_aligned_col_major_sf.

    Raises:
        TypeError: a flag is of another type.
        ValueError: a value is unknown, or flags exclude each other.
    """
    if is_compiling():
        return _make_form(where, *flags)
    try:
        known = _forms.get(flags)
    except TypeError:
        return _make_form(where, *flags)  # a flag that cannot be hashed; this refuses it
    # True equals 1, and 32 equals 32.0: what is equal to a flag may still be of a wrong type.
    _, size, round_sf, packed, e4m3_sf, col_major = flags
    if (
        known is not None
        and type(size) is int
        and round_sf is known.round_sf
        and packed is known.is_packed
        and e4m3_sf is known.is_e4m3_sf
        and col_major is known.is_col_major
    ):
        return known
    made = _make_form(where, *flags)
    return _forms.setdefault(flags, made)


def _make_form(
    where: str,
    fmt: Any,
    num_per_channels: Any,
    round_sf: Any,
    use_packed_ue8m0: Any,
    use_e4m3_sf: Any,
    use_tma_aligned_col_major_sf: Any,
) -> Form:
    if not isinstance(fmt, str):
        raise TypeError(f"{where}: fmt: is {checks.kind(fmt)}, must be a str")
    if fmt not in FORMATS:
        raise ValueError(f"{where}: fmt: is {fmt!r}, must be 'e4m3' or 'e2m1'")
    size = checks.integer(f"{where}: num_per_channels", num_per_channels, 16, 128)
    if size not in GROUP_SIZES:
        raise ValueError(f"{where}: num_per_channels: is {size}, must be 16, 32, 64 or 128")
    for name, flag in (
        ("round_sf", round_sf),
        ("use_packed_ue8m0", use_packed_ue8m0),
        ("use_e4m3_sf", use_e4m3_sf),
        ("use_tma_aligned_col_major_sf", use_tma_aligned_col_major_sf),
    ):
        checks.flag(f"{where}: {name}", flag)
    if use_packed_ue8m0 and not round_sf:
        raise ValueError(f"{where}: use_packed_ue8m0: is True, must be False without round_sf")
    if use_e4m3_sf and round_sf:
        raise ValueError(f"{where}: use_e4m3_sf: is True, must be False with round_sf")
    max_value = MAX_VALUE[fmt]
    sf_name = "int32" if use_packed_ue8m0 else "float8_e4m3fn" if use_e4m3_sf else "float32"
    return Form(
        fmt=fmt,
        num_per_channels=size,
        round_sf=round_sf,
        is_packed=use_packed_ue8m0,
        is_e4m3_sf=use_e4m3_sf,
        is_col_major=use_tma_aligned_col_major_sf,
        data_dtype=_DATA_DTYPE[fmt],
        max_value=max_value,
        default_clamp_min=(CLAMP_MIN_E4M3_SF if use_e4m3_sf else CLAMP_MIN)[fmt],
        # The scale must stay a normal number, of e4m3 at least the smallest one.
        least_clamp_min=max_value * (2.0**-9 if use_e4m3_sf else 2.0**-126),
        cuda_names=(NAMES[_DATA_DTYPE[fmt]], sf_name, round_sf),
    )


def clamp_min(where: str, form: Form, value: Any) -> float:
    """Return the least amax as a float that keeps scales finite and normal."""
    if value is None:
        return form.default_clamp_min
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{where}: clamp_min: is {checks.kind(value)}, must be a float")
    if not form.least_clamp_min <= value <= checks.FLOAT32_MAX:
        raise ValueError(
            f"{where}: clamp_min: is {value}, must be {form.least_clamp_min} to "
            f"{checks.FLOAT32_MAX}"
        )
    return float(value)


def block_size(where: str, value: Any) -> tuple[int, int]:
    """Return (tokens, channels) that share a scale."""
    if not isinstance(value, (tuple, list)) or len(value) != 2:
        raise TypeError(f"{where}: is {value!r}, must be (tokens, channels)")
    if type(value[0]) is type(value[1]) is int:
        tokens, channels = value
        # What passes is worth no message made in advance.
        if 1 <= tokens <= _MAX_BLOCK and 16 <= channels <= _MAX_BLOCK and channels % 16 == 0:
            return tokens, channels
    tokens = checks.integer(f"{where}[0]", value[0], 1, _MAX_BLOCK)
    channels = checks.integer(f"{where}[1]", value[1], 16, _MAX_BLOCK)
    if channels % 16:
        raise ValueError(f"{where}[1]: is {channels}, must be a multiple of 16")
    return tokens, channels


def empty_sf(form: Form, num_tokens: int, hidden: int, device: Any) -> Tensor:
    """Allocate scales [num_tokens, words]."""
    dtype = form.sf_dtype(device)
    num_words = form.num_words(hidden, dtype)
    if not form.is_col_major:
        return torch.empty((num_tokens, num_words), dtype=dtype, device=device)
    leading = leading_dimension(num_tokens, dtype, device)
    # The padding behind the last column belongs to the memory: TMA reads it.
    return torch.empty((num_words, leading), dtype=dtype, device=device).t()[:num_tokens]


def column_multiple(dtype: torch.dtype, device: Any) -> int:
    """Return what the stride between columns of column-major scales is a multiple of."""
    return 1 if is_ascend(device) else _TMA_BYTES // dtype.itemsize


def leading_dimension(num_tokens: int, dtype: torch.dtype, device: Any) -> int:
    """Return the stride between columns of column-major scales: 16 bytes' multiple on CUDA."""
    align = column_multiple(dtype, device)
    return max(1, -(-num_tokens // align)) * align


def check_rows(where: str, x: Tensor, dtypes: tuple[torch.dtype, ...]) -> int:
    """Return the channels of a tensor [num_tokens, width] with rows of adjacent elements."""
    checks.dense(where, x, dtypes)
    if x.ndim != 2:
        raise ValueError(f"{where}: shape is {tuple(x.shape)}, must be [num_tokens, hidden]")
    hidden: int = x.shape[1] * (2 if x.dtype == torch.int8 else 1)
    if hidden < 64 or hidden % 64:
        raise ValueError(f"{where}: hidden is {hidden}, must be a multiple of 64")
    if x.stride(1) != 1 or x.stride(0) < 0:
        raise ValueError(
            f"{where}: strides are {x.stride()}, must be (any, 1)\nhint: call .contiguous()"
        )
    return hidden


def check_sf(where: str, sf: Tensor, data: Tensor, hidden: int, block: tuple[int, int]) -> None:
    """Refuse scales that do not fit data of ``hidden`` channels and the block size."""
    dtypes = (torch.float32, torch.float8_e4m3fn, torch.int32, torch.int16)
    checks.dense(where, sf, dtypes)
    rows = -(-data.shape[0] // block[0])
    num_groups = -(-hidden // block[1])
    words = -(-num_groups // groups_per_word(sf.dtype))
    if tuple(sf.shape) != (rows, words):
        raise ValueError(f"{where}: shape is {tuple(sf.shape)}, must be {(rows, words)}")
    checks.same_device(where, sf, data, "data")


def is_col_major(sf: Tensor) -> bool:
    """Return whether scales [rows, words] are to be read as column-major."""
    return bool(sf.stride(1) != 1 and sf.stride(0) == 1)


def check_out_sf(where: str, sf: Tensor, form: Form, x: Tensor, hidden: int) -> None:
    """Refuse scales to write that are not as the form says."""
    dtype = form.sf_dtype(x.device)
    shape = (x.shape[0], form.num_words(hidden, dtype))
    if not form.is_col_major:
        checks.output(where, sf, like=x, name="x", shape=shape, of=dtype)
        return
    checks.shaped(where, sf, like=x, name="x", shape=shape, of=dtype)
    align = column_multiple(dtype, x.device)
    if sf.stride(0) != 1 or sf.stride(1) < shape[0] or sf.stride(1) % align:
        raise ValueError(
            f"{where}: strides are {sf.stride()}, must be (1, a multiple of {align} from "
            f"{math.ceil(max(1, shape[0]) / align) * align})"
        )
    if sf.requires_grad:
        raise ValueError(f"{where}: requires gradients, must not\nhint: call .detach()")
    checks.separate(where, sf, "x", x)
