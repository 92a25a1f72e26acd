// Instructions that move data between lanes: reductions, interleaving, packing, lane gathers,
// histograms.
#pragma once

#include "tilewheel_sim/arithmetic.h"

namespace sim {

// Sum in the order of a balanced tree over all lanes, inactive ones counting as zero.
template <typename C, int N>
inline C tree_sum(C (&term)[N]) {
  for (int stride = N / 2; stride; stride /= 2)
    for (int i = 0; i < stride; ++i) term[i] += term[i + stride];
  return term[0];
}

// The extreme value in lane 0 and the index of its first lane in lane 1.
template <typename T, typename Better>
inline void find_extreme(Register<T> &dst, const Register<T> &a, vector_bool mask, Better better) {
  using C = compute_t<T>;
  int best = -1;
  for (int i = 0; i < Register<T>::lanes; ++i)
    if (is_active<sizeof(T)>(mask, i) && (best < 0 || better((C)a.lane[i], (C)a.lane[best])))
      best = i;
  Register<T> result = zeros<T>();
  if (best >= 0) {
    result.lane[0] = a.lane[best];
    if constexpr (sizeof(T) == 8) {
      result.lane[1] = (T)best;
    } else {
      using Bits = std::conditional_t<sizeof(T) == 4, uint32_t,
                                      std::conditional_t<sizeof(T) == 2, uint16_t, uint8_t>>;
      result.lane[1] = std::bit_cast<T>((Bits)best);
    }
  }
  if (has_undefined(a, mask)) {
    make_undefined(result, 0);
    make_undefined(result, 1);
  }
  dst = result;
}

// Reduces each 32-byte block to one value; the eight values fill the lowest lanes.
template <typename T, typename F>
inline void reduce_blocks(Register<T> &dst, const Register<T> &a, vector_bool mask, F f) {
  using C = compute_t<T>;
  constexpr int block_lanes = kBlockBytes / sizeof(T);
  Register<T> result = zeros<T>();
  for (int block = 0; block < 8; ++block) {
    bool any = false;
    C value{};
    for (int i = block * block_lanes; i < (block + 1) * block_lanes; ++i) {
      if (!is_active<sizeof(T)>(mask, i)) continue;
      value = any ? f(value, (C)a.lane[i]) : (C)a.lane[i];
      any = true;
      carry_undefined(result, block, a, i);
    }
    result.lane[block] = (T)value;
  }
  dst = result;
}

}  // namespace sim

template <typename D, typename T>
inline void asc_reduce_sum(sim::Register<D> &dst, const sim::Register<T> &a, vector_bool mask) {
  using C = sim::compute_t<D>;
  C term[sim::Register<T>::lanes];
  for (int i = 0; i < sim::Register<T>::lanes; ++i)
    term[i] = sim::is_active<sizeof(T)>(mask, i) ? (C)a.lane[i] : C(0);
  sim::Register<D> result = sim::zeros<D>();
  result.lane[0] = (D)sim::tree_sum(term);
  if (sim::has_undefined(a, mask)) sim::make_undefined(result, 0);
  dst = result;
}
template <typename T>
inline void asc_reduce_max(sim::Register<T> &dst, const sim::Register<T> &a, vector_bool mask) {
  sim::find_extreme(dst, a, mask, [](auto x, auto y) { return x > y; });
}
template <typename T>
inline void asc_reduce_min(sim::Register<T> &dst, const sim::Register<T> &a, vector_bool mask) {
  sim::find_extreme(dst, a, mask, [](auto x, auto y) { return x < y; });
}
template <typename T>
inline void asc_reduce_sum_datablock(sim::Register<T> &dst, const sim::Register<T> &a,
                                     vector_bool mask) {
  sim::reduce_blocks(dst, a, mask, [](auto x, auto y) { return x + y; });
}
template <typename T>
inline void asc_reduce_max_datablock(sim::Register<T> &dst, const sim::Register<T> &a,
                                     vector_bool mask) {
  sim::reduce_blocks(dst, a, mask, [](auto x, auto y) { return x > y ? x : y; });
}
template <typename T>
inline void asc_reduce_min_datablock(sim::Register<T> &dst, const sim::Register<T> &a,
                                     vector_bool mask) {
  sim::reduce_blocks(dst, a, mask, [](auto x, auto y) { return x < y ? x : y; });
}
// Sums of adjacent lanes, packed into the lower half.
template <typename T>
inline void asc_pair_reduce_sum(sim::Register<T> &dst, const sim::Register<T> &a,
                                vector_bool mask) {
  sim::Register<T> result = sim::zeros<T>();
  for (int i = 0; i < sim::Register<T>::lanes / 2; ++i) {
    float pair[2];
    for (int j = 0; j < 2; ++j) {
      const bool active = sim::is_active<sizeof(T)>(mask, 2 * i + j);
      pair[j] = active ? (float)a.lane[2 * i + j] : 0.0f;
      if (active) sim::carry_undefined(result, i, a, 2 * i + j);
    }
    result.lane[i] = (T)(pair[0] + pair[1]);
  }
  dst = result;
}

