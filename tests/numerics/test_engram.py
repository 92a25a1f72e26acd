"""The Engram operators on every backend, against the float64 reference."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tilewheel as tw
from tilewheel import compare

EPS = 1e-6
CLAMP_VALUE = 1e-6
HIDDENS = [64, 576, 2048, 2560, 4096, 4608, 5120, 7168, 7232, 16384]

# How near a result must be to the reference in float64: absolute, relative, and why.
TOLERANCES = {
    # One rounding to bfloat16, at most 2**-8 of the value: a truncation or a second rounding fails.
    # Differences of larger terms keep float32's error of those.
    "bfloat16": compare.within(1e-5, 2**-8),
    # float32 sums of up to 16384 products of about 1 in another order; 8e-5 is seen for 7168.
    "dot": compare.within(2e-4, 1e-5),
    # Of the gate that follows from the saved dot, rstd_x and rstd_k: two roots and an exponential.
    "gate": compare.within(0.0, 2e-6),
    # A sum of squares and a reciprocal root; 2e-7 is seen.
    "rstd_x": compare.within(0.0, 2e-6),
    "rstd_k": compare.within(0.0, 2e-6),
    # float32 sums over tokens of terms up to 10; 6e-6 is seen over 300 tokens.
    "grad_w": compare.within(2e-5, 1e-5),
    # The same from the forward pass on: dot's error is 2e-5 of dot for the smallest, as of grad_z.
    "main_grad": compare.within(1e-4, 1e-5),
    # float32 sums of up to 264 parts of about 1, times a weight.
    "reduced": compare.within(1e-4, 1e-5),
}
SAVED = ("dot", "gate", "rstd_x", "rstd_k")


def difference(name: str, actual: torch.Tensor, expected: torch.Tensor) -> str:
    return str(TOLERANCES[name](actual.double(), expected.double()))


def inputs(num_tokens: int, hidden: int, seed: int = 0) -> tuple[torch.Tensor, ...]:
    """Return x, kv, weight_fused and grad_out."""
    generator = torch.Generator().manual_seed(seed + num_tokens)
    x, grad_out = torch.randn((2, num_tokens, 4, hidden), generator=generator).bfloat16()
    kv = torch.randn((num_tokens, 5, hidden), generator=generator).bfloat16()
    weight = 1 + 0.2 * torch.randn((4, hidden), generator=generator)
    return x, kv, weight, grad_out


def forward(machine: Any, *arguments: Any, **options: Any) -> tuple[Any, ...]:
    """Call ``engram_gate_fwd`` with copies of tensors on the machine's device."""
    moved = [a.to(machine.device, copy=True) if torch.is_tensor(a) else a for a in arguments]
    try:
        return tw.engram.engram_gate_fwd(*moved, **options)
    except tw.NoArtifactError as error:
        pytest.skip(str(error).splitlines()[0])


def backward(machine: Any, *arguments: Any, **options: Any) -> tuple[torch.Tensor, ...]:
    moved = [a.to(machine.device, copy=True) if torch.is_tensor(a) else a for a in arguments]
    try:
        return tw.engram.engram_gate_bwd(*moved, **options)
    except tw.NoArtifactError as error:
        pytest.skip(str(error).splitlines()[0])


def check_forward(
    machine: Any, x: torch.Tensor, kv: torch.Tensor, weight: torch.Tensor, **options: Any
) -> tuple[torch.Tensor, ...]:
    eps, clamp_value = options.pop("eps", EPS), options.pop("clamp_value", CLAMP_VALUE)
    mask = options.get("image_token_mask")
    expected = tw.reference.engram.engram_gate_fwd(
        x.double(), kv.double(), weight, eps, clamp_value, image_token_mask=mask
    )
    if mask is not None:
        options["image_token_mask"] = mask.to(machine.device)
    actual = forward(machine, x, kv, weight, eps, clamp_value, **options)
    assert difference("bfloat16", actual[0], expected[0]) == ""
    if actual[1] is not None:
        dot, _, rstd_x, rstd_k = (each.cpu().double() for each in actual[1:])
        z = dot * rstd_x * rstd_k * x.shape[-1] ** -0.5
        gate = torch.copysign(z.abs().clamp(min=clamp_value).sqrt(), z).sigmoid()
        gate = gate if mask is None else gate.masked_fill(mask[:, None], 0.0)
        saved = (expected[1], gate, *expected[3:])
        for name, mine, right in zip(SAVED, actual[1:], saved, strict=True):
            assert mine.dtype == torch.float32
            assert difference(name, mine, right) == "", name
    return actual


