// Vector and predicate registers, masks, and the tag objects that select instruction variants.
#pragma once

#include <array>
#include <cstring>
#include <type_traits>

#include "tilewheel_sim/check.h"
#include "tilewheel_sim/scalar_types.h"

// 256 predicate bits, one for each register byte. An element is active if the bit of its first
// byte is set; instructions of a given width neither read nor set the bits in between.
struct vector_bool {
  uint64_t word[4];
};
inline vector_bool operator&(const vector_bool &a, const vector_bool &b) {
  return {
      {a.word[0] & b.word[0], a.word[1] & b.word[1], a.word[2] & b.word[2], a.word[3] & b.word[3]}};
}
inline vector_bool operator|(const vector_bool &a, const vector_bool &b) {
  return {
      {a.word[0] | b.word[0], a.word[1] | b.word[1], a.word[2] | b.word[2], a.word[3] | b.word[3]}};
}
inline vector_bool operator~(const vector_bool &a) {
  return {{~a.word[0], ~a.word[1], ~a.word[2], ~a.word[3]}};
}

namespace sim {

inline constexpr int kRegisterBytes = 256;

// `undefined` has a bit for each byte without a value: of a register that was never written, or
// loaded from UB that was never written. Instructions carry the bits from operands to results,
// stores carry them back to UB, and DMA refuses to move such bytes to GM. Predicates carry none.
template <typename T>
struct alignas(64) Register {
  using element = T;
  static constexpr int lanes = kRegisterBytes / sizeof(T);
  T lane[lanes];
  vector_bool undefined;
  Register() : undefined{{~0ull, ~0ull, ~0ull, ~0ull}} {}
};

// Arithmetic on 16-bit floats is done in fp32 and rounded once.
template <typename T>
using compute_t =
    std::conditional_t<std::is_same_v<T, half> || std::is_same_v<T, bfloat16_t>, float, T>;

}  // namespace sim

using vector_f32 = sim::Register<float>;
using vector_f16 = sim::Register<half>;
using vector_bf16 = sim::Register<bfloat16_t>;
using vector_f8e4m3 = sim::Register<float8_e4m3_t>;
using vector_f8e5m2 = sim::Register<float8_e5m2_t>;
using vector_f8e8m0 = sim::Register<float8_e8m0_t>;
using vector_f4e2m1x2 = sim::Register<float4_e2m1x2_t>;
using vector_f4e1m2x2 = sim::Register<float4_e1m2x2_t>;
using vector_u8 = sim::Register<uint8_t>;
using vector_s8 = sim::Register<int8_t>;
using vector_u16 = sim::Register<uint16_t>;
using vector_s16 = sim::Register<int16_t>;
using vector_u32 = sim::Register<uint32_t>;
using vector_s32 = sim::Register<int32_t>;
using vector_u64 = sim::Register<uint64_t>;
using vector_s64 = sim::Register<int64_t>;
using vector_uint8_t = vector_u8;
using vector_uint16_t = vector_u16;
using vector_uint32_t = vector_u32;
using vector_int32_t = vector_s32;
using vector_float = vector_f32;
using vector_half = vector_f16;

