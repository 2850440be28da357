"""Computes what is constant: sizes, axes and pads that exporters leave as chains of nodes.

Gradient rules can then read them. Weights are not touched: floats take part only if they are few
and no parameters.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import replace

import numpy as np

from edge_train import dtypes
from edge_train.errors import ArtifactError
from edge_train.graph import ir
from edge_train.graph.passes import live_nodes
from edge_train.graph.prepare.cleanup import RANDOM
from edge_train.graph.shape_rules import ints
from edge_train.graph.shapes import Shapes

MAX_ITEMS = 8192
MAX_FLOATS = 64

_KEPT_OPS = RANDOM | {"Constant", "DequantizeLinear"}
_FLOATS = frozenset((dtypes.FLOAT, dtypes.DOUBLE))
_WHOLE = frozenset((dtypes.INT32, dtypes.INT64, dtypes.BOOL))


def fold_constants(model: ir.Model, keep: Collection[str]) -> ir.Model:
    """The model with constant nodes replaced by initializers.

    ``keep``: parameters and outputs, which stay.
    """
    graph = model.graph
    ends = {value.name for value in graph.outputs} | set(keep)
    shapes = Shapes.of(graph)
    folded: dict[str, ir.Tensor] = {}
    known = {
        name
        for name, tensor in graph.initializers.items()
        if name not in ends and _may_take_part(tensor)
    }
    run, rest = [], []
    for node in graph.nodes:
        value = _size(shapes, node) if not ends.intersection(node.outputs) else None
        if value is not None:
            folded[node.outputs[0]] = ir.Tensor.of(node.outputs[0], value)
            known.add(node.outputs[0])
        elif _is_constant(shapes, node, known, ends):
            run.append(node)
            known.update(node.outputs)
        else:
            rest.append(node)
    tensors = {**graph.initializers, **folded}
    computed = _computed(model, run, tensors, shapes)
    if computed is None:
        rest = [node for node in graph.nodes if node.outputs[0] not in folded]
    tensors.update(computed or {})
    return replace(model, graph=replace(graph, nodes=rest, initializers=tensors))


def _may_take_part(tensor: ir.Tensor) -> bool:
    if tensor.raw is None:
        return False
    if tensor.data_type in _FLOATS:
        return len(tensor.raw) <= 8 * MAX_FLOATS
    return tensor.data_type in _WHOLE and len(tensor.raw) <= 8 * MAX_ITEMS


def _size(shapes: Shapes, node: ir.Node) -> np.ndarray | None:
    """The value of an integer output that follows from declared sizes."""
    if len(node.outputs) != 1 or node.domain not in ir.ONNX_DOMAINS or node.op_type == "Constant":
        return None
    name = node.outputs[0]
    values, rank = ints(shapes.contents(name)), shapes.rank(name)
    kind = shapes.elem_type(name)
    if values is None or rank not in (0, 1) or kind not in (dtypes.INT32, dtypes.INT64):
        return None
    return np.array(values if rank else values[0], dtypes.NUMPY[kind])


def _is_constant(shapes: Shapes, node: ir.Node, known: set[str], ends: set[str]) -> bool:
    """Whether a node can be computed now, with results of known and moderate size."""
    if node.op_type in _KEPT_OPS or node.domain not in ir.ONNX_DOMAINS:
        return False
    if ends.intersection(node.outputs) or any(True for _ in ir.subgraphs(node)):
        return False
    names = [name for name in node.inputs if name]
    return bool(names) and known.issuperset(names) and all(_fits(shapes, n) for n in node.outputs)


def _fits(shapes: Shapes, name: str) -> bool:
    sizes = ints(shapes.dims(name))
    kind = shapes.elem_type(name)
    limit = MAX_FLOATS if kind in _FLOATS else MAX_ITEMS
    return sizes is not None and kind in _FLOATS | _WHOLE and math.prod(sizes) <= limit


def _computed(
    model: ir.Model, run: list[ir.Node], tensors: dict[str, ir.Tensor], shapes: Shapes
) -> dict[str, ir.Tensor] | None:
    """The results of constant nodes; None if onnxruntime does not run one of them."""
    from edge_train.session import make_session  # converting needs no onnxruntime

    names = [name for node in run for name in node.outputs if name]
    if not names:
        return {}
    run = live_nodes(run, names)
    read = {name for node in run for name in node.inputs} & set(tensors)
    outputs = [ir.Value(name, shapes.elem_type(name), None) for name in names]
    graph = ir.Graph("constants", run, [], outputs, {name: tensors[name] for name in read})
    try:
        session = make_session(replace(model, graph=graph, functions=()), "constants")
        values = session.run(names, {})
    except (ArtifactError, RuntimeError):
        return None
    return {name: ir.Tensor.of(name, value) for name, value in zip(names, values, strict=True)}
