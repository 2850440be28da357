"""What a training run will take, before anything runs: by what it is for.

Counted is what the process holds beyond an idle one that has Python, NumPy and onnxruntime loaded.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from edge_train.checkpoint.files import open_checkpoint
from edge_train.checkpoint.tensor import Tensor
from edge_train.errors import ArtifactError
from edge_train.graph import ir, onnx_codec, subset
from edge_train.graph.passes import evaluation_form
from edge_train.graph.roles import Roles
from edge_train.kernels.packed import BLOCK
from edge_train.memory.budget import shown
from edge_train.memory.graphs import (
    Choices,
    RunningGraph,
    fixed_batch,
    input_dims,
    tensor_bytes,
)
from edge_train.optimizer_spec import read_spec

#: this package, protobuf and the pages of onnxruntime's code that training touches (measured)
_RUNTIME = 25 << 20
#: what onnxruntime and this package keep for a node of a graph (measured)
_PER_NODE = 8 << 10
#: kernels' working memory, stacks, and what the allocators cannot use (measured)
_SLACK = 1.08
#: the same for a forward pass alone: short-lived tensors of many sizes fit each other's holes less
_FORWARD_SLACK = 1.4


@dataclass(frozen=True)
class Files:
    """The artifacts of a run. Without a checkpoint sizes come from the graph, without an optimizer
    model AdamW is assumed, without an eval model no evaluation is counted."""

    training_model: Path
    checkpoint: Path | None = None
    optimizer_model: Path | None = None
    eval_model: Path | None = None

    @staticmethod
    def of(artifacts: Files | str | os.PathLike[str], prefix: str = "") -> Files:
        """The files that generate_artifacts wrote to a folder; ArtifactError if none are there."""
        if isinstance(artifacts, Files):
            return artifacts
        folder = Path(artifacts)
        training = folder / f"{prefix}training_model.onnx"
        if not training.is_file():
            raise ArtifactError(
                f"no {training.name} in '{folder}': pass the folder that generate_artifacts wrote"
            )

        def found(*names: str) -> Path | None:
            paths = [folder / f"{prefix}{name}" for name in names]
            return next((path for path in paths if path.exists()), None)

        return Files(
            training,
            found("checkpoint", "nominal_checkpoint"),
            found("optimizer_model.onnx"),
            found("eval_model.onnx"),
        )


@dataclass(frozen=True)
class Estimate:
    """Bytes by purpose, for steps of ``batch`` rows; ``accumulates``: several make an update.

    ``weights`` are the trainable parameters, ``batch_data`` what one step is fed, ``activations``
    everything the graph makes and onnxruntime's arena holds for it, ``evaluation`` the same of the
    eval graph, ``runtime`` the code and its graphs. ``largest`` are (tensor, bytes) alive when most
    is, ``unknown`` counts tensors whose size cannot be told: they are missing in ``activations``.
    """

    batch: int
    accumulates: bool
    weights: int
    frozen: int
    gradients: int
    moments: int
    activations: int
    batch_data: int
    evaluation: int
    runtime: int
    unknown: int = 0
    at: str = ""
    largest: tuple[tuple[str, int], ...] = ()
    trained: int = 0  # parameters

    @property
    def total(self) -> int:
        """Everything above the idle process, in bytes."""
        return sum(size for _, size in self.rows())

    def rows(self) -> list[tuple[str, int]]:
        """(purpose, bytes), in the order of the table."""
        names = ("weights", "frozen", "gradients", "moments", "activations", "batch_data",
                 "evaluation", "runtime")  # fmt: skip
        return [(name, getattr(self, name)) for name in names]

    def table(self) -> str:
        """The rows and their sum as text."""
        words = {"frozen": "frozen parameters", "batch_data": "one batch"}
        several = ", one of several for an update" if self.accumulates else ""
        lines = [f"a step of {self.batch} rows{several}"]
        lines += [f"  {words.get(name, name):<18}{shown(size):>12}" for name, size in self.rows()]
        lines.append(f"  {'total':<18}{shown(self.total):>12}")
        if self.unknown:
            lines.append(f"  not counted: {self.unknown} tensors whose size cannot be told")
        return "\n".join(lines)

    def as_dict(self) -> dict[str, Any]:
        """Every field and the total, for JSON."""
        return {**asdict(self), "total": self.total}


@dataclass
class Footprint:
    """Artifacts that were read once; ``estimate`` then tells any batch size."""

    files: Files
    choices: Choices = field(default_factory=Choices)
    sizes: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._model = onnx_codec.load(self.files.training_model)
        self._stored = _stored(self.files.checkpoint)
        self._choose()
        self._graphs: dict[bool, RunningGraph] = {}
        self._eval: RunningGraph | None = None
        source = self.files.optimizer_model
        self._spec = None if source is None else read_spec(source)

    @property
    def is_adamw(self) -> bool:
        """Whether the optimizer keeps two moments; without an optimizer model AdamW is assumed."""
        return self._spec is None or self._spec.is_adamw

    @property
    def clips(self) -> bool:
        """Whether gradients are clipped by the norm of all."""
        return self._spec is not None and self._spec.max_grad_norm is not None

    def _moment_bytes(self, trained: int) -> int:
        if not self.is_adamw:
            return 0
        if self.choices.moments == "8bit":
            return trained // 2 + trained // 4 // BLOCK * 16  # a byte each, and their blocks
        return 2 * trained

    def _choose(self) -> None:
        names = {tensor.name for tensor in self._stored}
        roles = Roles.of(self._model.graph, names)
        if not roles.trainable:
            raise ArtifactError(
                f"'{self.files.training_model}' makes no gradients: pass the training model"
            )
        self.all_trainable = tuple(roles.trainable)
        patterns = self.choices.trainable
        if patterns is not None:
            frozen = [v.name for v in roles.parameters if v.name not in roles.trainable]
            chosen = subset.choose(patterns, self.all_trainable, frozen)
            buffers = {roles.trainable[name] for name in chosen}
            self._model = subset.training_subset(self._model, buffers)
            roles = Roles.of(self._model.graph, names | {v.name for v in roles.parameters})
        self._roles = roles

    @property
    def fixed_batch(self) -> int | None:
        """The only batch size that the graph takes; None where it takes any."""
        return fixed_batch(self._roles.user_inputs)

    @property
    def has_statistics(self) -> bool:
        """Whether the graph moves running statistics, as BatchNormalization does."""
        return self._graph(False).has_updates

    def nearest_first(self) -> tuple[str, ...]:
        """The trainable parameters in the order in which a step makes their gradients."""
        return self._graph(False).gradient_order(self._roles.trainable)

    def parameter_bytes(self) -> dict[str, int]:
        """The size of each parameter, in the graph's order; ArtifactError where it is not known."""
        stored = {tensor.name: tensor.nbytes for tensor in self._stored}
        return {v.name: stored.get(v.name) or _declared(v) for v in self._roles.parameters}

    def estimate(self, batch: int, accumulates: bool = False, rows: int | None = None) -> Estimate:
        """The memory of steps with ``batch`` rows; ``rows``: those of an update, which are there
        at once, where ``accumulates``.

        Raises ValueError for a batch size that the graph does not take and for open sizes.
        """
        self._check_batch(batch)
        parameters = self.parameter_bytes()
        trained = sum(parameters[name] for name in self._roles.trainable)
        graph = self._graph(accumulates)
        dims = input_dims(graph.user_inputs, batch, self.sizes)
        walk, unknown = graph.walk(dims)
        evaluation, nodes = self._evaluation(dims)
        nodes += len(graph.running.nodes)
        return Estimate(
            batch=batch,
            accumulates=accumulates,
            weights=trained,
            frozen=sum(parameters.values()) - trained,
            gradients=0 if self.choices.fuse_optimizer else trained,
            moments=self._moment_bytes(trained),
            activations=int(walk.arena * _SLACK),
            batch_data=graph.fed_bytes(input_dims(graph.user_inputs, rows or batch, self.sizes)),
            evaluation=evaluation,
            runtime=_RUNTIME + nodes * _PER_NODE,
            unknown=unknown,
            at=walk.at,
            largest=walk.largest,
            trained=trained // 4,
        )

    def _check_batch(self, batch: int) -> None:
        if isinstance(batch, bool) or not isinstance(batch, int) or batch < 1:
            raise ValueError(f"batch: expected a whole number >= 1, got {batch!r}")
        if self.fixed_batch not in (None, batch):
            raise ValueError(f"batch {batch}: the model takes {self.fixed_batch} rows, no other")

    def _graph(self, adds: bool) -> RunningGraph:
        if adds not in self._graphs:
            names = {v.name for v in self._roles.parameters}
            self._graphs[adds] = RunningGraph.of_training(self._model, names, self.choices, adds)
        return self._graphs[adds]

    def _evaluation(self, dims: Mapping[str, tuple[int, ...]]) -> tuple[int, int]:
        """Bytes of activations and nodes of the eval graph, zeros without one."""
        if self.files.eval_model is None:
            return 0, 0
        if self._eval is None:
            model = evaluation_form(onnx_codec.load(self.files.eval_model))
            names = {v.name for v in self._roles.parameters}
            self._eval = RunningGraph.of_evaluation(model, names, self.choices.kernels)
        walk, _ = self._eval.walk(dims)
        return int(walk.arena * _FORWARD_SLACK), len(self._eval.running.nodes)


