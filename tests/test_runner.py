"""What is fed and what comes out lie in memory of their own, whatever is called next, and when."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import onnxruntime
import pytest
from support.training import module_of, with_computed_labels
from support.zoo import ZOO

from edge_train import dtypes
from edge_train.api import CheckpointState, Module, Optimizer
from edge_train.errors import RunError
from edge_train.graph import ir, onnx_codec
from edge_train.kernels import native

CASE = ZOO["mlp_CrossEntropyLoss"]
X, LABELS = CASE.feed["x"], CASE.feed["labels"]
OrtValue = onnxruntime.OrtValue.ortvalue_from_numpy


def with_outputs(path: object, *names: str) -> bytes:
    """The graph with more outputs: inputs of it, as they are."""
    model = onnx_codec.load(path)
    values = {value.name: value for value in model.graph.inputs}
    outputs = [*model.graph.outputs, *(values[name] for name in names)]
    return onnx_codec.encode(replace(model, graph=replace(model.graph, outputs=outputs)))


def passing_on(train: bool) -> Module:
    """Gives (loss, logits where there are some, x, w1)."""
    graphs = [with_outputs(path, "x", "w1") for path in (CASE.training_model, CASE.eval_model)]
    return Module(graphs[0], CheckpointState.load_checkpoint(CASE.checkpoint), graphs[1]).train(
        train
    )


@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize("rows", [2, 4000])  # small and large inputs
def test_an_output_that_is_an_input_is_a_copy(train: bool, rows: int) -> None:
    module = passing_on(train)
    x, labels = np.resize(X, (rows, 4)), np.resize(LABELS, rows)
    *_, fed, weights = module(x, labels)
    was = weights.copy()
    np.testing.assert_array_equal(fed, x)
    np.testing.assert_array_equal(weights, module.state.parameters["w1"].data)
    module(x + 1, labels)
    module.state.parameters["w1"] = was + 1
    np.testing.assert_array_equal(fed, x)
    np.testing.assert_array_equal(weights, was)
    fed[...] = weights[...] = 9
    assert not (x == 9).any()
    np.testing.assert_array_equal(module.state.parameters["w1"].data, was + 1)


@pytest.mark.parametrize("train", [True, False])
def test_an_output_that_is_an_input_is_a_copy_as_ortvalue(train: bool) -> None:
    module, x = passing_on(train), X.copy()
    *_, fed, weights = module(OrtValue(x), OrtValue(LABELS))
    was = module.state.parameters["w1"].data.copy()
    x += 1
    module.state.parameters["w1"] = was + 1
    np.testing.assert_array_equal(fed.numpy(), X)
    np.testing.assert_array_equal(weights.numpy(), was)


def test_what_came_out_stays_whatever_is_called_next() -> None:
    module = module_of(CASE).eval()
    told = [module(X + k, LABELS) for k in range(3)]
    values = [module(OrtValue(X + k), OrtValue(LABELS)) for k in range(3)]
    for k, (arrays, ortvalues) in enumerate(zip(told, values, strict=True)):
        alone = module_of(CASE).eval()(X + k, LABELS)
        for one, array, value in zip(*map(_each, (alone, arrays, ortvalues)), strict=True):
            np.testing.assert_array_equal(array, one)
            np.testing.assert_array_equal(value.numpy(), one)
    assert float(_each(told[0])[0]) != float(_each(told[1])[0])


def _each(outputs: object) -> tuple:
    return outputs if isinstance(outputs, tuple) else (outputs,)


def test_a_masked_array_leaves_nothing_behind() -> None:
    """A hard mask keeps what is under it from being written to."""
    module = module_of(CASE).eval()
    masked = np.ma.masked_array(X, mask=X.mean() < X)
    masked.harden_mask()
    first = float(module(masked, LABELS))
    assert first == float(module_of(CASE).eval()(X, LABELS))
    assert float(module(X + 1, LABELS)) == float(module_of(CASE).eval()(X + 1, LABELS))


def test_an_input_that_cannot_be_bound_is_a_run_error_every_time() -> None:
    model = onnx_codec.load(CASE.eval_model)
    word = ir.Value("word", dtypes.STRING, ("N",))
    graph = replace(
        model.graph,
        inputs=[word, *model.graph.inputs],
        nodes=[*model.graph.nodes, ir.make_node("Identity", ["word"], ["same"], "same")],
        outputs=[*model.graph.outputs, replace(word, name="same")],
    )
    state = CheckpointState.load_checkpoint(CASE.checkpoint)
    module = Module(CASE.training_model, state, onnx_codec.encode(replace(model, graph=graph)))
    module.eval()
    for _ in range(2):
        with pytest.raises(RunError, match=r"eval graph with inputs.*'word': \(2,\).*string"):
            module(np.array(["a", "b"]), X, LABELS)
    module.train()(X, LABELS)


@pytest.mark.skipif(
    not native.has_ops(), reason="no native library: tools/build_kernels.py builds it"
)
def test_an_optimizer_in_the_backward_pass_reads_labels_and_gives_outputs() -> None:
    """Labels that the graph computes are looked at in the middle of the run."""
    graph = with_computed_labels(with_outputs(CASE.training_model, "x"))
    losses = []
    for fused in (True, False):
        state = CheckpointState.load_checkpoint(CASE.checkpoint)
        module = Module(graph, state, fuse_optimizer=fused)
        optimizer = Optimizer(CASE.optimizer_model, module)
        for k in range(3):
            loss, *_, fed = module(X + k, LABELS)
            assert optimizer.step()
            module.lazy_reset_grad()
            losses.append(float(loss))
            np.testing.assert_array_equal(fed, X + k)
        before = state.parameters["w1"].data.copy()
        with pytest.raises(IndexError, match="label 7"):
            module(X, np.array([0, 7]))
        np.testing.assert_array_equal(state.parameters["w1"].data, before)
    assert losses[:3] == losses[3:]


@pytest.fixture
def hasty() -> Iterator[None]:
    """Threads that give way to each other all the time."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


@pytest.mark.usefixtures("hasty")
def test_threads_that_evaluate_at_once_get_what_is_theirs() -> None:
    module = module_of(CASE).eval()
    expected = [float(module(X + k, LABELS)) for k in range(4)]
    told: list[set[float]] = [set() for _ in expected]

    def work(k: int) -> None:
        for _ in range(300):
            told[k].add(float(module(X + k, LABELS)))

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert told == [{value} for value in expected]
    assert len(set(expected)) == 4
