/* MaxPool over two axes with its gradient, and that of AveragePool. MaxPool's forward pass leaves a byte an
 * output: the tap that was the largest, the first one of equals.
 *
 * A row of x is split into its phases (columns p, p + stride, ...), so that the outputs of a tap are
 * neighbours. Pads are the lowest number, which never is larger than anything; so does onnxruntime. */

#define TOO_WIDE "the padded image of a pool is too large"

static const float LOWEST = -3.40282347e38f;

typedef struct pool {
  const float *x; /* or dy */
  float *y;       /* or dx */
  uint8_t *taps;
  const uint8_t *bits;
  const float *shares[2]; /* of an average, by row and by column of dy */
  size_t *shifts;         /* of its taps within a row: phase and place */
  size_t reach, lane;     /* the largest place; floats a job has */
  window at;
  size_t planes, h, wide, kh, kw, oh, ow, phase, jobs;
  float *memory;
} pool;

typedef struct pool_state {
  window at;
  size_t kernel[2];
  int padded; /* whether an average counts the pads */
} pool_state;

static const char *pool_create(void *state, const et_attributes *attributes) {
  pool_state *s = state;
  int64_t kernel[2];
  if (et_attr_ints(attributes, "kernel_shape", kernel, 2) != 2) return "a pool needs a kernel of two axes";
  for (int i = 0; i < 2; i++) {
    if (kernel[i] < 1 || kernel[i] > 1 << 20) return "a pool's kernel is from 1 to 2^20";
    s->kernel[i] = (size_t)kernel[i];
  }
  s->padded = et_attr_int(attributes, "count_include_pad", 0) != 0;
  return window_read(&s->at, attributes);
}

static const char *max_pool_create(void *state, const et_attributes *attributes) {
  const char *error = pool_create(state, attributes);
  const size_t *kernel = ((const pool_state *)state)->kernel;
  if (error || (kernel[0] <= 255 && kernel[0] * kernel[1] <= 255)) return error;
  return "a pool's kernel has 255 elements at most";
}

static int pool_sizes(pool *p, const pool_state *s, et_context *context, size_t h, size_t wide) {
  p->at = s->at, p->kh = s->kernel[0], p->kw = s->kernel[1], p->h = h, p->wide = wide;
  p->oh = window_count(&p->at, 0, h, p->kh);
  p->ow = window_count(&p->at, 1, wide, p->kw);
  if (p->oh == 0 || p->ow == 0)
    return et_fail(context, "the pool's kernel is larger than the padded image"), 0;
  p->jobs = least(p->planes, jobs_for(p->planes * h * wide));
  return 1;
}

/* Row `row` of a plane by phases, each `phase` long. */
static void pool_split(const pool *p, float *to, const float *row) {
  size_t stride = p->at.stride[1], left = p->at.pad[1], end = left + p->wide;
  for (size_t k = 0; k < stride; k++, to += p->phase) {
    size_t from = k < left ? least(p->phase, (left - k + stride - 1) / stride) : 0, i = 0;
    size_t until = k < end ? most(from, least(p->phase, (end - k + stride - 1) / stride)) : from;
    for (; i < from; i++) to[i] = LOWEST;
    for (; i < until; i++) to[i] = row[i * stride + k - left];
    for (; i < p->phase; i++) to[i] = LOWEST;
  }
}

/* Outputs of one row, a vector at a time; row buffers of the taps within the plane begin at `rows`. */
static void pool_row(const pool *p, float *y, uint8_t *taps, const float *rows, size_t first, size_t last) {
  size_t lane = p->at.stride[1] * p->phase, stride = p->at.stride[1];
  for (size_t i = 0; i < p->ow; i += VL) {
    vf best = splat(LOWEST);
    vi which = {0};
    which += (int32_t)(first * p->kw);
    for (size_t k = first; k < last; k++)
      for (size_t j = 0; j < p->kw; j++) {
        size_t step = j * p->at.dilation[1];
        vf v = load(rows + k * lane + step % stride * p->phase + step / stride + i);
        vi larger = v > best, tap = (vi){0} + (int32_t)(k * p->kw + j);
        best = choose(larger, v, best);
        which = (larger & tap) | (~larger & which);
      }
    size_t count = least(VL, p->ow - i);
    if (count == VL)
      store(y + i, best);
    else
      store_part(y + i, best, count);
    int32_t bytes[VL];
    *(vi_unaligned *)bytes = which;
    for (size_t l = 0; l < count; l++) taps[i + l] = (uint8_t)bytes[l];
  }
}

