/* GRU: gates in ONNX's order z, r, n; h' = n + z (h - n). The reset gate multiplies h before the product
 * with R, or that product plus its bias q (linear_before_reset). */

APART vf gru_gate(const recurrent *r, const float *x, const float *u, size_t k, lanes l) {
  size_t n = r->hidden;
  vf v = lanes_load(x + k * n, l) + lanes_load(r->bias + k * n, l) + lanes_load(u + k * n, l);
  return gate_sigmoid(clamp(v, -r->s->bound, r->s->bound));
}

/* z, r and, where the product comes later, r h into `reset`; u (3 H) is h R^T. */
APART void gru_open(const recurrent *r, size_t at, float *restrict u, const float *restrict h,
                    float *restrict reset) {
  size_t n = r->hidden;
  const float *x = r->x + at * 3 * n;
  EACH_LANES(l, n) {
    vf z = gru_gate(r, x, u, 0, l), gate = gru_gate(r, x, u, 1, l);
    lanes_store(u, z, l);
    lanes_store(u + n, gate, l);
    lanes_store(reset, gate * lanes_load(h, l), l);
  }
}

/* n, the next h, and what was asked for of all three gates. */
APART void gru_close(const recurrent *r, size_t at, const float *restrict u, float *restrict h) {
  size_t n = r->hidden;
  const float *x = r->x + at * 3 * n + 2 * n, *bias = r->bias + 2 * n, *inner = r->inner_bias;
  const float bound = r->s->bound;
  float *to_h = row_at(r->to_h, at, n), *to = row_at(r->to_gate, at, 3 * n);
  EACH_LANES(l, n) {
    vf z = lanes_load(u, l), gate = lanes_load(u + n, l), q = lanes_load(u + 2 * n, l);
    if (r->s->linear) q = gate * (q + lanes_load(inner, l));
    vf made = gate_tanh(clamp(lanes_load(x, l) + lanes_load(bias, l) + q, -bound, bound));
    vf out = made + z * (lanes_load(h, l) - made);
    lanes_store(h, out, l);
    if (to_h) lanes_store(to_h, out, l);
    if (!to) continue;
    lanes_store(to, z, l);
    lanes_store(to + n, gate, l);
    lanes_store(to + 2 * n, made, l);
  }
}

static void gru_job(void *user, size_t job) {
  const recurrent *r = user;
  size_t n = r->hidden, from = part_start(job, r->jobs, r->batch);
  size_t rows = part_start(job + 1, r->jobs, r->batch) - from;
  float *u = r->memory + from * r->room, *h = u + rows * 3 * n, *reset = h + rows * n;
  memset(u, 0, rows * r->room * sizeof(float));
  for (size_t i = 0; i < rows; i++) copy_row(h + i * n, r->h0 ? r->h0 + (from + i) * n : 0, n);
  for (size_t step = 0; step < r->steps; step++) {
    step_product(u, 3 * n, h, n, r->r, rows, r->s->linear ? 3 * n : 2 * n, n);
    for (size_t i = 0; i < rows; i++)
      if (step < length_of(r, from + i))
        gru_open(r, place_of(r, from + i, step), u + i * 3 * n, h + i * n, reset + i * n);
    if (!r->s->linear) step_product(u + 2 * n, 3 * n, reset, n, r->r_new, rows, n, n);
    for (size_t i = 0; i < rows; i++) {
      size_t at = step * r->batch + from + i;
      if (step < length_of(r, from + i)) {
        gru_close(r, place_of(r, from + i, step), u + i * 3 * n, h + i * n);
        continue;
      }
      copy_row(row_at(r->to_h, at, n), 0, n);
      copy_row(row_at(r->to_gate, at, 3 * n), 0, 3 * n);
    }
  }
  for (size_t i = 0; i < rows; i++)
    copy_row(row_at(r->last_h, from + i, n), length_of(r, from + i) ? h + i * n : 0, n);
}

