"""apply_rotary on every backend: exact against the reference, for values, sizes and views."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tilewheel as tw
from tilewheel import compare

VARIANTS = [
    (dtype, head_dim, interleaved)
    for dtype in (torch.bfloat16, torch.float32)
    for head_dim in (64, 128)
    for interleaved in (False, True)
]


def cos_sin_cache(cache_rows: int, head_dim: int) -> torch.Tensor:
    frequencies = 10000.0 ** (-torch.arange(0, head_dim, 2) / head_dim)
    angles = torch.arange(cache_rows)[:, None] * frequencies
    return torch.cat((angles.cos(), angles.sin()), dim=-1)


def normal(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator).to(dtype)


def copy_of(x: torch.Tensor, device: Any = None) -> torch.Tensor:
    """Return a copy with the strides of ``x``, inside a copy of all of its memory."""
    num_elements = x.untyped_storage().nbytes() // x.element_size()
    whole = x.as_strided((num_elements,), (1,), 0).to(device or x.device, copy=True)
    return whole.as_strided(x.shape, x.stride(), x.storage_offset())


def whole(x: torch.Tensor) -> torch.Tensor:
    """Return all memory that ``x`` is a view of, on the CPU."""
    num_elements = x.untyped_storage().nbytes() // x.element_size()
    return x.as_strided((num_elements,), (1,), 0).cpu()


def check(
    machine: Any,
    query: torch.Tensor,
    cache: torch.Tensor,
    key: torch.Tensor | None = None,
    positions: torch.Tensor | None = None,
    **options: Any,
) -> torch.Tensor:
    """Run the operator and the reference, compare all memory behind the rows, return query."""
    expected = [copy_of(query), None if key is None else copy_of(key)]
    tw.reference.transform.apply_rotary(expected[0], cache, expected[1], positions, **options)
    actual = [
        copy_of(query, machine.device),
        None if key is None else copy_of(key, machine.device),
    ]
    try:
        tw.transform.apply_rotary(
            actual[0],
            cache.to(machine.device),
            actual[1],
            None if positions is None else positions.to(machine.device),
            **options,
        )
    except tw.NoArtifactError as error:
        pytest.skip(str(error).splitlines()[0])
    for mine, right in zip(actual, expected, strict=True):
        if mine is not None and right is not None:
            assert compare.bits(whole(mine), whole(right)) == ""
    return actual[0].cpu()


@pytest.mark.parametrize("num_tokens", [0, 1, 2, 33])
@pytest.mark.parametrize("num_heads", [1, 17, 64])
@pytest.mark.parametrize(("dtype", "head_dim", "interleaved"), VARIANTS)
def test_every_variant_is_exact(
    machine: Any,
    dtype: torch.dtype,
    head_dim: int,
    interleaved: bool,
    num_heads: int,
    num_tokens: int,
) -> None:
    query = normal(num_tokens, num_heads, head_dim, dtype=dtype)
    key = normal(num_tokens, 3, head_dim, dtype=dtype)
    positions = torch.arange(num_tokens) * 7 % 100
    rotated = check(
        machine, query, cos_sin_cache(100, head_dim), key, positions, interleaved=interleaved
    )
    assert num_tokens < 2 or not torch.equal(rotated, query)


@pytest.mark.parametrize("conjugate", [False, True])
@pytest.mark.parametrize("offset", [0, 5])
@pytest.mark.parametrize("kind", [None, torch.int32, torch.int64])
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("with_key", [False, True])
def test_positions_of_each_kind_with_offset_and_direction(
    machine: Any, with_key: bool, interleaved: bool, kind: Any, offset: int, conjugate: bool
) -> None:
    query, key = normal(19, 6, 64), normal(19, 1, 64)
    positions = None if kind is None else (torch.arange(19) * 5 % 31).to(kind)
    options = {"interleaved": interleaved, "conjugate": conjugate, "seqlen_offset": offset}
    check(machine, query, cos_sin_cache(64, 64), key if with_key else None, positions, **options)


def test_the_offset_is_added_to_given_positions(machine: Any) -> None:
    query = normal(5, 2, 64)
    cache = cos_sin_cache(40, 64)
    positions = torch.tensor([3, 0, 7, 7, 20])
    shifted = check(machine, query, cache, positions=positions, seqlen_offset=11)
    assert torch.equal(shifted, check(machine, query, cache, positions=positions + 11))


@pytest.mark.parametrize(
    ("kind", "outside"),
    [
        (torch.int64, [-1, 32, 2**31, 2**32 + 3, 2**63 - 1, -(2**63), -(2**32)]),
        (torch.int32, [-1, 32, 2**31 - 1, -(2**31), 1000, -32, 33]),
    ],
)
@pytest.mark.parametrize("offset", [0, 4, 2**30])
def test_a_token_outside_the_cache_keeps_its_values_and_no_other_does(
    machine: Any, offset: int, kind: torch.dtype, outside: list[int]
) -> None:
    positions = torch.tensor([value for each in outside for value in (9, each)], dtype=kind)
    query, key = normal(14, 3, 64), normal(14, 2, 64)
    cache = cos_sin_cache(32, 64)
    rotated = check(machine, query, cache, key, positions, seqlen_offset=offset)
    if offset == 4:  # -1 + 4 and -32 + 4: the first is a row of the cache
        assert not torch.equal(rotated[1], query[1])
        assert torch.equal(rotated[3::2], query[3::2])
    else:
        assert torch.equal(rotated[1::2], query[1::2])
    assert torch.equal(rotated[0], query[0]) == (offset == 2**30)


def test_counted_positions_end_with_the_cache(machine: Any) -> None:
    query = normal(12, 2, 64)
    rotated = check(machine, query, cos_sin_cache(10, 64), seqlen_offset=3)
    assert torch.equal(rotated[7:], query[7:])
    assert not torch.equal(rotated[6], query[6])


def test_an_empty_cache_leaves_everything(machine: Any) -> None:
    query = normal(3, 2, 64)
    assert torch.equal(check(machine, query, cos_sin_cache(0, 64)), query)


@pytest.mark.parametrize(("dtype", "head_dim", "interleaved"), VARIANTS)
@pytest.mark.parametrize("before", [448, 64, 1, 3])
def test_a_tail_of_wider_heads_is_rotated_and_the_rest_is_not_written(
    machine: Any, before: int, dtype: torch.dtype, head_dim: int, interleaved: bool
) -> None:
    query = normal(7, 5, before + head_dim, dtype=dtype)[..., before:]
    key = normal(7, 1, before + head_dim, dtype=dtype)[..., before:]
    check(machine, query, cos_sin_cache(20, head_dim), key, interleaved=interleaved)


@pytest.mark.parametrize("first", [0, 1, 2, 5, 8])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_rows_may_begin_at_any_element(machine: Any, dtype: torch.dtype, first: int) -> None:
    query = normal(4 * 3 * 64 + 16, dtype=dtype)[first : first + 4 * 3 * 64].view(4, 3, 64)
    check(machine, query, cos_sin_cache(9, 64))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_query_and_key_of_one_projection_and_heads_before_tokens(
    machine: Any, dtype: torch.dtype
) -> None:
    qkv = normal(11, 8 + 2 + 2, 128, dtype=dtype)
    check(machine, qkv[:, :8].clone(), cos_sin_cache(11, 128), qkv[:, 8:10])
    heads_first = normal(6, 11, 128, dtype=dtype).transpose(0, 1)
    check(machine, heads_first, cos_sin_cache(11, 128))


def test_views_of_one_memory_are_rotated_in_one_call(machine: Any) -> None:
    cache = cos_sin_cache(11, 64).to(machine.device)
    qkv = normal(11, 12, 64).to(machine.device)
    expected = qkv.clone()
    tw.reference.transform.apply_rotary(expected[:, :10], cache)
    tw.transform.apply_rotary(qkv[:, :8], cache, qkv[:, 8:10])
    assert torch.equal(qkv, expected)


BATCHES = {
    "contiguous": lambda: normal(3, 5, 4, 64),
    "padded": lambda: normal(3, 9, 4, 64)[:, :5],
    "padded with more sequences than tokens": lambda: normal(7, 9, 4, 64)[:, :2],
    "tokens first": lambda: normal(5, 3, 4, 64).transpose(0, 1),
    "heads before tokens": lambda: normal(3, 4, 5, 64).transpose(1, 2),
    "one token each": lambda: normal(6, 4, 2, 64)[:, :1],
    "one sequence": lambda: normal(4, 5, 2, 64)[:1],
    "no sequences": lambda: normal(0, 5, 2, 64),
}


@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("with_key", [False, True])
@pytest.mark.parametrize("name", BATCHES)
def test_a_batch_of_sequences_with_any_strides(
    machine: Any, name: str, with_key: bool, given: bool
) -> None:
    query = BATCHES[name]()
    key = normal(*query.shape[:2], 1, 64) if with_key else None
    positions = None
    if given:
        positions = (torch.arange(query.shape[0] * query.shape[1]) * 3 % 20).view(query.shape[:2])
        positions = positions.t().contiguous().t()
    check(machine, query, cos_sin_cache(20, 64), key, positions, seqlen_offset=2)


def test_values_at_the_edge_of_the_formats(machine: Any) -> None:
    tiny, huge = 1e-45, 3.38e38
    values = torch.tensor([0.0, -0.0, tiny, -tiny, 1e-38, huge, -huge, 1.0, float("inf")])
    generator = torch.Generator().manual_seed(1)
    picks = torch.randint(0, len(values), (40, 4, 64), generator=generator)
    angles = cos_sin_cache(40, 64)
    angles[::3] *= 3.0  # no rotation, but finite sums that overflow bfloat16
    angles[5] = float("nan")
    angles[6] = tiny
    for dtype in (torch.bfloat16, torch.float32):
        for interleaved in (False, True):
            check(machine, values[picks].to(dtype), angles, interleaved=interleaved)


def test_a_value_beyond_bfloat16_rounds_to_infinity(machine: Any) -> None:
    query = torch.full((1, 1, 64), 3.389e38, dtype=torch.bfloat16)
    cache = torch.cat((torch.full((1, 32), 1.003), torch.zeros(1, 32)), dim=-1)
    assert bool(check(machine, query, cache).isinf().all())


@pytest.mark.parametrize(("dtype", "limit"), [(torch.float32, 1e-14), (torch.bfloat16, 1e-5)])
@pytest.mark.parametrize("interleaved", [False, True])
def test_conjugate_rotates_back(
    machine: Any, interleaved: bool, dtype: torch.dtype, limit: float
) -> None:
    query = normal(30, 4, 64, dtype=dtype)
    cache = cos_sin_cache(30, 64)
    there = check(machine, query, cache, interleaved=interleaved)
    back = check(machine, there, cache, interleaved=interleaved, conjugate=True)
    assert compare.relative_square_error(limit)(back, query) == ""


def test_a_rotation_keeps_the_length_of_each_pair_and_pairs_as_told(machine: Any) -> None:
    query = torch.zeros((1, 1, 64))
    query[0, 0, 0] = 1.0
    cache = torch.cat((torch.zeros(1, 32), torch.ones(1, 32)), dim=-1)
    assert check(machine, query, cache).flatten().nonzero().tolist() == [[32]]
    assert check(machine, query, cache, interleaved=True).flatten().nonzero().tolist() == [[1]]
    assert check(machine, query, cache, conjugate=True)[0, 0, 32] == -1.0


@pytest.mark.parametrize("num_heads", [0, 1, 31, 32, 33, 129])
def test_any_number_of_heads(machine: Any, num_heads: int) -> None:
    check(machine, normal(3, num_heads, 64), cos_sin_cache(3, 64), normal(3, 2, 64))
    check(machine, normal(3, 2, 64), cos_sin_cache(3, 64), normal(3, num_heads, 64))


def test_more_tokens_than_a_grid_dimension_of_65535(machine: Any) -> None:
    positions = torch.arange(65539) % 1000
    check(machine, normal(65539, 2, 64), cos_sin_cache(1000, 64), positions=positions)


def test_a_token_gives_the_same_values_alone_and_in_a_batch(machine: Any) -> None:
    query, cache, positions = normal(21, 5, 64), cos_sin_cache(50, 64), torch.arange(21) * 2
    together = check(machine, query, cache, positions=positions)
    alone = [
        check(machine, query[i : i + 1].clone(), cache, positions=positions[i : i + 1])
        for i in range(21)
    ]
    assert torch.equal(together, torch.cat(alone))


def test_the_function_returns_nothing_and_counts_as_a_write(machine: Any) -> None:
    query, cache = normal(2, 2, 64).to(machine.device), cos_sin_cache(2, 64).to(machine.device)
    for _ in range(2):
        version = query._version
        assert tw.transform.apply_rotary(query, cache) is None
        assert query._version == version + 1
