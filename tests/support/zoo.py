"""The golden runs: models, the artifacts made of them and what the reference did with them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Arrays = dict[str, Array]

GOLDEN = Path(__file__).parents[1] / "golden"
# Draws random numbers: comparable in distribution only.
STOCHASTIC = ("transformer_decomposedLN_erf_dropout",)


def _with_prefix(arrays: Arrays, prefix: str) -> Arrays:
    return {key[len(prefix) :]: value for key, value in arrays.items() if key.startswith(prefix)}


@dataclass(frozen=True)
class Artifacts:
    """The folder of one set of training artifacts."""

    name: str
    folder: Path

    @property
    def training_model(self) -> Path:
        return self.folder / "training_model.onnx"

    @property
    def eval_model(self) -> Path:
        return self.folder / "eval_model.onnx"

    @property
    def optimizer_model(self) -> Path:
        return self.folder / "optimizer_model.onnx"

    @property
    def checkpoint(self) -> Path:
        return self.folder / "checkpoint"

    @property
    def nominal_checkpoint(self) -> Path:
        return self.folder / "nominal_checkpoint"


@dataclass(frozen=True)
class Case(Artifacts):
    """One model of the zoo with the reference's ten steps (``run.npz``)."""

    @property
    def model(self) -> Path:
        """The forward model that the artifacts were generated from."""
        return self.folder / "model.onnx"

    @cached_property
    def generate(self) -> dict[str, Any]:
        """Arguments of generate_artifacts: requires_grad, frozen_params, loss."""
        options: dict[str, Any] = json.loads((self.folder / "generate.json").read_text())
        return options

    @cached_property
    def run(self) -> Arrays:
        with np.load(self.folder / "run.npz") as stored:
            return {key: stored[key] for key in stored.files}

    @property
    def feed(self) -> Arrays:
        """The batch, by name of the user input."""
        return _with_prefix(self.run, "feed.")

    @property
    def losses(self) -> Array:
        return self.run["losses"]

    @property
    def steps(self) -> int:
        return len(self.losses)

    def params(self, step: int) -> Arrays:
        """Every parameter before ``step`` (after the last one: ``step == steps``)."""
        prefix = "final.param." if step == self.steps else f"step{step}.param."
        return _with_prefix(self.run, prefix)

    def grads(self, step: int) -> Arrays:
        return _with_prefix(self.run, f"step{step}.grad.")

    @property
    def final(self) -> Arrays:
        return self.params(self.steps)

    @property
    def eval_loss(self) -> float:
        return float(self.run["eval_loss"])

    @property
    def learning_rate(self) -> float:
        return float(self.run["learning_rate"])

    @property
    def stochastic(self) -> bool:
        return self.name in STOCHASTIC


@dataclass(frozen=True)
class Seizure(Artifacts):
    """Artifacts of a real app and the reference's twenty steps (``reference_run.npz``)."""

    @cached_property
    def run(self) -> Arrays:
        with np.load(self.folder / "reference_run.npz") as stored:
            return {key: stored[key] for key in stored.files}

    @property
    def feed(self) -> Arrays:
        return {"input": self.run["x"], "labels": self.run["y"]}

    @property
    def losses(self) -> Array:
        return self.run["losses"]

    @property
    def first_grads(self) -> Arrays:
        """Gradients of the first step."""
        return _with_prefix(self.run, "grad.")

    @property
    def final(self) -> Arrays:
        """The trainable parameters after the last step."""
        return _with_prefix(self.run, "param.")

    @property
    def eval_loss(self) -> float:
        return float(self.run["eval_loss"])


def _cases() -> dict[str, Case]:
    folders = sorted(path.parent for path in (GOLDEN / "zoo").glob("*/run.npz"))
    return {folder.name: Case(folder.name, folder) for folder in folders}


ZOO: dict[str, Case] = _cases()
SEIZURE = Seizure("seizure", GOLDEN / "seizure")
# Names for pytest.mark.parametrize: all, and those whose training is compared number by number.
ZOO_MODELS = tuple(ZOO)
DETERMINISTIC = tuple(name for name in ZOO if name not in STOCHASTIC)
