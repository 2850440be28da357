/* Dropout whose mask is worked out from a seed, so that nobody keeps it: a number a node, no byte an element.
 *
 * Elements are cut into blocks. A block has a key of 64 bits, number `block` of SplitMix64 from the seed
 * (Steele, Lea, Flood 2014); element l of it is dropped where triple32 of l and the key is small: the hash
 * of 32 bits by C. Wellons, github.com/skeeto/hash-prospector, the key's halves put in before its first and
 * its second product. Equal on every instruction set; tests/support/masks.py says it in NumPy. */
#include "draws.h"

enum { DROP_BLOCK = 4096 };

typedef uint32_t vu __attribute__((vector_size(VB)));
typedef uint32_t vu_unaligned __attribute__((vector_size(VB), aligned(4), may_alias));

typedef struct drops {
  const float *x;
  float *y, scale;
  int32_t bound; /* hashes below it, as numbers with a sign, are dropped */
  uint64_t seed;
  size_t count, jobs;
} drops;

static inline vf drop(vf x, vu at, uint32_t key, const drops *d) {
  at = (at ^ at >> 17) * 0xed5ad4bb;
  at = (at ^ at >> 11 ^ key) * 0xac4c1b51;
  at = (at ^ at >> 15) * 0x31848bab;
  at ^= at >> 14;
  return (vf)((vi)(x * d->scale) & ~((vi)at < d->bound));
}

static void drop_job(void *user, size_t job) {
  static const uint32_t places[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  const vu place = *(const vu_unaligned *)places;
  const drops d = *(const drops *)user;
  size_t blocks = panels(d.count, DROP_BLOCK), end = part_start(job + 1, d.jobs, blocks);
  for (size_t block = part_start(job, d.jobs, blocks); block < end; block++) {
    uint64_t key = et_split(d.seed, block);
    const float *x = d.x + block * DROP_BLOCK;
    float *y = d.y + block * DROP_BLOCK;
    vu at = place + (uint32_t)key;
    size_t width = least(DROP_BLOCK, d.count - block * DROP_BLOCK), i = 0, rest = width % VL;
    for (; i + VL <= width; i += VL, at += VL) store(y + i, drop(load(x + i), at, (uint32_t)(key >> 32), &d));
    if (rest) store_part(y + i, drop(load_part(x + i, rest), at, (uint32_t)(key >> 32), &d), rest);
  }
}

/* Reads x, and behind input `options` ratio (absent: 0.5) and training_mode; 0 after an error. */
static int drops_begin(drops *d, et_context *context, et_tensor *x, size_t options, int training) {
  et_tensor ratio, mode;
  float r = 0.5f;
  if (!et_input(context, 0, x)) return 0;
  if (et_input(context, options, &ratio)) {
    if (ratio.count != 1) return et_fail(context, "the ratio of a Dropout is not one number"), 0;
    r = *(const float *)ratio.data;
  }
  if (et_input(context, options + 1, &mode)) {
    if (mode.count != 1) return et_fail(context, "training_mode of a Dropout is not one bool"), 0;
    training = *(const uint8_t *)mode.data;
  }
  if (!(r >= 0.0f && r < 1.0f)) return et_fail(context, "the ratio of a Dropout is not in [0, 1)"), 0;
  if (!training) r = 0.0f;
  d->scale = 1.0f / (1.0f - r);
  d->bound = (int32_t)((uint32_t)(r * 4294967296.0f) ^ 0x80000000u);
  d->x = x->data;
  d->count = x->count;
  d->y = et_output_like(context, 0, x);
  return !et_failed(context);
}

static void drops_run(drops *d, et_context *context) {
  d->jobs = least(panels(d->count, DROP_BLOCK), jobs_for(d->count));
  et_parallel(context, drop_job, d->jobs, d);
}

static const char *drawn_create(void *state, const et_attributes *attributes) {
  et_draws *s = state;
  s->own = et_attr_ints(attributes, "seed", &s->seed, 1) == 1;
  return 0;
}

/* x, ratio, training_mode -> y, the seed of its mask. */
static void drawn_compute(const void *state, et_context *context) {
  drops d;
  et_tensor x;
  const size_t one = 1;
  int64_t *seed = et_output(context, 1, &one, 1);
  if (!drops_begin(&d, context, &x, 1, 0)) return;
  d.seed = et_draw((et_draws *)state);
  if (seed) *seed = (int64_t)d.seed;
  drops_run(&d, context);
}

/* x (or dy), the seed, ratio, training_mode -> what that mask leaves. */
static void seeded_compute(const void *state, et_context *context) {
  (void)state;
  drops d;
  et_tensor x, seed;
  if (!et_input(context, 1, &seed)) return;
  if (seed.count != 1) return et_fail(context, "the seed of a Dropout is not one number");
  d.seed = (uint64_t) * (const int64_t *)seed.data;
  if (drops_begin(&d, context, &x, 2, 1)) drops_run(&d, context);
}
