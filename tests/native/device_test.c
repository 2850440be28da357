/* Device memory in a hosted build, for AddressSanitizer: every function of native/device.h on host
 * memory, files and (argument "opencl") an OpenCL device. Prints "ok", or the line that failed. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "../../native/device.h"

#define CHECK(what)                                           \
  do {                                                        \
    if (!(what)) {                                            \
      printf("line %d: %s does not hold\n", __LINE__, #what); \
      exit(1);                                                \
    }                                                         \
  } while (0)

enum { COUNT = 4096, BYTES = COUNT * 4 };

static uint64_t at(const void *pointer) { return (uintptr_t)pointer; }

static void start(void) {
  uint64_t table[] = {at(mmap64), at(munmap), at(madvise), at(mlock),  at(__errno_location),
                      at(memcpy), at(malloc), at(free),    at(dlopen), at(dlsym)};
  CHECK(et_device_abi() == ET_DEVICE_ABI);
  CHECK(et_device_init(0, 10) == ET_EINVAL);
  CHECK(et_device_init(at(table), 9) == ET_EINVAL);
  CHECK(et_device_init(at(table), 10) == 0);
}

static uint64_t new_buffer(uint64_t device, int64_t bytes, int flags) {
  uint64_t buffer = 0;
  CHECK(et_buffer_new(device, bytes, -1, 0, flags, at(&buffer)) == 0);
  CHECK(buffer);
  return buffer;
}

static void fill_read_write(uint64_t device, int flags) {
  static float values[COUNT], back[COUNT];
  uint64_t buffer = new_buffer(device, BYTES, flags), other = new_buffer(device, BYTES, flags);
  for (int i = 0; i < COUNT; i++) values[i] = (float)i;
  for (int owned = 0; owned < 2; owned++) {
    if (owned) CHECK(et_buffer_unmap(buffer) == 0);
    CHECK(et_buffer_fill(buffer, 4, BYTES - 8, 0x3f800000) == 0);
    CHECK(et_buffer_write(buffer, 400, at(values + 100), 40) == 0);
    CHECK(et_buffer_read(buffer, 0, at(back), BYTES) == 0);
    CHECK(back[0] == 0 && back[1] == 1 && back[COUNT - 2] == 1 && back[COUNT - 1] == 0);
    CHECK(!memcmp(back + 100, values + 100, 40));
    CHECK(et_buffer_copy(other, 8, buffer, 400, 40) == 0);
    CHECK(et_buffer_read(other, 8, at(back), 40) == 0);
    CHECK(!memcmp(back, values + 100, 40));
    /* out of bounds, by one and by an overflow */
    CHECK(et_buffer_read(buffer, BYTES - 3, at(back), 4) == ET_ERANGE);
    CHECK(et_buffer_write(buffer, -1, at(values), 4) == ET_ERANGE);
    CHECK(et_buffer_write(buffer, INT64_MAX, at(values), INT64_MAX) == ET_ERANGE);
    CHECK(et_buffer_copy(buffer, 0, other, BYTES, 1) == ET_ERANGE);
    CHECK(et_buffer_copy(buffer, 0, buffer, 4, 8) == ET_EINVAL);
    CHECK(et_buffer_fill(buffer, 0, BYTES + 4, 0) == ET_ERANGE);
    CHECK(et_buffer_fill(buffer, 2, 4, 0) == ET_EINVAL);
    CHECK(et_buffer_read(buffer, BYTES, at(back), 0) == 0);
  }
  CHECK(et_buffer_map(buffer) == 0);
  CHECK(et_buffer_address(buffer) % 64 == 0);
  memcpy((void *)(uintptr_t)et_buffer_address(buffer), values, BYTES);
  CHECK(et_buffer_free(buffer) == 0 && et_buffer_free(other) == 0);
}

static void host(void) {
  uint64_t device = 0, buffer = 0;
  uint64_t number = 7;
  char text[8];
  CHECK(et_device_open(ET_CUDA, 0, 0, 0, at(&device)) == ET_ENOSYS);
  CHECK(et_device_open(ET_HOST, 0, 0, 0, 0) == ET_EINVAL);
  CHECK(et_device_open(ET_HOST, 0, 0, 0, at(&device)) == 0);
  fill_read_write(device, 0);
  fill_read_write(device, ET_HUGE);
  fill_read_write(device, ET_LOCK);
  CHECK(et_buffer_new(device, -1, -1, 0, 0, at(&buffer)) == ET_EINVAL);
  CHECK(et_buffer_new(device, INT64_MAX, -1, 0, 0, at(&buffer)) < 0);
  CHECK(et_buffer_new(device, 64, 12345, 0, 0, at(&buffer)) == -EBADF);
  CHECK(et_device_query(device, ET_UNIFIED, at(&number)) == 0 && number == 1);
  CHECK(et_device_query(device, 99, at(&number)) == ET_EINVAL);
  CHECK(et_device_text(device, ET_NAME, at(text), 8) == 0 && !strcmp(text, "host"));
  CHECK(et_device_text(device, ET_NAME, at(text), 3) == ET_EINVAL);
  CHECK(et_device_step(device, ET_SGD, 0, 0, 0) == ET_ENOSYS);
  CHECK(et_device_synchronise(device) == 0 && et_fence() == 0);
  for (int i = 0; i < 10000; i++) {
    uint64_t one = new_buffer(device, i, i % 100 ? 0 : ET_HUGE);
    if (i) *(char *)(uintptr_t)et_buffer_address(one) = 1;
    CHECK(et_buffer_free(one) == 0);
  }
  CHECK(et_device_close(device) == 0);
}

