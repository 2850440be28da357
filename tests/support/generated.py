"""Artifacts made by edge_train itself: of the zoo, and of the models that the reference refuses."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from support.zoo import GOLDEN, Artifacts

from edge_train import dtypes
from edge_train.artifacts import LossType, OptimType, generate_artifacts
from edge_train.graph import ir, onnx_codec
from edge_train.graph.differences import Evaluator
from edge_train.graph.passes import live_nodes

Array = NDArray[Any]

REFUSED = tuple(sorted(path.parent.name for path in (GOLDEN / "refused").glob("*/model.onnx")))


def generate(model: Any, folder: Path, **options: Any) -> Artifacts:
    """The artifacts of a model with AdamW, unless ``optimizer`` says otherwise."""
    options.setdefault("optimizer", OptimType.AdamW)
    if isinstance(options.get("loss"), str):
        options["loss"] = LossType[options["loss"]]
    generate_artifacts(model, artifact_directory=folder, **options)
    return Artifacts(folder.name, folder)


def generate_known(folder: Path, known: Path, **options: Any) -> Artifacts:
    """The artifacts of a model of the zoo as its generate.json asks for them."""
    asked = json.loads((known / "generate.json").read_text())
    return generate(known / "model.onnx", folder, **asked, **options)


def feed_of(artifacts: Artifacts, batch: int = 4) -> dict[str, Array]:
    """A random batch for the user inputs of a training model, symbols being the batch."""
    graph = onnx_codec.load(artifacts.training_model).graph
    rng = np.random.default_rng(5)
    feed = {}
    for value in user_inputs(graph):
        shape = [dim if isinstance(dim, int) else batch for dim in value.dims or ()]
        kind = dtypes.NUMPY[value.elem_type or dtypes.FLOAT]
        if kind.kind == "f":
            feed[value.name] = rng.standard_normal(shape).astype(kind)
        else:
            feed[value.name] = rng.integers(0, 2, shape).astype(kind)
    return feed


def user_inputs(graph: ir.Graph) -> list[ir.Value]:
    """The inputs before the first parameter."""
    buffers = {n.inputs[0] for n in graph.nodes if n.op_type == "InPlaceAccumulatorV2"}
    trained = {name.removesuffix("_grad.accumulation.buffer") for name in buffers}
    names = [value.name for value in graph.inputs]
    end = min((names.index(name) for name in trained), default=len(names))
    return graph.inputs[:end]


def loss_in_double(artifacts: Artifacts) -> Evaluator:
    """The loss of the training graph, training modes included, computed in float64."""
    model = onnx_codec.load(artifacts.training_model)
    loss = model.graph.outputs[0]
    nodes = live_nodes(model.graph.nodes, [loss.name])
    read = {name for node in nodes for name in node.inputs}
    inputs = [value for value in model.graph.inputs if value.name in read]
    graph = replace(model.graph, nodes=nodes, inputs=inputs, outputs=[loss])
    return Evaluator(replace(model, graph=graph))


def slope_error(
    evaluator: Evaluator,
    feeds: Mapping[str, Array],
    gradient: Mapping[str, Array],
    name: str,
    step: float = 1e-4,
) -> float:
    """Distance between the gradient's slope along random directions and that of the loss."""
    rng = np.random.default_rng(len(name))
    wanted, got = [], []
    for _ in range(6):
        direction = rng.standard_normal(feeds[name].shape)
        direction /= max(float(np.linalg.norm(direction)), 1e-12)
        wanted.append(evaluator.slope(evaluator.names[0], feeds, name, direction, step))
        got.append(float((gradient[name] * direction).sum()))
    scale = max(float(np.linalg.norm(wanted)), 1e-3)
    return float(np.linalg.norm(np.subtract(got, wanted))) / scale


def mlp(opset: int = 17, kind: int = TensorProto.FLOAT, outputs: int = 3) -> onnx.ModelProto:
    """x (N, 4) -> Gemm fc1 -> Relu -> Gemm fc2 -> y (N, outputs)."""
    rng = np.random.default_rng(3)
    shapes = {"w1": (5, 4), "b1": (5,), "w2": (outputs, 5), "b2": (outputs,)}
    dtype = helper.tensor_dtype_to_np_dtype(kind)
    weights = [
        numpy_helper.from_array((rng.standard_normal(shape) / 2).astype(dtype), name)
        for name, shape in shapes.items()
    ]
    nodes = [
        helper.make_node("Gemm", ["x", "w1", "b1"], ["h"], "fc1", transB=1),
        helper.make_node("Relu", ["h"], ["r"], "relu"),
        helper.make_node("Gemm", ["r", "w2", "b2"], ["y"], "fc2", transB=1),
    ]
    inputs = [helper.make_tensor_value_info("x", kind, ["N", 4])]
    ends = [helper.make_tensor_value_info("y", kind, ["N", outputs])]
    graph = helper.make_graph(nodes, "mlp", inputs, ends, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
