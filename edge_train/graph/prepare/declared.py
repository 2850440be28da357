"""Declared shapes that exporters got wrong, or wrote in ways of their own for "unknown"."""

from __future__ import annotations

from dataclasses import replace

from edge_train.graph import ir
from edge_train.graph.shapes import Shapes

#: symbols that exporters write for any size, the same for unequal ones
_ANY = ("", "?")


def mend_declared(model: ir.Model) -> ir.Model:
    """Negative sizes and "?" become open sizes; an output has the rank that its node gives it.

    onnxruntime only warns of such an output, but a target is declared after it. Inputs, outputs and
    initializers are declared once: ``value_info`` is for the tensors between.
    """
    graph = model.graph
    inputs = [_opened(value) for value in graph.inputs]
    outputs = [_opened(value) for value in graph.outputs]
    bare = replace(graph, inputs=inputs, outputs=[], value_info={})
    shapes = Shapes.of(bare)
    outputs = [_agreeing(value, shapes) for value in outputs]
    ends = {value.name for value in (*inputs, *outputs)} | set(graph.initializers)
    between = {name: _opened(v) for name, v in graph.value_info.items() if name not in ends}
    graph = replace(graph, inputs=inputs, outputs=outputs, value_info=between)
    return replace(model, graph=graph)


def _opened(value: ir.Value) -> ir.Value:
    if value.dims is None:
        return value
    dims = tuple([None if _is_any(dim) else dim for dim in value.dims])
    return value if dims == value.dims else replace(value, dims=dims)


def _is_any(dim: ir.Dim) -> bool:
    return dim < 0 if isinstance(dim, int) else dim in _ANY


def _agreeing(value: ir.Value, shapes: Shapes) -> ir.Value:
    """The value with the dims that its node gives it, where these contradict the declared ones."""
    made = shapes.dims(value.name)
    if value.dims is None or made is None:
        return value
    pairs = list(zip(value.dims, made, strict=False))
    sizes = [(a, b) for a, b in pairs if isinstance(a, int) and isinstance(b, int)]
    if len(value.dims) == len(made) and all(a == b for a, b in sizes):
        return value
    return replace(value, dims=made)
