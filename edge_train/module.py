"""Module: runs the training and eval graphs of a model on the parameters of a CheckpointState.

A training step leaves the gradients in the state's Arena, where an Optimizer finds them. Gradients
add up from step to step until ``lazy_reset_grad`` is called.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from edge_train import adapter as adapters
from edge_train import export
from edge_train.arena import Arena
from edge_train.checkpoint.state import CheckpointState
from edge_train.checkpoint.tensor import Tensor
from edge_train.errors import ArtifactError, NominalStateError
from edge_train.fused_training import FusedTraining, Updating
from edge_train.graph import ir, onnx_codec, subset
from edge_train.graph.lowering import LabelRange
from edge_train.graph.passes import evaluation_form
from edge_train.graph.roles import Roles
from edge_train.inputs import returned
from edge_train.parameter_buffers import ParameterBuffers
from edge_train.placement import (
    check_parameters,
    check_trainable_types,
    choose,
    layout_of,
    make_room,
    move_in,
    place,
    release,
)
from edge_train.program import Program, TrainingProgram
from edge_train.runner import Fed
from edge_train.runtime import onnxruntime

if TYPE_CHECKING:
    from edge_train.device import Device

ModelSource = str | os.PathLike[str] | bytes | bytearray | memoryview


class Module(ParameterBuffers):
    """Training and evaluation of one model, in place on the parameters of ``state``.

    ``train_model_uri`` and ``eval_model_uri`` are paths or the bytes of the graphs. Training and
    evaluation graphs share the state's parameters; several Modules may share one state.

    ``trainable`` lists the parameters to train, by name or shell pattern (``["classifier.*",
    "*.bias"]``), out of those the artifacts can train: the others are frozen, and the backward
    nodes, gradients and moments that only they need are left out. The state remembers the choice,
    in its checkpoints too: without the argument a Module goes on with it, ``["*"]`` trains all
    (after ``state.groups.clear()``: moments are missing). A state trains one choice at a time, that
    of the Module made last. What a choice froze is changed by assigning to its Parameter.

    ``kernels`` picks what the graphs are lowered to: "portable", standard ONNX ops alone; "fused",
    our own kernels of the native library where they are faster; "auto", fused where that library
    is there for this machine (and EDGE_TRAIN_KERNELS does not name another backend).

    ``recompute`` trades time for memory in training steps: activations are made again for the
    backward pass instead of being kept, with the same bits. "auto" keeps those at the cuts of
    segments that hold the least at once (about a third more time); a list of patterns names the
    forward nodes or tensors to make again; "none" keeps all.

    ``device`` is where the parameters lie: "cpu" ("cpu:huge,lock": in large pages, never swapped
    out); "shm:NAME", where ``edge_train.device.SharedWeights`` of another process sees them;
    "opencl:N", where AdamW and SGD step on the device and the moments stay there; "file:PATH", the
    pages of a file with the flat buffer, which fills a nominal state and never changes. The graphs
    run on the CPU in any case. A state has one device, "cpu" goes on with it.

    ``fuse_optimizer`` puts the Optimizer that is made on this module into the backward pass: a
    training step updates each weight as soon as its gradient is there and nobody reads the weight
    any more, and keeps no gradients. The loop stays the same, and so do the bits;
    ``Optimizer.step()`` says what became of the last training step. Gradients cannot be read,
    added up or clipped by their global norm. A loss that is not finite leaves the step out as
    ever, a gradient that is not leaves out its own parameter. Needs the native library.

    Errors: ArtifactError when a graph cannot be used or does not fit the checkpoint,
    UnsupportedOp listing every node that has no implementation, FileNotFoundError, TypeError for
    arguments of another kind, ValueError for a device that is none and for entries of
    ``trainable`` and ``recompute`` that name nothing.
    """

    training: bool

    def __init__(
        self,
        train_model_uri: ModelSource,
        state: CheckpointState,
        eval_model_uri: ModelSource | None = None,
        device: str | Device = "cpu",
        session_options: onnxruntime.SessionOptions | None = None,
        *,
        trainable: Sequence[str] | None = None,
        kernels: str = "auto",
        recompute: str | Sequence[str] = "none",
        fuse_optimizer: bool = False,
    ) -> None:
        _check_arguments(state, session_options)
        self.training = True
        self.state = state
        state.check_pages()
        model, chosen = _chosen_part(onnx_codec.load(train_model_uri), state, trainable)
        self._train = _training_program(fuse_optimizer)(
            model, state, session_options, kernels, recompute, chosen is not None
        )
        self._layout = layout_of(self._train.roles, state)
        self._fitting: tuple[str, ...] | None = None  # names of an Arena that was seen to fit
        self._eval: Program | None = None
        if eval_model_uri is not None:
            self._eval_source = evaluation_form(onnx_codec.load(eval_model_uri))
            _check_evaluates(self._eval_source)
            self._eval = Program(self._eval_source, state, "eval graph", session_options, kernels)
            check_parameters("eval graph", self._eval.roles, state)
        choose(state, chosen)
        if device not in ("cpu", "cpu:0"):
            _choose_memory(state, device)
        if self._train.hold_frozen():
            release(state)  # other Modules on it are bound to where they were
        if not state.is_nominal:
            place(self._train.roles, self._layout, state)
        elif state.memory.has_values:
            move_in(make_room(self._train.roles, self._layout, state), state)
        self.lazy_reset_grad()  # a new Module starts its own sum

    def __call__(self, /, *user_inputs: Any, **named_inputs: Any) -> Fed | tuple[Fed, ...]:
        """One training or evaluation step, by ``training``; returns the graph's outputs.

        Inputs are NumPy arrays, OrtValues, or lists and numbers that fit the declared type, in the
        order of ``input_names()``, or keywords by those names. One output comes alone, several as a
        tuple; as OrtValues when every input is an OrtValue, else as NumPy arrays. The first output
        of a training graph is the loss. Threads may call at once: one waits for the other.

        Errors: TypeError, ValueError, ShapeMismatch, IndexError for inputs the graph cannot take;
        NominalStateError before a nominal state is filled; RunError when onnxruntime fails.
        """
        program = self._program()
        if self.state.is_nominal:
            raise NominalStateError(
                f"cannot run the {program.what}: the checkpoint is nominal (names without data); "
                "fill it first with copy_buffer_to_parameters(buffer, trainable_only=False)"
            )
        self.state.check_pages()
        with program.turn:
            feeds = program.inputs.bind(user_inputs, named_inputs)
            return returned(program.step(feeds, self.arena), feeds)

    def _program(self) -> Program:
        if self.training:
            return self._train
        if self._eval is None:
            raise ArtifactError(
                "no evaluation graph: pass eval_model_uri to Module, or call train() to go on "
                "training"
            )
        return self._eval

    def train(self, mode: bool = True) -> Module:
        """Switches to training steps (``mode=False``: to evaluation steps); returns the module."""
        self.training = mode
        return self

    def eval(self) -> Module:
        """Switches to evaluation steps; returns the module."""
        return self.train(False)

    @property
    def fuses_optimizer(self) -> bool:
        """Whether training steps update the weights themselves."""
        return isinstance(self._train, FusedTraining)

    def attach_optimizer(self, optimizer: Updating) -> None:
        """Lets an Optimizer update the weights in training steps; it calls this itself."""
        if isinstance(self._train, FusedTraining):
            self._train.optimizer = optimizer

    def lazy_reset_grad(self) -> None:
        """Lets the next training step overwrite the gradients instead of adding to them.

        Until then the old values stay readable. Modules that share a state share its gradients:
        it counts for the next step of any of them.
        """
        if self.state.arena is not None:
            self.state.arena.reset = True

    def input_names(self) -> list[str]:
        """Names of what a call is fed, in order, for the current mode."""
        return list(self._program().inputs.names)

    def input_values(self) -> tuple[ir.Value, ...]:
        """Name, element type and dims of what a call is fed, in order, for the current mode."""
        return self._program().inputs.values

    @property
    def label_ranges(self) -> tuple[LabelRange, ...]:
        """The classes of the training graph's losses, by the input with their numbers."""
        return self._train.inputs.labels

    @property
    def moves_statistics(self) -> bool:
        """Whether a training step moves running statistics (BatchNormalization)."""
        return self._train.moves_statistics

    def output_names(self) -> list[str]:
        """Names of what a call returns, in order, for the current mode."""
        return list(self._program().results)

    # ---- what the Optimizer reads -----------------------------------------------------------

    @property
    def arena(self) -> Arena:
        """The memory of the trainable parameters; NominalStateError before a fill."""
        if self.state.is_nominal:
            raise NominalStateError(
                "the checkpoint is nominal: fill it first with copy_buffer_to_parameters"
            )
        arena = self.state.arena
        if arena is None or arena.names is not self._fitting:
            arena = place(self._train.roles, self._layout, self.state)
            self._fitting = arena.names
        return arena

    @property
    def loss_is_finite(self) -> bool:
        """False when a step since the last gradient reset gave a NaN or infinite loss."""
        return self.state.arena is None or self.state.arena.loss_is_finite

    def export_model_for_inferencing(
        self,
        inference_model_uri: str | os.PathLike[str],
        graph_output_names: Sequence[str],
        *,
        external_data: bool = False,
        adapter: Sequence[str] = (),
    ) -> None:
        """Writes the part of the eval graph that makes the named outputs, parameters included.

        The file replaces an older one whole or not at all; missing folders are made.
        ``external_data`` puts the weights into ``<inference_model_uri>.data`` beside it; above
        2 GiB that is done anyway. Parameters whose names fit ``adapter`` (names or patterns) stay
        inputs with zeros as their default, to be given by a file of ``export_adapter``.

        Errors: ArtifactError without an eval graph, ValueError for no, repeated or unknown
        outputs or adapter names, TypeError for anything but a list of names, NominalStateError
        before a fill, OSError when the file cannot be written.
        """
        if self._eval is None:
            raise ArtifactError("export needs the eval graph: pass eval_model_uri to Module")
        if self.state.is_nominal:
            raise NominalStateError(
                "a nominal checkpoint has no weights to export; fill it first with "
                "copy_buffer_to_parameters(buffer, trainable_only=False)"
            )
        self.state.check_pages()
        names = [name for name, _ in self.state.parameters]
        export.write_inference_model(
            self._eval_source,
            self.state,
            graph_output_names,
            inference_model_uri,
            external_data=external_data,
            adapter=adapters.named(names, adapter) if adapter else (),
        )

    def export_adapter(
        self,
        adapter_uri: str | os.PathLike[str],
        names: Sequence[str] = adapters.LOW_RANK,
        *,
        adapter_version: int = 1,
        model_version: int = 1,
    ) -> None:
        """Writes the parameters of a low-rank adapter as onnxruntime's adapter file.

        ``names``: names or patterns. Plain onnxruntime loads it into a LoraAdapter and runs a
        model exported with the same ``adapter=names`` on it (``RunOptions.add_active_adapter``).

        Errors: ValueError for a name that no parameter has, NominalStateError before a fill,
        OSError when the file cannot be written.
        """
        self.state.check_pages()
        chosen = adapters.named([name for name, _ in self.state.parameters], names)
        tensors = [Tensor.of(name, self.state.parameters[name].data) for name in chosen]
        adapters.write(tensors, adapter_uri, adapter_version, model_version)


