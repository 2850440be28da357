"""ONNX files opened without their large tensors, and written tensor by tensor.

An open model is a light ``ir.Model`` and a list of data, to which the tensors of the model refer by
number. Needs no onnx and no onnxruntime.
"""

from __future__ import annotations

import errno
import math
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from edge_train import atomic, dtypes
from edge_train.checkpoint import source as sources
from edge_train.checkpoint.builder import Data, blocks
from edge_train.checkpoint.source import FileSource, MemorySource, Readable, Source, Span
from edge_train.checkpoint.tensor import Tensor
from edge_train.errors import ArtifactError
from edge_train.graph import external_data, graft, ir, onnx_codec
from edge_train.graph.skeleton import skeleton

#: from here on a tensor's data stays where it is; shapes and axes, which passes read, are smaller
_LARGE = 1024
#: data in a second file begins at multiples of this, so that it can be mapped
_PAGE = 4096
#: bytes of tensors: protobuf ends at 2 GiB, the graph itself has the last of them
LARGEST = 2**31 - 2**24


@dataclass
class OpenModel:
    """A model whose tensors may be places for ``data``."""

    model: ir.Model
    data: list[Data] = field(default_factory=list)

    def place(self, tensor: Tensor) -> ir.Tensor:
        """An initializer with the values of a checkpoint's tensor, which are read at the write."""
        if tensor.strings is not None:
            texts = tuple(text.encode() for text in tensor.strings)
            kind = tensor.data_type
            return ir.Tensor(tensor.name, kind, tensor.dims, None, "string_data", strings=texts)
        self.data.append(np.empty(0, np.uint8) if tensor.data is None else tensor.data)
        plain = ir.Tensor(tensor.name, tensor.data_type, tensor.dims, None)
        return graft.placed(plain, len(self.data) - 1)

    def tensor(self, name: str) -> Tensor:
        """An initializer as a checkpoint's tensor; ArtifactError if its bytes do not fill it."""
        initializer = self.model.graph.initializers[name]
        kind, dims = initializer.data_type, initializer.dims
        if initializer.strings is not None:
            return Tensor(name, kind, dims, strings=_texts(name, initializer.strings))
        index = graft.index_of(initializer)
        raw = initializer.raw or b""
        data: Data = Span(MemorySource(raw), 0, len(raw)) if index is None else self.data[index]
        if data.nbytes != _nbytes(initializer):
            raise ArtifactError(
                f"tensor '{name}' {list(dims)} needs {_nbytes(initializer)} bytes, the model has "
                f"{data.nbytes}: it is damaged"
            )
        return Tensor(name, kind, dims, data)


@contextmanager
def opened(readable: Readable) -> Iterator[OpenModel]:
    """The model at a path, in bytes or in a binary file; its data is read inside the block.

    FileNotFoundError for a missing file; ArtifactError for what is no model, and naming the tensor
    whose external data is missing, too short or outside the model's folder.
    """
    folder = _folder(readable)
    here = f"\0{os.urandom(32).hex()}"  # the "file" of data in the model itself: none can name it
    with ExitStack() as stack:
        source = stack.enter_context(sources.opened(readable))
        what = f"model {source.label}"
        onnx_codec.refuse_foreign(source.read(0, min(16, source.size)), what)
        try:
            model = onnx_codec.decode(skeleton(_Window(source), here, _LARGE))
        except ArtifactError as error:
            raise ArtifactError(f"{what} is not an ONNX model, or is damaged ({error})") from error
        found = OpenModel(model)
        files: dict[Path, FileSource] = {}

        def changed(tensor: ir.Tensor) -> ir.Tensor:
            entries = dict(tensor.external)
            if entries.get("location") == here:
                found.data.append(Span(source, int(entries["offset"]), int(entries["length"])))
            else:
                found.data.append(_outer_data(tensor, folder, files, stack))
            return graft.placed(tensor, len(found.data) - 1)

        external_data.change(model.graph, changed)
        yield found


