/* All kernels of one instruction set as one unit: compiled once for each, with -DET_ISA=base, avx2 …
 * Everything is static but the table. */
#include "gemm.h"
#include "lanes.h"
#include "memory.h"
#include "op.h"
#include "release.h"
#include "vec.h"
#include "window.h"

#include "activations.c"
#include "clip.c"
#include "batchnorm.c"
#include "conv_depthwise.c"
#include "conv_pointwise.c"
#include "conv_general.c"
#include "softmax.c"
#include "layer_norm.c"

/* Small rather than quick: no loop here gains from -O3's copies of itself. */
#pragma GCC push_options
#pragma GCC optimize("O2")
#include "cross_entropy.c"
#include "gather.c"
#include "heads.c"
#include "pool.c"
#include "recurrent.c"
#include "lstm.c"
#include "gru.c"
#pragma GCC pop_options

static const et_op ops[] = {
    {"Release", "f+", "f", sizeof(release_state), et_release_create, et_release_compute, 0},
    {"Clip", "fFF", "fu", sizeof(int), clip_create, clip_compute, 1},
    {"ClipGrad", "fu", "f", 0, 0, clip_gradient, 1},
    {"BatchNorm", "fffffFF", "fFFFFU", sizeof(batchnorm_state), batchnorm_create, batchnorm_compute, 0},
    {"BatchNormGrad", "fffff", "FFF", 0, 0, batchnorm_gradient, 1},
    {"PointwiseConv", "ffFFF", "fU", sizeof(int), clip_create, pointwise_compute, 0},
    {"PointwiseConvGrad", "fffU", "FFF", 0, 0, pointwise_gradient, 0},
    {"ConvGrad", "fff", "FFF", sizeof(general_state), general_create, general_gradient, 0},
    {"DepthwiseConv", "ffFFF", "fU", sizeof(depthwise_state), depthwise_create, depthwise_compute, 0},
    {"DepthwiseConvGrad", "fffU", "FFF", sizeof(depthwise_state), depthwise_create, depthwise_gradient, 0},
    {"Gelu", "fF", "f", sizeof(curve), curve_create, gelu_compute, 1},
    {"FastGelu", "fF", "f", sizeof(curve), curve_create, fast_gelu_compute, 1},
    {"QuickGelu", "fF", "f", sizeof(curve), curve_create, quick_gelu_compute, 1},
    {"GeluGrad", "ffF", "fF", sizeof(curve), curve_create, gelu_slope_compute, 1},
    {"FastGeluGrad", "ffF", "fF", sizeof(curve), curve_create, fast_gelu_slope_compute, 1},
    {"QuickGeluGrad", "ffF", "fF", sizeof(curve), curve_create, quick_gelu_slope_compute, 1},
    {"SigmoidGrad", "ffF", "fF", sizeof(curve), curve_create, sigmoid_slope_compute, 1},
    {"TanhGrad", "ffF", "fF", sizeof(curve), curve_create, tanh_slope_compute, 1},
    {"ReluGrad", "ffF", "fF", sizeof(curve), curve_create, relu_slope_compute, 1},
    {"LeakyReluGrad", "ffF", "fF", sizeof(curve), curve_create, leaky_relu_slope_compute, 1},
    {"Dropped", "fbf", "f", 0, 0, dropped_compute, 1},
    {"SoftmaxGrad", "ff", "f", sizeof(axes), axes_create, softmax_compute, 1},
    {"LogSoftmaxGrad", "ff", "f", sizeof(axes), axes_create, log_softmax_compute, 1},
    {"LayerNormalizationGrad", "fffffFFF", "FFFF", 0, 0, layer_norm_grad, 1},
    {"AddedLayerNormalization", "fFFfF", "fFFF", sizeof(float), added_norm_create, added_norm_compute, 0},
    {"Heads", "fF", "f", 0, 0, heads_compute, 0},
    {"HeadsGrad", "f", "fF", 0, 0, heads_gradient, 0},
    {"GatherGrad", "i*f", "f", sizeof(gather_axis), gather_create, gather_gradient, 0},
    {"CrossEntropy", "f*F", "fF", sizeof(loss_form), loss_create, entropy_compute, 0},
    {"CrossEntropyGrad", "ff*F", "f", sizeof(loss_form), loss_create, entropy_gradient, 0},
    {"CrossEntropyWithGrad", "ff*F", "ff", sizeof(loss_form), loss_create, entropy_both, 0},
    {"SimplifiedLayerNormalizationGrad", "ffff", "FF", 0, 0, rms_norm_grad, 1},
    {"MaxPool", "f", "fu", sizeof(pool_state), pool_create, pool_compute, 0},
    {"MaxPoolGrad", "fuiU", "f", sizeof(pool_state), pool_create, pool_gradient, 0},
    {"LSTM", "fffFJFFF", "FFFFF", sizeof(recurrent_state), recurrent_create, lstm_compute, 0},
    {"LSTMGrad", "ffJFFfffFFFF", "fFFFFF", sizeof(recurrent_state), recurrent_create, lstm_gradient, 0},
    {"GRU", "fffFJF", "FFF", sizeof(recurrent_state), recurrent_create, gru_compute, 0},
    {"GRUGrad", "ffFJFffFF", "fFFFF", sizeof(recurrent_state), recurrent_create, gru_gradient, 0},
};

#define JOIN(a, b) a##b
#define NAMED(isa) JOIN(et_ops_, isa)

const et_op *NAMED(ET_ISA)(size_t *count) {
  *count = sizeof(ops) / sizeof(ops[0]);
  return ops;
}