def _check_arguments(state: CheckpointState, options: onnxruntime.SessionOptions | None) -> None:
    if not isinstance(state, CheckpointState):
        raise TypeError(
            f"state: expected a CheckpointState, got {type(state).__name__}; make one with "
            "CheckpointState.load_checkpoint(path)"
        )
    if options is not None and not isinstance(options, onnxruntime.SessionOptions):
        raise TypeError(
            f"session_options: expected an onnxruntime.SessionOptions, got {type(options).__name__}"
        )


def _choose_memory(state: CheckpointState, device: str | Device) -> None:
    from edge_train.device.memories import choose  # costs a training on the CPU nothing

    choose(state, device)


def _chosen_part(
    model: ir.Model, state: CheckpointState, trainable: Sequence[str] | None
) -> tuple[ir.Model, tuple[str, ...] | None]:
    """The graph for the chosen parameters, and which these are: None for all there are."""
    roles = Roles.of(model.graph, {name for name, _ in state.parameters})
    _check_trains(model, roles)
    check_trainable_types(roles)
    check_parameters("training graph", roles, state)
    patterns = state.chosen if trainable is None else trainable
    if patterns is None:
        return model, None
    names = list(roles.trainable)
    frozen = [value.name for value in roles.parameters if value.name not in roles.trainable]
    chosen = subset.choose(patterns, names, frozen)
    if len(chosen) == len(names):
        return model, None
    return subset.training_subset(model, {roles.trainable[name] for name in chosen}), chosen


def _training_program(fuse_optimizer: bool) -> type[TrainingProgram]:
    if not isinstance(fuse_optimizer, bool):
        raise TypeError(f"fuse_optimizer: expected True or False, got {fuse_optimizer!r}")
    return FusedTraining if fuse_optimizer else TrainingProgram


def _check_trains(model: ir.Model, roles: Roles) -> None:
    if roles.trainable:
        return
    steps = [
        n.op_type for n in model.graph.nodes if n.op_type.endswith(("Optimizer", "OptimizerV2"))
    ]
    kind = f"the optimizer model (it has {steps[0]})" if steps else "the eval or forward model"
    raise ArtifactError(
        "the training graph makes no gradients (it has no InPlaceAccumulatorV2 node); pass "
        f"training_model.onnx, not {kind}"
    )


def _check_evaluates(model: ir.Model) -> None:
    if any(node.op_type == "InPlaceAccumulatorV2" for node in model.graph.nodes):
        raise ArtifactError(
            "the eval graph makes gradients; pass eval_model.onnx as eval_model_uri"
        )
