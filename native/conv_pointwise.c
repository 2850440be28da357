/* 1x1 convolutions of (N, C, P) and their gradients: matrix products that need no copies of whole
 * tensors, no transposes and no sum over the batch afterwards.
 *
 *   y[n] (O, P) = w (O, C) x[n] (C, P) + b        columns of all images stand side by side
 *   dx[n] (C, P) = w' (C, O) dy[n] (O, P)         the same with w transposed
 *   dw (O, C) = sum over n of dy[n] (O, P) x[n]' (P, C)
 */

enum {
  COLUMN_PANELS = 4,
  FEW_COLUMNS = 8,
  DOT_ROWS = 3,
  DOT_COLUMNS = 4,
  DOT_POSITIONS = 64,
  DOT_GROUPS = 4
};

typedef struct pointwise {
  const float *from, *weights; /* (N, K, P); panels of MR rows, each (K, MR) */
  float *to;                   /* (N, M, P) */
  const float *bias;           /* M numbers or 0 */
  size_t n, m, k, p, jobs;
  float *memory; /* a job: k * NR * COLUMN_PANELS */
  uint8_t *bits; /* of `to`: written by a clip, or (gradient) read; 0: neither */
  clip_rule rule;
  int gradient;
} pointwise;

/* Columns [start, start + NR) of (n, p), all k rows of them, into one panel (k, NR). */
static void pack_columns(float *restrict panel, const pointwise *t, size_t start) {
  size_t total = t->n * t->p, image = start / t->p, p = start - image * t->p;
  if (p + NR <= t->p && start + NR <= total) {
    const float *from = t->from + image * t->k * t->p + p;
    for (size_t k = 0; k < t->k; k++, from += t->p, panel += NR)
      for (int j = 0; j < NV; j++) store(panel + j * VL, load(from + j * VL));
    return;
  }
  for (size_t i = 0; i < NR; i++) { /* across images, or the end */
    size_t column = start + i;
    if (column < total) {
      image = column / t->p;
      const float *from = t->from + image * t->k * t->p + (column - image * t->p);
      for (size_t k = 0; k < t->k; k++) panel[k * NR + i] = from[k * t->p];
    } else {
      for (size_t k = 0; k < t->k; k++) panel[k * NR + i] = 0;
    }
  }
}

/* Whether tiles lie within images and own whole bytes of bits. */
static inline int in_tiles(const pointwise *t) { return t->p % NR == 0 && NR % CLIP_BLOCK == 0; }

/* Rows [row, row + MR) of columns [start, start + NR), to where their images keep them. */
static void put_tile(const pointwise *t, const vf sum[MR][NV], size_t row, size_t start) {
  size_t total = t->n * t->p, image = start / t->p, p = start - image * t->p;
  size_t rows = least(MR, t->m - row);
  if (p + NR <= t->p) {
    float *to = t->to + (image * t->m + row) * t->p + p;
    for (size_t i = 0; i < rows; i++)
      for (int j = 0; j < NV; j++) store(to + i * t->p + j * VL, sum[i][j]);
    if (t->bits && in_tiles(t)) /* the tile is still in the cache */
      for (size_t i = 0; i < rows; i++) {
        uint8_t *bits = t->bits + (image * t->m + row + i) * plane_bytes(t->p) + p / 8;
        float *line = to + i * t->p;
        if (t->gradient)
          masked_range(line, line, bits, 0, NR);
        else
          clip_range(line, line, bits, t->rule, 0, NR);
      }
    return;
  }
  for (size_t j = 0; j < NR && start + j < total; j++) {
    image = (start + j) / t->p;
    float *to = t->to + (image * t->m + row) * t->p + (start + j - image * t->p);
    for (size_t i = 0; i < rows; i++) to[i * t->p] = sum[i][j / VL][j % VL];
  }
}

/* Tiles of one panel of rows with `count` panels of columns. */
static inline void pointwise_row(const pointwise *t, const float *columns, size_t row, size_t first,
                                 size_t count) {
  for (size_t c = 0; c < count; c++) {
    vf sum[MR][NV];
    for (int i = 0; i < MR; i++)
      for (int j = 0; j < NV; j++)
        sum[i][j] = splat(t->bias && row + (size_t)i < t->m ? t->bias[row + (size_t)i] : 0);
    multiply(sum, t->weights + row * t->k, columns + c * t->k * NR, t->k);
    put_tile(t, sum, row, (first + c) * NR);
  }
}

