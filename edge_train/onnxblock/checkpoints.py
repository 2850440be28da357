"""Parameters as TensorProto to a checkpoint, and a checkpoint's values into a model."""

from __future__ import annotations

import os
import warnings
from collections.abc import Collection, Sequence

import numpy as np
import onnx
from onnx import numpy_helper

from edge_train import dtypes
from edge_train.checkpoint import files
from edge_train.checkpoint.format import Checkpoint
from edge_train.checkpoint.tensor import Tensor
from edge_train.convert.onnx_model import fitting
from edge_train.errors import CheckpointError
from edge_train.graph.prepare.weights import weights_as_initializers
from edge_train.onnxblock import graphs


def save_checkpoint(
    parameters: tuple[Sequence[onnx.TensorProto], Sequence[onnx.TensorProto]],
    path_to_checkpoint: str | os.PathLike[str],
    nominal_checkpoint: bool = False,
) -> None:
    """Writes (trainable, frozen) parameters; a nominal checkpoint has their names alone.

    RuntimeError without parameters, CheckpointError if the disk refuses.
    """
    if parameters is None:
        raise RuntimeError("save_checkpoint needs (trainable, frozen) parameters, got None")
    made = _nameplate if nominal_checkpoint else _tensor
    trainable, frozen = (tuple(made(proto) for proto in protos) for protos in parameters)
    files.write(Checkpoint(trainable, frozen, is_nominal=nominal_checkpoint), path_to_checkpoint)


def _tensor(proto: onnx.TensorProto) -> Tensor:
    array = numpy_helper.to_array(proto)
    if proto.data_type == dtypes.STRING:
        return Tensor.of(proto.name, np.vectorize(_text, otypes=[object])(array))
    return Tensor(proto.name, proto.data_type, tuple(proto.dims), array)


def _text(item: bytes | str) -> str:
    return item.decode() if isinstance(item, bytes) else item


def _nameplate(proto: onnx.TensorProto) -> Tensor:
    return Tensor(proto.name, dtypes.FLOAT, (), np.empty(0, np.float32))


def load_checkpoint_to_model(
    path_to_checkpoint: str | os.PathLike[str], model: onnx.ModelProto
) -> None:
    """Puts a checkpoint's values into the weights of ``model`` that have their names.

    These are initializers, Constant nodes and copies of initializers, which become initializers;
    each keeps its type. UserWarning for parameters that the model does not have: a loss may have
    brought its own. CheckpointError, and the model as it was, for a nominal checkpoint, for one of
    whose parameters the model has none, and for another shape or type.
    """
    with files.open_checkpoint(path_to_checkpoint) as checkpoint:
        if checkpoint.is_nominal:
            raise CheckpointError(f"'{path_to_checkpoint}' is nominal: it has no values to load")
        tensors = {tensor.name: tensor for tensor in checkpoint.trainable + checkpoint.frozen}
        changed = _with_places(model, tensors)
        values = {
            place.name: _proto(
                fitting(tensors[place.name], place.data_type, tuple(place.dims)), place.doc_string
            )
            for place in changed.graph.initializer
            if place.name in tensors
        }
    _report(path_to_checkpoint, model, [name for name in tensors if name not in values], values)
    if changed is not model:
        model.CopyFrom(changed)
    for tensor in model.graph.initializer:
        if tensor.name in values:
            tensor.CopyFrom(values[tensor.name])


def _with_places(model: onnx.ModelProto, names: Collection[str]) -> onnx.ModelProto:
    if not set(names) - {tensor.name for tensor in model.graph.initializer}:
        return model
    plain = graphs.to_ir(model)
    changed = weights_as_initializers(plain, names)
    return model if changed is plain else graphs.from_ir(changed)


def _report(
    path: str | os.PathLike[str],
    model: onnx.ModelProto,
    homeless: Sequence[str],
    values: Collection[str],
) -> None:
    if not homeless:
        return
    text = (
        f"the model '{model.graph.name}' has no place for {list(homeless[:8])} of '{path}' "
        f"({len(homeless)} of {len(homeless) + len(values)} parameters)"
    )
    if not values:
        there = [tensor.name for tensor in model.graph.initializer][:8]
        raise CheckpointError(f"{text}; it has {there}: give the model the artifacts were made of")
    warnings.warn(f"{text}; they were left out", stacklevel=3)


def _proto(tensor: Tensor, doc_string: str) -> onnx.TensorProto:
    made = onnx.TensorProto(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)
    if doc_string:
        made.doc_string = doc_string
    if tensor.strings is None:
        made.raw_data = tensor.raw_bytes()
    else:
        made.string_data.extend(text.encode() for text in tensor.strings)
    return made
