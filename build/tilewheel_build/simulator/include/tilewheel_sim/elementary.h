// exp and ln in fp32, computed in double and rounded once.
//
// The host's libm differs between versions and picks a variant by CPU; a result that is correctly
// rounded in all but about one in 10^7 cases is the same on every machine. Loops over these
// vectorise.
#pragma once

#include <bit>
#include <cstdint>

namespace sim {

__attribute__((always_inline)) inline float exp_f32(float value) {
  // Beyond these, the result is 0 or infinity in fp32; the clamp keeps the scale below in range.
  double x = (double)value;
  x = x > 90.0 ? 90.0 : x;
  x = x < -105.0 ? -105.0 : x;
  constexpr double inverse_ln2 = 1.4426950408889634074;
  constexpr double ln2_high = 6.93147180369123816490e-01;
  constexpr double ln2_low = 1.90821492927058770002e-10;
  constexpr double round_to_integer = 6755399441055744.0;  // 1.5 * 2^52
  const double shifted = x * inverse_ln2 + round_to_integer;
  const double k = shifted - round_to_integer;
  const double r = (x - k * ln2_high) - k * ln2_low;
  // Taylor series on |r| <= ln2 / 2: the first omitted term is below 2e-16.
  double p = 1.0 / 6227020800.0;
  p = p * r + 1.0 / 479001600.0;
  p = p * r + 1.0 / 39916800.0;
  p = p * r + 1.0 / 3628800.0;
  p = p * r + 1.0 / 362880.0;
  p = p * r + 1.0 / 40320.0;
  p = p * r + 1.0 / 5040.0;
  p = p * r + 1.0 / 720.0;
  p = p * r + 1.0 / 120.0;
  p = p * r + 1.0 / 24.0;
  p = p * r + 1.0 / 6.0;
  p = p * r + 0.5;
  p = p * r + 1.0;
  p = p * r + 1.0;
  const int64_t exponent = std::bit_cast<int64_t>(shifted) << 52;  // k in the exponent field
  const double result = std::bit_cast<double>(std::bit_cast<int64_t>(p) + exponent);
  return value != value ? value : (float)result;
}

__attribute__((always_inline)) inline float ln_f32(float value) {
  const double x = (double)value;  // an fp32 subnormal is a normal double
  const uint64_t bits = std::bit_cast<uint64_t>(x);
  // x = m * 2^k with m in [sqrt(1/2), sqrt(2)).
  constexpr uint64_t sqrt_half = 0x3fe6a09e667f3bcdull;
  const uint64_t offset = bits - sqrt_half;
  const int64_t k = (int64_t)offset >> 52;
  const double m = std::bit_cast<double>(bits - ((uint64_t)k << 52));
  // ln(m) = 2 * atanh(s), s = (m - 1) / (m + 1), |s| < 0.1716: the first omitted term is below
  // 1e-17.
  const double s = (m - 1.0) / (m + 1.0);
  const double z = s * s;
  double p = 1.0 / 21.0;
  p = p * z + 1.0 / 19.0;
  p = p * z + 1.0 / 17.0;
  p = p * z + 1.0 / 15.0;
  p = p * z + 1.0 / 13.0;
  p = p * z + 1.0 / 11.0;
  p = p * z + 1.0 / 9.0;
  p = p * z + 1.0 / 7.0;
  p = p * z + 1.0 / 5.0;
  p = p * z + 1.0 / 3.0;
  const double ln_m = 2.0 * (s + s * z * p);
  float result = (float)((double)(int)k * 0.69314718055994530942 + ln_m);
  constexpr float infinity = __builtin_huge_valf();
  result = value == infinity ? infinity : result;
  result = value == 0.0f ? -infinity : result;
  result = value < 0.0f ? __builtin_nanf("") : result;
  return value != value ? value : result;
}

}  // namespace sim