/* x, x W^T, R, bias?, lens?, h0? -> h, last h, gates */
static void gru_compute(const void *state, et_context *context) {
  recurrent r;
  if (!recurrent_begin(&r, state, context, 3, 4)) return;
  size_t h = r.hidden, states = r.batch * h;
  int linear = r.s->linear;
  r.x = optional_input(context, 1, r.steps * states * 3);
  const float *weights = optional_input(context, 2, 3 * h * h);
  const float *bias = optional_input(context, 3, 6 * h);
  r.h0 = optional_input(context, 5, states);
  if (et_failed(context)) return;
  r.inner_bias = bias ? bias + 5 * h : r.zeros;
  r.bias = sum_of_biases(&r, context, bias, linear ? 2 : 3);
  r.r = packed_r(&r, context, weights, linear ? 3 * h : 2 * h, 0);
  if (!linear) r.r_new = packed_r(&r, context, weights + 2 * h * h, h, 0);
  r.to_h = sequence_output(&r, context, 0, h);
  r.last_h = state_output(&r, context, 1);
  r.to_gate = sequence_output(&r, context, 2, 3 * h);
  recurrent_run(&r, context, gru_job, 5 * h);
}

/* dz and dn, or with `linear` all of them; pre (3 H): what meets R; dh becomes what passes by the gates.
 * q: h R_n^T, where linear. */
APART void gru_cell_back(const recurrent *r, size_t row, size_t step, float *restrict pre, float *restrict dh,
                         const float *restrict q) {
  size_t n = r->hidden, at = place_of(r, row, step);
  const float *gate = r->gate + at * 3 * n, *more = r->dh ? r->dh + at * n : r->zeros;
  const float *old = state_before(r, r->h0, r->h, row, step);
  const recurrent_state *s = r->s;
  EACH_LANES(l, n) {
    vf z = lanes_load(gate, l), reset = lanes_load(gate + n, l), made = lanes_load(gate + 2 * n, l);
    vf back = lanes_load(dh, l) + lanes_load(more, l);
    vf dn = back * (1.0f - z) * gate_slope(s, made, 1);
    lanes_store(pre, back * (lanes_load(old, l) - made) * gate_slope(s, z, 0), l);
    lanes_store(dh, back * z, l);
    lanes_store(r->pre + at * 3 * n + 2 * n, dn, l);
    if (s->linear) {
      lanes_store(pre + n, dn * (lanes_load(q, l) + lanes_load(r->inner_bias, l)) * gate_slope(s, reset, 0),
                  l);
      dn *= reset;
    }
    lanes_store(pre + 2 * n, dn, l);
  }
}

/* dr of what came through R_n, and dh, which gets its part of it. */
APART void gru_reset_back(const recurrent *r, size_t row, size_t step, float *restrict pre,
                          float *restrict dh, const float *restrict through) {
  size_t n = r->hidden, at = place_of(r, row, step);
  const float *gate = r->gate + at * 3 * n + n, *old = state_before(r, r->h0, r->h, row, step);
  EACH_LANES(l, n) {
    vf reset = lanes_load(gate, l), by = lanes_load(through, l), h = lanes_load(old, l);
    lanes_store(pre + n, by * h * gate_slope(r->s, reset, 0), l);
    lanes_store(dh, lanes_load(dh, l) + by * reset, l);
    if (r->inner) lanes_store(r->inner + at * n, reset * h, l);
  }
}

/* Row `at` of the outputs, and the sums over time. */
APART void gru_note(const recurrent *r, size_t row, size_t step, const float *restrict pre, float *sums) {
  size_t n = r->hidden, at = place_of(r, row, step);
  float *to = r->pre + at * 3 * n;
  memcpy(to, pre, 2 * n * sizeof(float));
  if (r->s->linear) copy_row(row_at(r->inner, at, 3 * n), pre, 3 * n);
  copy_row(row_at(r->before, at, n), state_before(r, r->h0, r->h, row, step), n);
  EACH_LANES(l, 3 * n) {
    lanes_store(sums, lanes_load(sums, l) + lanes_load(to, l), l);
    lanes_store(sums + 3 * n, lanes_load(sums + 3 * n, l) + lanes_load(pre, l), l);
  }
}

