/* Softmax cross-entropy over logits (N, C, …) with class indices (N, …): the loss, log-probabilities, and
 * the gradient, which comes in the same pass where its incoming gradient is known beforehand.
 *
 * With top = max x and s = log sum e^(x - top): loss = w (s - (x[label] - top)), dx = (e^(x - top - s) -
 * onehot) w dy, where w is the label's weight, 0 where the label is ignored; "mean" divides both by the sum
 * of w (by 1 where that is 0). Top and s stay apart: their sum would round away a small loss. */

enum { EACH = 0, SUM = 1, MEAN = 2 };

typedef struct loss_form {
  int64_t reduction, has_ignored, ignored;
} loss_form;

typedef struct entropy {
  const float *x, *weight, *dy; /* x: the logits, in a gradient's pass the log-probabilities */
  const void *labels;
  int wide; /* labels of 64 bits */
  float *dx, *log_prob, *each;
  size_t n, classes, inner, count, jobs; /* count: labels */
  float scale;                           /* of the gradient, or of every dy */
  loss_form form;
  double total, sums[MAX_JOBS]; /* of the weights; of the losses */
} entropy;

static inline int64_t label_at(const entropy *e, size_t i) {
  return e->wide ? ((const int64_t *)e->labels)[i] : ((const int32_t *)e->labels)[i];
}

/* The weight of label i, which is 0 where nothing is to be read at it. */
static inline float weight_at(const entropy *e, size_t i) {
  int64_t label = label_at(e, i);
  if (e->form.has_ignored && label == e->form.ignored) return 0;
  return e->weight ? e->weight[label] : 1;
}
static inline int is_read(const entropy *e, size_t i) {
  return !e->form.has_ignored || label_at(e, i) != e->form.ignored;
}

/* What the gradient of label i is multiplied by. */
static inline float factor_at(const entropy *e, size_t i) {
  return weight_at(e, i) * e->scale * (e->dy ? e->dy[i] : 1);
}

/* One position at a time, its classes side by side. */
static float entropy_row(const entropy *e, size_t i) {
  const float *x = e->x + i * e->classes;
  float *dx = e->dx ? e->dx + i * e->classes : 0, *log_prob = e->log_prob ? e->log_prob + i * e->classes : 0;
  vf high = splat(-__builtin_inff()), sums = {0};
  EACH_LANES(l, e->classes) {
    vf v = lanes_load(x, l);
    if (l.count < VL)
      for (size_t j = l.count; j < VL; j++) v[j] = -__builtin_inff();
    high = vmax(high, v);
  }
  float top = high[0];
  for (int j = 1; j < VL; j++) top = high[j] > top ? high[j] : top;
  EACH_LANES(l, e->classes) {
    vf power = vexp(lanes_load(x, l) - top);
    if (dx) lanes_store(dx, power, l);
    if (l.count < VL)
      for (size_t j = l.count; j < VL; j++) power[j] = 0;
    sums += power;
  }
  float sum = sum_of(sums), log_sum = log_of(sum), factor = factor_at(e, i);
  if (log_prob) EACH_LANES(l, e->classes) lanes_store(log_prob, lanes_load(x, l) - top - log_sum, l);
  if (dx) {
    EACH_LANES(l, e->classes) lanes_store(dx, lanes_load(dx, l) * (factor / sum), l);
    if (is_read(e, i)) dx[label_at(e, i)] -= factor;
  }
  return is_read(e, i) ? weight_at(e, i) * (log_sum - (x[label_at(e, i)] - top)) : 0;
}

/* Where a copy of it is not worth its size. */
APART vf exp_apart(vf x) { return vexp(x); }

