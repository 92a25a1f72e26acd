"""The casts as compositions of torch's operators, with which the kernels are compared.

e2m1 has no operator in torch; its codes are found by ``bucketize``, which rounds a tie upwards.
Hidden must be a multiple of the group size.
"""

from __future__ import annotations

import torch
from torch import Tensor

from cases.case import E4M3_MAX

_E2M1_MAX = 6.0
_MIDDLES = (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)
_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_CLAMP_MIN = {"e4m3": 1e-4, "e2m1": _E2M1_MAX * 2.0**-126}
_CLAMP_MIN_E4M3_SF = {"e4m3": E4M3_MAX * 2.0**-9, "e2m1": _E2M1_MAX * 2.0**-9}

_tables: dict[tuple[str, torch.device], Tensor] = {}


def cast(
    values: Tensor, fmt: str, size: int, round_sf: bool, sf_dtype: str
) -> tuple[Tensor, Tensor]:
    """Return data and scales of float32 values."""
    sf, stored = scales(values, fmt, size, round_sf, sf_dtype)
    return encode(values, sf, fmt, size), stored


def scales(
    values: Tensor, fmt: str, size: int, round_sf: bool, sf_dtype: str
) -> tuple[Tensor, Tensor]:
    """Return scales as float32 and in the form that is stored."""
    least = (_CLAMP_MIN_E4M3_SF if sf_dtype == "float8_e4m3fn" else _CLAMP_MIN)[fmt]
    amax = values.view(len(values), -1, size).abs().amax(dim=-1).clamp(min=least)
    sf = amax / (E4M3_MAX if fmt == "e4m3" else _E2M1_MAX)
    if sf_dtype == "float8_e4m3fn":
        stored = sf.to(torch.float8_e4m3fn)
        return stored.float(), stored
    if not round_sf:
        return sf, sf
    sf = torch.exp2(torch.ceil(torch.log2(sf)))
    if sf_dtype == "float32":
        return sf, sf
    exponents = (sf.view(torch.int32) >> 23).to(torch.uint8)
    exponents = torch.nn.functional.pad(exponents, (0, -exponents.shape[1] % 4))
    return sf, exponents.view(torch.int32)


def encode(values: Tensor, sf: Tensor, fmt: str, size: int) -> Tensor:
    """Return the data of float32 values and scales."""
    scaled = (values.view(len(values), -1, size) / sf[..., None]).view(values.shape)
    if fmt == "e4m3":
        return scaled.clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn)
    table = _table("middles", scaled.device)
    code = torch.bucketize(scaled.abs(), table, out_int32=True) | (scaled.signbit() << 3)
    return (code[:, 0::2] | (code[:, 1::2] << 4)).to(torch.int8)


def values(data: Tensor, sf: Tensor, size: int) -> Tensor:
    """Return float32 values of data and scales of any form."""
    if sf.dtype == torch.int32:
        exponents = sf.view(torch.uint8).to(torch.int32)
        num_groups = data.shape[1] * (2 if data.dtype == torch.int8 else 1) // size
        sf = (exponents[:, :num_groups] << 23).view(torch.float32)
    if data.dtype == torch.int8:
        pair = torch.stack((data & 15, (data >> 4) & 15), dim=-1).flatten(-2)
        wide = _table("values", data.device)[pair.int()]
    else:
        wide = data.float()
    return (wide.view(len(data), -1, size) * sf.float()[..., None]).view(wide.shape)


def _table(name: str, device: torch.device) -> Tensor:
    """Return a constant, made once: a copy from the host cannot be captured in a graph."""
    key = (name, device)
    if key not in _tables:
        numbers = _MIDDLES if name == "middles" else (*_VALUES, *(-value for value in _VALUES))
        _tables[key] = torch.tensor(numbers, device=device)
    return _tables[key]
