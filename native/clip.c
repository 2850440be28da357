/* Clip of one range and its gradient. The forward pass leaves a bit an element: whether a gradient
 * passes. So the input of the Clip need not be kept, and equality with a bound counts exactly.
 * Bit i % 8 of byte i / 8 belongs to element i. */

enum { CLIP_BLOCK = 16 }; /* elements: two whole bytes, whole vectors of every instruction set */

typedef struct clip {
  const float *x;
  float *y;
  uint8_t *bits;
  float low, high;
  size_t count, jobs;
} clip;

static inline vi lane_bits(void) {
  vi v;
  for (int i = 0; i < VL; i++) v[i] = 1 << i;
  return v;
}

/* One bit a lane of a comparison's result. */
static inline uint32_t bits_of(vi mask) {
#if defined(__AVX512F__)
  return (uint32_t)__builtin_ia32_cvtd2mask512(mask);
#elif defined(__AVX2__)
  return (uint32_t)__builtin_ia32_movmskps256((vf)mask);
#elif defined(__SSE2__)
  return (uint32_t)__builtin_ia32_movmskps((vf)mask);
#else
  vi weighed = mask & lane_bits();
  uint32_t bits = 0;
  for (int i = 0; i < VL; i++) bits |= (uint32_t)weighed[i];
  return bits;
#endif
}

static inline vi mask_of(uint32_t bits) { return (((vi){0} + (int32_t)bits) & lane_bits()) != 0; }

static inline uint32_t bits_at(const uint8_t *bits, size_t i) { /* i a multiple of CLIP_BLOCK */
  return bits[i / 8] | (uint32_t)bits[i / 8 + 1] << 8;
}

/* y and the bits of `count` elements from a multiple of CLIP_BLOCK on. */
static void clip_range(float *y, const float *x, uint8_t *bits, float low, float high, size_t from,
                       size_t to) {
  vf lo = splat(low), hi = splat(high);
  size_t i = from;
  for (; i + CLIP_BLOCK <= to; i += CLIP_BLOCK) {
    uint32_t all = 0;
    for (int j = 0; j < CLIP_BLOCK / VL; j++) {
      vf v = load(x + i + j * VL);
      all |= bits_of((v >= lo) & (v <= hi)) << (j * VL);
      store(y + i + j * VL, choose(v < lo, lo, choose(v > hi, hi, v)));
    }
    bits[i / 8] = (uint8_t)all;
    bits[i / 8 + 1] = (uint8_t)(all >> 8);
  }
  for (; i < to; i++) {
    if (i % 8 == 0) bits[i / 8] = 0;
    float v = x[i];
    if (v >= low && v <= high) bits[i / 8] |= (uint8_t)(1 << i % 8);
    y[i] = v < low ? low : v > high ? high : v;
  }
}

static void masked_range(float *dx, const float *dy, const uint8_t *bits, size_t from, size_t to) {
  size_t i = from;
  for (; i + CLIP_BLOCK <= to; i += CLIP_BLOCK) {
    uint32_t all = bits_at(bits, i);
    for (int j = 0; j < CLIP_BLOCK / VL; j++)
      store(dx + i + j * VL, (vf)((vi)load(dy + i + j * VL) & mask_of(all >> (j * VL))));
  }
  for (; i < to; i++) dx[i] = bits[i / 8] >> i % 8 & 1 ? dy[i] : 0;
}

static size_t clip_start(const clip *c, size_t job) {
  return least(part_start(job, c->jobs, panels(c->count, CLIP_BLOCK)) * CLIP_BLOCK, c->count);
}

static void clip_job(void *user, size_t job) {
  const clip *c = user;
  clip_range(c->y, c->x, c->bits, c->low, c->high, clip_start(c, job), clip_start(c, job + 1));
}

static void clip_gradient_job(void *user, size_t job) {
  const clip *c = user;
  masked_range(c->y, c->x, c->bits, clip_start(c, job), clip_start(c, job + 1));
}

static float bound(et_context *context, size_t index, float absent) {
  et_tensor t;
  return et_input(context, index, &t) && t.count == 1 ? *(const float *)t.data : absent;
}

static void clip_compute(const void *state, et_context *context) {
  (void)state;
  et_tensor x;
  if (!et_input(context, 0, &x)) return;
  clip c = {.x = x.data, .count = x.count, .jobs = jobs_for(x.count)};
  c.low = bound(context, 1, -__builtin_inff());
  c.high = bound(context, 2, __builtin_inff());
  c.y = et_output_like(context, 0, &x);
  c.bits = et_output(context, 1, (size_t[]){panels(x.count, CLIP_BLOCK) * 2}, 1);
  if (c.y && c.bits) et_parallel(context, clip_job, c.jobs, &c);
}

static void clip_gradient(const void *state, et_context *context) {
  (void)state;
  et_tensor dy, bits;
  if (!et_input(context, 0, &dy) || !et_input(context, 1, &bits)) return;
  if (bits.count != panels(dy.count, CLIP_BLOCK) * 2) {
    et_fail(context, "the bits of a Clip do not belong to this gradient");
    return;
  }
  clip c = {.x = dy.data, .bits = bits.data, .count = dy.count, .jobs = jobs_for(dy.count)};
  c.y = et_output_like(context, 0, &dy);
  if (c.y) et_parallel(context, clip_gradient_job, c.jobs, &c);
}
