"""The reference of the Engram gate: its gradients against numbers, autograd, and the formulas."""

from __future__ import annotations

import pytest
import torch

from tilewheel.reference import engram

EPS = 1e-6
NUM_TOKENS, HIDDEN = 3, 6
MASK = torch.tensor([False, True, False])


def leaves(num_tokens=NUM_TOKENS):
    """Return x, kv and the two weights in float64."""
    generator = torch.Generator().manual_seed(0)
    shapes = ((num_tokens, 4, HIDDEN), (num_tokens, 5, HIDDEN), (4, HIDDEN), (4, HIDDEN))
    return [
        torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_()
        for shape in shapes
    ]


class Modelled(torch.autograd.Function):
    """The gate whose gradients are those of ``engram_gate_bwd`` and ``grad_w_reduce``."""

    @staticmethod
    def forward(ctx, x, kv, weight_hidden, weight_embed, clamp_value, mask):
        weight = engram.fused_weight(weight_hidden, weight_embed)
        out, *saved = engram.engram_gate_fwd(x, kv, weight, EPS, clamp_value, image_token_mask=mask)
        ctx.save_for_backward(x, kv, weight_hidden, weight_embed, *saved)
        ctx.options = (clamp_value, mask)
        return out

    @staticmethod
    def backward(ctx, grad_out):
        x, kv, weight_hidden, weight_embed, *saved = ctx.saved_tensors
        clamp_value, mask = ctx.options
        grad_x, grad_kv, partial = engram.engram_gate_bwd(
            grad_out,
            x,
            kv,
            engram.fused_weight(weight_hidden, weight_embed),
            *saved,
            clamp_value,
            image_token_mask=mask,
            num_parts=2,
        )
        grads = torch.zeros((2, 4, HIDDEN), dtype=torch.float64)
        engram.grad_w_reduce(partial, weight_hidden, weight_embed, *grads)
        return grad_x, grad_kv, *grads, None, None


# The clamp: below every |z|, above some and below others, above all.
@pytest.mark.parametrize("clamp_value", [1e-9, 0.4, 1e3])
@pytest.mark.parametrize("mask", [None, MASK])
class TestGradients:
    def test_agree_with_differences(self, mask, clamp_value):
        assert torch.autograd.gradcheck(Modelled.apply, (*leaves(), clamp_value, mask))

    def test_agree_with_autograd(self, mask, clamp_value):
        first, second = leaves(), leaves()
        grad_out = torch.randn((NUM_TOKENS, 4, HIDDEN), dtype=torch.float64)
        Modelled.apply(*first, clamp_value, mask).backward(grad_out)
        out = engram.engram_gate_fwd(
            *second[:2], second[2] * second[3], EPS, clamp_value, image_token_mask=mask
        )[0]
        out.backward(grad_out)
        for mine, right in zip(first, second, strict=True):
            torch.testing.assert_close(mine.grad, right.grad, rtol=1e-12, atol=1e-13)


def test_some_products_are_below_the_middle_clamp_and_some_above():
    x, kv, weight_hidden, weight_embed = leaves()
    _, dot, _, rstd_x, rstd_k = engram.engram_gate_fwd(x, kv, weight_hidden * weight_embed, EPS, 1)
    z = (dot * rstd_x * rstd_k * HIDDEN**-0.5).abs()
    assert 0 < int((z < 0.4).sum()) < z.numel()
    assert bool((z > 1e-9).all())


def test_autograd_of_the_reference_passes_gradcheck():
    x, kv, weight_hidden, weight_embed = leaves()
    assert torch.autograd.gradcheck(
        lambda *tensors: engram.engram_gate_fwd(*tensors, EPS, 1e-9)[0],
        (x, kv, engram.fused_weight(weight_hidden, weight_embed).detach().requires_grad_()),
    )


