// The part of ACL's C ABI that launchers use, with compiled host code as the "device binary".
//
// So the launcher that ships for real hardware runs unchanged. Every function returns 0 on success;
// after an error, aclGetRecentErrMsg returns its text on the same thread.
#if defined(__x86_64__)
#include <cpuid.h>
#endif
#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "runtime/worker.h"

#define TILEWHEEL_EXPORT extern "C" __attribute__((visibility("default")))

namespace sim {

enum Error : int32_t {
  kOk = 0,
  kInvalidArgument = 1,
  kLoadFailed = 2,
  kNoSuchKernel = 3,
  kLaunchFailed = 4,
};

struct Function {
  const KernelInfo *info;
  Function *next;  // of the same binary
  char name[];
};
struct Binary {
  void *library;
  pthread_mutex_t mutex;
  Function *functions;
};

// Layout of aclrtLaunchKernelCfg as launchers pass it; only the UB size is used.
struct LaunchAttribute {
  int32_t id;
  uint32_t value[4];
};
struct LaunchConfig {
  const LaunchAttribute *attributes;
  size_t num_attributes;
};
static_assert(sizeof(LaunchAttribute) == 20 && sizeof(LaunchConfig) == 16);
static constexpr int32_t kDynamicUbSize = 2;

static thread_local char recent_error[4096];
static thread_local Regions regions;
static thread_local Statistics recent_statistics;
static std::atomic<bool> detects_races{false};
static std::atomic<int> max_threads{0};  // 0: one for each CPU

static int32_t error(Error code, const char *format, ...) __attribute__((format(printf, 2, 3)));
static int32_t error(Error code, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(recent_error, sizeof recent_error, format, arguments);
  va_end(arguments);
  return code;
}

// A path to `fd` that no other binary has been loaded by: dlopen takes an equal name for the same
// library, and descriptor numbers are reused. "/." and "/" mean nothing and spell out a number that
// differs between loads, and between copies of this library in one process.
struct UniquePath {
  char text[160];
};
static UniquePath unique_path(int fd) {
  static std::atomic<uint64_t> num_loaded{0};
  UniquePath path;
  char *end = stpcpy(path.text, "/proc/self/fd");
  const uint64_t number = ((uint64_t)(uintptr_t)&num_loaded << 17) + num_loaded++;
  for (int bit = 0; bit < 64; ++bit) end = stpcpy(end, number >> bit & 1 ? "/." : "/");
  snprintf(end, (size_t)(path.text + sizeof path.text - end), "/%d", fd);
  return path;
}

// Kernels are compiled for AVX2 and FMA: better an error than an illegal instruction.
static bool can_run_kernels() {
#if defined(__x86_64__)
  unsigned a, b, c, d;
  if (!__get_cpuid(1, &a, &b, &c, &d)) return false;
  constexpr unsigned fma = 1u << 12, os_saves_registers = 1u << 27, avx2 = 1u << 5;
  if ((c & (fma | os_saves_registers)) != (fma | os_saves_registers)) return false;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b & avx2);
#else
  return true;
#endif
}

static bool write_all(int fd, const char *data, size_t size) {
  while (size > 0) {
    const ssize_t written = write(fd, data, size);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    data += written;
    size -= (size_t)written;
  }
  return true;
}

}  // namespace sim

using namespace sim;

TILEWHEEL_EXPORT const int tilewheel_simulator_marker;
const int tilewheel_simulator_marker = (int)kAbiVersion;

// Race detection applies to the launches that start afterwards, on all threads.
TILEWHEEL_EXPORT void tilewheel_simulator_set_race_detection(int32_t enabled) {
  detects_races = enabled != 0;
}

// Most OS threads of one launch; 0 is one for each CPU.
TILEWHEEL_EXPORT void tilewheel_simulator_set_max_threads(int32_t count) { max_threads = count; }

// Tensors that DMA of later launches of the calling thread must stay within; none switches it off.
TILEWHEEL_EXPORT int32_t tilewheel_simulator_set_regions(const Region *first, size_t count) {
  if (count > kMaxRegions)
    return error(kInvalidArgument,
                 "tilewheel_simulator_set_regions: %zu regions, must be at most %zu", count,
                 kMaxRegions);
  std::copy(first, first + count, regions.region);
  regions.count = count;
  return kOk;
}

// Facts about the last launch of the calling thread.
TILEWHEEL_EXPORT void tilewheel_simulator_get_statistics(Statistics *statistics) {
  *statistics = recent_statistics;
}

TILEWHEEL_EXPORT int32_t aclrtGetDevice(int32_t *device) {
  if (!device) return error(kInvalidArgument, "aclrtGetDevice: device is null, must be a pointer");
  *device = 0;
  return kOk;
}

TILEWHEEL_EXPORT int32_t aclrtSetDevice(int32_t device) {
  if (device == 0) return kOk;
  return error(kInvalidArgument, "aclrtSetDevice: device is %d, must be 0", int(device));
}

