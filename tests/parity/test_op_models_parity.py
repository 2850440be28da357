"""One small network for each forward op, generated and trained live at several opsets."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import NodeProto, TensorProto, helper, numpy_helper
from support.reference import Reference
from support.training import GRADIENT, LOSS, gradient_errors, module_of

SHAPE = (4, 3, 6)
RNG = np.random.default_rng(17)
X = RNG.standard_normal(SHAPE).astype(np.float32)
OPSETS = (12, 13, 15, 18, 20, 21)
MICROSOFT = "com.microsoft"

Build = Callable[[int], list[NodeProto]]
#: integer and float constants by the names that the nodes below use
CONSTANTS: dict[str, Any] = {
    "rows": np.array([[0, 2], [3, 0]]),
    "pairs": np.array([[0, 1], [3, 2], [0, 1]]),
    "in_batch": np.array([[[1]], [[0]], [[2]], [[2]]]),
    "elements": np.array([[[0, 2, 1], [1, 1, 1]]]),
    "two": np.array([2]),
    "minus_one": np.array([-1]),
    "one": np.array([1]),
    "four": np.array([4]),
    "repeats": np.array([1, 2, 1]),
    "pads": np.array([0, 1, 0, 0, 0, 2]),
    "shape": np.array([0, -1]),
    "wide": np.array([2, 4, 3, 6]),
    "k": np.array(1),
    "low": np.array(-0.5, np.float32),
    "high": np.array(0.7, np.float32),
    "bias": RNG.standard_normal(6).astype(np.float32),
    "gain": RNG.standard_normal(6).astype(np.float32),
    "other": RNG.standard_normal((3, 6)).astype(np.float32),
    "square": RNG.standard_normal((6, 6)).astype(np.float32),
    "stack": RNG.standard_normal((4, 6, 2)).astype(np.float32),
    "updates": RNG.standard_normal((3, 6)).astype(np.float32),
}
TRAINABLE = ("bias", "gain", "other", "square", "stack", "updates")


def one(op: str, inputs: str = "v", domain: str = "", **attrs: Any) -> Build:
    """A single node."""
    return lambda opset: [
        helper.make_node(op, inputs.split(), ["y"], f"{op}_node", domain=domain, **attrs)
    ]


def axes(op: str, since: int, **attrs: Any) -> Build:
    """A node whose axes are an input from opset ``since`` on: here the last axis."""

    def build(opset: int) -> list[NodeProto]:
        if opset >= since:
            return one(op, "v minus_one", **attrs)(opset)
        return one(op, axes=[-1], **attrs)(opset)

    return build


def split(opset: int) -> list[NodeProto]:
    attrs = {"num_outputs": 3} if opset >= 18 else {}
    parts = helper.make_node("Split", ["v"], ["a", "b", "c"], "split", axis=1, **attrs)
    return [
        parts,
        helper.make_node("Mul", ["a", "b"], ["ab"], "first"),
        helper.make_node("Sub", ["ab", "c"], ["y"], "second"),
    ]


def top_k(opset: int) -> list[NodeProto]:
    return [helper.make_node("TopK", ["v", "two"], ["y", "i"], "top")]


def concat(opset: int) -> list[NodeProto]:
    return [
        helper.make_node("Tanh", ["v"], ["t"], "tanh"),
        helper.make_node("Concat", ["v", "t", "v"], ["y"], "join", axis=2),
    ]


def layer_norm(opset: int) -> list[NodeProto]:
    names = ["y", "mean", "inv_std"]
    return [helper.make_node("LayerNormalization", ["v", "gain", "bias"], names, "norm")]


def gelu_chain(opset: int) -> list[NodeProto]:
    return [
        helper.make_node("Erf", ["v"], ["e"], "erf"),
        helper.make_node("Mul", ["e", "v"], ["y"], "times"),
    ]


def where(opset: int) -> list[NodeProto]:
    return [
        helper.make_node("Greater", ["v", "low"], ["c"], "greater"),
        helper.make_node("Exp", ["v"], ["e"], "exp"),
        helper.make_node("Where", ["c", "v", "e"], ["y"], "where"),
    ]


MODELS: dict[str, tuple[Build, tuple[int, ...]]] = {
    "Gather": (one("Gather", "v rows", axis=0), OPSETS),
    "Gather last axis": (one("Gather", "v rows", axis=2), (13, 20)),
    "GatherElements": (one("GatherElements", "v elements", axis=2), (12, 21)),
    "GatherND": (one("GatherND", "v pairs"), OPSETS),
    "GatherND batch": (one("GatherND", "v in_batch", batch_dims=1), (12, 18)),
    "ScatterND": (one("ScatterND", "v pairs updates"), (13, 18)),
    "TopK": (top_k, (12, 21)),
    "Trilu": (one("Trilu", "v k", upper=0), (15, 21)),
    "Trilu contrib": (one("Trilu", "v k", MICROSOFT, upper=1), (13, 18)),
    "Slice": (one("Slice", "v one four minus_one two"), OPSETS),
    "Split": (split, OPSETS),
    "Concat": (concat, OPSETS),
    "Tile": (one("Tile", "v repeats"), (13, 21)),
    "Expand": (one("Expand", "v wide"), (13, 21)),
    "Pad": (one("Pad", "v pads"), (12, 18)),
    "Reshape": (one("Reshape", "v shape"), (12, 21)),
    "Transpose": (one("Transpose", perm=[2, 0, 1]), (12, 21)),
    "Softmax": (one("Softmax", axis=1), OPSETS),
    "Softmax last axis": (one("Softmax", axis=-1), OPSETS),
    "LogSoftmax": (one("LogSoftmax", axis=1), OPSETS),
    "ReduceSum": (axes("ReduceSum", 13, keepdims=0), OPSETS),
    "ReduceMean": (axes("ReduceMean", 18, keepdims=1), OPSETS),
    "ReduceLogSumExp": (axes("ReduceLogSumExp", 18, keepdims=1), OPSETS),
    "ReduceL2": (axes("ReduceL2", 18, keepdims=1), OPSETS),
    "MatMul": (one("MatMul", "v square"), (12, 21)),
    "MatMul stack": (one("MatMul", "v stack"), (12, 21)),
    "Clip": (one("Clip", "v low high"), OPSETS),
    "Max": (one("Max", "v other"), (13, 21)),
    "Div": (one("Div", "other v"), OPSETS),
    "Where": (where, (12, 21)),
    "Erf": (gelu_chain, (13, 20)),
    "Gelu": (one("Gelu"), (20, 21)),
    "Gelu contrib": (one("Gelu", "v", MICROSOFT), (12, 18)),
    "BiasGelu": (one("BiasGelu", "v bias", MICROSOFT), (12, 18)),
    "FastGelu": (one("FastGelu", "v", MICROSOFT), (13, 21)),
    "FastGelu bias": (one("FastGelu", "v bias", MICROSOFT), (13, 21)),
    "QuickGelu": (one("QuickGelu", "v", MICROSOFT, alpha=1.5), (13, 21)),
    "LeakyRelu": (one("LeakyRelu", alpha=0.2), (12, 21)),
    "LayerNormalization": (layer_norm, (17, 18, 20, 21)),
}
CASES = [(name, opset) for name, (_, opsets) in MODELS.items() for opset in opsets]


def network(name: str, opset: int) -> bytes:
    """mean(op(x * w)^2)."""
    nodes = [
        helper.make_node("Mul", ["x", "w"], ["v"], "weigh"),
        *MODELS[name][0](opset),
        helper.make_node("Mul", ["y", "y"], ["y2"], "square_it"),
        helper.make_node("ReduceMean", ["y2"], ["loss"], "mean_it", keepdims=0),
    ]
    used = {item for node in nodes for item in node.input}
    weights = [numpy_helper.from_array(1 + 0.3 * X[0], "w")]
    trained = {key: value for key, value in CONSTANTS.items() if key in used}
    weights += [numpy_helper.from_array(np.asarray(v), key) for key, v in trained.items()]
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", *SHAPE[1:]])],
        [helper.make_tensor_value_info("loss", TensorProto.FLOAT, [])],
        weights,
    )
    imports = [helper.make_opsetid("", opset), helper.make_opsetid(MICROSOFT, 1)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=8)
    return bytes(model.SerializeToString())


def trainable(name: str, opset: int) -> list[str]:
    """Every float tensor that the op reads besides its input."""
    read = {item for node in MODELS[name][0](opset) for item in node.input}
    return ["w", *(key for key in TRAINABLE if key in read)]


@pytest.mark.parametrize(("name", "opset"), CASES)
def test_loss_and_gradients(reference: Reference, tmp_path: Path, name: str, opset: int) -> None:
    artifacts = reference.generate_artifacts(
        network(name, opset), tmp_path, loss=None, requires_grad=trainable(name, opset)
    )
    theirs, module = reference.load(artifacts), module_of(artifacts)
    wanted = float(theirs.train_step([X])[0])
    assert float(module(X)) == pytest.approx(wanted, rel=LOSS)
    assert max(gradient_errors(module, theirs.gradients()).values()) <= GRADIENT
    assert float(module.eval()(X)) == pytest.approx(wanted, rel=LOSS)


def test_the_comparison_can_fail(reference: Reference, tmp_path: Path) -> None:
    """Another weight by 1e-3 gives another loss and other gradients."""
    artifacts = reference.generate_artifacts(
        network("Erf", 13), tmp_path, loss=None, requires_grad=["w"]
    )
    theirs, module = reference.load(artifacts), module_of(artifacts)
    wanted = float(theirs.train_step([X])[0])
    module.state.parameters["w"].data[0, 0] += 1e-3
    assert float(module(X)) != pytest.approx(wanted, rel=LOSS)
    assert max(gradient_errors(module, theirs.gradients()).values()) > GRADIENT
