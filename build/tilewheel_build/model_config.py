"""What a model asks of its operators, read from its Hugging Face ``config.json``. Pure functions.

Fields decide, not names: whatever a configuration says with the fields below is understood, of any
architecture. The architecture is needed for the one thing that configurations leave to the code,
the order of rotary pairs. What cannot be understood is said in ``Model.unknown``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tilewheel_build.errors import OptionError
from tilewheel_build.spec_errors import Problems, nearest, show
from tilewheel_build.spec_fields import is_int, is_number

ROTARY_PAIRS: Mapping[str, tuple[bool, bool]] = {
    **dict.fromkeys(("deepseek_v2", "DeepseekV2ForCausalLM"), (True, True)),
    **dict.fromkeys(("deepseek_v3", "kimi_k2", "DeepseekV3ForCausalLM"), (True, True)),
    **dict.fromkeys(("deepseek_v32", "DeepseekV32ForCausalLM"), (True, False)),
    **dict.fromkeys(("deepseek_v4", "DeepseekV4ForCausalLM"), (True, True)),
    **dict.fromkeys(("deepseek_v41", "DeepseekV41ForCausalLM"), (True, True)),
    **dict.fromkeys(("glm4_moe", "Glm4MoeForCausalLM"), (False, False)),
    **dict.fromkeys(("glm4_moe_lite", "Glm4MoeLiteForCausalLM"), (True, True)),
    **dict.fromkeys(("glm_moe_dsa", "GlmMoeDsaForCausalLM"), (True, True)),
    **dict.fromkeys(("gpt_oss", "GptOssForCausalLM"), (False, False)),
    **dict.fromkeys(("mixtral", "MixtralForCausalLM"), (False, False)),
    **dict.fromkeys(("qwen3_moe", "Qwen3MoeForCausalLM"), (False, False)),
    **dict.fromkeys(("qwen3_next", "Qwen3NextForCausalLM"), (False, False)),
}
"""Whether neighbours are pairs (GPT-J), not halves (NeoX): in attention, in a sparse indexer."""

NUM_EXPERTS = ("n_routed_experts", "num_experts", "num_local_experts")
NUM_TOPK = ("num_experts_per_tok", "experts_per_token", "num_experts_per_token")
MOE_INTERMEDIATE = ("moe_intermediate_size", "intermediate_size")
GROUP_SIZES = (16, 32, 64, 128)
_SHOWN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Cast:
    """A form in which values are quantised; ``sf`` is ``float32`` or ``packed`` (exponent bytes).

    ``group`` is the number of channels that share a scale.
    """

    data_dtype: str
    sf: str
    round_sf: bool
    group: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """What a configuration says. None or empty is what the model lacks or leaves unsaid.

    ``rotary`` are (elements that are rotated, whether neighbours are pairs). ``casts`` are made of
    activations, ``stored`` are forms of the checkpoint and of what kernels hand over.
    """

    name: str
    dtype: str = "bfloat16"
    hidden: int | None = None
    num_heads: int | None = None
    num_experts: int | None = None
    num_topk: int | None = None
    moe_intermediate: int | None = None
    rotary: tuple[tuple[int, bool], ...] = ()
    quantisation: str = ""
    casts: tuple[Cast, ...] = ()
    stored: tuple[Cast, ...] = ()
    num_streams: int | None = None
    has_engram: bool = False
    unknown: tuple[str, ...] = ()

    def __str__(self) -> str:
        said = [f"hidden {self.hidden}"] if self.hidden else []
        if self.num_experts and self.num_topk:
            said.append(f"{self.num_topk} of {self.num_experts} experts")
        said += [f"rotary {size}" for size in sorted({size for size, _ in self.rotary})]
        said += [self.quantisation] if self.quantisation else []
        said += [f"{self.num_streams} residual streams"] if self.num_streams else []
        said += ["engram"] if self.has_engram else []
        return f"{self.name}: {', '.join(said) or 'nothing is understood'}"


@dataclass(slots=True)
class _Fields:
    """The fields of a configuration; a null is as good as absent."""

    tree: Mapping[str, Any]
    problems: Problems
    unknown: list[str] = field(default_factory=list)

    def integer(self, *names: str, least: int = 1) -> int | None:
        """Return the first of the fields that is there."""
        for name in names:
            value = self.tree.get(name)
            if value is None:
                continue
            if is_int(value) and value >= least:
                return int(value)
            demand = f"must be an integer of at least {least}"
            self.problems.add(name, f"is {show(value)}", demand)
            return None
        return None

    def flag(self, name: str) -> bool | None:
        value = self.tree.get(name)
        if value is None or isinstance(value, bool):
            return value
        self.problems.add(name, f"is {show(value)}", "must be true or false")
        return None

    def mapping(self, name: str) -> Mapping[str, Any]:
        value = self.tree.get(name)
        if value is None or isinstance(value, dict):
            return value or {}
        self.problems.add(name, f"is {show(value)}", "must be an object")
        return {}


def parse_model(text: str, *, where: str) -> Model:
    """Read a configuration; that of a multimodal model has the language model's in ``text_config``.

    Raises:
        OptionError: it is no JSON object, or a field has a value of a wrong type; all are named.
    """
    try:
        tree: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise OptionError(f"{where}: is not JSON ({error}), must be a config.json") from error
    if not isinstance(tree, dict):
        raise OptionError(f"{where}: is {show(tree)}, must be an object, as in a config.json")
    problems = Problems(where)
    inner = _Fields(tree, problems).mapping("text_config")
    fields = _Fields({**tree, **{k: v for k, v in inner.items() if v is not None}}, problems)
    name, pairs = _architecture([inner, tree], fields)
    quantisation, casts, stored = _casts(fields)
    model = Model(
        name=name,
        dtype=_dtype(fields),
        hidden=fields.integer("hidden_size"),
        num_heads=fields.integer("num_attention_heads"),
        num_experts=_experts(fields, "experts", NUM_EXPERTS),
        num_topk=_experts(fields, "experts of a token", NUM_TOPK),
        moe_intermediate=fields.integer(*MOE_INTERMEDIATE),
        rotary=_rotary(fields, pairs),
        quantisation=quantisation,
        casts=casts,
        stored=stored,
        num_streams=fields.integer("hc_mult"),
        has_engram=bool(fields.tree.get("engram_layer_ids")),
        unknown=tuple(fields.unknown),
    )
    if problems.errors:
        raise OptionError("\n".join(problems.errors))
    return model


def _architecture(
    trees: list[Mapping[str, Any]], fields: _Fields
) -> tuple[str, tuple[bool, bool] | None]:
    """Return the model's name for people, and the order of its rotary pairs if that is known."""
    names: list[str] = []
    for tree in trees:
        listed = tree.get("architectures")
        found = [tree.get("model_type"), *(listed if isinstance(listed, list) else [listed])]
        # A name goes into a comment of the profile: it must not end the line.
        names += [name for name in found if isinstance(name, str) and name.isprintable()]
    for name in names:
        if name in ROTARY_PAIRS:
            return name, ROTARY_PAIRS[name]
    if not names:
        fields.unknown.append("architectures, model_type: are missing, must name the architecture")
        return "a model without a name", None
    known = nearest(names[0], ROTARY_PAIRS)[:_SHOWN]
    fields.unknown.append(
        f"architecture: is {', '.join(dict.fromkeys(names))}, known are {', '.join(known)} and "
        f"{len(ROTARY_PAIRS) - _SHOWN} more; its fields are read as theirs"
    )
    return names[0], None


