"""The Engram operators under torch's transforms, and tilewheel.modeling on top of them."""

from __future__ import annotations

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch._subclasses import FakeTensorMode

import tilewheel as tw

HIDDEN = 64
EPS = CLAMP = 1e-6
MASK = torch.tensor([False, True, False, False, True])
OPS = torch.ops.tilewheel


def inputs(num_tokens=5):
    """Return x, kv, the two weights and a gradient of out."""
    generator = torch.Generator().manual_seed(num_tokens)
    shapes = ((num_tokens, 4), (num_tokens, 5), (4,), (4,), (num_tokens, 4))
    return [torch.randn((*s, HIDDEN), generator=generator).bfloat16() for s in shapes]


def gradients(function, mask=None, num_tokens=5):
    """Return out and the gradients of x, kv and the two weights."""
    *tensors, grad_out = inputs(num_tokens)
    leaves = [tensor.requires_grad_() for tensor in tensors]
    out = function(*leaves, EPS, CLAMP, mask)
    out.backward(grad_out)
    return [out.detach(), *(leaf.grad for leaf in leaves)]


def same(first, second):
    return all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize(("num_tokens", "masked"), [(0, False), (1, True), (5, False), (5, True)])
def test_operators_of_the_gate_pass_opcheck(num_tokens, masked):
    x, kv, weight_hidden, weight_embed, grad_out = inputs(num_tokens)
    weight = tw.engram.fused_weight(weight_hidden, weight_embed)
    mask = MASK[:num_tokens] if masked else None
    for saves in (False, True):
        arguments = (x, kv, weight, mask, EPS, CLAMP, saves)
        torch.library.opcheck(OPS.engram_gate_fwd.default, arguments)
    arguments = (x.clone(), kv, weight, mask, EPS, CLAMP)
    torch.library.opcheck(OPS.engram_gate_fwd_.default, arguments)
    saved = tw.engram.engram_gate_fwd(x, kv, weight, EPS, CLAMP)[1:]
    arguments = (grad_out, x, kv, weight, *saved, mask, CLAMP, 3)
    torch.library.opcheck(OPS.engram_gate_bwd.default, arguments)


@pytest.mark.parametrize("num_parts", [1, 5])
def test_operators_of_the_weights_pass_opcheck(num_parts):
    weights = inputs()[2:4]
    torch.library.opcheck(OPS.fused_weight.default, tuple(weights))
    partial, grads = torch.ones(num_parts, 4, HIDDEN), torch.zeros(2, 4, HIDDEN)
    arguments = (partial, *weights, grads[0].clone(), grads[1].clone())
    torch.library.opcheck(OPS.grad_w_reduce.default, arguments)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("masked", [False, True])
def test_compiled_gate_serves_every_number_of_tokens(masked, backend):
    torch._dynamo.reset()
    counter = CompileCounterWithBackend(backend)

    @torch.compile(fullgraph=True, dynamic=True, backend=counter)
    def step(x, kv, weight_hidden, weight_embed, grad_out, mask):
        weight = tw.engram.fused_weight(weight_hidden, weight_embed)
        out, *saved = tw.engram.engram_gate_fwd(
            x * 1, kv, weight, EPS, CLAMP, image_token_mask=mask
        )
        grads = tw.engram.engram_gate_bwd(grad_out, x, kv, weight, *saved, CLAMP, mask)
        buffers = (torch.zeros(4, HIDDEN), torch.zeros(4, HIDDEN))
        tw.engram.grad_w_reduce(grads[2], weight_hidden, weight_embed, *buffers)
        return out, grads[0], grads[1], *buffers

    counts = []
    # Not 4 or 5 at first: a size that is equal to another counts as the same size.
    for num_tokens in (7, 2, 5):
        tensors = inputs(num_tokens)
        mask = torch.arange(num_tokens) % 3 == 1 if masked else None
        wanted = gradients(tw.modeling.engram_gate, mask, num_tokens)
        actual = step(*tensors, mask)
        assert same([each.bfloat16() for each in actual], wanted)
        counts.append(counter.frame_count)
    # The first call may take a second attempt, because eps and clamp_value must be constants.
    assert counts == counts[:1] * 3


def test_compiled_gate_writes_in_place():
    x, kv, *weights, _ = inputs()
    weight = tw.engram.fused_weight(*weights)

    @torch.compile(fullgraph=True, backend="aot_eager")
    def step(x):
        return tw.engram.engram_gate_fwd(x, kv, weight, EPS, CLAMP, False, MASK, True)[0] + 1

    wanted = tw.engram.engram_gate_fwd(x, kv, weight, EPS, CLAMP, False, MASK)[0]
    assert torch.equal(step(x), wanted + 1)
    assert torch.equal(x, wanted)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("masked", [False, True])
