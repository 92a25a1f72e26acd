// vcvt: conversions between element types.
//
// The predicate and the part tag both address the wider of the two types: element i of the wider
// register corresponds to element ratio * i + part of the narrower one.
#pragma once

#include <limits>

#include "tilewheel_sim/registers.h"

namespace sim {

struct DefaultControl {
  static constexpr Round rounding = Round::nearest_even;
  static constexpr bool saturates = true;
  static constexpr int part = 0;
};
template <typename Control>
concept SetsRounding = requires { Control::rounding; };
template <typename Control>
concept SetsSaturation = requires { Control::saturates; };
template <typename Control>
concept SetsPart = requires { Control::part; };

// The control of each kind in a list of tags; conversions list them in different orders.
template <typename... Controls>
struct ConvertControls {
  static constexpr Round rounding = [] {
    Round value = DefaultControl::rounding;
    (
        [&] {
          if constexpr (SetsRounding<Controls>) value = Controls::rounding;
        }(),
        ...);
    return value;
  }();
  static constexpr bool saturates = [] {
    bool value = DefaultControl::saturates;
    (
        [&] {
          if constexpr (SetsSaturation<Controls>) value = Controls::saturates;
        }(),
        ...);
    return value;
  }();
  static constexpr int part = [] {
    int value = DefaultControl::part;
    (
        [&] {
          if constexpr (SetsPart<Controls>) value = Controls::part;
        }(),
        ...);
    return value;
  }();
};

template <Round R>
inline double round_to_integer(double value) {
  if constexpr (R == Round::nearest_even) return __builtin_nearbyint(value);
  if constexpr (R == Round::nearest_away) return __builtin_round(value);
  if constexpr (R == Round::floor) return __builtin_floor(value);
  if constexpr (R == Round::ceil) return __builtin_ceil(value);
  if constexpr (R == Round::odd) {
    const double down = __builtin_trunc(value);
    const bool is_even = __builtin_fmod(down, 2.0) == 0.0;
    return down != value && is_even ? down + __builtin_copysign(1.0, value) : down;
  }
  return __builtin_trunc(value);
}

template <typename D, Round R, bool Saturates>
inline D float_to_integer(float value) {
  if (value != value) return 0;
  const double rounded = round_to_integer<R>((double)value);
  constexpr double low = (double)std::numeric_limits<D>::min();
  constexpr double beyond = 2.0 * (double)(uint64_t(1) << (std::numeric_limits<D>::digits - 1));
  if (rounded >= low && rounded < beyond) return (D)rounded;
  if constexpr (!Saturates) {
    if (rounded > -9.2e18 && rounded < 9.2e18) return (D)(int64_t)rounded;  // wraps
  }
  return rounded < 0 ? std::numeric_limits<D>::min() : std::numeric_limits<D>::max();
}

template <typename D, bool Saturates, typename S>
inline D integer_to_integer(S value) {
  if constexpr (Saturates && sizeof(D) <= 4) {
    const int64_t wide = (int64_t)value;  // a 64-bit source is signed
    if (wide < (int64_t)std::numeric_limits<D>::min()) return std::numeric_limits<D>::min();
    if (wide > (int64_t)std::numeric_limits<D>::max()) return std::numeric_limits<D>::max();
  }
  return (D)value;
}

// Integers of up to 64 bits to fp32 in any rounding mode.
template <Round R, typename S>
inline float integer_to_float(S value) {
  if constexpr (R == Round::nearest_even || sizeof(S) <= 2) {
    return (float)value;
  } else {
    const bool is_negative = value < 0;
    uint64_t magnitude = is_negative ? 0 - (uint64_t)value : (uint64_t)value;
    if (magnitude < (1u << 24)) return (float)value;
    const int shift = 40 - std::countl_zero(magnitude);
    const uint64_t rest = magnitude & ((uint64_t(1) << shift) - 1);
    const uint64_t half = uint64_t(1) << (shift - 1);
    const uint32_t quotient = (uint32_t)(magnitude >> shift);
    // Only the order of `rest` and `half` matters.
    const uint32_t order = rest == 0 ? 0 : rest < half ? 1 : rest == half ? 2 : 3;
    const float result =
        __builtin_ldexpf((float)(quotient + rounds_up<R>(quotient, order, 2, is_negative)), shift);
    return is_negative ? -result : result;
  }
}

template <typename D, typename Controls, typename S>
__attribute__((always_inline)) inline D convert_element(S value) {
  constexpr Round rounding = Controls::rounding;
  constexpr Overflow overflow =
      Controls::saturates ? Overflow::saturate_finite : Overflow::overflow;
  if constexpr (std::is_integral_v<D> && std::is_integral_v<S>) {
    return integer_to_integer<D, Controls::saturates>(value);
  } else if constexpr (std::is_integral_v<D>) {
    return float_to_integer<D, rounding, Controls::saturates>((float)value);
  } else {
    float wide;
    if constexpr (std::is_integral_v<S>)
      wide = integer_to_float<rounding>(value);
    else
      wide = (float)value;
    D result;
    if constexpr (std::is_same_v<D, float>)
      return wide;
    else if constexpr (std::is_same_v<D, half>)
      result.bits = (uint16_t)encode<Fp16, rounding, overflow>(wide);
    else if constexpr (std::is_same_v<D, bfloat16_t>)
      result.bits = (uint16_t)encode<Bf16, rounding, overflow>(wide);
    else
      result.bits =
          (uint8_t)encode<typename D::format, rounding,
                          Controls::saturates ? Overflow::saturate_all : Overflow::overflow>(wide);
    return result;
  }
}

template <typename T>
inline constexpr bool is_fp4_pair =
    std::is_same_v<T, float4_e2m1x2_t> || std::is_same_v<T, float4_e1m2x2_t>;

}  // namespace sim

