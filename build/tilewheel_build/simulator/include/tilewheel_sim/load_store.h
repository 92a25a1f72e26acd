// Moves between UB and registers. Every one is checked; see check.h.
#pragma once

#include "tilewheel_sim/permute.h"

namespace sim {

// A copy of `Count` elements of UB, so that lane shuffles need no UB pointer.
template <typename T, int Count>
struct Loaded {
  T element[Count];
  const uint8_t *shadow;  // null if every byte is defined

  bool is_undefined(int index) const { return !is_defined(shadow + index * sizeof(T), sizeof(T)); }
};
template <typename T, int Count, typename S>
inline Loaded<T, Count> load(const S *address) {
  static_assert(sizeof(S) == sizeof(T));
  Loaded<T, Count> data;
  data.shadow = check_read(address, sizeof data.element);
  memcpy((void *)data.element, address, sizeof data.element);
  return data;
}

// Fills a register: lane i gets element source(i), or zero if that is negative.
template <typename T, int Count, typename Source>
__attribute__((always_inline)) inline void distribute(Register<T> &dst,
                                                      const Loaded<T, Count> &data, Source source) {
  Register<T> result = zeros<T>();
  for (int i = 0; i < Register<T>::lanes; ++i)
    if (source(i) >= 0) result.lane[i] = data.element[source(i)];
  if (data.shadow) [[unlikely]]
    for (int i = 0; i < Register<T>::lanes; ++i)
      if (source(i) >= 0 && data.is_undefined(source(i))) make_undefined(result, i);
  dst = result;
}

// Stores the leading `Bytes` bytes of each active element, packed.
template <int Bytes, typename T>
inline void store_packed(void *address, const Register<T> &value, const vector_bool &mask) {
  constexpr int lanes = Register<T>::lanes;
  auto *out = (unsigned char *)address;
  unsigned char packed[lanes * Bytes];
  for (int i = 0; i < lanes; ++i) memcpy(packed + i * Bytes, &value.lane[i], Bytes);
  if (is_full<sizeof(T)>(mask)) [[likely]] {
    check_write(out, sizeof packed);
    memcpy(out, packed, sizeof packed);
  } else {
    uint8_t bytes[lanes * Bytes];
    for (int i = 0; i < lanes * Bytes; ++i)
      bytes[i] = is_active<sizeof(T)>(mask, i / Bytes) ? kDefined : 0;
    check_masked_write(out, bytes, sizeof bytes);
    for (int i = 0; i < lanes * Bytes; ++i)
      if (bytes[i]) out[i] = packed[i];
  }
  if (has_undefined(value, mask)) [[unlikely]]
    for (int i = 0; i < lanes; ++i)
      if (is_active<sizeof(T)>(mask, i) && is_undefined(value, i))
        for (int byte = 0; byte < Bytes; ++byte) make_undefined(out + i * Bytes + byte);
}

}  // namespace sim

// A post-update load reads at the old address, then advances the pointer by `step` elements.
#define TILEWHEEL_SIM_LOAD(api, count, source)                                 \
  template <typename T, typename S, typename Offset>                           \
  inline void api(sim::Register<T> &dst, S *src, Offset offset) {              \
    constexpr int lanes = sim::Register<T>::lanes;                             \
    [[maybe_unused]] constexpr int block_lanes = sim::kBlockBytes / sizeof(T); \
    sim::distribute(dst, sim::load<T, (count)>(src + offset),                  \
                    []([[maybe_unused]] int i) { return source; });            \
  }                                                                            \
  template <typename T, typename S>                                            \
  inline void api##_postupdate(sim::Register<T> &dst, S *&src, int32_t step) { \
    api(dst, src, 0);                                                          \
    src += step;                                                               \
  }
TILEWHEEL_SIM_LOAD(asc_loadalign, lanes, i)
TILEWHEEL_SIM_LOAD(asc_loadalign_brc_elem, 1, 0)
TILEWHEEL_SIM_LOAD(asc_loadalign_upsample, lanes / 2, i / 2)
TILEWHEEL_SIM_LOAD(asc_loadalign_downsample, lanes * 2, 2 * i)
TILEWHEEL_SIM_LOAD(asc_loadalign_unpack, lanes / 2, (i % 2 == 0 ? i / 2 : -1))
TILEWHEEL_SIM_LOAD(asc_loadalign_unpack4, lanes / 4, (i % 4 == 0 ? i / 4 : -1))
TILEWHEEL_SIM_LOAD(asc_loadalign_brc_datablock, block_lanes, i % block_lanes)
TILEWHEEL_SIM_LOAD(asc_loadalign_brc_elem2datablock, 8, i / block_lanes)
#undef TILEWHEEL_SIM_LOAD

