"""Bad input is refused in words before anything runs, and leaves the session as it was."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import onnxruntime
import pytest
from support.snapshot import differences, snapshot
from support.training import module_of, session_of, with_computed_labels
from support.zoo import SEIZURE, ZOO, Case

from edge_train.api import CheckpointState, Module, Optimizer
from edge_train.errors import RunError, ShapeMismatch
from edge_train.graph import ir, onnx_codec

CASE = ZOO["conv_bn_maxpool_gap"]
X, LABELS = CASE.feed["x"], CASE.feed["labels"]
OrtValue = onnxruntime.OrtValue.ortvalue_from_numpy


def labels_with(value: int) -> np.ndarray:
    return np.array([0, value], np.int64)


@pytest.fixture(scope="module")
def session() -> tuple[Module, Optimizer]:
    """A session in the middle of training: moments, moved statistics, gradients added up."""
    module, optimizer = session_of(CASE)
    for _ in range(2):
        module.lazy_reset_grad()
        module(X, LABELS)
        optimizer.step()
    module(X, LABELS)
    return module, optimizer


BAD: dict[str, tuple[Callable[[Module], object], type[Exception], str]] = {
    "float64": (lambda m: m(X.astype(np.float64), LABELS), TypeError, r"'x'.*float32.*float64"),
    "big endian": (lambda m: m(X.astype(">f4"), LABELS), TypeError, r"'x'.*float32.*>f4"),
    "objects": (lambda m: m(X.astype(object), LABELS), TypeError, r"'x'.*object"),
    "text": (lambda m: m(X.astype(str), LABELS), TypeError, r"'x'.*float32"),
    "int32 labels": (
        lambda m: m(X, LABELS.astype(np.int32)),
        TypeError,
        r"'labels': expected int64, got int32; convert it with \.astype\(np\.int64\)",
    ),
    "a set": (lambda m: m({1.0}, LABELS), TypeError, r"'x'.*builtins\.set.*np\.asarray"),
    "None": (lambda m: m(None, LABELS), TypeError, r"'x'.*NoneType"),
    "a number": (lambda m: m(X, 1), ShapeMismatch, r"'labels'.*\(N\), got shape \(\)"),
    "an OrtValue of int64": (lambda m: m(OrtValue(LABELS), LABELS), TypeError, r"'x'.*int64"),
    "rank": (lambda m: m(X[0], LABELS), ShapeMismatch, r"'x'.*\(N, 3, 8, 8\).*\(3, 8, 8\)"),
    "rank of an OrtValue": (lambda m: m(OrtValue(X[0]), LABELS), ShapeMismatch, r"'x'.*\(3, 8, 8"),
    "width": (lambda m: m(X[:, :2], LABELS), ShapeMismatch, r"'x'.*\(N, 3, 8, 8\).*\(2, 2, 8, 8\)"),
    "labels of rank 2": (lambda m: m(X, LABELS[:, None]), ShapeMismatch, r"'labels'.*\(2, 1\)"),
    "too few": (lambda m: m(X), TypeError, r"expected 2 inputs.*missing \['labels'\]"),
    "none": (lambda m: m(), TypeError, r"missing \['x', 'labels'\]"),
    "too many": (lambda m: m(X, LABELS, LABELS), TypeError, r"expected 2 inputs.*got 3"),
    "unknown keyword": (lambda m: m(X, label=LABELS), TypeError, r"'label'.*did you mean 'labels'"),
    "given twice": (lambda m: m(X, LABELS, x=X), TypeError, r"'x' is given twice"),
    "empty batch": (lambda m: m(X[:0], LABELS[:0]), ValueError, r"'x': axis 0 .* is empty"),
    "empty labels": (lambda m: m(X, LABELS[:0]), ValueError, r"'labels': axis 0 .* is empty"),
    "an OrtValue without rows": (lambda m: m(OrtValue(X[:0]), LABELS[:0]), ValueError, r"is empty"),
    "more labels": (lambda m: m(X, np.zeros(3, np.int64)), ShapeMismatch, r"'N': 2 and 3"),
    "fewer labels": (lambda m: m(X, np.zeros(1, np.int64)), ShapeMismatch, r"'N': 2 and 1"),
    **{
        f"label {value}": (
            lambda m, value=value: m(X, labels_with(value)),
            IndexError,
            rf"label {value} in 'labels' is outside 0\.\.9 \(10 classes\)",
        )
        for value in (77, 10, -1, 10**9, -100, 2**62)
    },
    "an OrtValue of labels": (lambda m: m(X, OrtValue(labels_with(10))), IndexError, r"label 10"),
}  # fmt: skip


@pytest.mark.parametrize("mode", ["train", "eval"])
@pytest.mark.parametrize("name", BAD)
def test_refused_and_nothing_touched(
    session: tuple[Module, Optimizer], name: str, mode: str
) -> None:
    """U071, U072 and criterion 5: weights, moments, statistics, added-up gradients as before."""
    module, _ = session
    call, error, text = BAD[name]
    module.train(mode == "train")
    before = snapshot(module.state)
    with pytest.raises(error, match=text):
        call(module)
    assert differences(before, snapshot(module.state)) == []


def test_a_good_call_does_change_the_session(session: tuple[Module, Optimizer]) -> None:
    """The comparison above can fail."""
    module, _ = session
    before = snapshot(module.state)
    module.train()(X, LABELS)
    changed = differences(before, snapshot(module.state))
    assert {"data mu", "data va", "grad w1"} <= set(changed)
    assert "data w1" not in changed


def test_a_refused_call_keeps_the_sum_of_gradients_going() -> None:
    """What follows a refusal adds to what stood before it."""
    module = module_of(ZOO["mlp_CrossEntropyLoss"])
    feed = ZOO["mlp_CrossEntropyLoss"].feed
    module(**feed)
    once = module.state.parameters["w1"].grad.copy()
    with pytest.raises(IndexError):
        module(feed["x"], labels_with(8))
    module(**feed)
    np.testing.assert_allclose(module.state.parameters["w1"].grad, 2 * once, rtol=1e-6)


@pytest.mark.parametrize("value", [7, 3, -1, 10**9, -100])
def test_u072_a_label_out_of_range(value: int) -> None:
    """U072: three classes; the reference reads out of bounds or dies."""
    case = ZOO["mlp_CrossEntropyLoss"]
    module = module_of(case)
    for mode in (True, False):
        with pytest.raises(IndexError, match=rf"label {value} .*outside 0\.\.2 \(3 classes\)"):
            module.train(mode)(case.feed["x"], labels_with(value))
    assert not any(parameter.grad.any() for _, parameter in module.state.parameters)


# ---- ignore_index ---------------------------------------------------------------------------


def with_ignore_index(path: Any, number: int) -> bytes:
    """The graph with ``ignore_index`` set on its loss and the loss's gradient."""
    model = onnx_codec.load(path)
    attribute = {"ignore_index": ir.Attribute.of("ignore_index", number)}
    nodes = [
        replace(node, attributes={**node.attributes, **attribute})
        if node.op_type.startswith("SoftmaxCrossEntropyLoss")
        else node
        for node in model.graph.nodes
    ]
    return onnx_codec.encode(replace(model, graph=replace(model.graph, nodes=nodes)))


