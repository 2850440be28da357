/* All kernels of one instruction set as one unit: compiled once for each, with -DET_ISA=base, avx2 …
 * Everything is static but the table. */
#include "gemm.h"
#include "memory.h"
#include "op.h"
#include "vec.h"
#include "window.h"

#include "conv_depthwise.c"

static const et_op ops[] = {
    {"DepthwiseConv", "ffF", "f", sizeof(window), depthwise_create, depthwise_compute, 0},
    {"DepthwiseConvGrad", "fff", "FFF", sizeof(window), depthwise_create, depthwise_gradient, 0},
};

#define JOIN(a, b) a##b
#define NAMED(isa) JOIN(et_ops_, isa)

const et_op *NAMED(ET_ISA)(size_t *count) {
  *count = sizeof(ops) / sizeof(ops[0]);
  return ops;
}