template <typename T, typename S>
inline void asc_loadalign_deintlv(sim::Register<T> &dst0, sim::Register<T> &dst1, S *src,
                                  int64_t offset = 0) {
  constexpr int lanes = sim::Register<T>::lanes;
  const auto data = sim::load<T, 2 * lanes>(src + offset);
  sim::distribute(dst0, data, [](int i) { return 2 * i; });
  sim::distribute(dst1, data, [](int i) { return 2 * i + 1; });
}
inline int64_t asc_update_addr_reg_b8(int64_t offset) { return offset; }
inline int64_t asc_update_addr_reg_b16(int64_t offset) { return offset; }
inline int64_t asc_update_addr_reg_b32(int64_t offset) { return offset; }

template <typename T, typename S>
inline void asc_storealign(S *base, const sim::Register<T> &value, int32_t offset,
                           vector_bool mask) {
  static_assert(sizeof(S) == sizeof(T));
  sim::store_packed<sizeof(T)>(base + offset, value, mask);
}
template <typename T, typename S>
inline void asc_storealign_1st(S *base, const sim::Register<T> &value, int32_t offset) {
  static_assert(sizeof(S) == sizeof(T));
  sim::check_write(base + offset, sizeof(T));
  memcpy((void *)(base + offset), &value.lane[0], sizeof(T));
  if (sim::is_undefined(value, 0))
    for (size_t byte = 0; byte < sizeof(T); ++byte)
      sim::make_undefined((unsigned char *)(base + offset) + byte);
}
template <typename T, typename S>
inline void asc_storealign_pack(S *base, const sim::Register<T> &value, int32_t offset,
                                vector_bool mask) {
  sim::store_packed<sizeof(T) / 2>(base + offset, value, mask);
}
template <typename T, typename S>
inline void asc_storealign_pack_quarter(S *base, const sim::Register<T> &value, int32_t offset,
                                        vector_bool mask) {
  static_assert(sizeof(T) == 4);
  sim::store_packed<1>(base + offset, value, mask);
}
// Stores each 32-byte block of the register `block_stride` blocks after the previous one.
template <typename T, typename S>
inline void asc_storealign(S *base, const sim::Register<T> &value, uint16_t block_stride,
                           uint16_t /*repeat_stride*/, vector_bool mask) {
  constexpr int block_lanes = sim::kBlockBytes / sizeof(T);
  auto *out = (unsigned char *)base;
  for (int block = 0; block < 8; ++block) {
    uint8_t bytes[sim::kBlockBytes];
    bool any = false;
    for (int i = 0; i < (int)sim::kBlockBytes; ++i) {
      const bool active = sim::is_active<sizeof(T)>(mask, block * block_lanes + i / (int)sizeof(T));
      bytes[i] = active ? sim::kDefined : 0;
      any |= active;
    }
    if (!any) continue;
    unsigned char *block_out = out + (int64_t)block * block_stride * (int64_t)sim::kBlockBytes;
    sim::check_masked_write(block_out, bytes, sizeof bytes);
    const auto *in = (const unsigned char *)&value.lane[block * block_lanes];
    for (int i = 0; i < (int)sim::kBlockBytes; ++i)
      if (bytes[i]) {
        block_out[i] = in[i];
        if (sim::is_undefined(value, block * block_lanes + i / (int)sizeof(T)))
          sim::make_undefined(block_out + i);
      }
  }
}
template <typename T, typename S>
inline void asc_storealign_postupdate(S *&base, const sim::Register<T> &value,
                                      uint16_t block_stride, uint16_t repeat_stride,
                                      vector_bool mask) {
  asc_storealign(base, value, block_stride, repeat_stride, mask);
  base = (S *)((unsigned char *)base + (int64_t)repeat_stride * (int64_t)sim::kBlockBytes);
}

