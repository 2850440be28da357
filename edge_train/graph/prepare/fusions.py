"""Formulas that exporters spell out and onnxruntime has an op for: the same numbers, fewer nodes,
and a gradient op that is one kernel.

Only where nothing else reads what lies between, and where no shape changes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial

from edge_train.graph import ir
from edge_train.graph.prepare.pattern import Graph, NoMatch, Pattern

Match = Callable[[Pattern, ir.Node], ir.Node]


def fuse(model: ir.Model, keep: Collection[str]) -> ir.Model:
    """The model with LayerNormalization, RMS norm and three Gelus in place of their formulas."""
    graph = model.graph
    table = Graph(graph, keep)
    instead: dict[str, ir.Node] = {}
    gone: set[str] = set()
    for node in reversed(graph.nodes):
        if node.outputs[0] in gone or node.domain not in ir.ONNX_DOMAINS:
            continue
        for match in _MATCHES.get(node.op_type, ()):
            pattern = Pattern(table)
            try:
                fused = match(pattern, node)
                pattern.check_private(node.outputs[0])
            except NoMatch:
                continue
            gone.update(pattern.nodes)
            instead[node.outputs[0]] = fused
            break
    if not instead:
        return model
    nodes = [
        instead.get(node.outputs[0], node)
        for node in graph.nodes
        if node.outputs[0] in instead or node.outputs[0] not in gone
    ]
    imports = [item for item in model.opset_imports if item[0] != ir.MICROSOFT]
    return replace(
        model, graph=replace(graph, nodes=nodes), opset_imports=[*imports, (ir.MICROSOFT, 1)]
    )


def _made(
    p: Pattern, node: ir.Node, op_type: str, *inputs: str, domain: str = "", **attributes: float
) -> ir.Node:
    p.check_float(inputs[0])
    return ir.make_node(op_type, inputs, node.outputs, node.name, domain, **attributes)


def _sides(p: Pattern, name: str, op_type: str) -> tuple[tuple[str, str], ...]:
    """The operands of a node both ways round."""
    a, b = p.made_by(name, op_type).inputs
    return ((a, b), (b, a))


def _layer_norm(p: Pattern, node: ir.Node) -> ir.Node:
    """(x - mean) / sqrt(mean((x - mean)^2) + eps) * scale + bias."""

    def affine(product: str, bias: str) -> ir.Node:
        pairs = _sides(p, product, "Mul")
        return p.first(partial(scaled, normed, scale, bias) for normed, scale in pairs)

    def scaled(normed: str, scale: str, bias: str) -> ir.Node:
        x, axes, eps = _normalised(p, normed)
        p.check_sizes(scale, x, axes)
        p.check_sizes(bias, x, axes)
        return _made(p, node, "LayerNormalization", x, scale, bias, axis=-len(axes), epsilon=eps)

    return p.first(partial(affine, *pair) for pair in _sides(p, node.outputs[0], "Add"))


def _normalised(p: Pattern, name: str) -> tuple[str, tuple[int, ...], float]:
    """x, axes and epsilon of (x - mean) / sqrt(mean((x - mean)^2) + eps)."""
    quotient = p.made_by(name, "Div")
    centred = quotient.inputs[0]
    difference = p.made_by(centred, "Sub")
    x, axes = p.mean_axes(difference.inputs[1])
    variance, eps = p.number_beside(p.made_by(quotient.inputs[1], "Sqrt").inputs[0], "Add")
    square, again = p.mean_axes(variance)
    if p.squared(square) != centred or difference.inputs[0] != x or again != axes:
        raise NoMatch
    return x, axes, eps


def _rms_norm(p: Pattern, node: ir.Node) -> ir.Node:
    """x / sqrt(mean(x^2) + eps) * scale, dividing or multiplying by the inverse."""

    def scaled(normed: str, scale: str) -> ir.Node:
        x, root = p.first(partial(form, p, normed) for form in (_over, _times_inverse))
        mean, eps = p.number_beside(p.made_by(root, "Sqrt").inputs[0], "Add")
        square, axes = p.mean_axes(mean)
        if p.squared(square) != x or len(axes) != 1:
            raise NoMatch
        p.check_sizes(scale, x, axes)
        op_type = "SimplifiedLayerNormalization"
        return _made(p, node, op_type, x, scale, axis=-1, epsilon=eps)

    return p.first(partial(scaled, *pair) for pair in _sides(p, node.outputs[0], "Mul"))


def _over(p: Pattern, name: str) -> tuple[str, str]:
    """x and r of x / r."""
    x, root = p.made_by(name, "Div").inputs
    return x, root


def _times_inverse(p: Pattern, name: str) -> tuple[str, str]:
    """x and r of x * (1 / r) and x * Reciprocal(r)."""

    def inverted(x: str, inverse: str) -> tuple[str, str]:
        maker = p.made_by(inverse, "Div", "Reciprocal")
        if maker.op_type == "Div" and p.graph.number(*maker.inputs) != 1:
            raise NoMatch
        return x, maker.inputs[-1]

    return p.first(partial(inverted, *pair) for pair in _sides(p, name, "Mul"))


def _halved(p: Pattern, node: ir.Node, gated: Callable[[str], str]) -> str:
    """x of 0.5 x gate, the product in any order; ``gated`` tells the x in a gate."""

    def checked(x: str, gate: str) -> str:
        if gated(gate) != x:
            raise NoMatch
        return x

    def outside() -> str:  # 0.5 * (x * gate)
        product = p.with_number(y, "Mul", 0.5)
        return p.first(partial(checked, *pair) for pair in _sides(p, product, "Mul"))

    def on_x(one: str, gate: str) -> str:  # (0.5 * x) * gate
        return checked(p.with_number(one, "Mul", 0.5), gate)

    def on_gate(x: str, other: str) -> str:  # x * (0.5 * gate)
        return checked(x, p.with_number(other, "Mul", 0.5))

    y = node.outputs[0]
    pairs = _sides(p, y, "Mul")
    forms: list[Callable[[], str]] = [outside]
    forms += (partial(form, *pair) for form in (on_x, on_gate) for pair in pairs)
    return p.first(forms)


def _gelu(p: Pattern, node: ir.Node) -> ir.Node:
    """0.5 x (1 + erf(x / sqrt(2)))."""

    def gated(name: str) -> str:
        scaled = p.made_by(p.with_number(name, "Add", 1.0), "Erf").inputs[0]
        op_type = p.made_by(scaled, "Div", "Mul").op_type
        return p.with_number(scaled, op_type, math.sqrt(2 if op_type == "Div" else 0.5))

    return _made(p, node, "Gelu", _halved(p, node, gated))


def _fast_gelu(p: Pattern, node: ir.Node) -> ir.Node:
    """0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))."""

    def gated(name: str) -> str:
        angle = p.made_by(p.with_number(name, "Add", 1.0), "Tanh").inputs[0]
        total = p.with_number(angle, "Mul", math.sqrt(2 / math.pi))
        return p.first(partial(cubic, *pair) for pair in _sides(p, total, "Add"))

    def cubic(x: str, term: str) -> str:
        if _cubed(p, p.with_number(term, "Mul", 0.044715)) != x:
            raise NoMatch
        return x

    return _made(p, node, "FastGelu", _halved(p, node, gated), domain=ir.MICROSOFT)


def _cubed(p: Pattern, name: str) -> str:
    """x of Pow(x, 3) or x * x^2."""

    def product(x: str, square: str) -> str:
        if p.squared(square) != x:
            raise NoMatch
        return x

    if p.made_by(name, "Pow", "Mul").op_type == "Pow":
        return p.with_number(name, "Pow", 3.0)
    return p.first(partial(product, *pair) for pair in _sides(p, name, "Mul"))


def _quick_gelu(p: Pattern, node: ir.Node) -> ir.Node:
    """x sigmoid(alpha x)."""

    def gated(x: str, gate: str) -> ir.Node:
        inner = p.made_by(gate, "Sigmoid").inputs[0]
        scaled, alpha = (x, 1.0) if inner == x else p.number_beside(inner, "Mul")
        if scaled != x:
            raise NoMatch
        return _made(p, node, "QuickGelu", x, domain=ir.MICROSOFT, alpha=alpha)

    return p.first(partial(gated, *pair) for pair in _sides(p, node.outputs[0], "Mul"))


_MATCHES: dict[str, tuple[Match, ...]] = {
    "Add": (_layer_norm,),
    "Mul": (_gelu, _fast_gelu, _rms_norm, _quick_gelu),
}