namespace sim {

template <int Width>
inline constexpr uint64_t kElementBits = Width == 1   ? ~0ull
                                         : Width == 2 ? 0x5555555555555555ull
                                         : Width == 4 ? 0x1111111111111111ull
                                                      : 0x0101010101010101ull;

template <int Width>
inline bool is_full(const vector_bool &mask) {
  constexpr uint64_t all = kElementBits<Width>;
  return (mask.word[0] & mask.word[1] & mask.word[2] & mask.word[3] & all) == all;
}
template <int Width>
inline bool is_active(const vector_bool &mask, int lane) {
  const int bit = lane * Width;
  return (mask.word[bit >> 6] >> (bit & 63)) & 1;
}
template <int Width>
inline void activate(vector_bool &mask, int lane, bool active = true) {
  const int bit = lane * Width;
  mask.word[bit >> 6] |= (uint64_t)active << (bit & 63);
}
template <int Width>
inline vector_bool first_lanes(int64_t count) {
  constexpr int64_t lanes = kRegisterBytes / Width;
  const int64_t num_bits = (count < 0 ? 0 : count < lanes ? count : lanes) * Width;
  vector_bool mask;
  for (int k = 0; k < 4; ++k) {
    const int64_t rest = num_bits - 64 * k;
    const uint64_t bits = rest <= 0 ? 0 : rest >= 64 ? ~0ull : (1ull << rest) - 1;
    mask.word[k] = bits & kElementBits<Width>;
  }
  return mask;
}

// The predicate with every byte of each active element set.
template <int Width>
inline vector_bool active_bytes(const vector_bool &mask) {
  constexpr uint64_t spread = Width == 1 ? 1 : Width == 2 ? 3 : Width == 4 ? 15 : 255;
  vector_bool bytes;
  for (int k = 0; k < 4; ++k) bytes.word[k] = (mask.word[k] & kElementBits<Width>)*spread;
  return bytes;
}
inline bool any(const vector_bool &bits) {
  return (bits.word[0] | bits.word[1] | bits.word[2] | bits.word[3]) != 0;
}
inline constexpr vector_bool kNone{};

template <typename T>
inline bool is_undefined(const Register<T> &value, int lane) {
  const int bit = lane * (int)sizeof(T);
  return (value.undefined.word[bit >> 6] >> (bit & 63)) & ((1ull << sizeof(T)) - 1);
}
template <typename T>
inline void make_undefined(Register<T> &value, int lane) {
  const int bit = lane * (int)sizeof(T);
  value.undefined.word[bit >> 6] |= ((1ull << sizeof(T)) - 1) << (bit & 63);
}
// For permutations: result lane `to` has what lane `from` of `source` has.
template <typename T, typename S>
inline void carry_undefined(Register<T> &result, int to, const Register<S> &source, int from) {
  if (is_undefined(source, from)) make_undefined(result, to);
}
template <typename T>
inline bool has_undefined(const Register<T> &value, const vector_bool &mask) {
  return any(value.undefined & active_bytes<sizeof(T)>(mask));
}

template <typename T>
inline Register<T> zeros() {
  Register<T> result;
  memset((void *)&result, 0, sizeof result);
  return result;
}

// dst[lane] = f(lane) where the mask is active, else zero. The operands that `f` reads by lane are
// listed; `dst` may be one of them.
template <typename T, typename F, typename... Operands>
__attribute__((always_inline)) inline void map(Register<T> &dst, const vector_bool &mask, F f,
                                               const Operands &...operands) {
  constexpr int width = sizeof(T);
  Register<T> result;
  const vector_bool undefined = (kNone | ... | operands.undefined);
  if (is_full<width>(mask)) [[likely]] {
    for (int i = 0; i < Register<T>::lanes; ++i) result.lane[i] = f(i);
    result.undefined = undefined;
  } else {
    constexpr std::array<unsigned char, width> zero{};
    for (int i = 0; i < Register<T>::lanes; ++i)
      result.lane[i] = is_active<width>(mask, i) ? (T)f(i) : std::bit_cast<T>(zero);
    result.undefined = undefined & active_bytes<width>(mask);
  }
  dst = result;
}

// dst[lane] = mask[lane] ? a[lane] : b[lane]
template <typename T>
inline void select(Register<T> &dst, const Register<T> &a, const Register<T> &b,
                   const vector_bool &mask) {
  Register<T> result;
  for (int i = 0; i < Register<T>::lanes; ++i)
    result.lane[i] = is_active<sizeof(T)>(mask, i) ? a.lane[i] : b.lane[i];
  const vector_bool bytes = active_bytes<sizeof(T)>(mask);
  result.undefined = (a.undefined & bytes) | (b.undefined & ~bytes);
  dst = result;
}
template <typename T>
inline void merge(Register<T> &dst, const Register<T> &result, const vector_bool &mask) {
  select(dst, result, dst, mask);
}

// Tags: empty types, so that `if constexpr (part == HIGHER)` of TileLang's headers is a constant.
struct Tag {};
template <typename A, typename B>
  requires std::is_base_of_v<Tag, A> && std::is_base_of_v<Tag, B>
constexpr bool operator==(A, B) {
  return std::is_same_v<A, B>;
}
template <typename M>
inline constexpr bool is_merging = false;

}  // namespace sim

#define TILEWHEEL_SIM_TAG(name, member, value) \
  struct name##_tag : sim::Tag {               \
    static constexpr auto member = value;      \
  };                                           \
  inline constexpr name##_tag name {}
