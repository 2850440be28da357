"""Lets every weight be an initializer under the name that the exporter's framework gave it."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import replace

import numpy as np

from edge_train import dtypes
from edge_train.errors import ArtifactError
from edge_train.graph import ir
from edge_train.graph.prepare.sparse import densified
from edge_train.patterns import matching

_FLOATS = (dtypes.FLOAT, dtypes.FLOAT16, dtypes.DOUBLE, dtypes.BFLOAT16)


def constants_as_initializers(model: ir.Model, names: Collection[str] | None = None) -> ir.Model:
    """Constant nodes become initializers, and no initializer is a graph input as well.

    The latter was the rule for files of IR version 3. ``names``: the parameters asked for, given
    which a float of one element stays a node unless it is named: that is an epsilon, no weight.
    """
    graph = model.graph
    ends = {value.name for value in graph.outputs}
    moved: dict[str, ir.Tensor] = {}
    nodes = []
    for node in graph.nodes:
        tensor = _value(node) if node.op_type == "Constant" else None
        name = node.output(0)
        stays = tensor is None or name in ends
        if names is not None and name not in names:
            stays = stays or _is_number(tensor)
        if tensor is None or stays:
            nodes.append(node)
        else:
            moved[name] = replace(tensor, name=name)
    tensors = {**graph.initializers, **moved}
    inputs = [value for value in graph.inputs if value.name not in tensors]
    version = max(model.ir_version, 4)
    graph = replace(graph, nodes=nodes, inputs=inputs, initializers=tensors)
    return replace(model, graph=graph, ir_version=version)


def _is_number(tensor: ir.Tensor | None) -> bool:
    return tensor is not None and tensor.data_type in _FLOATS and math.prod(tensor.dims) == 1


def _value(node: ir.Node) -> ir.Tensor | None:
    """The tensor of a Constant node; None for the kinds that are no dense tensor."""
    if "value" in node.attributes:
        tensor: ir.Tensor = node.attr("value")
        return tensor
    for name, kind in (("int", dtypes.INT64), ("float", dtypes.FLOAT)):
        for key in (f"value_{name}", f"value_{name}s"):
            if key in node.attributes:
                return ir.Tensor.of("", np.array(node.attr(key), dtypes.NUMPY[kind]))
    return None


def weights_as_initializers(model: ir.Model, names: Collection[str]) -> ir.Model:
    """Each of ``names`` that is a Constant, a sparse tensor or a copy (Identity, Transpose) of an
    initializer is an initializer then, and the rest of the model as it was.

    These are places for values that are about to be put there: a copy's own are not computed.
    """
    graph = model.graph
    known = {*graph.initializers, *(value.name for value in graph.inputs)}
    wanted = set(names) - known
    if not wanted:
        return model
    graph = densified(model).graph
    wanted -= {value.name for value in graph.outputs}
    tensors, nodes = dict(graph.initializers), []
    for node in graph.nodes:
        place = _place(node, tensors) if node.output(0) in wanted else None
        if place is None:
            nodes.append(node)
        else:
            tensors[node.outputs[0]] = replace(place, name=node.outputs[0])
    if len(nodes) == len(graph.nodes) and len(tensors) == len(model.graph.initializers):
        return model
    version = max(model.ir_version, 4)  # before, every initializer had to be an input as well
    return replace(
        model, graph=replace(graph, nodes=nodes, initializers=tensors), ir_version=version
    )


def _place(node: ir.Node, tensors: Mapping[str, ir.Tensor]) -> ir.Tensor | None:
    """A tensor of the type and shape of what the node makes, if that is or copies a constant."""
    if node.op_type == "Constant":
        return _value(node)
    source = tensors.get(node.input(0))
    if source is None or node.op_type not in ("Identity", "Transpose"):
        return None
    if node.op_type == "Identity":
        return source
    return replace(source, dims=tuple(source.dims[axis] for axis in _order(node, source)))


def _order(node: ir.Node, source: ir.Tensor) -> list[int]:
    """The axes of a Transpose; ArtifactError for what is no order of those of ``source``."""
    axes = list(range(len(source.dims)))
    perm = node.attr("perm")
    order = list(perm or axes[::-1]) if perm is None or isinstance(perm, (list, tuple)) else []
    if sorted(map(repr, order)) != sorted(map(repr, axes)):
        raise ArtifactError(
            f"the model is malformed: {node.describe()} makes '{node.output(0)}' with perm {perm}, "
            f"expected the {len(axes)} axes of '{source.name}' in some order"
        )
    return order


def own_weights(model: ir.Model, names: Collection[str]) -> ir.Model:
    """Weights that are written as copies of another initializer become initializers.

    Exporters store equal weights once and write the others as Identity (or Transpose) of the one
    that is stored, under the name they have in the framework. ``names``: parameters asked for, by
    name or pattern: such a weight is trained on its own. So are scales and biases that are equal
    because they are new (all ones, all zeros). Any other Identity is a tie: it stays.
    """
    graph = model.graph
    tensors, nodes = dict(graph.initializers), []
    known = {
        *tensors,
        *(n.output(0) for n in graph.nodes if n.op_type in ("Identity", "Transpose")),
    }
    for node in graph.nodes:
        source = tensors.get(node.input(0))
        own = None
        if source is not None and (_is_new(node, source) or _is_asked_for(node, names, known)):
            own = _copied(node, source)
        if own is None:
            nodes.append(node)
        else:
            tensors[node.outputs[0]] = replace(own, name=node.outputs[0])
    return replace(model, graph=replace(graph, nodes=nodes, initializers=tensors))


def _is_asked_for(node: ir.Node, names: Collection[str], known: Collection[str]) -> bool:
    """``known``: the weights' names, a pattern that is one of them means itself."""
    own, pair = node.output(0), {node.output(0), node.input(0)}
    return own in names or any(
        matching(pattern, pair) == [own] for pattern in names if pattern not in known
    )


def _is_new(node: ir.Node, source: ir.Tensor) -> bool:
    """Whether an Identity copies a float tensor of one repeated value."""
    if node.op_type != "Identity" or source.data_type not in _FLOATS or source.raw is None:
        return False
    if source.data_type not in dtypes.NUMPY or math.prod(source.dims) < 2:
        return False
    array = source.array()
    return bool(array.min() == array.max())


def _copied(node: ir.Node, source: ir.Tensor) -> ir.Tensor | None:
    if node.op_type == "Identity":
        return source
    if node.op_type != "Transpose" or source.raw is None or source.data_type not in dtypes.NUMPY:
        return None
    return ir.Tensor.of("", np.transpose(source.array(), _order(node, source)))
