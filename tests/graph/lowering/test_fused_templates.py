"""Gradients in standard ops that become one kernel: which do, with what numbers, and which stay."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from support.gradient_rows.tables import ROWS
from support.gradients import (
    Row,
    check_slopes,
    expected_slopes,
    gradient_model,
    nudged,
    single,
    weights_of,
)
from support.lowering import Array, node, normals, session
from support.native_kernels import needs_library

from edge_train import dtypes
from edge_train.graph import ir
from edge_train.graph.lowering import lower

needs_library()

_KERNELS = {
    "HardSwish": "HardSwishGrad",
    "InstanceNormalization": "GroupNormalizationGrad",
    "GroupNormalization": "GroupNormalizationGrad",
}
NAMES = [name for name in ROWS if name.partition(":")[0] in _KERNELS]
X, SCALE, BIAS = normals(11, (3, 6, 5, 7), (6,), (6,))
INSTANCE = single("InstanceNormalization:wide", {"x": X, "scale": SCALE, "bias": BIAS})
GROUPS = single(
    "GroupNormalization:wide", {"x": X, "scale": SCALE, "bias": BIAS}, attrs={"num_groups": 3}
)


def run(
    row: Row,
    weights: dict[str, Array],
    fused: bool,
    dynamic: bool = False,
    change: Callable[[ir.Model], ir.Model] = lambda model: model,
) -> tuple[dict[str, Array], list[ir.Node]]:
    """The gradients, and the kernels that made them; ``change``: of the training graph."""
    model, table = gradient_model(row, weights, dynamic)
    lowered = lower(change(model), fused)
    nodes = lowered.model.graph.nodes
    fed = {value.name for value in lowered.model.graph.inputs}
    feeds = {name: value for name, value in row.inputs.items() if name in fed}
    made = session(lowered.model).run(list(table.values()), feeds)
    kernels = [n for n in nodes if n.domain == ir.NATIVE]
    return dict(zip(table, made, strict=True)), kernels


def agree(row: Row, change: Callable[[ir.Model], ir.Model] = lambda model: model) -> list[ir.Node]:
    """Asserts that both targets give the same gradients; returns the kernels of the fused one."""
    weights = weights_of(row)
    got, kernels = run(row, weights, fused=True, change=change)
    wanted, _ = run(row, weights, fused=False, change=change)
    for name, value in wanted.items():
        scale = max(float(np.abs(value).max()), 1e-3)
        np.testing.assert_allclose(got[name], value, rtol=0, atol=1e-5 * scale, err_msg=name)
    return kernels


@pytest.mark.parametrize("dynamic", [False, True], ids=["sizes", "symbols"])
@pytest.mark.parametrize("name", NAMES)
def test_row(name: str, dynamic: bool) -> None:
    row = ROWS[name]
    weights = weights_of(row)
    got, kernels = run(row, weights, True, dynamic and row.symbols)
    assert [kernel.op_type for kernel in kernels] == [_KERNELS[name.partition(":")[0]]]
    check_slopes(row, got, expected_slopes(row, weights))


@pytest.mark.parametrize("name", NAMES)
def test_row_can_fail(name: str) -> None:
    row = ROWS[name]
    weights = weights_of(row)
    got, _ = run(row, weights, fused=True)
    with pytest.raises(AssertionError):
        check_slopes(row, got, nudged(row, expected_slopes(row, weights)))


@pytest.mark.parametrize("row", [INSTANCE, GROUPS], ids=str)
@pytest.mark.parametrize(
    ("wanted", "made"),
    [
        (("x",), [True, False, False]),
        (("scale",), [False, True, False]),
        (("x", "bias"), [True, False, True]),
        (("x", "scale", "bias"), [True, True, True]),
    ],
    ids=["x", "scale", "x and bias", "all"],
)
def test_the_gradients_that_are_there(row: Row, wanted: tuple[str, ...], made: list[bool]) -> None:
    (kernel,) = agree(replace(row, wanted=wanted))
    assert [bool(kernel.output(i)) for i in range(3)] == made


def test_the_gradient_of_the_bias_alone_is_a_sum() -> None:
    assert not agree(replace(INSTANCE, wanted=("bias",)))


@pytest.mark.parametrize("op_type", ["Sigmoid", "cm.QuickGelu"])
def test_silu(op_type: str) -> None:
    """x sigmoid(x), as torch writes it and as a node of its own: kernels forth and back."""
    nodes = (node("Sigmoid", "x", "s", ""), node("Mul", "x s", "y", ""))
    row = Row("silu", nodes, {"x": X * 3})
    if op_type != "Sigmoid":
        row = single("cm.QuickGelu:silu", {"x": X * 3}, attrs={"alpha": 1.0})
    assert [kernel.op_type for kernel in agree(row)] == ["QuickGelu", "QuickGeluGrad"]


def _edited(op_type: str, edit: Callable[[ir.Node], ir.Node]) -> Callable[[ir.Model], ir.Model]:
    """The model with every gradient node of an op replaced."""

    def change(model: ir.Model) -> ir.Model:
        nodes = [
            edit(n) if n.op_type == op_type and "_Grad/" in n.name else n for n in model.graph.nodes
        ]
        assert nodes != model.graph.nodes
        return replace(model, graph=replace(model.graph, nodes=nodes))

    return change


@pytest.mark.parametrize("row", [INSTANCE, GROUPS], ids=str)
@pytest.mark.parametrize(
    ("op_type", "edit"),
    [
        ("Sqrt", lambda n: replace(n, op_type="Exp")),
        ("Add", lambda n: replace(n, inputs=(n.inputs[0], n.inputs[0]))),
        ("ReduceMean", lambda n: replace(n, op_type="ReduceSum")),
    ],
    ids=["another function", "another epsilon", "sums"],
)
def test_nodes_that_say_something_else_stay(
    row: Row, op_type: str, edit: Callable[[ir.Node], ir.Node]
) -> None:
    assert not agree(row, _edited(op_type, edit))


def test_other_bounds_of_a_hard_swish_stay() -> None:
    row = single("HardSwish:all", {"x": X * 3})
    attribute = {"alpha": ir.Attribute.of("alpha", 0.2)}
    edit = _edited("HardSigmoid", lambda n: replace(n, attributes={**n.attributes, **attribute}))
    assert agree(row)
    assert not agree(row, edit)


@pytest.mark.parametrize(
    ("row", "op_type", "edit"),
    [
        (INSTANCE, "InstanceNormalization", lambda n: replace(n, inputs=n.inputs[:1])),
        (GROUPS, "GroupNormalization", lambda n: replace(n, attributes={})),
        (INSTANCE, "Mul", lambda n: replace(n, outputs=())),
    ],
    ids=["no scale", "no groups", "no outputs"],
)
def test_malformed_nodes_are_left_to_onnxruntime(
    row: Row, op_type: str, edit: Callable[[ir.Node], ir.Node]
) -> None:
    model, _ = gradient_model(row, weights_of(row), False)
    nodes = [edit(n) if n.op_type == op_type else n for n in model.graph.nodes]
    lowered = lower(replace(model, graph=replace(model.graph, nodes=nodes)), fused=True)
    assert not [n for n in lowered.model.graph.nodes if n.domain == ir.NATIVE]


def test_what_another_node_reads_is_still_made() -> None:
    def change(model: ir.Model) -> ir.Model:
        (inner,) = (n for n in model.graph.nodes if n.op_type == "Reciprocal")
        read = ir.make_node("Identity", inner.outputs, ["inv_std"], "reader")
        ends = [*model.graph.outputs, ir.Value("inv_std", dtypes.FLOAT, (3, 6, 1, 1))]
        graph = replace(model.graph, nodes=[*model.graph.nodes, read], outputs=ends)
        return replace(model, graph=graph)

    assert [kernel.op_type for kernel in agree(INSTANCE, change)] == ["GroupNormalizationGrad"]


def test_double_numbers_stay() -> None:
    model, _ = gradient_model(INSTANCE, weights_of(INSTANCE), False, dtypes.DOUBLE)
    nodes = lower(model, fused=True).model.graph.nodes
    assert not [n for n in nodes if n.domain == ir.NATIVE]


def test_each_of_several_has_its_own_kernel() -> None:
    """Two in a row, the first without a name, sharing their scale."""
    nodes = (
        replace(node("InstanceNormalization", "x scale bias", "a", ""), name=""),
        node("HardSwish", "a", "h", ""),
        node("InstanceNormalization", "h scale bias", "y", ""),
    )
    row = Row("two norms", nodes, INSTANCE.inputs)
    kernels = [kernel.op_type for kernel in agree(row)]
    assert sorted(kernels) == ["GroupNormalizationGrad"] * 2 + ["HardSwishGrad"]


@pytest.mark.parametrize("used", ["a", "b"])
def test_of_two_alike_the_one_without_a_gradient_has_no_kernel(used: str) -> None:
    """Both read x, but no gradient passes through ArgMax: there is one to be made, once."""
    other = "b" if used == "a" else "a"
    nodes = (
        replace(node("HardSwish", "x", "a", ""), name="first"),
        replace(node("HardSwish", "x", "b", ""), name="second"),
        node("ArgMax", other, "places", ""),
        node("Cast", "places", "numbers", "", to=dtypes.FLOAT),
        node("ReduceMean", "numbers", "mean", ""),
        node("Add", f"{used} mean", "y", ""),
    )
    kernels = agree(Row("two alike", nodes, {"x": X * 3}))
    assert [kernel.op_type for kernel in kernels] == ["HardSwishGrad"]
