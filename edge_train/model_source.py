"""The forward model as it was given, and where the data of its large tensors lies.

Large initializers are never parsed: the graph work is done on a light model that names them as
external data, and the checkpoint takes their bytes straight from the file.
"""

from __future__ import annotations

import errno
import math
import mmap
import os
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import DecodeError

from edge_train import dtypes
from edge_train.checkpoint.builder import Data, blocks
from edge_train.checkpoint.source import FileSource, MemorySource, Span
from edge_train.errors import ArtifactError
from edge_train.graph import external_data, ir, onnx_codec
from edge_train.graph.onnx_codec import decode_tensor
from edge_train.graph.skeleton import skeleton

#: from here on a tensor's data stays where it is
LARGE = 64 * 1024
#: the "file" of data that came in memory
_IN_MEMORY = "<memory>"


class ModelSource:
    """A model with access to the data of its tensors while it is open."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._folder: Path | None = None
        self._bytes: MemorySource | None = None
        self._protos: dict[str, onnx.TensorProto] = {}
        self._files: dict[Path, FileSource] = {}
        self._light: onnx.ModelProto

    @staticmethod
    @contextmanager
    def opened(model: Any) -> Iterator[ModelSource]:
        """A ModelProto, a path or a file's bytes. FileNotFoundError, ArtifactError, TypeError."""
        with ExitStack() as stack:
            source = ModelSource(stack)
            if isinstance(model, onnx.ModelProto):
                source._light = source._lightened(model)
            elif isinstance(model, (bytes, bytearray, memoryview)):
                view = bytes(model)
                source._bytes = MemorySource(view)
                source._light = _parsed(view, _IN_MEMORY, "the model given as bytes")
            elif isinstance(model, (str, os.PathLike)):
                source._folder, source._light = _from_file(Path(model))
            else:
                raise TypeError(
                    f"the model is an onnx.ModelProto, a path or bytes, got {type(model).__name__}"
                )
            source._read_small()
            yield source

    def light(self, asked: Collection[str] = ()) -> onnx.ModelProto:
        """The model with its large initializers as external data; the caller may change it.

        Where a parameter that is ``asked`` for is the transpose of one, that one is read in.
        """
        transposed = {
            node.input[0]
            for node in self._light.graph.node
            if node.op_type == "Transpose" and node.output[0] in asked
        }
        for tensor in self._light.graph.initializer:
            if tensor.name in transposed and tensor.data_location == onnx.TensorProto.EXTERNAL:
                self._read(tensor)
        return self._light

    def data(self, tensor: ir.Tensor) -> Data:
        """The bytes of a tensor: an array, or a span of a file. ArtifactError as external_data."""
        if tensor.raw is not None:
            return _array(tensor, tensor.raw)
        entries = dict(tensor.external)
        if entries.get("location") == _IN_MEMORY:
            if self._bytes is not None:
                return Span(self._bytes, int(entries["offset"]), int(entries["length"]))
            return _proto_array(tensor, self._protos[entries["tensor"]])
        path, offset, length = external_data.locate(tensor, self._folder)
        expected = _nbytes(tensor)
        if length != expected:
            raise ArtifactError(
                f"tensor '{tensor.name}' {list(tensor.dims)} needs {expected} bytes, its external "
                f"data in '{path}' has {length}"
            )
        if path not in self._files:
            file = self._stack.enter_context(path.open("rb"))
            self._files[path] = FileSource(file, f"'{path}'", str(path))
        return Span(self._files[path], offset, length)

    def whole(self, model: ir.Model) -> ir.Model:
        """``model`` with the data of every initializer read in."""
        graph = model.graph
        tensors = {name: self._inline(tensor) for name, tensor in graph.initializers.items()}
        nodes = [self._whole_node(node) for node in graph.nodes]
        return replace(model, graph=replace(graph, initializers=tensors, nodes=nodes))

    def _whole_node(self, node: ir.Node) -> ir.Node:
        found = {
            name: replace(attribute, value=self._inline(attribute.value))
            for name, attribute in node.attributes.items()
            if attribute.type == ir.TENSOR and attribute.value.external
        }
        return replace(node, attributes={**node.attributes, **found}) if found else node

    def _inline(self, tensor: ir.Tensor) -> ir.Tensor:
        if not tensor.external:
            return tensor
        raw = b"".join(bytes(block) for block in blocks(self.data(tensor)))
        return replace(tensor, raw=raw, field="raw_data", external=())

    def _lightened(self, model: onnx.ModelProto) -> onnx.ModelProto:
        light = onnx.ModelProto()
        _copy_fields(model, light, "graph")
        _copy_fields(model.graph, light.graph, "initializer", "node")
        for tensor in model.graph.initializer:
            self._copy_tensor(tensor, light.graph.initializer.add(), tensor.name)
        for node in model.graph.node:
            copied = light.graph.node.add()
            _copy_fields(node, copied, "attribute")
            for attribute in node.attribute:
                there = copied.attribute.add()
                _copy_fields(attribute, there, "t")
                if attribute.HasField("t"):
                    self._copy_tensor(attribute.t, there.t, f"{node.output[0]}/{attribute.name}")
        return light

    def _copy_tensor(self, tensor: Any, there: Any, key: str) -> None:
        if tensor.ByteSize() < LARGE or tensor.data_location == onnx.TensorProto.EXTERNAL:
            there.CopyFrom(tensor)
            return
        self._protos[key] = tensor
        there.name, there.data_type = tensor.name, tensor.data_type
        there.dims.extend(tensor.dims)
        if tensor.HasField("doc_string"):
            there.doc_string = tensor.doc_string
        there.data_location = onnx.TensorProto.EXTERNAL
        # a copy of the tensor may get another name
        for what, value in (("location", _IN_MEMORY), ("tensor", key)):
            there.external_data.add(key=what, value=value)

    def _read_small(self) -> None:
        """Small external tensors, and those in attributes, may be shapes and axes: read in."""
        for tensor in _tensors(self._light.graph):
            external = tensor.data_location == onnx.TensorProto.EXTERNAL
            if external and (tensor.data_type in _INTEGERS or math.prod(tensor.dims) * 4 < LARGE):
                self._read(tensor)

    def _read(self, tensor: onnx.TensorProto) -> None:
        plain = self._inline(decode_tensor(tensor.SerializeToString()))
        tensor.ParseFromString(onnx_codec.encode_tensor(plain))


