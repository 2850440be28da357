/* Release: hands a gradient over the moment it is complete, so that its weight can be updated and its
 * memory used again.
 *
 * Inputs: the gradient, the loss, and whatever else has to be there first (the results of the nodes
 * that read the weight). Output: 1, so that the node has a place in the graph.
 *
 * The function that receives is set by the program, never read from a model: a model that came with
 * this op could otherwise name an address. `owner` tells it whose gradient comes. */
#include "release.h"

typedef int (*receiver)(int64_t owner, int64_t index, const float *dy, int64_t count, const float *loss,
                        int64_t losses);

static receiver receive;

__attribute__((visibility("default"))) void et_set_receiver(receiver function) { receive = function; }

const char *et_release_create(void *state, const et_attributes *attributes) {
  release_state *s = state;
  s->owner = et_attr_int(attributes, "owner", -1);
  s->index = et_attr_int(attributes, "index", -1);
  return s->owner < 0 || s->index < 0 ? "Release: owner and index are missing" : 0;
}

void et_release_compute(const void *state, et_context *context) {
  const release_state *s = state;
  et_tensor dy, loss;
  if (!et_input(context, 0, &dy) || !et_input(context, 1, &loss)) return;
  if (loss.type != ORT_FLOAT) return et_fail(context, "Release: the loss is not float32");
  if (!receive) return et_fail(context, "Release: nobody receives gradients");
  if (receive(s->owner, s->index, dy.data, (int64_t)dy.count, loss.data, (int64_t)loss.count))
    return et_fail(context, "Release: the gradient was not taken");
  const size_t one = 1;
  float *done = et_output(context, 0, &one, 1);
  if (done) *done = 1.0f;
}
