"""An If with a known condition is replaced by its branch; any other stays."""

from __future__ import annotations

import numpy as np
import pytest
from support.forward import check_same, model_of, ops, run

from edge_train import dtypes
from edge_train.graph import ir
from edge_train.graph.prepare import prepare, tidy
from edge_train.graph.prepare.branches import fold_branches

X = np.linspace(-2, 2, 6, dtype=np.float32).reshape(2, 3)
FEEDS = {"x": X}


def _body(name: str, nodes: list[ir.Node], out: str, **constants: np.ndarray) -> ir.Graph:
    tensors = {key: ir.Tensor.of(key, value) for key, value in constants.items()}
    return ir.Graph(name, nodes, [], [ir.Value(out, dtypes.FLOAT, None)], tensors)


def _branching(condition: str, **attributes: ir.Graph) -> ir.Node:
    return ir.make_node("If", [condition], ["h"], "if", **attributes)


def _two(condition: str) -> list[ir.Node]:
    """Branches with tensors of equal names, one of them with a weight of its own."""
    weight = np.array([1, 2, 3], np.float32)
    then = [ir.make_node("Neg", ["x"], ["t"]), ir.make_node("Mul", ["t", "w"], ["r"])]
    other = [ir.make_node("Abs", ["x"], ["t"]), ir.make_node("Exp", ["t"], ["r"])]
    return [
        _branching(
            condition,
            then_branch=_body("then", then, "r", w=weight),
            else_branch=_body("else", other, "r"),
        ),
        ir.make_node("Relu", ["h"], ["y"], "relu"),
    ]


@pytest.mark.parametrize("taken", [True, False])
def test_constant_condition(taken: bool) -> None:
    model = model_of(_two("c"), {"x": (None, 3)}, "y", {"c": np.array(taken)})
    tidied = tidy(model)
    assert "If" not in ops(tidied)
    assert ("w" in tidied.graph.initializers) == taken  # it can be trained by its name
    check_same(model, tidied, FEEDS)


@pytest.mark.parametrize("size", [3, 1])
def test_condition_on_a_declared_size(size: int) -> None:
    """What exporters write for a squeeze: if the size is 1."""
    nodes = [
        ir.make_node("Shape", ["x"], ["s"]),
        ir.make_node("Gather", ["s", "index"], ["n"]),
        ir.make_node("Equal", ["n", "one"], ["c"]),
        *_two("c"),
    ]
    constants = {"index": np.array(1), "one": np.array(1)}
    model = model_of(nodes, {"x": ("N", size)}, "y", constants)
    folded = fold_branches(model)
    assert ("Exp" in ops(folded)) == (size == 3)
    check_same(model, folded, {"x": X[:, :size]})


def test_unknown_condition_stays() -> None:
    nodes = [
        ir.make_node("ReduceMax", ["x"], ["m"], keepdims=0),
        ir.make_node("Greater", ["m", "limit"], ["c"]),
        *_two("c"),
    ]
    model = model_of(nodes, {"x": (None, 3)}, "y", {"limit": np.float32(0)})
    folded = fold_branches(model)
    assert ops(folded)["If"] == 1
    check_same(model, folded, FEEDS)


def test_branches_in_branches_and_names_that_are_taken() -> None:
    inner = _body("inner", [ir.make_node("Neg", ["x"], ["t"])], "t")
    same = _body("same", [ir.make_node("Identity", ["x"], ["q"])], "q")
    then = [
        ir.make_node("If", ["c"], ["v"], "inside", then_branch=inner, else_branch=same),
        ir.make_node("Sub", ["v", "x"], ["r"]),
    ]
    other = [ir.make_node("Exp", ["x"], ["r"])]
    nodes = [
        _branching("c", then_branch=_body("a", then, "r"), else_branch=_body("b", other, "r")),
        ir.make_node("Tanh", ["h"], ["t"], "outer"),  # a name of the innermost branch
        ir.make_node("Add", ["t", "h"], ["y"], "sum"),
    ]
    model = model_of(nodes, {"x": (None, 3)}, "y", {"c": np.array(True)})
    folded = fold_branches(model)
    assert "If" not in ops(folded)
    check_same(model, folded, FEEDS)


