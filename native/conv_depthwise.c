/* Depthwise convolution of (N, C, H, W) and its gradient, one filter a channel.
 *
 * A padded plane is cut into stride x stride phases; within a phase every kernel tap is a shift of
 * one flat array, so that vectors run on across rows. The columns beyond OW of each row are computed
 * and thrown away (forward) or are zero (gradient). */

enum { MAX_TAPS = 121 };

typedef struct depthwise {
  const float *x, *w, *bias, *dy;
  float *y, *dx, *dw, *db;
  uint8_t *bits; /* of y forward, of x backward; 0: none */
  clip_rule rule;
  size_t n, c, h, wide, oh, ow, kh, kw;
  window at;
  size_t row, phase;      /* length of a phase's row, of a phase */
  size_t margin, span;    /* largest shift; oh rows, rounded up to whole vectors */
  size_t shift[MAX_TAPS]; /* of each tap, from the start of all phases */
  size_t within[MAX_TAPS];
  float *memory;
  size_t lane, jobs; /* floats of scratch a job */
} depthwise;

/* Sizes of the flat layout; the text of an error or 0. */
static const char *depthwise_plan(depthwise *d) {
  size_t sh = d->at.stride[0], sw = d->at.stride[1];
  size_t high = (d->kh - 1) * d->at.dilation[0], far = (d->kw - 1) * d->at.dilation[1];
  if (d->kh * d->kw > MAX_TAPS) return "a depthwise kernel has more than 121 taps";
  d->row = d->ow + far / sw;
  d->margin = high / sh * d->row + far / sw;
  d->span = panels(d->oh * d->row, 4 * VL) * 4 * VL;
  d->phase = panels(d->span + d->margin, VL) * VL + VL;
  for (size_t i = 0; i < d->kh; i++)
    for (size_t j = 0; j < d->kw; j++) {
      size_t down = i * d->at.dilation[0], right = j * d->at.dilation[1];
      size_t within = down / sh * d->row + right / sw;
      d->within[i * d->kw + j] = within;
      d->shift[i * d->kw + j] = (down % sh * sw + right % sw) * d->phase + within;
    }
  return 0;
}

/* The first index o with o * stride + offset >= pad, and the end of those below pad + size. */
static inline size_t first_inside(size_t pad, size_t offset, size_t stride) {
  return pad > offset ? (pad - offset + stride - 1) / stride : 0;
}
static inline size_t end_inside(size_t pad, size_t size, size_t offset, size_t stride, size_t limit) {
  return pad + size > offset ? least(limit, (pad + size - offset - 1) / stride + 1) : 0;
}

/* Calls for each (phase row, plane row) that holds data; DIRECTION copies to or from the plane. */
#define EACH_ROW(d, BODY)                                                                         \
  for (size_t py = 0; py < d->at.stride[0]; py++)                                                 \
    for (size_t px = 0; px < d->at.stride[1]; px++) {                                             \
      size_t part = (py * d->at.stride[1] + px) * d->phase, sh = d->at.stride[0];                 \
      size_t sw = d->at.stride[1], rows = d->phase / d->row;                                      \
      size_t top = first_inside(d->at.pad[0], py, sh), left = first_inside(d->at.pad[1], px, sw); \
      size_t end = end_inside(d->at.pad[1], d->wide, px, sw, d->row);                             \
      size_t low = end_inside(d->at.pad[0], d->h, py, sh, rows);                                  \
      for (size_t r = top; r < low; r++) {                                                        \
        size_t flat = part + r * d->row;                                                          \
        size_t plane = (r * sh + py - d->at.pad[0]) * d->wide;                                    \
        BODY                                                                                      \
      }                                                                                           \
    }

static void spread_plane(const depthwise *d, float *restrict flat_plane, const float *restrict x) {
  EACH_ROW(d, {
    float *restrict to = flat_plane + flat;
    const float *restrict from = x + plane + px - d->at.pad[1];
    if (sw == 1)
      for (size_t i = left; i < end; i++) to[i] = from[i];
    else if (sw == 2)
      for (size_t i = left; i < end; i++) to[i] = from[2 * i];
    else
      for (size_t i = left; i < end; i++) to[i] = from[i * sw];
  })
}

static void gather_plane(const depthwise *d, float *restrict dx, const float *restrict flat_plane) {
  EACH_ROW(d, {
    const float *restrict from = flat_plane + flat;
    float *restrict to = dx + plane + px - d->at.pad[1];
    if (sw == 1)
      for (size_t i = left; i < end; i++) to[i] = from[i];
    else if (sw == 2)
      for (size_t i = left; i < end; i++) to[2 * i] = from[i];
    else
      for (size_t i = left; i < end; i++) to[i * sw] = from[i];
  })
}

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

/* One tap's sum over a plane, several sums at a time to hide the latency of the additions. */
static void depthwise_weights(const depthwise *d, vf *restrict sums, const float *x, const float *dy) {
  size_t taps = d->kh * d->kw, t = 0;
  for (; t + 3 <= taps; t += 3) {
    const float *x0 = x + d->shift[t], *x1 = x + d->shift[t + 1], *x2 = x + d->shift[t + 2];
    vf a0 = sums[t], a1 = sums[t + 1], a2 = sums[t + 2], b0 = {0}, b1 = {0}, b2 = {0};
    for (size_t i = 0; i < d->span; i += 2 * VL) {
      vf g = load(dy + i), h = load(dy + i + VL);
      a0 += g * load(x0 + i), b0 += h * load(x0 + i + VL);
      a1 += g * load(x1 + i), b1 += h * load(x1 + i + VL);
      a2 += g * load(x2 + i), b2 += h * load(x2 + i + VL);
    }
    sums[t] = a0 + b0, sums[t + 1] = a1 + b1, sums[t + 2] = a2 + b2;
  }
  for (; t < taps; t++) {
    const float *from = x + d->shift[t];
    vf a = sums[t];
    for (size_t i = 0; i < d->span; i += VL) a += load(dy + i) * load(from + i);
    sums[t] = a;
  }
}

/* dx of every phase: each element gathers dy times the taps that read it. */
static void depthwise_input(const depthwise *d, float *dx, const float *dy, const float *w) {
  size_t taps = d->kh * d->kw, phases = d->at.stride[0] * d->at.stride[1];
  size_t whole = (d->phase - VL) / VL * VL;
  for (size_t phase = 0; phase < phases; phase++)
    for (size_t i = 0; i < whole; i += 2 * VL) {
      vf sum[2] = {{0}, {0}};
      for (size_t t = 0; t < taps; t++) {
        if (d->shift[t] - d->within[t] != phase * d->phase) continue;
        const float *from = dy + i - d->within[t];
        vf tap = splat(w[t]);
        for (int j = 0; j < 2; j++) sum[j] += tap * load(from + j * VL);
      }
      for (int j = 0; j < 2; j++) store(dx + phase * d->phase + i + j * VL, sum[j]);
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
      if (d->at.stride[0] > d->kh || d->at.stride[1] > d->kw || d->oh * d->ow == 0 ||
          (d->oh - 1) * d->at.stride[0] + (d->kh - 1) * d->at.dilation[0] + 1 < d->h + d->at.pad[0] ||
          (d->ow - 1) * d->at.stride[1] + (d->kw - 1) * d->at.dilation[1] + 1 < d->wide + d->at.pad[1])
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
static int depthwise_begin(depthwise *d, const window *at, et_context *context, size_t first) {
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
