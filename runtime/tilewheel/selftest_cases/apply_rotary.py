"""Self-test of apply_rotary: positions of both types and none, odd views."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from tilewheel.key import Value
from tilewheel.reference import transform
from tilewheel.selftest_cases import Case

_CACHE_ROWS = 97


def cases(parameters: dict[str, Value], device: str) -> Iterator[Case]:
    """Yield the calls for one variant."""
    dtype = getattr(torch, str(parameters["dtype"]))
    head_dim = int(parameters["head_dim"])
    interleaved = bool(parameters["interleaved"])
    angles = torch.arange(_CACHE_ROWS)[:, None] * 10 ** (-torch.arange(head_dim // 2) / 8)
    cache = torch.cat((angles.cos(), angles.sin()), dim=-1)
    # num_tokens, heads, heads of key, elements between heads, type of positions, scalars.
    for num_tokens, num_heads, num_key_heads, gap, kind, conjugate, offset in (
        (0, 3, 1, 0, torch.int64, False, 0),
        (1, 64, 1, 0, torch.int64, False, 0),
        (37, 5, 0, 448, torch.int32, True, 3),
        (133, 3, 2, 1, None, False, 9),
    ):
        query = _rows(num_tokens, num_heads, head_dim, gap, dtype)
        key = _rows(num_tokens, num_key_heads, head_dim, gap, dtype)
        positions = None
        if kind is not None:
            positions = (torch.arange(num_tokens) * 29 % (_CACHE_ROWS + 4) - 2).to(kind)
        has_key = num_key_heads > 0
        expected = [query.clone(), key.clone()]
        transform.apply_rotary(
            expected[0],
            cache,
            expected[1] if has_key else None,
            positions,
            interleaved=interleaved,
            conjugate=conjugate,
            seqlen_offset=offset,
        )
        on_device = _view_on(query, device)
        yield Case(
            name=f"num_tokens={num_tokens} num_heads={num_heads} num_key_heads={num_key_heads} "
            f"gap={gap} positions={kind}",
            arguments=(
                on_device,
                _view_on(key, device) if has_key else on_device,
                cache.to(device),
                _only(positions, torch.int64).to(device),
                _only(positions, torch.int32).to(device),
                has_key,
                conjugate,
                offset,
                max(1, num_tokens),
            ),
            expected={0: expected[0], 1: expected[1] if has_key else expected[0]},
        )


def _rows(num_tokens: int, num_heads: int, head_dim: int, gap: int, dtype: torch.dtype) -> Tensor:
    """Return rows that lie ``gap`` elements apart, the first one behind such a gap too."""
    generator = torch.Generator().manual_seed(num_tokens + num_heads)
    shape = (num_tokens, num_heads, head_dim + gap)
    return torch.randn(shape, generator=generator).to(dtype)[..., gap:]


def _view_on(x: Tensor, device: str) -> Tensor:
    """Return a copy on ``device`` with the strides and the offset of ``x``."""
    whole = x.as_strided((x.untyped_storage().nbytes() // x.element_size(),), (1,), 0)
    return whole.to(device, copy=True).as_strided(x.shape, x.stride(), x.storage_offset())


def _only(positions: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Return the positions if they are of ``dtype``, else none."""
    if positions is not None and positions.dtype is dtype:
        return positions
    return torch.empty(0, dtype=dtype)