static void file(const char *path) {
  uint64_t device = 0, one = 0, two = 0;
  FILE *stream = fopen(path, "w+b");
  CHECK(stream);
  int number = fileno(stream);
  CHECK(ftruncate(number, 300000) == 0);
  CHECK(et_device_open(ET_HOST, 0, 0, 0, at(&device)) == 0);
  CHECK(et_buffer_new(device, 100, number, 70004, 0, at(&one)) == 0);
  CHECK(et_buffer_new(device, 100, number, 70004, ET_SHARED, at(&two)) == 0);
  CHECK(et_buffer_fill(one, 0, 100, 1) == 0); /* copied: the file stays */
  CHECK(*(int *)(uintptr_t)et_buffer_address(two) == 0);
  CHECK(et_buffer_fill(two, 0, 100, 2) == 0);
  CHECK(et_buffer_free(one) == 0);
  CHECK(et_buffer_new(device, 100, number, 70004, ET_SHARED | ET_READ_ONLY, at(&one)) == 0);
  CHECK(*(int *)(uintptr_t)et_buffer_address(one) == 2);
  CHECK(et_buffer_fill(one, 0, 4, 3) == ET_EINVAL && et_buffer_write(one, 0, at(path), 1) == ET_EINVAL);
  CHECK(et_buffer_copy(one, 0, two, 0, 4) == ET_EINVAL && et_buffer_copy(two, 0, one, 0, 4) == 0);
  CHECK(et_buffer_new(device, 100, number, -4, 0, at(&two)) == ET_EINVAL);
  CHECK(et_buffer_free(one) == 0 && et_buffer_free(two) == 0 && et_device_close(device) == 0);
  fclose(stream);
}

static void steps(uint64_t device, int flags) {
  uint64_t buffers[4];
  float scalars[9] = {0.9f, 0.1f, 0.999f, 0.001f, 1e-8f, 0.01f, 0.0f, 0.1f, 0.001f}, w[COUNT];
  for (int i = 0; i < 4; i++) buffers[i] = new_buffer(device, BYTES, flags);
  CHECK(et_buffer_fill(buffers[1], 0, BYTES, 0x3f800000) == 0);
  CHECK(et_device_step(device, ET_ADAMW1, at(buffers), at(scalars), COUNT) == ET_EINVAL); /* mapped */
  for (int i = 0; i < 4; i++) CHECK(et_buffer_unmap(buffers[i]) == 0);
  CHECK(et_device_step(device, ET_ADAMW1, at(buffers), at(scalars), COUNT + 1) == ET_ERANGE);
  CHECK(et_device_step(device, ET_KERNELS, at(buffers), at(scalars), COUNT) == ET_EINVAL);
  CHECK(et_device_step(device, ET_ADAMW1, at(buffers), at(scalars), COUNT) == 0);
  CHECK(et_buffer_map(buffers[0]) == 0);
  CHECK(et_buffer_read(buffers[0], 0, at(w), BYTES) == 0);
  for (int i = 0; i < COUNT; i++) CHECK(fabsf(w[i] + 0.01f * 0.1f / sqrtf(0.001f)) < 1e-6f);
  CHECK(et_buffer_unmap(buffers[0]) == 0);
  CHECK(et_device_step(device, ET_ADAMW0, at(buffers), at(scalars), COUNT) == 0);
  CHECK(et_device_step(device, ET_SGD, at(buffers), at(scalars), COUNT) == 0);
  CHECK(et_device_step(device, ET_FLUSH, at(buffers), at(scalars), COUNT) == 0);
  CHECK(et_device_step(device, ET_SGD, at(buffers), at(scalars), 0) == 0);
  for (int i = 0; i < 4; i++) CHECK(et_buffer_free(buffers[i]) == 0);
}

static void opencl(void) {
  uint64_t device = 0, buffer = 0, number = 0;
  char text[256];
  CHECK(et_device_open(ET_OPENCL, 0, at("/no/such/library.so"), 0, at(&device)) == ET_ELIBACC);
  CHECK(et_device_open(ET_OPENCL, 999, at("libOpenCL.so.1"), 0, at(&device)) == ET_ENODEV);
  CHECK(et_device_open(ET_OPENCL, 0, at("libOpenCL.so.1"), 0, at(&device)) == 0);
  CHECK(et_device_text(device, ET_NAME, at(text), sizeof(text)) == 0 && *text);
  for (int what = ET_MEMORY; what <= ET_EXACT; what++) CHECK(et_device_query(device, what, at(&number)) == 0);
  for (int flags = 0; flags <= ET_COPIES; flags += ET_COPIES) {
    buffer = new_buffer(device, 4, flags);
    CHECK(!flags || !et_buffer_zero_copy(buffer));
    CHECK(et_buffer_free(buffer) == 0);
    fill_read_write(device, flags);
    steps(device, flags);
    for (int i = 0; i < 500; i++) CHECK(et_buffer_free(new_buffer(device, 4 * i, flags)) == 0);
  }
  CHECK(et_device_synchronise(device) == 0 && et_device_close(device) == 0);
}

int main(int count, char **arguments) {
  start();
  host();
  file(arguments[1]);
  if (count > 2 && !strcmp(arguments[2], "opencl")) opencl();
  puts("ok");
  return 0;
}
