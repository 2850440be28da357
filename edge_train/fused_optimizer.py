"""The updates of a training step that are made while it runs, one parameter after the other.

The arithmetic is that of Optimizer.step, part by part the same kernels: the same bits. What cannot
be the same: a step is left out as a whole only for its loss, which is known before the first
gradient; a gradient that is NaN or infinite leaves out its own parameter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

from edge_train.arena import Arena
from edge_train.arena_memory import Floats
from edge_train.checkpoint.state import OptimizerGroup
from edge_train.kernels import Steps, pool

#: updates the part of the Arena that a slice says from the gradients of that part
PartUpdate = Callable[[slice, Floats], None]


@dataclass
class Outcome:
    """What became of the updates of a training step."""

    updated: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)  # gradients that are NaN or infinite
    loss_is_finite: bool = True

    @property
    def is_whole(self) -> bool:
        """Whether every parameter was updated."""
        return self.loss_is_finite and not self.left_out


class Stepping(Protocol):
    """What is needed of an Optimizer."""

    max_grad_norm: Any

    def begin_pass(self, arena: Arena) -> FusedPass: ...
    def note_skip(self, gradients: Iterable[str]) -> None: ...


class FusedOptimizer:
    """An Optimizer in the backward pass of a Module that was made with ``fuse_optimizer=True``."""

    def __init__(self, optimizer: Stepping) -> None:
        self._optimizer = optimizer
        self._last: FusedPass | None = None
        self.refuse_clipping()

    def refuse_clipping(self) -> None:
        """ValueError where the gradients' norm is to be clipped."""
        if self._optimizer.max_grad_norm is not None:
            raise ValueError(
                f"max_grad_norm is {self._optimizer.max_grad_norm}, and the Module was made with "
                "fuse_optimizer=True: weights are updated before the norm of all gradients is "
                "known. Set max_grad_norm = None, or make the Module without fuse_optimizer"
            )

    def begin(self, arena: Arena) -> FusedPass:
        """The updates of the training step that begins."""
        self.refuse_clipping()
        self._last = self._optimizer.begin_pass(arena)
        return self._last

    def result(self) -> bool:
        """Whether the last training step updated every parameter; asked once a step."""
        last, self._last = self._last, None
        if last is None:
            raise RuntimeError(
                "step() without a training step before it: with fuse_optimizer=True the Module's "
                "training steps update the weights, and step() says what became of the last one"
            )
        if not last.outcome.is_whole:
            self._optimizer.note_skip(last.outcome.left_out)
        return last.outcome.is_whole


def attached(optimizer: Stepping, module: object) -> FusedOptimizer | None:
    """The optimizer in the module's backward pass; None for a Module without ``fuse_optimizer``."""
    attach = getattr(module, "attach_optimizer", None)
    if attach is None or not getattr(module, "fuses_optimizer", False):
        return None
    fused = FusedOptimizer(optimizer)
    attach(fused)
    return fused


class FusedPass:
    """One step: ``update`` is called for each parameter, ``finish`` at the end of the run."""

    def __init__(
        self,
        arena: Arena,
        steps: Steps,
        group: OptimizerGroup,
        update: PartUpdate,
        skips_nonfinite: bool,
        threads: int,
    ) -> None:
        self.outcome = Outcome()
        self._arena, self._steps, self._group = arena, steps, group
        self._update, self._skips = update, skips_nonfinite
        self._threads = threads

    def update(self, name: str, gradient: Floats, loss: Floats) -> None:
        """Updates a parameter in place from its flat gradient, unless the step is left out."""
        outcome = self.outcome
        if self._skips and not outcome.updated and not self._steps.all_finite(loss):
            outcome.loss_is_finite = False
        if not outcome.loss_is_finite:
            return
        if self._skips and not self._steps.all_finite(gradient):
            outcome.left_out.append(name)
            return
        self._update_parts(self._arena.slot(name), gradient)
        outcome.updated.append(name)

    def _update_parts(self, whole: slice, gradient: Floats) -> None:
        parts = pool.pieces(gradient.size)
        if self._threads == 1 or len(parts) == 1:
            self._update(whole, gradient)
            return

        def work(part: slice) -> None:
            at = slice(whole.start + part.start, whole.start + part.stop)
            self._update(at, gradient[part])

        pool.shared(self._threads).each(work, parts, joins=True)

    def finish(self) -> None:
        """Counts the step if it moved anything."""
        if self.outcome.updated:
            self._group.step += 1
