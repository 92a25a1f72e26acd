"""From a model to the keys that it needs: rules, variants, the report and the profile."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import tilewheel
from tilewheel_build.errors import OptionError
from tilewheel_build.model_config import Model, parse_model
from tilewheel_build.model_grid import profile_matches, profile_name, profile_yaml, report, serve
from tilewheel_build.model_needs import (
    ASCEND_GROUP,
    CAST_CHANNELS,
    RULES,
    Need,
    limitations,
    needs,
)
from tilewheel_build.profile_file import parse_profile
from tilewheel_build.spec import OperatorSpec, load_spec, load_specs
from tilewheel_build.variant import expand

ROOT = Path(__file__).resolve().parents[2]
DATA = Path(__file__).resolve().parent / "data"
MODELS = DATA / "models"
CONFIGS = sorted(MODELS.glob("*.json"))
SPECS = {spec.operator: spec for spec in load_specs(ROOT)}


def model(name: str) -> Model:
    return parse_model((MODELS / f"{name}.json").read_text(), where=f"{name}.json")


def wanted(name: str, operator: str) -> list[str]:
    return [str(need) for need in needs(model(name), operator)]


def need(operator: str, **parameters: Any) -> Need:
    return Need(operator=operator, parameters=tuple(sorted(parameters.items())))


def keys(served: Any) -> list[str]:
    return [str(variant.key) for variant in served.variants]


@pytest.mark.parametrize(
    ("name", "operator", "parameters"),
    [
        ("deepseek-v4-pro", "topk_gate", ["num_experts=384 num_topk=6"]),
        ("mixtral-8x7b", "topk_gate", ["num_experts=8 num_topk=2"]),
        ("kimi-k2", "apply_rotary", ["dtype=bfloat16 head_dim=64 interleaved=true"]),
        ("qwen3-30b-a3b", "apply_rotary", ["dtype=bfloat16 head_dim=128 interleaved=false"]),
        ("qwen3-30b-a3b", "per_token_cast", []),
        ("qwen3-30b-a3b", "mhc_post_fwd", []),
        (
            "deepseek-v4-flash",
            "mhc_pre_big_fuse_fwd",
            ["hidden=4096 output_norm=false", "hidden=4096 output_norm=true"],
        ),
        ("deepseek-v4-flash", "mhc_post_fwd", ["hidden=4096"]),
        ("deepseek-v4-flash", "engram_gate_fwd", []),
        ("deepseek-v4.1-flash", "engram_gate_fwd", ["hidden=5120"]),
        ("deepseek-v4.1-flash", "engram_gate_bwd", ["hidden=5120"]),
        ("deepseek-v4.1-flash", "fused_weight", ["hidden=5120"]),
        ("deepseek-v4.1-flash", "grad_w_reduce", ["hidden=5120"]),
        ("deepseek-v4.1-flash", "stochastic_cast", []),
    ],
)
def test_each_operator_has_its_rule(name, operator, parameters):
    assert wanted(name, operator) == [f"{operator} {text}" for text in parameters]


def test_packed_scales_have_the_dtype_of_the_backend():
    found = needs(model("gpt-oss-120b"), "cast_back")
    assert [(str(each), each.backends) for each in found] == [
        ("cast_back data_dtype=int8 out_dtype=bfloat16 sf_dtype=int32", ("cuda",)),
        ("cast_back data_dtype=int8 out_dtype=bfloat16 sf_dtype=int16", ("ascend",)),
    ]


@pytest.mark.parametrize("operator", sorted(set(RULES) & set(SPECS)))
def test_rules_name_parameters_of_the_spec(operator):
    declared = {parameter.name for parameter in SPECS[operator].parameters}
    found = {
        name
        for config in CONFIGS
        for each in needs(model(config.stem), operator)
        for name, _ in each.parameters
    }
    assert found == declared


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.stem)
def test_every_need_of_the_known_models_is_served(config):
    for operator, spec in SPECS.items():
        for each in needs(model(config.stem), operator):
            for backend in each.backends:
                assert serve(each, spec, backend, None).reason == ""


@pytest.mark.parametrize(
    "name",
    ["deepseek-v3", "deepseek-v4-flash", "deepseek-v4-pro", "kimi-k2", "deepseek-v4.1-flash"],
)
def test_a_profile_that_specs_name_for_the_model_is_what_is_generated(name):
    matches = parse_profile(
        profile_yaml(model(name), SPECS.values()), where=f"{name}.yaml", specs=SPECS
    )
    for operator, spec in SPECS.items():
        for profile in (profile for profile in spec.profiles if profile.name == name):
            generated, named = chosen(spec, matches[operator]), chosen(spec, profile.matches)
            # `all` is more than a model needs where there are variants for other models.
            assert generated <= named if profile.matches == ((),) else generated == named


def chosen(spec: OperatorSpec, matches: tuple[Any, ...]) -> set[str]:
    """Return the keys, for every target, that the matches select."""
    variants = [*expand(spec, "cuda"), *expand(spec, "ascend")]
    return {
        str(variant.key)
        for variant in variants
        if any(set(match) <= set(variant.key.parameters) for match in matches)
    }


def test_a_match_names_a_backend_where_another_has_variants_of_its_own():
    cast = load_spec(DATA / "specs/quant/cast.yaml", root=DATA)
    (ascend,) = [part for part in cast.backends if part.name == "ascend"]
    generic_only = replace(ascend, exclude=((("hidden", 4096),), (("hidden", 7168),)))
    spec = replace(cast, backends=(cast.backends[0], generic_only))
    wish = need("cast", group=128, hidden=7168, out_dtype="float8_e4m3fn", round_sf=False)
    rest = {"group": 128, "out_dtype": "float8_e4m3fn", "round_sf": False}
    assert [dict(match) for match in profile_matches(wish, cast)] == [{**rest, "hidden": 7168}]
    assert [dict(match) for match in profile_matches(wish, spec)] == [
        {**rest, "hidden": 7168},
        {**rest, "hidden": "any", "num_vec_cores": 64},
        {**rest, "hidden": "any", "num_vec_cores": "any"},
    ]


def test_an_exact_variant_comes_before_the_generic_one():
    served = serve(
        need("topk_gate", num_experts=256, num_topk=8), SPECS["topk_gate"], "cuda", ["sm_90a"]
    )
    assert keys(served) == ["topk_gate-num_experts=256-num_topk=8-cuda-sm_90a"]
    assert not served.is_generic


def test_the_generic_variant_serves_what_has_none_of_its_own():
    served = serve(
        need("topk_gate", num_experts=144, num_topk=6), SPECS["topk_gate"], "cuda", ["sm_90a"]
    )
    assert keys(served) == ["topk_gate-num_experts=any-num_topk=any-cuda-sm_90a"]
    assert served.is_generic


def test_parameters_of_a_backend_are_left_open():
    wish = need("cast_back", data_dtype="int8", out_dtype="float32", sf_dtype="int16")
    assert keys(serve(wish, SPECS["cast_back"], "ascend-sim", None)) == [
        "cast_back-col_major_sf=false-data_dtype=int8-num_vec_cores=any-out_dtype=float32"
        "-sf_dtype=int16-ascend_sim-dav_3510",
        "cast_back-col_major_sf=true-data_dtype=int8-num_vec_cores=any-out_dtype=float32"
        "-sf_dtype=int16-ascend_sim-dav_3510",
    ]


@pytest.mark.parametrize(
    ("wish", "backend", "archs", "reason"),
    [
        (
            need("topk_gate", num_experts=2048, num_topk=64),
            "cuda",
            None,
            "num_experts: is 2048, must be at most 1024; num_topk: is 64, must be at most 32",
        ),
        (
            need("apply_rotary", dtype="float16", head_dim=96, interleaved=True),
            "cuda",
            None,
            "dtype: is 'float16', must be one of bfloat16, float32; "
            "head_dim: is 96, must be one of 64, 128",
        ),
        (need("topk_gate", width=3), "cuda", None, "width: is no parameter"),
        (
            need("cast_back", data_dtype="int8", out_dtype="bfloat16", sf_dtype="int16"),
            "cuda",
            None,
            "specs/quant/cast_back.yaml has no such variant",
        ),
        (
            need("randn", dtype="bfloat16"),
            "cuda",
            None,
            "specs/rand/randn.yaml has nothing for cuda",
        ),
        (
            need("topk_gate", num_experts=256, num_topk=8),
            "cuda",
            ["sm_80"],
            "specs/moe/topk_gate.yaml has nothing for cuda sm_80",
        ),
    ],
)
def test_what_nothing_serves_has_a_reason(wish, backend, archs, reason):
    served = serve(wish, SPECS[wish.operator], backend, archs)
    assert (served.variants, served.reason) == ((), reason)


def test_the_report_tells_installed_from_generic_and_missing():
    mixtral = Model(
        name="m", dtype="float16", num_experts=8, num_topk=2, rotary=((64, True),), has_engram=True
    )
    specs = [SPECS["apply_rotary"], SPECS["topk_gate"], SPECS["randn"]]
    generic = "topk_gate-num_experts=any-num_topk=any-cuda-sm_90a"
    assert report(
        mixtral, specs, backends=["cuda"], archs=["sm_90a"], installed=frozenset({generic})
    ) == [
        "apply_rotary dtype=float16 head_dim=64 interleaved=true",
        "  no variant     cuda: dtype: is 'float16', must be one of bfloat16, float32",
        "topk_gate num_experts=8 num_topk=2",
        f"  installed      {generic}  (generic)",
        "not needed: randn",
        "1 of 1 keys are installed",
        "only generic variants for: topk_gate num_experts=8 num_topk=2",
    ]


def test_the_report_names_the_installed_generic_variant_that_stands_in():
    generic = "topk_gate-num_experts=any-num_topk=any-cuda-sm_90a"
    lines = report(
        model("deepseek-v3"),
        [SPECS["topk_gate"]],
        backends=["cuda"],
        archs=["sm_90a", "sm_100a"],
        installed=frozenset({generic}),
    )
    assert lines == [
        "topk_gate num_experts=256 num_topk=8",
        "  not installed  topk_gate-num_experts=256-num_topk=8-cuda-sm_100a",
        f"  not installed  topk_gate-num_experts=256-num_topk=8-cuda-sm_90a  (served by {generic})",
        "0 of 2 keys are installed",
        "1 more are served by installed generic variants",
    ]


def test_the_report_says_where_only_generic_variants_are():
    gate = SPECS["topk_gate"]
    (ascend,) = [part for part in gate.backends if part.name == "ascend"]
    generic_only = replace(ascend, exclude=((("num_experts", 256), ("num_topk", 8)),))
    spec = replace(gate, backends=(gate.backends[0], generic_only))
    lines = report(
        model("deepseek-v3"),
        [spec],
        backends=["cuda", "ascend-sim"],
        archs=None,
        installed=frozenset(),
    )
    assert lines[-1] == (
        "only generic variants for: topk_gate num_experts=256 num_topk=8 on ascend-sim"
    )


def test_the_report_passes_over_backends_of_other_archs():
    lines = report(
        model("deepseek-v3"),
        [SPECS["topk_gate"]],
        backends=["cuda", "ascend-sim"],
        archs=["dav_3510"],
        installed=frozenset(),
    )
    assert lines == [
        "topk_gate num_experts=256 num_topk=8",
        "  not installed  "
        "topk_gate-num_experts=256-num_topk=8-num_vec_cores=any-ascend_sim-dav_3510",
        "0 of 1 keys are installed",
    ]


@pytest.mark.parametrize(
    ("name", "tensor_parallel", "said"),
    [
        ("qwen3-235b-a22b-fp8", 8, []),
        ("qwen3-30b-a3b", 8, []),
        (
            "deepseek-v4.1-flash",
            8,
            ["channels of an expert / 8: is 288, must be a multiple of 64 for casts"],
        ),
        ("gpt-oss-120b", 1, []),
        (
            "gpt-oss-120b",
            7,
            [
                "num_attention_heads: is 64, must be a multiple of tensor parallel 7",
                "channels of an expert: is 2880, must be a multiple of tensor parallel 7",
            ],
        ),
    ],
)
def test_tensor_parallelism_divides_heads_and_experts(name, tensor_parallel, said):
    found = limitations(model(name), tensor_parallel=tensor_parallel, has_ascend=False)
    assert list(found) == said


def test_other_numbers_of_streams_and_scales_are_not_served():
    odd = Model(name="m", hidden=2080, num_streams=2, casts=model("deepseek-v3").casts)
    assert limitations(odd, tensor_parallel=1, has_ascend=True) == (
        "hc_mult: is 2, must be 4 for mhc and engram operators",
        "hidden_size: is 2080, must be a multiple of 64 for casts",
        "channels of a scale: are 128, must be 32 for casts on ascend",
    )
    assert needs(odd, "mhc_post_fwd") == ()


def test_the_channels_of_a_cast_are_those_that_the_operator_takes():
    with pytest.raises(ValueError, match=f"is 96, must be a multiple of {CAST_CHANNELS}"):
        tilewheel.quant.per_token_cast(torch.zeros(1, 96), "e4m3", 32)
    (scalar,) = [s for s in SPECS["per_token_cast"].scalars if s.name == "num_per_channels"]
    assert f"on Ascend {ASCEND_GROUP} only" in scalar.meaning


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("DeepSeek-V4.1-Flash/config.json", "deepseek-v4.1-flash"),
        ("models/Kimi_K2.json", "kimi-k2"),
        ("/config.json", "model"),
    ],
)
def test_a_profile_has_the_name_of_the_model(path, name):
    assert profile_name(Path(path)) == name


ODD_VALUES = (None, "", "x", [], [1], [1, 2], {}, {"a": 1}, -1, 0, 1.5, 10**30, True, float("nan"))


@pytest.mark.parametrize(
    "field", sorted(json.loads((MODELS / "deepseek-v4-flash.json").read_text()))
)
def test_odd_values_are_refused_or_planned_and_never_crash(field):
    tree = json.loads((MODELS / "deepseek-v4-flash.json").read_text())
    planned = 0
    for value in ODD_VALUES:
        with suppress(OptionError):
            odd = parse_model(json.dumps({**tree, field: value}), where="config.json")
            text = profile_yaml(odd, SPECS.values())
            assert parse_profile(text, where="odd.yaml", specs=SPECS)
            limitations(odd, tensor_parallel=8, has_ascend=True)
            planned += 1
    assert planned
