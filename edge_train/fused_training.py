"""Optimizer in backward: a training graph whose steps update the weights while they run.

Each gradient goes to the optimizer the moment it is complete and its weight has been read for the
last time (graph/release.py), and its memory is used again: there is no buffer of gradients.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import numpy as np

from edge_train.arena import Arena
from edge_train.arena_memory import Floats
from edge_train.errors import ArtifactError, RunError
from edge_train.graph import ir
from edge_train.graph.release import DONE, release_rewrite, with_native_ops
from edge_train.kernels.receiver import Delivery
from edge_train.program import TrainingProgram
from edge_train.runner import Fed, GraphRunner
from edge_train.session import Rewrite


class Pass(Protocol):
    """The updates of one training step, made part by part."""

    def update(self, name: str, gradient: Floats, loss: Floats) -> None:
        """Updates a parameter from its flat gradient, unless the step is left out."""

    def finish(self) -> None:
        """Counts the step, or the one that was left out."""


class Updating(Protocol):
    """What the program needs of an Optimizer."""

    def begin(self, arena: Arena) -> Pass:
        """Works out the numbers of the next step."""


class FusedTraining(TrainingProgram):
    """A training graph with the optimizer in its backward pass."""

    optimizer: Updating | None = None
    _delivery: Delivery

    def _run_model(self) -> ir.Model:
        return with_native_ops(super()._run_model())

    def _rewrite(self) -> Rewrite | None:
        self._delivery = Delivery()
        outputs = self._lowered.gradients
        gradients = {name: outputs[buffer] for name, buffer in self.roles.trainable.items()}
        observed = [label.observed for label in self._lowered.labels if label.observed]
        release = release_rewrite(gradients, self.results[0], observed, self._delivery.number)
        before = super()._rewrite()
        return release if before is None else lambda model: release(before(model))

    def step(self, feeds: Mapping[str, Fed], arena: Arena) -> list[Fed]:
        """Forward, backward and update in one run.

        Errors: ArtifactError without an Optimizer, RuntimeError for a second step without
        ``lazy_reset_grad`` in between, RunError when onnxruntime fails in the middle: the weights
        may then be partly updated.
        """
        if self.optimizer is None:
            raise ArtifactError(
                "fuse_optimizer=True updates the weights in each training step: make "
                "Optimizer(optimizer_model, module) before the first one"
            )
        if not arena.reset:
            raise RuntimeError(
                "fuse_optimizer=True keeps no gradients, so they cannot add up over several "
                "training steps: call lazy_reset_grad() after each, or make the Module without it"
            )
        self._follow_frozen()
        if self._bound_to is not arena:
            self._bind_training(self._runner, arena)
            self._bound_to = arena
        step = self.optimizer.begin(arena)
        arena.memory.to_host()  # parts of buffers are updated here, whatever the device
        with arena.memory.writing():
            outputs = self._conclude(self._run(feeds, step), arena)
            step.finish()
        return outputs

    def _run(self, feeds: Mapping[str, Fed], step: Pass) -> list[Fed]:
        names, delivery = list(self.roles.trainable), self._delivery
        done: list[str] = []

        def receive(index: int, gradient: Floats, loss: Floats) -> None:
            if not done:
                self._check_computed_labels(self._runner)
            step.update(names[index], gradient, loss)
            done.append(names[index])

        delivery.receiver, delivery.error = receive, None
        try:
            self._runner.run(feeds)
        except Exception as failure:
            error = delivery.error or failure
            if done and isinstance(error, Exception):
                raise RunError(
                    f"a training step with fuse_optimizer=True failed after {len(done)} of "
                    f"{len(names)} parameters were updated ({error}); go on from a checkpoint"
                ) from error
            raise error from None
        finally:
            delivery.receiver = delivery.error = None
        return self._runner.fetch(self.results)

    def _bind_gradients(self, runner: GraphRunner, arena: Arena) -> None:
        for index, name in enumerate(self.roles.trainable):
            runner.bind_output(f"{DONE}/{index}", np.empty(1, np.float32))
            # nobody is to read zeros for a gradient
            self._state.parameters[name].attach(arena.view(arena.weights, name), None)
        for label in self._computed:
            runner.bind_output(label.observed, np.empty(3, np.int64))