/* Many columns: a job packs some of them and multiplies all rows. */
static void pointwise_columns_job(void *user, size_t job) {
  const pointwise *t = user;
  float *columns = t->memory + job * t->k * NR * COLUMN_PANELS;
  size_t total = panels(t->n * t->p, NR), end = part_start(job + 1, t->jobs, total);
  for (size_t first = part_start(job, t->jobs, total); first < end; first += COLUMN_PANELS) {
    size_t count = least(COLUMN_PANELS, end - first);
    for (size_t c = 0; c < count; c++) pack_columns(columns + c * t->k * NR, t, (first + c) * NR);
    for (size_t row = 0; row < t->m; row += MR) pointwise_row(t, columns, row, first, count);
  }
}

/* Few columns: all are packed first, then a job multiplies some of the rows. */
static void pack_columns_job(void *user, size_t panel) {
  const pointwise *t = user;
  pack_columns(t->memory + panel * t->k * NR, t, panel * NR);
}

static void pointwise_rows_job(void *user, size_t job) {
  const pointwise *t = user;
  size_t rows = panels(t->m, MR), total = panels(t->n * t->p, NR);
  for (size_t row = part_start(job, t->jobs, rows); row < part_start(job + 1, t->jobs, rows); row++)
    pointwise_row(t, t->memory, row * MR, 0, total);
}

typedef struct weight_panels {
  float *to;
  const float *from;
  size_t m, k, line, step, jobs;
} weight_panels;

static void pack_weights_job(void *user, size_t job) {
  const weight_panels *t = user;
  size_t rows = panels(t->m, MR);
  for (size_t row = part_start(job, t->jobs, rows); row < part_start(job + 1, t->jobs, rows); row++)
    pack(t->to + row * MR * t->k, t->from + row * MR * t->line, least(MR, t->m - row * MR), t->k, t->line,
         t->step, MR);
}

/* to = weights from (+ bias): `line` and `step` walk the (M, K) weights along m and k. */
static void pointwise_run(et_context *context, pointwise *t, const float *w, size_t line, size_t step) {
  size_t columns = panels(t->n * t->p, NR);
  int few = columns <= FEW_COLUMNS;
  weight_panels packed = {et_scratch(context, panels(t->m, MR) * MR * t->k * sizeof(float)),
                          w,
                          t->m,
                          t->k,
                          line,
                          step,
                          t->m * t->k < 16384 ? 1 : MAX_JOBS};
  t->jobs = least(MAX_JOBS, few ? panels(t->m, MR) : columns);
  t->memory = et_scratch(context, (few ? columns : t->jobs * COLUMN_PANELS) * t->k * NR * sizeof(float));
  if (et_failed(context)) return;
  et_parallel(context, pack_weights_job, packed.jobs, &packed);
  t->weights = packed.to;
  if (few) et_parallel(context, pack_columns_job, columns, t);
  et_parallel(context, few ? pointwise_rows_job : pointwise_columns_job, t->jobs, t);
  if (t->bits && !in_tiles(t)) {
    clip c = {t->to, t->to, t->bits, t->rule, t->n * t->m, t->p, jobs_for(t->n * t->m * t->p)};
    et_parallel(context, t->gradient ? clip_gradient_job : clip_job, c.jobs, &c);
  }
}

/* --- the weight's gradient --- */
typedef struct pointwise_weights {
  const float *dy, *x;
  float *dw, *db, *part;
  size_t n, o, c, p, groups, blocks;
} pointwise_weights;

