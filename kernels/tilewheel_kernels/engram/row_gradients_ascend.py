"""The arithmetic of engram_gate_bwd on Ascend: three passes over rows in UB, SIMD.

Buffers and numbers have the names of engram_gate_bwd_ascend.py, which says what they are for.
"""

import tilelang.ascend.language as T

from tilewheel_kernels.engram.rows_ascend import (
    LANES,
    STREAMS,
    is_masked_row,
    reciprocals,
    store_sum,
    unpacked,
)


@T.macro
def sum_rows(  # type: ignore[no-untyped-def]
    g_ub,
    v_ub,
    g_other_ub,
    v_other_ub,
    mask_bytes_ub,
    grad_gate_ub,
    kept_ub,
    num_rows,
    num_masked,
    num_channels,
    num_other,
    has_other,
):
    """Store sum(g * v) of each row, and 1 or, where it is masked, 0."""
    first_lanes = T.simd.pset(32, "PAT_VL8")
    zero = T.simd.vdup(0.0, T.float32)
    one = T.simd.vdup(1.0, T.float32)
    total = T.simd.alloc_var(T.float32)
    total_other = T.simd.alloc_var(T.float32)
    for r in T.serial(num_rows):
        total = zero
        for s in T.serial(T.truncdiv(num_channels, LANES)):
            T.simd.vmula(total, unpacked(g_ub, r, s * LANES), unpacked(v_ub, r, s * LANES))
        if has_other:
            total_other = zero
            for s in T.serial(T.truncdiv(num_other, LANES)):
                T.simd.vmula(
                    total_other,
                    unpacked(g_other_ub, r, s * LANES),
                    unpacked(v_other_ub, r, s * LANES),
                )
            # The same bits for both halves: addition commutes.
            store_sum(grad_gate_ub, r, T.simd.vadd(total, total_other), first_lanes)
        else:
            store_sum(grad_gate_ub, r, total, first_lanes)
        is_masked = is_masked_row(mask_bytes_ub, r, num_masked)
        T.simd.vsts(kept_ub[r, 0], T.simd.vsel(zero, one, is_masked), first_lanes)


@T.macro
def find_factors(  # type: ignore[no-untyped-def]
    dot_ub,
    gate_ub,
    rstd_x_ub,
    rstd_k_ub,
    grad_gate_ub,
    kept_ub,
    a_ub,
    b_x_ub,
    b_k_ub,
    clamp_value,
    channels,
):
    """Store a and, negated, what x and k are multiplied by, for up to eight rows.

    Lane h of a row's eight has the number of stream h; only that of the item's stream counts.
    """
    zero = T.simd.vdup(0.0, T.float32)
    inverse_hidden, inverse_root = reciprocals(channels)
    dot = T.simd.vld(dot_ub[0, 0])
    gate = T.simd.vld(gate_ub[0, 0])
    rstd_x = T.simd.vld(rstd_x_ub[0, 0])
    rstd_k = T.simd.vld(rstd_k_ub[0, 0])
    scale = T.simd.vmul(T.simd.vmul(rstd_x, rstd_k), inverse_root)
    size = T.simd.vabs(T.simd.vmul(dot, scale))
    is_small = T.simd.vcmps(size, clamp_value, op="lt")
    # 1 where it does not count: no quotient by zero.
    root = T.simd.vsqrt(T.simd.vsel(T.simd.vdup(1.0, T.float32), size, is_small))
    slope = T.simd.vdiv(T.simd.vdup(0.5, T.float32), root)
    logistic = T.simd.vmul(gate, T.simd.vsub(T.simd.vdup(1.0, T.float32), gate))
    grad_z = T.simd.vmul(T.simd.vmul(T.simd.vld(grad_gate_ub[0, 0]), logistic), slope)
    is_kept = T.simd.vcmps(T.simd.vld(kept_ub[0, 0]), 0.0, op="ne")
    a = T.simd.vsel(T.simd.vmul(T.simd.vsel(zero, grad_z, is_small), scale), zero, is_kept)
    shared = T.simd.vneg(T.simd.vmul(T.simd.vmul(a, dot), inverse_hidden))
    b_x = T.simd.vmul(T.simd.vmul(shared, rstd_x), rstd_x)
    b_k = T.simd.vmul(T.simd.vmul(shared, rstd_k), rstd_k)
    T.simd.vsts(a_ub[0, 0], a)
    T.simd.vsts(b_x_ub[0, 0], T.simd.vsel(b_x, zero, is_kept))
    T.simd.vsts(b_k_ub[0, 0], T.simd.vsel(b_k, zero, is_kept))


