"""tilewheel.quant: arguments, errors, and what comes back, on the reference."""

from __future__ import annotations

import pytest
import torch

import tilewheel as tw
from tilewheel import compare

X = torch.randn((3, 192), generator=torch.Generator().manual_seed(1)).to(torch.bfloat16)
PAIR = tw.reference.quant.per_token_cast(X, "e4m3", 32)
BLOCK = (1, 32)


def messages_of(call, kind):
    with pytest.raises(kind) as caught:
        call()
    return str(caught.value)


@pytest.mark.parametrize(
    ("x", "kind", "message"),
    [
        ([[1.0]], TypeError, "is a list, must be a torch.Tensor"),
        (None, TypeError, "is a NoneType, must be a torch.Tensor"),
        (X.half(), TypeError, "dtype is torch.float16, must be torch.bfloat16 or torch.float32"),
        (X[0], ValueError, "shape is (192,), must be [num_tokens, hidden]"),
        (X[:, :32], ValueError, "hidden is 32, must be a multiple of 64"),
        (X[:, :0], ValueError, "hidden is 0, must be a multiple of 64"),
        (X[:, :100], ValueError, "hidden is 100, must be a multiple of 64"),
        (
            X[:, ::3],
            ValueError,
            "strides are (192, 3), must be (any, 1)\nhint: call .contiguous()",
        ),
        (X.to_sparse(), ValueError, "layout is torch.sparse_coo, must be torch.strided"),
    ],
)
@pytest.mark.parametrize(
    "function",
    [
        lambda x: tw.quant.per_token_cast(x, "e4m3", 128),
        lambda x: tw.quant.per_token_cast_with_sf_only(x, "e4m3", 128),
        lambda x: tw.quant.stochastic_cast(x, "e4m3", 128, seed=1),
        lambda x: tw.quant.per_token_cast_with_precomputed_sf(x, "e4m3", 64, torch.ones(3, 3)),
    ],
)
def test_wrong_x(function, x, kind, message):
    assert messages_of(lambda: function(x), kind).partition(": x: ")[2] == message


@pytest.mark.parametrize(
    ("flags", "kind", "message"),
    [
        ({"fmt": "e5m2"}, ValueError, "fmt: is 'e5m2', must be 'e4m3' or 'e2m1'"),
        ({"fmt": ["e4m3"]}, TypeError, "fmt: is a list, must be a str"),
        (
            {"num_per_channels": 48},
            ValueError,
            "num_per_channels: is 48, must be 16, 32, 64 or 128",
        ),
        ({"num_per_channels": 8}, ValueError, "num_per_channels: is 8, must be 16 to 128"),
        ({"num_per_channels": True}, TypeError, "num_per_channels: is a bool, must be an int"),
        ({"num_per_channels": 32.0}, TypeError, "num_per_channels: is a float, must be an int"),
        ({"round_sf": 1}, TypeError, "round_sf: is a int, must be a bool"),
        (
            {"use_packed_ue8m0": True},
            ValueError,
            "use_packed_ue8m0: is True, must be False without round_sf",
        ),
        (
            {"use_e4m3_sf": True, "round_sf": True},
            ValueError,
            "use_e4m3_sf: is True, must be False with round_sf",
        ),
        ({"clamp_min": "1"}, TypeError, "clamp_min: is a str, must be a float"),
        ({"clamp_min": True}, TypeError, "clamp_min: is a bool, must be a float"),
        (
            {"clamp_min": 0.0},
            ValueError,
            "clamp_min: is 0.0, must be 5.266214691683848e-36 to 3.4028234663852886e+38",
        ),
        (
            {"clamp_min": float("nan")},
            ValueError,
            "clamp_min: is nan, must be 5.266214691683848e-36 to 3.4028234663852886e+38",
        ),
        (
            {"clamp_min": 0.1, "use_e4m3_sf": True},
            ValueError,
            "clamp_min: is 0.1, must be 0.875 to 3.4028234663852886e+38",
        ),
        ({"x_block_size": (1, 32)}, ValueError, "x_block_size: is (1, 32), must be None for a"),
    ],
)
def test_wrong_flags(flags, kind, message):
    arguments = {"fmt": "e4m3", "num_per_channels": 128} | flags
    for _ in range(2):  # what is remembered of a call must not change what the next one says
        actual = messages_of(lambda: tw.quant.per_token_cast(X, **arguments), kind)
        assert actual.startswith(f"per_token_cast: {message}")


