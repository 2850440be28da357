"""Weights become initializers under their own names."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.forward import check_same, model_of, ops

from edge_train import dtypes
from edge_train.graph import ir
from edge_train.graph.prepare import tidy

W = np.arange(6, dtype=np.float32).reshape(3, 2)
FEEDS = {"x": np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3)}


def _constant(name: str, **value: object) -> ir.Node:
    return ir.make_node("Constant", [], [name], f"make {name}", **value)


def test_weights_in_constant_nodes() -> None:
    nodes = [
        _constant("w", value=ir.Tensor.of("", W)),
        _constant("b", value_floats=[0.5, 1.5]),
        _constant("eps", value_float=1e-3),
        ir.make_node("MatMul", ["x", "w"], ["h"]),
        ir.make_node("Add", ["h", "b"], ["k"]),
        ir.make_node("Add", ["k", "eps"], ["y"]),
    ]
    model = model_of(nodes, {"x": (None, 3)}, "y")
    tidied = tidy(model)
    assert set(tidied.graph.initializers) == {"w", "b"}
    np.testing.assert_array_equal(tidied.graph.initializers["w"].array(), W)
    check_same(model, tidied, FEEDS)
    # a single number is a weight where it is asked for
    assert "eps" in tidy(model, ["eps"]).graph.initializers


def test_a_constant_that_is_an_output_stays() -> None:
    nodes = [_constant("w", value=ir.Tensor.of("", W)), ir.make_node("MatMul", ["x", "w"], ["y"])]
    tidied = tidy(model_of(nodes, {"x": (None, 3)}, "y w"))
    assert ops(tidied)["Constant"] == 1


def test_initializers_that_are_inputs_too() -> None:
    """Files of IR version 3 list every initializer among the inputs."""
    model = model_of(
        [ir.make_node("MatMul", ["x", "w"], ["y"])], {"x": (None, 3)}, "y", {"w": W}, 8
    )
    inputs = [ir.Value("w", dtypes.FLOAT, W.shape), *model.graph.inputs]
    old = replace(model, ir_version=3, graph=replace(model.graph, inputs=inputs))
    tidied = tidy(old)
    assert [value.name for value in tidied.graph.inputs] == ["x"]
    assert tidied.ir_version >= 4
    check_same(old, tidied, FEEDS)


COPIES = [
    ir.make_node("Identity", ["w"], ["v"], "same weight"),
    ir.make_node("Transpose", ["w"], ["wt"], "turned"),
    ir.make_node("MatMul", ["x", "w"], ["a"], "first"),
    ir.make_node("MatMul", ["x", "v"], ["b"], "second"),
    ir.make_node("Gemm", ["x", "wt"], ["c"], "third", transB=1),
    ir.make_node("Sum", ["a", "b", "c"], ["y"], "sum"),
]


@pytest.mark.parametrize("names", [(), ("v",), ("wt",), ("v", "wt")])
def test_copies_that_are_asked_for(names: tuple[str, ...]) -> None:
    model = model_of(COPIES, {"x": (None, 3)}, "y", {"w": W})
    tidied = tidy(model, names)
    assert set(tidied.graph.initializers) == {"w", *names}
    for name, value in (("v", W), ("wt", W.T)):
        if name in names:
            np.testing.assert_array_equal(tidied.graph.initializers[name].array(), value)
            assert tidied.graph.initializers[name].name == name
    check_same(model, tidied, FEEDS)


def test_external_data_stays_outside() -> None:
    """A copy of a weight names the same bytes of the file; a turned one cannot."""
    model = model_of(COPIES, {"x": (None, 3)}, "y")
    place = (("location", "w.bin"), ("offset", "64"), ("length", "24"))
    tensor = ir.Tensor("w", dtypes.FLOAT, W.shape, None, external=place)
    model.graph.initializers["w"] = tensor
    tidied = tidy(model, ["v", "wt"])
    assert tidied.graph.initializers["v"] == replace(tensor, name="v")
    assert "wt" not in tidied.graph.initializers


@pytest.mark.parametrize(
    ("names", "own"),
    [(("v*",), {"v"}), (("*t",), {"wt"}), (("*",), set()), (("w*",), set()), (("q*",), set())],
)
def test_copies_that_match_a_pattern(names: tuple[str, ...], own: set[str]) -> None:
    """A pattern that the stored weight matches too trains both as one."""
    tidied = tidy(model_of(COPIES, {"x": (None, 3)}, "y", {"w": W}), names)
    assert set(tidied.graph.initializers) == {"w", *own}


def test_new_scales_are_not_tied() -> None:
    """Equal because nobody has trained them: exporters store the ones of all norms once."""
    nodes = [
        ir.make_node("Identity", ["one"], ["other"], "copy"),
        ir.make_node("Mul", ["x", "one"], ["h"], "first"),
        ir.make_node("Mul", ["h", "other"], ["y"], "second"),
    ]
    model = model_of(nodes, {"x": (None, 3)}, "y", {"one": np.ones(3, np.float32)})
    assert set(tidy(model).graph.initializers) == {"one", "other"}
    check_same(model, tidy(model), FEEDS)


def test_a_copy_whose_name_has_pattern_characters_means_itself() -> None:
    nodes = [
        ir.make_node("Identity", ["w"], ["v0"], "plain"),
        ir.make_node("Identity", ["w"], ["v[0]"], "odd"),
        ir.make_node("MatMul", ["x", "v0"], ["a"], "first"),
        ir.make_node("MatMul", ["x", "v[0]"], ["b"], "second"),
        ir.make_node("Add", ["a", "b"], ["y"], "sum"),
    ]
    model = model_of(nodes, {"x": (None, 3)}, "y", {"w": W})
    for names, own in ((["v[0]"], {"v[0]"}), (["v0"], {"v0"}), (["v?"], {"v0"}), (["v[1]"], set())):
        assert set(tidy(model, names).graph.initializers) == {"w", *own}
    check_same(model, tidy(model, ["v[0]"]), FEEDS)
