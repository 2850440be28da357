"""The models that onnxruntime-training 1.19.2 refuses, or makes artifacts of that do not run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.generated import (
    REFUSED,
    feed_of,
    generate_known,
    loss_in_double,
    slope_error,
)
from support.training import session_of
from support.zoo import GOLDEN

from edge_train.errors import UnsupportedOp

FOLDER = GOLDEN / "refused"
#: qdq: a weight that is rounded has no slope; its gradient goes straight through
TRAINABLE = tuple(name for name in REFUSED if name not in ("if_controlflow", "qdq"))
SMOKE = ("transformer_LNop_1out_opset17", "conv_bn_training_mode", "depthwise_separable")
#: along random directions, relative; in half precision the forward pass itself is that coarse, and
#: GroupNormalization keeps its statistics in float32 whatever it is fed
TOLERANCE = {"float16_mlp": 5e-3, "groupnorm18": 1e-3}


def test_the_models_are_there() -> None:
    assert len(REFUSED) == 31


def check_model(name: str, folder: Path) -> None:
    artifacts = generate_known(folder, FOLDER / name)
    module, optimizer = session_of(artifacts)
    feed = feed_of(artifacts)
    feed = {key: feed[key] for key in module.input_names()}
    module.lazy_reset_grad()
    first = float(module(**feed))
    parameters = {n: np.array(p.data) for n, p in module.state.parameters}
    gradients = {n: np.array(p.grad) for n, p in module.state.parameters if p.grad is not None}
    evaluator = loss_in_double(artifacts)
    feeds = {**feed, **parameters}
    for parameter in gradients:
        step = 1e-3 if name in TOLERANCE else 1e-4
        error = slope_error(evaluator, feeds, gradients, parameter, step)
        assert error <= TOLERANCE.get(name, 1e-4), (parameter, error)
    optimizer.set_learning_rate(0.01)
    for _ in range(10):
        optimizer.step()
        module.lazy_reset_grad()
        last = float(module(**feed))
    assert last < first
    assert np.isfinite(float(module.eval()(**feed)))


@pytest.mark.parametrize("name", SMOKE)
def test_it_trains(name: str, tmp_path: Path) -> None:
    check_model(name, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", TRAINABLE)
def test_each_trains_with_right_gradients(name: str, tmp_path: Path) -> None:
    check_model(name, tmp_path)


def test_a_quantized_weight_is_trained_straight_through(tmp_path: Path) -> None:
    """y = x Q(w)^T with the gradient of Q(w) taken for that of w."""
    artifacts = generate_known(tmp_path, FOLDER / "qdq", additional_output_names=["y"])
    module, optimizer = session_of(artifacts)
    feed = feed_of(artifacts)
    loss, y = module(**{name: feed[name] for name in module.input_names()})
    dy = 2 * (y - feed["target"]) / y.size
    gradient = np.array(module.state.parameters["w1"].grad)
    np.testing.assert_allclose(gradient, dy.T @ feed["x"], rtol=1e-5)
    optimizer.set_learning_rate(0.05)
    for _ in range(20):
        optimizer.step()
        module.lazy_reset_grad()
        last, _ = module(**feed)
    assert last < loss


def test_control_flow_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedOp, match=r"If 'if' \(domain 'ai.onnx'\)") as caught:
        generate_known(tmp_path, FOLDER / "if_controlflow")
    assert "does not depend" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []
