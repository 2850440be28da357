"""What metrics judge is the model's own tensor, whatever the loss makes of it first."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.zoo import ZOO

from edge_train.checkpoint.state import CheckpointState
from edge_train.export import write_inference_model
from edge_train.graph import onnx_codec
from edge_train.session import run_model
from edge_train.training.evaluation import Evaluator
from edge_train.training.feeds import Feeder
from edge_train.training.loading import Wanted, load
from edge_train.training.order import Reader
from edge_train.training.predictions import judged

LOGITS = ("mlp_BCEWithLogitsLoss", "mlp_CrossEntropyLoss", "mlp_MSELoss", "mlp_L1Loss")


@pytest.mark.parametrize("name", LOGITS)
def test_the_models_own_tensor_is_judged(name: str) -> None:
    case = ZOO[name]
    state = CheckpointState.load_checkpoint(case.checkpoint)
    found = judged(onnx_codec.load(case.eval_model), {name for name, _ in state.parameters})
    assert found is not None
    assert found.prediction == "y"


def test_a_metric_of_logits_sees_their_signs(tmp_path: Path, rng: np.random.Generator) -> None:
    case = ZOO["mlp_BCEWithLogitsLoss"]
    loaded = load(Wanted(case.folder, compares=True))
    inputs = loaded.module.eval().input_values()
    x = rng.standard_normal((64, *case.feed["x"].shape[1:])).astype(np.float32)
    logits = _logits(case.folder, x, tmp_path / "m.onnx")
    assert 0 < (logits > 0).mean() < 1
    target = (logits > 0).astype(np.float32)
    flipped = rng.permutation(target.size)[: target.size // 4]
    target.reshape(-1)[flipped] = 1 - target.reshape(-1)[flipped]
    reader = Reader(_Rows(x, target), 16, 0, shuffle=False)
    metrics = Evaluator(loaded.module, reader, Feeder(inputs), (_right_signs,), loaded.judged).run()
    assert metrics["_right_signs"] == pytest.approx(1 - len(flipped) / target.size)


class _Rows:
    def __init__(self, *columns: np.ndarray) -> None:
        self._columns = columns

    def __len__(self) -> int:
        return len(self._columns[0])

    def take(self, rows: np.ndarray) -> tuple[np.ndarray, ...]:
        return tuple(column[rows] for column in self._columns)


def _right_signs(prediction: np.ndarray, target: np.ndarray) -> float:
    return float(((prediction > 0) == (target > 0.5)).mean())


def _logits(folder: Path, x: np.ndarray, out: Path) -> np.ndarray:
    state = CheckpointState.load_checkpoint(folder / "checkpoint")
    write_inference_model(onnx_codec.load(folder / "eval_model.onnx"), state, ["y"], out)
    return run_model(out, [x])[0]
