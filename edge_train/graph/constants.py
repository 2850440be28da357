"""Large constants that onnxruntime's optimizers leave behind, and how to keep them out of memory.

The base of a scatter is zeros of the size of a weight. Folded into a constant it is held twice for
as long as the session lives; made anew in each run it lives for a moment.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from edge_train import dtypes
from edge_train.graph import ir

_LARGE = 1 << 16  # bytes


def without_uniform_constants(graph: ir.Graph) -> ir.Graph:
    """The graph with each large constant whose elements are all equal made by a node instead."""
    uniform = {
        name: tensor
        for name, tensor in graph.initializers.items()
        if tensor.raw is not None and len(tensor.raw) >= _LARGE and _is_uniform(tensor)
    }
    if not uniform:
        return graph
    nodes: list[ir.Node] = []
    constants = {k: v for k, v in graph.initializers.items() if k not in uniform}
    for name, tensor in uniform.items():
        shape = f"{name}/shape"
        constants[shape] = ir.Tensor.of(shape, np.array(tensor.dims, np.int64))
        value = ir.Tensor.of("value", tensor.array().reshape(-1)[:1])
        nodes.append(ir.make_node("ConstantOfShape", [shape], [name], f"{name}/fill", value=value))
    return replace(graph, nodes=nodes + graph.nodes, initializers=constants)


def _is_uniform(tensor: ir.Tensor) -> bool:
    raw = tensor.raw
    if raw is None or tensor.data_type not in dtypes.NUMPY:
        return False
    width = dtypes.NUMPY[tensor.data_type].itemsize
    if len(raw) != width * math.prod(tensor.dims):
        return False
    bits = np.frombuffer(raw, f"V{width}").view(np.uint8).reshape(-1, width)
    return bool((bits == bits[0]).all())
