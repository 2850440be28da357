"""Trainer: the training loop of a device that may be switched off at any time.

Data -> micro-batches -> Module -> Optimizer, the rate from a schedule; evaluation, saves by time,
heat and battery (governor), progress. The parts are in ``edge_train/training``.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import Any

from edge_train.counts import check_count
from edge_train.data.classes import CLASSES, class_notes, classes_of, left_out, numbered_like
from edge_train.data.sources import source_of
from edge_train.errors import DataError, NominalStateError
from edge_train.governor import Governor, StopReason
from edge_train.metrics import UserMetric
from edge_train.module import Module
from edge_train.optimizer import Optimizer, check_number
from edge_train.schedules import Schedule, constant
from edge_train.training.checks import (
    check_fits,
    check_repeats,
    evaluation_inputs,
    evaluation_notes,
    goal,
    micro_batch_notes,
    teller,
    training_inputs,
)
from edge_train.training.evaluation import LOSS, Evaluator, watched
from edge_train.training.feeds import Feeder
from edge_train.training.keeper import Keeper
from edge_train.training.labels import check_labels
from edge_train.training.loading import Wanted, load
from edge_train.training.loop import Callback, Loop, Shows
from edge_train.training.order import Reader
from edge_train.training.predictions import Judged
from edge_train.training.process import peak_bytes
from edge_train.training.result import Result
from edge_train.training.run_folder import RunFolder
from edge_train.training.run_state import RunState
from edge_train.training.signals import stopping

__all__ = ["Result", "StopReason", "Trainer"]

#: a schedule, or a function from the number of steps to one, or a constant rate
AnySchedule = Schedule | Callable[[int], Schedule] | float


class Trainer:
    """Trains ``module`` with ``optimizer`` on ``data`` until ``epochs`` or ``steps`` are done.

    >>> trainer = Trainer(module, optimizer, (images, labels), epochs=10, folder="run")
    >>> trainer.run().reason
    <StopReason.COMPLETED: 'completed'>

    Data: ``data`` is what ``edge_train.data.source_of`` takes; ``inputs`` maps model inputs to the
    data's arrays, ``scale`` multiplies them. ``batch_size`` rows make an update; ``micro_batch``
    rows go through the graph at once, their gradients add up to the same update (BatchNorm
    normalises by micro-batch). Batches of an iterable are taken as they come. A NaN or infinity in
    any micro-batch drops the whole update; ``max_skipped`` of these in a row end the run (FAILED).

    Rate: ``schedule`` is a Schedule, a function of the total steps that makes one
    (``partial(cosine, 0.01)``), or a number; None leaves the optimizer's rate.

    Judging: ``evaluation`` is data like ``data``; the loss and ``metrics`` are taken on it every
    ``evaluate_every`` steps (None: after each epoch) and at the end. ``best`` names the metric that
    chooses the best weights and that the schedule watches: the first of ``metrics`` unless it is
    said, the loss without any. ``judged`` says which output of the
    eval graph metrics compare with which input.

    Keeping: with a ``folder``, the state is saved every ``save_every`` seconds and at a stop, and a
    later run with the same arguments goes on from it, batch for batch, bit for bit (as long as
    an iterable or dataset gives the same rows again). ``fresh`` throws the folder's run away. A
    relative folder is that of the working folder at the time when the Trainer is made.

    ``callbacks`` get each StepRecord; a true answer or a StopReason ends the run. SIGINT, SIGTERM
    and SIGHUP let the step finish, save and end it.

    Raises ValueError, TypeError and DataError for arguments that do not fit each other.
    """

    def __init__(
        self,
        module: Module,
        optimizer: Optimizer,
        data: Any,
        *,
        schedule: AnySchedule | None = None,
        batch_size: int = 32,
        micro_batch: int | None = None,
        epochs: int | None = None,
        steps: int | None = None,
        seed: int = 0,
        shuffle: bool = True,
        drop_last: bool = False,
        inputs: Mapping[str, str] | None = None,
        scale: Mapping[str, float] | None = None,
        evaluation: Any = None,
        metrics: Sequence[str | UserMetric] = (),
        evaluate_every: int | None = None,
        best: str | None = None,
        judged: Judged | None = None,
        folder: str | os.PathLike[str] | None = None,
        save_every: float = 300.0,
        fresh: bool = False,
        max_skipped: int = 100,
        callbacks: Sequence[Callback] = (),
        governor: Governor | None = None,
        progress: Shows | None = None,
        notes: Sequence[str] = (),
    ) -> None:
        self.module, self.optimizer = module, optimizer
        self.governor, self._own_governor = governor or Governor(), governor is None
        self._goal = goal(epochs, steps, evaluate_every, watched(best, metrics), max_skipped)
        self._feeder = Feeder(training_inputs(module), inputs or {}, scale or {}, micro_batch)
        size = check_count("batch_size", batch_size, 1)
        self._reader = Reader(
            source_of(data), size, check_count("seed", seed, 0), shuffle, drop_last
        )
        self._feeder = self._feeder.for_batches(self._reader)
        check_fits(self._feeder, self._reader)
        check_labels(module.label_ranges, self._feeder, self._reader.source)
        check_repeats(data, "epochs", epochs)
        check_repeats(evaluation, "evaluation", 2)
        self._evaluator = self._make_evaluator(evaluation, metrics, judged)
        self._schedule = self._make_schedule(schedule)
        self._folder = None if folder is None else RunFolder(folder)
        self._save_every, self._fresh = check_number("save_every", save_every), fresh
        self._callbacks, self._progress = tuple(callbacks), progress
        self._run = RunState(self._reader.seed, self._reader.rows, size)
        classes = classes_of(self._reader.source)
        if classes:
            module.state.private[CLASSES] = json.dumps(classes, ensure_ascii=False)
        own_notes = notes or tuple(micro_batch_notes(module, self._feeder, size))
        self._notes = (*class_notes(classes), *own_notes, *evaluation_notes(self._evaluator))

    @classmethod
    def from_artifacts(
        cls,
        artifacts: str | os.PathLike[str],
        data: Any,
        *,
        memory_budget: str | int | None = None,
        checkpoint: str | os.PathLike[str] | None = None,
        trainable: Sequence[str] | None = None,
        kernels: str = "auto",
        **options: Any,
    ) -> Trainer:
        """A Trainer for the folder that ``generate_artifacts`` wrote.

        ``checkpoint`` are the weights to start from (default: the folder's), ``trainable`` and
        ``kernels`` go to Module, ``options`` are those of Trainer. ``memory_budget`` ("200MB") is
        for all that training adds to the process: ``edge_train.memory.plan`` chooses the
        micro-batch, or MemoryBudgetExceeded tells what there is to do.
        """
        loaded = load(
            Wanted(
                artifacts,
                checkpoint=checkpoint,
                compares=bool(options.get("metrics")),
                trainable=trainable,
                kernels=kernels,
                batch=options.get("batch_size", 32),
                budget=memory_budget,
            )
        )
        options["micro_batch"] = loaded.micro_batch(options.get("micro_batch"))
        options.setdefault("judged", loaded.judged)
        options.setdefault("notes", () if loaded.plan is None else loaded.plan.notes)
        return cls(loaded.module, loaded.optimizer, data, **options)

    @property
    def total_steps(self) -> int | None:
        """The updates of the whole run; None where only the data's end tells."""
        batches, goal = self._reader.batches, self._goal
        by_epochs = None if goal.epochs is None or batches is None else goal.epochs * batches
        known = [count for count in (goal.steps, by_epochs) if count is not None]
        return min(known) if known else None

    def stop(self) -> None:
        """Ends the run after the present step, saved; may be called from a callback or a thread."""
        self.governor.request_stop(StopReason.REQUESTED)

    def evaluate(self) -> dict[str, float]:
        """The loss and the metrics on the evaluation data now; DataError without such data."""
        if self._evaluator is None:
            raise DataError("there is no evaluation data: pass evaluation=")
        return self._evaluator.run()

    def run(self) -> Result:
        """Trains, from where the folder's run is; returns why and where it ended.

        Called again it goes on from there, without a folder too.
        An exception of the data, a callback or onnxruntime leaves the run saved at its last step.
        CheckpointError where the folder cannot be used.
        """
        with ExitStack() as stack:
            if self._own_governor:  # the last one may have been told to stop
                self.governor = Governor()
            stack.enter_context(stopping(self.governor.request_stop))
            fresh = self._fresh
            if fresh:  # a mistake must not cost the run that is there
                self._check_ready()
            if self._folder is not None:
                stack.enter_context(self._folder.opened())
                if fresh:
                    self._folder.clear()
            self._fresh = False
            return self._attempt(is_checked=fresh)

    def _check_ready(self) -> None:
        """What shows only with the weights that are trained: their values, and the metrics' fit."""
        if self.module.state.is_nominal:
            raise NominalStateError(
                "the checkpoint is nominal (names without data): give one with weights, or fill it "
                "first (edge-train convert fill, Module.copy_buffer_to_parameters)"
            )
        if self._evaluator is not None:
            self._evaluator.rehearse()

    def _attempt(self, is_checked: bool) -> Result:
        keeper = Keeper(
            self._folder,
            self.module,
            self.optimizer,
            self._schedule,
            self._save_every,
            self.tell,
            getattr(self._progress, "sync", lambda: None),
            self.stop,
        )
        run = keeper.take_up(self._run)
        if not is_checked:
            self._check_ready()
        loop = Loop(
            self.module,
            self.optimizer,
            self._schedule,
            self._reader,
            self._feeder,
            self._evaluator,
            self._goal,
            keeper,
            self.governor,
            self._progress,
            self._callbacks,
            run,
        )
        if self.governor.on_event is None:
            self.governor.on_event = teller(self._progress)
        guard = getattr(self._progress, "guard", None)
        if self._folder is not None and guard is not None:
            guard(self._folder.path, self._folder.hold)
        if self._progress is not None:
            self._progress.start(self.total_steps, run.step)
        for note in self._notes:
            self.tell("note", text=note)
        try:
            reason = loop.drive()
        except BaseException as error:
            self._end_badly(loop, error)
            raise
        finally:
            self._run = loop.run
        keeper.save(loop.run)
        result = self._result(loop, reason, run.step)
        if self._progress is not None:
            self._progress.close(result)
        return result

    def _end_badly(self, loop: Loop, error: BaseException) -> None:
        """The steps that were made are worth keeping whatever came after them."""
        if isinstance(error, Exception) and loop.run.step:
            with suppress(Exception):
                loop.keeper.save(loop.run)
        if self._progress is not None:
            with suppress(Exception):
                self._progress.close({"reason": StopReason.FAILED, "detail": repr(error)})

    def _result(self, loop: Loop, reason: StopReason, resumed_from: int) -> Result:
        run, summary, held = loop.run, self.governor.summary, self._evaluator
        return Result(
            reason=reason,
            steps=run.step,
            epoch=run.epoch + 1,
            loss=run.loss,
            detail=loop.detail,
            resumed_from=resumed_from,
            skipped=run.skipped,
            seconds=run.seconds,
            paused={key.value: seconds for key, seconds in summary.paused.items()},
            metrics=run.metrics,
            best=run.best,
            peak_memory=peak_bytes(),
            throttled=summary.throttled,
            bytes_written=loop.keeper.bytes_written,
            saved=loop.keeper.saved,
            failed_save=loop.keeper.failed,
            unreadable=left_out(self._reader.source, held.reader.source if held else None),
        )

    def tell(self, name: str, **fields: Any) -> None:
        """An event for the progress and its log."""
        if self._progress is not None:
            self._progress.event(name, **fields)

    def _make_evaluator(
        self, data: Any, metrics: Sequence[str | UserMetric], judged: Judged | None
    ) -> Evaluator | None:
        if data is None:
            if metrics or self._goal.best != LOSS:
                raise ValueError("metrics and best are about evaluation data: pass evaluation=")
            return None
        size = self._feeder.micro_batch or self._reader.batch_size
        # a graph of fixed size cannot judge the rows of a last, smaller batch
        fixed = self._feeder.fixed_rows is not None
        rows = numbered_like(source_of(data), classes_of(self._reader.source))
        reader = Reader(rows, size, 0, shuffle=False, drop_last=fixed)
        feeder = self._feeder.for_graph(evaluation_inputs(self.module)).for_batches(reader)
        check_fits(feeder, reader)
        check_labels(self.module.label_ranges, feeder, rows)
        made = Evaluator(self.module, reader, feeder, tuple(metrics), judged)
        made.larger_is_better(self._goal.best)
        return made

    def _make_schedule(self, schedule: AnySchedule | None) -> Schedule | None:
        if schedule is None or isinstance(schedule, Schedule):
            return schedule
        if not callable(schedule):
            return constant(schedule)
        if self.total_steps is None:
            raise ValueError(
                "schedule: it depends on the number of steps, which is not known: pass steps="
            )
        return schedule(self.total_steps)
