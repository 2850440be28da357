"""Loops over sequences: Scan."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from edge_train.graph import ir
from edge_train.graph.formula import Refuse
from edge_train.graph.gradients.builder import Gradients
from edge_train.graph.gradients.registry import gradient
from edge_train.graph.passes import all_names, fresh_name, renamed


@gradient("Scan")
def scan(g: Gradients, node: ir.Node, *dys: str) -> Sequence[str | None]:
    """Backpropagation through time: a Scan the other way, which computes each step again from the
    state that it began with. The forward Scan is made to keep these states."""
    body: ir.Graph = node.attr("body")
    states = len(node.inputs) - node.attr("num_scan_inputs")
    backwards = _direction(node)
    if g.captured:
        raise Refuse(f"its body reads {sorted(g.captured)}, which need gradients, from outside")
    before = _kept_states(g, node, states)
    given = [dy for dy in dys[states:] if dy]
    dys = (*dys, *[""] * (len(body.outputs) - len(dys)))
    start = [dy or g.zeros(g.shape(s), s) for dy, s in zip(dys, node.inputs[:states], strict=False)]
    wanted = [i for i in range(len(node.inputs)) if i < states or g.wants(i)]

    def step(carried: Sequence[str], slices: Sequence[str]) -> tuple[list[str], list[str]]:
        from edge_train.graph.autodiff import differentiate_body  # which imports the rules

        fed, incoming = slices[: len(node.inputs)], iter(slices[len(node.inputs) :])
        nodes, name_of = _repeated(
            g, node, dict(zip((v.name for v in body.inputs), fed, strict=True))
        )
        ends = [name_of(value.name) for value in body.outputs]
        arriving = [*carried, *(next(incoming) if dy else "" for dy in dys[states:])]
        seeds = [(end, dy) for end, dy in zip(ends, arriving, strict=True) if dy]
        with g.nested():
            found = differentiate_body(g, nodes, seeds, [fed[i] for i in wanted])
            results = [found.get(fed[i]) or g.zeros(g.shape(fed[i]), fed[i]) for i in wanted]
            g.nodes[:] = [g.current(made) for made in g.nodes]
        return results[:states], results[states:]

    sequences = [*before, *node.inputs[states:], *given]
    last, stacked = g.scan(step, start, sequences, backwards=not backwards)
    table = dict(zip(wanted, (*last, *stacked), strict=True))
    return [table.get(i) for i in range(len(node.inputs))]


def _direction(node: ir.Node) -> bool:
    """Whether the Scan runs backwards; Refuse for mixed directions and other axes than 0."""
    axes = (*node.attr("scan_input_axes", ()), *node.attr("scan_output_axes", ()))
    ways = {*node.attr("scan_input_directions", ()), *node.attr("scan_output_directions", ())}
    implied = (
        "scan_input_directions" in node.attributes,
        "scan_output_directions" in node.attributes,
    )
    if any(axes) or len(ways) > 1 or (ways == {1} and not all(implied)):
        raise Refuse("only scans along axis 0 in one direction have a gradient here")
    return ways == {1}


def _kept_states(g: Gradients, node: ir.Node, states: int) -> list[str]:
    """Lets the forward Scan give the state before each step; the names of these outputs."""
    body: ir.Graph = node.attr("body")
    added, values, names = [], [], []
    inside = all_names(body)
    for index, value in enumerate(body.inputs[:states]):
        inner = fresh_name(f"{value.name}_before_{index}", inside)
        outer = g.beside(node, f"before_{index}")
        added.append(ir.make_node("Identity", [value.name], [inner], inner))
        values.append(replace(value, name=inner, type_proto=None))
        names.append(outer)
        state = node.inputs[index]
        dims = g.shapes.dims(state)
        g.shapes.set(outer, g.elem_type(state), None if dims is None else (None, *dims))
    longer = replace(body, nodes=[*body.nodes, *added], outputs=[*body.outputs, *values])
    attributes = {**node.attributes, "body": ir.Attribute.of("body", longer)}
    for key in ("scan_output_directions", "scan_output_axes"):
        if key in attributes:
            same = attributes[key].value
            attributes[key] = ir.Attribute.of(key, (*same, *same[:1] * states))
    outputs = [*node.outputs, *[""] * (len(body.outputs) - len(node.outputs)), *names]
    g.replace(node, replace(node, outputs=tuple(outputs), attributes=attributes))
    return names


def _repeated(
    g: Gradients, node: ir.Node, table: dict[str, str]
) -> tuple[list[ir.Node], Callable[[str], str]]:
    """Writes the body's nodes again, on other inputs and under other names."""
    body: ir.Graph = node.attr("body")
    own = {name for n in body.nodes for name in n.outputs if name} | set(body.initializers)
    table = {**{name: f"{node.name}_Grad/{name}" for name in sorted(own)}, **table}

    def name_of(name: str) -> str:
        return table.get(name, name)

    for name, tensor in body.initializers.items():
        g.constants[name_of(name)] = replace(tensor, name=name_of(name))
        g.shapes.learn_tensor(name_of(name), tensor)
    nodes: list[ir.Node] = []
    taken: set[str] = set()
    for inner in body.nodes:  # which need no names in a body
        name = fresh_name(f"{node.name}_Grad/body/{inner.name or inner.op_type}", taken)
        made = replace(renamed(inner, name_of), name=name)
        g.nodes.append(made)
        g.shapes.infer_node(made)
        nodes.append(made)
    return nodes, name_of
