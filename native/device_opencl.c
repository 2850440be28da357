/* OpenCL devices, opened at run time: no header, no import library.
 *
 * Where host and device share memory, a buffer lies on host pages and map and unmap hand it over
 * without a copy (checked when it is made); elsewhere a shadow on the host is read and written.
 * The few names of OpenCL 1.2 that are used are declared here; a test holds them against the
 * official header. */
#include "device.h"

#include "memory.h"
#include "device_opencl_api.h"

enum { NOW_ = 2 /* RTLD_NOW */ };
enum { LARGEST_PLATFORMS = 8, LARGEST_DEVICES = 16 };

/* The steps of edge_train/kernels/steps.py, operation by operation. */
static const char SOURCE[] =
    "#pragma OPENCL FP_CONTRACT OFF\n"
    "typedef global float *P;\n"
    "kernel void adamw0(P p, P g, P m, P v, uint n, float b1, float r1, float b2, float r2,\n"
    "    float eps, float rate, float decay, float c1, float c2) {\n"
    "  size_t i = get_global_id(0);\n"
    "  if (i >= n) return;\n"
    "  float mi = b1 * m[i] + r1 * g[i];\n"
    "  float vi = b2 * v[i] + r2 * g[i] * g[i];\n"
    "  m[i] = mi;\n"
    "  v[i] = vi;\n"
    "  float w = p[i];\n"
    "  if (decay != 0) w = w - decay * w;\n"
    "  p[i] = w - rate * mi / (c1 * (sqrt(vi / c2) + eps));\n"
    "}\n"
    "kernel void adamw1(P p, P g, P m, P v, uint n, float b1, float r1, float b2, float r2,\n"
    "    float eps, float rate, float decay) {\n"
    "  size_t i = get_global_id(0);\n"
    "  if (i >= n) return;\n"
    "  float mi = b1 * m[i] + r1 * g[i];\n"
    "  float vi = b2 * v[i] + r2 * g[i] * g[i];\n"
    "  m[i] = mi;\n"
    "  v[i] = vi;\n"
    "  float w = p[i] - rate * mi / (sqrt(vi) + eps);\n"
    "  if (decay != 0) w = w - decay * w;\n"
    "  p[i] = w;\n"
    "}\n"
    "kernel void sgd(P p, P g, uint n, float lr) {\n"
    "  size_t i = get_global_id(0);\n"
    "  if (i < n) p[i] = p[i] - lr * g[i];\n"
    "}\n"
    "kernel void flush(P a, uint n, float tiny) {\n"
    "  size_t i = get_global_id(0);\n"
    "  if (i < n && fabs(a[i]) < tiny) a[i] = 0;\n"
    "}\n";

typedef struct kernel_row {
  const char *name;
  uint8_t buffers, scalars;
} kernel_row;

static const kernel_row KERNELS[ET_KERNELS] = {
    {"adamw0", 4, 9}, {"adamw1", 4, 7}, {"sgd", 2, 1}, {"flush", 1, 1}};

typedef struct opencl {
  cl_api api;
  cl_device device;
  cl_context context;
  cl_queue queue;
  cl_program program;
  cl_kernel kernels[ET_KERNELS];
} opencl;

static int code_of(cl_int error) { return error ? error - ET_OPENCL_ERROR : 0; }

static opencl *state_of(const et_device *device) { return device->state; }

/* ---- opening ----------------------------------------------------------------------------- */

static int load(cl_api *api, const char *name) {
  void *library = et_sys.open_library(name, NOW_);
  if (!library) return ET_ELIBACC;
  void **slot = (void **)api;
  for (size_t i = 0; i < sizeof(CL_NAMES) / sizeof(*CL_NAMES); i++)
    if (!(slot[i] = et_sys.find(library, CL_NAMES[i]))) return ET_ELIBACC;
  return 0;
}

/* Devices are counted over all platforms, in the order the system lists them. */
static int find_device(opencl *cl, int index, cl_platform *platform) {
  cl_platform platforms[LARGEST_PLATFORMS];
  cl_device devices[LARGEST_DEVICES];
  cl_uint count = 0, found = 0;
  cl_int error = cl->api.platforms(LARGEST_PLATFORMS, platforms, &count);
  if (error == CL_NO_PLATFORM) return ET_ENODEV;
  if (error) return code_of(error);
  for (cl_uint i = 0; i < count && i < LARGEST_PLATFORMS; i++) {
    error = cl->api.devices(platforms[i], CL_ALL_DEVICES, LARGEST_DEVICES, devices, &found);
    if (error) continue; /* a platform without devices */
    if (found > LARGEST_DEVICES) found = LARGEST_DEVICES;
    if ((cl_uint)index < found) {
      cl->device = devices[index];
      *platform = platforms[i];
      return 0;
    }
    index -= (int)found;
  }
  return ET_ENODEV;
}

