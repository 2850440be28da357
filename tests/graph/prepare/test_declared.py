"""Declared shapes: what exporters write for an unknown size, and outputs of another rank."""

from __future__ import annotations

import numpy as np
import pytest
from support.forward import model_of

from edge_train.graph import ir
from edge_train.graph.prepare import tidy

NODES = [
    ir.make_node("Relu", ["x"], ["h"], "relu"),
    ir.make_node("ReduceMean", ["h"], ["y"], "mean", axes=[0], keepdims=1),
]


@pytest.mark.parametrize(
    ("declared", "expected"),
    [
        ((1, "seqlen"), (1, "T", 4)),  # another rank
        ((1, 7, 5), (1, "T", 4)),  # another size
        ((1, "other", 4), (1, "other", 4)),
        ((-1, "?", 4), (None, None, 4)),
        (None, None),
    ],
)
def test_outputs(declared: tuple[ir.Dim, ...] | None, expected: tuple[ir.Dim, ...] | None) -> None:
    model = model_of(NODES, {"x": ("N", "T", 4)}, "y")
    model.graph.outputs = [ir.Value("y", 1, declared)]
    assert tidy(model).graph.outputs[0].dims == expected


def test_inputs() -> None:
    """The same sign for two sizes does not make them equal."""
    model = model_of(NODES, {"x": (-1, "?", "?"), "z": ("N", "", 3)}, "y")
    assert [v.dims for v in tidy(model).graph.inputs] == [(None,) * 3, ("N", None, 3)]


def test_tensors_between() -> None:
    """Unknown sizes are open there too, and what is declared elsewhere is not declared again."""
    model = model_of(NODES, {"x": ("N", "T", 4)}, "y", {"w": np.ones(3, np.float32)})
    model.graph.value_info = {name: ir.Value(name, 1, ("?", -1, 4)) for name in "xywh"}
    assert tidy(model).graph.value_info == {"h": ir.Value("h", 1, (None, None, 4))}
