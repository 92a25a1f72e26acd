"""The mHC operators on every backend against the reference, for sizes, eps values and views."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tilewheel as tw
from tilewheel import compare
from tilewheel.selftest_cases.mixes import (
    channels,
    mixes,
    normalised_channels,
    post_inputs,
    pre_inputs,
)
from tilewheel.selftest_cases.quantised import place

HIDDEN = [64, 320, 3584, 4096, 5120, 7168]
# As many as an H200 makes of 1 to 16384 tokens, and the largest.
SPLITS = [1, 2, 3, 4, 5, 7, 14, 16, 17, 22, 33, 44, 64, 65, 112, 128]


def run(machine: Any, inputs: Any, *numbers: Any, **options: Any) -> Any:
    """Call the operator, or skip where this machine has no artifact of it."""
    placed = [place(each, machine.device) for each in inputs]
    for name in ("norm_weight", "out"):
        if options.get(name) is not None:
            options[name] = options[name].to(machine.device)
    try:
        return tw.mhc.pre_big_fuse_fwd(*placed, *numbers, **options)
    except tw.NoArtifactError as error:
        pytest.skip(str(error).splitlines()[0])


def check(machine: Any, inputs: Any, *numbers: Any, **options: Any) -> Any:
    numbers = numbers or (1e-6, 1e-6, 1e-6, 2.0, 20)
    actual = run(machine, inputs, *numbers, **options)
    options.pop("out", None)
    expected = tw.reference.mhc.pre_big_fuse_fwd(*inputs, *numbers, **options)
    assert mixes(actual[0], expected[0]) == ""
    assert mixes(actual[1], expected[1]) == ""
    same = channels if options.get("norm_weight") is None else normalised_channels
    assert same(actual[2], expected[2]) == ""
    return actual


def weight(hidden: int, with_norm: bool) -> torch.Tensor | None:
    return torch.linspace(-2.0, 2.0, hidden).to(torch.bfloat16) if with_norm else None


@pytest.mark.parametrize("num_tokens", [0, 1, 2, 33])
@pytest.mark.parametrize("hidden", HIDDEN)
@pytest.mark.parametrize("with_norm", [False, True])
def test_every_hidden_size(machine: Any, with_norm: bool, hidden: int, num_tokens: int) -> None:
    inputs = pre_inputs(3, num_tokens, hidden)
    check(machine, inputs, norm_weight=weight(hidden, with_norm))


@pytest.mark.parametrize("num_splits", SPLITS)
@pytest.mark.parametrize("with_norm", [False, True])
def test_every_number_of_splits(machine: Any, with_norm: bool, num_splits: int) -> None:
    for num_tokens in (1, 5):
        inputs = pre_inputs(num_splits, num_tokens, 320)
        check(machine, inputs, norm_weight=weight(320, with_norm))


@pytest.mark.parametrize("eps", [1e-5, 1e-6, 1e-20])
@pytest.mark.parametrize("repeat", [1, 2, 20])
@pytest.mark.parametrize("post_mult", [1.0, 2.0, -0.5])
def test_numbers_are_run_time_values(
    machine: Any, post_mult: float, repeat: int, eps: float
) -> None:
    inputs = pre_inputs(2, 7, 128)
    check(machine, inputs, eps, eps, eps, post_mult, repeat, norm_weight=weight(128, True))
    check(machine, inputs, eps, 0.25, eps * 3, post_mult, repeat)


def test_each_eps_has_its_own_place(machine: Any) -> None:
    check(machine, pre_inputs(2, 7, 128), 0.5, 0.25, 0.125, 2.0, 20)
    norm = weight(128, True)
    check(machine, pre_inputs(2, 7, 128), 1e-6, 1e-6, 1e-6, 2.0, 20, norm_weight=norm, norm_eps=0.5)


@pytest.mark.parametrize("repeat", [1, 2, 4, 5, 6, 9, 21])
def test_every_remainder_of_repeats(machine: Any, repeat: int) -> None:
    for eps in (1e-6, 1.0):
        check(machine, pre_inputs(1, 3, 64), 1e-6, 1e-6, eps, 2.0, repeat)


@pytest.mark.parametrize("num_tokens", [256, 257, 513, 1025, 2049, 4097, 8200])
def test_many_tokens(machine: Any, num_tokens: int) -> None:
    check(machine, pre_inputs(2, num_tokens, 64))
    check(machine, pre_inputs(1, num_tokens, 64), norm_weight=weight(64, True))


@pytest.mark.parametrize("num_splits", [5, 17])
def test_many_tokens_and_splits(machine: Any, num_splits: int) -> None:
    check(machine, pre_inputs(num_splits, 1100, 64))


def test_more_tokens_than_a_grid_dimension_of_65535(machine: Any) -> None:
    check(machine, pre_inputs(1, 65539, 64))


@pytest.mark.parametrize("hidden", [8192, 8256, 12352, 65536])
def test_rows_wider_than_the_registers_of_a_block(machine: Any, hidden: int) -> None:
    check(machine, pre_inputs(2, 3, hidden), norm_weight=weight(hidden, True))
    check(machine, pre_inputs(2, 3, hidden))


def test_partials_of_padded_rows_and_spare_splits(machine: Any) -> None:
    products, squares, *others = pre_inputs(5, 9, 128, row=32)
    assert products.stride(1) == 32
    check(machine, (products, squares, *others))
    check(machine, (products[1:4], squares[1:4], *others))
    wide = torch.zeros((5, 12)).copy_(torch.cat((squares, squares[:, :3]), dim=1))
    check(machine, (products, wide[:, :9], *others), norm_weight=weight(128, True))


@pytest.mark.parametrize("with_norm", [False, True])
def test_a_token_gives_the_same_results_alone_and_in_a_batch(machine: Any, with_norm: bool) -> None:
    norm = weight(320, with_norm)
    for num_splits, num_tokens in ((1, 600), (5, 600), (20, 600)):
        products, squares, scale, base, residual = pre_inputs(num_splits, num_tokens, 320)
        numbers = (1e-6, 1e-6, 1e-6, 2.0, 20)
        together = run(
            machine, (products, squares, scale, base, residual), *numbers, norm_weight=norm
        )
        for token in (0, 1, 299, 599):
            own = slice(token, token + 1)
            alone = run(
                machine,
                (products[:, own], squares[:, own], scale, base, residual[own]),
                *numbers,
                norm_weight=norm,
            )
            for one, all_of_them in zip(alone, together, strict=True):
                assert torch.equal(one, all_of_them[own])


def test_a_comb_with_empty_columns_stays_finite(machine: Any) -> None:
    """Each row puts all of its softmax into column 0: the others hold nothing but eps."""
    products, squares, scale, base, residual = pre_inputs(1, 4, 64)
    base[8::4] += 200.0
    for eps in (1e-6, 1e-20):
        _, comb, _ = check(
            machine, (products, squares, scale, base, residual), eps, eps, eps, 2.0, 20
        )
        assert bool(comb.isfinite().all())


@pytest.mark.parametrize("rows", [1, 2, 3])
def test_a_comb_whose_rows_share_a_column_stays_finite(machine: Any, rows: int) -> None:
    """Its row and column factors grow at every step until eps counts."""
    products, squares, _, base, residual = pre_inputs(1, 4, 64)
    base[8:].view(4, 4)[:rows, 0] += 200.0
    base[8:].view(4, 4)[rows:, 1:] += 200.0
    for eps in (1e-6, 1e-20):
        for repeat in (20, 300):
            inputs = (products, squares, torch.ones(3), base, residual)
            _, comb, _ = run(machine, inputs, eps, eps, eps, 2.0, repeat)
            _, expected, _ = tw.reference.mhc.pre_big_fuse_fwd(
                *(each.double() for each in inputs[:4]), residual, eps, eps, eps, 2.0, repeat
            )
            assert compare.within(1e-6, 1e-4)(comb, expected.float()) == ""


def test_nan_stays_with_its_token(machine: Any) -> None:
    products, squares, scale, base, residual = pre_inputs(3, 5, 64)
    products[1, 2] = float("nan")
    results = run(machine, (products, squares, scale, base, residual), 1e-6, 1e-6, 1e-6, 2.0, 20)
    for result in results:
        is_nan = result.cpu().flatten(1).isnan()
        assert is_nan.all(1).tolist() == [False, False, True, False, False]
        assert is_nan.any(1).tolist() == [False, False, True, False, False]


def test_out_receives_the_layer_input(machine: Any) -> None:
    inputs = pre_inputs(3, 5, 320)
    out = torch.zeros((5, 320), dtype=torch.bfloat16, device=machine.device)
    results = check(machine, inputs, norm_weight=weight(320, True), out=out)
    assert results[2].data_ptr() == out.data_ptr()


def test_post_of_every_hidden_size_and_number_of_tokens(machine: Any) -> None:
    for hidden in HIDDEN:
        for num_tokens in (0, 1, 2, 33):
            check_post(machine, *post_inputs(num_tokens, hidden))


def test_post_of_more_tokens_than_a_grid_dimension_of_65535(machine: Any) -> None:
    check_post(machine, *post_inputs(65539, 64))


def test_post_in_place_is_the_same_as_not(machine: Any) -> None:
    for hidden, num_tokens in ((64, 5), (320, 33), (7168, 3)):
        inputs = post_inputs(num_tokens, hidden)
        apart = check_post(machine, *inputs)
        x, residual, post_mix, comb_mix = (each.to(machine.device, copy=True) for each in inputs)
        new = tw.mhc.post_fwd(x, residual, post_mix, comb_mix, out=residual)
        assert new is residual
        assert torch.equal(residual.cpu(), apart.cpu())


def test_post_of_a_token_is_the_same_alone_and_in_a_batch(machine: Any) -> None:
    inputs = post_inputs(300, 320)
    together = check_post(machine, *inputs)
    for token in (0, 7, 299):
        alone = check_post(machine, *(each[token : token + 1] for each in inputs))
        assert torch.equal(alone, together[token : token + 1])


def test_comb_mix_is_read_by_source_and_then_target(machine: Any) -> None:
    x, residual, _, _ = post_inputs(2, 64)
    comb_mix = torch.zeros((2, 4, 4))
    comb_mix[:, 1, 3] = 1.0
    new = check_post(machine, x, residual, torch.zeros((2, 4)), comb_mix).cpu()
    assert torch.equal(new[:, 3], residual[:, 1])
    assert not bool(new[:, :3].any())


def check_post(machine: Any, *inputs: torch.Tensor) -> torch.Tensor:
    try:
        actual = tw.mhc.post_fwd(*(each.to(machine.device) for each in inputs))
    except tw.NoArtifactError as error:
        pytest.skip(str(error).splitlines()[0])
    assert channels(actual, tw.reference.mhc.post_fwd(*inputs)) == ""
    return actual
