"""tilewheel.engram: arguments, errors, and what is written, on the reference."""

from __future__ import annotations

import types
from pathlib import Path

import numpy as np
import pytest
import torch
from torch._dynamo.source import ConstantSource
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv

import tilewheel as tw
from tilewheel import compare
from tilewheel.engram import backward
from tilewheel_build.spec import load_specs

ROOT = Path(__file__).resolve().parents[2]

HIDDEN = 64
EPS = CLAMP = 1e-6
GENERATOR = torch.Generator().manual_seed(3)
X, GRAD = torch.randn((2, 5, 4, HIDDEN), generator=GENERATOR).bfloat16()
KV = torch.randn((5, 5, HIDDEN), generator=GENERATOR).bfloat16()
W_HIDDEN, W_EMBED = torch.randn((2, 4, HIDDEN), generator=GENERATOR).bfloat16()
WEIGHT = W_HIDDEN.float() * W_EMBED.float()
MASK = torch.tensor([False, True, False, False, True])
SAVED = tw.reference.engram.engram_gate_fwd(X, KV, WEIGHT, EPS, CLAMP)[1:]
PARTIAL = torch.randn((3, 4, HIDDEN), generator=GENERATOR)

CALLS = {
    "fused_weight": (tw.engram.fused_weight, {"weight_hidden": W_HIDDEN, "weight_embed": W_EMBED}),
    "engram_gate_fwd": (
        tw.engram.engram_gate_fwd,
        {"x": X, "kv": KV, "weight_fused": WEIGHT, "eps": EPS, "clamp_value": CLAMP},
    ),
    "engram_gate_bwd": (
        tw.engram.engram_gate_bwd,
        {
            "grad_out": GRAD,
            "x": X,
            "kv": KV,
            "weight_fused": WEIGHT,
            **dict(zip(("dot", "gate", "rstd_x", "rstd_k"), SAVED, strict=True)),
            "clamp_value": CLAMP,
        },
    ),
    "grad_w_reduce": (
        tw.engram.grad_w_reduce,
        {
            "grad_w_partial": PARTIAL,
            "weight_hidden": W_HIDDEN,
            "weight_embed": W_EMBED,
            "grad_weight_hidden": torch.zeros(4, HIDDEN),
            "grad_weight_embed": torch.zeros(4, HIDDEN),
        },
    ),
}


def message_of(operator, kind, **changes):
    """Return what the operator says to its usual arguments with these changes."""
    function, arguments = CALLS[operator]
    with pytest.raises(kind) as caught:
        function(**{**arguments, **changes})
    text = str(caught.value)
    assert text.startswith(f"{operator}: ")
    return text.removeprefix(f"{operator}: ")


# Every tensor of every operator, and the shape that its message names.
STREAMS = "[num_tokens, 4, hidden]"
TENSORS = [
    ("fused_weight", "weight_hidden", "[4, hidden]"),
    ("fused_weight", "weight_embed", "(4, 64)"),
    ("engram_gate_fwd", "x", STREAMS),
    ("engram_gate_fwd", "kv", "(5, 5, 64)"),
    ("engram_gate_fwd", "weight_fused", "(4, 64)"),
    ("engram_gate_bwd", "grad_out", "(5, 4, 64)"),
    ("engram_gate_bwd", "x", STREAMS),
    ("engram_gate_bwd", "kv", "(5, 5, 64)"),
    ("engram_gate_bwd", "weight_fused", "(4, 64)"),
    ("engram_gate_bwd", "dot", "(5, 4)"),
    ("engram_gate_bwd", "gate", "(5, 4)"),
    ("engram_gate_bwd", "rstd_x", "(5, 4)"),
    ("engram_gate_bwd", "rstd_k", "(5, 4)"),
    ("grad_w_reduce", "grad_w_partial", "[num_parts, 4, 64]"),
    ("grad_w_reduce", "weight_hidden", "[4, hidden]"),
    ("grad_w_reduce", "weight_embed", "(4, 64)"),
    ("grad_w_reduce", "grad_weight_hidden", "(4, 64)"),
    ("grad_w_reduce", "grad_weight_embed", "(4, 64)"),
]