@pytest.fixture(scope="module")
def ignoring() -> Module:
    case = ZOO["mlp_CrossEntropyLoss"]
    state = CheckpointState.load_checkpoint(case.checkpoint)
    graphs = (with_ignore_index(p, -100) for p in (case.training_model, case.eval_model))
    return Module(next(graphs), state, next(graphs))


def test_u072_ignore_index_is_honoured(ignoring: Module) -> None:
    """U072: an ignored row counts for nothing: the loss and gradients of the other row alone."""
    x, labels = (ZOO["mlp_CrossEntropyLoss"].feed[name] for name in ("x", "labels"))
    losses, gradients = [], []
    for rows, given in ((x, np.array([labels[0], -100])), (x[:1], labels[:1])):
        ignoring.train().lazy_reset_grad()
        losses += [float(ignoring(rows, given)), float(ignoring.eval()(rows, given))]
        gradients.append(ignoring.state.parameters["w1"].grad.copy())
    assert losses[:2] == pytest.approx(losses[2:], rel=1e-6)
    np.testing.assert_allclose(gradients[0], gradients[1], rtol=1e-5, atol=1e-8)


def test_u072_all_rows_ignored_is_no_nan(ignoring: Module) -> None:
    ignoring.train().lazy_reset_grad()
    x = ZOO["mlp_CrossEntropyLoss"].feed["x"]
    assert float(ignoring(x, np.array([-100, -100]))) == 0
    assert not ignoring.state.parameters["w1"].grad.any()


