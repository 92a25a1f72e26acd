// State of one simulated vector core, shared between compiled kernels and the runtime library.
//
// A compiled kernel has no undefined runtime symbol: it gets a Core and calls the runtime through
// Core::runtime. So a kernel can be loaded with RTLD_LOCAL beside a runtime that is RTLD_LOCAL too.
#pragma once

#include <cstddef>
#include <cstdint>

// Pipes of a core in the order of the hardware events; the names are the ones generated code uses.
enum pipe_t : int { PIPE_S, PIPE_V, PIPE_M, PIPE_MTE1, PIPE_MTE2, PIPE_MTE3, PIPE_FIX, PIPE_ALL };

namespace sim {

inline constexpr uint32_t kAbiVersion = 1;
inline constexpr int kNumPipes = 7;   // PIPE_ALL is a wildcard, not a pipe
inline constexpr int kNumEvents = 8;  // event ids of one ordered pair of pipes
inline constexpr int kNumLocks = 32;
inline constexpr int kWarpLanes = 32;
inline constexpr size_t kBlockBytes = 32;       // the unit of DMA alignment
inline constexpr size_t kUbBytes = 248 * 1024;  // unified buffer of one dav-3510 vector core
inline constexpr uint8_t kDefined = 0xff;       // shadow of a UB byte that has a value

// UB bytes without a value. Read as fp32, fp16 or bf16 every word is a NaN, so that one which
// escapes the checks spoils the result.
inline constexpr uint8_t kPoison[4] = {0xa7, 0xff, 0xd3, 0xff};

enum class WarpOp : int {
  add_f32,
  max_f32,
  min_f32,
  add_i32,
  max_i32,
  min_i32,
  max_u32,
  min_u32,
  shuffle_xor,
  ballot
};
enum class AtomicOp : int { none, add, max, min };
enum class AtomicType : int { f32, f16, bf16, s32, s16, s8 };

enum class DmaDirection : int { gm_to_ub, ub_to_gm };
struct Dma {
  DmaDirection direction;
  void *ub;
  void *gm;
  int64_t num_bursts;
  int64_t burst_bytes;
  int64_t ub_stride_bytes;
  int64_t gm_stride_bytes;
  // Padding of a load, in elements of `element_bytes`; filled only if `fills_padding`.
  int64_t left_padding;
  int64_t right_padding;
  int64_t element_bytes;
  bool fills_padding;
};

struct Dim3 {
  unsigned x, y, z;
};

struct Core;

// What the runtime library does for kernel code. Everything here is off the hot path.
struct Runtime {
  void (*fail)(Core *core, const char *format, ...) __attribute__((noreturn, format(printf, 2, 3)));
  void (*check_read)(Core *core, const void *address, size_t size, pipe_t pipe);
  void (*check_write)(Core *core, const void *address, const uint8_t *bytes, size_t size,
                      pipe_t pipe);
  void (*dma)(Core *core, const Dma *dma);
  void (*notify)(Core *core, int source, int destination, int event);
  void (*wait)(Core *core, int source, int destination, int event);
  void (*sync_pipes)(Core *core, int pipe);
  void (*memory_barrier)(Core *core);
  void (*lock)(Core *core, int pipe, int id);
  void (*unlock)(Core *core, int pipe, int id);
  void (*arrive_inter)(Core *core, int pipe, int flag);
  void (*wait_inter)(Core *core, int pipe, int flag);
  void (*run_simt)(Core *core, Dim3 extent, void (*body)(void *), void *arguments);
  void (*sync_threads)(Core *core);
  uint64_t (*warp_collective)(Core *core, WarpOp op, uint64_t value, int operand);
};

struct Core {
  const Runtime *runtime;
  unsigned char *ub;
  uint8_t *shadow;  // one byte for each UB byte: kDefined or 0
  size_t ub_bytes;
  size_t ub_high_water;
  int block;
  int num_blocks;
  int line;  // of the generated source, set before each statement that can fail
  bool detects_races;
  // SIMT: the running thread and the extent of its launch.
  Dim3 thread;
  Dim3 num_threads;
  // DMA state registers.
  uint32_t padding_value;
  AtomicOp atomic_op;
  AtomicType atomic_type;
};

struct UbName {
  uint32_t offset;
  const char *name;
};

// Exported by a compiled kernel as `<kernel>__tilewheel_sim`.
struct KernelInfo {
  uint32_t abi_version;
  uint32_t argument_bytes;
  uint32_t num_ub_names;
  uint32_t needs_all_blocks;  // has a cross-core barrier: every block needs its own OS thread
  const UbName *ub_names;
  const char *source;
  void (*entry)(Core *core, const unsigned char *arguments);
};

// The core that runs on this OS thread. Set by the trampoline of the kernel; SIMT fibers never
// leave the OS thread that launched them.
static thread_local Core *current;

template <typename... Args>
[[noreturn, gnu::cold, gnu::noinline]] inline void fail(const char *format, Args... args) {
  current->runtime->fail(current, format, args...);
  __builtin_unreachable();
}

inline void at_line(int line) { current->line = line; }

// Vector functions run one after the other: a store of one is visible to the loads of the next.
inline void begin_vector_function(int line) {
  current->line = line;
  if (current->detects_races) current->runtime->memory_barrier(current);
}

// The packed argument at `address`, as the Index-th parameter of a kernel.
template <size_t Index, typename First, typename... Rest>
struct Pick : Pick<Index - 1, Rest...> {};
template <typename First, typename... Rest>
struct Pick<0, First, Rest...> {
  using type = First;
};
template <size_t Index, typename... Params>
inline auto argument(void (*)(Params...), const unsigned char *address) {
  typename Pick<Index, Params...>::type value;
  __builtin_memcpy(&value, address, sizeof value);
  return value;
}

}  // namespace sim

#define TILEWHEEL_SIM_UB(type, offset) ((type *)(::sim::current->ub + (offset)))