/* Several positions of one image side by side, classes `inner` apart; `loss` of each. */
static vf entropy_lanes(const entropy *e, size_t image, lanes l) {
  size_t start = image * e->classes * e->inner, first = image * e->inner + l.at;
  vf high = splat(-__builtin_inff()), sum = {0}, factor = {0}, loss = {0};
  for (size_t c = 0; c < e->classes; c++) high = vmax(high, lanes_load(e->x + start + c * e->inner, l));
  for (size_t c = 0; c < e->classes; c++) {
    vf power = exp_apart(lanes_load(e->x + start + c * e->inner, l) - high);
    if (e->dx) lanes_store(e->dx + start + c * e->inner, power, l);
    sum += power;
  }
  vf log_sum = vlog(sum);
  for (size_t j = 0; j < l.count; j++) {
    factor[j] = factor_at(e, first + j);
    if (!is_read(e, first + j)) continue;
    size_t label = (size_t)label_at(e, first + j);
    loss[j] = weight_at(e, first + j) * (log_sum[j] - (e->x[start + label * e->inner + l.at + j] - high[j]));
  }
  for (size_t c = 0; c < e->classes; c++) {
    size_t at = start + c * e->inner;
    if (e->log_prob) lanes_store(e->log_prob + at, lanes_load(e->x + at, l) - high - log_sum, l);
    if (e->dx) lanes_store(e->dx + at, lanes_load(e->dx + at, l) * (factor / sum), l);
  }
  for (size_t j = 0; e->dx && j < l.count; j++)
    if (is_read(e, first + j))
      e->dx[start + (size_t)label_at(e, first + j) * e->inner + l.at + j] -= factor[j];
  return loss;
}

static void entropy_job(void *user, size_t job) {
  entropy *e = user;
  double sum = 0;
  size_t rows = e->inner == 1 ? e->count : e->n, end = part_start(job + 1, e->jobs, rows);
  for (size_t row = part_start(job, e->jobs, rows); row < end; row++) {
    if (e->inner == 1) {
      float loss = entropy_row(e, row);
      if (e->each) e->each[row] = loss;
      sum += (double)loss;
      continue;
    }
    EACH_LANES(l, e->inner) {
      vf loss = entropy_lanes(e, row, l);
      if (e->each) lanes_store(e->each + row * e->inner, loss, l);
      for (size_t j = 0; j < l.count; j++) sum += (double)loss[j];
    }
  }
  e->sums[job] = sum;
}

/* dx from the log-probabilities. */
static void entropy_gradient_job(void *user, size_t job) {
  const entropy *e = user;
  size_t end = part_start(job + 1, e->jobs, e->n);
  for (size_t row = part_start(job, e->jobs, e->n); row < end; row++) {
    const float *x = e->x + row * e->classes * e->inner;
    float *dx = e->dx + row * e->classes * e->inner;
    if (e->inner == 1) {
      float factor = factor_at(e, row);
      EACH_LANES(l, e->classes) lanes_store(dx, exp_apart(lanes_load(x, l)) * factor, l);
      if (is_read(e, row)) dx[label_at(e, row)] -= factor;
      continue;
    }
    EACH_LANES(l, e->inner) {
      size_t first = row * e->inner + l.at;
      vf factor = {0};
      for (size_t j = 0; j < l.count; j++) factor[j] = factor_at(e, first + j);
      for (size_t c = 0; c < e->classes; c++)
        lanes_store(dx + c * e->inner, exp_apart(lanes_load(x + c * e->inner, l)) * factor, l);
      for (size_t j = 0; j < l.count; j++)
        if (is_read(e, first + j)) dx[(size_t)label_at(e, first + j) * e->inner + l.at + j] -= factor[j];
    }
  }
}

static const char *loss_create(void *state, const et_attributes *attributes) {
  loss_form *form = state;
  form->reduction = et_attr_int(attributes, "reduction", MEAN);
  form->has_ignored = et_attr_int(attributes, "has_ignored", 0);
  form->ignored = et_attr_int(attributes, "ignored", 0);
  return form->reduction < EACH || form->reduction > MEAN ? "reduction is 0, 1 or 2" : 0;
}

