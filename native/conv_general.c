/* Gradient of an ordinary convolution of (N, C, H, W) with w (O, C / group, KH, KW).
 *
 * Both operands are first laid out as in conv_layout.c: a padded plane cut into stride x stride
 * phases, in which a kernel tap is a shift of one flat array. Then
 *   dx: for each phase a product of the weights (C, O * taps) with shifted rows of dy, packed by column
 *       panels (no image of all columns is ever written);
 *   dw: dot products of rows of dy with shifted rows of x, or, where there are few positions, a product
 *       of packed panels. Images are taken in rounds, so that the copies stay small. */

enum {
  ROUND_FLOATS = 1 << 22,
  K_BLOCK = 256,
  GROUP_PANELS = 8,
  FEW_POSITIONS_IN_ALL = 512,
  CHANNEL_BLOCK = 16
};

typedef struct general {
  depthwise d; /* sizes and layout; d.dy, d.x, d.w, d.dx, d.dw are whole tensors */
  size_t o, c; /* channels of all groups */
  size_t groups, group_o, group_c, group;
  size_t lead, dy_lane, x_lane; /* floats before a plane of dy; floats a plane */
  float *dy, *x;                /* laid out: images of a round */
  size_t first, images;         /* the round */
  float *weights;               /* panels of (C, O * taps), phase after phase */
  size_t phase, k, weights_at, positions, columns, jobs;
  size_t tap[MAX_TAPS], taps; /* of the phase */
  float *memory;
  size_t lane;
  float *left, *right; /* few positions: packed panels of dy and x */
} general;

static inline float *dy_plane(const general *t, size_t image, size_t o) {
  return t->dy + (image * t->o + o) * t->dy_lane + t->lead;
}
static inline float *x_plane(const general *t, size_t image, size_t c) {
  return t->x + (image * t->c + c) * t->x_lane;
}

static void lay_out_dy(void *user, size_t index) {
  const general *t = user;
  const depthwise *d = &t->d;
  float *plane = t->dy + index * t->dy_lane;
  const float *from = d->dy + (t->first * t->o + index) * d->oh * d->ow;
  memset(plane, 0, t->dy_lane * sizeof(float));
  for (size_t r = 0; r < d->oh; r++)
    for (size_t i = 0; i < d->ow; i++) plane[t->lead + r * d->row + i] = from[r * d->ow + i];
}

static void lay_out_x(void *user, size_t index) {
  const general *t = user;
  const depthwise *d = &t->d;
  float *plane = t->x + index * t->x_lane;
  memset(plane, 0, t->x_lane * sizeof(float));
  spread_plane(d, plane, d->x + (t->first * t->c + index) * d->h * d->wide);
}

/* --- dx --- */
static void choose_phase(general *t, size_t phase) {
  const depthwise *d = &t->d;
  phase_rows rows = rows_of(d, phase / d->at.stride[1], phase % d->at.stride[1]);
  t->phase = phase;
  t->taps = 0;
  for (size_t i = 0; i < d->kh * d->kw; i++)
    if (d->shift[i] - d->within[i] == phase * d->phase) t->tap[t->taps++] = i;
  t->k = t->group_o * t->taps;
  t->positions = rows.low * d->row;
  t->columns = panels(t->positions, NR);
}

/* Panels of MR channels of the weights, (o, tap) by (o, tap). */
static void pack_general_weights(void *user, size_t panel) {
  const general *t = user;
  size_t taps = t->d.kh * t->d.kw, rows = least(MR, t->group_c - panel * MR);
  float *out = t->weights + t->weights_at + panel * MR * t->k;
  for (size_t o = 0; o < t->group_o; o++)
    for (size_t j = 0; j < t->taps; j++, out += MR) {
      const float *w = t->d.w + ((t->group * t->group_o + o) * t->group_c + panel * MR) * taps + t->tap[j];
      for (size_t i = 0; i < MR; i++) out[i] = i < rows ? w[i * taps] : 0;
    }
}

/* Rows [k, k + count) of (o, tap), NR positions from `start` of an image on. */
static void pack_positions(const general *t, float *panel, size_t image, size_t start, size_t k,
                           size_t count) {
  size_t o = k / t->taps, j = k - o * t->taps;
  for (size_t i = 0; i < count; i++, panel += NR) {
    const float *from = dy_plane(t, image, t->group * t->group_o + o) + start - t->d.within[t->tap[j]];
    for (int v = 0; v < NV; v++) store(panel + v * VL, load(from + v * VL));
    if (++j == t->taps) j = 0, o++;
  }
}