def test_compiled_autograd_gives_the_same_gradients(masked, backend):
    torch._dynamo.reset()
    mask = MASK if masked else None
    compiled = torch.compile(tw.modeling.engram_gate, fullgraph=True, backend=backend)
    assert same(gradients(compiled, mask), gradients(tw.modeling.engram_gate, mask))


@pytest.mark.parametrize("strict", [True, False])
def test_exported_program_serves_every_number_of_tokens(strict):
    class Gate(torch.nn.Module):
        def forward(self, x, kv, weight):
            return tw.engram.engram_gate_fwd(x, kv, weight, EPS, CLAMP, False)[0]

    x, kv, *weights, _ = inputs()
    weight = tw.engram.fused_weight(*weights)
    tokens = {0: torch.export.Dim("num_tokens")}
    shapes = {"x": tokens, "kv": tokens, "weight": None}
    program = torch.export.export(Gate(), (x, kv, weight), dynamic_shapes=shapes, strict=strict)
    targets = [node.target for node in program.graph.nodes if node.op == "call_function"]
    assert OPS.engram_gate_fwd.default in targets
    x, kv = inputs(3)[:2]
    wanted = tw.engram.engram_gate_fwd(x, kv, weight, EPS, CLAMP)[0]
    assert torch.equal(program.module()(x, kv, weight), wanted)


def test_fake_tensors_are_checked_as_real_ones():
    with FakeTensorMode():
        x, kv = torch.empty(3, 4, HIDDEN).bfloat16(), torch.empty(3, 5, HIDDEN).bfloat16()
        weight = torch.empty(4, HIDDEN)
        out, *saved = tw.engram.engram_gate_fwd(x, kv, weight, EPS, CLAMP)
        assert (out.shape, out.dtype) == (x.shape, x.dtype)
        assert {(each.shape, each.dtype) for each in saved} == {((3, 4), torch.float32)}
        none = tw.engram.engram_gate_fwd(x, kv, weight, EPS, CLAMP, save_for_backward=False)[1:]
        assert none == (None,) * 4
        grads = tw.engram.engram_gate_bwd(x, x, kv, weight, *saved, CLAMP, num_parts=7)
        assert [grad.shape for grad in grads] == [x.shape, kv.shape, (7, 4, HIDDEN)]
        assert tw.engram.grad_w_reduce(grads[2], x[0], x[1], weight, weight.clone()) is None
        with pytest.raises(ValueError, match=r"kv: shape is \(2, 5, 64\), must be \(3, 5, 64\)"):
            tw.engram.engram_gate_fwd(x, kv[:2], weight, EPS, CLAMP)
        with pytest.raises(ValueError, match=r"dot: shape is \(4, 3\), must be \(3, 4\)"):
            tw.engram.engram_gate_bwd(x, x, kv, weight, saved[0].t(), *saved[1:], CLAMP)


def test_vmap_gives_the_result_of_each():
    x, kv, *weights, grad_out = inputs()
    weight = tw.engram.fused_weight(*weights)

    def step(x, kv, grad_out):
        out, *saved = tw.engram.engram_gate_fwd(x, kv, weight, EPS, CLAMP)
        return out, *tw.engram.engram_gate_bwd(grad_out, x, kv, weight, *saved, CLAMP, num_parts=2)

    batch = [torch.stack((t, t.flip(0))) for t in (x, kv, grad_out)]
    first = step(x, kv, grad_out)
    for mine, right in zip(torch.vmap(step)(*batch), first, strict=True):
        assert torch.equal(mine[0], right)


def test_operators_are_not_differentiable_by_themselves():
    x, kv, *weights, _ = (tensor.requires_grad_() for tensor in inputs())
    weight = tw.engram.fused_weight(*weights)
    assert not weight.requires_grad
    out, *saved = tw.engram.engram_gate_fwd(x, kv, weight, EPS, CLAMP)
    assert not any(each.requires_grad for each in (out, *saved))


