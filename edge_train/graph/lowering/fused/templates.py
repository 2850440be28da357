"""Gradients that are written in standard ops, found in a training graph, become one kernel each.

The reference has no gradient of HardSwish, Instance- and GroupNormalization; ours is made of
standard ops, so that every onnxruntime runs it. The rule that wrote these nodes writes them again
here, as a template: where the graph holds the same nodes a kernel takes their place, everywhere
else they stay.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from edge_train import dtypes
from edge_train.graph import ir
from edge_train.graph.formula import Refuse
from edge_train.graph.lowering.fused.rewriting import is_stock, may_be_alike
from edge_train.graph.lowering.registry import MOST_AXES
from edge_train.graph.passes import live_nodes
from edge_train.graph.shapes import Shapes

#: the forward op -> the kernel of its gradients, whose inputs are dy and those of the op
_KERNELS = {
    "GroupNormalization": "GroupNormalizationGrad",
    "HardSwish": "HardSwishGrad",
    "InstanceNormalization": "GroupNormalizationGrad",
}
#: how many of the op's inputs
_INPUTS = {"HardSwish": 1}
_DY = "template/dy"
#: of a rule; those behind Refuse come from a malformed node, which whoever runs it will refuse
_NO_TEMPLATE = (Refuse, ArithmeticError, AttributeError, LookupError, TypeError, ValueError)


def with_gradient_kernels(model: ir.Model, shapes: Shapes) -> ir.Model:
    """The model with one kernel for the gradients of each float32 node that has one."""
    forwards = [node for node in model.graph.nodes if _fits(node, shapes)]
    if not forwards:
        return model
    search = _Search(model.graph, shapes)
    for node in forwards:
        search.take(node)
    if not search.found:
        return model
    nodes = live_nodes(search.rewritten(), [value.name for value in model.graph.outputs])
    imports = [*(pair for pair in model.opset_imports if pair[0] != ir.NATIVE), (ir.NATIVE, 1)]
    return replace(model, graph=replace(model.graph, nodes=nodes), opset_imports=imports)


def _fits(node: ir.Node, shapes: Shapes) -> bool:
    rank = shapes.rank(node.input(0)) if is_stock(node, *_KERNELS) else None
    if rank is None or not (0 if node.op_type in _INPUTS else 2) <= rank <= MOST_AXES:
        return False
    floats = node.inputs[: _INPUTS.get(node.op_type, 2)]
    return all(shapes.elem_type(name) == dtypes.FLOAT for name in floats)


@dataclass(frozen=True)
class _Template:
    """The nodes of a gradient by what they make, and the gradients of the op's inputs."""

    makers: Mapping[str, ir.Node]
    results: Sequence[str]


