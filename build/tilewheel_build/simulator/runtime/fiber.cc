#include "runtime/fiber.h"

#include <cstdint>

namespace sim {

#ifdef TILEWHEEL_SIM_USES_UCONTEXT

void prepare_context(Context &context, unsigned char *stack, size_t stack_bytes, void (*entry)()) {
  getcontext(&context.state);
  context.state.uc_stack.ss_sp = stack;
  context.state.uc_stack.ss_size = stack_bytes;
  context.state.uc_link = nullptr;
  makecontext(&context.state, entry, 0);
}

void switch_context(Context &from, Context &to) { swapcontext(&from.state, &to.state); }

#else

// The System V ABI preserves rbx, rbp and r12-r15 across a call; all else is the caller's. The
// control words are the same in every fiber. swapcontext would cost two system calls a switch.
extern "C" void tilewheel_sim_switch(void **from, void *to);
asm(R"(
.text
.type tilewheel_sim_switch, @function
.hidden tilewheel_sim_switch
.globl tilewheel_sim_switch
tilewheel_sim_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size tilewheel_sim_switch, . - tilewheel_sim_switch
)");

void prepare_context(Context &context, unsigned char *stack, size_t stack_bytes, void (*entry)()) {
  constexpr int num_saved = 6;
  // A function is entered with rsp = 16 n + 8: the return address has just been pushed. Here `ret`
  // pops the entry instead, so its slot must lie at 16 n.
  auto top = ((uintptr_t)(stack + stack_bytes) & ~(uintptr_t)15) - 32;
  auto *slot = (uintptr_t *)top;
  *slot = (uintptr_t)entry;
  for (int i = 1; i <= num_saved; ++i) slot[-i] = 0;
  context.stack_pointer = slot - num_saved;
}

void switch_context(Context &from, Context &to) {
  tilewheel_sim_switch(&from.stack_pointer, to.stack_pointer);
}

#endif

}  // namespace sim