TILEWHEEL_SIM_TAG(LOWER, half_index, 0);
TILEWHEEL_SIM_TAG(HIGHER, half_index, 1);
TILEWHEEL_SIM_TAG(MODE_ZEROING, mode, 0);
TILEWHEEL_SIM_TAG(MODE_MERGING, mode, 1);
TILEWHEEL_SIM_TAG(MODE_STORED, mode, 2);
TILEWHEEL_SIM_TAG(INC_ORDER, step, 1);
TILEWHEEL_SIM_TAG(DEC_ORDER, step, -1);
TILEWHEEL_SIM_TAG(POS_LOWEST, position, 0);
TILEWHEEL_SIM_TAG(POS_HIGHEST, position, 1);
TILEWHEEL_SIM_TAG(PART_EVEN, part, 0);
TILEWHEEL_SIM_TAG(PART_ODD, part, 1);
TILEWHEEL_SIM_TAG(PART_P0, part, 0);
TILEWHEEL_SIM_TAG(PART_P1, part, 1);
TILEWHEEL_SIM_TAG(PART_P2, part, 2);
TILEWHEEL_SIM_TAG(PART_P3, part, 3);
TILEWHEEL_SIM_TAG(ROUND_R, rounding, sim::Round::nearest_even);
TILEWHEEL_SIM_TAG(ROUND_A, rounding, sim::Round::nearest_away);
TILEWHEEL_SIM_TAG(ROUND_F, rounding, sim::Round::floor);
TILEWHEEL_SIM_TAG(ROUND_C, rounding, sim::Round::ceil);
TILEWHEEL_SIM_TAG(ROUND_Z, rounding, sim::Round::zero);
TILEWHEEL_SIM_TAG(ROUND_O, rounding, sim::Round::odd);
TILEWHEEL_SIM_TAG(ROUND_H, rounding, sim::Round::nearest_away);
TILEWHEEL_SIM_TAG(RS_ENABLE, saturates, true);
TILEWHEEL_SIM_TAG(RS_DISABLE, saturates, false);
TILEWHEEL_SIM_TAG(POST_UPDATE, post_update, 1);
TILEWHEEL_SIM_TAG(Bin_N0, bin, 0);
TILEWHEEL_SIM_TAG(Bin_N1, bin, 1);
TILEWHEEL_SIM_TAG(DINTLV_B8, width, 1);
TILEWHEEL_SIM_TAG(DINTLV_B16, width, 2);
TILEWHEEL_SIM_TAG(DINTLV_B32, width, 4);
TILEWHEEL_SIM_TAG(VV_ALL, orders_store_load, true);
TILEWHEEL_SIM_TAG(VST_VLD, orders_store_load, true);
TILEWHEEL_SIM_TAG(VLD_VST, orders_store_load, false);
TILEWHEEL_SIM_TAG(VST_VST, orders_store_load, false);
TILEWHEEL_SIM_TAG(VST_LD, orders_store_load, false);
TILEWHEEL_SIM_TAG(VS_ALL, orders_store_load, true);
TILEWHEEL_SIM_TAG(SV_ALL, orders_store_load, true);
#undef TILEWHEEL_SIM_TAG

namespace sim {
template <>
inline constexpr bool is_merging<MODE_MERGING_tag> = true;

enum class Pattern : int { all = -1, half = -2, quarter = -3, every_third = -4, every_fourth = -5 };

template <int Width>
inline vector_bool create_mask(Pattern pattern) {
  constexpr int lanes = kRegisterBytes / Width;
  switch (pattern) {
    case Pattern::all:
      return first_lanes<Width>(lanes);
    case Pattern::half:
      return first_lanes<Width>(lanes / 2);
    case Pattern::quarter:
      return first_lanes<Width>(lanes / 4);
    case Pattern::every_third:
    case Pattern::every_fourth: {
      const int step = pattern == Pattern::every_third ? 3 : 4;
      vector_bool mask{};
      for (int lane = 0; lane < lanes; lane += step) activate<Width>(mask, lane);
      return mask;
    }
  }
  return first_lanes<Width>((int)pattern);
}
}  // namespace sim

inline constexpr auto PAT_ALL = sim::Pattern::all;
inline constexpr auto PAT_H = sim::Pattern::half;
inline constexpr auto PAT_Q = sim::Pattern::quarter;
inline constexpr auto PAT_M3 = sim::Pattern::every_third;
inline constexpr auto PAT_M4 = sim::Pattern::every_fourth;
inline constexpr auto PAT_ALLF = sim::Pattern(0);
inline constexpr auto PAT_VL1 = sim::Pattern(1);
inline constexpr auto PAT_VL2 = sim::Pattern(2);
inline constexpr auto PAT_VL3 = sim::Pattern(3);
inline constexpr auto PAT_VL4 = sim::Pattern(4);
inline constexpr auto PAT_VL8 = sim::Pattern(8);
inline constexpr auto PAT_VL16 = sim::Pattern(16);
inline constexpr auto PAT_VL32 = sim::Pattern(32);
inline constexpr auto PAT_VL64 = sim::Pattern(64);
inline constexpr auto PAT_VL128 = sim::Pattern(128);

inline vector_bool asc_create_mask_b8(sim::Pattern p) { return sim::create_mask<1>(p); }
inline vector_bool asc_create_mask_b16(sim::Pattern p) { return sim::create_mask<2>(p); }
inline vector_bool asc_create_mask_b32(sim::Pattern p) { return sim::create_mask<4>(p); }
inline vector_bool asc_create_mask_b64(sim::Pattern p) { return sim::create_mask<8>(p); }
inline vector_bool asc_update_mask_b8(uint32_t n) { return sim::first_lanes<1>(n); }
inline vector_bool asc_update_mask_b16(uint32_t n) { return sim::first_lanes<2>(n); }
inline vector_bool asc_update_mask_b32(uint32_t n) { return sim::first_lanes<4>(n); }
