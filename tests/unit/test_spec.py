"""Reading a spec: what it becomes, and what is said about each way to get it wrong."""

from __future__ import annotations

import pickle
import re
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewheel_build.spec import (
    Backend,
    Dimension,
    OperatorSpec,
    Parameter,
    Profile,
    Scalar,
    SpecError,
    Tensor,
    check_kernel_files,
    load_spec,
    load_specs,
    parse_spec,
)

ROOT = Path(__file__).resolve().parents[2]
DATA = Path(__file__).resolve().parent / "data"
WHERE = "specs/quant/cast.yaml"
CAST = (DATA / WHERE).read_text(encoding="utf-8")
# fmt: off
ODD_VALUES = (
    "", "~", "[]", "{}", "[~]", "[[1]]", "[{}]", "{a: 1}", "[any, {}]", "{hidden: {}}",
    "[{hidden: [1]}]", "{smoke: 1}", "? [1]", "x: 1", "*a", "&a", "!a", "<<", "any", "all",
    ".inf", ".nan", "1e400", "1.5", "-1", "0", "true",
)
# fmt: on
TOKENS = list(re.finditer(r"\{[^{}\n]*\}|\[[^\[\]\n]*\]|(?<=: )[\w.]+|\w+(?=:)", CAST))


def cases() -> list[object]:
    """Return (old, new, findings) of each block of cast_errors.txt."""
    found = []
    for block in (DATA / "cast_errors.txt").read_text(encoding="utf-8").strip().split("\n\n")[1:]:
        lines = block.split("\n")
        old = "\n".join(line[2:] for line in lines if line.startswith("- "))
        new = "\n".join(line[2:] for line in lines if line.startswith("+ "))
        said = "\n".join(line for line in lines if line[:2] not in ("- ", "+ "))
        found.append(pytest.param(old, new, said, id=said.split(",")[0].replace("\n", " ")))
    return found


def errors_of(text: str, *, where: str = WHERE) -> tuple[str, ...]:
    with pytest.raises(SpecError) as caught:
        parse_spec(text, where=where)
    return caught.value.errors


def errors_below(root: Path) -> tuple[str, ...]:
    with pytest.raises(SpecError) as caught:
        load_specs(root)
    return caught.value.errors


def write(root: Path, path: str, text: str) -> Path:
    target = root / path
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text, encoding="utf-8")
    return target


@pytest.fixture(scope="module")
def cast() -> OperatorSpec:
    return load_spec(DATA / WHERE, root=DATA)


def test_the_texts_of_an_operator_are_kept(cast):
    assert (cast.operator, cast.family, cast.source) == ("cast", "quant", "original")
    assert cast.summary == "Casts each token with one scale for each group of channels."
    assert cast.notes == "Exact on every backend."
    assert cast.path == "specs/quant/cast.yaml"


def test_parameters_keep_the_order_of_the_file(cast):
    assert cast.parameters == (
        Parameter(
            name="hidden", type="int", minimum=64, maximum=8192, multiple_of=64, meaning="channels"
        ),
        Parameter(name="group", type="int", choices=(32, 128), meaning="channels of one scale"),
        Parameter(name="round_sf", type="bool", meaning="whether scales are powers of two"),
        Parameter(
            name="out_dtype",
            type="string",
            choices=("float8_e4m3fn", "int8"),
            meaning="dtype of data",
        ),
    )


def test_points_grid_and_exclude_are_sorted_pairs(cast):
    assert cast.points == (
        (("group", 32), ("hidden", 4096)),
        (("group", 128), ("hidden", 7168)),
        (("group", 128), ("hidden", "any")),
    )
    assert cast.grid == (("round_sf", (False, True)), ("out_dtype", ("float8_e4m3fn", "int8")))
    assert cast.exclude == ((("out_dtype", "int8"), ("round_sf", True)),)


def test_the_profile_all_is_one_empty_match(cast):
    assert cast.profiles == (
        Profile(name="smoke", matches=((("hidden", 4096),),)),
        Profile(name="dev", matches=((("hidden", 4096),), (("hidden", "any"),))),
        Profile(name="release", matches=((),)),
        Profile(name="generic", matches=((("hidden", "any"), ("round_sf", False)),)),
    )


