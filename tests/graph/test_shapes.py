"""Inference of types and shapes: against what the artifacts declare, and op by op."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from support.zoo import SEIZURE, ZOO, Artifacts

from edge_train import dtypes
from edge_train.graph import ir, onnx_codec
from edge_train.graph.shapes import Shapes

ARTIFACTS: list[Artifacts] = [*ZOO.values(), SEIZURE]
F, INT, B = dtypes.FLOAT, dtypes.INT64, dtypes.BOOL


def _undeclared(graph: ir.Graph) -> ir.Graph:
    outputs = [dataclasses.replace(v, elem_type=None, dims=None) for v in graph.outputs]
    return dataclasses.replace(graph, value_info={}, outputs=outputs)


@pytest.mark.parametrize("artifacts", ARTIFACTS, ids=lambda artifacts: artifacts.name)
def test_inferred_as_the_artifacts_declare(artifacts: Artifacts) -> None:
    graph = onnx_codec.load(artifacts.training_model).graph
    shapes = Shapes.of(_undeclared(graph))
    made = graph.producers()
    for name in made:
        assert shapes.rank(name) is not None, name
        assert shapes.elem_type(name) is not None, name
    for value in (*graph.value_info.values(), *graph.outputs):
        node, dims = made.get(value.name), shapes.dims(value.name)
        if node is None or value.dims is None or dims is None:
            continue
        assert shapes.elem_type(value.name) == value.elem_type
        assert len(dims) == len(value.dims), node.describe()
        for declared, inferred in zip(value.dims, dims, strict=True):
            # the spatial sizes of an average pool's input are not in its gradient node
            if isinstance(declared, int) and node.op_type != "AveragePoolGrad":
                assert inferred == declared, node.describe()


# op, attributes, inputs (type and dims, or the values of a constant), outputs
_N = ("N", 3, 4)
CASES: list[tuple[str, dict[str, Any], list[Any], list[Any]]] = [
    ("Relu", {}, [(F, _N)], [(F, _N)]),
    ("Add", {}, [(F, _N), (F, (4,))], [(F, _N)]),
    ("Add", {}, [(F, (1, 3)), (F, ("N", 1))], [(F, ("N", 3))]),
    ("Add", {}, [(F, ("M",)), (F, ("N",))], [(F, (None,))]),
    ("Add", {}, [(F, None), (F, ("N",))], [(F, None)]),
    ("Less", {}, [(F, _N), (F, ())], [(B, _N)]),
    ("Where", {}, [(B, (3, 1)), (F, _N), (F, ())], [(F, _N)]),
    ("Cast", {"to": INT}, [(F, _N)], [(INT, _N)]),
    ("Gemm", {"transB": 1}, [(F, ("N", 3)), (F, (5, 3))], [(F, ("N", 5))]),
    ("MatMul", {}, [(F, ("N", 2, 3)), (F, (3, 5))], [(F, ("N", 2, 5))]),
    ("MatMul", {}, [(F, (3,)), (F, ("N", 3, 5))], [(F, ("N", 5))]),
    ("MatMul", {}, [(F, ("N", 2, 3)), (F, (3,))], [(F, ("N", 2))]),
    ("FusedMatMul", {"transA": 1}, [(F, ("N", 3, 2)), (F, (3, 5))], [(F, ("N", 2, 5))]),
    ("Einsum", {"equation": "bij,jk->bik"}, [(F, ("N", 2, 3)), (F, (3, 5))], [(F, ("N", 2, 5))]),
    (
        "Conv",
        {"strides": [2, 1], "pads": [1, 0, 1, 2]},
        [(F, ("N", 2, 7, 8)), (F, (4, 2, 3, 3))],
        [(F, ("N", 4, 4, 8))],
    ),
    ("Conv", {"auto_pad": "SAME_UPPER"}, [(F, ("N", 2, 7)), (F, (4, 2, 3))], [(F, ("N", 4, 7))]),
    (
        "ConvTranspose",
        {"strides": [2], "group": 2},
        [(F, ("N", 2, 7)), (F, (2, 3, 3))],
        [(F, ("N", 6, 15))],
    ),
    (
        "MaxPool",
        {"kernel_shape": [2], "strides": [2], "ceil_mode": 1},
        [(F, ("N", 2, 7))],
        [(F, ("N", 2, 4)), (INT, ("N", 2, 4))],
    ),
    ("GlobalAveragePool", {}, [(F, ("N", 2, "H", 8))], [(F, ("N", 2, 1, 1))]),
    ("LayerNormalization", {}, [(F, _N), (F, (4,))], [(F, _N), (F, ("N", 3, 1))]),
    ("Dropout", {}, [(F, _N)], [(F, _N), (B, _N)]),
    ("Reshape", {}, [(F, _N), [0, -1]], [(F, ("N", 12))]),
    ("Reshape", {}, [(F, _N), [-1, 2, 6]], [(F, (None, 2, 6))]),
    ("Reshape", {}, [(F, _N), (INT, (2,))], [(F, (None, None))]),
    ("Reshape", {}, [(F, _N), (INT, (2**40,))], [(F, None)]),
    ("Flatten", {}, [(F, _N)], [(F, ("N", 12))]),
    ("Transpose", {"perm": [2, 0, 1]}, [(F, _N)], [(F, (4, "N", 3))]),
    ("Squeeze", {}, [(F, ("N", 1, 4)), [1]], [(F, ("N", 4))]),
    ("Squeeze", {"axes": [-2]}, [(F, ("N", 1, 4))], [(F, ("N", 4))]),
    ("Unsqueeze", {}, [(F, ("N", 4)), [0, -1]], [(F, (1, "N", 4, 1))]),
    ("Concat", {"axis": -1}, [(F, ("N", 3)), (F, ("N", 4))], [(F, ("N", 7))]),
    ("Split", {"axis": 1}, [(F, ("N", 5)), [2, 3]], [(F, ("N", 2)), (F, ("N", 3))]),
    ("Split", {"axis": 1}, [(F, ("N", 4))], [(F, ("N", 2)), (F, ("N", 2))]),
    ("Slice", {}, [(F, _N), [1], [-1], [2]], [(F, ("N", 3, 2))]),
    ("Slice", {}, [(F, _N), [-1], [-99], [2], [-2]], [(F, ("N", 3, 2))]),
    ("Gather", {"axis": 1}, [(F, _N), (INT, (2, 5))], [(F, ("N", 2, 5, 4))]),
    ("Expand", {}, [(F, (3, 1)), [2, 1, 4]], [(F, (2, 3, 4))]),
    ("Tile", {}, [(F, ("N", 3)), [1, 2]], [(F, ("N", 6))]),
    ("Pad", {}, [(F, ("N", 3)), [0, 1, 0, 2]], [(F, ("N", 6))]),
    ("OneHot", {}, [(INT, ("N",)), [5], (F, (2,))], [(F, ("N", 5))]),
    ("TopK", {}, [(F, _N), [2]], [(F, ("N", 3, 2)), (INT, ("N", 3, 2))]),
    ("ArgMax", {"axis": 1, "keepdims": 0}, [(F, _N)], [(INT, ("N", 4))]),
    ("ReduceSum", {"keepdims": 0}, [(F, _N), [0, -1]], [(F, (3,))]),
    ("ReduceSum", {}, [(F, _N), (INT, (1,))], [(F, (None, None, None))]),
    ("ReduceSum", {"noop_with_empty_axes": 1}, [(F, _N)], [(F, _N)]),
    ("ReduceMean", {"keepdims": 0}, [(F, _N)], [(F, ())]),
    ("Shape", {}, [(F, _N)], [(INT, (3,))]),
    ("Size", {}, [(F, _N)], [(INT, ())]),
    ("Range", {}, [[1], [8], [2]], [(INT, (4,))]),
    ("ConstantOfShape", {}, [[2, 3]], [(F, (2, 3))]),
    ("Constant", {"value_ints": [1, 2]}, [], [(INT, (2,))]),
    (
        "LSTM",
        {"hidden_size": 5, "direction": "bidirectional"},
        [(F, (7, "N", 3)), (F, (2, 20, 3)), (F, (2, 20, 5))],
        [(F, (7, 2, "N", 5)), (F, (2, "N", 5)), (F, (2, "N", 5))],
    ),
    ("SoftmaxCrossEntropyLoss", {}, [(F, ("N", 3)), (INT, ("N",))], [(F, ()), (F, ("N", 3))]),
    (
        "ConvGrad",
        {},
        [(F, ("N", 4, 5)), (F, ("N", 2, 7)), (F, (4, 2, 3))],
        [(F, ("N", 2, 7)), (F, (4, 2, 3)), (F, (4,))],
    ),
    ("GatherGrad", {}, [[5, 2], (INT, ("N",)), (F, ("N", 2))], [(F, (5, 2))]),
    ("SliceGrad", {}, [(F, ("N", 2)), (INT, (2,)), [0], [2]], [(F, (None, None))]),
    ("BroadcastGradientArgs", {}, [(INT, (2,)), (INT, (2,))], [(INT, (None,)), (INT, (None,))]),
    ("QuantizeLinear", {}, [(F, _N), (F, ())], [(dtypes.UINT8, _N)]),
    ("NoSuchOp", {}, [(F, _N)], [(None, None)]),
    # malformed nodes tell nothing
    ("Transpose", {"perm": [7]}, [(F, _N)], [(None, None)]),
    ("Gemm", {}, [], [(None, (None, None))]),
    ("Cast", {}, [(F, _N)], [(None, _N)]),
    ("Conv", {"strides": [0]}, [(F, ("N", 2, 7)), (F, (4, 2, 3))], [(None, None)]),
    ("Concat", {"axis": "x"}, [(F, _N)], [(None, None)]),
]


@pytest.mark.parametrize(("op", "attributes", "inputs", "outputs"), CASES)
def test_rule(op: str, attributes: dict[str, Any], inputs: list[Any], outputs: list[Any]) -> None:
    graph = ir.Graph("g")
    names = [f"x{i}" for i in range(len(inputs))]
    for name, given in zip(names, inputs, strict=True):
        if isinstance(given, list):
            graph.initializers[name] = ir.Tensor.of(name, np.array(given, np.int64))
        else:
            graph.inputs.append(ir.Value(name, *given))
    results = [f"y{i}" for i in range(len(outputs))]
    graph.nodes.append(ir.make_node(op, names, results, **attributes))
    shapes = Shapes.of(graph)
    assert [(shapes.elem_type(name), shapes.dims(name)) for name in results] == outputs


def _facts(graph: ir.Graph, name: str) -> tuple[int | None, Any]:
    shapes = Shapes.of(graph)
    return shapes.elem_type(name), shapes.dims(name)


def test_shape_arithmetic_reaches_reshape() -> None:
    """Shape, Gather, Unsqueeze, Concat, Cast, Slice keep symbols on their way to a Reshape."""
    nodes = [
        ir.make_node("Shape", ["x"], ["s"]),
        ir.make_node("Gather", ["s", "zero"], ["n"], axis=0),
        ir.make_node("Unsqueeze", ["n", "axes"], ["n1"]),
        ir.make_node("Slice", ["s", "axes1", "two"], ["c1"]),
        ir.make_node("Concat", ["n1", "c1", "four"], ["t"], axis=0),
        ir.make_node("Cast", ["t"], ["t64"], to=INT),
        ir.make_node("Reshape", ["x", "t64"], ["y"]),
        ir.make_node("Reshape", ["y", "s"], ["z"]),
    ]
    constants = {
        "zero": np.array(0),
        "axes": np.array([0]),
        "axes1": np.array([1]),
        "two": np.array([2]),
        "four": np.array([4]),
    }
    graph = ir.Graph(
        "g",
        nodes,
        [ir.Value("x", F, ("N", 3, 2, 2))],
        initializers={name: ir.Tensor.of(name, value) for name, value in constants.items()},
    )
    assert _facts(graph, "y") == (F, ("N", 3, 4))
    assert _facts(graph, "z") == (F, ("N", 3, 2, 2))


def test_declared_sizes_stay_and_are_completed() -> None:
    graph = ir.Graph(
        "g",
        [ir.make_node("Relu", ["x"], ["y"]), ir.make_node("Relu", ["x"], ["z"])],
        [ir.Value("x", F, ("N", 3))],
        value_info={"y": ir.Value("y", F, ("M", None)), "z": ir.Value("z", F, (7, -1))},
    )
    assert _facts(graph, "y") == (F, ("M", 3))
    assert _facts(graph, "z") == (F, (7, 3))


def test_set_replaces_and_forgets() -> None:
    shapes = Shapes()
    shapes.set("x", F, (2, 3))
    shapes.set("x", INT, ("N",))
    assert (shapes.elem_type("x"), shapes.dims("x"), shapes.rank("x")) == (INT, ("N",), 1)
    shapes.set("x", None, None)
    assert (shapes.elem_type("x"), shapes.dims("x"), shapes.rank("x")) == (None, None, None)
    shapes.set("scalar", F, ())
    assert shapes.rank("scalar") == 0


def test_branches_agree() -> None:
    def body(name: str, size: int) -> ir.Graph:
        node = ir.make_node("Expand", ["x", f"{name}_shape"], [name])
        shape = ir.Tensor.of(f"{name}_shape", np.array([2, size]))
        outputs = [ir.Value(name, None, None)]
        return ir.Graph(name, [node], [], outputs, {shape.name: shape})

    node = ir.make_node("If", ["c"], ["y"], then_branch=body("a", 3), else_branch=body("b", 4))
    graph = ir.Graph("g", [node], [ir.Value("x", F, (1, 1)), ir.Value("c", B, ())])
    assert _facts(graph, "y") == (F, (2, None))
    assert Shapes.of(graph).dims("a") is None  # names inside branches stay inside


def test_a_constant_is_what_it_is_whatever_is_declared() -> None:
    tensor = ir.Tensor.of("w", np.ones((2, 3), np.float32))
    declared = ir.Value("w", dtypes.FLOAT16, (2, 4))
    graph = ir.Graph(initializers={"w": tensor}, outputs=[declared], value_info={"w": declared})
    shapes = Shapes.of(graph)
    assert (shapes.elem_type("w"), shapes.dims("w")) == (F, (2, 3))
