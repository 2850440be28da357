"""Pooling gradients beyond their tables: the forward node they need, and the op chosen."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.lowering import check, model_of, node, run_lowered
from support.rows.pooling import average_pool_row, max_pool_row
from support.rows.tables import row_of

from edge_train.errors import UnsupportedOp
from edge_train.graph.lowering import lower


def test_indices_from_elsewhere_are_refused() -> None:
    row = row_of("MaxPoolGrad")
    feeds = {**row.feeds, "mask": np.zeros(row.feeds["dy"].shape, np.int64)}
    with pytest.raises(UnsupportedOp, match="'mask' is not the second output of a MaxPool"):
        run_lowered(replace(row, nodes=row.nodes[1:], feeds=feeds))


def test_a_gradient_without_its_average_pool_is_refused() -> None:
    row = row_of("AveragePoolGrad")
    with pytest.raises(UnsupportedOp, match="AveragePool it belongs to is not in the graph"):
        run_lowered(replace(row, nodes=row.nodes[1:]))


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("attrs", [{"dilations": [2, 2]}, {"strides": [4, 1]}])
def test_same_pads_that_onnxruntime_chooses_otherwise_are_refused(
    attrs: dict[str, list[int]], fused: bool
) -> None:
    row = row_of("AveragePoolGrad")
    attrs = {"kernel_shape": [2, 2], **attrs}
    nodes = [
        node(n.op_type, " ".join(n.inputs), n.outputs[0], "", auto_pad="SAME_UPPER", **attrs)
        for n in row.nodes
    ]
    with pytest.raises(UnsupportedOp, match="auto_pad SAME_UPPER with dilations or with strides"):
        lower(model_of(replace(row, nodes=tuple(nodes)), dynamic=False), fused=fused)


def test_two_pools_of_one_input_keep_apart() -> None:
    left = average_pool_row("left", (6, 6), kernel_shape=[2, 2], strides=[2, 2])
    right = average_pool_row("right", (6, 6), kernel_shape=[3, 3])
    renamed = [
        replace(n, inputs=tuple(new.get(i, i) for i in n.inputs), outputs=(out,), name=name)
        for n, new, out, name in (
            (right.nodes[0], {}, "z", "other"),
            (right.nodes[1], {"y_grad": "z_grad"}, "dz", "other_Grad/AveragePoolGrad_0"),
        )
    ]
    both = replace(
        left,
        nodes=(left.nodes[0], *renamed, left.nodes[1]),
        feeds={**left.feeds, "z_grad": right.feeds["y_grad"]},
        expected={**left.expected, "dz": right.expected["dx"]},
    )
    check(both, run_lowered(both))


@pytest.mark.parametrize(("strides", "op"), [([2, 2], "MaxUnpool"), ([1, 2], "ScatterElements")])
def test_scatter_only_where_windows_overlap(strides: list[int], op: str) -> None:
    row = max_pool_row("w", (6, 6), kernel_shape=[2, 2], strides=strides)
    ops = {n.op_type for n in lower(model_of(row, dynamic=True)).model.graph.nodes}
    assert op in ops
    assert len(ops & {"MaxUnpool", "ScatterElements"}) == 1


def test_pool_behind_a_rewritten_node() -> None:
    # the pool's input is the output of a node that lowering renames
    x = np.random.default_rng(1).standard_normal((2, 3, 4, 4)).astype(np.float32)
    pooled = max_pool_row("w", (4, 4), kernel_shape=[2, 2], strides=[2, 2])
    gelu = node("QuickGelu", "x0", "x")
    row = replace(pooled, nodes=(gelu, *pooled.nodes), feeds={"x0": x, "dy": pooled.feeds["dy"]})
    got = run_lowered(row, dynamic=True)["dx"]
    assert got.shape == x.shape
    np.testing.assert_allclose(got.sum((2, 3)), row.feeds["dy"].sum((2, 3)), rtol=1e-5)
