"""torch.ops.tilewheel: tracing, export, functional transforms."""

from __future__ import annotations

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch._subclasses import FakeTensorMode

import tilewheel as tw

SCORES = torch.tensor([[1.0, 4.0, 4.0, 2.0], [0.0, -0.0, -1.0, -2.0]])
EXPECTED = [[1, 2], [0, 1]]

topk_gate = tw.moe.topk_gate


def test_operator_gives_the_public_function_s_result():
    assert torch.ops.tilewheel.topk_gate(SCORES, 2).tolist() == EXPECTED


@pytest.mark.parametrize("num_tokens", [0, 1, 5])
def test_operator_passes_opcheck(num_tokens):
    scores = torch.arange(num_tokens * 4.0).view(num_tokens, 4)
    torch.library.opcheck(torch.ops.tilewheel.topk_gate.default, (scores, 2))


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_function_serves_every_number_of_tokens(backend):
    torch._dynamo.reset()
    counter = CompileCounterWithBackend(backend)

    @torch.compile(fullgraph=True, dynamic=True, backend=counter)
    def gate(scores):
        return topk_gate(scores * 1.0, 2) + 1

    assert gate(SCORES).tolist() == [[2, 3], [1, 2]]
    assert gate(SCORES.repeat(3, 1)).shape == (6, 2)
    assert counter.frame_count == 1


def test_compiled_function_takes_num_topk_as_an_argument():
    gate = torch.compile(topk_gate, fullgraph=True, dynamic=True, backend="eager")
    assert gate(SCORES, 2).tolist() == EXPECTED
    assert gate(SCORES, 1).tolist() == [[1], [0]]


def test_compiled_function_writes_out():
    @torch.compile(fullgraph=True, backend="aot_eager")
    def gate(scores, out):
        return tw.moe.topk_gate(scores, 2, out=out)

    out = torch.empty((2, 2), dtype=torch.int64)
    gate(SCORES, out)
    assert out.tolist() == EXPECTED


def test_compiled_function_runs_the_selected_backend(overlay, install):
    install(overlay, "topk_gate-num_experts=4-num_topk=2-ascend_sim-dav_3510", "-DWRONG")
    gate = torch.compile(lambda scores: topk_gate(scores, 2), fullgraph=True, backend="eager")
    assert gate(SCORES).tolist() == EXPECTED
    with tw.backend("ascend-sim"):
        assert gate(SCORES)[0, 0] == 12345


@pytest.mark.parametrize("strict", [True, False])
def test_exported_program_serves_every_number_of_tokens(strict):
    class Gate(torch.nn.Module):
        def forward(self, scores):
            return topk_gate(scores, 2)

    tokens = {"scores": {0: torch.export.Dim("num_tokens")}}
    program = torch.export.export(Gate(), (SCORES,), dynamic_shapes=tokens, strict=strict)
    called = [node.target for node in program.graph.nodes if node.op == "call_function"]
    assert called == [torch.ops.tilewheel.topk_gate.default]
    assert program.module()(SCORES.repeat(4, 1)).tolist() == EXPECTED * 4


def test_fake_tensor_gives_a_fake_result():
    with FakeTensorMode():
        idx = topk_gate(torch.empty((3, 4)), 2)
    assert (type(idx).__name__, tuple(idx.shape), idx.dtype) == ("FakeTensor", (3, 2), torch.int64)


def test_fake_tensor_is_checked_as_a_real_one():
    with FakeTensorMode():
        with pytest.raises(TypeError, match=r"scores: dtype is torch\.float64"):
            torch.ops.tilewheel.topk_gate(torch.empty((3, 4), dtype=torch.float64), 2)
        with pytest.raises(ValueError, match="num_topk: is 5, must be at most num_experts"):
            topk_gate(torch.empty((3, 4)), 5)


def test_gradient_of_the_rest_flows():
    def loss(scores):
        return scores.gather(1, topk_gate(scores, 1)).sum()

    expected = [[0, 1, 0, 0], [1, 0, 0, 0]]
    assert torch.func.grad(loss)(SCORES).tolist() == expected
    scores = SCORES.clone().requires_grad_()
    loss(scores).backward()
    assert scores.grad.tolist() == expected