def test_arguments_keep_the_order_of_the_file(cast):
    assert cast.dimensions == (
        Dimension(name="num_tokens", meaning="tokens of the batch"),
        Dimension(name="num_groups", minimum=1, maximum=128, meaning="scales of one token"),
    )
    assert [tensor.name for tensor in cast.tensors] == ["x", "data", "sf"]
    assert cast.tensors[0] == Tensor(
        name="x",
        role="in",
        dtype="bfloat16",
        shape=("num_tokens", "hidden"),
        alignment=2,
        layout="strided",
        meaning="values",
    )
    assert cast.tensors[2].when == (("round_sf", False),)
    assert cast.scalars == (
        Scalar(name="clamp_min", dtype="float32", minimum=0, meaning="least absolute maximum"),
        Scalar(name="seed", dtype="int64", choices=(0, 7), meaning="seed"),
    )


def test_a_backend_may_have_parameters_of_its_own(cast):
    assert cast.backends == (
        Backend(name="cuda", kernel="quant/cast_cuda.py", archs=("sm_90a", "sm_100a")),
        Backend(
            name="ascend",
            kernel="quant/cast_ascend.py",
            archs=("dav_3510",),
            parameters=(
                Parameter(
                    name="num_vec_cores",
                    type="int",
                    minimum=1,
                    maximum=256,
                    values=("any", 64),
                    meaning="cores",
                ),
            ),
            exclude=((("group", 128), ("out_dtype", "int8")),),
        ),
    )


def test_a_spec_is_hashable_and_survives_pickling(cast):
    assert pickle.loads(pickle.dumps(cast)) == cast
    assert len({cast, parse_spec(CAST.encode(), where=WHERE)}) == 1


def test_an_operator_without_parameters_needs_neither_points_nor_grid():
    text = CAST[: CAST.index("parameters:")] + (
        "profiles: {smoke: all, dev: all, release: all}\n"
        "tensors: {x: {role: inout, dtype: int8, shape: [8], alignment: 1, meaning: values}}\n"
        "backends: {cuda: {kernel: cast.py, archs: [sm_90a]}}\n"
    )
    assert parse_spec(text, where=WHERE).points == ()


@pytest.mark.parametrize(("old", "new", "said"), cases())
def test_a_broken_field_is_named_with_what_it_must_be(old, new, said):
    assert old in CAST
    errors = errors_of(CAST.replace(old, new, 1))
    assert "\n".join(error.removeprefix(f"{WHERE}: ") for error in errors) == said


@settings(max_examples=300, deadline=None)
@given(
    st.integers(min_value=0, max_value=len(TOKENS) - 1),
    st.sampled_from(ODD_VALUES),
)
def test_no_value_makes_the_parser_fail_otherwise(position, value):
    token = TOKENS[position]
    text = f"{CAST[: token.start()]}{value}{CAST[token.end() :]}"
    with suppress(SpecError):
        assert isinstance(parse_spec(text, where=WHERE), OperatorSpec)


def test_an_error_carries_the_file_the_field_and_the_rule():
    text = CAST.replace("hidden: 7168", "hidden: 9000")
    assert errors_of(text) == (
        "specs/quant/cast.yaml: points[1].hidden: is 9000, must be at most 8192",
    )


def test_all_errors_of_a_file_are_reported_at_once():
    text = (
        CAST.replace("source: original", "source: 1.0")
        .replace("group: 32}", "group: 16}")
        .replace("alignment: 2", "alignment: 3")
        .replace("sm_100a", "sm_70")
        .replace("release: all", "release: []")
    )
    assert [error.split(", must")[0] for error in errors_of(text)] == [
        "specs/quant/cast.yaml: source: is 1.0",
        "specs/quant/cast.yaml: backends.cuda.archs[1]: is 'sm_70'",
        "specs/quant/cast.yaml: points[0].group: is 16",
        "specs/quant/cast.yaml: profiles.release: is an empty list",
        "specs/quant/cast.yaml: tensors.x.alignment: is 3",
    ]


def test_a_broken_tensor_does_not_hide_a_profile_that_matches_nothing():
    text = CAST.replace("alignment: 2", "alignment: 3").replace("hidden: any, r", "hidden: 64, r")
    assert len(errors_of(text)) == 2


