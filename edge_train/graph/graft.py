"""Protobuf bytes of a model whose large tensors are given apart: the inverse of ``skeleton``.

A tensor that stands for data number i is external data of location PLACED. Grafting turns it into
one with raw data, so that a model of any size is written without being held in memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from edge_train.checkpoint.builder import Data
from edge_train.graph import ir
from edge_train.graph.skeleton import delimited, fields, varint

#: no file has such a name
PLACED = "\0placed"
Piece = bytes | Data

_GRAPH, _NODE, _ATTRIBUTE, _TENSOR = "graph", "node", "attribute", "tensor"
#: message -> field number -> what message the field holds
_HOLDS: Mapping[str, Mapping[int, str]] = {
    "model": {7: _GRAPH},
    _GRAPH: {1: _NODE, 5: _TENSOR},
    _NODE: {5: _ATTRIBUTE},
    _ATTRIBUTE: {5: _TENSOR, 6: _GRAPH, 11: _GRAPH},
}
_RAW_DATA, _EXTERNAL_DATA, _DATA_LOCATION, _BYTES = 9, 13, 14, 2


def placed(tensor: ir.Tensor, index: int) -> ir.Tensor:
    """The tensor as a place for data number ``index``."""
    entries = (("location", PLACED), ("index", str(index)))
    return replace(tensor, raw=None, field="raw_data", external=entries)


def index_of(tensor: ir.Tensor) -> int | None:
    """The number of the data that a tensor is a place for."""
    entries = dict(tensor.external)
    return int(entries["index"]) if entries.get("location") == PLACED else None


def graft(light: bytes, data: Sequence[Data]) -> list[Piece]:
    """The bytes of a model file, in pieces, with ``data`` in the places for it."""
    return _message(light, "model", data)


def size_of(pieces: Sequence[Piece]) -> int:
    """How many bytes the pieces are."""
    return sum(len(piece) if isinstance(piece, bytes) else piece.nbytes for piece in pieces)


def _message(body: bytes, kind: str, data: Sequence[Data]) -> list[Piece]:
    if PLACED.encode() not in body:
        return [body]
    if kind == _TENSOR:
        return _tensor(body, data)
    pieces: list[Piece] = []
    for field in fields(body, 0, len(body)):
        inner = _HOLDS[kind].get(field.number) if field.wire == _BYTES else None
        if inner is None:
            pieces.append(body[field.start : field.end])
            continue
        own = _message(body[field.value : field.end], inner, data)
        pieces += [varint(field.number << 3 | _BYTES) + varint(size_of(own)), *own]
    return pieces


def _tensor(body: bytes, data: Sequence[Data]) -> list[Piece]:
    kept = b""
    entries: dict[bytes, bytes] = {}
    for field in fields(body, 0, len(body)):
        if field.number == _EXTERNAL_DATA:
            key, value = (body[f.value : f.end] for f in fields(body, field.value, field.end))
            entries[key] = value
        elif field.number != _DATA_LOCATION:
            kept += body[field.start : field.end]
    if entries.get(b"location") != PLACED.encode():
        return [body]  # the mark stood in its name or doc string
    own = data[int(entries[b"index"])]
    head = delimited(_RAW_DATA, b"")[:-1] + varint(own.nbytes)
    return [kept + head, own]
