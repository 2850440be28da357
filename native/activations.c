/* Activations and their gradients, element by element in one pass; a bias along the last axis may be
 * added to x on the way.
 *
 * Work is cut into rows: the bias's length, or blocks where there is none. */
#include "math.h"

enum { BLOCK = 4096 };

typedef struct curve {
  float alpha;
} curve;

typedef struct elements {
  const float *dy, *x, *bias;
  float *y;
  size_t count, width, rows, jobs;
  float alpha;
} elements;

/* y of one vector: `dy` is there for gradients alone. */
typedef vf (*formula)(vf dy, vf x, float alpha);

#define INLINE static inline __attribute__((always_inline))

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

/* With u = k (x + c x^3): x (1 + tanh u) / 2 = x sigmoid(2 u). */
INLINE vf fast_gelu(vf dy, vf x, float alpha) {
  (void)dy, (void)alpha;
  return x * vsigmoid(x * (1.595769122f + 0.0713548163f * x * x));
}

/* s = sigmoid(2 u): dy (s + x s (1 - s) 2 u'). */
INLINE vf fast_gelu_slope(vf dy, vf x, float alpha) {
  (void)alpha;
  vf in = clamp(x, -16.0f, 16.0f), square = in * in;
  vf s = vsigmoid(in * (1.595769122f + 0.0713548163f * square));
  return dy * (s + s * (1.0f - s) * in * (1.595769122f + 0.2140644489f * square));
}

INLINE vf quick_gelu(vf dy, vf x, float alpha) {
  (void)dy;
  return x * vsigmoid(alpha * x);
}

/* s = sigmoid(alpha x): dy s (1 + alpha x (1 - s)). */
INLINE vf quick_gelu_slope(vf dy, vf x, float alpha) {
  vf scaled = alpha * x, s = vsigmoid(scaled);
  return dy * (s * (1.0f + clamp(scaled, -120.0f, 120.0f) * (1.0f - s)));
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

/* One row, `bias` its first element or 0. */
INLINE void map_row(const elements *e, size_t at, size_t count, formula f) {
  const float *x = e->x + at, *dy = e->dy ? e->dy + at : x;
  float *y = e->y + at;
  size_t i = 0;
  for (; i + VL <= count; i += VL) {
    vf in = load(x + i);
    if (e->bias) in += load(e->bias + i);
    store(y + i, f(load(dy + i), in, e->alpha));
  }
  if (i == count) return;
  vf in = load_part(x + i, count - i);
  if (e->bias) in += load_part(e->bias + i, count - i);
  store_part(y + i, f(load_part(dy + i, count - i), in, e->alpha), count - i);
}

INLINE void map_rows(const elements *e, size_t job, formula f) {
  size_t end = part_start(job + 1, e->jobs, e->rows);
  for (size_t row = part_start(job, e->jobs, e->rows); row < end; row++)
    map_row(e, row * e->width, least(e->width, e->count - row * e->width), f);
}

static const char *curve_create(void *state, const et_attributes *attributes) {
  curve *c = state;
  c->alpha = et_attr_float(attributes, "alpha", 1.0f);
  return 0;
}

/* Reads x and the optional bias behind it, makes y and the rows; 0 after an error. */
static int elements_begin(elements *e, et_context *context, size_t first) {
  et_tensor x, bias;
  if (!et_input(context, first, &x)) return 0;
  e->x = x.data;
  e->count = x.count;
  e->width = BLOCK;
  if (et_input(context, first + 1, &bias)) {
    if (bias.rank != 1 || x.rank < 1 || bias.dim[0] != x.dim[x.rank - 1])
      return et_fail(context, "the bias is not as long as the last axis of x"), 0;
    e->bias = bias.data;
    e->width = bias.count;
  }
  e->y = et_output_like(context, 0, &x);
  if (!e->y || e->count == 0) return 0;
  e->rows = panels(e->count, e->width);
  e->jobs = least(e->rows, jobs_for(e->count));
  return 1;
}

/* A forward op (x, bias) and a gradient (dy, x, bias). */
#define FORWARD(name, f)                                                              \
  static void name##_job(void *user, size_t job) { map_rows(user, job, f); }          \
  static void name##_compute(const void *state, et_context *context) {                \
    elements e = {.alpha = ((const curve *)state)->alpha};                            \
    if (elements_begin(&e, context, 0)) et_parallel(context, name##_job, e.jobs, &e); \
  }
#define GRADIENT(name, f)                                                           \
  static void name##_job(void *user, size_t job) { map_rows(user, job, f); }        \
  static void name##_compute(const void *state, et_context *context) {              \
    elements e = {.alpha = ((const curve *)state)->alpha};                          \
    et_tensor dy;                                                                   \
    if (!et_input(context, 0, &dy) || !elements_begin(&e, context, 1)) return;      \
    if (dy.count != e.count) return et_fail(context, "dy is not of the size of x"); \
    e.dy = dy.data;                                                                 \
    et_parallel(context, name##_job, e.jobs, &e);                                   \
  }

FORWARD(gelu, gelu)
FORWARD(fast_gelu, fast_gelu)
FORWARD(quick_gelu, quick_gelu)
GRADIENT(gelu_grad, gelu_slope)
GRADIENT(fast_gelu_grad, fast_gelu_slope)
GRADIENT(quick_gelu_grad, quick_gelu_slope)
GRADIENT(sigmoid_grad, sigmoid_slope)
GRADIENT(tanh_grad, tanh_slope)
GRADIENT(relu_grad, relu_slope)
GRADIENT(leaky_relu_grad, leaky_relu_slope)
