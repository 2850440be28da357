/* LSTM: gates in ONNX's order i, o, f, c; c' = f c + i g, h' = o tanh(c'). Peepholes let i and f see c,
 * o sees c'. */

/* One sequence, one step: pre (4 H) is h R^T; h and c move on. */
APART void lstm_cell(const recurrent *r, size_t at, const float *restrict pre, float *restrict h,
                     float *restrict c) {
  size_t n = r->hidden;
  const float *x = r->x + at * 4 * n, *p = r->peepholes, bound = r->s->bound;
  float *to_h = row_at(r->to_h, at, n), *to_c = row_at(r->to_c, at, n), *to = row_at(r->to_gate, at, 4 * n);
  EACH_LANES(l, n) {
    vf v[4], old = lanes_load(c, l);
    for (size_t k = 0; k < 4; k++)
      v[k] = lanes_load(x + k * n, l) + lanes_load(r->bias + k * n, l) + lanes_load(pre + k * n, l);
    if (p) v[0] += lanes_load(p, l) * old, v[2] += lanes_load(p + 2 * n, l) * old;
    v[0] = gate_sigmoid(clamp(v[0], -bound, bound));
    v[2] = gate_sigmoid(clamp(v[2], -bound, bound));
    v[3] = gate_tanh(clamp(v[3], -bound, bound));
    vf cell = v[2] * old + v[0] * v[3];
    if (p) v[1] += lanes_load(p + n, l) * cell;
    v[1] = gate_sigmoid(clamp(v[1], -bound, bound));
    vf out = v[1] * gate_tanh(cell);
    lanes_store(c, cell, l);
    lanes_store(h, out, l);
    if (to_h) lanes_store(to_h, out, l);
    if (to_c) lanes_store(to_c, cell, l);
    for (size_t k = 0; to && k < 4; k++) lanes_store(to + k * n, v[k], l);
  }
}

static void lstm_job(void *user, size_t job) {
  const recurrent *r = user;
  size_t n = r->hidden, from = part_start(job, r->jobs, r->batch);
  size_t rows = part_start(job + 1, r->jobs, r->batch) - from;
  float *pre = r->memory + from * r->room, *h = pre + rows * 4 * n, *c = h + rows * n;
  for (size_t i = 0; i < rows; i++) {
    copy_row(h + i * n, r->h0 ? r->h0 + (from + i) * n : 0, n);
    copy_row(c + i * n, r->c0 ? r->c0 + (from + i) * n : 0, n);
  }
  for (size_t step = 0; step < r->steps; step++) {
    step_product(pre, 4 * n, h, n, r->r, rows, 4 * n, n);
    for (size_t i = 0; i < rows; i++) {
      size_t row = from + i, at = step * r->batch + row;
      if (step < length_of(r, row)) {
        lstm_cell(r, place_of(r, row, step), pre + i * 4 * n, h + i * n, c + i * n);
        continue;
      }
      copy_row(row_at(r->to_h, at, n), 0, n);
      copy_row(row_at(r->to_c, at, n), 0, n);
      copy_row(row_at(r->to_gate, at, 4 * n), 0, 4 * n);
    }
  }
  for (size_t i = 0; i < rows; i++) {
    int any = length_of(r, from + i) > 0;
    copy_row(row_at(r->last_h, from + i, n), any ? h + i * n : 0, n);
    copy_row(row_at(r->last_c, from + i, n), any ? c + i * n : 0, n);
  }
}

/* x, x W^T, R, bias?, lens?, h0?, c0?, peepholes? -> h, last h, last c, c, gates */
static void lstm_compute(const void *state, et_context *context) {
  recurrent r;
  if (!recurrent_begin(&r, state, context, 4, 4)) return;
  size_t h = r.hidden, states = r.batch * h;
  r.x = optional_input(context, 1, r.steps * states * 4);
  const float *weights = optional_input(context, 2, 4 * h * h);
  r.bias = optional_input(context, 3, 8 * h);
  r.h0 = optional_input(context, 5, states);
  r.c0 = optional_input(context, 6, states);
  r.peepholes = optional_input(context, 7, 3 * h);
  if (et_failed(context)) return;
  r.bias = sum_of_biases(&r, context, r.bias, 4);
  r.r = packed_r(&r, context, weights, 4 * h, 0);
  r.to_h = sequence_output(&r, context, 0, h);
  r.last_h = state_output(&r, context, 1);
  r.last_c = state_output(&r, context, 2);
  r.to_c = sequence_output(&r, context, 3, h);
  r.to_gate = sequence_output(&r, context, 4, 4 * h);
  recurrent_run(&r, context, lstm_job, 6 * h);
}

