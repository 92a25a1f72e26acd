"""tilewheel.rand: arguments, errors, torch on CPU, and what tracing sees."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch._subclasses import FakeTensorMode

import tilewheel as tw
from tilewheel import npu

RUNTIME = Path(tw.__file__).parents[1]

randn, randn_like, set_seed = tw.rand.randn, tw.rand.randn_like, tw.rand.set_seed


def test_on_a_plain_cpu_numbers_are_torch_s() -> None:
    torch.manual_seed(1)
    ours = [randn(2, 3), randn((4,), dtype=torch.bfloat16), randn([2, 2], device="cpu"), randn()]
    torch.manual_seed(1)
    theirs = [
        torch.randn(2, 3),
        torch.randn(4, dtype=torch.bfloat16),
        torch.randn(2, 2),
        torch.randn(()),
    ]
    assert all(torch.equal(x, y) for x, y in zip(ours, theirs, strict=True))
    assert [x.dtype for x in ours] == [x.dtype for x in theirs]


def test_set_seed_leaves_torch_s_generator_alone() -> None:
    before = torch.get_rng_state()
    set_seed(1)
    assert torch.equal(torch.get_rng_state(), before)


def test_randn_like_is_contiguous_and_needs_no_gradient() -> None:
    like = torch.empty(3, 4).t().requires_grad_()
    result = randn_like(like)
    assert (result.shape, result.dtype, result.device) == ((4, 3), torch.float32, like.device)
    assert result.is_contiguous()
    assert not result.requires_grad
    assert randn_like(torch.empty(2, dtype=torch.bfloat16)).dtype is torch.bfloat16


def test_meta_tensors_and_torch_s_default_device_are_taken() -> None:
    assert randn(2, 3, device="meta").is_meta
    assert randn_like(torch.empty(2, 3, device="meta")).shape == (2, 3)
    with torch.device("meta"):
        assert randn(2).is_meta


def test_sizes_with_an_index_are_ints() -> None:
    assert randn(np.int64(2), 3).shape == (2, 3)
    assert randn(torch.Size([2, 0])).shape == (2, 0)


@pytest.mark.parametrize(
    ("size", "kind", "message"),
    [
        ((2, -1), ValueError, r"randn: size\[1\]: is -1, must be 0 to 9223372036854775807"),
        (((3, -2),), ValueError, r"randn: size\[1\]: is -2, must be 0 to"),
        ((2**63,), ValueError, r"randn: size\[0\]: is 9223372036854775808, must be 0 to"),
        ((2.0,), TypeError, r"randn: size\[0\]: is a float, must be an int"),
        ((True,), TypeError, r"randn: size\[0\]: is a bool, must be an int"),
        (((2,), 3), TypeError, r"randn: size\[0\]: is a tuple, must be an int"),
        ((None,), TypeError, r"randn: size\[0\]: is a NoneType, must be an int"),
    ],
)
def test_bad_size_is_refused(size: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=f"^{message}"):
        randn(*size)


@pytest.mark.parametrize(
    ("dtype", "message"),
    [
        (torch.float64, "dtype: is torch.float64, must be torch.float32 or torch.bfloat16"),
        (torch.float16, "dtype: is torch.float16, must be torch.float32 or torch.bfloat16"),
        ("float32", "dtype: is a str, must be a torch.dtype"),
        (None, "dtype: is a NoneType, must be a torch.dtype"),
    ],
)
def test_bad_dtype_is_refused(dtype: Any, message: str) -> None:
    with pytest.raises(TypeError, match=f"^randn: {message}$"):
        randn(2, dtype=dtype)


@pytest.mark.parametrize(
    ("device", "kind", "message"),
    [
        ("nothing", ValueError, "device: is 'nothing', must be on cuda, npu, cpu or meta"),
        ("mps", ValueError, "device: is on mps, must be on cuda, npu, cpu or meta"),
        (torch.device("xpu:1"), ValueError, "device: is on xpu:1, must be on cuda, npu, cpu or"),
        (1.5, TypeError, "device: is a float, must be a torch.device, str or int"),
        (True, TypeError, "device: is a bool, must be a torch.device, str or int"),
    ],
)
def test_bad_device_is_refused(device: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=f"^randn: {message}"):
        randn(2, device=device)


@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        ([1.0], "is a list, must be a torch.Tensor"),
        (torch.empty(2, dtype=torch.int64), "dtype: is torch.int64, must be torch.float32 or"),
    ],
)
def test_randn_like_refuses_what_it_cannot_be_like(tensor: Any, message: str) -> None:
    with pytest.raises(TypeError, match=f"^randn_like: tensor: {message}"):
        randn_like(tensor)


def test_randn_like_refuses_a_device_without_a_backend() -> None:
    tensor = torch.empty(2, device="meta")
    tensor.__class__ = type("OnMps", (torch.Tensor,), {"device": torch.device("mps")})
    with pytest.raises(ValueError, match=r"^randn_like: tensor: is on mps, must be on cuda, npu"):
        randn_like(tensor)


@pytest.mark.parametrize(
    ("seed", "kind", "message"),
    [
        (-1, ValueError, "is -1, must be 0 to 9223372036854775807"),
        (2**63, ValueError, "is 9223372036854775808, must be 0 to 9223372036854775807"),
        (1.0, TypeError, "is a float, must be an int"),
        (True, TypeError, "is a bool, must be an int"),
        (None, TypeError, "is a NoneType, must be an int"),
    ],
)
def test_bad_seed_is_refused(seed: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=f"^set_seed: seed: {message}$"):
        set_seed(seed)


@pytest.mark.usefixtures("overlay")
def test_simulator_without_an_artifact_says_so() -> None:
    with (
        tw.backend("ascend-sim"),
        pytest.raises(tw.NoArtifactError, match=r"^randn dtype=float32 on ascend-sim:0"),
    ):
        randn(3)


# NPUs, with a stand-in for torch_npu.

CAPTURING = """
import sys
from types import SimpleNamespace
import torch
torch.utils.rename_privateuse1_backend("npu")
ask = lambda: True
sys.modules["torch_npu"] = SimpleNamespace(npu=SimpleNamespace(is_current_stream_capturing=ask))
import tilewheel as tw
device = torch.device("npu:0")
for call in (
    lambda: tw.rand.randn(3, device=device),
    lambda: torch.ops.tilewheel.randn([0], dtype=torch.float32, device=device),
):
    try:
        call()
    except RuntimeError as error:
        print(error)
