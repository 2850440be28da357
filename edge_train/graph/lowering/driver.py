"""The walk from a training (or eval) graph to one that stock onnxruntime runs.

Each node is rewritten by its rule or kept; accumulators, in-place statistics and the reset flag
disappear: gradients and new statistics become plain outputs that the caller binds to memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from edge_train import dtypes
from edge_train.errors import EdgeTrainError, UnsupportedOp
from edge_train.graph import ir
from edge_train.graph.lowering.builder import Builder, LabelRange, Refuse
from edge_train.graph.lowering.fused.chains import fold_chains
from edge_train.graph.lowering.fused.clips import with_clip_bits
from edge_train.graph.lowering.fused.epilogues import fold_clips
from edge_train.graph.lowering.fused.templates import with_gradient_kernels
from edge_train.graph.lowering.registry import cast_away, fused_rule_for, lowers, rule_for
from edge_train.graph.lowering.repairs import repair
from edge_train.graph.opset import raise_opset
from edge_train.graph.passes import domains_of, live_nodes, outer_reads, with_bodies
from edge_train.graph.roles import accumulators
from edge_train.graph.shapes import Shapes

#: the newest IR version that every supported onnxruntime reads
IR_VERSION = 10
_MALFORMED = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)


@dataclass(frozen=True)
class Lowered:
    """A graph for stock onnxruntime and what its outputs mean.

    The outputs are, in order: ``results`` (the model's own), the gradients, the state updates and
    the observed label ranges.
    """

    model: ir.Model
    results: tuple[str, ...]
    gradients: Mapping[str, str]  # gradient buffer input -> output
    updates: Mapping[str, str]  # parameter input -> output with its new value
    labels: tuple[LabelRange, ...]
    #: what is known of its tensors
    shapes: Shapes = field(default_factory=Shapes, repr=False, compare=False)


class LoweringRefused(UnsupportedOp):
    """Nodes that their rules refuse, and ``passed``: those left to onnxruntime, not yet judged."""

    def __init__(self, lines: list[str], model: ir.Model, passed: list[ir.Node]) -> None:
        super().__init__("nodes that cannot be lowered:\n  " + "\n  ".join(lines))
        self.lines = lines
        self.model = model
        self.passed = passed


@lowers("InPlaceAccumulatorV2", moves=True)
def accumulator(b: Builder, node: ir.Node) -> tuple[str, ...]:
    """buffer += value is done by the caller's memory: remember which gradient goes where."""
    buffer, value = node.inputs[:2]
    if b.is_read(b.node.output(1)):
        raise Refuse("an accumulator whose sum is read inside the graph")
    b.gradients[buffer] = value
    return ("",)


def lower(model: ir.Model, fused: bool = False) -> Lowered:
    """Rewrites a model for stock onnxruntime: to standard ops, or ``fused`` to our own kernels too.

    Errors: LoweringRefused for nodes whose rule refuses them, ArtifactError for an opset that
    cannot be raised.
    """
    model = raise_opset(model)
    shapes = Shapes.of(model)
    if fused:
        model = with_gradient_kernels(with_clip_bits(model, shapes), shapes)
    b = Builder(model.graph, shapes, fused)
    alias: dict[str, str] = {}
    refused: list[str] = []
    for node in model.graph.nodes:
        try:
            _lower_node(b, _renamed(node, alias), node, alias)
        except Refuse as reason:
            refused.append(f"{node.describe()}: {reason}")
            alias.update({name: name for name in node.outputs})
        except _MALFORMED as error:
            if isinstance(error, EdgeTrainError):
                raise
            # too few inputs, an attribute of another type: rules do not check what ONNX promises
            refused.append(f"{node.describe()}: it is malformed ({type(error).__name__}: {error})")
            alias.update({name: name for name in node.outputs})
    if refused:
        raise LoweringRefused(refused, model, b.nodes)
    repair(b)
    if fused:
        made = {alias.get(value.name, value.name) for value in model.graph.outputs}
        fold_chains(b, made)
        fold_clips(b, made)
    return _assemble(model, b, alias)


def _lower_node(b: Builder, node: ir.Node, source: ir.Node, alias: dict[str, str]) -> None:
    b.begin(source)
    fused = fused_rule_for(b, node)
    made = fused(b, node) if fused else None
    if made is not None:
        _stand_for(b, source, (made,) if isinstance(made, str) else made, alias)
        return
    rule, others = rule_for(node), cast_away(node)
    widened = _in_float32(b, node, others) if others else node
    if rule is not None:
        results = rule(b, widened)
        names = (results,) if isinstance(results, str) else results
    elif widened is node:
        b.nodes.append(with_bodies(node, lambda body: _lowered_body(b, body)))
        return
    else:
        names = b.kept(widened)
    _stand_for(b, source, names, alias, others)


def _stand_for(
    b: Builder,
    source: ir.Node,
    names: tuple[str, ...],
    alias: dict[str, str],
    others: frozenset[int] = frozenset(),
) -> None:
    """Notes which tensor now stands for each output, in the output's own dtype."""
    for output, name in zip(source.outputs, names, strict=False):
        if output and name:
            if b.shapes.elem_type(output) in others and b.elem_type(name) == dtypes.FLOAT:
                name = b.cast(name, b.elem_type(output))
            alias[output] = name
            if b.shapes.dims(name) is None:
                b.shapes.set(name, b.elem_type(name), b.shapes.dims(output))


def _lowered_body(outer: Builder, body: ir.Graph) -> ir.Graph:
    """The body of a loop or a branch with its nodes rewritten, its outputs under their names."""
    made = _rewritten(outer, body, outer.fused)
    if ir.NATIVE in domains_of(made.nodes) and any(value.dims is None for value in made.outputs):
        # onnxruntime must know the rank of what a Scan stacks, and our kernels do not tell it
        return _rewritten(outer, body, False)
    return made


def _rewritten(outer: Builder, body: ir.Graph, fused: bool) -> ir.Graph:
    b = Builder(body, Shapes.of(body, outer=outer.shapes), fused)
    b.prefix = outer.fresh_prefix()
    alias: dict[str, str] = {}
    for node in body.nodes:
        _lower_node(b, _renamed(node, alias), node, alias)
    repair(b)
    if b.nodes == body.nodes:
        return body
    for value in body.outputs:
        if alias.get(value.name, value.name) != value.name:
            b.nodes.append(ir.make_node("Identity", [alias[value.name]], [value.name]))
    return replace(
        body,
        nodes=b.nodes,
        outputs=[_sized(b, value) for value in body.outputs],
        initializers={**body.initializers, **b.constants},
        value_info={},
    )


def _sized(b: Builder, value: ir.Value) -> ir.Value:
    """The output of a body with what is known of its sizes; symbols mean nothing outside."""
    dims = b.shapes.dims(value.name)
    if value.dims is not None or dims is None:
        return value
    sizes = tuple([dim if isinstance(dim, int) else None for dim in dims])
    return ir.Value(value.name, value.elem_type or b.shapes.elem_type(value.name), sizes)


def _in_float32(b: Builder, node: ir.Node, others: frozenset[int]) -> ir.Node:
    """The node reading float32 copies of its inputs of ``others`` types."""
    if not any(b.shapes.elem_type(name) in others for name in node.inputs):
        return node
    inputs = (
        b.cast(name, dtypes.FLOAT) if b.shapes.elem_type(name) in others else name
        for name in node.inputs
    )
    return replace(node, inputs=tuple(inputs))


def _renamed(node: ir.Node, alias: Mapping[str, str]) -> ir.Node:
    """The node reading the tensors that now stand for its inputs, inside subgraphs too."""
    if not alias:
        return node
    inputs = tuple(alias.get(name, name) for name in node.inputs)
    if not any(True for _ in ir.subgraphs(node)):
        return node if inputs == node.inputs else replace(node, inputs=inputs)
    table = {name: _renamed_attribute(value, alias) for name, value in node.attributes.items()}
    return replace(node, inputs=inputs, attributes=table)


def _renamed_attribute(attribute: ir.Attribute, alias: Mapping[str, str]) -> ir.Attribute:
    if attribute.type == ir.GRAPH:
        return replace(attribute, value=_renamed_graph(attribute.value, alias))
    if attribute.type == ir.GRAPHS:
        return replace(attribute, value=tuple(_renamed_graph(g, alias) for g in attribute.value))
    return attribute


def _renamed_graph(graph: ir.Graph, alias: Mapping[str, str]) -> ir.Graph:
    own = {value.name for value in graph.inputs} | set(graph.initializers)
    own.update(name for node in graph.nodes for name in node.outputs)
    outer = {name: new for name, new in alias.items() if name not in own}
    return replace(graph, nodes=[_renamed(node, outer) for node in graph.nodes])


def _assemble(model: ir.Model, b: Builder, alias: dict[str, str]) -> Lowered:
    graph = model.graph
    flags = _accumulator_flags(graph)
    results = [value for value in graph.outputs if value.name not in flags]
    dropped = set(b.gradients) | _reset_flags(graph)
    inputs = [value for value in graph.inputs if value.name not in dropped]
    fed = {value.name for value in inputs}
    gradients = {buffer: alias.get(name, name) for buffer, name in b.gradients.items()}
    updates = {name: new for name, new in b.updates.items() if name in fed}
    observed = [label.observed for label in b.labels if label.observed]
    wanted = _Outputs(b, fed | set(graph.initializers))
    for value in results:
        wanted.add_result(value, alias.get(value.name, value.name))
    gradients = {buffer: wanted.add(name) for buffer, name in gradients.items()}
    updates = {target: wanted.add(name) for target, name in updates.items()}
    for name in observed:
        wanted.add(name)
    nodes = live_nodes(wanted.renamed_nodes(), {value.name for value in wanted.values})
    used = {name for node in nodes for name in outer_reads(node)} | {v.name for v in wanted.values}
    constants = {**graph.initializers, **b.constants}
    lowered = ir.Graph(
        name=graph.name or "edge_train",
        nodes=nodes,
        inputs=inputs,
        outputs=wanted.values,
        initializers={name: value for name, value in constants.items() if name in used},
    )
    return Lowered(
        _model(model, lowered),
        tuple(value.name for value in results),
        gradients,
        updates,
        tuple(b.labels),
        b.shapes,
    )


class _Outputs:
    """Graph outputs: each a distinct tensor made by a node, the results under their own names."""

    def __init__(self, b: Builder, not_made: set[str]) -> None:
        self.values: list[ir.Value] = []
        self._b = b
        self._not_made = not_made | set(b.constants)
        self._rename: dict[str, str] = {}

    def add_result(self, value: ir.Value, made_as: str) -> None:
        """A model output: keeps its name even when another tensor now stands for it."""
        if made_as != value.name:
            if made_as in self._not_made or made_as in self._rename:
                self._b.nodes.append(ir.make_node("Identity", [made_as], [value.name]))
            else:
                self._rename[made_as] = value.name
        self.values.append(value)

    def add(self, name: str) -> str:
        """An output under whatever name it has; a copy where that is taken."""
        name = self._rename.get(name, name)
        taken = any(value.name == name for value in self.values)
        if taken or name in self._not_made:
            name = self._b.op("Identity", name)
        self.values.append(ir.Value(name, self._b.elem_type(name), self._b.shapes.dims(name)))
        return name

    def renamed_nodes(self) -> list[ir.Node]:
        """The builder's nodes after the renaming of results."""
        table = self._rename
        return [
            replace(n, outputs=tuple(table.get(name, name) for name in n.outputs))
            for n in (_renamed(node, table) for node in self._b.nodes)
        ]


def _accumulator_flags(graph: ir.Graph) -> set[str]:
    return {name for node in accumulators(graph) for name in node.outputs}


def _reset_flags(graph: ir.Graph) -> set[str]:
    return {node.input(2) for node in accumulators(graph)}


def _model(source: ir.Model, graph: ir.Graph) -> ir.Model:
    domains = domains_of(graph.nodes)
    others = domains.difference(ir.ONNX_DOMAINS, (ir.NATIVE,))
    imports = [("", source.opset() or 0)]
    imports += [(name, version) for name, version in source.opset_imports if name in others]
    if ir.NATIVE in domains:
        imports.append((ir.NATIVE, 1))
    return ir.Model(graph, IR_VERSION, imports, source.extra)


def accumulating(lowered: Lowered) -> ir.Model:
    """The same graph with ``gradient + buffer`` in place of each gradient output.

    The output keeps its name, so that one table of bindings serves both graphs. A Gemm adds to the
    buffer itself: a pass over memory less, and no gradient beside the buffer.
    """
    graph = lowered.model.graph
    types = {value.name: value for value in graph.outputs}
    read = {name for node in graph.nodes for name in outer_reads(node)}
    gemms = {
        node.outputs[0]
        for node in graph.nodes
        if node.op_type == "Gemm" and node.domain in ir.ONNX_DOMAINS and not node.input(2)
    }
    onto = {name: buffer for buffer, name in lowered.gradients.items() if name in gemms - read}
    fresh = {name: f"{name}/step" for name in lowered.gradients.values() if name not in onto}
    nodes = []
    for node in graph.nodes:
        node = _renamed(node, fresh)
        first = node.outputs[0] if node.outputs else ""
        if first in onto:
            whole = {**node.attributes, "beta": ir.Attribute.of("beta", 1.0)}
            node = replace(node, inputs=(*node.inputs[:2], onto[first]), attributes=whole)
        nodes.append(replace(node, outputs=tuple(fresh.get(n, n) for n in node.outputs)))
    inputs = list(graph.inputs)
    for buffer, name in lowered.gradients.items():
        if name in fresh:
            nodes.append(ir.make_node("Add", [buffer, fresh[name]], [name], f"accumulate/{name}"))
        inputs.append(ir.Value(buffer, types[name].elem_type, types[name].dims))
    return replace(lowered.model, graph=replace(graph, nodes=nodes, inputs=inputs))
