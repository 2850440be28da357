"""The loop itself: steps, evaluations, saves, until there is a reason to stop."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from edge_train.errors import DataError
from edge_train.governor import Governor, StopReason
from edge_train.module import Module
from edge_train.optimizer import Optimizer
from edge_train.progress import StepRecord
from edge_train.schedules import Schedule
from edge_train.training.accumulation import run_batch
from edge_train.training.evaluation import LOSS, Evaluator
from edge_train.training.feeds import Feeder, holes
from edge_train.training.keeper import Keeper
from edge_train.training.order import Position, Reader
from edge_train.training.process import resident_bytes
from edge_train.training.run_state import Best, RunState

#: called after each step; a true answer ends the run
Callback = Callable[[StepRecord], "bool | StopReason | None"]


class Shows(Protocol):
    """What the loop needs of ``edge_train.progress.Progress``. A ``sync()``, where there is one, is
    called before each save.
    """

    def start(self, total: int | None, step: int = 0, **fields: Any) -> None: ...
    def step(self, record: StepRecord) -> None: ...
    def event(self, name: str, **fields: Any) -> None: ...
    def close(self, result: Any = None) -> None: ...


@dataclass(frozen=True)
class Goal:
    """When a run is done, how often it is judged, and by what."""

    epochs: int | None
    steps: int | None
    evaluate_every: int | None = None
    best: str = LOSS
    max_skipped: int = 100


@dataclass
class Loop:
    """One attempt at a run; ``run`` is where it is."""

    module: Module
    optimizer: Optimizer
    schedule: Schedule | None
    reader: Reader
    feeder: Feeder
    evaluator: Evaluator | None
    goal: Goal
    keeper: Keeper
    governor: Governor
    progress: Shows | None
    callbacks: Sequence[Callback]
    run: RunState
    detail: str = ""

    def drive(self) -> StopReason:
        """Trains until there is a reason to stop, and evaluates the end; returns the reason."""
        self.module.train()
        before = self.run
        reason = self._ended_before() or self._steps()
        if reason is StopReason.COMPLETED and self.run.step < 2 * self.run.skipped_in_a_row:
            # a short run may diverge and end before max_skipped
            reason, self.detail = StopReason.FAILED, _never_finite(self.run.skipped_in_a_row)
        is_news = self.run.step != before.step or not before.finished
        if reason.finished and is_news and self.run.evaluated != self.run.step:
            self._evaluate(regular=self._is_at_epochs_end())
        self.run = replace(self.run, finished=reason.value if reason.finished else "")
        return reason

    def _is_at_epochs_end(self) -> bool:
        ended = self.run.position.epoch > self.run.epoch
        return ended and self.goal.evaluate_every is None

    def _ended_before(self) -> StopReason | None:
        """A schedule that ended the run has ended it."""
        ended = (StopReason.TARGET_REACHED, StopReason.NO_PROGRESS)
        return next((reason for reason in ended if reason.value == self.run.finished), None)

    def _steps(self) -> StopReason:
        batches = self.reader.read(self.run.position)
        while not self._is_done(self.run.position):
            taken = next(batches, None)
            if taken is None:
                self.detail = f"the data ended after {self.run.step} steps"
                return StopReason.COMPLETED
            batch, epoch, after = taken
            reason = self._between_epochs(epoch)
            if reason is not None:
                return reason
            if self._is_done(Position(epoch)):
                break
            reason = self._step(self.feeder.feed(batch), epoch, after)
            if reason is not None:
                return reason
        return StopReason.COMPLETED

    def _is_done(self, position: Position) -> bool:
        goal = self.goal
        by_steps = goal.steps is not None and self.run.step >= goal.steps
        return by_steps or (goal.epochs is not None and position.epoch >= goal.epochs)

    def _between_epochs(self, epoch: int) -> StopReason | None:
        due = epoch > self.run.epoch and self.goal.evaluate_every is None
        if due and self.run.evaluated != self.run.step:
            return self._evaluate()
        return None

    # ---- a step ----------------------------------------------------------------------------

    def _step(self, feeds: dict[str, Any], epoch: int, after: Position) -> StopReason | None:
        start = time.perf_counter()
        step = self.run.step
        if self.schedule is not None:
            self.optimizer.set_learning_rate(self.schedule.rate(step))
        lr = self.optimizer.get_learning_rate()
        loss = self._batch(feeds)
        made = self.optimizer.step()
        if not made and not self.run.skipped and self.progress is not None:
            text = f"step {step + 1}, its loss or a gradient is no finite number{holes(feeds)}"
            self.progress.event("skipped", step=step + 1, text=text)
        seconds = time.perf_counter() - start
        self._count(loss, made, epoch, after, seconds)
        rows = self.feeder.rows(feeds)
        temperature = self.governor.temperature
        record = StepRecord(
            step + 1, epoch + 1, loss, lr, rows, seconds, resident_bytes(), temperature
        )
        return self._after_step(record)

    def _batch(self, feeds: dict[str, Any]) -> float:
        run = self.run
        try:
            return run_batch(self.module, self.feeder, feeds, run.seed, run.step)
        except (IndexError, TypeError) as error:
            raise DataError(
                f"the batch of step {run.step + 1} cannot be learned: {error}"
            ) from error

    def _count(self, loss: float, made: bool, epoch: int, after: Position, seconds: float) -> None:
        run, finite = self.run, math.isfinite(loss)
        self.run = replace(
            run,
            step=run.step + 1,
            epoch=epoch,
            position=after,
            skipped=run.skipped + (not made),
            skipped_in_a_row=0 if made else run.skipped_in_a_row + 1,
            seconds=run.seconds + seconds,
            loss=loss if finite else run.loss,
            loss_sum=run.loss_sum + (loss if finite else 0.0),
            loss_count=run.loss_count + finite,
        )

    def _after_step(self, record: StepRecord) -> StopReason | None:
        if self.progress is not None:
            self.progress.step(record)
        asked = [self._called(callback, record) for callback in self.callbacks]
        reason = next((answer for answer in asked if answer is not None), None)
        if reason is None and self.run.skipped_in_a_row >= self.goal.max_skipped:
            self.detail = _never_finite(self.run.skipped_in_a_row)
            return StopReason.FAILED
        every = self.goal.evaluate_every
        if every and self.run.step % every == 0:
            # whatever a callback says: a resumed run does not come by this step again
            reason = self._evaluate() or reason
        self.keeper.after_step(self.run)
        verdict = self.governor.check(self.run.step)
        self.detail = verdict.detail if verdict.stop and reason is None else self.detail
        return reason or verdict.stop

    def _called(self, callback: Callback, record: StepRecord) -> StopReason | None:
        answer = callback(record)
        if isinstance(answer, StopReason):
            return answer
        return StopReason.REQUESTED if answer else None

    # ---- an evaluation ---------------------------------------------------------------------

    def _evaluate(self, regular: bool = True) -> StopReason | None:
        """Judges the model, keeps it if it is the best, tells the schedule.

        One that is not ``regular`` is for people: a run that is made longer knows nothing of it.
        """
        run = self.run
        mean = run.loss_sum / run.loss_count if run.loss_count else math.nan
        found = {LOSS: mean} if self.evaluator is None else self.evaluator.run()
        larger = self.evaluator is not None and self.evaluator.larger_is_better(self.goal.best)
        value = found[self.goal.best]
        self.run = replace(run, metrics=found)
        if regular:
            self.run = replace(self.run, evaluated=run.step, loss_sum=0.0, loss_count=0)
        if self.evaluator is not None and _is_better(value, run.best, self.goal.best, larger):
            self.run = replace(self.run, best=Best(self.goal.best, value, run.step))
            self.keeper.save_best(self.run)
        if self.progress is not None and self.evaluator is not None:
            words = ", ".join(f"{name} {number:.4g}" for name, number in found.items())
            text = f"step {run.step}: {words}"
            self.progress.event("evaluation", step=run.step, metrics=found, text=text)
        if self.schedule is None or not regular:
            return None
        return self.schedule.observe(value, larger)


def _never_finite(steps: int) -> str:
    return (
        f"{steps} steps in a row had a NaN or infinite loss or gradient; the weights are those "
        "before them. Lower the rate, clip gradients, look at the data"
    )


def _is_better(value: float, best: Best | None, metric: str, larger: bool) -> bool:
    if best is None or best.metric != metric:  # another one was watched before a resume
        return math.isfinite(value)
    return value > best.value if larger else value < best.value
