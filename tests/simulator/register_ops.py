"""Register instructions with what they compute on, and numpy's side of comparing them."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

Array = np.ndarray[Any, Any]

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


def operations(vector_op: Any) -> dict[str, Any]:
    """Return a kernel for each instruction."""
    ops = {}
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
    return ops


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
