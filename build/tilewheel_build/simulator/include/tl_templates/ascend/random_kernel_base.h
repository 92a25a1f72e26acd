// Philox 4x32-10 for tl_templates/ascend/philox_rng.h, which finds this file first on the include
// path.
//
// The generator is J. Salmon, M. Moraes, R. Dror, D. Shaw, "Parallel Random Numbers: As Easy as 1,
// 2, 3" (SC 2011). The names are those that philox_rng.h uses. Box-Muller: G. Box, M. Muller, "A
// Note on the Generation of Random Normal Deviates" (1958).
#pragma once

#include <cmath>
#include <cstdint>

namespace RandomKernelBase {

inline constexpr int ALG_KEY_SIZE = 2;
inline constexpr int ALG_COUNTER_SIZE = 4;
inline constexpr int IDX_2 = 2;
inline constexpr int IDX_3 = 3;
inline constexpr float RAND_2POW32_INV = 0x1p-32f;
inline constexpr float RAND_2POW32_INV_HALF = 0x1p-33f;

// Adds `count` to the 64-bit number in words `first` and `first + 1`, and the carry beyond it.
inline void AdvanceCounter(uint32_t *counter, int first, uint64_t count) {
  uint64_t carry = 0;
  for (int i = first; i < ALG_COUNTER_SIZE; ++i) {
    const uint32_t word = i - first < 2 ? (uint32_t)(count >> (32 * (i - first))) : 0;
    const uint64_t sum = (uint64_t)counter[i] + word + carry;
    counter[i] = (uint32_t)sum;
    carry = sum >> 32;
  }
}
inline void SkipOne(uint32_t *counter) { AdvanceCounter(counter, 0, 1); }
inline void SkipHi(uint32_t *counter, uint64_t count) { AdvanceCounter(counter, 2, count); }

// Key from the seed; the offset is in draws, four of which come from one counter value.
inline void PhiloxAlgParsInit(uint32_t *key, uint32_t *counter, int64_t seed, int64_t offset) {
  key[0] = (uint32_t)(uint64_t)seed;
  key[1] = (uint32_t)((uint64_t)seed >> 32);
  AdvanceCounter(counter, 0, (uint64_t)offset / ALG_COUNTER_SIZE);
}

inline void PhiloxRandomSimt(const uint32_t *key, const uint32_t *counter, uint32_t *result) {
  uint32_t k0 = key[0], k1 = key[1];
  uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = (uint64_t)0xD2511F53u * c0;
    const uint64_t product1 = (uint64_t)0xCD9E8D57u * c2;
    c0 = (uint32_t)(product1 >> 32) ^ c1 ^ k0;
    c2 = (uint32_t)(product0 >> 32) ^ c3 ^ k1;
    c1 = (uint32_t)product1;
    c3 = (uint32_t)product0;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  result[0] = c0;
  result[1] = c1;
  result[2] = c2;
  result[3] = c3;
}

// Two normal deviates from two uniform ones: the sine first.
inline void BoxMullerFloat(float uniform0, float uniform1, float *normal0, float *normal1) {
  constexpr float smallest = 1.0e-7f;
  const float u = uniform0 < smallest ? smallest : uniform0;
  const float radius = std::sqrt(-2.0f * std::log(u));
  const float angle = 6.2831853071795864769f * uniform1;
  *normal0 = std::sin(angle) * radius;
  *normal1 = std::cos(angle) * radius;
}

}  // namespace RandomKernelBase
