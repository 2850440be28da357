"""A checkpoint <-> one flat buffer of float32: what copy_buffer_to_parameters takes.

The order is that of the training graph's inputs, which only the training model knows (U052), so
every function here takes it. A buffer is raw little-endian float32, or a .npy file of them.
"""

from __future__ import annotations

import io
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
from numpy.lib import format as npy

from edge_train import atomic, dtypes
from edge_train.checkpoint import source as sources
from edge_train.checkpoint.builder import blocks
from edge_train.checkpoint.format import Checkpoint
from edge_train.checkpoint.source import Readable, Source, Span
from edge_train.checkpoint.tensor import Tensor
from edge_train.convert import intake, private
from edge_train.errors import ArtifactError, CheckpointCorrupt, CheckpointError, NominalStateError
from edge_train.graph import ir, onnx_codec
from edge_train.graph.onnx_codec import Source as ModelSource
from edge_train.graph.roles import Roles
from edge_train.npy import read_header
from edge_train.placement import ParameterSlot

Path = str | os.PathLike[str]
_MAGIC = b"\x93NUMPY"


def layout(
    checkpoint: Readable, training_model: ModelSource, trainable_only: bool = False
) -> tuple[ParameterSlot, ...]:
    """Name, shape, offset (in elements) and trainable flag of each parameter in the buffer.

    The same as ``Module.parameter_layout``. Raises ArtifactError if model and checkpoint do not fit
    or a parameter is no float32 tensor, and what ``intake.opened`` raises.
    """
    with intake.opened(checkpoint) as opened:
        return _layout(opened, training_model, trainable_only)


def to_flat(
    source: Readable,
    destination: Path,
    training_model: ModelSource,
    trainable_only: bool = False,
) -> None:
    """Write the buffer of ``Module.get_contiguous_parameters``; as .npy if the name ends so.

    Raises NominalStateError, ArtifactError as ``layout``, CheckpointError, OSError.
    """
    with intake.opened_full(source, "a flat buffer") as checkpoint:
        slots = _layout(checkpoint, training_model, trainable_only)
        tensors = intake.parameters(checkpoint)
        count = sum(slot.size for slot in slots)
        with atomic.replacing(destination) as file:
            if os.fspath(destination).endswith(".npy"):
                fields = {"descr": "<f4", "fortran_order": False, "shape": (count,)}
                npy.write_array_header_1_0(file, fields)
            for slot in slots:
                data = tensors[slot.name].data
                for block in () if data is None else blocks(data):
                    file.write(block)


