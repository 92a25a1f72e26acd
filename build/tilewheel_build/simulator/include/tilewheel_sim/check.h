// UB access checks: range, definedness and, when switched on, races.
//
// The common case is inline; everything else, and the wording of every error, is in the runtime
// library. Reading bytes without a value is no error by itself, since a register load always moves
// 256 bytes: the register remembers which of its bytes are undefined, see registers.h.
#pragma once

#include <cstring>

#include "tilewheel_sim/core.h"

namespace sim {

__attribute__((always_inline)) inline bool in_ub(const Core &core, size_t offset, size_t size) {
  return offset <= core.ub_bytes && size <= core.ub_bytes - offset;
}

__attribute__((always_inline)) inline bool is_defined(const uint8_t *shadow, size_t size) {
  uint8_t all = kDefined;
  for (size_t i = 0; i < size; ++i) all &= shadow[i];
  return all == kDefined;
}

__attribute__((always_inline)) inline void note_use(Core &core, size_t end) {
  if (end > core.ub_high_water) core.ub_high_water = end;
}

// A read of `size` bytes by the vector pipe. Returns the shadow of the bytes if some of them are
// undefined, else null.
__attribute__((always_inline)) inline const uint8_t *check_read(const void *address, size_t size) {
  Core &core = *current;
  const size_t offset = (size_t)((const unsigned char *)address - core.ub);
  const uint8_t *shadow = core.shadow + offset;
  if (in_ub(core, offset, size) && !core.detects_races && is_defined(shadow, size)) [[likely]] {
    note_use(core, offset + size);
    return nullptr;
  }
  core.runtime->check_read(&core, address, size, PIPE_V);
  return is_defined(shadow, size) ? nullptr : shadow;
}

// A write of all `size` bytes by the vector pipe.
__attribute__((always_inline)) inline void check_write(const void *address, size_t size) {
  Core &core = *current;
  const size_t offset = (size_t)((const unsigned char *)address - core.ub);
  if (in_ub(core, offset, size) && !core.detects_races) [[likely]] {
    memset(core.shadow + offset, kDefined, size);
    note_use(core, offset + size);
    return;
  }
  core.runtime->check_write(&core, address, nullptr, size, PIPE_V);
}

// A write of those of `size` bytes whose entry in `bytes` is kDefined.
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

// Takes the value of a UB byte away again, after a checked write.
inline void make_undefined(void *address) {
  Core &core = *current;
  const size_t offset = (size_t)((unsigned char *)address - core.ub);
  core.ub[offset] = kPoison[offset % sizeof kPoison];
  core.shadow[offset] = 0;
}

}  // namespace sim