def check_backward(
    machine: Any,
    x: torch.Tensor,
    kv: torch.Tensor,
    weight: torch.Tensor,
    grad_out: torch.Tensor,
    clamp_value: float = CLAMP_VALUE,
    mask: torch.Tensor | None = None,
    num_parts: int | None = None,
) -> tuple[torch.Tensor, ...]:
    saved = tw.reference.engram.engram_gate_fwd(x, kv, weight, EPS, clamp_value)[1:]
    tensors = (grad_out, x, kv, weight, *saved)
    expected = tw.reference.engram.engram_gate_bwd(
        *(tensor.double() for tensor in tensors), clamp_value, image_token_mask=mask
    )
    on_device = None if mask is None else mask.to(machine.device)
    actual = backward(machine, *tensors, clamp_value, on_device, num_parts=num_parts)
    assert difference("bfloat16", actual[0], expected[0]) == ""
    assert difference("bfloat16", actual[1], expected[1]) == ""
    assert difference("grad_w", actual[2].double().sum(dim=0), expected[2].sum(dim=0)) == ""
    return actual


@pytest.mark.parametrize("hidden", [64, 576, 5120])
def test_fused_weight_is_exact(machine: Any, hidden: int) -> None:
    weights = torch.randn((2, 4, hidden), generator=torch.Generator().manual_seed(1)).bfloat16()
    weights[0, 0, :4] = torch.tensor([0.0, -0.0, torch.inf, torch.nan])
    on_device = weights.to(machine.device)
    try:
        product = tw.engram.fused_weight(on_device[0], on_device[1])
    except tw.NoArtifactError as error:
        pytest.skip(str(error).splitlines()[0])
    assert compare.bits(product, weights[0].float() * weights[1].float()) == ""


@pytest.mark.parametrize("num_tokens", [0, 1, 5])
@pytest.mark.parametrize("hidden", HIDDENS)
def test_forward_of_every_hidden(machine: Any, hidden: int, num_tokens: int) -> None:
    check_forward(machine, *inputs(num_tokens, hidden)[:3])


@pytest.mark.parametrize("num_tokens", [0, 1, 5])
@pytest.mark.parametrize("hidden", HIDDENS)
def test_backward_of_every_hidden(machine: Any, hidden: int, num_tokens: int) -> None:
    check_backward(machine, *inputs(num_tokens, hidden))