@T.macro
def find_gradients(  # type: ignore[no-untyped-def]
    g_ub,
    x_ub,
    k_ub,
    w_ub,
    grad_w_ub,
    a_ub,
    b_x_ub,
    b_k_ub,
    mask_bytes_ub,
    h,
    num_rows,
    num_masked,
    num_channels,
):
    """Put grad_x into x_ub and grad_k into k_ub, and add to grad_w_ub."""
    grad_x = T.simd.alloc_var(T.float32)
    grad_k = T.simd.alloc_var(T.float32)
    grad_w = T.simd.alloc_var(T.float32)
    every_lane = T.simd.pset(8, "PAT_ALL")
    for r in T.serial(num_rows):
        is_masked = is_masked_row(mask_bytes_ub, r, num_masked)
        is_kept = T.simd.pnot(is_masked, every_lane)
        a = T.simd.vld(a_ub[r, h], "BRC_B32")
        b_x = T.simd.vld(b_x_ub[r, h], "BRC_B32")
        b_k = T.simd.vld(b_k_ub[r, h], "BRC_B32")
        # The row before has stored grad_w.
        T.simd.mem_bar("VST_VLD")
        for s in T.serial(T.truncdiv(num_channels, LANES)):
            raw = T.simd.vld(g_ub[r, s * LANES], "UNPK_B16")
            x = T.simd.vcvt(T.simd.vld(x_ub[r, s * LANES], "UNPK_B16"), T.float32, is_kept)
            k = T.simd.vcvt(T.simd.vld(k_ub[r, s * LANES], "UNPK_B16"), T.float32, is_kept)
            a_w = T.simd.vmul(a, T.simd.vld(w_ub[0, s * LANES]))
            grad_x = T.simd.vcvt(raw, T.float32)
            T.simd.vmula(grad_x, a_w, k)
            T.simd.vmula(grad_x, b_x, x)
            grad_k = T.simd.vmul(a_w, x)
            T.simd.vmula(grad_k, b_k, k)
            grad_w = T.simd.vld(grad_w_ub[0, s * LANES])
            T.simd.vmula(grad_w, T.simd.vmul(a, x), k)
            T.simd.vsts(grad_w_ub[0, s * LANES], grad_w)
            # Without saturation: what is beyond bfloat16 becomes infinite.
            rounded = T.simd.vcvt(grad_x, T.bfloat16, sat=False)
            T.simd.vsts(x_ub[r, s * LANES], T.simd.vsel(raw, rounded, is_masked), dist="PK_B32")
            T.simd.vsts(
                k_ub[r, s * LANES],
                T.simd.vcvt(grad_k, T.bfloat16, is_kept, sat=False),
                dist="PK_B32",
            )


@T.macro
def sum_streams(  # type: ignore[no-untyped-def]
    g_quarters_ub, gate_ub, mask_bytes_ub, grad_v_ub, num_rows, num_masked, num_quarter
):
    """Store the sum over the streams, first to last, of gate * g."""
    total = T.simd.alloc_var(T.float32)
    every_lane = T.simd.pset(8, "PAT_ALL")
    for r in T.serial(num_rows):
        is_masked = is_masked_row(mask_bytes_ub, r, num_masked)
        is_kept = T.simd.pnot(is_masked, every_lane)
        gates = T.simd.alloc_local((STREAMS,), T.float32)
        for j in list(range(STREAMS)):
            gates[j] = T.simd.vld(gate_ub[r, j], "BRC_B32")
        for s in T.serial(T.truncdiv(num_quarter, LANES)):
            total = T.simd.vdup(0.0, T.float32)
            for j in list(range(STREAMS)):
                raw = T.simd.vld(g_quarters_ub[r, j, s * LANES], "UNPK_B16")
                T.simd.vmula(total, T.simd.vcvt(raw, T.float32), gates[j])
            T.simd.vsts(
                grad_v_ub[r, s * LANES],
                T.simd.vcvt(total, T.bfloat16, is_kept, sat=False),
                dist="PK_B32",
            )
