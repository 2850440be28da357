"""MaxPool with its gradient by our own kernels: which pools become one, odd numbers, threads."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest
from support.lowering import Array, Row, model_of, node, normals
from support.native_kernels import needs_library

from edge_train import dtypes
from edge_train.graph import ir
from edge_train.graph.lowering import lower
from edge_train.session import make_session

needs_library()

_POOL: dict[str, Any] = {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1] * 4}


def _row(x: Array, *more: ir.Node, outputs: str = "y dx", **attrs: Any) -> Row:
    attrs = {**_POOL, **attrs}
    n, c, h, w = x.shape
    out = (n, c, (h - 1) // 2 + 1, (w - 1) // 2 + 1)
    nodes = (
        node("MaxPool", "x", "y mask", "", **attrs),
        node("MaxPoolGrad", "dy mask", "dx", "", **attrs),
        *more,
    )
    shapes = {"y": out, "dx": x.shape, "mask": out, "z": out}
    expected = {
        name: np.zeros(shapes[name], np.int64 if name == "mask" else np.float64)
        for name in outputs.split()
    }
    (dy,) = normals(5, out)
    return Row("pool", nodes, {"x": x, "dy": dy}, expected, {"flag": np.array(True)})


def _run(row: Row, fused: bool, threads: int = 1) -> tuple[list[Array], set[str]]:
    lowered = lower(model_of(row, dynamic=False), fused)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = threads, 3
    values = make_session(lowered.model, "row", options).run(list(lowered.results), row.feeds)
    return values, {n.op_type for n in lowered.model.graph.nodes if n.domain == ir.NATIVE}


def test_not_a_number_is_never_the_largest() -> None:
    """As in onnxruntime; a window of nothing else is the lowest number and has no gradient."""
    (x,) = normals(1, (1, 2, 9, 9))
    x[0, 0, 4, 3:6], x[0, 0, 0, 0], x[0, 1, 6, 6] = np.nan, np.inf, -np.inf
    row = _row(x)
    (y, dx), kinds = _run(row, fused=True)
    (wanted_y, wanted_dx), _ = _run(row, fused=False)
    assert kinds == {"MaxPool", "MaxPoolGrad"}
    np.testing.assert_array_equal(y, wanted_y)
    np.testing.assert_allclose(dx, wanted_dx, rtol=1e-6)


def test_windows_without_any_number() -> None:
    x = np.full((1, 1, 5, 5), np.nan, np.float32)
    (y, dx), _ = _run(_row(x), fused=True)
    assert (y == np.finfo(np.float32).min).all()
    assert np.isfinite(dx).all()


def test_any_number_of_threads_gives_the_same_bits() -> None:
    row = _row(*normals(2, (4, 9, 33, 31)))
    (one, _), (four, _) = (_run(row, fused=True, threads=count) for count in (1, 4))
    for got, wanted in zip(four, one, strict=True):
        np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("pool", ["MaxPool", "AveragePool"])
def test_the_relu_before_it_goes_into_the_gradient(pool: str) -> None:
    shape, rng = (2, 3, 7, 6), np.random.default_rng(3)
    taps = " mask" if pool == "MaxPool" else ""
    nodes = (
        node("Conv", "x w", "c", "", kernel_shape=[1, 1]),
        node("Relu", "c", "r", ""),
        node(pool, "r", f"y{taps}", "", **_POOL),
        node(f"{pool}Grad", f"y_grad{taps}", "dr", "", **_POOL),
        node("ReluGrad", "dr r", "dc"),
    )
    feeds = {
        "x": rng.standard_normal(shape).astype(np.float32),
        "w": rng.standard_normal((3, 3, 1, 1)).astype(np.float32),
        "y_grad": rng.standard_normal((2, 3, 4, 3)).astype(np.float32),
    }
    row = Row("pool", nodes, feeds, {"dc": np.zeros(shape), "y": np.zeros((2, 3, 4, 3))})
    ((got, _), kinds), ((wanted, _), _) = _run(row, fused=True), _run(row, fused=False)
    assert kinds - {"MaxPool"} == {"PointwiseConv", f"{pool}Grad"}
    # sums of shares, which cancel, are added in another order than those of onnxruntime
    np.testing.assert_allclose(got, wanted, rtol=1e-6, atol=0 if pool == "MaxPool" else 1e-7)


def _average(**attrs: Any) -> Row:
    attrs = {"kernel_shape": [2, 2], **attrs}
    nodes = (
        node("AveragePool", "x", "y", "", **attrs),
        node("AveragePoolGrad", "y_grad", "dx", "", **attrs),
    )
    x, dy = normals(6, (1, 2, 6, 6), (1, 2, 3, 3))
    return Row("pool", nodes, {"x": x, "y_grad": dy}, {"dx": np.zeros(x.shape)})


def test_an_average_whose_windows_meet_no_element_twice_stays() -> None:
    assert not _run(_average(strides=[2, 2]), fused=True)[1]


_BODY = ir.Graph("body", [node("Cast", "mask", "inner", "", to=dtypes.FLOAT)], [],
                 [ir.Value("inner", dtypes.FLOAT, None)])  # fmt: skip
_BRANCHES = {"then_branch": _BODY, "else_branch": _BODY}


@pytest.mark.parametrize(
    ("more", "outputs"),
    [
        ((), "y dx mask"),
        ((node("Cast", "mask", "other", "", to=dtypes.FLOAT),), "y dx"),
        ((node("If", "flag", "z", "", **_BRANCHES),), "y dx z"),
    ],
    ids=["an output", "read by another", "read in a body"],
)
def test_indices_that_others_read_stay(more: tuple[ir.Node, ...], outputs: str) -> None:
    row = _row(*normals(4, (1, 2, 6, 6)), *more, outputs=outputs)
    (got, kinds), (wanted, _) = _run(row, fused=True), _run(row, fused=False)
    assert not kinds
    np.testing.assert_array_equal(got[-1], wanted[-1])


@pytest.mark.parametrize("auto_pad", ["SAME_UPPER", "SAME_LOWER"])
@pytest.mark.parametrize(
    ("kernel", "strides", "dilations"),
    [([1, 2], [4, 2], [1, 1]), ([3, 3], [2, 2], [2, 2])],
    ids=["long strides", "dilated"],
)
def test_pads_that_onnxruntime_chooses_otherwise_stay_its_own(
    auto_pad: str, kernel: list[int], strides: list[int], dilations: list[int]
) -> None:
    (x,) = normals(9, (1, 2, 8, 11))
    attrs = {"kernel_shape": kernel, "strides": strides, "dilations": dilations}
    forward = node("MaxPool", "x", "y mask", "", auto_pad=auto_pad, **attrs)
    backward = node("MaxPoolGrad", "y mask", "dx", "", auto_pad=auto_pad, **attrs)
    row = Row("pool", (forward, backward), {"x": x}, {"y": np.zeros((1, 2, 1, 1)), "dx": x})
    (got, kinds), (wanted, _) = _run(row, fused=True), _run(row, fused=False)
    assert not kinds
    np.testing.assert_array_equal(got[0], wanted[0])


def test_a_pool_without_a_gradient_stays() -> None:
    x = np.zeros((1, 2, 6, 6), np.float32)
    nodes = (node("MaxPool", "x", "y", "", **_POOL),)
    row = Row("pool", nodes, {"x": x}, {"y": np.zeros((1, 2, 3, 3))})
    assert not _run(row, fused=True)[1]
