"""randn for Ascend: standard normal numbers from a counter, SIMT on the vector cores.

    w[0..3] = Philox4x32-10(key = seed, counter = ((offset + i) / 4, sequence)),  i a multiple of 4
    u = float(w[2p]) 2^-32 + 2^-33,  a = float(int(w[2p + 1])) pi 2^-31,  p = 0, 1
    out[i + 2p], out[i + 2p + 1] = sqrt(-2 ln u) (cos a, sin a)

The counter is the element's index, so that a number depends on seed, sequence and offset + i only:
not on the other elements, the block, or num_vec_cores. offset is lowered to a multiple of 4.

One block (vector core) owns the tiles core, core + num_vec_cores, ... of TILE elements; one of its
THREADS threads makes 4 consecutive elements from one Philox block, GROUPS times a tile.
UB bytes: 2 * TILE * sizeof(dtype), 64 KiB for float32, of the 216 KiB that SIMT code leaves.
Parameters: dtype float32 or bfloat16; num_vec_cores is decided at run time.
Numerics: integers and u exact, the rest in float32, within 5e-6 of float64 for the same u; bfloat16
is the float32 number rounded once, to nearest even. u is in (0, 1]: |out| <= 6.77, and a pair of
zeros comes with probability 2^-25, where u rounds to 1. Counters and addresses have 64 bits.
Reference: tilewheel.reference.rand.randn.
Source: J. Salmon et al., Parallel Random Numbers: As Easy as 1, 2, 3 (SC 2011); G. Box, M. Muller,
A Note on the Generation of Random Normal Deviates (1958).
"""

from typing import TYPE_CHECKING

import tilelang.ascend.language as T

if TYPE_CHECKING:
    from tvm.tirx import PrimFunc

PASS_CONFIGS: dict[str, object] = {}

THREADS = 512
WORDS = 4  # 32-bit words of a Philox block; each gives one normal number
GROUPS = 4  # enough work in a tile to hide its DMA: 16 KiB of bfloat16
TILE = THREADS * WORDS * GROUPS

UNIFORM_SCALE, UNIFORM_SHIFT = 2.0**-32, 2.0**-33  # the middle of each of 2^32 intervals
ANGLE_SCALE = 3.141592653589793 * 2.0**-31  # a signed word, so that angles near 0 keep their bits


def randn(*, dtype: str, num_vec_cores: int | None) -> "PrimFunc":
    """Return the kernel (out, seed, sequence, offset, num_vec_cores)."""
    if dtype not in ("float32", "bfloat16"):
        raise ValueError(f"randn: dtype: is {dtype}, must be float32 or bfloat16")
    if num_vec_cores is not None:
        raise ValueError(f"randn: num_vec_cores: is {num_vec_cores}, must be any")
    num_elements = T.dynamic("num_elements", T.int64)

    @T.prim_func
    def randn_ascend(
        out: T.Tensor((num_elements,), dtype),
        seed: T.int64,
        sequence: T.int64,
        offset: T.int64,
        num_vec_cores: T.int32,
    ) -> None:
        with T.Kernel(num_vec_cores) as core:
            out_ub = T.alloc_shared((TILE,), dtype)
            T.annotate_buffer_versions({out_ub: 2})

            # truncdiv: a floor division by a run-time value adds a remainder and a sign test.
            num_tiles = T.truncdiv(num_elements + (TILE - 1), T.int64(TILE))
            num_own = T.truncdiv(
                num_tiles + num_vec_cores - 1 - core, T.Cast(T.int64, num_vec_cores)
            )
            for k in T.Pipelined(num_own, num_stages=2):
                begin = (T.Cast(T.int64, core) + k * num_vec_cores) * TILE
                count = T.min(T.int64(TILE), num_elements - begin)

                # compute
                with T.SimtVF(threads=THREADS):
                    thread = T.get_thread_binding()
                    normal = T.alloc_local((WORDS,), T.float32)
                    uniform = T.alloc_var(T.float32)
                    angle = T.alloc_var(T.float32)
                    radius = T.alloc_var(T.float32)
                    for group in T.serial(GROUPS):
                        first = (group * THREADS + thread) * WORDS
                        if first < count:
                            T.rng_init(seed, sequence, offset + begin + first)
                            for pair in T.unroll(WORDS // 2, explicit=True):
                                # Assigned, not nested: the words are drawn in this order.
                                uniform = T.Cast(T.float32, T.rng_rand())
                                uniform = uniform * UNIFORM_SCALE + UNIFORM_SHIFT
                                angle = T.Cast(T.float32, T.reinterpret(T.rng_rand(), T.int32))
                                angle = angle * ANGLE_SCALE
                                radius = T.sqrt(T.float32(-2.0) * T.log(uniform))
                                normal[2 * pair] = radius * T.cos(angle)
                                normal[2 * pair + 1] = radius * T.sin(angle)
                            for j in T.vectorized(WORDS):
                                out_ub[first + j] = T.Cast(dtype, normal[j])

                # store
                T.copy(out_ub[0:count], out[begin : begin + count])

    return randn_ascend