/* One sequence, one step back: dh becomes the gradients of the gates, dc that of the cell before. */
APART void lstm_cell_back(const recurrent *r, size_t row, size_t step, float *restrict pre,
                          const float *restrict dh, float *restrict dc, float *restrict sums) {
  size_t n = r->hidden, at = place_of(r, row, step);
  const float *old = state_before(r, r->c0, r->c, row, step), *c = r->c + at * n, *p = r->peepholes;
  const float *gate = r->gate + at * 4 * n, *more = r->dh ? r->dh + at * n : r->zeros;
  const recurrent_state *s = r->s;
  EACH_LANES(l, n) {
    vf i = lanes_load(gate, l), o = lanes_load(gate + n, l), f = lanes_load(gate + 2 * n, l);
    vf g = lanes_load(gate + 3 * n, l), cell = lanes_load(c, l), before = lanes_load(old, l), d[4];
    vf out = gate_tanh(cell), back = lanes_load(dh, l) + lanes_load(more, l);
    d[1] = back * out * gate_slope(s, o, 0);
    vf down = lanes_load(dc, l) + back * o * (1.0f - out * out);
    if (p) down += d[1] * lanes_load(p + n, l);
    d[0] = down * g * gate_slope(s, i, 0);
    d[2] = down * before * gate_slope(s, f, 0);
    d[3] = down * i * gate_slope(s, g, 1);
    vf through = down * f;
    if (p) {
      through += d[0] * lanes_load(p, l) + d[2] * lanes_load(p + 2 * n, l);
      vf seen[3] = {d[0] * before, d[1] * cell, d[2] * before};
      for (size_t k = 0; k < 3; k++) {
        float *sum = sums + (4 + k) * n;
        lanes_store(sum, lanes_load(sum, l) + seen[k], l);
      }
    }
    lanes_store(dc, through, l);
    for (size_t k = 0; k < 4; k++) {
      lanes_store(pre + k * n, d[k], l);
      lanes_store(r->pre + at * 4 * n + k * n, d[k], l);
      lanes_store(sums + k * n, lanes_load(sums + k * n, l) + d[k], l);
    }
  }
  copy_row(row_at(r->before, at, n), state_before(r, r->h0, r->h, row, step), n);
}

static void lstm_back_job(void *user, size_t job) {
  const recurrent *r = user;
  size_t n = r->hidden, from = part_start(job, r->jobs, r->batch);
  size_t rows = part_start(job + 1, r->jobs, r->batch) - from;
  float *pre = r->memory + from * r->room, *dh = pre + rows * 4 * n, *dc = dh + rows * n,
        *next = dc + rows * n;
  memset(pre, 0, rows * r->room * sizeof(float));
  for (size_t i = 0; i < rows; i++) {
    int any = length_of(r, from + i) > 0;
    copy_row(dh + i * n, r->dh_last && any ? r->dh_last + (from + i) * n : 0, n);
    copy_row(dc + i * n, r->dc_last && any ? r->dc_last + (from + i) * n : 0, n);
  }
  for (size_t step = r->steps; step-- > 0;) {
    for (size_t i = 0; i < rows; i++) {
      size_t row = from + i, at = step * r->batch + row;
      if (step < length_of(r, row)) {
        lstm_cell_back(r, row, step, pre + i * 4 * n, dh + i * n, dc + i * n, r->sums + job * TIME_SUMS * n);
        continue;
      }
      copy_row(r->pre + at * 4 * n, 0, 4 * n);
      copy_row(row_at(r->before, at, n), 0, n);
    }
    step_product(next, n, pre, 4 * n, r->r_back, rows, n, 4 * n);
    for (size_t i = 0; i < rows; i++)
      if (step < length_of(r, from + i)) copy_row(dh + i * n, next + i * n, n);
  }
  copy_row(row_at(r->first_h, from, n), dh, rows * n);
  copy_row(row_at(r->first_c, from, n), dc, rows * n);
}

/* x, R, lens?, h0?, c0?, h, c, gates, dh?, last dh?, last dc?, peepholes? -> gradients of the gates before
 * their activations, h before each step, dbias, dpeepholes, dh0, dc0 */
static void lstm_gradient(const void *state, et_context *context) {
  recurrent r;
  if (!recurrent_begin(&r, state, context, 4, 2)) return;
  size_t h = r.hidden, states = r.batch * h, all = r.steps * states;
  const float *weights = optional_input(context, 1, 4 * h * h);
  r.h0 = optional_input(context, 3, states);
  r.c0 = optional_input(context, 4, states);
  r.h = optional_input(context, 5, all);
  r.c = optional_input(context, 6, all);
  r.gate = optional_input(context, 7, 4 * all);
  r.dh = optional_input(context, 8, all);
  r.dh_last = optional_input(context, 9, states);
  r.dc_last = optional_input(context, 10, states);
  r.peepholes = optional_input(context, 11, 3 * h);
  if (et_failed(context)) return;
  r.r_back = packed_r(&r, context, weights, 4 * h, 1);
  r.pre = rows_output(&r, context, 0, 4 * h);
  r.before = rows_output(&r, context, 1, h);
  float *bias = et_output(context, 2, (size_t[]){1, 8 * h}, 2);
  float *peepholes = et_output(context, 3, (size_t[]){1, 3 * h}, 2);
  r.first_h = state_output(&r, context, 4);
  r.first_c = state_output(&r, context, 5);
  sums_begin(&r, context);
  recurrent_run(&r, context, lstm_back_job, 7 * h);
  if (et_failed(context)) return;
  sums_end(&r, bias, 0, 0, 4 * h);
  sums_end(&r, bias, 4 * h, 0, 4 * h);
  sums_end(&r, peepholes, 0, 4 * h, 3 * h);
}