static int open_queue(opencl *cl, cl_platform platform) {
  intptr_t properties[] = {CL_PLATFORM, (intptr_t)platform, 0};
  cl_int error = 0;
  cl->context = cl->api.new_context(properties, 1, &cl->device, NULL, NULL, &error);
  if (error) return code_of(error);
  cl->queue = cl->api.new_queue(cl->context, cl->device, 0, &error);
  if (error) cl->api.drop_context(cl->context);
  return code_of(error);
}

int et_opencl_open(et_device *device, int index, const char *library) {
  opencl *cl = et_sys.allocate(sizeof(*cl));
  if (!cl) return ET_ENOMEM;
  memset(cl, 0, sizeof(*cl));
  cl_platform platform = NULL;
  int code = library ? load(&cl->api, library) : ET_EINVAL;
  if (!code) code = find_device(cl, index, &platform);
  if (!code) code = open_queue(cl, platform);
  if (code)
    et_sys.release(cl);
  else
    device->state = cl;
  return code;
}

static void close_device(et_device *device) {
  opencl *cl = state_of(device);
  for (int i = 0; i < ET_KERNELS; i++)
    if (cl->kernels[i]) cl->api.drop_kernel(cl->kernels[i]);
  if (cl->program) cl->api.drop_program(cl->program);
  cl->api.drop_queue(cl->queue);
  cl->api.drop_context(cl->context);
  et_sys.release(cl);
}

static cl_int number(opencl *cl, cl_uint what, size_t size, uint64_t *value) {
  *value = 0; /* little-endian: a shorter number fills the low bytes */
  return cl->api.device_info(cl->device, what, size, value, NULL);
}

static int query(et_device *device, int what, uint64_t *value) {
  opencl *cl = state_of(device);
  cl_int error;
  switch (what) {
    case ET_MEMORY: return code_of(number(cl, CL_MEMORY_SIZE, 8, value));
    case ET_LARGEST: return code_of(number(cl, CL_LARGEST_BUFFER, 8, value));
    case ET_UNIFIED: return code_of(number(cl, CL_UNIFIED_MEMORY, 4, value));
    case ET_EXACT:
      error = number(cl, CL_SINGLE_CONFIG, 8, value);
      *value = !error && *value & CL_EXACT_DIVIDE_SQRT;
      return code_of(error);
    default: return ET_EINVAL;
  }
}

static int text(et_device *device, int what, char *out, size_t capacity) {
  opencl *cl = state_of(device);
  *out = 0;
  if (what == ET_BUILD_LOG)
    return cl->program ? code_of(cl->api.build_info(cl->program, cl->device, CL_LOG, capacity, out, NULL))
                       : 0;
  cl_uint which = what == ET_NAME ? CL_NAME : CL_VERSION;
  return code_of(cl->api.device_info(cl->device, which, capacity, out, NULL));
}

static int synchronise(et_device *device) {
  return code_of(state_of(device)->api.finish(state_of(device)->queue));
}

/* ---- buffers ----------------------------------------------------------------------------- */

static int map(et_buffer *buffer) {
  opencl *cl = state_of(buffer->device);
  cl_int error = 0;
  if (!buffer->zero_copy)
    return code_of(cl->api.read(cl->queue, buffer->native, 1, 0, buffer->bytes, buffer->host, 0, NULL, NULL));
  void *at =
      cl->api.map(cl->queue, buffer->native, 1, CL_READ_AND_WRITE, 0, buffer->bytes, 0, NULL, NULL, &error);
  if (error) return code_of(error);
  return at == buffer->host ? 0 : ET_EIO;
}

static int unmap(et_buffer *buffer) {
  opencl *cl = state_of(buffer->device);
  if (!buffer->zero_copy)
    return code_of(
        cl->api.write(cl->queue, buffer->native, 1, 0, buffer->bytes, buffer->host, 0, NULL, NULL));
  cl_int error = cl->api.unmap(cl->queue, buffer->native, buffer->host, 0, NULL, NULL);
  return code_of(error ? error : cl->api.finish(cl->queue));
}

static int make(et_buffer *buffer, int shared) {
  opencl *cl = state_of(buffer->device);
  cl_int error = 0;
  uint64_t flags = CL_READ_WRITE | (shared ? CL_HOST_POINTER : 0);
  buffer->native =
      cl->api.new_buffer(cl->context, flags, buffer->bytes, shared ? buffer->host : NULL, &error);
  buffer->zero_copy = shared;
  return code_of(error);
}

static void drop(et_buffer *buffer) {
  if (buffer->native) state_of(buffer->device)->api.drop_buffer(buffer->native);
  buffer->native = NULL;
}

/* Host pages under the device's buffer, if the device then really shows the host those pages. */
static int make_shared(et_buffer *buffer) {
  int code = make(buffer, 1);
  if (!code) code = map(buffer);
  if (code) drop(buffer);
  return code;
}

