// Element-wise instructions: arithmetic, bit operations, comparisons, broadcasts, index ramps.
//
// Each asc_* form zeroes inactive lanes. The global v* forms with a mode argument are what
// generated code calls for MODE_MERGING.
#pragma once

#include "tilewheel_sim/elementary.h"
#include "tilewheel_sim/registers.h"

namespace sim {

template <typename T, typename F>
inline T bitwise(T a, T b, F f) {
  if constexpr (sizeof(T) == 2) {
    return std::bit_cast<T>((uint16_t)f(std::bit_cast<uint16_t>(a), std::bit_cast<uint16_t>(b)));
  } else if constexpr (std::is_same_v<T, float>) {
    return std::bit_cast<T>(f(std::bit_cast<uint32_t>(a), std::bit_cast<uint32_t>(b)));
  } else {
    return (T)f(a, b);
  }
}

template <typename T>
inline T fused_multiply_add(T a, T b, T c) {
  if constexpr (std::is_floating_point_v<compute_t<T>>)
    return (T)__builtin_fmaf((float)a, (float)b, (float)c);
  else
    return (T)(a * b + c);
}

// Integer quotients that the host's instruction would trap on have a value here.
template <typename C>
inline C quotient(C a, C b) {
  if constexpr (std::is_integral_v<C>) {
    if (b == 0) return C(-1);
    if (std::is_signed_v<C> && b == C(-1)) return C(0 - a);
  }
  return a / b;
}

// Shifting by the width or more empties the register (or leaves the sign).
template <typename T, typename S>
inline T shift_left(T value, S count) {
  constexpr unsigned bits = 8 * sizeof(T);
  return (uint64_t)(std::make_unsigned_t<S>)count >= bits ? T(0) : (T)(value << count);
}
template <typename T, typename S>
inline T shift_right(T value, S count) {
  constexpr unsigned bits = 8 * sizeof(T);
  if ((uint64_t)(std::make_unsigned_t<S>)count >= bits) return value < 0 ? T(-1) : T(0);
  return (T)(value >> count);
}

}  // namespace sim

#define TILEWHEEL_SIM_BINARY(api, global, expression)                                          \
  template <typename T>                                                                        \
  inline void api(sim::Register<T> &dst, const sim::Register<T> &a, const sim::Register<T> &b, \
                  vector_bool mask) {                                                          \
    using C = sim::compute_t<T>;                                                               \
    sim::map(                                                                                  \
        dst, mask,                                                                             \
        [&](int i) -> T {                                                                      \
          const C x = (C)a.lane[i], y = (C)b.lane[i];                                          \
          return (T)(expression);                                                              \
        },                                                                                     \
        a, b);                                                                                 \
  }                                                                                            \
  TILEWHEEL_SIM_MODE2(global, api)
#define TILEWHEEL_SIM_SCALAR(api, global, expression)                                             \
  template <typename T, typename S>                                                               \
  inline void api(sim::Register<T> &dst, const sim::Register<T> &a, S scalar, vector_bool mask) { \
    using C = sim::compute_t<T>;                                                                  \
    const C y = (C)(T)scalar;                                                                     \
    sim::map(                                                                                     \
        dst, mask,                                                                                \
        [&](int i) -> T {                                                                         \
          const C x = (C)a.lane[i];                                                               \
          return (T)(expression);                                                                 \
        },                                                                                        \
        a);                                                                                       \
  }                                                                                               \
  TILEWHEEL_SIM_MODE2(global, api)