@pytest.mark.parametrize(
    ("block", "kind", "message"),
    [
        (None, ValueError, "is None, must be (tokens, channels) for a pair x"),
        (32, TypeError, "is 32, must be (tokens, channels)"),
        ((1, 2, 3), TypeError, "is (1, 2, 3), must be (tokens, channels)"),
    ],
)
@pytest.mark.parametrize(
    "function", [tw.quant.per_token_cast, tw.quant.per_token_cast_with_sf_only]
)
def test_wrong_block_size(function, block, kind, message):
    actual = messages_of(lambda: function(PAIR, "e4m3", 128, x_block_size=block), kind)
    assert actual == f"{function.__name__}: x_block_size: {message}"


@pytest.mark.parametrize(
    ("block", "kind", "message"),
    [
        ((0, 32), ValueError, "x_block_size[0]: is 0, must be 1 to 2147483647"),
        ((1, 8), ValueError, "x_block_size[1]: is 8, must be 16 to 2147483647"),
        ((1, 40), ValueError, "x_block_size[1]: is 40, must be a multiple of 16"),
        ((1.0, 32), TypeError, "x_block_size[0]: is a float, must be an int"),
    ],
)
def test_wrong_block_of_cast_back(block, kind, message):
    actual = messages_of(lambda: tw.quant.cast_back(PAIR, "bf16", block), kind)
    assert actual == f"cast_back: {message}"


@pytest.mark.parametrize(
    ("pair", "kind", "message"),
    [
        (PAIR[0], TypeError, "x: is a Tensor, must be (data, sf)"),
        ((PAIR[0],), TypeError, "x: is a tuple, must be (data, sf)"),
        ((X, PAIR[1]), TypeError, "x[0]: dtype is torch.bfloat16, must be torch.float8_e4m3fn or"),
        ((PAIR[0], PAIR[1][:2]), ValueError, "x[1]: shape is (2, 6), must be (3, 6)"),
        ((PAIR[0], PAIR[1][:, :5]), ValueError, "x[1]: shape is (3, 5), must be (3, 6)"),
        ((PAIR[0], PAIR[1].double()), TypeError, "x[1]: dtype is torch.float64, must be"),
        ((PAIR[0], PAIR[1].to("meta")), ValueError, "x[1]: is on meta, must be on cpu like data"),
    ],
)
def test_wrong_pair(pair, kind, message):
    actual = messages_of(lambda: tw.quant.cast_back(pair, "bf16", BLOCK), kind)
    assert actual.startswith(f"cast_back: {message}")


def test_wrong_fmt_of_cast_back():
    actual = messages_of(lambda: tw.quant.cast_back(PAIR, "fp16", BLOCK), ValueError)
    assert actual == "cast_back: fmt: is 'fp16', must be 'bf16' or 'f32'"


@pytest.mark.parametrize(
    ("out", "kind", "message"),
    [
        (PAIR[0], TypeError, "out: is a Tensor, must be (data, sf)"),
        ((PAIR[0].float(), PAIR[1]), TypeError, "out[0]: dtype is torch.float32"),
        ((PAIR[0][:2], PAIR[1]), ValueError, "out[0]: shape is (2, 192), must be (3, 192)"),
        ((PAIR[0], PAIR[1][:, :5]), ValueError, "out[1]: shape is (3, 5), must be (3, 6)"),
        ((PAIR[0], PAIR[1].t().contiguous().t()), ValueError, "out[1]: strides are (1, 3)"),
    ],
)
def test_wrong_out(out, kind, message):
    actual = messages_of(lambda: tw.quant.per_token_cast(X, "e4m3", 32, out=out), kind)
    assert actual.startswith(f"per_token_cast: {message}")


@pytest.mark.parametrize(
    ("sf", "message"),
    [
        (torch.empty((6, 3)).t(), "strides are (1, 3), must be (1, a multiple of 4 from 4)"),
        (torch.empty((3, 6)), "strides are (6, 1), must be (1, a multiple of 4 from 4)"),
        (torch.empty((3, 5)), "shape is (3, 5), must be (3, 6)"),
        (torch.empty((3, 6), device="meta"), "is on meta, must be on cpu like x"),
    ],
)
def test_wrong_column_major_out(sf, message):
    out = (torch.empty((3, 192), dtype=torch.float8_e4m3fn), sf)
    actual = messages_of(
        lambda: tw.quant.per_token_cast(X, "e4m3", 32, use_tma_aligned_col_major_sf=True, out=out),
        ValueError,
    )
    assert actual == f"per_token_cast: out[1]: {message}"


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        ({"seed": 1.5}, TypeError, "seed: is a float, must be an int"),
        ({"seed": 2**63}, ValueError, "seed: is 9223372036854775808, must be"),
        ({"seed": 0, "offset": -1}, ValueError, "offset: is -1, must be 0 to"),
    ],
)
def test_wrong_seed(arguments, kind, message):
    actual = messages_of(lambda: tw.quant.stochastic_cast(X, "e4m3", 128, **arguments), kind)
    assert actual.startswith(f"stochastic_cast: {message}")


