"""Public models, all weights trainable: generated, trained ten steps, exported, gradients right."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from support.minilm import minilm_bytes
from support.public import MODELS, Feed

from edge_train import artifacts
from edge_train.api import CheckpointState, Module, Optimizer
from edge_train.graph import onnx_codec
from edge_train.graph.parameters import parameter_names
from edge_train.graph.prepare import tidy
from edge_train.testing import check_gradients

NAMES = (*MODELS, "minilm")
# the detector has 416 x 416 pixels by declaration: minutes of differences, for no other op
CHECKED = tuple(name for name in NAMES if name != "ddddocr_det")


def _model(name: str, rng: np.random.Generator) -> tuple[bytes, Feed, float]:
    if name == "minilm":
        return minilm_bytes(), {"ids": rng.integers(100, 20000, (2, 16))}, 1e-5
    public = MODELS[name]
    return public.bytes(), public.feed(rng), public.rate


def _outputs(data: bytes | Path, feed: Feed) -> tuple[str, np.ndarray]:
    """Name and values of a model's first output, in plain onnxruntime."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    source = str(data) if isinstance(data, Path) else data
    session = onnxruntime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
    wanted = {value.name for value in session.get_inputs()}
    name = session.get_outputs()[0].name
    given = {key: value for key, value in feed.items() if key in wanted}
    assert set(given) == wanted
    return name, session.run([name], given)[0]


@pytest.mark.parametrize("name", NAMES)
def test_trains_and_exports(name: str, tmp_path: Path, rng: np.random.Generator) -> None:
    data, feed, rate = _model(name, rng)
    main, before = _outputs(data, feed)
    noise = rng.standard_normal(before.shape).astype(np.float32)
    target = before + np.float32(0.1 * max(float(np.abs(before).std()), 1e-3)) * noise
    artifacts.generate_artifacts(
        data,
        loss=artifacts.LossType.MSELoss,
        optimizer=artifacts.OptimType.AdamW,
        artifact_directory=tmp_path,
        loss_input_names=[main],
    )
    module = Module(
        tmp_path / "training_model.onnx",
        CheckpointState.load_checkpoint(tmp_path / "checkpoint"),
        tmp_path / "eval_model.onnx",
    )
    optimizer = Optimizer(tmp_path / "optimizer_model.onnx", module)
    optimizer.set_learning_rate(rate)
    names = module.input_names()
    batch = {key: feed[key] for key in names if key in feed}
    batch[next(key for key in names if key not in feed)] = target
    losses = []
    for _ in range(10):
        module.lazy_reset_grad()
        losses.append(float(module(**batch)))
        assert optimizer.step()
    assert losses[-1] < losses[0], losses
    module.export_model_for_inferencing(tmp_path / "inference.onnx", [main])
    _, after = _outputs(tmp_path / "inference.onnx", feed)
    assert after.shape == before.shape
    assert np.isfinite(after).all()
    assert not np.array_equal(after, before)


def _some_weights(data: bytes, rng: np.random.Generator) -> list[str]:
    """Three weights, in Constant nodes too, by the names that messages and patterns use."""
    names, _ = parameter_names(tidy(onnx_codec.decode(data)).graph)
    return [str(name) for name in rng.choice(names, 3, replace=False)]


@pytest.mark.parametrize("name", CHECKED)
def test_gradients_of_three_weights_are_slopes(name: str, rng: np.random.Generator) -> None:
    data, feed, _ = _model(name, rng)
    weights = _some_weights(data, rng)
    report = check_gradients(data, feed, parameters=weights, directions=1)
    assert report.parameters
