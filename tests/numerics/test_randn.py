"""randn: the kernel's numbers against the reference, and the distribution on every backend.

Seeds are fixed, so that a statistic has one value: it is compared with 4 standard deviations of its
sampling distribution, or with the 99.9 % point where that is another one.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import tilewheel as tw
from tilewheel.device import simulated

TILE = 8192
NUM_ELEMENTS = [0, 1, 2, 3, 4, 5, 2047, 2049, 8191, 8192, 8193, 100_003, 64 * TILE + 1]
PLACES = [0, 4, 2**31, 2**34 - 4096, 2**62]  # 2^34 is where the counter's second word begins
SEED, SEQUENCE = 0x0123456789ABCDEF, 0x3FEDCBA987654321

# Of computing in float32: the angle is rounded three times (1.5e-7 relative, of at most pi) and
# multiplied by a radius of at most 6.77; the other roundings are of numbers of at most that size.
ATOL = 5e-6

N = 1_000_000
NORMAL_KS = 1.95  # 99.9 % point of Kolmogorov's distribution


@pytest.fixture
def kernel(machine: Any) -> Iterator[Any]:
    """Return the function that runs the bare artifact on the simulator."""
    if machine.backend != "ascend-sim":
        pytest.skip(f"{machine.backend} has no kernel, its numbers are torch's")

    def run(
        num_elements: int,
        *,
        seed: int = SEED,
        sequence: int = SEQUENCE,
        offset: int = 0,
        dtype: str = "float32",
        num_vec_cores: int = 64,
    ) -> torch.Tensor:
        launch = load(dtype, num_vec_cores)
        out = torch.full((num_elements,), math.nan, dtype=getattr(torch, dtype))
        launch(out, seed, sequence, offset)
        return out

    load("float32", 64)
    return run


def load(dtype: str, num_vec_cores: int) -> tw.Kernel:
    try:
        return tw.load("randn", device=simulated(num_vec_cores=num_vec_cores), dtype=dtype)
    except tw.NoArtifactError as error:
        pytest.skip(str(error).splitlines()[0])


def draw(machine: Any, num_elements: int, seed: int | None = None) -> torch.Tensor:
    """Call the operator; with a seed, from its beginning on every backend."""
    if seed is not None:
        tw.rand.set_seed(seed)
        torch.manual_seed(seed)
    try:
        return tw.rand.randn(num_elements, device=machine.device).cpu().double()
    except tw.NoArtifactError as error:
        pytest.skip(str(error).splitlines()[0])


def kolmogorov(uniform: torch.Tensor) -> float:
    """Return sqrt(n) times the largest distance from the uniform distribution on [0, 1]."""
    ordered = uniform.sort().values
    n = len(ordered)
    steps = torch.arange(n + 1, dtype=torch.float64) / n
    distance = torch.maximum(steps[1:] - ordered, ordered - steps[:-1]).max()
    return float(distance) * math.sqrt(n)


def correlation(x: torch.Tensor, y: torch.Tensor) -> float:
    """Return Pearson's r in standard deviations, 1 / sqrt(n)."""
    return float(torch.corrcoef(torch.stack([x, y]))[0, 1]) * math.sqrt(len(x))


# The kernel against the reference.


@pytest.mark.parametrize("offset", PLACES)
@pytest.mark.parametrize("num_elements", NUM_ELEMENTS)
def test_numbers_are_the_reference_s(kernel: Any, num_elements: int, offset: int) -> None:
    expected = tw.reference.rand.randn(
        num_elements, dtype=torch.float64, seed=SEED, sequence=SEQUENCE, offset=offset
    )
    actual = kernel(num_elements, offset=offset).double()
    assert actual.shape == expected.shape
    assert torch.allclose(actual, expected, rtol=0, atol=ATOL)


@pytest.mark.parametrize(("seed", "sequence"), [(0, 0), (2**63 - 1, 2**63 - 1), (1, 2**32)])
def test_seed_and_sequence_count_with_all_their_bits(kernel: Any, seed: int, sequence: int) -> None:
    expected = tw.reference.rand.randn(4096, seed=seed, sequence=sequence)
    assert torch.allclose(kernel(4096, seed=seed, sequence=sequence), expected, rtol=0, atol=ATOL)


@pytest.mark.parametrize("offset", PLACES)
def test_philox_words_can_be_read_off_the_numbers(kernel: Any, offset: int) -> None:
    pairs = kernel(100_000, offset=offset).double().view(-1, 2)
    counter = torch.arange(25_000) + offset // 4
    words = tw.reference.rand.philox(counter, SEQUENCE, SEED).view(-1, 2).double() / 2**32
    uniform = torch.exp(-0.5 * (pairs**2).sum(-1))
    turn = torch.atan2(pairs[:, 1], pairs[:, 0]) / (2 * math.pi) - words[:, 1]
    assert float((uniform - words[:, 0]).abs().max()) < 2.0**-20
    assert float((turn - turn.round()).abs().max()) < 2.0**-21


