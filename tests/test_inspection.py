"""inspect: what is told of checkpoints and models is what is in them."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.zoo import GOLDEN, ZOO

from edge_train.api import CheckpointState, Module, Optimizer
from edge_train.errors import ArtifactError, CheckpointCorrupt, CheckpointError
from edge_train.inspection import inspect

CASE = ZOO["conv_bn_maxpool_gap"]


def only(path: Path) -> dict[str, Any]:
    (record,) = inspect(path)
    return record


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, CheckpointState]:
    """A checkpoint after a step, with moments and properties."""
    path = tmp_path_factory.mktemp("trained") / "checkpoint"
    state = CheckpointState.load_checkpoint(CASE.checkpoint)
    module = Module(CASE.training_model, state, CASE.eval_model)
    optimizer = Optimizer(CASE.optimizer_model, module)
    module(**CASE.feed)
    optimizer.step()
    state.properties["epoch"] = 3
    state.properties["note"] = "a\x1b[31m"
    state.properties["best"] = 0.5
    CheckpointState.save_checkpoint(state, path)
    return path, state


def test_a_checkpoint(trained: tuple[Path, CheckpointState]) -> None:
    path, state = trained
    told = only(path)
    assert told["kind"] == "checkpoint"
    assert told["file_bytes"] == path.stat().st_size
    assert len(told["parameters"]) == len(state.parameters)
    for row in told["parameters"]:
        parameter = state.parameters[row["name"]]
        assert row["shape"] == list(parameter.data.shape)
        assert row["dtype"] == parameter.data.dtype.name
        assert row["bytes"] == parameter.data.nbytes
        assert row["trainable"] == parameter.requires_grad
    trainable = [p.data for _, p in state.parameters if p.requires_grad]
    size = sum(array.size for array in trainable)
    total = {"tensors": len(trainable), "elements": size, "bytes": 4 * size}
    assert told["totals"]["trainable"] == total
    (group,) = told["optimizer"]
    assert (group["name"], group["step"]) == ("group0", 1)
    assert group["initial_learning_rate"] == pytest.approx(0.001)
    assert group["moments"] == {"momentum0": total, "momentum1": total}
    assert told["properties"] == {"epoch": 3, "note": "a\x1b[31m", "best": 0.5}
    assert all(name.startswith("edge_train.") for name in told["own_properties"])


def test_a_nominal_checkpoint_has_names_only() -> None:
    told = only(CASE.nominal_checkpoint)
    assert told["kind"] == "nominal checkpoint"
    assert {row["shape"] for row in told["parameters"]} == {None}
    assert told["totals"]["trainable"]["bytes"] is None


@pytest.mark.parametrize("name", ["legacy/checkpoint", "odd_types/checkpoint"])
def test_other_forms(name: str) -> None:
    """A folder of a release before 1.16; halves, doubles and strings."""
    told = only(GOLDEN / name)
    state = CheckpointState.load_checkpoint(GOLDEN / name)
    assert {row["name"] for row in told["parameters"]} == {name for name, _ in state.parameters}
    assert told["file_bytes"] > 0


@pytest.mark.parametrize("name", list(ZOO))
def test_every_model_of_the_zoo(name: str) -> None:
    case = ZOO[name]
    state = CheckpointState.load_checkpoint(case.checkpoint)
    module = Module(case.training_model, state, case.eval_model)
    training, evaluation = only(case.training_model), only(case.eval_model)
    assert training["kind"] == "training model"
    assert evaluation["kind"] == "eval model"
    for told, inputs in (
        (training, module.input_names()),
        (evaluation, module.eval().input_names()),
    ):
        assert [row["name"] for row in told["inputs"] if row["role"] == "input"] == inputs
        assert told["nodes"] <= sum(told["ops"].values())
    trained = {row["name"] for row in training["inputs"] if row["role"] == "trainable"}
    assert trained == {key for key, p in state.parameters if p.requires_grad}
    optimizer = only(case.optimizer_model)
    assert optimizer["kind"] == "optimizer model"
    assert optimizer["optimizer"]["op_type"] in ("AdamWOptimizer", "SGDOptimizerV2")


def test_a_folder_gives_all_that_is_in_it(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("not a model")
    (tmp_path / ".hidden").write_bytes(CASE.checkpoint.read_bytes())
    (tmp_path / "model.onnx").write_bytes(CASE.model.read_bytes())
    (tmp_path / "step-7").write_bytes(CASE.checkpoint.read_bytes())
    for name in ("before-1.16", ".before-1.16"):
        shutil.copytree(GOLDEN / "legacy" / "checkpoint", tmp_path / name)
    (tmp_path / "empty").mkdir()
    assert [(Path(r["path"]).name, r["kind"]) for r in inspect(tmp_path)] == [
        ("before-1.16", "checkpoint"),
        ("model.onnx", "model"),
        ("step-7", "checkpoint"),
    ]


def test_a_model_under_another_name(tmp_path: Path) -> None:
    (tmp_path / "model").write_bytes(CASE.model.read_bytes())
    (tmp_path / "checkpoint.onnx").write_bytes(CASE.checkpoint.read_bytes())
    assert only(tmp_path / "model")["kind"] == "model"
    assert only(tmp_path / "checkpoint.onnx")["kind"] == "checkpoint"


def test_weights_of_a_forward_model(tmp_path: Path) -> None:
    told = only(CASE.model)
    sizes = {row["name"]: row["bytes"] for row in told["initializers"]}
    state = CheckpointState.load_checkpoint(CASE.checkpoint)
    for name, parameter in state.parameters:
        assert sizes[name] == np.asarray(parameter.data).nbytes


@pytest.mark.parametrize(
    ("name", "error", "words"),
    [
        ("none", FileNotFoundError, "none"),
        ("empty.onnx", ArtifactError, "empty"),
        ("empty", ArtifactError, "neither a checkpoint nor an ONNX model"),
        ("text", ArtifactError, "neither a checkpoint nor an ONNX model"),
        ("text.onnx", ArtifactError, "text.onnx"),
        ("torn", CheckpointCorrupt, "torn"),
        ("pipe", CheckpointError, "device or a pipe"),
        ("pipe.onnx", CheckpointError, "device or a pipe"),
        ("folder", ArtifactError, "holds no checkpoint"),
    ],
)
def test_what_cannot_be_read(name: str, error: type[Exception], words: str, tmp_path: Path) -> None:
    for stem in ("empty", "empty.onnx"):
        (tmp_path / stem).write_bytes(b"")
    for stem in ("text", "text.onnx"):
        (tmp_path / stem).write_text("no model at all\n" * 9)
    (tmp_path / "torn").write_bytes(CASE.checkpoint.read_bytes()[:500])
    (tmp_path / "folder").mkdir()
    for stem in ("pipe", "pipe.onnx"):
        os.mkfifo(tmp_path / stem)
    with pytest.raises(error, match=words):
        inspect(tmp_path / name)
