/* Gradients of layer and RMS normalisation: dx, dscale and dbias in one pass over (rows, width).
 *
 * x_hat = (x - mean) inv_std, g = dy scale: dx = inv_std (g - mean(g) - x_hat mean(g x_hat)), where RMS
 * normalisation has no mean and no bias. Each job sums dscale and dbias of its rows; the sums are added in
 * the order of the jobs. */

/* Rows a job keeps: sums of dscale, dbias and dx, and a dy of several; gradients beside dy. */
enum { SUMS = 4, MORE = 3 };

typedef struct layer_norm {
  const float *dy, *x, *scale, *mean, *inv_std;
  const float *more[MORE];
  size_t mores;
  float *dx, *dscale, *dbias, *dsum, *sums;
  size_t rows, width, jobs;
} layer_norm;

/* dy of a row: the sum of all that arrive, at `to` where there are several. */
APART const float *norm_slope(const layer_norm *n, size_t row, float *to) {
  const float *dy = n->dy + row * n->width;
  for (size_t i = 0; i < n->mores; i++, dy = to) add_rows(to, dy, n->more[i] + row * n->width, n->width);
  return dy;
}

INLINE void norm_row(const layer_norm *n, size_t row, float *dscale, float *dbias, float *dsum) {
  size_t width = n->width;
  float *dx = n->dx ? n->dx + row * width : 0;
  const float *x = n->x + row * width, *scale = n->scale;
  const float *dy = norm_slope(n, row, dx ? dx : dscale + 3 * width);
  vf mean = splat(n->mean ? n->mean[row] : 0), inv_std = splat(n->inv_std[row]);
  vf total = {0}, along = {0};
  EACH_LANES(l, width) {
    vf slope = lanes_load(dy, l), xhat = (lanes_load(x, l) - mean) * inv_std;
    vf g = slope * lanes_load(scale, l);
    total += g;
    along += g * xhat;
    lanes_store(dscale, lanes_load(dscale, l) + slope * xhat, l);
    if (dbias) lanes_store(dbias, lanes_load(dbias, l) + slope, l);
  }
  if (!dx) return;
  float share = 1.0f / (float)width;
  vf shift = splat(n->mean ? sum_of(total) * share : 0), slant = splat(sum_of(along) * share);
  EACH_LANES(l, width) {
    vf g = lanes_load(dy, l) * lanes_load(scale, l), xhat = (lanes_load(x, l) - mean) * inv_std;
    vf out = (g - shift - xhat * slant) * inv_std;
    lanes_store(dx, out, l);
    if (dsum) lanes_store(dsum, lanes_load(dsum, l) + out, l);
  }
}

static void norm_job(void *user, size_t job) {
  const layer_norm own = *(const layer_norm *)user, *n = &own; /* no store below can alias it */
  float *dscale = n->sums + SUMS * job * n->width, *dbias = n->mean ? dscale + n->width : 0;
  float *dsum = n->dsum ? dscale + 2 * n->width : 0;
  memset(dscale, 0, SUMS * n->width * sizeof(float));
  size_t row = part_start(job, n->jobs, n->rows), end = part_start(job + 1, n->jobs, n->rows);
  for (; row < end; row++) norm_row(n, row, dscale, dbias, dsum);
}

APART void norm_run(layer_norm *n, et_context *context, const et_tensor *x, const et_tensor *scale,
                    size_t statistics) {
  n->width = scale->count;
  if (n->width == 0 || x->count % n->width || x->count / n->width != statistics)
    return et_fail(context, "the scale or the statistics do not fit x");
  n->rows = statistics;
  n->jobs = most(least(n->rows, jobs_for(x->count)), 1); /* sums of no rows are zeros */
  n->dx = et_output_like(context, 0, x);
  n->dscale = et_output_like(context, 1, scale);
  if (n->mean) n->dbias = et_output_like(context, 2, scale);
  n->sums = et_scratch(context, SUMS * n->jobs * n->width * sizeof(float));
  et_parallel(context, norm_job, n->jobs, n);
  if (et_failed(context)) return;
  if (n->dscale) add_jobs(n->dscale, n->sums, n->width, SUMS * n->width, n->jobs);
  if (n->dbias) add_jobs(n->dbias, n->sums + n->width, n->width, SUMS * n->width, n->jobs);
  if (n->dsum) add_jobs(n->dsum, n->sums + 2 * n->width, n->width, SUMS * n->width, n->jobs);
}

