"""Training beside the live reference: from equal weights at each step, and in free runs."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from support.reference import Reference
from support.training import (
    GRADIENT,
    LOSS,
    gradient_errors,
    module_of,
    session_of,
    set_parameters,
)
from support.zoo import DETERMINISTIC, SEIZURE, ZOO, Artifacts

import edge_train
from edge_train.api import CheckpointState, Module, Optimizer

ULP = float(np.finfo(np.float32).eps)
STEPS = 10
#: how far a free run may stray, in multiples of the reference's own answer to a 1-ulp change
DRIFT = 10.0
MODELS = (*DETERMINISTIC, "seizure")


def _known(name: str) -> Artifacts:
    return SEIZURE if name == "seizure" else ZOO[name]


@pytest.fixture(scope="session")
def sgd_optimizer(reference: Reference, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An SGD optimizer graph of the reference; it does not depend on the model."""
    folder = tmp_path_factory.mktemp("sgd")
    case = ZOO["mlp_MSELoss"]
    reference.ensure_running()
    made = reference.generate_artifacts(case.model, folder, optimizer="SGD", **case.generate)
    return made.optimizer_model


@pytest.fixture(params=[(name, kind) for kind in ("AdamW", "SGD") for name in MODELS], ids=str)
def artifacts(request: pytest.FixtureRequest, sgd_optimizer: Path, tmp_path: Path) -> Artifacts:
    name, kind = request.param
    known = _known(name)
    if kind == "SGD":
        for path in (known.training_model, known.eval_model, known.checkpoint):
            shutil.copy(path, tmp_path)
        shutil.copy(sgd_optimizer, tmp_path / "optimizer_model.onnx")
        known = Artifacts(name, tmp_path)
    return known


def _feed(artifacts: Artifacts) -> dict[str, NDArray]:
    return dict(_known(artifacts.name).feed)  # type: ignore[attr-defined]


def _rate(artifacts: Artifacts) -> float:
    return 1e-3 if artifacts.name == "seizure" else 0.02


def test_each_step_from_equal_weights(reference: Reference, artifacts: Artifacts) -> None:
    feed, theirs = _feed(artifacts), reference.load(artifacts)
    module, optimizer = session_of(artifacts)
    theirs.set_learning_rate(_rate(artifacts))
    optimizer.set_learning_rate(_rate(artifacts))
    for step in range(STEPS):
        set_parameters(module, theirs.parameters())
        wanted = float(theirs.train_step(feed)[0])
        module.lazy_reset_grad()
        assert abs(float(module(**feed)) - wanted) <= LOSS * abs(wanted), step
        gradients = theirs.gradients()
        assert max(gradient_errors(module, gradients).values()) <= GRADIENT, step
        for name, gradient in gradients.items():
            module.state.parameters[name].grad[...] = gradient
        theirs.optimizer_step()
        theirs.lazy_reset_grad()
        assert optimizer.step()
        for name, weight in theirs.parameters().items():
            got = module.state.parameters[name].data
            # statistics (frozen) were moved by each side's own batch sums
            allowed = ULP * np.abs(weight) + (5e-8 if name in gradients else 1e-6)
            assert np.all(np.abs(got - weight) <= allowed), (step, name)
    set_parameters(module, theirs.parameters())
    wanted = float(theirs.eval_step(feed)[0])
    assert abs(float(module.eval()(**feed)) - wanted) <= LOSS * abs(wanted)
    theirs.drop()


@pytest.mark.parametrize("seed", [5, 123_456_789])
def test_dropout_draws_what_the_reference_draws(reference: Reference, seed: int) -> None:
    """U077, with Dropout's random numbers: from one seed the same run, step by step, where
    onnxruntime draws them."""
    case = ZOO["transformer_decomposedLN_erf_dropout"]
    theirs = reference.load(case)
    module = module_of(case, kernels="portable")
    optimizer = Optimizer(case.optimizer_model, module)
    theirs.set_learning_rate(case.learning_rate)
    optimizer.set_learning_rate(case.learning_rate)
    edge_train.set_seed(seed)
    reference.set_seed(seed)
    losses = []
    for step in range(STEPS):
        set_parameters(module, theirs.parameters())
        wanted = float(theirs.train_step(case.feed)[0])
        module.lazy_reset_grad()
        losses.append(float(module(**case.feed)))
        assert abs(losses[-1] - wanted) <= LOSS * abs(wanted), step
        assert max(gradient_errors(module, theirs.gradients()).values()) <= GRADIENT, step
        theirs.optimizer_step()
        theirs.lazy_reset_grad()
        optimizer.step()
    edge_train.set_seed(seed + 1)
    module.lazy_reset_grad()
    set_parameters(module, case.params(0))
    assert abs(float(module(**case.feed)) - losses[0]) > LOSS
    theirs.drop()