@pytest.mark.parametrize(("operator", "name", "shape"), TENSORS)
class TestEveryTensor:
    def test_that_is_none_of_torch(self, operator, name, shape):
        message = message_of(operator, TypeError, **{name: [1.0]})
        assert message == f"{name}: is a list, must be a torch.Tensor"

    def test_of_another_dtype(self, operator, name, shape):
        right = CALLS[operator][1][name]
        message = message_of(operator, TypeError, **{name: right.half()})
        assert message == f"{name}: dtype is torch.float16, must be {right.dtype}"

    def test_of_another_rank(self, operator, name, shape):
        right = CALLS[operator][1][name]
        message = message_of(operator, ValueError, **{name: right[None]})
        assert message == f"{name}: shape is {(1, *right.shape)}, must be {shape}"

    def test_with_one_stream_less(self, operator, name, shape):
        right = CALLS[operator][1][name]
        less = right[:, 1:] if right.ndim == 3 else right[1:]
        message = message_of(operator, ValueError, **{name: less.contiguous()})
        assert message == f"{name}: shape is {tuple(less.shape)}, must be {shape}"

    def test_with_gaps(self, operator, name, shape):
        right = CALLS[operator][1][name]
        gaps = right.repeat_interleave(2, dim=-1)[..., ::2]
        message = message_of(operator, ValueError, **{name: gaps})
        hint = "" if name.startswith("grad_weight") else "\nhint: call .contiguous()"
        assert message == f"{name}: strides are {gaps.stride()}, must be contiguous{hint}"

    def test_that_is_sparse(self, operator, name, shape):
        right = CALLS[operator][1][name]
        message = message_of(operator, ValueError, **{name: right.to_sparse()})
        assert message == f"{name}: layout is torch.sparse_coo, must be torch.strided"


@pytest.mark.parametrize(
    ("operator", "name", "message"),
    [
        ("fused_weight", "weight_embed", "must be on cpu like the others"),
        ("engram_gate_fwd", "kv", "must be on cpu like the others"),
        ("engram_gate_fwd", "weight_fused", "must be on cpu like the others"),
        ("engram_gate_bwd", "grad_out", "must be on cpu like the others"),
        ("engram_gate_bwd", "rstd_k", "must be on cpu like the others"),
        ("grad_w_reduce", "weight_hidden", "must be on cpu like the others"),
        ("grad_w_reduce", "grad_weight_embed", "must be on cpu like grad_w_partial"),
    ],
)
def test_a_tensor_that_is_elsewhere(operator, name, message):
    elsewhere = CALLS[operator][1][name].to("meta")
    said = message_of(operator, ValueError, **{name: elsewhere})
    assert said == f"{name}: is on meta, {message}"


@pytest.mark.parametrize("operator", CALLS)
def test_no_backend_takes_meta(operator):
    function, arguments = CALLS[operator]
    meta = {k: v.to("meta") if torch.is_tensor(v) else v for k, v in arguments.items()}
    with pytest.raises(ValueError, match="tensors are on meta, must be on cpu, cuda or npu"):
        function(**meta)


@pytest.mark.parametrize("hidden", [0, 32, 96, 16448])
def test_hidden_outside_the_contract(hidden):
    wrong = f"hidden is {hidden}, must be a multiple of 64 up to 16384"
    x = torch.zeros(2, 4, hidden).bfloat16()
    assert message_of("engram_gate_fwd", ValueError, x=x) == f"x: {wrong}"
    assert message_of("engram_gate_bwd", ValueError, x=x) == f"x: {wrong}"
    for operator in ("fused_weight", "grad_w_reduce"):
        said = message_of(operator, ValueError, weight_hidden=x[0])
        assert said == f"weight_hidden: {wrong}"


@pytest.mark.parametrize("operator", ["engram_gate_fwd", "engram_gate_bwd"])
@pytest.mark.parametrize(
    ("mask", "kind", "message"),
    [
        ([True] * 5, TypeError, "is a list, must be a torch.Tensor"),
        (MASK.int(), TypeError, "dtype is torch.int32, must be torch.bool"),
        (MASK[:4], ValueError, "shape is (4,), must be (5,)"),
        (MASK[:0], ValueError, "shape is (0,), must be (5,)"),
        (MASK[:, None], ValueError, "shape is (5, 1), must be (5,)"),
        (MASK.to("meta"), ValueError, "is on meta, must be on cpu like the others"),
        (
            MASK.repeat_interleave(2)[::2],
            ValueError,
            "strides are (2,), must be contiguous\nhint: call .contiguous()",
        ),
    ],
)
def test_wrong_mask(mask, kind, message, operator):
    said = message_of(operator, kind, image_token_mask=mask)
    assert said == f"image_token_mask: {message}"


