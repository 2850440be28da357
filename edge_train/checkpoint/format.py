"""The checkpoint format: bytes to plain dataclasses, one ``validate`` before anything is used.

docs/format.md is its specification. Tensor data is not read here; a Tensor knows where it lies.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from edge_train import dtypes
from edge_train.checkpoint import wire
from edge_train.checkpoint.source import MemorySource, Source, Span
from edge_train.checkpoint.tensor import Tensor
from edge_train.checkpoint.wire import Reader, Table
from edge_train.errors import CheckpointCorrupt, CheckpointError, CheckpointVersion

IDENTIFIER = b"ODTC"
VERSION = 2
READABLE = (1, VERSION)  # 1 (onnxruntime-training 1.16, 1.17) is the same without nominal states
MAX_RANK = 32  # NumPy before 2.0
MAX_ELEMENTS = 2**48

Property = int | float | str

#: opens the data file of a checkpoint that has one; the argument is the stored identity or None
OpenData = Callable[["str | None"], Source]
#: the property that ties a checkpoint to the data file written with it
DATA_IDENTITY = "edge_train.data"
IDENTITY_BYTES = 16

_REFUSED = frozenset((dtypes.COMPLEX64, dtypes.COMPLEX128))
_BEYOND_NUMPY = frozenset((dtypes.STRING, dtypes.BFLOAT16))
_NARROW = frozenset(range(17, 25))  # float8, and 4-bit numbers


@dataclass(frozen=True)
class Group:
    """An optimizer group: moments by parameter name, in file order."""

    name: str
    step: int
    initial_learning_rate: float
    moments: tuple[tuple[str, tuple[Tensor, ...]], ...]


@dataclass(frozen=True)
class Checkpoint:
    """The whole file. ``groups`` is None where the file has no such field (fresh artifacts)."""

    trainable: tuple[Tensor, ...] = ()
    frozen: tuple[Tensor, ...] = ()
    is_nominal: bool = False
    has_external_data: bool = False
    groups: tuple[Group, ...] | None = None
    properties: Mapping[str, Property] = field(default_factory=dict)

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Every tensor with the words that name it in an error."""
        for tensor in self.trainable + self.frozen:
            yield f"tensor '{tensor.name}'", tensor
        for group in self.groups or ():
            for parameter, moments in group.moments:
                for tensor in moments:
                    yield f"{tensor.name} of '{parameter}' in group '{group.name}'", tensor


def read(
    data: bytes | bytearray | memoryview | Source, open_data: OpenData | None = None
) -> Checkpoint:
    """Parse and validate; the tensors' data is read later from the still open source.

    Raises CheckpointCorrupt for bytes that break the format, CheckpointVersion for another
    version, CheckpointError for a type that is not supported or a missing data file.
    """
    source = data if isinstance(data, Source) else MemorySource(data)
    checkpoint = _parse(Reader(source))
    external = None
    if checkpoint.has_external_data:
        if open_data is None:
            raise CheckpointError(
                f"checkpoint {source.label} keeps tensor data in a second file '<path>.data'; load "
                "it by its path"
            )
        told = checkpoint.properties.get(DATA_IDENTITY)
        identity = told if isinstance(told, str) else None
        external = open_data(identity)
    validate(checkpoint, source.label, None if external is None else external.size)
    if external is None:
        return checkpoint
    if identity is not None:
        _check_identity(checkpoint, source.label, external, identity)
    return _with_data(checkpoint, external)


def validate(checkpoint: Checkpoint, label: str, data_size: int | None = None) -> None:
    """Refuse what the tables allow and the format forbids; ``data_size`` is the data file's."""
    parameters = len(checkpoint.trainable) + len(checkpoint.frozen)
    for index, (what, tensor) in enumerate(checkpoint.tensors()):
        where = f"checkpoint {label}: {what}"
        if not tensor.name:
            raise CheckpointCorrupt(f"checkpoint {label}: a tensor has an empty name")
        _check_type(tensor, where)
        _check_dims(tensor, where)
        nominal = checkpoint.is_nominal and index < parameters  # moments always have data
        _check_size(tensor, where, nominal, data_size)
    names = [group.name for group in checkpoint.groups or ()]
    if len(set(names)) != len(names):
        raise CheckpointCorrupt(f"checkpoint {label}: optimizer groups share a name: {names}")


def _check_type(tensor: Tensor, where: str) -> None:
    if tensor.data_type in _REFUSED or tensor.data_type in _NARROW:
        raise CheckpointError(
            f"{where} is {dtypes.name_of(tensor.data_type)}, which cannot be loaded (nor can "
            "onnxruntime-training); keep such tensors out of the parameters or cast them to float32"
        )
    if tensor.data_type not in dtypes.NUMPY and tensor.data_type not in _BEYOND_NUMPY:
        raise CheckpointCorrupt(f"{where} has data type {tensor.data_type}, which ONNX lacks")


def _check_dims(tensor: Tensor, where: str) -> None:
    if len(tensor.dims) > MAX_RANK:
        raise CheckpointCorrupt(f"{where} has {len(tensor.dims)} dims, at most {MAX_RANK}")
    if any(size < 0 for size in tensor.dims):
        raise CheckpointCorrupt(f"{where} has dims {list(tensor.dims)}, expected none below 0")
    # without the zeros, because NumPy computes strides from the others
    if math.prod(size for size in tensor.dims if size) > MAX_ELEMENTS:
        raise CheckpointCorrupt(f"{where} has dims {list(tensor.dims)}: too many elements")


def _check_size(tensor: Tensor, where: str, nominal: bool, data_size: int | None) -> None:
    if tensor.data_type == dtypes.STRING:
        got = len(tensor.strings or ())
        if tensor.strings is None or got != math.prod(tensor.dims):
            raise CheckpointCorrupt(
                f"{where} has {got} strings, expected {math.prod(tensor.dims)} for "
                f"{list(tensor.dims)}; use another copy"
            )
    elif tensor.offset >= 0:
        end = tensor.offset + tensor.nbytes
        if data_size is None:
            raise CheckpointCorrupt(
                f"{where} lies at byte {tensor.offset} of a data file, but the checkpoint says it "
                "has none; use another copy"
            )
        if end > data_size:
            raise CheckpointCorrupt(
                f"{where} ends at byte {end} of the data file, which has {data_size} bytes: "
                "truncated or of another checkpoint; copy both files again"
            )
    elif tensor.data is None:
        raise CheckpointCorrupt(f"{where} has neither data nor a place in a data file")
    elif tensor.data.nbytes != tensor.nbytes and not (nominal and not tensor.data.nbytes):
        at = f" (at byte {tensor.data.offset})" if isinstance(tensor.data, Span) else ""
        raise CheckpointCorrupt(
            f"{where} has {tensor.data.nbytes} bytes of data{at}, expected {tensor.nbytes} for "
            f"{dtypes.name_of(tensor.data_type)} {list(tensor.dims)}; use another copy"
        )


def _check_identity(checkpoint: Checkpoint, label: str, external: Source, identity: str) -> None:
    ends = [
        tensor.offset + tensor.nbytes for _, tensor in checkpoint.tensors() if tensor.offset >= 0
    ]
    end = max(ends, default=0)
    if external.size - end != IDENTITY_BYTES:
        return  # not written by this package, which leaves exactly its identity behind the data
    got = external.read(end, IDENTITY_BYTES).hex()
    if got != identity:
        raise CheckpointError(
            f"checkpoint {label} and its data file {external.label} are of two saves (expected "
            f"identity {identity}, got {got}); copy both files of one save, or load again if a "
            "save was under way"
        )


