"""Keeps a run's state: takes it up at the start, saves it by time and at the stop."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from edge_train.errors import CheckpointError
from edge_train.module import Module
from edge_train.optimizer import Optimizer
from edge_train.schedules import Schedule
from edge_train.training import run_state
from edge_train.training.process import peak_bytes, random_state, restore_random_state
from edge_train.training.run_folder import RunFolder
from edge_train.training.run_state import RunState

_log = logging.getLogger("edge_train.trainer")

#: a save that failed is tried again after so many seconds
_RETRY = 60.0
#: the marker is written again when the peak has grown by this factor, looked at so often (seconds)
_GROWTH = 1.02
_LOOK = 30.0

Tell = Callable[..., None]


class Keeper:
    """Saves the state of ``optimizer``'s run in ``folder`` every ``every`` seconds.

    ``folder`` None keeps nothing. ``tell(name, **fields)`` hears of what happens, ``before_save``
    is called before each: the log of a run is never behind its state. ``give_up`` is called when
    another process has taken the folder: no later save can succeed.
    """

    def __init__(
        self,
        folder: RunFolder | None,
        module: Module,
        optimizer: Optimizer,
        schedule: Schedule | None,
        every: float,
        tell: Tell,
        before_save: Callable[[], None] = lambda: None,
        give_up: Callable[[], None] = lambda: None,
    ) -> None:
        self.folder = folder
        self.bytes_written = 0
        self.saved: Path | None = None
        self._refused = self._refused_best = ""
        self._module, self._optimizer, self._schedule = module, optimizer, schedule
        self._every, self._tell, self._before_save = every, tell, before_save
        self._give_up = give_up
        self._due = time.monotonic() + every
        self._kept: RunState | None = None
        self._peak = 0
        self._next_look = 0.0

    @property
    def failed(self) -> str:
        """Why the last save of the state, or of the best weights, failed; empty if neither did."""
        return self._refused or self._refused_best

    @property
    def has_best(self) -> bool:
        """Whether there are best weights, those of an earlier evaluation at least."""
        return self.folder is None or self.folder.best.exists()

    def take_up(self, fresh: RunState) -> RunState:
        """The state that the folder holds, put into model and optimizer; else ``fresh``.

        Raises CheckpointError for a run of another model, seed or schedule, and for a folder
        without a whole state.
        """
        if self.folder is None:
            return fresh
        if self.folder.killed is not None:
            self._tell("killed", text=str(self.folder.killed), **vars(self.folder.killed))
        path, found, notes = self.folder.newest()
        for note in notes:
            self._tell("broken_state", text=f"{note}; going on from the state before it")
        if path is None or found is None:
            self.folder.note_memory(fresh.step, peak_bytes())
            return fresh
        run = self._continued(found, fresh)
        self._fill()
        run_state.restore(path, self._optimizer)
        if self._schedule is not None and found.schedule:
            self._schedule.restore(found.schedule)
        restore_random_state(found.rng)
        self.saved, self._kept = path, run
        self.folder.note_memory(run.step, peak_bytes())
        if not run.finished:
            text = f"from step {run.step}, epoch {run.epoch + 1}"
            self._tell("resumed", step=run.step, text=text)
        return run

    def _continued(self, found: RunState, fresh: RunState) -> RunState:
        folder = self.folder.path if self.folder else ""
        if found.seed != fresh.seed:
            raise CheckpointError(
                f"the run in '{folder}' has the seed {found.seed}, now it is {fresh.seed}: go on "
                "with its own, or use another run folder"
            )
        if found.rows != fresh.rows and found.position.place:
            self._tell(
                "data_changed",
                text=f"the data had {found.rows} rows and has {fresh.rows} now: epoch "
                f"{found.position.epoch + 1} starts over",
            )
            found = replace(found, position=replace(found.position, place=0))
        return replace(found, rows=fresh.rows, batch_size=fresh.batch_size)

    def _fill(self) -> None:
        """A nominal state gets memory; the values come from the run."""
        module = self._module
        if module.state.is_nominal:
            size = module.get_parameters_size(trainable_only=False)
            module.copy_buffer_to_parameters(np.zeros(size, np.float32), trainable_only=False)

    def after_step(self, run: RunState) -> None:
        """Saves if the time has come; keeps the marker of the run up to date."""
        if self.folder is None:
            return
        now = time.monotonic()
        if now >= self._due:
            self.save(run)
        elif now >= self._next_look:
            self._next_look = now + _LOOK
            peak = peak_bytes()
            if not self._peak or peak >= self._peak * _GROWTH:
                self._note_memory(run.step, peak)

    def _note_memory(self, step: int, peak: int) -> None:
        self._peak = peak
        if self.folder is not None:
            self.folder.note_memory(step, peak)

    def save(self, run: RunState) -> bool:
        """Writes the state now, unless it is on disk already; False if the disk refuses."""
        if self.folder is None or run == self._kept:
            return True
        schedule = {} if self._schedule is None else self._schedule.state()
        whole = replace(run, schedule=schedule, rng=random_state())
        try:
            self.folder.hold()
            self._before_save()
            self.bytes_written += self.folder.save(self._optimizer.state.to_checkpoint(), whole)
        except (CheckpointError, OSError) as error:
            self._refused = str(error)
            self._due = time.monotonic() + min(self._every, _RETRY)
            self._tell("save_failed", step=run.step, text=self._refused)
            _log.warning("%s", error)
            if self.folder.lost:
                self._give_up()
            return False
        self._note_memory(run.step, peak_bytes())
        self._refused, self._kept = "", run
        self.saved = self.folder.states()[0]
        self._due = time.monotonic() + self._every
        return True

    def save_best(self, run: RunState) -> bool:
        """Writes the weights as the best ones; False if the disk refuses, which is told."""
        if self.folder is None:
            return True
        checkpoint = self._optimizer.state.to_checkpoint(include_optimizer_state=False)
        try:
            self.bytes_written += self.folder.save_best(checkpoint, run)
        except (CheckpointError, OSError) as error:
            self._refused_best = f"the best weights, of step {run.step}: {error}"
            self._tell("save_failed", step=run.step, text=self._refused_best)
            _log.warning("%s", self._refused_best)
            return False
        self._refused_best = ""
        return True
