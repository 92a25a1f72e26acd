"""The launcher's source and the argument list, made from a spec and a lowered kernel as values."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tilewheel.manifest import Argument
from tilewheel_build.c_expression import Extent
from tilewheel_build.errors import LoweringError
from tilewheel_build.launcher import (
    LauncherFacts,
    arguments,
    check_contract,
    effective_alignment,
    launcher_source,
)
from tilewheel_build.lower import Lowered, LoweredScalar, LoweredTensor
from tilewheel_build.spec import parse_spec
from tilewheel_build.variant import Variant, expand

SPEC = """\
operator: scale
family: probe
summary: A row times a factor.
source: original
parameters:
  hidden: {type: int, minimum: 64, maximum: 4096, multiple_of: 32, meaning: elements of one row}
  with_bias: {type: bool, meaning: whether a bias is added}
points:
  - {hidden: 128, with_bias: false}
  - {hidden: any, with_bias: true}
profiles: {smoke: all, dev: all, release: all}
dimensions:
  num_tokens: {meaning: rows, minimum: 1, maximum: 1000}
tensors:
  x: {role: in, dtype: float32, shape: [num_tokens, hidden], alignment: 16, meaning: rows}
  bias:
    {role: in, dtype: float32, shape: [hidden], alignment: 16, when: {with_bias: true}, meaning: b}
  y: {role: out, dtype: float32, shape: [num_tokens, hidden], alignment: 16, meaning: result}
scalars:
  factor: {dtype: float32, minimum: 0.5, meaning: multiplies}
  shift: {dtype: int64, maximum: 9, meaning: is added}
backends:
  cuda: {kernel: probe/scale_cuda.py, archs: [sm_90a]}
