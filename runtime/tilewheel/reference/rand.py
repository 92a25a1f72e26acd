"""Random numbers in plain PyTorch, on any device."""

from __future__ import annotations

import math

import torch
from torch import Tensor

# Philox 4x32-10: J. Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011.
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10
_WORD = 0xFFFFFFFF


def philox(counter: Tensor, sequence: int, seed: int) -> Tensor:
    """Return the four 32-bit words of Philox 4x32-10 for each counter.

    Args:
        counter: [n] int64, the low 64 bits of the counter.
        sequence: its high 64 bits.
        seed: the key, 64 bits.

    Returns:
        [n, 4] int64, each 0 to 2^32 - 1.
    """
    high = torch.full_like(counter, sequence)
    words = [counter & _WORD, (counter >> 32) & _WORD, high & _WORD, (high >> 32) & _WORD]
    keys = [seed & _WORD, (seed >> 32) & _WORD]
    for _ in range(_ROUNDS):
        # A product has 64 bits: int64 wraps, and keeps every bit of it.
        first, second = words[0] * _MULTIPLIERS[0], words[2] * _MULTIPLIERS[1]
        words = [
            ((second >> 32) & _WORD) ^ words[1] ^ keys[0],
            second & _WORD,
            ((first >> 32) & _WORD) ^ words[3] ^ keys[1],
            first & _WORD,
        ]
        keys = [(key + step) & _WORD for key, step in zip(keys, _WEYL, strict=True)]
    return torch.stack(words, dim=-1)


def randn(
    *size: int,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str | None = None,
    seed: int,
    sequence: int = 0,
    offset: int = 0,
) -> Tensor:
    """Return standard normal numbers ``offset`` to ``offset + n`` of a sequence, row-major.

    Words w of Philox block b give numbers 4 b to 4 b + 3: u = float32(w[0]) 2^-32 + 2^-33 in
    float32, a = int32(w[1]) pi 2^-31, the numbers sqrt(-2 ln u) cos a and sqrt(-2 ln u) sin a;
    then the same of w[2] and w[3]. Rounding of u is part of the definition, since ln u has no
    relative accuracy near 1; the rest is in float64.

    Args:
        *size: the result's shape.
        dtype: the result's type; numbers are rounded to it once.
        device: where to compute; None is the default device.
        seed: 0 to 2^63 - 1.
        sequence: 0 to 2^63 - 1.
        offset: lowered to a multiple of 4.
    """
    num_elements = math.prod(size)
    blocks = torch.arange((num_elements + 3) // 4, dtype=torch.int64, device=device) + offset // 4
    words = philox(blocks, sequence, seed).view(-1, 2)
    uniform = words[:, 0].to(torch.float32) * 2.0**-32 + 2.0**-33
    signed = torch.where(words[:, 1] < 2**31, words[:, 1], words[:, 1] - 2**32)
    angle = signed.to(torch.float64) * (math.pi * 2.0**-31)
    radius = torch.sqrt(-2.0 * torch.log(uniform.to(torch.float64)))
    normal = torch.stack([radius * torch.cos(angle), radius * torch.sin(angle)], dim=-1)
    return normal.flatten()[:num_elements].to(dtype).view(size)
