/* Training batch normalization of (N, C, P) and its gradient: a channel at a time, so that the passes
 * after the first find it in the cache.
 *
 *   y = gain (x - mean) / sqrt(var + eps) + bias, clipped where a Clip or ReLU follows
 *   dx = gain inv_std (dy - mean(dy) - xhat mean(dy xhat)), dgain = sum(dy xhat), dbias = sum(dy) */

enum { CHAINS = 4 }; /* sums side by side hide the latency of an addition */

typedef struct batchnorm {
  const float *x, *dy, *gain, *bias, *old_mean, *old_var;
  float *y, *mean, *inv_std, *dgain, *dbias, *new_mean, *new_var;
  uint8_t *bits;
  clip_rule rule;
  float epsilon, momentum;
  size_t n, c, p;
} batchnorm;

typedef struct batchnorm_state {
  float epsilon, momentum;
  int strict;
} batchnorm_state;

enum { HELD = 16384 }; /* numbers that are added up in float32 before the sums go on in double */

/* Sums over a channel of a and of a b, where a = x - shift and b = a, or, with dy, a = dy and
 * b = x - shift. */
APART void channel_sums(const batchnorm *t, size_t channel, size_t images, float shift, const float *dy,
                        double *sum, double *dot) {
  vf s[CHAINS] = {{0}}, q[CHAINS] = {{0}};
  *sum = *dot = 0;
  for (size_t n = 0, held = 0; n < images; n++) {
    size_t at = (n * t->c + channel) * t->p, p = 0, rest = t->p % VL;
    const float *x = t->x + at, *first = dy ? dy + at : x;
    vf offset = splat(dy ? 0 : shift);
    for (; p + CHAINS * VL <= t->p; p += CHAINS * VL)
#pragma GCC unroll 4
      for (int j = 0; j < CHAINS; j++) {
        vf b = load(x + p + j * VL) - splat(shift), a = load(first + p + j * VL) - offset;
        s[j] += a, q[j] += a * b;
      }
    for (; p + VL <= t->p; p += VL) {
      vf b = load(x + p) - splat(shift), a = load(first + p) - offset;
      s[1] += a, q[1] += a * b;
    }
    if (rest) {
      vi inside = lane_bits() < (vi){0} + (1 << rest);
      vf b = load_part(x + p, rest) - splat(shift), a = load_part(first + p, rest) - offset;
      s[0] += (vf)((vi)a & inside), q[0] += (vf)((vi)(a * b) & inside);
    }
    if ((held += t->p) < HELD && n + 1 < images) continue;
    *sum += (double)sum_of((s[0] + s[1]) + (s[2] + s[3]));
    *dot += (double)sum_of((q[0] + q[1]) + (q[2] + q[3]));
#pragma GCC unroll 4
    for (int j = 0; j < CHAINS; j++) s[j] = q[j] = (vf){0};
    held = 0;
  }
}

/* dx = a dy + b (x - mean) + c for one plane. */
APART void plane_affine(float *dx, const float *dy, const float *x, float mean, float a, float b, float c,
                        size_t count) {
  EACH_LANES(l, count) {
    vf rest = splat(b) * (lanes_load(x, l) - splat(mean)) + splat(c);
    lanes_store(dx, splat(a) * lanes_load(dy, l) + rest, l);
  }
}

/* Mean and variance of a channel in one pass: sums of x - shift and of its square, where the shift is
 * the mean of the first image, so that little cancels. */
static void channel_moments(const batchnorm *t, size_t channel, float *mean, float *var) {
  double sum, squares, count = (double)(t->n * t->p);
  channel_sums(t, channel, 1, 0, 0, &sum, &squares);
  float shift = (float)(sum / (double)t->p);
  channel_sums(t, channel, t->n, shift, 0, &sum, &squares);
  double offset = sum / count, spread = squares / count - offset * offset;
  *mean = (float)((double)shift + offset);
  *var = (float)(spread < 0 ? 0 : spread); /* NaN stays */
}

/* One plane of y, and the bits of a Clip behind it. */
static void batchnorm_plane(const batchnorm *t, size_t plane, float mean, float gain, float bias) {
  const float *x = t->x + plane * t->p;
  float *y = t->y + plane * t->p;
  uint8_t *bits = t->bits ? t->bits + plane * plane_bytes(t->p) : 0;
  vf lo = splat(t->rule.low), hi = splat(t->rule.high);
  size_t p = 0;
  for (; p + CLIP_BLOCK <= t->p; p += CLIP_BLOCK) {
    uint32_t all = 0;
#pragma GCC unroll 4
    for (int j = 0; j < CLIP_BLOCK / VL; j++) {
      vf v = (load(x + p + j * VL) - splat(mean)) * splat(gain) + splat(bias);
      if (bits) {
        all |= bits_of(passes(v, lo, hi, t->rule.strict)) << (j * VL);
        v = clipped(v, lo, hi);
      }
      store(y + p + j * VL, v);
    }
    if (bits) bits[p / 8] = (uint8_t)all, bits[p / 8 + 1] = (uint8_t)(all >> 8);
  }
  size_t tail = p;
  EACH_LANES(l, t->p - tail)
  lanes_store(y + tail, (lanes_load(x + tail, l) - splat(mean)) * splat(gain) + splat(bias), l);
  if (bits) clip_range(y, y, bits, t->rule, tail, t->p);
}

