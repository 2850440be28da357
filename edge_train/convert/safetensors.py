"""Checkpoint <-> safetensors: 8 bytes header length, a JSON header, the data of the tensors.

Written: tensors with the widest items first, then by name, as the safetensors library does, so
that all are aligned. Read: every range is checked before anything is read; nothing is executed.
"""

from __future__ import annotations

import json
import math
import os
from collections import Counter
from collections.abc import Sequence
from typing import Any

from edge_train import atomic, dtypes
from edge_train.checkpoint import source as sources
from edge_train.checkpoint.builder import blocks
from edge_train.checkpoint.format import MAX_RANK
from edge_train.checkpoint.source import Readable, Source, Span
from edge_train.checkpoint.tensor import Tensor
from edge_train.convert import foreign, intake
from edge_train.errors import CheckpointCorrupt, CheckpointError

_NAMES = {
    dtypes.DOUBLE: "F64",
    dtypes.FLOAT: "F32",
    dtypes.FLOAT16: "F16",
    dtypes.BFLOAT16: "BF16",
    dtypes.INT64: "I64",
    dtypes.INT32: "I32",
    dtypes.INT16: "I16",
    dtypes.INT8: "I8",
    dtypes.UINT64: "U64",
    dtypes.UINT32: "U32",
    dtypes.UINT16: "U16",
    dtypes.UINT8: "U8",
    dtypes.BOOL: "BOOL",
}
_NUMBERS = {name: number for number, name in _NAMES.items()}
_METADATA = "__metadata__"
#: a header is parsed as a whole: this is some hundred thousand tensors
MAX_HEADER = 16 * 2**20


def to_safetensors(source: Readable, destination: str | os.PathLike[str]) -> None:
    """Write a checkpoint as a safetensors file, optimizer state and properties included.

    Raises NominalStateError, CheckpointError and its children, OSError of the disk.
    """
    with intake.opened_full(source, "a safetensors file") as checkpoint:
        intake.refuse_strings(checkpoint, "a safetensors file")
        tensors = foreign.entries(checkpoint)
        if _METADATA in tensors:
            raise CheckpointError(f"the parameter '{_METADATA}' has a name that the format keeps")
        order = sorted(tensors, key=lambda name: (-_itemsize(tensors[name]), name))
        header: dict[str, Any] = {_METADATA: {foreign.KEY: foreign.description(checkpoint)}}
        end = 0
        for name in order:
            tensor = tensors[name]
            offsets = [end, end + tensor.nbytes]
            dtype = _NAMES[tensor.data_type]
            header[name] = {"dtype": dtype, "shape": tensor.dims, "data_offsets": offsets}
            end = offsets[1]
        text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode("utf-8")
        text += b" " * (-len(text) % 8)
        with atomic.replacing(destination) as file:
            file.write(len(text).to_bytes(8, "little") + text)
            for name in order:
                data = tensors[name].data
                for block in () if data is None else blocks(data):
                    file.write(block)


def from_safetensors(
    source: Readable,
    destination: str | os.PathLike[str],
    *,
    like: Readable | None = None,
    frozen: Sequence[str] = (),
) -> None:
    """Write a checkpoint with the tensors of a safetensors file.

    A file of ``to_safetensors`` gives the checkpoint it was made of. For another program's file
    ``like`` and ``frozen`` say what is trained (``foreign.arranged``).
    Raises CheckpointCorrupt for damaged files, CheckpointError for types that a checkpoint cannot
    hold and for what does not fit ``like``, ValueError, OSError.
    """
    with sources.opened(source) as opened:
        tensors, text = read(opened)
        label = f"safetensors file {opened.label}"
        if text is None or like is not None or frozen:
            checkpoint = foreign.arranged(tensors, label, like, frozen)
        else:
            checkpoint = foreign.restored(tensors, text, label)
        intake.write(checkpoint, destination)


