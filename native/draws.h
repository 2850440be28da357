/* Seeds of random masks (native/draws.c). */
#ifndef EDGE_TRAIN_DRAWS_H
#define EDGE_TRAIN_DRAWS_H

#include <stdint.h>

/* Of a node: whether it has a generator of its own, from which seed, how many numbers it has drawn. */
typedef struct et_draws {
  int64_t own, seed;
  uint64_t count;
} et_draws;

/* Number `index` of SplitMix64 from `seed`. */
static inline uint64_t et_split(uint64_t seed, uint64_t index) {
  uint64_t z = seed + (index + 1) * 0x9e3779b97f4a7c15u;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
  z = (z ^ z >> 27) * 0x94d049bb133111ebu;
  return z ^ z >> 31;
}

/* The next seed: of the node's own generator, or the process's. */
uint64_t et_draw(et_draws *own);

#endif
