"""Model-local functions give the same results after they are replaced by their bodies."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import AttributeProto, TensorProto, helper
from support.forward import check_same, ops, run

from edge_train.errors import ArtifactError
from edge_train.graph import onnx_codec
from edge_train.graph.prepare import tidy
from edge_train.graph.prepare.functions import inline_functions

X = np.linspace(-2, 2, 6, dtype=np.float32).reshape(2, 3)
FEEDS = {"x": X}
IMPORTS = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]


def _referring(node: onnx.NodeProto, name: str, source: str, kind: int) -> onnx.NodeProto:
    node.attribute.append(AttributeProto(name=name, ref_attr_name=source, type=kind))
    return node


def _function(
    name: str, inputs: str, outputs: str, nodes: list[onnx.NodeProto], opset: int = 17, **more: Any
) -> onnx.FunctionProto:
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("local", 1)]
    return helper.make_function(
        "local", name, inputs.split(), outputs.split(), nodes, imports, **more
    )


def _bytes(nodes: list[onnx.NodeProto], functions: list[onnx.FunctionProto]) -> bytes:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 3])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "g", [x], [y])
    model = helper.make_model(graph, opset_imports=IMPORTS, ir_version=8, functions=functions)
    data: bytes = model.SerializeToString()
    return data


def _call(op: str, inputs: list[str], outputs: list[str], **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(op, inputs, outputs, domain="local", name=f"{op}_1", **attributes)


def _inlined(data: bytes) -> Any:
    model = inline_functions(onnx_codec.decode(data))
    assert not model.functions
    assert "local" not in {name for name, _ in model.opset_imports}
    check_same(data, model, FEEDS)
    return model


LEAKY = _function(
    "leaky",
    "a",
    "b",
    [_referring(helper.make_node("LeakyRelu", ["a"], ["b"]), "alpha", "slope", 1)],
    attributes=["slope"],
)


def test_attributes_of_the_call() -> None:
    model = _inlined(_bytes([_call("leaky", ["x"], ["y"], slope=0.3)], [LEAKY]))
    assert model.graph.nodes[0].attr("alpha") == pytest.approx(0.3)


def test_an_attribute_left_out_is_the_default() -> None:
    function = _function(
        "leaky",
        "a",
        "b",
        list(LEAKY.node),
        attribute_protos=[helper.make_attribute("slope", 0.7)],
    )
    model = _inlined(_bytes([_call("leaky", ["x"], ["y"])], [function]))
    assert model.graph.nodes[0].attr("alpha") == pytest.approx(0.7)


def test_functions_in_functions_called_twice() -> None:
    nodes = [
        _call("leaky", ["a"], ["t"], slope=0.5),
        helper.make_node("Add", ["t", "a"], ["b"]),
    ]
    outer = _function("outer", "a", "b", nodes)
    calls = [_call("outer", ["x"], ["h"]), _call("outer", ["h"], ["y"])]
    for call in calls:
        call.name = ""
    model = _inlined(_bytes(calls, [LEAKY, outer]))
    assert ops(model) == {"LeakyRelu": 2, "Add": 2}


def test_names_inside_do_not_meet_those_outside() -> None:
    """The function has tensors named as the graph's."""
    function = _function(
        "f",
        "y",
        "x",
        [helper.make_node("Neg", ["y"], ["h"]), helper.make_node("Exp", ["h"], ["x"])],
    )
    nodes = [helper.make_node("Abs", ["x"], ["h"]), _call("f", ["h"], ["y"])]
    _inlined(_bytes(nodes, [function]))


def test_omitted_inputs_and_handed_on_inputs() -> None:
    function = _function("f", "a low b", "c a", [helper.make_node("Clip", ["a", "low"], ["c"])])
    nodes = [_call("f", ["x"], ["h", "k"]), helper.make_node("Add", ["h", "k"], ["y"])]
    model = inline_functions(onnx_codec.decode(_bytes(nodes, [function])))
    expected = _bytes([helper.make_node("Add", ["x", "x"], ["y"])], [])
    check_same(expected, model, FEEDS)


def test_another_opset_inside() -> None:
    """ReduceSum took its axes as attribute before opset 13: both sides are raised."""
    nodes = [helper.make_node("ReduceSum", ["a"], ["b"], axes=[1], keepdims=0)]
    function = _function("f", "a", "b", nodes, opset=11)
    data = _bytes([_call("f", ["x"], ["y"])], [function])
    model = inline_functions(onnx_codec.decode(data))
    assert model.opset() == 21
    np.testing.assert_allclose(run(model, FEEDS)[0], X.sum(1), atol=1e-6)


def test_subgraphs_inside_and_outside() -> None:
    def branch(name: str, op: str) -> onnx.GraphProto:
        out = helper.make_tensor_value_info("r", TensorProto.FLOAT, None)
        return helper.make_graph([helper.make_node(op, ["a"], ["r"])], name, [], [out])

    nodes = [
        helper.make_node("ReduceSum", ["a"], ["s"], keepdims=0),
        helper.make_node("Constant", [], ["zero"], value_float=0.0),
        helper.make_node("Greater", ["s", "zero"], ["c"]),
        helper.make_node(
            "If", ["c"], ["b"], then_branch=branch("t", "Neg"), else_branch=branch("e", "Exp")
        ),
    ]
    function = _function("f", "a", "b", nodes)
    for shift in (-5.0, 5.0):
        model = inline_functions(onnx_codec.decode(_bytes([_call("f", ["x"], ["y"])], [function])))
        check_same(
            _bytes([_call("f", ["x"], ["y"])], [function]), model, {"x": X + np.float32(shift)}
        )


def test_a_function_that_calls_itself() -> None:
    function = _function("f", "a", "b", [_call("f", ["a"], ["b"])])
    with pytest.raises(ArtifactError, match="local::f of the model calls itself"):
        inline_functions(onnx_codec.decode(_bytes([_call("f", ["x"], ["y"])], [function])))


def test_a_damaged_function() -> None:
    model = onnx_codec.decode(_bytes([_call("leaky", ["x"], ["y"])], [LEAKY]))
    model.functions = (b"\xff\xff",)
    with pytest.raises(ArtifactError, match="model-local function of the model is damaged"):
        inline_functions(model)


def test_tidy_inlines() -> None:
    data = _bytes([_call("leaky", ["x"], ["y"], slope=0.3)], [LEAKY])
    check_same(data, tidy(onnx_codec.decode(data)), FEEDS)
