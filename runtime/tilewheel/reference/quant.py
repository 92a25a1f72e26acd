"""Quantisation operators in plain PyTorch, on any device.

A quantised tensor is a pair (data, sf). ``e4m3``: data float8_e4m3fn [num_tokens, hidden].
``e2m1``: data int8 [num_tokens, hidden // 2], two values in a byte, the low nibble first. A value's
code has its sign in bit 3, and codes 0 to 7 are 0, 0.5, 1, 1.5, 2, 3, 4, 6.

Scales: float32, float8_e4m3fn, or packed exponent bytes (UE8M0), the first in the lowest byte: four
in an int32 on CUDA, two in an int16 on Ascend.

What is not finite: a NaN does not count in a group's maximum and becomes NaN (e4m3) or 6
(e2m1, which has no NaN). An infinity counts as the largest finite float32, so that scales stay
finite; it saturates, and the finite values beside it become zeros.
"""

from __future__ import annotations

import torch
from torch import Tensor

MAX_VALUE = {"e4m3": 448.0, "e2m1": 6.0}
CLAMP_MIN = {"e4m3": 1e-4, "e2m1": 6.0 * 2.0**-126}
"""Default least amax by format, where scales are float32 or packed exponents."""
CLAMP_MIN_E4M3_SF = {"e4m3": 448.0 * 2.0**-9, "e2m1": 6.0 * 2.0**-9}

_GRID = {"e4m3": (2.0**-6, 20), "e2m1": (1.0, 22)}
"""The smallest normal number, and the bits of a float32's mantissa that the format lacks."""
_VALUE_DTYPE = {"bf16": torch.bfloat16, "f32": torch.float32}
_FLOAT32_MAX = torch.finfo(torch.float32).max
_E2M1_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_WORDS = {torch.int32: 4, torch.int16: 2}
"""Exponent bytes in a word of packed scales."""


def per_token_cast(
    x: Tensor | tuple[Tensor, Tensor],
    fmt: str,
    num_per_channels: int,
    *,
    x_block_size: tuple[int, int] | None = None,
    clamp_min: float | None = None,
    round_sf: bool = False,
    sf_dtype: torch.dtype = torch.float32,
) -> tuple[Tensor, Tensor]:
    """Return x quantised with one scale for each ``num_per_channels`` channels of a token.

    The arithmetic is in float32. amax = max |x| of the group, at least ``clamp_min``; the last
    group of a token is shorter where ``num_per_channels`` does not divide hidden.

    - float32 scales: sf = amax / max, data = cast(x * (max / amax)).
    - ``round_sf``: sf = 2^ceil(log2(amax * (1 / max))), data = cast(x * (1 / sf)).
    - ``sf_dtype`` float8_e4m3fn: sf = cast(amax / max), data = cast(x / sf).

    Casts round to nearest even and saturate.

    Args:
        x: [num_tokens, hidden] bfloat16 or float32, or a quantised pair.
        fmt: ``e4m3`` or ``e2m1``.
        num_per_channels: channels that share a scale.
        x_block_size: (tokens, channels) that share a scale of the pair ``x``.
        clamp_min: least amax; None takes the format's default.
        round_sf: make scales powers of two.
        sf_dtype: float32, float8_e4m3fn, or with ``round_sf`` int32 or int16 for packed exponents.

    Returns:
        data, and sf [num_tokens, groups] (packed: [num_tokens, ceil(groups / 4 or 2)], the unused
        bytes zero), contiguous.
    """
    values = _dequantised(x, x_block_size)
    amax = _clamped_amax(values, fmt, num_per_channels, clamp_min, sf_dtype)
    sf = _scales(amax, fmt, round_sf, sf_dtype)
    hidden = values.shape[1]
    if sf_dtype == torch.float8_e4m3fn:
        scaled = values / _spread(sf, num_per_channels, hidden)
    else:
        # Tensor by tensor: torch computes number / tensor as a product with the reciprocal.
        inverse = (_like(sf, 1.0) / sf) if round_sf else (_like(amax, MAX_VALUE[fmt]) / amax)
        scaled = values * _spread(inverse, num_per_channels, hidden)
    return _encode(scaled, fmt), _stored(sf, sf_dtype)


