/* A stand-in for libascendcl.so: writes each call to a log and fails the calls that it is told to.
 *
 * The log is $RECORDING_LOG, one line for each call. $RECORDING_FAIL names functions and their
 * errors, `aclrtSetDevice=7,aclrtBinaryLoadFromData=8`; `recording_fail` changes that in a running
 * process. With -DNO_LAUNCH it is of a CANN that is too old to launch with host arguments, with
 * -DNO_MESSAGE it cannot tell what went wrong. */
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static pthread_mutex_t guard = PTHREAD_MUTEX_INITIALIZER;
static char failing[256];
static _Thread_local int32_t current = -1;
static _Thread_local char recent[64];

void recording_fail(const char *failures) { snprintf(failing, sizeof failing, "%s", failures); }

/* Makes a device the thread's current one; -1 leaves the thread without. */
void recording_current(int device) { current = device; }
int recording_device(void) { return current; }

__attribute__((constructor)) static void read_environment(void) {
  const char *text = getenv("RECORDING_FAIL");
  if (text != NULL) recording_fail(text);
}

static int32_t failure_of(const char *name) {
  const char *at = strstr(failing, name);
  return at != NULL && at[strlen(name)] == '=' ? atoi(at + strlen(name) + 1) : 0;
}

static int32_t record(const char *name, const char *format, ...) {
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
  int32_t code = failure_of(name);
  pthread_mutex_unlock(&guard);
  /* As in ACL, a call that works makes the text of an earlier error disappear. */
  recent[0] = '\0';
  if (code != 0) snprintf(recent, sizeof recent, "E%d: %s went wrong", (int)code, name);
  return code;
}

int32_t aclrtGetDevice(int32_t *device) {
  *device = current;
  return record("aclrtGetDevice", "") != 0 ? 1 : current < 0 ? 107002 : 0;
}

int32_t aclrtSetDevice(int32_t device) {
  int32_t code = record("aclrtSetDevice", " %d", (int)device);
  if (code == 0) current = device;
  return code;
}

int32_t aclrtBinaryLoadFromData(const void *data, size_t size, const void *options,
                                void **binary) {
  usleep(20000); /* long enough for other threads to come in between, where they can */
  *binary = (void *)(intptr_t)(0x7000 + current);
  return record("aclrtBinaryLoadFromData", " %.14s size=%zu options=%p device=%d",
                (const char *)data, size, options, (int)current);
}

int32_t aclrtBinaryGetFunction(void *binary, const char *name, void **function) {
  *function = (void *)((intptr_t)binary + 0x100);
  return record("aclrtBinaryGetFunction", " %p %s", binary, name);
}

#ifndef NO_LAUNCH
typedef struct {
  struct {
    int32_t id;
    uint32_t value[4];
  } *attributes;
  size_t num_attributes;
} Config;

int32_t aclrtLaunchKernelWithHostArgs(void *function, uint32_t num_blocks, void *stream,
                                      const Config *config, const unsigned char *arguments,
                                      size_t size, const void *placeholders, size_t count) {
  char values[256] = "";
  for (size_t i = 0; i < size; ++i) sprintf(values + 2 * i, "%02x", arguments[i]);
  char attributes[128] = "none";
  for (size_t i = 0; config != NULL && i < config->num_attributes; ++i) {
    const uint32_t *value = config->attributes[i].value;
    sprintf(attributes, "%d=%u,%u,%u,%u", (int)config->attributes[i].id, value[0], value[1],
            value[2], value[3]);
  }
  return record("aclrtLaunchKernelWithHostArgs",
                " %p blocks=%u stream=%p attributes=%s placeholders=%p,%zu device=%d arguments=%s",
                function, num_blocks, stream, attributes, placeholders, count, (int)current,
                values);
}
#endif

#ifndef NO_MESSAGE
const char *aclGetRecentErrMsg(void) {
  static _Thread_local char text[sizeof recent];
  memcpy(text, recent, sizeof text);
  recent[0] = '\0';
  return text[0] != '\0' ? text : NULL;
}
#endif
