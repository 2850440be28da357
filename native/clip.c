/* Clip and ReLU with their gradients. The forward pass leaves a bit an element: whether a gradient
 * passes. So the input need not be kept, and equality with a bound counts as it should.
 *
 * Bits stand by planes: those of (n, c) of an (N, C, ...) tensor begin at a byte of their own, bit i % 8
 * of byte i / 8 belongs to element i of the plane. A tensor of fewer than three axes is one plane. */

enum { CLIP_BLOCK = 16 }; /* elements: two whole bytes, whole vectors of every instruction set */

typedef struct clip_rule {
  float low, high;
  int strict; /* ReLU: nothing passes where x equals the lower bound */
} clip_rule;

typedef struct clip {
  const float *x;
  float *y;
  uint8_t *bits;
  clip_rule rule;
  size_t planes, size, jobs;
} clip;

static inline size_t plane_bytes(size_t size) { return panels(size, CLIP_BLOCK) * 2; }

static void clip_planes(clip *c, const et_tensor *x) {
  c->planes = x->rank > 2 ? x->dim[0] * x->dim[1] : 1;
  c->size = c->planes ? x->count / c->planes : 0;
}

static inline vi lane_bits(void) {
  vi v;
  for (int i = 0; i < VL; i++) v[i] = 1 << i;
  return v;
}

/* One bit a lane of a comparison's result. */
static inline uint32_t bits_of(vi mask) {
#if defined(__AVX512F__)
  return (uint32_t)__builtin_ia32_cvtd2mask512(mask);
#elif VL_BYTES == 32
  return (uint32_t)__builtin_ia32_movmskps256((vf)mask);
#elif defined(__SSE2__) && VL_BYTES == 16
  return (uint32_t)__builtin_ia32_movmskps((vf)mask);
#else
  vi weighed = mask & lane_bits();
  uint32_t bits = 0;
  for (int i = 0; i < VL; i++) bits |= (uint32_t)weighed[i];
  return bits;
#endif
}

static inline vi mask_of(uint32_t bits) { return (((vi){0} + (int32_t)bits) & lane_bits()) != 0; }

static inline vi passes(vf v, vf lo, vf hi, int strict) { return (strict ? v > lo : v >= lo) & (v <= hi); }

/* NaN stays; the upper bound where the lower is above it, as ONNX says. */
static inline vf clipped(vf v, vf lo, vf hi) { return vmin(hi, vmax(lo, v)); }

/* y and the bits of elements [from, to) of a plane; from a multiple of CLIP_BLOCK. y may be x. */
static void clip_range(float *y, const float *x, uint8_t *bits, clip_rule rule, size_t from, size_t to) {
  vf lo = splat(rule.low), hi = splat(rule.high);
  size_t i = from;
  for (; i + CLIP_BLOCK <= to; i += CLIP_BLOCK) {
    uint32_t all = 0;
    for (int j = 0; j < CLIP_BLOCK / VL; j++) {
      vf v = load(x + i + j * VL);
      all |= bits_of(passes(v, lo, hi, rule.strict)) << (j * VL);
      store(y + i + j * VL, clipped(v, lo, hi));
    }
    bits[i / 8] = (uint8_t)all;
    bits[i / 8 + 1] = (uint8_t)(all >> 8);
  }
  if (i == to) return;
  uint32_t all = 0;
  for (size_t j = i; j < to; j += VL) { /* no branch an element: which way it goes is a coin's throw */
    size_t count = least(VL, to - j);
    vf v = count == VL ? load(x + j) : load_part(x + j, count);
    all |= (bits_of(passes(v, lo, hi, rule.strict)) & ((2u << (count - 1)) - 1)) << (j - i);
    v = clipped(v, lo, hi);
    if (count == VL)
      store(y + j, v);
    else
      store_part(y + j, v, count);
  }
  bits[i / 8] = (uint8_t)all;
  bits[i / 8 + 1] = (uint8_t)(all >> 8);
}

