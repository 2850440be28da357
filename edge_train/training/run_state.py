"""What a run remembers beside weights and moments, and the digest that finds a damaged state.

Both lie in the checkpoint as private properties, so that a state of a run is an ordinary
checkpoint: Module, export and onnxruntime-training read it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from edge_train.checkpoint.builder import blocks
from edge_train.checkpoint.files import open_checkpoint
from edge_train.checkpoint.format import DATA_IDENTITY, Checkpoint
from edge_train.checkpoint.tensor import Tensor
from edge_train.data.classes import CLASSES, classes_in
from edge_train.errors import CheckpointCorrupt, CheckpointError, CheckpointVersion
from edge_train.optimizer import Optimizer
from edge_train.training.order import Position

RUN = "edge_train.run"
DIGEST = "edge_train.digest"
_VERSION = 1


@dataclass(frozen=True)
class Best:
    """The best value of the watched metric, and the step of its evaluation."""

    metric: str
    value: float
    step: int


@dataclass(frozen=True)
class RunState:
    """Where a run is after ``step`` logical batches, the last of them of epoch ``epoch``.

    Skipped batches count; epochs count from 0.
    """

    seed: int
    rows: int | None
    batch_size: int
    step: int = 0
    epoch: int = 0
    position: Position = field(default_factory=Position)
    skipped: int = 0
    skipped_in_a_row: int = 0
    seconds: float = 0.0
    loss: float | None = None
    loss_sum: float = 0.0  # since the last evaluation
    loss_count: int = 0
    evaluated: int = 0
    metrics: dict[str, float] = field(default_factory=dict)
    best: Best | None = None
    missed: bool = False  # the disk refused the weights of this step, the best ones
    finished: str = ""
    by_schedule: bool = False  # the schedule ended it
    schedule: dict[str, Any] = field(default_factory=dict)
    rng: dict[str, Any] = field(default_factory=dict)

    def to_text(self) -> str:
        """As JSON."""
        return json.dumps({"version": _VERSION, **asdict(self)})

    @staticmethod
    def of_text(text: str, where: str) -> RunState:
        """The state that ``to_text`` gave; CheckpointCorrupt for anything else."""
        try:
            fields = json.loads(text)
            version = fields.pop("version")
            if version != _VERSION:
                raise CheckpointVersion(
                    f"{where} was written by a newer release (run format {version}, known is "
                    f"{_VERSION}): update edge_train"
                )
            fields["position"] = Position(**fields["position"])
            fields["best"] = None if fields["best"] is None else Best(**fields["best"])
            return RunState(**fields)
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
            raise CheckpointCorrupt(
                f"{where}: its property '{RUN}' is damaged ({error})"
            ) from error


def digest(checkpoint: Checkpoint) -> str:
    """BLAKE2b over every name, shape, dtype, value and property, whatever the file's layout."""
    total = hashlib.blake2b(digest_size=32)
    for part in _content(checkpoint):
        total.update(part)
    return total.hexdigest()


def _content(checkpoint: Checkpoint) -> Iterator[bytes | memoryview]:
    for kind, tensors in (("trainable", checkpoint.trainable), ("frozen", checkpoint.frozen)):
        for tensor in sorted(tensors, key=lambda t: t.name):
            yield from _tensor(f"{kind} {tensor.name}", tensor)
    for group in checkpoint.groups or ():
        yield repr(
            (group.name, group.step, np.float32(group.initial_learning_rate).tobytes())
        ).encode()
        for parameter, moments in sorted(group.moments):
            for tensor in moments:
                yield from _tensor(f"{tensor.name} of {parameter}", tensor)
    yield repr(
        sorted((k, v) for k, v in checkpoint.properties.items() if k not in (DIGEST, DATA_IDENTITY))
    ).encode()


def _tensor(what: str, tensor: Tensor) -> Iterator[bytes | memoryview]:
    yield repr((what, tensor.data_type, tensor.dims, tensor.strings)).encode()
    if tensor.data is not None:
        yield from blocks(tensor.data)


def sealed(checkpoint: Checkpoint, run: RunState | None) -> Checkpoint:
    """The checkpoint with the run's state and the digest of it all among its properties."""
    properties = dict(checkpoint.properties)
    if run is not None:
        properties[RUN] = run.to_text()
    whole = replace(checkpoint, properties=properties)
    return replace(whole, properties={**properties, DIGEST: digest(whole)})


