"""Artifacts made here train in onnxruntime-training 1.19.2 as they do here."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import helper, numpy_helper
from support.generated import generate, generate_known, mlp
from support.offsets import offset_model
from support.reference import Reference
from support.training import GRADIENT, LOSS, gradient_errors, module_of, set_parameters
from support.zoo import STOCHASTIC, ZOO

from edge_train import onnxblock

STEPS = 10


@pytest.mark.parametrize("name", [name for name in ZOO if name not in STOCHASTIC])
def test_the_reference_trains_our_artifacts(
    name: str, reference: Reference, tmp_path: Path
) -> None:
    case = ZOO[name]
    made = generate_known(tmp_path, case.folder)
    theirs, module = reference.load(made), module_of(made)
    theirs.set_learning_rate(case.learning_rate)
    for step in range(STEPS):
        set_parameters(module, theirs.parameters())
        wanted = float(theirs.train_step(case.feed)[0])
        module.lazy_reset_grad()
        assert abs(float(module(**case.feed)) - wanted) <= LOSS * abs(wanted), step
        assert max(gradient_errors(module, theirs.gradients()).values()) <= GRADIENT, step
        theirs.optimizer_step()
        theirs.lazy_reset_grad()
        # ours are not the reference's training graphs: the weights may stray by rounding
        assert wanted == pytest.approx(float(case.losses[step]), rel=1e-4), step
    theirs.drop()


@pytest.mark.parametrize("name", STOCHASTIC)
def test_the_reference_trains_random_models(
    name: str, reference: Reference, tmp_path: Path
) -> None:
    case = ZOO[name]
    theirs = reference.load(generate_known(tmp_path, case.folder))
    theirs.set_learning_rate(case.learning_rate)
    losses = [theirs.step(case.feed) for _ in range(STEPS)]
    theirs.drop()
    assert losses[-1] < 0.7 * losses[0]


def test_checkpoints_have_the_references_bytes(reference: Reference, tmp_path: Path) -> None:
    """Of a model whose tensors come with words, and in typed fields."""
    model = mlp(15)
    first, second = model.graph.initializer[:2]
    first.doc_string = "words"
    values = numpy_helper.to_array(second)
    second.CopyFrom(helper.make_tensor(second.name, second.data_type, values.shape, values))
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    names = [tensor.name for tensor in model.graph.initializer]
    (tmp_path / "theirs").mkdir()
    theirs = reference.generate_artifacts(
        path, tmp_path / "theirs", requires_grad=names, frozen_params=[], loss="MSELoss"
    )
    ours = generate(path, tmp_path / "ours", loss="MSELoss")
    assert ours.checkpoint.read_bytes() == theirs.checkpoint.read_bytes()


class CTCOfLogits(onnxblock.Block):
    def build(self, logits: str) -> str:
        name = onnxblock._graph_utils.generate_graph_name("log_probs")
        node = helper.make_node("LogSoftmax", [logits], [name], "log_softmax", axis=-1)
        self.base.graph.node.append(node)
        return str(onnxblock.loss.CTCLoss()(name))


def test_the_reference_trains_with_ctc(reference: Reference, tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    made = generate(
        offset_model(rng.standard_normal((7, 2, 5)).astype(np.float32)),
        tmp_path,
        loss=CTCOfLogits(),
    )
    feed = {
        "z": np.zeros((7, 2, 5), np.float32),
        "targets": np.array([[1, 2, 2], [3, 0, 0]]),
        "input_lengths": np.array([7, 5]),
        "target_lengths": np.array([3, 1]),
    }
    theirs, module = reference.load(made), module_of(made)
    wanted = float(theirs.train_step(feed)[0])
    assert float(module(**feed)) == pytest.approx(wanted, rel=LOSS)
    assert max(gradient_errors(module, theirs.gradients()).values()) <= GRADIENT
    theirs.drop()


LOSSES = {
    "huber": lambda: onnxblock.loss.HuberLoss(delta=0.5),
    "kl": lambda: onnxblock.loss.KLDivLoss(reduction="batchmean"),
    "bce": lambda: onnxblock.loss.BCEWithLogitsLoss(pos_weight=[1.0, 2.0, 3.0]),
    "smoothed": lambda: onnxblock.loss.CrossEntropyLoss(
        weight=[1.0, 2.0, 0.5], label_smoothing=0.1, ignore_index=-100
    ),
}


@pytest.mark.parametrize("name", LOSSES)
def test_the_reference_trains_our_losses(name: str, reference: Reference, tmp_path: Path) -> None:
    made = generate(mlp(), tmp_path, loss=LOSSES[name]())
    rng = np.random.default_rng(1)
    x, target = rng.standard_normal((6, 4)).astype(np.float32), rng.random((6, 3))
    feed = {"x": x, "target": target.astype(np.float32)}
    if name == "smoothed":
        feed = {"x": x, "labels": np.array([0, 1, 2, -100, 1, 0])}
    theirs, module = reference.load(made), module_of(made)
    wanted = float(theirs.train_step(feed)[0])
    assert float(module(**feed)) == pytest.approx(wanted, rel=LOSS)
    assert max(gradient_errors(module, theirs.gradients()).values()) <= GRADIENT
    theirs.drop()
