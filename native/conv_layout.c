/* How a convolution of (N, C, H, W) lays a plane out.
 *
 * A padded plane is cut into stride x stride phases; within a phase every kernel tap is a shift of
 * one flat array, so that vectors run on across rows. The columns beyond OW of each row are computed
 * and thrown away (forward) or are zero (gradient). */

enum { MAX_TAPS = 121 };

#define TOO_LARGE "the padded image of a convolution is too large"

typedef struct depthwise {
  const float *x, *w, *bias, *dy;
  float *y, *dx, *dw, *db;
  uint8_t *bits; /* of y forward, of x backward; 0: none */
  clip_rule rule;
  size_t n, c, h, wide, oh, ow, kh, kw;
  window at;
  size_t read[2];         /* rows and columns up to the last that a window reads */
  int patchy;             /* whether some between are read by none, in a phase that taps have */
  size_t row, phase;      /* length of a phase's row, of a phase */
  size_t margin, span;    /* largest shift; oh rows, rounded up to whole vectors */
  size_t shift[MAX_TAPS]; /* of each tap, from the start of all phases */
  size_t within[MAX_TAPS];
  float *memory;
  size_t lane, jobs; /* floats of scratch a job */
} depthwise;

/* Whether a window reads element `at` of a phase of an axis. */
APART int window_reads(const depthwise *d, int axis, size_t phase, size_t at) {
  size_t stride = d->at.stride[axis], count = axis ? d->ow : d->oh, taps = axis ? d->kw : d->kh;
  for (size_t i = 0; i < taps; i++) {
    size_t offset = i * d->at.dilation[axis];
    if (offset % stride == phase && at >= offset / stride && at - offset / stride < count) return 1;
  }
  return 0;
}

/* What windows read along an axis. x that none reads is not laid out: dy has zeros beyond OW, and zero
 * times NaN is NaN. */
APART void depthwise_read(depthwise *d, int axis, size_t size, size_t count, size_t taps) {
  size_t stride = d->at.stride[axis], dilation = d->at.dilation[axis], pad = d->at.pad[axis];
  size_t reach = (count - 1) * stride + (taps - 1) * dilation + 1;
  d->read[axis] = least(size, reach > pad ? reach - pad : 0);
  if (taps == 1 || dilation == 1 || (dilation % stride == 0 && dilation / stride <= count)) return;
  for (size_t i = pad; i < pad + d->read[axis]; i++)
    d->patchy |= !window_reads(d, axis, i % stride, i / stride);
}