static int create(et_buffer *buffer, int file, int64_t offset, int flags) {
  uint64_t unified = 0;
  if (file >= 0 || offset || flags & ~(ET_COPIES | ET_LOCK | ET_HUGE)) return ET_EINVAL;
  if (!buffer->bytes) buffer->bytes = sizeof(float); /* OpenCL has no empty buffers */
  int code = et_map_pages(buffer, -1, 0, flags & (ET_LOCK | ET_HUGE));
  if (code) return code;
  query(buffer->device, ET_UNIFIED, &unified);
  if (unified && !(flags & ET_COPIES) && !make_shared(buffer)) return 0;
  code = make(buffer, 0);
  if (code) et_unmap_pages(buffer);
  return code;
}

static void destroy(et_buffer *buffer) {
  opencl *cl = state_of(buffer->device);
  if (buffer->zero_copy && buffer->mapped)
    cl->api.unmap(cl->queue, buffer->native, buffer->host, 0, NULL, NULL);
  cl->api.finish(cl->queue);
  drop(buffer);
  et_unmap_pages(buffer);
}

static int write(et_buffer *buffer, size_t offset, const void *from, size_t bytes) {
  opencl *cl = state_of(buffer->device);
  return bytes ? code_of(cl->api.write(cl->queue, buffer->native, 1, offset, bytes, from, 0, NULL, NULL)) : 0;
}

static int read(et_buffer *buffer, size_t offset, void *to, size_t bytes) {
  opencl *cl = state_of(buffer->device);
  return bytes ? code_of(cl->api.read(cl->queue, buffer->native, 1, offset, bytes, to, 0, NULL, NULL)) : 0;
}

static int copy(et_buffer *to, size_t to_offset, et_buffer *from, size_t from_offset, size_t bytes) {
  opencl *cl = state_of(to->device);
  cl_int error =
      cl->api.copy(cl->queue, from->native, to->native, from_offset, to_offset, bytes, 0, NULL, NULL);
  return code_of(error ? error : cl->api.finish(cl->queue));
}

static int fill(et_buffer *buffer, size_t offset, size_t bytes, uint32_t pattern) {
  opencl *cl = state_of(buffer->device);
  if (!bytes) return 0;
  cl_int error =
      cl->api.fill(cl->queue, buffer->native, &pattern, sizeof(pattern), offset, bytes, 0, NULL, NULL);
  return code_of(error ? error : cl->api.finish(cl->queue));
}

/* ---- steps ------------------------------------------------------------------------------- */

static int build(et_device *device) {
  opencl *cl = state_of(device);
  const char *source = SOURCE;
  size_t length = sizeof(SOURCE) - 1;
  uint64_t exact = 0;
  cl_int error = 0;
  if (cl->kernels[ET_KERNELS - 1]) return 0;
  if (cl->program) cl->api.drop_program(cl->program);
  cl->program = cl->api.new_program(cl->context, 1, &source, &length, &error);
  if (error) return code_of(error);
  query(device, ET_EXACT, &exact);
  const char *options = exact ? "-cl-fp32-correctly-rounded-divide-sqrt" : "";
  error = cl->api.build(cl->program, 1, &cl->device, options, NULL, NULL);
  for (int i = 0; i < ET_KERNELS && !error; i++)
    if (!cl->kernels[i]) cl->kernels[i] = cl->api.new_kernel(cl->program, KERNELS[i].name, &error);
  return code_of(error);
}

static int step(et_device *device, int which, et_buffer *const *buffers, const float *scalars,
                size_t elements) {
  opencl *cl = state_of(device);
  const kernel_row *row = &KERNELS[which];
  uint32_t count = (uint32_t)elements;
  size_t work = (elements + 63) & ~(size_t)63;
  if (elements > UINT32_MAX) return ET_ERANGE;
  int code = build(device);
  if (code || !elements) return code;
  cl_kernel kernel = cl->kernels[which];
  cl_int error = 0;
  for (cl_uint i = 0; i < row->buffers && !error; i++)
    error = cl->api.argument(kernel, i, sizeof(void *), &buffers[i]->native);
  if (!error) error = cl->api.argument(kernel, row->buffers, sizeof(count), &count);
  for (cl_uint i = 0; i < row->scalars && !error; i++)
    error = cl->api.argument(kernel, row->buffers + 1u + i, sizeof(float), &scalars[i]);
  if (!error) error = cl->api.run(cl->queue, kernel, 1, NULL, &work, NULL, 0, NULL, NULL);
  return code_of(error ? error : cl->api.finish(cl->queue));
}

const et_backend et_opencl_backend = {.create = create,
                                      .destroy = destroy,
                                      .map = map,
                                      .unmap = unmap,
                                      .write = write,
                                      .read = read,
                                      .copy = copy,
                                      .fill = fill,
                                      .step = step,
                                      .synchronise = synchronise,
                                      .query = query,
                                      .text = text,
                                      .close = close_device};