@pytest.mark.parametrize("value", [-1, 7, 3, -99, 10**9])
def test_u072_other_labels_stay_refused_beside_ignored_ones(ignoring: Module, value: int) -> None:
    x = ZOO["mlp_CrossEntropyLoss"].feed["x"]
    with pytest.raises(IndexError, match=rf"label {value} .*or the ignore_index -100"):
        ignoring.train()(x, np.array([-100, value]))


# ---- faults that only onnxruntime can see ---------------------------------------------------


@pytest.mark.parametrize("value", [20, -21, 10**12, -(2**62)])
@pytest.mark.parametrize("name", ["shared_weight_tied_embedding", "transformer_decomposedLN_erf"])
def test_an_embedding_id_out_of_range_ends_the_call_only(name: str, value: int) -> None:
    """Gradients are zeroed, weights and moments stay, and training goes on as if reset."""
    case = ZOO[name]
    module, optimizer = session_of(case)
    module(**case.feed)
    optimizer.step()
    module.lazy_reset_grad()
    module(**case.feed)
    expected = snapshot(module.state)
    ids = case.feed["ids"].copy()
    ids[0, 1] = value
    with pytest.raises(RunError, match=rf"training graph.*{value}"):
        module(**{**case.feed, "ids": ids})
    after = snapshot(module.state)
    assert all(name.startswith("grad ") for name in differences(expected, after))
    assert not any(value.any() for name, value in after.items() if name.startswith("grad "))
    module(**case.feed)
    assert differences(expected, snapshot(module.state)) == []
    assert optimizer.step()


def test_a_negative_embedding_id_counts_from_the_end_in_both_directions() -> None:
    """ONNX's Gather allows -rows..rows-1; the gradient lands in the same row."""
    case = ZOO["transformer_decomposedLN_erf"]
    module = module_of(case)
    gradients = []
    for last in (19, -1):
        ids = case.feed["ids"].copy()
        ids[0, 1] = last
        module.lazy_reset_grad()
        module(**{**case.feed, "ids": ids})
        gradients.append(module.state.parameters["emb"].grad.copy())
    assert gradients[0][19].any()
    np.testing.assert_array_equal(*gradients)


@pytest.mark.parametrize("value", [10, -1, 10**9, -100])
def test_u072_computed_labels_are_checked_too(value: int) -> None:
    """U072: seen after the run: the gradients are zeroed, weights and statistics stay."""
    state = CheckpointState.load_checkpoint(CASE.checkpoint)
    graphs = [with_computed_labels(path) for path in (CASE.training_model, CASE.eval_model)]
    module = Module(graphs[0], state, graphs[1])
    loss = float(module(X, LABELS))
    assert loss == float(module_of(CASE)(X, LABELS))
    before = snapshot(state)
    for mode in (False, True):
        with pytest.raises(IndexError, match=rf"label {value} .*\(10 classes\)"):
            module.train(mode)(X, labels_with(value))
        changed = differences(before, snapshot(state))
        assert all(name.startswith("grad ") for name in changed)
        assert bool(changed) is mode
    assert not any(
        parameter.grad.any() for _, parameter in state.parameters if parameter.requires_grad
    )
    module(X, LABELS)
    assert not any(name.startswith("grad ") for name in differences(before, snapshot(state)))


# ---- dimensions that a graph leaves open ----------------------------------------------------


def without_dims(path: Any, *names: str) -> bytes:
    """The graph with inputs of unknown sizes (their ranks stay known)."""
    model = onnx_codec.load(path)
    inputs = [
        ir.Value(v.name, v.elem_type, (None,) * len(v.dims or ())) if v.name in names else v
        for v in model.graph.inputs
    ]
    return onnx_codec.encode(replace(model, graph=replace(model.graph, inputs=inputs)))


