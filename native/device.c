/* Device memory, the part that is the same for every device, and host memory itself. */
#include "device.h"

#include "memory.h"

enum { PROT_READ_ = 1, PROT_WRITE_ = 2 };
enum { MAP_SHARED_ = 1, MAP_PRIVATE_ = 2, MAP_ANONYMOUS_ = 0x20 };
enum { ADVISE_HUGE = 14 };
/* Offsets into a file are multiples of the page size; 64 KiB is one of every page size in use. */
enum { GRANULE = 65536, HUGE_PAGE = 2 << 20 };

et_system et_sys;

int32_t et_device_abi(void) { return ET_DEVICE_ABI; }

int32_t et_device_init(uint64_t addresses, int32_t count) {
  const uint64_t *given = (const uint64_t *)(uintptr_t)addresses;
  void **slot = (void **)&et_sys;
  if (!given || count != (int32_t)(sizeof(et_sys) / sizeof(void *))) return ET_EINVAL;
  for (int32_t i = 0; i < count; i++) slot[i] = (void *)(uintptr_t)given[i];
  return 0;
}

int32_t et_fence(void) {
  __atomic_thread_fence(__ATOMIC_SEQ_CST);
  return 0;
}

/* ---- host memory ------------------------------------------------------------------------- */

static int failure(void) {
  int number = et_sys.error ? *et_sys.error() : 0;
  return number > 0 ? -number : ET_ENOMEM;
}

static size_t rounded(size_t bytes, size_t unit) { return (bytes + unit - 1) & ~(unit - 1); }

/* Cuts what lies outside of [from, from + bytes) off a mapping that is larger. */
static void trim(uint8_t *base, size_t whole, uint8_t *from, size_t bytes) {
  size_t before = (size_t)(from - base), after = whole - before - bytes;
  if (before) et_sys.unmap(base, before);
  if (after) et_sys.unmap(from + bytes, after);
}

static int map_new(et_buffer *buffer, int flags) {
  size_t unit = flags & ET_HUGE ? HUGE_PAGE : GRANULE;
  size_t spare = flags & ET_HUGE ? HUGE_PAGE : 0;
  if (buffer->bytes > SIZE_MAX - 2 * unit) return ET_ENOMEM;
  size_t bytes = rounded(buffer->bytes ? buffer->bytes : 1, unit);
  void *at = et_sys.map(NULL, bytes + spare, PROT_READ_ | PROT_WRITE_, MAP_PRIVATE_ | MAP_ANONYMOUS_, -1, 0);
  if (at == (void *)-1) return failure();
  uint8_t *from = at;
  if (spare) {
    from = (uint8_t *)rounded((uintptr_t)at, HUGE_PAGE);
    trim(at, bytes + spare, from, bytes);
    et_sys.advise(from, bytes, ADVISE_HUGE); /* a wish: small pages do as well */
  }
  buffer->base = buffer->host = from;
  buffer->mapped_bytes = bytes;
  return 0;
}

static int map_file(et_buffer *buffer, int file, int64_t offset, int flags) {
  size_t skip = (size_t)(offset & (GRANULE - 1));
  int access = flags & ET_READ_ONLY ? PROT_READ_ : PROT_READ_ | PROT_WRITE_;
  int sharing = flags & ET_SHARED ? MAP_SHARED_ : MAP_PRIVATE_;
  if (offset < 0 || buffer->bytes > SIZE_MAX - skip) return ET_EINVAL;
  size_t bytes = buffer->bytes + skip;
  void *at = et_sys.map(NULL, bytes ? bytes : 1, access, sharing, file, offset - (int64_t)skip);
  if (at == (void *)-1) return failure();
  buffer->base = at;
  buffer->host = (uint8_t *)at + skip;
  buffer->mapped_bytes = bytes ? bytes : 1;
  return 0;
}

int et_map_pages(et_buffer *buffer, int file, int64_t offset, int flags) {
  int code = file < 0 ? map_new(buffer, flags) : map_file(buffer, file, offset, flags);
  if (code) return code;
  if (flags & ET_LOCK && et_sys.lock(buffer->base, buffer->mapped_bytes)) {
    code = failure();
    et_unmap_pages(buffer);
  }
  return code;
}

void et_unmap_pages(et_buffer *buffer) {
  if (buffer->base) et_sys.unmap(buffer->base, buffer->mapped_bytes);
  buffer->base = buffer->host = NULL;
}

static int host_create(et_buffer *buffer, int file, int64_t offset, int flags) {
  buffer->zero_copy = 1;
  return et_map_pages(buffer, file, offset, flags);
}