def test_autograd_notices_that_saved_values_were_written():
    x, kv, *weights, _ = inputs()
    weight = tw.engram.fused_weight(*weights)
    product = (x * torch.ones((), requires_grad=True)).sum()
    tw.engram.engram_gate_fwd(x, kv, weight, EPS, CLAMP, False, None, True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.backward()
    buffer = torch.zeros(4, HIDDEN)
    product = (buffer * torch.ones((), requires_grad=True)).sum()
    tw.engram.grad_w_reduce(torch.ones(2, 4, HIDDEN), *weights, buffer, buffer.clone())
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.backward()


def test_without_gradients_nothing_is_saved_and_the_result_is_the_same():
    tensors = inputs()[:4]
    recorded = tw.modeling.engram_gate(*(t.requires_grad_() for t in tensors), EPS, CLAMP)
    assert recorded.grad_fn is not None
    with torch.no_grad():
        plain = tw.modeling.engram_gate(*tensors, EPS, CLAMP)
    assert plain.grad_fn is None
    assert torch.equal(plain, recorded)


def test_only_wanted_gradients_are_given():
    wanted = gradients(tw.modeling.engram_gate)
    for i in range(4):
        *tensors, grad_out = inputs()
        tensors[i].requires_grad_()
        tw.modeling.engram_gate(*tensors, EPS, CLAMP).backward(grad_out)
        assert torch.equal(tensors[i].grad, wanted[1 + i])
        assert [each.grad is None for each in tensors].count(False) == 1


def test_gradients_are_added_to_main_grad():
    wanted = gradients(tw.modeling.engram_gate)
    x, kv, *weights, grad_out = inputs()
    first, second = (torch.nn.Parameter(weight) for weight in weights)
    first.main_grad = torch.zeros(4, HIDDEN)
    first.grad_added_to_main_grad = False
    for _ in range(2):
        tw.modeling.engram_gate(x, kv, first, second, EPS, CLAMP).backward(grad_out)
    assert first.grad is None
    assert first.grad_added_to_main_grad is True
    assert torch.equal((first.main_grad / 2).bfloat16(), wanted[3])
    assert torch.equal(second.grad, wanted[4] * 2)
    assert not hasattr(second, "grad_added_to_main_grad")


def test_main_grad_of_a_wrong_dtype():
    x, kv, *weights, grad_out = inputs()
    weights = [torch.nn.Parameter(weight) for weight in weights]
    weights[0].main_grad = torch.zeros(4, HIDDEN).bfloat16()
    out = tw.modeling.engram_gate(x, kv, *weights, EPS, CLAMP)
    with pytest.raises(TypeError, match=r"grad_weight_hidden: dtype is torch\.bfloat16, must be"):
        out.backward(grad_out)


def test_a_gradient_that_is_a_view_is_taken():
    first, second = [], []
    for found, spread in ((first, lambda out: out.sum()), (second, lambda out: (out * 1).sum())):
        tensors = [tensor.requires_grad_() for tensor in inputs()[:4]]
        spread(tw.modeling.engram_gate(*tensors, EPS, CLAMP)).backward()
        found.extend(tensor.grad for tensor in tensors)
    assert same(first, second)


def test_the_gate_is_differentiable_once():
    tensors = [tensor.requires_grad_() for tensor in inputs()[:4]]
    out = tw.modeling.engram_gate(*tensors, EPS, CLAMP).float().square().sum()
    (grad,) = torch.autograd.grad(out, tensors[0], create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        grad.sum().backward()


def test_activation_checkpointing_recomputes_the_same():
    def checkpointed(*arguments):
        return torch.utils.checkpoint.checkpoint(
            tw.modeling.engram_gate, *arguments, use_reentrant=False
        )

    assert same(gradients(checkpointed, MASK), gradients(tw.modeling.engram_gate, MASK))


def test_no_tokens_give_no_gradient_of_the_weights():
    out, grad_x, grad_kv, *grads = gradients(tw.modeling.engram_gate, num_tokens=0)
    assert out.shape == grad_x.shape == (0, 4, HIDDEN)
    assert grad_kv.shape == (0, 5, HIDDEN)
    assert not any(bool(grad.any()) for grad in grads)


@pytest.mark.parametrize(
    ("operator", "call"),
    [
        ("fused_weight", lambda x, kv, a, b, g: tw.engram.fused_weight(a, b)),
        (
            "engram_gate_fwd",
            lambda x, kv, a, b, g: tw.engram.engram_gate_fwd(x, kv, a.float(), EPS, CLAMP),
        ),
    ],
)
def test_missing_artifact_is_explained(overlay, operator, call):
    with tw.backend("ascend-sim"), pytest.raises(tw.NoArtifactError, match=operator):
        call(*inputs())
