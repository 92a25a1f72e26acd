// The SIMT vocabulary: thread indices, block and warp collectives, scalar atomics.
#pragma once

#include <tuple>
#include <type_traits>

#include "c_api/asc_simd.h"

#define threadIdx (::sim::current->thread)
#define blockDim (::sim::current->num_threads)
namespace sim {
struct BlockPosition {
  int x, y, z;
};
inline BlockPosition block_position() { return {current->block, 0, 0}; }
inline unsigned linear_thread() {
  const Core &core = *current;
  return core.thread.x + core.num_threads.x * (core.thread.y + core.num_threads.y * core.thread.z);
}

template <typename T>
inline T collective(WarpOp op, T value, int operand = 0) {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= 8);
  uint64_t bits = 0;
  memcpy(&bits, &value, sizeof value);
  bits = current->runtime->warp_collective(current, op, bits, operand);
  memcpy(&value, &bits, sizeof value);
  return value;
}
}  // namespace sim
#define blockIdx (::sim::block_position())
inline unsigned laneid() { return sim::linear_thread() % sim::kWarpLanes; }

#define TILEWHEEL_SIM_WARP_REDUCE(name, op)                                                   \
  inline float name(float v) { return sim::collective(sim::WarpOp::op##_f32, v); }            \
  inline half name(half v) { return half(sim::collective(sim::WarpOp::op##_f32, (float)v)); } \
  inline int32_t name(int32_t v) { return sim::collective(sim::WarpOp::op##_i32, v); }
TILEWHEEL_SIM_WARP_REDUCE(asc_reduce_add, add)
TILEWHEEL_SIM_WARP_REDUCE(asc_reduce_max, max)
TILEWHEEL_SIM_WARP_REDUCE(asc_reduce_min, min)
#undef TILEWHEEL_SIM_WARP_REDUCE
inline uint32_t asc_reduce_add(uint32_t v) { return sim::collective(sim::WarpOp::add_i32, v); }
inline uint32_t asc_reduce_max(uint32_t v) { return sim::collective(sim::WarpOp::max_u32, v); }
inline uint32_t asc_reduce_min(uint32_t v) { return sim::collective(sim::WarpOp::min_u32, v); }

template <typename T>
inline T asc_shfl_xor(T value, int lane_mask) {
  return sim::collective(sim::WarpOp::shuffle_xor, value, lane_mask);
}
inline uint32_t asc_ballot(bool predicate) {
  return (uint32_t)sim::collective(sim::WarpOp::ballot, (uint64_t)predicate);
}
inline uint32_t asc_activemask() { return asc_ballot(true); }
inline void asc_syncthreads() { sim::current->runtime->sync_threads(sim::current); }

// Blocks run on several OS threads, so atomics on GM are real ones. All return the old value.
namespace sim {
template <typename T, typename F>
inline T atomic_update(T *address, F f) {
  using Bits = std::conditional_t<sizeof(T) == 8, uint64_t,
                                  std::conditional_t<sizeof(T) == 4, uint32_t, uint16_t>>;
  static_assert(sizeof(T) == sizeof(Bits));
  auto *word = (Bits *)address;
  Bits old_bits = __atomic_load_n(word, __ATOMIC_RELAXED);
  for (;;) {
    T old_value;
    memcpy((void *)&old_value, &old_bits, sizeof old_value);
    const T new_value = f(old_value);
    Bits new_bits;
    memcpy(&new_bits, &new_value, sizeof new_bits);
    if (__atomic_compare_exchange_n(word, &old_bits, new_bits, true, __ATOMIC_RELAXED,
                                    __ATOMIC_RELAXED))
      return old_value;
  }
}
}  // namespace sim
template <typename T, typename V>
inline T asc_atomic_add(T *address, V value) {
  return sim::atomic_update(address, [&](T old) { return (T)(old + (T)value); });
}
template <typename T, typename V>
inline T asc_atomic_max(T *address, V value) {
  return sim::atomic_update(address, [&](T old) { return old > (T)value ? old : (T)value; });
}
template <typename T, typename V>
inline T asc_atomic_min(T *address, V value) {
  return sim::atomic_update(address, [&](T old) { return old < (T)value ? old : (T)value; });
}

// Runs F on every thread of the launch. A violation abandons fiber stacks without unwinding them,
// which is sound only because nothing on them has a destructor.
template <auto F, typename... Args>
inline void asc_vf_call(cce::dim3 extent, Args... args) {
  static_assert((std::is_trivially_destructible_v<Args> && ...));
  auto arguments = std::make_tuple(args...);
  using Arguments = decltype(arguments);
  sim::current->runtime->run_simt(
      sim::current, {extent.x, extent.y, extent.z},
      [](void *p) { std::apply([](auto &...x) { F(x...); }, *(Arguments *)p); }, &arguments);
}
