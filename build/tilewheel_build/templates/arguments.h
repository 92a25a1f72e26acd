/* Argument checks that every launcher shares. C11 against tvm/ffi/c_api.h only.
 *
 * Each check fails with a Python exception of the given kind whose message says which argument is
 * wrong, what it is and what it must be. Nothing here allocates. */
#ifndef TILEWHEEL_ARGUMENTS_H_
#define TILEWHEEL_ARGUMENTS_H_

#include <inttypes.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <tvm/ffi/c_api.h>
#include <tvm/ffi/extra/c_env_api.h>

#define TILEWHEEL_EXPORT __attribute__((visibility("default")))
#define TILEWHEEL_UNUSED __attribute__((unused))
#define TILEWHEEL_COLD __attribute__((cold, noinline))
#define TILEWHEEL_MAX_DEVICES 64

/* The CUDA driver's and ACL's largest grid extents. */
#define TILEWHEEL_MAX_GRID_X 2147483647LL
#define TILEWHEEL_MAX_GRID_YZ 65535LL

static const char *const operator_name;

typedef struct {
  const char *name;
  const char *dtype;
  int32_t ndim;
  uint32_t alignment;
  DLDataType type;
  bool row_major;
} TensorRule;

TILEWHEEL_COLD __attribute__((format(printf, 2, 3))) static int fail(const char *kind,
                                                                     const char *format, ...) {
  char message[768];
  int used = snprintf(message, sizeof message, "%s: ", operator_name);
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(message + used, sizeof message - (size_t)used, format, arguments);
  va_end(arguments);
  TVMFFIErrorSetRaisedFromCStr(kind, message);
  return -1;
}

static const char *type_name(int32_t type_index) {
  switch (type_index) {
    case kTVMFFINone: return "None";
    case kTVMFFIInt: return "an int";
    case kTVMFFIBool: return "a bool";
    case kTVMFFIFloat: return "a float";
    case kTVMFFIDLTensorPtr:
    case kTVMFFITensor: return "a tensor";
    case kTVMFFIRawStr:
    case kTVMFFISmallStr:
    case kTVMFFIStr: return "a str";
    default: return "an object of another type";
  }
}

static void format_dtype(DLDataType type, char *text, size_t size) {
  static const char *const names[] = {"int",           "uint",   "float",  "handle",
                                      "bfloat",        "complex", "bool",   "float8_e3m4_",
                                      "float8_e4m3_",  "float8_e4m3b11fnuz_", "float8_e4m3fn_",
                                      "float8_e4m3fnuz_", "float8_e5m2_", "float8_e5m2fnuz_",
                                      "float8_e8m0fnu_", "float6_e2m3fn_", "float6_e3m2fn_",
                                      "float4_e2m1fn_"};
  const char *name = type.code < sizeof names / sizeof names[0] ? names[type.code] : "unknown";
  if (type.lanes > 1) {
    snprintf(text, size, "%s%ux%u", name, type.bits, type.lanes);
  } else {
    snprintf(text, size, "%s%u", name, type.bits);
  }
}

