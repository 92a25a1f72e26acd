"""Calls whose artifact is loaded: short, and still refusing what a launcher cannot see."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
import torch

import tilewheel as tw
from tilewheel import checks

X = torch.zeros(8, 256, dtype=torch.bfloat16)
DATA = torch.zeros(8, 256, dtype=torch.float8_e4m3fn)
SF = torch.zeros(8, 2)
RECAST = {"x_block_size": (1, 128), "round_sf": True}


PRE_NUMBERS = {
    "rms_eps": 1e-6,
    "pre_eps": 1e-6,
    "sinkhorn_eps": 1e-6,
    "post_mult": 2.0,
    "sinkhorn_repeat": 3,
    "norm_eps": 1e-6,
}


class Three:
    def __index__(self) -> int:
        return 3


def pre(**numbers: Any) -> Any:
    return tw.mhc.pre_big_fuse_fwd(
        *(torch.zeros(1, 2, 24), torch.zeros(1, 2), torch.zeros(3), torch.zeros(24)),
        streams(2, 4, 128),
        **{**PRE_NUMBERS, **numbers},
    )


def cast(**more: Any) -> Any:
    return tw.quant.per_token_cast(X, "e4m3", 128, **more)


def streams(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.bfloat16)


def test_scales_that_do_not_fit_are_refused_before_the_launch(loaded):
    wrong = torch.zeros(8, 1)
    for call in (
        lambda: tw.quant.cast_back((DATA, wrong), "bf16", (1, 128)),
        lambda: tw.quant.per_token_cast_with_precomputed_sf(X, "e4m3", 128, wrong),
    ):
        with pytest.raises(ValueError, match=r"shape is \(8, 1\), must be \(8, 2\)"):
            call()
    with pytest.raises(ValueError, match=r"shape is \(8, 2\), must be \(4, 2\)"):
        tw.quant.cast_back((DATA, SF), "bf16", (2, 128))
    assert loaded.num_launches == 0


def test_result_of_another_shape_is_refused_before_the_launch(loaded):
    out = torch.zeros(8, 128, dtype=torch.bfloat16)
    with pytest.raises(ValueError, match="cast_back: out: shape is"):
        tw.quant.cast_back((DATA, SF), "bf16", (1, 128), out=out)
    with pytest.raises(ValueError, match=r"topk_gate: out: shape is \(2, 4\), must be \(2, 3\)"):
        tw.moe.topk_gate(torch.zeros(2, 8), 3, out=torch.zeros(2, 4, dtype=torch.int64))
    assert loaded.num_launches == 0


def test_column_major_scales_are_written_where_they_are_given(loaded):
    flags = {"round_sf": True, "use_packed_ue8m0": True, "use_tma_aligned_col_major_sf": True}
    sf = torch.zeros(1, 8, dtype=torch.int32).t()
    data, written = cast(out=(DATA, sf), **flags)
    assert loaded.num_launches == 1
    assert data is DATA
    assert written is sf
    # A column that begins at no multiple of 16 bytes.
    sf = torch.zeros(1, 9, dtype=torch.int32).t()[:8]
    with pytest.raises(ValueError, match=r"out\[1\]: strides are \(1, 9\), must be"):
        cast(out=(DATA, sf), **flags)
    assert loaded.num_launches == 1


@pytest.mark.parametrize("sf", [torch.zeros(2, 8).t(), torch.zeros(8, 2, requires_grad=True)])
def test_scales_to_write_must_be_plain(loaded, sf):
    with pytest.raises(ValueError, match=r"per_token_cast: out\[1\]: "):
        cast(out=(DATA, sf))
    assert loaded.num_launches == 0


@pytest.mark.parametrize(
    "call",
    [
        lambda: tw.quant.cast_back((DATA, SF), "bf16", (1, 128), out=X),
        lambda: cast(out=(DATA, SF)),
        lambda: tw.quant.per_token_cast_with_sf_only(X, "e4m3", 128),
        lambda: tw.quant.per_token_cast_with_precomputed_sf(X, "e4m3", 128, SF),
        lambda: tw.quant.stochastic_cast(X, "e4m3", 128, seed=1),
        lambda: tw.engram.fused_weight(streams(4, 128), streams(4, 128), out=torch.zeros(4, 128)),
        lambda: tw.engram.grad_w_reduce(
            *(torch.zeros(2, 4, 128), streams(4, 128), streams(4, 128)),
            *(torch.zeros(4, 128), torch.zeros(4, 128)),
        ),
        lambda: tw.mhc.post_fwd(
            *(streams(2, 128), streams(2, 4, 128), torch.zeros(2, 4), torch.zeros(2, 4, 4)),
            out=streams(2, 4, 128),
        ),
    ],
)
def test_plain_calls_launch_without_binding_again(loaded, monkeypatch, call):
    for family in (tw.quant.back, tw.quant.per_token, tw.quant.scales, tw.quant.stochastic):
        monkeypatch.delattr(family, "bind")
    for family in (tw.engram.forward, tw.engram.backward, tw.mhc.post):
        monkeypatch.delattr(family, "bind")
    call()
    assert loaded.num_launches == 1


def test_what_the_launcher_refuses_is_explained(loaded, monkeypatch):
    def refuse(*arguments: object) -> None:
        raise ValueError("as a launcher says it")

    monkeypatch.setattr(loaded, "_launch", refuse)
    with pytest.raises(TypeError, match=r"fused_weight: weight_embed: dtype is torch.float32"):
        tw.engram.fused_weight(streams(4, 128), torch.zeros(4, 128))
    with pytest.raises(TypeError, match=r"cast_back: out: dtype is torch.float32"):
        tw.quant.cast_back((DATA, SF), "bf16", (1, 128), out=torch.zeros(8, 256))


def test_saved_numbers_of_the_gate_are_plain_tensors_of_their_own(loaded):
    x, kv = streams(3, 4, 128), streams(3, 5, 128)
    _, *saved = tw.engram.engram_gate_fwd(x, kv, torch.zeros(4, 128), 1e-6, 1e-6)
    assert loaded.num_launches == 1
    assert [tuple(number.shape) for number in saved] == [(3, 4)] * 4
    assert all(number.is_contiguous() and not number.requires_grad for number in saved)
    assert len({number.data_ptr() for number in saved}) == 4


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_memory_is_writable_where_no_input_lies():
    memory = torch.zeros(16)
    out = memory[4:8]
    assert checks.is_writable(out, memory[:4], memory[8:], None, torch.zeros(0))
    assert not checks.is_writable(out, memory[7:])
    assert not checks.is_writable(out, memory[:5])
    # Elements 0, 3 and 6: the last lies inside.
    assert not checks.is_writable(out, memory[:7:3])
    assert checks.is_writable(out, memory[:6:3])
    assert not checks.is_writable(memory[4:12:2], memory[10:])
    assert not checks.is_writable(torch._neg_view(out))
    assert not checks.is_writable(torch.zeros(4, requires_grad=True))
    assert not checks.is_writable(torch.zeros(4).to_sparse(), memory)
    assert not checks.is_writable(torch.nn.Parameter(torch.zeros(4), requires_grad=False))
    assert not checks.is_writable(torch.nested.nested_tensor([out, memory]))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensor_is_explained(loaded):
    nested = torch.nested.nested_tensor([SF, SF[1:]])
    for name, call in (
        ("cast_back: out", lambda: tw.quant.cast_back((DATA, SF), "bf16", (1, 128), out=nested)),
        ("cast_back: x[1]", lambda: tw.quant.cast_back((DATA, nested), "bf16", (1, 128))),
        ("per_token_cast: out[1]", lambda: cast(out=(DATA, nested))),
    ):
        with pytest.raises(ValueError, match=re.escape(f"{name}: layout is nested, must be")):
            call()
    assert loaded.num_launches == 0


def test_operator_of_torch_returns_results_with_memory_of_their_own(loaded, monkeypatch):
    monkeypatch.setattr(tw.engram.forward, "bind", lambda *_, **__: loaded.get(()))
    arguments = (streams(2, 4, 64), streams(2, 5, 64), torch.zeros(4, 64))
    own = torch.ops.tilewheel.engram_gate_fwd(*arguments, None, 1e-6, 1e-6, True)
    assert loaded.num_launches == 1
    assert len({each.untyped_storage().data_ptr() for each in own}) == 5
    # A plain call needs no more than one allocation for the four.
    plain = tw.engram.engram_gate_fwd(*arguments, 1e-6, 1e-6)
    assert loaded.num_launches == 2
    assert len({each.untyped_storage().data_ptr() for each in plain}) == 2


@pytest.mark.parametrize(
    ("number", "value"),
    [(name, value) for name in PRE_NUMBERS for value in (math.inf, 1e39, True)],
)
def test_number_that_no_float32_has_is_refused_before_the_launch(loaded, number, value):
    with pytest.raises((TypeError, ValueError), match=rf"pre_big_fuse_fwd: {number}: is "):
        pre(**{number: value})
    assert loaded.num_launches == 0


def test_numbers_of_other_types_are_converted_for_the_launch(loaded):
    pre(sinkhorn_repeat=Three(), post_mult=2)
    numbers = [value for value in loaded.launches[0] if not isinstance(value, torch.Tensor)]
    assert numbers == [None, *(1e-6,) * 3, 2.0, 3, 1e-6]
    assert [type(number) for number in numbers[1:]] == [float, float, float, float, int, float]


@pytest.mark.parametrize(
    "odd",
    [
        torch.zeros(8, 256, device="meta"),
        torch.zeros(8, 256).to_sparse(),
    ],
    ids=["meta", "sparse"],
)
def test_tensor_that_torch_hands_to_nobody_is_explained(loaded, monkeypatch, odd):
    def refuse(*arguments: object) -> None:
        if any(argument is odd for argument in arguments):
            raise RuntimeError("as torch says it")

    monkeypatch.setattr(loaded, "_launch", refuse)
    with pytest.raises((TypeError, ValueError), match=r"per_token_cast: out\[0\]: "):
        cast(out=(odd, SF))
