/* What LSTM and GRU share: one direction of a layer, the steps of time, the product with R at each step.
 *
 * x W^T of all steps, and the gradients of W and R, are products that onnxruntime makes. Every job has
 * some sequences of the batch and goes through time with them alone, so that nobody waits within a step.
 * T steps, B sequences, H hidden, G gates (4, 3). Padding behind the end of a sequence is left out: its
 * outputs are 0. The reverse direction begins at the end of each sequence. */

typedef struct recurrent_state {
  size_t hidden;
  int reverse, linear;
  float bound, low[2], high[2]; /* of clip; what sigmoid and tanh make of it: no slope beyond */
} recurrent_state;

typedef struct recurrent {
  const recurrent_state *s;
  size_t steps, batch, hidden, gates, jobs, room; /* room: floats of scratch a sequence */
  const int32_t *lens;
  const float *x, *bias, *inner_bias, *peepholes, *h0, *c0, *h, *c, *gate, *dh, *dh_last, *dc_last, *zeros;
  const float *r, *r_new, *r_back;                        /* packed */
  float *to_h, *to_c, *to_gate, *last_h, *last_c;         /* forward */
  float *pre, *before, *inner, *first_h, *first_c, *sums; /* backward */
  float *memory;
} recurrent;

enum { STEP_ROWS = 4, TIME_SUMS = 7, MAX_RECURRENT_JOBS = 4 };

APART vf gate_sigmoid(vf x) { return vsigmoid(x); }
APART vf gate_tanh(vf x) { return vtanh(x); }

/* c (rows, NR) = a (rows, k) times a panel of b; `columns` of it exist. Unrolled, `sum` is in registers. */
INLINE void step_tile(float *restrict c, size_t c_row, const float *restrict a, size_t a_row,
                      const float *restrict b, size_t k, size_t columns, int rows) {
  vf sum[STEP_ROWS][NV] = {{{0}}};
  for (size_t p = 0; p < k; p++, b += NR) {
    vf right[NV];
#pragma GCC unroll 2
    for (int j = 0; j < NV; j++) right[j] = load(b + j * VL);
#pragma GCC unroll 4
    for (int i = 0; i < rows; i++)
#pragma GCC unroll 2
      for (int j = 0; j < NV; j++) sum[i][j] += a[(size_t)i * a_row + p] * right[j];
  }
#pragma GCC unroll 2
  for (int j = 0; j < NV; j++) {
    size_t at = (size_t)j * VL;
#pragma GCC unroll 4
    for (int i = 0; i < rows && at < columns; i++)
      lanes_store(c + (size_t)i * c_row, sum[i][j], (lanes){at, least(VL, columns - at)});
  }
}

/* c (m, n) = a (m, k) times packed b (k, n). */
APART void step_product(float *c, size_t c_row, const float *a, size_t a_row, const float *b, size_t m,
                        size_t n, size_t k) {
  for (size_t j = 0; j < n; j += NR, b += k * NR) {
    size_t i = 0;
    for (; i + STEP_ROWS <= m; i += STEP_ROWS)
      step_tile(c + i * c_row + j, c_row, a + i * a_row, a_row, b, k, least(NR, n - j), STEP_ROWS);
    for (; i < m; i++) step_tile(c + i * c_row + j, c_row, a + i * a_row, a_row, b, k, least(NR, n - j), 1);
  }
}

static const char *recurrent_create(void *state, const et_attributes *attributes) {
  recurrent_state *s = state;
  int64_t hidden = et_attr_int(attributes, "hidden_size", 0);
  if (hidden < 1 || hidden > 1 << 20) return "hidden_size is from 1 to 2^20";
  s->hidden = (size_t)hidden;
  s->reverse = et_attr_int(attributes, "reverse", 0) != 0;
  s->linear = et_attr_int(attributes, "linear_before_reset", 0) != 0;
  const float infinity = __builtin_inff(), slack = 8 * 1.1920929e-7f; /* kernels round differently */
  s->bound = et_attr_float(attributes, "clip", infinity);
  for (int i = 0; i < 2; i++) {
    vf end = splat(s->bound);
    float high = (i ? gate_tanh(end) : gate_sigmoid(end))[0], low = i ? -high : gate_sigmoid(-end)[0];
    int clips = s->bound < infinity;
    s->high[i] = clips ? high - high * slack : infinity;
    s->low[i] = clips ? low + (low < 0 ? -low : low) * slack : -infinity;
  }
  return 0;
}

/* The slopes of sigmoid (0) and tanh (1), told from what they put out. */
INLINE vf gate_slope(const recurrent_state *s, vf y, int tanh) {
  vi outside = (y <= s->low[tanh]) | (y >= s->high[tanh]);
  return (vf)((vi)(tanh ? 1.0f - y * y : y * (1.0f - y)) & ~outside);
}

static inline size_t length_of(const recurrent *r, size_t row) {
  return r->lens ? (size_t)r->lens[row] : r->steps;
}

/* Where the sequence stands at its `step`, as a row of (T B, ...). */
APART size_t place_of(const recurrent *r, size_t row, size_t step) {
  return (r->s->reverse ? length_of(r, row) - 1 - step : step) * r->batch + row;
}

