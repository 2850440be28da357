/* What is used of OpenCL 1.2, declared here because devices have no headers. The order of CL_NAMES
 * is that of struct cl_api. tests/native compares it with the official CL/cl.h. */
#ifndef EDGE_TRAIN_DEVICE_OPENCL_API_H
#define EDGE_TRAIN_DEVICE_OPENCL_API_H

#include <stddef.h>
#include <stdint.h>

typedef int32_t cl_int;
typedef uint32_t cl_uint;
typedef void *cl_platform, *cl_device, *cl_context, *cl_queue, *cl_program, *cl_kernel, *cl_mem_;
typedef void *const *cl_events;

enum { CL_NO_PLATFORM = -1001 };
enum { CL_READ_WRITE = 1 << 0, CL_HOST_POINTER = 1 << 3, CL_READ_AND_WRITE = 1 << 0 | 1 << 1 };
enum {
  CL_LARGEST_BUFFER = 0x1010,
  CL_SINGLE_CONFIG = 0x101B,
  CL_MEMORY_SIZE = 0x101F,
  CL_NAME = 0x102B,
  CL_VERSION = 0x102F,
  CL_UNIFIED_MEMORY = 0x1035,
  CL_PLATFORM = 0x1084,
  CL_LOG = 0x1183,
  CL_EXACT_DIVIDE_SQRT = 1 << 7
};
#define CL_ALL_DEVICES 0xFFFFFFFFu

typedef struct cl_api {
  cl_int (*platforms)(cl_uint, cl_platform *, cl_uint *);
  cl_int (*devices)(cl_platform, uint64_t, cl_uint, cl_device *, cl_uint *);
  cl_int (*device_info)(cl_device, cl_uint, size_t, void *, size_t *);
  cl_context (*new_context)(const intptr_t *, cl_uint, const cl_device *, void *, void *, cl_int *);
  cl_queue (*new_queue)(cl_context, cl_device, uint64_t, cl_int *);
  cl_mem_ (*new_buffer)(cl_context, uint64_t, size_t, void *, cl_int *);
  void *(*map)(cl_queue, cl_mem_, cl_uint, uint64_t, size_t, size_t, cl_uint, cl_events, void **, cl_int *);
  cl_int (*unmap)(cl_queue, cl_mem_, void *, cl_uint, cl_events, void **);
  cl_int (*write)(cl_queue, cl_mem_, cl_uint, size_t, size_t, const void *, cl_uint, cl_events, void **);
  cl_int (*read)(cl_queue, cl_mem_, cl_uint, size_t, size_t, void *, cl_uint, cl_events, void **);
  cl_int (*copy)(cl_queue, cl_mem_, cl_mem_, size_t, size_t, size_t, cl_uint, cl_events, void **);
  cl_int (*fill)(cl_queue, cl_mem_, const void *, size_t, size_t, size_t, cl_uint, cl_events, void **);
  cl_program (*new_program)(cl_context, cl_uint, const char **, const size_t *, cl_int *);
  cl_int (*build)(cl_program, cl_uint, const cl_device *, const char *, void *, void *);
  cl_int (*build_info)(cl_program, cl_device, cl_uint, size_t, void *, size_t *);
  cl_kernel (*new_kernel)(cl_program, const char *, cl_int *);
  cl_int (*argument)(cl_kernel, cl_uint, size_t, const void *);
  cl_int (*run)(cl_queue, cl_kernel, cl_uint, const size_t *, const size_t *, const size_t *, cl_uint,
                cl_events, void **);
  cl_int (*finish)(cl_queue);
  cl_int (*drop_kernel)(cl_kernel);
  cl_int (*drop_program)(cl_program);
  cl_int (*drop_buffer)(cl_mem_);
  cl_int (*drop_queue)(cl_queue);
  cl_int (*drop_context)(cl_context);
} cl_api;

static const char CL_NAMES[][28] = {"clGetPlatformIDs",
                                    "clGetDeviceIDs",
                                    "clGetDeviceInfo",
                                    "clCreateContext",
                                    "clCreateCommandQueue",
                                    "clCreateBuffer",
                                    "clEnqueueMapBuffer",
                                    "clEnqueueUnmapMemObject",
                                    "clEnqueueWriteBuffer",
                                    "clEnqueueReadBuffer",
                                    "clEnqueueCopyBuffer",
                                    "clEnqueueFillBuffer",
                                    "clCreateProgramWithSource",
                                    "clBuildProgram",
                                    "clGetProgramBuildInfo",
                                    "clCreateKernel",
                                    "clSetKernelArg",
                                    "clEnqueueNDRangeKernel",
                                    "clFinish",
                                    "clReleaseKernel",
                                    "clReleaseProgram",
                                    "clReleaseMemObject",
                                    "clReleaseCommandQueue",
                                    "clReleaseContext"};

_Static_assert(sizeof(cl_api) == sizeof(CL_NAMES) / sizeof(*CL_NAMES) * sizeof(void *),
               "one name for each function");

#endif
