/* Gradient of Gather: zeros of the data's shape, every slice of dy added where it was gathered from.
 *
 * Data is (outer, axis, inner), dy (outer, indices, inner). Jobs own columns of inner or slices of outer, so
 * that each element's sum runs in the order of the indices whatever the number of threads. */

#define WRONG_AXIS "the gathered axis is none of the data's, which have 1 to 8"

typedef struct gather_axis {
  int64_t axis;
} gather_axis;

typedef struct gather {
  const float *dy;
  float *dx;
  const size_t *rows;                           /* of each index, checked */
  size_t outer, axis, inner, count, jobs, cuts; /* cuts: parts of inner */
} gather;

static void gather_job(void *user, size_t job) {
  const gather *g = user;
  size_t units = g->outer * g->cuts, end = part_start(job + 1, g->jobs, units);
  for (size_t unit = part_start(job, g->jobs, units); unit < end; unit++) {
    size_t slice = unit / g->cuts, from = part_start(unit % g->cuts, g->cuts, g->inner);
    size_t width = part_start(unit % g->cuts + 1, g->cuts, g->inner) - from;
    float *dx = g->dx + slice * g->axis * g->inner + from;
    const float *dy = g->dy + slice * g->count * g->inner + from;
    if (g->cuts == 1)
      memset(dx, 0, g->axis * g->inner * sizeof(float));
    else
      for (size_t row = 0; row < g->axis; row++) memset(dx + row * g->inner, 0, width * sizeof(float));
    for (size_t i = 0; i < g->count; i++) {
      float *to = dx + g->rows[i] * g->inner;
      const float *add = dy + i * g->inner;
      EACH_LANES(l, width) lanes_store(to, lanes_load(to, l) + lanes_load(add, l), l);
    }
  }
}

static const char *gather_create(void *state, const et_attributes *attributes) {
  gather_axis *g = state;
  g->axis = et_attr_int(attributes, "axis", 0);
  return 0;
}

/* Indices as rows of the axis, negative ones counted from its end; 0 after an error. */
static const size_t *gather_rows(et_context *context, const et_tensor *indices, size_t axis) {
  size_t *rows = et_scratch(context, most(indices->count, 1) * sizeof(size_t));
  for (size_t i = 0; rows && i < indices->count; i++) {
    int64_t at = indices->type == ORT_INT64 ? ((const int64_t *)indices->data)[i]
                                            : ((const int32_t *)indices->data)[i];
    if (at < 0) at += (int64_t)axis;
    if (at < 0 || (uint64_t)at >= axis)
      return et_fail(context, "an index lies outside the gathered axis"), (void *)0;
    rows[i] = (size_t)at;
  }
  return rows;
}

/* shape, indices, dy -> dx. */
static void gather_gradient(const void *state, et_context *context) {
  et_tensor shape, indices, dy;
  size_t dim[ET_MAX_RANK];
  if (!et_input(context, 0, &shape) || !et_input(context, 1, &indices) || !et_input(context, 2, &dy)) return;
  int rank = (int)shape.count, axis = (int)((const gather_axis *)state)->axis;
  if (axis < 0) axis += rank;
  if (shape.count > ET_MAX_RANK || axis < 0 || axis >= rank) return et_fail(context, WRONG_AXIS);
  if (indices.type != ORT_INT64 && indices.type != ORT_INT32)
    return et_fail(context, "indices are int64 or int32");
  gather g = {.dy = dy.data, .outer = 1, .inner = 1, .count = indices.count};
  for (int i = 0; i < rank; i++) {
    dim[i] = (size_t)((const int64_t *)shape.data)[i];
    if (i < axis) g.outer *= dim[i];
    if (i > axis) g.inner *= dim[i];
  }
  g.axis = dim[axis];
  g.dx = et_output(context, 0, dim, rank);
  if (!g.dx) return;
  if (dy.count != g.outer * g.count * g.inner)
    return et_fail(context, "dy is not of the size of what was gathered");
  if (g.outer * g.axis * g.inner == 0) return;
  g.rows = gather_rows(context, &indices, g.axis);
  g.cuts = g.outer >= MAX_JOBS ? 1 : most(least(MAX_JOBS, g.inner / 64), 1);
  g.jobs = least(g.outer * g.cuts, jobs_for(g.outer * (g.axis + g.count) * g.inner));
  if (g.rows) et_parallel(context, gather_job, g.jobs, &g);
}