/* A state (H) before a step: of the first one, or of all. */
APART const float *state_before(const recurrent *r, const float *first, const float *all, size_t row,
                                size_t step) {
  if (step) return all + place_of(r, row, step - 1) * r->hidden;
  return first ? first + row * r->hidden : r->zeros;
}

APART void copy_row(float *to, const float *from, size_t count) {
  if (to && from)
    memcpy(to, from, count * sizeof(float));
  else if (to)
    memset(to, 0, count * sizeof(float));
}

/* Row `at` of an optional output of that width, 0 where nobody asked for it. */
static float *row_at(float *output, size_t at, size_t width) { return output ? output + at * width : 0; }

APART const float *optional_input(et_context *context, size_t index, size_t count) {
  et_tensor t;
  if (!et_input(context, index, &t)) return 0;
  if (t.count == count) return t.data;
  et_fail(context, "a recurrent layer's input has another size than its x, R and hidden_size say");
  return 0;
}

/* x tells T and B; lens is input `lens`; 0 after an error. */
APART int recurrent_begin(recurrent *r, const void *state, et_context *context, size_t gates, size_t lens) {
  et_tensor x, t;
  if (!et_input(context, 0, &x)) return 0;
  if (x.rank != 3) return et_fail(context, "a recurrent layer needs x (T, B, I)"), 0;
  const recurrent_state *s = state;
  *r = (recurrent){.s = s, .steps = x.dim[0], .batch = x.dim[1], .hidden = s->hidden, .gates = gates};
  if (et_input(context, lens, &t)) {
    if (t.count != r->batch) return et_fail(context, "sequence_lens needs a number for each sequence"), 0;
    r->lens = t.data;
    for (size_t i = 0; i < r->batch; i++)
      if (r->lens[i] < 0 || (size_t)r->lens[i] > r->steps)
        return et_fail(context, "sequence_lens has a number below 0 or above the number of steps"), 0;
  }
  size_t work = r->steps * r->batch * gates * r->hidden * r->hidden;
  r->jobs = work < 1 << 18 ? 1 : most(1, least(MAX_RECURRENT_JOBS, panels(r->batch, STEP_ROWS)));
  float *zeros = et_scratch(context, most(gates, TIME_SUMS) * r->hidden * sizeof(float));
  if (zeros) memset(zeros, 0, most(gates, TIME_SUMS) * r->hidden * sizeof(float));
  r->zeros = zeros;
  return !et_failed(context);
}

/* `lines` rows of R from `first` on, packed as the right side of a product: its transpose (forward), or
 * itself (backward). */
APART const float *packed_r(const recurrent *r, et_context *context, const float *from, size_t lines,
                            int backward) {
  size_t h = r->hidden, n = backward ? h : lines, k = backward ? lines : h;
  float *to = et_scratch(context, panels(n, NR) * NR * k * sizeof(float));
  if (to) pack(to, from, n, k, backward ? 1 : h, backward ? h : 1, NR);
  return to;
}

/* Both halves of the bias, added up from gate `outer` on; G H numbers. */
APART const float *sum_of_biases(const recurrent *r, et_context *context, const float *bias, size_t gates) {
  size_t width = r->gates * r->hidden;
  float *sum = bias ? et_scratch(context, width * sizeof(float)) : 0;
  if (!sum) return r->zeros;
  for (size_t i = 0; i < width; i++) sum[i] = bias[i] + (i < gates * r->hidden ? bias[width + i] : 0);
  return sum;
}

/* An output of the sequence (T, 1, B, width), of a state (1, B, H), of rows (T B, width). */
APART float *sequence_output(const recurrent *r, et_context *context, size_t index, size_t width) {
  return et_output(context, index, (size_t[]){r->steps, 1, r->batch, width}, 4);
}
APART float *state_output(const recurrent *r, et_context *context, size_t index) {
  return et_output(context, index, (size_t[]){1, r->batch, r->hidden}, 3);
}
APART float *rows_output(const recurrent *r, et_context *context, size_t index, size_t width) {
  return et_output(context, index, (size_t[]){r->steps * r->batch, width}, 2);
}

APART void recurrent_run(recurrent *r, et_context *context, void (*job)(void *, size_t), size_t room) {
  r->room = room;
  r->memory = et_scratch(context, most(1, r->batch) * room * sizeof(float));
  if (!et_failed(context)) et_parallel(context, job, r->jobs, r);
}

/* Scratch for the sums over time of every job (TIME_SUMS H each), cleared. */
APART void sums_begin(recurrent *r, et_context *context) {
  size_t bytes = r->jobs * TIME_SUMS * r->hidden * sizeof(float);
  r->sums = et_scratch(context, bytes);
  if (r->sums) memset(r->sums, 0, bytes);
}

/* `width` of them, from `from` on, into output + `at`. */
APART void sums_end(const recurrent *r, float *output, size_t at, size_t from, size_t width) {
  if (output) add_jobs(output + at, r->sums + from, width, TIME_SUMS * r->hidden, r->jobs);
}
