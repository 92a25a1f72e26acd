// Blocks on OS threads, and the boundary at which a violation becomes an error.
//
// Violations leave a block by longjmp, not by a C++ exception: kernels are compiled without
// exceptions and without unwind tables, which keeps them small, free of a C++ run-time library, and
// lets a violation leave a SIMT fiber. Nothing between the two ends has a destructor.
#include "runtime/launch.h"

#include <pthread.h>

#include <algorithm>
#include <cfenv>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <thread>

#include "runtime/worker.h"

namespace sim {

static const Runtime kRuntime = {
    .fail = fail_core,
    .check_read = check_ub_read,
    .check_write = check_ub_write,
    .dma = run_dma,
    .notify = notify_flag,
    .wait = wait_flag,
    .sync_pipes = sync_pipes,
    .memory_barrier = memory_barrier,
    .lock = lock_buffer,
    .unlock = unlock_buffer,
    .arrive_inter = arrive_inter,
    .wait_inter = wait_inter,
    .run_simt = run_simt,
    .sync_threads = sync_threads,
    .warp_collective = warp_collective,
};

// ---- workers, kept between launches because their memory is costly to map

static constexpr size_t kUbCapacity = kUbBytes + kGuardBytes;

static std::mutex idle_mutex;
static std::vector<Worker *> idle_workers;

// A fork while another thread holds the mutex would leave it locked in the child.
__attribute__((constructor)) static void survive_fork() {
  pthread_atfork([] { idle_mutex.lock(); }, [] { idle_mutex.unlock(); },
                 [] { idle_mutex.unlock(); });
}

static Worker *acquire_worker(Launch &launch) {
  Worker *worker = nullptr;
  {
    std::lock_guard<std::mutex> guard(idle_mutex);
    if (!idle_workers.empty()) {
      worker = idle_workers.back();
      idle_workers.pop_back();
    }
  }
  if (!worker) {
    worker = new Worker{};
    worker->runtime = &kRuntime;
    worker->ub = (unsigned char *)aligned_alloc(4096, kUbCapacity);
    worker->shadow = (uint8_t *)aligned_alloc(4096, kUbCapacity);
    if (!worker->ub || !worker->shadow) abort();
  }
  worker->launch = &launch;
  worker->ub_bytes = launch.ub_bytes;
  worker->num_blocks = launch.num_blocks;
  worker->detects_races = launch.detects_races;
  worker->statistics = {};
  return worker;
}

static void release_worker(Worker *worker) {
  constexpr size_t max_idle = 128;
  {
    std::lock_guard<std::mutex> guard(idle_mutex);
    if (idle_workers.size() < max_idle) {
      idle_workers.push_back(worker);
      return;
    }
  }
  release_stacks(worker->simt);
  free(worker->ub);
  free(worker->shadow);
  delete worker;
}

// ---- errors

// The text of a line of the generated source, without indentation.
static void append_source_line(std::string &message, const char *source, int line) {
  if (!source || line <= 0) return;
  for (int i = 1; i < line && source; ++i) {
    source = strchr(source, '\n');
    if (source) ++source;
  }
  if (!source) return;
  source += strspn(source, " ");
  message += "\n    ";
  message.append(source, strcspn(source, "\n"));
}

static void report(Worker &worker, const char *text) {
  Launch &launch = *worker.launch;
  std::string message = std::string(launch.kernel_name) + ": block " +
                        std::to_string(worker.block) + ": line " + std::to_string(worker.line) +
                        ": " + text;
  append_source_line(message, launch.info->source, worker.line);
  std::lock_guard<std::mutex> guard(launch.mutex);
  if (!launch.is_cancelled) launch.error = std::move(message);
  launch.is_cancelled = true;
  launch.inter_changed.notify_all();
}

void fail_core(Core *core, const char *format, ...) {
  Worker &worker = worker_of(core);
  char text[1024];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  report(worker, text);
  abandon_block(worker);
}

void abandon_block(Worker &worker) {
  if (worker.simt.running) {
    // longjmp must not leave the fiber's stack; the scheduler takes over from here.
    worker.simt.is_abandoned = true;
    switch_context(worker.simt.running->context, worker.simt.scheduler);
    __builtin_trap();
  }
  longjmp(worker.exit, 1);
}

// ---- blocks

static void reset_block(Worker &worker, int block) {
  static_assert(sizeof kPoison == sizeof(uint32_t));
  uint32_t poison;
  memcpy(&poison, kPoison, sizeof poison);
  std::fill_n((uint32_t *)worker.ub, (worker.ub_bytes + 3) / 4, poison);
  memset(worker.shadow, 0, worker.ub_bytes);
  memset(worker.ub + worker.ub_bytes, kGuard, kGuardBytes);
  worker.block = block;
  worker.line = 0;
  worker.ub_high_water = 0;
  worker.padding_value = 0;
  worker.atomic_op = AtomicOp::none;
  worker.simt.running = nullptr;
  worker.simt.is_abandoned = false;
  reset_synchronisation(worker);
  if (worker.detects_races) reset_races(worker);
}

static void check_guard(Worker &worker) {
  const unsigned char *guard = worker.ub + worker.ub_bytes;
  for (size_t i = 0; i < kGuardBytes; ++i)
    if (guard[i] != kGuard)
      fail_core(&worker, "scalar or simt code has written ub offset %zu, must stay within %zu bytes",
                worker.ub_bytes + i, worker.ub_bytes);
}

static void run_block(Worker &worker, int block) {
  reset_block(worker, block);
  if (setjmp(worker.exit) == 0) {
    worker.launch->info->entry(&worker, worker.launch->arguments);
    check_synchronisation_at_end(worker);
    check_guard(worker);
    worker.statistics.ub_high_water_bytes =
        std::max<uint64_t>(worker.statistics.ub_high_water_bytes, worker.ub_high_water);
  }
  Launch &launch = *worker.launch;
  std::lock_guard<std::mutex> guard(launch.mutex);
  ++launch.num_finished;
  launch.inter_changed.notify_all();
}

static void run_blocks(Launch &launch) {
  // Neither the caller's rounding mode nor its flush-to-zero setting is part of the model.
  fenv_t environment;
  fegetenv(&environment);
  fesetenv(FE_DFL_ENV);
  Worker *worker = acquire_worker(launch);
  for (;;) {
    int block;
    {
      std::lock_guard<std::mutex> guard(launch.mutex);
      if (launch.is_cancelled || launch.next_block == launch.num_blocks) break;
      block = launch.next_block++;
    }
    run_block(*worker, block);
  }
  {
    std::lock_guard<std::mutex> guard(launch.mutex);
    Statistics &total = launch.statistics;
    total.ub_high_water_bytes =
        std::max(total.ub_high_water_bytes, worker->statistics.ub_high_water_bytes);
    total.dma_bytes += worker->statistics.dma_bytes;
    total.num_notifies += worker->statistics.num_notifies;
  }
  release_worker(worker);
  fesetenv(&environment);
}

std::string run_launch(Launch &launch, int max_threads) {
  launch.inter_waits.assign((size_t)launch.num_blocks, InterWait{});
  const int num_threads =
      launch.info->needs_all_blocks ? launch.num_blocks : std::min(max_threads, launch.num_blocks);
  std::vector<std::thread> helpers;
  try {
    helpers.reserve((size_t)num_threads);
    for (int i = 1; i < num_threads; ++i) helpers.emplace_back([&launch] { run_blocks(launch); });
  } catch (const std::system_error &) {
    // Fewer threads only cost time, unless blocks wait for each other.
    if (launch.info->needs_all_blocks) {
      std::lock_guard<std::mutex> guard(launch.mutex);
      launch.is_cancelled = true;
      launch.error = std::string(launch.kernel_name) + ": " + std::to_string(helpers.size() + 1) +
                     " of " + std::to_string(launch.num_blocks) +
                     " threads could be started, must be one for each block";
      launch.inter_changed.notify_all();
    }
  }
  run_blocks(launch);
  for (std::thread &helper : helpers) helper.join();
  return launch.error;
}

}  // namespace sim
