"""The reference of randn: Philox's published vectors, and the definition by hand."""

from __future__ import annotations

import math

import pytest
import torch

from tilewheel.reference import rand

# The vectors of the authors' library Random123 (kat_vectors, philox4x32 10).
VECTORS = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    (
        (0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF),
        (0xFFFFFFFF, 0xFFFFFFFF),
        (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
    ),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


def signed(low: int, high: int) -> int:
    value = low | high << 32
    return value - 2**64 if value >= 2**63 else value


@pytest.mark.parametrize(("counter", "key", "words"), VECTORS)
def test_philox_gives_the_published_vectors(
    counter: tuple[int, ...], key: tuple[int, int], words: tuple[int, ...]
) -> None:
    low = torch.tensor([signed(*counter[:2])])
    result = rand.philox(low, signed(*counter[2:]), signed(*key))
    assert result.tolist() == [list(words)]


def test_first_numbers_of_seed_0_are_those_of_the_first_vector() -> None:
    expected = []
    for radius_word, angle_word in ((0x6627E8D5, 0xE169C58D), (0xBC57AC4C, 0x9B00DBD8)):
        radius = math.sqrt(-2 * math.log((radius_word + 0.5) / 2**32))
        angle = 2 * math.pi * angle_word / 2**32
        expected += [radius * math.cos(angle), radius * math.sin(angle)]
    actual = rand.randn(4, dtype=torch.float64, seed=0)
    assert actual.tolist() == pytest.approx(expected, abs=1e-7)  # u is rounded to float32


def test_shape_is_row_major_and_the_rest_of_a_block_is_dropped() -> None:
    flat = rand.randn(16, seed=3, sequence=4, offset=8)
    assert torch.equal(rand.randn(3, 5, seed=3, sequence=4, offset=8), flat[:15].view(3, 5))
    assert torch.equal(rand.randn(seed=3, sequence=4, offset=12), flat[4])
    assert rand.randn(2, 0, seed=3).shape == (2, 0)


def test_bfloat16_is_float64_rounded_once() -> None:
    exact = rand.randn(1000, dtype=torch.float64, seed=1)
    assert torch.equal(rand.randn(1000, dtype=torch.bfloat16, seed=1), exact.to(torch.bfloat16))