def test_a_branch_that_hands_on_a_tensor_from_outside() -> None:
    nodes = [ir.make_node("Exp", ["x"], ["e"]), *_two("c")]
    handed = _body("then", [ir.make_node("Identity", ["e"], ["r"])], "r")
    attributes = {**nodes[1].attributes, "then_branch": ir.Attribute.of("then_branch", handed)}
    nodes[1] = ir.Node("If", ("c",), ("h",), "if", "", attributes)
    model = model_of(nodes, {"x": (None, 3)}, "y", {"c": np.array(True)})
    prepared = prepare(model, ())
    assert ops(prepared) == {"Exp": 1, "Relu": 1}
    check_same(model, prepared, FEEDS)


def _squeezing(axis: int, index: int, opset: int) -> ir.Model:
    """What exporters write for a squeeze of a size that they do not know."""
    axes = {"axes": [axis]} if opset < 13 else {}
    reads = ["x"] if opset < 13 else ["x", "a"]
    made = ir.Tensor.of("", np.array([axis], np.int64))
    then = [ir.make_node("Constant", [], ["a"], value=made)] if opset > 12 else []
    then.append(ir.make_node("Squeeze", reads, ["s"], **axes))
    other = [ir.make_node("Identity", ["x"], ["i"])]
    nodes = [
        ir.make_node("Shape", ["x"], ["shape"]),
        ir.make_node("Gather", ["shape", "index"], ["size"]),
        ir.make_node("Equal", ["size", "one"], ["c"]),
        _branching("c", then_branch=_body("t", then, "s"), else_branch=_body("e", other, "i")),
        ir.make_node("Relu", ["h"], ["y"], "relu"),
    ]
    constants = {"index": np.array([index]), "one": np.array([1])}
    return model_of(nodes, {"x": ("N", "T")}, "y", constants, opset)


@pytest.mark.parametrize(("axis", "index", "opset"), [(-1, 1, 15), (1, 1, 12), (1, -1, 17)])
def test_squeeze_of_an_unknown_size(axis: int, index: int, opset: int) -> None:
    """The squeeze is taken: the same, or an error of onnxruntime."""
    model = _squeezing(axis, index, opset)
    folded = fold_branches(model)
    assert "If" not in ops(folded)
    check_same(model, folded, {"x": X[:, :1]})
    with pytest.raises(Exception, match=r"[Ss]queeze"):
        run(folded, {"x": X})


def test_squeeze_of_another_axis_than_the_one_asked_for_stays() -> None:
    assert "If" in ops(fold_branches(_squeezing(1, 0, 15)))


CASTS = [
    (np.float32(2.7), dtypes.INT64, np.array(2)),
    (np.float32(-2.7), dtypes.INT32, np.array(-2, np.int32)),
    (np.float64(1e300), dtypes.FLOAT, np.float32(np.inf)),
    (np.array(-129), dtypes.INT8, np.array(127, np.int8)),
    (np.array(300), dtypes.UINT8, np.array(44, np.uint8)),
    (np.array(5), dtypes.BOOL, np.array(True)),
    (np.array(2**24 + 1), dtypes.FLOAT, np.float32(2**24)),
    (np.array(2049), dtypes.FLOAT16, np.float16(2048)),
    (np.float32(np.nan), dtypes.INT32, np.array(0, np.int32)),
    (np.array(2**31), dtypes.INT32, np.array(-(2**31), np.int32)),
    (np.float16(0.1), dtypes.FLOAT, np.float32(0.1)),
    (np.array(True), dtypes.FLOAT, np.float32(1)),
]


