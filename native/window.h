/* Strides, pads and dilations of a convolution or pooling over two axes. */
#ifndef EDGE_TRAIN_WINDOW_H
#define EDGE_TRAIN_WINDOW_H

#include "op.h"
#include "vec.h"

typedef struct window {
  size_t stride[2], pad[4], dilation[2]; /* pad: top, left, bottom, right */
} window;

APART const char *window_read(window *w, const et_attributes *attributes) {
  int64_t strides[2] = {1, 1}, pads[4] = {0, 0, 0, 0}, dilations[2] = {1, 1};
  size_t n = et_attr_ints(attributes, "strides", strides, 2);
  size_t p = et_attr_ints(attributes, "pads", pads, 4);
  size_t d = et_attr_ints(attributes, "dilations", dilations, 2);
  if ((n && n != 2) || (p && p != 4) || (d && d != 2)) return "a window needs two axes";
  for (int i = 0; i < 2; i++) {
    if (strides[i] < 1 || strides[i] > 1 << 20 || dilations[i] < 1 || dilations[i] > 1 << 20)
      return "strides and dilations are from 1 to 2^20";
    w->stride[i] = (size_t)strides[i];
    w->dilation[i] = (size_t)dilations[i];
  }
  for (int i = 0; i < 4; i++) {
    if (pads[i] < 0 || pads[i] > 1 << 20) return "pads are from 0 to 2^20";
    w->pad[i] = (size_t)pads[i];
  }
  return 0;
}

/* Whether scratch of so many numbers for each of MAX_JOBS jobs, four times, has no size. 64 bits hold
 * whatever a window of numbers up to 2^20 asks for. */
static inline int too_large(double floats) {
  return sizeof(size_t) < 8 && floats > (double)(SIZE_MAX / (4 * MAX_JOBS * sizeof(float)));
}

/* The number of window positions along an axis, 0 where none fits: its reach may not fit a size_t then. */
static inline size_t window_count(const window *w, int axis, size_t size, size_t kernel) {
  size_t whole = size + w->pad[axis] + w->pad[axis + 2], dilation = w->dilation[axis];
  if (kernel == 0 || whole == 0 || kernel - 1 > (whole - 1) / dilation) return 0;
  return (whole - 1 - (kernel - 1) * dilation) / w->stride[axis] + 1;
}

#endif
