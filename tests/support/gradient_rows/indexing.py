"""Gradient rows of picking and placing by index."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from support.gradients import Row, chain, node, normals, single

from edge_train.graph import ir

ROW, A, CUBE, GRID = normals(21, (5,), (4, 3), (2, 3, 4), (2, 2))


def at(*values: object) -> NDArray[np.int64]:
    return np.array(values, np.int64)


def _scatter(
    op: str,
    reduction: str,
    form: str,
    data: NDArray[np.float32],
    index: NDArray[np.int64],
    updates: NDArray[np.float32],
    **attrs: object,
) -> Row:
    return single(
        f"{op}:{reduction} {form}",
        {"x": data, "u": updates},
        "x i u",
        constants={"i": index},
        attrs={"reduction": reduction, **attrs},
    )


REDUCTIONS = ("add", "mul", "max", "min")
TWICE = at([0, 2, 1], [0, 1, 1])
NAMED = at([0, 1], [3, 2], [0, 1])

ROWS: list[Row] = [
    single("Gather", {"x": A}, constants={"i": at(2, 0, 2, -1)}),
    single("Gather:axis", {"x": CUBE}, constants={"i": at([3, 0], [3, 1])}, attrs={"axis": -1}),
    single("Gather:scalar", {"x": CUBE}, constants={"i": np.array(1)}, attrs={"axis": 1}),
    single("Gather:int32", {"x": A}, constants={"i": np.array([1, 1], np.int32)}),
    single("Gather:fed", {"x": A, "i": at([0, 3])}, sized=()),
    single("GatherElements", {"x": A}, constants={"i": at([0, 1, 2], [3, 1, 0])}),
    single(
        "GatherElements:axis",
        {"x": A},
        constants={"i": at([0, 0], [2, 0], [-1, 1], [1, 1])},
        attrs={"axis": -1},
    ),
    single("GatherND", {"x": CUBE}, constants={"i": at([0, 1], [1, 2], [0, 1])}),
    single("GatherND:element", {"x": CUBE}, constants={"i": at([[0, 1, -1]], [[1, 2, 3]])}),
    single(
        "GatherND:batch",
        {"x": CUBE},
        constants={"i": at([[1], [0]], [[2], [2]])},
        attrs={"batch_dims": 1},
    ),
    single("TopK", {"x": A}, constants={"k": at(2)}, makes="y i", outputs=("y",)),
    single(
        "TopK:smallest",
        {"x": A},
        constants={"k": at(2)},
        makes="y i",
        outputs=("y",),
        attrs={"axis": 0, "largest": 0, "sorted": 1},
    ),
    single("Compress", {"x": A}, constants={"c": np.array([True, False, True])}, attrs={"axis": 0}),
    single("Compress:flat", {"x": A}, constants={"c": np.arange(12) % 3 == 0}),
    single(
        "Compress:axis -1",
        {"x": A},
        constants={"c": np.array([False, True, True])},
        attrs={"axis": -1},
    ),
    single("ScatterElements", {"x": A, "u": GRID}, "x i u", constants={"i": at([0, 2], [1, 3])}),
    single(
        "ScatterElements:axis",
        {"x": A, "u": GRID},
        "x i u",
        constants={"i": at([0, 2], [1, -1])},
        attrs={"axis": 1},
    ),
    *(
        _scatter("ScatterElements", reduction, "twice", A, TWICE, normals(22, (2, 3))[0], axis=0)
        for reduction in REDUCTIONS
    ),
    single("ScatterND", {"x": A, "u": A[:2]}, "x i u", constants={"i": at([3], [1])}),
    *(
        _scatter("ScatterND", reduction, "twice", A, NAMED, normals(23, (3,))[0])
        for reduction in REDUCTIONS
    ),
    *(
        _scatter("ScatterND", reduction, "rows", A, at([2], [0], [2]), normals(24, (3, 3))[0])
        for reduction in REDUCTIONS
    ),
    single(
        "ScatterElements:mul zeros",
        {"x": ROW, "u": np.array([0, 2, 0, 0, 3], np.float32)},
        "x i u",
        constants={"i": at(0, 0, 1, 1, 2)},
        attrs={"reduction": "mul"},
    ),
    # ties share: x[0] = u[0] = u[1] is the largest, a third each
    single(
        "ScatterElements:max ties",
        {"x": np.array([2, 0], np.float32), "u": np.array([2, 2, 1], np.float32)},
        "x i u",
        constants={"i": at(0, 0, 1)},
        attrs={"reduction": "max"},
        expected=lambda x, r: {
            "x": r["y"] * [1 / 3, 0],
            "u": r["y"][[0, 0, 1]] * [1 / 3, 1 / 3, 1],
        },
    ),
    chain(
        "Gather:embedding twice",
        [
            ir.make_node("Gather", ["x", "i"], ["a"], "first"),
            ir.make_node("Gather", ["x", "j"], ["b"], "second"),
            ir.make_node("Add", ["a", "b"], ["y"], "sum"),
        ],
        {"x": A},
        constants={"i": at(0, 1, 1), "j": at(3, 0, 1)},
    ),
    single(
        "cm.ShrunkenGather",
        {"x": A},
        constants={"i": at(2, 0)},
        forward=(node("Gather", "x i", "y", ""),),
    ),
]
