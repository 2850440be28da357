"""Reads and writes ONNX files with the protobuf package alone: bytes <-> ir.Model.

What the IR does not model is kept as protobuf bytes in the ``extra`` of the object it stood in and
merged back on writing. A scalar field at its default value counts as not modelled where the file
spells it out, so presence survives too. A model read and written unchanged is the same message.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Union

from google.protobuf.message import DecodeError

from edge_train.errors import ArtifactError
from edge_train.graph import external_data, ir
from edge_train.graph.onnx_reader import read_model, read_tensor
from edge_train.graph.onnx_schema import ModelProto, TensorProto
from edge_train.graph.onnx_writer import write_model, write_tensor

Source = Union[str, "os.PathLike[str]", bytes, bytearray, memoryview]


def load(source: Source) -> ir.Model:
    """The model of an ONNX file (path) or of its bytes, external tensor data read in.

    FileNotFoundError if the file is missing, ArtifactError naming it if it cannot be used.
    """
    if isinstance(source, (bytes, bytearray, memoryview)):
        return external_data.resolve(_decode(bytes(source), "the model given as bytes"), None)
    path = Path(source)
    return external_data.resolve(_decode(_read(path), f"'{path}'"), path.parent)


def decode(data: bytes) -> ir.Model:
    """The model in the bytes of an ONNX file, external data left alone; ArtifactError."""
    return _decode(data, "the model")


def decode_tensor(data: bytes) -> ir.Tensor:
    """The tensor in the bytes of a TensorProto, external data left alone; ArtifactError."""
    message = TensorProto()
    try:
        message.ParseFromString(data)
        return read_tensor(message)
    except (DecodeError, UnicodeDecodeError) as error:
        raise ArtifactError(f"the bytes are not a TensorProto ({error})") from error


def _read(path: Path) -> bytes:
    if path.is_dir():
        raise ArtifactError(f"'{path}' is a folder: an ONNX file is needed")
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise FileNotFoundError(errno.ENOENT, "no such ONNX file", str(path)) from None
    except (OSError, ValueError) as error:
        raise ArtifactError(f"'{path}' cannot be read: {error}") from error


def _decode(data: bytes, what: str) -> ir.Model:
    refuse_foreign(data, what)
    message = ModelProto()
    try:
        message.ParseFromString(data)
        if not message.HasField("graph"):
            raise ArtifactError(f"{what} has no graph: it is not an ONNX model")
        return read_model(message)
    except UnicodeDecodeError as error:
        raise ArtifactError(f"{what} has a name that is not UTF-8: {error.object!r}") from error
    except (DecodeError, RecursionError) as error:
        reason = "its messages nest too deep" if isinstance(error, RecursionError) else str(error)
        raise ArtifactError(f"{what} is not an ONNX model, or is damaged ({reason})") from error
    except ArtifactError as error:
        raise ArtifactError(f"{what}: {error}") from error.__cause__


def refuse_foreign(data: bytes, what: str) -> None:
    """ArtifactError if the head of a file shows that it is something else than ONNX."""
    if not data:
        raise ArtifactError(f"{what} is empty: an ONNX model is needed")
    if data[4:8] == b"ORTM":
        raise ArtifactError(
            f"{what} is in ORT format, which is not read here: pass the .onnx file it was made from"
        )
    if data[4:8] == b"ODTC":
        raise ArtifactError(f"{what} is a training checkpoint: an ONNX model is needed here")


def encode(model: ir.Model) -> bytes:
    """The bytes of an ONNX file; ArtifactError where protobuf cannot hold them (2 GB)."""
    message = ModelProto()
    write_model(message, model)
    try:
        data: bytes = message.SerializeToString()
    except Exception as error:  # the exception's type differs between protobuf versions
        raise ArtifactError(f"model '{model.graph.name}' cannot be written: {error}") from error
    return data


def encode_tensor(tensor: ir.Tensor) -> bytes:
    """The bytes of a TensorProto."""
    message = TensorProto()
    write_tensor(message, tensor)
    data: bytes = message.SerializeToString()
    return data
