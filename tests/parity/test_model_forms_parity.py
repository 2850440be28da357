"""Models with several outputs and losses, or exported in training mode, beside the reference."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import TensorProto
from support import forms
from support.reference import Reference, ReferenceError
from support.training import GRADIENT, LOSS, gradient_errors, module_of, session_of
from support.zoo import Artifacts

from edge_train.api import CheckpointState, Module
from edge_train.session import run_model

RNG = np.random.default_rng(3)
FLAT = RNG.standard_normal((4, 5)).astype(np.float32)
IMAGE = RNG.standard_normal((4, 3, 6, 6)).astype(np.float32)
LABELS = np.array([0, 2, 1, 1])
NORM: dict[str, Any] = {
    "requires_grad": ["w", "scale", "bias", "head"],
    "frozen_params": ["mean", "var"],
}


def both_step(
    reference: Reference, artifacts: Artifacts, feed: list[NDArray], count: int
) -> tuple[Module, list[NDArray]]:
    """One training step in each: ``count`` outputs and all gradients agree."""
    theirs, module = reference.load(artifacts, with_eval=False), module_of(artifacts)
    wanted = theirs.train_step(feed)
    got = module(*feed)
    outputs = list(got) if isinstance(got, tuple) else [got]
    assert len(outputs) == len(wanted) == count
    assert module.output_names() == theirs.output_names()
    for ours, other in zip(outputs, wanted, strict=True):
        np.testing.assert_allclose(ours, other, rtol=LOSS, atol=1e-6)
    assert max(gradient_errors(module, theirs.gradients()).values()) <= GRADIENT
    return module, wanted


@pytest.mark.parametrize("opset", [13, 17, 20])
def test_several_losses_and_outputs(reference: Reference, tmp_path: Path, opset: int) -> None:
    """Every scalar and the scores come back; the first is what the gradients are of."""
    artifacts = reference.generate_artifacts(
        forms.two_losses(opset),
        tmp_path,
        loss=None,
        requires_grad=["down", "up", "head"],
    )
    module, outputs = both_step(reference, artifacts, [FLAT], 4)
    total, reconstruction, penalty, score = outputs
    assert float(total) == pytest.approx(float(reconstruction) + float(penalty), rel=1e-6)
    assert score.shape == (4, 2)
    assert float(module.eval()(FLAT)[0]) == pytest.approx(float(total), rel=LOSS)


def test_additional_outputs_follow_the_loss(reference: Reference, tmp_path: Path) -> None:
    artifacts = reference.generate_artifacts(
        forms.two_heads(),
        tmp_path,
        loss="CrossEntropyLoss",
        requires_grad=["w1", "w2"],
        frozen_params=["w3"],
        loss_input_names=["y"],
        additional_output_names=["y", "z"],
    )
    both_step(reference, artifacts, [FLAT, LABELS], 3)


def test_a_second_output_is_the_target(reference: Reference, tmp_path: Path) -> None:
    """Without names the loss takes every output: here both come from the model."""
    model = forms.two_heads()
    with pytest.raises(ReferenceError):  # a width of 3 and one of 2
        reference.generate_artifacts(model, tmp_path, loss="MSELoss", requires_grad=["w1"])


def test_without_an_optimizer_graph(reference: Reference, tmp_path: Path) -> None:
    artifacts = reference.generate_artifacts(
        forms.two_heads(),
        tmp_path,
        loss="CrossEntropyLoss",
        optimizer=None,
        requires_grad=["w1", "w2"],
        frozen_params=["w3"],
        loss_input_names=["y"],
    )
    assert not artifacts.optimizer_model.exists()
    state = CheckpointState.load_checkpoint(artifacts.checkpoint)
    module = Module(artifacts.training_model, state, artifacts.eval_model)
    losses = []
    for _ in range(20):
        module.lazy_reset_grad()
        losses.append(float(module(FLAT, LABELS)))
        for name in ("w1", "w2"):
            state.parameters[name].data[...] -= 0.1 * state.parameters[name].grad
    assert losses[-1] < losses[0] * 0.8


@pytest.mark.parametrize(("opset", "outputs"), [(15, 3), (13, 5)])
def test_u060_batch_norm_exported_in_training_mode(
    reference: Reference, tmp_path: Path, opset: int, outputs: int
) -> None:
    """U060: the eval graph keeps outputs that onnxruntime refuses; here it runs and exports."""
    artifacts = reference.generate_artifacts(forms.batch_norm(opset, outputs), tmp_path, **NORM)
    if opset >= 14:
        with pytest.raises(ReferenceError):
            reference.load(artifacts)
        reference.ensure_running()
    module, optimizer = session_of(artifacts)
    theirs = reference.load(artifacts, with_eval=False)
    for _ in range(3):
        module.lazy_reset_grad()
        assert float(module(IMAGE, LABELS)) == pytest.approx(theirs.step([IMAGE, LABELS]), rel=1e-5)
        optimizer.step()
    module.export_model_for_inferencing(tmp_path / "x.onnx", ["y"])
    whole = run_model(tmp_path / "x.onnx", [IMAGE])[0]
    alone = run_model(tmp_path / "x.onnx", [IMAGE[:1]])[0]
    np.testing.assert_allclose(alone, whole[:1], rtol=1e-5, atol=1e-6)
    shifted = whole.astype(np.float64) - whole.max(1, keepdims=True)
    log_prob = shifted - np.log(np.exp(shifted).sum(1, keepdims=True))
    loss = -log_prob[np.arange(4), LABELS].mean()
    assert float(module.eval()(IMAGE, LABELS)) == pytest.approx(loss, rel=1e-5)


def _cast_inside(reference: Reference, folder: Path, kind: str) -> Artifacts:
    folder.mkdir()
    return reference.generate_artifacts(
        forms.cast_inside(getattr(TensorProto, kind)),
        folder,
        loss="CrossEntropyLoss",
        requires_grad=["w1", "b1", "scale", "bias", "w2"],
    )


@pytest.mark.parametrize(
    ("kind", "there", "tolerance"), [("DOUBLE", "FLOAT", 2e-6), ("FLOAT16", "FLOAT16", 5e-3)]
)
def test_other_types_on_the_path(
    reference: Reference, tmp_path: Path, kind: str, there: str, tolerance: float
) -> None:
    """float32 weights, a network in double (which the reference cannot run) or half precision."""
    module = module_of(_cast_inside(reference, tmp_path / "ours", kind))
    theirs = reference.load(_cast_inside(reference, tmp_path / "theirs", there))
    wanted = float(theirs.train_step([FLAT, LABELS])[0])
    assert float(module(FLAT, LABELS)) == pytest.approx(wanted, rel=tolerance)
    errors = gradient_errors(module, theirs.gradients())
    assert max(errors.values()) <= 10 * tolerance, errors
    assert float(module.eval()(FLAT, LABELS)) == pytest.approx(wanted, rel=tolerance)


def slope(module: Module, name: str, along: NDArray, feed: NDArray) -> float:
    """The loss's derivative along a direction, by a central difference."""
    data, ends = module.state.parameters[name].data, []
    for step in (1e-2, -2e-2):
        data += np.float32(step) * along
        ends.append(float(module(feed)))
    data += np.float32(1e-2) * along
    return (ends[0] - ends[1]) / 2e-2


