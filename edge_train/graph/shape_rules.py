"""Shape rules by op: node -> (element type, dims) of each output. Read by shapes.Shapes.

``s`` is the Shapes that asks; None is "not known". A rule may raise LookupError, TypeError or
ValueError on a malformed node.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, TypeAlias

from edge_train import dtypes
from edge_train.graph import ir
from edge_train.graph.casting import converted_sizes

if TYPE_CHECKING:
    from edge_train.graph.shapes import Shapes

Dims: TypeAlias = "tuple[ir.Dim, ...]"
Fact: TypeAlias = "tuple[int | None, Dims | None]"
Facts: TypeAlias = "Sequence[Fact]"
Rule: TypeAlias = "Callable[[Shapes, ir.Node], Facts]"

RULES: dict[str, Rule] = {}

MAX_RANK = 64


def rule(*op_types: str) -> Callable[[Rule], Rule]:
    """Registers a rule for ops."""

    def register(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(op_types, function))
        return function

    return register


def like(s: Shapes, name: str) -> Fact:
    """The type of another tensor."""
    return s.elem_type(name), s.dims(name)


def axis_of(axis: int, rank: int) -> int:
    """An axis counted from the front."""
    if not -rank <= axis < rank:
        raise IndexError(f"axis {axis} of rank {rank}")
    return axis % rank


def unknown(rank: ir.Dim) -> Dims | None:
    """Dims of which only their number is known, if it is; a damaged model may say any number."""
    return (None,) * rank if isinstance(rank, int) and rank <= MAX_RANK else None


def ints(values: Iterable[ir.Dim] | None) -> tuple[int, ...] | None:
    """The values if every one is a number."""
    if values is None:
        return None
    known = tuple(values)
    numbers = tuple([value for value in known if isinstance(value, int)])
    return numbers if len(numbers) == len(known) else None


def axes_of(s: Shapes, node: ir.Node) -> tuple[int, ...] | None:
    """The axes of a node, from its second input (opset 13 and on) or from the attribute."""
    name = node.input(1)
    return ints(s.contents(name)) if name else node.attr("axes")


# --- outputs like inputs -----------------------------------------------------------------------

_LIKE_FIRST = """
Abs Acos Acosh Asin Asinh Atan Atanh BiasGelu BiasSoftmax BitmaskDropoutGrad BitwiseNot Ceil Celu
Clip Cos Cosh CumSum DropoutGrad Elu Erf Exp FakeQuantGrad FastGelu Floor Gelu GroupNormalization
HardSigmoid HardSwish Hardmax Identity InPlaceAccumulator InstanceNormalization LRN LeakyRelu Log
LogSoftmax LpNormalization MeanVarianceNormalization Mish Neg Not PRelu QuickGelu Reciprocal Relu
ReverseSequence Round Scale Scatter ScatterElements ScatterND Selu Shrink Sigmoid Sign Sin Sinh
Softmax SoftmaxDropoutGrad Softplus Softsign Sqrt Tan Tanh ThresholdedRelu Trilu ZeroGradient
"""

_LIKE_SECOND = """
BiasFastGeluGrad_dX BiasGeluGrad_dX FastGeluGrad GeluGrad LeakyReluGrad LogSoftmaxGrad
LogSoftmaxGrad_13 QuickGeluGrad ReluGrad SigmoidGrad SoftmaxCrossEntropyGrad
SoftmaxCrossEntropyLossGrad SoftmaxCrossEntropyLossInternalGrad SoftmaxGrad SoftmaxGrad_13
ResizeGrad SparseSoftmaxCrossEntropyGrad TanhGrad
"""

# op -> for each output the input that it has the type and dims of
_LIKE: dict[str, tuple[int, ...]] = {
    **dict.fromkeys(
        _LIKE_FIRST.split(),
        (0,),
    ),
    **dict.fromkeys(
        _LIKE_SECOND.split(),
        (1,),
    ),
    "BatchScale": (0, 0, 0),
    "BatchNormalization": (0, 3, 4, 3, 4),
    "BatchNormInternal": (0, 3, 4, 3, 4),
    "BatchNormalizationGrad": (1, 2, 2),
    "DivGrad": (1, 2),
    "GRUGrad": (0, 1, 2, 3, 5),
    "InvertibleLayerNormalizationGrad": (1, 2, 3),
    "LayerNormalizationGrad": (1, 2, 2),
    "SimplifiedLayerNormalizationGrad": (1, 2),
}


def _like_inputs(s: Shapes, node: ir.Node) -> Facts:
    contents = s.contents(node.input(0))
    if node.op_type == "Identity" and contents is not None:
        s.set_contents(node.output(0), contents)
    return [like(s, node.input(index)) for index in _LIKE[node.op_type]]


RULES.update(dict.fromkeys(_LIKE, _like_inputs))


@rule("Group")
def _done(s: Shapes, node: ir.Node) -> Facts:
    return [(dtypes.BOOL, (1,))]


@rule("PassThrough")
def _each_like_its_input(s: Shapes, node: ir.Node) -> Facts:
    return [like(s, name) for name in node.inputs]


@rule("BiasDropout", "Dropout", "FakeQuant")
def _with_mask(s: Shapes, node: ir.Node) -> Facts:
    return [like(s, node.input(0)), (dtypes.BOOL, s.dims(node.input(0)))]


@rule("BitmaskBiasDropout", "BitmaskDropout")
def _with_packed_mask(s: Shapes, node: ir.Node) -> Facts:
    return [like(s, node.input(0)), (dtypes.UINT32, (None,))]


@rule("BiasSoftmaxDropout")
def _bias_softmax_dropout(s: Shapes, node: ir.Node) -> Facts:
    x = like(s, node.input(0))
    return [x, (dtypes.BOOL, x[1]), x]


@rule("MixedPrecisionScale")
def _mixed_precision_scale(s: Shapes, node: ir.Node) -> Facts:
    kind = node.attr("to")
    if node.attr("fuse_outputs", 0):
        return [(kind, (None,))]
    return [(kind, s.dims(name)) for name in node.inputs[1:]]


@rule("InPlaceAccumulatorV2")
def _accumulator(s: Shapes, node: ir.Node) -> Facts:
    return [(dtypes.BOOL, (1,)), like(s, node.input(0))]


# --- broadcasting ------------------------------------------------------------------------------


def broadcast_dim(dims: Sequence[ir.Dim]) -> ir.Dim:
    """The size of an axis of a result whose operands have these."""
    grown = {dim for dim in dims if dim != 1}
    sizes = [dim for dim in grown if isinstance(dim, int)]
    if sizes:
        return sizes[0]
    if not grown:
        return 1
    return grown.pop() if len(grown) == 1 else None


def broadcast(shapes: Sequence[Dims | None]) -> Dims | None:
    """The dims of an elementwise result."""
    known = [dims[::-1] for dims in shapes if dims is not None]
    if len(known) < len(shapes):
        return None
    return tuple([broadcast_dim(dims) for dims in zip_longest(*known, fillvalue=1)])[::-1]


def _broadcast_inputs(s: Shapes, node: ir.Node) -> Dims | None:
    return broadcast([s.dims(name) for name in node.inputs])


_ARITHMETIC = """
Add BitShift BitwiseAnd BitwiseOr BitwiseXor Div Max Mean Min Mod Mul Pow ScaledSum Sub Sum
"""


@rule(*_ARITHMETIC.split())
def _elementwise(s: Shapes, node: ir.Node) -> Facts:
    return [(s.elem_type(node.input(0)), _broadcast_inputs(s, node))]


@rule("And", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Or", "Xor")
def _compare(s: Shapes, node: ir.Node) -> Facts:
    return [(dtypes.BOOL, _broadcast_inputs(s, node))]


@rule("IsFinite", "IsInf", "IsNaN")
def _test(s: Shapes, node: ir.Node) -> Facts:
    return [(dtypes.BOOL, s.dims(node.input(0)))]


@rule("Where")
def _where(s: Shapes, node: ir.Node) -> Facts:
    return [(s.elem_type(node.input(1)), _broadcast_inputs(s, node))]


@rule("Cast")
def _cast(s: Shapes, node: ir.Node) -> Facts:
    contents = s.contents(node.input(0))
    if contents is not None:
        s.set_contents(node.output(0), converted_sizes(contents, node.attr("to")))
    return [(node.attr("to"), s.dims(node.input(0)))]


@rule("CastLike")
def _cast_like(s: Shapes, node: ir.Node) -> Facts:
    return [(s.elem_type(node.input(1)), s.dims(node.input(0)))]


@rule("QuantizeLinear")
def _quantize(s: Shapes, node: ir.Node) -> Facts:
    elem_type = s.elem_type(node.input(2)) if node.input(2) else node.attr("output_dtype")
    return [(elem_type or dtypes.UINT8, s.dims(node.input(0)))]


@rule("DequantizeLinear")
def _dequantize(s: Shapes, node: ir.Node) -> Facts:
    return [(s.elem_type(node.input(1)), s.dims(node.input(0)))]


# --- shapes as data ----------------------------------------------------------------------------


@rule("Shape")
def _shape(s: Shapes, node: ir.Node) -> Facts:
    dims = s.dims(node.input(0))
    if dims is None:
        return [(dtypes.INT64, (None,))]
    dims = dims[node.attr("start", 0) : node.attr("end", len(dims))]
    s.set_contents(node.output(0), dims)
    return [(dtypes.INT64, (len(dims),))]


@rule("Size")
def _size(s: Shapes, node: ir.Node) -> Facts:
    sizes = ints(s.dims(node.input(0)))
    s.set_contents(node.output(0), (math.prod(sizes) if sizes is not None else None,))
    return [(dtypes.INT64, ())]


@rule("Constant")
def _constant(s: Shapes, node: ir.Node) -> Facts:
    if "value" in node.attributes:
        s.learn_tensor(node.output(0), node.attr("value"))
    kinds = (("int", dtypes.INT64), ("float", dtypes.FLOAT), ("string", dtypes.STRING))
    for name, elem_type in kinds:
        values = node.attr(f"value_{name}s")
        if values is None and f"value_{name}" in node.attributes:
            values = node.attr(f"value_{name}")
        if values is None:
            continue
        flat = values if isinstance(values, tuple) else (values,)
        if name == "int":
            s.set_contents(node.output(0), flat)
        return [(elem_type, (len(flat),) if flat is values else ())]
    return []


def _by_shape(s: Shapes, elem_type: int | None, shape: str) -> Facts:
    """A tensor whose shape is the value of tensor ``shape``."""
    dims = s.contents(shape)
    if dims is None:
        length = s.dims(shape)
        dims = unknown(length[0] if length else None)
    return [(elem_type, dims)]


@rule("ConstantOfShape")
def _constant_of_shape(s: Shapes, node: ir.Node) -> Facts:
    value = node.attr("value")
    return _by_shape(s, value.data_type if value else dtypes.FLOAT, node.input(0))


@rule("GatherGrad", "GatherNDGrad")
def _gather_grad(s: Shapes, node: ir.Node) -> Facts:
    return _by_shape(s, s.elem_type(node.input(2)), node.input(0))


@rule("SliceGrad", "GatherElementsGrad")
def _slice_grad(s: Shapes, node: ir.Node) -> Facts:
    return _by_shape(s, s.elem_type(node.input(0)), node.input(1))


@rule("BroadcastGradientArgs")
def _broadcast_gradient_args(s: Shapes, node: ir.Node) -> Facts:
    return [(dtypes.INT64, (None,))] * 2


@rule("Range")
def _range(s: Shapes, node: ir.Node) -> Facts:
    limits = [ints(s.contents(name)) for name in node.inputs]
    count: ir.Dim = None
    if all(limits):
        start, limit, delta = (value[0] for value in limits if value)
        count = max(0, -(-(limit - start) // delta))
    return [(s.elem_type(node.input(0)), (count,))]


@rule("Expand")
def _expand(s: Shapes, node: ir.Node) -> Facts:
    elem_type, dims = like(s, node.input(0))
    target = _by_shape(s, elem_type, node.input(1))[0][1]
    return [(elem_type, broadcast([dims, target]))]


@rule("View")
def _view(s: Shapes, node: ir.Node) -> Facts:
    return [_by_shape(s, s.elem_type(node.input(0)), name)[0] for name in node.inputs[1:]]
