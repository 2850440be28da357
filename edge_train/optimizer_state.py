"""The optimizer's part of a CheckpointState: group0 with its step counter and moments.

The moments live in the Arena; the group holds views of them, so that a save stores live values.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from contextlib import suppress

import numpy as np

from edge_train.arena import Arena
from edge_train.checkpoint.state import CheckpointState, OptimizerGroup
from edge_train.errors import CheckpointError
from edge_train.optimizer_settings import LARGEST
from edge_train.packed_moments import PackedMoment, PackedMoments, form_of

GROUP = "group0"
SCHEDULE = "edge_train.schedule"  # the private property that keeps the schedule
LEARNING_RATE = "edge_train.learning_rate"  # and the one that keeps the current rate

_DEFAULT_RATE = 0.001


def group_of(state: CheckpointState) -> OptimizerGroup:
    """The state's optimizer group, made (step 0, initial rate 0.001, no moments) if missing."""
    groups = state.live_groups
    if GROUP not in groups:
        groups[GROUP] = OptimizerGroup(GROUP, 0, 0.001, {})
    return groups[GROUP]


def bind_moments(group: OptimizerGroup, arena: Arena, count: int) -> None:
    """Moves the group's ``count`` moments into the arena and leaves views of it in the group.

    A group without moments starts from zeros and keeps its step counter. Raises CheckpointError
    listing everything that does not fit the arena's parameters.
    """
    check_fits(group, arena, count)
    arena.memory.to_host()
    for index in range(count):
        _bind_moment(group, arena, index)


def pack_moments(group: OptimizerGroup, arena: Arena) -> PackedMoments:
    """Moves the group's two moments into codes of 8 bits; else as ``bind_moments``.

    ValueError where the Arena's memory has kernels of its own, which know float32 only.
    """
    if arena.memory.name.startswith("opencl"):
        raise ValueError(
            f"moments='8bit' needs the moments in the process's memory; on the device "
            f"'{arena.memory.name}' they are float32. Leave moments= out for that device, or load "
            "the checkpoint again and leave the device out: 8-bit moments are stepped on the CPU"
        )
    check_fits(group, arena, 2)
    form = form_of(group)
    if form is None or form.arena is not arena:
        arena.memory.to_host()
        form = PackedMoments(group, arena)
        arena.release_moments()
    return form


def check_fits(group: OptimizerGroup, arena: Arena, count: int) -> None:
    """CheckpointError listing all moments that do not fit the arena's parameters."""
    problems = list(_problems(group, arena, count))
    if problems:
        raise CheckpointError(
            f"the optimizer state '{group.name}' of the checkpoint does not fit the model and the "
            f"optimizer: {'; '.join(problems)}. Use the artifacts it was saved with, or clear "
            "state.groups before making the Optimizer to start with fresh moments"
        )


def _bind_moment(group: OptimizerGroup, arena: Arena, index: int) -> None:
    kind = f"momentum{index}"
    used = arena.has_moment(index)
    buffer = arena.moment(index)
    for name in arena.names:
        view = arena.view(buffer, name)
        own = group.moments.setdefault(name, {})
        if kind in own:
            view[...] = np.asarray(own[kind])
        elif used:  # written only where needed: fresh zeros cost no memory
            view[...] = 0
        own[kind] = view


def _problems(group: OptimizerGroup, arena: Arena, count: int) -> Iterator[str]:
    if group.step < 0:
        yield f"its step counter is {group.step}, expected >= 0"
    if not group.moments:
        return
    expected = [f"momentum{index}" for index in range(count)]
    for name in arena.names:
        if name not in group.moments:
            yield f"it lacks the trainable parameter '{name}'"
    # what other parameters or another optimizer left behind is kept, as the reference keeps it
    for name in filter(group.moments.__contains__, arena.names):
        own = group.moments[name]
        for kind in expected:
            moment = own.get(kind)
            if moment is None:
                yield f"'{name}' has no {kind}"
            elif moment.dtype != np.float32 or moment.shape != arena.shape(name):
                yield (
                    f"{kind} of '{name}' is {moment.dtype} {moment.shape}, "
                    f"expected float32 {arena.shape(name)}"
                )


def reset_group(state: CheckpointState) -> None:
    """Zero moments and step counter, in place; rate and initial rate stay.

    Every Optimizer on the state goes on from there. Nothing happens if there is no optimizer state.
    """
    if GROUP not in state.groups:
        return
    group = state.groups[GROUP]
    rewind_schedule(state, group.step)
    group.step = 0
    for own in group.moments.values():
        for kind, moment in own.items():
            if isinstance(moment, PackedMoment) or moment.flags.writeable:
                moment[...] = 0
            else:  # as loaded, not yet moved into an arena
                own[kind] = np.zeros_like(moment)


def stored_rate(state: CheckpointState) -> float:
    """The rate that a checkpoint brought, 0.001 without; CheckpointError for what is no rate."""
    text = state.private.get(LEARNING_RATE)
    if text is None:
        return _DEFAULT_RATE
    try:
        rate = float(text)
    except ValueError:
        rate = math.nan
    if not 0 <= rate <= LARGEST:
        raise CheckpointError(
            f"the checkpoint's property '{LEARNING_RATE}' is '{text}'; expected a number >= 0. "
            f"Remove it with del state.private['{LEARNING_RATE}'] to start from {_DEFAULT_RATE}"
        )
    return rate


def rewind_schedule(state: CheckpointState, steps: int) -> None:
    """The stored position follows the step counter, also if the next thing is a save."""
    # what is no schedule is for LinearLRScheduler.restore to refuse
    with suppress(KeyError, TypeError, ValueError, RecursionError):
        fields = json.loads(state.private[SCHEDULE])
        fields["position"] = max(0, fields["position"] - steps)
        state.private[SCHEDULE] = json.dumps(fields)


def nonfinite_names(arena: Arena) -> Iterator[str]:
    """The parameters whose gradients hold a NaN or infinity; looked for as they are asked for."""
    for name in arena.names:
        if not np.isfinite(arena.gradients[arena.slot(name)]).all():
            yield name