template <typename D, typename S, typename... Tags>
inline void vcvt(sim::Register<D> &dst, const sim::Register<S> &src, vector_bool mask, Tags...) {
  using Controls = sim::ConvertControls<Tags...>;
  constexpr int part = Controls::part;
  sim::Register<D> result = sim::zeros<D>();
  if constexpr (sim::is_fp4_pair<D>) {
    // Two 16-bit floats become one byte; the byte is the `part`-th of its 32-bit slot.
    using Format = typename D::format;
    for (int i = 0; i < 64; ++i) {
      const uint32_t low = sim::encode<Format, Controls::rounding>((float)src.lane[2 * i]);
      const uint32_t high = sim::encode<Format, Controls::rounding>((float)src.lane[2 * i + 1]);
      const bool active = sim::is_active<4>(mask, i);
      result.lane[4 * i + part].bits = active ? (uint8_t)(low | high << 4) : uint8_t(0);
      if (active)
        for (int j = 0; j < 2; ++j) sim::carry_undefined(result, 4 * i + part, src, 2 * i + j);
    }
  } else if constexpr (sim::is_fp4_pair<S>) {
    using Format = typename S::format;
    for (int i = 0; i < 64; ++i) {
      if (!sim::is_active<4>(mask, i)) continue;
      const uint8_t pair = src.lane[4 * i + part].bits;
      result.lane[2 * i] = D(sim::decode<Format>(pair & 15));
      result.lane[2 * i + 1] = D(sim::decode<Format>(pair >> 4));
      for (int j = 0; j < 2; ++j) sim::carry_undefined(result, 2 * i + j, src, 4 * i + part);
    }
  } else if constexpr (sizeof(D) >= sizeof(S)) {
    constexpr int ratio = sizeof(D) / sizeof(S);
    constexpr int first = ratio == 1 ? 0 : part;
    sim::map(result, mask,
             [&](int i) { return sim::convert_element<D, Controls>(src.lane[ratio * i + first]); });
    if (sim::any(src.undefined)) [[unlikely]]
      for (int i = 0; i < sim::Register<D>::lanes; ++i)
        if (sim::is_active<sizeof(D)>(mask, i))
          sim::carry_undefined(result, i, src, ratio * i + first);
  } else {
    constexpr int ratio = sizeof(S) / sizeof(D);
    if (sim::is_full<sizeof(S)>(mask)) [[likely]] {
      for (int i = 0; i < sim::Register<S>::lanes; ++i)
        result.lane[ratio * i + part] = sim::convert_element<D, Controls>(src.lane[i]);
    } else {
      for (int i = 0; i < sim::Register<S>::lanes; ++i)
        if (sim::is_active<sizeof(S)>(mask, i))
          result.lane[ratio * i + part] = sim::convert_element<D, Controls>(src.lane[i]);
    }
    if (sim::any(src.undefined)) [[unlikely]]
      for (int i = 0; i < sim::Register<S>::lanes; ++i)
        if (sim::is_active<sizeof(S)>(mask, i))
          sim::carry_undefined(result, ratio * i + part, src, i);
  }
  dst = result;
}
