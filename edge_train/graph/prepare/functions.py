"""Replaces calls of model-local functions by their bodies."""

from __future__ import annotations

from dataclasses import replace

from edge_train.errors import ArtifactError
from edge_train.graph import ir
from edge_train.graph.onnx_functions import (
    Function,
    Key,
    called_key,
    decode_function,
    referred_attribute,
)
from edge_train.graph.opset import raise_opset
from edge_train.graph.passes import all_names, renamed, with_bodies
from edge_train.graph.prepare.names import name_nodes

MAX_NODES = 1_000_000


def inline_functions(model: ir.Model) -> ir.Model:
    """The model without functions. Where one is written in another opset than the model, both are
    raised to the common one.

    ArtifactError for a function that calls itself or grows beyond measure.
    """
    if not model.functions:
        return model
    functions = {f.key: f for f in map(decode_function, model.functions)}
    called = _called(model.graph.nodes, functions, set())
    version = model.opset()
    raising = any(_opset(f, version) != version for f in called)
    model = replace(model, functions=())
    if raising:
        model = raise_opset(model)
    inliner = _Inliner(functions, raising, all_names(model.graph))
    nodes = inliner.expanded(model.graph.nodes, ())
    tensors = {**model.graph.initializers, **inliner.constants}
    graph = replace(model.graph, nodes=nodes, initializers=tensors)
    return name_nodes(replace(model, graph=graph, opset_imports=_imports(model, called)))


def _opset(function: Function, otherwise: int | None) -> int | None:
    found = [version for name, version in function.opset_imports if name in ir.ONNX_DOMAINS]
    return max(found, default=otherwise)


def _called(
    nodes: list[ir.Node] | tuple[ir.Node, ...], functions: dict[Key, Function], seen: set[Key]
) -> list[Function]:
    """The functions that nodes call, directly or not."""
    found: list[Function] = []
    for node in nodes:
        for body in ir.subgraphs(node):
            found += _called(body.nodes, functions, seen)
        key = called_key(node)
        if key in functions and key not in seen:
            seen.add(key)
            found += [functions[key], *_called(functions[key].nodes, functions, seen)]
    return found


def _imports(model: ir.Model, called: list[Function]) -> list[tuple[str, int]]:
    """The model's, without domains of functions alone, with what the bodies import beyond it."""
    known = {name for name, _ in model.opset_imports} | set(ir.ONNX_DOMAINS)
    own = {function.key[0] for function in called} - {""}
    added = {name: v for f in called for name, v in f.opset_imports if name not in known}
    return [item for item in (*model.opset_imports, *added.items()) if item[0] not in own]


class _Inliner:
    def __init__(self, functions: dict[Key, Function], raising: bool, names: set[str]) -> None:
        self.constants: dict[str, ir.Tensor] = {}
        self._functions, self._raising, self._names = functions, raising, names
        self._made = 0

    def expanded(self, nodes: list[ir.Node], stack: tuple[Key, ...]) -> list[ir.Node]:
        """The nodes with every call replaced, in subgraphs too."""
        result: list[ir.Node] = []
        for node in nodes:
            key = called_key(node)
            if key in self._functions:
                result += self._body(node, self._functions[key], stack)
                continue
            self._made += 1
            if self._made > MAX_NODES:
                raise ArtifactError(f"the functions of the model expand to over {MAX_NODES} nodes")
            result.append(
                with_bodies(node, lambda g: replace(g, nodes=self.expanded(g.nodes, stack)))
            )
        return result

    def _body(self, call: ir.Node, function: Function, stack: tuple[Key, ...]) -> list[ir.Node]:
        if function.key in stack:
            raise ArtifactError(f"function {'::'.join(function.key[:2])} of the model calls itself")
        nodes = [_bound(node, {**function.defaults, **call.attributes}) for node in function.nodes]
        graph = ir.Graph(nodes=nodes, inputs=[ir.Value(n, None, None) for n in function.inputs])
        graph.outputs = [ir.Value(name, None, None) for name in function.outputs]
        if self._raising:
            version = _opset(function, None) or 0
            graph = raise_opset(ir.Model(graph, 8, [("", version)])).graph
        names = self._naming(call, function, graph)
        for name, tensor in graph.initializers.items():
            self.constants[names[name]] = replace(tensor, name=names[name])
        prefix = call.name or call.op_type
        body = [
            replace(renamed(node, names.__getitem__), name=f"{prefix}/{node.name or node.op_type}")
            for node in graph.nodes
        ]
        return self.expanded(body + _handed_on(call, function, graph), (*stack, function.key))

    def _naming(self, call: ir.Node, function: Function, graph: ir.Graph) -> dict[str, str]:
        """Name inside -> name outside."""
        table = {name: call.output(i) for i, name in enumerate(function.outputs) if call.output(i)}
        table.update((name, call.input(i)) for i, name in enumerate(function.inputs))
        for name in sorted(all_names(graph) - set(table)):
            stem = f"{call.name or call.op_type}/{name}"
            new, count = stem, 0
            while new in self._names:
                count += 1
                new = f"{stem}_{count}"
            self._names.add(new)
            table[name] = new
        return table


def _bound(node: ir.Node, given: dict[str, ir.Attribute]) -> ir.Node:
    """A body node with the attributes of the call in place of references to them."""
    table = {}
    for name, attribute in node.attributes.items():
        source = referred_attribute(attribute)
        if not source:
            table[name] = attribute
        elif source in given:
            table[name] = replace(given[source], name=name)
    node = replace(node, attributes=table)
    return with_bodies(node, lambda g: replace(g, nodes=[_bound(n, given) for n in g.nodes]))


def _handed_on(call: ir.Node, function: Function, graph: ir.Graph) -> list[ir.Node]:
    """Outputs that are inputs of the function."""
    inputs = dict(zip(function.inputs, call.inputs, strict=False))
    pairs = zip(function.outputs, call.outputs, strict=False)
    return [
        ir.make_node("Identity", [inputs[inside]], [outside], f"{outside}/handed_on")
        for inside, outside in pairs
        if inside in inputs and outside
    ]