_INTEGERS = (dtypes.INT32, dtypes.INT64)


def _from_file(path: Path) -> tuple[Path, onnx.ModelProto]:
    if path.is_dir():
        raise ArtifactError(f"'{path}' is a folder: an ONNX file is needed")
    try:
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_size == 0:
                raise ArtifactError(f"'{path}' is empty: an ONNX model is needed")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
                return path.parent, _parsed(view, path.name, f"'{path}'")
    except FileNotFoundError:
        raise FileNotFoundError(errno.ENOENT, "no such ONNX file", str(path)) from None


def _parsed(data: Any, location: str, what: str) -> onnx.ModelProto:
    onnx_codec.refuse_foreign(bytes(data[:16]), what)
    try:
        model = onnx.ModelProto()
        model.ParseFromString(skeleton(data, location, LARGE))
    except (DecodeError, ArtifactError) as error:
        raise ArtifactError(f"{what} is not an ONNX model, or is damaged ({error})") from error
    if not model.HasField("graph"):
        raise ArtifactError(f"{what} has no graph: it is not an ONNX model")
    return model


def _copy_fields(source: Any, target: Any, *skip: str) -> None:
    for field, value in source.ListFields():
        if field.name in skip:
            continue
        if hasattr(value, "extend"):
            getattr(target, field.name).extend(value)
        elif hasattr(value, "CopyFrom"):
            getattr(target, field.name).CopyFrom(value)
        else:
            setattr(target, field.name, value)


def _tensors(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    yield from graph.initializer
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            if attribute.HasField("g"):
                yield from _tensors(attribute.g)


def _dtype(data_type: int) -> np.dtype[Any]:
    # bfloat16 has no NumPy dtype; its bytes are what is wanted
    return np.dtype(np.uint16) if data_type == dtypes.BFLOAT16 else dtypes.NUMPY[data_type]


def _nbytes(tensor: ir.Tensor) -> int:
    return math.prod(tensor.dims) * _dtype(tensor.data_type).itemsize


def _array(tensor: ir.Tensor, raw: bytes) -> np.ndarray[Any, Any]:
    if len(raw) != _nbytes(tensor):
        raise ArtifactError(
            f"tensor '{tensor.name}' {list(tensor.dims)} needs {_nbytes(tensor)} bytes, the model "
            f"has {len(raw)}"
        )
    little = _dtype(tensor.data_type).newbyteorder("<")
    return np.frombuffer(raw, little).reshape(tensor.dims)


def doc_string(tensor: ir.Tensor) -> str | None:
    """What the model says of a tensor; it goes into the checkpoint, as in the reference."""
    message = onnx.TensorProto()
    message.ParseFromString(tensor.extra)
    return message.doc_string if message.HasField("doc_string") else None


def _proto_array(tensor: ir.Tensor, proto: onnx.TensorProto) -> np.ndarray[Any, Any]:
    if proto.HasField("raw_data"):
        return _array(tensor, proto.raw_data)
    return np.asarray(onnx.numpy_helper.to_array(proto))
