/* The part of onnxruntime's C ABI that the kernels use, declared by ourselves.
 *
 * OrtApi is a table of functions that only ever grows at its end; a slot is its place in version
 * 17 of it (onnxruntime 1.17). tests/native/test_abi.py holds every line against the official
 * header. */
#ifndef EDGE_TRAIN_ORT_ABI_H
#define EDGE_TRAIN_ORT_ABI_H

#include <stddef.h>
#include <stdint.h>

#define ORT_TABLE_VERSION 17
/* of OrtCustomOp: 18 brings GetMayInplace; every onnxruntime we support (>= 1.20) knows it */
#define ORT_CUSTOM_OP_VERSION 18

typedef struct OrtStatus OrtStatus;
typedef struct OrtValue OrtValue;
typedef struct OrtKernelInfo OrtKernelInfo;
typedef struct OrtKernelContext OrtKernelContext;
typedef struct OrtCustomOpDomain OrtCustomOpDomain;
typedef struct OrtSessionOptions OrtSessionOptions;
typedef struct OrtTensorTypeAndShapeInfo OrtTensorTypeAndShapeInfo;
typedef struct OrtShapeInferContext OrtShapeInferContext;
typedef struct OrtMemoryInfo OrtMemoryInfo;
typedef struct OrtAllocator OrtAllocator;

typedef struct OrtApi {
  void *slot[1]; /* longer in truth */
} OrtApi;

typedef struct OrtApiBase {
  const OrtApi *(*GetApi)(uint32_t version);
  const char *(*GetVersionString)(void);
} OrtApiBase;

enum { ORT_FAIL = 1, ORT_INVALID_ARGUMENT = 2 };
enum { ORT_FLOAT = 1, ORT_UINT8 = 2, ORT_INT32 = 6, ORT_INT64 = 7, ORT_BOOL = 9 };
enum { ORT_REQUIRED = 0, ORT_OPTIONAL = 1, ORT_VARIADIC = 2 };
enum { ORT_MEM_DEFAULT = 0, ORT_ARENA_ALLOCATOR = 1 };

/* X(name, slot, result, arguments) */
#define ORT_FUNCTIONS(X)                                                                                  \
  X(CreateStatus, 0, OrtStatus *, (unsigned code, const char *text))                                      \
  X(CreateCustomOpDomain, 26, OrtStatus *, (const char *domain, OrtCustomOpDomain **out))                 \
  X(CustomOpDomain_Add, 27, OrtStatus *, (OrtCustomOpDomain * domain, const OrtCustomOp *op))             \
  X(AddCustomOpDomain, 28, OrtStatus *, (OrtSessionOptions * options, OrtCustomOpDomain * domain))        \
  X(GetTensorMutableData, 51, OrtStatus *, (OrtValue * value, void **out))                                \
  X(GetTensorElementType, 60, OrtStatus *, (const OrtTensorTypeAndShapeInfo *info, unsigned *out))        \
  X(GetDimensionsCount, 61, OrtStatus *, (const OrtTensorTypeAndShapeInfo *info, size_t *out))            \
  X(GetDimensions, 62, OrtStatus *, (const OrtTensorTypeAndShapeInfo *info, int64_t *dims, size_t count)) \
  X(GetTensorTypeAndShape, 65, OrtStatus *, (const OrtValue *value, OrtTensorTypeAndShapeInfo **out))     \
  X(CreateCpuMemoryInfo, 69, OrtStatus *, (int kind, int memory, OrtMemoryInfo **out))                    \
  X(AllocatorAlloc, 75, OrtStatus *, (OrtAllocator * allocator, size_t bytes, void **out))                \
  X(AllocatorFree, 76, OrtStatus *, (OrtAllocator * allocator, void *memory))                             \
  X(GetAllocatorWithDefaultOptions, 78, OrtStatus *, (OrtAllocator * *out))                               \
  X(KernelInfoGetAttribute_float, 85, OrtStatus *,                                                        \
    (const OrtKernelInfo *info, const char *name, float *out))                                            \
  X(KernelInfoGetAttribute_int64, 86, OrtStatus *,                                                        \
    (const OrtKernelInfo *info, const char *name, int64_t *out))                                          \
  X(KernelContext_GetInputCount, 88, OrtStatus *, (const OrtKernelContext *context, size_t *out))         \
  X(KernelContext_GetOutputCount, 89, OrtStatus *, (const OrtKernelContext *context, size_t *out))        \
  X(KernelContext_GetInput, 90, OrtStatus *,                                                              \
    (const OrtKernelContext *context, size_t index, const OrtValue **out))                                \
  X(KernelContext_GetOutput, 91, OrtStatus *,                                                             \
    (OrtKernelContext * context, size_t index, const int64_t *dims, size_t rank, OrtValue **out))         \
  X(ReleaseStatus, 93, void, (OrtStatus * status))                                                        \
  X(ReleaseTensorTypeAndShapeInfo, 99, void, (OrtTensorTypeAndShapeInfo * info))                          \
  X(ReleaseAllocator, 132, void, (OrtAllocator * allocator))                                              \
  X(KernelInfoGetAttributeArray_int64, 163, OrtStatus *,                                                  \
    (const OrtKernelInfo *info, const char *name, int64_t *out, size_t *count))                           \
  X(KernelContext_GetAllocator, 253, OrtStatus *,                                                         \
    (const OrtKernelContext *context, const OrtMemoryInfo *info, OrtAllocator **out))                     \
  X(ShapeInferContext_GetInputTypeShape, 268, OrtStatus *,                                                \
    (const OrtShapeInferContext *context, size_t index, OrtTensorTypeAndShapeInfo **out))                 \
  X(ShapeInferContext_SetOutputTypeShape, 270, OrtStatus *,                                               \
    (const OrtShapeInferContext *context, size_t index, const OrtTensorTypeAndShapeInfo *info))           \
  X(KernelContext_ParallelFor, 274, OrtStatus *,                                                          \
    (const OrtKernelContext *context, void (*job)(void *, size_t), size_t total, size_t num_batch,        \
     void *user))

