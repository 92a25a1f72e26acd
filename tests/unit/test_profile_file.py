"""Profiles in files: what they select, and what is said about each way to get them wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from tilewheel_build.cli import main
from tilewheel_build.profile_file import is_profile_file, load_profile, parse_profile
from tilewheel_build.spec import SpecError, load_spec
from tilewheel_build.variant import expand, profiles_of, select

DATA = Path(__file__).resolve().parent / "data"
ROOT = Path(__file__).resolve().parents[2]
CAST = load_spec(DATA / "specs/quant/cast.yaml", root=DATA)
WHERE = "profiles/mine.yaml"


def errors_of(text: str | bytes, *, where: str = WHERE) -> tuple[str, ...]:
    with pytest.raises(SpecError) as caught:
        parse_profile(text, where=where, specs={"cast": CAST})
    return caught.value.errors


def keys_of(folder: Path, text: str, name: str = "mine.yaml") -> list[str]:
    """Return what a profile file selects of the cast for Hopper."""
    (folder / name).write_text(text)
    profile, (spec,) = load_profile(folder / name, [CAST])
    variants = select(expand(spec, "cuda", ["sm_90a"]), profile=profile, only=[])
    return [str(variant.key) for variant in variants]


def test_matches_are_those_of_specs(tmp_path):
    assert keys_of(tmp_path, "cast:\n  - {hidden: any, round_sf: true}\n  - {hidden: 4096}\n") == [
        "cast-group=32-hidden=4096-out_dtype=float8_e4m3fn-round_sf=false-cuda-sm_90a",
        "cast-group=32-hidden=4096-out_dtype=float8_e4m3fn-round_sf=true-cuda-sm_90a",
        "cast-group=32-hidden=4096-out_dtype=int8-round_sf=false-cuda-sm_90a",
        "cast-group=128-hidden=any-out_dtype=float8_e4m3fn-round_sf=true-cuda-sm_90a",
    ]


def test_all_takes_every_variant(tmp_path):
    assert len(keys_of(tmp_path, "cast: all")) == 9


def test_a_match_may_bind_a_parameter_of_one_backend(tmp_path):
    (tmp_path / "mine.yaml").write_text("cast: [{num_vec_cores: 64, hidden: any}]")
    profile, (spec,) = load_profile(tmp_path / "mine.yaml", [CAST])
    assert select(expand(spec, "cuda"), profile=profile, only=[]) == ()
    assert len(select(expand(spec, "ascend"), profile=profile, only=[])) == 2


def test_the_stem_of_the_file_is_the_name_of_the_profile(tmp_path):
    (tmp_path / "glm-4.5.yaml").write_text("cast: [{hidden: any}]")
    name, (spec,) = load_profile(tmp_path / "glm-4.5.yaml", [CAST])
    assert name == "glm-4.5"
    (generic, *_) = select(expand(spec, "cuda"), profile=name, only=["*-round_sf=true-*"])
    assert profiles_of(generic) == ("dev", "glm-4.5", "release")


def test_a_file_replaces_the_profile_of_its_name(tmp_path):
    assert keys_of(tmp_path, "cast: [{group: 128, hidden: 7168}]", "smoke.yaml") == [
        "cast-group=128-hidden=7168-out_dtype=float8_e4m3fn-round_sf=false-cuda-sm_90a",
        "cast-group=128-hidden=7168-out_dtype=float8_e4m3fn-round_sf=true-cuda-sm_90a",
        "cast-group=128-hidden=7168-out_dtype=int8-round_sf=false-cuda-sm_90a",
    ]


def test_an_operator_that_the_file_does_not_name_is_left_out(tmp_path):
    (tmp_path / "smoke.yaml").write_text("topk_gate: all")
    topk_gate = load_spec(ROOT / "specs/moe/topk_gate.yaml", root=ROOT)
    profile, specs = load_profile(tmp_path / "smoke.yaml", [CAST, topk_gate])
    variants = [variant for spec in specs for variant in expand(spec, "cuda", ["sm_90a"])]
    chosen = select(variants, profile=profile, only=[])
    assert {variant.spec.operator for variant in chosen} == {"topk_gate"}


@pytest.mark.parametrize(
    ("text", "is_file"),
    [
        ("mine.yaml", True),
        ("profiles/mine.yml", True),
        ("dev", False),
        ("deepseek-v4.1-flash", False),
        (None, False),
    ],
)
def test_a_path_ends_in_yaml(text, is_file):
    assert is_profile_file(text) is is_file


def test_every_error_is_reported_at_once_with_file_and_field():
    text = """\
