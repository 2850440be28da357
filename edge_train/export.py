"""Export: from the eval graph and the trained parameters to a file for plain onnxruntime.

Works on the graph as generated, not on the lowered one, so that the file keeps its opset and ops.
Parameters of low-rank adapters may stay inputs, for an adapter file to fill (``adapter.py``).
"""

from __future__ import annotations

import difflib
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace

from edge_train import dtypes, model_file
from edge_train.checkpoint.state import CheckpointState
from edge_train.checkpoint.tensor import Tensor
from edge_train.graph import ir
from edge_train.graph.passes import live_nodes, outer_reads
from edge_train.graph.shapes import Shapes
from edge_train.model_file import OpenModel


def inference_model(
    opened: OpenModel,
    parameters: Mapping[str, Tensor],
    outputs: Sequence[str],
    adapter: Sequence[str] = (),
) -> OpenModel:
    """The part of an eval graph that makes ``outputs``; parameters become initializers.

    Parameters named by ``adapter`` stay inputs with zeros as their default, in which a product of
    two low-rank matrices vanishes: the file alone is the base model.
    Errors: TypeError for no list of names, ValueError for none, or naming the repeated or unknown
    ones with near matches; ValueError for an ``adapter`` that is no parameter of these outputs.
    """
    model, graph = opened.model, opened.model.graph
    _check_outputs(graph, outputs)
    nodes = live_nodes(graph.nodes, set(outputs))
    used = {name for node in nodes for name in outer_reads(node)} | set(outputs)
    inputs = {value.name: value for value in graph.inputs if value.name in used}
    weights = {name: tensor for name, tensor in parameters.items() if name in inputs}
    _check_adapter(adapter, weights)
    part = OpenModel(model, list(opened.data))
    initializers = {name: tensor for name, tensor in graph.initializers.items() if name in used}
    for name, tensor in weights.items():
        initializers[name] = _zeros(tensor) if name in adapter else part.place(tensor)
    kept = replace(
        graph,
        nodes=nodes,
        inputs=[_sized(v, weights) for v in inputs.values() if _is_fed(v.name, weights, adapter)],
        outputs=_output_values(model, outputs),
        initializers=initializers,
        value_info={name: v for name, v in graph.value_info.items() if name not in outputs},
    )
    part.model = replace(model, graph=kept)
    return part


def write_inference_model(
    model: ir.Model,
    state: CheckpointState,
    outputs: Sequence[str],
    path: str | os.PathLike[str],
    *,
    external_data: bool = False,
    adapter: Sequence[str] = (),
) -> None:
    """Writes ``inference_model`` to ``path``, replacing an older file whole or not at all.

    ``external_data``, and more than 2 GiB, put the weights into ``<path>.data``.
    """
    parameters = {name: Tensor.of(name, p.data) for name, p in state.parameters}
    part = inference_model(OpenModel(model), parameters, outputs, adapter)
    model_file.write(part, path, external=external_data)


def _is_fed(name: str, weights: Mapping[str, Tensor], adapter: Sequence[str]) -> bool:
    return name not in weights or name in adapter


def _sized(value: ir.Value, weights: Mapping[str, Tensor]) -> ir.Value:
    """An adapter's input has the sizes of its parameter, which the graph may leave open."""
    if value.name not in weights:
        return value
    tensor = weights[value.name]
    return replace(value, elem_type=tensor.data_type, dims=tensor.dims)


def _zeros(tensor: Tensor) -> ir.Tensor:
    raw = bytes(math.prod(tensor.dims) * dtypes.NUMPY[tensor.data_type].itemsize)
    return ir.Tensor(tensor.name, tensor.data_type, tensor.dims, raw)


def _check_adapter(adapter: Sequence[str], weights: Mapping[str, Tensor]) -> None:
    numbers = [name for name, tensor in weights.items() if tensor.strings is None]
    unknown = [name for name in adapter if name not in numbers]
    if unknown:
        raise ValueError(
            f"adapter names {unknown}, which are no parameters that these outputs need; they need "
            f"{numbers[:16]}"
        )


def _check_outputs(graph: ir.Graph, outputs: Sequence[str]) -> None:
    is_list = isinstance(outputs, (list, tuple)) and all(isinstance(o, str) for o in outputs)
    if not is_list:
        raise TypeError(f"graph_output_names: expected a list of names, got {outputs!r}")
    if not outputs:
        raise ValueError("graph_output_names is empty: name at least one tensor to export")
    repeated = sorted({name for name in outputs if outputs.count(name) > 1})
    if repeated:
        raise ValueError(f"graph_output_names has {repeated} more than once")
    made = [name for node in graph.nodes for name in node.outputs if name]
    unknown = [name for name in outputs if name not in made]
    if unknown:
        near = {name: difflib.get_close_matches(name, made, n=3) for name in unknown}
        last = made[-8:]
        raise ValueError(
            f"the eval graph makes no tensor named {unknown}; near matches: {near}; "
            f"its last tensors are {last}"
        )


def _output_values(model: ir.Model, outputs: Sequence[str]) -> list[ir.Value]:
    declared = {value.name: value for value in model.graph.outputs}
    declared.update(model.graph.value_info)
    shapes = Shapes.of(model)
    return [
        declared.get(name) or ir.Value(name, shapes.elem_type(name), shapes.dims(name))
        for name in outputs
    ]