#define TILEWHEEL_SIM_UNARY(api, global, expression)                                             \
  template <typename T>                                                                          \
  inline void api(sim::Register<T> &dst, const sim::Register<T> &a, vector_bool mask) {          \
    using C = sim::compute_t<T>;                                                                 \
    sim::map(                                                                                    \
        dst, mask,                                                                               \
        [&](int i) -> T {                                                                        \
          const C x = (C)a.lane[i];                                                              \
          return (T)(expression);                                                                \
        },                                                                                       \
        a);                                                                                      \
  }                                                                                              \
  template <typename T, typename Mode>                                                           \
  inline void global(sim::Register<T> &dst, const sim::Register<T> &a, vector_bool mask, Mode) { \
    sim::Register<T> result;                                                                     \
    api(result, a, mask);                                                                        \
    if constexpr (sim::is_merging<Mode>)                                                         \
      sim::merge(dst, result, mask);                                                             \
    else                                                                                         \
      dst = result;                                                                              \
  }
#define TILEWHEEL_SIM_MODE2(global, api)                                           \
  template <typename T, typename B, typename Mode>                                 \
  inline void global(sim::Register<T> &dst, const sim::Register<T> &a, const B &b, \
                     vector_bool mask, Mode) {                                     \
    sim::Register<T> result;                                                       \
    api(result, a, b, mask);                                                       \
    if constexpr (sim::is_merging<Mode>)                                           \
      sim::merge(dst, result, mask);                                               \
    else                                                                           \
      dst = result;                                                                \
  }

TILEWHEEL_SIM_BINARY(asc_add, vadd, x + y)
TILEWHEEL_SIM_BINARY(asc_sub, vsub, x - y)
TILEWHEEL_SIM_BINARY(asc_mul, vmul, x *y)
TILEWHEEL_SIM_BINARY(asc_div, vdiv, sim::quotient(x, y))
TILEWHEEL_SIM_BINARY(asc_max, vmax, x > y ? x : y)
TILEWHEEL_SIM_BINARY(asc_min, vmin, x < y ? x : y)
TILEWHEEL_SIM_BINARY(asc_abs_sub, vabsdif, x > y ? x - y : y - x)
TILEWHEEL_SIM_SCALAR(asc_add_scalar, vadds, x + y)
TILEWHEEL_SIM_SCALAR(asc_mul_scalar, vmuls, x *y)
TILEWHEEL_SIM_SCALAR(asc_max_scalar, vmaxs, x > y ? x : y)
TILEWHEEL_SIM_SCALAR(asc_min_scalar, vmins, x < y ? x : y)
TILEWHEEL_SIM_UNARY(asc_ln, vln, sim::ln_f32((float)x))
TILEWHEEL_SIM_UNARY(asc_exp, vexp, sim::exp_f32((float)x))
TILEWHEEL_SIM_UNARY(asc_sqrt, vsqrt, __builtin_sqrtf((float)x))
TILEWHEEL_SIM_UNARY(asc_neg, vneg, -x)
TILEWHEEL_SIM_UNARY(asc_relu, vrelu, x > C(0) ? x : C(0))
TILEWHEEL_SIM_UNARY(asc_abs, vabs, [](C v) {
  if constexpr (std::is_floating_point_v<C>)
    return __builtin_fabsf(v);
  else
    return v < C(0) ? C(-v) : v;
}(x))

#define TILEWHEEL_SIM_BITWISE(api, global, op)                                                 \
  template <typename T>                                                                        \
  inline void api(sim::Register<T> &dst, const sim::Register<T> &a, const sim::Register<T> &b, \
                  vector_bool mask) {                                                          \
    sim::map(                                                                                  \
        dst, mask,                                                                             \
        [&](int i) -> T {                                                                      \
          return sim::bitwise(a.lane[i], b.lane[i], [](auto x, auto y) { return x op y; });    \
        },                                                                                     \
        a, b);                                                                                 \
  }                                                                                            \
  inline void api(vector_bool &dst, vector_bool a, vector_bool b, vector_bool mask) {          \
    for (int k = 0; k < 4; ++k) dst.word[k] = (a.word[k] op b.word[k]) & mask.word[k];         \
  }                                                                                            \
  TILEWHEEL_SIM_MODE2(global, api)
