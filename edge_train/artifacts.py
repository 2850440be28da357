"""From a forward ONNX model to the files that a device trains with (host side, needs ``onnx``).

training_model.onnx, eval_model.onnx, optimizer_model.onnx, checkpoint and nominal_checkpoint are
those of onnxruntime-training 1.19.2, and can be trained by it too.
"""

from __future__ import annotations

import inspect
import os
import warnings
from collections.abc import Iterable, Sequence
from enum import Enum
from pathlib import Path
from typing import Any

try:
    import onnx
except ImportError as error:
    raise ImportError(
        "making artifacts needs the package onnx: pip install edge-train[artifacts]"
    ) from error

from edge_train import onnxblock
from edge_train.artifact_files import write_files
from edge_train.errors import ArtifactError, EdgeTrainError
from edge_train.graph.parameters import Choice
from edge_train.graph.prepare import tidy
from edge_train.graph.training import Built, build
from edge_train.model_source import ModelSource
from edge_train.onnxblock import graphs, model_accessor


class LossType(Enum):
    """The losses that go by name; ``onnxblock.loss`` has more, and options."""

    MSELoss = 1
    CrossEntropyLoss = 2
    BCEWithLogitsLoss = 3
    L1Loss = 4


class OptimType(Enum):
    """The optimizers that go by name; ``onnxblock.optim`` has their options."""

    AdamW = 1
    SGD = 2


def generate_artifacts(
    model: onnx.ModelProto | str | os.PathLike[str] | bytes,
    requires_grad: Sequence[str] | None = None,
    frozen_params: Sequence[str] | None = None,
    loss: LossType | onnxblock.Block | None = None,
    optimizer: OptimType | onnxblock.Block | None = None,
    artifact_directory: str | bytes | os.PathLike[str] | None = None,
    prefix: str = "",
    ort_format: bool = False,
    custom_op_library: str | bytes | os.PathLike[str] | None = None,
    additional_output_names: Sequence[str] | None = None,
    nominal_checkpoint: bool = False,
    loss_input_names: Sequence[str] | None = None,
) -> None:
    """Writes the artifacts of ``model`` (a ModelProto, a path, or a file's bytes).

    ``requires_grad``: names or glob patterns of the parameters to train, None for every float
    parameter; ``frozen_params`` are kept as they are. Parameters in neither are frozen.
    ``loss`` None differentiates the model's first output. ``loss_input_names``: what the loss is
    called with, the model's outputs unless told. ``additional_output_names`` become outputs after
    the loss. ``optimizer`` None writes no optimizer model. ``<prefix>training_model.onnx``
    and so on replace older ones in ``artifact_directory`` (the current folder unless told), which
    is made.

    Errors: ArtifactError with everything that keeps the model from being trained, UnsupportedOp
    where that is nodes without gradient alone, TypeError and ValueError for other arguments,
    CheckpointError and OSError from the disk. Nothing is written then.
    """
    _check_arguments(loss, optimizer, ort_format)
    train = None if requires_grad is None else _names("requires_grad", requires_grad)
    freeze = _names("frozen_params", frozen_params)
    loss_inputs = _names("loss_input_names", loss_input_names)
    additional = _names("additional_output_names", additional_output_names)
    if custom_op_library is not None and not os.path.exists(custom_op_library):
        raise FileNotFoundError(f"custom op library '{os.fsdecode(custom_op_library)}' is missing")
    with ModelSource.opened(model) as source:
        built, opset = _build(
            source.light(train or ()), _block(loss), train, freeze, loss_inputs, additional
        )
        for name in built.statistics:
            warnings.warn(
                f"'{name}' is a running statistic: it moves with the batches and is not trained",
                stacklevel=2,
            )
        folder = Path(os.fsdecode(artifact_directory or os.getcwd()))
        update = None if optimizer is None else _optimizer_model(optimizer, built, opset)
        write_files(folder, prefix or "", built, update, source, nominal_checkpoint)


def _check_arguments(loss: Any, optimizer: Any, ort_format: bool) -> None:
    for what, value, kinds in (
        ("loss", loss, (LossType, onnxblock.Block)),
        ("optimizer", optimizer, (OptimType, onnxblock.Block)),
    ):
        if value is not None and not isinstance(value, kinds):
            raise TypeError(
                f"{what} is a {kinds[0].__name__}, an onnxblock.Block or None, got "
                f"{type(value).__name__}"
            )
    if ort_format:
        raise ValueError(
            "ort_format=True: the ORT format is not written, the .onnx files load everywhere"
        )