template <typename T>
inline void asc_squeeze(sim::Register<T> &dst, const sim::Register<T> &a, vector_bool mask) {
  sim::Register<T> result = sim::zeros<T>();
  int count = 0;
  for (int i = 0; i < sim::Register<T>::lanes; ++i) {
    if (!sim::is_active<sizeof(T)>(mask, i)) continue;
    sim::carry_undefined(result, count, a, i);
    result.lane[count++] = a.lane[i];
  }
  dst = result;
}
// The number of active lanes before each lane.
template <typename T>
inline void asc_unsqueeze(sim::Register<T> &dst, vector_bool mask) {
  int count = 0;
  for (int i = 0; i < sim::Register<T>::lanes; ++i) {
    dst.lane[i] = (T)count;
    count += sim::is_active<sizeof(T)>(mask, i);
  }
  dst.undefined = sim::kNone;
}

template <typename T>
inline void asc_intlv(sim::Register<T> &dst0, sim::Register<T> &dst1, const sim::Register<T> &a,
                      const sim::Register<T> &b) {
  constexpr int half = sim::Register<T>::lanes / 2;
  sim::Register<T> r0, r1;
  for (int i = 0; i < half; ++i) {
    r0.lane[2 * i] = a.lane[i];
    r0.lane[2 * i + 1] = b.lane[i];
    r1.lane[2 * i] = a.lane[half + i];
    r1.lane[2 * i + 1] = b.lane[half + i];
  }
  r0.undefined = r1.undefined = sim::kNone;
  if (sim::any(a.undefined | b.undefined)) [[unlikely]]
    for (int i = 0; i < half; ++i) {
      sim::carry_undefined(r0, 2 * i, a, i);
      sim::carry_undefined(r0, 2 * i + 1, b, i);
      sim::carry_undefined(r1, 2 * i, a, half + i);
      sim::carry_undefined(r1, 2 * i + 1, b, half + i);
    }
  dst0 = r0;
  dst1 = r1;
}
template <typename T>
inline void asc_deintlv(sim::Register<T> &dst0, sim::Register<T> &dst1, const sim::Register<T> &a,
                        const sim::Register<T> &b) {
  constexpr int half = sim::Register<T>::lanes / 2;
  sim::Register<T> r0, r1;
  for (int i = 0; i < half; ++i) {
    r0.lane[i] = a.lane[2 * i];
    r0.lane[half + i] = b.lane[2 * i];
    r1.lane[i] = a.lane[2 * i + 1];
    r1.lane[half + i] = b.lane[2 * i + 1];
  }
  r0.undefined = r1.undefined = sim::kNone;
  if (sim::any(a.undefined | b.undefined)) [[unlikely]]
    for (int i = 0; i < half; ++i) {
      sim::carry_undefined(r0, i, a, 2 * i);
      sim::carry_undefined(r0, half + i, b, 2 * i);
      sim::carry_undefined(r1, i, a, 2 * i + 1);
      sim::carry_undefined(r1, half + i, b, 2 * i + 1);
    }
  dst0 = r0;
  dst1 = r1;
}

// Narrow: the low half of each element of `a`, packed into the lower or upper half of `dst`.
namespace sim {
template <typename D, typename S>
inline void pack(Register<D> &dst, const Register<S> &a, int first) {
  static_assert(sizeof(S) == 2 * sizeof(D));
  Register<D> result = zeros<D>();
  for (int i = 0; i < Register<S>::lanes; ++i) {
    memcpy((void *)&result.lane[first + i], &a.lane[i], sizeof(D));
    carry_undefined(result, first + i, a, i);
  }
  dst = result;
}
template <typename D, typename S>
inline void unpack(Register<D> &dst, const Register<S> &a, int first) {
  static_assert(sizeof(D) == 2 * sizeof(S));
  Register<D> result = zeros<D>();
  for (int i = 0; i < Register<D>::lanes; ++i) {
    result.lane[i] = (D)a.lane[first + i];
    carry_undefined(result, i, a, first + i);
  }
  dst = result;
}
// dst bit `to + i * to_step` = src bit `from + i * from_step`.
inline void move_bits(vector_bool &dst, vector_bool src, int count, int to, int to_step, int from,
                      int from_step) {
  for (int i = 0; i < count; ++i)
    activate<1>(dst, to + i * to_step, is_active<1>(src, from + i * from_step));
}
}  // namespace sim

