// UB access checks: range, initialisation and, when switched on, races.
//
// The common case (in range, initialised, no race detection) is inline; everything else, and the
// wording of every error, is in the runtime library.
#pragma once

#include <cstring>

#include "tilewheel_sim/core.h"

namespace sim {

__attribute__((always_inline)) inline bool in_ub(const Core &core, size_t offset, size_t size) {
  return offset <= core.ub_bytes && size <= core.ub_bytes - offset;
}

__attribute__((always_inline)) inline bool is_initialised(const uint8_t *shadow, size_t size) {
  uint8_t all = kInitialised;
  for (size_t i = 0; i < size; ++i) all &= shadow[i];
  return all == kInitialised;
}

__attribute__((always_inline)) inline void note_use(Core &core, size_t end) {
  if (end > core.ub_high_water) core.ub_high_water = end;
}

// A read of `size` bytes by the vector pipe.
__attribute__((always_inline)) inline void check_read(const void *address, size_t size,
                                                      Coverage coverage) {
  Core &core = *current;
  const size_t offset = (size_t)((const unsigned char *)address - core.ub);
  if (in_ub(core, offset, size) && !core.detects_races &&
      is_initialised(core.shadow + offset, size)) [[likely]] {
    note_use(core, offset + size);
    return;
  }
  core.runtime->check_read(&core, address, size, PIPE_V, coverage);
}

// A write of all `size` bytes by the vector pipe.
__attribute__((always_inline)) inline void check_write(const void *address, size_t size) {
  Core &core = *current;
  const size_t offset = (size_t)((const unsigned char *)address - core.ub);
  if (in_ub(core, offset, size) && !core.detects_races) [[likely]] {
    memset(core.shadow + offset, kInitialised, size);
    note_use(core, offset + size);
    return;
  }
  core.runtime->check_write(&core, address, nullptr, size, PIPE_V);
}

// A write of those of `size` bytes whose entry in `bytes` is kInitialised.
__attribute__((always_inline)) inline void check_masked_write(const void *address,
                                                              const uint8_t *bytes, size_t size) {
  Core &core = *current;
  const size_t offset = (size_t)((const unsigned char *)address - core.ub);
  if (in_ub(core, offset, size) && !core.detects_races) [[likely]] {
    for (size_t i = 0; i < size; ++i) core.shadow[offset + i] |= bytes[i];
    size_t last = size;
    while (last > 0 && !bytes[last - 1]) --last;
    if (last > 0) note_use(core, offset + last);
    return;
  }
  core.runtime->check_write(&core, address, bytes, size, PIPE_V);
}

}  // namespace sim
