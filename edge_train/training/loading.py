"""A model ready to be trained, from its artifacts, within a memory budget where there is one."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from edge_train import memory
from edge_train.checkpoint.state import CheckpointState
from edge_train.errors import ArtifactError, DataError
from edge_train.graph import onnx_codec
from edge_train.memory import Files, Plan
from edge_train.module import Module
from edge_train.optimizer import Optimizer
from edge_train.training.predictions import Judged, giving, judged


@dataclass(frozen=True)
class Wanted:
    """What to load: ``folder`` with the artifacts, the weights to start from (default: theirs).

    ``prediction`` and ``target`` name what metrics compare (default: what the loss compares);
    ``compares`` asks for it. ``module`` and ``optimizer`` are further arguments of Module and
    Optimizer. ``budget`` is for batches of ``batch`` rows, with ``sizes`` for free axes.
    """

    folder: str | os.PathLike[str]
    prefix: str = ""
    checkpoint: str | os.PathLike[str] | None = None
    compares: bool = False
    prediction: str | None = None
    target: str | None = None
    trainable: Sequence[str] | None = None
    kernels: str = "auto"
    module: Mapping[str, Any] = field(default_factory=dict)
    optimizer: Mapping[str, Any] = field(default_factory=dict)
    batch: int = 32
    budget: str | int | None = None
    sizes: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Loaded:
    """A model ready to be trained, what of it is judged, and its memory plan if asked for."""

    module: Module
    optimizer: Optimizer
    judged: Judged | None
    plan: Plan | None

    def micro_batch(self, asked: int | None) -> int | None:
        """``asked``, or less where the plan says so."""
        if self.plan is None:
            return asked
        return min(asked or self.plan.micro_batch, self.plan.micro_batch)


def load(wanted: Wanted) -> Loaded:
    """Module and Optimizer of the artifacts.

    Raises MemoryBudgetExceeded with the table, DataError where metrics have nothing to compare, and
    what CheckpointState, Module and Optimizer raise.
    """
    files = Files.of(wanted.folder, wanted.prefix)
    checkpoint = Path(wanted.checkpoint) if wanted.checkpoint is not None else files.checkpoint
    if checkpoint is None or files.optimizer_model is None:
        missing = "checkpoint" if checkpoint is None else "optimizer_model.onnx"
        raise ArtifactError(f"'{os.fspath(wanted.folder)}' has no {wanted.prefix}{missing}")
    plan = None
    options = {"trainable": wanted.trainable, "kernels": wanted.kernels, **wanted.module}
    if wanted.budget is not None:
        plan = memory.plan(
            replace(files, checkpoint=checkpoint),
            wanted.batch,
            wanted.budget,
            trainable=wanted.trainable,
            kernels=wanted.kernels,
            sizes=wanted.sizes,
        )
        options.update(plan.module)
    state = CheckpointState.load_checkpoint(checkpoint)
    found, eval_model = _eval_model(wanted, files.eval_model, state)
    module = Module(files.training_model, state, eval_model, **options)
    own = {} if plan is None else plan.optimizer
    optimizer = Optimizer(files.optimizer_model, module, **{**wanted.optimizer, **own})
    return Loaded(module, optimizer, found, plan)


def _eval_model(
    wanted: Wanted, path: Path | None, state: CheckpointState
) -> tuple[Judged | None, bytes | Path | None]:
    """What is judged, and the eval graph that gives it beside the loss."""
    if path is None or not wanted.compares:
        return None, path
    model = onnx_codec.load(path)
    names = {name for name, _ in state.parameters}
    if names.isdisjoint(value.name for value in model.graph.inputs):
        return None, path  # weights of another model: Module says so
    found = judged(model, names)
    if wanted.prediction or wanted.target:
        users = [v.name for v in model.graph.inputs if v.name not in state.parameters]
        target = wanted.target or users[-1]
        if target not in users:
            near = difflib.get_close_matches(target, users, n=1)
            raise DataError(f"target: the model has no input '{target}'; it has {near or users}")
        found = Judged(wanted.prediction or (found.prediction if found else ""), target)
    if found is None or not found.prediction:
        raise DataError(
            "metrics: nothing in the eval graph says what the prediction is; name its tensor as "
            "the prediction"
        )
    return found, onnx_codec.encode(giving(model, found.prediction))
