/* Which instruction set this processor has. */
#ifndef EDGE_TRAIN_CPU_H
#define EDGE_TRAIN_CPU_H

#include "op.h"

enum { ET_BASE = 0, ET_AVX2 = 1, ET_AVX512 = 2 };

/* The best of the library's instruction sets that processor and operating system support. */
int et_cpu_level(void);
/* Adds the kernels for it. */
void et_best_ops(et_ops *ops);

#endif