@pytest.mark.parametrize(
    ("operator", "name"),
    [
        ("engram_gate_fwd", "eps"),
        ("engram_gate_fwd", "clamp_value"),
        ("engram_gate_bwd", "clamp_value"),
    ],
)
@pytest.mark.parametrize(
    ("value", "kind", "message"),
    [
        (None, TypeError, "is a NoneType, must be a float"),
        ("1", TypeError, "is a str, must be a float"),
        (True, TypeError, "is a bool, must be a float"),
        (torch.ones(()), TypeError, "is a Tensor, must be a float"),
        (0.0, ValueError, "is 0.0, must be a positive normal float32"),
        (0, ValueError, "is 0, must be a positive normal float32"),
        (-1.0, ValueError, "is -1.0, must be a positive normal float32"),
        (1e-40, ValueError, "is 1e-40, must be a positive normal float32"),
        (1e39, ValueError, "is 1e+39, must be a positive normal float32"),
        (float("inf"), ValueError, "is inf, must be a positive normal float32"),
        (float("nan"), ValueError, "is nan, must be a positive normal float32"),
    ],
)
def test_wrong_number(operator, name, value, kind, message):
    assert message_of(operator, kind, **{name: value}) == f"{name}: {message}"


def test_numbers_may_be_of_other_kinds_of_float_and_int():
    expected = tw.engram.engram_gate_fwd(X, KV, WEIGHT, 2.0, 3.0)
    actual = tw.engram.engram_gate_fwd(X, KV, WEIGHT, 2, np.float64(3.0))
    assert all(torch.equal(a, b) for a, b in zip(actual, expected, strict=True))


@pytest.mark.parametrize("name", ["save_for_backward", "inplace"])
@pytest.mark.parametrize(("value", "word"), [(1, "int"), (None, "NoneType")])
def test_wrong_flag(name, value, word):
    changes = {"save_for_backward": False, name: value}
    assert (
        message_of("engram_gate_fwd", TypeError, **changes)
        == f"{name}: is a {word}, must be a bool"
    )


@pytest.mark.parametrize(
    ("num_parts", "kind", "message"),
    [
        (0, ValueError, "is 0, must be 1 to 65536"),
        (65537, ValueError, "is 65537, must be 1 to 65536"),
        (1.0, TypeError, "is a float, must be an int"),
        (True, TypeError, "is a bool, must be an int"),
    ],
)
def test_wrong_num_parts(num_parts, kind, message):
    said = message_of("engram_gate_bwd", kind, num_parts=num_parts)
    assert said == f"num_parts: {message}"


@pytest.mark.parametrize("name", ["dot", "gate", "rstd_x", "rstd_k"])
def test_backward_needs_what_forward_saves(name):
    assert message_of("engram_gate_bwd", TypeError, **{name: None}) == (
        f"{name}: is None, must be a torch.Tensor\n"
        "hint: call engram_gate_fwd with save_for_backward"
    )


def test_no_partial_sums_to_reduce():
    said = message_of("grad_w_reduce", ValueError, grad_w_partial=PARTIAL[:0])
    assert said == "grad_w_partial: num_parts is 0, must be at least 1"


def test_in_place_excludes_what_needs_the_old_values():
    x = X.clone().requires_grad_()
    assert message_of("engram_gate_fwd", ValueError, inplace=True) == (
        "inplace: is True, must be False with save_for_backward: the backward pass needs x"
    )
    options = {"save_for_backward": False, "inplace": True}
    assert message_of("engram_gate_fwd", ValueError, x=x, **options) == (
        "x: requires gradients, must not: it is written in place\n"
        "hint: use torch.no_grad(), or tilewheel.modeling.EngramGate"
    )
    with torch.no_grad():
        out = tw.engram.engram_gate_fwd(x, KV, WEIGHT, EPS, CLAMP, **options)[0]
    assert out is x
    assert torch.equal(x, tw.engram.engram_gate_fwd(X, KV, WEIGHT, EPS, CLAMP)[0])


def test_what_is_written_shares_no_memory_with_what_is_read():
    memory = torch.zeros(5 * 9 * HIDDEN).bfloat16()
    x = memory[: X.numel()].view(X.shape)
    kv = memory[X.numel() - 8 :][: KV.numel()].view(KV.shape)
    options = {"save_for_backward": False, "inplace": True}
    said = message_of("engram_gate_fwd", ValueError, x=x, kv=kv, **options)
    assert said == "x: shares memory with kv, must not"
    weight = memory.view(torch.float32)[: WEIGHT.numel()].view(WEIGHT.shape)
    said = message_of("engram_gate_fwd", ValueError, x=x, weight_fused=weight, **options)
    assert said == "x: shares memory with weight_fused, must not"
    mask = memory.view(torch.bool)[:5]
    said = message_of("engram_gate_fwd", ValueError, x=x, image_token_mask=mask, **options)
    assert said == "x: shares memory with image_token_mask, must not"
    kv = memory[X.numel() :].view(KV.shape)
    assert tw.engram.engram_gate_fwd(x, kv, WEIGHT, EPS, CLAMP, False, None, True)[0] is x


