"""Every other register instruction against numpy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

Array = np.ndarray[Any, Any]
Check = Callable[..., Array]

F32, S32, U32, U16, U8 = "float", "int32_t", "uint32_t", "uint16_t", "uint8_t"
NUMPY: dict[str, Any] = {
    F32: np.float32,
    S32: np.int32,
    U32: np.uint32,
    "int16_t": np.int16,
    U16: np.uint16,
    U8: np.uint8,
    "bfloat16_t": ml_dtypes.bfloat16,
    "int64_t": np.int64,
}
MASK = {1: "m8", 2: "m16", 4: "m32", 8: "asc_create_mask_b64(PAT_ALL)"}
SPECIAL = np.array(
    [0.0, -0.0, 1.0, -1.0, 1e-45, -1e-45, 1.1754944e-38, 3.4028235e38, 0.5, -3.5, np.inf, -np.inf],
    np.float32,
)


def width(ctype: str) -> int:
    return int(np.dtype(NUMPY[ctype]).itemsize)


# name: (input types, output type, expression of the registers a, b, c and the full mask m)
EXPRESSIONS: dict[str, tuple[tuple[str, ...], str, str]] = {
    "add_f32": ((F32, F32), F32, "simd_inst::vadd(a, b, m, MODE_ZEROING)"),
    "sub_f32": ((F32, F32), F32, "simd_inst::vsub(a, b, m, MODE_ZEROING)"),
    "mul_f32": ((F32, F32), F32, "simd_inst::vmul(a, b, m, MODE_ZEROING)"),
    "div_f32": ((F32, F32), F32, "simd_inst::vdiv(a, b, m, MODE_ZEROING)"),
    "div_exact": ((F32, F32), F32, "simd_inst::vdiv_0ulp_ftz_true(a, b, m, MODE_ZEROING)"),
    "max_f32": ((F32, F32), F32, "simd_inst::vmax(a, b, m, MODE_ZEROING)"),
    "min_f32": ((F32, F32), F32, "simd_inst::vmin(a, b, m, MODE_ZEROING)"),
    "absdif_f32": ((F32, F32), F32, "simd_inst::vabsdif(a, b, m, MODE_ZEROING)"),
    "add_bf16": (("bfloat16_t",) * 2, "bfloat16_t", "simd_inst::vadd(a, b, m, MODE_ZEROING)"),
    "add_s32": ((S32, S32), S32, "simd_inst::vadd(a, b, m, MODE_ZEROING)"),
    "mul_s32": ((S32, S32), S32, "simd_inst::vmul(a, b, m, MODE_ZEROING)"),
    "div_s32": ((S32, S32), S32, "simd_inst::vdiv(a, b, m, MODE_ZEROING)"),
    "min_s32": ((S32, S32), S32, "simd_inst::vmin(a, b, m, MODE_ZEROING)"),
    "and_u32": ((U32, U32), U32, "simd_inst::vand(a, b, m, MODE_ZEROING)"),
    "or_u16": ((U16, U16), U16, "simd_inst::vor(a, b, m, MODE_ZEROING)"),
    "xor_f32": ((F32, F32), F32, "simd_inst::vxor(a, b, m, MODE_ZEROING)"),
    "not_u32": ((U32,), U32, "simd_inst::vnot(a, m, MODE_ZEROING)"),
    "shl_u32": ((U32, U32), U32, "simd_inst::vshl(a, b, m, MODE_ZEROING)"),
    "shr_s32": ((S32, S32), S32, "simd_inst::vshr(a, b, m, MODE_ZEROING)"),
    "shrs_u32": ((U32,), U32, "simd_inst::vshrs(a, 23, m, MODE_ZEROING)"),
    "adds_s32": ((S32,), S32, "simd_inst::vadds(a, -5, m, MODE_ZEROING)"),
    "muls_f32": ((F32,), F32, "simd_inst::vmuls(a, 3.0f, m, MODE_ZEROING)"),
    "maxs_f32": ((F32,), F32, "simd_inst::vmaxs(a, 1e-4f, m, MODE_ZEROING)"),
    "abs_f32": ((F32,), F32, "simd_inst::vabs(a, m, MODE_ZEROING)"),
    "neg_f32": ((F32,), F32, "simd_inst::vneg(a, m, MODE_ZEROING)"),
    "abs_s32": ((S32,), S32, "simd_inst::vabs(a, m, MODE_ZEROING)"),
    "relu_f32": ((F32,), F32, "simd_inst::vrelu(a, m, MODE_ZEROING)"),
    "sqrt_f32": ((F32,), F32, "simd_inst::vsqrt(a, m, MODE_ZEROING)"),
    "sqrt_exact": ((F32,), F32, "simd_inst::vsqrt_0ulp_ftz_false(a, m, MODE_ZEROING)"),
    "exp_f32": ((F32,), F32, "simd_inst::vexp(a, m, MODE_ZEROING)"),
    "exp_ftz_false": ((F32,), F32, "simd_inst::vexp_1ulp_ftz_false(a, m, MODE_ZEROING)"),
    "ln_f32": ((F32,), F32, "simd_inst::vln(a, m, MODE_ZEROING)"),
    "expdif_f32": ((F32, F32), F32, "simd_inst::vexpdif(a, b, m)"),
    "lrelu_f32": ((F32,), F32, "simd_inst::vlrelu(a, 0.25f, m)"),
    "dup_low": ((F32,), F32, "simd_inst::vdupv(a, m, POS_LOWEST, MODE_ZEROING)"),
    "dup_high": ((F32,), F32, "simd_inst::vdupv(a, m, POS_HIGHEST, MODE_ZEROING)"),
    "ramp_up": ((S32,), S32, "simd_inst::vci<int32_t>(7, INC_ORDER)"),
    "ramp_down": ((S32,), S32, "simd_inst::vci<int32_t>(7, DEC_ORDER)"),
    "select_lt": ((F32, F32), F32, "simd_inst::vsel(a, b, simd_inst::vcmp_lt(a, b, m))"),
    "select_ge": ((S32, S32), S32, "simd_inst::vsel(a, b, simd_inst::vcmp_ge(a, b, m))"),
    "select_eqs": ((S32, S32), S32, "simd_inst::vsel(a, b, simd_inst::vcmps_eq(a, 3, m))"),
    "sum_f32": ((F32,), F32, "simd_inst::vcadd(a, m, MODE_ZEROING)"),
    "sum_s16": (("int16_t",), S32, "simd_inst::vcadd(a, m, MODE_ZEROING)"),
    "max_lane": ((F32,), F32, "simd_inst::vcmax(a, m, MODE_ZEROING)"),
    "min_lane": ((S32,), S32, "simd_inst::vcmin(a, m, MODE_ZEROING)"),
    "block_sum": ((F32,), F32, "simd_inst::vcgadd(a, m, MODE_ZEROING)"),
    "block_max": ((F32,), F32, "simd_inst::vcgmax(a, m, MODE_ZEROING)"),
    "block_min": ((F32,), F32, "simd_inst::vcgmin(a, m, MODE_ZEROING)"),
    "pair_sum": ((F32,), F32, "simd_inst::vcpadd(a, m, MODE_ZEROING)"),
    "intlv0": ((U16, U16), U16, "simd_inst::vintlv(a, b).v0"),
    "intlv1": ((U16, U16), U16, "simd_inst::vintlv(a, b).v1"),
    "dintlv0": ((U16, U16), U16, "simd_inst::vdintlv(a, b).v0"),
    "dintlv1": ((U16, U16), U16, "simd_inst::vdintlv(a, b).v1"),
    "lane_gather": ((U32, U32), U32, "simd_inst::vselr(a, b)"),
    "pack_low": ((U32,), U16, "simd_inst::vpack<uint16_t>(a, LOWER)"),
    "pack_high": ((U32,), U16, "simd_inst::vpack<uint16_t>(a, HIGHER)"),
    "unpack_low": ((U8,), U16, "simd_inst::vunpack(a, LOWER)"),
    "unpack_high": ((U8,), U16, "simd_inst::vunpack(a, HIGHER)"),
    "squeeze": ((S32,), S32, "simd_inst::vsqz(a, simd_inst::vcmps_gt(a, 0, m), MODE_STORED)"),
    "count_before": ((S32,), S32, "simd_inst::vusqz<int32_t>(simd_inst::vcmps_gt(a, 0, m))"),
    "first_five": ((F32,), F32, "simd_inst::vadds(a, 1.0f, asc_update_mask_b32(5), MODE_ZEROING)"),
    "every_fourth": (
        (F32,),
        F32,
        "simd_inst::vadds(a, 1.f, asc_create_mask_b32(PAT_M4), MODE_ZEROING)",
    ),
    "low_product": ((U32, U32), U32, "simd_inst::vmull(a, b, m).v0"),
    "high_product": ((U32, U32), U32, "simd_inst::vmull(a, b, m).v1"),
    "sum_with_carry": (
        (U32, U32),
        U32,
        "simd_inst::vaddcs(a, b, simd_inst::vaddc(a, b, m).v0, m).v1",
    ),
    "difference": ((U32, U32), U32, "simd_inst::vsubcs(a, b, simd_inst::vsubc(a, b, m).v0, m).v1"),
    "gather_u32": ((U32, U32), U32, "simd_inst::vgather2(a_ub, b, m)"),
    "gather_u8": ((U8, U16), U16, "simd_inst::vgather2(a_ub, b, m8)"),
    "load_brc": ((F32,), F32, "simd_inst::vlds_brc_elem<float>(a_ub, 3)"),
    "load_us": ((U8,), U8, "simd_inst::vlds_upsample<uint8_t>(a_ub, 0)"),
    "load_unpack": ((U16,), U16, "simd_inst::vlds_unpack<uint16_t>(a_ub, 0)"),
    "load_unpack4": ((U8,), U8, "simd_inst::vlds_unpack4<uint8_t>(a_ub, 0)"),
    "load_block": ((U16,), U16, "simd_inst::vlds_brc_datablock<uint16_t>(a_ub, 0)"),
    "load_e2b": ((U32,), U32, "simd_inst::vlds_brc_elem2datablock<uint32_t>(a_ub, 8)"),
}

# name: (input types, output type, statements that write out_ub)
STATEMENTS: dict[str, tuple[tuple[str, ...], str, str]] = {
    "mula": (
        (F32, F32, F32),
        F32,
        "auto r = c; simd_inst::vmula(&r, a, b, m, MODE_ZEROING);\n"
        "simd_inst::vsts_norm(r, out_ub, 0, m);",
    ),
    "madd": (
        (F32, F32, F32),
        F32,
        "auto r = c; simd_inst::vmadd(&r, a, b, m, MODE_ZEROING);\n"
        "simd_inst::vsts_norm(r, out_ub, 0, m);",
    ),
    "axpy": (
        (F32, F32),
        F32,
        "auto r = b; simd_inst::vaxpy(&r, a, 3.0f, m, MODE_ZEROING);\n"
        "simd_inst::vsts_norm(r, out_ub, 0, m);",
    ),
    "merge_adds": (
        (S32, S32),
        S32,
        "auto r = b; ::vadds(r, a, 10, asc_update_mask_b32(7), MODE_MERGING);\n"
        "simd_inst::vsts_norm(r, out_ub, 0, m);",
    ),
    "load_deintlv": (
        (U16,),
        U16,
        "auto p = simd_inst::vld_x2<uint16_t>(a_ub, DINTLV_B16);\n"
        "simd_inst::vsts_norm(p.v1, out_ub, 0, m16);",
    ),
    "load_ds": (
        (U16,),
        U16,
        "auto r = simd_inst::vlds_downsample<uint16_t>(a_ub, 0);\n"
        "simd_inst::vsts_norm(r, out_ub, 0, m16);",
    ),
    "load_post": (
        (U32,),
        U32,
        "auto p = simd_inst::vlds_norm_postupdate<uint32_t>(a_ub, 8);\n"
        "auto r = simd_inst::vlds_norm<uint32_t>(p.v1, 0);\n"
        "simd_inst::vsts_norm(r, out_ub, 0, m);",
    ),
    "store_masked": (
        (U32, U32),
        U32,
        "simd_inst::vsts_norm(a, out_ub, 0, m);\n"
        "simd_inst::vsts_norm(b, out_ub, 0, simd_inst::vcmps_gt(b, 9u, m));",
    ),
    "store_first": (
        (U32, U32),
        U32,
        "simd_inst::vsts_norm(a, out_ub, 0, m); simd_inst::vsts_1st(b, out_ub, 5, m);",
    ),
    "store_pack": (
        (U32,),
        U16,
        "simd_inst::vsts_norm(simd_inst::vdup<uint16_t>(7, m16, MODE_ZEROING), out_ub, 0, m16);\n"
        "simd_inst::vsts_pack_b32(a, (uint32_t*)out_ub, 0, m);",
    ),
    "store_quarter": (
        (U32,),
        U8,
        "simd_inst::vsts_norm(simd_inst::vdup<uint8_t>(7, m8, MODE_ZEROING), out_ub, 0, m8);\n"
        "simd_inst::vsts_pack_quarter(a, (uint32_t*)out_ub, 0, m);",
    ),
    "store_blocks": (
        (U32,),
        U32,
        "simd_inst::vsts_norm(simd_inst::vdup<uint32_t>(7, m, MODE_ZEROING), out_ub, 0, m);\n"
        "simd_inst::vsstb<uint32_t>(a, out_ub, (2 << 16) | 1, asc_update_mask_b32(32));",
    ),
    "scatter": (
        (U32, U32),
        U32,
        "simd_inst::vscatter<uint32_t>(a, out_ub, b, m);",
    ),
    "predicates": (
        (S32, S32),
        S32,
        "auto p = simd_inst::vcmps_gt(a, 0, m);\n"
        "auto q = simd_inst::vcmps_gt(b, 0, m);\n"
        "auto both = simd_inst::pand(p, q, m);\n"
        "auto one = simd_inst::pxor(p, q, m);\n"
        "auto none = simd_inst::pnot(simd_inst::por(p, q, m), m);\n"
        "auto r = simd_inst::vdup<int32_t>(0, m, MODE_ZEROING);\n"
        "r = simd_inst::vsel(simd_inst::vdup<int32_t>(2, m, MODE_ZEROING), r, both);\n"
        "r = simd_inst::vsel(simd_inst::vdup<int32_t>(1, m, MODE_ZEROING), r, one);\n"
        "r = simd_inst::vsel(simd_inst::vdup<int32_t>(-1, m, MODE_ZEROING), r, none);\n"
        "simd_inst::vsts_norm(r, out_ub, 0, m);",
    ),
    "predicate_memory": (
        (S32,),
        S32,
        "simd_inst::psts_norm(simd_inst::vcmps_gt(a, 0, m), (uint32_t*)(a_ub + 64), 0);\n"
        "simd_inst::mem_bar(VST_VLD);\n"
        "auto p = simd_inst::plds_norm((uint32_t*)(a_ub + 64), 0);\n"
        "simd_inst::vsts_norm(simd_inst::vadds(a, 0, p, MODE_ZEROING), out_ub, 0, m);",
    ),
    "predicate_interleave": (
        (S32,),
        S32,
        "auto pair = simd_inst::pintlv_b32(simd_inst::vcmps_gt(a, 0, m), vector_bool{});\n"
        "auto back = simd_inst::pdintlv_b32(pair.v0, pair.v1);\n"
        "auto narrow = simd_inst::punpack(simd_inst::ppack(back.v0, LOWER), LOWER);\n"
        "simd_inst::vsts_norm(simd_inst::vadds(a, 0, narrow, MODE_ZEROING), out_ub, 0, m);",
    ),
    "histogram": (
        (U8,),
        U16,
        "auto r = simd_inst::vdup<uint16_t>(0, m16, MODE_ZEROING);\n"
        "simd_inst::dhistv2(&r, a, m8, Bin_N1);\n"
        "simd_inst::vsts_norm(r, out_ub, 0, m16);",
    ),
    "cumulative": (
        (U8,),
        U16,
        "auto r = simd_inst::vdup<uint16_t>(0, m16, MODE_ZEROING);\n"
        "simd_inst::chistv2(&r, a, m8, Bin_N0);\n"
        "simd_inst::vsts_norm(r, out_ub, 0, m16);",
    ),
}


@pytest.fixture(scope="session")
def apply(vector_op: Any, compile_ops: Any) -> Check:
    """Run one of the operations above."""
    ops = {}
    outputs = {}
    for name, (inputs, output, text) in {**EXPRESSIONS, **STATEMENTS}.items():
        in_bytes = 512 if name in ("load_deintlv", "load_ds", "load_post") else 256
        body = f"  auto m = {MASK[width(inputs[0])]};\n  (void)m;\n"
        for x, ctype in zip("abcd", inputs, strict=False):
            body += f"  auto {x} = simd_inst::vlds_norm<{ctype}>({x}_ub, 0);\n  (void){x};\n"
        if name in EXPRESSIONS:
            body += f"  auto r = {text};\n"
            body += f"  simd_inst::vsts_norm<{output}>(r, out_ub, 0, {MASK[width(output)]});"
        else:
            body += text
        ops[name] = vector_op(name, inputs, output, body, in_bytes=in_bytes)
        outputs[name] = NUMPY[output]
    program = compile_ops(list(ops.values()))

    def run(name: str, *inputs: Array) -> Array:
        return np.asarray(ops[name](program, *inputs, dtype=outputs[name]))

    return run


def normal(seed: int, count: int = 256, scale: float = 1.0) -> Array:
    values = np.random.default_rng(seed).standard_normal(count).astype(np.float32) * scale
    return values.astype(np.float32)


def integers(seed: int, dtype: Any, count: int) -> Array:
    info = np.iinfo(dtype)
    return np.random.default_rng(seed).integers(info.min, info.max, count, dtype, endpoint=True)


def assert_bits(actual: Array, expected: Array) -> None:
    nan = np.isnan(actual.astype(np.float64)) & np.isnan(expected.astype(np.float64))
    same = (actual.view(np.uint8) == expected.view(np.uint8)).reshape(len(actual), -1).all(1)
    assert (same | nan).all(), (np.flatnonzero(~(same | nan))[:5], actual[:5], expected[:5])


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("add_f32", np.add),
        ("sub_f32", np.subtract),
        ("mul_f32", np.multiply),
        ("div_f32", np.divide),
        ("absdif_f32", lambda a, b: np.abs(a - b)),
        ("max_f32", np.maximum),
        ("min_f32", np.minimum),
        ("select_lt", np.minimum),
    ],
)
def test_fp32_arithmetic_is_ieee(apply: Check, name: str, function: Any) -> None:
    a = np.concatenate([np.repeat(SPECIAL, len(SPECIAL)), normal(1)])
    b = np.concatenate([np.tile(SPECIAL, len(SPECIAL)), normal(2)])
    with np.errstate(all="ignore"):
        expected = function(a, b)
    actual = apply(name, a, b)[: len(a)]
    if name in (
        "max_f32",
        "min_f32",
        "select_lt",
        "absdif_f32",
    ):  # the sign of zero is not specified
        assert_bits(actual + np.float32(0), expected + np.float32(0))
    else:
        assert_bits(actual, expected)


def test_exact_division_is_correctly_rounded(apply: Check) -> None:
    a, b = normal(3, 4096, 100.0), normal(4, 4096)
    assert_bits(apply("div_exact", a, b), a / b)


def test_bf16_sum_is_rounded_once(apply: Check) -> None:
    a, b = normal(5).astype(ml_dtypes.bfloat16), normal(6).astype(ml_dtypes.bfloat16)
    expected = (a.astype(np.float32) + b.astype(np.float32)).astype(ml_dtypes.bfloat16)
    assert_bits(apply("add_bf16", a, b)[: len(a)], expected)


@pytest.mark.parametrize(
    ("name", "dtype", "function"),
    [
        ("add_s32", np.int32, np.add),
        ("mul_s32", np.int32, np.multiply),
        ("min_s32", np.int32, np.minimum),
        ("and_u32", np.uint32, np.bitwise_and),
        ("or_u16", np.uint16, np.bitwise_or),
        ("select_ge", np.int32, np.maximum),
        ("low_product", np.uint32, np.multiply),
        ("high_product", np.uint32, lambda a, b: (a.astype(np.uint64) * b >> 32).astype(np.uint32)),
        ("difference", np.uint32, np.subtract),
    ],
)
def test_integer_arithmetic_wraps(apply: Check, name: str, dtype: Any, function: Any) -> None:
    a, b = integers(7, dtype, 256), integers(8, dtype, 256)
    if name == "difference":  # the second subtraction takes the borrow of the first
        expected = a - b - (a < b)
    else:
        with np.errstate(all="ignore"):
            expected = function(a, b)
    assert (apply(name, a, b)[:256] == expected).all()


def test_integer_division_never_traps(apply: Check) -> None:
    a = np.array([7, -7, 7, -(2**31), 5], np.int32)
    b = np.array([2, 2, -2, -1, 0], np.int32)
    assert apply("div_s32", a, b)[:5].tolist() == [3, -3, -3, -(2**31), -1]


def test_carry_flows_into_the_next_sum(apply: Check) -> None:
    a, b = integers(9, np.uint32, 64), integers(10, np.uint32, 64)
    carry = (a.astype(np.uint64) + b) >> 32
    assert (apply("sum_with_carry", a, b) == (a + b + carry.astype(np.uint32))).all()


def test_shifts_by_the_width_or_more_empty_the_register(apply: Check) -> None:
    a = np.array([1, 0x80000000, 0xFFFFFFFF, 5], np.uint32)
    count = np.array([31, 1, 32, 33], np.uint32)
    assert apply("shl_u32", a, count)[:4].tolist() == [0x80000000, 0, 0, 0]
    signed = np.array([-8, 8, -1, -1], np.int32)
    assert apply("shr_s32", signed, np.array([1, 1, 32, 31], np.int32))[:4].tolist() == [
        -4,
        4,
        -1,
        -1,
    ]
    assert apply("shrs_u32", a)[:3].tolist() == [0, 256, 511]


def test_unary_operations(apply: Check) -> None:
    a = np.concatenate([SPECIAL, normal(11, 52)])
    assert_bits(apply("abs_f32", a), np.abs(a))
    assert_bits(apply("neg_f32", a), -a)
    assert (apply("relu_f32", a) == np.maximum(a, 0)).all()
    with np.errstate(over="ignore"):
        assert (apply("muls_f32", a) == a * np.float32(3)).all()
    assert (apply("maxs_f32", a) == np.maximum(a, np.float32(1e-4))).all()
    assert (apply("lrelu_f32", a) == np.where(a >= 0, a, a * np.float32(0.25))).all()
    b = integers(12, np.int32, 64)
    assert (apply("adds_s32", b) == b - 5).all()
    assert (apply("abs_s32", b) == np.abs(b)).all()
    assert (apply("not_u32", b.view(np.uint32)) == ~b.view(np.uint32)).all()
    xored = apply("xor_f32", a, np.full(64, -0.0, np.float32))
    assert_bits(xored, -a)


@pytest.mark.parametrize("name", ["sqrt_f32", "sqrt_exact"])
def test_square_root_is_correctly_rounded(apply: Check, name: str) -> None:
    a = np.abs(np.concatenate([SPECIAL[:10], normal(13, 1014, 1e3), normal(14, 1024, 1e-38)]))
    assert_bits(apply(name, a), np.sqrt(a))


def test_exp_is_correctly_rounded(apply: Check) -> None:
    a = np.linspace(-110, 95, 65536, dtype=np.float32)
    a[:8] = [0.0, -0.0, np.inf, -np.inf, np.nan, 88.72284, -103.97, 1e-45]
    with np.errstate(all="ignore"):
        expected = np.exp(a.astype(np.float64)).astype(np.float32)
    assert_bits(apply("exp_f32", a), expected)
    assert_bits(apply("expdif_f32", a, np.zeros_like(a)), expected)
    normal_results = expected >= np.float32(1.1754944e-38)
    assert_bits(apply("exp_ftz_false", a)[normal_results], expected[normal_results])


def test_ln_is_correctly_rounded(apply: Check) -> None:
    bits = np.linspace(1, 0x7F7FFFFF, 65536).astype(np.uint32)
    a = bits.view(np.float32).copy()
    a[:8] = [0.0, -0.0, 1.0, np.inf, -1.0, np.nan, 0.99999994, 1.0000001]
    with np.errstate(all="ignore"):
        expected = np.log(a.astype(np.float64)).astype(np.float32)
    assert_bits(apply("ln_f32", a), expected)


def test_fused_operations_round_once(apply: Check) -> None:
    a, b, c = normal(15, 64), normal(16, 64), normal(17, 64)
    exact = a.astype(np.float64) * b + c.astype(np.float64)  # exact but for double's own rounding
    assert (apply("mula", a, b, c) == exact.astype(np.float32)).all()
    exact = c.astype(np.float64) * a + b
    assert (apply("madd", a, b, c) == exact.astype(np.float32)).all()
    exact = a.astype(np.float64) * 3 + b
    assert (apply("axpy", a, b) == exact.astype(np.float32)).all()


def test_merging_keeps_inactive_lanes(apply: Check) -> None:
    a, b = integers(18, np.int32, 64) // 2, integers(19, np.int32, 64)
    expected = np.where(np.arange(64) < 7, a + 10, b)
    assert (apply("merge_adds", a, b) == expected).all()


def test_zeroing_clears_inactive_lanes(apply: Check) -> None:
    a = normal(20, 64)
    lanes = np.arange(64)
    assert (apply("first_five", a) == np.where(lanes < 5, a + np.float32(1), 0)).all()
    assert (apply("every_fourth", a) == np.where(lanes % 4 == 0, a + np.float32(1), 0)).all()


def test_broadcasts_and_ramps(apply: Check) -> None:
    a = normal(21, 64)
    assert (apply("dup_low", a) == a[0]).all()
    assert (apply("dup_high", a) == a[63]).all()
    zero = np.zeros(64, np.int32)
    assert (apply("ramp_up", zero) == 7 + np.arange(64)).all()
    assert (apply("ramp_down", zero) == 7 - np.arange(64)).all()
    b = np.arange(64, dtype=np.int32) % 5
    assert (apply("select_eqs", b, zero - 1) == np.where(b == 3, 3, -1)).all()


def test_reductions(apply: Check) -> None:
    a = np.random.default_rng(22).integers(-99, 99, 64).astype(np.float32)  # sums are exact
    assert apply("sum_f32", a)[0] == a.sum()
    assert (apply("sum_f32", a)[1:] == 0).all()
    assert (apply("block_sum", a)[:8] == a.reshape(8, 8).sum(1)).all()
    assert (apply("block_max", a)[:8] == a.reshape(8, 8).max(1)).all()
    assert (apply("block_min", a)[:8] == a.reshape(8, 8).min(1)).all()
    assert (apply("pair_sum", a)[:32] == a.reshape(32, 2).sum(1)).all()
    small = np.full(128, 32767, np.int16)
    assert apply("sum_s16", small)[0] == 128 * 32767


def test_extremes_come_with_the_first_lane_that_has_them(apply: Check) -> None:
    a = np.array([1, 5, 3, 5] * 16, np.float32)
    result = apply("max_lane", a)
    assert (result[0], result.view(np.uint32)[1]) == (5, 1)
    b = np.array([4, 2, 9, 2] * 16, np.int32)
    assert apply("min_lane", b)[:2].tolist() == [2, 1]


def test_interleaving_and_its_inverse(apply: Check) -> None:
    a, b = np.arange(128, dtype=np.uint16), np.arange(1000, 1128, dtype=np.uint16)
    mixed = np.stack([a, b], 1).reshape(-1)
    assert (apply("intlv0", a, b) == mixed[:128]).all()
    assert (apply("intlv1", a, b) == mixed[128:]).all()
    assert (apply("dintlv0", mixed[:128], mixed[128:]) == a).all()
    assert (apply("dintlv1", mixed[:128], mixed[128:]) == b).all()


def test_packing_and_squeezing(apply: Check) -> None:
    a = integers(23, np.uint32, 64)
    low = (a & 0xFFFF).astype(np.uint16)
    zero = np.zeros(64, np.uint16)
    assert (apply("pack_low", a) == np.concatenate([low, zero])).all()
    assert (apply("pack_high", a) == np.concatenate([zero, low])).all()
    c = integers(24, np.uint8, 256)
    assert (apply("unpack_low", c) == c[:128]).all()
    assert (apply("unpack_high", c) == c[128:]).all()
    d = integers(25, np.int32, 64)
    kept = d[d > 0]
    assert (apply("squeeze", d) == np.concatenate([kept, np.zeros(64 - len(kept))])).all()
    assert (apply("count_before", d) == np.cumsum(d > 0) - (d > 0)).all()


def test_gathers_and_scatters(apply: Check) -> None:
    a = integers(26, np.uint32, 64)
    order = np.random.default_rng(27).permutation(64).astype(np.uint32)
    assert (apply("lane_gather", a, order) == a[order]).all()
    assert (apply("lane_gather", a, order + 64) == a[order]).all()
    assert (apply("gather_u32", a, order) == a[order]).all()
    scattered = np.empty(64, np.uint32)
    scattered[order] = a
    assert (apply("scatter", a, order) == scattered).all()
    c = integers(28, np.uint8, 256)
    index = np.random.default_rng(29).integers(0, 256, 128).astype(np.uint16)
    assert (apply("gather_u8", c, index) == c[index]).all()


def test_load_distributions(apply: Check) -> None:
    a = normal(30, 64)
    assert (apply("load_brc", a) == a[3]).all()
    b = integers(31, np.uint8, 256)
    assert (apply("load_us", b) == np.repeat(b[:128], 2)).all()
    assert (apply("load_unpack4", b).reshape(64, 4) == np.c_[b[:64], np.zeros((64, 3))]).all()
    c = integers(32, np.uint16, 128)
    assert (apply("load_unpack", c).reshape(64, 2) == np.c_[c[:64], np.zeros(64)]).all()
    assert (apply("load_block", c).reshape(8, 16) == c[:16]).all()
    d = integers(33, np.uint32, 64)
    assert (apply("load_e2b", d) == np.repeat(d[8:16], 8)).all()
    e = integers(34, np.uint16, 256)
    assert (apply("load_deintlv", e) == e[1::2]).all()
    assert (apply("load_ds", e) == e[0::2]).all()
    f = integers(35, np.uint32, 128)
    assert (apply("load_post", f) == f[8:72]).all()


def test_store_distributions(apply: Check) -> None:
    a, b = integers(36, np.uint32, 64), np.arange(64, dtype=np.uint32)
    assert (apply("store_masked", a, b) == np.where(b > 9, b, a)).all()
    first = apply("store_first", a, b)
    assert first[5] == b[0]
    assert (np.delete(first, 5) == np.delete(a, 5)).all()
    assert (apply("store_pack", a) == np.r_[(a & 0xFFFF), np.full(64, 7)]).all()
    assert (apply("store_quarter", a) == np.r_[(a & 0xFF), np.full(192, 7)]).all()
    blocks = np.full((8, 8), 7, np.uint32)
    blocks[0::2] = a[:32].reshape(4, 8)
    assert (apply("store_blocks", a) == blocks.reshape(-1)).all()


def test_predicate_operations(apply: Check) -> None:
    a, b = integers(37, np.int32, 64), integers(38, np.int32, 64)
    positive = (a > 0).astype(int) + (b > 0)
    assert (apply("predicates", a, b) == np.array([-1, 1, 2])[positive]).all()
    assert (apply("predicate_memory", a) == np.where(a > 0, a, 0)).all()
    assert (apply("predicate_interleave", a) == np.where(a > 0, a, 0)).all()


def test_histograms(apply: Check) -> None:
    a = integers(39, np.uint8, 256)
    counts = np.bincount(a, minlength=256)
    assert (apply("histogram", a) == counts[128:]).all()
    assert (apply("cumulative", a) == np.cumsum(counts)[:128]).all()