template <typename D, typename S>
inline void asc_pack_to_low(sim::Register<D> &dst, const sim::Register<S> &a) {
  sim::pack(dst, a, 0);
}
template <typename D, typename S>
inline void asc_pack_to_high(sim::Register<D> &dst, const sim::Register<S> &a) {
  sim::pack(dst, a, sim::Register<S>::lanes);
}
template <typename D, typename S>
inline void asc_unpack_lower(sim::Register<D> &dst, const sim::Register<S> &a) {
  sim::unpack(dst, a, 0);
}
template <typename D, typename S>
inline void asc_unpack_upper(sim::Register<D> &dst, const sim::Register<S> &a) {
  sim::unpack(dst, a, sim::Register<D>::lanes);
}
inline void asc_pack_to_low(vector_bool &dst, vector_bool a) {
  vector_bool result{};
  sim::move_bits(result, a, 128, 0, 1, 0, 2);
  dst = result;
}
inline void asc_pack_to_high(vector_bool &dst, vector_bool a) {
  vector_bool result{};
  sim::move_bits(result, a, 128, 128, 1, 0, 2);
  dst = result;
}
inline void asc_unpack_lower(vector_bool &dst, vector_bool a) {
  vector_bool result{};
  sim::move_bits(result, a, 128, 0, 2, 0, 1);
  dst = result;
}
inline void asc_unpack_upper(vector_bool &dst, vector_bool a) {
  vector_bool result{};
  sim::move_bits(result, a, 128, 0, 2, 128, 1);
  dst = result;
}
#define TILEWHEEL_SIM_PREDICATE_INTERLEAVE(suffix, width)                               \
  inline void asc_intlv_##suffix(vector_bool &dst0, vector_bool &dst1, vector_bool a,   \
                                 vector_bool b) {                                       \
    vector_bool r0{}, r1{};                                                             \
    sim::move_bits(r0, a, 128 / width, 0, 2 * width, 0, width);                         \
    sim::move_bits(r0, b, 128 / width, width, 2 * width, 0, width);                     \
    sim::move_bits(r1, a, 128 / width, 0, 2 * width, 128, width);                       \
    sim::move_bits(r1, b, 128 / width, width, 2 * width, 128, width);                   \
    dst0 = r0;                                                                          \
    dst1 = r1;                                                                          \
  }                                                                                     \
  inline void asc_deintlv_##suffix(vector_bool &dst0, vector_bool &dst1, vector_bool a, \
                                   vector_bool b) {                                     \
    vector_bool r0{}, r1{};                                                             \
    sim::move_bits(r0, a, 128 / width, 0, width, 0, 2 * width);                         \
    sim::move_bits(r0, b, 128 / width, 128, width, 0, 2 * width);                       \
    sim::move_bits(r1, a, 128 / width, 0, width, width, 2 * width);                     \
    sim::move_bits(r1, b, 128 / width, 128, width, width, 2 * width);                   \
    dst0 = r0;                                                                          \
    dst1 = r1;                                                                          \
  }
TILEWHEEL_SIM_PREDICATE_INTERLEAVE(b8, 1)
TILEWHEEL_SIM_PREDICATE_INTERLEAVE(b16, 2)
TILEWHEEL_SIM_PREDICATE_INTERLEAVE(b32, 4)
#undef TILEWHEEL_SIM_PREDICATE_INTERLEAVE

// Lane gather; the index wraps at the number of lanes.
template <typename T, typename I>
inline void asc_gather(sim::Register<T> &dst, const sim::Register<T> &a,
                       const sim::Register<I> &index) {
  static_assert(sizeof(T) == sizeof(I));
  sim::Register<T> result = sim::zeros<T>();
  for (int i = 0; i < sim::Register<T>::lanes; ++i) {
    const int from = (int)((uint64_t)index.lane[i] % sim::Register<T>::lanes);
    result.lane[i] = a.lane[from];
    sim::carry_undefined(result, i, a, from);
    sim::carry_undefined(result, i, index, i);
  }
  dst = result;
}

namespace sim {
template <typename F>
inline void for_each_bin_value(const vector_u8 &src, const vector_bool &mask, F f) {
  for (int i = 0; i < vector_u8::lanes; ++i)
    if (is_active<1>(mask, i)) f((int)src.lane[i]);
}
inline void count_values(vector_u16 &dst, const vector_u8 &src, const vector_bool &mask,
                         int first) {
  if (has_undefined(src, mask)) dst.undefined = ~kNone;
  for_each_bin_value(src, mask, [&](int value) {
    if (value >= first && value < first + 128) ++dst.lane[value - first];
  });
}
inline void count_cumulatively(vector_u16 &dst, const vector_u8 &src, const vector_bool &mask,
                               int first) {
  if (has_undefined(src, mask)) dst.undefined = ~kNone;
  for_each_bin_value(src, mask, [&](int value) {
    for (int bin = value < first ? 0 : value - first; bin < 128; ++bin) ++dst.lane[bin];
  });
}
}  // namespace sim
inline void asc_frequency_histogram_bin0(vector_u16 &dst, vector_u8 src, vector_bool mask) {
  sim::count_values(dst, src, mask, 0);
}
inline void asc_frequency_histogram_bin1(vector_u16 &dst, vector_u8 src, vector_bool mask) {
  sim::count_values(dst, src, mask, 128);
}
inline void asc_cumulative_histogram_bin0(vector_u16 &dst, vector_u8 src, vector_bool mask) {
  sim::count_cumulatively(dst, src, mask, 0);
}
inline void asc_cumulative_histogram_bin1(vector_u16 &dst, vector_u8 src, vector_bool mask) {
  sim::count_cumulatively(dst, src, mask, 128);
}