/* Reads logits or log-probabilities at `first`, labels and weights behind; 0 after an error. */
APART int entropy_begin(entropy *e, const void *state, et_context *context, size_t first, et_tensor *x) {
  et_tensor labels, weight;
  if (!et_input(context, first, x) || !et_input(context, first + 1, &labels)) return 0;
  if (x->rank < 2 || x->dim[1] == 0) return et_fail(context, "logits need axes (N, C, …), C above 0"), 0;
  if (labels.type != ORT_INT64 && labels.type != ORT_INT32)
    return et_fail(context, "labels are int64 or int32"), 0;
  e->x = x->data;
  e->form = *(const loss_form *)state;
  e->n = x->dim[0];
  e->classes = x->dim[1];
  e->inner = 1;
  for (int i = 2; i < x->rank; i++) e->inner *= x->dim[i];
  e->count = e->n * e->inner;
  e->labels = labels.data;
  e->wide = labels.type == ORT_INT64;
  if (labels.count != e->count) return et_fail(context, "another number of labels than of logits' rows"), 0;
  if (et_input(context, first + 2, &weight)) {
    if (weight.count != e->classes) return et_fail(context, "another number of weights than of classes"), 0;
    e->weight = weight.data;
  }
  for (size_t i = 0; i < e->count; i++) {
    if (is_read(e, i) && (uint64_t)label_at(e, i) >= e->classes)
      return et_fail(context, "a label lies outside [0, classes)"), 0;
    e->total += (double)weight_at(e, i);
  }
  if (e->total == 0 && (e->weight || e->form.has_ignored)) e->total = 1;
  e->jobs = most(least(e->inner == 1 ? e->count : e->n, jobs_for(x->count)), 1);
  return !et_failed(context);
}

/* The loss: one for each label, or all in one number. */
APART void *loss_output(entropy *e, et_context *context, const et_tensor *x) {
  size_t dim[ET_MAX_RANK] = {0};
  if (e->form.reduction != EACH) return et_output(context, 0, dim, 0);
  for (int i = 1; i < x->rank; i++) dim[i - 1] = x->dim[i == 1 ? 0 : i];
  return e->each = et_output(context, 0, dim, x->rank - 1);
}

APART void entropy_run(entropy *e, et_context *context, float *loss) {
  et_parallel(context, entropy_job, e->jobs, e);
  if (!loss || e->each || et_failed(context)) return;
  double sum = 0;
  for (size_t job = 0; job < e->jobs; job++) sum += e->sums[job];
  *loss = (float)(e->form.reduction == MEAN ? sum / e->total : sum);
}

/* logits, labels, weights -> loss, log-probabilities. */
static void entropy_compute(const void *state, et_context *context) {
  entropy e = {.scale = 1};
  et_tensor x;
  if (!entropy_begin(&e, state, context, 0, &x)) return;
  float *loss = loss_output(&e, context, &x);
  e.log_prob = et_output_like(context, 1, &x);
  if (!et_failed(context)) entropy_run(&e, context, loss);
}

/* dy, logits, labels, weights -> loss, dx; the loss is one number. */
static void entropy_both(const void *state, et_context *context) {
  entropy e = {0};
  et_tensor x, dy;
  if (!et_input(context, 0, &dy) || !entropy_begin(&e, state, context, 1, &x)) return;
  if (dy.count != 1 || e.form.reduction == EACH) return et_fail(context, "dy of one loss is one number");
  float *loss = loss_output(&e, context, &x);
  e.dx = et_output_like(context, 1, &x);
  e.scale = *(const float *)dy.data;
  if (e.form.reduction == MEAN) e.scale = (float)((double)e.scale / e.total);
  if (!et_failed(context)) entropy_run(&e, context, loss);
}

/* dy, log-probabilities, labels, weights -> dx. */
static void entropy_gradient(const void *state, et_context *context) {
  entropy e = {.scale = 1};
  et_tensor x, dy;
  if (!et_input(context, 0, &dy) || !entropy_begin(&e, state, context, 1, &x)) return;
  if (dy.count != (e.form.reduction == EACH ? e.count : 1))
    return et_fail(context, "dy is not of the loss's size");
  if (e.form.reduction == EACH)
    e.dy = dy.data;
  else
    e.scale = *(const float *)dy.data;
  if (e.form.reduction == MEAN) e.scale = (float)((double)e.scale / e.total);
  e.dx = et_output_like(context, 0, &x);
  e.jobs = most(least(e.n, e.jobs), 1);
  if (e.dx) et_parallel(context, entropy_gradient_job, e.jobs, &e);
}