def write(opened_model: OpenModel, path: str | os.PathLike[str], *, external: bool = False) -> None:
    """Write a model in place of ``path``, whole or not at all.

    With ``external``, and always above 2 GiB, tensors of 1 KiB and more go into ``<path>.data``:
    two files, of which a power cut between two renames can leave one old. Raises OSError.
    """
    data = opened_model.data
    places: dict[int, int] = {}
    name = f"{os.path.basename(os.fspath(path))}.data"
    pieces = graft.graft(onnx_codec.encode(opened_model.model), data)
    if external or sum(p.nbytes for p in pieces if not isinstance(p, bytes)) > LARGEST:
        model, places = _outside(opened_model, name)
        pieces = graft.graft(onnx_codec.encode(model), data)
    with ExitStack() as stack:
        file = stack.enter_context(atomic.replacing(path))
        for piece in pieces:
            for block in (piece,) if isinstance(piece, bytes) else blocks(piece):
                file.write(block)
        if places:  # put in its place before the model, which nobody can load without it
            beside = Path(os.path.realpath(path)).parent / name
            _write_data(stack.enter_context(atomic.replacing(beside)), places, data)


def _outside(opened_model: OpenModel, name: str) -> tuple[ir.Model, dict[int, int]]:
    """The model with its large tensors in the file ``name``; their offsets there, by number.

    Data that no tensor refers to any more, weights that were replaced or cut off, has no place.
    """
    model, data = opened_model.model, opened_model.data
    places: dict[int, int] = {}
    end = 0

    def changed(tensor: ir.Tensor) -> ir.Tensor:
        nonlocal end
        index = graft.index_of(tensor)
        if index is None or data[index].nbytes < _LARGE:
            return tensor
        if index not in places:
            places[index] = end + -end % _PAGE
            end = places[index] + data[index].nbytes
        entries = {"location": name, "offset": places[index], "length": data[index].nbytes}
        return replace(tensor, external=tuple((key, str(v)) for key, v in entries.items()))

    graph = replace(
        model.graph,
        nodes=list(model.graph.nodes),
        initializers=dict(model.graph.initializers),
    )
    external_data.change(graph, changed)
    return replace(model, graph=graph), places


def _write_data(file: BinaryIO, places: dict[int, int], data: Sequence[Data]) -> None:
    written = 0
    for index, offset in places.items():
        file.write(bytes(offset - written))
        for block in blocks(data[index]):
            file.write(block)
        written = offset + data[index].nbytes


def _folder(readable: Readable) -> Path | None:
    if not isinstance(readable, (str, os.PathLike)):
        return None
    path = Path(os.fsdecode(readable))
    if path.is_dir():
        raise ArtifactError(f"'{path}' is a folder: an ONNX file is needed")
    if not path.exists():
        raise FileNotFoundError(errno.ENOENT, "no such ONNX file", str(path))
    return path.parent


class _Window:
    """The bytes of a source by index, for ``skeleton``."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def __len__(self) -> int:
        return self._source.size

    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, slice):
            return self._source.read(at.start, at.stop - at.start) if at.stop > at.start else b""
        return self._source.read(at, 1)[0]


def _outer_data(
    tensor: ir.Tensor, folder: Path | None, files: dict[Path, FileSource], stack: ExitStack
) -> Data:
    path, offset, length = external_data.locate(tensor, folder)
    if path not in files:
        file = stack.enter_context(path.open("rb"))
        files[path] = FileSource(file, f"'{path}'", str(path))
    return Span(files[path], offset, length)


def _texts(name: str, strings: Sequence[bytes]) -> tuple[str, ...]:
    try:
        return tuple(text.decode("utf-8") for text in strings)
    except UnicodeDecodeError as error:
        raise ArtifactError(f"tensor '{name}' has text that is not UTF-8") from error


def _nbytes(tensor: ir.Tensor) -> int:
    if min(tensor.dims, default=0) < 0:
        raise ArtifactError(f"tensor '{tensor.name}' has dims {list(tensor.dims)}: it is damaged")
    if tensor.data_type == dtypes.BFLOAT16:
        return 2 * math.prod(tensor.dims)
    if tensor.data_type not in dtypes.NUMPY:
        kind = dtypes.name_of(tensor.data_type)
        raise ArtifactError(f"tensor '{tensor.name}' is {kind}, which a checkpoint cannot hold")
    return math.prod(tensor.dims) * dtypes.NUMPY[tensor.data_type].itemsize
