/* Gradients of softmax and log-softmax over the last axis, in one pass a row: (rows, width). */

typedef struct softmax {
  const float *dy, *y;
  float *dx;
  size_t rows, width, jobs;
  float scale;
} softmax;

typedef struct axes {
  int64_t last; /* how many axes, from the end, one softmax runs over */
  float scale;  /* of dx */
} axes;

/* scale y (dy - sum of dy y). */
static void softmax_row(const float *dy, const float *y, float *dx, size_t width, float scale) {
  vf sums[4] = {{0}, {0}, {0}, {0}};
  size_t i = 0, whole = width / VL * VL, rest = width - whole;
  for (; i + 4 * VL <= width; i += 4 * VL)
#pragma GCC unroll 4
    for (size_t j = 0; j < 4; j++) sums[j] += load(dy + i + j * VL) * load(y + i + j * VL);
  for (; i < whole; i += VL) sums[0] += load(dy + i) * load(y + i);
  if (rest) sums[1] += load_part(dy + i, rest) * load_part(y + i, rest);
  vf total = splat(sum_of((sums[0] + sums[1]) + (sums[2] + sums[3])));
  for (i = 0; i < whole; i += VL) store(dx + i, scale * load(y + i) * (load(dy + i) - total));
  if (rest) store_part(dx + i, scale * load_part(y + i, rest) * (load_part(dy + i, rest) - total), rest);
}

/* dy - exp(y) sum of dy. */
static void log_softmax_row(const float *dy, const float *y, float *dx, size_t width) {
  vf sums[4] = {{0}, {0}, {0}, {0}};
  size_t i = 0, whole = width / VL * VL, rest = width - whole;
  for (; i + 4 * VL <= width; i += 4 * VL)
#pragma GCC unroll 4
    for (size_t j = 0; j < 4; j++) sums[j] += load(dy + i + j * VL);
  for (; i < whole; i += VL) sums[0] += load(dy + i);
  if (rest) sums[1] += load_part(dy + i, rest);
  vf total = splat(sum_of((sums[0] + sums[1]) + (sums[2] + sums[3])));
  for (i = 0; i < whole; i += VL) store(dx + i, load(dy + i) - vexp(load(y + i)) * total);
  if (rest) store_part(dx + i, load_part(dy + i, rest) - vexp(load_part(y + i, rest)) * total, rest);
}

static void softmax_job(void *user, size_t job) {
  const softmax *s = user;
  size_t end = part_start(job + 1, s->jobs, s->rows);
  for (size_t row = part_start(job, s->jobs, s->rows); row < end; row++) {
    size_t at = row * s->width;
    softmax_row(s->dy + at, s->y + at, s->dx + at, s->width, s->scale);
  }
}

static void log_softmax_job(void *user, size_t job) {
  const softmax *s = user;
  size_t end = part_start(job + 1, s->jobs, s->rows);
  for (size_t row = part_start(job, s->jobs, s->rows); row < end; row++) {
    size_t at = row * s->width;
    log_softmax_row(s->dy + at, s->y + at, s->dx + at, s->width);
  }
}

static const char *axes_create(void *state, const et_attributes *attributes) {
  axes *a = state;
  a->last = et_attr_int(attributes, "axes", 1);
  a->scale = et_attr_float(attributes, "scale", 1.0f);
  return a->last < 1 || a->last > ET_MAX_RANK ? "axes is from 1 to 8" : 0;
}

/* Elements of the last `axes` axes of a tensor, 0 where it has fewer. */
static size_t row_width(const axes *a, const et_tensor *x) {
  size_t width = 1;
  if (x->rank < (int)a->last) return 0;
  for (int i = x->rank - (int)a->last; i < x->rank; i++) width *= x->dim[i];
  return width;
}

APART void softmax_gradient(const axes *a, et_context *context, void (*job)(void *, size_t)) {
  et_tensor dy, y;
  if (!et_input(context, 0, &dy) || !et_input(context, 1, &y)) return;
  if (dy.count != y.count) return et_fail(context, "dy is not of the size of y");
  softmax s = {.dy = dy.data, .y = y.data, .dx = et_output_like(context, 0, &y), .scale = a->scale};
  if (!s.dx || y.count == 0) return;
  s.width = row_width(a, &y);
  if (s.width == 0) return et_fail(context, "y has fewer axes than the softmax");
  s.rows = y.count / s.width;
  s.jobs = least(s.rows, jobs_for(y.count));
  et_parallel(context, job, s.jobs, &s);
}

static void softmax_compute(const void *state, et_context *context) {
  softmax_gradient(state, context, softmax_job);
}

static void log_softmax_compute(const void *state, et_context *context) {
  softmax_gradient(state, context, log_softmax_job);
}