TILEWHEEL_EXPORT int32_t aclrtBinaryLoadFromData(const void *data, size_t size, const void *,
                                                 void **handle) {
  if (!data || !size || !handle)
    return error(kInvalidArgument, "aclrtBinaryLoadFromData: data or handle is null, must be set");
  if (!can_run_kernels())
    return error(kLoadFailed,
                 "aclrtBinaryLoadFromData: this cpu lacks avx2 or fma, must be x86-64-v3");
  const int fd = memfd_create("tilewheel-kernel", MFD_CLOEXEC);
  if (fd < 0 || !write_all(fd, (const char *)data, size)) {
    const int code = errno;
    if (fd >= 0) close(fd);
    return error(kLoadFailed, "aclrtBinaryLoadFromData: memfd: %s", strerror(code));
  }
  void *library = dlopen(unique_path(fd).text, RTLD_NOW | RTLD_LOCAL);
  close(fd);
  if (!library) {
    const char *reason = dlerror();
    return error(kLoadFailed, "aclrtBinaryLoadFromData: %s", reason ? reason : "dlopen failed");
  }
  auto *binary = (Binary *)calloc(1, sizeof(Binary));
  if (!binary) {
    dlclose(library);
    return error(kLoadFailed, "aclrtBinaryLoadFromData: no memory, must be able to allocate");
  }
  binary->library = library;
  pthread_mutex_init(&binary->mutex, nullptr);
  *handle = binary;
  return kOk;
}

TILEWHEEL_EXPORT int32_t aclrtBinaryGetFunction(void *handle, const char *name, void **function) {
  if (!handle || !name || !function)
    return error(kInvalidArgument, "aclrtBinaryGetFunction: an argument is null, must be set");
  auto &binary = *(Binary *)handle;
  char symbol[512];
  if (snprintf(symbol, sizeof symbol, "%s__tilewheel_sim", name) >= (int)sizeof symbol)
    return error(kInvalidArgument, "aclrtBinaryGetFunction: name is too long, must be a kernel");
  auto *info = (const KernelInfo *)dlsym(binary.library, symbol);
  if (!info)
    return error(kNoSuchKernel, "aclrtBinaryGetFunction: binary has no kernel %s, must define it",
                 name);
  if (info->abi_version != kAbiVersion)
    return error(kNoSuchKernel, "aclrtBinaryGetFunction: %s has simulator abi %u, must be %u", name,
                 info->abi_version, kAbiVersion);
  auto *entry = (Function *)calloc(1, sizeof(Function) + strlen(name) + 1);
  if (!entry)
    return error(kNoSuchKernel, "aclrtBinaryGetFunction: no memory, must be able to allocate");
  entry->info = info;
  strcpy(entry->name, name);
  const Lock lock(binary.mutex);
  entry->next = binary.functions;
  binary.functions = entry;
  *function = entry;
  return kOk;
}

TILEWHEEL_EXPORT int32_t aclrtBinaryUnLoad(void *handle) {
  if (!handle) return error(kInvalidArgument, "aclrtBinaryUnLoad: handle is null, must be set");
  auto *binary = (Binary *)handle;
  dlclose(binary->library);
  while (binary->functions) {
    Function *next = binary->functions->next;
    free(binary->functions);
    binary->functions = next;
  }
  pthread_mutex_destroy(&binary->mutex);
  free(binary);
  return kOk;
}

// Runs to completion: the stream is ignored, and an error is reported here and not by a later call.
TILEWHEEL_EXPORT int32_t aclrtLaunchKernelWithHostArgs(void *function_handle, uint32_t num_blocks,
                                                       void *, const void *config_pointer,
                                                       void *arguments, size_t arguments_size,
                                                       void *, size_t) {
  if (!function_handle)
    return error(kInvalidArgument, "aclrtLaunchKernelWithHostArgs: function is null, must be set");
  const auto &function = *(const Function *)function_handle;
  const char *name = function.name;
  if (arguments_size < function.info->argument_bytes)
    return error(kInvalidArgument, "%s: arguments have %zu bytes, must have %u", name,
                 arguments_size, function.info->argument_bytes);
  size_t ub_bytes = kUbBytes;
  if (const auto *config = (const LaunchConfig *)config_pointer)
    for (size_t i = 0; i < config->num_attributes; ++i)
      if (config->attributes[i].id == kDynamicUbSize) ub_bytes = config->attributes[i].value[0];
  if (ub_bytes > kUbBytes)
    return error(kInvalidArgument, "%s: needs %zu bytes of ub, must need at most %zu", name,
                 ub_bytes, kUbBytes);
  constexpr uint32_t max_blocks = 65535;
  const uint32_t limit = function.info->needs_all_blocks ? kMaxResidentBlocks : max_blocks;
  if (num_blocks > limit)
    return error(kInvalidArgument, "%s: grid has %u blocks, must have at most %u", name, num_blocks,
                 limit);
  if (num_blocks == 0) return kOk;

  Launch launch{};
  launch.info = function.info;
  launch.kernel_name = name;
  launch.arguments = (const unsigned char *)arguments;
  launch.ub_bytes = ub_bytes;
  launch.num_blocks = (int)num_blocks;
  launch.detects_races = detects_races;
  launch.regions = &regions;
  pthread_mutex_init(&launch.mutex, nullptr);
  pthread_cond_init(&launch.inter_changed, nullptr);
  const int threads = max_threads > 0 ? (int)max_threads : (int)sysconf(_SC_NPROCESSORS_ONLN);
  run_launch(launch, std::max(1, threads));
  pthread_cond_destroy(&launch.inter_changed);
  pthread_mutex_destroy(&launch.mutex);
  recent_statistics = launch.statistics;
  return launch.is_cancelled ? error(kLaunchFailed, "%s", launch.error) : (int32_t)kOk;
}

TILEWHEEL_EXPORT const char *aclGetRecentErrMsg() { return recent_error; }
