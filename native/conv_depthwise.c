/* Depthwise convolution of (N, C, H, W) and its gradient, one filter a channel, in the layout of
 * conv_layout.c. */

#define WRONG_BIAS "the bias of a convolution has a number for each channel of its output"

static void depthwise_forward(const depthwise *d, size_t channel, float *x) {
  size_t taps = d->kh * d->kw, phases = d->at.stride[0] * d->at.stride[1];
  float *out = x + phases * d->phase;
  const float *w = d->w + channel * taps;
  float bias = d->bias ? d->bias[channel] : 0;
  memset(x, 0, phases * d->phase * sizeof(float)); /* pads stay zero for every image */
  for (size_t n = 0; n < d->n; n++) {
    spread_plane(d, x, d->x + (n * d->c + channel) * d->h * d->wide);
    for (size_t i = 0; i < d->span; i += 4 * VL) {
      vf sum[4] = {splat(bias), splat(bias), splat(bias), splat(bias)};
      for (size_t t = 0; t < taps; t++) {
        const float *from = x + d->shift[t] + i;
        vf tap = splat(w[t]);
        for (int j = 0; j < 4; j++) sum[j] += tap * load(from + j * VL);
      }
      for (int j = 0; j < 4; j++) store(out + i + j * VL, sum[j]);
    }
    float *y = d->y + (n * d->c + channel) * d->oh * d->ow;
    for (size_t r = 0; r < d->oh; r++)
      for (size_t i = 0; i < d->ow; i++) y[r * d->ow + i] = out[r * d->row + i];
    size_t size = d->oh * d->ow;
    if (d->bits) clip_range(y, y, d->bits + (n * d->c + channel) * plane_bytes(size), d->rule, 0, size);
  }
}

/* Sums of `taps` (a constant) taps over a plane: dy is loaded once for all of them. */
static inline __attribute__((always_inline)) void depthwise_taps(const depthwise *d, vf *sums, const float *x,
                                                                 const float *dy, size_t first, int taps) {
  const float *from[6];
  vf sum[6];
  for (int t = 0; t < taps; t++) from[t] = x + d->shift[first + (size_t)t], sum[t] = sums[first + (size_t)t];
  for (size_t i = 0; i < d->span; i += VL) {
    vf g = load(dy + i);
    for (int t = 0; t < taps; t++) sum[t] += g * load(from[t] + i);
  }
  for (int t = 0; t < taps; t++) sums[first + (size_t)t] = sum[t];
}

static void depthwise_weights(const depthwise *d, vf *sums, const float *x, const float *dy) {
  size_t taps = d->kh * d->kw, t = 0;
  for (; t + 6 <= taps; t += 6) depthwise_taps(d, sums, x, dy, t, 6);
  for (; t + 3 <= taps; t += 3) depthwise_taps(d, sums, x, dy, t, 3);
  for (; t < taps; t++) depthwise_taps(d, sums, x, dy, t, 1);
}

/* dx of every phase: each element gathers dy times the taps that read it. */
static void depthwise_input(const depthwise *d, float *dx, const float *dy, const float *w) {
  size_t taps = d->kh * d->kw, phases = d->at.stride[0] * d->at.stride[1];
  for (size_t phase = 0; phase < phases; phase++) {
    const float *from[MAX_TAPS];
    float weight[MAX_TAPS];
    size_t count = 0;
    for (size_t t = 0; t < taps; t++)
      if (d->shift[t] - d->within[t] == phase * d->phase)
        from[count] = dy - d->within[t], weight[count++] = w[t];
    for (size_t i = 0; i < d->phase - VL; i += 4 * VL) {
      vf sum[4] = {{0}, {0}, {0}, {0}};
      for (size_t t = 0; t < count; t++) {
        vf tap = splat(weight[t]);
        for (int j = 0; j < 4; j++) sum[j] += tap * load(from[t] + i + j * VL);
      }
      for (int j = 0; j < 4; j++) store(dx + phase * d->phase + i + j * VL, sum[j]);
    }
  }
}

static void depthwise_backward(const depthwise *d, size_t channel, float *x) {
  size_t taps = d->kh * d->kw, phases = d->at.stride[0] * d->at.stride[1];
  float *dx = x + phases * d->phase;
  float *dy = dx + phases * d->phase + VL + d->margin; /* zeros for `margin` before it, and behind */
  vf sums[MAX_TAPS], bias = {0};
  for (size_t t = 0; t < taps; t++) sums[t] = (vf){0};
  memset(x, 0, d->lane * sizeof(float));
  for (size_t n = 0; n < d->n; n++) {
    const float *g = d->dy + (n * d->c + channel) * d->oh * d->ow;
    for (size_t r = 0; r < d->oh; r++)
      for (size_t i = 0; i < d->ow; i++) dy[r * d->row + i] = g[r * d->ow + i];
    if (d->dw) {
      spread_plane(d, x, d->x + (n * d->c + channel) * d->h * d->wide);
      depthwise_weights(d, sums, x, dy);
    }
    if (d->db)
      for (size_t i = 0; i < d->span; i += VL) bias += load(dy + i);
    if (d->dx) {
      float *to = d->dx + (n * d->c + channel) * d->h * d->wide;
      depthwise_input(d, dx, dy, d->w + channel * taps);
      if (d->at.stride[0] > d->kh || d->at.stride[1] > d->kw || d->oh * d->ow == 0 || d->read[0] < d->h ||
          d->read[1] < d->wide)
        memset(to, 0, d->h * d->wide * sizeof(float)); /* elements that no window reaches */
      gather_plane(d, to, dx);
      size_t size = d->h * d->wide;
      if (d->bits) masked_range(to, to, d->bits + (n * d->c + channel) * plane_bytes(size), 0, size);
    }
  }
  if (d->dw)
    for (size_t t = 0; t < taps; t++) d->dw[channel * taps + t] = sum_of(sums[t]);
  if (d->db) d->db[channel] = sum_of(bias);
}