/* Products of DOT_ROWS rows of dy with DOT_COLUMNS rows of x, along positions. */
static void dot_tile(const pointwise_weights *t, float *out, size_t row, size_t column, size_t from,
                     size_t to) {
  size_t rows = least(DOT_ROWS, t->o - row), columns = least(DOT_COLUMNS, t->c - column);
  vf sum[DOT_ROWS][DOT_COLUMNS] = {{{0}}};
  for (size_t n = from; n < to; n++) {
    const float *dy[DOT_ROWS], *x[DOT_COLUMNS];
    for (size_t i = 0; i < DOT_ROWS; i++) dy[i] = t->dy + (n * t->o + row + (i < rows ? i : 0)) * t->p;
    for (size_t j = 0; j < DOT_COLUMNS; j++) x[j] = t->x + (n * t->c + column + (j < columns ? j : 0)) * t->p;
    size_t p = 0;
    for (; p + VL <= t->p; p += VL) {
      vf right[DOT_COLUMNS];
      for (int j = 0; j < DOT_COLUMNS; j++) right[j] = load(x[j] + p);
      for (int i = 0; i < DOT_ROWS; i++) {
        vf left = load(dy[i] + p);
        for (int j = 0; j < DOT_COLUMNS; j++) sum[i][j] += left * right[j];
      }
    }
    if (p < t->p)
      for (int i = 0; i < DOT_ROWS; i++)
        for (int j = 0; j < DOT_COLUMNS; j++)
          sum[i][j] += load_part(dy[i] + p, t->p - p) * load_part(x[j] + p, t->p - p);
  }
  for (size_t i = 0; i < rows; i++)
    for (size_t j = 0; j < columns; j++) out[(row + i) * t->c + column + j] = sum_of(sum[i][j]);
}

/* A block of dw's rows over a group of images, into the group's part. */
static void dot_job(void *user, size_t job) {
  const pointwise_weights *t = user;
  size_t group = job / t->blocks, block = job % t->blocks, rows = panels(t->o, DOT_ROWS);
  float *out = t->part + group * t->o * t->c;
  size_t from = part_start(group, t->groups, t->n), to = part_start(group + 1, t->groups, t->n);
  for (size_t i = part_start(block, t->blocks, rows); i < part_start(block + 1, t->blocks, rows); i++)
    for (size_t j = 0; j < t->c; j += DOT_COLUMNS) dot_tile(t, out, i * DOT_ROWS, j, from, to);
}

static void dot_sum_job(void *user, size_t job) {
  const pointwise_weights *t = user;
  size_t count = t->o * t->c;
  for (size_t i = part_start(job, MAX_JOBS, count); i < part_start(job + 1, MAX_JOBS, count); i++) {
    float total = 0;
    for (size_t g = 0; g < t->groups; g++) total += t->part[g * count + i];
    t->dw[i] = total;
  }
}

/* Few positions an image: panels over all (n, p), k outermost, then tiles. */
static void panel_job(void *user, size_t job) {
  const pointwise_weights *t = user;
  size_t k = t->n * t->p, rows = panels(t->o, MR), end = part_start(job + 1, t->blocks, rows);
  const float *right = t->part;
  float *left = t->part + panels(t->c, NR) * NR * k + job * MR * k;
  for (size_t i = part_start(job, t->blocks, rows) * MR; i < end * MR; i += MR) {
    size_t count = least(MR, t->o - i);
    for (size_t n = 0; n < t->n; n++)
      pack(left + n * t->p * MR, t->dy + (n * t->o + i) * t->p, count, t->p, t->p, 1, MR);
    product(t->dw + i * t->c, t->c, left, right, count, t->c, k, 0);
  }
}

static void pack_right_job(void *user, size_t panel) {
  const pointwise_weights *t = user;
  size_t k = t->n * t->p, column = panel * NR;
  for (size_t n = 0; n < t->n; n++)
    pack(t->part + panel * NR * k + n * t->p * NR, t->x + (n * t->c + column) * t->p,
         least(NR, t->c - column), t->p, t->p, 1, NR);
}

static void pointwise_dw(et_context *context, pointwise_weights *t) {
  if (t->n * t->p == 0) {
    memset(t->dw, 0, t->o * t->c * sizeof(float));
    return;
  }
  if (t->p >= DOT_POSITIONS) {
    t->groups = least(DOT_GROUPS, t->n);
    t->blocks = least(MAX_JOBS / DOT_GROUPS, panels(t->o, DOT_ROWS));
    t->part = t->groups == 1 ? t->dw : et_scratch(context, t->groups * t->o * t->c * sizeof(float));
    if (!t->part) return;
    et_parallel(context, dot_job, t->groups * t->blocks, t);
    if (t->groups > 1) et_parallel(context, dot_sum_job, MAX_JOBS, t);
    return;
  }
  t->blocks = least(MAX_JOBS, panels(t->o, MR));
  size_t k = t->n * t->p;
  t->part = et_scratch(context, (panels(t->c, NR) * NR + t->blocks * MR) * k * sizeof(float));
  if (!t->part) return;
  et_parallel(context, pack_right_job, panels(t->c, NR), t);
  et_parallel(context, panel_job, t->blocks, t);
}

