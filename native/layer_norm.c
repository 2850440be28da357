/* Gradients of layer and RMS normalisation: dx, dscale and dbias in one pass over (rows, width).
 *
 * x_hat = (x - mean) inv_std, g = dy scale: dx = inv_std (g - mean(g) - x_hat mean(g x_hat)), where RMS
 * normalisation has no mean and no bias. Each job sums dscale and dbias of its rows; the sums are added in
 * the order of the jobs. */

typedef struct layer_norm {
  const float *dy, *x, *scale, *mean, *inv_std;
  float *dx, *dscale, *dbias, *sums; /* sums: dscale and dbias of every job */
  size_t rows, width, jobs;
} layer_norm;

INLINE void norm_row(const layer_norm *n, size_t row, float *dscale, float *dbias) {
  const float *dy = n->dy + row * n->width, *x = n->x + row * n->width;
  vf mean = splat(n->mean ? n->mean[row] : 0), inv_std = splat(n->inv_std[row]);
  vf total = {0}, along = {0};
  EACH_LANES(l, n->width) {
    vf slope = lanes_load(dy, l), xhat = (lanes_load(x, l) - mean) * inv_std;
    vf g = slope * lanes_load(n->scale, l);
    total += g;
    along += g * xhat;
    lanes_store(dscale, lanes_load(dscale, l) + slope * xhat, l);
    if (dbias) lanes_store(dbias, lanes_load(dbias, l) + slope, l);
  }
  if (!n->dx) return;
  float *dx = n->dx + row * n->width, share = 1.0f / (float)n->width;
  vf shift = splat(n->mean ? sum_of(total) * share : 0), slant = splat(sum_of(along) * share);
  EACH_LANES(l, n->width) {
    vf g = lanes_load(dy, l) * lanes_load(n->scale, l), xhat = (lanes_load(x, l) - mean) * inv_std;
    lanes_store(dx, (g - shift - xhat * slant) * inv_std, l);
  }
}

static void norm_job(void *user, size_t job) {
  const layer_norm *n = user;
  float *dscale = n->sums + 2 * job * n->width, *dbias = n->mean ? dscale + n->width : 0;
  memset(dscale, 0, 2 * n->width * sizeof(float));
  size_t end = part_start(job + 1, n->jobs, n->rows);
  for (size_t row = part_start(job, n->jobs, n->rows); row < end; row++) norm_row(n, row, dscale, dbias);
}

/* Adds what the jobs have summed up to `out` (width). */
static void norm_reduce(const layer_norm *n, float *out, size_t offset) {
  if (!out) return;
  EACH_LANES(l, n->width) {
    vf sum = {0};
    for (size_t job = 0; job < n->jobs; job++) sum += lanes_load(n->sums + 2 * job * n->width + offset, l);
    lanes_store(out, sum, l);
  }
}

static void norm_run(layer_norm *n, et_context *context, const et_tensor *x, const et_tensor *scale,
                     size_t statistics) {
  n->width = scale->count;
  if (n->width == 0 || x->count % n->width || x->count / n->width != statistics)
    return et_fail(context, "the scale or the statistics do not fit x");
  n->rows = statistics;
  n->jobs = most(least(n->rows, jobs_for(x->count)), 1); /* sums of no rows are zeros */
  n->dx = et_output_like(context, 0, x);
  n->dscale = et_output_like(context, 1, scale);
  if (n->mean) n->dbias = et_output_like(context, 2, scale);
  n->sums = et_scratch(context, 2 * n->jobs * n->width * sizeof(float));
  et_parallel(context, norm_job, n->jobs, n);
  if (et_failed(context)) return;
  norm_reduce(n, n->dscale, 0);
  norm_reduce(n, n->dbias, n->width);
}

static void layer_norm_grad(const void *state, et_context *context) {
  (void)state;
  et_tensor dy, x, scale, mean, inv_std;
  if (!et_input(context, 0, &dy) || !et_input(context, 1, &x) || !et_input(context, 2, &scale) ||
      !et_input(context, 3, &mean) || !et_input(context, 4, &inv_std))
    return;
  if (dy.count != x.count || mean.count != inv_std.count)
    return et_fail(context, "dy is not of the size of x, or the mean not of inv_std's");
  layer_norm n = {
      .dy = dy.data, .x = x.data, .scale = scale.data, .mean = mean.data, .inv_std = inv_std.data};
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
