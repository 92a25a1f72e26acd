"""What is read from a model's configuration, and what is said of what cannot be read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tilewheel_build.errors import OptionError
from tilewheel_build.model_config import Cast, Model, parse_model

MODELS = Path(__file__).resolve().parent / "data" / "models"
FP8 = {"quant_method": "fp8", "weight_block_size": [128, 128]}


def model(name: str) -> Model:
    return parse_model((MODELS / f"{name}.json").read_text(), where=f"{name}.json")


def read(**fields: Any) -> Model:
    """Return the model of a Qwen3-MoE-like configuration with other fields."""
    tree = {"model_type": "qwen3_moe", "hidden_size": 2048, "num_attention_heads": 32}
    tree |= {"head_dim": 128, "num_experts": 128, "num_experts_per_tok": 8}
    return parse_model(json.dumps({**tree, **fields}), where="config.json")


def errors_of(**fields: Any) -> list[str]:
    with pytest.raises(OptionError) as caught:
        read(**fields)
    return str(caught.value).splitlines()


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "deepseek-v3",
            "deepseek_v3: hidden 7168, 8 of 256 experts, rotary 64, fp8 in blocks of 128 x 128",
        ),
        (
            "deepseek-v4-flash",
            "deepseek_v4: hidden 4096, 6 of 256 experts, rotary 64, fp8 in blocks of 128 x 128 "
            "with ue8m0 scales, fp4 experts, 4 residual streams",
        ),
        (
            "deepseek-v4-pro",
            "deepseek_v4: hidden 7168, 6 of 384 experts, rotary 64, fp8 in blocks of 128 x 128 "
            "with ue8m0 scales, fp4 experts, 4 residual streams",
        ),
        (
            "deepseek-v4.1-flash",
            "deepseek_v41: hidden 5120, 6 of 384 experts, rotary 64, fp8 in blocks of 32 x 32 "
            "with ue8m0 scales, fp4 experts, 4 residual streams, engram",
        ),
        (
            "kimi-k2",
            "kimi_k2: hidden 7168, 8 of 384 experts, rotary 64, fp8 in blocks of 128 x 128",
        ),
        ("qwen3-30b-a3b", "qwen3_moe: hidden 2048, 8 of 128 experts, rotary 128"),
        (
            "qwen3-235b-a22b-fp8",
            "qwen3_moe: hidden 4096, 8 of 128 experts, rotary 128, fp8 in blocks of 128 x 128",
        ),
        ("glm-4.5", "glm4_moe: hidden 5120, 8 of 160 experts, rotary 64"),
        (
            "glm-5-fp8",
            "glm_moe_dsa: hidden 6144, 8 of 256 experts, rotary 64, fp8 in blocks of 128 x 128",
        ),
        ("gpt-oss-120b", "gpt_oss: hidden 2880, 4 of 128 experts, rotary 64, mxfp4"),
        ("mixtral-8x7b", "mixtral: hidden 4096, 2 of 8 experts, rotary 128"),
    ],
)
def test_known_models_are_understood(name, said):
    assert str(model(name)) == said
    assert model(name).unknown == ()


@pytest.mark.parametrize(
    ("name", "rotary"),
    [
        ("deepseek-v3", ((64, True),)),
        ("kimi-k2", ((64, True),)),
        ("glm-5-fp8", ((64, True),)),
        ("glm-4.5", ((64, False),)),
        ("gpt-oss-120b", ((64, False),)),
        ("mixtral-8x7b", ((128, False),)),
    ],
)
def test_the_order_of_rotary_pairs_follows_from_the_architecture(name, rotary):
    assert model(name).rotary == rotary


def test_a_field_decides_against_the_architecture():
    assert read(rope_interleave=True).rotary == ((128, True),)


def test_the_indexer_of_deepseek_v3_2_rotates_halves():
    v32 = read(model_type="deepseek_v32", qk_rope_head_dim=64, index_head_dim=128)
    assert v32.rotary == ((64, True), (64, False))


def test_attention_without_positions_leaves_the_indexer():
    glm = read(
        qk_rope_head_dim=64, mla_use_nope=True, index_head_dim=128, indexer_rope_interleave=True
    )
    assert glm.rotary == ((64, True),)
    assert read(qk_rope_head_dim=0).rotary == ()


def test_a_factor_says_how_much_of_a_head_is_rotated():
    assert read(head_dim=256, partial_rotary_factor=0.25).rotary == ((64, False),)
    rope = {"rope_theta": 10000, "partial_rotary_factor": 0.5}
    assert read(rope_parameters=rope).rotary == ((64, False),)


def test_casts_follow_from_block_size_and_scales():
    e4m3 = Cast(data_dtype="float8_e4m3fn", sf="float32", round_sf=False, group=128)
    assert model("deepseek-v3").casts == (e4m3,)
    assert model("deepseek-v3").stored == (e4m3,)
    assert model("deepseek-v4.1-flash").casts == (
        Cast(data_dtype="float8_e4m3fn", sf="float32", round_sf=True, group=32),
        Cast(data_dtype="float8_e4m3fn", sf="packed", round_sf=True, group=32),
        Cast(data_dtype="int8", sf="float32", round_sf=True, group=32),
    )


def test_mxfp4_weights_take_e4m3_activations():
    gpt_oss = model("gpt-oss-120b")
    assert gpt_oss.casts == (
        Cast(data_dtype="float8_e4m3fn", sf="packed", round_sf=True, group=32),
    )
    assert gpt_oss.stored == (Cast(data_dtype="int8", sf="packed", round_sf=True, group=32),)


def test_the_dtype_has_either_name_and_bfloat16_is_assumed():
    assert read().dtype == "bfloat16"
    assert read(torch_dtype="float32").dtype == "float32"
    assert read(dtype="torch.float16").dtype == "float16"


def test_fields_of_the_text_model_come_before_those_around_it():
    text = {"model_type": "mixtral", "hidden_size": 4096, "num_local_experts": None}
    found = read(model_type="some_vision", text_config=text)
    assert (found.name, found.hidden, found.num_experts) == ("mixtral", 4096, 128)


def test_an_unknown_architecture_is_named_and_both_orders_are_planned():
    found = read(model_type="qwen9_moe", architectures=["Qwen9MoeForCausalLM"])
    assert found.rotary == ((128, False), (128, True))
    assert (found.num_experts, found.num_topk) == (128, 8)
    assert found.unknown == (
        "architecture: is qwen9_moe, Qwen9MoeForCausalLM, known are qwen3_moe, qwen3_next, "
        "glm4_moe, glm_moe_dsa, glm4_moe_lite and 20 more; its fields are read as theirs",
        "rope_interleave: is missing, and the architecture's order of rotary pairs is not known; "
        "both are planned",
    )


def test_an_architecture_that_no_field_names_is_said():
    found = read(model_type=None, rope_interleave=False)
    assert found.unknown == ("architectures, model_type: are missing, must name the architecture",)
    # What ends a line would end the comment of a profile.
    assert read(model_type="a\nb", rope_interleave=False).name == "a model without a name"


def test_fields_that_are_missing_are_said():
    found = parse_model('{"model_type": "mixtral"}', where="config.json")
    assert str(found) == "mixtral: nothing is understood"
    assert found.unknown == (
        "experts: none of n_routed_experts, num_experts, num_local_experts is there; "
        "no router is planned",
        "experts of a token: none of num_experts_per_tok, experts_per_token, "
        "num_experts_per_token is there; no router is planned",
        "size of a head: neither qk_rope_head_dim nor head_dim is there, nor hidden_size and "
        "num_attention_heads; no rotary embedding is planned",
    )


@pytest.mark.parametrize(
    ("quantisation", "said"),
    [
        ({"quant_method": "awq"}, "quant_method: is 'awq', known are 'fp8' and 'mxfp4'"),
        ({"bits": 4}, "quant_method: is empty, known are 'fp8' and 'mxfp4'"),
        (
            {"quant_method": "fp8"},
            "weight_block_size: is empty, known are two sizes, as in [128, 128]",
        ),
        (
            {**FP8, "weight_block_size": ["a", "b"]},
            "weight_block_size: is a list, known are two sizes, as in [128, 128]",
        ),
        (
            {**FP8, "weight_block_size": [128, 48]},
            "weight_block_size[1]: is 48, known are 16, 32, 64, 128",
        ),
        ({**FP8, "fmt": "e5m2"}, "fmt: is 'e5m2', known is 'e4m3'"),
        ({**FP8, "scale_fmt": "int8"}, "scale_fmt: is 'int8', known are 'float32' and 'ue8m0'"),
    ],
)
def test_a_quantisation_that_is_not_known_is_said_and_plans_no_casts(quantisation, said):
    found = read(quantization_config=quantisation)
    assert found.unknown == (f"quantization_config.{said}; no casts are planned",)
    assert (found.casts, found.stored) == ((), ())


def test_a_dtype_of_experts_that_is_not_known_is_said():
    found = read(quantization_config=FP8, expert_dtype="int4")
    assert found.unknown == (
        "expert_dtype: is 'int4', known are 'fp4' and 'fp8'; no casts are planned for experts",
    )
    assert len(found.casts) == 1


def test_values_of_wrong_types_are_all_reported():
    assert errors_of(
        hidden_size="4096",
        num_experts=True,
        num_experts_per_tok=0,
        torch_dtype=16,
        rope_interleave=1,
        text_config=[],
        quantization_config="fp8",
        hc_mult=4.0,
    ) == [
        "config.json: text_config: is an empty list, must be an object",
        "config.json: quantization_config: is 'fp8', must be an object",
        "config.json: torch_dtype: is 16, must be the name of a dtype",
        "config.json: hidden_size: is '4096', must be an integer of at least 1",
        "config.json: num_experts: is true, must be an integer of at least 1",
        "config.json: num_experts_per_tok: is 0, must be an integer of at least 1",
        "config.json: rope_interleave: is 1, must be true or false",
        "config.json: hc_mult: is 4.0, must be an integer of at least 1",
    ]


@pytest.mark.parametrize("factor", ["half", 0, 1.5, True])
def test_a_factor_of_a_head_lies_in_0_to_1(factor):
    (error,) = errors_of(partial_rotary_factor=factor)
    assert error.startswith("config.json: partial_rotary_factor: is ")
    assert error.endswith(", must lie in 0 to 1")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is not JSON (Expecting value: line 1 column 1 (char 0)), must be a config.json"),
        ("[]", "is an empty list, must be an object, as in a config.json"),
        ("[" * 100_000, "is not JSON ("),
    ],
)
def test_what_is_no_configuration_is_refused(text, said):
    with pytest.raises(OptionError) as caught:
        parse_model(text, where="config.json")
    assert str(caught.value).startswith(f"config.json: {said}")