static void batchnorm_channel(const batchnorm *t, size_t channel) {
  float mean, var, keep = t->momentum;
  channel_moments(t, channel, &mean, &var);
  float inv_std = 1 / __builtin_sqrtf(var + t->epsilon), gain = t->gain[channel] * inv_std;
  if (t->mean) t->mean[channel] = mean;
  if (t->new_mean) t->new_mean[channel] = t->old_mean[channel] * keep + mean * (1 - keep);
  if (t->new_var) t->new_var[channel] = t->old_var[channel] * keep + var * (1 - keep);
  if (t->inv_std) t->inv_std[channel] = inv_std;
  for (size_t n = 0; n < t->n; n++) batchnorm_plane(t, n * t->c + channel, mean, gain, t->bias[channel]);
}

static void batchnorm_gradient_channel(const batchnorm *t, size_t channel) {
  double count = (double)(t->n * t->p), dbias, dot;
  float mean = t->mean[channel], inv_std = t->inv_std[channel];
  channel_sums(t, channel, t->n, mean, t->dy, &dbias, &dot);
  dot *= (double)inv_std;
  if (t->dgain) t->dgain[channel] = (float)dot;
  if (t->dbias) t->dbias[channel] = (float)dbias;
  if (!t->y) return;
  /* dx = a dy + b (x - mean) + c */
  float a = t->gain[channel] * inv_std;
  float b = (float)(-(double)a * (double)inv_std * dot / count), c = (float)(-(double)a * dbias / count);
  for (size_t n = 0; n < t->n; n++) {
    size_t at = (n * t->c + channel) * t->p;
    plane_affine(t->y + at, t->dy + at, t->x + at, mean, a, b, c, t->p);
  }
}

static void batchnorm_job(void *user, size_t job) {
  const batchnorm *t = user;
  size_t jobs = least(MAX_JOBS, t->c);
  for (size_t c = part_start(job, jobs, t->c); c < part_start(job + 1, jobs, t->c); c++)
    batchnorm_channel(t, c);
}

static void batchnorm_gradient_job(void *user, size_t job) {
  const batchnorm *t = user;
  size_t jobs = least(MAX_JOBS, t->c);
  for (size_t c = part_start(job, jobs, t->c); c < part_start(job + 1, jobs, t->c); c++)
    batchnorm_gradient_channel(t, c);
}

static const char *batchnorm_create(void *state, const et_attributes *attributes) {
  batchnorm_state *s = state;
  s->epsilon = et_attr_float(attributes, "epsilon", 1e-5f);
  s->momentum = et_attr_float(attributes, "momentum", 0.9f);
  return clip_create(&s->strict, attributes);
}

/* x (N, C, ...) and what there is a number a channel of, inputs `from` to `to`; 0 after an error. */
static int batchnorm_sizes(et_context *context, batchnorm *t, const et_tensor *x, size_t from, size_t to,
                           const float **vectors) {
  if (x->rank < 2) return et_fail(context, "batch normalization needs x (N, C, ...)"), 0;
  *t = (batchnorm){.x = x->data, .n = x->dim[0], .c = x->dim[1], .p = 1};
  for (int i = 2; i < x->rank; i++) t->p *= x->dim[i];
  for (size_t i = from; i < to; i++) {
    et_tensor vector;
    if (!et_input(context, i, &vector)) return 0;
    if (vector.count != t->c)
      return et_fail(context, "batch normalization needs scale, bias, mean and variance (C,)"), 0;
    vectors[i - from] = vector.data;
  }
  if (t->n * t->p == 0 && t->c) return et_fail(context, "batch normalization of an empty batch"), 0;
  return 1;
}

/* x, scale, bias, running mean and variance, low?, high? -> y, moved mean and (biased) variance, the
 * batch's mean, 1 / std, bits? */
static void batchnorm_compute(const void *state, et_context *context) {
  const batchnorm_state *s = state;
  et_tensor x;
  batchnorm t;
  const float *vectors[4];
  if (!et_input(context, 0, &x) || !batchnorm_sizes(context, &t, &x, 1, 5, vectors)) return;
  t.gain = vectors[0], t.bias = vectors[1], t.old_mean = vectors[2], t.old_var = vectors[3];
  t.epsilon = s->epsilon, t.momentum = s->momentum;
  t.rule = clip_rule_of(context, 5, s->strict);
  t.y = et_output_like(context, 0, &x);
  t.new_mean = et_output(context, 1, &t.c, 1);
  t.new_var = et_output(context, 2, &t.c, 1);
  t.mean = et_output(context, 3, &t.c, 1);
  t.inv_std = et_output(context, 4, &t.c, 1);
  t.bits = clip_bits(context, 5, t.n * t.c, t.p);
  if (t.bits && x.rank == 2)
    et_fail(context, "batch normalization clips tensors of three axes and more");
  else if (t.y)
    et_parallel(context, batchnorm_job, least(MAX_JOBS, t.c), &t);
}

/* dy, x, scale, mean, inv_std -> dx, dscale, dbias */
static void batchnorm_gradient(const void *state, et_context *context) {
  (void)state;
  et_tensor dy, x;
  batchnorm t;
  const float *vectors[3];
  if (!et_input(context, 0, &dy) || !et_input(context, 1, &x)) return;
  if (!batchnorm_sizes(context, &t, &x, 2, 5, vectors)) return;
  if (dy.count != x.count) {
    et_fail(context, "dy has another shape than the input of the batch normalization");
    return;
  }
  t.dy = dy.data;
  t.gain = vectors[0];
  t.mean = (float *)vectors[1];
  t.inv_std = (float *)vectors[2];
  t.y = et_output_like(context, 0, &x);
  t.dgain = et_output(context, 1, &t.c, 1);
  t.dbias = et_output(context, 2, &t.c, 1);
  if (t.y || t.dgain || t.dbias) et_parallel(context, batchnorm_gradient_job, least(MAX_JOBS, t.c), &t);
}
