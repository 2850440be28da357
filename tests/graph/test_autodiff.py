"""The walk back from the loss: names, sums of partial gradients, refusals."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from edge_train.errors import ArtifactError, UnsupportedOp
from edge_train.graph import ir
from edge_train.graph.autodiff import differentiate
from edge_train.graph.gradients import RULES, Entry
from edge_train.graph.shapes import Shapes

FLOAT = 1


def _graph(*nodes: ir.Node, loss: tuple[int, ...] = ()) -> ir.Graph:
    inputs = [ir.Value(name, FLOAT, (2, 3)) for name in ("x", "w")]
    return ir.Graph("g", list(nodes), inputs, [ir.Value("loss", FLOAT, loss)])


def _mean(source: str) -> ir.Node:
    return ir.make_node("ReduceMean", [source], ["loss"], "mean", keepdims=0)


def _differentiated(graph: ir.Graph, *wanted: str) -> tuple[ir.Graph, dict[str, str]]:
    made, gradients = differentiate(graph, Shapes.of(graph), "loss", wanted)
    known = {value.name for value in made.inputs} | set(made.initializers)
    for node in made.nodes:
        assert {name for name in node.inputs if name} <= known, node
        known.update(node.outputs)
    assert set(gradients.values()) <= known
    return made, gradients


def test_names_follow_the_reference() -> None:
    graph = _graph(ir.make_node("Mul", ["x", "w"], ["y"], "product"), _mean("y"))
    made, gradients = _differentiated(graph, "w")
    assert gradients == {"w": "w_grad"}
    assert "loss_grad" in made.initializers
    names = [node.name for node in made.nodes if node.name.startswith("product_Grad/")]
    assert names == ["product_Grad/Mul_0"]


def test_partial_gradients_are_summed() -> None:
    twice = ir.make_node("Mul", ["w", "w"], ["y"], "square")
    made, gradients = _differentiated(_graph(twice, _mean("y")), "w")
    assert gradients == {"w": "w_grad"}
    total = next(node for node in made.nodes if node.name == "AccumulateGrad_w_grad")
    assert total.op_type == "Sum"
    assert total.inputs == ("w_grad_0", "w_grad_1")


def test_one_new_tensor_may_be_the_gradient_of_several_inputs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def rule(g: object, node: ir.Node, dy: str) -> Sequence[str]:
        both = g.neg(dy)  # type: ignore[attr-defined]
        return [both, both]

    monkeypatch.setitem(RULES, ("test", "Twin"), Entry(rule, broadcasts=True))
    twin = ir.make_node("Twin", ["x", "w"], ["y"], "twin", "test")
    graph = _graph(twin, _mean("y"))
    graph.value_info["y"] = ir.Value("y", FLOAT, (2, 3))
    _, gradients = _differentiated(graph, "x", "w")
    assert gradients == {"x": "x_grad", "w": "w_grad"}


@pytest.mark.parametrize(("exponent", "squares"), [("fixed", True), ("w", False), ("held", False)])
def test_a_parameter_is_no_constant(exponent: str, squares: bool) -> None:
    """x^2 has the slope 2x; what is trained or loaded may be another exponent by then."""
    power = ir.make_node("Pow", ["x", exponent], ["y"], "power")
    graph = _graph(power, _mean("y"))
    graph.initializers[exponent] = ir.Tensor.of(exponent, np.float32(2))
    graph.inputs = graph.inputs[:1]
    wanted = ["x", exponent] if exponent == "w" else ["x"]
    made, _ = differentiate(graph, Shapes.of(graph), "loss", wanted, ["held"])
    reads = [node.op_type for node in made.nodes if exponent in node.inputs]
    assert (reads == ["Pow"]) == squares


def test_a_tensor_the_loss_does_not_depend_on_has_no_gradient() -> None:
    graph = _graph(ir.make_node("Neg", ["x"], ["y"], "neg"), _mean("y"))
    _, gradients = _differentiated(graph, "x", "w")
    assert gradients == {"x": "x_grad"}


def test_every_node_without_a_gradient_is_listed() -> None:
    nodes = [
        ir.make_node("Mystery", ["w"], ["a"], "first", "acme"),
        ir.make_node("Det", ["a"], ["b"], "second"),
        ir.make_node("Mystery", ["x"], ["unused"], "beside the path", "acme"),
    ]
    graph = _graph(*nodes, _mean("b"))
    graph.value_info.update({name: ir.Value(name, FLOAT, (2, 3)) for name in ("a", "b")})
    with pytest.raises(UnsupportedOp) as refused:
        differentiate(graph, Shapes.of(graph), "loss", ["w"])
    assert "Mystery 'first' (domain 'acme')" in str(refused.value)
    assert "Det 'second'" in str(refused.value)
    assert "beside the path" not in str(refused.value)


def test_the_loss_is_one_number() -> None:
    graph = _graph(ir.make_node("Neg", ["w"], ["loss"], "neg"), loss=(2, 3))
    with pytest.raises(ArtifactError, match="one number"):
        differentiate(graph, Shapes.of(graph), "loss", ["w"])


def test_outputs_that_the_walk_adds_have_names_of_their_own() -> None:
    """Beside the first output that has a name, and not one that the model has already."""
    nodes = [
        ir.make_node("Dropout", ["w"], ["y"], "drop"),
        ir.make_node("Neg", ["x"], ["y_mask"], "neg"),
        ir.make_node("Add", ["y", "y_mask"], ["sum"], "add"),
    ]
    made, _ = _differentiated(_graph(*nodes, _mean("sum")), "w")
    assert next(node for node in made.nodes if node.name == "drop").outputs == ("y", "y_mask_1")
    splits = [
        ir.make_node("Split", ["w"], ["", part], f"split_{part}", axis=1, num_outputs=2)
        for part in "ab"
    ]
    graph = _graph(*splits, ir.make_node("Mul", ["a", "b"], ["y"], "product"), _mean("y"))
    made, _ = _differentiated(graph, "w")
    names = [name for node in made.nodes for name in node.outputs if name]
    assert len(names) == len(set(names))
