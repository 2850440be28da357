/* Registers the kernels with onnxruntime as custom ops of domain "edge_train", and runs them. */
#include "op.h"

#include "cpu.h"
#include "memory.h"

#define EXPORT __attribute__((visibility("default")))

enum { MAX_OPS = 96, MAX_SCRATCH = 8, NAME_ROOM = 40 };

typedef struct registered {
  OrtCustomOp base; /* first: onnxruntime hands this address back */
  char name[NAME_ROOM];
  const char *inputs, *outputs; /* letters, up to a space or the end */
  size_t state;
  et_create *create;
  et_compute *compute;
} registered;

typedef struct kernel {
  const registered *op;
  void *state;
} kernel;

struct et_attributes {
  const OrtKernelInfo *info;
};

struct et_context {
  OrtKernelContext *run;
  OrtStatus *status;
  OrtAllocator *allocator;
  void *scratch[MAX_SCRATCH];
  size_t scratches;
};

/* One process has one onnxruntime; registering again (another session) writes the same values. */
static const OrtApi *api;
static OrtMemoryInfo *cpu_memory;
static registered table[MAX_OPS];

struct et_ops {
  size_t count; /* of `table` */
  const char *error;
};

static char lower(char letter) { return letter >= 'A' && letter <= 'Z' ? (char)(letter + 32) : letter; }

static size_t length(const char *letters) {
  size_t count = 0;
  while (letters[count] && letters[count] != ' ' && letters[count] != '+') count++;
  return count + (letters[count] == '+');
}

static int element_type(char letter) {
  switch (lower(letter)) {
    case 'f': return ORT_FLOAT;
    case 'i': return ORT_INT64;
    case 'j': return ORT_INT32;
    case 'u': return ORT_UINT8;
    case 'b': return ORT_BOOL;
    default: return 0; /* any */
  }
}

static int characteristic(char letter) {
  if (letter == '+') return ORT_VARIADIC;
  return letter == '?' || lower(letter) != letter ? ORT_OPTIONAL : ORT_REQUIRED;
}

static const registered *op_of(const OrtCustomOp *op) { return (const registered *)op; }

/* --- the callbacks of OrtCustomOp --- */
static const char *get_name(const OrtCustomOp *op) { return op_of(op)->name; }
static const char *get_provider(const OrtCustomOp *op) { return (void)op, (const char *)0; }
static size_t input_count(const OrtCustomOp *op) { return length(op_of(op)->inputs); }
static size_t output_count(const OrtCustomOp *op) { return length(op_of(op)->outputs); }
static int input_type(const OrtCustomOp *op, size_t i) { return element_type(op_of(op)->inputs[i]); }
static int output_type(const OrtCustomOp *op, size_t i) { return element_type(op_of(op)->outputs[i]); }
static int input_kind(const OrtCustomOp *op, size_t i) { return characteristic(op_of(op)->inputs[i]); }
static int output_kind(const OrtCustomOp *op, size_t i) { return characteristic(op_of(op)->outputs[i]); }
static int input_memory(const OrtCustomOp *op, size_t i) { return (void)op, (void)i, ORT_MEM_DEFAULT; }
static int arity(const OrtCustomOp *op) { return (void)op, 1; }
static int homogeneous(const OrtCustomOp *op) { return (void)op, 0; }
static int first_version(const OrtCustomOp *op) { return (void)op, 1; }
static int last_version(const OrtCustomOp *op) { return (void)op, INT32_MAX; }

static size_t first_over_first(int **inputs, int **outputs) {
  static int zero[2];
  *inputs = &zero[0];
  *outputs = &zero[1];
  return 1;
}
static void keep(int *inputs, int *outputs) { (void)inputs, (void)outputs; }

static void destroy(void *made) {
  OrtAllocator *allocator;
  OrtStatus *status = ORT(api, GetAllocatorWithDefaultOptions)(&allocator);
  if (!status) status = ORT(api, AllocatorFree)(allocator, made);
  if (status) ORT(api, ReleaseStatus)(status);
}

static OrtStatus *make(const OrtCustomOp *op, const OrtApi *unused, const OrtKernelInfo *info, void **out) {
  (void)unused;
  const registered *row = op_of(op);
  OrtAllocator *allocator;
  OrtStatus *status = ORT(api, GetAllocatorWithDefaultOptions)(&allocator);
  kernel *made = 0;
  if (!status) status = ORT(api, AllocatorAlloc)(allocator, sizeof(kernel) + row->state, (void **)&made);
  if (status) return status;
  made->op = row;
  made->state = made + 1;
  memset(made->state, 0, row->state);
  et_attributes attributes = {info};
  const char *error = row->create ? row->create(made->state, &attributes) : 0;
  *out = made;
  if (!error) return 0;
  destroy(made); /* onnxruntime does not, after an error */
  return ORT(api, CreateStatus)(ORT_INVALID_ARGUMENT, error);
}

