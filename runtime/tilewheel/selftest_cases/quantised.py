"""Inputs that the self-tests of the quantisation operators share."""

from __future__ import annotations

import torch
from torch import Tensor

from tilewheel.key import Value

FMT = {"float8_e4m3fn": "e4m3", "int8": "e2m1"}
SIZES = ((0, 64), (1, 2880), (2, 576), (5, 1408), (37, 7168))
"""(num_tokens, hidden): none, one, and sizes that 128 does not divide."""


def values(num_tokens: int, hidden: int, dtype: torch.dtype) -> Tensor:
    """Return rows of ordinary, tiny, huge and zero groups, ties of both formats, NaN, infinities.

    Rows are a part of wider ones: their stride is not their width.
    """
    generator = torch.Generator().manual_seed(num_tokens * 8192 + hidden)
    wide = torch.randn((num_tokens, hidden + 64), generator=generator) * 3
    x = wide[:, :hidden]
    scale = torch.exp2(torch.randint(-20, 20, (num_tokens, hidden // 32), generator=generator))
    x *= scale.repeat_interleave(32, dim=1)
    x[0::3, 0:32] = torch.linspace(-8, 8, 32).mul(2).round().div(2)  # ties of e2m1 at amax 6
    x[0::3, 0] = 6.0
    x[1::3, 32:64] = 0.0
    x[2::3, 0:32] = torch.tensor([1e-45, -1e-45, 1e-39, -0.0]).repeat(8)
    x[3::8, 7] = torch.nan
    x[4::8, 40] = torch.inf
    x[4::8, 41] = -torch.inf
    return wide.to(dtype)[:, :hidden]


def group_sizes(parameters: dict[str, Value]) -> tuple[int, ...]:
    """Return the numbers of channels that may share a scale in a variant."""
    return (32,) if "num_vec_cores" in parameters else (16, 32, 64, 128)


def torch_dtype(name: Value) -> torch.dtype:
    """Return the dtype of a parameter's value."""
    dtype = getattr(torch, str(name))
    assert isinstance(dtype, torch.dtype)
    return dtype


def place(x: Tensor, device: str) -> Tensor:
    """Return a copy on ``device`` with the strides of ``x``."""
    storage = x.as_strided((x.untyped_storage().nbytes() // x.element_size(),), (1,), 0)
    return storage.to(device, copy=True).as_strided(x.shape, x.stride(), x.storage_offset())


def sf_layouts(parameters: dict[str, Value]) -> tuple[bool, ...]:
    """Return whether scales are column-major: on CUDA that is known at run time, so both."""
    return (bool(parameters["col_major_sf"]),) if "num_vec_cores" in parameters else (False, True)


def empty_sf(expected: Tensor, *, col_major: bool, device: str) -> Tensor:
    """Return memory for scales [num_tokens, num_words] in one of the two orders."""
    num_tokens, num_words = expected.shape
    if not col_major:
        return torch.empty(expected.shape, dtype=expected.dtype, device=device)
    shape = (num_words, -(-max(1, num_tokens) // 16) * 16)
    return torch.empty(shape, dtype=expected.dtype, device=device)[:, :num_tokens].t()


def as_argument(sf: Tensor, parameters: dict[str, Value]) -> Tensor:
    """Return scales as an artifact takes them: on Ascend transposed where column-major."""
    return sf.t() if parameters.get("col_major_sf") else sf
