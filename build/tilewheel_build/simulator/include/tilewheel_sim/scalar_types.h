// The scalar and packed types of generated code, and the conversions SIMT code calls by name.
#pragma once

#include <cmath>
#include <type_traits>

#include "tilewheel_sim/small_floats.h"

struct half {
  uint16_t bits;
  half() = default;
  half(float value) : bits((uint16_t)sim::encode<sim::Fp16>(value)) {}
  operator float() const { return sim::decode<sim::Fp16>(bits); }
};
struct bfloat16_t {
  uint16_t bits;
  bfloat16_t() = default;
  bfloat16_t(float value) : bits((uint16_t)sim::encode<sim::Bf16>(value)) {}
  operator float() const { return sim::decode<sim::Bf16>(bits); }
};

namespace sim {
template <typename F>
struct Fp8 {
  using format = F;
  uint8_t bits;
  Fp8() = default;
  Fp8(float value) : bits((uint8_t)encode<F, Round::nearest_even, Overflow::saturate_all>(value)) {}
  // From TileLang's own 8-bit types, which convert to float: to the device compiler, this is one of
  // the arithmetic types, to which everything converts.
  template <typename T>
    requires std::is_class_v<T> && (!std::is_same_v<T, Fp8>) && std::is_convertible_v<T, float>
  Fp8(const T &value) : Fp8((float)value) {}
  operator float() const { return decode<F>(bits); }
};
}  // namespace sim

using float8_e4m3_t = sim::Fp8<sim::E4m3>;
using float8_e5m2_t = sim::Fp8<sim::E5m2>;
struct float8_e8m0_t {
  uint8_t bits;
};
using fp8_e8m0_t = float8_e8m0_t;
struct float4_e2m1x2_t {
  using format = sim::E2m1;
  uint8_t bits;
};
struct float4_e1m2x2_t {
  using format = sim::E1m2;
  uint8_t bits;
};
struct float8_e4m3x2_t {
  uint16_t bits;
};
struct float8_e5m2x2_t {
  uint16_t bits;
};

#define TILEWHEEL_SIM_VECTORS(type, name, bytes) \
  struct alignas(bytes) name##2 { type x, y; };  \
  struct alignas(2 * (bytes) > 16 ? 16 : 2 * (bytes)) name##4 { type x, y, z, w; };
TILEWHEEL_SIM_VECTORS(float, float, 8)
TILEWHEEL_SIM_VECTORS(int32_t, int, 8)
TILEWHEEL_SIM_VECTORS(uint32_t, uint, 8)
TILEWHEEL_SIM_VECTORS(uint16_t, ushort, 4)
#undef TILEWHEEL_SIM_VECTORS
struct uint1 {
  uint32_t x;
};
struct uint3 {
  uint32_t x, y, z;
};
struct half2 {
  half x, y;
};
struct bfloat16x2_t {
  bfloat16_t x, y;
};

#define TILEWHEEL_SIM_FLOAT2(op)                                                     \
  inline float2 operator op(float2 a, float2 b) { return {a.x op b.x, a.y op b.y}; } \
  inline float2 operator op(float2 a, float b) { return {a.x op b, a.y op b}; }      \
  inline float2 operator op(float a, float2 b) { return {a op b.x, a op b.y}; }      \
  inline float4 operator op(float4 a, float4 b) {                                    \
    return {a.x op b.x, a.y op b.y, a.z op b.z, a.w op b.w};                         \
  }
TILEWHEEL_SIM_FLOAT2(+)
TILEWHEEL_SIM_FLOAT2(-)
TILEWHEEL_SIM_FLOAT2(*)
TILEWHEEL_SIM_FLOAT2(/)
#undef TILEWHEEL_SIM_FLOAT2

inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline int2 make_int2(int x, int y) { return {x, y}; }
inline int4 make_int4(int x, int y, int z, int w) { return {x, y, z, w}; }
inline uint2 make_uint2(uint32_t x, uint32_t y) { return {x, y}; }
inline uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w) { return {x, y, z, w}; }

inline float __half2float(half value) { return value; }
inline half __float2half_rn(float value) { return value; }
inline float __bfloat162float(bfloat16_t value) { return value; }
inline bfloat16_t __float2bfloat16_rn(float value) { return value; }
inline float2 __half22float2(half2 value) { return {value.x, value.y}; }
inline half2 __float22half2_rn(float2 value) { return {half(value.x), half(value.y)}; }
inline float2 __bfloat1622float2(bfloat16x2_t value) { return {value.x, value.y}; }
inline bfloat16x2_t __float22bfloat162_rn(float2 value) {
  return {bfloat16_t(value.x), bfloat16_t(value.y)};
}
enum { __ASC_SATFINITE = 1 };
enum { __ASC_E4M3 = 0, __ASC_E5M2 = 1 };
using __asc_fp8x2_storage_t = uint16_t;
inline uint16_t __asc_cvt_float2_to_fp8x2(float2 value, int /*saturation*/, int kind) {
  if (kind == __ASC_E5M2)
    return (uint16_t)(float8_e5m2_t(value.x).bits | float8_e5m2_t(value.y).bits << 8);
  return (uint16_t)(float8_e4m3_t(value.x).bits | float8_e4m3_t(value.y).bits << 8);
}
inline float2 __e4m3x22float2(float8_e4m3x2_t value) {
  return {sim::decode<sim::E4m3>(value.bits & 0xff), sim::decode<sim::E4m3>(value.bits >> 8)};
}
inline float2 __e5m2x22float2(float8_e5m2x2_t value) {
  return {sim::decode<sim::E5m2>(value.bits & 0xff), sim::decode<sim::E5m2>(value.bits >> 8)};
}

template <typename A, typename B>
constexpr auto min(A a, B b) {
  using C = std::common_type_t<A, B>;
  return (C)a < (C)b ? (C)a : (C)b;
}
template <typename A, typename B>
constexpr auto max(A a, B b) {
  using C = std::common_type_t<A, B>;
  return (C)a > (C)b ? (C)a : (C)b;
}
inline float rsqrtf(float value) { return 1.0f / std::sqrt(value); }

#define TILEWHEEL_SIM_HALF_MATH(name) \
  inline half h##name(half value) { return half(std::name((float)value)); }
TILEWHEEL_SIM_HALF_MATH(exp)
TILEWHEEL_SIM_HALF_MATH(exp2)
TILEWHEEL_SIM_HALF_MATH(log)
TILEWHEEL_SIM_HALF_MATH(log2)
TILEWHEEL_SIM_HALF_MATH(sqrt)
TILEWHEEL_SIM_HALF_MATH(tanh)
TILEWHEEL_SIM_HALF_MATH(floor)
TILEWHEEL_SIM_HALF_MATH(ceil)
TILEWHEEL_SIM_HALF_MATH(fabs)
TILEWHEEL_SIM_HALF_MATH(trunc)
#undef TILEWHEEL_SIM_HALF_MATH
inline half hrsqrt(half value) { return half(rsqrtf(value)); }
