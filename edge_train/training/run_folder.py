"""The folder of a run: its last two states, the best one, and the marker of a run under way.

States are named by their step, ``checkpoint-000001200``: a save makes a new file and only then
removes the oldest, so that no fault of a write touches a state that is there.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from edge_train import atomic
from edge_train.checkpoint import files
from edge_train.checkpoint.files import open_checkpoint
from edge_train.checkpoint.format import Checkpoint
from edge_train.errors import CheckpointError, CheckpointVersion
from edge_train.training.marker import Killed, Marker
from edge_train.training.run_state import RunState, read_run, sealed, verified

_log = logging.getLogger("edge_train")

BEST = "best"
METRICS = "metrics.jsonl"
RUNNING = "running"  # the marker
_STATE = re.compile(r"checkpoint-(\d{9,})")
_KEPT = 2


class RunFolder:
    """The files of one run below ``path``; made with ``opened``."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path).absolute()  # the working folder may change before it is used
        self._marker = Marker(self.path / RUNNING)
        self._newest: Path | None = None  # of the states that are there by this run's doing
        self.lost = ""  # why this run may write here no more

    @property
    def best(self) -> Path:
        """The weights of the best evaluation, a checkpoint without moments."""
        return self.path / BEST

    @property
    def metrics(self) -> Path:
        """The log of the run, one JSON object a line."""
        return self.path / METRICS

    @property
    def killed(self) -> Killed | None:
        """What is known of the last run, if it was killed."""
        return self._marker.killed

    @contextmanager
    def opened(self) -> Iterator[RunFolder]:
        """Makes the folder and marks it as in use for the duration of the block.

        CheckpointError where it cannot be written to, or another process trains in it.
        """
        self.lost = ""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._newest = next(iter(self.states()), None)
            self._marker.set(0 if self._newest is None else _step(self._newest))
        except OSError as error:
            raise CheckpointError(
                f"the run folder '{self.path}' cannot be written to: {error.strerror or error}; "
                "choose another folder"
            ) from error
        try:
            self._clean()
            yield self
        finally:
            self._marker.clear()

    def _clean(self) -> None:
        """Removes what killed saves left."""
        atomic.remove_abandoned(self.path)
        for file in self.path.glob("checkpoint-*.data*"):
            if not file.with_name(file.name.partition(".")[0]).exists():
                with suppress(OSError):
                    os.unlink(file)

    def states(self) -> list[Path]:
        """The states, the newest first."""
        return states_in(self.path)

    def hold(self) -> None:
        """Makes sure that the folder is this run's still; one that was removed is made again.

        CheckpointError, now and at any later call, where another process has taken the place.
        """
        if self.lost:
            raise CheckpointError(self.lost)
        if self._marker.is_ours():
            return
        self.path.mkdir(parents=True, exist_ok=True)
        try:
            self._marker.take_again()
        except CheckpointError as error:
            self.lost = f"the run folder was removed under this run, and {error}"
            raise CheckpointError(self.lost) from error
        if self.states() and self.states()[0] != self._newest:
            self._marker.clear()
            self.lost = (
                f"the run folder '{self.path}' was removed under this run, and another process has "
                "trained there since; its states are left as they are"
            )
            raise CheckpointError(self.lost)

    def note_memory(self, step: int, peak: int) -> None:
        """Lets the marker tell a next start how far the run was and what memory it took."""
        with suppress(OSError):
            self._marker.note(step, peak)

    def save(self, checkpoint: Checkpoint, run: RunState) -> int:
        """Writes the state of ``run.step``, reads it back, drops the oldest; bytes written.

        CheckpointError where the disk refuses or gives back other bytes; earlier states stay.
        """
        self.hold()
        path = self.path / f"checkpoint-{run.step:09d}"
        written = self._write(sealed(checkpoint, run), path)
        self._newest = path
        for old in self.states()[_KEPT:]:
            _remove(old)
        return written

    def save_best(self, checkpoint: Checkpoint, run: RunState) -> int:
        """Writes weights and properties in place of the best ones before."""
        self.hold()
        return self._write(sealed(checkpoint, run), self.best)

    def _write(self, checkpoint: Checkpoint, path: Path) -> int:
        files.write(checkpoint, path)
        try:
            with open_checkpoint(path) as back:
                verified(back, path)
        except (CheckpointError, OSError) as error:
            _remove(path)
            raise CheckpointError(
                f"'{path}' was written and does not read back ({error}): the file system or the "
                "card is at fault; earlier states are untouched"
            ) from error
        return sum(file.stat().st_size for file in _files_of(path) if file.exists())

    def newest(self) -> tuple[Path | None, RunState | None, list[str]]:
        """The newest state that is whole, what it holds, and the words on those that are not.

        A broken state is renamed to ``<name>.broken``. (None, None, []) in a new folder;
        CheckpointError where there are states and none is whole: they stay, so that the next start
        is refused as well.
        """
        broken: dict[Path, str] = {}
        for path in self.states():
            try:
                run = read_run(path)
            except (CheckpointVersion, PermissionError):
                raise
            except (CheckpointError, OSError) as error:  # bad sectors among them
                broken[path] = f"'{path}' cannot be read: {error}"
                continue
            for other in broken:
                self._set_aside(other)
            self._newest = path
            return path, run, list(broken.values())
        if broken:
            raise CheckpointError(
                f"no state in '{self.path}' is whole: {'; '.join(broken.values())}. Start anew "
                "with another run folder, or fresh"
            )
        return None, None, []

    def _set_aside(self, path: Path) -> None:
        """One broken state is kept to look at, not more: the card is small."""
        with suppress(OSError):
            for old in self.path.glob("checkpoint-*.broken"):
                _remove(old)
            os.replace(path, path.with_name(f"{path.name}.broken"))

    def clear(self) -> None:
        """Removes states, best weights and log: a fresh start was asked for."""
        for path in [
            *self.states(),
            *self.path.glob("checkpoint-*.broken"),
            self.best,
            self.metrics,
        ]:
            _remove(path)


def states_in(folder: str | os.PathLike[str]) -> list[Path]:
    """The states of the run in ``folder``, the newest first."""
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return []
    found = [(int(match[1]), name) for name in names if (match := _STATE.fullmatch(name))]
    return [Path(folder) / name for _, name in sorted(found, reverse=True)]


def _step(state: Path) -> int:
    return int(state.name.rpartition("-")[2])


def weights_in(folder: str | os.PathLike[str]) -> Path:
    """The checkpoint to use of a run: the best one, else the newest whole state.

    CheckpointError where there is neither.
    """
    for path in [Path(folder) / BEST, *states_in(folder)]:
        try:
            with open_checkpoint(path) as checkpoint:
                verified(checkpoint, path)
            return path
        except FileNotFoundError:  # a run without evaluation has no best weights
            continue
        except (CheckpointError, OSError) as error:
            _log.warning("%s: not used, the next best state is", error)
    raise CheckpointError(f"'{os.fspath(folder)}' has no whole state of a run: train first")


def _files_of(path: Path) -> tuple[Path, Path]:
    """A checkpoint, and the file beside it that a very large one has."""
    return path, path.with_name(f"{path.name}.data")


def _remove(path: Path) -> None:
    for file in _files_of(path):
        with suppress(FileNotFoundError):
            os.unlink(file)
