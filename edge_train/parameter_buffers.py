"""The parameters of a Module as one flat float32 buffer: read, overwritten, completed.

The order is that of the training graph's inputs. A Module gets these methods from its base class.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from edge_train import dtypes, optimizer, streams
from edge_train.checkpoint.state import CheckpointState
from edge_train.errors import NominalStateError
from edge_train.filling import Filling, Progress, checksum_of
from edge_train.host_arrays import host_array, writable_array
from edge_train.inputs import as_ortvalue
from edge_train.placement import (
    ParameterSlot,
    gather,
    gather_into,
    make_room,
    move_in,
    scatter,
    spread,
)
from edge_train.program import TrainingProgram
from edge_train.runtime import onnxruntime


class ParameterBuffers:
    """What a Module offers of its parameters as one vector."""

    state: CheckpointState
    _train: TrainingProgram
    _layout: tuple[ParameterSlot, ...]
    _filling: Filling | None = None

    def parameter_layout(self, trainable_only: bool = False) -> tuple[ParameterSlot, ...]:
        """Name, shape, offset and trainable flag of each parameter in the flat buffer.

        The order is that of the training graph's inputs, which generation fixes. Offsets count
        float32 elements in the buffer of the same ``trainable_only``.
        """
        slots: list[ParameterSlot] = []
        offset = 0
        for slot in self._layout:
            if slot.trainable or not trainable_only:
                slots.append(ParameterSlot(slot.name, slot.shape, offset, slot.trainable))
                offset += slot.size
        return tuple(slots)

    def get_parameters_size(self, trainable_only: bool = True) -> int:
        """The number of elements in the flat buffer."""
        return sum(slot.size for slot in self.parameter_layout(trainable_only))

    def get_contiguous_parameters(self, trainable_only: bool = False) -> onnxruntime.OrtValue:
        """A copy of the parameters as one float32 OrtValue of shape (get_parameters_size,).

        Errors: NominalStateError before a fill; TypeError when a parameter is not float32.
        """
        self._require_data()
        flat = gather(self._float_layout(trainable_only), self.state)
        return as_ortvalue(flat)

    def copy_buffer_to_parameters(
        self, buffer: Any, trainable_only: bool = True, *, reset_optimizer: bool = False
    ) -> None:
        """Overwrites the parameters with a flat buffer; completes a nominal state.

        ``buffer`` has exactly ``get_parameters_size`` float32 elements: a NumPy array, OrtValue,
        DeviceBuffer, DLPack tensor in host memory, or a binary file object from its position on
        (little-endian; read in blocks, and into the parameters themselves where these are new).
        Optimizer moments and step count are kept unless ``reset_optimizer`` is set.

        Errors: TypeError for another dtype, ValueError for another size, NominalStateError for
        ``trainable_only`` on a nominal state. The parameters are then as they were.
        """
        if self.state.is_nominal and trainable_only:
            raise NominalStateError(
                "a nominal checkpoint is filled whole: pass every parameter with "
                "trainable_only=False"
            )
        layout = self._float_layout(trainable_only)
        streamed = streams.is_stream(buffer)
        if streamed:
            self._check_size(streams.elements_left(buffer), trainable_only)
        else:
            flat = _as_flat(buffer)
            self._check_size(flat.size, trainable_only)
        if self.state.is_nominal:
            room = make_room(self._train.roles, self._layout, self.state)
            if streamed:
                streams.read_into(buffer, [room.homes[slot.name] for slot in layout])
            else:
                spread(flat, layout, room.homes)
            self._filling = None
            move_in(room, self.state)
        else:
            if streamed:  # first as a whole: a fault on the way leaves the parameters alone
                flat = np.empty(self.get_parameters_size(trainable_only), np.float32)
                streams.read_into(buffer, [flat])
            with self.state.memory.writing():  # not new weights with old moments
                scatter(flat, layout, self.state)
                if reset_optimizer:
                    optimizer.reset_group(self.state)
            return
        if reset_optimizer:
            optimizer.reset_group(self.state)

    def copy_parameters_to_buffer(self, buffer: Any, trainable_only: bool = True) -> None:
        """Writes the parameters into a flat buffer, the inverse of copy_buffer_to_parameters.

        ``buffer`` is a contiguous float32 array, OrtValue, DeviceBuffer or DLPack tensor with
        exactly ``get_parameters_size`` elements, or a binary file object, written in blocks.

        Errors: NominalStateError before a fill; TypeError, ValueError as there, for a buffer that
        cannot be written to, and for a parameter that is not float32.
        """
        self._require_data()
        layout = self._float_layout(trainable_only)
        if streams.is_sink(buffer):
            for slot in layout:
                streams.write_from(buffer, self.state.parameters[slot.name].data)
            return
        flat = _checked_floats(writable_array(buffer, "the buffer"))
        self._check_size(flat.size, trainable_only)
        gather_into(flat.reshape(-1), layout, self.state)

    # ---- piece by piece ---------------------------------------------------------------------

    def begin_fill(
        self, *, checksum: str | None = None, journal: str | os.PathLike[str] | None = None
    ) -> Progress:
        """Starts to fill a nominal state in pieces, or goes on where a journal ends.

        ``checksum``, as ``parameters_checksum`` of the sender gives it, is held against the whole
        buffer when the last element came. ``journal`` is a file that keeps every piece: after a
        crash, ``begin_fill`` with the same file takes all that came before. It is the caller's to
        delete, once the state is saved.

        Errors: ValueError for a state that has its data, a checksum that is none, a journal of
        another model or transfer.
        """
        if not self.state.is_nominal:
            raise ValueError(
                "only a nominal state is filled in pieces; this one has its data: use "
                "copy_buffer_to_parameters"
            )
        room = make_room(self._train.roles, self._layout, self.state)
        self._filling = Filling(room, self._float_layout(False), checksum, journal)
        return self._moved_in()

    def fill(self, offset: int, chunk: Any, *, checksum: str | None = None) -> Progress:
        """Puts one piece of the full flat buffer in its place; the last one completes the state.

        ``offset`` counts float32 elements; ``chunk`` is a float32 array, OrtValue, DeviceBuffer,
        DLPack tensor, or bytes (little-endian). Pieces may come in any order, overlap and come
        again. ``checksum`` is held against this piece. Until every element came (and the checksum
        of ``begin_fill`` holds) the state stays nominal.

        Errors: TypeError for another dtype; ValueError for a piece outside of the buffer, a
        checksum that differs (a piece is then not taken; a whole buffer is to be sent again), a
        state that has its data.
        """
        if self._filling is None or not self.state.is_nominal:
            self.begin_fill()
        filling = self._filling
        if filling is None:
            raise ValueError("there is nothing left to fill")
        filling.put(offset, chunk, checksum)
        return self._moved_in()

    def _moved_in(self) -> Progress:
        filling = self._filling
        if filling is None:
            return Progress(self.get_parameters_size(False), self.get_parameters_size(False), ())
        progress = filling.progress
        if progress.complete:
            filling.finish()
            move_in(filling.room, self.state)
            self._filling = None
        return progress

    def parameters_checksum(self, trainable_only: bool = False, algorithm: str = "crc32") -> str:
        """The checksum of the flat buffer's bytes, as "crc32:89abcdef" or "sha256:...".

        Errors: NominalStateError before a fill, ValueError for another algorithm.
        """
        self._require_data()
        layout = self._float_layout(trainable_only)
        return checksum_of((self.state.parameters[slot.name].data for slot in layout), algorithm)

    def _require_data(self) -> None:
        if self.state.is_nominal:
            raise NominalStateError(
                "a nominal checkpoint has no parameters to read; fill it first with "
                "copy_buffer_to_parameters(buffer, trainable_only=False)"
            )
        self.state.check_pages()

    def _check_size(self, size: int | None, trainable_only: bool) -> None:
        """``size`` None: a stream that does not say; it is read as far as it is needed."""
        expected = self.get_parameters_size(trainable_only)
        if size is None or size == expected:
            return
        other = self.get_parameters_size(not trainable_only)
        hint = f"; it fits trainable_only={not trainable_only}" if size == other else ""
        slots = self.parameter_layout(trainable_only)
        shown = ", ".join(f"{slot.name}{list(slot.shape)}" for slot in slots[:8])
        more = f", ... {len(slots) - 8} more" if len(slots) > 8 else ""
        raise ValueError(
            f"the buffer has {size} elements, expected {expected} for "
            f"trainable_only={trainable_only}{hint}. Layout: {shown}{more}"
        )

    def _float_layout(self, trainable_only: bool) -> tuple[ParameterSlot, ...]:
        kinds = {value.name: value.elem_type for value in self._train.roles.parameters}
        layout = self.parameter_layout(trainable_only)
        other = [s.name for s in layout if kinds[s.name] not in (None, dtypes.FLOAT)]
        if other:
            raise TypeError(
                f"the flat buffer holds float32 parameters only; these are not: {other}"
            )
        return layout


def _as_flat(buffer: Any) -> np.ndarray:
    """A 1-D float32 view of an array, an OrtValue, a DeviceBuffer or a DLPack tensor."""
    return _checked_floats(host_array(buffer, "the buffer")).reshape(-1)


def _checked_floats(values: np.ndarray) -> np.ndarray:
    if values.dtype != np.float32:
        raise TypeError(f"the buffer is {values.dtype}, expected float32")
    return values
