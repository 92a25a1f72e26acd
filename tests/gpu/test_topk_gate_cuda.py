"""What only a GPU shows of topk_gate: streams, graphs, devices, threads, large tensors."""

from __future__ import annotations

import threading

import pytest
import torch

import tilewheel as tw

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine"),
]


def scores(num_tokens: int, num_experts: int = 256, device: str = "cuda") -> torch.Tensor:
    generator = torch.Generator(device=device).manual_seed(num_tokens)
    return torch.randint(-9, 9, (num_tokens, num_experts), generator=generator, device=device).to(
        torch.float32
    )


def test_graph_capture_of_the_first_call_and_replay() -> None:
    x = scores(129, 512)
    out = torch.empty((129, 10), dtype=torch.int64, device="cuda")
    graph = torch.cuda.CUDAGraph()
    # The first call with this artifact in the process: its device code loads inside the capture.
    with torch.cuda.graph(graph):
        tw.moe.topk_gate(x, 10, out=out)
    graph.replay()
    assert torch.equal(out, tw.reference.moe.topk_gate(x, 10))
    x.neg_()
    graph.replay()
    assert torch.equal(out, tw.reference.moe.topk_gate(x, 10))


def test_allocation_inside_a_graph_capture() -> None:
    x = scores(77)
    tw.moe.topk_gate(x, 8)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        idx = tw.moe.topk_gate(x, 8)
    x.neg_()
    graph.replay()
    assert torch.equal(idx, tw.reference.moe.topk_gate(x, 8))


def test_the_kernel_runs_on_the_callers_stream() -> None:
    x = scores(4096)
    side = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(50_000_000)
        x.neg_()
        idx = tw.moe.topk_gate(x, 8)
    assert not side.query()
    side.synchronize()
    assert torch.equal(idx, tw.reference.moe.topk_gate(x, 8))


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one CUDA device on this machine")
def test_a_tensor_on_another_device_than_the_current_one() -> None:
    x = scores(300, device="cuda:1")
    with torch.cuda.device(0):
        idx = tw.moe.topk_gate(x, 8)
        assert torch.cuda.current_device() == 0
        assert torch.empty(1, device="cuda").device.index == 0
    assert idx.device.index == 1
    assert torch.equal(idx, tw.reference.moe.topk_gate(x, 8))


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one CUDA device on this machine")
def test_tensors_on_two_devices_are_refused() -> None:
    x = scores(3, device="cuda:0")
    out = torch.empty((3, 8), dtype=torch.int64, device="cuda:1")
    with pytest.raises(ValueError, match="out: is on cuda:1"):
        tw.moe.topk_gate(x, 8, out=out)


def test_a_thread_that_never_used_cuda() -> None:
    x = scores(50)
    results: list[torch.Tensor] = []

    def call() -> None:
        results.append(tw.moe.topk_gate(x, 8))

    threads = [threading.Thread(target=call) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    expected = tw.reference.moe.topk_gate(x, 8)
    assert len(results) == 8
    assert all(torch.equal(result, expected) for result in results)


def test_the_bare_artifact_checks_its_arguments() -> None:
    kernel = tw.load("topk_gate", device="cuda", num_experts=256, num_topk=8)
    x = scores(4)
    out = torch.empty((4, 8), dtype=torch.int64, device="cuda")
    kernel(x, out)
    assert torch.equal(out, tw.reference.moe.topk_gate(x, 8))
    with pytest.raises(TypeError, match="scores: is float64, must be float32"):
        kernel(x.double(), out)
    with pytest.raises(ValueError, match="scores: is 1-dimensional, must be 2-dimensional"):
        kernel(x[0], out)
    with pytest.raises(ValueError, match=r"scores.shape\[1\]: is 128, must be 256"):
        kernel(x[:, :128].contiguous(), out)
    with pytest.raises(ValueError, match=r"scores: stride\(1\) is 2, must be 1"):
        kernel(torch.zeros((4, 512), device="cuda")[:, ::2], out)
    with pytest.raises(ValueError, match=r"idx.shape\[0\]: is 3, must be 4"):
        kernel(x, out[:3])
    with pytest.raises(
        ValueError, match="scores: data pointer is aligned to 4 bytes, must be to 16"
    ):
        kernel(torch.zeros(4 * 256 + 1, device="cuda")[1:].view(4, 256), out)
    with pytest.raises(ValueError, match="must be on a CUDA device"):
        kernel(x.cpu(), out)
    with pytest.raises(TypeError, match="scores: is None, must be a tensor"):
        kernel(None, out)
    with pytest.raises(TypeError, match="takes 2 arguments"):
        kernel(x)


def test_the_generic_artifact_bounds_its_run_time_sizes() -> None:
    kernel = tw.load("topk_gate", device="cuda", num_experts=257, num_topk=9)
    out = torch.empty((1, 9), dtype=torch.int64, device="cuda")
    with pytest.raises(ValueError, match=r"scores.shape\[1\] \(num_experts\): is 1025, must be"):
        kernel(torch.zeros((1, 1025), device="cuda"), out)
    wide = torch.empty((1, 33), dtype=torch.int64, device="cuda")
    with pytest.raises(ValueError, match=r"idx.shape\[1\] \(num_topk\): is 33, must be between"):
        kernel(torch.zeros((1, 100), device="cuda"), wide)


def test_more_indices_than_experts_stay_inside_memory() -> None:
    """The public function refuses this; the bare artifact must still not touch other memory."""
    kernel = tw.load("topk_gate", device="cuda", num_experts=3, num_topk=2)
    storage = torch.full((8 * 5,), -7, dtype=torch.int64, device="cuda")
    kernel(torch.zeros((4, 3), device="cuda"), storage[: 4 * 5].view(4, 5))
    torch.cuda.synchronize()
    assert bool((storage[4 * 5 :] == -7).all())


def test_more_than_two_to_the_31_scores() -> None:
    num_tokens = (2**31) // 256 + 5
    x = torch.zeros((num_tokens, 256), device="cuda")
    last = scores(64)
    x[-64:] = last
    idx = tw.moe.topk_gate(x, 8)
    assert torch.equal(idx[-64:], tw.reference.moe.topk_gate(last, 8))
    assert idx[0].tolist() == [0, 1, 2, 3, 4, 5, 6, 7]
    assert bool((idx[:-64] == torch.arange(8, device="cuda")).all())


def test_compile_with_a_dynamic_number_of_tokens() -> None:
    def route(x: torch.Tensor) -> torch.Tensor:
        return tw.moe.topk_gate(x * 2.0, 8) + 1

    compiled = torch.compile(route, fullgraph=True, dynamic=True)
    for num_tokens in (1, 7, 64, 1000):
        x = scores(num_tokens)
        assert torch.equal(compiled(x), tw.reference.moe.topk_gate(x, 8) + 1)


def test_the_torch_op_passes_opcheck() -> None:
    tw.moe.topk_gate(scores(1), 8)
    torch.library.opcheck(torch.ops.tilewheel.topk_gate.default, (scores(5), 8))


def test_a_failed_call_leaves_the_device_usable() -> None:
    with pytest.raises(ValueError, match="num_topk"):
        tw.moe.topk_gate(scores(2), 33)
    x = scores(2)
    x[0, 0] = float("nan")
    assert tw.moe.topk_gate(x, 8)[0].tolist() == [-1] * 8
    assert float(torch.ones(3, device="cuda").sum()) == 3.0


def test_preload_makes_a_profile_ready() -> None:
    loaded = tw.preload(device="cuda", profile="deepseek-v4-flash")
    assert loaded
