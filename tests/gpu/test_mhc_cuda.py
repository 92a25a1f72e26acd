"""What only a GPU shows of the mHC operators: graphs, streams, large tensors, compilation."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tilewheel as tw
from tilewheel.selftest_cases.mixes import (
    channels,
    mixes,
    normalised_channels,
    post_inputs,
    pre_inputs,
)

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine"),
]

NUMBERS = (1e-6, 1e-6, 1e-6, 2.0, 20)


def on_gpu(tensors: Any) -> tuple[torch.Tensor, ...]:
    return tuple(each.cuda() for each in tensors)


def check_pre(actual: Any, inputs: Any, weight: torch.Tensor | None = None) -> None:
    expected = tw.reference.mhc.pre_big_fuse_fwd(*inputs, *NUMBERS, norm_weight=weight)
    assert mixes(actual[0], expected[0]) == ""
    assert mixes(actual[1], expected[1]) == ""
    same = channels if weight is None else normalised_channels
    assert same(actual[2], expected[2]) == ""


def norm_weight(hidden: int) -> torch.Tensor:
    return torch.linspace(-2.0, 2.0, hidden, device="cuda").to(torch.bfloat16)


def guarded(shape: tuple[int, ...], dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Return memory full of NaN and a tensor in its middle."""
    count = torch.Size(shape).numel()
    memory = torch.full((count + 256,), float("nan"), dtype=dtype, device="cuda")
    return memory, memory[128 : 128 + count].view(shape)


def is_intact(memory: torch.Tensor) -> bool:
    return bool(memory[:128].isnan().all()) and bool(memory[-128:].isnan().all())


@pytest.mark.parametrize("with_norm", [False, True])
def test_graph_capture_of_the_first_call_and_replay(with_norm: bool) -> None:
    weight = norm_weight(4096) if with_norm else None
    inputs = on_gpu(pre_inputs(3, 33, 4096))
    x, _, _, _ = on_gpu(post_inputs(33, 4096))
    tw.refresh()
    graph = torch.cuda.CUDAGraph()
    # The first calls with these artifacts in the process: they load inside the capture.
    with torch.cuda.graph(graph):
        results = tw.mhc.pre_big_fuse_fwd(*inputs, *NUMBERS, norm_weight=weight)
        new = tw.mhc.post_fwd(x, inputs[4], results[0], results[1])
    graph.replay()
    check_pre(results, inputs, weight)
    assert channels(new, tw.reference.mhc.post_fwd(x, inputs[4], *results[:2])) == ""
    inputs[4].mul_(-0.5)
    inputs[0].mul_(0.5)
    graph.replay()
    check_pre(results, inputs, weight)
    assert channels(new, tw.reference.mhc.post_fwd(x, inputs[4], *results[:2])) == ""


def test_the_kernels_run_on_the_callers_stream() -> None:
    inputs = on_gpu(pre_inputs(1, 500, 4096))
    side = torch.cuda.Stream()
    # First calls, which load code, may take longer than the wait below.
    inputs[4].neg_()
    tw.mhc.pre_big_fuse_fwd(*inputs, *NUMBERS)
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(50_000_000)
        inputs[4].neg_()
        results = tw.mhc.pre_big_fuse_fwd(*inputs, *NUMBERS)
    assert not side.query()
    side.synchronize()
    check_pre(results, inputs)


def test_a_call_waits_for_the_kernel_before_it() -> None:
    """Programmatic dependent launch: the next kernel starts early, but may read only afterwards."""
    inputs = on_gpu(pre_inputs(1, 700, 4096))
    first, scale, base = inputs[4].clone(), inputs[2], inputs[3]
    residual, expected = first.clone(), first.clone()
    for _ in range(10):
        post, comb, x = tw.mhc.pre_big_fuse_fwd(*inputs[:2], scale, base, residual, *NUMBERS)
        tw.mhc.post_fwd(x, residual, post, comb, out=residual)
    torch.cuda.synchronize()
    for _ in range(10):
        post, comb, x = tw.mhc.pre_big_fuse_fwd(*inputs[:2], scale, base, expected, *NUMBERS)
        torch.cuda.synchronize()
        tw.mhc.post_fwd(x, expected, post, comb, out=expected)
        torch.cuda.synchronize()
    assert torch.equal(residual, expected)
    assert not torch.equal(residual, first)


@pytest.mark.parametrize("num_tokens", [1, 3, 257, 1000])
@pytest.mark.parametrize("hidden", [64, 320, 3584, 4096, 5120, 7168, 8256])
def test_nothing_is_written_around_the_results(hidden: int, num_tokens: int) -> None:
    inputs = on_gpu(pre_inputs(2, num_tokens, hidden))
    for weight, name in ((None, False), (norm_weight(hidden), True)):
        kernel = tw.load("mhc_pre_big_fuse_fwd", device="cuda", hidden=hidden, output_norm=name)
        shapes = ((num_tokens, 4), (num_tokens, 4, 4))
        memories, results = zip(
            *(guarded(shape, torch.float32) for shape in shapes),
            guarded((num_tokens, hidden), torch.bfloat16),
            strict=True,
        )
        kernel(*inputs, weight, *results, *NUMBERS, 1e-6)
        check_pre(results, inputs, weight)
        assert all(is_intact(memory) for memory in memories)
    x = inputs[4][:, 0].contiguous()
    memory, new = guarded((num_tokens, 4, hidden), torch.bfloat16)
    tw.mhc.post_fwd(x, inputs[4], results[0], results[1], out=new)
    assert channels(new, tw.reference.mhc.post_fwd(x, inputs[4], *results[:2])) == ""
    assert is_intact(memory)


