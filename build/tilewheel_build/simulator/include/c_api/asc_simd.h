// The register-level vocabulary under TileLang's Ascend headers, for a CPU.
//
// Written from TileLang's own sources (language/simd.py, codegen, tl_templates/ascend) and public
// descriptions of the formats.
#pragma once

#include <cassert>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#define __NPU_ARCH__ 3510
#define __ubuf__
#define __gm__
#define __cc__
#define __ca__
#define __cb__
#define __cbuf__
#define __global__
#define __vector__
#define __cube__
#define __mix__(...)
#define __aicore__
#define __simd_vf__ static
#define __simd_callee__ __attribute__((always_inline))
#define __simt_vf__ static
#define __simt_callee__
#define __launch_bounds__(...)
#define __SIMT_DEVICE_FUNCTIONS_DECL__

#include "tilewheel_sim/convert.h"
#include "tilewheel_sim/load_store.h"
#include "tilewheel_sim/pipes.h"

using std::signbit;

// TileLang's debug.h defines its functions once for each kind of device function, in two namespaces
// of which the device compiler opens the right one. This one passes the block index as an int.
namespace __asc_simt_vf {}
using namespace __asc_simt_vf;

namespace AscendC {}
namespace cce {
struct dim3 {
  unsigned x, y, z;
  dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};
}  // namespace cce

// Objects, not macros: generated functions have parameters called block_idx.
namespace sim {
struct BlockIndex {
  operator int() const { return current->block; }
};
struct BlockCount {
  operator int() const { return current->num_blocks; }
};
}  // namespace sim
inline constexpr sim::BlockIndex block_idx{};
inline constexpr sim::BlockCount block_num{};
inline int64_t get_block_idx() { return block_idx; }
inline int64_t get_block_num() { return block_num; }

// A failed assertion of device code is an error of the launch, not of the process.
#undef assert
#define assert(condition) \
  ((condition) ? (void)0 : ::sim::fail("device assertion is false, must hold: %s", #condition))
