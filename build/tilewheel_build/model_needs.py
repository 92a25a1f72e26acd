"""Which values each operator's parameters must have for a model: a rule for each operator.

A rule is found by the operator's name and says what the model would call it with. Operators
without a rule are those that no configuration asks for, such as stochastic rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from tilewheel.key import Value, format_parameters, sort_parameters
from tilewheel_build.model_config import Cast, Model
from tilewheel_build.spec_fields import SPEC_BACKENDS
from tilewheel_build.spec_types import Match

NUM_STREAMS = 4
"""Residual streams that the operators of mhc and engram have."""

CAST_CHANNELS = 64
"""What divides the channels of a token in every cast."""

ASCEND_GROUP = 32
"""Channels that share a scale in the casts for Ascend."""

_PACKED = {"cuda": "int32", "ascend": "int16"}
"""Element type of packed exponent bytes: what the backend's matrix units read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """Values that an operator is called with; ``backends`` are the parts of specs that it means."""

    operator: str
    parameters: Match
    backends: tuple[str, ...] = SPEC_BACKENDS

    def __str__(self) -> str:
        return f"{self.operator} {format_parameters(self.parameters)}"


_Wanted = tuple[tuple[str, ...], dict[str, Value]]
"""The backends and the parameters of a need."""


def needs(model: Model, operator: str) -> tuple[Need, ...]:
    """Return what a model asks of an operator, without repetitions; empty is nothing."""
    rule = RULES.get(operator)
    found = [
        Need(operator=operator, parameters=sort_parameters(parameters), backends=backends)
        for backends, parameters in (rule(model) if rule is not None else ())
    ]
    return tuple(dict.fromkeys(found))


def _topk_gate(model: Model) -> Iterator[_Wanted]:
    if model.num_experts is not None and model.num_topk is not None:
        yield SPEC_BACKENDS, {"num_experts": model.num_experts, "num_topk": model.num_topk}


def _apply_rotary(model: Model) -> Iterator[_Wanted]:
    for head_dim, interleaved in model.rotary:
        yield (
            SPEC_BACKENDS,
            {"dtype": model.dtype, "head_dim": head_dim, "interleaved": interleaved},
        )


def _per_token_cast(model: Model) -> Iterator[_Wanted]:
    for cast in model.casts:
        for backends, sf_dtype in _sf_dtypes(cast):
            yield (
                backends,
                {
                    "x_dtype": model.dtype,
                    "data_dtype": cast.data_dtype,
                    "sf_dtype": sf_dtype,
                    "round_sf": cast.round_sf,
                },
            )


def _cast_back(model: Model) -> Iterator[_Wanted]:
    for cast in model.stored:
        for backends, sf_dtype in _sf_dtypes(cast):
            yield (
                backends,
                {"data_dtype": cast.data_dtype, "sf_dtype": sf_dtype, "out_dtype": model.dtype},
            )


def _sf_dtypes(cast: Cast) -> list[tuple[tuple[str, ...], str]]:
    if cast.sf == "float32":
        return [(SPEC_BACKENDS, "float32")]
    return [((backend,), sf_dtype) for backend, sf_dtype in _PACKED.items()]


def _mhc_pre(model: Model) -> Iterator[_Wanted]:
    for parameters in _mhc(model):
        # Servers normalise in the same launch where the layer begins with a norm.
        for output_norm in (False, True):
            yield SPEC_BACKENDS, {**parameters, "output_norm": output_norm}


def _mhc_post(model: Model) -> Iterator[_Wanted]:
    for parameters in _mhc(model):
        yield SPEC_BACKENDS, parameters


def _mhc(model: Model) -> Iterator[dict[str, Value]]:
    if model.num_streams == NUM_STREAMS and model.hidden is not None:
        yield {"hidden": model.hidden}


def _engram(model: Model) -> Iterator[_Wanted]:
    if model.has_engram:
        for parameters in _mhc(model):
            yield SPEC_BACKENDS, parameters


RULES: Mapping[str, Callable[[Model], Iterator[_Wanted]]] = {
    "apply_rotary": _apply_rotary,
    "cast_back": _cast_back,
    "engram_gate_bwd": _engram,
    "engram_gate_fwd": _engram,
    "fused_weight": _engram,
    "grad_w_reduce": _engram,
    "mhc_post_fwd": _mhc_post,
    "mhc_pre_big_fuse_fwd": _mhc_pre,
    "per_token_cast": _per_token_cast,
    "topk_gate": _topk_gate,
}


def limitations(model: Model, *, tensor_parallel: int, has_ascend: bool) -> tuple[str, ...]:
    """Return what the operators cannot do for the model, whatever is built.

    Tensor parallelism leaves hidden and experts whole and divides the heads and the channels
    inside each expert; these are what is quantised before the second matrix.
    """
    found = []
    if model.num_streams not in (None, NUM_STREAMS):
        found.append(
            f"hc_mult: is {model.num_streams}, must be {NUM_STREAMS} for mhc and engram operators"
        )
    shares = f"must be a multiple of tensor parallel {tensor_parallel}"
    if model.num_heads is not None and model.num_heads % tensor_parallel:
        found.append(f"num_attention_heads: is {model.num_heads}, {shares}")
    widths = [("hidden_size", model.hidden)]
    inner = model.moe_intermediate
    name = "intermediate_size" if model.num_experts is None else "channels of an expert"
    if inner is not None and inner % tensor_parallel:
        found.append(f"{name}: is {inner}, {shares}")
    elif inner is not None:
        divided = f" / {tensor_parallel}" if tensor_parallel > 1 else ""
        widths.append((f"{name}{divided}", inner // tensor_parallel))
    if not model.casts:
        return tuple(found)
    found += [
        f"{name}: is {width}, must be a multiple of {CAST_CHANNELS} for casts"
        for name, width in widths
        if width is not None and width % CAST_CHANNELS
    ]
    for group in sorted(
        {cast.group for cast in model.casts} - {ASCEND_GROUP} if has_ascend else ()
    ):
        found.append(
            f"channels of a scale: are {group}, must be {ASCEND_GROUP} for casts on ascend"
        )
    return tuple(found)
