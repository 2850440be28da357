/* Where kernels draw from: one generator of the process, as onnxruntime has one, set by the program.
 *
 * Seeds are numbers of SplitMix64. Its start is hashed: neighbouring seeds share no stretch of it. A node
 * with an attribute `seed` has a generator of its own, which nobody sets again: onnxruntime's rule too. */
#include "draws.h"

static et_draws process;

__attribute__((visibility("default"))) void et_set_seed(int64_t seed) {
  __atomic_store_n(&process.seed, seed, __ATOMIC_RELAXED);
  __atomic_store_n(&process.count, 0, __ATOMIC_RELAXED);
}

uint64_t et_draw(et_draws *own) {
  et_draws *from = own->own ? own : &process;
  uint64_t index = __atomic_fetch_add(&from->count, 1, __ATOMIC_RELAXED);
  return et_split(et_split((uint64_t)__atomic_load_n(&from->seed, __ATOMIC_RELAXED), 0), index);
}
