"""What only a GPU shows of apply_rotary: graphs, streams, large tensors, compilation, alignment."""

from __future__ import annotations

import pytest
import torch

import tilewheel as tw
from tilewheel import compare

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine"),
]


def cos_sin_cache(cache_rows: int, head_dim: int = 64) -> torch.Tensor:
    frequencies = 10000.0 ** (-torch.arange(0, head_dim, 2) / head_dim)
    angles = torch.arange(cache_rows)[:, None] * frequencies
    return torch.cat((angles.cos(), angles.sin()), dim=-1).cuda()


def normal(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    generator = torch.Generator(device="cuda").manual_seed(sum(shape))
    return torch.randn(shape, generator=generator, device="cuda").to(dtype)


def rotated(
    query: torch.Tensor,
    cache: torch.Tensor,
    positions: torch.Tensor | None = None,
    **options: bool | int,
) -> torch.Tensor:
    """Return what the reference makes of a copy."""
    expected = query.clone()
    tw.reference.transform.apply_rotary(expected, cache, None, positions, **options)  # type: ignore[arg-type]
    return expected


def test_graph_capture_of_the_first_call_and_replay() -> None:
    query, key = normal(33, 5, 128, dtype=torch.float32), normal(33, 1, 128, dtype=torch.float32)
    cache, positions = cos_sin_cache(50, 128), torch.arange(33, device="cuda") + 4
    first = [rotated(x, cache, positions) for x in (query, key)]
    second = [rotated(x, cache, positions) for x in first]
    graph = torch.cuda.CUDAGraph()
    # The first call with this artifact in the process: its device code loads inside the capture.
    with torch.cuda.graph(graph):
        tw.transform.apply_rotary(query, cache, key, positions)
    graph.replay()
    assert [compare.bits(x, y) for x, y in zip((query, key), first, strict=True)] == ["", ""]
    graph.replay()
    assert [compare.bits(x, y) for x, y in zip((query, key), second, strict=True)] == ["", ""]


def test_positions_are_read_at_replay() -> None:
    query, cache = normal(9, 4, 64), cos_sin_cache(100)
    positions = torch.arange(9, device="cuda")
    tw.transform.apply_rotary(query, cache, None, positions)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        tw.transform.apply_rotary(query, cache, None, positions)
    positions.add_(50)
    expected = rotated(query, cache, positions)
    graph.replay()
    assert compare.bits(query, expected) == ""


def test_the_kernel_runs_on_the_callers_stream() -> None:
    query, cache = normal(4096, 8, 64), cos_sin_cache(4096)
    expected = rotated(-query, cache)
    side = torch.cuda.Stream()
    tw.transform.apply_rotary(query.clone(), cache)
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(50_000_000)
        query.neg_()
        tw.transform.apply_rotary(query, cache)
    assert not side.query()
    side.synchronize()
    assert compare.bits(query, expected) == ""


def test_a_call_waits_for_the_kernel_before_it() -> None:
    """Programmatic dependent launch: the next kernel starts early, but may read only afterwards."""
    query, cache = normal(3000, 16, 64), cos_sin_cache(3000)
    expected = query.clone()
    for _ in range(20):
        tw.transform.apply_rotary(query, cache)
        tw.reference.transform.apply_rotary(expected, cache)
    assert compare.bits(query, expected) == ""


@pytest.mark.parametrize("first", [0, 1])
def test_more_than_two_to_the_31_elements(first: int) -> None:
    num_tokens = 2**31 // (64 * 64) + 5
    memory = torch.zeros(num_tokens * 64 * 64 + 8, dtype=torch.bfloat16, device="cuda")
    query = memory[first : first + num_tokens * 64 * 64].view(num_tokens, 64, 64)
    query[-64:] = normal(64, 64, 64)
    last = query[-64:].clone()
    cache = cos_sin_cache(128)
    positions = torch.arange(num_tokens, device="cuda") % 128
    tw.transform.apply_rotary(query, cache, None, positions)
    assert compare.bits(query[-64:], rotated(last, cache, positions[-64:])) == ""
    assert not bool(query[:-64].any())


def test_strides_beyond_two_to_the_31_elements() -> None:
    memory = torch.zeros(2**31 + 4096, dtype=torch.bfloat16, device="cuda")
    query = memory.as_strided((2, 3, 64), (2**31 + 64, 128, 1))
    query.copy_(normal(2, 3, 64))
    cache = cos_sin_cache(2)
    expected = rotated(query.contiguous(), cache)
    tw.transform.apply_rotary(query, cache)
    assert compare.bits(query, expected) == ""


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("num_tokens", [1, 5, 31, 64])
def test_nothing_is_written_around_the_rows(num_tokens: int, interleaved: bool) -> None:
    for head_dim, gap, dtype in ((64, 8, torch.bfloat16), (128, 3, torch.float32)):
        memory = normal(num_tokens + 2, 9, head_dim + gap, dtype=dtype)
        query = memory[1:-1, 1:-2, gap:]
        expected = memory.clone()
        cache = cos_sin_cache(num_tokens, head_dim)
        tw.reference.transform.apply_rotary(
            expected[1:-1, 1:-2, gap:], cache, interleaved=interleaved
        )
        tw.transform.apply_rotary(query, cache, interleaved=interleaved)
        assert compare.bits(memory, expected) == ""


def test_compile_with_a_dynamic_number_of_tokens_and_offset() -> None:
    cache = cos_sin_cache(4096)

    def attend(x: torch.Tensor, y: torch.Tensor, offset: int) -> tuple[torch.Tensor, torch.Tensor]:
        query, key = x * 2.0, y + 0.0
        tw.transform.apply_rotary(query, cache, key, interleaved=True, seqlen_offset=offset)
        return query + 1, key

    compiled = torch.compile(attend, fullgraph=True, dynamic=True)
    for num_tokens in (2, 7, 64, 1000):
        x, y = normal(num_tokens, 6, 64), normal(num_tokens, 1, 64)
        query, key = compiled(x, y, num_tokens)
        options = {"interleaved": True, "seqlen_offset": num_tokens}
        assert compare.bits(query, rotated(x * 2.0, cache, **options) + 1) == ""
        assert compare.bits(key, rotated(y, cache, **options)) == ""


def test_compile_writes_its_argument() -> None:
    cache, query = cos_sin_cache(64), normal(64, 3, 64)
    expected = rotated(query, cache)
    torch.compile(tw.transform.apply_rotary, fullgraph=True)(query, cache)
    assert compare.bits(query, expected) == ""


@pytest.mark.parametrize("with_key", [False, True])
def test_the_torch_op_passes_opcheck(with_key: bool) -> None:
    key = normal(5, 1, 64) if with_key else None
    positions = torch.arange(5, device="cuda") if with_key else None
    torch.library.opcheck(
        torch.ops.tilewheel.apply_rotary.default,
        (normal(5, 4, 64), cos_sin_cache(9), key, positions, False, True, 2),
    )


def test_the_bare_artifact_checks_its_arguments() -> None:
    kernel = tw.load("apply_rotary", device="cuda", dtype="float32", head_dim=64, interleaved=False)
    query, cache = normal(4, 3, 64, dtype=torch.float32), cos_sin_cache(7)
    none = torch.empty(0, dtype=torch.int64, device="cuda")
    none_int32 = none.to(torch.int32)

    def call(
        x: torch.Tensor, table: torch.Tensor = cache, *, key: torch.Tensor | None = None
    ) -> None:
        kernel(x, x if key is None else key, table, none, none_int32, False, False, 0, 4)

    expected = rotated(query, cache)
    call(query)
    assert compare.bits(query, expected) == ""
    with pytest.raises(TypeError, match="query: is bfloat16, must be float32"):
        call(query.bfloat16())
    with pytest.raises(ValueError, match=r"query.shape\[2\]: is 32, must be 64"):
        call(query[..., :32])
    with pytest.raises(ValueError, match=r"query.stride\(\)\[2\]: is 2, must be 1"):
        call(normal(4, 3, 128, dtype=torch.float32)[..., ::2])
    with pytest.raises(ValueError, match=r"key.shape\[0\]: is 3, must be 4"):
        call(query, key=query[:3])
    with pytest.raises(ValueError, match=r"cos_sin_cache.shape\[1\]: is 32, must be 64"):
        call(query, cache[:, :32].contiguous())
    with pytest.raises(ValueError, match="seqlen_offset: is -1, must be between 0 and 1073741824"):
        kernel(query, query, cache, none, none_int32, False, False, -1, 4)
    with pytest.raises(ValueError, match="sequence_length: is 0, must be between 1 and"):
        kernel(query, query, cache, none, none_int32, False, False, 0, 0)


def test_fewer_positions_than_tokens_stay_inside_memory() -> None:
    """The public function refuses this; the bare artifact leaves the tokens without a position."""
    kernel = tw.load(
        "apply_rotary", device="cuda", dtype="bfloat16", head_dim=64, interleaved=False
    )
    query, cache = normal(40, 3, 64), cos_sin_cache(50)
    expected = query.clone()
    tw.reference.transform.apply_rotary(expected[:7], cache)
    positions = torch.arange(7, device="cuda")
    none = torch.empty(0, dtype=torch.int32, device="cuda")
    kernel(query, query, cache, positions, none, False, False, 0, 40)
    assert compare.bits(query, expected) == ""


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one CUDA device on this machine")
def test_a_tensor_on_another_device_than_the_current_one() -> None:
    query, cache = normal(30, 4, 64).to("cuda:1"), cos_sin_cache(30).to("cuda:1")
    expected = rotated(query, cache)
    with torch.cuda.device(0):
        tw.transform.apply_rotary(query, cache)
        assert torch.cuda.current_device() == 0
    assert compare.bits(query, expected) == ""


def test_preload_of_a_profile_has_the_variant_of_its_model() -> None:
    loaded = tw.preload(device="cuda", profile="deepseek-v4-flash")
    ready = [str(each.key) for each in loaded if each.error is None]
    assert "apply_rotary-dtype=bfloat16-head_dim=64-interleaved=true-cuda-sm_90a" in ready
