"""tilewheel.mhc: arguments, errors, tracing, and the reference behind it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch._subclasses import FakeTensorMode

import tilewheel as tw
from tilewheel.selftest_cases.mixes import post_inputs, pre_inputs

PRE = dict(
    zip(
        ("gemm_out_mul", "gemm_out_sqrsum", "scale", "base", "residual"),
        pre_inputs(2, 3, 64),
        strict=True,
    )
)
NUMBERS: dict[str, Any] = {
    "rms_eps": 1e-6,
    "pre_eps": 1e-6,
    "sinkhorn_eps": 1e-6,
    "post_mult": 2.0,
    "sinkhorn_repeat": 20,
}
POST = dict(zip(("x", "residual", "post_mix", "comb_mix"), post_inputs(3, 64), strict=True))
WEIGHT = torch.linspace(-2.0, 2.0, 64).to(torch.bfloat16)


def pre(**changes: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return tw.mhc.pre_big_fuse_fwd(**{**PRE, **NUMBERS, **changes})


def post(**changes: Any) -> torch.Tensor:
    return tw.mhc.post_fwd(**{**POST, **changes})


def test_comb_sums_to_one_along_columns_and_almost_along_rows():
    _, comb, _ = pre()
    assert (comb.sum(1) - 1).abs().max() < 1e-5
    assert (comb.sum(2) - 1).abs().max() < 0.1


def test_one_repeat_normalises_columns_only():
    mixes = PRE["gemm_out_mul"].sum(0)
    mixes = mixes * torch.rsqrt(PRE["gemm_out_sqrsum"].sum(0) / 256 + 1e-6)[:, None]
    logits = (mixes[:, 8:] * PRE["scale"][2] + PRE["base"][8:]).view(3, 4, 4)
    comb = logits.exp() / logits.exp().sum(2, keepdim=True) + 1e-6
    expected = comb / (comb.sum(1, keepdim=True) + 1e-6)
    torch.testing.assert_close(pre(sinkhorn_repeat=1)[1], expected, rtol=1e-5, atol=0.0)


def test_layer_input_is_the_sum_of_streams_weighted_by_pre():
    _, _, layer_input = pre(scale=torch.zeros(3), base=torch.zeros(24), pre_eps=0.25)
    expected = (0.75 * PRE["residual"].float()).sum(1)
    torch.testing.assert_close(layer_input.float(), expected, rtol=2**-7, atol=1e-5)


def test_output_norm_divides_by_the_root_of_the_unrounded_mean_square():
    plain, normed = pre()[2].float(), pre(norm_weight=WEIGHT, norm_eps=0.5)[2].float()
    rstd = torch.rsqrt(plain.square().mean(1, keepdim=True) + 0.5)
    torch.testing.assert_close(normed, plain * rstd * WEIGHT.float(), rtol=2**-6, atol=1e-4)


def test_reference_in_float64_is_close_to_float32():
    inputs = [each.double() if each.dtype == torch.float32 else each for each in PRE.values()]
    exact = tw.reference.mhc.pre_big_fuse_fwd(*inputs, **NUMBERS)
    for actual, expected in zip(pre()[:2], exact[:2], strict=True):
        torch.testing.assert_close(actual.double(), expected, rtol=1e-5, atol=0.0)


def test_post_adds_the_output_and_the_mixed_streams():
    wide = [each.double() for each in POST.values()]
    expected = wide[2][:, :, None] * wide[0][:, None] + wide[3].transpose(1, 2) @ wide[1]
    torch.testing.assert_close(post().double(), expected, rtol=2**-7, atol=1e-5)


def test_out_is_returned():
    out = torch.zeros((3, 64), dtype=torch.bfloat16)
    assert pre(out=out)[2] is out
    assert torch.equal(out, pre()[2])
    new = torch.zeros((3, 4, 64), dtype=torch.bfloat16)
    assert post(out=new) is new
    assert torch.equal(new, post())


def test_post_in_place_replaces_the_residual():
    residual = POST["residual"].clone()
    assert post(residual=residual, out=residual) is residual
    assert torch.equal(residual, post())


def test_no_tokens_give_empty_results():
    results = pre(
        gemm_out_mul=torch.zeros(2, 0, 24),
        gemm_out_sqrsum=torch.zeros(2, 0),
        residual=torch.zeros(0, 4, 64, dtype=torch.bfloat16),
    )
    assert [tuple(each.shape) for each in results] == [(0, 4), (0, 4, 4), (0, 64)]


def test_padded_partials_are_taken_as_they_are():
    padded = torch.full((2, 3, 32), float("nan"))
    padded[..., :24] = PRE["gemm_out_mul"]
    for actual, expected in zip(pre(gemm_out_mul=padded[..., :24]), pre(), strict=True):
        assert torch.equal(actual, expected)


def test_inputs_that_require_gradients_are_taken_and_results_require_none():
    residual = PRE["residual"].clone().requires_grad_()
    assert not any(each.requires_grad for each in pre(residual=residual))
    assert not post(residual=residual).requires_grad


BF16 = torch.bfloat16
MEMORY = torch.zeros(4096, dtype=BF16)
WRONG_PRE = {
    "products of two dimensions": (
        {"gemm_out_mul": PRE["gemm_out_mul"][0]},
        ValueError,
        "gemm_out_mul: shape is (3, 24), must be [num_splits, 3, 24]",
    ),
    "products of half": (
        {"gemm_out_mul": PRE["gemm_out_mul"].half()},
        TypeError,
        "gemm_out_mul: dtype is torch.float16, must be torch.float32",
    ),
    "products with gaps": (
        {"gemm_out_mul": torch.zeros(2, 3, 48)[..., ::2]},
        ValueError,
        "gemm_out_mul: stride(-1) is 2, must be 1",
    ),
    "too many splits": (
        {"gemm_out_mul": torch.zeros(129, 3, 24), "gemm_out_sqrsum": torch.zeros(129, 3)},
        ValueError,
        "gemm_out_mul: num_splits is 129, must be 1 to 128",
    ),
    "no splits": (
        {"gemm_out_mul": torch.zeros(0, 3, 24), "gemm_out_sqrsum": torch.zeros(0, 3)},
        ValueError,
        "gemm_out_mul: num_splits is 0, must be 1 to 128",
    ),
    "squares of other splits": (
        {"gemm_out_sqrsum": torch.zeros(3, 3)},
        ValueError,
        "gemm_out_sqrsum: shape is (3, 3), must be (2, 3)",
    ),
    "squares with gaps": (
        {"gemm_out_sqrsum": torch.zeros(3, 2).t()},
        ValueError,
        "gemm_out_sqrsum: stride(-1) is 2, must be 1",
    ),
    "scale of four": (
        {"scale": torch.zeros(4)},
        ValueError,
        "scale: shape is (4,), must be (3,)",
    ),
    "base with gaps": (
        {"base": torch.zeros(48)[::2]},
        ValueError,
        "base: strides are (2,), must be contiguous\nhint: call .contiguous()",
    ),
    "base elsewhere": (
        {"base": torch.zeros(24, device="meta")},
        ValueError,
        "base: is on meta, must be on cpu like residual",
    ),
    "residual is a list": (
        {"residual": [1.0]},
        TypeError,
        "residual: is a list, must be a torch.Tensor",
    ),
    "residual of three streams": (
        {"residual": torch.zeros(3, 3, 64, dtype=BF16)},
        ValueError,
        "residual: shape is (3, 3, 64), must be [num_tokens, 4, hidden]",
    ),
    "odd hidden": (
        {"residual": torch.zeros(3, 4, 72, dtype=BF16)},
        ValueError,
        "residual: hidden is 72, must be a multiple of 64 up to 65536",
    ),
    "residual of strided tokens": (
        {"residual": torch.zeros(6, 4, 64, dtype=BF16)[::2]},
        ValueError,
        "residual: strides are (512, 64, 1), must be contiguous\nhint: call .contiguous()",
    ),
    "weight of another width": (
        {"norm_weight": torch.zeros(128, dtype=BF16)},
        ValueError,
        "norm_weight: shape is (128,), must be (64,)",
    ),
    "weight of float32": (
        {"norm_weight": torch.zeros(64)},
        TypeError,
        "norm_weight: dtype is torch.float32, must be torch.bfloat16",
    ),
    "eps is a string": ({"rms_eps": "1e-6"}, TypeError, "rms_eps: is a str, must be a float"),
    "eps is negative": (
        {"pre_eps": -1.0},
        ValueError,
        "pre_eps: is -1.0, must be finite and at least 0",
    ),
    "sinkhorn eps is zero": (
        {"sinkhorn_eps": 0.0},
        ValueError,
        "sinkhorn_eps: is 0.0, must be finite and at least 1e-30",
    ),
    "norm eps is nan": (
        {"norm_eps": float("nan")},
        ValueError,
        "norm_eps: is nan, must be finite and at least 0",
    ),
    "post_mult is infinite": (
        {"post_mult": float("inf")},
        ValueError,
        "post_mult: is inf, must be finite",
    ),
    "no repeat": (
        {"sinkhorn_repeat": 0},
        ValueError,
        "sinkhorn_repeat: is 0, must be 1 to 1024",
    ),
    "repeat is a float": (
        {"sinkhorn_repeat": 20.0},
        TypeError,
        "sinkhorn_repeat: is a float, must be an int",
    ),
    "out of another shape": (
        {"out": torch.zeros(3, 128, dtype=BF16)},
        ValueError,
        "out: shape is (3, 128), must be (3, 64)",
    ),
    "out is a part of residual": (
        {"residual": MEMORY[:768].view(3, 4, 64), "out": MEMORY[576:768].view(3, 64)},
        ValueError,
        "out: shares memory with residual, must not",
    ),
    "out is the weight's memory": (
        {"norm_weight": MEMORY[:64], "out": MEMORY[:192].view(3, 64)},
        ValueError,
        "out: shares memory with norm_weight, must not",
    ),
    "out requires gradients": (
        {"out": torch.zeros(3, 64, dtype=BF16, requires_grad=True)},
        ValueError,
        "out: requires gradients, must not\nhint: call .detach()",
    ),
}
WRONG_POST = {
    "x of another width": (
        {"x": torch.zeros(3, 128, dtype=BF16)},
        ValueError,
        "x: shape is (3, 128), must be (3, 64)",
    ),
    "x is transposed": (
        {"x": torch.zeros(64, 3, dtype=BF16).t()},
        ValueError,
        "x: strides are (1, 3), must be contiguous\nhint: call .contiguous()",
    ),
    "post_mix with a last dimension": (
        {"post_mix": torch.zeros(3, 4, 1)},
        ValueError,
        "post_mix: shape is (3, 4, 1), must be (3, 4)",
    ),
    "comb_mix is bfloat16": (
        {"comb_mix": torch.zeros(3, 4, 4, dtype=BF16)},
        TypeError,
        "comb_mix: dtype is torch.bfloat16, must be torch.float32",
    ),
    "comb_mix elsewhere": (
        {"comb_mix": torch.zeros(3, 4, 4, device="meta")},
        ValueError,
        "comb_mix: is on meta, must be on cpu like residual",
    ),
    "out is a shifted residual": (
        {"residual": MEMORY[:768].view(3, 4, 64), "out": MEMORY[64:832].view(3, 4, 64)},
        ValueError,
        "out: shares memory with residual, must not",
    ),
    "out holds x": (
        {"x": MEMORY[:192].view(3, 64), "out": MEMORY[:768].view(3, 4, 64)},
        ValueError,
        "out: shares memory with x, must not",
    ),
    "out is float32": (
        {"out": torch.zeros(3, 4, 64)},
        TypeError,
        "out: dtype is torch.float32, must be torch.bfloat16",
    ),
}
WRONG: list[Any] = [
    pytest.param(function, *case, id=f"{function.__name__}: {name}")
    for function, cases in ((pre, WRONG_PRE), (post, WRONG_POST))
    for name, case in cases.items()
]


@pytest.mark.parametrize(("function", "changes", "kind", "message"), WRONG)
def test_wrong_argument_is_named(
    function: Callable[..., Any], changes: dict[str, Any], kind: type[Exception], message: str
):
    operator = "pre_big_fuse_fwd" if function is pre else "post_fwd"
    with pytest.raises(kind) as caught:
        function(**changes)
    assert str(caught.value) == f"mhc.{operator}: {message}"


def test_fake_tensors_give_the_shapes_of_the_results():
    with FakeTensorMode() as mode:
        fakes = {name: mode.from_tensor(each) for name, each in PRE.items()}
        results = tw.mhc.pre_big_fuse_fwd(**fakes, **NUMBERS)
        new = tw.mhc.post_fwd(results[2], fakes["residual"], *results[:2])
    assert [tuple(each.shape) for each in results] == [(3, 4), (3, 4, 4), (3, 64)]
    assert [each.dtype for each in results] == [torch.float32, torch.float32, BF16]
    assert (tuple(new.shape), new.dtype) == ((3, 4, 64), BF16)


def test_compiled_calls_are_one_graph_for_every_number_of_tokens():
    counter = CompileCounterWithBackend("eager")

    @torch.compile(backend=counter, fullgraph=True, dynamic=True)
    def layer(products, squares, scale, base, residual):
        post_mix, comb_mix, x = tw.mhc.pre_big_fuse_fwd(
            products, squares, scale, base, residual, **NUMBERS
        )
        return x, tw.mhc.post_fwd(x, residual, post_mix, comb_mix)

    for num_tokens in (
        7,
        5,
        9,
    ):  # no size of another dimension, which Dynamo would take for the same
        inputs = pre_inputs(2, num_tokens, 64)
        x, new = layer(*inputs)
        results = tw.mhc.pre_big_fuse_fwd(*inputs, **NUMBERS)
        assert torch.equal(x, results[2])
        assert torch.equal(new, tw.mhc.post_fwd(x, inputs[4], *results[:2]))
    assert counter.frame_count == 1


def test_compiled_out_is_written():
    @torch.compile(backend="eager", fullgraph=True)
    def run(out: torch.Tensor, residual: torch.Tensor) -> None:
        pre(out=out)
        post(residual=residual, out=residual)

    out, residual = torch.zeros((3, 64), dtype=BF16), POST["residual"].clone()
    run(out, residual)
    assert torch.equal(out, pre()[2])
    assert torch.equal(residual, post())


def test_torch_ops_pass_opcheck():
    operators = torch.ops.tilewheel
    torch.library.opcheck(
        operators.mhc_pre_big_fuse_fwd.default,
        (*PRE.values(), *NUMBERS.values(), WEIGHT, 1e-6),
    )
    torch.library.opcheck(
        operators.mhc_pre_big_fuse_fwd.default, (*PRE.values(), *NUMBERS.values(), None, 1e-6)
    )
    torch.library.opcheck(operators.mhc_post_fwd.default, tuple(POST.values()))


def test_without_an_artifact_the_error_says_what_is_missing(overlay):
    with (
        tw.backend("ascend-sim"),
        pytest.raises(tw.NoArtifactError, match=r"mhc_post_fwd"),
    ):
        post()
