/* Device memory: one small ABI over host memory, mapped files, shared memory and OpenCL devices.
 *
 * Python resolves the functions of the system and hands their addresses to et_device_init once;
 * nothing here has an undefined symbol. Handles and addresses are uint64_t on every machine, so
 * that a caller passes plain integers. Every function that can fail returns 0 or a negative code:
 * -errno below ET_OPENCL_ERROR's distance, or -(ET_OPENCL_ERROR - e) for OpenCL's error e <= 0.
 *
 * A buffer is owned by the host (its address may be used) or by the device; et_buffer_map gives
 * it to the host, et_buffer_unmap to the device. Memory of the host belongs to both at any time. */
#ifndef EDGE_TRAIN_DEVICE_H
#define EDGE_TRAIN_DEVICE_H

#include <stddef.h>
#include <stdint.h>

#define ET_PUBLIC __attribute__((visibility("default")))

enum { ET_DEVICE_ABI = 1 };
enum { ET_HOST = 0, ET_OPENCL = 1, ET_CUDA = 2 };
enum { ET_HUGE = 1, ET_LOCK = 2, ET_SHARED = 4, ET_READ_ONLY = 8, ET_COPIES = 16 };
enum { ET_MEMORY = 0, ET_LARGEST = 1, ET_UNIFIED = 2, ET_EXACT = 3 };
enum { ET_NAME = 0, ET_VERSION = 1, ET_BUILD_LOG = 2 };
enum { ET_ADAMW0 = 0, ET_ADAMW1 = 1, ET_SGD = 2, ET_FLUSH = 3, ET_KERNELS = 4 };
enum { ET_OPENCL_ERROR = 10000 };
/* errors of our own, in Linux's numbers */
enum {
  ET_EIO = -5,
  ET_ENOMEM = -12,
  ET_ENODEV = -19,
  ET_EINVAL = -22,
  ET_ERANGE = -34,
  ET_ENOSYS = -38,
  ET_ELIBACC = -79
};

/* ---- what the library exports ------------------------------------------------------------ */

ET_PUBLIC int32_t et_device_abi(void);
/* `addresses`: an array of `count` uint64_t in the order of struct et_system. */
ET_PUBLIC int32_t et_device_init(uint64_t addresses, int32_t count);
/* `name`: the library to open (OpenCL), 0 for host memory. `out`: a uint64_t, the handle. */
ET_PUBLIC int32_t et_device_open(int32_t kind, int32_t index, uint64_t name, int32_t flags, uint64_t out);
ET_PUBLIC int32_t et_device_close(uint64_t device);
ET_PUBLIC int32_t et_device_query(uint64_t device, int32_t what, uint64_t out);
ET_PUBLIC int32_t et_device_text(uint64_t device, int32_t what, uint64_t text, int64_t capacity);
ET_PUBLIC int32_t et_device_synchronise(uint64_t device);
/* `file`: a descriptor to map from `offset` on, or -1 for new memory (zeros). */
ET_PUBLIC int32_t et_buffer_new(uint64_t device, int64_t bytes, int32_t file, int64_t offset, int32_t flags,
                                uint64_t out);
ET_PUBLIC int32_t et_buffer_free(uint64_t buffer);
/* Where the host sees the buffer while it owns it, else 0. */
ET_PUBLIC uint64_t et_buffer_address(uint64_t buffer);
/* 1 where host and device share the buffer's memory, 0 where it is copied. */
ET_PUBLIC int32_t et_buffer_zero_copy(uint64_t buffer);
ET_PUBLIC int32_t et_buffer_map(uint64_t buffer);
ET_PUBLIC int32_t et_buffer_unmap(uint64_t buffer);
ET_PUBLIC int32_t et_buffer_write(uint64_t buffer, int64_t offset, uint64_t from, int64_t bytes);
ET_PUBLIC int32_t et_buffer_read(uint64_t buffer, int64_t offset, uint64_t to, int64_t bytes);
ET_PUBLIC int32_t et_buffer_copy(uint64_t to, int64_t to_offset, uint64_t from, int64_t from_offset,
                                 int64_t bytes);
/* Repeats the four bytes of `pattern`; offset and bytes are multiples of 4. */
ET_PUBLIC int32_t et_buffer_fill(uint64_t buffer, int64_t offset, int64_t bytes, int32_t pattern);
/* An optimizer step on buffers that the device owns: `buffers` is an array of handles (weights,
 * gradients, moments), `scalars` one of floats in the order of the kernel's arguments. */
ET_PUBLIC int32_t et_device_step(uint64_t device, int32_t kernel, uint64_t buffers, uint64_t scalars,
                                 int64_t elements);
/* Orders all memory accesses before it and after it, for readers on other processors. */
ET_PUBLIC int32_t et_fence(void);

/* ---- inside ------------------------------------------------------------------------------ */

typedef struct et_system {
  void *(*map)(void *, size_t, int, int, int, int64_t);
  int (*unmap)(void *, size_t);
  int (*advise)(void *, size_t, int);
  int (*lock)(const void *, size_t);
  int *(*error)(void);
  void *(*copy)(void *, const void *, size_t);
  void *(*allocate)(size_t);
  void (*release)(void *);
  void *(*open_library)(const char *, int);
  void *(*find)(void *, const char *);
} et_system;

typedef struct et_backend et_backend;

typedef struct et_device {
  const et_backend *backend;
  void *state; /* the backend's own */
} et_device;

typedef struct et_buffer {
  et_device *device;
  uint8_t *host; /* where the host sees it while mapped */
  size_t bytes;
  void *base; /* the mapping that holds it */
  size_t mapped_bytes;
  void *native; /* the device's object */
  int mapped;   /* the host owns it */
  int read_only;
  int zero_copy;
} et_buffer;

struct et_backend {
  int (*create)(et_buffer *buffer, int file, int64_t offset, int flags);
  void (*destroy)(et_buffer *buffer);
  int (*map)(et_buffer *buffer);
  int (*unmap)(et_buffer *buffer);
  /* on a buffer that the device owns; host buffers are always mapped */
  int (*write)(et_buffer *buffer, size_t offset, const void *from, size_t bytes);
  int (*read)(et_buffer *buffer, size_t offset, void *to, size_t bytes);
  int (*copy)(et_buffer *to, size_t to_offset, et_buffer *from, size_t from_offset, size_t bytes);
  int (*fill)(et_buffer *buffer, size_t offset, size_t bytes, uint32_t pattern);
  int (*step)(et_device *device, int kernel, et_buffer *const *buffers, const float *scalars,
              size_t elements);
  int (*synchronise)(et_device *device);
  int (*query)(et_device *device, int what, uint64_t *value);
  int (*text)(et_device *device, int what, char *text, size_t capacity);
  void (*close)(et_device *device);
};

extern et_system et_sys;
extern const et_backend et_host_backend, et_opencl_backend;

/* Zeroed pages, or pages of a file; sets host, base, mapped_bytes. */
int et_map_pages(et_buffer *buffer, int file, int64_t offset, int flags);
void et_unmap_pages(et_buffer *buffer);
/* Fills device->state; fails where there is no such device. */
int et_opencl_open(et_device *device, int index, const char *library);

#endif
