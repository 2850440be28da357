"""Sparse initializers and constants become dense ones: nothing behind knows another kind."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError

from edge_train import dtypes
from edge_train.errors import ArtifactError
from edge_train.graph import ir
from edge_train.graph.onnx_reader import read_tensor
from edge_train.graph.onnx_schema import SparseAttribute, SparseGraph
from edge_train.graph.passes import with_bodies

#: what one protobuf message can hold
_MOST_BYTES = 2**31 - 1
_SPARSE_VALUE = "sparse_value"


def densified(model: ir.Model) -> ir.Model:
    """The model with ``sparse_initializer`` among its initializers, and Constants without
    ``sparse_value``; ArtifactError for a sparse tensor that is damaged, or too large when dense.
    """
    graph = _densified(model.graph)
    return model if graph is model.graph else replace(model, graph=graph)


def _densified(graph: ir.Graph) -> ir.Graph:
    nodes = [_node(node) for node in graph.nodes]
    message = _parsed(SparseGraph(), graph.extra, f"graph '{graph.name}'")
    found = [_dense(item, "the sparse initializer") for item in message.sparse_initializer]
    same = all(new is old for new, old in zip(nodes, graph.nodes, strict=True))
    if same and not found:
        return graph
    for tensor in found:
        if tensor.name in graph.initializers:
            raise ArtifactError(f"graph '{graph.name}' has two initializers named '{tensor.name}'")
    message.ClearField("sparse_initializer")
    tensors = {**graph.initializers, **{tensor.name: tensor for tensor in found}}
    return replace(graph, nodes=nodes, initializers=tensors, extra=message.SerializeToString())


def _parsed(message: Any, data: bytes, where: str) -> Any:
    try:
        message.ParseFromString(data)
    except DecodeError as error:
        raise ArtifactError(f"a sparse tensor of {where} is damaged ({error})") from error
    return message


def _node(node: ir.Node) -> ir.Node:
    if node.op_type == "Constant" and _SPARSE_VALUE in node.attributes:
        extra = node.attributes[_SPARSE_VALUE].extra
        message = _parsed(SparseAttribute(), extra, node.describe())
        tensor = _dense(message.sparse_tensor, f"the sparse value of {node.describe()},")
        return replace(node, attributes={"value": ir.Attribute.of("value", tensor)})
    if not any(True for _ in ir.subgraphs(node)):
        return node
    changed = with_bodies(node, _densified)
    pairs = zip(ir.subgraphs(changed), ir.subgraphs(node), strict=True)
    return node if all(new is old for new, old in pairs) else changed


def _dense(message: Any, what: str) -> ir.Tensor:
    """The tensor of a SparseTensorProto: values by flat index, or by one index an axis."""
    values, indices = read_tensor(message.values), read_tensor(message.indices)
    dims = tuple(message.dims)
    what = f"{what} '{values.name}' {list(dims)} of {dtypes.name_of(values.data_type)}"
    items = _items(values, what)
    if min(dims, default=0) < 0:
        raise ArtifactError(f"{what} is damaged: a size is negative")
    if math.prod(dims) * items.itemsize > _MOST_BYTES:
        raise ArtifactError(
            f"{what} does not fit into a dense tensor of 2 GB; make it smaller, or keep the part "
            "of the model that reads it out of the training graph"
        )
    array = np.zeros(math.prod(dims), items.dtype)
    array[_places(indices, len(items), dims, what)] = items
    return ir.Tensor(values.name, values.data_type, dims, array.tobytes())


def _items(values: ir.Tensor, what: str) -> np.ndarray:
    if values.data_type == dtypes.BFLOAT16 and values.raw is not None:
        values = replace(values, data_type=dtypes.UINT16)
    if values.raw is None or values.data_type not in dtypes.NUMPY:
        raise ArtifactError(
            f"{what} cannot be read: values of that kind, or in external data, are not known here "
            "for sparse tensors; write it as a dense initializer"
        )
    return values.array().ravel()


def _places(indices: ir.Tensor, count: int, dims: tuple[int, ...], what: str) -> np.ndarray:
    """Flat indices."""
    found = indices.array()
    if found.shape == (count, len(dims)):
        inside = bool(((found >= 0) & (found < np.array(dims, np.int64))).all())
        steps = [math.prod(dims[axis + 1 :]) for axis in range(len(dims))]
        found = found @ np.array(steps, np.int64)
    else:
        inside = found.shape == (count,)
        inside = inside and bool(((found >= 0) & (found < math.prod(dims))).all())
    if not inside or indices.data_type != dtypes.INT64:
        raise ArtifactError(
            f"{what} is damaged: {count} values ask for int64 indices [{count}] within its "
            f"elements or [{count}, {len(dims)}] within its axes, got "
            f"{dtypes.name_of(indices.data_type)} {list(indices.dims)}"
        )
    return found