typedef struct OrtCustomOp OrtCustomOp;
struct OrtCustomOp {
  uint32_t version;
  void *(*CreateKernel)(const OrtCustomOp *op, const OrtApi *api, const OrtKernelInfo *info);
  const char *(*GetName)(const OrtCustomOp *op);
  const char *(*GetExecutionProviderType)(const OrtCustomOp *op);
  int (*GetInputType)(const OrtCustomOp *op, size_t index);
  size_t (*GetInputTypeCount)(const OrtCustomOp *op);
  int (*GetOutputType)(const OrtCustomOp *op, size_t index);
  size_t (*GetOutputTypeCount)(const OrtCustomOp *op);
  void (*KernelCompute)(void *kernel, OrtKernelContext *context);
  void (*KernelDestroy)(void *kernel);
  int (*GetInputCharacteristic)(const OrtCustomOp *op, size_t index);
  int (*GetOutputCharacteristic)(const OrtCustomOp *op, size_t index);
  int (*GetInputMemoryType)(const OrtCustomOp *op, size_t index);
  int (*GetVariadicInputMinArity)(const OrtCustomOp *op);
  int (*GetVariadicInputHomogeneity)(const OrtCustomOp *op);
  int (*GetVariadicOutputMinArity)(const OrtCustomOp *op);
  int (*GetVariadicOutputHomogeneity)(const OrtCustomOp *op);
  OrtStatus *(*CreateKernelV2)(const OrtCustomOp *op, const OrtApi *api, const OrtKernelInfo *info,
                               void **kernel);
  OrtStatus *(*KernelComputeV2)(void *kernel, OrtKernelContext *context);
  OrtStatus *(*InferOutputShapeFn)(const OrtCustomOp *op, OrtShapeInferContext *context);
  int (*GetStartVersion)(const OrtCustomOp *op);
  int (*GetEndVersion)(const OrtCustomOp *op);
  size_t (*GetMayInplace)(int **inputs, int **outputs);
  void (*ReleaseMayInplace)(int *inputs, int *outputs);
  size_t (*GetAliasMap)(int **inputs, int **outputs);
  void (*ReleaseAliasMap)(int *inputs, int *outputs);
};

#define ORT_TYPE(name, slot, result, arguments) typedef result(*Ort_##name) arguments;
#define ORT_SLOT(name, slot, result, arguments) ORT_SLOT_##name = slot,
ORT_FUNCTIONS(ORT_TYPE)
enum { ORT_FUNCTIONS(ORT_SLOT) };

/* ORT(api, CreateStatus)(code, text) */
#define ORT(api, name) ((Ort_##name)(api)->slot[ORT_SLOT_##name])

#endif
