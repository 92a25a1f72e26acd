// The runtime's view of a launch: workers (cores with their checkers) and what they share.
//
// All state is plain memory and pthreads. The library needs only libc: it is shipped in wheels,
// where a C++ run-time library would be a dependency or 1 MB of static code.
#pragma once

#include <pthread.h>

#include <array>
#include <csetjmp>
#include <cstdint>

#include "runtime/fiber.h"
#include "tilewheel_sim/core.h"

namespace sim {

inline constexpr int kNumInterFlags = 16;
inline constexpr size_t kMaxSimtThreads = 2048;
inline constexpr int kMaxResidentBlocks = 512;  // of a kernel with a cross-core barrier
inline constexpr size_t kMaxRegions = 64;
inline constexpr size_t kMessageBytes = 2048;

// Written behind the last UB byte of the kernel, to notice stores of scalar and SIMT code there.
inline constexpr uint8_t kGuard = 0xc9;
inline constexpr size_t kGuardBytes = 8192;

using Clock = std::array<uint32_t, kNumPipes>;

class Lock {
 public:
  explicit Lock(pthread_mutex_t &mutex) : mutex_(mutex) { pthread_mutex_lock(&mutex_); }
  ~Lock() { pthread_mutex_unlock(&mutex_); }
  Lock(const Lock &) = delete;
  Lock &operator=(const Lock &) = delete;

 private:
  pthread_mutex_t &mutex_;
};

// Race state of one 32-byte block of UB.
struct Cell {
  uint32_t write_clock;
  int32_t write_line;
  int32_t writer;
  Clock read_clock;
  std::array<int32_t, kNumPipes> read_line;
  // Bytes that the running vector function has stored since its last memory barrier.
  uint32_t store_epoch;
  uint32_t store_bytes;
};

enum class ThreadState : uint8_t { ready, at_collective, at_barrier, done };

struct SimtThread {
  Context context;
  Dim3 index;
  ThreadState state;
  WarpOp op;
  int operand;
  int line;  // where it waits
  uint64_t value;
};

struct Simt {
  SimtThread threads[kMaxSimtThreads];
  size_t num_threads;
  unsigned char *stacks;
  size_t num_stacks;
  Context scheduler;
  SimtThread *running;
  void (*body)(void *);
  void *arguments;
  bool is_abandoned;
};

struct Region {
  const void *base;
  uint64_t size_bytes;
  int32_t is_writable;
};
struct Regions {
  Region region[kMaxRegions];
  size_t count;
};

struct Statistics {
  uint64_t ub_high_water_bytes;
  uint64_t dma_bytes;
  uint64_t num_notifies;
};

// Where a block waits for the others.
struct InterWait {
  bool is_active;
  int flag;
  uint64_t target;
};

struct Launch {
  const KernelInfo *info;
  const char *kernel_name;
  const unsigned char *arguments;
  size_t ub_bytes;
  int num_blocks;
  bool detects_races;
  const Regions *regions;

  pthread_mutex_t mutex;
  int next_block;
  char error[kMessageBytes];  // of the first violation
  bool is_cancelled;
  Statistics statistics;

  pthread_cond_t inter_changed;
  uint64_t inter_arrivals[kNumInterFlags];
  InterWait inter_waits[kMaxResidentBlocks];
  int num_finished;
};

struct Worker : Core {
  Launch *launch;
  jmp_buf exit;  // to the launch boundary of the running block
  Statistics statistics;

  uint8_t flag[kNumPipes][kNumPipes][kNumEvents];
  int32_t flag_line[kNumPipes][kNumPipes][kNumEvents];
  int8_t lock_owner[kNumLocks];  // pipe, or -1
  int32_t lock_line[kNumLocks];
  uint64_t inter_rounds[kNumInterFlags];

  Clock clock[kNumPipes];
  Clock flag_clock[kNumPipes][kNumPipes][kNumEvents];
  Clock lock_clock[kNumLocks];
  uint32_t store_epoch;
  Cell cells[kUbBytes / kBlockBytes];
  unsigned char snapshot[kUbBytes];

  Simt simt;
};

inline Worker &worker_of(Core *core) { return *static_cast<Worker *>(core); }

// launch.cc
void fail_core(Core *core, const char *format, ...) __attribute__((noreturn, format(printf, 2, 3)));
// Leaves the running block without an error of its own: another one has failed.
void abandon_block(Worker &worker) __attribute__((noreturn));
// Runs all blocks. On a violation, launch.is_cancelled is set and launch.error says why.
void run_launch(Launch &launch, int max_threads);

// memory.cc
void check_ub_read(Core *core, const void *address, size_t size, pipe_t pipe);
void check_ub_write(Core *core, const void *address, const uint8_t *bytes, size_t size,
                    pipe_t pipe);
void run_dma(Core *core, const Dma *dma);
// Trivially destructible: violations leave by longjmp.
struct UbPlace {
  char text[96];
};
UbPlace describe_ub(const Worker &worker, size_t offset);

// race.cc
const char *pipe_name(int pipe);
void reset_races(Worker &worker);
void record_access(Worker &worker, size_t offset, const uint8_t *bytes, size_t size, int pipe,
                   bool is_write);
void publish_clock(Worker &worker, Clock &target, int pipe);
void observe_clock(Worker &worker, const Clock &source, int pipe);
void join_all_pipes(Worker &worker);
void begin_simt_races(Worker &worker);
void end_simt_races(Worker &worker);

// sync.cc
void notify_flag(Core *core, int source, int destination, int event);
void wait_flag(Core *core, int source, int destination, int event);
void sync_pipes(Core *core, int pipe);
void memory_barrier(Core *core);
void lock_buffer(Core *core, int pipe, int id);
void unlock_buffer(Core *core, int pipe, int id);
void arrive_inter(Core *core, int pipe, int flag);
void wait_inter(Core *core, int pipe, int flag);
void reset_synchronisation(Worker &worker);
void check_synchronisation_at_end(Worker &worker);

// simt.cc
void run_simt(Core *core, Dim3 extent, void (*body)(void *), void *arguments);
void sync_threads(Core *core);
uint64_t warp_collective(Core *core, WarpOp op, uint64_t value, int operand);
void release_stacks(Simt &simt);

}  // namespace sim