def test_the_text_of_the_exception_is_its_errors_by_line():
    error = SpecError(["a: is b, must be c", "d: is e, must be f"])
    assert str(error) == "a: is b, must be c\nd: is e, must be f"
    assert pickle.loads(pickle.dumps(error)).errors == error.errors


def test_a_key_that_is_too_long_is_an_error_of_the_spec():
    text = CAST.replace("num_vec_cores", "n" * 120)
    (error,) = errors_of(text)
    assert error.startswith("specs/quant/cast.yaml: backends.ascend: key: is 209 characters, must")


def test_a_grid_that_explodes_is_refused_before_it_is_expanded():
    values = ", ".join(str(i) for i in range(1, 1001))
    text = CAST.replace("256, values: [any, 64]", f"4096, values: [{values}]")
    assert errors_of(text) == (
        "specs/quant/cast.yaml: backends.ascend: has 12000 bindings, must have at most 10000",
    )


def test_every_spec_of_the_repository_is_valid():
    assert "topk_gate" in [spec.operator for spec in load_specs(ROOT)]


def test_specs_are_sorted_by_path(tmp_path):
    write(tmp_path, "specs/quant/cast.yaml", CAST)
    write(
        tmp_path,
        "specs/moe/cast_back.yaml",
        CAST.replace("cast\nfamily: quant", "cast_back\nfamily: moe"),
    )
    assert [spec.path for spec in load_specs(tmp_path)] == [
        "specs/moe/cast_back.yaml",
        "specs/quant/cast.yaml",
    ]


def test_errors_of_all_files_are_reported_together(tmp_path):
    write(tmp_path, "specs/quant/cast.yaml", CAST.replace("alignment: 2", "alignment: 3"))
    write(tmp_path, "specs/moe/empty.yaml", "")
    assert errors_below(tmp_path) == (
        "specs/moe/empty.yaml: is empty, must be a mapping",
        "specs/quant/cast.yaml: tensors.x.alignment: is 3, must be a power of two from 1 to 128",
    )


def test_two_specs_of_one_operator_are_refused(tmp_path):
    write(tmp_path, "specs/quant/cast.yaml", CAST)
    write(tmp_path, "specs/moe/cast.yaml", CAST.replace("family: quant", "family: moe"))
    assert errors_below(tmp_path) == (
        "specs/quant/cast.yaml: operator: is cast, must differ from that of specs/moe/cast.yaml",
    )


def test_a_spec_outside_a_family_or_with_another_suffix_is_refused(tmp_path):
    write(tmp_path, "specs/cast.yaml", CAST)
    write(tmp_path, "specs/quant/cast.yml", CAST)
    assert errors_below(tmp_path) == (
        "specs/cast.yaml: is misplaced, must be specs/<family>/<operator>.yaml",
        "specs/quant/cast.yml: is misplaced, must be specs/<family>/<operator>.yaml",
    )


def test_a_tree_without_specs_is_refused(tmp_path):
    assert errors_below(tmp_path) == ("specs: has no spec, must have specs/<family>/*.yaml",)


def test_a_spec_that_cannot_be_read_is_refused(tmp_path):
    (tmp_path / "specs/quant/cast.yaml").mkdir(parents=True)
    assert errors_below(tmp_path) == (
        "specs/quant/cast.yaml: cannot be read (Is a directory), must be a readable file",
    )


def test_every_kernel_file_that_is_missing_is_named(tmp_path, cast):
    write(tmp_path, "kernels/tilewheel_kernels/quant/casts_cuda.py", "")
    with pytest.raises(SpecError) as caught:
        check_kernel_files([cast], root=tmp_path)
    assert caught.value.errors == (
        "specs/quant/cast.yaml: backends.cuda.kernel: is 'quant/cast_cuda.py', "
        "must be a file below kernels/tilewheel_kernels\nhint: write quant/casts_cuda.py",
        "specs/quant/cast.yaml: backends.ascend.kernel: is 'quant/cast_ascend.py', "
        "must be a file below kernels/tilewheel_kernels\nhint: write quant/casts_cuda.py",
    )


def test_kernel_files_that_exist_are_accepted(tmp_path, cast):
    write(tmp_path, "kernels/tilewheel_kernels/quant/cast_cuda.py", "")
    write(tmp_path, "kernels/tilewheel_kernels/quant/cast_ascend.py", "")
    check_kernel_files([cast], root=tmp_path)
