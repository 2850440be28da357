/* Vectors of the instruction set this file is compiled for (GCC vector extensions). */
#ifndef EDGE_TRAIN_VEC_H
#define EDGE_TRAIN_VEC_H

#include <stddef.h>
#include <stdint.h>

#if defined(__AVX512F__) || defined(ET_WIDE) /* wide: made of smaller vectors, to test without AVX-512 */
#define VL_BYTES 64
#elif defined(__AVX2__)
#define VL_BYTES 32
#else
#define VL_BYTES 16
#endif
enum { VB = VL_BYTES };
enum { VL = VB / 4 }; /* floats a vector */

/* A function that is not worth a copy wherever it is called. */
#define APART static __attribute__((noinline))
#define INLINE static inline __attribute__((always_inline))

typedef float vf __attribute__((vector_size(VB)));
typedef int32_t vi __attribute__((vector_size(VB)));
typedef float vf_unaligned __attribute__((vector_size(VB), aligned(4), may_alias));
typedef int32_t vi_unaligned __attribute__((vector_size(VB), aligned(4), may_alias));

static inline vf load(const float *p) { return *(const vf_unaligned *)p; }
static inline void store(float *p, vf v) { *(vf_unaligned *)p = v; }
static inline vf splat(float x) { return x - (vf){0}; } /* keeps -0 */
static inline vf choose(vi mask, vf yes, vf no) { return (vf)((mask & (vi)yes) | (~mask & (vi)no)); }
/* As x86's: the second operand where one is NaN. */
#if defined(__AVX512F__)
static inline vf vmax(vf a, vf b) { return __builtin_ia32_maxps512_mask(a, b, a, -1, 4); }
static inline vf vmin(vf a, vf b) { return __builtin_ia32_minps512_mask(a, b, a, -1, 4); }
#elif VL_BYTES == 32
static inline vf vmax(vf a, vf b) { return __builtin_ia32_maxps256(a, b); }
static inline vf vmin(vf a, vf b) { return __builtin_ia32_minps256(a, b); }
#elif defined(__SSE2__) && VL_BYTES == 16
static inline vf vmax(vf a, vf b) { return __builtin_ia32_maxps(a, b); }
static inline vf vmin(vf a, vf b) { return __builtin_ia32_minps(a, b); }
#else
static inline vf vmax(vf a, vf b) { return choose(a > b, a, b); }
static inline vf vmin(vf a, vf b) { return choose(a < b, a, b); }
#endif

/* By halves: a chain of VL additions would cost more than many a row. */
static inline float sum_of(vf v) {
#if VL_BYTES == 64
  const vi lanes = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  v += __builtin_shuffle(v, lanes + 8);
  v += __builtin_shuffle(v, lanes + 4);
#elif VL_BYTES == 32
  const vi lanes = {0, 1, 2, 3, 4, 5, 6, 7};
  v += __builtin_shuffle(v, lanes + 4);
#else
  const vi lanes = {0, 1, 2, 3};
#endif
  v += __builtin_shuffle(v, lanes + 2);
  return v[0] + v[1];
}

/* The first `count` (< VL) numbers, zeros after them. */
#if defined(__AVX512F__)
static inline vf load_part(const float *p, size_t count) {
  return __builtin_ia32_loadups512_mask(p, (vf){0}, (uint16_t)((1u << count) - 1));
}
static inline void store_part(float *p, vf v, size_t count) {
  __builtin_ia32_storeups512_mask(p, v, (uint16_t)((1u << count) - 1));
}
#elif VL_BYTES == 32
static inline vi first_lanes(size_t count) { return (vi){0, 1, 2, 3, 4, 5, 6, 7} < (vi){0} + (int32_t)count; }
static inline vf load_part(const float *p, size_t count) {
  return __builtin_ia32_maskloadps256((const vf *)p, first_lanes(count));
}
/* By halves: a masked store takes dozens of cycles on some processors. */
static inline void store_part(float *p, vf v, size_t count) {
  typedef float four __attribute__((vector_size(16), aligned(4), may_alias));
  typedef float two __attribute__((vector_size(8), aligned(4), may_alias));
  four part = {v[0], v[1], v[2], v[3]};
  if (count & 4) {
    *(four *)p = part;
    part = (four){v[4], v[5], v[6], v[7]};
    p += 4;
  }
  if (count & 2) {
    *(two *)p = (two){part[0], part[1]};
    part[0] = part[2];
    p += 2;
  }
  if (count & 1) *p = part[0];
}
#else
static inline vf load_part(const float *p, size_t count) {
  vf v = {0};
  for (size_t i = 0; i < count; i++) v[i] = p[i];
  return v;
}
static inline void store_part(float *p, vf v, size_t count) {
  for (size_t i = 0; i < count; i++) p[i] = v[i];
}
#endif

static inline size_t least(size_t a, size_t b) { return a < b ? a : b; }
static inline size_t most(size_t a, size_t b) { return a > b ? a : b; }

/* Work is cut into at most so many jobs whatever the number of threads: same bits with any. */
enum { MAX_JOBS = 16 };
static inline size_t part_start(size_t job, size_t jobs, size_t total) {
  return total / jobs * job + least(job, total % jobs);
}
/* Jobs for one pass over `count` numbers: one where it is not worth waking a thread. */
static inline size_t jobs_for(size_t count) { return count < 16384 ? 1 : least(MAX_JOBS, count / 8192); }

#endif
