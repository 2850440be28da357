"""The loop itself: steps, evaluations, saves, until there is a reason to stop."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from edge_train.errors import DataError
from edge_train.governor import Governor, StopReason, Verdict
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

#: what a schedule ends a run with; a later start keeps to it
_ENDED = (StopReason.TARGET_REACHED, StopReason.NO_PROGRESS)
#: called after each step; a true answer ends the run
Callback = Callable[[StepRecord], "bool | StopReason | None"]


class Shows(Protocol):
    """What the loop needs of ``edge_train.progress.Progress``. A ``sync()``, where there is one, is
    called before each save; a ``guard(folder, hold)`` gets what tells whether the folder is lost.
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


class _Stopped(Exception):
    """The governor asks for a stop in the midst of an evaluation."""

    def __init__(self, verdict: Verdict) -> None:
        super().__init__(verdict.detail)
        self.verdict = verdict


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
    first: int = field(init=False)  # the step where this attempt began

    def __post_init__(self) -> None:
        self.first = self.run.step

    def drive(self) -> StopReason:
        """Trains until there is a reason to stop, and evaluates the end; returns the reason."""
        self.module.train()
        before = self.run
        if self.run.missed:
            self.run = self._with_best(self.run)
        reason = self._ended_before() or self._make_up() or self._steps()
        if reason is StopReason.COMPLETED and self.run.step < 2 * self.run.skipped_in_a_row:
            # a short run may diverge and end before max_skipped
            reason, self.detail = StopReason.FAILED, _never_finite(self.run.skipped_in_a_row)
        is_news = self.run.step != before.step or not before.finished
        if reason.finished and is_news and self.run.evaluated != self.run.step:
            reason = self._evaluate(regular=self._is_at_epochs_end()) or reason
        self.run = replace(self.run, finished=reason.value if reason.finished else "")
        return reason

    def _is_at_epochs_end(self) -> bool:
        ended = self.run.position.epoch > self.run.epoch
        return ended and self.goal.evaluate_every is None

    def _ended_before(self) -> StopReason | None:
        """A schedule that ended the run has ended it, unless its settings are others now."""
        run = self.run
        reason = next((reason for reason in _ENDED if reason.value == run.finished), None)
        if reason is None or not run.by_schedule:
            return reason
        again = self._observed(run) if self.goal.best in run.metrics else None
        if again is None:
            self.run = replace(run, finished="", by_schedule=False)
            text = f"{reason.value.replace('_', ' ')} at step {run.step} no longer holds: going on"
            self._tell("note", text=text)
        return again

    def _make_up(self) -> StopReason | None:
        """The evaluation that a stop, an exception or a kill came in between."""
        run, every = self.run, self.goal.evaluate_every
        if every and run.step and run.step % every == 0 and run.evaluated != run.step:
            return self._evaluate()
        return None

    def _steps(self) -> StopReason:
        batches = self.reader.read(self.run.position)
        while not self._is_done(self.run.position):
            # before the next batch is taken: what it draws from random numbers is not saved then
            reason = self._between_epochs(self.run.position.epoch)
            if reason is not None:
                return reason
            taken = next(batches, None)
            if taken is None:
                return self._data_ended()
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

    def _data_ended(self) -> StopReason:
        if not self.run.step:
            raise DataError(
                "the data gave no batch: expected at least one, got none in the first epoch. Look "
                "at its rows and at drop_last; an iterator that was used up before gives nothing"
            )
        self.detail = f"the data ended after {self.run.step} steps"
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
        if not made and not self.run.skipped:
            text = f"step {step + 1}, its loss or a gradient is no finite number{holes(feeds)}"
            self._tell("skipped", step=step + 1, text=text)
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
            missed=False,
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
        self.keeper.after_step(self.run)  # before an evaluation: it may be long
        verdict = self.governor.check(self.run.step)
        self.detail = verdict.detail if verdict.stop and reason is None else self.detail
        every = self.goal.evaluate_every
        if verdict.stop is None and every and self.run.step % every == 0:
            reason = self._evaluate() or reason  # whatever a callback says
        return reason or verdict.stop

    def _tell(self, name: str, **fields: Any) -> None:
        if self.progress is not None:
            self.progress.event(name, **fields)

    def _called(self, callback: Callback, record: StepRecord) -> StopReason | None:
        answer = callback(record)
        if isinstance(answer, StopReason):
            return answer
        return StopReason.REQUESTED if answer else None

    # ---- an evaluation ---------------------------------------------------------------------

    def _evaluate(self, regular: bool = True) -> StopReason | None:
        """Judges the model, keeps it if it is the best, tells the schedule.

        One that is not ``regular`` is for people: a run that is made longer knows nothing of it.
        A stop abandons it, and leaves no trace of it: a later start makes it up.
        """
        run = self.run
        try:
            found = self._found()
        except _Stopped as stopped:
            self.detail = stopped.verdict.detail
            return stopped.verdict.stop
        judged = replace(run, metrics=found, missed=False)
        if regular:
            judged = replace(judged, evaluated=run.step, loss_sum=0.0, loss_count=0)
        judged = self._with_best(judged)
        reason = self._observed(judged) if regular else None
        self.run = replace(judged, by_schedule=reason is not None)
        if self.evaluator is not None:
            words = ", ".join(f"{name} {number:.4g}" for name, number in found.items())
            text = f"step {run.step}: {words}"
            self._tell("evaluation", step=run.step, metrics=found, text=text)
        return reason

    def _found(self) -> dict[str, float]:
        """The metrics now; _Stopped."""
        if self.evaluator is not None:
            return self.evaluator.run(self._look)
        run = self.run
        return {LOSS: run.loss_sum / run.loss_count if run.loss_count else math.nan}

    def _look(self) -> None:
        """Pauses and stops, before each batch of an evaluation."""
        verdict = self.governor.check(self.run.step, is_step=False)
        if verdict.stop is StopReason.TIME_BUDGET and self.run.step == self.first:
            return  # where the budget is shorter than an evaluation no start would get past it
        if verdict.stop is not None:
            raise _Stopped(verdict)

    def _with_best(self, judged: RunState) -> RunState:
        """With the best evaluation whose weights are kept, this one if it is."""
        name, value = self.goal.best, judged.metrics.get(self.goal.best)
        if self.evaluator is None or value is None:
            return judged
        if not _is_better(value, judged.best, name, self.evaluator.larger_is_better(name)):
            return judged
        better = replace(judged, best=Best(name, value, judged.step), missed=False)
        if self.keeper.save_best(better):
            return better
        return replace(judged, best=judged.best if self.keeper.has_best else None, missed=True)

    def _observed(self, judged: RunState) -> StopReason | None:
        """What the schedule says; one that ends the run is put back to before it was told.

        So a start with another target or ``stop_after`` can ask it again.
        """
        if self.schedule is None:
            return None
        name, before = self.goal.best, self.schedule.state()
        larger = self.evaluator is not None and self.evaluator.larger_is_better(name)
        reason = self.schedule.observe(judged.metrics[name], larger)
        if reason in _ENDED:
            self.schedule.restore(before)
        return reason


def _never_finite(steps: int) -> str:
    return (
        f"{steps} steps in a row had a NaN or infinite loss or gradient; the weights are those "
        "before them. Lower the rate, clip gradients, look at the data"
    )


def _is_better(value: float, best: Best | None, metric: str, larger: bool) -> bool:
    if best is None or best.metric != metric:  # another one was watched before a resume
        return math.isfinite(value)
    return value > best.value if larger else value < best.value
