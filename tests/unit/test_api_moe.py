"""tilewheel.moe: arguments, errors, and the way from a tensor to its artifact."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import tilewheel as tw

KEY = "topk_gate-num_experts=4-num_topk=2-ascend_sim-dav_3510"
NAN, INF = float("nan"), float("inf")
SCORES = torch.tensor([[1.0, 4.0, 4.0, 2.0], [0.0, -0.0, -1.0, -2.0]])
EXPECTED = [[1, 2], [0, 1]]


@pytest.fixture(params=["reference", "artifact", "loaded artifact"])
def _path(request, overlay, install):
    """Run the test on the reference, on the first call of an artifact, and on a later one."""
    if request.param == "reference":
        yield
        return
    install(overlay, KEY)
    with tw.backend("ascend-sim"):
        if request.param == "loaded artifact":
            tw.moe.topk_gate(SCORES, 2)
        yield


@pytest.mark.usefixtures("_path")
class TestOnEveryPath:
    def test_indices_of_the_largest_scores(self):
        idx = tw.moe.topk_gate(SCORES, 2)
        assert idx.tolist() == EXPECTED
        assert idx.dtype == torch.int64
        assert idx.is_contiguous()

    def test_out_is_written_and_returned(self):
        out = torch.full((2, 2), 7)
        assert tw.moe.topk_gate(SCORES, 2, out=out) is out
        assert out.tolist() == EXPECTED

    def test_row_that_is_not_finite_gives_minus_one(self):
        scores = torch.tensor([[1.0, NAN, 0, 0], [INF, 1, 0, 0], [1, 0, 0, -INF], [1, 3, 2, 0]])
        assert tw.moe.topk_gate(scores, 2).tolist() == [[-1, -1]] * 3 + [[1, 2]]

    def test_no_tokens_give_an_empty_result(self):
        assert tw.moe.topk_gate(torch.empty((0, 4)), 2).shape == (0, 2)
        out = torch.empty((0, 2), dtype=torch.int64)
        assert tw.moe.topk_gate(torch.empty((0, 4)), 2, out=out) is out

    def test_scores_may_require_gradients(self):
        idx = tw.moe.topk_gate(SCORES.clone().requires_grad_(), 2)
        assert idx.tolist() == EXPECTED
        assert not idx.requires_grad
        assert tw.moe.topk_gate(torch.nn.Parameter(SCORES), 2).tolist() == EXPECTED

    def test_numpy_integer_is_an_int(self):
        assert tw.moe.topk_gate(SCORES, np.int64(2)).tolist() == EXPECTED

    def test_subclass_of_tensor_is_taken(self):
        class Mine(torch.Tensor):
            pass

        assert tw.moe.topk_gate(SCORES.as_subclass(Mine), 2).tolist() == EXPECTED

    def test_vmap_gives_the_result_of_each(self):
        idx = torch.vmap(lambda scores: tw.moe.topk_gate(scores, 2))(torch.stack([SCORES, -SCORES]))
        assert idx.tolist() == [EXPECTED, [[0, 3], [3, 2]]]

    @pytest.mark.parametrize(
        ("scores", "kind", "message"),
        [
            ([[1.0]], TypeError, "is a list, must be a torch.Tensor"),
            (None, TypeError, "is a NoneType, must be a torch.Tensor"),
            (
                SCORES.half(),
                TypeError,
                "dtype is torch.float16, must be torch.float32\nhint: call .float()",
            ),
            (SCORES[0], ValueError, "shape is (4,), must be [num_tokens, num_experts]"),
            (SCORES[None], ValueError, "shape is (1, 2, 4), must be [num_tokens, num_experts]"),
            (
                SCORES.repeat(1, 2)[:, ::2],
                ValueError,
                "strides are (8, 2), must be contiguous\nhint: call .contiguous()",
            ),
            (
                SCORES[:1].expand(3, 4),
                ValueError,
                "strides are (0, 1), must be contiguous\nhint: call .contiguous()",
            ),
            (torch.empty((2, 0)), ValueError, "num_experts is 0, must be 1 to 1024"),
            (torch.empty((2, 1025)), ValueError, "num_experts is 1025, must be 1 to 1024"),
            (SCORES.to_sparse(), ValueError, "layout is torch.sparse_coo, must be torch.strided"),
        ],
    )
    def test_wrong_scores(self, scores, kind, message):
        with pytest.raises(kind) as caught:
            tw.moe.topk_gate(scores, 2)
        assert str(caught.value) == f"topk_gate: scores: {message}"

    @pytest.mark.filterwarnings("ignore:.*quantize_per_tensor.*:UserWarning")
    def test_quantized_scores(self):
        scores = torch.quantize_per_tensor(SCORES, 0.1, 0, torch.quint8)
        with pytest.raises(TypeError, match=r"is torch\.quint8, .*\nhint: call \.dequantize\(\)"):
            tw.moe.topk_gate(scores, 2)

    @pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
    def test_nested_scores(self):
        scores = torch.nested.nested_tensor([SCORES[0], SCORES[1]])
        with pytest.raises(ValueError, match=r"layout is nested, must be torch\.strided"):
            tw.moe.topk_gate(scores, 2)

    def test_scores_on_meta(self):
        with pytest.raises(ValueError, match="tensors are on meta, must be on cpu, cuda or npu"):
            tw.moe.topk_gate(torch.empty((2, 4), device="meta"), 2)

    @pytest.mark.parametrize(
        ("num_topk", "kind", "message"),
        [
            (True, TypeError, "is a bool, must be an int"),
            (2.0, TypeError, "is a float, must be an int"),
            ("2", TypeError, "is a str, must be an int"),
            (None, TypeError, "is a NoneType, must be an int"),
            (0, ValueError, "is 0, must be 1 to 32"),
            (-1, ValueError, "is -1, must be 1 to 32"),
            (33, ValueError, "is 33, must be 1 to 32"),
            (5, ValueError, "is 5, must be at most num_experts (4)"),
        ],
    )
    def test_wrong_num_topk(self, num_topk, kind, message):
        with pytest.raises(kind) as caught:
            tw.moe.topk_gate(SCORES, num_topk)
        assert str(caught.value) == f"topk_gate: num_topk: {message}"

    def test_out_that_shares_memory_with_scores(self):
        memory = torch.zeros(8, dtype=torch.int64)
        scores = memory.view(torch.float32)[:8].view(2, 4)
        for offset in (0, 3):
            with pytest.raises(ValueError, match="out: shares memory with scores, must not"):
                tw.moe.topk_gate(scores, 2, out=memory[offset : offset + 4].view(2, 2))
        assert tw.moe.topk_gate(scores, 2, out=memory[4:].view(2, 2)).tolist() == [[0, 1], [0, 1]]


@pytest.mark.parametrize(
    ("out", "kind", "message"),
    [
        ([0], TypeError, "is a list, must be a torch.Tensor"),
        (
            torch.empty((2, 2), dtype=torch.int32),
            TypeError,
            "dtype is torch.int32, must be torch.int64",
        ),
        (torch.empty((2, 3), dtype=torch.int64), ValueError, "shape is (2, 3), must be (2, 2)"),
        (
            torch.empty((2, 2), dtype=torch.int64).t(),
            ValueError,
            "strides are (1, 2), must be contiguous",
        ),
        (
            torch.empty((2, 2), dtype=torch.int64, device="meta"),
            ValueError,
            "is on meta, must be on cpu like scores",
        ),
        (
            torch.empty((2, 2), dtype=torch.int64).to_sparse(),
            ValueError,
            "layout is torch.sparse_coo, must be torch.strided",
        ),
    ],
)
def test_wrong_out(out, kind, message):
    with pytest.raises(kind) as caught:
        tw.moe.topk_gate(SCORES, 2, out=out)
    assert str(caught.value) == f"topk_gate: out: {message}"


def test_cpu_tensor_goes_to_the_reference_without_artifacts(overlay):
    assert tw.moe.topk_gate(SCORES, 2).tolist() == EXPECTED


def test_missing_artifact_is_explained(overlay, install):
    install(overlay, KEY)
    with (
        tw.backend("ascend-sim"),
        pytest.raises(tw.NoArtifactError, match="num_topk is 2, request has 3"),
    ):
        tw.moe.topk_gate(SCORES, 3)


def test_selected_backend_ends_with_its_block(overlay, install):
    install(overlay, KEY, "-DWRONG")
    with tw.backend("ascend-sim"):
        assert tw.moe.topk_gate(SCORES, 2)[0, 0] == 12345
    assert tw.moe.topk_gate(SCORES, 2).tolist() == EXPECTED


def test_reference_puts_the_smaller_index_first_of_equal_scores():
    scores = torch.tensor([[-0.0, 0.0, 1e-45, 1e-45, -1e-45]])
    assert tw.reference.moe.topk_gate(scores, 5).tolist() == [[2, 3, 0, 1, 4]]
