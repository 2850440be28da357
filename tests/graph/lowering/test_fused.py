"""The fused target: our own kernels against the same rows that the portable rules answer."""

from __future__ import annotations

import numpy as np
import pytest
from support.gradient_rows.tables import ROWS as GRADIENT_ROWS
from support.gradient_rows.tables import answers
from support.gradients import check_slopes, gradient_model, run_gradients
from support.lowering import Row, check, model_of, node, normals, nudged, run_lowered, session
from support.native_kernels import needs_library
from support.rows.tables import ROWS, row_of
from support.training import module_of, set_parameters
from support.zoo import DETERMINISTIC, ZOO

from edge_train.graph import ir
from edge_train.graph.lowering import lower
from edge_train.graph.lowering.registry import FUSED

needs_library()

#: names alone decide, so that collecting does not make every row
_OPS = {op_type for _, op_type in FUSED}
CANDIDATES = [name for name in ROWS if name.split(":")[0] in _OPS]


def _kernels(name: str, dynamic: bool = False) -> set[str]:
    nodes = lower(model_of(row_of(name), dynamic), fused=True).model.graph.nodes
    return {node.op_type for node in nodes if node.domain}


@pytest.mark.parametrize("dynamic", [False, True], ids=["sizes", "symbols"])
@pytest.mark.parametrize("name", CANDIDATES)
def test_row(name: str, dynamic: bool) -> None:
    row = row_of(name)
    check(row, run_lowered(row, dynamic, fused=True))


@pytest.mark.parametrize("name", CANDIDATES)
def test_row_can_fail(name: str) -> None:
    row = row_of(name)
    got = run_lowered(row, fused=True)
    with pytest.raises(AssertionError):
        check(nudged(row), got)


def test_every_fused_rule_is_used_by_a_row() -> None:
    used = {name.split(":")[0] for name in ROWS if _kernels(name)}
    assert not _OPS - used


def _wide(axes: int) -> Row:
    """Elements along ``axes`` axes."""
    dy, y = normals(axes, *[(*(1,) * (axes - 2), 3, 5)] * 2)
    return Row("wide", (node("ReluGrad", "dy y", "dx"),), {"dy": dy, "y": y}, {"dx": dy * (y > 0)})


def _far(step: int) -> Row:
    """A depthwise convolution of which one window fits."""
    x, w = normals(3, (1, 2, 3, 3), (2, 1, 3, 3))
    attrs = {"group": 2, "strides": [step, 1], "kernel_shape": [3, 3]}
    y = (x * w[None, :, 0]).sum((2, 3), dtype=np.float64)[:, :, None, None]
    return Row("far", (node("Conv", "x w", "y", "", **attrs),), {"x": x, "w": w}, {"y": y})


@pytest.mark.parametrize(
    ("row", "kernels"),
    [
        (_wide(8), {"ReluGrad"}),
        (_wide(9), set()),
        (_far(1 << 20), {"DepthwiseConv"}),
        (_far((1 << 20) + 1), set()),
    ],
    ids=["8 axes", "9 axes", "steps of 2^20", "longer steps"],
)
def test_what_no_kernel_takes_is_left_to_onnxruntime(row: Row, kernels: set[str]) -> None:
    lowered = lower(model_of(row, False), fused=True)
    assert {n.op_type for n in lowered.model.graph.nodes if n.domain} == kernels
    check(row, run_lowered(row, fused=True))


@pytest.mark.parametrize("name", DETERMINISTIC)
def test_fused_equals_portable_on_the_zoo(name: str) -> None:
    case = ZOO[name]
    results = {}
    for kernels in ("portable", "fused"):
        module = module_of(case, kernels=kernels)
        set_parameters(module, case.params(0))
        loss = module(**case.feed)
        results[kernels] = np.asarray(loss), module.arena.gradients.copy()
    (loss, gradients), (wanted, portable) = results["fused"], results["portable"]
    np.testing.assert_allclose(loss, wanted, rtol=1e-5)
    assert np.linalg.norm(gradients - portable) <= 1e-5 * np.linalg.norm(portable)


@pytest.mark.parametrize("dynamic", [False, True], ids=["sizes", "symbols"])
@pytest.mark.parametrize("name", [name for name in GRADIENT_ROWS if name.startswith("Scan")])
def test_kernels_in_the_body_of_a_loop(name: str, dynamic: bool) -> None:
    row, (weights, slopes) = GRADIENT_ROWS[name], answers(name)
    lowered = lower(gradient_model(row, weights, dynamic)[0], fused=True).model
    assert dict(lowered.opset_imports)[ir.NATIVE] == 1
    assert any(n.domain == ir.NATIVE for n in _in_bodies(lowered.graph))
    check_slopes(row, run_gradients(row, weights, dynamic, fused=True), slopes)


def _in_bodies(graph: ir.Graph) -> list[ir.Node]:
    bodies = [body for node in graph.nodes for body in ir.subgraphs(node)]
    return [node for body in bodies for node in (*body.nodes, *_in_bodies(body))]


@pytest.mark.parametrize("known", [True, False])
def test_a_scan_stacks_what_has_a_known_rank(known: bool) -> None:
    """onnxruntime does not learn it from a kernel; where we do not know it, standard ops run."""
    s, x = normals(5, (3,), (4, 3))
    inputs = [ir.Value(k, 1, v.shape) for k, v in (("s", s), ("x", x))]
    slices = [ir.Value(name, 1, (3,) if known else None) for name in ("h", "u")]
    ends = [ir.Value(name, 1, None) for name in ("q", "e")]
    nodes = [node("Mul", "h u", "p", ""), node("Gelu", "p", "q", ""), node("Neg", "q", "e", "")]
    body = ir.Graph("body", nodes, slices, ends)
    scan = ir.make_node("Scan", ["s", "x"], ["", "y"], "scan", body=body, num_scan_inputs=1)
    model = ir.Model(ir.Graph("g", [scan], inputs, [ir.Value("y", 1, None)]), 10, [("", 21)])
    results = []
    for fused in (False, True):
        lowered = lower(model, fused).model
        assert any(n.domain for n in _in_bodies(lowered.graph)) is (known and fused)
        results.append(session(lowered).run(None, {"s": s, "x": x})[0])
    assert np.ptp(results[0]) > 0.1
    np.testing.assert_allclose(*results, rtol=1e-5, atol=1e-7)