static int nothing(et_buffer *buffer) {
  buffer->mapped = 1; /* host memory stays visible */
  return 0;
}

static int host_query(et_device *device, int what, uint64_t *value) {
  (void)device;
  *value = what == ET_UNIFIED || what == ET_EXACT;
  return what == ET_UNIFIED || what == ET_EXACT ? 0 : ET_EINVAL;
}

static int host_text(et_device *device, int what, char *text, size_t capacity) {
  (void)device;
  if (what != ET_NAME || capacity < 5) return ET_EINVAL;
  memcpy(text, "host", 5);
  return 0;
}

static int host_synchronise(et_device *device) {
  (void)device;
  return 0;
}

static void host_close(et_device *device) { (void)device; }

const et_backend et_host_backend = {.create = host_create,
                                    .destroy = et_unmap_pages,
                                    .map = nothing,
                                    .unmap = nothing,
                                    .synchronise = host_synchronise,
                                    .query = host_query,
                                    .text = host_text,
                                    .close = host_close};

/* ---- devices ----------------------------------------------------------------------------- */

static et_device *device_at(uint64_t handle) { return (et_device *)(uintptr_t)handle; }
static et_buffer *buffer_at(uint64_t handle) { return (et_buffer *)(uintptr_t)handle; }

int32_t et_device_open(int32_t kind, int32_t index, uint64_t name, int32_t flags, uint64_t out) {
  if (!et_sys.allocate || !out || flags || index < 0) return ET_EINVAL;
  if (kind != ET_HOST && kind != ET_OPENCL) return ET_ENOSYS;
  et_device *device = et_sys.allocate(sizeof(*device));
  if (!device) return ET_ENOMEM;
  *device = (et_device){kind == ET_HOST ? &et_host_backend : &et_opencl_backend, NULL};
  int code = kind == ET_HOST ? 0 : et_opencl_open(device, index, (const char *)(uintptr_t)name);
  if (code)
    et_sys.release(device);
  else
    *(uint64_t *)(uintptr_t)out = (uintptr_t)device;
  return code;
}

int32_t et_device_close(uint64_t handle) {
  et_device *device = device_at(handle);
  device->backend->close(device);
  et_sys.release(device);
  return 0;
}

int32_t et_device_query(uint64_t device, int32_t what, uint64_t out) {
  return device_at(device)->backend->query(device_at(device), what, (uint64_t *)(uintptr_t)out);
}

int32_t et_device_text(uint64_t device, int32_t what, uint64_t text, int64_t capacity) {
  if (capacity < 1) return ET_EINVAL;
  return device_at(device)->backend->text(device_at(device), what, (char *)(uintptr_t)text, (size_t)capacity);
}

int32_t et_device_synchronise(uint64_t device) {
  return device_at(device)->backend->synchronise(device_at(device));
}

int32_t et_device_step(uint64_t handle, int32_t kernel, uint64_t buffers, uint64_t scalars,
                       int64_t elements) {
  static const uint8_t counts[ET_KERNELS] = {4, 4, 2, 1};
  et_device *device = device_at(handle);
  const uint64_t *handles = (const uint64_t *)(uintptr_t)buffers;
  et_buffer *given[4] = {NULL, NULL, NULL, NULL};
  if (!device->backend->step) return ET_ENOSYS;
  if (kernel < 0 || kernel >= ET_KERNELS || elements < 0) return ET_EINVAL;
  for (int i = 0; i < counts[kernel]; i++) {
    given[i] = buffer_at(handles[i]);
    if (given[i]->device != device || given[i]->mapped) return ET_EINVAL;
    if ((uint64_t)elements > given[i]->bytes / sizeof(float)) return ET_ERANGE;
  }
  return device->backend->step(device, kernel, given, (const float *)(uintptr_t)scalars, (size_t)elements);
}

/* ---- buffers ----------------------------------------------------------------------------- */

int32_t et_buffer_new(uint64_t device, int64_t bytes, int32_t file, int64_t offset, int32_t flags,
                      uint64_t out) {
  if (bytes < 0 || (uint64_t)bytes > SIZE_MAX || !device || !out) return ET_EINVAL;
  et_buffer *buffer = et_sys.allocate(sizeof(*buffer));
  if (!buffer) return ET_ENOMEM;
  *buffer = (et_buffer){
      .device = device_at(device), .bytes = (size_t)bytes, .mapped = 1, .read_only = flags & ET_READ_ONLY};
  int code = buffer->device->backend->create(buffer, file, offset, flags);
  if (code)
    et_sys.release(buffer);
  else
    *(uint64_t *)(uintptr_t)out = (uintptr_t)buffer;
  return code;
}

