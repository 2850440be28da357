"""The package's own properties, which a converter that changes a checkpoint must not leave stale.

A run's position and digest are true of the very state they were saved with; the choice of trained
parameters is a list of names; the schedule's position follows the optimizer's step counter.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace

from edge_train.checkpoint.format import Checkpoint, Property
from edge_train.checkpoint.state import TRAINABLE, CheckpointState
from edge_train.optimizer_state import GROUP, SCHEDULE, rewind_schedule

#: what a Trainer keeps of its run (training.run_state)
OF_A_RUN = ("edge_train.run", "edge_train.digest")


def outside_a_run(checkpoint: Checkpoint) -> Checkpoint:
    """The checkpoint without what says that a run can go on from exactly it."""
    kept = {name: v for name, v in checkpoint.properties.items() if name not in OF_A_RUN}
    return replace(checkpoint, properties=kept)


def with_choice_renamed(checkpoint: Checkpoint, new_name: Callable[[str], str]) -> Checkpoint:
    """The checkpoint with the names of the trained parameters changed too."""
    names = chosen(checkpoint)
    if names is None:
        return checkpoint
    return _choosing(checkpoint, [new_name(name) for name in names])


def with_choice_of_all(merged: Checkpoint, parts: Sequence[Checkpoint]) -> Checkpoint:
    """A merged checkpoint that trains what its parts trained."""
    choices = [chosen(part) for part in parts]
    if all(choice is None for choice in choices):
        return merged
    trained = {tensor.name for tensor in merged.trainable}
    names: dict[str, None] = {}
    for part, choice in zip(parts, choices, strict=True):
        own = [tensor.name for tensor in part.trainable] if choice is None else choice
        names.update(dict.fromkeys(name for name in own if name in trained))
    return _choosing(merged, names)


def rewound(checkpoint: Checkpoint) -> Checkpoint:
    """The checkpoint as for an optimizer that has made no step yet: moments left out."""
    if checkpoint.groups is None:
        return checkpoint
    properties = dict(checkpoint.properties)
    for group in checkpoint.groups:
        text = properties.get(SCHEDULE)
        if group.name == GROUP and isinstance(text, str):
            state = CheckpointState()
            state.private[SCHEDULE] = text
            rewind_schedule(state, group.step)
            properties[SCHEDULE] = state.private[SCHEDULE]
    groups = tuple(replace(group, step=0, moments=()) for group in checkpoint.groups)
    return replace(checkpoint, groups=groups, properties=properties)


def chosen(checkpoint: Checkpoint) -> list[str] | None:
    """The names that a Module's ``trainable`` chose; None without such, or where it is damaged."""
    text: Property | None = checkpoint.properties.get(TRAINABLE)
    with suppress(ValueError, RecursionError):
        names = json.loads(text) if isinstance(text, str) else None
        if isinstance(names, list) and all(isinstance(name, str) for name in names):
            return names
    return None


def _choosing(checkpoint: Checkpoint, names: Iterable[str]) -> Checkpoint:
    text = json.dumps(list(names))
    return replace(checkpoint, properties={**checkpoint.properties, TRAINABLE: text})
