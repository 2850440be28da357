/* (B, S, H, D) to (B, H, S, D) with a bias (H, D) on the way, and its gradient with the bias's. */

typedef struct heads {
  const float *x, *bias;
  float *y, *sums;
  size_t batch, length, heads, width, jobs; /* x is (batch, length, heads, width) */
} heads;

static void heads_copy(float *y, const float *x, const float *bias, size_t width) {
  EACH_LANES(l, width) {
    vf v = lanes_load(x, l);
    lanes_store(y, bias ? v + lanes_load(bias, l) : v, l);
  }
}

/* Each job writes whole rows of y (batch, heads, length, width). */
static void heads_job(void *user, size_t job) {
  const heads *h = user;
  size_t units = h->batch * h->heads, end = part_start(job + 1, h->jobs, units);
  for (size_t unit = part_start(job, h->jobs, units); unit < end; unit++) {
    size_t batch = unit / h->heads, head = unit % h->heads;
    const float *bias = h->bias ? h->bias + head * h->width : 0;
    const float *x = h->x + (batch * h->length * h->heads + head) * h->width;
    float *y = h->y + unit * h->length * h->width;
    for (size_t i = 0; i < h->length; i++)
      heads_copy(y + i * h->width, x + i * h->heads * h->width, bias, h->width);
  }
}

/* A sequence's part of dx and of the sums; dy is (batch, heads, length, width). */
static void heads_gradient_job(void *user, size_t job) {
  const heads *h = user;
  size_t all = h->heads * h->width, units = h->batch * h->length;
  float *sums = h->sums ? h->sums + job * all : 0;
  if (sums) memset(sums, 0, all * sizeof(float));
  for (size_t unit = part_start(job, h->jobs, units); unit < part_start(job + 1, h->jobs, units); unit++)
    for (size_t head = 0; head < h->heads; head++) {
      size_t from = ((unit / h->length * h->heads + head) * h->length + unit % h->length) * h->width;
      float *y = h->y + unit * all + head * h->width;
      heads_copy(y, h->x + from, 0, h->width);
      if (sums) heads_copy(sums + head * h->width, y, sums + head * h->width, h->width);
    }
}

/* x (B, S, H, D), bias (H D) -> y (B, H, S, D). */
static void heads_compute(const void *state, et_context *context) {
  (void)state;
  et_tensor x, bias;
  if (!et_input(context, 0, &x)) return;
  if (x.rank != 4) return et_fail(context, "heads have four axes");
  heads h = {.x = x.data, .batch = x.dim[0], .length = x.dim[1], .heads = x.dim[2], .width = x.dim[3]};
  if (et_input(context, 1, &bias)) {
    if (bias.count != h.heads * h.width) return et_fail(context, "the bias is not as long as all heads");
    h.bias = bias.data;
  }
  h.y = et_output(context, 0, (size_t[]){h.batch, h.heads, h.length, h.width}, 4);
  if (!h.y || x.count == 0) return;
  h.jobs = least(h.batch * h.heads, jobs_for(x.count));
  et_parallel(context, heads_job, h.jobs, &h);
}

/* dy (B, H, S, D) -> dx (B, S, H, D), dbias (H D). */
static void heads_gradient(const void *state, et_context *context) {
  (void)state;
  et_tensor dy;
  if (!et_input(context, 0, &dy)) return;
  if (dy.rank != 4) return et_fail(context, "heads have four axes");
  heads h = {.x = dy.data, .batch = dy.dim[0], .heads = dy.dim[1], .length = dy.dim[2], .width = dy.dim[3]};
  size_t all = h.heads * h.width;
  h.y = et_output(context, 0, (size_t[]){h.batch, h.length, h.heads, h.width}, 4);
  float *dbias = all ? et_output(context, 1, &all, 1) : 0;
  h.jobs = most(least(h.batch * h.length, jobs_for(dy.count)), 1);
  if (dbias) h.sums = et_scratch(context, h.jobs * all * sizeof(float));
  if (!h.y || all == 0) return;
  et_parallel(context, heads_gradient_job, h.jobs, &h);
  if (dbias && !et_failed(context)) add_jobs(dbias, h.sums, all, all, h.jobs);
}