def _experts(fields: _Fields, what: str, names: tuple[str, ...]) -> int | None:
    count = fields.integer(*names)
    if count is None and not any(fields.tree.get(name) is not None for name in names):
        fields.unknown.append(f"{what}: none of {', '.join(names)} is there; no router is planned")
    return count


def _dtype(fields: _Fields) -> str:
    value = fields.tree.get("torch_dtype") or fields.tree.get("dtype") or "bfloat16"
    if not isinstance(value, str):
        fields.problems.add("torch_dtype", f"is {show(value)}", "must be the name of a dtype")
        return "bfloat16"
    return value.removeprefix("torch.")


def _rotary(fields: _Fields, pairs: tuple[bool, bool] | None) -> tuple[tuple[int, bool], ...]:
    """Return what is rotated, in attention and in the indexer of a sparse one."""
    size = _rotary_size(fields)
    if not size:
        return ()
    found: list[tuple[int, bool]] = []
    parts = [] if fields.flag("mla_use_nope") else [("rope_interleave", 0)]
    if fields.tree.get("index_head_dim") is not None:
        parts.append(("indexer_rope_interleave", 1))
    for name, part in parts:
        order = fields.flag(name)
        if order is None and pairs is not None:
            order = pairs[part]
        if order is None:
            fields.unknown.append(
                f"{name}: is missing, and the architecture's order of rotary pairs is not known; "
                "both are planned"
            )
        found += [(size, each) for each in ((False, True) if order is None else (order,))]
    return tuple(dict.fromkeys(found))


