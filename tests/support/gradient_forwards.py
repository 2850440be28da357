"""Expected gradients of rows whose op nothing else evaluates rightly in double: onnx.reference has
other sizes than onnxruntime for some pools, and is wrong for some transposed convolutions and LRN.

Slopes of onnxruntime's own op where it is linear around the point, else of the formula in NumPy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from support.lowering import Array, Arrays, slopes, stock

Forward = Callable[[Array], Array]
Expected = Callable[[dict[str, Array], dict[str, Array]], dict[str, Array]]


def of_stock(
    op_type: str,
    step: float = 1.0,
    reads: str = "",
    constants: Arrays | None = None,
    moved: Sequence[str] = (),
    **attrs: Any,
) -> Expected:
    """Slopes of the stock op, exact where the inputs may move by ``step`` without a kink.

    ``reads``: the node's inputs, "_" for an omitted one, where they are not all of the row's;
    ``constants``: those that the row does not feed; ``moved``: inputs, every float one if empty.
    """

    def expected(inputs: dict[str, Array], r: dict[str, Array]) -> dict[str, Array]:
        feeds = {
            name: value.astype(np.float32) if value.dtype.kind == "f" else value
            for name, value in {**inputs, **(constants or {})}.items()
        }
        run = stock(op_type, feeds, reads=reads, **attrs)

        def changed(name: str) -> Forward:
            return lambda value: run(**{name: value.astype(np.float32)})[0]

        floats = moved or [name for name, value in inputs.items() if value.dtype.kind == "f"]
        return {name: slopes(changed(name), feeds[name], r["y"], step) for name in floats}

    return expected


def of_formula(forward: Callable[[dict[str, Array]], Array], step: float = 1e-5) -> Expected:
    """Slopes of a NumPy formula of the inputs, in double."""

    def expected(inputs: dict[str, Array], r: dict[str, Array]) -> dict[str, Array]:
        def moved(name: str) -> Forward:
            return lambda value: forward({**inputs, name: value})

        floats = [name for name, value in inputs.items() if value.dtype.kind == "f"]
        return {name: slopes(moved(name), inputs[name], r["y"], step) for name in floats}

    return expected


def of_lp_pool(p: int, **attrs: Any) -> Expected:
    """(M |x|^p)^(1/p), M being the windows that stock LpPool adds up with p = 1."""

    def expected(inputs: dict[str, Array], r: dict[str, Array]) -> dict[str, Array]:
        x = inputs["x"]
        ones = np.eye(x.size, dtype=np.float32).reshape(-1, *x.shape)
        run = stock("LpPool", {"x": ones[0]}, p=1, **attrs)
        table = np.stack([run(x=one)[0].ravel() for one in ones], 1).astype(np.float64)

        def forward(every: dict[str, Array]) -> Array:
            sums = table @ (np.abs(every["x"]) ** p).ravel()
            return np.asarray(sums ** (1 / p)).reshape(r["y"].shape)

        return of_formula(forward)(inputs, r)

    return expected


def lrn(x: Array, size: int, alpha: float, beta: float = 0.75, bias: float = 1.0) -> Array:
    """Local response normalisation over the channels around each."""
    front, count = (size - 1) // 2, x.shape[1]
    around = [(x[:, max(0, c - front) : c + size - front] ** 2).sum(1) for c in range(count)]
    return np.asarray(x / (bias + alpha / size * np.stack(around, 1)) ** beta)
