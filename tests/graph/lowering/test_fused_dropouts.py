"""Dropout in fused graphs: a seed where its gradient alone reads the mask, else onnxruntime's."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.lowering import Array, Row, model_of, node, normals, session
from support.masks import drawn, kept
from support.native_kernels import needs_library

import edge_train
from edge_train import dtypes
from edge_train.graph import ir
from edge_train.graph.lowering import lower
from edge_train.graph.lowering.driver import Lowered

needs_library()

SHAPE = (40, 50)
RATIO = 0.25
SCALE = np.float32(1) / (np.float32(1) - np.float32(RATIO))
OPTIONS = {"ratio": np.array(RATIO, np.float32), "training": np.array(True)}
FORWARD = node("Dropout", "x ratio training", "y mask", "")
BACKWARD = node("DropoutGrad", "dy mask ratio training", "dx")


def lowered_of(
    nodes: tuple[ir.Node, ...],
    outputs: str = "y dx",
    constants: dict[str, Array] | None = None,
    **fed: Array,
) -> tuple[Lowered, dict[str, Array]]:
    """The fused graph over x and dy, and what it is fed: ``fed`` and normal numbers."""
    x, dy = normals(7, SHAPE, SHAPE)
    feeds = {"x": x, "dy": dy, **fed}
    zeros = {name: np.zeros(SHAPE, bool if name == "mask" else float) for name in outputs.split()}
    known = OPTIONS if constants is None else constants
    row = Row("dropout", nodes, feeds, zeros, known, sized=("ratio", "training"))
    return lower(model_of(row, dynamic=True), fused=True), feeds


def run(lowered: Lowered, feeds: dict[str, Array], times: int = 1) -> list[dict[str, Array]]:
    running = session(lowered.model)
    names = [value.name for value in running.get_inputs()]
    fed = {name: feeds[name] for name in names}
    made = [running.run(list(lowered.results), fed) for _ in range(times)]
    return [dict(zip(lowered.results, results, strict=True)) for results in made]


def ops(lowered: Lowered) -> list[str]:
    """The ops that have to do with dropping, in order."""
    names = [n.op_type for n in lowered.model.graph.nodes]
    return [name for name in names if "Drop" in name]


OURS = ["DrawnDropout", "SeededDropout"]


def test_the_gradient_goes_where_values_went() -> None:
    lowered, feeds = lowered_of((FORWARD, BACKWARD))
    assert ops(lowered) == OURS
    edge_train.set_seed(19)
    for step, got in enumerate(run(lowered, feeds, times=3)):
        stays = kept(drawn(19, step), feeds["x"].size, RATIO).reshape(SHAPE)
        np.testing.assert_array_equal(got["y"], np.where(stays, feeds["x"] * SCALE, 0))
        np.testing.assert_array_equal(got["dx"], np.where(stays, feeds["dy"] * SCALE, 0))
        np.testing.assert_array_equal(got["dx"] != 0, got["y"] != 0)
        assert 0.7 < stays.mean() < 0.8


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("ratio", [0.0, 0.5])
def test_options_that_are_fed(ratio: float, training: bool) -> None:
    fed = {"ratio": np.array(ratio, np.float32), "training": np.array(training)}
    lowered, feeds = lowered_of((FORWARD, BACKWARD), constants={}, **fed)
    assert ops(lowered) == OURS
    (got,) = run(lowered, feeds)
    if training and ratio:
        np.testing.assert_array_equal(got["dx"], np.where(got["y"] != 0, feeds["dy"] * 2, 0))
        assert 0.45 < np.mean(got["y"] != 0) < 0.55
    else:
        np.testing.assert_array_equal(got["y"], feeds["x"])
        np.testing.assert_array_equal(got["dx"], feeds["dy"])


def test_a_ratio_that_is_left_out_is_a_half() -> None:
    nodes = (replace(FORWARD, inputs=("x", "", "training")), node("DropoutGrad", "dy mask", "dx"))
    lowered, feeds = lowered_of(nodes)
    assert ops(lowered) == OURS
    (got,) = run(lowered, feeds)
    np.testing.assert_array_equal(got["dx"], np.where(got["y"] != 0, feeds["dy"] * 2, 0))
    assert 0.45 < np.mean(got["y"] != 0) < 0.55


def test_each_node_has_masks_of_its_own() -> None:
    """Though both read the same: onnxruntime makes one node of equal ones."""
    other = replace(FORWARD, name="other", outputs=("z", "mask2"))
    lowered, feeds = lowered_of((FORWARD, other), "y z")
    edge_train.set_seed(3)
    once, twice = run(lowered, feeds, times=2)
    masks = [value != 0 for got in (once, twice) for value in got.values()]
    assert all(np.any(masks[a] != masks[b]) for a in range(4) for b in range(a))
    edge_train.set_seed(3)
    (again,) = run(lowered, feeds)
    np.testing.assert_array_equal(again["z"], once["z"])
    edge_train.set_seed(4)
    assert np.any(run(lowered, feeds)[0]["z"] != once["z"])


def test_a_seed_in_the_model_starts_the_node_s_own_draws() -> None:
    """As in onnxruntime: the next run has the next mask, and a new session starts over."""
    seed = {"seed": ir.Attribute.of("seed", 11)}
    lowered, feeds = lowered_of((replace(FORWARD, attributes=seed), BACKWARD))
    for first in (1, 2):
        edge_train.set_seed(first)
        for step, got in enumerate(run(lowered, feeds, times=2)):
            stays = kept(drawn(11, step), feeds["x"].size, RATIO).reshape(SHAPE)
            np.testing.assert_array_equal(got["y"] != 0, stays)


def test_nothing_at_all() -> None:
    lowered, feeds = lowered_of((FORWARD, BACKWARD))
    empty = np.zeros((0, SHAPE[1]), np.float32)
    (got,) = run(lowered, {**feeds, "x": empty, "dy": empty})
    assert got["y"].shape == got["dx"].shape == empty.shape


def test_a_mask_that_nobody_reads() -> None:
    lowered, feeds = lowered_of((node("Dropout", "x ratio training", "y", ""),), "y")
    assert ops(lowered) == OURS[:1]
    assert 0.7 < np.mean(run(lowered, feeds)[0]["y"] != 0) < 0.8


BODY = ir.Graph("then", [node("Cast", "mask", "inner", "", to=dtypes.FLOAT)], [],
                [ir.Value("inner", dtypes.FLOAT, None)])  # fmt: skip
ELSE = ir.Graph("else", [node("Identity", "x", "same", "")], [],
                [ir.Value("same", dtypes.FLOAT, None)])  # fmt: skip


@pytest.mark.parametrize(
    ("nodes", "outputs"),
    [
        ((FORWARD, BACKWARD), "y dx mask"),
        ((FORWARD, BACKWARD, node("Cast", "mask", "z", "", to=dtypes.FLOAT)), "y dx z"),
        ((FORWARD, BACKWARD,
          node("If", "training", "z", "", then_branch=BODY, else_branch=ELSE)), "y dx z"),
        ((FORWARD, node("DropoutGrad", "dy mask half training", "dx")), "y dx"),
        ((FORWARD, node("DropoutGrad", "dy mask ratio off", "dx")), "y dx"),
        ((node("Dropout", "x ratio off", "y mask", ""), BACKWARD), "y dx"),
        ((node("Dropout", "x ratio", "y mask", ""), BACKWARD), "y dx"),
    ],
    ids=["an output", "another op", "a body", "another ratio", "another mode", "inference",
         "no mode"],
)  # fmt: skip
def test_a_mask_that_somebody_needs_is_made(nodes: tuple[ir.Node, ...], outputs: str) -> None:
    constants = {**OPTIONS, "half": np.array(0.5, np.float32), "off": np.array(False)}
    lowered, feeds = lowered_of(nodes, outputs, constants)
    assert ops(lowered) == ["Dropout", "Dropped"]
    (got,) = run(lowered, feeds)
    stays = got["y"] != 0
    np.testing.assert_array_equal(got["dx"] != 0, stays)
    for name in {"mask", "z"} & got.keys():
        np.testing.assert_array_equal(got[name].astype(bool), stays)


def test_half_precision_is_left_to_onnxruntime() -> None:
    row = Row("half", (FORWARD, BACKWARD), {"x": np.ones(SHAPE, np.float16),
              "dy": np.ones(SHAPE, np.float16)}, {"y": np.zeros(SHAPE), "dx": np.zeros(SHAPE)},
              OPTIONS, kind=np.float16)  # fmt: skip
    lowered = lower(model_of(row, dynamic=True), fused=True)
    assert not {n.domain for n in lowered.model.graph.nodes} & {ir.NATIVE}
    got = run(lowered, dict(row.feeds))[0]
    np.testing.assert_array_equal(got["dx"], got["y"])


@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("op", ["BiasDropout", "BitmaskBiasDropout"])
def test_bias_and_residual_around_a_dropout(op: str, residual: bool) -> None:
    gradient = "BitmaskDropoutGrad" if "Bitmask" in op else "DropoutGrad"
    bias, rest = normals(9, SHAPE[1:], SHAPE)
    names = f"x b {'r' if residual else '_'} ratio training"
    nodes = (node(op, names, "y mask"), node(gradient, "dy mask ratio training", "dx"))
    lowered, feeds = lowered_of(nodes, b=bias, r=rest)
    assert ops(lowered) == OURS
    edge_train.set_seed(23)
    (got,) = run(lowered, feeds)
    stays = kept(drawn(23, 0), feeds["x"].size, RATIO).reshape(SHAPE)
    wanted = np.where(stays, (feeds["x"] + bias) * SCALE, 0) + (rest if residual else 0)
    np.testing.assert_allclose(got["y"], wanted, rtol=1e-6, atol=1e-7)
    np.testing.assert_array_equal(got["dx"], np.where(stays, feeds["dy"] * SCALE, 0))


def test_softmax_and_dropout_backwards() -> None:
    """With y the softmax and m the mask: y (m dy / keep - sum of y m dy / keep)."""
    nodes = (
        node("BiasSoftmaxDropout", "x b ratio", "y mask softmax", axis=1, is_inner_broadcast=0),
        node("SoftmaxDropoutGrad", "dy mask softmax ratio", "dx", axis=1),
    )
    (bias,) = normals(10, SHAPE[1:])
    lowered, feeds = lowered_of(nodes, "y softmax dx", b=bias)
    assert ops(lowered) == OURS
    edge_train.set_seed(29)
    (got,) = run(lowered, feeds)
    stays = kept(drawn(29, 0), feeds["x"].size, RATIO).reshape(SHAPE)
    softmax = got["softmax"].astype(np.float64)
    np.testing.assert_allclose(got["y"], np.where(stays, softmax * SCALE, 0), rtol=1e-6)
    through = np.where(stays, feeds["dy"] * SCALE, 0).astype(np.float64)
    expected = softmax * (through - (softmax * through).sum(1, keepdims=True))
    np.testing.assert_allclose(got["dx"], expected, rtol=1e-4, atol=1e-7)


def test_a_dropout_in_a_branch_is_left_to_onnxruntime() -> None:
    body = ir.Graph("then", [node("Dropout", "x ratio training", "d m", "")], [],
                    [ir.Value("d", dtypes.FLOAT, None)])  # fmt: skip
    nodes = (node("If", "training", "y", "", then_branch=body, else_branch=ELSE),)
    lowered, feeds = lowered_of(nodes, "y")
    (branches,) = (n for n in lowered.model.graph.nodes if n.op_type == "If")
    inner = [n for graph in ir.subgraphs(branches) for n in graph.nodes]
    assert not {n.domain for n in inner} & {ir.NATIVE}
    assert 0.7 < np.mean(run(lowered, feeds)[0]["y"] != 0) < 0.8