def _rotary_size(fields: _Fields) -> int:
    """Return the elements of a head that are rotated; 0 is none."""
    latent = fields.integer("qk_rope_head_dim", "rotary_dim", least=0)
    if latent is not None:
        return latent
    head_dim = fields.integer("head_dim", least=0)
    if head_dim is None:
        hidden, num_heads = fields.integer("hidden_size"), fields.integer("num_attention_heads")
        if hidden is None or num_heads is None:
            fields.unknown.append(
                "size of a head: neither qk_rope_head_dim nor head_dim is there, nor hidden_size "
                "and num_attention_heads; no rotary embedding is planned"
            )
            return 0
        head_dim = hidden // num_heads
    rope = fields.mapping("rope_parameters")
    factor = fields.tree.get("partial_rotary_factor", rope.get("partial_rotary_factor"))
    if factor is None:
        return head_dim
    if not is_number(factor) or not 0 < factor <= 1:
        fields.problems.add("partial_rotary_factor", f"is {show(factor)}", "must lie in 0 to 1")
        return 0
    return int(head_dim * factor)


def _casts(fields: _Fields) -> tuple[str, tuple[Cast, ...], tuple[Cast, ...]]:
    """Return the quantisation in words, casts of activations, and stored forms."""
    quantisation = fields.mapping("quantization_config")
    method = quantisation.get("quant_method")
    if not quantisation:
        return "", (), ()
    if method == "fp8":
        return _fp8(fields, quantisation)
    if method == "mxfp4":
        # Matrix units that take such weights take e4m3 activations, scaled in the same way.
        activations = Cast(data_dtype="float8_e4m3fn", sf="packed", round_sf=True, group=32)
        weights = Cast(data_dtype="int8", sf="packed", round_sf=True, group=32)
        return "mxfp4", (activations,), (weights,)
    fields.unknown.append(
        f"quantization_config.quant_method: is {show(method)}, known are 'fp8' and 'mxfp4'; "
        "no casts are planned"
    )
    return "", (), ()


def _fp8(
    fields: _Fields, quantisation: Mapping[str, Any]
) -> tuple[str, tuple[Cast, ...], tuple[Cast, ...]]:
    """Return what e4m3 weights with a scale for each block ask for."""
    block, scale = quantisation.get("weight_block_size"), quantisation.get("scale_fmt")
    problem = ""
    if quantisation.get("fmt") not in (None, "e4m3"):
        problem = f"fmt: is {show(quantisation['fmt'])}, known is 'e4m3'"
    elif not isinstance(block, list) or len(block) != 2 or not all(map(is_int, block)):
        problem = f"weight_block_size: is {show(block)}, known are two sizes, as in [128, 128]"
    elif block[1] not in GROUP_SIZES:
        sizes = ", ".join(map(str, GROUP_SIZES))
        problem = f"weight_block_size[1]: is {show(block[1])}, known are {sizes}"
    elif scale not in (None, "float32", "ue8m0"):
        problem = f"scale_fmt: is {show(scale)}, known are 'float32' and 'ue8m0'"
    if problem:
        fields.unknown.append(f"quantization_config.{problem}; no casts are planned")
        return "", (), ()
    assert isinstance(block, list)
    round_sf, group = scale == "ue8m0", int(block[1])
    casts = [Cast(data_dtype="float8_e4m3fn", sf="float32", round_sf=round_sf, group=group)]
    words = f"fp8 in blocks of {block[0]} x {block[1]}"
    if round_sf:
        casts.append(Cast(data_dtype="float8_e4m3fn", sf="packed", round_sf=True, group=group))
        words += " with ue8m0 scales"
    expert_dtype = fields.tree.get("expert_dtype")
    if expert_dtype == "fp4":
        casts.append(Cast(data_dtype="int8", sf="float32", round_sf=True, group=32))
        words += ", fp4 experts"
    elif expert_dtype is not None and expert_dtype != "fp8":
        fields.unknown.append(
            f"expert_dtype: is {show(expert_dtype)}, known are 'fp4' and 'fp8'; "
            "no casts are planned for experts"
        )
    return words, tuple(casts), tuple(casts)
