// Encoding and decoding of the 16-, 8- and 4-bit floating-point formats, exact in every rounding
// mode. One integer algorithm serves all formats; it has no table and no call, so it vectorises.
#pragma once

#include <bit>
#include <cstdint>

namespace sim {

enum class Round { nearest_even, nearest_away, floor, ceil, zero, odd };

// What becomes of a finite value beyond the largest one, and of an infinity.
enum class Overflow {
  saturate_finite,  // finite values saturate, infinity stays (formats that have one)
  saturate_all,     // infinity saturates too
  overflow          // infinity, or NaN in formats without one
};

template <int ExponentBits, int MantissaBits, int Bias, uint32_t MaxCode, uint32_t InfCode,
          uint32_t NanCode>
struct Format {
  static constexpr int exponent_bits = ExponentBits;
  static constexpr int mantissa_bits = MantissaBits;
  static constexpr int bias = Bias;
  static constexpr uint32_t max_code = MaxCode;  // largest finite magnitude
  static constexpr uint32_t inf_code = InfCode;  // the format's overflow result
  static constexpr uint32_t nan_code = NanCode;
  static constexpr int sign_shift = ExponentBits + MantissaBits;
  static constexpr bool has_inf = InfCode == (((1u << ExponentBits) - 1) << MantissaBits);
};
using Fp16 = Format<5, 10, 15, 0x7bff, 0x7c00, 0x7e00>;
using Bf16 = Format<8, 7, 127, 0x7f7f, 0x7f80, 0x7fc0>;
using E4m3 = Format<4, 3, 7, 0x7e, 0x7f, 0x7f>;
using E5m2 = Format<5, 2, 15, 0x7b, 0x7c, 0x7f>;
using E2m1 = Format<2, 1, 1, 0x7, 0x7, 0x7>;
using E1m2 = Format<1, 2, 1, 0x7, 0x7, 0x7>;

// Whether `quotient` must be incremented, given the discarded bits and the value of half a unit.
template <Round R>
__attribute__((always_inline)) inline bool rounds_up(uint32_t quotient, uint32_t rest,
                                                     uint32_t half, bool is_negative) {
  if constexpr (R == Round::nearest_even) return rest > half || (rest == half && (quotient & 1));
  if constexpr (R == Round::nearest_away) return rest >= half;
  if constexpr (R == Round::floor) return is_negative && rest;
  if constexpr (R == Round::ceil) return !is_negative && rest;
  if constexpr (R == Round::odd) return rest && !(quotient & 1);
  return false;
}

template <typename F, Round R = Round::nearest_even, Overflow O = Overflow::saturate_finite>
__attribute__((always_inline)) inline uint32_t encode(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = bits >> 31;
  const uint32_t magnitude = bits & 0x7fffffffu;
  const bool is_normal = magnitude >= 0x00800000u;
  const int exponent = is_normal ? (int)(magnitude >> 23) : 1;
  const uint32_t significand = (magnitude & 0x007fffffu) | (is_normal ? 0x00800000u : 0u);

  // Distance to the exponent of the smallest normal number: below it, precision is lost.
  constexpr int min_exponent = 128 - F::bias;
  const int above = exponent - min_exponent;
  int shift = 23 - F::mantissa_bits;
  if constexpr (min_exponent > 1) {
    shift += above < 0 ? -above : 0;
    shift = shift > 25 ? 25 : shift;  // everything is discarded from here on
  }
  const uint32_t rest = significand & ((1u << shift) - 1);
  uint32_t quotient = significand >> shift;
  quotient += rounds_up<R>(quotient, rest, 1u << (shift - 1), sign != 0);
  // The implicit bit of a normal quotient adds one to the exponent field, as does a carry.
  uint32_t code = ((uint32_t)(above > 0 ? above : 0) << F::mantissa_bits) + quotient;

  constexpr uint32_t beyond = O == Overflow::overflow ? F::inf_code : F::max_code;
  constexpr uint32_t infinity =
      O == Overflow::saturate_all || (O == Overflow::saturate_finite && !F::has_inf) ? F::max_code
                                                                                     : F::inf_code;
  code = code > F::max_code ? beyond : code;
  code = magnitude == 0x7f800000u ? infinity : code;
  code = magnitude > 0x7f800000u ? F::nan_code : code;
  return code | (sign << F::sign_shift);
}

template <typename F>
__attribute__((always_inline)) inline float decode(uint32_t code) {
  const uint32_t sign = (code >> F::sign_shift) & 1;
  const uint32_t magnitude = code & ((1u << F::sign_shift) - 1);
  if constexpr (F::bias == 127) {
    return std::bit_cast<float>((magnitude << (23 - F::mantissa_bits)) | (sign << 31));
  } else {
    // As a float this has the right fraction and an exponent that is too small by a constant, also
    // when it is subnormal; one exact multiplication repairs both.
    constexpr float scale = std::bit_cast<float>((uint32_t)(254 - F::bias) << 23);
    const float scaled = std::bit_cast<float>(magnitude << (23 - F::mantissa_bits)) * scale;
    uint32_t bits = std::bit_cast<uint32_t>(scaled);
    if constexpr (F::has_inf) {
      bits = magnitude == F::inf_code ? 0x7f800000u : bits;
      bits = magnitude > F::inf_code ? 0x7fc00000u : bits;
    } else if constexpr (F::nan_code > F::max_code) {
      bits = magnitude == F::nan_code ? 0x7fc00000u : bits;
    }
    return std::bit_cast<float>(bits | (sign << 31));
  }
}

}  // namespace sim