def verified(checkpoint: Checkpoint, path: Path) -> Checkpoint:
    """The checkpoint; CheckpointCorrupt where it has no digest or another one."""
    told = checkpoint.properties.get(DIGEST)
    if told is None:
        raise CheckpointCorrupt(f"'{path}' has no digest: it was not written by a Trainer")
    if told != digest(checkpoint):
        raise CheckpointCorrupt(f"'{path}' is damaged: its content does not have the digest {told}")
    return checkpoint


def read_run(path: Path) -> RunState:
    """The run's state in a verified checkpoint; CheckpointError, FileNotFoundError otherwise."""
    with open_checkpoint(path) as checkpoint:
        text = verified(checkpoint, path).properties.get(RUN)
    if not isinstance(text, str):
        raise CheckpointCorrupt(f"'{path}' is no state of a run: it lacks the property '{RUN}'")
    return RunState.of_text(text, f"'{path}'")


def restore(path: Path, optimizer: Optimizer) -> None:
    """Weights, statistics, moments, step counter, rate, properties of a checkpoint, in place.

    Tensor by tensor: memory for one of them is all it takes. CheckpointError lists what does not
    fit; nothing is changed then.
    """
    state = optimizer.state
    with open_checkpoint(path) as checkpoint:
        _check_fits(checkpoint, optimizer, path)
        for tensor in checkpoint.trainable + checkpoint.frozen:
            state.parameters[tensor.name].writing()[...] = tensor.array()
        for stored in checkpoint.groups or ():
            own = state.groups[stored.name]
            own.step, own.initial_learning_rate = stored.step, stored.initial_learning_rate
            for parameter, moments in stored.moments:
                held = own.moments.setdefault(parameter, {})
                for tensor in moments:
                    if tensor.name in held:
                        held[tensor.name][...] = tensor.array()
                    else:  # a nominal state's Optimizer has made none yet
                        held[tensor.name] = tensor.array()
        _restore_properties(checkpoint, optimizer)


def _restore_properties(checkpoint: Checkpoint, optimizer: Optimizer) -> None:
    state = optimizer.state
    for name, value in checkpoint.properties.items():
        if name in (DATA_IDENTITY, DIGEST, RUN):
            continue
        if name.startswith("edge_train."):
            state.private[name] = str(value)
        else:
            state.properties[name] = value
    with suppress(KeyError, ValueError):
        optimizer.set_learning_rate(float(state.private["edge_train.learning_rate"]))


def _check_fits(checkpoint: Checkpoint, optimizer: Optimizer, path: Path) -> None:
    state, group = optimizer.state, optimizer.group
    learned = classes_in(str(checkpoint.properties.get(CLASSES)))
    given = classes_in(state.private.get(CLASSES))
    if learned and given and learned != given:
        raise CheckpointError(
            f"the run in '{path.parent}' learned the classes {list(learned[:20])}, the data has "
            f"{list(given[:20])} now: use the data it was started with, or another run folder"
        )
    stored = {t.name: (t.data_type, t.dims) for t in checkpoint.trainable + checkpoint.frozen}
    own = {
        name: Tensor.of(name, np.asarray(parameter.data)) for name, parameter in state.parameters
    }
    problems = [f"it lacks '{name}'" for name in own if name not in stored]
    problems += [f"'{name}' is not in the model" for name in stored if name not in own]
    problems += [
        f"'{name}' is {list(dims)}, the model's {list(own[name].dims)}"
        for name, (kind, dims) in stored.items()
        if name in own and (kind, dims) != (own[name].data_type, own[name].dims)
    ]
    for theirs in checkpoint.groups or ():
        kinds = {
            (parameter, tensor.name) for parameter, moments in theirs.moments for tensor in moments
        }
        ours = {(parameter, kind) for parameter, table in group.moments.items() for kind in table}
        if theirs.name != group.name or (ours and kinds != ours):
            problems.append(
                f"its optimizer state '{theirs.name}' belongs to another optimizer, or to another "
                "choice of trained parameters"
            )
    if problems:
        more = f"; {len(problems) - 8} more" if len(problems) > 8 else ""
        raise CheckpointError(
            f"the run in '{path.parent}' is that of another model: "
            f"{'; '.join(problems[:8])}{more}. Use the artifacts it was started with, or another "
            "run folder"
        )