@pytest.mark.parametrize(("value", "to", "other"), CASTS)
def test_a_cast_that_changes_the_value(value: np.ndarray, to: int, other: np.ndarray) -> None:
    """The branch that onnxruntime takes; an If whose condition is left open stays."""
    wide = dtypes.INT64 if to in (dtypes.INT8, dtypes.UINT8) else to
    nodes = [
        ir.make_node("Cast", ["v"], ["cast"], "cast", to=to),
        ir.make_node("Cast", ["cast"], ["a"], "a", to=wide),  # 1.20 compares no 8 bits
        ir.make_node("Cast", ["other"], ["b"], "b", to=wide),
        ir.make_node("Equal", ["a", "b"], ["c"], "equal"),
        *_two("c"),
    ]
    model = model_of(nodes, {"x": (None, 3)}, "y", {"v": value, "other": other})
    check_same(model, fold_branches(model), FEEDS)


@pytest.mark.parametrize(("value", "to", "folds"), [(3.9, 7, True), (3e30, 7, False)])
def test_a_cast_folds_where_the_value_fits(value: float, to: int, folds: bool) -> None:
    nodes = [
        ir.make_node("Cast", ["v"], ["cast"], "cast", to=to),
        ir.make_node("Less", ["cast", "four"], ["c"], "less"),
        *_two("c"),
    ]
    constants = {"v": np.float32(value), "four": np.array(4)}
    model = model_of(nodes, {"x": (None, 3)}, "y", constants)
    assert ("If" not in ops(fold_branches(model))) == folds


def test_rows_of_a_table_are_not_its_elements() -> None:
    """Gather and Slice along the first axis of a constant that has two."""
    table = np.array([[7, 0], [1, 5], [2, 0]])  # row 1 sums to 6, element 1 is 0
    nodes = [
        ir.make_node("Slice", ["table", "one", "two"], ["cut"], "cut"),
        ir.make_node("Gather", ["wide", "place"], ["row"], "row"),
        ir.make_node("ReduceSum", ["row"], ["total"], "total", keepdims=0),
        ir.make_node("ReduceSum", ["cut"], ["item"], "item", keepdims=0),
        ir.make_node("Equal", ["item", "total"], ["c"], "equal"),
        *_two("c"),
    ]
    constants = {
        "table": table, "wide": np.array([[3, 4], [9, -3]]), "place": np.array(1),
        "one": np.array([1]), "two": np.array([2]),
    }  # fmt: skip
    model = model_of(nodes, {"x": (None, 3)}, "y", constants)
    prepared = prepare(model, ["y"])
    check_same(model, prepared, FEEDS)


def test_operands_that_only_broadcast_with_their_axes_stay() -> None:
    nodes = [
        ir.make_node("Equal", ["a", "b"], ["e"], "e"),
        ir.make_node("Not", ["e"], ["n"], "n"),
        ir.make_node("ReduceMax", ["n"], ["c"], "c", keepdims=0),
        *_two("c"),
    ]
    constants = {"a": np.arange(3).reshape(1, 3), "b": np.arange(2).reshape(2, 1)}
    model = model_of(nodes, {"x": (None, 3)}, "y", constants, 20)
    assert "If" in ops(fold_branches(model))


@pytest.mark.parametrize("asked", [True, False])
def test_a_condition_on_a_weight_stays(asked: bool) -> None:
    """Training changes it."""
    nodes = [ir.make_node("Greater", ["w", "zero"], ["c"]), *_two("c")]
    constants = {"w": np.float32(1), "zero": np.float32(0)}
    model = model_of(nodes, {"x": (None, 3)}, "y", constants)
    assert ("If" in ops(tidy(model, ["w"] if asked else []))) == asked


def test_a_squeeze_by_a_part_of_the_sizes_stays() -> None:
    """The size at place 0 from axis 1 on is not that of axis 0."""
    model = _squeezing(0, 0, 15)
    shape = ir.make_node("Shape", ["x"], ["shape"], start=1)
    model.graph.nodes[0] = shape
    assert "If" in ops(fold_branches(model))
    model.graph.nodes[0] = ir.make_node("Shape", ["x"], ["shape"])
    assert "If" not in ops(fold_branches(model))
