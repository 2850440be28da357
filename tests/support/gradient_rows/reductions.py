"""Gradient rows of reductions and running sums."""

from __future__ import annotations

from typing import Any

import numpy as np
from support.gradients import Array, Arrays, Row, normals, single

CUBE, LINE, POINT = normals(21, (2, 3, 4), (5,), ())
REDUCTIONS = (
    *("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd"),
    *("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceSumSquare"),
)


def fit(op: str, x: Array) -> Array:
    """Positive numbers for a logarithm; nothing near 0 where |x| has its kink."""
    if op == "ReduceLogSum":
        return np.asarray(np.abs(x) + np.float32(0.3))
    return np.asarray(x + np.sign(x) * np.float32(0.2)) if op == "ReduceL1" else x


def axes(*values: int) -> dict[str, Array]:
    return {"axes": np.array(values, np.int64)}


#: form -> (input, constants, attributes)
FORMS: dict[str, tuple[Array, dict[str, Array], dict[str, Any]]] = {
    "": (CUBE, axes(1), {}),
    ":all": (CUBE, {}, {}),
    ":all_dropped": (CUBE, {}, {"keepdims": 0}),
    ":empty_axes": (CUBE, axes(), {"keepdims": 0}),
    ":dropped": (CUBE, axes(1), {"keepdims": 0}),
    ":negative": (CUBE, axes(-1, 0), {"keepdims": 0}),
    ":unsorted": (CUBE, axes(2, 1), {"keepdims": 0}),
    ":line": (LINE, axes(0), {"keepdims": 0}),
    ":point": (POINT, {}, {}),
    ":old": (CUBE, {}, {"axes": (1,), "keepdims": 0}),
}


def form_row(op: str, form: str) -> Row:
    x, constants, attrs = FORMS[form]
    opset = 12 if "axes" in attrs else 21
    return single(op + form, {"x": fit(op, x)}, attrs=attrs, constants=constants, opset=opset)


def run_time_axes(op: str, keepdims: int) -> Row:
    inputs = {"x": fit(op, CUBE), **axes(0, -1)}
    # with the axes unknown, so is the rank of the result unless it keeps every axis
    return single(f"{op}:run_time_{keepdims}", inputs, attrs={"keepdims": keepdims})


def tied(op: str) -> Row:
    """Three share the extreme of the first line, one has that of the second."""
    x = np.array([[2, 1, 2, 2], [0, 1, 3, 2]], np.float32) * (1 if op == "ReduceMax" else -1)
    shares = np.array([[1 / 3, 0, 1 / 3, 1 / 3], [0, 0, 1, 0]])

    def expected(inputs: dict[str, Array], r: dict[str, Array]) -> Arrays:
        return {"x": r["y"] * shares}

    return single(f"{op}:ties", {"x": x}, constants=axes(1), expected=expected)


def at_zero(inputs: dict[str, Array], r: dict[str, Array]) -> Arrays:
    slope = np.array([[0, 0], [0.6, -0.8]])
    return {"x": r["y"] * slope}


ZEROS = np.array([[0, 0, 2], [0, 3, 2], [1, 2, 3]], np.float32)

ROWS: list[Row] = [
    *(form_row(op, form) for op in REDUCTIONS for form in FORMS),
    # the other ops reduce a single number to |x|, x^2 or log(x), but not in older onnxruntimes
    *(
        single(f"{op}:nothing", {"x": CUBE}, constants=axes(), attrs={"noop_with_empty_axes": 1})
        for op in (*REDUCTIONS[:5], "ReduceLogSumExp")
    ),
    *(run_time_axes(op, 1) for op in REDUCTIONS),
    *(tied(op) for op in ("ReduceMax", "ReduceMin")),
    single("ReduceProd:zeros", {"x": ZEROS}, constants=axes(1)),
    single("ReduceProd:zeros_dropped", {"x": ZEROS}, constants=axes(0), attrs={"keepdims": 0}),
    single(
        "ReduceL2:zero",
        {"x": np.array([[0, 0], [3, -4]], np.float32)},
        constants=axes(1),
        expected=at_zero,
    ),
    single("ReduceLogSumExp:far", {"x": np.float32(40) * CUBE}, constants=axes(2)),
    single("CumSum", {"x": CUBE}, constants={"axis": np.array(1, np.int64)}),
    *(
        single(
            f"CumSum:{exclusive}{reverse}",
            {"x": CUBE},
            constants={"axis": np.array(-1, np.int32)},
            attrs={"exclusive": exclusive, "reverse": reverse},
        )
        for exclusive in (0, 1)
        for reverse in (0, 1)
    ),
    single("CumSum:line", {"x": LINE}, constants={"axis": np.array([0], np.int64)}),
]
