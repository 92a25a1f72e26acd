// Stands in for an older x86-64: the cpuid instruction of the calling thread faults, and the fault's
// handler answers in its place, without one feature.

#include <cerrno>
#include <csignal>
#include <cpuid.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

namespace {

constexpr int kArchSetCpuid = 0x1012;

unsigned hidden_leaf, hidden_ebx, hidden_ecx;

void answer(int signal, siginfo_t *, void *context) {
  auto &registers = static_cast<ucontext_t *>(context)->uc_mcontext.gregs;
  const auto *code = reinterpret_cast<const unsigned char *>(registers[REG_RIP]);
  if (code[0] != 0x0f || code[1] != 0xa2) {
    std::signal(signal, SIG_DFL);
    return;
  }
  const unsigned leaf = registers[REG_RAX];
  unsigned a, b, c, d;
  syscall(SYS_arch_prctl, kArchSetCpuid, 1);
  __cpuid_count(leaf, static_cast<unsigned>(registers[REG_RCX]), a, b, c, d);
  syscall(SYS_arch_prctl, kArchSetCpuid, 0);
  if (leaf == hidden_leaf) {
    b &= ~hidden_ebx;
    c &= ~hidden_ecx;
  }
  registers[REG_RAX] = a;
  registers[REG_RBX] = b;
  registers[REG_RCX] = c;
  registers[REG_RDX] = d;
  registers[REG_RIP] += 2;
}

}  // namespace

// Returns 0, or the reason why this processor's cpuid cannot fault.
extern "C" int hide_feature(unsigned leaf, unsigned ebx, unsigned ecx) {
  hidden_leaf = leaf;
  hidden_ebx = ebx;
  hidden_ecx = ecx;
  struct sigaction action = {};
  action.sa_sigaction = answer;
  action.sa_flags = SA_SIGINFO;
  sigaction(SIGSEGV, &action, nullptr);
  return syscall(SYS_arch_prctl, kArchSetCpuid, 0) == 0 ? 0 : errno;
}