@pytest.mark.parametrize("num_elements", NUM_ELEMENTS)
def test_bfloat16_is_float32_rounded_once(kernel: Any, num_elements: int) -> None:
    rounded = kernel(num_elements).to(torch.bfloat16)
    assert torch.equal(kernel(num_elements, dtype="bfloat16"), rounded)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("num_elements", [1, 8193, 100_003, 64 * TILE + 1])
def test_number_of_vector_cores_changes_no_bit(kernel: Any, num_elements: int, dtype: str) -> None:
    results = [
        kernel(num_elements, dtype=dtype, num_vec_cores=cores) for cores in (64, 1, 2, 7, 256)
    ]
    assert all(torch.equal(result, results[0]) for result in results[1:])


@pytest.mark.parametrize("offset", [4, 2048, 8192, 12_340])
def test_a_number_depends_on_its_place_only(kernel: Any, offset: int) -> None:
    together = kernel(20_001)
    assert torch.equal(kernel(20_001 - offset, offset=offset), together[offset:])
    assert torch.equal(kernel(5000), together[:5000])


@pytest.mark.parametrize("offset", [1, 3, 9, 2**62 + 2])
def test_offset_is_lowered_to_a_multiple_of_four(kernel: Any, offset: int) -> None:
    lowered = offset // 4 * 4
    assert torch.equal(kernel(100, offset=offset), kernel(100, offset=lowered))
    expected = tw.reference.rand.randn(100, seed=SEED, sequence=SEQUENCE, offset=lowered)
    actual = tw.reference.rand.randn(100, seed=SEED, sequence=SEQUENCE, offset=offset)
    assert torch.equal(actual, expected)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("num_elements", [1, 3, 2047, 8191, 8193])
def test_nothing_is_written_beyond_the_last_number(
    kernel: Any, num_elements: int, dtype: str
) -> None:
    storage = torch.full((num_elements + 64,), -7.0, dtype=getattr(torch, dtype))
    load(dtype, 64)(storage[:num_elements], SEED, SEQUENCE, 0)
    assert torch.equal(storage[:num_elements], kernel(num_elements, dtype=dtype))
    assert bool((storage[num_elements:] == -7.0).all())


# The generator behind the public function.


@pytest.mark.usefixtures("kernel")
def test_calls_take_consecutive_numbers_in_whole_blocks() -> None:
    tw.rand.set_seed(11)
    first, second, third = tw.rand.randn(3, 3), tw.rand.randn((5,)), tw.rand.randn()
    expected = tw.reference.rand.randn(17, seed=11)
    assert (first.shape, second.shape, third.shape) == ((3, 3), (5,), ())
    assert torch.allclose(first.flatten(), expected[:9], rtol=0, atol=ATOL)
    assert torch.allclose(second, tw.reference.rand.randn(5, seed=11, offset=12), atol=ATOL)
    assert torch.allclose(third, tw.reference.rand.randn(seed=11, offset=20), atol=ATOL)


@pytest.mark.usefixtures("kernel")
def test_an_empty_tensor_takes_no_numbers() -> None:
    tw.rand.set_seed(3)
    assert tw.rand.randn(0).shape == (0,)
    assert tw.rand.randn(4, 0, 2, dtype=torch.bfloat16).shape == (4, 0, 2)
    first = tw.rand.randn(10)
    tw.rand.set_seed(3)
    assert torch.equal(tw.rand.randn(10), first)


def test_the_same_seed_repeats_and_another_one_does_not(machine: Any) -> None:
    first, next_one = draw(machine, 1000, seed=7), draw(machine, 1000)
    assert torch.equal(draw(machine, 1000, seed=7), first)
    assert torch.equal(draw(machine, 1000), next_one)
    assert not torch.equal(first, next_one)
    assert int((draw(machine, 1000, seed=8) == first).sum()) < 3


@pytest.mark.usefixtures("kernel")
def test_randn_like_gives_shape_and_dtype_and_is_contiguous() -> None:
    for dtype in (torch.float32, torch.bfloat16):
        like = torch.empty((6, 4), dtype=dtype).t()
        tw.rand.set_seed(2)
        result = tw.rand.randn_like(like)
        tw.rand.set_seed(2)
        assert result.is_contiguous()
        assert torch.equal(result, tw.rand.randn(4, 6, dtype=dtype))


