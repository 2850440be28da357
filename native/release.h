/* Handing gradients to the program that trains (native/release.c). */
#ifndef EDGE_TRAIN_RELEASE_H
#define EDGE_TRAIN_RELEASE_H

#include "op.h"

typedef struct release_state {
  int64_t owner, index;
} release_state;

const char *et_release_create(void *state, const et_attributes *attributes);
void et_release_compute(const void *state, et_context *context);

#endif
