// Happens-before races between the pipes of a core, over 32-byte blocks of UB.
//
// Each pipe has a vector clock. A flag, a lock or a full barrier carries the clock of one pipe to
// another; an access that is not ordered after the last conflicting one is a race. The simulator
// executes in program order, so a race gives the right result here and a wrong one on a device.
#include <algorithm>
#include <cstdio>
#include <cstring>

#include "runtime/worker.h"

namespace sim {

const char *pipe_name(int pipe) {
  static constexpr const char *names[] = {"PIPE_S",    "PIPE_V",    "PIPE_M",   "PIPE_MTE1",
                                          "PIPE_MTE2", "PIPE_MTE3", "PIPE_FIX", "PIPE_ALL"};
  return pipe >= 0 && pipe <= PIPE_ALL ? names[pipe] : "unknown pipe";
}

static void join(Clock &target, const Clock &source) {
  for (int i = 0; i < kNumPipes; ++i)
    if (source[i] > target[i]) target[i] = source[i];
}

static size_t num_cells(const Worker &worker) {
  return (worker.ub_bytes + kBlockBytes - 1) / kBlockBytes;
}

void reset_races(Worker &worker) {
  for (int pipe = 0; pipe < kNumPipes; ++pipe) {
    worker.clock[pipe].fill(0);
    worker.clock[pipe][pipe] = 1;
  }
  memset(worker.flag_clock, 0, sizeof worker.flag_clock);
  memset(worker.lock_clock, 0, sizeof worker.lock_clock);
  worker.store_epoch = 1;
  memset((void *)worker.cells, 0, num_cells(worker) * sizeof(Cell));
}

void publish_clock(Worker &worker, Clock &target, int pipe) {
  join(target, worker.clock[pipe]);
  ++worker.clock[pipe][pipe];
}

void observe_clock(Worker &worker, const Clock &source, int pipe) {
  join(worker.clock[pipe], source);
  // The scalar unit issues the instructions of all pipes: what it has waited for happens before
  // everything that follows.
  if (pipe == PIPE_S)
    for (Clock &clock : worker.clock) join(clock, source);
}

void join_all_pipes(Worker &worker) {
  Clock all{};
  for (const Clock &clock : worker.clock) join(all, clock);
  for (int pipe = 0; pipe < kNumPipes; ++pipe) {
    worker.clock[pipe] = all;
    ++worker.clock[pipe][pipe];
  }
}

// The bytes of a block that an access touches, as a bit mask.
static uint32_t touched_bytes(size_t block, size_t offset, const uint8_t *bytes, size_t size) {
  uint32_t touched = 0;
  for (size_t i = 0; i < kBlockBytes; ++i) {
    const size_t at = block * kBlockBytes + i;
    if (at >= offset && at < offset + size && (!bytes || bytes[at - offset])) touched |= 1u << i;
  }
  return touched;
}

static void fail_race(Worker &worker, size_t offset, int pipe, const char *verb, int other_pipe,
                      const char *other_verb, int other_line) {
  fail_core(
      &worker,
      "race at %s: %s %s while %s may still %s (line %d), must be ordered by a flag or barrier",
      describe_ub(worker, offset).text, pipe_name(pipe), verb, pipe_name(other_pipe), other_verb,
      other_line);
}

void record_access(Worker &worker, size_t offset, const uint8_t *bytes, size_t size, int pipe,
                   bool is_write) {
  if (size == 0) return;
  const Clock &now = worker.clock[pipe];
  for (size_t block = offset / kBlockBytes; block <= (offset + size - 1) / kBlockBytes; ++block) {
    Cell &cell = worker.cells[block];
    const size_t at = block * kBlockBytes;
    const bool is_whole = !bytes && at >= offset && at + kBlockBytes <= offset + size;
    const uint32_t touched = is_whole ? ~0u : touched_bytes(block, offset, bytes, size);
    if (touched == 0) continue;

    if (cell.writer != pipe && cell.write_clock > now[cell.writer])
      fail_race(worker, at, pipe, is_write ? "writes" : "reads", cell.writer, "write it",
                cell.write_line);
    if (is_write) {
      for (int other = 0; other < kNumPipes; ++other)
        if (other != pipe && cell.read_clock[other] > now[other])
          fail_race(worker, at, pipe, "writes", other, "read it", cell.read_line[other]);
      cell.read_clock.fill(0);
      cell.writer = pipe;
      cell.write_clock = now[pipe];
      cell.write_line = worker.line;
      if (pipe == PIPE_V) {
        cell.store_bytes =
            touched | (cell.store_epoch == worker.store_epoch ? cell.store_bytes : 0);
        cell.store_epoch = worker.store_epoch;
      } else {
        cell.store_bytes = 0;
      }
    } else {
      if (pipe == PIPE_V && cell.store_epoch == worker.store_epoch &&
          (cell.store_bytes & touched)) {
        fail_core(
            &worker,
            "vector load reads what line %d stored at %s in the same vector function, must be "
            "separated by mem_bar(VST_VLD)",
            cell.write_line, describe_ub(worker, at).text);
      }
      cell.read_clock[pipe] = now[pipe];
      cell.read_line[pipe] = worker.line;
    }
  }
}

// SIMT code accesses UB by plain loads and stores. What it changed shows in a comparison; what it
// read, or overwrote with an equal value, does not.
void begin_simt_races(Worker &worker) { memcpy(worker.snapshot, worker.ub, worker.ub_bytes); }

void end_simt_races(Worker &worker) {
  for (size_t block = 0; block < num_cells(worker); ++block) {
    const size_t at = block * kBlockBytes;
    const size_t size = std::min(kBlockBytes, worker.ub_bytes - at);
    if (memcmp(worker.snapshot + at, worker.ub + at, size) == 0) continue;
    uint8_t changed[kBlockBytes];
    for (size_t i = 0; i < size; ++i)
      changed[i] = worker.snapshot[at + i] != worker.ub[at + i] ? kDefined : 0;
    record_access(worker, at, changed, size, PIPE_V, true);
  }
  ++worker.store_epoch;
}

}  // namespace sim
