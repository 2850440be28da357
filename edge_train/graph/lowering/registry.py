"""The one table of lowering rules: (domain, op) -> the function that rewrites such a node.

A rule takes a Builder and the node and returns the tensor that stands for each output ("" for one
nobody reads). It raises Refuse when this form of the op cannot be lowered.

Rules compute in float32 or double: the driver casts half-precision tensors around them, except for
those that only move data (``moves``). ``float_only`` marks the rules whose standard ops onnxruntime
has for float32 only, so that double is cast as well.

``fuses`` registers a second rule that writes one of our own kernels (native/kernels.c) instead; it
is asked first where the native library is used and every float tensor it reads is float32, which
it need not check, and returns None for the forms that it leaves to the standard ops.
"""

from __future__ import annotations

from collections.abc import Callable

from edge_train import dtypes
from edge_train.graph import ir
from edge_train.graph.lowering.builder import Builder

Rule = Callable[[Builder, ir.Node], "str | tuple[str, ...]"]

FusedRule = Callable[[Builder, ir.Node], "str | tuple[str, ...] | None"]

RULES: dict[tuple[str, str], Rule] = {}
FUSED: dict[tuple[str, str], FusedRule] = {}

#: of a tensor that our own kernels take (native/op.h)
MOST_AXES = 8

_HALF = frozenset({dtypes.FLOAT16, dtypes.BFLOAT16})
_NOT_FLOAT = _HALF | {dtypes.DOUBLE}

#: the element types that a rule or an op of onnxruntime does not compute in
_CAST_AWAY: dict[tuple[str, str], frozenset[int]] = dict.fromkeys(
    [
        ("", op_type)
        for op_type in (
            *("AveragePool", "Conv", "ConvTranspose", "Erf", "Gelu", "GlobalAveragePool"),
            *("GRU", "LSTM", "RNN"),
            *("GlobalLpPool", "GlobalMaxPool", "LpPool", "MaxUnpool", "Resize"),
            *("InstanceNormalization", "LRN", "MeanVarianceNormalization"),
            *("Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Cos", "Cosh", "Sinh", "Tan"),
            *("Celu", "Elu", "HardSigmoid", "HardSwish", "Hardmax", "LeakyRelu", "Mean", "Mish"),
            *("PRelu", "Selu", "Softplus", "Softsign", "ThresholdedRelu"),
        )
    ],
    frozenset({dtypes.DOUBLE}),
)
_CAST_AWAY.update(
    dict.fromkeys([("", "ScatterElements"), ("", "ScatterND")], frozenset({dtypes.FLOAT16}))
)


def lowers(
    *op_types: str, domain: str = ir.MICROSOFT, moves: bool = False, float_only: bool = False
) -> Callable[[Rule], Rule]:
    """Registers the decorated function for the named ops; a second rule for an op is a bug."""

    def register(rule: Rule) -> Rule:
        for op_type in op_types:
            key = domain, op_type
            if key in RULES:
                raise ValueError(f"two lowering rules for {domain or 'ai.onnx'}::{op_type}")
            RULES[key] = rule
            _CAST_AWAY[key] = frozenset() if moves else _NOT_FLOAT if float_only else _HALF
        return rule

    return register


def fuses(*op_types: str, domain: str = ir.MICROSOFT) -> Callable[[FusedRule], FusedRule]:
    """Registers the decorated function as the fused rule of the named ops."""

    def register(rule: FusedRule) -> FusedRule:
        for op_type in op_types:
            if FUSED.setdefault((domain, op_type), rule) is not rule:
                raise ValueError(f"two fused rules for {domain or 'ai.onnx'}::{op_type}")
        return rule

    return register


def cast_away(node: ir.Node) -> frozenset[int]:
    """The element types of a node's tensors that are cast to float32 around it."""
    return _CAST_AWAY.get(_key(node), frozenset())


def rule_for(node: ir.Node) -> Rule | None:
    """The rule of a node, or None where onnxruntime runs the op itself."""
    return RULES.get(_key(node))


def fused_rule_for(b: Builder, node: ir.Node) -> FusedRule | None:
    """The fused rule of a node, None where there is none or a tensor is none for a kernel."""
    rule = FUSED.get(_key(node)) if b.fused else None
    return rule if rule and all(_fits(b, name) for name in node.inputs if name) else None


def _fits(b: Builder, name: str) -> bool:
    """Whether a tensor has float32 numbers, or none, and not too many axes for a kernel."""
    axes = b.shapes.rank(name) or 0
    return b.shapes.elem_type(name) not in _NOT_FLOAT and axes <= MOST_AXES


def _key(node: ir.Node) -> tuple[str, str]:
    return "" if node.domain in ir.ONNX_DOMAINS else node.domain, node.op_type
