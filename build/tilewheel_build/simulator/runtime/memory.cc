// UB access checks and DMA.
#include <algorithm>
#include <cstdio>
#include <cstring>

#include "runtime/worker.h"
#include "tilewheel_sim/check.h"
#include "tilewheel_sim/small_floats.h"

namespace sim {

UbPlace describe_ub(const Worker &worker, size_t offset) {
  UbPlace place;
  const UbName *nearest = nullptr;
  for (uint32_t i = 0; i < worker.launch->info->num_ub_names; ++i) {
    const UbName &name = worker.launch->info->ub_names[i];
    if (name.offset <= offset && (!nearest || name.offset >= nearest->offset)) nearest = &name;
  }
  if (nearest)
    snprintf(place.text, sizeof place.text, "ub offset %zu (%s + %zu)", offset, nearest->name,
             offset - nearest->offset);
  else
    snprintf(place.text, sizeof place.text, "ub offset %zu", offset);
  return place;
}

// Checks the range; returns the UB offset.
static size_t checked_offset(Worker &worker, const void *address, size_t size, const char *what) {
  const auto *byte = (const unsigned char *)address;
  const size_t offset = (size_t)(byte - worker.ub);
  if (offset > worker.ub_bytes || size > worker.ub_bytes - offset) {
    const auto signed_offset = (int64_t)offset;
    if (signed_offset < 0 || signed_offset > (int64_t)1 << 32)
      fail_core(&worker, "%s of %zu bytes at %p, must lie in ub", what, size, address);
    fail_core(&worker, "%s of %zu bytes at %s ends at %zu, must end within %zu bytes", what, size,
              describe_ub(worker, offset).text, offset + size, worker.ub_bytes);
  }
  worker.ub_high_water = std::max(worker.ub_high_water, offset + size);
  return offset;
}

// Scalar and SIMT code writes UB without telling: bytes that no longer hold the poison were
// written. Whole words are judged, since a single byte may equal the poison by chance. Marks what
// it finds.
static void adopt_plain_stores(Worker &worker, size_t offset, size_t size) {
  constexpr size_t word = sizeof kPoison;
  for (size_t at = offset / word * word; at < offset + size; at += word) {
    const size_t end = std::min(at + word, worker.ub_bytes);
    bool is_written = false;
    for (size_t i = at; i < end; ++i)
      is_written |= worker.shadow[i] == kDefined || worker.ub[i] != kPoison[i % word];
    if (!is_written) continue;
    bool has_changed = false;
    for (size_t i = at; i < end; ++i)
      has_changed |= worker.shadow[i] != kDefined && worker.ub[i] != kPoison[i % word];
    if (has_changed) memset(worker.shadow + at, kDefined, end - at);
  }
}

void check_ub_read(Core *core, const void *address, size_t size, pipe_t pipe) {
  Worker &worker = worker_of(core);
  const bool is_dma = pipe == PIPE_MTE3;
  const char *what = is_dma ? "dma read" : "vector load";
  const size_t offset = checked_offset(worker, address, size, what);
  const auto is_undefined = [](uint8_t byte) { return byte != kDefined; };
  const uint8_t *const first = worker.shadow + offset, *const last = first + size;
  const bool all_defined = is_defined(first, size);
  if (!all_defined) adopt_plain_stores(worker, offset, size);
  if (is_dma && !all_defined) {
    const auto count = (size_t)std::count_if(first, last, is_undefined);
    const auto where = offset + (size_t)(std::find_if(first, last, is_undefined) - first);
    if (count != 0)
      fail_core(core,
                "dma read of %zu bytes at %s: %zu bytes from offset %zu on have no defined "
                "value, must be written before",
                size, describe_ub(worker, offset).text, count, where);
  }
  if (worker.detects_races) record_access(worker, offset, nullptr, size, pipe, false);
}

void check_ub_write(Core *core, const void *address, const uint8_t *bytes, size_t size,
                    pipe_t pipe) {
  Worker &worker = worker_of(core);
  size_t begin = 0, end = size;
  if (bytes) {  // only the active lanes touch memory
    while (begin < end && !bytes[begin]) ++begin;
    while (end > begin && !bytes[end - 1]) --end;
    if (begin == end) return;
    bytes += begin;
  }
  const size_t offset = checked_offset(worker, (const unsigned char *)address + begin, end - begin,
                                       pipe == PIPE_MTE2 ? "dma write" : "vector store");
  if (!bytes) {
    memset(worker.shadow + offset, kDefined, end - begin);
  } else {
    for (size_t i = 0; i < end - begin; ++i) worker.shadow[offset + i] |= bytes[i];
  }
  if (worker.detects_races) record_access(worker, offset, bytes, end - begin, pipe, true);
}

// ---- DMA

static void check_gm(Worker &worker, const void *address, size_t size, bool is_write) {
  const size_t count = worker.launch->regions->count;
  const Region *regions = worker.launch->regions->region;
  if (count == 0) return;
  const auto begin = (uintptr_t)address;
  int64_t input = -1;
  for (size_t i = 0; i < count; ++i) {
    const auto base = (uintptr_t)regions[i].base;
    if (begin < base || begin - base > regions[i].size_bytes ||
        size > regions[i].size_bytes - (begin - base))
      continue;
    if (!is_write || regions[i].is_writable) return;
    if (input < 0) input = (int64_t)i;  // an output may lie here too: in-place operators
  }
  if (input >= 0) {
    fail_core(&worker, "dma write of %zu bytes to tensor %lld, must be an output", size,
              (long long)input);
  }
  // Name the tensor that was missed: the one with the nearest start below.
  int64_t nearest = -1;
  for (size_t i = 0; i < count; ++i)
    if ((uintptr_t)regions[i].base <= begin &&
        (nearest < 0 || regions[i].base > regions[(size_t)nearest].base))
      nearest = (int64_t)i;
  if (nearest < 0)
    fail_core(&worker, "dma %s of %zu bytes at %p, must lie in a tensor of the launch",
              is_write ? "write" : "read", size, address);
  const Region &region = regions[(size_t)nearest];
  fail_core(&worker, "dma %s of bytes [%llu, %llu) of tensor %lld, must lie within %llu bytes",
            is_write ? "write" : "read", (unsigned long long)(begin - (uintptr_t)region.base),
            (unsigned long long)(begin - (uintptr_t)region.base + size), (long long)nearest,
            (unsigned long long)region.size_bytes);
}

template <typename T>
static T apply_atomic(AtomicOp op, T a, T b) {
  if (op == AtomicOp::add) return (T)(a + b);
  if (op == AtomicOp::max) return a > b ? a : b;
  return a < b ? a : b;
}

// One element of a store in an atomic mode; blocks run on several threads, so it is a real atomic.
template <typename Bits, typename F>
static void update_atomically(unsigned char *gm, const unsigned char *ub, F f) {
  Bits operand;
  memcpy(&operand, ub, sizeof operand);
  auto *target = (Bits *)gm;
  Bits old_value = __atomic_load_n(target, __ATOMIC_RELAXED);
  while (!__atomic_compare_exchange_n(target, &old_value, f(old_value, operand), false,
                                      __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
}

template <typename Format>
static uint16_t combine_small(AtomicOp op, uint16_t a, uint16_t b) {
  return (uint16_t)encode<Format>(apply_atomic(op, decode<Format>(a), decode<Format>(b)));
}

static size_t atomic_bytes(AtomicType type) {
  return type == AtomicType::s8 ? 1 : type == AtomicType::f32 || type == AtomicType::s32 ? 4 : 2;
}

static void store_atomically(const Worker &worker, unsigned char *gm, const unsigned char *ub,
                             size_t size) {
  const AtomicOp op = worker.atomic_op;
  for (size_t i = 0; i < size; i += atomic_bytes(worker.atomic_type)) {
    switch (worker.atomic_type) {
      case AtomicType::f32:
        update_atomically<uint32_t>(gm + i, ub + i, [op](uint32_t a, uint32_t b) {
          return std::bit_cast<uint32_t>(
              apply_atomic(op, std::bit_cast<float>(a), std::bit_cast<float>(b)));
        });
        break;
      case AtomicType::f16:
        update_atomically<uint16_t>(
            gm + i, ub + i, [op](uint16_t a, uint16_t b) { return combine_small<Fp16>(op, a, b); });
        break;
      case AtomicType::bf16:
        update_atomically<uint16_t>(
            gm + i, ub + i, [op](uint16_t a, uint16_t b) { return combine_small<Bf16>(op, a, b); });
        break;
      case AtomicType::s32:
        update_atomically<int32_t>(gm + i, ub + i,
                                   [op](int32_t a, int32_t b) { return apply_atomic(op, a, b); });
        break;
      case AtomicType::s16:
        update_atomically<int16_t>(gm + i, ub + i,
                                   [op](int16_t a, int16_t b) { return apply_atomic(op, a, b); });
        break;
      case AtomicType::s8:
        update_atomically<int8_t>(gm + i, ub + i,
                                  [op](int8_t a, int8_t b) { return apply_atomic(op, a, b); });
        break;
    }
  }
}

static void load_burst(Worker &worker, const Dma &dma, unsigned char *ub, const unsigned char *gm) {
  const auto size = (size_t)dma.burst_bytes;
  const auto left = (size_t)(dma.left_padding * dma.element_bytes);
  const auto right = (size_t)(dma.right_padding * dma.element_bytes);
  check_gm(worker, gm, size, false);
  check_ub_write(&worker, ub, nullptr, left + size + right, PIPE_MTE2);
  memcpy(ub + left, gm, size);
  if (dma.fills_padding) {
    for (size_t i = 0; i < left; ++i)
      ub[i] = (unsigned char)(worker.padding_value >> (8 * (i % (size_t)dma.element_bytes)));
    for (size_t i = 0; i < right; ++i)
      ub[left + size + i] =
          (unsigned char)(worker.padding_value >> (8 * (i % (size_t)dma.element_bytes)));
  }
  // The transfer is in units of 32 bytes; what it leaves in the rest of the last one is undefined.
  const auto end = (size_t)(ub - worker.ub) + left + size + right;
  const auto unit_end =
      std::min((end + kBlockBytes - 1) / kBlockBytes * kBlockBytes, worker.ub_bytes);
  for (size_t i = end; i < unit_end; ++i) {
    worker.ub[i] = kPoison[i % sizeof kPoison];
    worker.shadow[i] = 0;
  }
}

static void store_burst(Worker &worker, const Dma &dma, const unsigned char *ub,
                        unsigned char *gm) {
  const auto size = (size_t)dma.burst_bytes;
  check_gm(worker, gm, size, true);
  check_ub_read(&worker, ub, size, PIPE_MTE3);
  if (worker.atomic_op == AtomicOp::none) {
    memcpy(gm, ub, size);
    return;
  }
  if (size % atomic_bytes(worker.atomic_type) != 0)
    fail_core(&worker, "atomic dma write of %zu bytes, must be whole elements of %zu bytes", size,
              atomic_bytes(worker.atomic_type));
  store_atomically(worker, gm, ub, size);
}

void run_dma(Core *core, const Dma *dma) {
  Worker &worker = worker_of(core);
  const bool is_load = dma->direction == DmaDirection::gm_to_ub;
  const char *what = is_load ? "dma write" : "dma read";
  if (dma->num_bursts < 0 || dma->burst_bytes < 0)
    fail_core(core, "dma of %lld bursts of %lld bytes, must not be negative",
              (long long)dma->num_bursts, (long long)dma->burst_bytes);
  if (dma->num_bursts == 0 || dma->burst_bytes == 0) return;
  auto *ub = (unsigned char *)dma->ub;
  auto *gm = (unsigned char *)dma->gm;
  const size_t offset = checked_offset(worker, ub, 1, what);
  if (offset % kBlockBytes != 0)
    fail_core(core, "%s at %s, must be aligned to %zu bytes", what,
              describe_ub(worker, offset).text, kBlockBytes);
  if (dma->num_bursts > 1 && dma->ub_stride_bytes % (int64_t)kBlockBytes != 0)
    fail_core(core, "%s at %s with a ub stride of %lld bytes, must be a multiple of %zu", what,
              describe_ub(worker, offset).text, (long long)dma->ub_stride_bytes, kBlockBytes);
  for (int64_t burst = 0; burst < dma->num_bursts; ++burst) {
    if (is_load)
      load_burst(worker, *dma, ub, gm);
    else
      store_burst(worker, *dma, ub, gm);
    ub += dma->ub_stride_bytes;
    gm += dma->gm_stride_bytes;
  }
  worker.statistics.dma_bytes += (uint64_t)(dma->num_bursts * dma->burst_bytes);
}

}  // namespace sim