static OrtStatus *run_once(void *made, OrtKernelContext *run) {
  const kernel *k = made;
  et_context context = {.run = run};
  k->op->compute(k->state, &context);
  for (size_t i = 0; i < context.scratches; i++) {
    OrtStatus *status = ORT(api, AllocatorFree)(context.allocator, context.scratch[i]);
    if (status) ORT(api, ReleaseStatus)(status);
  }
  if (context.allocator) ORT(api, ReleaseAllocator)(context.allocator);
  return context.status;
}

/* The characters before a space; 0 where they do not fit with a 0 behind. */
static size_t word(const char *text) {
  size_t count = 0;
  while (text[count] && text[count] != ' ') count++;
  return count < NAME_ROOM ? count : 0;
}

void et_add(et_ops *ops, const char *form, size_t state, et_create *create, et_compute *compute,
            int inplace) {
  size_t name = word(form), inputs = word(form + name + 1);
  for (size_t i = 0; i < ops->count; i++)
    if (!memcmp(table[i].name, form, name) && !table[i].name[name]) return;
  if (ops->count == MAX_OPS || name == 0) {
    ops->error = "MAX_OPS or NAME_ROOM is too small";
    return;
  }
  registered *entry = &table[ops->count++];
  memcpy(entry->name, form, name);
  entry->inputs = form + name + 1;
  entry->outputs = entry->inputs + inputs + 1;
  entry->state = state, entry->create = create, entry->compute = compute;
  entry->base = (OrtCustomOp){
      .version = ORT_CUSTOM_OP_VERSION,
      .GetName = get_name,
      .GetExecutionProviderType = get_provider,
      .GetInputType = input_type,
      .GetInputTypeCount = input_count,
      .GetOutputType = output_type,
      .GetOutputTypeCount = output_count,
      .KernelDestroy = destroy,
      .GetInputCharacteristic = input_kind,
      .GetOutputCharacteristic = output_kind,
      .GetInputMemoryType = input_memory,
      .GetVariadicInputMinArity = arity,
      .GetVariadicInputHomogeneity = homogeneous,
      .GetVariadicOutputMinArity = arity,
      .GetVariadicOutputHomogeneity = homogeneous,
      .CreateKernelV2 = make,
      .KernelComputeV2 = run_once,
      .GetStartVersion = first_version,
      .GetEndVersion = last_version,
      .GetMayInplace = inplace ? first_over_first : 0,
      .ReleaseMayInplace = inplace ? keep : 0,
  };
}

/* Called by onnxruntime's register_custom_ops_library. */
EXPORT OrtStatus *RegisterCustomOps(OrtSessionOptions *options, const OrtApiBase *base) {
  static OrtCustomOpDomain *shared; /* set when it is whole: a first try may fail; callers take turns */
  OrtCustomOpDomain *domain = __atomic_load_n(&shared, __ATOMIC_ACQUIRE);
  if (!domain) {
    et_ops ops = {0};
    et_best_ops(&ops);
    api = base->GetApi(ORT_TABLE_VERSION);
    OrtStatus *status = ORT(api, CreateCpuMemoryInfo)(ORT_ARENA_ALLOCATOR, ORT_MEM_DEFAULT, &cpu_memory);
    if (!status) status = ORT(api, CreateCustomOpDomain)("edge_train", &domain);
    if (!status && ops.error) status = ORT(api, CreateStatus)(ORT_FAIL, ops.error);
    for (size_t i = 0; !status && i < ops.count; i++)
      status = ORT(api, CustomOpDomain_Add)(domain, &table[i].base);
    if (status) return status;
    __atomic_store_n(&shared, domain, __ATOMIC_RELEASE);
  }
  return ORT(api, AddCustomOpDomain)(options, domain);
}

/* --- what kernels call --- */
int64_t et_attr_int(const et_attributes *attributes, const char *name, int64_t absent) {
  int64_t value;
  OrtStatus *status = ORT(api, KernelInfoGetAttribute_int64)(attributes->info, name, &value);
  if (status) ORT(api, ReleaseStatus)(status);
  return status ? absent : value;
}

float et_attr_float(const et_attributes *attributes, const char *name, float absent) {
  float value;
  OrtStatus *status = ORT(api, KernelInfoGetAttribute_float)(attributes->info, name, &value);
  if (status) ORT(api, ReleaseStatus)(status);
  return status ? absent : value;
}

