"""What a Trainer's arguments have to be, checked before anything is done."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from edge_train.counts import check_count
from edge_train.data.images import ImageRows
from edge_train.data.sources import Batches, rows_in
from edge_train.errors import DataError
from edge_train.graph import ir
from edge_train.inputs import check_shapes
from edge_train.module import Module
from edge_train.training.evaluation import Evaluator
from edge_train.training.feeds import Feeder
from edge_train.training.loop import Goal, Shows
from edge_train.training.order import Reader


def micro_batch_notes(module: Module, feeder: Feeder, batch: int) -> Iterator[str]:
    """What is to be said of micro-batches, if anything."""
    if feeder.micro_batch is not None and feeder.micro_batch < batch and module.moves_statistics:
        yield (
            f"BatchNormalization takes its statistics from each micro-batch of "
            f"{feeder.micro_batch} rows, not from the whole batch of {batch}: in this respect the "
            "curve is that of the smaller batch size"
        )


def evaluation_notes(evaluator: Evaluator | None) -> Iterator[str]:
    """What is to be said of the evaluation, if anything."""
    if evaluator is not None and evaluator.left_over:
        yield (
            f"evaluation leaves out the last {evaluator.left_over} of {evaluator.reader.rows} "
            f"rows: the model takes {evaluator.reader.batch_size} rows at once, no other number"
        )


def teller(progress: Shows | None) -> Callable[[str, dict[str, Any]], None]:
    """Hands events on; does not know the Trainer, so that no cycle keeps a model in memory."""

    def tell(name: str, fields: dict[str, Any]) -> None:
        if progress is not None:
            progress.event(name, **fields)

    return tell


def goal(
    epochs: int | None, steps: int | None, every: int | None, best: str, max_skipped: int
) -> Goal:
    """The goal of a run; ValueError, TypeError for counts that are none."""
    if epochs is None and steps is None:
        raise ValueError("how long to train is not said: pass epochs or steps")
    epochs, steps = _least_1("epochs", epochs), _least_1("steps", steps)
    every = _least_1("evaluate_every", every)
    return Goal(epochs, steps, every, best, check_count("max_skipped", max_skipped, 1))


def _least_1(name: str, count: int | None) -> int | None:
    return None if count is None else check_count(name, count, 1)


def training_inputs(module: Module) -> tuple[ir.Value, ...]:
    """The user inputs of the training graph, whatever mode the module is in."""
    was = module.training
    module.train()
    values = module.input_values()
    module.train(was)
    return values


def evaluation_inputs(module: Module) -> tuple[ir.Value, ...]:
    """The user inputs of the eval graph; ArtifactError where the module has none."""
    was = module.training
    try:
        return module.eval().input_values()
    finally:
        module.train(was)


def check_fits(feeder: Feeder, reader: Reader) -> None:
    """A row of the data is made into feeds now, before anything is done to the folder."""
    if isinstance(reader.source, Batches):
        return
    if not reader.batches:
        raise DataError(
            f"the data has {len(reader.source)} rows, too few for one batch of {reader.batch_size}"
        )
    count = feeder.fixed_rows or 1
    if count > 1 and isinstance(reader.source, ImageRows) and reader.source.skips:
        raise DataError(
            f"unreadable images cannot be left out: the model takes {count} rows at once, no other "
            "number"
        )
    tried = (reader.source.take(np.full(count, row)) for row in range(len(reader.source)))
    first = next((batch for batch in tried if rows_in(batch)), None)
    if first is None:
        raise DataError("no image of the data can be read")
    check_shapes(feeder.inputs, feeder.feed(first))


def check_repeats(data: Any, what: str, times: int | None) -> None:
    """ValueError where an iterator would be gone through more than once."""
    if isinstance(data, Batches):
        data = data.batches
    if isinstance(data, Iterator) and times is not None and times > 1:
        raise ValueError(
            f"{what}: an iterator can be gone through once, not {times} times; pass arrays, an "
            "iterable that starts over, or a function from the epoch to an iterable"
        )
