"""topk_gate on every backend: exact against the reference, for values and sizes that matter."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tilewheel as tw

POINTS = [
    (64, 6),
    (72, 6),
    (128, 8),
    (160, 6),
    (160, 8),
    (256, 6),
    (256, 8),
    (288, 8),
    (384, 6),
    (384, 8),
    (512, 10),
    (896, 16),
]
GENERIC_POINTS = [(1, 1), (2, 1), (8, 2), (33, 4), (100, 32), (144, 8), (1023, 31), (1024, 32)]
NUM_TOKENS = [0, 1, 2, 31, 33, 257]


def scores_with_ties(num_tokens: int, num_experts: int) -> torch.Tensor:
    """Few distinct values, so that most maxima are ties."""
    generator = torch.Generator().manual_seed(num_tokens * 1009 + num_experts)
    scores = torch.randint(-3, 4, (num_tokens, num_experts), generator=generator)
    return scores.to(torch.float32)


def normal_scores(num_tokens: int, num_experts: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(num_tokens * 31 + num_experts)
    return torch.randn((num_tokens, num_experts), generator=generator)


def extreme_scores(num_tokens: int, num_experts: int) -> torch.Tensor:
    """Zeros of both signs, subnormals, the largest and smallest finite values, powers of two."""
    values = torch.tensor(
        [0.0, -0.0, 1e-45, -1e-45, 1.1754942e-38, 3.4028235e38, -3.4028235e38, 2.0, 0.5, -2.0]
    )
    generator = torch.Generator().manual_seed(num_experts)
    picks = torch.randint(0, len(values), (num_tokens, num_experts), generator=generator)
    return values[picks]


def scores_won_by_one_lane(num_tokens: int, num_experts: int) -> torch.Tensor:
    """The largest scores lie 64 experts apart or side by side: all in one lane of a register."""
    scores = normal_scores(num_tokens, num_experts)
    expert = torch.arange(num_experts)
    scores[0::3, expert % 64 == num_experts % 64 // 2] += 100.0
    scores[1::3, expert // 8 == num_experts // 16] += 100.0
    scores[2::3] = torch.where(expert % 64 == 1, 7.0, scores[2::3])
    return scores


MAKERS = [normal_scores, scores_with_ties, extreme_scores, scores_won_by_one_lane]


def run(machine: Any, scores: torch.Tensor, num_topk: int) -> torch.Tensor:
    """Call the operator; every profile has the generic variant, so no point lacks an artifact."""
    return tw.moe.topk_gate(scores.to(machine.device), num_topk).cpu()


@pytest.mark.parametrize("num_tokens", NUM_TOKENS)
@pytest.mark.parametrize(("num_experts", "num_topk"), POINTS)
@pytest.mark.parametrize("make", MAKERS)
def test_specialised_points_are_exact(
    machine: Any, make: Any, num_experts: int, num_topk: int, num_tokens: int
) -> None:
    scores = make(num_tokens, num_experts)
    expected = tw.reference.moe.topk_gate(scores, num_topk)
    actual = run(machine, scores, num_topk)
    assert actual.dtype == torch.int64
    assert torch.equal(actual, expected)


@pytest.mark.parametrize("num_tokens", [1, 33])
@pytest.mark.parametrize(("num_experts", "num_topk"), GENERIC_POINTS)
@pytest.mark.parametrize("make", MAKERS)
def test_any_number_of_experts_is_exact(
    machine: Any, make: Any, num_experts: int, num_topk: int, num_tokens: int
) -> None:
    scores = make(num_tokens, num_experts)
    expected = tw.reference.moe.topk_gate(scores, num_topk)
    assert torch.equal(run(machine, scores, num_topk), expected)


@pytest.mark.parametrize("num_tokens", [4096, 65537])
def test_many_tokens_are_exact(machine: Any, num_tokens: int) -> None:
    scores = scores_with_ties(num_tokens, 256)
    expected = tw.reference.moe.topk_gate(scores, 8)
    assert torch.equal(run(machine, scores, 8), expected)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("place", [0, 100, 255])
def test_a_token_with_a_non_finite_score_gets_minus_one_and_no_other_does(
    machine: Any, bad: float, place: int
) -> None:
    scores = normal_scores(40, 256)
    scores[7, place] = bad
    scores[39, place] = bad
    actual = run(machine, scores, 8)
    assert actual[7].tolist() == [-1] * 8
    assert actual[39].tolist() == [-1] * 8
    finite = [i for i in range(40) if i not in (7, 39)]
    assert torch.equal(actual[finite], tw.reference.moe.topk_gate(scores, 8)[finite])


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_a_non_finite_score_is_found_at_any_number_of_experts(machine: Any, bad: float) -> None:
    scores = normal_scores(3, 100)
    scores[1, 99] = bad
    actual = run(machine, scores, 4)
    assert actual[1].tolist() == [-1] * 4
    assert torch.equal(actual, tw.reference.moe.topk_gate(scores, 4))


def test_a_row_gives_the_same_indices_alone_and_in_a_batch(machine: Any) -> None:
    scores = scores_with_ties(65, 256)
    together = run(machine, scores, 8)
    alone = torch.cat([run(machine, scores[i : i + 1].clone(), 8) for i in range(65)])
    assert torch.equal(together, alone)


def test_a_contiguous_slice_of_tokens_is_read_from_its_offset(machine: Any) -> None:
    scores = normal_scores(50, 72).to(machine.device)
    expected = tw.reference.moe.topk_gate(scores.cpu()[3:47], 6)
    assert torch.equal(run(machine, scores[3:47], 6), expected)


def test_out_is_written_and_returned(machine: Any) -> None:
    scores = normal_scores(5, 256).to(machine.device)
    out = torch.full((5, 8), -7, dtype=torch.int64, device=machine.device)
    assert tw.moe.topk_gate(scores, 8, out=out) is out
    assert torch.equal(out.cpu(), tw.reference.moe.topk_gate(scores.cpu(), 8))


def test_nothing_is_written_beyond_the_last_index(machine: Any) -> None:
    storage = torch.full((64 * 8 + 64,), -7, dtype=torch.int64, device=machine.device)
    for num_tokens in (1, 2, 31, 63):
        storage.fill_(-7)
        out = storage[: num_tokens * 8].view(num_tokens, 8)
        scores = normal_scores(num_tokens, 256).to(machine.device)
        tw.moe.topk_gate(scores, 8, out=out)
        assert torch.equal(out.cpu(), tw.reference.moe.topk_gate(scores.cpu(), 8))
        assert bool((storage[num_tokens * 8 :] == -7).all())