static void pool_job(void *user, size_t job) {
  const pool *p = user;
  size_t lane = p->at.stride[1] * p->phase;
  float *rows = p->memory + job * (p->kh * lane + VL);
  for (size_t c = part_start(job, p->jobs, p->planes); c < part_start(job + 1, p->jobs, p->planes); c++)
    for (size_t r = 0; r < p->oh; r++) {
      size_t first = p->kh, last = 0;
      for (size_t k = 0; k < p->kh; k++) {
        size_t row = r * p->at.stride[0] + k * p->at.dilation[0];
        if (row < p->at.pad[0] || row - p->at.pad[0] >= p->h) continue;
        pool_split(p, rows + k * lane, p->x + (c * p->h + row - p->at.pad[0]) * p->wide);
        first = least(first, k), last = k + 1;
      }
      pool_row(p, p->y + (c * p->oh + r) * p->ow, p->taps + (c * p->oh + r) * p->ow, rows, first, last);
    }
}

/* x -> y, taps */
static void pool_compute(const void *state, et_context *context) {
  et_tensor x;
  if (!et_input(context, 0, &x)) return;
  if (x.rank != 4) return et_fail(context, "a pool needs x (N, C, H, W)");
  pool p = {.x = x.data, .planes = x.dim[0] * x.dim[1]};
  if (!pool_sizes(&p, state, context, x.dim[2], x.dim[3])) return;
  size_t dim[4] = {x.dim[0], x.dim[1], p.oh, p.ow};
  p.y = et_output(context, 0, dim, 4);
  p.taps = et_output(context, 1, dim, 4);
  p.phase = p.ow + (p.kw - 1) * p.at.dilation[1] / p.at.stride[1] + 1;
  if (too_large((double)p.kh * (double)p.at.stride[1] * (double)p.phase)) return et_fail(context, TOO_WIDE);
  size_t room = p.kh * p.at.stride[1] * p.phase + VL; /* vectors read beyond the last phase */
  p.memory = et_scratch(context, most(p.jobs, 1) * room * sizeof(float));
  if (!et_failed(context)) et_parallel(context, pool_job, p.jobs, &p);
}

static void pool_back_job(void *user, size_t job) {
  const pool *p = user;
  size_t size = p->h * p->wide, count = p->oh * p->ow;
  for (size_t c = part_start(job, p->jobs, p->planes); c < part_start(job + 1, p->jobs, p->planes); c++) {
    float *dx = p->y + c * size;
    memset(dx, 0, size * sizeof(float));
    for (size_t r = 0; r < p->oh; r++)
      for (size_t i = 0; i < p->ow; i++) {
        size_t at = c * count + r * p->ow + i, tap = p->taps[at];
        size_t row = r * p->at.stride[0] + tap / p->kw * p->at.dilation[0] - p->at.pad[0];
        size_t column = i * p->at.stride[1] + tap % p->kw * p->at.dilation[1] - p->at.pad[1];
        if (row < p->h && column < p->wide) dx[row * p->wide + column] += p->x[at]; /* no number won: pads */
      }
    if (p->bits) masked_range(dx, dx, p->bits + c * plane_bytes(size), 0, size);
  }
}

/* dy, taps, the shape of x, bits? -> dx */
static void pool_gradient(const void *state, et_context *context) {
  et_tensor dy, taps, shape;
  if (!et_input(context, 0, &dy) || !et_input(context, 1, &taps) || !et_input(context, 2, &shape)) return;
  if (dy.rank != 4 || shape.count != 4 || taps.count != dy.count)
    return et_fail(context, "the gradient of a pool needs dy and taps (N, C, OH, OW)");
  const int64_t *dims = shape.data;
  size_t dim[4] = {dy.dim[0], dy.dim[1], (size_t)dims[2], (size_t)dims[3]};
  pool p = {.x = dy.data, .taps = taps.data, .planes = dy.dim[0] * dy.dim[1]};
  if (!pool_sizes(&p, state, context, dim[2], dim[3])) return;
  if (p.oh != dy.dim[2] || p.ow != dy.dim[3])
    return et_fail(context, "dy has another shape than the pool's output");
  p.bits = bits_input(context, 3, p.planes, dim[2] * dim[3]);
  p.y = et_output(context, 0, dim, 4);
  if (p.y && !et_failed(context)) et_parallel(context, pool_back_job, p.jobs, &p);
}

/* 1 / (the elements that a window has along an axis). */
static void average_shares(const pool *p, int axis, float *shares, int padded) {
  size_t count = axis ? p->ow : p->oh, kernel = axis ? p->kw : p->kh, size = axis ? p->wide : p->h;
  for (size_t i = 0; i < count; i++) {
    size_t inside = padded ? kernel : 0, first = i * p->at.stride[axis] - p->at.pad[axis]; /* wraps in pads */
    for (size_t k = 0; k < kernel && !padded; k++) inside += first + k * p->at.dilation[axis] < size;
    shares[i] = 1 / (float)most(inside, 1);
  }
}

