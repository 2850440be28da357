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

/* Sum of f(x - shift) over a channel; with dy: of dy (x - shift), and of dy alone into `plain`. */
static double channel_sum(const batchnorm *t, size_t channel, float shift, int square, const float *dy,
                          double *plain) {
  double total = 0, other = 0;
  for (size_t n = 0; n < t->n; n++) {
    size_t at = (n * t->c + channel) * t->p, p = 0;
    const float *x = t->x + at, *g = dy ? dy + at : 0;
    vf sum[CHAINS] = {{0}}, direct[CHAINS] = {{0}};
    for (; p + CHAINS * VL <= t->p; p += CHAINS * VL)
      for (int j = 0; j < CHAINS; j++) {
        vf v = load(x + p + j * VL) - splat(shift), w = g ? load(g + p + j * VL) : v;
        if (g) direct[j] += w;
        sum[j] += square || g ? v * w : v;
      }
    float rest = 0, rest_direct = 0;
    for (; p < t->p; p++) {
      float v = x[p] - shift, w = g ? g[p] : v;
      if (g) rest_direct += w;
      rest += square || g ? v * w : v;
    }
    total += (double)(sum_of((sum[0] + sum[1]) + (sum[2] + sum[3])) + rest);
    if (g) other += (double)(sum_of((direct[0] + direct[1]) + (direct[2] + direct[3])) + rest_direct);
  }
  if (plain) *plain = other;
  return total;
}

/* y = x * slope + offset for one plane (x and other may be one array). */
static void plane_affine(float *y, const float *x, const float *other, float slope, float other_slope,
                         float offset, size_t count) {
  size_t p = 0;
  for (; p + VL <= count; p += VL)
    store(y + p, splat(slope) * load(x + p) + (splat(other_slope) * load(other + p) + splat(offset)));
  for (; p < count; p++) y[p] = slope * x[p] + (other_slope * other[p] + offset);
}

static void batchnorm_channel(const batchnorm *t, size_t channel) {
  double count = (double)(t->n * t->p);
  float mean = (float)(channel_sum(t, channel, 0, 0, 0, 0) / count);
  float var = (float)(channel_sum(t, channel, mean, 1, 0, 0) / count);
  float inv_std = 1 / __builtin_sqrtf(var + t->epsilon), gain = t->gain[channel] * inv_std;
  if (t->mean) t->mean[channel] = mean;
  float keep = t->momentum;
  if (t->new_mean) t->new_mean[channel] = t->old_mean[channel] * keep + mean * (1 - keep);
  if (t->new_var) t->new_var[channel] = t->old_var[channel] * keep + var * (1 - keep);
  if (t->inv_std) t->inv_std[channel] = inv_std;
  for (size_t n = 0; n < t->n; n++) {
    size_t plane = n * t->c + channel;
    const float *x = t->x + plane * t->p;
    float *y = t->y + plane * t->p;
    size_t p = 0;
    for (; p + VL <= t->p; p += VL)
      store(y + p, (load(x + p) - splat(mean)) * splat(gain) + splat(t->bias[channel]));
    for (; p < t->p; p++) y[p] = (x[p] - mean) * gain + t->bias[channel];
    if (t->bits) clip_range(y, y, t->bits + plane * plane_bytes(t->p), t->rule, 0, t->p);
  }
}

static void batchnorm_gradient_channel(const batchnorm *t, size_t channel) {
  double count = (double)(t->n * t->p), dbias;
  float mean = t->mean[channel], inv_std = t->inv_std[channel];
  double dot = channel_sum(t, channel, mean, 0, t->dy, &dbias) * (double)inv_std;
  if (t->dgain) t->dgain[channel] = (float)dot;
  if (t->dbias) t->dbias[channel] = (float)dbias;
  if (!t->y) return;
  /* dx = a dy + b (x - mean) + c */
  float a = t->gain[channel] * inv_std;
  float b = (float)(-(double)a * (double)inv_std * dot / count), c = (float)(-(double)a * dbias / count);
  for (size_t n = 0; n < t->n; n++) {
    size_t at = (n * t->c + channel) * t->p;
    plane_affine(t->y + at, t->dy + at, t->x + at, a, b, c - b * mean, t->p);
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