@pytest.mark.parametrize("hidden", [576, 2048])
@pytest.mark.parametrize("saves", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_saving_and_mask_in_every_combination(
    machine: Any, masked: bool, saves: bool, hidden: int
) -> None:
    x, kv, weight, _ = inputs(7, hidden)
    mask = torch.tensor([True, False, False, True, False, True, False]) if masked else None
    actual = check_forward(machine, x, kv, weight, save_for_backward=saves, image_token_mask=mask)
    assert [each is None for each in actual[1:]] == [not saves] * 4


@pytest.mark.parametrize("hidden", [576, 2048])
@pytest.mark.parametrize("masked", [False, True])
def test_in_place_gives_the_same_bits(machine: Any, masked: bool, hidden: int) -> None:
    x, kv, weight, _ = inputs(9, hidden)
    mask = (torch.arange(9) % 4 == 1).to(machine.device) if masked else None
    apart = forward(machine, x, kv, weight, EPS, CLAMP_VALUE, image_token_mask=mask)[0]
    streams = x.to(machine.device, copy=True)
    out, *saved = tw.engram.engram_gate_fwd(
        streams,
        kv.to(machine.device),
        weight.to(machine.device),
        EPS,
        CLAMP_VALUE,
        save_for_backward=False,
        image_token_mask=mask,
        inplace=True,
    )
    assert out is streams
    assert saved == [None] * 4
    assert torch.equal(streams, apart)


def placed(tensor: torch.Tensor, offset: int, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return memory full of sevens and a view of it, from ``offset`` on, that holds ``tensor``."""
    size = tensor.numel()
    memory = torch.full((size + 128,), 7.0, dtype=tensor.dtype, device=device)
    view = memory[offset : offset + size].view(tensor.shape)
    view.copy_(tensor)
    return memory, view


@pytest.mark.parametrize("hidden", [576, 2048])
def test_views_with_an_offset_are_right_or_refused(machine: Any, hidden: int) -> None:
    x, kv, weight, _ = inputs(5, hidden)
    expected = forward(machine, x, kv, weight, EPS, CLAMP_VALUE)[0]
    memory, streams = placed(x, 8, machine.device)
    others = (placed(kv, 24, machine.device)[1], placed(weight, 4, machine.device)[1])
    options = {"save_for_backward": False, "inplace": True}
    tw.engram.engram_gate_fwd(streams, *others, EPS, CLAMP_VALUE, **options)
    assert torch.equal(streams, expected)
    assert bool((memory[:8] == 7).all())
    assert bool((memory[8 + x.numel() :] == 7).all())
    memory, streams = placed(x, 4, machine.device)
    with pytest.raises(ValueError, match="x: data pointer is aligned to 8 bytes, must be to 16"):
        tw.engram.engram_gate_fwd(streams, *others, EPS, CLAMP_VALUE, **options)
    assert torch.equal(streams.cpu(), x)


@pytest.mark.parametrize("hidden", [576, 2048])
def test_limits_of_the_numbers_hold_for_a_loaded_artifact(machine: Any, hidden: int) -> None:
    x, kv, weight, _ = inputs(2, hidden)
    forward(machine, x, kv, weight, EPS, CLAMP_VALUE)
    for wrong in (0.0, -1.0, 1e-39, 1e39, torch.inf, torch.nan):
        with pytest.raises(ValueError, match=r"eps: is .*, must be a positive normal float32"):
            forward(machine, x, kv, weight, wrong, CLAMP_VALUE)
        with pytest.raises(ValueError, match=r"clamp_value: is .*, must be a positive normal"):
            forward(machine, x, kv, weight, EPS, wrong)
    check_forward(machine, x, kv, weight, eps=3e38, clamp_value=1.2e-38)


@pytest.mark.parametrize("hidden", [576, 2048])
def test_a_loaded_artifact_refuses_as_the_first_call_does(machine: Any, hidden: int) -> None:
    x, kv, weight, grad_out = inputs(3, hidden)
    results = forward(machine, x, kv, weight, EPS, CLAMP_VALUE)
    saved = [each.cpu() for each in results[1:]]
    mask = torch.ones(2, dtype=torch.bool, device=machine.device)
    with pytest.raises(ValueError, match=r"fwd: image_token_mask: shape is \(2,\), must be \(3,\)"):
        forward(machine, x, kv, weight, EPS, CLAMP_VALUE, image_token_mask=mask)
    with pytest.raises(ValueError, match=rf"fwd: kv: shape is \(2, 5, {hidden}\), must be \(3, 5,"):
        forward(machine, x, kv[:2], weight, EPS, CLAMP_VALUE)
    with pytest.raises(TypeError, match=r"weight_fused: dtype is torch\.bfloat16, must be"):
        forward(machine, x, kv, weight.bfloat16(), EPS, CLAMP_VALUE)
    backward(machine, grad_out, x, kv, weight, *saved, CLAMP_VALUE)
    with pytest.raises(ValueError, match=r"bwd: image_token_mask: shape is \(2,\), must be \(3,\)"):
        backward(machine, grad_out, x, kv, weight, *saved, CLAMP_VALUE, mask)
    with pytest.raises(ValueError, match=r"bwd: gate: shape is \(2, 4\), must be \(3, 4\)"):
        backward(machine, grad_out, x, kv, weight, saved[0], saved[1][:2], *saved[2:], CLAMP_VALUE)
    with pytest.raises(TypeError, match=r"bwd: dot: is None, must be a torch\.Tensor"):
        backward(machine, grad_out, x, kv, weight, None, *saved[1:], CLAMP_VALUE)


def test_autograd_notices_that_saved_values_were_written(machine: Any) -> None:
    x, kv, weight, _ = (each.to(machine.device) for each in inputs(2, 576))
    product = (x * torch.ones((), device=machine.device, requires_grad=True)).sum()
    options = {"save_for_backward": False, "inplace": True}
    try:
        tw.engram.engram_gate_fwd(x, kv, weight, EPS, CLAMP_VALUE, **options)
    except tw.NoArtifactError as error:
        pytest.skip(str(error).splitlines()[0])
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.backward()
    for i in range(2):
        buffers = [torch.zeros_like(weight), torch.zeros_like(weight)]
        product = (buffers[i] * torch.ones((), device=machine.device, requires_grad=True)).sum()
        tw.engram.grad_w_reduce(weight[None], x[0], x[1], *buffers)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            product.backward()


@pytest.mark.parametrize("hidden", [576, 2048])
def test_a_masked_token_passes_through_whatever_it_holds(machine: Any, hidden: int) -> None:
    x, kv, weight, grad_out = inputs(6, hidden)
    mask = torch.tensor([False, True, False, False, True, False])
    saved = [t.clone() for t in tw.reference.engram.engram_gate_fwd(x, kv, weight, EPS, 1e-6)[1:]]
    clean = backward(machine, grad_out, x, kv, weight, *saved, 1e-6, mask, num_parts=2)
    kv[mask] = torch.nan
    out, *numbers = forward(
        machine, x, kv, weight, EPS, 1e-6, image_token_mask=mask.to(machine.device)
    )
    assert compare.bits(out[mask.to(out.device)], x[mask]) == ""
    assert all(not bool(each[mask.to(out.device)].any()) for each in numbers)
    x[mask] = torch.nan
    for each in saved:
        each[mask] = torch.nan
    actual = backward(machine, grad_out, x, kv, weight, *saved, 1e-6, mask, num_parts=2)
    assert compare.bits(actual[0][mask.to(out.device)], grad_out[mask]) == ""
    assert not bool(actual[1][mask.to(out.device)].any())
    for mine, right in zip(actual, clean, strict=True):
        assert compare.bits(mine, right.cpu()) == ""


@pytest.mark.parametrize("hidden", [576, 2048])
@pytest.mark.parametrize("eps", [1e-20, 1e-6, 1e-1])
@pytest.mark.parametrize("clamp_value", [1e-12, 1e-6, 0.5])
def test_eps_and_clamp_come_at_run_time(
    machine: Any, clamp_value: float, eps: float, hidden: int
) -> None:
    x, kv, weight, grad_out = inputs(4, hidden)
    check_forward(machine, x, kv, weight, eps=eps, clamp_value=clamp_value)
    check_backward(machine, x, kv, weight, grad_out, clamp_value)


@pytest.mark.parametrize("hidden", [576, 2048])
def test_a_dot_of_zero_counts_as_positive_and_has_no_gradient(machine: Any, hidden: int) -> None:
    x, kv, weight, grad_out = inputs(3, hidden)
    x[0] = 0.0
    x[1] = -0.0
    kv[2, :4] = 0.0
    _, dot, gate, _, _ = check_forward(machine, x, kv, weight, clamp_value=0.25)
    assert compare.bits(dot, torch.zeros(3, 4)) == ""
    assert bool((gate > 0.62).all())  # sigmoid(0.5), not sigmoid(-0.5)
    grad_x, grad_kv, _ = check_backward(machine, x, kv, weight, grad_out, 0.25)
    assert torch.equal(grad_x.cpu(), grad_out)
    assert not bool(grad_kv[:, :4].any())


@pytest.mark.parametrize("hidden", [576, 2048])
def test_below_the_clamp_the_gate_is_constant(machine: Any, hidden: int) -> None:
    x, kv, weight, grad_out = inputs(5, hidden)
    grad_x, grad_kv, partial = check_backward(machine, x, kv, weight, grad_out, 1e3)
    assert torch.equal(grad_x.cpu(), grad_out)
    assert not bool(grad_kv[:, :4].any())
    assert not bool(partial.any())


@pytest.mark.parametrize("hidden", [576, 2048])
def test_a_nan_stays_in_its_stream(machine: Any, hidden: int) -> None:
    x, kv, weight, _ = inputs(3, hidden)
    clean = forward(machine, x, kv, weight, EPS, CLAMP_VALUE)[0].cpu()
    x[1, 2, 5] = torch.nan
    out = forward(machine, x, kv, weight, EPS, CLAMP_VALUE)[0].cpu()
    assert bool(out[1, 2].isnan().all())
    out[1, 2] = clean[1, 2]
    assert torch.equal(out, clean)


@pytest.mark.parametrize("hidden", [576, 2048])
def test_a_token_gives_the_same_bits_alone_and_in_a_batch(machine: Any, hidden: int) -> None:
    x, kv, weight, grad_out = inputs(11, hidden)
    together = forward(machine, x, kv, weight, EPS, CLAMP_VALUE)
    saved = [each.cpu() for each in together[1:]]
    grads = backward(machine, grad_out, x, kv, weight, *saved, CLAMP_VALUE, num_parts=3)
    for i in (0, 5, 10):
        one = slice(i, i + 1)
        alone = forward(machine, x[one], kv[one], weight, EPS, CLAMP_VALUE)
        for mine, right in zip(alone, together, strict=True):
            assert torch.equal(mine, right[one])
        single = (grad_out[one], x[one], kv[one], weight, *(each[one] for each in saved))
        alone = backward(machine, *single, CLAMP_VALUE, num_parts=2)
        assert torch.equal(alone[0], grads[0][one])
        assert torch.equal(alone[1], grads[1][one])


@pytest.mark.parametrize("hidden", [576, 2048])
@pytest.mark.parametrize("num_parts", [1, 2, 7, 40])
def test_any_number_of_parts_and_each_is_written(machine: Any, num_parts: int, hidden: int) -> None:
    partial = check_backward(machine, *inputs(13, hidden), num_parts=num_parts)[2]
    assert partial.shape == (num_parts, 4, hidden)
    empty = check_backward(machine, *inputs(0, hidden), num_parts=num_parts)[2]
    assert compare.bits(empty, torch.zeros(num_parts, 4, hidden)) == ""


@pytest.mark.parametrize("hidden", [576, 2048])
def test_two_calls_give_the_same_bits(machine: Any, hidden: int) -> None:
    first = check_backward(machine, *inputs(17, hidden), num_parts=4)
    second = check_backward(machine, *inputs(17, hidden), num_parts=4)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("hidden", [64, 576, 5120])
@pytest.mark.parametrize("num_parts", [1, 3, 33, 264])
def test_the_reduction_adds_to_both_buffers(machine: Any, num_parts: int, hidden: int) -> None:
    generator = torch.Generator().manual_seed(num_parts)
    partial = torch.randn((num_parts, 4, hidden), generator=generator)
    weights = torch.randn((2, 4, hidden), generator=generator).bfloat16()
    grads = torch.randn((2, 4, hidden), generator=generator)
    expected = grads.clone()
    tw.reference.engram.grad_w_reduce(partial, *weights, *expected)
    results = []
    for _ in range(2):
        actual = grads.to(machine.device, copy=True)
        try:
            tw.engram.grad_w_reduce(
                partial.to(machine.device), *weights.to(machine.device), *actual
            )
        except tw.NoArtifactError as error:
            pytest.skip(str(error).splitlines()[0])
        results.append(actual)
    assert difference("reduced", results[0], expected) == ""
    assert torch.equal(results[0], results[1])


@pytest.mark.parametrize("hidden", [576, 2048])
@pytest.mark.parametrize("with_main_grad", [False, True])
def test_autograd_agrees_with_float64(machine: Any, with_main_grad: bool, hidden: int) -> None:
    x, kv, _, grad_out = inputs(9, hidden)
    weights = torch.randn((2, 4, hidden), generator=torch.Generator().manual_seed(2)).bfloat16()
    exact = [t.double().requires_grad_() for t in (x, kv, weights[0], weights[1])]
    out = tw.reference.engram.engram_gate_fwd(
        exact[0], exact[1], exact[2] * exact[3], EPS, CLAMP_VALUE
    )[0]
    out.backward(grad_out.double())
    leaves = [t.to(machine.device).requires_grad_() for t in (x, kv)]
    parameters = [torch.nn.Parameter(t.to(machine.device)) for t in weights]
    if with_main_grad:
        for parameter in parameters:
            parameter.main_grad = torch.ones(4, hidden, device=machine.device)
            parameter.grad_added_to_main_grad = False
    try:
        result = tw.modeling.engram_gate(*leaves, *parameters, EPS, CLAMP_VALUE)
    except tw.NoArtifactError as error:
        pytest.skip(str(error).splitlines()[0])
    result.backward(grad_out.to(machine.device))
    for mine, right in zip(leaves, exact[:2], strict=True):
        assert mine.grad.dtype == torch.bfloat16
        assert difference("bfloat16", mine.grad, right.grad) == ""
    for mine, right in zip(parameters, exact[2:], strict=True):
        if with_main_grad:
            assert mine.grad is None
            assert mine.grad_added_to_main_grad
            assert difference("main_grad", mine.main_grad, right.grad + 1) == ""
        else:
            assert mine.grad.dtype == torch.bfloat16
            assert difference("bfloat16", mine.grad, right.grad) == ""
