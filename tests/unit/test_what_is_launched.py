"""What kernels are given: tensors whose memory holds their values, where nobody is to see them.

A lazily negated tensor has other values than its memory, a fake one has no memory at all, and a
dispatch mode or functorch is to see the operator, whether its artifact is loaded or not.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode

import tilewheel as tw
from tilewheel.families import FAMILIES


def zeros(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype)


X = zeros(2, 128, dtype=torch.bfloat16)
PAIR = (zeros(2, 128, dtype=torch.float8_e4m3fn), zeros(2, 1))
FORM = {"fmt": "e4m3", "num_per_channels": 128}
BACK = {"fmt": "bf16", "out": zeros(2, 128, dtype=torch.bfloat16)}

ROWS = zeros(2, 128, dtype=torch.bfloat16)
STREAMS = zeros(2, 4, 128, dtype=torch.bfloat16)
KV = zeros(2, 5, 128, dtype=torch.bfloat16)
WEIGHT = zeros(4, 128)
MASK = zeros(2, dtype=torch.bool)
SAVED = {name: zeros(2, 4) for name in ("dot", "gate", "rstd_x", "rstd_k")}

# Arguments with which a public function launches; between them every tensor that it takes.
CALLS: list[tuple[str, dict[str, Any]]] = [
    (
        "engram.engram_gate_bwd",
        {
            "grad_out": zeros(2, 4, 128, dtype=torch.bfloat16),
            "x": STREAMS,
            "kv": KV,
            "weight_fused": WEIGHT,
            **SAVED,
            "clamp_value": 1e-6,
            "image_token_mask": MASK,
        },
    ),
    (
        "engram.engram_gate_fwd",
        {
            "x": STREAMS,
            "kv": KV,
            "weight_fused": WEIGHT,
            "eps": 1e-6,
            "clamp_value": 1e-6,
            "image_token_mask": MASK,
        },
    ),
    (
        "engram.fused_weight",
        {
            "weight_hidden": zeros(4, 128, dtype=torch.bfloat16),
            "weight_embed": zeros(4, 128, dtype=torch.bfloat16),
            "out": zeros(4, 128),
        },
    ),
    (
        "engram.grad_w_reduce",
        {
            "grad_w_partial": zeros(3, 4, 128),
            "weight_hidden": zeros(4, 128, dtype=torch.bfloat16),
            "weight_embed": zeros(4, 128, dtype=torch.bfloat16),
            "grad_weight_hidden": zeros(4, 128),
            "grad_weight_embed": zeros(4, 128),
        },
    ),
    (
        "mhc.post_fwd",
        {
            "x": ROWS,
            "residual": STREAMS,
            "post_mix": zeros(2, 4),
            "comb_mix": zeros(2, 4, 4),
            "out": zeros(2, 4, 128, dtype=torch.bfloat16),
        },
    ),
    (
        "mhc.pre_big_fuse_fwd",
        {
            "gemm_out_mul": zeros(2, 2, 24),
            "gemm_out_sqrsum": zeros(2, 2),
            "scale": zeros(3),
            "base": zeros(24),
            "residual": STREAMS,
            "rms_eps": 1e-6,
            "pre_eps": 1e-6,
            "sinkhorn_eps": 1e-6,
            "post_mult": 2.0,
            "sinkhorn_repeat": 20,
            "norm_weight": zeros(128, dtype=torch.bfloat16),
            "out": ROWS,
        },
    ),
    (
        "moe.topk_gate",
        {"scores": zeros(2, 8), "num_topk": 2, "out": zeros(2, 2, dtype=torch.int64)},
    ),
    ("quant.cast_back", {"x": PAIR, "x_block_size": (1, 128), **BACK}),
    ("quant.per_token_cast", {"x": X, "out": PAIR, **FORM}),
    ("quant.per_token_cast", {"x": PAIR, "x_block_size": (1, 128), **FORM}),
    ("quant.per_token_cast_back", {"x": PAIR, "num_per_channels": 128, **BACK}),
    (
        "quant.per_token_cast_with_precomputed_sf",
        {"x": X, "sf": zeros(2, 1), **FORM},
    ),
    ("quant.per_token_cast_with_sf_only", {"x": X, **FORM}),
    ("quant.per_token_cast_with_sf_only", {"x": PAIR, "x_block_size": (1, 128), **FORM}),
    ("quant.stochastic_cast", {"x": X, "seed": 1, **FORM}),
    (
        "transform.apply_rotary",
        {
            "query": zeros(2, 4, 64),
            "cos_sin_cache": zeros(8, 64),
            "key": zeros(2, 1, 64),
            "positions": zeros(2, dtype=torch.int32),
        },
    ),
]
# They take a tensor's shape, dtype and device only.
NOT_READ = {"rand.randn_like"}
# How the annotations of tensors and of pairs of tensors are written.
TENSOR_WORDS = ("Tensor", "Pair")


def public_functions_of_tensors() -> dict[str, set[str]]:
    """Return the arguments that may be tensors, of each public function that has some."""
    found = {}
    for family in FAMILIES:
        module = importlib.import_module(f"tilewheel.{family}")
        for name in module.__all__:
            parameters = inspect.signature(getattr(module, name)).parameters.values()
            tensors = {p.name for p in parameters if any(w in p.annotation for w in TENSOR_WORDS)}
            if tensors:
                found[f"{family}.{name}"] = tensors
    return found


def places() -> list[Any]:
    """Return a case for each tensor of each call: function, arguments, and where the tensor is."""
    return [
        pytest.param(name, arguments, argument, i, id=f"{name}-{argument}{'' if i < 0 else i}")
        for name, arguments in CALLS
        for argument, value in arguments.items()
        for i in (
            [-1]
            if isinstance(value, torch.Tensor)
            else range(2)
            if isinstance(value, tuple) and isinstance(value[0], torch.Tensor)
            else []
        )
    ]


def call(name: str, arguments: dict[str, Any]) -> object:
    family, _, function = name.partition(".")
    return getattr(getattr(tw, family), function)(**arguments)


def replaced(
    arguments: dict[str, Any], argument: str, i: int, by: Callable[[torch.Tensor], torch.Tensor]
) -> dict[str, Any]:
    value = arguments[argument]
    if i < 0:
        return {**arguments, argument: by(value)}
    return {**arguments, argument: tuple(by(t) if j == i else t for j, t in enumerate(value))}


def test_every_public_function_of_tensors_has_calls_with_all_of_them():
    covered: dict[str, set[str]] = {}
    for name, arguments in CALLS:
        covered.setdefault(name, set()).update(arguments)
    missing = {
        name: tensors - covered.get(name, set())
        for name, tensors in public_functions_of_tensors().items()
        if name not in NOT_READ
    }
    left = {name: tensors for name, tensors in missing.items() if tensors}
    assert left == {}, "put a call with these arguments into CALLS, in this file"


@pytest.mark.parametrize(("name", "arguments"), CALLS, ids=[name for name, _ in CALLS])
def test_plain_tensors_are_launched(loaded, name, arguments):
    call(name, arguments)
    assert loaded.num_launches >= 1


@pytest.mark.parametrize(("name", "arguments"), CALLS, ids=[name for name, _ in CALLS])
def test_fast_path_looks_where_bind_has_put_it(loaded, monkeypatch, name, arguments):
    asked: list[object] = []

    def get(key: object, default: object = None) -> object:
        asked.append(key)
        return loaded._launch if key in asked[:-1] else None

    monkeypatch.setattr(loaded, "get", get)
    call(name, arguments)
    # A key of which either has another idea is asked for once: the call ended in the reference,
    # and with an artifact every call would be a slow one.
    assert loaded.num_launches >= 1, asked


@pytest.mark.parametrize(("name", "arguments", "argument", "i"), places())
def test_negated_view_is_refused_and_never_launched(loaded, name, arguments, argument, i):
    with pytest.raises(ValueError, match=r": is a negated view, must hold its values") as caught:
        call(name, replaced(arguments, argument, i, torch._neg_view))
    assert str(caught.value).endswith("\nhint: call .resolve_neg()")
    assert argument in str(caught.value).partition(": is a")[0]
    assert loaded.num_launches == 0


@pytest.mark.parametrize(("name", "arguments", "argument", "i"), places())
def test_negated_view_is_refused_where_nothing_is_loaded(name, arguments, argument, i):
    with pytest.raises(ValueError, match=r": is a negated view, must hold its values"):
        call(name, replaced(arguments, argument, i, torch._neg_view))


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_negated_view_inside_a_graph_has_its_values(backend):
    gate = torch.compile(
        lambda scores: tw.moe.topk_gate(torch._neg_view(scores), 2), fullgraph=True, backend=backend
    )
    scores = torch.tensor([[1.0, 4.0, 4.0, 2.0]])
    assert gate(scores).tolist() == [[0, 3]]
    assert torch.ops.tilewheel.topk_gate(torch._neg_view(scores), 2).tolist() == [[0, 3]]


def fake(tensor: torch.Tensor) -> torch.Tensor:
    with FakeTensorMode() as mode:
        return mode.from_tensor(tensor)


@pytest.mark.parametrize("artifacts", ["loaded", "found"])
@pytest.mark.parametrize(("name", "arguments", "argument", "i"), places())
def test_fake_tensor_among_real_ones_is_never_launched(
    request, artifacts, name, arguments, argument, i
):
    table = request.getfixturevalue(artifacts)
    # Torch says that it cannot mix them, where there is another one.
    with suppress(AssertionError, RuntimeError, TypeError):
        call(name, replaced(arguments, argument, i, fake))
    given = [type(argument) for launch in table.launches for argument in launch]
    assert torch._subclasses.FakeTensor not in given


class Recorder(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.seen.append(function.namespace)
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize(("name", "arguments"), CALLS, ids=[name for name, _ in CALLS])
def test_dispatch_mode_sees_the_operator_of_what_is_loaded(loaded, name, arguments):
    with Recorder() as mode:
        call(name, arguments)
    assert "tilewheel" in mode.seen


@pytest.mark.parametrize(("name", "arguments"), CALLS, ids=[name for name, _ in CALLS])
def test_traced_graph_holds_the_operator_of_what_is_loaded(loaded, name, arguments):
    graph = make_fx(lambda: call(name, arguments))().graph
    assert any("tilewheel" in str(node.target) for node in graph.nodes)


@pytest.mark.parametrize(("name", "arguments"), CALLS, ids=[name for name, _ in CALLS])
def test_launch_that_fails_is_not_tried_again(loaded, monkeypatch, name, arguments):
    def fail(*given: object) -> None:
        loaded.launches.append(given)
        raise RuntimeError("as the driver says it")

    monkeypatch.setattr(loaded, "_launch", fail)
    with pytest.raises(RuntimeError, match="as the driver says it"):
        call(name, arguments)
    assert loaded.num_launches == 1


WRITTEN = {
    "engram.grad_w_reduce": ("grad_weight_hidden", "grad_weight_embed"),
    "transform.apply_rotary": ("query", "key"),
}


@pytest.mark.parametrize("artifacts", ["loaded", "found"])
@pytest.mark.parametrize(("name", "arguments"), CALLS, ids=[name for name, _ in CALLS])
def test_autograd_learns_what_is_written_and_that_alone(request, artifacts, name, arguments):
    table = request.getfixturevalue(artifacts)
    given = {key: tensors_of(value) for key, value in arguments.items()}
    before = {key: [t._version for t in tensors] for key, tensors in given.items()}
    call(name, arguments)
    assert table.num_launches >= 1
    for key, tensors in given.items():
        step = 1 if key in WRITTEN.get(name, ("out",)) else 0
        assert [t._version - step for t in tensors] == before[key], key


def tensors_of(value: object) -> list[torch.Tensor]:
    """Return the tensors of an argument."""
    values = value if isinstance(value, tuple) else (value,)
    return [each for each in values if isinstance(each, torch.Tensor)]