static void bias_job(void *user, size_t job) {
  const pointwise_weights *t = user;
  size_t jobs = least(MAX_JOBS, t->o);
  for (size_t o = part_start(job, jobs, t->o); o < part_start(job + 1, jobs, t->o); o++) {
    float total = 0;
    for (size_t n = 0; n < t->n; n++) {
      const float *dy = t->dy + (n * t->o + o) * t->p;
      vf sum = {0};
      size_t p = 0;
      for (; p + VL <= t->p; p += VL) sum += load(dy + p);
      total += sum_of(sum + load_part(dy + p, t->p - p));
    }
    t->db[o] = total;
  }
}

/* --- the ops --- */
/* x (N, C, axes…), w (O, C, 1…): their sizes; 0 after an error. */
static int pointwise_sizes(et_context *context, const et_tensor *x, const et_tensor *w, size_t *p) {
  *p = 1;
  for (int i = 2; i < x->rank; i++) *p *= x->dim[i];
  int fits =
      x->rank >= 3 && w->rank == x->rank && w->dim[1] == x->dim[1] && w->count == w->dim[0] * w->dim[1];
  if (!fits) et_fail(context, "a 1x1 convolution needs x (N, C, ...) and w (O, C, 1...)");
  return fits;
}

static void pointwise_compute(const void *state, et_context *context) {
  et_tensor x, w, bias;
  size_t p, dim[ET_MAX_RANK];
  if (!et_input(context, 0, &x) || !et_input(context, 1, &w) || !pointwise_sizes(context, &x, &w, &p)) return;
  pointwise t = {.from = x.data, .n = x.dim[0], .m = w.dim[0], .k = w.dim[1], .p = p};
  if (et_input(context, 2, &bias)) t.bias = bias.data;
  if (t.bias && bias.count != t.m) return et_fail(context, WRONG_BIAS);
  for (int i = 0; i < x.rank; i++) dim[i] = x.dim[i];
  dim[1] = t.m;
  t.rule = clip_rule_of(context, 3, *(const int *)state);
  t.to = et_output(context, 0, dim, x.rank);
  t.bits = clip_bits(context, 1, t.n * t.m, p);
  if (t.to && t.n && p) pointwise_run(context, &t, w.data, t.k, 1);
}

static void pointwise_gradient(const void *state, et_context *context) {
  (void)state;
  et_tensor dy, x, w;
  size_t p;
  if (!et_input(context, 0, &dy) || !et_input(context, 1, &x) || !et_input(context, 2, &w)) return;
  if (!pointwise_sizes(context, &x, &w, &p)) return;
  if (dy.rank != x.rank || dy.dim[0] != x.dim[0] || dy.dim[1] != w.dim[0] ||
      dy.count != x.dim[0] * w.dim[0] * p) {
    et_fail(context, "dy has another shape than the convolution's output");
    return;
  }
  size_t o = w.dim[0], c = w.dim[1], n = x.dim[0];
  float *dx = et_output_like(context, 0, &x), *dw = et_output_like(context, 1, &w);
  float *db = et_output(context, 2, &o, 1);
  pointwise t = {.from = dy.data, .to = dx, .n = n, .m = c, .k = o, .p = p, .gradient = 1};
  t.bits = bits_input(context, 3, n * c, p);
  pointwise_weights g = {.dy = dy.data, .x = x.data, .dw = dw, .db = db, .n = n, .o = o, .c = c, .p = p};
  if (dx && n && p) pointwise_run(context, &t, w.data, 1, c);
  if (dw) pointwise_dw(context, &g);
  if (db) et_parallel(context, bias_job, least(MAX_JOBS, o), &g);
}
