"""The fused target: our own kernels against the same rows that the portable rules answer."""

from __future__ import annotations

import numpy as np
import pytest
from support.lowering import Row, check, model_of, node, normals, nudged, run_lowered
from support.native_kernels import needs_library
from support.rows.tables import ROWS, row_of
from support.training import module_of, set_parameters
from support.zoo import DETERMINISTIC, ZOO

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
