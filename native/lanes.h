/* Walking along a row of any length: whole vectors, then a part of one. */
#ifndef EDGE_TRAIN_LANES_H
#define EDGE_TRAIN_LANES_H

#include "vec.h"

typedef struct lanes {
  size_t at, count; /* count < VL: a part, at the end */
} lanes;

static inline lanes lanes_next(lanes l, size_t width) {
  l.at += VL;
  l.count = least(VL, width - l.at); /* of no account at the end, where it may wrap */
  return l;
}

#define EACH_LANES(l, width) for (lanes l = {0, least(VL, width)}; l.at < (width); l = lanes_next(l, width))

static inline vf lanes_load(const float *p, lanes l) {
  return l.count == VL ? load(p + l.at) : load_part(p + l.at, l.count);
}
static inline void lanes_store(float *p, vf v, lanes l) {
  if (l.count == VL)
    store(p + l.at, v);
  else
    store_part(p + l.at, v, l.count);
}

/* to = a + b, which may be `to`. */
APART void add_rows(float *to, const float *a, const float *b, size_t width) {
  EACH_LANES(l, width) lanes_store(to, lanes_load(a, l) + lanes_load(b, l), l);
}

/* out (width) = what the jobs have summed up, each in a row of `stride`: in their order. */
static inline void add_jobs(float *out, const float *sums, size_t width, size_t stride, size_t jobs) {
  EACH_LANES(l, width) {
    vf sum = {0};
    for (size_t job = 0; job < jobs; job++) sum += lanes_load(sums + job * stride, l);
    lanes_store(out, sum, l);
  }
}

#endif