def test_precomputed_scales_must_be_contiguous():
    sf = torch.ones((6, 3)).t()
    call = lambda: tw.quant.per_token_cast_with_precomputed_sf(X, "e4m3", 32, sf)  # noqa: E731
    assert "sf: strides are (1, 3), must be contiguous" in messages_of(call, ValueError)


@pytest.mark.parametrize(("num_tokens", "leading"), [(1, 4), (2, 4), (4, 4), (5, 8)])
def test_column_major_scales_are_padded_to_16_bytes(num_tokens, leading):
    x = torch.ones((num_tokens, 128), dtype=torch.bfloat16)
    sf = tw.quant.per_token_cast(x, "e4m3", 32, use_tma_aligned_col_major_sf=True)[1]
    assert (tuple(sf.shape), sf.stride()) == ((num_tokens, 4), (1, leading))


def test_e4m3_scales_are_padded_to_16_bytes_too():
    flags = {"use_e4m3_sf": True, "use_tma_aligned_col_major_sf": True}
    assert tw.quant.per_token_cast(X, "e2m1", 16, **flags)[1].stride() == (1, 16)


def test_packed_scales_hold_the_first_group_in_the_lowest_byte_and_zeros_behind_the_last():
    x = torch.zeros((1, 192))
    x[0, 0::32] = torch.tensor([1.0, 2, 4, 8, 16, 32])
    flags = {"round_sf": True, "use_packed_ue8m0": True}
    sf = tw.quant.per_token_cast(x, "e2m1", 32, **flags)[1]
    assert sf.dtype == torch.int32
    assert sf.view(torch.uint8).tolist() == [[125, 126, 127, 128, 129, 130, 0, 0]]


def test_literal_bytes_of_a_small_tensor():
    x = torch.zeros((1, 64))
    x[0, :4] = torch.tensor([448.0, -224.0, 1.0, 0.0])
    data, sf = tw.quant.per_token_cast(x, "e4m3", 64)
    assert sf.tolist() == [[1.0]]
    assert data.view(torch.uint8)[0, :4].tolist() == [0x7E, 0xF6, 0x38, 0x00]
    data, sf = tw.quant.per_token_cast(x, "e2m1", 64, round_sf=True)
    assert sf.tolist() == [[128.0]]
    assert data.view(torch.uint8)[0, :2].tolist() == [0xC6, 0x00]


def test_groups_of_zeros_have_the_scale_of_clamp_min():
    data, sf = tw.quant.per_token_cast(torch.zeros((1, 64)), "e4m3", 64, clamp_min=448.0)
    assert sf.tolist() == [[1.0]]
    assert not data.float().any()


def test_quantising_a_pair_is_casting_it_back_first():
    values = tw.quant.cast_back(PAIR, "f32", BLOCK)
    for flags in ({}, {"use_e4m3_sf": True}, {"round_sf": True, "use_packed_ue8m0": True}):
        actual = tw.quant.per_token_cast(PAIR, "e2m1", 64, x_block_size=BLOCK, **flags)
        wanted = tw.quant.per_token_cast(values, "e2m1", 64, **flags)
        assert [compare.bits(*both) for both in zip(actual, wanted, strict=True)] == ["", ""]


def test_stochastic_rounding_is_unbiased_and_keeps_values_of_the_format():
    x = torch.full((64, 64), 1.2)
    x[:, 0], x[:, 1] = 6.0, 3.0
    back = torch.zeros((64, 64))
    for offset in range(64):
        pair = tw.quant.stochastic_cast(x, "e2m1", 64, seed=3, offset=offset)
        values = tw.quant.cast_back(pair, "f32", (1, 64))
        assert set(values[:, 2:].unique().tolist()) == {1.0, 1.5}
        assert values[:, :2].unique().tolist() == [3.0, 6.0]
        back += values
    assert float((back / 64)[:, 2:].mean()) == pytest.approx(1.2, abs=0.003)


def test_seeds_and_offsets_draw_other_bits():
    draws = [
        tw.quant.stochastic_cast(X, "e4m3", 128, seed=seed, offset=offset)[0].view(torch.uint8)
        for seed, offset in ((0, 0), (1, 0), (0, 1), (2**32, 0), (0, 2**32))
    ]
    assert all(not torch.equal(draws[0], other) for other in draws[1:])


def test_the_reference_draws_the_bits_of_rows_of_a_larger_tensor():
    x = torch.randn((9, 192), generator=torch.Generator().manual_seed(7))
    options = {"seed": 3, "offset": 2**40 + 1}
    whole = tw.reference.quant.stochastic_cast(x, "e4m3", 64, **options)
    part = tw.reference.quant.stochastic_cast(x[5:], "e4m3", 64, **options, first_token=5)
    assert compare.bits(part[0], whole[0][5:]) == ""
    moved = tw.reference.quant.stochastic_cast(x[5:], "e4m3", 64, **options)
    assert compare.bits(moved[0], whole[0][5:]) != ""


