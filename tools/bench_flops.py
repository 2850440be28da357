"""How many multiply-adds a training step of a benchmark needs at least: those of its products."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bench_models import Workload


def training_flops(work: Workload) -> float:
    """Floating-point operations of a step that trains all: forward, and again for each gradient.

    What is fed has no gradient.
    """
    return 2 * sum(count * (2 if fed else 3) for fed, count in _products(work))


def _products(work: Workload) -> list[tuple[bool, float]]:
    """Whether its input is fed, and the multiply-adds, of each product of the forward graph."""
    import onnx

    model = onnx.load_model_from_string(work.model)
    for value in model.graph.input:
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param:
                dim.Clear()
                dim.dim_value = work.batch
    for value in model.graph.output:
        value.type.tensor_type.ClearField("shape")
    graph = onnx.shape_inference.infer_shapes(model, data_prop=True).graph
    shapes = {
        value.name: _dims(value) for value in (*graph.value_info, *graph.output, *graph.input)
    }
    shapes |= {name: array.shape for name, array in work.weights.items()}
    fed = {value.name for value in graph.input}
    return [
        (node.input[0] in fed, _count(node, shapes))
        for node in graph.node
        if node.op_type in ("Conv", "Gemm", "MatMul", "LSTM")
    ]


def _dims(value: Any) -> tuple[int, ...]:
    return tuple(dim.dim_value for dim in value.type.tensor_type.shape.dim)


def _count(node: Any, shapes: dict[str, tuple[int, ...]]) -> float:
    first, second = (shapes[name] for name in node.input[:2])
    if node.op_type == "LSTM":
        length, batch, _ = first
        return length * batch * (math.prod(second) + math.prod(shapes[node.input[2]]))
    each = math.prod(second[1:]) if node.op_type == "Conv" else first[-1]
    return math.prod(shapes[node.output[0]]) * each