def many(inputs: Any, num_tokens: int) -> tuple[torch.Tensor, ...]:
    """Return the 64 tokens of ``inputs`` behind zeros."""
    products, squares, scale, base, last = inputs
    residual = torch.zeros((num_tokens, *last.shape[1:]), dtype=torch.bfloat16, device="cuda")
    residual[-64:] = last
    many_products = torch.zeros((1, num_tokens, 24), device="cuda")
    many_products[:, -64:] = products
    many_squares = torch.ones((1, num_tokens), device="cuda")
    many_squares[:, -64:] = squares
    return many_products, many_squares, scale, base, residual


def test_more_than_two_to_the_31_elements() -> None:
    hidden = 7168
    inputs = on_gpu(pre_inputs(1, 64, hidden))
    more = many(inputs, 2**31 // (4 * hidden) + 70)
    last, residual = inputs[4], more[4]
    for weight in (None, norm_weight(hidden)):
        results = tw.mhc.pre_big_fuse_fwd(*more, *NUMBERS, norm_weight=weight)
        check_pre([each[-64:] for each in results], inputs, weight)
        assert not bool(results[2][:-64].any())
    post, comb, x = results
    new = tw.mhc.post_fwd(x, residual, post, comb)
    expected = tw.reference.mhc.post_fwd(x[-64:], last, post[-64:], comb[-64:])
    assert channels(new[-64:], expected) == ""
    assert not bool(new[:-64].any())
    tw.mhc.post_fwd(x, residual, post, comb, out=residual)
    assert torch.equal(residual, new)


def test_a_layer_input_of_more_than_two_to_the_31_elements() -> None:
    hidden = 7168
    inputs = on_gpu(pre_inputs(1, 64, hidden))
    more = many(inputs, 2**31 // hidden + 70)
    for weight in (None, norm_weight(hidden)):
        results = tw.mhc.pre_big_fuse_fwd(*more, *NUMBERS, norm_weight=weight)
        check_pre([each[-64:] for each in results], inputs, weight)


def test_compile_with_a_dynamic_number_of_tokens() -> None:
    def layer(inputs: Any, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        results = tw.mhc.pre_big_fuse_fwd(*inputs, *NUMBERS)
        return *results, tw.mhc.post_fwd(x * 2.0, inputs[4], results[0], results[1])

    compiled = torch.compile(layer, fullgraph=True, dynamic=True)
    for num_tokens in (2, 7, 600):
        inputs = on_gpu(pre_inputs(3, num_tokens, 320))
        x = on_gpu(post_inputs(num_tokens, 320))[0]
        *results, new = compiled(inputs, x)
        check_pre(results, inputs)
        expected = tw.reference.mhc.post_fwd(x * 2.0, inputs[4], *results[:2])
        assert channels(new, expected) == ""


def test_the_torch_ops_pass_opcheck() -> None:
    inputs = on_gpu(pre_inputs(3, 5, 320))
    torch.library.opcheck(
        torch.ops.tilewheel.mhc_pre_big_fuse_fwd.default,
        (*inputs, *NUMBERS, norm_weight(320), 1e-6),
    )
    torch.library.opcheck(torch.ops.tilewheel.mhc_post_fwd.default, on_gpu(post_inputs(5, 320)))


def test_the_bare_artifact_checks_its_arguments() -> None:
    kernel = tw.load("mhc_post_fwd", device="cuda", hidden=320)
    x, residual, post_mix, comb_mix = on_gpu(post_inputs(5, 320))
    out = torch.empty_like(residual)
    with pytest.raises(TypeError, match="x: is float32, must be bfloat16"):
        kernel(x.float(), residual, post_mix, comb_mix, out)
    with pytest.raises(ValueError, match=r"residual.shape\[0\]: is 4, must be 5"):
        kernel(x, residual[:4], post_mix, comb_mix, out)
    pre = tw.load("mhc_pre_big_fuse_fwd", device="cuda", hidden=320, output_norm=False)
    inputs = on_gpu(pre_inputs(3, 5, 320))
    results = (post_mix, comb_mix, torch.empty_like(x))
    with pytest.raises(ValueError, match="sinkhorn_repeat: is 0, must be between 1 and 1024"):
        pre(*inputs, None, *results, *NUMBERS[:4], 0, 1e-6)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one CUDA device on this machine")
def test_a_tensor_on_another_device_than_the_current_one() -> None:
    inputs = tuple(each.to("cuda:1") for each in pre_inputs(3, 30, 4096))
    with torch.cuda.device(0):
        results = tw.mhc.pre_big_fuse_fwd(*inputs, *NUMBERS)
        new = tw.mhc.post_fwd(results[2], inputs[4], *results[:2])
        assert torch.cuda.current_device() == 0
    check_pre(results, inputs)
    expected = tw.reference.mhc.post_fwd(results[2], inputs[4], *results[:2])
    assert channels(new, expected) == ""


def test_preload_of_a_profile_has_the_variants_of_its_model() -> None:
    loaded = tw.preload(device="cuda", profile="deepseek-v4-flash")
    ready = {str(each.key) for each in loaded if each.error is None}
    assert {
        "mhc_post_fwd-hidden=any-cuda-sm_90a",
        "mhc_pre_big_fuse_fwd-hidden=any-output_norm=false-cuda-sm_90a",
        "mhc_pre_big_fuse_fwd-hidden=any-output_norm=true-cuda-sm_90a",
        "mhc_pre_big_fuse_fwd-hidden=4096-output_norm=true-cuda-sm_90a",
    } <= ready
