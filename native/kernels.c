/* All kernels of one instruction set as one unit: compiled once for each, with -DET_ISA=base, avx2 …
 * Everything is static but the function that adds them to the library's list.
 *
 * With ET_FEW only those that wider vectors make quicker: they compute more than they read. */
#include "gemm.h"
#include "lanes.h"
#include "math.h"
#include "memory.h"
#include "op.h"
#include "release.h"
#include "vec.h"
#include "window.h"

#include "clip.c"
#include "conv_layout.c"
#include "conv_depthwise.c"
#include "conv_pointwise.c"
#include "conv_general.c"
#if !defined(ET_FEW)
#include "activations.c"
#endif
/* Small rather than quick: no loop here gains from -O3's copies of itself. */
#pragma GCC push_options
#if !defined(__OPTIMIZE_SIZE__)
#pragma GCC optimize("O2")
#endif
#include "recurrent.c"
#include "lstm.c"
#include "gru.c"
#if !defined(ET_FEW)
#include "batchnorm.c"
#include "layer_norm.c"
#include "softmax.c"
#include "cross_entropy.c"
#include "dropout.c"
#include "gather.c"
#include "group_norm.c"
#include "heads.c"
#include "pool.c"
#endif
#pragma GCC pop_options

#define JOIN(a, b) a##b
#define NAMED(isa) JOIN(et_ops_, isa)

/* Calls and no table: a table of addresses would be twice as large, with a relocation for each. */
void __attribute__((optimize("Os"))) NAMED(ET_ISA)(et_ops *ops) {
  et_add(ops, "PointwiseConv ffFFF fU", sizeof(int), clip_create, pointwise_compute, 0);
  et_add(ops, "PointwiseConvGrad fffU FFF", 0, 0, pointwise_gradient, 0);
  et_add(ops, "ConvGrad fff FFF", sizeof(general_state), general_create, general_gradient, 0);
  et_add(ops, "DepthwiseConv ffFFF fU", sizeof(depthwise_state), depthwise_create, depthwise_compute, 0);
  et_add(ops, "DepthwiseConvGrad fffU FFF", sizeof(depthwise_state), depthwise_create, depthwise_gradient, 0);
  et_add(ops, "LSTM fffFJFFF FFFFF", sizeof(recurrent_state), recurrent_create, lstm_compute, 0);
  et_add(ops, "LSTMGrad ffJFFfffFFFF fFFFFF", sizeof(recurrent_state), recurrent_create, lstm_gradient, 0);
  et_add(ops, "GRU fffFJF FFF", sizeof(recurrent_state), recurrent_create, gru_compute, 0);
  et_add(ops, "GRUGrad ffFJFffFF fFFFF", sizeof(recurrent_state), recurrent_create, gru_gradient, 0);
#if !defined(ET_FEW)
  et_add(ops, "Release f+ f", sizeof(release_state), et_release_create, et_release_compute, 0);
  et_add(ops, "Clip fFF fu", sizeof(int), clip_create, clip_compute, 1);
  et_add(ops, "ClipGrad fu f", 0, 0, clip_gradient, 1);
  et_add(ops, "BatchNorm fffffFF fFFFFU", sizeof(batchnorm_state), batchnorm_create, batchnorm_compute, 0);
  et_add(ops, "BatchNormGrad fffff FFF", 0, 0, batchnorm_gradient, 1);
  et_add(ops, "Gelu fF f", sizeof(curve), curve_create, gelu_compute, 1);
  et_add(ops, "FastGelu fF f", sizeof(curve), curve_create, fast_gelu_compute, 1);
  et_add(ops, "QuickGelu fF f", sizeof(curve), curve_create, quick_gelu_compute, 1);
  et_add(ops, "GeluGrad ffF fF", sizeof(curve), curve_create, gelu_slope_compute, 1);
  et_add(ops, "FastGeluGrad ffF fF", sizeof(curve), curve_create, fast_gelu_slope_compute, 1);
  et_add(ops, "QuickGeluGrad ffF fF", sizeof(curve), curve_create, quick_gelu_slope_compute, 1);
  et_add(ops, "SigmoidGrad ffF fF", sizeof(curve), curve_create, sigmoid_slope_compute, 1);
  et_add(ops, "TanhGrad ffF fF", sizeof(curve), curve_create, tanh_slope_compute, 1);
  et_add(ops, "ReluGrad ffF fF", sizeof(curve), curve_create, relu_slope_compute, 1);
  et_add(ops, "LeakyReluGrad ffF fF", sizeof(curve), curve_create, leaky_relu_slope_compute, 1);
  et_add(ops, "DrawnDropout fFB fI", sizeof(et_draws), drawn_create, drawn_compute, 1);
  et_add(ops, "SeededDropout fiFB f", 0, 0, seeded_compute, 1);
  et_add(ops, "Dropped fbf f", 0, 0, dropped_compute, 1);
  et_add(ops, "SoftmaxGrad ff f", sizeof(axes), axes_create, softmax_compute, 1);
  et_add(ops, "LogSoftmaxGrad ff f", sizeof(axes), axes_create, log_softmax_compute, 1);
  et_add(ops, "LayerNormalizationGrad fffffFFF FFFF", 0, 0, layer_norm_grad, 1);
  et_add(ops, "AddedLayerNormalization fFFfF fFFF", sizeof(float), added_norm_create, added_norm_compute, 0);
  et_add(ops, "Heads fF f", 0, 0, heads_compute, 0);
  et_add(ops, "HeadsGrad f fF", 0, 0, heads_gradient, 0);
  et_add(ops, "GatherGrad i*f f", sizeof(gather_axis), gather_create, gather_gradient, 0);
  et_add(ops, "CrossEntropy f*F fF", sizeof(loss_form), loss_create, entropy_compute, 0);
  et_add(ops, "CrossEntropyGrad ff*F f", sizeof(loss_form), loss_create, entropy_gradient, 0);
  et_add(ops, "CrossEntropyWithGrad ff*F ff", sizeof(loss_form), loss_create, entropy_both, 0);
  et_add(ops, "SimplifiedLayerNormalizationGrad ffff FF", 0, 0, rms_norm_grad, 1);
  et_add(ops, "MaxPool f fu", sizeof(pool_state), max_pool_create, pool_compute, 0);
  et_add(ops, "MaxPoolGrad fuiU f", sizeof(pool_state), max_pool_create, pool_gradient, 0);
  et_add(ops, "AveragePoolGrad fiU f", sizeof(pool_state), pool_create, average_gradient, 0);
  et_add(ops, "HardSwishGrad ffF fF", sizeof(curve), curve_create, hard_swish_slope_compute, 1);
  et_add(ops, "GroupNormalizationGrad fff FFF", sizeof(group_norm_state), group_norm_create,
         group_norm_gradient, 1);
#endif
}
