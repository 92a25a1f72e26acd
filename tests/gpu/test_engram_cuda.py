"""What only a GPU shows of the Engram gate: graphs, streams, large tensors, guards."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tilewheel as tw
from tilewheel import compare

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine"),
]

EPS = CLAMP = 1e-6
HIDDENS = [64, 576, 2048, 2560, 4096, 4608, 5120, 7168, 7232, 16384]
Tensors = tuple[torch.Tensor, ...]


def inputs(num_tokens: int, hidden: int, device: str = "cuda") -> Tensors:
    """Return x, kv, weight_fused and grad_out."""
    generator = torch.Generator(device=device).manual_seed(num_tokens + hidden)

    def rows(*shape: int) -> torch.Tensor:
        return torch.randn((*shape, hidden), generator=generator, device=device).bfloat16()

    x, kv, grad_out = rows(num_tokens, 4), rows(num_tokens, 5), rows(num_tokens, 4)
    return x, kv, 1 + 0.2 * rows(4).float(), grad_out


def gate(
    x: torch.Tensor,
    kv: torch.Tensor,
    weight: torch.Tensor,
    grad_out: torch.Tensor,
    mask: torch.Tensor | None = None,
    num_parts: int | None = None,
) -> Tensors:
    """Return the five results of the forward pass and the three of the backward pass."""
    out, *saved = tw.engram.engram_gate_fwd(x, kv, weight, EPS, CLAMP, image_token_mask=mask)
    tensors = (grad_out, x, kv, weight, *saved)
    return out, *saved, *tw.engram.engram_gate_bwd(*tensors, CLAMP, mask, num_parts=num_parts)


def excess(actual: torch.Tensor, expected: torch.Tensor, relative: float) -> float:
    """Return the largest difference, less ``relative`` of the expected value; NaN if there is one.

    On the device: tests/numerics compares the same with the reference in words, and slowly.
    """
    difference = (actual.double() - expected).abs() - relative * expected.abs()
    return float(difference.max()) if difference.numel() else 0.0


def check_gate(
    results: Tensors,
    x: torch.Tensor,
    kv: torch.Tensor,
    weight: torch.Tensor,
    grad_out: torch.Tensor,
    mask: torch.Tensor | None = None,
) -> None:
    """Compare what ``gate`` returned with the reference in float64; each from what it was given.

    Among many tokens some have a dot so near 0 that its rounding decides its sign.
    """
    x, kv, weight, grad_out = (t.double() for t in (x, kv, weight, grad_out))
    out, *saved = (each.double() for each in results[:5])
    dot, gates, rstd_x, rstd_k = saved
    wanted = tw.reference.engram.engram_gate_fwd(x, kv, weight, EPS, CLAMP, image_token_mask=mask)
    assert excess(dot, wanted[1], 1e-5) <= 1e-4
    assert excess(rstd_x, wanted[3], 2e-6) <= 0
    assert excess(rstd_k, wanted[4], 2e-6) <= 0
    z = dot * rstd_x * rstd_k * x.shape[-1] ** -0.5
    right = torch.copysign(z.abs().clamp(min=CLAMP).sqrt(), z).sigmoid()
    right = right if mask is None else right.masked_fill(mask[:, None], 0.0)
    assert excess(gates, right, 2e-6) <= 0
    # One rounding to bfloat16, at most 2**-8 of the value, after float32.
    assert excess(out, x + gates[..., None] * kv[:, 4:], 2**-8) <= 1e-5
    grads = tw.reference.engram.engram_gate_bwd(
        grad_out, x, kv, weight, *saved, CLAMP, image_token_mask=mask
    )
    assert excess(results[5], grads[0], 2**-8) <= 1e-5
    assert excess(results[6], grads[1], 2**-8) <= 1e-5
    assert_sums(results[7], grads[2])


def assert_sums(actual: torch.Tensor, expected: torch.Tensor, limit: float = 1e-11) -> None:
    """Compare sums of up to 1e5 terms of either sign: by the error to all of the gradient."""
    sums = (each.double().sum(dim=0) for each in (actual, expected))
    assert compare.relative_square_error(limit)(*sums) == ""


def same(first: Tensors, second: Tensors) -> bool:
    return all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("hidden", [640, 4096])
def test_graph_capture_of_the_first_call_and_replay(hidden: int) -> None:
    x, kv, _, grad_out = inputs(300, hidden)
    weights = inputs(2, hidden)[0]
    mask = torch.arange(300, device="cuda") % 7 == 3
    buffers = torch.zeros((2, 4, hidden), device="cuda")
    graph = torch.cuda.CUDAGraph()
    # The first calls with these artifacts in the process: they load inside the capture.
    with torch.cuda.graph(graph):
        weight = tw.engram.fused_weight(weights[0], weights[1])
        results = gate(x, kv, weight, grad_out, mask)
        tw.engram.grad_w_reduce(results[7], weights[0], weights[1], buffers[0], buffers[1])
    for _ in range(2):
        x.mul_(1.3)
        weights.mul_(0.9)
        mask.logical_not_()
        buffers.fill_(1.0)
        graph.replay()
        assert compare.bits(weight, weights[0].float() * weights[1].float()) == ""
        check_gate(results, x, kv, weight, grad_out, mask)
        assert same(results, gate(x, kv, weight, grad_out, mask))
        again = torch.ones_like(buffers)
        tw.engram.grad_w_reduce(results[7], weights[0], weights[1], again[0], again[1])
        assert torch.equal(buffers, again)


def test_autograd_inside_a_graph_capture() -> None:
    x, kv, _, grad_out = inputs(130, 2560)
    x.requires_grad_()
    kv.requires_grad_()
    weights = [torch.nn.Parameter(weight) for weight in inputs(2, 2560)[0]]
    weights[0].main_grad = torch.zeros((4, 2560), device="cuda")
    leaves = (x, kv, weights[1])

    def step() -> Tensors:
        out = tw.modeling.engram_gate(x, kv, *weights, EPS, CLAMP)
        # weights[0] takes part for its main_grad, and has no gradient else.
        found = torch.autograd.grad(out, (*leaves, weights[0]), grad_out, allow_unused=True)
        assert found[3] is None
        return out.detach(), *found[:3]

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        wanted = step()
    torch.cuda.current_stream().wait_stream(side)
    main_grad = weights[0].main_grad.clone()
    assert bool(main_grad.any())
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = step()
    for count in (2, 3):
        graph.replay()
        assert same(results, wanted)
        torch.testing.assert_close(weights[0].main_grad, main_grad * count)


@pytest.mark.parametrize("hidden", [576, 5120])
def test_kernels_run_on_the_callers_stream(hidden: int) -> None:
    x, kv, weight, grad_out = inputs(1000, hidden)
    gate(x, kv, weight, grad_out)
    side = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(100_000_000)
        x.mul_(3)
        results = gate(x, kv, weight, grad_out)
    assert not side.query()
    side.synchronize()
    assert same(results, gate(x, kv, weight, grad_out))
    check_gate(results, x, kv, weight, grad_out)


class Guarded:
    """Tensors for results, full of NaN, each with memory before and behind that must not change."""

    def __init__(self) -> None:
        self._guards: list[torch.Tensor] = []

    def __call__(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        size = torch.Size(shape).numel()
        memory = torch.full((size + 4096,), 7.0, dtype=dtype, device="cuda")
        self._guards += [memory[:2048], memory[2048 + size :]]
        return memory[2048 : 2048 + size].view(shape).fill_(torch.nan)

    def are_whole(self) -> bool:
        torch.cuda.synchronize()
        return all(bool((guard == 7).all()) for guard in self._guards)


@pytest.mark.parametrize("num_tokens", [1, 5, 300])
@pytest.mark.parametrize("hidden", HIDDENS)
def test_every_result_is_written_and_nothing_else(hidden: int, num_tokens: int) -> None:
    forward = tw.load("engram_gate_fwd", device="cuda", hidden=hidden)
    backward = tw.load("engram_gate_bwd", device="cuda", hidden=hidden)
    x, kv, weight, grad_out = inputs(num_tokens, hidden)
    read = (x, kv, weight, grad_out)
    before = [tensor.clone() for tensor in read]
    mask = torch.arange(num_tokens, device="cuda") % 5 == 2
    none = torch.empty(0, dtype=torch.bool, device="cuda")
    unsaved = torch.empty((0, 4), device="cuda")
    guarded = Guarded()
    for masked in (mask, none):
        given = mask if masked is mask else None
        out = guarded(x.shape, torch.bfloat16)
        saved = [guarded((num_tokens, 4), torch.float32) for _ in range(4)]
        forward(x, kv, weight, masked, out, *saved, EPS, CLAMP)
        alone = guarded(x.shape, torch.bfloat16)
        forward(x, kv, weight, masked, alone, *[unsaved] * 4, EPS, CLAMP)
        assert torch.equal(alone, out)
        for num_parts in (1, 7, 264):
            grad_x, grad_kv = (guarded(t.shape, torch.bfloat16) for t in (x, kv))
            partial = guarded((num_parts, 4, hidden), torch.float32)
            tensors = (grad_out, x, kv, weight, *saved)
            backward(*tensors, masked, grad_x, grad_kv, partial, CLAMP)
        check_gate((out, *saved, grad_x, grad_kv, partial), x, kv, weight, grad_out, given)
    assert guarded.are_whole()
    assert all(torch.equal(a, b) for a, b in zip(read, before, strict=True))


@pytest.mark.parametrize("hidden", HIDDENS)
def test_the_weights_operators_write_nothing_else(hidden: int) -> None:
    guarded = Guarded()
    weights = inputs(2, hidden)[0]
    out = guarded((4, hidden), torch.float32)
    assert tw.engram.fused_weight(weights[0], weights[1], out=out) is out
    assert compare.bits(out, weights[0].float() * weights[1].float()) == ""
    for num_parts in (1, 33, 264, 1000):
        partial = torch.randn((num_parts, 4, hidden), device="cuda")
        grads = [guarded((4, hidden), torch.float32).fill_(i + 0.5) for i in range(2)]
        tw.engram.grad_w_reduce(partial, weights[0], weights[1], *grads)
        wanted = [torch.full_like(grad, i + 0.5).double() for i, grad in enumerate(grads)]
        tw.reference.engram.grad_w_reduce(partial, weights[0], weights[1], *wanted)
        for mine, right in zip(grads, wanted, strict=True):
            assert_sums(mine[None], right[None])
    assert guarded.are_whole()


@pytest.mark.parametrize("hidden", [576, 2048, 2560, 4096, 4608, 5120, 7168])
def test_a_token_is_the_same_bits_in_every_batch(hidden: int) -> None:
    # Enough for the ring of every kernel that has one, forward and backward; the parts are not.
    num_tokens = 10_001
    x, kv, weight, grad_out = inputs(num_tokens, hidden)
    mask = torch.arange(num_tokens, device="cuda") % 6 == 1
    whole = gate(x, kv, weight, grad_out, mask)[:7]
    reversed_rows = gate(*(t.flip(0) for t in (x, kv)), weight, grad_out.flip(0), mask.flip(0))[:7]
    assert same(tuple(each.flip(0) for each in reversed_rows), whole)
    for rows in (slice(0, 1), slice(133, 134), slice(3, 200), slice(num_tokens - 1, num_tokens)):
        part = gate(x[rows], kv[rows], weight, grad_out[rows], mask[rows])[:7]
        assert same(part, tuple(each[rows] for each in whole))


@pytest.mark.parametrize("hidden", HIDDENS)
def test_two_runs_give_the_same_bits(hidden: int) -> None:
    tensors = inputs(1000, hidden)
    first = gate(*tensors)
    for _ in range(5):
        assert same(gate(*tensors), first)
    weights = inputs(2, hidden)[0]
    grads = torch.zeros((2, 2, 4, hidden), device="cuda")
    for pair in grads:
        tw.engram.grad_w_reduce(first[7], weights[0], weights[1], pair[0], pair[1])
    assert torch.equal(grads[0], grads[1])


@pytest.mark.parametrize("hidden", [576, 2560, 7168])
def test_the_number_of_parts_changes_the_partial_sums_alone(hidden: int) -> None:
    tensors = inputs(300, hidden)
    first = gate(*tensors)
    check_gate(first, *tensors)
    for num_parts in (1, 2, 3, 131, 132, 133, 263, 264, 265, 299, 300, 301, 1024):
        results = gate(*tensors, num_parts=num_parts)
        assert results[7].shape == (num_parts, 4, hidden)
        assert same(results[:7], first[:7])
        assert_sums(results[7], first[7])
        assert same(gate(*tensors, num_parts=num_parts), results)


def test_the_largest_number_of_parts() -> None:
    tensors = inputs(3, 64)
    saved = gate(*tensors)[1:5]
    x, kv, weight, grad_out = tensors
    backward = tw.load("engram_gate_bwd", device="cuda", hidden=64)
    guarded = Guarded()
    grads = (guarded(x.shape, torch.bfloat16), guarded(kv.shape, torch.bfloat16))
    partial = guarded((65536, 4, 64), torch.float32)
    none = torch.empty(0, dtype=torch.bool, device="cuda")
    backward(grad_out, x, kv, weight, *saved, none, *grads, partial, CLAMP)
    assert guarded.are_whole()
    assert int(partial.any(dim=-1).any(dim=-1).sum()) == 3
    one = gate(*tensors, num_parts=1)
    assert_sums(partial, one[7])
    assert same(grads, one[5:7])


@pytest.mark.parametrize(("num_tokens", "hidden"), [(65_535, 64), (65_536, 64), (131_073, 128)])
def test_many_tokens(num_tokens: int, hidden: int) -> None:
    tensors = inputs(num_tokens, hidden)
    mask = torch.arange(num_tokens, device="cuda") % 9 == 4
    check_gate(gate(*tensors, mask), *tensors, mask)


def is_repeated(tensor: torch.Tensor, one: torch.Tensor) -> bool:
    """Return whether ``tensor`` is copies of ``one``, along its first dimension."""
    return bool((tensor.view(-1, *one.shape) == one).all())


@pytest.mark.parametrize("hidden", [2048, 7168, 7232])
def test_more_than_two_to_the_31_values(hidden: int) -> None:
    block = inputs(64, hidden)
    copies = 2**31 // (64 * 4 * hidden) + 2
    x, kv, grad_out = (block[i].repeat(copies, 1, 1) for i in (0, 1, 3))
    assert x.numel() > 2**31
    small = gate(*block)
    check_gate(small, *block)
    out, *saved = tw.engram.engram_gate_fwd(x, kv, block[2], EPS, CLAMP)
    for mine, one in zip((out, *saved), small, strict=False):
        assert is_repeated(mine, one)
    del out
    grads = tw.engram.engram_gate_bwd(grad_out, x, kv, block[2], *saved, CLAMP)
    assert is_repeated(grads[0], small[5])
    assert is_repeated(grads[1], small[6])
    assert_sums(grads[2], small[7].double() * copies, limit=1e-9)
    del grads, saved
    # In place, and with a mask of the last token alone.
    mask = torch.zeros(len(x), dtype=torch.bool, device="cuda")
    mask[-1] = True
    tw.engram.engram_gate_fwd(x, kv, block[2], EPS, CLAMP, False, mask, True)
    assert torch.equal(x[-1], block[0][-1])
    x[-1] = small[0][-1]
    assert is_repeated(x, small[0])


def test_more_than_two_to_the_31_partial_sums() -> None:
    partial = torch.zeros((2**31 // (4 * 8192) + 5, 4, 8192), device="cuda")
    assert partial.numel() > 2**31
    partial[-3:] = torch.randn((3, 4, 8192), device="cuda")
    weights = inputs(2, 8192)[0]
    grads, wanted = torch.zeros((2, 2, 4, 8192), device="cuda")
    tw.engram.grad_w_reduce(partial, weights[0], weights[1], grads[0], grads[1])
    tw.reference.engram.grad_w_reduce(partial[-3:], weights[0], weights[1], wanted[0], wanted[1])
    assert excess(grads, wanted, 1e-5) <= 1e-4


@pytest.mark.parametrize("hidden", [576, 2560])
def test_no_tokens(hidden: int) -> None:
    tensors = inputs(0, hidden)
    mask = torch.empty(0, dtype=torch.bool, device="cuda")
    for given in (None, mask):
        results = gate(*tensors, given, num_parts=3)
        assert [tuple(each.shape) for each in results[:7]] == [
            (0, 4, hidden),
            *[(0, 4)] * 4,
            (0, 4, hidden),
            (0, 5, hidden),
        ]
        assert compare.bits(results[7], torch.zeros(3, 4, hidden)) == ""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = gate(*tensors)
    graph.replay()
    assert not bool(results[7].any())


@pytest.mark.parametrize("num_tokens", [0, 5])
@pytest.mark.parametrize("masked", [False, True])
def test_torch_ops_pass_opcheck(masked: bool, num_tokens: int) -> None:
    ops = torch.ops.tilewheel
    x, kv, weight, grad_out = inputs(num_tokens, 576)
    mask = torch.arange(num_tokens, device="cuda") % 3 == 1 if masked else None
    for saves in (False, True):
        arguments: tuple[Any, ...] = (x, kv, weight, mask, EPS, CLAMP, saves)
        torch.library.opcheck(ops.engram_gate_fwd.default, arguments)
    arguments = (x.clone(), kv, weight, mask, EPS, CLAMP)
    torch.library.opcheck(ops.engram_gate_fwd_.default, arguments)
    saved = tw.engram.engram_gate_fwd(x, kv, weight, EPS, CLAMP)[1:]
    arguments = (grad_out, x, kv, weight, *saved, mask, CLAMP, 3)
    torch.library.opcheck(ops.engram_gate_bwd.default, arguments)
    weights = inputs(2, 576)[0]
    torch.library.opcheck(ops.fused_weight.default, (weights[0], weights[1]))
    partial, grads = torch.ones((3, 4, 576), device="cuda"), torch.zeros((2, 4, 576), device="cuda")
    arguments = (partial, weights[0], weights[1], grads[0].clone(), grads[1].clone())
    torch.library.opcheck(ops.grad_w_reduce.default, arguments)


# None compiles for the first number of tokens and makes it dynamic at the second.
@pytest.mark.parametrize("dynamic", [True, None])
@pytest.mark.parametrize("hidden", [576, 2560])
def test_compile_with_a_dynamic_number_of_tokens(hidden: int, dynamic: bool | None) -> None:
    weights = [torch.nn.Parameter(weight) for weight in inputs(2, hidden)[0]]

    def step(function: Any, x: torch.Tensor, kv: torch.Tensor, grad_out: torch.Tensor) -> Tensors:
        out = function(x, kv, *weights, EPS, CLAMP)
        return out.detach(), *torch.autograd.grad(out, (x, kv, *weights), grad_out)

    torch._dynamo.reset()
    compiled = torch.compile(
        tw.modeling.engram_gate, fullgraph=True, dynamic=dynamic, backend="aot_eager"
    )
    for num_tokens in (300, 2, 7, 131):
        x, kv, _, grad_out = inputs(num_tokens, hidden)
        tensors = (x.requires_grad_(), kv.requires_grad_(), grad_out)
        wanted = step(tw.modeling.engram_gate, *tensors)
        assert same(step(compiled, *tensors), wanted)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one CUDA device on this machine")
def test_tensors_on_another_device_than_the_current_one() -> None:
    tensors = inputs(300, 2560, device="cuda:1")
    weights = inputs(2, 2560, device="cuda:1")[0]
    grads, wanted = torch.zeros((2, 2, 4, 2560), device="cuda:1")
    with torch.cuda.device(0):
        results = gate(*tensors)
        fused = tw.engram.fused_weight(weights[0], weights[1])
        tw.engram.grad_w_reduce(results[7], weights[0], weights[1], grads[0], grads[1])
        assert torch.cuda.current_device() == 0
    assert all(each.device.index == 1 for each in (*results, fused))
    check_gate(results, *tensors)
    assert compare.bits(fused, weights[0].float() * weights[1].float()) == ""
    tw.reference.engram.grad_w_reduce(results[7], weights[0], weights[1], wanted[0], wanted[1])
    for mine, right in zip(grads, wanted, strict=True):
        assert_sums(mine[None], right[None])
    with pytest.raises(ValueError, match=r"kv: is on cuda:0, must be on cuda:1 like the others"):
        gate(tensors[0], tensors[1].to("cuda:0"), *tensors[2:])


def test_preload_makes_a_profile_ready() -> None:
    operators = ("engram_gate_fwd", "engram_gate_bwd", "fused_weight", "grad_w_reduce")
    loaded = tw.preload(device="cuda", profile="deepseek-v4.1-flash", operators=operators)
    assert {one.key.operator for one in loaded} == set(operators)
    assert all(one.error is None for one in loaded)
