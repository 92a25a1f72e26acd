"""vcvt: every bit pattern of the small formats, and ties, neighbours of ties and special values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

Array = np.ndarray[Any, Any]

CTYPES = {
    "float32": "float",
    "float16": "half",
    "bfloat16": "bfloat16_t",
    "e4m3": "fp8_e4_t",
    "e5m2": "fp8_e5_t",
    "e2m1": "float4_e2m1x2_t",
    "int64": "int64_t",
    "int32": "int32_t",
    "int16": "int16_t",
    "int8": "int8_t",
    "uint32": "uint32_t",
    "uint16": "uint16_t",
    "uint8": "uint8_t",
}
DTYPES: dict[str, Any] = {
    "float32": np.float32,
    "float16": np.float16,
    "bfloat16": ml_dtypes.bfloat16,
    "e4m3": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2,
    "int64": np.int64,
    "int32": np.int32,
    "int16": np.int16,
    "int8": np.int8,
    "uint32": np.uint32,
    "uint16": np.uint16,
    "uint8": np.uint8,
}
WIDTH = {name: np.dtype(dtype).itemsize for name, dtype in DTYPES.items()} | {"e2m1": 1}
ROUNDINGS = {"R": "nearest_even", "A": "nearest_away", "F": "floor", "C": "ceil", "Z": "zero"}

# (source, target, control tags); the part is always the first.
CASES = [
    ("float32", "bfloat16", "ROUND_R, RS_ENABLE, PART_EVEN"),
    ("float32", "float16", "ROUND_R, RS_ENABLE, PART_EVEN"),
    ("float32", "e4m3", "ROUND_R, RS_ENABLE, PART_P0"),
    ("float32", "e5m2", "ROUND_R, RS_ENABLE, PART_P0"),
    ("bfloat16", "float32", "PART_EVEN"),
    ("float16", "float32", "PART_EVEN"),
    ("e4m3", "float32", "PART_P0"),
    ("e5m2", "float32", "PART_P0"),
    ("bfloat16", "e2m1", "ROUND_R, PART_P0"),
    ("e2m1", "bfloat16", "PART_P0"),
    ("bfloat16", "float16", "RS_ENABLE, ROUND_R"),
    ("float16", "bfloat16", "ROUND_R"),
    ("int32", "float32", "ROUND_R"),
    ("int64", "float32", "ROUND_R, PART_EVEN"),
    ("int16", "float32", "PART_EVEN"),
    ("int32", "int16", "RS_ENABLE, PART_EVEN"),
    ("int32", "uint8", "RS_ENABLE, PART_P0"),
    ("uint32", "uint8", "RS_ENABLE, PART_P0"),
    ("int64", "int32", "RS_ENABLE, PART_EVEN"),
    ("int8", "int32", "PART_P0"),
    ("uint8", "uint16", "PART_EVEN"),
    ("int32", "int64", "PART_EVEN"),
    ("float32", "int64", "ROUND_Z, RS_ENABLE, PART_EVEN"),
    ("float32", "int16", "ROUND_R, RS_ENABLE, PART_EVEN"),
    ("float32", "bfloat16", "ROUND_R, RS_DISABLE, PART_EVEN"),
    ("float32", "e4m3", "ROUND_R, RS_DISABLE, PART_P0"),
    *(("float32", "int32", f"ROUND_{letter}, RS_ENABLE") for letter in "RAFCZ"),
    *(("float32", "bfloat16", f"ROUND_{letter}, RS_ENABLE, PART_EVEN") for letter in "AFCZ"),
    *(("float32", "float16", f"ROUND_{letter}, RS_ENABLE, PART_EVEN") for letter in "AFCZO"),
    *(("int32", "float32", f"ROUND_{letter}") for letter in "AFCZ"),
]


def case_name(source: str, target: str, tags: str) -> str:
    return f"cvt_{source}_{target}_" + tags.replace(", ", "_")


@pytest.fixture(scope="session")
def convert(vector_op: Any, compile_ops: Any) -> Callable[..., Array]:
    """Convert an array of source elements; the result has one target element for each."""
    ops = {}
    for source, target, tags in CASES:
        mask = (
            f"m{8 * max(WIDTH[source], WIDTH[target])}" if "int64" not in (source, target) else "m8"
        )
        if "e2m1" in (source, target):
            mask = "m32"
        ctype_in, ctype_out = CTYPES[source], CTYPES[target]
        stored = {"fp8_e5_t": "uint8_t", "float4_e2m1x2_t": "uint8_t"}.get(ctype_out, ctype_out)
        body = (
            f"  auto v = simd_inst::vlds_norm<{ctype_in}>(a_ub, 0);\n"
            f"  auto r = simd_inst::vcvt<{ctype_out}>(v, {mask}, {tags}, MODE_ZEROING);\n"
            f"  asc_storealign(({stored}*)out_ub, r, 0, m8);"
        )
        name = case_name(source, target, tags)
        ops[name] = vector_op(name, (ctype_in,), stored, body)
    program = compile_ops(list(ops.values()))

    def run(source: str, target: str, tags: str, values: Array) -> Array:
        op = ops[case_name(source, target, tags)]
        if target == "e2m1":
            return np.asarray(op(program, values, dtype=np.uint8)[::4])
        if source == "e2m1":
            spread = np.zeros(4 * len(values), np.uint8)
            spread[::4] = values
            return np.asarray(op(program, spread, dtype=DTYPES[target]))[: 2 * len(values)]
        ratio = WIDTH[target] / WIDTH[source]
        if ratio <= 1:
            result = op(program, values, dtype=DTYPES[target])
            return np.asarray(result[:: int(1 / ratio)][: len(values)])
        spread = np.zeros(int(ratio) * len(values), DTYPES[source])
        spread[:: int(ratio)] = values
        return np.asarray(op(program, spread, dtype=DTYPES[target])[: len(values)])

    return run


def bits(values: Array) -> Array:
    return values.view({1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}[values.itemsize])


def assert_same(actual: Array, expected: Array) -> None:
    """Equal bit for bit; any NaN equals any NaN."""
    with np.errstate(invalid="ignore"):  # signalling NaN
        nan = np.isnan(expected.astype(np.float64)) & np.isnan(actual.astype(np.float64))
    different = (bits(actual) != bits(expected)) & ~nan
    assert not different.any(), (
        np.flatnonzero(different)[:5],
        actual[different][:5],
        expected[different][:5],
    )


def every(name: str) -> Array:
    dtype = DTYPES[name]
    unsigned: Any = {1: np.uint8, 2: np.uint16}[np.dtype(dtype).itemsize]
    return (
        np.arange(1 << (8 * np.dtype(dtype).itemsize), dtype=np.uint32).astype(unsigned).view(dtype)
    )


def probes(finite: Array) -> Array:
    """fp32 at, between and just beside the finite values of a format, and special values."""
    values = np.unique(np.abs(finite.astype(np.float32)))
    middle = ((values[1:].astype(np.float64) + values[:-1]) / 2).astype(np.float32)
    points = np.concatenate([values, middle])
    special = np.array(
        [1e-45, 1.1754942e-38, 1.1754944e-38, 3e38, 3.4028235e38, np.inf, np.nan, 449, 464, 480],
        np.float32,
    )
    points = np.concatenate(
        [
            points,
            np.nextafter(points, np.float32(0)),
            np.nextafter(points, np.float32(np.inf)),
            special,
        ]
    )
    return np.concatenate([points, -points]).astype(np.float32)


@pytest.mark.parametrize("name", ["bfloat16", "float16", "e4m3", "e5m2"])
def test_every_small_float_widens_exactly(convert: Any, name: str) -> None:
    tags = "PART_P0" if WIDTH[name] == 1 else "PART_EVEN"
    values = every(name)
    assert_same(convert(name, "float32", tags, values), values.astype(np.float32))


@pytest.mark.parametrize(
    ("name", "largest"),
    [("bfloat16", 3.3895314e38), ("float16", 65504.0), ("e4m3", 448.0), ("e5m2", 57344.0)],
)
def test_rounding_is_to_nearest_even_and_saturates(convert: Any, name: str, largest: float) -> None:
    tags = f"ROUND_R, RS_ENABLE, PART_{'P0' if WIDTH[name] == 1 else 'EVEN'}"
    finite = every(name)[np.isfinite(every(name).astype(np.float32))]
    values = probes(finite)
    clipped = values.copy()
    overflows = np.abs(values) > np.float32(largest)
    if WIDTH[name] == 2:
        overflows &= np.isfinite(values)
    clipped[overflows] = np.copysign(np.float32(largest), values[overflows])
    with np.errstate(all="ignore"):
        expected = clipped.astype(DTYPES[name])
    assert_same(convert("float32", name, tags, values), expected)


def test_unsaturated_overflow_is_infinity_or_nan(convert: Any) -> None:
    values = np.array([3.4028235e38, -3.4028235e38, 448, 464, 465, -1e9], np.float32)
    wide = convert("float32", "bfloat16", "ROUND_R, RS_DISABLE, PART_EVEN", values)
    assert wide[:2].astype(np.float32).tolist() == [np.inf, -np.inf]
    narrow = convert("float32", "e4m3", "ROUND_R, RS_DISABLE, PART_P0", values)
    assert bits(narrow)[2:].tolist() == [0x7E, 0x7E, 0x7F, 0xFF]


@pytest.mark.parametrize("name", ["bfloat16", "float16"])
@pytest.mark.parametrize("letter", ["A", "F", "C", "Z"])
def test_directed_rounding_takes_the_right_neighbour(convert: Any, name: str, letter: str) -> None:
    finite = np.sort(every(name)[np.isfinite(every(name).astype(np.float32))].astype(np.float64))
    values = probes(every(name)[np.isfinite(every(name).astype(np.float32))])
    values = values[np.abs(values) <= finite[-1]]
    below = finite[np.searchsorted(finite, values, side="right") - 1]
    above = finite[np.minimum(np.searchsorted(finite, values, side="left"), len(finite) - 1)]
    exact = values.astype(np.float64)
    nearest = np.where(
        np.abs(exact - below) == np.abs(above - exact),
        np.where(exact > 0, above, below),
        np.where(exact - below < above - exact, below, above),
    )
    toward_zero = np.where(exact > 0, below, above)
    expected = {"A": nearest, "F": below, "C": above, "Z": toward_zero}[letter]
    actual = convert("float32", name, f"ROUND_{letter}, RS_ENABLE, PART_EVEN", values)
    assert (actual.astype(np.float64) == expected).all()


def test_round_to_odd_keeps_the_sticky_bit(convert: Any) -> None:
    values = np.array([1.0, 1 + 2**-11, 1 + 2**-10 + 2**-20, 1 + 3 * 2**-11], np.float32)
    actual = convert("float32", "float16", "ROUND_O, RS_ENABLE, PART_EVEN", values)
    assert bits(actual).tolist() == [0x3C00, 0x3C01, 0x3C01, 0x3C01]


def test_every_fp4_pair_widens_exactly(convert: Any) -> None:
    pairs = np.arange(256, dtype=np.uint8)
    table = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
    table = np.concatenate([table, -table])
    expected = np.stack([table[pairs & 15], table[pairs >> 4]], 1).reshape(-1)
    assert_same(convert("e2m1", "bfloat16", "PART_P0", pairs), expected.astype(ml_dtypes.bfloat16))


def test_every_bf16_rounds_to_fp4_and_pairs_low_first(convert: Any) -> None:
    values = every("bfloat16")
    values = values[np.isfinite(values.astype(np.float32))]
    values = values[: len(values) // 2 * 2]
    clipped = np.clip(values.astype(np.float32), -6, 6)
    codes = clipped.astype(ml_dtypes.float4_e2m1fn).view(np.uint8)
    expected = codes[0::2] | codes[1::2] << 4
    actual = convert("bfloat16", "e2m1", "ROUND_R, PART_P0", values)[: len(expected)]
    assert (actual == expected).all()


def test_fp4_saturates_and_keeps_the_sign_of_zero(convert: Any) -> None:
    values = np.array([np.inf, -np.inf, 5, -5, 0.25, -0.0], ml_dtypes.bfloat16)
    actual = convert("bfloat16", "e2m1", "ROUND_R, PART_P0", values)
    assert actual[:3].tolist() == [0xF7, 0xE6, 0x80]


def test_every_bf16_converts_to_fp16_and_back(convert: Any) -> None:
    values = every("bfloat16")
    with np.errstate(all="ignore"):
        wide = values.astype(np.float32)
        limit = np.float32(65504)
        clipped = np.where(np.isfinite(wide), np.clip(wide, -limit, limit), wide)
        expected = clipped.astype(np.float16)
    assert_same(convert("bfloat16", "float16", "RS_ENABLE, ROUND_R", values), expected)
    halves = every("float16")
    with np.errstate(all="ignore"):
        expected = halves.astype(np.float32).astype(ml_dtypes.bfloat16)
    assert_same(convert("float16", "bfloat16", "ROUND_R", halves), expected)


INTEGERS = np.array(
    [0, 1, -1, 127, 128, -128, -129, 255, 256, 32767, 32768, -32768, -32769, 2**31 - 1, -(2**31)],
    np.int64,
)


@pytest.mark.parametrize(
    ("source", "target", "tags"),
    [
        ("int32", "int16", "RS_ENABLE, PART_EVEN"),
        ("int32", "uint8", "RS_ENABLE, PART_P0"),
        ("uint32", "uint8", "RS_ENABLE, PART_P0"),
        ("int64", "int32", "RS_ENABLE, PART_EVEN"),
        ("int8", "int32", "PART_P0"),
        ("uint8", "uint16", "PART_EVEN"),
        ("int32", "int64", "PART_EVEN"),
    ],
)
def test_integers_widen_exactly_and_narrow_with_saturation(
    convert: Any, source: str, target: str, tags: str
) -> None:
    values = np.concatenate([INTEGERS, [2**40, -(2**40)]]).astype(DTYPES[source])
    limits = np.iinfo(DTYPES[target])
    expected = [min(max(int(v), int(limits.min)), int(limits.max)) for v in values]
    assert convert(source, target, tags, values).tolist() == expected


@pytest.mark.parametrize("letter", list("RAFCZ"))
def test_fp32_rounds_to_int32_and_saturates(convert: Any, letter: str) -> None:
    values = [0.5, 1.5, 2.5, -0.5, -1.5, 0.49999997, 1e-45, -1e-45, 7.9, -7.9, 1e10, -1e10, np.nan]
    rounded = {
        "R": [0, 2, 2, 0, -2, 0, 0, 0, 8, -8],
        "A": [1, 2, 3, -1, -2, 0, 0, 0, 8, -8],
        "F": [0, 1, 2, -1, -2, 0, 0, -1, 7, -8],
        "C": [1, 2, 3, 0, -1, 1, 1, 0, 8, -7],
        "Z": [0, 1, 2, 0, -1, 0, 0, 0, 7, -7],
    }[letter]
    actual = convert("float32", "int32", f"ROUND_{letter}, RS_ENABLE", np.array(values, np.float32))
    assert actual.tolist() == [*rounded, 2**31 - 1, -(2**31), 0]


def test_fp32_converts_to_other_integer_widths(convert: Any) -> None:
    values = np.array([1e10, -1e10, 1e30, -1e30, 70000, -70000, 2.5], np.float32)
    wide = convert("float32", "int64", "ROUND_Z, RS_ENABLE, PART_EVEN", values)
    assert wide.tolist() == [10**10, -(10**10), 2**63 - 1, -(2**63), 70000, -70000, 2]
    narrow = convert("float32", "int16", "ROUND_R, RS_ENABLE, PART_EVEN", values)
    assert narrow[4:].tolist() == [32767, -32768, 2]


@pytest.mark.parametrize("source", ["int32", "int64", "int16"])
def test_integers_round_to_the_nearest_fp32(convert: Any, source: str) -> None:
    tags = {"int32": "ROUND_R", "int64": "ROUND_R, PART_EVEN", "int16": "PART_EVEN"}[source]
    beside = [2**24 + 1, 2**24 + 3, -(2**24) - 1, 2**31 - 65, 123456789]
    values = np.concatenate([INTEGERS, beside]).astype(DTYPES[source])
    assert_same(convert(source, "float32", tags, values), values.astype(np.float32))


@pytest.mark.parametrize(
    ("letter", "expected"),
    [
        ("A", [16777218, 16777220, -16777218]),
        ("F", [16777216, 16777218, -16777218]),
        ("C", [16777218, 16777220, -16777216]),
        ("Z", [16777216, 16777218, -16777216]),
    ],
)
def test_int32_rounds_to_fp32_in_every_mode(convert: Any, letter: str, expected: list[int]) -> None:
    values = np.array([2**24 + 1, 2**24 + 3, -(2**24) - 1], np.int32)
    assert convert("int32", "float32", f"ROUND_{letter}", values).tolist() == expected