@pytest.mark.parametrize("grad", ["grad_weight_hidden", "grad_weight_embed"])
def test_buffers_of_gradients_stand_alone(grad):
    floats = torch.zeros(2 * PARTIAL.numel())
    buffer = floats[: 4 * HIDDEN].view(4, HIDDEN)
    shared = {
        "grad_w_partial": floats[: PARTIAL.numel()].view(PARTIAL.shape),
        "weight_hidden": floats.view(torch.bfloat16)[: 4 * HIDDEN].view(4, HIDDEN),
        "weight_embed": floats.view(torch.bfloat16)[: 4 * HIDDEN].view(4, HIDDEN),
    }
    for name, tensor in shared.items():
        said = message_of("grad_w_reduce", ValueError, **{grad: buffer, name: tensor})
        assert said == f"{grad}: shares memory with {name}, must not"
    both = {"grad_weight_hidden": buffer, "grad_weight_embed": buffer}
    said = message_of("grad_w_reduce", ValueError, **both)
    assert said == "grad_weight_embed: shares memory with grad_weight_hidden, must not"
    said = message_of("grad_w_reduce", ValueError, **{grad: buffer.clone().requires_grad_()})
    assert said == f"{grad}: requires gradients, must not\nhint: call .detach()"


def test_out_of_fused_weight():
    out = torch.empty(4, HIDDEN)
    assert tw.engram.fused_weight(W_HIDDEN, W_EMBED, out=out) is out
    assert compare.bits(out, WEIGHT) == ""
    wrong = {
        "out: dtype is torch.float64, must be torch.float32": out.double(),
        "out: shape is (3, 64), must be (4, 64)": out[:3],
        "out: is on meta, must be on cpu like weight_hidden": out.to("meta"),
        "out: strides are (1, 4), must be contiguous": torch.empty(HIDDEN, 4).t(),
    }
    for message, tensor in wrong.items():
        kind = TypeError if "dtype" in message else ValueError
        assert message_of("fused_weight", kind, out=tensor) == message
    for name in ("weight_hidden", "weight_embed"):
        weight = out.view(torch.bfloat16).view(-1)[: 4 * HIDDEN].view(4, HIDDEN)
        said = message_of("fused_weight", ValueError, out=out, **{name: weight})
        assert said == f"out: shares memory with {name}, must not"


def on_cuda(num_tokens, hidden):
    """Return what has the shape and device of x, without a device."""
    return types.SimpleNamespace(device=torch.device("cuda:0"), shape=(num_tokens, 4, hidden))


@pytest.mark.parametrize(
    ("hidden", "num_tokens", "num_parts"),
    [
        (5120, 0, 1),
        (5120, 1, 1),
        (5120, 33, 33),
        # A block for each stream of a part, until blocks have enough tokens for the ring.
        (5120, 34, 33),
        (5120, 1055, 33),
        (5120, 1056, 132),
        (5120, 100_000, 132),
        (2560, 100, 66),
        (2560, 2111, 66),
        (2560, 2112, 264),
        (7168, 263, 33),
        (7168, 264, 132),
        # The kernel for any hidden has no ring.
        (3072, 65, 65),
        (3072, 100_000, 66),
    ],
)
def test_what_number_of_parts_fills_the_device(monkeypatch, hidden, num_tokens, num_parts):
    monkeypatch.setattr(backward, "_active_cores", lambda device: 132)
    assert backward._num_parts(on_cuda(num_tokens, hidden)) == num_parts


def test_the_ring_is_expected_of_the_hiddens_with_a_kernel_of_their_own():
    specs = {spec.operator: spec for spec in load_specs(ROOT)}
    points = specs["engram_gate_bwd"].points
    assert {dict(point)["hidden"] for point in points} == {*backward._RINGS, "any"}


@pytest.mark.parametrize("hidden", [3072, 5120])
def test_the_number_of_parts_of_a_traced_number_of_tokens_is_symbolic(monkeypatch, hidden):
    monkeypatch.setattr(backward, "_active_cores", lambda device: 132)
    shapes = ShapeEnv()
    symbol = shapes.create_symbol(
        700, source=ConstantSource("num_tokens"), dynamic_dim=DimDynamic.DYNAMIC
    )
    num_tokens = shapes.create_symintnode(symbol, hint=700)
    parts = backward._num_parts(on_cuda(num_tokens, hidden))
    assert isinstance(parts, torch.SymInt)
    # No guard on the number of tokens: one graph serves them all.
    assert not shapes.guards
    for value in (2, 66, 1055, 1056, 5000):
        expected = backward._num_parts(on_cuda(value, hidden))
        assert parts.node.expr.subs({symbol: value}) == expected
