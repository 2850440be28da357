"""memory_order: gradients of weights early, shapes at once, random numbers in their order."""

from __future__ import annotations

from edge_train.graph import ir
from edge_train.graph.order import memory_order


def _nodes(*lines: str) -> list[ir.Node]:
    """Each "Op a b > c": a node named after its output."""
    nodes = []
    for line in lines:
        reads, _, makes = line.partition(" > ")
        op, *inputs = reads.split()
        nodes.append(ir.make_node(op, inputs, makes.split(), makes))
    return nodes


def _names(nodes: list[ir.Node]) -> list[str]:
    return [node.name for node in nodes]


LAYERS = _nodes(
    "MatMul x w1 > h1",
    "MatMul h1 w2 > h2",
    "MatMul h2 w3 > y",
    "Loss y > loss",
    "LossGrad y > dy",
    "MatMul dy w3 > dh2",
    "MatMul dh2 w2 > dh1",
    "MatMul x dh1 > dw1",
    "MatMul h1 dh2 > dw2",
    "MatMul h2 dy > dw3",
)


def test_each_weight_gradient_comes_before_the_layer_below() -> None:
    order = _names(memory_order(LAYERS))
    assert order == ["h1", "h2", "y", "loss", "dy", "dw3", "dh2", "dw2", "dh1", "dw1"]
    assert order != _names(LAYERS)


def test_the_order_is_a_running_order_of_the_same_nodes() -> None:
    ready = {"x", "w1", "w2", "w3"}
    for node in memory_order(LAYERS):
        assert ready.issuperset(node.inputs), node.name
        ready.update(node.outputs)
    assert ready.issuperset(name for node in LAYERS for name in node.outputs)


def test_shapes_are_asked_for_as_soon_as_the_tensor_is_there() -> None:
    nodes = _nodes(
        "Relu x > a", "Relu a > b", "Loss b > loss", "Shape a > s", "Shape x > t",
        "Shape s > r", "Expand loss s > e", "Reshape e t > f", "Add f r > g",
    )  # fmt: skip
    order = _names(memory_order(nodes))
    assert order[:4] == ["t", "a", "s", "r"]
    assert sorted(order) == sorted(_names(nodes))


def test_nodes_that_draw_keep_their_order() -> None:
    """Of two branches the longer one draws first; its result is ready last."""
    nodes = _nodes(
        "Dropout x > long", "Relu long > l2", "Relu l2 > l3", "Dropout x > short", "Relu short > s2"
    )
    assert memory_order(nodes) == nodes
    plain = [ir.make_node("Tanh", n.inputs, n.outputs, n.name) for n in nodes]
    assert _names(memory_order(plain))[0] == "short"


def test_nodes_seeded_by_their_place_stay_in_it() -> None:
    nodes = [*LAYERS, *_nodes("RandomNormalLike dw3 > noise")]
    assert memory_order(nodes) == nodes


def test_a_body_reads_outer_tensors() -> None:
    body = ir.Graph("body", _nodes("Add a outer > o"), [ir.Value("a", 1, ())],
                    [ir.Value("o", 1, ())])  # fmt: skip
    nodes = [*_nodes("Relu x > outer"), ir.make_node("Loop", ["x"], ["z"], "z", body=body)]
    assert _names(memory_order(nodes)) == ["outer", "z"]
