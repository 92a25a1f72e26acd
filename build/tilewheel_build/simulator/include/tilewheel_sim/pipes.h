// DMA, flags, barriers, locks and atomics mode: the instructions that involve more than one pipe.
// They are rare, so all of them are calls into the runtime library.
#pragma once

#include "tilewheel_sim/registers.h"

enum event_t : int {};
inline constexpr int EVENT_ID0 = 0, EVENT_ID1 = 1, EVENT_ID2 = 2, EVENT_ID3 = 3, EVENT_ID4 = 4,
                     EVENT_ID5 = 5, EVENT_ID6 = 6, EVENT_ID7 = 7;
enum asc_lock_mode { ASC_LOCK_BLOCK = 0, ASC_LOCK_NON_BLOCK = 1 };
enum asc_load_l2_cache_mode : int {};
enum asc_store_l2_cache_mode : int {};

inline void asc_init() {}
inline void asc_sync_notify(pipe_t source, pipe_t destination, int event) {
  sim::current->runtime->notify(sim::current, source, destination, event);
}
inline void asc_sync_wait(pipe_t source, pipe_t destination, int event) {
  sim::current->runtime->wait(sim::current, source, destination, event);
}
inline void asc_sync() { sim::current->runtime->sync_pipes(sim::current, PIPE_ALL); }
inline void asc_sync_pipe(pipe_t pipe) { sim::current->runtime->sync_pipes(sim::current, pipe); }
// Both modes execute alike: a pipe that finds the buffer taken would stall in either.
inline void asc_lock(pipe_t pipe, int id, asc_lock_mode = ASC_LOCK_BLOCK) {
  sim::current->runtime->lock(sim::current, pipe, id);
}
inline void asc_unlock(pipe_t pipe, int id, asc_lock_mode = ASC_LOCK_BLOCK) {
  sim::current->runtime->unlock(sim::current, pipe, id);
}
inline void asc_sync_inter_arrive(pipe_t pipe, int flag) {
  sim::current->runtime->arrive_inter(sim::current, pipe, flag);
}
inline void asc_sync_inter_wait(pipe_t pipe, int flag) {
  sim::current->runtime->wait_inter(sim::current, pipe, flag);
}

template <typename T>
inline void asc_set_copy_pad_val(T bits) {
  static_assert(sizeof(T) <= 4);
  uint32_t value = 0;
  memcpy(&value, &bits, sizeof bits);
  sim::current->padding_value = value;
}

// Copies `num_bursts` runs of `burst_bytes` bytes. Strides are in bytes, between starts of runs.
template <typename T>
inline void asc_copy_gm2ub_align(T *ub, T *gm, int64_t num_bursts, int64_t burst_bytes,
                                 int64_t left_padding, int64_t right_padding, int fills_padding,
                                 asc_load_l2_cache_mode, int64_t gm_stride_bytes,
                                 int64_t ub_stride_bytes) {
  const sim::Dma dma = {
      .direction = sim::DmaDirection::gm_to_ub,
      .ub = ub,
      .gm = gm,
      .num_bursts = num_bursts,
      .burst_bytes = burst_bytes,
      .ub_stride_bytes = ub_stride_bytes,
      .gm_stride_bytes = gm_stride_bytes,
      .left_padding = left_padding,
      .right_padding = right_padding,
      .element_bytes = sizeof(T),
      .fills_padding = fills_padding != 0,
  };
  sim::current->runtime->dma(sim::current, &dma);
}
template <typename T>
inline void asc_copy_ub2gm_align(T *gm, T *ub, int64_t num_bursts, int64_t burst_bytes,
                                 asc_store_l2_cache_mode, int64_t gm_stride_bytes,
                                 int64_t ub_stride_bytes) {
  const sim::Dma dma = {
      .direction = sim::DmaDirection::ub_to_gm,
      .ub = ub,
      .gm = gm,
      .num_bursts = num_bursts,
      .burst_bytes = burst_bytes,
      .ub_stride_bytes = ub_stride_bytes,
      .gm_stride_bytes = gm_stride_bytes,
      .left_padding = 0,
      .right_padding = 0,
      .element_bytes = sizeof(T),
      .fills_padding = false,
  };
  sim::current->runtime->dma(sim::current, &dma);
}

// Read-modify-write mode of the stores that follow.
namespace sim {
inline void set_atomic(AtomicOp op, AtomicType type) {
  current->atomic_op = op;
  current->atomic_type = type;
}
}  // namespace sim
#define TILEWHEEL_SIM_SET_ATOMIC(suffix, type)                  \
  inline void asc_set_atomic_add_##suffix() {                   \
    sim::set_atomic(sim::AtomicOp::add, sim::AtomicType::type); \
  }                                                             \
  inline void asc_set_atomic_max_##suffix() {                   \
    sim::set_atomic(sim::AtomicOp::max, sim::AtomicType::type); \
  }                                                             \
  inline void asc_set_atomic_min_##suffix() {                   \
    sim::set_atomic(sim::AtomicOp::min, sim::AtomicType::type); \
  }
TILEWHEEL_SIM_SET_ATOMIC(float, f32)
TILEWHEEL_SIM_SET_ATOMIC(float16, f16)
TILEWHEEL_SIM_SET_ATOMIC(bfloat, bf16)
TILEWHEEL_SIM_SET_ATOMIC(int32, s32)
TILEWHEEL_SIM_SET_ATOMIC(int16, s16)
TILEWHEEL_SIM_SET_ATOMIC(int8, s8)
#undef TILEWHEEL_SIM_SET_ATOMIC
inline void asc_set_atomic_none() { sim::set_atomic(sim::AtomicOp::none, sim::AtomicType::f32); }

// Scalar GM accesses that bypass the data cache.
template <typename T>
inline T asc_load_dev(T *address) {
  return __atomic_load_n(address, __ATOMIC_RELAXED);
}
template <typename T>
inline void asc_store_dev(T *address, T value) {
  __atomic_store_n(address, value, __ATOMIC_RELAXED);
}
inline void asc_threadfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
