"""From a spec to its variants, and from the command line's wishes to some of them."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from tilewheel_build.errors import OptionError
from tilewheel_build.spec import load_spec
from tilewheel_build.variant import (
    SelectionError,
    Variant,
    bindings,
    expand,
    limits,
    parameters,
    profiles_of,
    select,
    tensors,
)

DATA = Path(__file__).resolve().parent / "data"
CAST = load_spec(DATA / "specs/quant/cast.yaml", root=DATA)
HOPPER = expand(CAST, "cuda", ["sm_90a"])
GENERIC = "cast-group=128-hidden=any-out_dtype={}-round_sf={}-cuda-sm_90a"


def keys(variants: tuple[Variant, ...]) -> list[str]:
    return [str(variant.key) for variant in variants]


def named(text: str) -> Variant:
    return next(variant for variant in HOPPER if str(variant.key) == text)


def message_of(*, profile: str | None = None, only: tuple[str, ...] = ()) -> str:
    with pytest.raises((OptionError, SelectionError)) as caught:
        select(HOPPER, profile=profile, only=only)
    return str(caught.value)


def test_variants_are_points_times_grid_minus_exclude():
    assert keys(HOPPER) == [
        "cast-group=32-hidden=4096-out_dtype=float8_e4m3fn-round_sf=false-cuda-sm_90a",
        "cast-group=32-hidden=4096-out_dtype=float8_e4m3fn-round_sf=true-cuda-sm_90a",
        "cast-group=32-hidden=4096-out_dtype=int8-round_sf=false-cuda-sm_90a",
        "cast-group=128-hidden=7168-out_dtype=float8_e4m3fn-round_sf=false-cuda-sm_90a",
        "cast-group=128-hidden=7168-out_dtype=float8_e4m3fn-round_sf=true-cuda-sm_90a",
        "cast-group=128-hidden=7168-out_dtype=int8-round_sf=false-cuda-sm_90a",
        "cast-group=128-hidden=any-out_dtype=float8_e4m3fn-round_sf=false-cuda-sm_90a",
        "cast-group=128-hidden=any-out_dtype=float8_e4m3fn-round_sf=true-cuda-sm_90a",
        "cast-group=128-hidden=any-out_dtype=int8-round_sf=false-cuda-sm_90a",
    ]


def test_every_arch_of_the_spec_is_built_when_none_is_named():
    archs = [variant.key.target.arch for variant in expand(CAST, "cuda")]
    assert (archs.count("sm_90a"), archs.count("sm_100a"), len(archs)) == (9, 9, 18)


def test_a_known_arch_that_the_spec_lacks_yields_nothing():
    assert expand(CAST, "cuda", ["sm_120a"]) == ()


def test_an_arch_of_another_backend_is_passed_over():
    assert len(expand(CAST, "cuda", ["sm_90a", "dav_3510"])) == 9
    assert expand(CAST, "ascend", ["sm_90a"]) == ()


def test_the_parameters_of_a_backend_are_part_of_its_keys():
    assert keys(expand(CAST, "ascend"))[:3] == [
        "cast-group=32-hidden=4096-num_vec_cores=64-out_dtype=float8_e4m3fn-round_sf=false-ascend-dav_3510",
        "cast-group=32-hidden=4096-num_vec_cores=64-out_dtype=float8_e4m3fn-round_sf=true-ascend-dav_3510",
        "cast-group=32-hidden=4096-num_vec_cores=64-out_dtype=int8-round_sf=false-ascend-dav_3510",
    ]


def test_what_a_backend_excludes_is_left_out_there_only():
    glob = "*group=128*out_dtype=int8*"
    assert len(select(HOPPER, profile=None, only=[glob])) == 2
    with pytest.raises(SelectionError, match="matches none of 14 variants"):
        select(expand(CAST, "ascend"), profile=None, only=[glob])


def test_the_simulator_takes_the_kernels_of_ascend():
    simulated, real = expand(CAST, "ascend-sim"), expand(CAST, "ascend")
    assert str(simulated[0].key) == (
        "cast-group=32-hidden=4096-num_vec_cores=64-out_dtype=float8_e4m3fn-round_sf=false"
        "-ascend_sim-dav_3510"
    )
    assert simulated[0].key.target.backend == "ascend-sim"
    assert [v.key.parameters for v in simulated] == [v.key.parameters for v in real]
    assert simulated[0].kernel == "quant/cast_ascend.py"
    assert simulated[0].backend.name == "ascend"


def test_an_unknown_backend_lists_the_known_ones_nearest_first():
    with pytest.raises(OptionError) as caught:
        expand(CAST, "ascend_sim")
    assert str(caught.value) == (
        "backend: is 'ascend_sim', must be one of ascend-sim, ascend, cuda\nhint: write ascend-sim"
    )


def test_an_unknown_arch_lists_the_known_ones_nearest_first():
    with pytest.raises(OptionError) as caught:
        expand(CAST, "cuda", ["sm_90"])
    assert str(caught.value) == (
        "arch: is 'sm_90', must be one of sm_90a, sm_80, sm_89, sm_100a, sm_103a, sm_120a, "
        "dav_3510\n"
        "hint: write sm_90a"
    )


def test_a_variant_survives_pickling():
    assert pickle.loads(pickle.dumps(HOPPER[0])) == HOPPER[0]


def test_any_matches_only_any_in_a_profile():
    assert keys(select(HOPPER, profile="generic", only=[])) == [
        GENERIC.format("float8_e4m3fn", "false"),
        GENERIC.format("int8", "false"),
    ]


def test_no_profile_and_no_glob_select_everything():
    assert select(HOPPER, profile=None, only=[]) == HOPPER


def test_a_variant_is_selected_once_by_several_globs():
    chosen = select(HOPPER, profile="release", only=["*hidden=any*", "*out_dtype=int8*"])
    assert keys(chosen) == [
        "cast-group=32-hidden=4096-out_dtype=int8-round_sf=false-cuda-sm_90a",
        "cast-group=128-hidden=7168-out_dtype=int8-round_sf=false-cuda-sm_90a",
        GENERIC.format("float8_e4m3fn", "false"),
        GENERIC.format("float8_e4m3fn", "true"),
        GENERIC.format("int8", "false"),
    ]


def test_a_whole_key_is_a_glob():
    text = GENERIC.format("int8", "false")
    assert keys(select(HOPPER, profile=None, only=[text])) == [text]


def test_nothing_is_selected_from_nothing():
    assert select([], profile="release", only=["*"]) == ()


def test_an_unknown_profile_lists_the_known_ones_nearest_first():
    assert message_of(profile="realease") == (
        "profile: is 'realease', must be one of release, dev, smoke, generic\nhint: write release"
    )


def test_a_glob_sees_the_case_of_letters():
    assert message_of(only=("CAST*",)).startswith("only: 'CAST*' matches none of 9 variants, must")


def test_a_glob_that_matches_nothing_lists_the_nearest_keys():
    assert message_of(only=("cast-group=128-hidden=7186-out_dtype=int8-*",)) == (
        "only: 'cast-group=128-hidden=7186-out_dtype=int8-*' matches none of 9 variants, "
        "must match one; the nearest are\n"
        "  cast-group=128-hidden=7168-out_dtype=int8-round_sf=false-cuda-sm_90a\n"
        "  cast-group=128-hidden=any-out_dtype=int8-round_sf=false-cuda-sm_90a\n"
        "  cast-group=32-hidden=4096-out_dtype=int8-round_sf=false-cuda-sm_90a\n"
        "  cast-group=128-hidden=7168-out_dtype=float8_e4m3fn-round_sf=true-cuda-sm_90a\n"
        "  cast-group=128-hidden=7168-out_dtype=float8_e4m3fn-round_sf=false-cuda-sm_90a"
    )


def test_an_operator_s_bare_name_is_told_that_keys_go_on():
    assert message_of(only=("cast",)) == (
        "only: 'cast' matches none of 9 variants, must match one\n"
        "hint: keys go on after the operator's name: write 'cast-*'"
    )


def test_a_glob_that_matches_outside_the_profile_names_the_profiles_that_hold_it():
    assert message_of(profile="smoke", only=("*hidden=any*",)) == (
        "only: '*hidden=any*' matches none of 3 variants of profile smoke, must match one\n"
        "hint: choose a profile that holds it: dev, generic, release"
    )


def test_a_glob_that_matches_another_target_only_names_it():
    others = [*expand(CAST, "ascend"), *expand(CAST, "ascend-sim")]
    with pytest.raises(SelectionError) as caught:
        select(HOPPER, profile=None, only=["*-num_vec_cores=64-*"], other_targets=others)
    assert str(caught.value) == (
        "only: '*-num_vec_cores=64-*' matches none of 9 variants, must match one\n"
        "hint: choose a target that has it: ascend, ascend-sim"
    )


def test_the_profiles_of_a_variant_are_sorted():
    assert profiles_of(named(GENERIC.format("int8", "false"))) == ("dev", "generic", "release")
    assert profiles_of(named(GENERIC.format("float8_e4m3fn", "true"))) == ("dev", "release")


def test_a_parameter_bound_to_any_has_limits_and_no_value():
    generic = named(GENERIC.format("int8", "false"))
    assert limits(generic) == (("hidden", 64, 8192),)
    assert bindings(generic) == {
        "group": 128,
        "hidden": None,
        "out_dtype": "int8",
        "round_sf": False,
    }


def test_a_parameter_bound_to_a_value_has_no_limits():
    assert limits(HOPPER[0]) == ()


def test_the_parameters_of_operator_and_backend_are_sorted_together():
    names = [parameter.name for parameter in parameters(expand(CAST, "ascend")[0])]
    assert names == ["group", "hidden", "num_vec_cores", "out_dtype", "round_sf"]


def test_the_dtype_of_a_tensor_is_resolved_in_each_variant():
    shown = [(item.name, item.dtype) for item in tensors(named(GENERIC.format("int8", "false")))]
    assert shown == [("x", "bfloat16"), ("data", "int8"), ("sf", "float32")]


def test_a_tensor_is_absent_where_its_condition_fails():
    present = tensors(named(GENERIC.format("float8_e4m3fn", "true")))
    assert [item.name for item in present] == ["x", "data"]