/* Positions [start, start + NR) of the phase, all channels, to where the image has them. */
static void put_positions(const general *t, const float *from, size_t line, size_t image, size_t start) {
  const depthwise *d = &t->d;
  size_t sh = d->at.stride[0], sw = d->at.stride[1], py = t->phase / sw, px = t->phase % sw;
  phase_rows rows = rows_of(d, py, px);
  for (size_t i = 0; i < NR && start + i < t->positions; i++) {
    size_t r = (start + i) / d->row, column = (start + i) % d->row;
    if (r < rows.top || column < rows.left || column >= rows.end) continue;
    size_t at = (r * sh + py - d->at.pad[0]) * d->wide + column * sw + px - d->at.pad[1];
    float *to = d->dx + ((t->first + image) * t->c + t->group * t->group_c) * d->h * d->wide + at;
    for (size_t c = 0; c < t->group_c; c++) to[c * d->h * d->wide] = from[c * line + i];
  }
}

/* Some column panels of the round: packed block by block of k, multiplied by all channels. */
static void general_dx_job(void *user, size_t job) {
  const general *t = user;
  size_t total = t->images * t->columns, end = part_start(job + 1, t->jobs, total);
  float *block = t->memory + job * t->lane, *out = block + GROUP_PANELS * NR * K_BLOCK;
  size_t line = GROUP_PANELS * NR;
  for (size_t first = part_start(job, t->jobs, total); first < end; first += GROUP_PANELS) {
    size_t count = least(GROUP_PANELS, end - first);
    for (size_t k = 0; k < t->k; k += K_BLOCK) {
      size_t depth = least(K_BLOCK, t->k - k);
      for (size_t p = 0; p < count; p++) {
        size_t image = (first + p) / t->columns, start = (first + p - image * t->columns) * NR;
        pack_positions(t, block + p * NR * depth, image, start, k, depth);
      }
      for (size_t c = 0; c < t->group_c; c += MR)
        for (size_t p = 0; p < count; p++)
          tile(out + c * line + p * NR, line, t->weights + t->weights_at + c * t->k + k * MR,
               block + p * NR * depth, depth, least(MR, t->group_c - c), NR, k > 0);
    }
    for (size_t p = 0; p < count; p++) {
      size_t image = (first + p) / t->columns;
      put_positions(t, out + p * NR, line, image, (first + p - image * t->columns) * NR);
    }
  }
}

static void general_dx(et_context *context, general *t, int pack_now) {
  t->weights_at = 0;
  for (t->group = 0; t->group < t->groups; t->group++)
    for (size_t phase = 0; phase < t->d.at.stride[0] * t->d.at.stride[1]; phase++) {
      choose_phase(t, phase);
      if (!t->taps || !t->columns) continue;
      if (pack_now) et_parallel(context, pack_general_weights, panels(t->group_c, MR), t);
      t->jobs = least(MAX_JOBS, t->images * t->columns);
      et_parallel(context, general_dx_job, t->jobs, t);
      t->weights_at += panels(t->group_c, MR) * MR * t->k;
    }
}

/* --- dw --- */
/* Products of three rows of dy with four shifted rows of x, over the positions of a round. */
static void general_dot(const general *t, size_t row, size_t column, int add) {
  size_t taps = t->d.kh * t->d.kw, width = t->group_c * taps, length = panels(t->d.oh * t->d.row, VL) * VL;
  size_t rows = least(DOT_ROWS, t->group_o - row), columns = least(DOT_COLUMNS, width - column);
  vf sum[DOT_ROWS][DOT_COLUMNS] = {{{0}}};
  for (size_t n = 0; n < t->images; n++) {
    const float *dy[DOT_ROWS], *x[DOT_COLUMNS];
    for (size_t i = 0; i < DOT_ROWS; i++)
      dy[i] = dy_plane(t, n, t->group * t->group_o + row + (i < rows ? i : 0));
    for (size_t j = 0; j < DOT_COLUMNS; j++) {
      size_t at = column + (j < columns ? j : 0), c = at / taps;
      x[j] = x_plane(t, n, t->group * t->group_c + c) + t->d.shift[at - c * taps];
    }
    for (size_t p = 0; p < length; p += VL) {
      vf right[DOT_COLUMNS];
      for (int j = 0; j < DOT_COLUMNS; j++) right[j] = load(x[j] + p);
      for (int i = 0; i < DOT_ROWS; i++) {
        vf left = load(dy[i] + p);
        for (int j = 0; j < DOT_COLUMNS; j++) sum[i][j] += left * right[j];
      }
    }
  }
  for (size_t i = 0; i < rows; i++)
    for (size_t j = 0; j < columns; j++) {
      float *at = t->d.dw + (t->group * t->group_o + row + i) * width + column + j;
      *at = (add ? *at : 0) + sum_of(sum[i][j]);
    }
}

