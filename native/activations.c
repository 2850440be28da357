/* Activations and their gradients, element by element in one pass; a bias along the last axis may be
 * added to x on the way.
 *
 * Work is cut into rows: the bias's length, or blocks where there is none. */
enum { BLOCK = 4096 };

typedef struct curve {
  float alpha;
} curve;

typedef struct elements {
  const float *dy, *x, *bias;
  float *y, *dsum, *sums; /* sums: of each job's rows */
  size_t count, width, rows, jobs;
  float alpha;
} elements;

/* y of one vector: `dy` is there for gradients alone. */
typedef vf (*formula)(vf dy, vf x, float alpha);

INLINE vf gelu(vf dy, vf x, float alpha) {
  (void)dy, (void)alpha;
  vf bell;
  return x * normal_cdf(x, &bell);
}

/* dy (Phi(x) + x phi(x)); beyond 13 phi is 0, and an infinity times that is no NaN. */
INLINE vf gelu_slope(vf dy, vf x, float alpha) {
  (void)alpha;
  vf bell, cdf = normal_cdf(x, &bell);
  return dy * (cdf + 0.398942280f * clamp(x, -14.0f, 14.0f) * bell);
}

/* x sigmoid(z): 0 where vsigmoid stays above the true value, which a large x would make much of. */
INLINE vf gated(vf x, vf z) { return x * choose(z < -87.0f, (vf){0}, vsigmoid(z)); }

/* With u = k (x + c x^3): x (1 + tanh u) / 2 = x sigmoid(2 u). */
INLINE vf fast_gelu(vf dy, vf x, float alpha) {
  (void)dy, (void)alpha;
  return gated(x, x * (1.595769122f + 0.0713548163f * x * x));
}

/* s = sigmoid(2 u): dy (s + x s (1 - s) 2 u'). */
INLINE vf fast_gelu_slope(vf dy, vf x, float alpha) {
  (void)alpha;
  vf in = clamp(x, -16.0f, 16.0f), square = in * in;
  vf rest, s = sigmoids(in * (1.595769122f + 0.0713548163f * square), &rest);
  return dy * (s + s * rest * in * (1.595769122f + 0.2140644489f * square));
}

INLINE vf quick_gelu(vf dy, vf x, float alpha) {
  (void)dy;
  return gated(x, alpha * x);
}

/* s = sigmoid(alpha x): dy s (1 + alpha x (1 - s)). */
INLINE vf quick_gelu_slope(vf dy, vf x, float alpha) {
  vf scaled = alpha * x, rest, s = sigmoids(scaled, &rest);
  return dy * (s * (1.0f + clamp(scaled, -120.0f, 120.0f) * rest));
}

/* Of y, the output: sigmoid and tanh. */
INLINE vf sigmoid_slope(vf dy, vf y, float alpha) {
  (void)alpha;
  return dy * (y * (1.0f - y));
}
INLINE vf tanh_slope(vf dy, vf y, float alpha) {
  (void)alpha;
  return dy * (1.0f - y * y);
}
INLINE vf relu_slope(vf dy, vf y, float alpha) {
  (void)alpha;
  return (vf)((vi)dy & (y > 0.0f));
}
INLINE vf leaky_relu_slope(vf dy, vf y, float alpha) {
  return dy * choose(y > 0.0f, splat(1.0f), splat(alpha));
}

/* y = x s, s = clip(x / 6 + 1/2, 0, 1): dy (s + x / 6 between the bounds). */
INLINE vf hard_swish_slope(vf dy, vf x, float alpha) {
  (void)alpha;
  vf sixth = x * (1.0f / 6.0f);
  return dy * (clamp(sixth + 0.5f, 0.0f, 1.0f) + (vf)((vi)sixth & (size_of(x) < 3.0f)));
}

/* A part of a row in whole vectors: all that the row has of them, then its end among zeros. */
typedef struct strip {
  const float *x, *dy, *bias;
  float *y, *sums;
  size_t count, rest;
  float end[5][VL];
} strip;

/* Goes on from the vectors to the end, 0 where there is none; and from the end, which it puts back. */
APART int strip_next(strip *s, float *y, float *sums) {
  size_t bytes = s->rest * sizeof(float);
  if (s->x == s->end[0]) {
    memcpy(y, s->end[3], bytes);
    if (sums) memcpy(sums, s->end[4], bytes);
    return 0;
  }
  if (!bytes) return 0;
  const float *from[5] = {s->x, s->dy, s->bias, 0, sums};
  memset(s->end, 0, sizeof(s->end));
  for (int i = 0; i < 5; i++)
    if (from[i]) memcpy(s->end[i], from[i] + (i < 4 ? s->count : 0), bytes);
  s->x = s->end[0], s->dy = s->end[1], s->y = s->end[3], s->count = VL;
  if (s->bias) s->bias = s->end[2];
  if (s->sums) s->sums = s->end[4];
  return 1;
}

/* One row; a gradient's values are added to `sums` where there are any. */
INLINE void map_row(const elements *e, size_t at, size_t count, float *sums, formula f) {
  size_t whole = count / VL * VL;
  strip s = {.x = e->x + at, .dy = e->dy ? e->dy + at : e->x + at, .bias = e->bias, .y = e->y + at};
  s.sums = sums, s.count = whole, s.rest = count - whole;
  const float alpha = e->alpha;
  do {
    const float *x = s.x, *dy = s.dy, *bias = s.bias;
    float *y = s.y, *added = s.sums;
    for (size_t i = 0; i < s.count; i += VL) {
      vf in = load(x + i);
      if (bias) in += load(bias + i);
      vf out = f(load(dy + i), in, alpha);
      store(y + i, out);
      if (added) store(added + i, load(added + i) + out);
    }
  } while (strip_next(&s, e->y + at + whole, sums ? sums + whole : 0));
}

