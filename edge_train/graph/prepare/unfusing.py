"""Takes apart what onnxruntime's optimizers joined: a sum and a normalisation, a product and an
activation. The parts have gradients, and onnxruntime joins them again where it pays.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from edge_train.graph import ir
from edge_train.graph.passes import all_names


def unfuse(model: ir.Model) -> ir.Model:
    """The model with SkipLayerNormalization, SkipSimplifiedLayerNormalization, FusedConv and
    FusedGemm (com.microsoft) in parts."""
    graph = model.graph
    if not any(_rule_of(node) for node in graph.nodes):
        return model
    scope = _Scope(all_names(graph))
    nodes = []
    for node in graph.nodes:
        rule = _rule_of(node)
        nodes += rule(scope, node) if rule else [node]
    return replace(model, graph=replace(graph, nodes=nodes))


class _Scope:
    """The names that are taken."""

    def __init__(self, names: set[str]) -> None:
        self._names = names

    def fresh(self, stem: str) -> str:
        name, count = stem, 0
        while name in self._names:
            count += 1
            name = f"{stem}_{count}"
        self._names.add(name)
        return name

    def part(self, node: ir.Node, op_type: str, inputs: Sequence[str], output: str) -> ir.Node:
        """A node named after the one it is a part of."""
        return ir.make_node(op_type, inputs, [output], self.fresh(f"{node.name}/{op_type}"))


def _skip_layer_norm(s: _Scope, node: ir.Node) -> list[ir.Node]:
    x, skip, gamma, beta, bias = (node.input(index) for index in range(5))
    total = node.output(3) or s.fresh(f"{node.outputs[0]}/sum")
    norm = _norm(node, (total, gamma, beta), node.outputs[:3], 1e-12)
    return [*_sum(s, node, [x, skip, bias], total), norm]


def _skip_rms_norm(s: _Scope, node: ir.Node) -> list[ir.Node]:
    x, skip, gamma, bias = (node.input(index) for index in range(4))
    total = node.output(3) or s.fresh(f"{node.outputs[0]}/sum")
    norm = _norm(node, (total, gamma), (node.outputs[0], node.output(2)), 1e-12)
    return [*_sum(s, node, [x, skip, bias], total), norm]


def _norm(node: ir.Node, inputs: Sequence[str], outputs: Sequence[str], epsilon: float) -> ir.Node:
    op_type = node.op_type.removeprefix("Skip")
    found = node.attr("epsilon", epsilon)
    return ir.make_node(op_type, _cut(inputs), _cut(outputs), node.name, axis=-1, epsilon=found)


def _cut(names: Sequence[str]) -> list[str]:
    """Without the omitted ones at the end: onnxruntime's fusions crash at an omitted bias."""
    kept = list(names)
    while kept and not kept[-1]:
        kept.pop()
    return kept


def _sum(s: _Scope, node: ir.Node, parts: Sequence[str], total: str) -> list[ir.Node]:
    """The sum of two tensors, and of a third if it is there."""
    first, *others = [name for name in parts if name]
    made = []
    for index, other in enumerate(others):
        last = index == len(others) - 1
        output = total if last else s.fresh(f"{total}/part")
        made.append(s.part(node, "Add", (first, other), output))
        first = output
    return made


def _fused_conv(s: _Scope, node: ir.Node) -> list[ir.Node]:
    """Conv, then the sum with Z, then the activation."""
    y, z = node.outputs[0], node.input(3)
    parameters = node.attr("activation_params") or ()
    before = s.fresh(f"{y}/product")
    conv = _bare(node, "Conv", node.inputs[:3], before)
    nodes = [conv]
    if z:
        total = s.fresh(f"{y}/sum")
        nodes += _sum(s, node, [before, z], total)
        before = total
    return [*nodes, *_activation(s, node, before, parameters)]


def _fused_gemm(s: _Scope, node: ir.Node) -> list[ir.Node]:
    letters = ("alpha", "beta", "gamma")
    given = (node.attr(f"activation_{letter}") for letter in letters)
    before = s.fresh(f"{node.outputs[0]}/product")
    gemm = _bare(node, "Gemm", node.inputs, before)
    return [gemm, *_activation(s, node, before, [value for value in given if value is not None])]


def _bare(node: ir.Node, op_type: str, inputs: Sequence[str], output: str) -> ir.Node:
    """The node without its activation."""
    kept = {k: v for k, v in node.attributes.items() if not k.startswith("activation")}
    inputs = tuple(_cut(inputs))
    return replace(
        node, op_type=op_type, domain="", inputs=inputs, outputs=(output,), attributes=kept
    )


def _activation(s: _Scope, node: ir.Node, x: str, parameters: Sequence[float]) -> list[ir.Node]:
    """y = activation(x) with its parameters in order; Clip has them as inputs."""
    op_type, y = node.attr("activation", ""), node.outputs[0]
    if not op_type:
        return [s.part(node, "Identity", (x,), y)]
    if op_type != "Clip":
        values = dict(zip(("alpha", "beta"), map(float, parameters), strict=False))
        made = s.part(node, op_type, (x,), y)
        named = {name: ir.Attribute.of(name, value) for name, value in values.items()}
        return [replace(made, attributes=named)]
    bounds = [
        ir.make_node("Constant", (), [s.fresh(f"{y}/bound")], value_float=float(value))
        for value in parameters
    ]
    return [*bounds, s.part(node, "Clip", (x, *(bound.outputs[0] for bound in bounds)), y)]


_Rule = Callable[[_Scope, ir.Node], "list[ir.Node]"]

_RULES: dict[str, _Rule] = {
    "SkipLayerNormalization": _skip_layer_norm,
    "SkipSimplifiedLayerNormalization": _skip_rms_norm,
    "FusedConv": _fused_conv,
    "FusedGemm": _fused_gemm,
}

#: what is taken apart
UNFUSED = tuple(_RULES)


def _rule_of(node: ir.Node) -> _Rule | None:
    return _RULES.get(node.op_type) if node.domain == ir.MICROSOFT else None