static void general_dot_job(void *user, size_t job) {
  const general *t = user;
  size_t taps = t->d.kh * t->d.kw, rows = panels(t->group_o, DOT_ROWS);
  for (size_t c = 0; c < t->group_c; c += CHANNEL_BLOCK) {
    size_t end = least(c + CHANNEL_BLOCK, t->group_c) * taps;
    for (size_t i = part_start(job, t->jobs, rows); i < part_start(job + 1, t->jobs, rows); i++)
      for (size_t j = c * taps; j < end; j += DOT_COLUMNS) general_dot(t, i * DOT_ROWS, j, t->first > 0);
  }
}

/* Few positions: panels of x, (image, row, column) by (image, row, column), for NR of (c, tap). */
static void pack_general_right(void *user, size_t panel) {
  const general *t = user;
  const depthwise *d = &t->d;
  size_t taps = d->kh * d->kw, width = t->group_c * taps;
  float *out = t->right + panel * NR * t->k;
  for (size_t i = 0; i < NR; i++) {
    size_t at = panel * NR + i, c = at / taps, k = 0;
    for (size_t n = 0; n < t->images; n++) {
      const float *x = at < width ? x_plane(t, n, t->group * t->group_c + c) + d->shift[at - c * taps] : 0;
      for (size_t r = 0; r < d->oh; r++)
        for (size_t q = 0; q < d->ow; q++, k++) out[k * NR + i] = x ? x[r * d->row + q] : 0;
    }
  }
}

static void general_panel_job(void *user, size_t job) {
  const general *t = user;
  const depthwise *d = &t->d;
  size_t width = t->group_c * d->kh * d->kw, rows = panels(t->group_o, MR), p = d->oh * d->ow;
  float *left = t->left + job * MR * t->k;
  for (size_t i = part_start(job, t->jobs, rows) * MR; i < part_start(job + 1, t->jobs, rows) * MR; i += MR) {
    size_t count = least(MR, t->group_o - i), o = t->group * t->group_o + i;
    for (size_t n = 0; n < t->images; n++)
      pack(left + n * p * MR, d->dy + ((t->first + n) * t->o + o) * p, count, p, p, 1, MR);
    product(d->dw + o * width, width, left, t->right, count, width, t->k, t->first > 0);
  }
}

static void general_dw(et_context *context, general *t) {
  int few = t->d.n * t->d.oh * t->d.ow < FEW_POSITIONS_IN_ALL;
  for (t->group = 0; t->group < t->groups; t->group++) {
    t->jobs = least(MAX_JOBS, panels(t->group_o, few ? MR : DOT_ROWS));
    t->k = t->images * t->d.oh * t->d.ow;
    if (few) et_parallel(context, pack_general_right, panels(t->group_c * t->d.kh * t->d.kw, NR), t);
    et_parallel(context, few ? general_panel_job : general_dot_job, t->jobs, t);
  }
}

/* --- the op --- */
static int general_begin(general *t, const window *at, size_t groups, et_context *context) {
  et_tensor dy, x, w;
  if (!et_input(context, 0, &dy) || !et_input(context, 1, &x) || !et_input(context, 2, &w)) return 0;
  if (x.rank != 4 || w.rank != 4 || dy.rank != 4 || x.dim[1] != w.dim[1] * groups || w.dim[0] % groups)
    return et_fail(context, "a convolution needs x (N, C, H, W) and w (O, C / group, KH, KW)"), 0;
  *t = (general){.o = w.dim[0], .c = x.dim[1], .groups = groups, .group_o = w.dim[0] / groups};
  t->group_c = w.dim[1];
  t->d = (depthwise){.x = x.data,
                     .w = w.data,
                     .dy = dy.data,
                     .n = x.dim[0],
                     .c = t->c,
                     .h = x.dim[2],
                     .wide = x.dim[3],
                     .kh = w.dim[2],
                     .kw = w.dim[3],
                     .at = *at};
  t->d.oh = window_count(at, 0, t->d.h, t->d.kh);
  t->d.ow = window_count(at, 1, t->d.wide, t->d.kw);
  int fits = t->d.oh && t->d.ow && dy.dim[0] == x.dim[0] && dy.dim[1] == t->o && dy.dim[2] == t->d.oh &&
             dy.dim[3] == t->d.ow;
  const char *error = fits ? depthwise_plan(&t->d) : "dy has another shape than the convolution's output";
  return error ? et_fail(context, error), 0 : 1;
}