def per_token_cast_with_sf_only(
    x: Tensor | tuple[Tensor, Tensor],
    fmt: str,
    num_per_channels: int,
    *,
    x_block_size: tuple[int, int] | None = None,
    clamp_min: float | None = None,
    round_sf: bool = False,
    sf_dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Return the scales of ``per_token_cast``."""
    values = _dequantised(x, x_block_size)
    amax = _clamped_amax(values, fmt, num_per_channels, clamp_min, sf_dtype)
    return _stored(_scales(amax, fmt, round_sf, sf_dtype), sf_dtype)


def per_token_cast_with_precomputed_sf(
    x: Tensor | tuple[Tensor, Tensor],
    fmt: str,
    num_per_channels: int,
    sf: Tensor,
    *,
    x_block_size: tuple[int, int] | None = None,
) -> Tensor:
    """Return cast(x * (1 / sf)) for given scales, float32 [num_tokens, groups]."""
    values = _dequantised(x, x_block_size)
    inverse = _like(sf, 1.0) / sf
    return _encode(values * _spread(inverse, num_per_channels, values.shape[1]), fmt)


def stochastic_cast(
    x: Tensor | tuple[Tensor, Tensor],
    fmt: str,
    num_per_channels: int,
    *,
    seed: int,
    offset: int = 0,
    x_block_size: tuple[int, int] | None = None,
    clamp_min: float | None = None,
    round_sf: bool = False,
    first_token: int = 0,
) -> tuple[Tensor, Tensor]:
    """Return ``per_token_cast`` with data rounded up or down by the bits of Philox4x32-10.

    A value between two of the format becomes the upper one with the probability of its distance
    from the lower one, in steps of 2^-20 (e4m3) or 2^-22 (e2m1) of theirs. Bits depend on the place
    of a value: ``first_token`` says that ``x`` is the rows from there of a larger tensor.
    """
    values = _dequantised(x, x_block_size)
    num_tokens, hidden = values.shape
    amax = _clamped_amax(values, fmt, num_per_channels, clamp_min, torch.float32)
    sf = _scales(amax, fmt, round_sf, torch.float32)
    inverse = (_like(sf, 1.0) / sf) if round_sf else (_like(amax, MAX_VALUE[fmt]) / amax)
    scaled = values * _spread(inverse, num_per_channels, hidden)
    smallest_normal, dropped_bits = _GRID[fmt]
    size = scaled.abs().clamp(max=MAX_VALUE[fmt])
    # Below the smallest normal number the grid is even; adding that number puts the grid's step at
    # the lowest mantissa bit that is kept, as it is above.
    shift = torch.where(size < smallest_normal, smallest_normal, 0.0)
    first, num_places = first_token * hidden // 16, num_tokens * hidden // 16
    random = _philox(num_places, seed, offset, values.device, first).view(values.shape)
    bits = (size + shift).view(torch.int32) + (random >> (32 - dropped_bits)).to(torch.int32)
    rounded = (bits >> dropped_bits << dropped_bits).view(torch.float32) - shift
    rounded = torch.where(scaled.isnan(), scaled, rounded.copysign(scaled))
    return _encode(rounded, fmt), sf


def _philox(
    num_places: int, seed: int, offset: int, device: torch.device, first: int = 0
) -> Tensor:
    """Return 16 uint32 for each place, in int64: Salmon et al., SC 2011, with 10 rounds."""
    mask = 0xFFFFFFFF
    place = torch.arange(first, first + num_places, device=device).view(-1, 1)
    call = torch.arange(4, device=device)
    zeros = torch.zeros((num_places, 4), dtype=torch.int64, device=device)
    counter = [place + zeros & mask, (place >> 32) * 4 + call, zeros + (offset & mask)]
    counter.append(zeros + (offset >> 32 & mask))
    key = [seed & mask, seed >> 32 & mask]
    for _ in range(10):
        # Products wrap at 64 bits; their bits are those of the unsigned products.
        first, second = counter[0] * 0xD2511F53, counter[2] * 0xCD9E8D57
        counter = [
            (second >> 32 & mask) ^ counter[1] ^ key[0],
            second & mask,
            (first >> 32 & mask) ^ counter[3] ^ key[1],
            first & mask,
        ]
        key = [key[0] + 0x9E3779B9 & mask, key[1] + 0xBB67AE85 & mask]
    return torch.stack(counter, dim=-1).view(num_places, 16)


def cast_back(
    x: tuple[Tensor, Tensor],
    fmt: str,
    x_block_size: tuple[int, int],
) -> Tensor:
    """Return data * sf in float32, rounded once to nearest even.

    Args:
        x: (data, sf); sf is float32, float8_e4m3fn, or packed exponents (int32 or int16).
        fmt: ``bf16`` or ``f32``, the type of the result.
        x_block_size: (tokens, channels) that share a scale.
    """
    return _dequantised(x, x_block_size).to(_VALUE_DTYPE[fmt])


def decode(data: Tensor) -> Tensor:
    """Return the float32 values of quantised data: float8_e4m3fn, or int8 for e2m1 pairs."""
    if data.dtype != torch.int8:
        return data.float()
    codes = torch.stack([data & 15, (data >> 4) & 15], dim=-1).flatten(-2).long()
    table = torch.tensor([*_E2M1_VALUES, *(-value for value in _E2M1_VALUES)], device=data.device)
    return table[codes]


def unpack_sf(sf: Tensor, num_groups: int) -> Tensor:
    """Return scales of any form as float32 [rows, num_groups].

    An exponent byte b is 2^(b - 127); byte 0, which no cast writes for a group, is 0.
    """
    if sf.dtype not in _WORDS:
        return sf.float()
    shifts = torch.arange(_WORDS[sf.dtype], dtype=torch.int32, device=sf.device) * 8
    exponents = (sf.to(torch.int32).unsqueeze(-1) >> shifts) & 255
    return (exponents.flatten(-2)[:, :num_groups] << 23).view(torch.float32)


def _dequantised(x: Tensor | tuple[Tensor, Tensor], x_block_size: tuple[int, int] | None) -> Tensor:
    if isinstance(x, Tensor):
        return x.float()
    assert x_block_size is not None
    data, sf = x
    values = decode(data)
    num_tokens, hidden = values.shape
    block_tokens, block_channels = x_block_size
    scales = unpack_sf(sf, -(-hidden // block_channels))
    scales = _spread(scales, block_channels, hidden)
    return values * scales.repeat_interleave(block_tokens, dim=0)[:num_tokens]


def _spread(sf: Tensor, num_per_channels: int, hidden: int) -> Tensor:
    return sf.repeat_interleave(num_per_channels, dim=1)[:, :hidden]


def _clamped_amax(
    values: Tensor,
    fmt: str,
    num_per_channels: int,
    clamp_min: float | None,
    sf_dtype: torch.dtype,
) -> Tensor:
    if clamp_min is None:
        defaults = CLAMP_MIN_E4M3_SF if sf_dtype == torch.float8_e4m3fn else CLAMP_MIN
        clamp_min = defaults[fmt]
    num_tokens, hidden = values.shape
    magnitude = torch.nan_to_num(values.abs(), nan=0.0, posinf=_FLOAT32_MAX)
    magnitude = torch.nn.functional.pad(magnitude, (0, -hidden % num_per_channels))
    num_groups = magnitude.shape[1] // num_per_channels
    groups = magnitude.view(num_tokens, num_groups, num_per_channels)
    return groups.amax(dim=-1).clamp(min=clamp_min)


def _scales(amax: Tensor, fmt: str, round_sf: bool, sf_dtype: torch.dtype) -> Tensor:
    """Return the scales as float32, already rounded to what ``sf_dtype`` holds."""
    if round_sf:
        # ceil(log2(.)) on the bits: the exponent, plus one if any bit of the mantissa is set.
        bits = (amax * _like(amax, 1.0 / MAX_VALUE[fmt])).view(torch.int32)
        exponent = (bits >> 23) + ((bits & 0x7FFFFF) != 0)
        return (exponent << 23).view(torch.float32)
    sf = amax / _like(amax, MAX_VALUE[fmt])
    return _to_e4m3(sf).float() if sf_dtype == torch.float8_e4m3fn else sf


def _stored(sf: Tensor, sf_dtype: torch.dtype) -> Tensor:
    """Return float32 scales in the form in which they are stored."""
    if sf_dtype not in _WORDS:
        return sf.to(sf_dtype)
    per_word = _WORDS[sf_dtype]
    exponents = sf.view(torch.int32) >> 23
    exponents = torch.nn.functional.pad(exponents, (0, -exponents.shape[1] % per_word))
    exponents = exponents.view(len(sf), exponents.shape[1] // per_word, per_word)
    word = torch.zeros_like(exponents[..., 0])
    for i in range(per_word):
        word |= exponents[..., i] << (8 * i)
    return word.to(sf_dtype)


def _encode(scaled: Tensor, fmt: str) -> Tensor:
    return _to_e4m3(scaled) if fmt == "e4m3" else _to_e2m1(scaled)


def _to_e4m3(values: Tensor) -> Tensor:
    # torch's own cast makes NaN of what is too large, and keeps a NaN's sign.
    limit = MAX_VALUE["e4m3"]
    values = (
        torch.where(values.isnan(), torch.nan, values.clamp(-limit, limit))
        .abs()
        .copysign(torch.where(values.isnan(), 1.0, values))
    )
    return values.to(torch.float8_e4m3fn)


def _to_e2m1(values: Tensor) -> Tensor:
    """Return pairs of codes in int8; the nearest value, of two equally near the even code."""
    magnitude = torch.nan_to_num(values.abs(), nan=6.0).clamp(max=6.0)
    code = torch.zeros(values.shape, dtype=torch.int32, device=values.device)
    for lower in range(7):
        middle = (_E2M1_VALUES[lower] + _E2M1_VALUES[lower + 1]) / 2
        code += magnitude >= middle if lower % 2 else magnitude > middle
    negative = values.signbit() & ~values.isnan()
    code |= negative.to(torch.int32) << 3
    return (code[:, 0::2] | (code[:, 1::2] << 4)).to(torch.uint8).view(torch.int8)


def _like(tensor: Tensor, value: float) -> Tensor:
    return torch.full_like(tensor, value)
