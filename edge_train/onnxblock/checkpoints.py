"""Parameters as TensorProto to a checkpoint, and a checkpoint's values into a model."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np
import onnx
from onnx import numpy_helper

from edge_train import dtypes
from edge_train.checkpoint import files
from edge_train.checkpoint.format import Checkpoint
from edge_train.checkpoint.tensor import Tensor
from edge_train.errors import CheckpointError


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
    return Tensor(proto.name, proto.data_type, tuple(proto.dims), array)


def _nameplate(proto: onnx.TensorProto) -> Tensor:
    return Tensor(proto.name, dtypes.FLOAT, (), np.empty(0, np.float32))


def load_checkpoint_to_model(
    path_to_checkpoint: str | os.PathLike[str], model: onnx.ModelProto
) -> None:
    """Puts a checkpoint's values into the initializers of ``model`` that have their names.

    CheckpointError for a nominal checkpoint.
    """
    with files.open_checkpoint(path_to_checkpoint) as checkpoint:
        if checkpoint.is_nominal:
            raise CheckpointError(f"'{path_to_checkpoint}' is nominal: it has no values to load")
        values = {
            tensor.name: numpy_helper.from_array(tensor.array(), tensor.name)
            for tensor in checkpoint.trainable + checkpoint.frozen
        }
    for tensor in model.graph.initializer:
        if tensor.name in values:
            tensor.CopyFrom(values[tensor.name])