def test_philox_matches_the_published_vector():
    words = tw.reference.quant._philox(1, 0, 0, torch.device("cpu"))[0, :4].tolist()
    assert [hex(word) for word in words] == ["0x6627e8d5", "0xe169c58d", "0xbc57ac4c", "0x9b00dbd8"]


def test_no_tokens_give_empty_results():
    x = torch.empty((0, 192))
    data, sf = tw.quant.per_token_cast(x, "e2m1", 64)
    assert (data.shape, sf.shape) == ((0, 96), (0, 3))
    assert tw.quant.cast_back((data, sf), "bf16", (1, 64)).shape == (0, 192)


def test_compiled_calls_give_the_same():
    def cast(x):
        return tw.quant.per_token_cast(x, "e4m3", 32, round_sf=True)

    compiled = torch.compile(cast, fullgraph=True, dynamic=True, backend="aot_eager")
    for result, wanted in zip(compiled(X), cast(X), strict=True):
        assert compare.bits(result, wanted) == ""


def test_x_may_require_gradients_and_results_do_not():
    data, sf = tw.quant.per_token_cast(X.float().requires_grad_(), "e4m3", 128)
    assert not data.requires_grad
    assert not sf.requires_grad


@pytest.mark.parametrize("size", [16, 64, 128])
def test_ascend_has_groups_of_32_only(size):
    message = f"num_per_channels: is {size}, must be 32 on Ascend"
    with tw.backend("ascend-sim"):
        calls = {
            "per_token_cast": lambda: tw.quant.per_token_cast(X, "e4m3", size),
            "per_token_cast_with_sf_only": lambda: tw.quant.per_token_cast_with_sf_only(
                X, "e4m3", size
            ),
            "per_token_cast_with_precomputed_sf": (
                lambda: tw.quant.per_token_cast_with_precomputed_sf(
                    X, "e4m3", size, torch.ones((X.shape[0], -(-X.shape[1] // size)))
                )
            ),
        }
        for name, call in calls.items():
            with pytest.raises(ValueError, match=f"^{name}: {message}$"):
                call()


def bytes_of(size):
    return torch.zeros(size, dtype=torch.uint8)


def test_out_may_not_share_memory_with_a_strided_input_or_itself():
    memory = bytes_of(3 * 1024)
    x = memory.view(torch.bfloat16).view(3, 512)[:, :192]
    data = memory[2048 + 200 :][: 3 * 192].view(torch.float8_e4m3fn).view(3, 192)
    sf = torch.empty((3, 6))
    column = memory.view(torch.float32)[: 6 * 4].view(6, 4)[:, :3].t()
    apart = torch.empty((3, 192), dtype=torch.float8_e4m3fn)
    inside = apart.view(torch.uint8).view(-1)[:72].view(torch.float32).view(3, 6)
    for out, message, flags in (
        ((data, sf), "out[0]: shares memory with x, must not", {}),
        (
            (apart, column),
            "out[1]: shares memory with x, must not",
            {"use_tma_aligned_col_major_sf": True},
        ),
        ((apart, inside), "out[1]: shares memory with out[0], must not", {}),
        (
            (apart, torch.empty((6, 4), requires_grad=True)[:, :3].t()),
            "out[1]: requires gradients, must not\nhint: call .detach()",
            {"use_tma_aligned_col_major_sf": True},
        ),
    ):
        with pytest.raises(ValueError, match=r"shares memory|requires gradients") as caught:
            tw.quant.per_token_cast(x, "e4m3", 32, out=out, **flags)
        assert str(caught.value) == f"per_token_cast: {message}"
    assert not bool(memory.any())


def test_out_of_cast_back_may_not_share_memory_with_its_scales():
    memory = torch.zeros((3, 192))
    pair = (PAIR[0], memory.view(-1)[:18].view(3, 6))
    actual = messages_of(lambda: tw.quant.cast_back(pair, "f32", BLOCK, out=memory), ValueError)
    assert actual == "cast_back: out: shares memory with x[1], must not"


def test_pair_is_not_quantised_anew_into_its_own_memory():
    data, sf = tw.quant.per_token_cast(torch.randn(4, 128), "e4m3", 32)
    for scales in (sf, (sf.log2().ceil() + 127).to(torch.uint8).view(torch.int32)):
        x = (data, scales)
        for out, where in (
            ((data, sf.clone()), r"out\[0\]: shares memory with x"),
            ((data.clone(), scales), r"out\[1\]: (dtype is|shares memory with x\[1\])"),
        ):
            with pytest.raises((TypeError, ValueError), match=where):
                tw.quant.per_token_cast(x, "e4m3", 32, x_block_size=(1, 32), out=out)