@pytest.mark.parametrize("compiler", ["eager", "aot_eager"])
@pytest.mark.usefixtures("kernel")
def test_two_compiled_calls_differ_and_are_those_of_eager_mode(compiler: str) -> None:
    torch._dynamo.reset()

    @torch.compile(fullgraph=True, dynamic=True, backend=compiler)
    def both(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return tw.rand.randn(x.shape[0], 4), tw.rand.randn_like(x)

    for num_rows in (3, 5):
        tw.rand.set_seed(5)
        first, second = both(torch.empty(num_rows, 4))
        tw.rand.set_seed(5)
        assert torch.equal(first, tw.rand.randn(num_rows, 4))
        assert torch.equal(second, tw.rand.randn(num_rows, 4))


FORK = """
import os, sys
import torch
import tilewheel as tw
with tw.backend("ascend-sim"):
    tw.rand.set_seed(9)
    tw.rand.randn(100)
    sys.stdout.flush()
    for _ in range(2):
        if os.fork() == 0:
            print("child", tw.rand.randn(100).tolist(), flush=True)
            os._exit(0)
        os.wait()
    print("parent", tw.rand.randn(100).tolist())
"""


@pytest.mark.usefixtures("kernel")
def test_forked_children_go_on_in_sequences_of_their_own(
    run_script: Callable[..., list[str]],
) -> None:
    lines = run_script(FORK)
    assert [line.split()[0] for line in lines] == ["child", "child", "parent"]
    assert len({line.partition(" ")[2] for line in lines}) == 3
    numbers = json.loads(lines[2].partition(" ")[2])
    expected = tw.reference.rand.randn(100, seed=9, offset=100)
    assert torch.allclose(torch.tensor(numbers), expected, rtol=0, atol=ATOL)
    assert run_script(FORK) == lines


# The distribution, on every backend.


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_moments_are_those_of_the_normal_distribution(machine: Any, seed: int) -> None:
    x = draw(machine, N, seed)
    mean, deviation = float(x.mean()), float(x.std())
    standard = (x - mean) / deviation
    assert abs(mean) < 4 / math.sqrt(N)
    assert abs(deviation**2 - 1) < 4 * math.sqrt(2 / N)
    assert abs(float((standard**3).mean())) < 4 * math.sqrt(6 / N)
    assert abs(float((standard**4).mean()) - 3) < 4 * math.sqrt(24 / N)


@pytest.mark.parametrize(
    ("sigmas", "probability"), [(1, 0.3173105), (3, 0.00269979606), (4, 6.33424837e-05)]
)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_tails_have_their_weight(machine: Any, seed: int, sigmas: int, probability: float) -> None:
    x = draw(machine, 4 * N, seed)
    for tail in (x > sigmas, x < -sigmas):
        expected = 4 * N * probability / 2
        assert abs(int(tail.sum()) - expected) < 4 * math.sqrt(expected)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_distribution_function_is_the_normal_one(machine: Any, seed: int) -> None:
    assert kolmogorov(torch.special.ndtr(draw(machine, N, seed))) < NORMAL_KS


def test_kolmogorov_notices_what_is_not_normal() -> None:
    x = tw.reference.rand.randn(N, dtype=torch.float64, seed=1)
    assert kolmogorov(torch.special.ndtr(x)) < NORMAL_KS
    assert kolmogorov(torch.special.ndtr(x * 1.01)) > NORMAL_KS
    assert kolmogorov(torch.special.ndtr(x + 0.01)) > NORMAL_KS


@pytest.mark.parametrize("seed", [1, 2])
def test_the_two_numbers_of_a_pair_are_independent(machine: Any, seed: int) -> None:
    pairs = draw(machine, N, seed).view(-1, 2)
    turn = torch.atan2(pairs[:, 1], pairs[:, 0]) / (2 * math.pi) + 0.5
    radius = torch.exp(-0.5 * (pairs**2).sum(-1))  # uniform if they are independent and normal
    assert kolmogorov(turn) < NORMAL_KS
    assert kolmogorov(radius) < NORMAL_KS
    assert abs(correlation(turn, radius)) < 4


@pytest.mark.parametrize("lag", [1, 2, 3, 4, 64, 2048, TILE, 64 * TILE])
def test_places_of_a_call_are_uncorrelated(machine: Any, lag: int) -> None:
    x = draw(machine, N, seed=4)
    assert abs(correlation(x[lag:], x[:-lag])) < 4
    assert abs(correlation(x[lag:] ** 2, x[:-lag] ** 2)) < 4


def test_consecutive_calls_are_uncorrelated(machine: Any) -> None:
    calls = [draw(machine, N, seed=5), *(draw(machine, N) for _ in range(3))]
    for i, x in enumerate(calls):
        for y in calls[i + 1 :]:
            assert abs(correlation(x, y)) < 4
            assert abs(correlation(x**2, y**2)) < 4


def test_neighbouring_seeds_are_uncorrelated(machine: Any) -> None:
    seeds = [draw(machine, N, seed) for seed in (0, 1, 2, 2**32)]
    for i, x in enumerate(seeds):
        for y in seeds[i + 1 :]:
            assert abs(correlation(x, y)) < 4


def test_neighbouring_sequences_are_uncorrelated(kernel: Any) -> None:
    sequences = [kernel(N, sequence=number).double() for number in (0, 1, 2, 2**32)]
    for i, x in enumerate(sequences):
        for y in sequences[i + 1 :]:
            assert abs(correlation(x, y)) < 4
