/* What a kernel sees of onnxruntime: tensors, attributes, scratch memory, threads, errors.
 *
 * A kernel is a call of et_add: its name, inputs, outputs and two functions. Sizes are
 * size_t; whatever comes from a tensor's shape has been checked to fit. Errors are texts: the first
 * one given to et_fail becomes the error of the run, and the kernel returns. */
#ifndef EDGE_TRAIN_OP_H
#define EDGE_TRAIN_OP_H

#include <stddef.h>
#include <stdint.h>

#include "ort_abi.h"

enum { ET_MAX_RANK = 8, ET_MAX_INPUTS = 12, ET_MAX_OUTPUTS = 8 };

typedef struct et_tensor {
  void *data;
  int type;
  int rank;
  size_t dim[ET_MAX_RANK];
  size_t count;
} et_tensor;

typedef struct et_context et_context;
typedef struct et_attributes et_attributes;

/* The kernels of this processor, in native/op.c. */
typedef struct et_ops et_ops;

typedef const char *et_create(void *state, const et_attributes *attributes); /* text of the error, or 0 */
typedef void et_compute(const void *state, et_context *context);

/* Adds a kernel, unless there is one of its name. `form`: the name, the inputs and the outputs, one letter
 * each: f float32, i int64, j int32, u uint8, b bool, * any type; an upper-case letter (or ?) marks an
 * optional one, + at the end a variadic last one of any type. `state`: bytes kept a node, that `create`
 * fills, where it is not 0. `inplace`: whether output 0 may take the memory of input 0. */
void et_add(et_ops *ops, const char *form, size_t state, et_create *create, et_compute *compute, int inplace);

/* --- at load --- */
int64_t et_attr_int(const et_attributes *attributes, const char *name, int64_t absent);
float et_attr_float(const et_attributes *attributes, const char *name, float absent);
/* Fills at most `room` numbers, returns how many there are; 0 where the attribute is absent. */
size_t et_attr_ints(const et_attributes *attributes, const char *name, int64_t *out, size_t room);

/* --- at run --- */
/* Whether input `index` is there; `tensor` is filled only then. After an error: 0. */
int et_input(et_context *context, size_t index, et_tensor *tensor);
size_t et_input_count(et_context *context);
size_t et_output_count(et_context *context);
/* The memory of output `index`, 0 where nobody asked for it or after an error. */
void *et_output(et_context *context, size_t index, const size_t *dim, int rank);
void *et_output_like(et_context *context, size_t index, const et_tensor *like);
/* Memory until the kernel returns (64-byte aligned), 0 after an error. Not cleared. */
void *et_scratch(et_context *context, size_t bytes);
/* job(user, 0) … job(user, total - 1), spread over onnxruntime's threads, in any order. */
void et_parallel(et_context *context, void (*job)(void *user, size_t index), size_t total, void *user);
void et_fail(et_context *context, const char *text);
int et_failed(const et_context *context);

/* Adds the kernels of one instruction set, in native/kernels.c. */
void et_ops_base(et_ops *ops);
void et_ops_avx2(et_ops *ops);
void et_ops_avx512(et_ops *ops);

#endif
