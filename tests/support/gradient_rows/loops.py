"""Gradient rows of loops."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from support.gradients import Row, normals, single
from support.lowering import node as any_node

from edge_train import dtypes
from edge_train.graph import ir

STEPS, SIZE = 4, 3


def node(op_type: str, reads: str, makes: str) -> ir.Node:
    return any_node(op_type, reads, makes, "")


def _value(name: str) -> ir.Value:
    return ir.Value(name, dtypes.FLOAT, (SIZE,))


def body(*nodes: ir.Node, reads: str, makes: str) -> ir.Graph:
    nodes = tuple(replace(n, name=f"{n.name}_{index}") for index, n in enumerate(nodes))
    inputs, outputs = ([_value(name) for name in names.split()] for names in (reads, makes))
    return ir.Graph("body", list(nodes), inputs, outputs)


#: h' = tanh(h x); gives h x as well
DECAY = body(
    node("Mul", "h u", "p"), node("Tanh", "p", "q"), node("Identity", "p", "e"),
    reads="h u", makes="q e",
)  # fmt: skip
#: two states that mix, one of them read twice, the other also given as it is
PAIR = body(
    node("Mul", "a u", "au"),
    node("Add", "au b", "c"),
    node("Sigmoid", "a", "d"),
    node("Mul", "d w", "f"),
    node("Identity", "c", "g"),
    reads="a b u w",
    makes="c f g",
)

#: nodes in a body need no names
UNNAMED = replace(PAIR, nodes=[replace(n, name="") for n in PAIR.nodes])
#: an op of three nodes that our own kernels do in one, and its output the state
CURVES = body(
    node("Mul", "h u", "p"), node("Gelu", "p", "g"), any_node("Softmax", "g", "q", "", axis=0),
    node("LeakyRelu", "q", "r"), node("Identity", "r", "e"),
    reads="h u", makes="r e",
)  # fmt: skip


def scan(name: str, graph: ir.Graph, inputs: dict[str, Any], makes: str, **attrs: Any) -> Row:
    sequences = sum(np.ndim(value) == 2 for value in inputs.values())
    given = {"body": graph, "num_scan_inputs": sequences, **attrs}
    return single(name, inputs, makes=makes, attrs=given, outputs=tuple(makes.split()))


def _states(*names: str) -> dict[str, Any]:
    return dict(zip(names, normals(1, *[(SIZE,)] * len(names)), strict=True))


def _sequences(*names: str) -> dict[str, Any]:
    return dict(zip(names, normals(2, *[(STEPS, SIZE)] * len(names)), strict=True))


def _twice(first: tuple[str, str], second: tuple[str, str]) -> tuple[ir.Node, ...]:
    """A Scan of what another one gives; both have outputs that nobody reads."""
    made = (
        ir.make_node("Scan", reads, makes, name, body=DECAY, num_scan_inputs=1)
        for reads, makes, name in ((("s", "x"), first, "a"), (("s", first[1]), second, "b"))
    )
    return tuple(made)


BACKWARDS = {"scan_input_directions": [1, 1], "scan_output_directions": [1]}

ROWS = [
    scan("Scan", DECAY, _states("s") | _sequences("x"), "y ys"),
    scan("Scan:two", PAIR, _states("s", "t") | _sequences("x", "w"), "y z ys"),
    scan("Scan:backwards", PAIR, _states("s", "t") | _sequences("x", "w"), "y z ys", **BACKWARDS),
    scan("Scan:unnamed", UNNAMED, _states("s", "t") | _sequences("x", "w"), "y z ys"),
    scan("Scan:curves", CURVES, _states("s") | _sequences("x"), "y ys"),
    Row(
        "Scan:omitted",
        _twice(("", "ys"), ("", "zs")),
        _states("s") | _sequences("x"),
        outputs=("zs",),
        forward=_twice(("y", "ys"), ("z", "zs")),
    ),
]
