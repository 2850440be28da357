"""Trained parameters in half or double precision: a float32 parameter and a Cast in the graph.

Optimizers, the arena and onnxruntime-training work in float32; in half precision this is also what
keeps small updates from being rounded away.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import numpy as np

from edge_train import dtypes
from edge_train.graph import ir
from edge_train.graph.passes import all_names, reading


def with_float32_parameters(model: ir.Model, names: Collection[str]) -> ir.Model:
    """The model with initializers ``names`` declared as float32; their readers get a Cast.

    Data in memory is converted, external data keeps its own type: whoever reads it converts. Types
    declared beside the initializers (torch's newer exporter does) would be the old ones: they go.
    """
    graph = model.graph
    other = [n for n in names if graph.initializers[n].data_type != dtypes.FLOAT]
    if not other:
        return model
    taken = all_names(graph)
    instead: dict[str, str] = {}
    casts = []
    tensors = dict(graph.initializers)
    for name in other:
        tensor = tensors[name]
        cast = instead[name] = _free(f"{name}_{dtypes.name_of(tensor.data_type)}", taken)
        casts.append(ir.make_node("Cast", [name], [cast], cast, to=tensor.data_type))
        tensors[name] = as_float32(tensor)
    nodes = casts + [reading(node, instead) for node in graph.nodes]
    declared = {name: v for name, v in graph.value_info.items() if name not in instead}
    graph = replace(graph, nodes=nodes, initializers=tensors, value_info=declared)
    return replace(model, graph=graph)


def as_float32(tensor: ir.Tensor) -> ir.Tensor:
    """The tensor as float32; the values are converted where they are in memory."""
    if tensor.raw is None:
        return replace(tensor, data_type=dtypes.FLOAT)
    if tensor.data_type == dtypes.BFLOAT16:
        halves = np.frombuffer(tensor.raw, "<u2").astype(np.uint32) << 16
        array = halves.view(np.float32).reshape(tensor.dims)
    else:
        array = tensor.array().astype(np.float32)
    return ir.Tensor.of(tensor.name, array)


def _free(stem: str, taken: Collection[str]) -> str:
    name, count = stem, 0
    while name in taken:
        count += 1
        name = f"{stem}_{count}"
    return name