def _names(what: str, given: Iterable[str] | None) -> tuple[str, ...]:
    if isinstance(given, (str, bytes)):
        raise TypeError(f"{what} is a list of names, got one {type(given).__name__}")
    names = tuple(given or ())
    for name in names:
        if not isinstance(name, str):
            raise TypeError(f"{what} is a list of names, got {name!r} among them")
    return names


def _block(loss: LossType | onnxblock.Block | None) -> onnxblock.Block:
    if loss is None:
        return onnxblock.blocks.PassThrough()
    if isinstance(loss, LossType):
        block: onnxblock.Block = getattr(onnxblock.loss, loss.name)()
        return block
    return loss


def _build(
    model: onnx.ModelProto,
    loss: onnxblock.Block,
    train: tuple[str, ...] | None,
    freeze: tuple[str, ...],
    loss_inputs: tuple[str, ...],
    additional: tuple[str, ...],
) -> tuple[Built, int]:
    # before the loss is added: its blocks ask for the sizes of the outputs
    model = graphs.from_ir(tidy(graphs.to_ir(model), (*(train or ()), *freeze)))
    own = graphs.weight_names(model)
    outputs = [value.name for value in model.graph.output]
    with model_accessor.borrowed(model) as accessor:
        names, problems = _losses(loss, list(loss_inputs) or outputs, bool(loss_inputs), outputs)
        weights = own.union(accessor.weights)
        choice = Choice(train, freeze, weights)
        built = build(graphs.to_ir(model), [*names, *additional], choice, problems)
        return built, graphs.opset_of(model)


def _losses(
    loss: onnxblock.Block, inputs: list[str], named: bool, fallback: list[str]
) -> tuple[list[str], list[str]]:
    """The names that the loss gives, or what is wrong with it, for the common report."""
    wrong = _arity_problem(loss, inputs, named)
    if wrong:
        return fallback, [wrong]
    try:
        result = loss(*inputs)
    except (EdgeTrainError, LookupError) as error:
        text = error.args[0] if isinstance(error, KeyError) and error.args else error
        return fallback, [f"the loss {type(loss).__name__}: {text}"]
    names = [result] if isinstance(result, str) else list(result or ())
    if not names or not all(isinstance(name, str) for name in names):
        return fallback, [
            f"the loss {type(loss).__name__} gave {result!r}; build returns the name of the loss"
        ]
    return names, []


def _arity_problem(loss: onnxblock.Block, inputs: list[str], named: bool) -> str | None:
    name = type(loss).__name__
    # a second output would silently become the target of a built-in loss
    if isinstance(loss, onnxblock.loss.Loss) and len(inputs) > 1 and not named:
        return (
            f"the model has {len(inputs)} outputs {inputs}, {name} takes one: say which with "
            f"loss_input_names, or pass an onnxblock.Block that combines them"
        )
    try:
        inspect.signature(loss.build).bind(*inputs)
    except TypeError as error:
        return (
            f"{name}.build{inspect.signature(loss.build)} cannot be called with the "
            f"{len(inputs)} names {inputs} ({error}): say which with loss_input_names"
        )
    return None


def _optimizer_model(
    optimizer: OptimType | onnxblock.Block, built: Built, opset: int
) -> onnx.ModelProto:
    block: Any = optimizer
    if isinstance(optimizer, OptimType):
        block = getattr(onnxblock.optim, optimizer.name)()
    # names and types are what an optimizer needs; the data stays where it is
    trainable, frozen = (
        [onnx.TensorProto(name=t.name, data_type=t.data_type, dims=t.dims) for t in tensors]
        for tensors in (built.trainable, built.frozen)
    )
    for parameter in trainable:
        parameter.data_type = onnx.TensorProto.FLOAT
    with onnxblock.empty_base(opset_version=opset):
        block((trainable, frozen))
        made = getattr(block, "to_model_proto", None)
        if made is None:
            raise ArtifactError(
                f"the optimizer {type(block).__name__} has no to_model_proto: derive it from "
                "onnxblock.ForwardBlock"
            )
        model: onnx.ModelProto = made()
        return model