/* One step of `rows` sequences from `from` on. */
static void gru_step_back(const recurrent *r, size_t step, size_t from, size_t rows, float *pre,
                          float *sums) {
  size_t n = r->hidden;
  float *dh = pre + rows * 3 * n, *other = dh + rows * n, *old = other + rows * n;
  if (r->s->linear) {
    for (size_t i = 0; i < rows; i++)
      if (step < length_of(r, from + i))
        copy_row(old + i * n, state_before(r, r->h0, r->h, from + i, step), n);
    step_product(other, n, old, n, r->r_new, rows, n, n);
  }
  for (size_t i = 0; i < rows; i++)
    if (step < length_of(r, from + i))
      gru_cell_back(r, from + i, step, pre + i * 3 * n, dh + i * n, other + i * n);
  if (!r->s->linear) {
    step_product(other, n, pre + 2 * n, 3 * n, r->r_new, rows, n, n);
    for (size_t i = 0; i < rows; i++)
      if (step < length_of(r, from + i))
        gru_reset_back(r, from + i, step, pre + i * 3 * n, dh + i * n, other + i * n);
  }
  step_product(other, n, pre, 3 * n, r->r_back, rows, n, r->s->linear ? 3 * n : 2 * n);
  for (size_t i = 0; i < rows; i++) {
    size_t at = step * r->batch + from + i;
    if (step < length_of(r, from + i)) {
      EACH_LANES(l, n)
      lanes_store(dh + i * n, lanes_load(dh + i * n, l) + lanes_load(other + i * n, l), l);
      gru_note(r, from + i, step, pre + i * 3 * n, sums);
      continue;
    }
    copy_row(r->pre + at * 3 * n, 0, 3 * n);
    copy_row(row_at(r->before, at, n), 0, n);
    copy_row(row_at(r->inner, at, r->s->linear ? 3 * n : n), 0, r->s->linear ? 3 * n : n);
  }
}

static void gru_back_job(void *user, size_t job) {
  const recurrent *r = user;
  size_t n = r->hidden, from = part_start(job, r->jobs, r->batch);
  size_t rows = part_start(job + 1, r->jobs, r->batch) - from;
  float *pre = r->memory + from * r->room, *dh = pre + rows * 3 * n;
  memset(pre, 0, rows * r->room * sizeof(float));
  for (size_t i = 0; i < rows; i++)
    if (r->dh_last && length_of(r, from + i)) copy_row(dh + i * n, r->dh_last + (from + i) * n, n);
  for (size_t step = r->steps; step-- > 0;)
    gru_step_back(r, step, from, rows, pre, r->sums + job * TIME_SUMS * n);
  copy_row(row_at(r->first_h, from, n), dh, rows * n);
}

/* x, R, bias?, lens?, h0?, h, gates, dh?, last dh? -> gradients of what x W^T is part of, h before each
 * step, r h (or, linear, the gradients of h R^T), dbias, dh0 */
static void gru_gradient(const void *state, et_context *context) {
  recurrent r;
  if (!recurrent_begin(&r, state, context, 3, 3)) return;
  size_t h = r.hidden, states = r.batch * h, all = r.steps * states;
  int linear = r.s->linear;
  const float *weights = optional_input(context, 1, 3 * h * h);
  const float *bias = optional_input(context, 2, 6 * h);
  r.h0 = optional_input(context, 4, states);
  r.h = optional_input(context, 5, all);
  r.gate = optional_input(context, 6, 3 * all);
  r.dh = optional_input(context, 7, all);
  r.dh_last = optional_input(context, 8, states);
  if (et_failed(context)) return;
  r.inner_bias = bias ? bias + 5 * h : r.zeros;
  r.r_back = packed_r(&r, context, weights, linear ? 3 * h : 2 * h, 1);
  r.r_new = packed_r(&r, context, weights + 2 * h * h, h, !linear);
  r.pre = rows_output(&r, context, 0, 3 * h);
  r.before = rows_output(&r, context, 1, h);
  r.inner = rows_output(&r, context, 2, linear ? 3 * h : h);
  float *dbias = et_output(context, 3, (size_t[]){1, 6 * h}, 2);
  r.first_h = state_output(&r, context, 4);
  sums_begin(&r, context);
  recurrent_run(&r, context, gru_back_job, 6 * h);
  if (et_failed(context)) return;
  sums_end(&r, dbias, 0, 0, 3 * h);
  sums_end(&r, dbias, 3 * h, linear ? 3 * h : 0, 3 * h);
}