size_t et_attr_ints(const et_attributes *attributes, const char *name, int64_t *out, size_t room) {
  size_t count = room;
  OrtStatus *status = ORT(api, KernelInfoGetAttributeArray_int64)(attributes->info, name, out, &count);
  if (status) ORT(api, ReleaseStatus)(status);
  return status ? 0 : count;
}

static int fine(et_context *context, OrtStatus *status) {
  if (status && context->status) ORT(api, ReleaseStatus)(status);
  if (status && !context->status) context->status = status;
  return !context->status;
}

void et_fail(et_context *context, const char *text) { fine(context, ORT(api, CreateStatus)(ORT_FAIL, text)); }

int et_failed(const et_context *context) { return context->status != 0; }

/* Element counts stay below PTRDIFF_MAX / 8, so that no byte count or offset overflows. */
static int sizes(et_context *context, et_tensor *tensor, const int64_t *dim) {
  tensor->count = 1;
  for (int i = 0; i < tensor->rank; i++) {
    size_t wide;
    if (dim[i] < 0 || (uint64_t)dim[i] > PTRDIFF_MAX / 8) return et_fail(context, "a tensor is too large"), 0;
    tensor->dim[i] = (size_t)dim[i];
    if (__builtin_mul_overflow(tensor->count, tensor->dim[i], &wide) || wide > PTRDIFF_MAX / 8)
      return et_fail(context, "a tensor is too large"), 0;
    tensor->count = wide;
  }
  return 1;
}

int et_input(et_context *context, size_t index, et_tensor *tensor) {
  if (context->status || index >= et_input_count(context)) return 0;
  const OrtValue *value;
  OrtTensorTypeAndShapeInfo *info;
  if (!fine(context, ORT(api, KernelContext_GetInput)(context->run, index, &value)) || !value) return 0;
  if (!fine(context, ORT(api, GetTensorTypeAndShape)(value, &info))) return 0;
  size_t rank = 0;
  int64_t dim[ET_MAX_RANK];
  fine(context, ORT(api, GetDimensionsCount)(info, &rank));
  if (rank > ET_MAX_RANK) et_fail(context, "a tensor has more than 8 axes");
  if (!context->status) fine(context, ORT(api, GetDimensions)(info, dim, rank));
  if (!context->status) fine(context, ORT(api, GetTensorElementType)(info, (unsigned *)&tensor->type));
  ORT(api, ReleaseTensorTypeAndShapeInfo)(info);
  tensor->rank = (int)rank;
  return !context->status && sizes(context, tensor, dim) &&
         fine(context, ORT(api, GetTensorMutableData)((OrtValue *)value, &tensor->data));
}

size_t et_input_count(et_context *context) {
  size_t count = 0;
  fine(context, ORT(api, KernelContext_GetInputCount)(context->run, &count));
  return count;
}

size_t et_output_count(et_context *context) {
  size_t count = 0;
  fine(context, ORT(api, KernelContext_GetOutputCount)(context->run, &count));
  return count;
}

void *et_output(et_context *context, size_t index, const size_t *dim, int rank) {
  int64_t wide[ET_MAX_RANK];
  OrtValue *value = 0;
  void *data = 0;
  if (context->status || index >= et_output_count(context)) return 0;
  for (int i = 0; i < rank; i++) wide[i] = (int64_t)dim[i];
  if (!fine(context, ORT(api, KernelContext_GetOutput)(context->run, index, wide, (size_t)rank, &value)) ||
      !value)
    return 0;
  return fine(context, ORT(api, GetTensorMutableData)(value, &data)) ? data : 0;
}

void *et_output_like(et_context *context, size_t index, const et_tensor *like) {
  return et_output(context, index, like->dim, like->rank);
}

void *et_scratch(et_context *context, size_t bytes) {
  void *memory = 0;
  if (context->status) return 0;
  if (context->scratches == MAX_SCRATCH) return et_fail(context, "too many scratch buffers"), (void *)0;
  if (!context->allocator &&
      !fine(context, ORT(api, KernelContext_GetAllocator)(context->run, cpu_memory, &context->allocator)))
    return 0;
  if (!fine(context, ORT(api, AllocatorAlloc)(context->allocator, bytes + !bytes, &memory))) return 0;
  if (!memory) return et_fail(context, "out of memory"), (void *)0;
  return context->scratch[context->scratches++] = memory;
}

void et_parallel(et_context *context, void (*job)(void *user, size_t index), size_t total, void *user) {
  if (context->status) return;
  if (total == 1) {
    job(user, 0);
  } else if (total > 1) {
    fine(context, ORT(api, KernelContext_ParallelFor)(context->run, job, total, 0, user));
  }
}
