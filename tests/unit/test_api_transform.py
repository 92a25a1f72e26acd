"""tilewheel.transform: arguments, errors, tracing, and the reference behind it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch._subclasses import FakeTensorMode

import tilewheel as tw
from tilewheel import compare

QUERY = torch.arange(3 * 2 * 64.0).view(3, 2, 64)
KEY = torch.ones((3, 1, 64))
ANGLES = torch.arange(5)[:, None] * torch.linspace(0.1, 1.0, 32)
CACHE = torch.cat((ANGLES.cos(), ANGLES.sin()), dim=-1)
POSITIONS = torch.tensor([4, 0, 2])


def rotated(query: torch.Tensor, *arguments, **options) -> torch.Tensor:
    query = query.clone()
    tw.transform.apply_rotary(query, CACHE, *arguments, **options)
    return query


def test_halves_are_pairs_and_interleaved_pairs_neighbours():
    angles = ANGLES[POSITIONS][:, None]
    first, second = QUERY.chunk(2, dim=-1)
    a, b = angles.cos(), angles.sin()
    expected = torch.cat((first * a - second * b, first * b + second * a), dim=-1)
    assert torch.equal(rotated(QUERY, None, POSITIONS), expected)
    first, second = QUERY[..., 0::2], QUERY[..., 1::2]
    expected = torch.stack((first * a - second * b, first * b + second * a), dim=-1).flatten(-2)
    assert torch.equal(rotated(QUERY, None, POSITIONS, interleaved=True), expected)


def test_reference_is_a_rotation_in_the_complex_plane():
    pairs = torch.view_as_complex(QUERY.double().view(3, 2, 32, 2))
    turned = pairs * torch.polar(torch.ones(3, 32).double(), -ANGLES[POSITIONS].double())[:, None]
    expected = torch.view_as_real(turned).flatten(-2)
    actual = rotated(QUERY, None, POSITIONS, interleaved=True, conjugate=True)
    assert compare.relative_square_error(1e-13)(actual.double(), expected) == ""


def test_positions_are_counted_within_each_sequence():
    batch = torch.stack((QUERY, QUERY + 1.0))
    alone = [rotated(sequence, seqlen_offset=1) for sequence in batch]
    assert torch.equal(rotated(batch, seqlen_offset=1), torch.stack(alone))


def test_a_token_outside_the_cache_keeps_its_values():
    positions = torch.tensor([-1, 5, 4])
    assert torch.equal(rotated(QUERY, None, positions)[:2], QUERY[:2])
    assert not torch.equal(rotated(QUERY, None, positions)[2], QUERY[2])


def test_numpy_integer_is_an_offset():
    assert torch.equal(rotated(QUERY, seqlen_offset=np.int64(2)), rotated(QUERY, seqlen_offset=2))


def test_parameter_is_rotated_where_no_gradients_are_recorded():
    parameter = torch.nn.Parameter(QUERY.clone())
    with torch.no_grad():
        tw.transform.apply_rotary(parameter, CACHE)
    assert torch.equal(parameter.detach(), rotated(QUERY))


def test_autograd_notices_that_saved_values_were_written():
    query = QUERY.clone()
    weight = torch.ones((), requires_grad=True)
    product = (query * weight).sum()
    tw.transform.apply_rotary(query, CACHE)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.backward()


WRONG = {
    "query is a list": (
        {"query": [1.0]},
        TypeError,
        "query: is a list, must be a torch.Tensor",
    ),
    "query is half": (
        {"query": QUERY.half()},
        TypeError,
        "query: dtype is torch.float16, must be torch.bfloat16 or torch.float32",
    ),
    "query has two dimensions": (
        {"query": QUERY[0]},
        ValueError,
        "query: shape is (2, 64), must be [num_tokens, num_heads, head_dim] or [num_sequences, "
        "num_tokens, num_heads, head_dim]",
    ),
    "query is wider": (
        {"query": torch.zeros(3, 2, 192)},
        ValueError,
        "query: head_dim is 192, must be 64 or 128\n"
        "hint: pass the view that is to be rotated, such as q[..., -64:]",
    ),
    "query has gaps in a row": (
        {"query": torch.zeros(3, 2, 128)[..., ::2]},
        ValueError,
        "query: stride(-1) is 2, must be 1",
    ),
    "query is expanded": (
        {"query": torch.zeros(3, 1, 64).expand(3, 2, 64)},
        ValueError,
        "query: stride(1) is 0, must not be: elements share memory\n"
        "hint: call .contiguous() and keep the result",
    ),
    "query requires gradients": (
        {"query": torch.zeros(3, 2, 64, requires_grad=True)},
        ValueError,
        "query: requires gradients, must not: it is written in place\n"
        "hint: use torch.no_grad(), or a torch.autograd.Function with conjugate in backward",
    ),
    "query is sparse": (
        {"query": QUERY.to_sparse()},
        ValueError,
        "query: layout is torch.sparse_coo, must be torch.strided",
    ),
    "key is of another dtype": (
        {"key": KEY.bfloat16()},
        TypeError,
        "key: dtype is torch.bfloat16, must be torch.float32 like query",
    ),
    "key has other tokens": (
        {"key": KEY[:2]},
        ValueError,
        "key: shape is (2, 1, 64), must be that of query (3, 2, 64) but for the heads",
    ),
    "key is a batch": (
        {"key": KEY[None]},
        ValueError,
        "key: shape is (1, 3, 1, 64), must be that of query (3, 2, 64) but for the heads",
    ),
    "key is elsewhere": (
        {"key": KEY.to("meta")},
        ValueError,
        "key: is on meta, must be on cpu like query",
    ),
    "cache is double": (
        {"cos_sin_cache": CACHE.double()},
        TypeError,
        "cos_sin_cache: dtype is torch.float64, must be torch.float32",
    ),
    "cache is narrower": (
        {"cos_sin_cache": CACHE[:, :32]},
        ValueError,
        "cos_sin_cache: shape is (5, 32), must be [cache_rows, 64]",
    ),
    "cache has gaps": (
        {"cos_sin_cache": CACHE.repeat(1, 2)[:, :64]},
        ValueError,
        "cos_sin_cache: strides are (128, 1), must be contiguous\nhint: call .contiguous()",
    ),
    "positions are floats": (
        {"positions": POSITIONS.float()},
        TypeError,
        "positions: dtype is torch.float32, must be torch.int32 or torch.int64",
    ),
    "positions are too few": (
        {"positions": POSITIONS[:2]},
        ValueError,
        "positions: shape is (2,), must be (3,) like query's tokens",
    ),
    "positions are a batch": (
        {"positions": POSITIONS[None]},
        ValueError,
        "positions: shape is (1, 3), must be (3,) like query's tokens",
    ),
    "interleaved is a number": (
        {"interleaved": 1},
        TypeError,
        "interleaved: is a int, must be a bool",
    ),
    "conjugate is missing": (
        {"conjugate": None},
        TypeError,
        "conjugate: is a NoneType, must be a bool",
    ),
    "offset is a float": (
        {"seqlen_offset": 1.0},
        TypeError,
        "seqlen_offset: is a float, must be an int",
    ),
    "offset is a bool": (
        {"seqlen_offset": True},
        TypeError,
        "seqlen_offset: is a bool, must be an int",
    ),
    "offset is negative": (
        {"seqlen_offset": -1},
        ValueError,
        "seqlen_offset: is -1, must be 0 to 1073741824",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_arguments(name):
    arguments, kind, message = WRONG[name]
    with pytest.raises(kind) as caught:
        tw.transform.apply_rotary(**{"query": QUERY.clone(), "cos_sin_cache": CACHE, **arguments})
    assert str(caught.value) == f"apply_rotary: {message}"


def test_key_that_begins_where_query_does():
    query = QUERY.clone()
    with pytest.raises(ValueError, match="key: shares memory with query, must not"):
        tw.transform.apply_rotary(query, CACHE, query)
    assert torch.equal(query, QUERY)


def test_operator_passes_opcheck():
    for key, positions in ((None, None), (KEY.clone(), POSITIONS)):
        torch.library.opcheck(
            torch.ops.tilewheel.apply_rotary.default,
            (QUERY.clone(), CACHE, key, positions, True, False, 1),
        )


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_function_serves_every_number_of_tokens_and_offset(backend):
    torch._dynamo.reset()
    counter = CompileCounterWithBackend(backend)

    @torch.compile(fullgraph=True, dynamic=True, backend=counter)
    def attend(x, y, offset):
        query, key = x * 1.0, y * 1.0
        tw.transform.apply_rotary(query, CACHE, key, seqlen_offset=offset)
        return query + 1.0, key

    for num_tokens, offset in ((3, 2), (2, 3), (3, 4)):
        query, key = attend(QUERY[:num_tokens].clone(), KEY[:num_tokens].clone(), offset)
        assert torch.equal(query, rotated(QUERY[:num_tokens], seqlen_offset=offset) + 1.0)
        assert torch.equal(key, rotated(KEY[:num_tokens], seqlen_offset=offset))
    assert counter.frame_count == 1


def test_compiled_function_writes_its_argument_and_positions_are_one():
    query = QUERY.clone()
    compiled = torch.compile(tw.transform.apply_rotary, fullgraph=True, backend="aot_eager")
    compiled(query, CACHE, None, POSITIONS, conjugate=True)
    assert torch.equal(query, rotated(QUERY, None, POSITIONS, conjugate=True))


def test_fake_tensors_are_checked_as_real_ones():
    with FakeTensorMode():
        cache = torch.empty((5, 64))
        assert tw.transform.apply_rotary(torch.empty((3, 2, 64)), cache) is None
        with pytest.raises(ValueError, match="head_dim is 32, must be 64 or 128"):
            tw.transform.apply_rotary(torch.empty((3, 2, 32)), cache)


def test_missing_artifact_is_explained(overlay):
    with (
        tw.backend("ascend-sim"),
        pytest.raises(tw.NoArtifactError, match="apply_rotary"),
    ):
        tw.transform.apply_rotary(QUERY.clone(), CACHE)