/* dy, x, scale, mean, inv_std, more of dy -> dx, dscale, dbias, the sum of dx over its rows. */
static void layer_norm_grad(const void *state, et_context *context) {
  (void)state;
  et_tensor dy, x, scale, mean, inv_std, more;
  if (!et_input(context, 0, &dy) || !et_input(context, 1, &x) || !et_input(context, 2, &scale) ||
      !et_input(context, 3, &mean) || !et_input(context, 4, &inv_std))
    return;
  if (dy.count != x.count || mean.count != inv_std.count)
    return et_fail(context, "dy is not of the size of x, or the mean not of inv_std's");
  layer_norm n = {
      .dy = dy.data, .x = x.data, .scale = scale.data, .mean = mean.data, .inv_std = inv_std.data};
  for (size_t i = 0; i < MORE && et_input(context, 5 + i, &more); i++) {
    if (more.count != x.count) return et_fail(context, "dy is not of the size of x");
    n.more[n.mores++] = more.data;
  }
  n.dsum = et_output_like(context, 3, &scale);
  norm_run(&n, context, &x, &scale, inv_std.count);
}

static void rms_norm_grad(const void *state, et_context *context) {
  (void)state;
  et_tensor dy, x, scale, inv_rms;
  if (!et_input(context, 0, &dy) || !et_input(context, 1, &x) || !et_input(context, 2, &scale) ||
      !et_input(context, 3, &inv_rms))
    return;
  if (dy.count != x.count) return et_fail(context, "dy is not of the size of x");
  layer_norm n = {.dy = dy.data, .x = x.data, .scale = scale.data, .inv_std = inv_rms.data};
  norm_run(&n, context, &x, &scale, inv_rms.count);
}

/* --- the forward pass of x = a + bias + residual --- */
typedef struct added_norm {
  const float *a, *bias, *residual, *scale, *shift;
  float *y, *mean, *inv_std, *x, *rows_of_jobs;
  size_t rows, width, jobs;
  float epsilon;
} added_norm;

INLINE void added_norm_row(const added_norm *n, size_t row, float *x) {
  size_t at = row * n->width;
  vf total = {0}, squares = {0};
  EACH_LANES(l, n->width) {
    vf v = lanes_load(n->a + at, l);
    if (n->bias) v += lanes_load(n->bias, l);
    if (n->residual) v += lanes_load(n->residual + at, l);
    lanes_store(x, v, l);
    total += v;
  }
  float mean = sum_of(total) / (float)n->width;
  EACH_LANES(l, n->width) {
    vf v = lanes_load(x, l) - mean;
    if (l.count < VL)
      for (size_t i = l.count; i < VL; i++) v[i] = 0;
    squares += v * v;
  }
  float inv_std = 1.0f / root_of(sum_of(squares) / (float)n->width + n->epsilon);
  EACH_LANES(l, n->width) {
    vf y = (lanes_load(x, l) - mean) * inv_std * lanes_load(n->scale, l);
    lanes_store(n->y + at, n->shift ? y + lanes_load(n->shift, l) : y, l);
  }
  if (n->mean) n->mean[row] = mean;
  if (n->inv_std) n->inv_std[row] = inv_std;
}

static void added_norm_job(void *user, size_t job) {
  const added_norm own = *(const added_norm *)user, *n = &own;
  size_t end = part_start(job + 1, n->jobs, n->rows);
  for (size_t row = part_start(job, n->jobs, n->rows); row < end; row++)
    added_norm_row(n, row, n->x ? n->x + row * n->width : n->rows_of_jobs + job * n->width);
}

static const char *added_norm_create(void *state, const et_attributes *attributes) {
  *(float *)state = et_attr_float(attributes, "epsilon", 1e-5f);
  return 0;
}

/* a, bias, residual, scale, shift -> y, mean, inv_std, x. */
static void added_norm_compute(const void *state, et_context *context) {
  et_tensor a, t, scale;
  added_norm n = {.epsilon = *(const float *)state};
  if (!et_input(context, 0, &a) || !et_input(context, 3, &scale)) return;
  n.width = scale.count;
  if (a.rank < 1 || scale.rank != 1 || n.width == 0 || n.width != a.dim[a.rank - 1])
    return et_fail(context, "the scale is not as long as the last axis");
  n.a = a.data;
  n.scale = scale.data;
  if (et_input(context, 1, &t)) {
    if (t.count != n.width) return et_fail(context, "the bias is not as long as the last axis");
    n.bias = t.data;
  }
  if (et_input(context, 2, &t)) {
    if (t.count != a.count) return et_fail(context, "the residual is not of the size of what it is added to");
    n.residual = t.data;
  }
  if (et_input(context, 4, &t)) {
    if (t.count != n.width) return et_fail(context, "the shift is not as long as the last axis");
    n.shift = t.data;
  }
  n.rows = a.count / n.width;
  n.jobs = most(least(n.rows, jobs_for(a.count)), 1);
  n.y = et_output_like(context, 0, &a);
  et_tensor statistics = a;
  statistics.dim[a.rank - 1] = 1;
  n.mean = et_output_like(context, 1, &statistics);
  n.inv_std = et_output_like(context, 2, &statistics);
  n.x = et_output_like(context, 3, &a);
  if (!n.x) n.rows_of_jobs = et_scratch(context, n.jobs * n.width * sizeof(float));
  et_parallel(context, added_norm_job, n.jobs, &n);
}