TILEWHEEL_SIM_BITWISE(asc_and, vand, &)
TILEWHEEL_SIM_BITWISE(asc_or, vor, |)
TILEWHEEL_SIM_BITWISE(asc_xor, vxor, ^)
#undef TILEWHEEL_SIM_BITWISE

template <typename T>
inline void asc_not(sim::Register<T> &dst, const sim::Register<T> &a, vector_bool mask) {
  sim::map(
      dst, mask,
      [&](int i) -> T {
        return sim::bitwise(a.lane[i], a.lane[i], [](auto x, auto) { return ~x; });
      },
      a);
}
template <typename T, typename Mode>
inline void vnot(sim::Register<T> &dst, const sim::Register<T> &a, vector_bool mask, Mode) {
  sim::Register<T> result;
  asc_not(result, a, mask);
  if constexpr (sim::is_merging<Mode>)
    sim::merge(dst, result, mask);
  else
    dst = result;
}
inline void asc_not(vector_bool &dst, vector_bool a, vector_bool mask) {
  for (int k = 0; k < 4; ++k) dst.word[k] = ~a.word[k] & mask.word[k];
}

#define TILEWHEEL_SIM_SHIFT(api, scalar_api, global, scalar_global, f)                         \
  template <typename T, typename U>                                                            \
  inline void api(sim::Register<T> &dst, const sim::Register<T> &a, const sim::Register<U> &b, \
                  vector_bool mask) {                                                          \
    sim::map(dst, mask, [&](int i) -> T { return f(a.lane[i], b.lane[i]); }, a, b);            \
  }                                                                                            \
  template <typename T>                                                                        \
  inline void scalar_api(sim::Register<T> &dst, const sim::Register<T> &a, int count,          \
                         vector_bool mask) {                                                   \
    sim::map(dst, mask, [&](int i) -> T { return f(a.lane[i], count); }, a);                   \
  }                                                                                            \
  TILEWHEEL_SIM_MODE2(global, api)                                                             \
  TILEWHEEL_SIM_MODE2(scalar_global, scalar_api)
TILEWHEEL_SIM_SHIFT(asc_shiftleft, asc_shiftleft_scalar, vshl, vshls, sim::shift_left)
TILEWHEEL_SIM_SHIFT(asc_shiftright, asc_shiftright_scalar, vshr, vshrs, sim::shift_right)
#undef TILEWHEEL_SIM_SHIFT
#undef TILEWHEEL_SIM_BINARY
#undef TILEWHEEL_SIM_SCALAR
#undef TILEWHEEL_SIM_UNARY
#undef TILEWHEEL_SIM_MODE2

template <typename T>
inline void asc_exp_sub(sim::Register<T> &dst, const sim::Register<T> &a, const sim::Register<T> &b,
                        vector_bool mask) {
  sim::map(
      dst, mask, [&](int i) -> T { return (T)sim::exp_f32((float)a.lane[i] - (float)b.lane[i]); },
      a, b);
}
template <typename T, typename S>
inline void asc_leakyrelu(sim::Register<T> &dst, const sim::Register<T> &a, S slope,
                          vector_bool mask) {
  sim::map(
      dst, mask,
      [&](int i) -> T {
        const float x = a.lane[i];
        return (T)(x >= 0 ? x : x * (float)slope);
      },
      a);
}
template <typename T>
inline void asc_prelu(sim::Register<T> &dst, const sim::Register<T> &a,
                      const sim::Register<T> &slope, vector_bool mask) {
  sim::map(
      dst, mask,
      [&](int i) -> T {
        const float x = a.lane[i];
        return (T)(x >= 0 ? x : x * (float)slope.lane[i]);
      },
      a, slope);
}

