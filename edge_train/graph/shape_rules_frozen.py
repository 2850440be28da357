"""Shape rules of ops that only frozen parts have: quantized, fused, random, detection.

A trained head behind such a part still needs the ranks that come out of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from edge_train import dtypes
from edge_train.graph import ir
from edge_train.graph.shape_rules import RULES, Facts, like, rule, unknown

if TYPE_CHECKING:
    from edge_train.graph.shapes import Shapes


@rule("DynamicQuantizeLinear")
def _dynamic_quantize(s: Shapes, node: ir.Node) -> Facts:
    return [(dtypes.UINT8, s.dims(node.input(0))), (dtypes.FLOAT, ()), (dtypes.UINT8, ())]


def _computed_as(op_type: str, s: Shapes, node: ir.Node, first: int, second: int) -> Facts:
    """The facts of a float op on two of the inputs."""
    plain = ir.Node(op_type, (node.input(first), node.input(second)), node.outputs, "", "",
                    node.attributes)  # fmt: skip
    return RULES[op_type](s, plain)


@rule("MatMulInteger")
def _matmul_integer(s: Shapes, node: ir.Node) -> Facts:
    return [(dtypes.INT32, _computed_as("MatMul", s, node, 0, 1)[0][1])]


@rule("ConvInteger")
def _conv_integer(s: Shapes, node: ir.Node) -> Facts:
    return [(dtypes.INT32, _computed_as("Conv", s, node, 0, 1)[0][1])]


@rule("QLinearMatMul")
def _qlinear_matmul(s: Shapes, node: ir.Node) -> Facts:
    return [(s.elem_type(node.input(7)), _computed_as("MatMul", s, node, 0, 3)[0][1])]


@rule("QLinearConv")
def _qlinear_conv(s: Shapes, node: ir.Node) -> Facts:
    return [(s.elem_type(node.input(7)), _computed_as("Conv", s, node, 0, 3)[0][1])]


@rule("MatMulIntegerToFloat", "DynamicQuantizeMatMul")
def _matmul_to_float(s: Shapes, node: ir.Node) -> Facts:
    return [(dtypes.FLOAT, _computed_as("MatMul", s, node, 0, 1)[0][1])]


@rule("MatMulNBits")
def _matmul_nbits(s: Shapes, node: ir.Node) -> Facts:
    elem_type, a = like(s, node.input(0))
    return [(elem_type, None if a is None else (*a[:-1], node.attr("N")))]


@rule("QLinearAdd", "QLinearMul", "QLinearSigmoid", "QLinearLeakyRelu", "QLinearSoftmax")
def _qlinear_elementwise(s: Shapes, node: ir.Node) -> Facts:
    elem_type, dims = like(s, node.input(0))
    return [(elem_type, None if dims is None else unknown(len(dims)))]


@rule("RandomNormalLike", "RandomUniformLike", "Bernoulli", "EyeLike")
def _random_like(s: Shapes, node: ir.Node) -> Facts:
    elem_type, dims = like(s, node.input(0))
    return [(node.attr("dtype") or elem_type, dims)]


@rule("RandomNormal", "RandomUniform")
def _random(s: Shapes, node: ir.Node) -> Facts:
    return [(node.attr("dtype", dtypes.FLOAT), tuple(node.attr("shape")))]


@rule("GridSample")
def _grid_sample(s: Shapes, node: ir.Node) -> Facts:
    elem_type, x = like(s, node.input(0))
    grid = s.dims(node.input(1))
    if x is None:
        return [(elem_type, None)]
    return [(elem_type, (*x[:2], *(grid[1:-1] if grid else (None,) * (len(x) - 2))))]


@rule("RoiAlign")
def _roi_align(s: Shapes, node: ir.Node) -> Facts:
    elem_type, x = like(s, node.input(0))
    rois, channels = s.dims(node.input(1)), x[1] if x else None
    size = node.attr("output_height", 1), node.attr("output_width", 1)
    return [(elem_type, (rois[0] if rois else None, channels, *size))]


@rule("NonMaxSuppression")
def _non_max_suppression(s: Shapes, node: ir.Node) -> Facts:
    return [(dtypes.INT64, (None, 3))]


@rule("Det")
def _det(s: Shapes, node: ir.Node) -> Facts:
    elem_type, x = like(s, node.input(0))
    return [(elem_type, None if x is None else x[:-2])]
