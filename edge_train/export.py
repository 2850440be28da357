"""Export: from the eval graph and the trained parameters to a file for plain onnxruntime.

Works on the graph as generated, not on the lowered one, so that the file keeps its opset and ops.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from edge_train import atomic
from edge_train.checkpoint.state import CheckpointState
from edge_train.errors import ArtifactError
from edge_train.graph import ir, onnx_codec
from edge_train.graph.passes import live_nodes, outer_reads
from edge_train.graph.shapes import Shapes

#: bytes of parameters: protobuf ends at 2 GiB, the graph itself has the last of them
LARGEST = 2**31 - 2**24


def inference_model(model: ir.Model, state: CheckpointState, outputs: Sequence[str]) -> ir.Model:
    """The part of an eval graph that makes ``outputs``; parameters become initializers.

    Errors: TypeError for no list of names, ValueError for none, or naming the repeated or unknown
    ones with near matches, ArtifactError for more data than an ONNX file can hold.
    """
    graph = model.graph
    _check_outputs(graph, outputs)
    nodes = live_nodes(graph.nodes, set(outputs))
    used = {name for node in nodes for name in outer_reads(node)} | set(outputs)
    names = {value.name for value in graph.inputs}
    arrays = {n: np.asarray(p.data) for n, p in state.parameters if n in used and n in names}
    _check_size(arrays)
    weights = {name: ir.Tensor.of(name, array) for name, array in arrays.items()}
    initializers = {name: tensor for name, tensor in graph.initializers.items() if name in used}
    inputs = [v for v in graph.inputs if v.name in used and v.name not in weights]
    kept = replace(
        graph,
        nodes=nodes,
        inputs=inputs,
        outputs=_output_values(model, outputs),
        initializers={**initializers, **weights},
        value_info={name: v for name, v in graph.value_info.items() if name not in outputs},
    )
    return replace(model, graph=kept)


def write_inference_model(
    model: ir.Model,
    state: CheckpointState,
    outputs: Sequence[str],
    path: str | os.PathLike[str],
) -> None:
    """Writes ``inference_model`` to ``path``, replacing an older file whole or not at all."""
    data = onnx_codec.encode(inference_model(model, state, outputs))
    with atomic.replacing(path) as file:
        file.write(data)


def _check_size(arrays: Mapping[str, np.ndarray]) -> None:
    size = sum(array.nbytes for array in arrays.values())
    if size > LARGEST:
        raise ArtifactError(
            f"the model to export has {size} bytes of parameters, an ONNX file holds at most "
            f"{LARGEST}; export outputs that need fewer of them"
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