// dst = dst + a * b
template <typename T, typename Mode>
inline void vmula(sim::Register<T> &dst, const sim::Register<T> &a, const sim::Register<T> &b,
                  vector_bool mask, Mode) {
  const sim::Register<T> old = dst;
  sim::Register<T> result;
  sim::map(
      result, mask,
      [&](int i) -> T { return sim::fused_multiply_add<T>(a.lane[i], b.lane[i], old.lane[i]); }, a,
      b, old);
  if constexpr (sim::is_merging<Mode>)
    sim::merge(dst, result, mask);
  else
    dst = result;
}
// dst = dst * a + b
template <typename T, typename Mode>
inline void vmadd(sim::Register<T> &dst, const sim::Register<T> &a, const sim::Register<T> &b,
                  vector_bool mask, Mode) {
  const sim::Register<T> old = dst;
  sim::Register<T> result;
  sim::map(
      result, mask,
      [&](int i) -> T { return sim::fused_multiply_add<T>(old.lane[i], a.lane[i], b.lane[i]); }, a,
      b, old);
  if constexpr (sim::is_merging<Mode>)
    sim::merge(dst, result, mask);
  else
    dst = result;
}
template <typename T>
inline void asc_madd(sim::Register<T> &dst, const sim::Register<T> &a, const sim::Register<T> &b,
                     vector_bool mask) {
  vmadd(dst, a, b, mask, MODE_ZEROING);
}
// dst = a * scalar + dst
template <typename T, typename S>
inline void asc_axpy(sim::Register<T> &dst, const sim::Register<T> &a, S scalar, vector_bool mask) {
  const sim::Register<T> old = dst;
  sim::map(
      dst, mask,
      [&](int i) -> T { return sim::fused_multiply_add<T>(a.lane[i], (T)scalar, old.lane[i]); }, a,
      old);
}

#define TILEWHEEL_SIM_CARRY(api, expression)                                               \
  inline void api(vector_bool &carry, vector_u32 &dst, vector_u32 a, vector_u32 b,         \
                  vector_bool carry_in, vector_bool mask) {                                \
    carry = {};                                                                            \
    sim::map(                                                                              \
        dst, mask,                                                                         \
        [&](int i) -> uint32_t {                                                           \
          const uint64_t x = a.lane[i], y = b.lane[i], c = sim::is_active<4>(carry_in, i); \
          const uint64_t sum = expression;                                                 \
          sim::activate<4>(carry, i, (sum >> 32) & 1);                                     \
          return (uint32_t)sum;                                                            \
        },                                                                                 \
        a, b);                                                                             \
  }
TILEWHEEL_SIM_CARRY(asc_addc, x + y + c)
TILEWHEEL_SIM_CARRY(asc_subc, x + (uint32_t)~y + c)
#undef TILEWHEEL_SIM_CARRY
inline void asc_add(vector_bool &carry, vector_u32 &dst, vector_u32 a, vector_u32 b,
                    vector_bool mask) {
  asc_addc(carry, dst, a, b, vector_bool{}, mask);
}
// The carry of a subtraction is set where there is no borrow.
inline void asc_sub(vector_bool &carry, vector_u32 &dst, vector_u32 a, vector_u32 b,
                    vector_bool mask) {
  asc_subc(carry, dst, a, b, sim::create_mask<4>(PAT_ALL), mask);
}
template <typename T>
inline void asc_mull(sim::Register<T> &low, sim::Register<T> &high, const sim::Register<T> &a,
                     const sim::Register<T> &b, vector_bool mask) {
  using Wide = std::conditional_t<std::is_signed_v<T>, int64_t, uint64_t>;
  sim::Register<T> l, h;
  sim::map(l, mask, [&](int i) { return (T)((Wide)a.lane[i] * (Wide)b.lane[i]); }, a, b);
  sim::map(h, mask, [&](int i) { return (T)(((Wide)a.lane[i] * (Wide)b.lane[i]) >> 32); }, a, b);
  low = l;
  high = h;
}