"""


def test_capture_is_refused(run_script: Callable[..., list[str]]) -> None:
    refusal = [
        "randn: the current stream is being captured into a graph, must not be: each replay would "
        "repeat the numbers",
        "hint: draw before the graph runs, into a tensor that it reads",
    ]
    assert run_script(CAPTURING, PYTHONPATH=str(RUNTIME)) == refusal * 2


@pytest.mark.parametrize(
    ("functions", "answer"),
    [
        ({"is_current_stream_capturing": lambda: True}, True),
        ({"is_current_stream_capturing": lambda: False}, False),
        ({}, False),
    ],
)
def test_torch_npu_is_asked_whether_it_captures(
    monkeypatch: pytest.MonkeyPatch, functions: dict[str, Any], answer: bool
) -> None:
    module = SimpleNamespace(npu=SimpleNamespace(**functions))
    monkeypatch.setitem(sys.modules, "torch_npu", module)
    assert npu.is_capturing() is answer


# Tracing.


def test_operator_has_the_tag_of_random_ones_and_passes_the_checks_of_its_schema() -> None:
    operator = torch.ops.tilewheel.randn.default
    assert torch.Tag.nondeterministic_seeded in operator.tags
    # Without the tests that compare two calls.
    torch.library.opcheck(
        operator,
        ([2, 3],),
        {"dtype": torch.float32, "device": torch.device("cpu")},
        test_utils=("test_schema", "test_autograd_registration", "test_faketensor"),
    )


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_function_serves_every_size_and_calls_twice(backend: str) -> None:
    torch._dynamo.reset()
    counter = CompileCounterWithBackend(backend)

    @torch.compile(fullgraph=True, dynamic=True, backend=counter)
    def draw(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return randn(x.shape[0], 4), randn(x.shape[0], 4)

    for num_rows in (3, 5, 7):
        first, second = draw(torch.empty(num_rows, 2))
        assert first.shape == (num_rows, 4)
        assert not torch.equal(first, second)
    assert counter.frame_count == 1


def test_compiled_function_on_a_cpu_is_torch_s() -> None:
    torch._dynamo.reset()
    compiled = torch.compile(lambda: randn(5), fullgraph=True, backend="aot_eager")
    torch.manual_seed(2)
    ours = compiled()
    torch.manual_seed(2)
    assert torch.equal(ours, torch.randn(5))


def test_exported_program_draws_anew_at_each_call() -> None:
    class Noise(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + randn_like(x)

    x = torch.zeros(3, 4)
    rows = {"x": {0: torch.export.Dim("rows")}}
    program = torch.export.export(Noise(), (x,), dynamic_shapes=rows).module()
    assert program(torch.zeros(7, 4)).shape == (7, 4)
    assert not torch.equal(program(x), program(x))


def test_fake_mode_gives_fake_results() -> None:
    with FakeTensorMode(), tw.backend("ascend-sim"):
        result = randn(3, 4, dtype=torch.bfloat16)
        like = randn_like(torch.empty(2))
    assert (type(result).__name__, result.shape, result.dtype) == (
        "FakeTensor",
        (3, 4),
        torch.bfloat16,
    )
    assert (type(like).__name__, like.shape) == ("FakeTensor", (2,))


def test_vmap_is_refused_where_it_would_repeat_numbers() -> None:
    message = r"^randn: is inside torch\.vmap, must not be: it would give every item the same"
    with tw.backend("ascend-sim"), pytest.raises(RuntimeError, match=message):
        torch.vmap(lambda x: x + randn_like(x))(torch.ones(2, 3))


def test_vmap_on_a_plain_cpu_is_torch_s() -> None:
    rows = torch.vmap(lambda x: x + randn(3), randomness="different")(torch.zeros(2, 3))
    assert not torch.equal(rows[0], rows[1])


def test_gradient_of_the_rest_flows() -> None:
    with FakeTensorMode(), tw.backend("ascend-sim"):
        gradient = torch.func.grad(lambda x: (x * randn_like(x)).sum())(torch.ones(3))
    assert gradient.shape == (3,)