def _stored(checkpoint: Path | None) -> tuple[Tensor, ...]:
    if checkpoint is None:
        return ()
    with open_checkpoint(checkpoint) as state:
        return () if state.is_nominal else state.trainable + state.frozen


def _declared(value: ir.Value) -> int:
    size = tensor_bytes(value.elem_type, value.dims)
    if size is None:
        raise ArtifactError(
            f"parameter '{value.name}' has no fixed sizes in the training graph (it says "
            f"{value.dims}); pass the full checkpoint too"
        )
    return size


def estimate(
    artifacts: Files | str | os.PathLike[str],
    batch: int,
    *,
    accumulates: bool = False,
    rows: int | None = None,
    sizes: Mapping[str, int] | None = None,
    **choices: Any,
) -> Estimate:
    """What training takes, before anything runs.

    ``artifacts``: the folder of generate_artifacts, or ``Files``. ``batch`` rows go through the
    graph at once; ``accumulates`` where several of these make an update of ``rows``. ``sizes`` says
    the model's other free sizes by their symbol; ``choices`` are those of ``Choices``.

    Raises ArtifactError, UnsupportedOp, CheckpointError for files that cannot be used, ValueError
    for batch sizes and names that do not fit, NativeError for fused kernels where there are none.
    """
    chosen = chosen_from(choices)
    return Footprint(Files.of(artifacts), chosen, sizes or {}).estimate(batch, accumulates, rows)


def chosen_from(words: Mapping[str, Any]) -> Choices:
    """Choices of keyword arguments, lists made tuples; TypeError for a word it does not have."""
    made: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in words.items()}
    return Choices(**made)
