/* Gradients of group normalization of (N, C, P); of instance normalization, where a group is a channel.
 *
 * A group of an image is C / groups neighbouring planes. Its mean and variance are made again from x:
 *   dx = inv_std (scale dy - mean(scale dy) - xhat mean(scale dy xhat)),
 *   dscale = sum(dy xhat), dbias = sum(dy), both over images and P. */

typedef struct group_norm {
  batchnorm planes; /* x, dy, dx as y, and p: each plane a channel of one image */
  const float *scale;
  float *sums; /* dscale and dbias of each plane */
  size_t channels, width, groups, jobs;
  float epsilon;
} group_norm;

typedef struct group_norm_state {
  float epsilon;
  int64_t groups; /* 0: as many as channels */
} group_norm_state;

/* Sums over the planes of a group: of x - shift and of its square. */
static void group_sums(const group_norm *g, size_t first, float shift, double *sum, double *squares) {
  *sum = *squares = 0;
  for (size_t i = 0; i < g->width; i++) {
    double part, square;
    channel_sums(&g->planes, first + i, 1, shift, 0, &part, &square);
    *sum += part, *squares += square;
  }
}

static void group_norm_group(const group_norm *g, size_t first) {
  const batchnorm *t = &g->planes;
  const float *scale = g->scale + first % g->channels;
  double sum, squares, count = (double)most(g->width * t->p, 1), total = 0, along = 0;
  group_sums(g, first, 0, &sum, &squares);
  float shift = (float)(sum / count); /* little cancels of what is left */
  group_sums(g, first, shift, &sum, &squares);
  double offset = sum / count, var = squares / count - offset * offset;
  float mean = (float)((double)shift + offset);
  float inv_std = 1 / __builtin_sqrtf((float)(var < 0 ? 0 : var) + g->epsilon); /* NaN stays */
  for (size_t i = 0; i < g->width; i++) {
    double dbias, dscale;
    channel_sums(t, first + i, 1, mean, t->dy, &dbias, &dscale);
    dscale *= (double)inv_std;
    g->sums[2 * (first + i)] = (float)dscale, g->sums[2 * (first + i) + 1] = (float)dbias;
    total += dbias * (double)scale[i], along += dscale * (double)scale[i];
  }
  float b = (float)(-(double)inv_std * (double)inv_std * along / count);
  float c = (float)(-(double)inv_std * total / count);
  for (size_t i = 0; i < g->width && t->y; i++) {
    size_t at = (first + i) * t->p;
    plane_affine(t->y + at, t->dy + at, t->x + at, mean, inv_std * scale[i], b, c, t->p);
  }
}

static void group_norm_job(void *user, size_t job) {
  const group_norm *g = user;
  for (size_t i = part_start(job, g->jobs, g->groups); i < part_start(job + 1, g->jobs, g->groups); i++)
    group_norm_group(g, i * g->width);
}

static const char *group_norm_create(void *state, const et_attributes *attributes) {
  group_norm_state *s = state;
  s->epsilon = et_attr_float(attributes, "epsilon", 1e-5f);
  s->groups = et_attr_int(attributes, "num_groups", 0);
  return s->groups < 0 ? "num_groups is 0 or more" : 0;
}

/* A gradient a channel: the sums of its planes, in the order of the images. */
static void group_norm_sum(const group_norm *g, float *out, size_t which) {
  for (size_t c = 0; out && c < g->channels; c++) {
    double sum = 0;
    for (size_t plane = c; plane < g->groups * g->width; plane += g->channels)
      sum += (double)g->sums[2 * plane + which];
    out[c] = (float)sum;
  }
}

/* dy, x, scale -> dx, dscale, dbias */
static void group_norm_gradient(const void *state, et_context *context) {
  const group_norm_state *s = state;
  et_tensor dy, x, scale;
  if (!et_input(context, 0, &dy) || !et_input(context, 1, &x) || !et_input(context, 2, &scale)) return;
  group_norm g = {.scale = scale.data, .channels = scale.count, .epsilon = s->epsilon};
  size_t groups = s->groups ? (size_t)s->groups : most(scale.count, 1);
  if (x.rank < 2 || x.dim[1] != scale.count || dy.count != x.count || (uint64_t)s->groups > scale.count ||
      scale.count % groups)
    return et_fail(context, "group normalization needs dy and x (N, C, ...), scale (C,), groups of one size");
  size_t planes = x.dim[0] * x.dim[1];
  g.width = scale.count / groups, g.groups = x.dim[0] * groups;
  g.planes = (batchnorm){.x = x.data, .dy = dy.data, .c = planes, .p = planes ? x.count / planes : 0};
  g.planes.y = et_output_like(context, 0, &x);
  float *dscale = et_output_like(context, 1, &scale), *dbias = et_output_like(context, 2, &scale);
  g.sums = et_scratch(context, 2 * planes * sizeof(float));
  g.jobs = least(g.groups, jobs_for(x.count));
  et_parallel(context, group_norm_job, g.jobs, &g);
  if (et_failed(context)) return;
  group_norm_sum(&g, dscale, 0);
  group_norm_sum(&g, dbias, 1);
}
