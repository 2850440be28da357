"""One logical batch through the training graph, in micro-batches where it does not fit at once.

The gradients that are left are those of the mean over the logical batch, as long as the model's
loss is a mean over rows. BatchNorm is the exception: it normalises each micro-batch by its own
statistics, and moves the running ones once a micro-batch.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_train import session
from edge_train.module import Module
from edge_train.training.feeds import Feeder

Feeds = dict[str, NDArray[Any]]


def draw_seed(seed: int, step: int, part: int) -> int:
    """The seed of Dropout in one run of the graph: a resumed run draws what it would have drawn."""
    return int(np.random.SeedSequence([seed, step, part]).generate_state(1, np.uint64)[0]) >> 1


def run_batch(module: Module, feeder: Feeder, feeds: Feeds, seed: int, step: int) -> float:
    """Leaves the batch's gradients in the module; returns its mean loss.

    A micro-batch with a NaN or infinite loss ends the batch: the Optimizer drops all of it then.
    """
    rows = feeder.rows(feeds)
    size = min(feeder.micro_batch or rows, rows)
    module.lazy_reset_grad()
    total, before = 0.0, size
    for number, start in enumerate(range(0, rows, size)):
        count = min(size, rows - start)
        if number and count != before:
            module.arena.gradients[...] *= np.float32(before / count)
        session.set_seed(draw_seed(seed, step, number))
        part = feeds if count == rows else feeder.part(feeds, start, start + count)
        loss = _loss(module, part)
        total += loss * count
        before = count
        if not math.isfinite(loss):
            return loss
    if before != rows:
        # the sum is that of gradients of means over `before` rows
        module.arena.gradients[...] *= np.float32(before / rows)
    return total / rows


def _loss(module: Module, feeds: Feeds) -> float:
    made = module(**feeds)
    loss = made[0] if isinstance(made, tuple) else made
    return float(np.mean(np.asarray(loss if isinstance(loss, np.ndarray) else loss.numpy())))
