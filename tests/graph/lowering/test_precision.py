"""Half precision and double beyond the tables: ordinary nodes, types that meet, state, names."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.lowering import Row, check, in_kind, model_of, node, normals, run_lowered, session
from support.rows.tables import row_of

from edge_train import dtypes
from edge_train.graph import ir
from edge_train.graph.lowering import lower

X, W = normals(131, (2, 3, 5, 5), (3, 3, 2, 2))
INDEX = np.array([[0, 2, 0]], np.int64)


def plain(op: str, feeds: dict[str, Any], expected: Any, **attrs: Any) -> Row:
    nodes = (node(op, " ".join(feeds), "y", "", **attrs),)
    return Row(op, nodes, feeds, {"y": np.asarray(expected, np.float64)}, sized=("w",))


def reference_of(op: str, feeds: dict[str, Any], **attrs: Any) -> Row:
    """An ordinary node with what it gives in float32."""
    row = plain(op, feeds, np.zeros(()), **attrs)
    model = model_of(row, dynamic=True)
    model.graph.outputs[:] = [ir.Value("y", dtypes.FLOAT, None)]
    return plain(op, feeds, session(model).run(None, feeds)[0], **attrs)


LACKING_DOUBLE = [
    ("Conv", {"x": X, "w": W}, {"strides": [2, 1]}),
    ("ConvTranspose", {"x": X, "w": W}, {}),
    ("AveragePool", {"x": X}, {"kernel_shape": [2, 2]}),
    ("GlobalAveragePool", {"x": X}, {}),
    ("Erf", {"x": X}, {}),
    ("Gelu", {"x": X}, {}),
]


@pytest.mark.parametrize(("op", "feeds", "attrs"), LACKING_DOUBLE, ids=lambda v: str(v)[:17])
def test_ordinary_nodes_that_onnxruntime_lacks_in_double(
    op: str, feeds: dict[str, Any], attrs: dict[str, Any]
) -> None:
    row = in_kind(reference_of(op, feeds, **attrs), np.float64)
    got = run_lowered(row, dynamic=True)
    assert got["y"].dtype == np.float64
    check(row, got)


@pytest.mark.parametrize("kind", [np.float16, np.float64])
def test_ordinary_scatter_adds(kind: type) -> None:
    feeds = {"x": X[0, 0, :3, :3].copy(), "i": INDEX, "u": X[0, 1, :1, :3].copy()}
    row = in_kind(reference_of("ScatterElements", feeds, axis=0, reduction="add"), kind)
    got = run_lowered(row, dynamic=True)
    assert got["y"].dtype == kind
    check(replace(row, tolerance=2e-3), got)


def test_nodes_without_such_tensors_are_left_alone() -> None:
    row = reference_of("Conv", {"x": X, "w": W})
    assert [n.op_type for n in lower(model_of(row, dynamic=True)).model.graph.nodes] == ["Conv"]


@pytest.mark.parametrize("name", ["LayerNormalizationGrad", "SimplifiedLayerNormalizationGrad"])
def test_statistics_stay_float32_beside_double(name: str) -> None:
    """The forward op gives mean and deviation in float32 whatever its input is."""
    row = in_kind(row_of(name), np.float64)
    statistics = {k: row.feeds[k].astype(np.float32) for k in ("mean", "inv_std") if k in row.feeds}
    mixed = replace(row, feeds={**row.feeds, **statistics})
    check(mixed, run_lowered(mixed, dynamic=True))


@pytest.mark.parametrize("name", ["SoftmaxCrossEntropyLossGrad", "SparseSoftmaxCrossEntropyGrad"])
@pytest.mark.parametrize("kind", [np.float16, np.float64])
def test_the_seed_of_a_loss_is_float32(name: str, kind: type) -> None:
    row = in_kind(row_of(name), kind)
    mixed = replace(row, feeds={**row.feeds, "dy": row.feeds["dy"].astype(np.float32)})
    got = run_lowered(mixed, dynamic=True)
    assert got["dlogits"].dtype == kind
    check(replace(mixed, tolerance=2e-3), got)


def test_running_statistics_in_half_precision_keep_their_type_and_name() -> None:
    row = in_kind(row_of("BatchNormInternal"), np.float16)
    lowered = lower(model_of(replace(row, expected={"y": row.expected["y"]}), dynamic=True))
    assert set(lowered.updates) == {"mean", "var"}
    names = [lowered.updates["mean"], lowered.updates["var"]]
    for moved, key in zip(
        session(lowered.model).run(names, dict(row.feeds)), ("mean", "var"), strict=True
    ):
        assert moved.dtype == np.float16
        np.testing.assert_allclose(moved, row.expected[f"running_{key}"], rtol=5e-3, atol=5e-3)


@pytest.mark.parametrize("name", ["AveragePoolGrad", "MaxPoolGrad"])
@pytest.mark.parametrize("kind", [np.float16, np.float64])
def test_pools_find_their_forward_node(name: str, kind: type) -> None:
    row = in_kind(row_of(name), kind)
    check(replace(row, tolerance=2e-3), run_lowered(row))


def test_masks_keep_their_type_between_nodes() -> None:
    forward, backward = row_of("FakeQuant"), row_of("FakeQuantGrad")
    (dy,) = normals(132, forward.feeds["x"].shape)
    mask = forward.expected["mask"]
    row = replace(
        forward,
        nodes=(*forward.nodes, replace(backward.nodes[0], inputs=("dy", "mask"))),
        feeds={**forward.feeds, "dy": dy},
        expected={"dx": np.where(mask, dy, 0).astype(np.float64)},
    )
    for kind in (np.float32, np.float16):
        got = run_lowered(in_kind(row, kind), dynamic=True)
        check(replace(row, tolerance=2e-3), got)
