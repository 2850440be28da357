"""Writes a set of artifacts: all the bytes are on the disk before the first file is replaced."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from edge_train import atomic, dtypes
from edge_train.checkpoint import files
from edge_train.checkpoint.format import Checkpoint
from edge_train.checkpoint.layout import layout
from edge_train.checkpoint.tensor import Tensor
from edge_train.graph import ir, onnx_codec
from edge_train.graph.training import Built
from edge_train.model_source import ModelSource, doc_string


def write_files(
    folder: Path,
    prefix: str,
    built: Built,
    optimizer: Any | None,
    source: ModelSource,
    nominal: bool,
) -> None:
    """Replaces the files of a set in ``folder``, which is made; ``optimizer``: a ModelProto.

    After an error the old files are there, all of them.
    """
    folder.mkdir(parents=True, exist_ok=True)
    models = {
        "training_model.onnx": onnx_codec.encode(source.whole(built.training)),
        "eval_model.onnx": onnx_codec.encode(source.whole(built.eval)),
    }
    if optimizer is not None:
        models["optimizer_model.onnx"] = optimizer.SerializeToString()
    checkpoint = Checkpoint(
        tuple(_trainable(tensor, source) for tensor in built.trainable),
        tuple(_tensor(tensor, source) for tensor in built.frozen),
    )
    with ExitStack() as stack:
        for name, data in models.items():
            stack.enter_context(atomic.replacing(folder / f"{prefix}{name}")).write(data)
        if nominal:
            file = stack.enter_context(atomic.replacing(folder / f"{prefix}nominal_checkpoint"))
            for block in layout(_nominal(checkpoint)).blocks():
                file.write(block)
        files.write(checkpoint, folder / f"{prefix}checkpoint")


def _tensor(tensor: ir.Tensor, source: ModelSource) -> Tensor:
    words = doc_string(tensor)
    return Tensor(tensor.name, tensor.data_type, tensor.dims, source.data(tensor), words)


def _trainable(tensor: ir.Tensor, source: ModelSource) -> Tensor:
    """As float32, whatever the type in the model."""
    if tensor.data_type == dtypes.FLOAT:
        return _tensor(tensor, source)
    values = _tensor(tensor, source).array().astype(np.float32)
    return Tensor(tensor.name, dtypes.FLOAT, tensor.dims, values)


def _nominal(checkpoint: Checkpoint) -> Checkpoint:
    trainable, frozen = (
        tuple(Tensor(t.name, dtypes.FLOAT, (), np.empty(0, np.float32)) for t in tensors)
        for tensors in (checkpoint.trainable, checkpoint.frozen)
    )
    return Checkpoint(trainable, frozen, is_nominal=True)