int32_t et_buffer_free(uint64_t handle) {
  et_buffer *buffer = buffer_at(handle);
  buffer->device->backend->destroy(buffer);
  et_sys.release(buffer);
  return 0;
}

uint64_t et_buffer_address(uint64_t handle) {
  et_buffer *buffer = buffer_at(handle);
  return buffer->mapped ? (uintptr_t)buffer->host : 0;
}

int32_t et_buffer_zero_copy(uint64_t buffer) { return buffer_at(buffer)->zero_copy; }

int32_t et_buffer_map(uint64_t handle) {
  et_buffer *buffer = buffer_at(handle);
  if (buffer->mapped) return 0;
  int code = buffer->device->backend->map(buffer);
  if (!code) buffer->mapped = 1;
  return code;
}

int32_t et_buffer_unmap(uint64_t handle) {
  et_buffer *buffer = buffer_at(handle);
  if (!buffer->mapped) return 0;
  buffer->mapped = 0; /* host memory says otherwise in its own function */
  int code = buffer->device->backend->unmap(buffer);
  if (code) buffer->mapped = 1;
  return code;
}

static int inside(const et_buffer *buffer, int64_t offset, int64_t bytes) {
  return offset >= 0 && bytes >= 0 && (uint64_t)offset <= buffer->bytes &&
         (uint64_t)bytes <= buffer->bytes - (size_t)offset;
}

int32_t et_buffer_write(uint64_t handle, int64_t offset, uint64_t from, int64_t bytes) {
  et_buffer *buffer = buffer_at(handle);
  const void *source = (const void *)(uintptr_t)from;
  if (!inside(buffer, offset, bytes)) return ET_ERANGE;
  if (buffer->read_only) return ET_EINVAL;
  if (!buffer->mapped) return buffer->device->backend->write(buffer, (size_t)offset, source, (size_t)bytes);
  et_sys.copy(buffer->host + offset, source, (size_t)bytes);
  return 0;
}

int32_t et_buffer_read(uint64_t handle, int64_t offset, uint64_t to, int64_t bytes) {
  et_buffer *buffer = buffer_at(handle);
  void *target = (void *)(uintptr_t)to;
  if (!inside(buffer, offset, bytes)) return ET_ERANGE;
  if (!buffer->mapped) return buffer->device->backend->read(buffer, (size_t)offset, target, (size_t)bytes);
  et_sys.copy(target, buffer->host + offset, (size_t)bytes);
  return 0;
}

/* Where the device owns both, it copies; else the host's side is read or written in one go. Two
 * devices that share nothing meet in the host's memory of the first. */
int32_t et_buffer_copy(uint64_t to_handle, int64_t to_offset, uint64_t from_handle, int64_t from_offset,
                       int64_t bytes) {
  et_buffer *to = buffer_at(to_handle), *from = buffer_at(from_handle);
  if (!inside(to, to_offset, bytes) || !inside(from, from_offset, bytes)) return ET_ERANGE;
  if (to->read_only) return ET_EINVAL;
  if (to == from && to_offset < from_offset + bytes && from_offset < to_offset + bytes) return ET_EINVAL;
  if (!bytes) return 0;
  if (!to->mapped && !from->mapped && to->device == from->device)
    return to->device->backend->copy(to, (size_t)to_offset, from, (size_t)from_offset, (size_t)bytes);
  int was_mapped = from->mapped, code = et_buffer_map(from_handle);
  if (code) return code;
  code = et_buffer_write(to_handle, to_offset, (uintptr_t)(from->host + from_offset), bytes);
  int back = was_mapped ? 0 : et_buffer_unmap(from_handle);
  return code ? code : back;
}

int32_t et_buffer_fill(uint64_t handle, int64_t offset, int64_t bytes, int32_t pattern) {
  et_buffer *buffer = buffer_at(handle);
  if (!inside(buffer, offset, bytes)) return ET_ERANGE;
  if (buffer->read_only || (offset | bytes) & 3) return ET_EINVAL;
  if (!buffer->mapped)
    return buffer->device->backend->fill(buffer, (size_t)offset, (size_t)bytes, (uint32_t)pattern);
  for (int64_t at = offset; at < offset + bytes; at += 4)
    memcpy(buffer->host + at, &pattern, sizeof(pattern));
  return 0;
}
