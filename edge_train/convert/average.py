"""The weighted average of checkpoints of one model: what a federation's server does."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Literal

from edge_train.checkpoint.format import Checkpoint
from edge_train.checkpoint.source import Readable
from edge_train.checkpoint.tensor import Tensor
from edge_train.convert import intake, lazy, private
from edge_train.convert.foreign import described
from edge_train.errors import CheckpointError
from edge_train.graph import onnx_codec
from edge_train.graph.onnx_codec import Source as ModelSource

_NORMS = ("BatchNormalization", "BatchNormInternal")


def average(
    sources: Sequence[Readable],
    destination: str | os.PathLike[str],
    *,
    weights: Sequence[float] | None = None,
    statistics: Literal["average", "keep"] = "average",
    model: ModelSource | None = None,
) -> None:
    """Write the weighted average of checkpoints of one model.

    ``weights``: one number >= 0 a source (the rows it was trained on), equal ones if None.
    Frozen float tensors are BatchNorm's running statistics and what nobody trains: averaged too,
    or taken from the first source (``statistics="keep"``). A variance stays >= 0, being a mean of
    such; ``model`` (a training or eval graph) tells which tensors are variances, and a source that
    has one below 0 is refused. Frozen tensors of other types must be equal and are the first's, as
    are names' order and properties. Optimizer state is left out.

    Raises ValueError for weights that are none, CheckpointError listing what differs between the
    sources, CheckpointCorrupt for a value that is not finite, and what ``intake`` raises.
    """
    shares = _weights(weights, len(sources))
    if statistics not in ("average", "keep"):
        raise ValueError(f"statistics is {statistics!r}, expected 'average' or 'keep'")
    labels = [f"checkpoint {intake.label_of(source)}" for source in sources]
    with ExitStack() as stack:
        opened = [stack.enter_context(intake.opened_full(s, "an average")) for s in sources]
        _check_same(opened, labels)
        tables = [intake.parameters(checkpoint) for checkpoint in opened]
        first = opened[0]
        mean = _mean(tables, shares, labels, variances(model))
        frozen = first.frozen
        if statistics == "average":
            frozen = tuple(map(mean, frozen))
        averaged = replace(
            first,
            trainable=tuple(map(mean, first.trainable)),
            frozen=frozen,
            groups=None if first.groups is None else (),
        )
        intake.write(private.outside_a_run(averaged), destination)


def variances(model: ModelSource | None) -> frozenset[str]:
    """The tensors that a graph's BatchNorm nodes read as running variances; none without one."""
    if model is None:
        return frozenset()
    nodes = onnx_codec.load(model).graph.nodes
    return frozenset(node.input(4) for node in nodes if node.op_type in _NORMS)


def _weights(weights: Sequence[float] | None, count: int) -> list[float]:
    if not count:
        raise ValueError("nothing to average: name at least one checkpoint")
    shares = [1.0] * count if weights is None else [float(weight) for weight in weights]
    if len(shares) != count:
        raise ValueError(f"{len(shares)} weights for {count} checkpoints, expected one for each")
    if not all(math.isfinite(w) and w >= 0 for w in shares) or not 0 < sum(shares) < math.inf:
        raise ValueError(f"the weights are {shares}, expected numbers >= 0, not all of them 0")
    return shares


def _mean(
    tables: Sequence[Mapping[str, Tensor]],
    shares: Sequence[float],
    labels: Sequence[str],
    positive: Collection[str],
) -> Callable[[Tensor], Tensor]:
    counted = [index for index, share in enumerate(shares) if share]

    def mean(tensor: Tensor) -> Tensor:
        if not lazy.is_float(tensor):
            lazy.refuse_unequal([table[tensor.name] for table in tables], labels)
            return tensor
        return lazy.weighted_mean(
            [tables[index][tensor.name] for index in counted],
            [shares[index] for index in counted],
            [labels[index] for index in counted],
            tensor.name in positive,
        )

    return mean


def _check_same(opened: Sequence[Checkpoint], labels: Sequence[str]) -> None:
    problems = []
    ours = _outline(opened[0])
    for checkpoint, label in zip(opened[1:], labels[1:], strict=True):
        theirs = _outline(checkpoint)
        for name in [*ours, *(name for name in theirs if name not in ours)]:
            one, two = ours.get(name, "missing"), theirs.get(name, "missing")
            if one != two:
                problems.append(f"'{name}' is {one}; in {label} it is {two}")
    if problems:
        more = [f"{len(problems) - 8} more"] if len(problems) > 8 else []
        listed = "\n  ".join([*problems[:8], *more])
        raise CheckpointError(
            f"the checkpoints are not of one model ({len(problems)} differences to {labels[0]}):\n"
            f"  {listed}"
        )


def _outline(checkpoint: Checkpoint) -> dict[str, str]:
    parts = ((checkpoint.trainable, "trained"), (checkpoint.frozen, "frozen"))
    return {t.name: f"{described(t)}, {word}" for part, word in parts for t in part}
