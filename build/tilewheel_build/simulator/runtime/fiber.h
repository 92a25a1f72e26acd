// Stackful contexts for SIMT threads.
#pragma once

#include <cstddef>

#if !defined(__x86_64__) || defined(TILEWHEEL_SIM_UCONTEXT)
#define TILEWHEEL_SIM_USES_UCONTEXT 1
#include <ucontext.h>
#endif

namespace sim {

struct Context {
#ifdef TILEWHEEL_SIM_USES_UCONTEXT
  ucontext_t state;
#else
  void *stack_pointer;
#endif
};

// Makes `context` start `entry` on the given stack. `entry` must never return.
void prepare_context(Context &context, unsigned char *stack, size_t stack_bytes, void (*entry)());

// Saves the running context to `from` and continues `to`.
void switch_context(Context &from, Context &to);

}  // namespace sim