def from_flat(
    source: Readable,
    buffer: Readable,
    destination: Path,
    training_model: ModelSource,
    trainable_only: bool = False,
    *,
    reset_optimizer: bool = False,
) -> None:
    """Write ``source`` with the values of ``buffer``, as ``copy_buffer_to_parameters`` sets them.

    A nominal checkpoint becomes a full one (``trainable_only=False``). Moments and step count are
    kept, unless ``reset_optimizer`` (the next Optimizer begins with zeros).
    Raises ValueError for a buffer of another size (naming the layout), CheckpointError for another
    type, NominalStateError for ``trainable_only`` on a nominal checkpoint, and as ``to_flat``.
    """
    with (
        intake.opened(source) as checkpoint,
        sources.opened(buffer) as opened,
    ):
        if checkpoint.is_nominal and trainable_only:
            raise NominalStateError(
                f"checkpoint {intake.label_of(source)} is nominal: it is filled whole, with a "
                "buffer of every parameter (trainable_only=False)"
            )
        slots = _layout(checkpoint, training_model, trainable_only)
        start, count = _extent(opened)
        if count != sum(slot.size for slot in slots):
            raise ValueError(_misfit(checkpoint, training_model, slots, trainable_only, count))
        data = {s.name: Span(opened, start + 4 * s.offset, 4 * s.size) for s in slots}
        shapes = {slot.name: slot.shape for slot in slots}

        def filled(tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            return tuple(
                replace(t, data=data[t.name], dims=shapes[t.name], offset=-1)
                if t.name in data
                else t
                for t in tensors
            )

        changed = replace(
            checkpoint,
            trainable=filled(checkpoint.trainable),
            frozen=filled(checkpoint.frozen),
            is_nominal=False,
        )
        changed = private.outside_a_run(changed)
        intake.write(private.rewound(changed) if reset_optimizer else changed, destination)


def _layout(
    checkpoint: Checkpoint, training_model: ModelSource, trainable_only: bool
) -> tuple[ParameterSlot, ...]:
    tensors = intake.parameters(checkpoint)
    roles = Roles.of(onnx_codec.load(training_model).graph, tensors)
    problems = list(_problems(checkpoint, roles))
    if problems:
        listed = "\n  ".join(problems)
        raise ArtifactError(
            f"the checkpoint and the training model do not make a flat buffer ({len(problems)} "
            f"problems):\n  {listed}\nUse the training_model.onnx that belongs to the checkpoint."
        )
    slots = []
    offset = 0
    for value in roles.parameters:
        trainable = value.name in roles.trainable
        if trainable or not trainable_only:
            dims = value.dims if checkpoint.is_nominal else tensors[value.name].dims
            shape = tuple(int(dim) for dim in dims or () if dim is not None)
            slots.append(ParameterSlot(value.name, shape, offset, trainable))
            offset += slots[-1].size
    return tuple(slots)


def _problems(checkpoint: Checkpoint, roles: Roles) -> Iterator[str]:
    if not roles.trainable:
        yield "the model makes no gradients: it is no training model"
    tensors = intake.parameters(checkpoint)
    trained = {tensor.name for tensor in checkpoint.trainable}
    for name in roles.unknown:
        yield f"'{name}' is missing from the checkpoint"
    asked = {value.name for value in roles.parameters}
    if checkpoint.is_nominal:
        yield from (
            f"'{n}' is nominal and no input of the model" for n in tensors if n not in asked
        )
    for value in roles.parameters:
        if value.name in tensors:
            where = trained, value.name in roles.trainable
            yield from _misfits(value, tensors[value.name], *where, checkpoint.is_nominal)


def _misfits(
    value: ir.Value, tensor: Tensor, trained: set[str], is_trained: bool, nominal: bool
) -> Iterator[str]:
    name = value.name
    if (name in trained) != is_trained:
        words = ("frozen", "trained")
        yield f"'{name}' is {words[name in trained]} there, {words[is_trained]} in the model"
    kind = value.elem_type if nominal else tensor.data_type
    if kind not in (None, dtypes.FLOAT):
        yield f"'{name}' is {dtypes.name_of(kind or 0)}: a flat buffer holds float32 alone"
    dims = value.dims
    if nominal:
        if dims is None or not all(isinstance(dim, int) for dim in dims):
            yield f"'{name}' has no fixed sizes in the model ({dims}), and a nominal one has none"
    elif dims is not None and not _fits(tensor.dims, dims):
        yield f"'{name}' has shape {list(tensor.dims)}, the model wants {list(dims)}"


def _fits(shape: Sequence[int], dims: Sequence[ir.Dim]) -> bool:
    return len(shape) == len(dims) and all(
        size == dim or not isinstance(dim, int) for size, dim in zip(shape, dims, strict=True)
    )


def _extent(buffer: Source) -> tuple[int, int]:
    """Where the values begin, and how many there are."""
    if buffer.size >= len(_MAGIC) and buffer.read(0, len(_MAGIC)) == _MAGIC:
        return _npy_extent(buffer)
    if buffer.size % 4:
        raise ValueError(
            f"the buffer {buffer.label} has {buffer.size} bytes: no whole number of float32"
        )
    return 0, buffer.size // 4


def _npy_extent(buffer: Source) -> tuple[int, int]:
    head = io.BytesIO(buffer.read(0, min(buffer.size, 4096)))
    try:
        dims, _, dtype = read_header(head)
    except ValueError as error:
        raise CheckpointCorrupt(f"the buffer {buffer.label} is a damaged .npy ({error})") from error
    if dtype != np.dtype("<f4") or len(dims) != 1:
        raise CheckpointError(
            f"the buffer {buffer.label} is {dtype.str} of shape {list(dims)}, expected one row of "
            "float32 (<f4)"
        )
    if buffer.size - head.tell() != 4 * math.prod(dims):
        raise CheckpointCorrupt(
            f"the buffer {buffer.label} has {buffer.size - head.tell()} bytes of data, expected "
            f"{4 * math.prod(dims)}: truncated; copy it again"
        )
    return head.tell(), math.prod(dims)


def _misfit(
    checkpoint: Checkpoint,
    training_model: ModelSource,
    slots: Sequence[ParameterSlot],
    trainable_only: bool,
    count: int,
) -> str:
    expected = sum(slot.size for slot in slots)
    others = _layout(checkpoint, training_model, not trainable_only)
    fits = count == sum(slot.size for slot in others)
    hint = f"; it fits trainable_only={not trainable_only}" if fits else ""
    shown = ", ".join(f"{slot.name}{list(slot.shape)}" for slot in slots[:8])
    more = f", ... {len(slots) - 8} more" if len(slots) > 8 else ""
    return (
        f"the buffer has {count} elements, expected {expected} for "
        f"trainable_only={trainable_only}{hint}. Layout: {shown}{more}"
    )
