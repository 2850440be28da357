"""Two checkpoints into one: merged, or one's values transferred into another model's."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Literal

from edge_train.checkpoint.format import Checkpoint, Group, Property
from edge_train.checkpoint.source import Readable
from edge_train.checkpoint.state import TRAINABLE
from edge_train.checkpoint.tensor import Tensor
from edge_train.convert import intake, private
from edge_train.convert.foreign import described
from edge_train.errors import CheckpointError, NominalStateError

Path = str | os.PathLike[str]


def merge(
    sources: Sequence[Readable],
    destination: Path,
    *,
    prefer: Literal["first", "last"] | None = None,
    optimizer: bool = True,
) -> None:
    """Write the parameters of all ``sources`` as one checkpoint (a backbone and a head).

    A parameter, moment or property that two of them have is an error, unless ``prefer`` says whose
    to take. Groups of one name become one, if they are at the same step; else leave them out with
    ``optimizer=False``. Raises ValueError for no sources, CheckpointError and its children.
    """
    if not sources:
        raise ValueError("nothing to merge: name at least one checkpoint")
    with ExitStack() as stack:
        whole = [stack.enter_context(intake.opened_full(s, "a merge")) for s in sources]
        opened = [private.outside_a_run(c) for c in whole] if len(whole) > 1 else whole
        labels = [intake.label_of(source) for source in sources]
        if prefer == "last":
            opened, labels = opened[::-1], labels[::-1]
        merged = _merged(opened, labels, prefer is not None, optimizer)
        intake.write(merged, destination)


def _merged(
    opened: Sequence[Checkpoint], labels: Sequence[str], may_differ: bool, optimizer: bool
) -> Checkpoint:
    owner: dict[str, str] = {}
    trainable: list[Tensor] = []
    frozen: list[Tensor] = []
    groups: dict[str, Group] = {}
    properties: dict[str, Property] = {}
    for checkpoint, label in zip(opened, labels, strict=True):
        fresh = _fresh(checkpoint, label, owner, may_differ)
        trainable += [tensor for tensor in checkpoint.trainable if tensor.name in fresh]
        frozen += [tensor for tensor in checkpoint.frozen if tensor.name in fresh]
        for group in checkpoint.groups or () if optimizer else ():
            own = tuple((name, moments) for name, moments in group.moments if name in fresh)
            _add_group(groups, replace(group, moments=own), label)
        for name, value in checkpoint.properties.items():
            if name == TRAINABLE:
                continue  # of all, at the end
            there = properties.get(name, value)
            if not (may_differ or intake.is_same(there, value)):
                raise CheckpointError(
                    f"property '{name}' is {there!r} and, in {label}, {value!r}; say "
                    "which to prefer"
                )
            properties.setdefault(name, value)
    kept = tuple(groups.values()) if groups or any(c.groups is not None for c in opened) else None
    merged = Checkpoint(tuple(trainable), tuple(frozen), groups=kept, properties=properties)
    return private.with_choice_of_all(merged, opened)


def _fresh(checkpoint: Checkpoint, label: str, owner: dict[str, str], may_differ: bool) -> set[str]:
    """The names that no checkpoint before had; they belong to ``label`` from now on."""
    names = intake.parameters(checkpoint).keys()
    both = sorted(names & owner.keys())
    if both and not may_differ:
        raise CheckpointError(
            f"the parameter '{both[0]}' is in {owner[both[0]]} and in {label} ({len(both)} such); "
            "rename it, or say which to prefer"
        )
    fresh = set(names - owner.keys())
    owner.update(dict.fromkeys(fresh, label))
    return fresh


def _add_group(groups: dict[str, Group], group: Group, label: str) -> None:
    there = groups.get(group.name)
    if there is None:
        groups[group.name] = group
        return
    if there.step != group.step:
        raise CheckpointError(
            f"optimizer group '{group.name}' is at step {there.step} and, in {label}, at step "
            f"{group.step}: one group has one step; merge without optimizer state"
        )
    groups[group.name] = replace(there, moments=there.moments + group.moments)


@dataclass(frozen=True)
class Transfer:
    """What ``transfer`` did, by name. ``misfits``: sentences on shape or type.

    ``missing``: of the target, not in the source, kept as they were; ``unused``: of the source,
    not in the target.
    """

    copied: tuple[str, ...]
    missing: tuple[str, ...]
    misfits: tuple[str, ...]
    unused: tuple[str, ...]


def transfer(
    source: Readable, target: Readable, destination: Path, *, optimizer: bool = False
) -> Transfer:
    """Write ``target`` with the values of ``source`` where name, shape and type match.

    What is trained is the target's. Its optimizer state belongs to the values before and is left
    out, unless ``optimizer``. A nominal target, which has no shapes and no values, takes those of
    the source, which must have all of them.
    Raises CheckpointError if nothing matches, NominalStateError, and what ``intake`` raises.
    """
    with intake.opened_full(source, "a transfer") as given, intake.opened(target) as model:
        tensors = intake.parameters(given)
        misfits: dict[str, str] = {}

        def taken(own: Tensor) -> Tensor:
            if own.name not in tensors:
                return own
            found = tensors[own.name]
            if not model.is_nominal and described(found) != described(own):
                misfits[own.name] = (
                    f"'{own.name}' is {described(found)} in the source, {described(own)} in the "
                    "target"
                )
                return own
            return replace(found, doc_string=own.doc_string)

        trainable, frozen = (tuple(map(taken, part)) for part in (model.trainable, model.frozen))
        report = _report(tensors, intake.parameters(model), misfits)
        _check_transfer(report, model, intake.label_of(source), intake.label_of(target))
        groups = model.groups if optimizer or model.groups is None else ()
        changed = replace(
            model, trainable=trainable, frozen=frozen, groups=groups, is_nominal=False
        )
        intake.write(private.outside_a_run(changed), destination)
    return report


def _report(given: Iterable[str], model: Iterable[str], misfits: Mapping[str, str]) -> Transfer:
    ours, theirs = list(given), list(model)
    return Transfer(
        copied=tuple(name for name in theirs if name in ours and name not in misfits),
        missing=tuple(name for name in theirs if name not in ours),
        misfits=tuple(misfits.values()),
        unused=tuple(name for name in ours if name not in theirs),
    )


def _check_transfer(report: Transfer, model: Checkpoint, source: str, target: str) -> None:
    if not report.copied:
        why = "; ".join(report.misfits[:4]) or f"it has {list(report.unused[:8])}"
        raise CheckpointError(
            f"nothing of {source} fits {target}: {why}, wanted {list(report.missing[:8])}; rename "
            "parameters first"
        )
    if model.is_nominal and report.missing:
        raise NominalStateError(
            f"checkpoint {target} is nominal: every parameter must come from {source}, which lacks "
            f"{list(report.missing)}"
        )