/* One row of dy (ow) spread over a row of x, which it returns: each of its phases a sum of dy at the taps'
 * shifts, then the phases in turn. Around dy are zeros; vectors run on into the room behind. */
static const float *average_row(const pool *p, const float *dy, float share, float *memory) {
  size_t stride = p->at.stride[1], left = p->at.pad[1];
  float *part = memory + p->reach, *phases = part + p->phase, *row = phases + stride * p->phase;
  EACH_LANES(l, p->ow)
  store(part + l.at, lanes_load(dy, l) * lanes_load(p->shares[1], l) * share);
  for (size_t q = 0; q < stride; q++)
    for (size_t i = 0; i + VL < p->phase; i += VL) {
      vf sum = {0};
      for (size_t k = 0; k < p->kw; k++)
        if (p->shifts[2 * k] == q) sum += load(part + i - p->shifts[2 * k + 1]);
      store(phases + q * p->phase + i, sum);
    }
  if (stride == 1) return phases + left;
  for (size_t q = 0; q < stride; q++) {
    const float *from = phases + q * p->phase + (q < left ? (left - q + stride - 1) / stride : 0);
    for (size_t i = (q + stride - left % stride) % stride; i < p->wide; i += stride) row[i] = *from++;
  }
  return row;
}

static void average_back_job(void *user, size_t job) {
  const pool *p = user;
  size_t size = p->h * p->wide;
  float *memory = p->memory + job * p->lane;
  memset(memory, 0, (p->reach + p->phase) * sizeof(float));
  for (size_t c = part_start(job, p->jobs, p->planes); c < part_start(job + 1, p->jobs, p->planes); c++) {
    float *dx = p->y + c * size;
    memset(dx, 0, size * sizeof(float));
    for (size_t r = 0; r < p->oh; r++) {
      const float *row = average_row(p, p->x + (c * p->oh + r) * p->ow, p->shares[0][r], memory);
      for (size_t k = 0; k < p->kh; k++) {
        size_t to = r * p->at.stride[0] + k * p->at.dilation[0] - p->at.pad[0]; /* wraps in the pads */
        if (to < p->h) add_rows(dx + to * p->wide, dx + to * p->wide, row, p->wide);
      }
    }
    if (p->bits) masked_range(dx, dx, p->bits + c * plane_bytes(size), 0, size);
  }
}

/* dy, the shape of x, bits? -> dx */
static void average_gradient(const void *state, et_context *context) {
  et_tensor dy, shape;
  if (!et_input(context, 0, &dy) || !et_input(context, 1, &shape)) return;
  if (dy.rank != 4 || shape.count != 4)
    return et_fail(context, "the gradient of a pool needs dy (N, C, OH, OW)");
  const int64_t *dims = shape.data;
  size_t dim[4] = {dy.dim[0], dy.dim[1], (size_t)dims[2], (size_t)dims[3]};
  pool p = {.x = dy.data, .planes = dy.dim[0] * dy.dim[1]};
  if (!pool_sizes(&p, state, context, dim[2], dim[3])) return;
  if (p.oh != dy.dim[2] || p.ow != dy.dim[3])
    return et_fail(context, "dy has another shape than the pool's output");
  p.bits = bits_input(context, 2, p.planes, dim[2] * dim[3]);
  p.y = et_output(context, 0, dim, 4);
  size_t stride = p.at.stride[1];
  p.reach = (p.kw - 1) * p.at.dilation[1] / stride;
  p.phase = most(p.ow + p.reach, panels(p.at.pad[1] + p.wide, stride)) + VL;
  if (too_large((double)stride * (double)p.phase)) return et_fail(context, TOO_WIDE);
  p.lane = p.reach + (1 + stride) * p.phase + p.wide;
  float *shares = et_scratch(context, (p.oh + p.ow) * sizeof(float));
  p.memory = et_scratch(context, most(p.jobs, 1) * p.lane * sizeof(float));
  p.shifts = et_scratch(context, 2 * p.kw * sizeof(size_t));
  if (!p.y || et_failed(context)) return;
  p.shares[0] = shares, p.shares[1] = shares + p.oh;
  for (int axis = 0; axis < 2; axis++)
    average_shares(&p, axis, shares + (axis ? p.oh : 0), ((const pool_state *)state)->padded);
  for (size_t k = 0; k < p.kw; k++) {
    p.shifts[2 * k] = k * p.at.dilation[1] % stride;
    p.shifts[2 * k + 1] = k * p.at.dilation[1] / stride;
  }
  et_parallel(context, average_back_job, p.jobs, &p);
}
