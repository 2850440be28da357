"""x sigmoid(x) and its gradient in nodes of their own: where kernels take over, and where not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.lowering import Array, Row, model_of, node, normals, session
from support.native_kernels import needs_library

from edge_train.graph import ir
from edge_train.graph.lowering import lower

needs_library()

SHAPE = (4, 5)
X, DY = normals(5, SHAPE, SHAPE)
FORWARD = (node("Sigmoid", "x", "s", ""), node("Mul", "x s", "y", ""))
BOTH = ["QuickGelu", "QuickGeluGrad"]


def _silu(outer: str = "dy s", inner: str = "dy x", total: str = "outer slope") -> list[ir.Node]:
    """Forth and back, each node with a name of its own."""
    backward = (
        node("Mul", outer, "outer", ""),
        node("Mul", inner, "inner", ""),
        node("SigmoidGrad", "inner s", "slope"),
        node("Add", total, "dx", ""),
    )
    return [replace(n, name=n.outputs[0]) for n in (*FORWARD, *backward)]


def _kernels(nodes: list[ir.Node], outputs: str = "y dx", dy: Array = DY) -> list[str]:
    """The kernels of the fused graph, which gives what the one in standard ops does."""
    zeros = {name: np.zeros(SHAPE) for name in outputs.split()}
    model = model_of(Row("silu", tuple(nodes), {"x": 3 * X, "dy": dy}, zeros), dynamic=False)
    made = []
    for fused in (True, False):
        lowered = lower(model, fused)
        fed = {value.name for value in lowered.model.graph.inputs}
        feeds = {name: v for name, v in {"x": 3 * X, "dy": dy}.items() if name in fed}
        made.append(session(lowered.model).run(list(lowered.results), feeds))
        if fused:
            kernels = [n.op_type for n in lowered.model.graph.nodes if n.domain == ir.NATIVE]
    for got, wanted in zip(*made, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-6, atol=1e-5)
    return kernels


@pytest.mark.parametrize(
    ("outer", "inner", "total"),
    [
        ("dy s", "dy x", "outer slope"),
        ("s dy", "x dy", "slope outer"),
        ("x s", "x x", "outer slope"),
    ],
    ids=["as written", "the other way round", "dy is x"],
)
def test_both_halves(outer: str, inner: str, total: str) -> None:
    assert _kernels(_silu(outer, inner, total)) == BOTH


def test_a_sigmoid_that_is_an_output_is_made() -> None:
    assert _kernels(_silu(), "y dx s") == BOTH[1:]


def test_a_half_that_is_an_output_is_made() -> None:
    assert _kernels(_silu(), "y dx outer") == BOTH
    assert _kernels(_silu(), "y dx inner") == BOTH


@pytest.mark.parametrize("reader", ["Identity", "Neg"])
def test_a_slope_that_another_reads_stays(reader: str) -> None:
    read = replace(node(reader, "slope", "z", ""), name="reader")
    assert _kernels([*_silu(), read], "y dx z") == ["SigmoidGrad"]
    assert _kernels(_silu(), "y dx slope") == ["SigmoidGrad"]


@pytest.mark.parametrize(
    ("outer", "inner", "total"),
    [
        ("dy s", "y x", "outer slope"),
        ("y s", "dy x", "outer slope"),
        ("dy x", "dy x", "outer slope"),
        ("dy s", "dy y", "outer slope"),
        ("dy s", "dy x", "outer outer"),
        ("dy s", "dy x", "slope slope"),
    ],
)
def test_products_of_something_else_stay(outer: str, inner: str, total: str) -> None:
    kernels = _kernels(_silu(outer, inner, total))
    assert "QuickGeluGrad" not in kernels


def test_a_gradient_that_is_broadcast_stays() -> None:
    assert _kernels(_silu(), dy=DY[:1]) == ["SigmoidGrad"]