casts: all
cast:
  - {hiden: 4096}
  - {hidden: 9000}
  - {hidden: 4096, group: 128}
  - {round_sf: yes}
  - {hidden: any}
  - {hidden: any}
  - {}
"""
    assert errors_of(text) == (
        "profiles/mine.yaml: casts: is an unknown operator, must be cast\nhint: write cast",
        "profiles/mine.yaml: cast[0].hiden: is an unknown parameter, must be one of hidden, "
        "out_dtype, round_sf, num_vec_cores, group\nhint: write hidden",
        "profiles/mine.yaml: cast[1].hidden: is 9000, must be at most 8192",
        "profiles/mine.yaml: cast[3].round_sf: is 'yes', must be true or false\nhint: write true",
        "profiles/mine.yaml: cast[6]: is an empty mapping, "
        "must be a mapping that binds a parameter",
        "profiles/mine.yaml: cast[5]: is the same as cast[4], must be unique",
        "profiles/mine.yaml: cast[2]: matches nothing (group=128 hidden=4096), "
        "must match a binding of the spec",
    )


@pytest.mark.parametrize("node", ["[]", "every", "{hidden: any}", "4096", "~"])
def test_anything_but_all_or_a_list_is_refused(node):
    (error,) = errors_of(f"cast: {node}")
    assert error.startswith("profiles/mine.yaml: cast: is ")
    assert error.endswith(", must be all or a non-empty list of matches")


@pytest.mark.parametrize(
    ("text", "shown"), [("", "empty"), ("[cast]", "a list"), ("all", "'all'"), ("{}", None)]
)
def test_a_file_without_operators_is_refused(text, shown):
    demand = "must be a non-empty mapping from operator to matches"
    assert errors_of(text) == (f"{WHERE}: is {shown or 'an empty mapping'}, {demand}",)


def test_yaml_that_specs_may_not_hold_is_refused():
    assert errors_of("cast: &a all\ncast: all\n") == (
        "profiles/mine.yaml: cast: has the anchor &a (line 1), must be plain data\n"
        "hint: remove the anchor",
        "profiles/mine.yaml: cast: is written twice (lines 1 and 2), must be written once\n"
        "hint: remove or rename one of them",
    )
    assert errors_of("cast: [") == (
        "profiles/mine.yaml: is not YAML at line 1 "
        "(expected the node content, but found '<stream end>'), must be YAML 1.2",
    )


def test_a_file_whose_name_is_none_of_a_profile_is_refused():
    assert errors_of("cast: all", where="My Model.yaml") == (
        "My Model.yaml: has the name 'My Model', must be made of [a-z0-9.-]",
    )


def test_every_command_that_selects_takes_a_file(tmp_path, capsys):
    path = tmp_path / "mine.yaml"
    path.write_text("topk_gate: [{num_experts: 72}]")
    options = ["--profile", str(path), "--target", "cuda", "--archs", "sm_90a"]
    assert main(["list", *options]) == 0
    key = "topk_gate-num_experts=72-num_topk=6-cuda-sm_90a"
    assert capsys.readouterr().out == f"{key}\n"
    assert main(["list", *options, "--shard", "1/1"]) == 0
    assert capsys.readouterr().out == f"{key}\n"


def test_a_file_that_is_missing_or_wrong_ends_with_2(tmp_path, capsys):
    path = tmp_path / "mine.yaml"
    assert main(["list", "--profile", str(path)]) == 2
    assert capsys.readouterr().err == (
        f"{path}: cannot be read (No such file or directory), must be a readable file\n"
    )
    path.write_text("topk_gate: [{num_experts: 2048}]")
    assert main(["list", "--profile", str(path)]) == 2
    assert capsys.readouterr().err == (
        f"{path}: topk_gate[0].num_experts: is 2048, must be at most 1024\n"
    )


def test_a_file_that_names_nothing_of_the_target_selects_nothing(tmp_path, capsys):
    path = tmp_path / "mine.yaml"
    path.write_text("randn: all")
    assert main(["list", "--profile", str(path), "--target", "cuda"]) == 3
    assert capsys.readouterr().err == (
        "nothing selected: no variant fits target, archs, profile and globs\n"
    )
