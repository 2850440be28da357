"""LinearLRScheduler: the learning rate as a function of the Optimizer's step counter.

The schedule is kept in the CheckpointState, so that a resumed run finds it again.
"""

from __future__ import annotations

import json
from typing import Any

from edge_train.checkpoint.state import CheckpointState
from edge_train.counts import check_count
from edge_train.errors import CheckpointError
from edge_train.optimizer import Optimizer, check_number
from edge_train.optimizer_state import SCHEDULE


def linear_factor(step: int, warmup: int, total: int) -> float:
    """``s / max(1, W)`` while s < W, after that ``max(0, (T - s) / max(1, T - W))``."""
    if step < warmup:
        return step / max(1, warmup)
    return max(0.0, (total - step) / max(1, total - warmup))


class LinearLRScheduler:
    """Linear warm-up from 0 to ``initial_lr``, then linear decay to 0.

    With s the optimizer's step counter, W ``warmup_step_count`` and T ``total_step_count``::

        rate = initial_lr * (s / max(1, W)                    if s < W
                             max(0, (T - s) / max(1, T - W))  otherwise)

    (the schedule of Hugging Face transformers, get_linear_schedule_with_warmup).
    The rate for the present counter is set at once, 0 for a fresh optimizer with a warm-up.

    onnxruntime-training 1.19.2 mixes up the two counts: it warms up over T steps and then drops to
    0. ``reference_order=True`` does the same.

    Raises TypeError, ValueError for wrong counts or rates.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        warmup_step_count: int,
        total_step_count: int,
        initial_lr: float,
        *,
        reference_order: bool = False,
    ) -> None:
        warmup = check_count("warmup_step_count", warmup_step_count, 0)
        total = check_count("total_step_count", total_step_count, 1)
        if total < warmup and not reference_order:
            raise ValueError(
                f"warmup_step_count {warmup} exceeds total_step_count {total}; if they are swapped "
                "to suit onnxruntime-training 1.19.2, swap them back or give reference_order=True"
            )
        self._optimizer = optimizer
        self._warmup, self._total = (total, warmup) if reference_order else (warmup, total)
        self._initial_lr = check_number("initial_lr", initial_lr)
        self._offset = 0
        optimizer.group.initial_learning_rate = self._initial_lr
        self.step()

    def step(self) -> None:
        """Sets the rate for the optimizer's present step counter; call it after Optimizer.step.

        Calling it again without a step of the optimizer in between changes nothing.
        """
        position = self._optimizer.step_count + self._offset
        factor = linear_factor(position, self._warmup, self._total)
        self._optimizer.set_learning_rate(self._initial_lr * factor)
        self._optimizer.state.private[SCHEDULE] = json.dumps(
            {
                "kind": "linear",
                "warmup": self._warmup,
                "total": self._total,
                "initial_lr": self._initial_lr,
                "position": position,
            }
        )

    @classmethod
    def restore(cls, optimizer: Optimizer) -> LinearLRScheduler | None:
        """The schedule kept in the optimizer's state, at its position; None if there is none.

        The position survives also where the checkpoint was saved without the optimizer's state.
        Raises CheckpointError if what is stored is not a schedule.
        """
        stored = _stored(optimizer.state)
        if stored is None:
            return None
        warmup, total, initial_lr, position = stored
        scheduler = cls.__new__(cls)
        scheduler._optimizer = optimizer
        scheduler._warmup, scheduler._total = warmup, total
        scheduler._initial_lr = initial_lr
        scheduler._offset = max(0, position - optimizer.step_count)
        optimizer.group.initial_learning_rate = initial_lr
        scheduler.step()
        return scheduler


def _stored(state: CheckpointState) -> tuple[int, int, float, int] | None:
    text = state.private.get(SCHEDULE)
    if text is None:
        return None
    try:
        fields: dict[str, Any] = json.loads(text)
        if fields["kind"] != "linear":
            raise ValueError(f"unknown kind {fields['kind']!r}")
        counts = [check_count(key, fields[key], 0) for key in ("warmup", "total", "position")]
        initial_lr = check_number("initial_lr", fields["initial_lr"])
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise CheckpointError(
            f"the checkpoint's property '{SCHEDULE}' is no schedule ({error}): {text!r}. Remove it "
            f"with del state.private['{SCHEDULE}'] and make a LinearLRScheduler anew"
        ) from error
    return counts[0], counts[1], initial_lr, counts[2]
