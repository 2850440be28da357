"""Warnings of the package's loggers, shown with the progress of a run and kept in its log."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from edge_train.trainer import Trainer

#: what these say arrives as an event already
_TOLD = ("edge_train.governor", "edge_train.trainer", "edge_train.progress")


class _Shown(logging.Handler):
    def __init__(self, trainer: Trainer) -> None:
        super().__init__(logging.WARNING)
        self._trainer = trainer

    def emit(self, record: logging.LogRecord) -> None:
        if record.name not in _TOLD:
            self._trainer.tell("warning", text=record.getMessage())


@contextmanager
def shown(trainer: Trainer) -> Iterator[None]:
    """Within the block warnings are events of the trainer's progress."""
    logger = logging.getLogger("edge_train")
    handler = _Shown(trainer)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
