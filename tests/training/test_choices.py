"""A run goes on bit for bit whatever Module and Optimizer were told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.digits import ARTIFACTS, digits, weights

from edge_train.api import CheckpointState, Module, Optimizer
from edge_train.errors import CheckpointError
from edge_train.kernels import native
from edge_train.trainer import Trainer

NEEDS_LIBRARY = pytest.mark.skipif(
    not native.has_ops(), reason="no native library: tools/build_kernels.py makes it"
)


def _trainer(module: dict[str, Any], optimizer: dict[str, Any], **options: Any) -> Trainer:
    state = CheckpointState.load_checkpoint(ARTIFACTS / "checkpoint")
    made = Module(ARTIFACTS / "training_model.onnx", state, **module)
    training, _ = digits()
    return Trainer(
        made,
        Optimizer(ARTIFACTS / "optimizer_model.onnx", made, **optimizer),
        (training.x[:320], training.labels[:320]),
        schedule=0.01,
        **options,
    )


@pytest.mark.parametrize(
    ("module", "optimizer"),
    [
        ({}, {"moments": "8bit"}),
        pytest.param({}, {"algorithm": "lion"}, marks=pytest.mark.slow),
        pytest.param({}, {"algorithm": "sgd"}, marks=pytest.mark.slow),
        pytest.param({"recompute": "auto"}, {}, marks=pytest.mark.slow),
        pytest.param({"fuse_optimizer": True}, {}, marks=NEEDS_LIBRARY),
        pytest.param({"trainable": ["dense*"]}, {}, marks=pytest.mark.slow),
    ],
)
def test_resume_is_bit_exact(
    tmp_path: Path, module: dict[str, Any], optimizer: dict[str, Any]
) -> None:
    whole = _trainer(module, optimizer, steps=18)
    whole.run()
    for steps in (5, 12, 18):
        part = _trainer(module, optimizer, steps=steps, folder=tmp_path)
        assert part.run().steps == steps
    assert np.array_equal(weights(whole), weights(part))


def test_a_run_of_another_choice_is_refused(tmp_path: Path) -> None:
    _trainer({}, {}, steps=2, folder=tmp_path).run()
    with pytest.raises(CheckpointError, match="belongs to another optimizer"):
        _trainer({}, {"algorithm": "lion"}, steps=4, folder=tmp_path).run()


def test_a_run_of_another_model_is_refused(tmp_path: Path) -> None:
    from support.zoo import ZOO

    case = ZOO["conv_nobn"]
    _trainer({}, {}, steps=2, folder=tmp_path).run()
    module = Module(case.training_model, CheckpointState.load_checkpoint(case.checkpoint))
    optimizer = Optimizer(case.optimizer_model, module)
    other = Trainer(module, optimizer, lambda epoch: [], steps=3, folder=tmp_path)
    with pytest.raises(CheckpointError, match=r"that of another model: it lacks .* is not in the"):
        other.run()


def test_a_nominal_state_is_filled_from_the_run(tmp_path: Path) -> None:
    from edge_train.convert.nominal import to_nominal

    first = _trainer({}, {}, steps=3, folder=tmp_path / "run")
    first.run()
    to_nominal(ARTIFACTS / "checkpoint", tmp_path / "nominal")
    state = CheckpointState.load_checkpoint(tmp_path / "nominal")
    module = Module(ARTIFACTS / "training_model.onnx", state)
    training, _ = digits()
    again = Trainer(
        module,
        Optimizer(ARTIFACTS / "optimizer_model.onnx", module),
        (training.x[:320], training.labels[:320]),
        schedule=0.01,
        steps=3,
        folder=tmp_path / "run",
    )
    assert again.run().resumed_from == 3
    assert np.array_equal(weights(first), weights(again))