typedef struct general_state {
  window at;
  size_t groups;
} general_state;

static const char *general_create(void *state, const et_attributes *attributes) {
  general_state *s = state;
  int64_t groups = et_attr_int(attributes, "group", 1);
  if (groups < 1 || groups > 1 << 20) return "group is from 1 to 2^20";
  s->groups = (size_t)groups;
  return window_read(&s->at, attributes);
}

/* Scratch of a call; 0 after an error. */
static int general_scratch(general *t, et_context *context) {
  depthwise *d = &t->d;
  size_t phases = d->at.stride[0] * d->at.stride[1], taps = d->kh * d->kw;
  t->lead = d->margin + VL;
  t->dy_lane = t->lead + d->phase + NR;
  t->x_lane = phases * d->phase + VL;
  double wide = (double)t->o * (double)t->dy_lane + (double)t->c * (double)t->x_lane;
  wide += (double)(t->group_c * taps + NR) * FEW_POSITIONS_IN_ALL;
  if (too_large(wide / 32)) return et_fail(context, TOO_LARGE), 0;
  size_t image = t->o * t->dy_lane + (d->dw ? t->c * t->x_lane : 0);
  t->images = most(1, least(d->n, ROUND_FLOATS / image));
  t->dy = et_scratch(context, t->images * t->o * t->dy_lane * sizeof(float));
  if (d->dw) t->x = et_scratch(context, t->images * t->c * t->x_lane * sizeof(float));
  if (d->dx) {
    t->lane = GROUP_PANELS * NR * (K_BLOCK + panels(t->group_c, MR) * MR);
    t->memory = et_scratch(context, MAX_JOBS * t->lane * sizeof(float));
    t->weights =
        et_scratch(context, t->groups * panels(t->group_c, MR) * MR * t->group_o * taps * sizeof(float));
  }
  size_t k = t->images * d->oh * d->ow;
  if (d->dw && d->n * d->oh * d->ow < FEW_POSITIONS_IN_ALL) {
    t->left = et_scratch(context, MAX_JOBS * MR * k * sizeof(float));
    t->right = et_scratch(context, panels(t->group_c * taps, NR) * NR * k * sizeof(float));
  }
  return !et_failed(context);
}

static void general_gradient(const void *state, et_context *context) {
  const general_state *s = state;
  general t;
  if (!general_begin(&t, &s->at, s->groups, context)) return;
  depthwise *d = &t.d;
  d->dx = et_output(context, 0, (size_t[]){d->n, t.c, d->h, d->wide}, 4);
  d->dw = et_output(context, 1, (size_t[]){t.o, t.group_c, d->kh, d->kw}, 4);
  d->db = et_output(context, 2, &t.o, 1);
  pointwise_weights sums = {.dy = d->dy, .db = d->db, .n = d->n, .o = t.o, .p = d->oh * d->ow};
  if (d->db) et_parallel(context, bias_job, least(MAX_JOBS, t.o), &sums);
  if (d->dx) memset(d->dx, 0, d->n * t.c * d->h * d->wide * sizeof(float)); /* no window reaches some */
  if (d->dw && !d->n) memset(d->dw, 0, t.o * t.group_c * d->kh * d->kw * sizeof(float));
  if ((!d->dx && !d->dw) || !t.o || !general_scratch(&t, context)) return;
  size_t round = t.images;
  for (t.first = 0; t.first < d->n && !et_failed(context); t.first += round) {
    t.images = least(round, d->n - t.first);
    et_parallel(context, lay_out_dy, t.images * t.o, &t);
    if (d->dx) general_dx(context, &t, t.first == 0);
    if (!d->dw) continue;
    et_parallel(context, lay_out_x, t.images * t.c, &t);
    general_dw(context, &t);
  }
}