@pytest.mark.parametrize("sizes", [False, True], ids=["scales", "sizes"])
@pytest.mark.parametrize(
    "resize",
    [
        {"mode": "nearest"},
        {"mode": "linear"},
        {"mode": "cubic"},
        {"mode": "linear", "coordinate_transformation_mode": "align_corners"},
    ],
    ids=lambda value: "-".join(value.values()),
)
def test_artifacts_that_the_reference_writes_but_cannot_run(
    reference: Reference, tmp_path: Path, resize: dict[str, str], sizes: bool
) -> None:
    """ConvTransposeGrad and ResizeGrad: the gradient is the slope of the loss."""
    artifacts = reference.generate_artifacts(
        forms.upsampling(resize, sizes), tmp_path, loss=None, requires_grad=["w", "v", "b"]
    )
    with pytest.raises(ReferenceError, match=r"ResizeGrad|ConvTransposeGrad"):
        reference.load(artifacts)
    reference.ensure_running()
    module, feed = module_of(artifacts), RNG.standard_normal((2, 3, 6, 6)).astype(np.float32)
    module(feed)
    gradients = {
        name: parameter.grad.copy()
        for name, parameter in module.state.parameters
        if parameter.grad is not None
    }
    assert set(gradients) == {"w", "v", "b"}
    for name, gradient in gradients.items():
        along = gradient / np.linalg.norm(gradient)
        expected = float(np.linalg.norm(gradient))
        assert slope(module, name, along, feed) == pytest.approx(expected, rel=2e-3), name