// Predicate registers are stored as their 256 bits.
inline void asc_loadalign(vector_bool &dst, uint32_t *src, int32_t offset) {
  const auto data = sim::load<uint32_t, 8>(src + offset);
  memcpy(&dst, data.element, sizeof dst);
}
inline void asc_loadalign_upsample(vector_bool &dst, uint32_t *src, int32_t offset) {
  const auto data = sim::load<uint32_t, 4>(src + offset);
  vector_bool bits{}, result{};
  memcpy(&bits, data.element, sizeof data.element);
  sim::move_bits(result, bits, 128, 0, 2, 0, 1);
  sim::move_bits(result, bits, 128, 1, 2, 0, 1);
  dst = result;
}
inline void asc_loadalign_downsample(vector_bool &dst, uint32_t *src, int32_t offset) {
  const auto data = sim::load<uint32_t, 16>(src + offset);
  vector_bool low, high, result{};
  memcpy(&low, &data.element[0], sizeof low);
  memcpy(&high, &data.element[8], sizeof high);
  sim::move_bits(result, low, 128, 0, 1, 0, 2);
  sim::move_bits(result, high, 128, 128, 1, 0, 2);
  dst = result;
}
inline void asc_storealign(uint32_t *base, vector_bool src, int32_t offset) {
  sim::check_write(base + offset, sizeof src);
  memcpy(base + offset, &src, sizeof src);
}
inline void asc_storealign_pack(uint32_t *base, vector_bool src, int32_t offset) {
  vector_bool packed;
  asc_pack_to_low(packed, src);
  sim::check_write(base + offset, sizeof packed / 2);
  memcpy(base + offset, &packed, sizeof packed / 2);
}

// Gathers and scatters: element indices, one for each active lane.
namespace sim {
template <typename I>
inline void check_index(const Register<I> &index, int lane, const char *what) {
  if (is_undefined(index, lane)) [[unlikely]]
    fail("%s: the index of lane %d is undefined, must have a value", what, lane);
}
}  // namespace sim
template <typename D, typename T, typename I>
inline void asc_gather(sim::Register<D> &dst, T *base, const sim::Register<I> &index,
                       vector_bool mask) {
  constexpr int lanes = sim::Register<I>::lanes < sim::Register<D>::lanes ? sim::Register<I>::lanes
                                                                          : sim::Register<D>::lanes;
  sim::Register<D> result = sim::zeros<D>();
  for (int i = 0; i < lanes; ++i) {
    if (!sim::is_active<sizeof(D)>(mask, i)) continue;
    sim::check_index(index, i, "gather");
    const auto data = sim::load<T, 1>(base + index.lane[i]);
    if constexpr (sizeof(D) == sizeof(T))
      memcpy((void *)&result.lane[i], data.element, sizeof(T));
    else
      result.lane[i] = (D)data.element[0];
    if (data.shadow) sim::make_undefined(result, i);
  }
  dst = result;
}
template <typename T, typename U>
inline void asc_gather_datablock(sim::Register<T> &dst, U *base, const vector_u32 &offset,
                                 vector_bool mask = sim::create_mask<1>(PAT_ALL)) {
  constexpr int block_lanes = sim::kBlockBytes / sizeof(T);
  sim::Register<T> result = sim::zeros<T>();
  for (int block = 0; block < 8; ++block) {
    if (!sim::is_active<sim::kBlockBytes>(mask, block)) continue;
    sim::check_index(offset, block, "gather");
    const auto data =
        sim::load<T, block_lanes>((const T *)((const unsigned char *)base + offset.lane[block]));
    for (int i = 0; i < block_lanes; ++i) {
      result.lane[block * block_lanes + i] = data.element[i];
      if (data.shadow && data.is_undefined(i)) sim::make_undefined(result, block * block_lanes + i);
    }
  }
  dst = result;
}
template <typename T, typename U, typename I>
inline void asc_scatter(U *base, const sim::Register<T> &value, const sim::Register<I> &index,
                        vector_bool mask) {
  static_assert(sizeof(U) == sizeof(T));
  constexpr int lanes = sim::Register<T>::lanes < sim::Register<I>::lanes ? sim::Register<T>::lanes
                                                                          : sim::Register<I>::lanes;
  for (int i = 0; i < lanes; ++i) {
    if (!sim::is_active<sizeof(T)>(mask, i)) continue;
    sim::check_index(index, i, "scatter");
    U *address = base + index.lane[i];
    sim::check_write(address, sizeof(T));
    memcpy((void *)address, &value.lane[i], sizeof(T));
    if (sim::is_undefined(value, i))
      for (size_t byte = 0; byte < sizeof(T); ++byte)
        sim::make_undefined((unsigned char *)address + byte);
  }
}

template <typename Kind>
inline void asc_mem_bar(Kind) {
  if constexpr (Kind::orders_store_load)
    if (sim::current->detects_races) sim::current->runtime->memory_barrier(sim::current);
}