class _Search:
    """A graph in which the nodes of gradients are found and replaced."""

    def __init__(self, graph: ir.Graph, shapes: Shapes) -> None:
        from edge_train.graph.gradients.builder import Gradients  # of authoring: rarely needed here

        self._graph, self._shapes = graph, shapes
        self._rules = Gradients(graph, shapes)
        self._rules.prefix = "template"
        self._places = {id(node): place for place, node in enumerate(graph.nodes)}
        self._by_op: dict[str, list[ir.Node]] = {}
        for node in graph.nodes:
            if node.outputs:
                self._by_op.setdefault(node.op_type, []).append(node)
        #: kernels, by the place of the node that they go behind
        self.found: dict[int, list[ir.Node]] = {}
        self._replaced: set[int] = set()

    def rewritten(self) -> list[ir.Node]:
        """The graph's nodes with the kernels among them, without those that made the same."""
        nodes = list(self.found.get(-1, ()))
        for place, node in enumerate(self._graph.nodes):
            if place not in self._replaced:
                nodes.append(node)
            nodes += self.found.get(place, ())
        return nodes

    def take(self, node: ir.Node) -> None:
        """Puts a kernel in the place of the gradients of a node, of those that are there."""
        template = self._template(node)
        if template is None:
            return
        bound: dict[str, str] = {}
        made = [
            self._find(template, node, name, bound) if name else "" for name in template.results
        ]
        if not any(made) or _DY not in bound:
            return
        inputs = (bound[_DY], *node.inputs[: _INPUTS.get(node.op_type, 2)])
        behind = max(self._place(name) for name in inputs)
        # a result that is made before all inputs are there is made by its own nodes
        taken = [m if m and self._place(m) > behind else "" for m in made]
        if not any(taken):
            return
        self._replaced.update(self._place(name) for name in taken if name)
        op_type = _KERNELS[node.op_type]
        names = ("epsilon", "num_groups")
        attributes = {n: a.value for n, a in node.attributes.items() if n in names}
        kernel = ir.make_node(op_type, inputs, taken, f"{node.name}_{op_type}", ir.NATIVE,
                              **attributes)  # fmt: skip
        self.found.setdefault(behind, []).append(kernel)

    def _place(self, name: str) -> int:
        maker = self._rules.producers.get(name)
        return -1 if maker is None else self._places[id(maker)]

    def _template(self, node: ir.Node) -> _Template | None:
        from edge_train.graph.gradients import RULES

        self._rules.nodes = []
        self._shapes.set(_DY, dtypes.FLOAT, self._shapes.dims(node.inputs[0]))
        self._rules.enter(node, frozenset(range(len(node.inputs))))
        try:
            results = RULES["", node.op_type].rule(self._rules, node, _DY)
        except _NO_TEMPLATE:
            return None
        makers = {name: made for made in self._rules.nodes for name in made.outputs}
        names = (results,) if isinstance(results, str) else results
        return _Template(makers, [name or "" for name in names])

    def _find(self, template: _Template, owner: ir.Node, name: str, bound: dict[str, str]) -> str:
        """The graph's tensor that is made as ``name`` of the template is, "" where none is."""
        alike = self._by_op.get(template.makers[name].op_type, ())
        prefix = f"{owner.name}_Grad/"  # those that are named after the op first
        for node in sorted(alike, key=lambda node: not node.name.startswith(prefix)):
            if self._places[id(node)] in self._replaced:
                continue  # by the kernel of another node, which reads the same
            trial = dict(bound)
            # a sum of dy alone, the bias's gradient, does not tell which tensor is dy
            if self._same(template, name, node.outputs[0], trial) and owner.inputs[0] in trial:
                bound.update(trial)
                return node.outputs[0]
        return ""

    def _same(self, template: _Template, name: str, found: str, bound: dict[str, str]) -> bool:
        """Whether a tensor of the graph is what the template calls ``name``; notes it, if so."""
        if name in bound:
            return bound[name] == found
        made = template.makers.get(name)
        if name == _DY:
            known = self._shapes.elem_type(found) in (dtypes.FLOAT, None)
            same = known and may_be_alike(self._shapes, name, found)
        elif name in self._rules.constants:
            same = self._is_constant(found, self._rules.constants[name].array())
        elif made is None:
            same = name == found
        else:
            maker = self._rules.producers.get(found)
            same = maker is not None and self._is_alike(template, made, maker, bound)
        if same:
            bound[name] = found
        return same

    def _is_alike(
        self, template: _Template, made: ir.Node, maker: ir.Node, bound: dict[str, str]
    ) -> bool:
        op = (maker.op_type, maker.domain, len(maker.inputs))
        if op != (made.op_type, made.domain, len(made.inputs)) or not _same_attributes(made, maker):
            return False
        pairs = list(zip(made.inputs, maker.inputs, strict=True))
        if made.op_type == "Reshape" and self._same_sizes(made.outputs[0], maker.outputs[0]):
            pairs = pairs[:1]  # however the sizes are told
        return all(self._same(template, name, found, bound) for name, found in pairs)

    def _same_sizes(self, name: str, found: str) -> bool:
        dims = self._shapes.dims(name)
        return dims is not None and None not in dims and dims == self._shapes.dims(found)

    def _is_constant(self, found: str, value: np.ndarray) -> bool:
        other = self._rules.constant_value(found)
        return (
            other is not None
            and (other.dtype, other.shape) == (value.dtype, value.shape)
            and np.array_equal(other, value)
        )


def _same_attributes(a: ir.Node, b: ir.Node) -> bool:
    return all(_same_values(a.attr(name), b.attr(name)) for name in {*a.attributes, *b.attributes})


def _same_values(a: object, b: object) -> bool:
    """Equality of attributes; a file keeps a number in float32."""
    if isinstance(a, float) and isinstance(b, float):
        return bool(np.float32(a) == np.float32(b))
    return a == b