def test_numbers_of_a_token_by_hand():
    x = torch.tensor([2.0, -2.0]).expand(1, 4, 2).double()
    kv = torch.tensor([3.0, 3.0]).expand(1, 5, 2).double()
    weight = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [0.5, 0.0]])
    out, dot, gate, rstd_x, rstd_k = engram.engram_gate_fwd(x, kv, weight, 1e-30, 1e-9)
    assert dot.tolist() == [[6.0, -6.0, 0.0, 3.0]]
    torch.testing.assert_close(rstd_x, torch.full((1, 4), 0.5).double())
    torch.testing.assert_close(rstd_k, torch.full((1, 4), 1 / 3).double())
    z = torch.tensor([[1.0, -1.0, 0.0, 0.5]]).double() * 2**-0.5
    root = torch.tensor([[1.0, -1.0, 1.0, 1.0]]) * z.abs().clamp(min=1e-9).sqrt()
    torch.testing.assert_close(gate, 1 / (1 + (-root).exp()))
    torch.testing.assert_close(out, x + gate[..., None] * 3)


def test_a_dot_of_minus_zero_counts_as_positive():
    x, kv = -torch.zeros(1, 4, 2).double(), torch.ones(1, 5, 2).double()
    _, dot, gate, _, _ = engram.engram_gate_fwd(x, kv, torch.ones(4, 2), 1e-6, 4.0)
    assert not bool(dot.signbit().any())
    torch.testing.assert_close(gate, torch.full((1, 4), 2.0).double().sigmoid())


def test_a_masked_token_may_hold_nan():
    x, kv, weight_hidden, weight_embed = (tensor.detach() for tensor in leaves())
    weight = weight_hidden * weight_embed
    saved = engram.engram_gate_fwd(x, kv, weight, EPS, 1e-9)[1:]
    grad_out = torch.ones_like(x)
    options = {"image_token_mask": MASK, "num_parts": 2}
    tensors = (x, kv, *saved)
    clean = engram.engram_gate_bwd(grad_out, x, kv, weight, *saved, 1e-9, **options)
    x, kv, *saved = (torch.where(MASK.view(-1, *[1] * (t.ndim - 1)), torch.nan, t) for t in tensors)
    grads = engram.engram_gate_bwd(grad_out, x, kv, weight, *saved, 1e-9, **options)
    assert all(torch.equal(a, b) for a, b in zip(grads, clean, strict=True))
    out, *numbers = engram.engram_gate_fwd(x, kv, weight, EPS, 1e-9, image_token_mask=MASK)
    assert bool(out[1].isnan().all())
    assert not any(bool(each[1].any()) for each in numbers)


def test_part_p_takes_every_num_parts_th_token():
    x, kv, weight_hidden, weight_embed = (tensor.detach() for tensor in leaves(5))
    weight = weight_hidden * weight_embed
    saved = engram.engram_gate_fwd(x, kv, weight, EPS, 1e-9)[1:]
    tensors = (torch.ones_like(x), x, kv, weight, *saved)
    parts = engram.engram_gate_bwd(*tensors, 1e-9, num_parts=3)[2]
    for p in range(3):
        some = [t[p::3] if len(t) == 5 else t for t in tensors]
        torch.testing.assert_close(parts[p], engram.engram_gate_bwd(*some, 1e-9)[2][0])


def test_results_have_the_dtypes_of_the_contract():
    x, kv = torch.ones(1, 4, 64).bfloat16(), torch.ones(1, 5, 64).bfloat16()
    weight = engram.fused_weight(*torch.ones(2, 4, 64).bfloat16())
    assert weight.dtype == torch.float32
    out, *saved = engram.engram_gate_fwd(x, kv, weight, EPS, 1e-6)
    assert [out.dtype, *(each.dtype for each in saved)] == [torch.bfloat16] + [torch.float32] * 4
    grads = engram.engram_gate_bwd(x, x, kv, weight, *saved, 1e-6)
    assert [grad.dtype for grad in grads] == [torch.bfloat16, torch.bfloat16, torch.float32]
