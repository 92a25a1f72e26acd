// Blocks on OS threads, and the boundary at which a violation becomes an error.
//
// Violations leave a block by longjmp, not by a C++ exception: kernels are compiled without
// exceptions and without unwind tables, which keeps them small, free of a C++ run-time library, and
// lets a violation leave a SIMT fiber. Nothing between the two ends has a destructor.
#include "runtime/worker.h"

#include <algorithm>
#include <cfenv>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>

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
static constexpr int kMaxIdleWorkers = 64;

static pthread_mutex_t idle_mutex = PTHREAD_MUTEX_INITIALIZER;
static Worker *idle_workers[kMaxIdleWorkers];
static int num_idle_workers;

// A fork while another thread holds the mutex would leave it locked in the child.
__attribute__((constructor)) static void survive_fork() {
  pthread_atfork([] { pthread_mutex_lock(&idle_mutex); }, [] { pthread_mutex_unlock(&idle_mutex); },
                 [] { pthread_mutex_unlock(&idle_mutex); });
}

static void destroy_worker(Worker *worker) {
  release_stacks(worker->simt);
  free(worker->ub);
  free(worker->shadow);
  free(worker);
}

// Null if there is no memory.
static Worker *acquire_worker(Launch &launch) {
  Worker *worker = nullptr;
  {
    const Lock lock(idle_mutex);
    if (num_idle_workers > 0) worker = idle_workers[--num_idle_workers];
  }
  if (!worker) {
    worker = (Worker *)calloc(1, sizeof(Worker));
    if (!worker) return nullptr;
    worker->runtime = &kRuntime;
    worker->ub = (unsigned char *)aligned_alloc(4096, kUbCapacity);
    worker->shadow = (uint8_t *)aligned_alloc(4096, kUbCapacity);
    if (!worker->ub || !worker->shadow) {
      destroy_worker(worker);
      return nullptr;
    }
  }
  worker->launch = &launch;
  worker->ub_bytes = launch.ub_bytes;
  worker->num_blocks = launch.num_blocks;
  worker->detects_races = launch.detects_races;
  worker->statistics = {};
  return worker;
}

static void release_worker(Worker *worker) {
  {
    const Lock lock(idle_mutex);
    if (num_idle_workers < kMaxIdleWorkers) {
      idle_workers[num_idle_workers++] = worker;
      return;
    }
  }
  destroy_worker(worker);
}

// ---- errors

// The text of a line of the generated source, without indentation: start and length.
struct SourceLine {
  const char *text;
  int length;
};
static SourceLine source_line(const char *source, int line) {
  for (int i = 1; i < line && source; ++i) {
    source = strchr(source, '\n');
    if (source) ++source;
  }
  if (!source || line <= 0) return {"", 0};
  source += strspn(source, " ");
  return {source, (int)strcspn(source, "\n")};
}

// The first error of a launch stays.
static void cancel_launch(Launch &launch, const char *message) {
  const Lock lock(launch.mutex);
  if (!launch.is_cancelled) snprintf(launch.error, sizeof launch.error, "%s", message);
  launch.is_cancelled = true;
  pthread_cond_broadcast(&launch.inter_changed);
}

void fail_core(Core *core, const char *format, ...) {
  Worker &worker = worker_of(core);
  char text[kMessageBytes / 2];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  const SourceLine source = source_line(worker.launch->info->source, worker.line);
  char message[kMessageBytes];
  snprintf(message, sizeof message, "%s: block %d: line %d: %s%s%.*s", worker.launch->kernel_name,
           worker.block, worker.line, text, source.length ? "\n    " : "", source.length,
           source.text);
  cancel_launch(*worker.launch, message);
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
      fail_core(&worker,
                "scalar or simt code has written ub offset %zu, must stay within %zu bytes",
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
  const Lock lock(launch.mutex);
  ++launch.num_finished;
  pthread_cond_broadcast(&launch.inter_changed);
}

static void run_blocks(Launch &launch) {
  Worker *worker = acquire_worker(launch);
  if (!worker) {
    cancel_launch(launch, "simulator: no memory for a core, must be able to allocate 2 MB");
    return;
  }
  // Neither the caller's rounding mode nor its flush-to-zero setting is part of the model.
  fenv_t environment;
  fegetenv(&environment);
  fesetenv(FE_DFL_ENV);
  for (;;) {
    int block;
    {
      const Lock lock(launch.mutex);
      if (launch.is_cancelled || launch.next_block == launch.num_blocks) break;
      block = launch.next_block++;
    }
    run_block(*worker, block);
  }
  fesetenv(&environment);
  {
    const Lock lock(launch.mutex);
    Statistics &total = launch.statistics;
    total.ub_high_water_bytes =
        std::max(total.ub_high_water_bytes, worker->statistics.ub_high_water_bytes);
    total.dma_bytes += worker->statistics.dma_bytes;
    total.num_notifies += worker->statistics.num_notifies;
  }
  release_worker(worker);
}

static void *helper_main(void *launch) {
  run_blocks(*(Launch *)launch);
  return nullptr;
}

void run_launch(Launch &launch, int max_threads) {
  // Threads beyond the caller's live for one launch: a pool would not survive a fork.
  constexpr int max_helpers = kMaxResidentBlocks - 1;
  pthread_t helpers[max_helpers];
  int num_helpers = 0;
  const int num_wanted =
      launch.info->needs_all_blocks ? launch.num_blocks : std::min(max_threads, launch.num_blocks);
  while (num_helpers < std::min(num_wanted - 1, max_helpers) &&
         pthread_create(&helpers[num_helpers], nullptr, helper_main, &launch) == 0)
    ++num_helpers;
  // Fewer threads only cost time, unless blocks wait for each other.
  if (launch.info->needs_all_blocks && num_helpers < num_wanted - 1) {
    char message[160];
    snprintf(message, sizeof message,
             "simulator: started %d threads, must start one for each of %d "
             "blocks",
             num_helpers + 1, launch.num_blocks);
    cancel_launch(launch, message);
  }
  run_blocks(launch);
  for (int i = 0; i < num_helpers; ++i) pthread_join(helpers[i], nullptr);
}

}  // namespace sim