def _nudged(feed: dict[str, NDArray]) -> dict[str, NDArray]:
    """The feed with every float one ulp up."""
    return {
        name: np.nextafter(value, np.float32(np.inf)) if value.dtype == np.float32 else value
        for name, value in feed.items()
    }


def _reference_run(
    reference: Reference, artifacts: Artifacts, feed: dict[str, NDArray], nudge_weights: bool
) -> tuple[NDArray, dict[str, NDArray]]:
    training = reference.load(artifacts)
    training.set_learning_rate(_rate(artifacts))
    if nudge_weights:
        training.set_parameters(_nudged(training.parameters()))
    losses = [training.step(feed) for _ in range(STEPS)]
    final = training.parameters()
    training.drop()
    return np.array(losses), final


def _distance(a: dict[str, NDArray], b: dict[str, NDArray]) -> float:
    return max(float(np.abs(a[name] - b[name]).max()) for name in a)


def test_free_run_stays_within_the_references_drift(
    reference: Reference, artifacts: Artifacts
) -> None:
    feed = _feed(artifacts)
    has_floats = any(value.dtype == np.float32 for value in feed.values())
    losses, final = _reference_run(reference, artifacts, feed, nudge_weights=False)
    nudged, moved = _reference_run(
        reference, artifacts, _nudged(feed), nudge_weights=not has_floats
    )
    module, optimizer = session_of(artifacts)
    optimizer.set_learning_rate(_rate(artifacts))
    ours = []
    for _ in range(STEPS):
        module.lazy_reset_grad()
        ours.append(float(module(**feed)))
        optimizer.step()
    scale = np.abs(losses).max()
    drift = np.abs(nudged - losses).max()
    assert np.abs(np.array(ours) - losses).max() <= DRIFT * drift + LOSS * scale
    got = {name: module.state.parameters[name].data for name in final}
    # 1e-6: weights near 1 keep no more digits over ten steps
    assert _distance(got, final) <= DRIFT * _distance(moved, final) + 1e-6


def test_saved_by_one_resumed_by_the_other(
    reference: Reference, artifacts: Artifacts, tmp_path: Path
) -> None:
    """Three steps here, saved with moments; the next step equals the reference's resumed one."""
    feed = _feed(artifacts)
    module, optimizer = session_of(artifacts)
    optimizer.set_learning_rate(_rate(artifacts))
    for _ in range(3):
        module.lazy_reset_grad()
        module(**feed)
        optimizer.step()
    CheckpointState.save_checkpoint(module.state, tmp_path / "mid")
    theirs = reference.load(artifacts, checkpoint=tmp_path / "mid")
    theirs.set_learning_rate(_rate(artifacts))
    module.lazy_reset_grad()
    loss = float(module(**feed))
    wanted = float(theirs.train_step(feed)[0])
    assert abs(loss - wanted) <= LOSS * abs(wanted)
    for name, gradient in theirs.gradients().items():
        module.state.parameters[name].grad[...] = gradient
    theirs.optimizer_step()
    optimizer.step()
    for name, weight in theirs.parameters().items():
        if name in theirs.gradients():
            got = module.state.parameters[name].data
            assert np.all(np.abs(got - weight) <= ULP * np.abs(weight) + 5e-8), name
    theirs.drop()


@pytest.mark.parametrize("name", MODELS)
def test_export_equals_the_references(reference: Reference, name: str, tmp_path: Path) -> None:
    """The same outputs, inputs and values from both exported files in plain onnxruntime."""
    import onnxruntime

    from edge_train.graph import onnx_codec

    known = _known(name)
    graph = onnx_codec.load(known.eval_model).graph
    tensor = (
        next(n.inputs[0] for n in graph.nodes if _is_loss(n.op_type))
        if any(_is_loss(n.op_type) for n in graph.nodes)
        else graph.outputs[0].name
    )
    theirs = reference.load(known, with_optimizer=False)
    theirs.export(tmp_path / "theirs.onnx", [tensor])
    module = Module(
        known.training_model, CheckpointState.load_checkpoint(known.checkpoint), known.eval_model
    )
    module.export_model_for_inferencing(tmp_path / "ours.onnx", [tensor])
    sessions = [
        onnxruntime.InferenceSession(str(tmp_path / file), providers=["CPUExecutionProvider"])
        for file in ("theirs.onnx", "ours.onnx")
    ]
    names = [sorted(value.name for value in session.get_inputs()) for session in sessions]
    assert names[0] == names[1]
    feed = {key: value for key, value in _feed(known).items() if key in names[0]}
    wanted, got = (session.run(None, feed)[0] for session in sessions)
    np.testing.assert_array_equal(got, wanted)
    theirs.drop()


def _is_loss(op_type: str) -> bool:
    return op_type == "SoftmaxCrossEntropyLoss"