def _with_data(checkpoint: Checkpoint, external: Source) -> Checkpoint:
    def place(tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        # an offset wins over inline data, as in the reference
        return tuple(
            replace(t, data=Span(external, t.offset, t.nbytes), offset=-1) if t.offset >= 0 else t
            for t in tensors
        )

    groups = checkpoint.groups
    if groups is not None:
        groups = tuple(
            replace(g, moments=tuple((name, place(tensors)) for name, tensors in g.moments))
            for g in groups
        )
    trainable, frozen = place(checkpoint.trainable), place(checkpoint.frozen)
    return replace(checkpoint, trainable=trainable, frozen=frozen, groups=groups)


def _parse(reader: Reader) -> Checkpoint:
    root = _root(reader)
    version = root.integer(0, wire.INT32)
    if version not in READABLE:
        raise CheckpointVersion(
            f"checkpoint {reader.source.label} has format version {version}, expected 1 or 2 "
            "(onnxruntime-training 1.16 to 1.19); save it again with one of these"
        )
    module = root.table(1, "module_state")
    groups = root.tables(2, "optimizer_groups")
    bag = root.table(3, "property_bag")
    return Checkpoint(
        trainable=() if module is None else _tensors(module, 0, "requires_grad_params"),
        frozen=() if module is None else _tensors(module, 1, "frozen_params"),
        is_nominal=module is not None and bool(module.integer(2, wire.BOOL)),
        has_external_data=module is not None and bool(module.integer(3, wire.BOOL)),
        groups=None if groups is None else tuple(_group(table) for table in groups),
        properties={} if bag is None else _properties(bag),
    )


def _root(reader: Reader) -> Table:
    if reader.size == 0:
        raise CheckpointCorrupt(f"checkpoint {reader.source.label} is empty (0 bytes)")
    reader.need(0, 8, "the file's head")
    head = reader.source.read(0, 8)
    if head[4:] != IDENTIFIER:
        raise CheckpointCorrupt(
            f"{reader.source.label} is no checkpoint: expected {IDENTIFIER!r} at byte 4, got "
            f"{head[4:]!r}"
        )
    return reader.table(int.from_bytes(head[:4], "little"), "the root table")


def _tensors(table: Table, slot: int, list_name: str) -> tuple[Tensor, ...]:
    return tuple(
        _tensor(entry) for entry in _required(table.tables(slot, list_name), table, list_name)
    )


def _tensor(table: Table) -> Tensor:
    name = _required(table.text(0, "the name"), table, "name")
    table.what = f"tensor '{name}'"
    doc_string = table.text(1, "the doc string")
    dims = _required(table.int64s(2, "dims", MAX_RANK), table, "dims")
    data_type = table.integer(3, wire.INT32)
    if data_type == dtypes.STRING:
        strings = table.texts(5, "the strings")
        return Tensor(name, data_type, dims, doc_string=doc_string, strings=strings)
    return Tensor(
        name=name,
        doc_string=doc_string,
        dims=dims,
        data_type=data_type,
        data=table.span(4, "the data"),
        offset=max(table.integer(6, wire.INT64, -1), -1),
    )


def _group(table: Table) -> Group:
    name = _required(table.text(0, "the name"), table, "name")
    table.what = f"optimizer group '{name}'"
    states = _required(table.tables(3, "optimizer_states"), table, "optimizer_states")
    return Group(
        name=name,
        step=table.integer(1, wire.INT64),
        initial_learning_rate=float(table.scalar(2, wire.FLOAT32, 0)),
        moments=tuple(_moments(state) for state in states),
    )


def _moments(table: Table) -> tuple[str, tuple[Tensor, ...]]:
    name = _required(table.text(0, "the parameter name"), table, "param_name")
    table.what = f"the optimizer state of '{name}'"
    return name, _tensors(table, 1, "momentums")


def _properties(bag: Table) -> dict[str, Property]:
    properties: dict[str, Property] = {}
    for slot, kind in enumerate(("ints", "floats", "strings")):
        for table in bag.tables(slot, kind, objects=2) or ():
            name = _required(table.text(0, "the name"), table, "name")
            table.what = f"property '{name}'"
            if kind == "ints":
                properties[name] = table.integer(1, wire.INT64)
            elif kind == "floats":
                properties[name] = float(table.scalar(1, wire.FLOAT32, 0))
            else:
                properties[name] = _required(table.text(1, "the value"), table, "value")
    return properties


def _required(value: Any, table: Table, name: str) -> Any:
    if value is None:
        table.reader.fail(table.offset, f"{table.what} lacks the field '{name}'")
    return value