def open_module(case: Case, *names: str) -> Module:
    state = CheckpointState.load_checkpoint(case.checkpoint)
    training = without_dims(case.training_model, *names)
    return Module(training, state, without_dims(case.eval_model, *names))


@pytest.mark.parametrize("rows", [1, 3, 4])
@pytest.mark.parametrize("mode", [True, False])
def test_another_number_of_labels_is_refused_without_symbols_too(rows: int, mode: bool) -> None:
    """onnxruntime's GatherElements would take fewer labels in silence."""
    module = open_module(ZOO["mlp_CrossEntropyLoss"], "x", "labels").train(mode)
    x = ZOO["mlp_CrossEntropyLoss"].feed["x"]
    with pytest.raises((RunError, ShapeMismatch)):
        module(x, np.zeros(rows, np.int64))
    assert np.isfinite(module(x, np.zeros(2, np.int64)))


def test_a_wrong_width_without_symbols_is_a_run_error() -> None:
    module = open_module(ZOO["mlp_CrossEntropyLoss"], "x")
    with pytest.raises(RunError, match=r"training graph.*'x': \(2, 9\)"):
        module(np.zeros((2, 9), np.float32), np.zeros(2, np.int64))


# ---- what is fine ---------------------------------------------------------------------------


def test_order_strides_and_read_only_arrays_do_not_matter() -> None:
    module = module_of(CASE)

    def loss(x: np.ndarray, labels: np.ndarray) -> float:
        module.lazy_reset_grad()
        return float(module(x, labels))

    expected = loss(X, LABELS)
    spread = np.repeat(X, 2, axis=0)[::2]
    locked = X.copy()
    locked.flags.writeable = False
    assert not spread.flags.c_contiguous
    assert loss(np.asfortranarray(X), LABELS) == expected
    assert loss(spread, np.repeat(LABELS, 2)[::2]) == expected
    assert loss(X[::-1][::-1], LABELS[::-1][::-1]) == expected
    assert loss(locked, LABELS) == expected


def test_each_feed_is_read_whatever_came_before(rng: np.random.Generator) -> None:
    """Small arrays are copied to memory that stays, large ones are bound: in any order."""
    module = module_of(CASE)

    def feed(batch: int) -> tuple[np.ndarray, np.ndarray]:
        x = rng.standard_normal((batch, *X.shape[1:]), dtype=np.float32)
        return x, np.arange(batch, dtype=np.int64) % 2

    for batch in (2, 2, 64, 64, 2, 3):
        x, labels = feed(batch)
        expected = float(module_of(CASE)(x, labels))
        for fed in ((x, labels), (OrtValue(x), labels), (x, OrtValue(labels)), (x, labels)):
            assert float(np.asarray(module(*fed))) == expected
            module.lazy_reset_grad()
        assert float(module(labels=labels, x=x)) == expected
        module.lazy_reset_grad()


def test_what_was_fed_before_stands_in_for_nothing() -> None:
    module = module_of(CASE)
    module(OrtValue(X), LABELS)
    with pytest.raises(TypeError, match=r"missing \['labels'\]"):
        module(LABELS)
    large, labels = np.zeros((64, 3, 8, 8), np.float32), np.zeros(64, np.int64)
    module(large, labels)
    large.resize((64, 3, 4, 16), refcheck=False)
    with pytest.raises(ShapeMismatch, match=r"'x'.*\(64, 3, 4, 16\)"):
        module(large, labels)


def test_what_is_fed_is_not_written() -> None:
    for case in (CASE, SEIZURE):
        module, feed = module_of(case), {k: v.copy() for k, v in case.feed.items()}
        module(**feed)
        module.eval()(**feed)
        assert all(np.array_equal(feed[name], value) for name, value in case.feed.items())


@pytest.mark.parametrize("name", ["x", "labels"])
def test_names_are_free_for_keywords(name: str) -> None:
    """By position and by name is the same, also mixed."""
    module = module_of(CASE)
    expected = float(module(X, LABELS))
    module.lazy_reset_grad()
    given = {"x": X, "labels": LABELS}
    if name == "labels":
        assert float(module(X, labels=LABELS)) == expected
    else:
        assert float(module(**dict(reversed(given.items())))) == expected