/* dx = dy where the bit is set, else 0; dx may be dy. */
static void masked_range(float *dx, const float *dy, const uint8_t *bits, size_t from, size_t to) {
  size_t i = from;
  for (; i + CLIP_BLOCK <= to; i += CLIP_BLOCK) {
    uint32_t all = bits[i / 8] | (uint32_t)bits[i / 8 + 1] << 8;
    for (int j = 0; j < CLIP_BLOCK / VL; j++)
      store(dx + i + j * VL, (vf)((vi)load(dy + i + j * VL) & mask_of(all >> (j * VL))));
  }
  uint32_t all = i < to ? bits[i / 8] | (uint32_t)bits[i / 8 + 1] << 8 : 0;
  for (; i < to; i += VL, all >>= VL % 32) {
    size_t count = least(VL, to - i);
    vf v = count == VL ? load(dy + i) : load_part(dy + i, count);
    v = (vf)((vi)v & mask_of(all));
    if (count == VL)
      store(dx + i, v);
    else
      store_part(dx + i, v, count);
  }
}

static void clip_part(const clip *c, size_t plane, size_t from, size_t to, int gradient) {
  const float *x = c->x + plane * c->size;
  float *y = c->y + plane * c->size;
  uint8_t *bits = c->bits + plane * plane_bytes(c->size);
  if (gradient)
    masked_range(y, x, bits, from, to);
  else
    clip_range(y, x, bits, c->rule, from, to);
}

static void clip_share(const clip *c, size_t job, int gradient) {
  if (c->planes == 1) {
    size_t blocks = panels(c->size, CLIP_BLOCK);
    size_t from = part_start(job, c->jobs, blocks) * CLIP_BLOCK;
    clip_part(c, 0, from, least(part_start(job + 1, c->jobs, blocks) * CLIP_BLOCK, c->size), gradient);
    return;
  }
  for (size_t p = part_start(job, c->jobs, c->planes); p < part_start(job + 1, c->jobs, c->planes); p++)
    clip_part(c, p, 0, c->size, gradient);
}

static void clip_job(void *user, size_t job) { clip_share(user, job, 0); }
static void clip_gradient_job(void *user, size_t job) { clip_share(user, job, 1); }

static float bound(et_context *context, size_t index, float absent) {
  et_tensor t;
  return et_input(context, index, &t) && t.count == 1 ? *(const float *)t.data : absent;
}

static const char *clip_create(void *state, const et_attributes *attributes) {
  *(int *)state = et_attr_int(attributes, "strict", 0) != 0;
  return 0;
}

/* Bounds from inputs `index` and `index` + 1; a strict one is a ReLU's, 0 where absent. */
APART clip_rule clip_rule_of(et_context *context, size_t index, int strict) {
  float low = bound(context, index, strict ? 0 : -__builtin_inff());
  return (clip_rule){low, bound(context, index + 1, __builtin_inff()), strict};
}

/* The bits of a tensor of `planes` x `size`, as output `index`. */
APART uint8_t *clip_bits(et_context *context, size_t index, size_t planes, size_t size) {
  return et_output(context, index, (size_t[]){planes * plane_bytes(size)}, 1);
}

static void clip_compute(const void *state, et_context *context) {
  et_tensor x;
  if (!et_input(context, 0, &x)) return;
  clip c = {.x = x.data, .rule = clip_rule_of(context, 1, *(const int *)state), .jobs = jobs_for(x.count)};
  clip_planes(&c, &x);
  c.y = et_output_like(context, 0, &x);
  c.bits = clip_bits(context, 1, c.planes, c.size);
  if (c.y && c.bits) et_parallel(context, clip_job, c.jobs, &c);
}

/* Input `index`: the bits that belong to a tensor, 0 where absent or wrong. */
APART uint8_t *bits_input(et_context *context, size_t index, size_t planes, size_t size) {
  et_tensor bits;
  if (!et_input(context, index, &bits)) return 0;
  if (bits.count == planes * plane_bytes(size)) return bits.data;
  et_fail(context, "the bits of a Clip do not belong to this gradient");
  return 0;
}

static void clip_gradient(const void *state, et_context *context) {
  (void)state;
  et_tensor dy;
  if (!et_input(context, 0, &dy)) return;
  clip c = {.x = dy.data, .jobs = jobs_for(dy.count)};
  clip_planes(&c, &dy);
  c.bits = bits_input(context, 1, c.planes, c.size);
  c.y = et_output_like(context, 0, &dy);
  if (c.y && c.bits) et_parallel(context, clip_gradient_job, c.jobs, &c);
}
