"""Reading a spec: what it becomes, and what is said about each way to get it wrong."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from tilewheel_build.spec import (
    Backend,
    Dimension,
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
WHERE = "specs/quant/cast.yaml"
CAST = """\
operator: cast
family: quant
summary: Casts each token with one scale for each group of channels.
source: original
parameters:
  hidden: {type: int, minimum: 64, maximum: 8192, multiple_of: 64, meaning: channels}
  group: {type: int, choices: [32, 128], meaning: channels of one scale}
  round_sf: {type: bool, meaning: whether scales are powers of two}
  out_dtype: {type: string, choices: [float8_e4m3fn, int8], meaning: dtype of data}
points:
  - {hidden: 4096, group: 32}
  - {hidden: 7168, group: 128}
  - {hidden: any, group: 128}
grid:
  round_sf: [false, true]
  out_dtype: [float8_e4m3fn, int8]
exclude:
  - {round_sf: true, out_dtype: int8}
profiles:
  smoke: [{hidden: 4096}]
  dev: [{hidden: 4096}, {hidden: any}]
  release: all
  generic: [{hidden: any, round_sf: false}]
dimensions:
  num_tokens: {meaning: tokens of the batch}
  num_groups: {minimum: 1, maximum: 128, meaning: scales of one token}
tensors:
  x:
    role: in
    dtype: bfloat16
    shape: [num_tokens, hidden]
    alignment: 2
    layout: strided
    meaning: values
  data: {role: out, dtype: out_dtype, shape: [num_tokens, hidden], alignment: 16, meaning: cast}
  sf:
    role: out
    dtype: float32
    shape: [num_tokens, num_groups]
    alignment: 16
    when: {round_sf: false}
    meaning: scales
scalars:
  clamp_min: {dtype: float32, minimum: 0, meaning: least absolute maximum}
  seed: {dtype: int64, meaning: seed}
backends:
  cuda:
    kernel: quant/cast_cuda.py
    archs: [sm_90a, sm_100a]
  ascend:
    kernel: quant/cast_ascend.py
    archs: [dav_3510]
    parameters:
      num_vec_cores: {type: int, minimum: 1, maximum: 256, values: [any, 64], meaning: cores}
    exclude:
      - {group: 128, out_dtype: int8}
"""


def errors_of(text: str | bytes, *, where: str = WHERE) -> tuple[str, ...]:
    with pytest.raises(SpecError) as caught:
        parse_spec(text, where=where)
    return caught.value.errors


def errors_after(old: str, new: str) -> tuple[str, ...]:
    assert CAST.count(old) >= 1
    return tuple(error.removeprefix(f"{WHERE}: ") for error in errors_of(CAST.replace(old, new, 1)))


def write(root: Path, path: str, text: str) -> Path:
    target = root / path
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text, encoding="utf-8")
    return target


def test_a_spec_becomes_values():
    spec = parse_spec(CAST, where=WHERE)
    assert spec.path == "specs/quant/cast.yaml"
    assert (spec.operator, spec.family, spec.source, spec.notes) == (
        "cast",
        "quant",
        "original",
        "",
    )
    assert spec.parameters[0] == Parameter(
        name="hidden", type="int", minimum=64, maximum=8192, multiple_of=64, meaning="channels"
    )
    assert spec.parameters[1].choices == (32, 128)
    assert spec.points[2] == (("group", 128), ("hidden", "any"))
    assert spec.grid == (("round_sf", (False, True)), ("out_dtype", ("float8_e4m3fn", "int8")))
    assert spec.exclude == ((("out_dtype", "int8"), ("round_sf", True)),)
    assert spec.profiles[2] == Profile(name="release", matches=((),))
    assert spec.dimensions[0] == Dimension(name="num_tokens", meaning="tokens of the batch")
    assert spec.tensors[0] == Tensor(
        name="x",
        role="in",
        dtype="bfloat16",
        shape=("num_tokens", "hidden"),
        alignment=2,
        layout="strided",
        meaning="values",
    )
    assert spec.tensors[2].when == (("round_sf", False),)
    assert spec.scalars[0] == Scalar(
        name="clamp_min", dtype="float32", minimum=0, meaning="least absolute maximum"
    )
    assert spec.backends[0] == Backend(
        name="cuda", kernel="quant/cast_cuda.py", archs=("sm_90a", "sm_100a")
    )
    assert spec.backends[1].parameters[0].values == ("any", 64)
    assert spec.backends[1].exclude == ((("group", 128), ("out_dtype", "int8")),)


def test_a_spec_is_hashable_and_survives_pickling():
    spec = parse_spec(CAST, where=WHERE)
    assert pickle.loads(pickle.dumps(spec)) == spec
    assert len({spec, parse_spec(CAST.encode(), where=WHERE)}) == 1


def test_an_operator_without_parameters_needs_neither_points_nor_grid():
    text = CAST[: CAST.index("parameters:")] + (
        "profiles: {smoke: all, dev: all, release: all}\n"
        "tensors: {x: {role: inout, dtype: int8, shape: [8], alignment: 1, meaning: values}}\n"
        "backends: {cuda: {kernel: cast.py, archs: [sm_90a]}}\n"
    )
    assert parse_spec(text, where=WHERE).points == ()


def test_every_spec_of_the_repository_is_valid():
    assert "topk_gate" in [spec.operator for spec in load_specs(ROOT)]


FIELDS = [
    ("type: int, min", "type: integer, min", ["X"]),
]