INLINE void map_rows(const elements *e, size_t job, formula f) {
  size_t end = part_start(job + 1, e->jobs, e->rows);
  float *sums = e->sums ? e->sums + job * e->width : 0;
  if (sums) memset(sums, 0, e->width * sizeof(float));
  for (size_t row = part_start(job, e->jobs, e->rows); row < end; row++)
    map_row(e, row * e->width, least(e->width, e->count - row * e->width), sums, f);
}

static const char *curve_create(void *state, const et_attributes *attributes) {
  curve *c = state;
  c->alpha = et_attr_float(attributes, "alpha", 1.0f);
  return 0;
}

/* Reads x and the optional bias behind it, makes y and the rows; 0 after an error. */
APART int elements_begin(elements *e, et_context *context, size_t first, et_tensor *x) {
  et_tensor bias;
  if (!et_input(context, first, x)) return 0;
  e->x = x->data;
  e->count = x->count;
  e->width = BLOCK;
  if (et_input(context, first + 1, &bias)) {
    if (bias.rank != 1 || x->rank < 1 || bias.dim[0] != x->dim[x->rank - 1])
      return et_fail(context, "the bias is not as long as the last axis of x"), 0;
    e->bias = bias.data;
    e->width = bias.count;
  }
  e->y = et_output_like(context, 0, x);
  return !et_failed(context);
}

APART void elements_run(elements *e, et_context *context, void (*job)(void *, size_t)) {
  e->rows = e->width ? panels(e->count, e->width) : 0;
  e->jobs = least(e->rows, jobs_for(e->count));
  if (e->dsum) e->sums = et_scratch(context, most(e->jobs, 1) * e->width * sizeof(float));
  et_parallel(context, job, e->jobs, e);
  if (e->dsum && !et_failed(context)) add_jobs(e->dsum, e->sums, e->width, e->width, e->jobs);
}

/* (x, bias) -> y. */
APART void elements_forward(const curve *c, et_context *context, void (*job)(void *, size_t)) {
  elements e = {.alpha = c->alpha};
  et_tensor x;
  if (elements_begin(&e, context, 0, &x)) elements_run(&e, context, job);
}

/* (dy, x, bias) -> dx, and its sum over all axes but the last. */
APART void elements_gradient(const curve *c, et_context *context, void (*job)(void *, size_t)) {
  elements e = {.alpha = c->alpha};
  et_tensor dy, x;
  if (!et_input(context, 0, &dy) || !elements_begin(&e, context, 1, &x)) return;
  if (dy.count != e.count) return et_fail(context, "dy is not of the size of x");
  e.dy = dy.data;
  size_t last = x.rank ? x.dim[x.rank - 1] : 1;
  e.dsum = last ? et_output(context, 1, &last, 1) : 0;
  if (e.dsum) e.width = last;
  elements_run(&e, context, job);
}

#define CURVE(name, whole)                                                      \
  static void name##_job(void *user, size_t job) { map_rows(user, job, name); } \
  static void name##_compute(const void *state, et_context *context) { whole(state, context, name##_job); }
#define FORWARD(name) CURVE(name, elements_forward)
#define GRADIENT(name) CURVE(name, elements_gradient)

FORWARD(gelu)
FORWARD(fast_gelu)
FORWARD(quick_gelu)
GRADIENT(gelu_slope)
GRADIENT(fast_gelu_slope)
GRADIENT(quick_gelu_slope)
GRADIENT(sigmoid_slope)
GRADIENT(tanh_slope)
GRADIENT(relu_slope)
GRADIENT(leaky_relu_slope)
GRADIENT(hard_swish_slope)

/* --- dropout backwards: mask ? scale dy : 0 --- */
typedef struct dropped {
  const float *dy;
  const uint8_t *mask;
  float *dx, scale;
  size_t count, jobs;
} dropped;

typedef uint8_t mask_bytes __attribute__((vector_size(VB / 4), aligned(1), may_alias));

static void dropped_job(void *user, size_t job) {
  const dropped d = *(const dropped *)user;
  size_t blocks = panels(d.count, BLOCK);
  size_t i = part_start(job, d.jobs, blocks) * BLOCK;
  size_t end = least(part_start(job + 1, d.jobs, blocks) * BLOCK, d.count);
  for (; i + VL <= end; i += VL) {
    vi kept = __builtin_convertvector(*(const mask_bytes *)(d.mask + i), vi) != 0;
    store(d.dx + i, (vf)((vi)(load(d.dy + i) * d.scale) & kept));
  }
  for (; i < end; i++) d.dx[i] = d.mask[i] ? d.dy[i] * d.scale : 0;
}

/* dy, mask, scale (one number) -> dx. */
static void dropped_compute(const void *state, et_context *context) {
  (void)state;
  et_tensor dy, mask, scale;
  if (!et_input(context, 0, &dy) || !et_input(context, 1, &mask) || !et_input(context, 2, &scale)) return;
  if (mask.count != dy.count || scale.count != 1)
    return et_fail(context, "the mask is not of the size of dy, or the scale not one number");
  dropped d = {.dy = dy.data, .mask = mask.data, .scale = *(const float *)scale.data, .count = dy.count};
  d.dx = et_output_like(context, 0, &dy);
  d.jobs = least(panels(d.count, BLOCK), jobs_for(d.count));
  if (d.dx) et_parallel(context, dropped_job, d.jobs, &d);
}
