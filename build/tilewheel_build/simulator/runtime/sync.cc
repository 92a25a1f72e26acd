// Flags, barriers and buffer locks within a core, and the barrier across cores.
//
// A core is executed in program order by one thread, so a wait that program order cannot satisfy is
// a deadlock on the device.
#include <cstring>

#include "runtime/worker.h"

namespace sim {

static void check_flag_arguments(Worker &worker, const char *what, int source, int destination,
                                 int event) {
  if (source < 0 || source >= kNumPipes || destination < 0 || destination >= kNumPipes ||
      source == destination)
    fail_core(&worker, "%s(%s, %s, %d): names the pipes %d and %d, must be two different pipes",
              what, pipe_name(source), pipe_name(destination), event, source, destination);
  if (event < 0 || event >= kNumEvents)
    fail_core(&worker, "%s(%s, %s, %d): event id is %d, must be 0 to %d", what, pipe_name(source),
              pipe_name(destination), event, event, kNumEvents - 1);
}

void notify_flag(Core *core, int source, int destination, int event) {
  Worker &worker = worker_of(core);
  check_flag_arguments(worker, "asc_sync_notify", source, destination, event);
  uint8_t &flag = worker.flag[source][destination][event];
  int32_t &line = worker.flag_line[source][destination][event];
  if (flag)
    fail_core(
        core,
        "asc_sync_notify(%s, %s, %d): flag is already set (line %d), must be waited for before "
        "it is set again",
        pipe_name(source), pipe_name(destination), event, line);
  flag = 1;
  line = worker.line;
  ++worker.statistics.num_notifies;
  if (worker.detects_races) {
    Clock &clock = worker.flag_clock[source][destination][event];
    clock.fill(0);
    publish_clock(worker, clock, source);
  }
}

void wait_flag(Core *core, int source, int destination, int event) {
  Worker &worker = worker_of(core);
  check_flag_arguments(worker, "asc_sync_wait", source, destination, event);
  uint8_t &flag = worker.flag[source][destination][event];
  if (!flag)
    fail_core(
        core,
        "asc_sync_wait(%s, %s, %d): flag is not set, must be set by an earlier asc_sync_notify",
        pipe_name(source), pipe_name(destination), event);
  flag = 0;
  if (worker.detects_races)
    observe_clock(worker, worker.flag_clock[source][destination][event], destination);
}

void sync_pipes(Core *core, int pipe) {
  Worker &worker = worker_of(core);
  // A barrier of a single pipe orders nothing across pipes.
  if (worker.detects_races && pipe == PIPE_ALL) join_all_pipes(worker);
}

void memory_barrier(Core *core) { ++worker_of(core).store_epoch; }

static void check_lock_arguments(Worker &worker, const char *what, int pipe, int id) {
  if (pipe < 0 || pipe >= kNumPipes || id < 0 || id >= kNumLocks)
    fail_core(&worker, "%s(%s, %d): must name a pipe and a buffer id of 0 to %d", what,
              pipe_name(pipe), id, kNumLocks - 1);
}

void lock_buffer(Core *core, int pipe, int id) {
  Worker &worker = worker_of(core);
  check_lock_arguments(worker, "asc_lock", pipe, id);
  if (worker.lock_owner[id] >= 0)
    fail_core(core, "asc_lock(%s, %d): buffer is held by %s (line %d), must be unlocked before",
              pipe_name(pipe), id, pipe_name(worker.lock_owner[id]), worker.lock_line[id]);
  worker.lock_owner[id] = (int8_t)pipe;
  worker.lock_line[id] = worker.line;
  if (worker.detects_races) observe_clock(worker, worker.lock_clock[id], pipe);
}

void unlock_buffer(Core *core, int pipe, int id) {
  Worker &worker = worker_of(core);
  check_lock_arguments(worker, "asc_unlock", pipe, id);
  if (worker.lock_owner[id] != pipe)
    fail_core(core, "asc_unlock(%s, %d): buffer is held by %s, must be held by this pipe",
              pipe_name(pipe), id,
              worker.lock_owner[id] < 0 ? "no pipe" : pipe_name(worker.lock_owner[id]));
  worker.lock_owner[id] = -1;
  if (worker.detects_races) publish_clock(worker, worker.lock_clock[id], pipe);
}

// ---- across cores

static void check_inter_flag(Worker &worker, const char *what, int flag) {
  if (flag < 0 || flag >= kNumInterFlags)
    fail_core(&worker, "%s: flag id is %d, must be 0 to %d", what, flag, kNumInterFlags - 1);
  if (!worker.launch->info->needs_all_blocks)
    fail_core(&worker, "%s: blocks do not run concurrently, must be built with all blocks resident",
              what);
}

void arrive_inter(Core *core, int, int flag) {
  Worker &worker = worker_of(core);
  check_inter_flag(worker, "asc_sync_inter_arrive", flag);
  Launch &launch = *worker.launch;
  const Lock lock(launch.mutex);
  ++launch.inter_arrivals[flag];
  pthread_cond_broadcast(&launch.inter_changed);
}

// Whether no block can make progress: every one has returned or waits for arrivals to come.
static bool is_deadlocked(const Launch &launch) {
  int num_stuck = launch.num_finished;
  for (const InterWait &wait : launch.inter_waits)
    if (wait.is_active && launch.inter_arrivals[wait.flag] < wait.target) ++num_stuck;
  return num_stuck == launch.num_blocks;
}

void wait_inter(Core *core, int, int flag) {
  Worker &worker = worker_of(core);
  check_inter_flag(worker, "asc_sync_inter_wait", flag);
  Launch &launch = *worker.launch;
  const uint64_t target = ++worker.inter_rounds[flag] * (uint64_t)launch.num_blocks;
  enum { passed, cancelled, deadlocked } outcome;
  uint64_t arrivals;
  {
    const Lock lock(launch.mutex);
    InterWait &wait = launch.inter_waits[worker.block];
    wait = {true, flag, target};
    for (;;) {
      arrivals = launch.inter_arrivals[flag];
      outcome = launch.is_cancelled ? cancelled : arrivals >= target ? passed : deadlocked;
      if (outcome != deadlocked || is_deadlocked(launch)) break;
      pthread_cond_wait(&launch.inter_changed, &launch.mutex);
    }
    wait.is_active = false;
  }
  if (outcome == cancelled) abandon_block(worker);
  if (outcome == deadlocked)
    fail_core(
        core,
        "asc_sync_inter_wait: %llu of %d blocks have arrived at flag %d and no other can, must "
        "be reached by every block",
        (unsigned long long)(arrivals % launch.num_blocks), launch.num_blocks, flag);
}

void reset_synchronisation(Worker &worker) {
  memset(worker.flag, 0, sizeof worker.flag);
  memset(worker.lock_owner, -1, sizeof worker.lock_owner);
  memset(worker.inter_rounds, 0, sizeof worker.inter_rounds);
}

void check_synchronisation_at_end(Worker &worker) {
  for (int source = 0; source < kNumPipes; ++source)
    for (int destination = 0; destination < kNumPipes; ++destination)
      for (int event = 0; event < kNumEvents; ++event)
        if (worker.flag[source][destination][event]) {
          worker.line = worker.flag_line[source][destination][event];
          fail_core(&worker,
                    "asc_sync_notify(%s, %s, %d): flag is still set when the kernel ends, must be "
                    "waited for",
                    pipe_name(source), pipe_name(destination), event);
        }
  for (int id = 0; id < kNumLocks; ++id)
    if (worker.lock_owner[id] >= 0) {
      worker.line = worker.lock_line[id];
      fail_core(&worker,
                "asc_lock(%s, %d): buffer is still held when the kernel ends, must be "
                "unlocked",
                pipe_name(worker.lock_owner[id]), id);
    }
}

}  // namespace sim