def read(source: Source) -> tuple[dict[str, Tensor], str | None]:
    """The tensors by name in the order of their data, and this package's description if any."""
    header, start = _header(source)
    metadata = header.pop(_METADATA, None)
    places: list[tuple[int, int, Tensor]] = []
    for name, fields in header.items():
        where = f"safetensors file {source.label}: tensor '{name}'"
        data_type, dims, begin, end = _fields(fields, where)
        tensor = Tensor(name, data_type, dims, Span(source, start + begin, end - begin))
        if tensor.nbytes != end - begin:
            raise CheckpointCorrupt(
                f"{where} has {end - begin} bytes of data, expected {tensor.nbytes} for "
                f"{foreign.described(tensor)}; use another copy"
            )
        places.append((begin, end, tensor))
    _check_places(places, source, start)
    text = metadata.get(foreign.KEY) if isinstance(metadata, dict) else None
    return {tensor.name: tensor for *_, tensor in places}, text if isinstance(text, str) else None


def _header(source: Source) -> tuple[dict[str, Any], int]:
    what = f"safetensors file {source.label}"
    if source.size < 8:
        raise CheckpointCorrupt(f"{what} is truncated: {source.size} of at least 8 bytes")
    length = int.from_bytes(source.read(0, 8), "little")
    if length > MAX_HEADER:
        raise CheckpointCorrupt(
            f"{what} says its header has {length} bytes, at most {MAX_HEADER}: it is damaged or "
            "of another kind"
        )
    if 8 + length > source.size:
        raise CheckpointCorrupt(
            f"{what} is truncated: {source.size} of at least {8 + length} bytes (the header)"
        )

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        names = Counter(name for name, _ in pairs)
        twice = [name for name, count in names.items() if count > 1]
        if twice:
            raise CheckpointCorrupt(f"{what}: tensor '{twice[0]}' is there twice, expected once")
        return dict(pairs)

    try:
        header = json.loads(source.read(8, length), object_pairs_hook=unique)
        for name in header:
            name.encode("utf-8")
    except (ValueError, RecursionError, AttributeError, TypeError) as error:
        raise CheckpointCorrupt(f"{what}: its header is no JSON text ({error})") from error
    if not isinstance(header, dict):
        raise CheckpointCorrupt(f"{what}: its header is a {type(header).__name__}, no object")
    return header, 8 + length


def _fields(fields: Any, where: str) -> tuple[int, tuple[int, ...], int, int]:
    try:
        dtype, dims, (begin, end) = fields["dtype"], fields["shape"], fields["data_offsets"]
        numbers = [*dims, begin, end]
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointCorrupt(
            f"{where}: expected dtype, shape and two data_offsets, got {str(fields)[:200]}"
        ) from error
    if any(type(n) is not int or not 0 <= n < 2**63 for n in numbers) or len(dims) > MAX_RANK:
        raise CheckpointCorrupt(f"{where} has shape {dims} and offsets {[begin, end]}: no sizes")
    if not isinstance(dtype, str) or dtype not in _NUMBERS:
        raise CheckpointError(
            f"{where} is {dtype}, which a checkpoint cannot hold; cast it to F32 before"
        )
    return _NUMBERS[dtype], tuple(dims), begin, end


def _check_places(places: list[tuple[int, int, Tensor]], source: Source, start: int) -> None:
    """The data of all tensors fills the rest of the file, without gaps or overlaps."""
    places.sort(key=lambda place: place[:2])
    at = 0
    for begin, end, tensor in places:
        where = f"safetensors file {source.label}: tensor '{tensor.name}'"
        if begin != at:
            raise CheckpointCorrupt(
                f"{where} begins at byte {begin} of the data, expected {at}: tensors overlap or "
                "leave gaps"
            )
        if start + end > source.size:
            raise CheckpointCorrupt(
                f"{where} ends at byte {start + end}, the file has {source.size}: truncated; copy "
                "it again"
            )
        at = end
    if start + at != source.size:
        raise CheckpointCorrupt(
            f"safetensors file {source.label} has {source.size - start - at} bytes behind its last "
            "tensor, expected none"
        )


def _itemsize(tensor: Tensor) -> int:
    return tensor.nbytes // max(math.prod(tensor.dims), 1) or 1
