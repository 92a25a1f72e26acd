/* A stand-in for libcuda.so.1: writes each call to a log and fails the calls that it is told to.
 *
 * The log is $RECORDING_LOG, one line for each call. $RECORDING_FAIL names a function and its error,
 * `cuInit=100`; `recording_fail` changes that in a running process. With -DNO_LAUNCH it is a driver
 * that is too old for cuLaunchKernelEx. */
#include <cuda.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_DEPTH 8

static pthread_mutex_t guard = PTHREAD_MUTEX_INITIALIZER;
static char failing[64];
static CUresult failure;
static _Thread_local CUcontext contexts[MAX_DEPTH];
static _Thread_local int depth;
static _Thread_local CUstreamCaptureMode capture_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

void recording_fail(const char *name, int code) {
  snprintf(failing, sizeof failing, "%s", name);
  failure = (CUresult)code;
}

/* Makes a device's context the thread's current one; -1 leaves the thread without. */
void recording_current(int device) {
  depth = device < 0 ? 0 : 1;
  contexts[0] = (CUcontext)(intptr_t)(0x100 + device);
}

int recording_depth(void) { return depth; }
int recording_capture_mode(void) { return (int)capture_mode; }

__attribute__((constructor)) static void read_environment(void) {
  const char *text = getenv("RECORDING_FAIL");
  const char *equals = text != NULL ? strchr(text, '=') : NULL;
  if (equals == NULL) return;
  snprintf(failing, sizeof failing, "%.*s", (int)(equals - text), text);
  failure = (CUresult)atoi(equals + 1);
}

static CUresult record(const char *name, const char *format, ...) {
  char line[1024];
  int used = snprintf(line, sizeof line, "%s", name);
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(line + used, sizeof line - (size_t)used, format, arguments);
  va_end(arguments);
  pthread_mutex_lock(&guard);
  FILE *file = fopen(getenv("RECORDING_LOG"), "a");
  fprintf(file, "%s\n", line);
  fclose(file);
  CUresult code = strcmp(name, failing) == 0 ? failure : CUDA_SUCCESS;
  pthread_mutex_unlock(&guard);
  return code;
}

CUresult cuInit(unsigned flags) { return record("cuInit", " %u", flags); }

CUresult cuGetErrorName(CUresult code, const char **name) {
  switch ((int)code) {
    case 100: *name = "CUDA_ERROR_NO_DEVICE"; return CUDA_SUCCESS;
    case 209: *name = "CUDA_ERROR_NO_BINARY_FOR_GPU"; return CUDA_SUCCESS;
    case 719: *name = "CUDA_ERROR_LAUNCH_FAILED"; return CUDA_SUCCESS;
    default: return CUDA_ERROR_INVALID_VALUE;
  }
}

CUresult cuGetErrorString(CUresult code, const char **text) {
  *text = code == CUDA_ERROR_NO_DEVICE ? "no CUDA-capable device is detected" : "it failed";
  return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice *device, int ordinal) {
  *device = ordinal;
  return record("cuDeviceGet", " %d", ordinal);
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
  *context = (CUcontext)(intptr_t)(0x100 + device);
  return record("cuDevicePrimaryCtxRetain", " %d", device);
}

CUresult cuCtxGetDevice(CUdevice *device) {
  if (depth == 0) return CUDA_ERROR_INVALID_CONTEXT;
  *device = (CUdevice)((intptr_t)contexts[depth - 1] - 0x100);
  return CUDA_SUCCESS;
}

CUresult cuCtxPushCurrent_v2(CUcontext context) {
  CUresult code = record("cuCtxPushCurrent", " %d", (int)((intptr_t)context - 0x100));
  if (code == CUDA_SUCCESS) contexts[depth++] = context;
  return code;
}

CUresult cuCtxPopCurrent_v2(CUcontext *context) {
  *context = contexts[--depth];
  return record("cuCtxPopCurrent", " %d", (int)((intptr_t)*context - 0x100));
}

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode) {
  CUstreamCaptureMode before = capture_mode;
  capture_mode = *mode;
  *mode = before;
  return record("cuThreadExchangeStreamCaptureMode", " %d", (int)capture_mode);
}

CUresult cuLibraryLoadData(CUlibrary *library, const void *code, CUjit_option *jit,
                           void **jit_values, unsigned num_jit, CUlibraryOption *options,
                           void **values, unsigned num_options) {
  (void)jit, (void)jit_values, (void)options, (void)values;
  *library = (CUlibrary)0x7000;
  return record("cuLibraryLoadData", " %.3s options=%u", (const char *)code + 1,
                num_jit + num_options);
}

CUresult cuLibraryGetKernel(CUkernel *kernel, CUlibrary library, const char *name) {
  (void)library;
  *kernel = (CUkernel)0x7100;
  return record("cuLibraryGetKernel", " %s", name);
}

CUresult cuKernelGetFunction(CUfunction *function, CUkernel kernel) {
  *function = (CUfunction)kernel;
  return record("cuKernelGetFunction", " ");
}

CUresult cuKernelSetAttribute(CUfunction_attribute attribute, int value, CUkernel kernel,
                              CUdevice device) {
  (void)kernel;
  return record("cuKernelSetAttribute", " %d=%d device=%d", (int)attribute, value, device);
}

#ifndef NO_LAUNCH
/* The parameters' sizes come from $RECORDING_SIZES, `8,8,4`: each is written as little-endian hex. */
CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **parameters,
                          void **extra) {
  (void)function;
  char values[512] = "";
  const char *sizes = getenv("RECORDING_SIZES");
  for (int i = 0; sizes != NULL && *sizes != '\0'; ++i) {
    char *end = NULL;
    long size = strtol(sizes, &end, 10);
    strcat(values, i > 0 ? "," : "");
    for (long byte = 0; byte < size; ++byte) {
      sprintf(values + strlen(values), "%02x", ((unsigned char *)parameters[i])[byte]);
    }
    sizes = *end == ',' ? end + 1 : end;
  }
  char attributes[64] = "none";
  for (unsigned i = 0; i < config->numAttrs; ++i) {
    sprintf(attributes, "%d=%d", (int)config->attrs[i].id,
            config->attrs[i].value.programmaticStreamSerializationAllowed);
  }
  CUdevice device = -1;
  cuCtxGetDevice(&device);
  return record("cuLaunchKernelEx",
                " grid=%ux%ux%u block=%ux%ux%u shared=%u stream=%p attributes=%s device=%d extra=%d"
                " parameters=%s",
                config->gridDimX, config->gridDimY, config->gridDimZ, config->blockDimX,
                config->blockDimY, config->blockDimZ, config->sharedMemBytes,
                (void *)config->hStream, attributes, device, extra != NULL, values);
}
#endif