/* Sizes of the flat layout; the text of an error or 0. */
static const char *depthwise_plan(depthwise *d) {
  size_t sh = d->at.stride[0], sw = d->at.stride[1];
  size_t high = (d->kh - 1) * d->at.dilation[0], far = (d->kw - 1) * d->at.dilation[1];
  if (d->kh * d->kw > MAX_TAPS) return "a depthwise kernel has more than 121 taps";
  d->patchy = 0;
  depthwise_read(d, 0, d->h, d->oh, d->kh);
  depthwise_read(d, 1, d->wide, d->ow, d->kw);
  d->row = d->ow + far / sw;
  double floats = (double)(d->oh + high / sh + 1) * (double)(d->row + 9 * VL) * (double)sh * (double)sw;
  if (too_large(floats)) return TOO_LARGE;
  d->margin = high / sh * d->row + far / sw;
  d->span = panels(d->oh * d->row, 4 * VL) * 4 * VL;
  d->phase = panels(d->span + d->margin, 4 * VL) * 4 * VL + VL;
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

/* Rows of phase (py, px) that hold data which is read: from `top` to `low`, columns from `left` to `end`. */
typedef struct phase_rows {
  size_t part, top, low, left, end, columns;
} phase_rows;

static phase_rows rows_of(const depthwise *d, size_t py, size_t px) {
  size_t sh = d->at.stride[0], sw = d->at.stride[1];
  return (phase_rows){
      .part = (py * sw + px) * d->phase,
      .top = first_inside(d->at.pad[0], py, sh),
      .low = end_inside(d->at.pad[0], d->read[0], py, sh, d->phase / d->row),
      .left = first_inside(d->at.pad[1], px, sw),
      .end = end_inside(d->at.pad[1], d->read[1], px, sw, d->row),
      .columns = least(d->read[1], d->row * sw > d->at.pad[1] ? d->row * sw - d->at.pad[1] : 0),
  };
}

#if VL_BYTES == 64
#define EVENS \
  { 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30 }
#define LOWS \
  { 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23 }
#elif VL_BYTES == 32
#define EVENS \
  { 0, 2, 4, 6, 8, 10, 12, 14 }
#define LOWS \
  { 0, 8, 1, 9, 2, 10, 3, 11 }
#else
#define EVENS \
  { 0, 2, 4, 6 }
#define LOWS \
  { 0, 4, 1, 5 }
#endif

/* A row's even and odd columns to two places, and back. */
static void split_row(float *restrict even, float *restrict odd, const float *restrict x, size_t count) {
  size_t i = 0;
  for (; i + 2 * VL <= count; i += 2 * VL) {
    vf a = load(x + i), b = load(x + i + VL);
    store(even + i / 2, __builtin_shuffle(a, b, (vi)EVENS));
    store(odd + i / 2, __builtin_shuffle(a, b, (vi)EVENS + 1));
  }
  for (; i < count; i++) (i % 2 ? odd : even)[i / 2] = x[i];
}

static void join_row(float *restrict x, const float *restrict even, const float *restrict odd, size_t count) {
  size_t i = 0;
  for (; i + 2 * VL <= count; i += 2 * VL) {
    vf a = load(even + i / 2), b = load(odd + i / 2);
    store(x + i, __builtin_shuffle(a, b, (vi)LOWS));
    store(x + i + VL, __builtin_shuffle(a, b, (vi)LOWS + VL / 2));
  }
  for (; i < count; i++) x[i] = (i % 2 ? odd : even)[i / 2];
}

/* Where column 0 (parity 0) and column 1 (parity 1) of the plane stand in a row of their phases. */
static size_t column_place(const depthwise *d, size_t py, size_t parity) {
  size_t column = d->at.pad[1] + parity;
  return (py * 2 + column % 2) * d->phase + column / 2;
}

/* Element by element, without those that no window reads. */
APART void spread_patches(const depthwise *d, float *restrict flat, const float *restrict x) {
  size_t sh = d->at.stride[0], sw = d->at.stride[1];
  for (size_t py = 0; py < sh; py++)
    for (size_t px = 0; px < sw; px++) {
      phase_rows at = rows_of(d, py, px);
      for (size_t r = at.top; r < at.low; r++) {
        const float *from = x + (r * sh + py - d->at.pad[0]) * d->wide + px - d->at.pad[1];
        if (!window_reads(d, 0, py, r)) continue;
        for (size_t i = at.left; i < at.end; i++)
          if (window_reads(d, 1, px, i)) flat[at.part + r * d->row + i] = from[i * sw];
      }
    }
}

static void spread_plane(const depthwise *d, float *restrict flat, const float *restrict x) {
  size_t sh = d->at.stride[0], sw = d->at.stride[1];
  if (d->patchy) return spread_patches(d, flat, x);
  for (size_t py = 0; py < sh; py++)
    for (size_t px = 0; px < (sw == 2 ? 1 : sw); px++) {
      phase_rows at = rows_of(d, py, px);
      for (size_t r = at.top; r < at.low; r++) {
        const float *from = x + (r * sh + py - d->at.pad[0]) * d->wide;
        float *to = flat + r * d->row;
        if (sw == 2) {
          split_row(to + column_place(d, py, 0), to + column_place(d, py, 1), from, at.columns);
          continue;
        }
        from += px - d->at.pad[1], to += at.part;
        if (sw == 1)
          for (size_t i = at.left; i < at.end; i++) to[i] = from[i];
        else
          for (size_t i = at.left; i < at.end; i++) to[i] = from[i * sw];
      }
    }
}

static void gather_plane(const depthwise *d, float *restrict dx, const float *restrict flat) {
  size_t sh = d->at.stride[0], sw = d->at.stride[1];
  for (size_t py = 0; py < sh; py++)
    for (size_t px = 0; px < (sw == 2 ? 1 : sw); px++) {
      phase_rows at = rows_of(d, py, px);
      for (size_t r = at.top; r < at.low; r++) {
        float *to = dx + (r * sh + py - d->at.pad[0]) * d->wide;
        const float *from = flat + r * d->row;
        if (sw == 2) {
          join_row(to, from + column_place(d, py, 0), from + column_place(d, py, 1), at.columns);
          continue;
        }
        to += px - d->at.pad[1], from += at.part;
        for (size_t i = at.left; i < at.end; i++) to[i * sw] = from[i];
      }
    }
}
