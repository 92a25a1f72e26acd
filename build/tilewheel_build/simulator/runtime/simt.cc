// SIMT vector functions: one fiber for each thread, scheduled warp by warp.
//
// A thread runs until it returns, reaches a warp collective, or reaches the block barrier. So the
// order between two such points is that of the thread index; code whose result depends on another
// order has a race that this model does not show.
#include <sys/mman.h>

#include <algorithm>
#include <cstring>

#include "runtime/worker.h"

namespace sim {

static constexpr size_t kStackBytes = 64 << 10;
static constexpr uint64_t kStackCanary = 0x5ca1ab1e0ddba11ull;

static thread_local Worker *running_worker;

static void yield(Worker &worker) {
  SimtThread &thread = *worker.simt.running;
  switch_context(thread.context, worker.simt.scheduler);
}

static void thread_entry() {
  Worker &worker = *running_worker;
  worker.simt.body(worker.simt.arguments);
  worker.simt.running->state = ThreadState::done;
  yield(worker);
  __builtin_trap();  // a thread that is done is never resumed
}

static uint64_t *canary_of(const Simt &simt, size_t thread) {
  return (uint64_t *)(simt.stacks + thread * kStackBytes);
}

static void reserve_stacks(Worker &worker, size_t count) {
  Simt &simt = worker.simt;
  if (simt.num_stacks >= count) return;
  release_stacks(simt);
  void *memory = mmap(nullptr, count * kStackBytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED)
    fail_core(&worker, "simt launch of %zu threads: no memory for %zu bytes of stacks, must fit",
              count, count * kStackBytes);
  simt.stacks = (unsigned char *)memory;
  simt.num_stacks = count;
}

void release_stacks(Simt &simt) {
  if (simt.stacks) munmap(simt.stacks, simt.num_stacks * kStackBytes);
  simt.stacks = nullptr;
  simt.num_stacks = 0;
}

static void resume(Worker &worker, SimtThread &thread) {
  Simt &simt = worker.simt;
  simt.running = &thread;
  worker.thread = thread.index;
  worker.line = thread.line;
  switch_context(simt.scheduler, thread.context);
  simt.running = nullptr;  // from here on the block's own stack is in use
  if (simt.is_abandoned) {
    simt.is_abandoned = false;
    abandon_block(worker);
  }
  if (*canary_of(simt, (size_t)(&thread - simt.threads)) != kStackCanary)
    fail_core(&worker, "simt thread %zu has overrun its stack, must need less than %zu bytes",
              (size_t)(&thread - simt.threads), kStackBytes);
}

template <typename T>
static uint64_t reduce(const SimtThread *const *lanes, size_t count, WarpOp op) {
  T result{};
  for (size_t i = 0; i < count; ++i) {
    T value;
    memcpy(&value, &lanes[i]->value, sizeof value);
    if (i == 0) {
      result = value;
      continue;
    }
    switch (op) {
      case WarpOp::add_f32:
      case WarpOp::add_i32:
        result = (T)(result + value);
        break;
      case WarpOp::max_f32:
      case WarpOp::max_i32:
      case WarpOp::max_u32:
        result = value > result ? value : result;
        break;
      default:
        result = value < result ? value : result;
        break;
    }
  }
  uint64_t bits = 0;
  memcpy(&bits, &result, sizeof result);
  return bits;
}

static void shuffle(Worker &worker, SimtThread *warp, size_t warp_size, SimtThread *const *lanes,
                    size_t count) {
  uint64_t results[kWarpLanes];
  for (size_t i = 0; i < count; ++i) {
    const size_t lane = (size_t)(lanes[i] - warp);
    const size_t peer = lane ^ (size_t)lanes[i]->operand;
    if (peer >= warp_size || warp[peer].state != ThreadState::at_collective) {
      worker.line = lanes[i]->line;
      fail_core(&worker, "asc_shfl_xor: lane %zu reads lane %zu, must take part in the shuffle",
                lane, peer);
    }
    results[i] = warp[peer].value;
  }
  for (size_t i = 0; i < count; ++i) lanes[i]->value = results[i];
}

// Completes a collective for those lanes of a warp that have reached it. The others have returned
// or wait at the block barrier: they are inactive.
static void complete_collective(Worker &worker, SimtThread *warp, size_t warp_size) {
  SimtThread *lanes[kWarpLanes]{};
  size_t count = 0;
  for (size_t i = 0; i < warp_size; ++i)
    if (warp[i].state == ThreadState::at_collective) lanes[count++] = &warp[i];
  const WarpOp op = lanes[0]->op;
  for (size_t i = 1; i < count; ++i)
    if (lanes[i]->op != op || lanes[i]->line != lanes[0]->line) {
      worker.line = lanes[0]->line;
      fail_core(&worker,
                "lanes %zu and %zu of a warp wait at different collectives (lines %d and %d), "
                "must reach the same one",
                (size_t)(lanes[0] - warp), (size_t)(lanes[i] - warp), lanes[0]->line,
                lanes[i]->line);
    }
  if (op == WarpOp::shuffle_xor) {
    shuffle(worker, warp, warp_size, lanes, count);
  } else {
    uint64_t result = 0;
    if (op == WarpOp::ballot) {
      for (size_t i = 0; i < count; ++i) result |= (lanes[i]->value & 1) << (lanes[i] - warp);
    } else if (op <= WarpOp::min_f32) {
      result = reduce<float>(lanes, count, op);
    } else if (op == WarpOp::max_u32 || op == WarpOp::min_u32) {
      result = reduce<uint32_t>(lanes, count, op);
    } else {
      result = reduce<int32_t>(lanes, count, op == WarpOp::add_i32 ? WarpOp::add_i32 : op);
    }
    for (size_t i = 0; i < count; ++i) lanes[i]->value = result;
  }
  for (size_t i = 0; i < count; ++i) lanes[i]->state = ThreadState::ready;
}

// Runs a warp until every thread has returned or waits at the block barrier.
static void run_warp(Worker &worker, SimtThread *warp, size_t warp_size) {
  for (;;) {
    for (size_t i = 0; i < warp_size; ++i)
      if (warp[i].state == ThreadState::ready) resume(worker, warp[i]);
    const bool at_collective = std::any_of(warp, warp + warp_size, [](const SimtThread &thread) {
      return thread.state == ThreadState::at_collective;
    });
    if (!at_collective) return;
    complete_collective(worker, warp, warp_size);
  }
}

// Opens the barrier; returns whether all threads have returned instead.
static bool pass_barrier(Worker &worker) {
  SimtThread *const threads = worker.simt.threads;
  SimtThread *const end = threads + worker.simt.num_threads;
  const SimtThread *first = nullptr;
  size_t num_waiting = 0;
  for (SimtThread *t = threads; t != end; ++t) {
    const SimtThread &thread = *t;
    if (thread.state != ThreadState::at_barrier) continue;
    if (!first) first = &thread;
    if (thread.line != first->line) {
      worker.line = first->line;
      fail_core(&worker,
                "threads %zu and %zu wait at different barriers (lines %d and %d), must reach "
                "the same one",
                (size_t)(first - threads), (size_t)(t - threads), first->line, thread.line);
    }
    ++num_waiting;
  }
  if (num_waiting == 0) return true;
  if (num_waiting != worker.simt.num_threads) {
    worker.line = first->line;
    fail_core(&worker,
              "asc_syncthreads: %zu of %zu threads wait and the others have returned, must be "
              "reached by all",
              num_waiting, worker.simt.num_threads);
  }
  for (SimtThread *t = threads; t != end; ++t) t->state = ThreadState::ready;
  return false;
}

void run_simt(Core *core, Dim3 extent, void (*body)(void *), void *arguments) {
  Worker &worker = worker_of(core);
  Simt &simt = worker.simt;
  const size_t count = (size_t)extent.x * extent.y * extent.z;
  const int line = worker.line;
  if (count == 0 || count > kMaxSimtThreads)
    fail_core(core, "simt launch of %zu threads, must be 1 to %zu", count, kMaxSimtThreads);
  reserve_stacks(worker, count);
  if (worker.detects_races) begin_simt_races(worker);
  simt.body = body;
  simt.arguments = arguments;
  simt.num_threads = count;
  worker.num_threads = extent;
  running_worker = &worker;
  for (size_t i = 0; i < count; ++i) {
    SimtThread &thread = simt.threads[i];
    thread.index = {(unsigned)(i % extent.x), (unsigned)(i / extent.x % extent.y),
                    (unsigned)(i / extent.x / extent.y)};
    thread.state = ThreadState::ready;
    thread.line = line;
    *canary_of(simt, i) = kStackCanary;
    prepare_context(thread.context, simt.stacks + i * kStackBytes, kStackBytes, thread_entry);
  }
  do {
    for (size_t first = 0; first < count; first += kWarpLanes)
      run_warp(worker, &simt.threads[first], std::min<size_t>(kWarpLanes, count - first));
  } while (!pass_barrier(worker));
  worker.line = line;
  if (worker.detects_races) end_simt_races(worker);
}

static SimtThread &running_thread(Worker &worker, const char *what) {
  if (!worker.simt.running)
    fail_core(&worker, "%s outside of a simt vector function, must be inside", what);
  worker.simt.running->line = worker.line;
  return *worker.simt.running;
}

void sync_threads(Core *core) {
  Worker &worker = worker_of(core);
  running_thread(worker, "asc_syncthreads").state = ThreadState::at_barrier;
  yield(worker);
}

uint64_t warp_collective(Core *core, WarpOp op, uint64_t value, int operand) {
  Worker &worker = worker_of(core);
  SimtThread &thread = running_thread(worker, "warp collective");
  thread.state = ThreadState::at_collective;
  thread.op = op;
  thread.operand = operand;
  thread.value = value;
  yield(worker);
  return thread.value;
}

}  // namespace sim