/* Reads a tensor argument and checks type, dimensions, dtype, layout and alignment. */
static int read_tensor(const TVMFFIAny *argument, const TensorRule *rule, const DLTensor **out) {
  const DLTensor *tensor;
  if (argument->type_index == kTVMFFITensor) {
    /* The DLTensor follows the object header, by the ABI of tvm/ffi/c_api.h. */
    tensor = (const DLTensor *)((const char *)argument->v_obj + sizeof(TVMFFIObject));
  } else if (argument->type_index == kTVMFFIDLTensorPtr) {
    tensor = (const DLTensor *)argument->v_ptr;
  } else {
    return fail("TypeError", "%s: is %s, must be a tensor", rule->name,
                type_name(argument->type_index));
  }
  if (tensor->ndim != rule->ndim) {
    return fail("ValueError", "%s: is %d-dimensional, must be %d-dimensional", rule->name,
                (int)tensor->ndim, (int)rule->ndim);
  }
  if (tensor->dtype.code != rule->type.code || tensor->dtype.bits != rule->type.bits ||
      tensor->dtype.lanes != rule->type.lanes) {
    char actual[48];
    format_dtype(tensor->dtype, actual, sizeof actual);
    return fail("TypeError", "%s: is %s, must be %s", rule->name, actual, rule->dtype);
  }
  bool empty = false;
  for (int32_t i = 0; i < rule->ndim; ++i) empty |= tensor->shape[i] == 0;
  if (!empty && rule->row_major && tensor->strides != NULL) {
    int64_t expected = 1;
    for (int32_t i = rule->ndim - 1; i >= 0; --i) {
      if (tensor->shape[i] != 1 && tensor->strides[i] != expected) {
        return fail("ValueError",
                    "%s: stride(%d) is %" PRId64 ", must be %" PRId64 " (row-major contiguous)",
                    rule->name, (int)i, tensor->strides[i], expected);
      }
      expected *= tensor->shape[i];
    }
  }
  uintptr_t address = (uintptr_t)tensor->data + tensor->byte_offset;
  if (!empty && address % rule->alignment != 0) {
    return fail("ValueError", "%s: data pointer is aligned to %u bytes, must be to %u", rule->name,
                (unsigned)(address & -address), (unsigned)rule->alignment);
  }
  *out = tensor;
  return 0;
}

TILEWHEEL_UNUSED static void *data_of(const DLTensor *tensor) {
  return (char *)tensor->data + tensor->byte_offset;
}

/* A DLPack tensor without strides is row-major. */
TILEWHEEL_UNUSED static int64_t stride_of(const DLTensor *tensor, int32_t dim) {
  if (tensor->strides != NULL) return tensor->strides[dim];
  int64_t stride = 1;
  for (int32_t i = dim + 1; i < tensor->ndim; ++i) stride *= tensor->shape[i];
  return stride;
}

TILEWHEEL_UNUSED static bool is_empty(const DLTensor *tensor) {
  for (int32_t i = 0; i < tensor->ndim; ++i) {
    if (tensor->shape[i] == 0) return true;
  }
  return false;
}

/* Bytes from a tensor's first element to behind its last, gaps of its strides included. */
TILEWHEEL_UNUSED static uint64_t span_bytes(const DLTensor *tensor) {
  if (is_empty(tensor)) return 0;
  uint64_t elements = 1;
  uint64_t row_major = 1;
  for (int32_t i = tensor->ndim - 1; i >= 0; --i) {
    uint64_t stride = tensor->strides != NULL ? (uint64_t)tensor->strides[i] : row_major;
    elements += (uint64_t)(tensor->shape[i] - 1) * stride;
    row_major *= (uint64_t)tensor->shape[i];
  }
  return elements * tensor->dtype.bits * tensor->dtype.lanes / 8;
}

TILEWHEEL_UNUSED static int read_absent(const TVMFFIAny *argument, const char *name) {
  if (argument->type_index == kTVMFFINone) return 0;
  return fail("TypeError", "%s: is %s, must be None in this variant", name,
              type_name(argument->type_index));
}

TILEWHEEL_UNUSED static int read_integer(const TVMFFIAny *argument, const char *name,
                                         int64_t lowest, int64_t highest, int64_t *out) {
  if (argument->type_index != kTVMFFIInt && argument->type_index != kTVMFFIBool) {
    return fail("TypeError", "%s: is %s, must be an int", name, type_name(argument->type_index));
  }
  if (argument->v_int64 < lowest || argument->v_int64 > highest) {
    return fail("ValueError", "%s: is %" PRId64 ", must be between %" PRId64 " and %" PRId64, name,
                argument->v_int64, lowest, highest);
  }
  *out = argument->v_int64;
  return 0;
}

TILEWHEEL_UNUSED static int read_float(const TVMFFIAny *argument, const char *name, double *out) {
  if (argument->type_index == kTVMFFIFloat) {
    *out = argument->v_float64;
  } else if (argument->type_index == kTVMFFIInt || argument->type_index == kTVMFFIBool) {
    *out = (double)argument->v_int64;
  } else {
    return fail("TypeError", "%s: is %s, must be a float", name, type_name(argument->type_index));
  }
  return 0;
}

#endif