template <typename T, typename S>
inline void asc_duplicate_scalar(sim::Register<T> &dst, S scalar, vector_bool mask) {
  const T value = (T)scalar;
  sim::map(dst, mask, [&](int) { return value; });
}
namespace sim {
template <typename T>
inline void duplicate_lane(Register<T> &dst, const Register<T> &a, int lane,
                           const vector_bool &mask) {
  const T value = a.lane[lane];
  const bool undefined = is_undefined(a, lane);
  map(dst, mask, [&](int) { return value; });
  if (undefined) dst.undefined = active_bytes<sizeof(T)>(mask);
}
}  // namespace sim
template <typename T>
inline void asc_duplicate(sim::Register<T> &dst, const sim::Register<T> &a, vector_bool mask) {
  sim::duplicate_lane(dst, a, 0, mask);
}
template <typename T>
inline void asc_duplicate_highest(sim::Register<T> &dst, const sim::Register<T> &a,
                                  vector_bool mask) {
  sim::duplicate_lane(dst, a, sim::Register<T>::lanes - 1, mask);
}
template <typename T, typename S>
inline void asc_arange(sim::Register<T> &dst, S start) {
  for (int i = 0; i < sim::Register<T>::lanes; ++i) dst.lane[i] = (T)(start + (S)i);
  dst.undefined = sim::kNone;
}
template <typename T, typename S>
inline void asc_arange_descend(sim::Register<T> &dst, S start) {
  for (int i = 0; i < sim::Register<T>::lanes; ++i) dst.lane[i] = (T)(start - (S)i);
  dst.undefined = sim::kNone;
}

template <typename T>
inline void asc_select(sim::Register<T> &dst, const sim::Register<T> &a, const sim::Register<T> &b,
                       vector_bool mask) {
  sim::select(dst, a, b, mask);
}
inline void asc_select(vector_bool &dst, vector_bool a, vector_bool b, vector_bool mask) {
  for (int k = 0; k < 4; ++k)
    dst.word[k] = (a.word[k] & mask.word[k]) | (b.word[k] & ~mask.word[k]);
}

namespace sim {
template <typename T, typename F>
__attribute__((always_inline)) inline void compare(vector_bool &dst, const vector_bool &mask, F f) {
  constexpr int width = sizeof(T);
  constexpr int lanes_per_word = 64 / width;
  vector_bool result;
  for (int k = 0; k < 4; ++k) {
    uint64_t bits = 0;
    for (int j = 0; j < lanes_per_word; ++j)
      bits |= (uint64_t)(f(k * lanes_per_word + j) ? 1 : 0) << (j * width);
    result.word[k] = bits & mask.word[k];
  }
  dst = result;
}
}  // namespace sim

#define TILEWHEEL_SIM_COMPARE(name, op)                                                          \
  template <typename T>                                                                          \
  inline void asc_##name(vector_bool &dst, const sim::Register<T> &a, const sim::Register<T> &b, \
                         vector_bool mask) {                                                     \
    using C = sim::compute_t<T>;                                                                 \
    sim::compare<T>(dst, mask, [&](int i) { return (C)a.lane[i] op(C) b.lane[i]; });             \
  }                                                                                              \
  template <typename T, typename S>                                                              \
  inline void asc_##name##_scalar(vector_bool &dst, const sim::Register<T> &a, S scalar,         \
                                  vector_bool mask) {                                            \
    using C = sim::compute_t<T>;                                                                 \
    const C y = (C)(T)scalar;                                                                    \
    sim::compare<T>(dst, mask, [&](int i) { return (C)a.lane[i] op y; });                        \
  }
TILEWHEEL_SIM_COMPARE(eq, ==)
TILEWHEEL_SIM_COMPARE(ne, !=)
TILEWHEEL_SIM_COMPARE(gt, >)
TILEWHEEL_SIM_COMPARE(ge, >=)
TILEWHEEL_SIM_COMPARE(lt, <)
TILEWHEEL_SIM_COMPARE(le, <=)
#undef TILEWHEEL_SIM_COMPARE