"""

FIXED, ANY = expand(parse_spec(SPEC, where="specs/probe/scale.yaml"), "cuda")

TOKENS = Extent(text="dim_num_tokens", symbol="num_tokens")
WIDTH = Extent(text="dim_hidden", symbol="hidden")
WIDTH_128 = Extent(text="128", constant=128)
CHUNKS = Extent(text="(64 * dim_c)", symbol="c", factor=64)

FACTS = LauncherFacts(
    template="launcher_cuda.c.j2",
    device_name="a CUDA device",
    image_file="kernel.cubin",
    minimum_driver="580",
)


def tensor(name: str, *shape: Extent, **changes: Any) -> LoweredTensor:
    return replace(LoweredTensor(name=name, dtype="float32", shape=shape, strides=()), **changes)


def lowered(*tensors: LoweredTensor, **changes: Any) -> Lowered:
    values: dict[str, Any] = {
        "source": "",
        "kernel": "scale_kernel",
        "tensors": tensors,
        "scalars": (
            LoweredScalar(name="factor", dtype="float32"),
            LoweredScalar(name="shift", dtype="int64"),
        ),
        "parameters": (),
        "grid": ("dim_num_tokens", "1", "1"),
        "block": (64, 1, 1),
        "dynamic_shared_bytes": 0,
        "pdl": False,
        "warnings": (),
    }
    return Lowered(**{**values, **changes})


X, BIAS, Y = tensor("x", TOKENS, WIDTH), tensor("bias", WIDTH), tensor("y", TOKENS, WIDTH)
KERNEL = lowered(X, BIAS, Y)
KERNEL_128 = lowered(tensor("x", TOKENS, WIDTH_128), tensor("y", TOKENS, WIDTH_128))


def problems(variant: Variant, kernel: Lowered) -> list[str]:
    with pytest.raises(LoweringError) as caught:
        check_contract(variant, kernel)
    return [line.removeprefix(f"{variant.key}: ") for line in str(caught.value).splitlines()]


def test_arguments_are_tensors_then_scalars_then_numbers_of_the_device() -> None:
    sms = LoweredScalar(name="num_sms", dtype="int32")
    kernel = replace(KERNEL_128, scalars=(*KERNEL_128.scalars, sms))
    assert arguments(FIXED, kernel) == (
        Argument(name="x", kind="tensor", dtype="float32", shape=("num_tokens", 128)),
        Argument(name="bias", kind="tensor", dtype="none"),
        Argument(name="y", kind="tensor", dtype="float32", role="out", shape=("num_tokens", 128)),
        Argument(name="factor", kind="scalar", dtype="float32"),
        Argument(name="shift", kind="scalar", dtype="int64"),
        Argument(name="num_sms", kind="device", dtype="int32"),
    )


def test_size_that_is_decided_at_run_time_stands_by_its_name() -> None:
    assert [item.shape for item in arguments(ANY, KERNEL)] == [
        ("num_tokens", "hidden"),
        ("hidden",),
        ("num_tokens", "hidden"),
        (),
        (),
    ]


def test_kernel_that_keeps_its_contract_has_no_problem() -> None:
    check_contract(ANY, KERNEL)
    check_contract(FIXED, KERNEL_128)


def test_tensors_must_be_the_specs_in_its_order() -> None:
    assert problems(ANY, lowered(X, Y, BIAS)) == [
        "the kernel's tensors are x, y, bias, must be the spec's, in its order: x, bias, y"
    ]
    assert problems(FIXED, lowered(X, BIAS, Y)) == [
        "the kernel's tensors are x, bias, y, must be the spec's, in its order: x, y"
    ]


def test_every_difference_from_the_spec_is_reported_at_once() -> None:
    kernel = lowered(
        tensor("x", TOKENS, WIDTH, dtype="float16"),
        tensor("bias", TOKENS, WIDTH),
        tensor("y", TOKENS, WIDTH_128, strides=(WIDTH, Extent(text="1", constant=1))),
        scalars=(
            LoweredScalar(name="factor", dtype="float64"),
            LoweredScalar(name="speed", dtype="int32"),
        ),
    )
    assert problems(ANY, kernel) == [
        "x is float16 in the kernel, must be float32",
        "bias is 2-dimensional in the kernel, must be 1-dimensional",
        "y has run-time strides in the kernel, must be row_major",
        "y.shape[1] is 128 in the kernel, must be run-time",
        "scalar factor is float64 in the kernel, must be float32",
        "scalar shift is missing in the kernel, must be int64",
        "scalar speed of the kernel is not in the spec, must be one of its scalars or of the "
        "device numbers (num_sms)",
    ]


def test_fixed_size_must_be_the_keys() -> None:
    kernel = lowered(
        tensor("x", TOKENS, WIDTH), tensor("y", TOKENS, Extent(text="64", constant=64))
    )
    assert problems(FIXED, kernel) == [
        "x.shape[1] is dim_hidden in the kernel, must be 128",
        "y.shape[1] is 64 in the kernel, must be 128",
    ]


@pytest.mark.parametrize(
    ("shape", "alignment"),
    [
        ((TOKENS, WIDTH_128), 16),
        ((TOKENS, CHUNKS), 16),
        ((TOKENS, Extent(text="6", constant=6)), 8),
        ((TOKENS, Extent(text="3", constant=3)), 4),
        ((TOKENS, Extent(text="3", constant=3), Extent(text="2", constant=2)), 8),
        ((TOKENS, WIDTH), 4),
        ((TOKENS,), 16),
    ],
)
def test_alignment_is_what_every_slice_of_rows_keeps(
    shape: tuple[Extent, ...], alignment: int
) -> None:
    declared = FIXED.spec.tensors[0]
    assert effective_alignment(declared, tensor("x", *shape)) == alignment


def test_strided_tensor_keeps_the_specs_alignment() -> None:
    strides = (Extent(text="dim_s", symbol="s"), Extent(text="1", constant=1))
    declared = FIXED.spec.tensors[0]
    assert effective_alignment(declared, tensor("x", TOKENS, WIDTH, strides=strides)) == 16


def test_alignment_is_never_less_than_an_element() -> None:
    strides = (Extent(text="dim_s", symbol="s"), Extent(text="1", constant=1))
    declared = replace(FIXED.spec.tensors[0], alignment=2)
    assert effective_alignment(declared, tensor("x", TOKENS, WIDTH, strides=strides)) == 4
    assert effective_alignment(declared, tensor("x", TOKENS, WIDTH_128)) == 4
    assert effective_alignment(declared, tensor("x", TOKENS)) == 4


def lines(variant: Variant, kernel: Lowered) -> list[str]:
    return [line.strip() for line in launcher_source(variant, kernel, FACTS).splitlines()]


@pytest.mark.parametrize(
    "line",
    [
        # A value comes from the first size that has it; later ones are compared with it.
        "const int64_t dim_hidden = tensor_x->shape[1];",
        "if (tensor_bias->shape[0] != dim_hidden) {",
        "if (tensor_y->shape[1] != dim_hidden) {",
        # Ranges of the spec: of a parameter, of a dimension, of scalars.
        "if (tensor_x->shape[1] < 64 || tensor_x->shape[1] > 4096) {",
        "if (tensor_x->shape[0] < 1 || tensor_x->shape[0] > 1000) {",
        "if (tensor_x->shape[1] % 32 != 0) {",
        "if (!(value_factor >= 0.5)) {",
        'if (read_integer(&args[4], "shift", INT64_MIN, INT64_C(9), &dim_shift)) return -1;',
    ],
)
def test_launcher_checks_sizes_and_scalars(line: str) -> None:
    assert lines(ANY, KERNEL).count(line) == 1


def test_bound_that_the_spec_does_not_set_is_not_checked() -> None:
    assert not [line for line in lines(ANY, KERNEL) if line.startswith("if (!(value_factor <=")]


def test_size_that_is_a_multiple_gives_its_factor() -> None:
    kernel = lowered(
        tensor("x", TOKENS, CHUNKS), tensor("bias", CHUNKS), tensor("y", TOKENS, CHUNKS)
    )
    found = lines(ANY, kernel)
    assert "const int64_t dim_c = tensor_x->shape[1] / 64;" in found
    assert "if (tensor_bias->shape[0] != (64 * dim_c)) {" in found


def test_run_time_stride_is_read_where_dlpack_may_leave_it_out() -> None:
    strides = (Extent(text="dim_s", symbol="s"), Extent(text="1", constant=1))
    kernel = lowered(tensor("x", TOKENS, WIDTH_128, strides=strides), KERNEL_128.tensors[1])
    found = lines(FIXED, kernel)
    assert "const int64_t dim_s = stride_of(tensor_x, 0);" in found
    assert "if (stride_of(tensor_x, 1) != 1 && !is_empty(tensor_x)) {" in found


def test_size_that_the_device_takes_in_32_bits_is_limited() -> None:
    kernel = replace(KERNEL, parameters=(LoweredScalar(name="hidden", dtype="int32"),))
    assert "if (dim_hidden < 0 || dim_hidden > 2147483647) {" in lines(ANY, kernel)
    wide = replace(KERNEL, parameters=(LoweredScalar(name="hidden", dtype="int64"),))
    assert "if (dim_hidden < 0 || dim_hidden > 2147483647) {" not in lines(ANY, wide)


def test_parameter_of_the_device_function_has_its_type() -> None:
    kernel = replace(
        KERNEL,
        parameters=(
            LoweredScalar(name="x", dtype="handle"),
            LoweredScalar(name="factor", dtype="float32"),
            LoweredScalar(name="num_tokens", dtype="int32"),
        ),
    )
    found = lines(ANY, kernel)
    assert "void * parameter_x = data_of(tensor_x);" in found
    assert "float parameter_factor = (float)value_factor;" in found
    assert "int32_t parameter_num_tokens = (int32_t)dim_num_tokens;" in found


def test_size_that_nothing_gives_is_refused() -> None:
    other = Extent(text="(dim_z + 1)")
    kernel = lowered(tensor("x", TOKENS, other), BIAS, Y)
    with pytest.raises(LoweringError) as caught:
        launcher_source(ANY, kernel, FACTS)
    assert str(caught.value) == (
        f"{ANY.key}: x.shape[1] is computed from z, which no size or scalar gives"
    )


def test_run_time_parameter_that_nothing_carries_is_refused() -> None:
    spec = SPEC.replace("shape: [num_tokens, hidden]", "shape: [num_tokens, 64]")
    spec = spec.replace("shape: [hidden]", "shape: [64]")
    variant = expand(parse_spec(spec, where="specs/probe/scale.yaml"), "cuda")[1]
    with pytest.raises(LoweringError) as caught:
        launcher_source(variant, KERNEL, FACTS)
    assert str(caught.value) == (
        f"{variant.key}: hidden is decided at run time, but no tensor size or scalar carries it"
    )