static void forward_job(void *user, size_t job) {
  const depthwise *d = user;
  for (size_t c = part_start(job, d->jobs, d->c); c < part_start(job + 1, d->jobs, d->c); c++)
    depthwise_forward(d, c, d->memory + job * d->lane);
}

static void backward_job(void *user, size_t job) {
  const depthwise *d = user;
  for (size_t c = part_start(job, d->jobs, d->c); c < part_start(job + 1, d->jobs, d->c); c++)
    depthwise_backward(d, c, d->memory + job * d->lane);
}

/* Scratch for every job, then all channels. */
static void depthwise_run(depthwise *d, et_context *context, void (*job)(void *, size_t)) {
  d->jobs = least(d->c, MAX_JOBS);
  d->memory = et_scratch(context, d->jobs * d->lane * sizeof(float));
  et_parallel(context, job, d->jobs, d);
}

typedef struct depthwise_state {
  window at;
  int strict;
} depthwise_state;

static const char *depthwise_create(void *state, const et_attributes *attributes) {
  depthwise_state *s = state;
  clip_create(&s->strict, attributes);
  return window_read(&s->at, attributes);
}

/* Reads x and w and plans; 0 after an error. */
APART int depthwise_begin(depthwise *d, const window *at, et_context *context, size_t first) {
  et_tensor x, w;
  if (!et_input(context, first, &x) || !et_input(context, first + 1, &w)) return 0;
  if (x.rank != 4 || w.rank != 4 || w.dim[1] != 1 || w.dim[0] != x.dim[1])
    return et_fail(context, "a depthwise convolution needs x (N, C, H, W) and w (C, 1, KH, KW)"), 0;
  *d = (depthwise){.x = x.data,
                   .w = w.data,
                   .n = x.dim[0],
                   .c = x.dim[1],
                   .h = x.dim[2],
                   .wide = x.dim[3],
                   .kh = w.dim[2],
                   .kw = w.dim[3],
                   .at = *at};
  d->oh = window_count(at, 0, d->h, d->kh);
  d->ow = window_count(at, 1, d->wide, d->kw);
  if (d->oh == 0 || d->ow == 0) return et_fail(context, "the kernel is larger than the padded image"), 0;
  const char *error = depthwise_plan(d);
  return error ? et_fail(context, error), 0 : 1;
}

static void depthwise_compute(const void *state, et_context *context) {
  depthwise d;
  et_tensor bias;
  const depthwise_state *s = state;
  if (!depthwise_begin(&d, &s->at, context, 0)) return;
  if (et_input(context, 2, &bias)) d.bias = bias.data;
  if (d.bias && bias.count != d.c) return et_fail(context, WRONG_BIAS);
  d.y = et_output(context, 0, (size_t[]){d.n, d.c, d.oh, d.ow}, 4);
  d.rule = clip_rule_of(context, 3, s->strict);
  d.bits = clip_bits(context, 1, d.n * d.c, d.oh * d.ow);
  d.lane = d.at.stride[0] * d.at.stride[1] * d.phase + d.span + VL;
  depthwise_run(&d, context, forward_job);
}

static void depthwise_gradient(const void *state, et_context *context) {
  depthwise d;
  et_tensor dy;
  const depthwise_state *s = state;
  if (!et_input(context, 0, &dy) || !depthwise_begin(&d, &s->at, context, 1)) return;
  if (dy.rank != 4 || dy.dim[0] != d.n || dy.dim[1] != d.c || dy.dim[2] != d.oh || dy.dim[3] != d.ow) {
    et_fail(context, "dy has another shape than the convolution's output");
    return;
  }
  d.dy = dy.data;
  d.bits = bits_input(context, 3, d.n * d.c, d.h * d.wide);
  d.dx = et_output(context, 0, (size_t[]){d.n, d.c, d.h, d.wide}, 4);
  d.dw = et_output(context, 1, (size_t[]){d.c, 1, d.kh, d.kw}, 4);
  d.db = et_output(context, 2, (size_t[]){d.c}, 1);
  d.lane = 2 * d.at.stride[0] * d.at.stride[1] * d.phase + d.phase + d.margin + 4 * VL;
  depthwise_run(&d, context, backward_job);
}
