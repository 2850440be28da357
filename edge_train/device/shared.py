"""Shared memory, the writer's side: the parameters of a training state as other processes see them.

``SharedWeights`` (shared_weights.py) is the reader's side, segment.py the layout in between.
"""

from __future__ import annotations

import json
import os
import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from edge_train.arena_memory import Entry, Floats, Memory
from edge_train.device import native, segment
from edge_train.device.buffer import DeviceBuffer, Shape, sizes_of
from edge_train.device.devices import Device, layout_of
from edge_train.device.names import DeviceName
from edge_train.device.pages import Wish
from edge_train.device.segment import ENDED, READY, TABLE_AT, UNIT, Header, Place
from edge_train.interrupts import Unbroken

_ALIGNMENT = 64


class SharedDevice(Device):
    """Memory under a name that other processes of the same user attach.

    ``backing`` is "memfd" (gone with its last user), "file" (in /dev/shm or a temporary folder),
    or "auto". A name belongs to one process at a time.
    """

    def __init__(self, name: DeviceName, api: native.Api | None, backing: str = "auto") -> None:
        super().__init__(name, api)
        self._backing = backing
        self._segment: Segment | None = None

    @property
    def segment(self) -> Segment | None:
        """What is shared now."""
        return self._segment

    def share(self, entries: Sequence[Entry]) -> Segment:
        """A new segment with room for the entries, trainable ones first and without gaps.

        It takes the place of the one before, whose readers are told. Errors: ValueError when a
        living process has the name, NativeError when there is no shared memory.
        """
        if self._segment is not None:
            self._segment.end()
        self._segment = Segment(self, self._name.argument, entries, self._backing)
        return self._segment

    def allocate(self, shape: Shape, dtype: Any = np.float32) -> DeviceBuffer:
        """A shared buffer of zeros, under the name "data" in its table."""
        kind, _ = layout_of(shape, dtype)
        made = self.share([Entry("data", kind, sizes_of(shape), False)])
        made.header.ready = READY
        return DeviceBuffer(self, made.raw("data"), kind, shape)


class Segment:
    """One piece of shared memory that this process writes."""

    def __init__(
        self, device: SharedDevice, name: str, entries: Sequence[Entry], backing: str
    ) -> None:
        self.name = name
        self._lock = threading.RLock()
        self._depth = 0
        self._offsets, data_bytes = _offsets(entries)
        self._sizes = {entry.name: entry.nbytes for entry in entries}
        table = _table(entries, self._offsets)
        data_at = -(-(TABLE_AT + len(table)) // UNIT) * UNIT
        _refuse_taken(name)
        number, path = segment.create_file(name, data_at + data_bytes, backing)
        try:
            self._map(device, number, data_at + data_bytes)
        except BaseException:
            _close(number, path, os.getpid(), None)
            raise
        self._bytes[TABLE_AT : TABLE_AT + len(table)] = np.frombuffer(table, np.uint8)
        self._data = self._bytes[data_at:]
        self.header = Header(self._bytes[:TABLE_AT])
        self.header.lay_out(table, data_at, data_bytes)
        place = Place(os.getpid(), self.header.token, number if not path else -1, path)
        announcement = segment.announce(name, place)
        self._finalizer = weakref.finalize(
            self, _close, number, path, os.getpid(), (announcement, place)
        )

    def _map(self, device: SharedDevice, number: int, size: int) -> None:
        label = f"shared memory '{self.name}'"
        pages = device._host.of_file(number, size, 0, Wish(shared=True), label)
        self._bytes = pages.array()

    @property
    def version(self) -> int:
        """The number of changes that were completed."""
        return self.header.sequence // 2

    def raw(self, name: str) -> np.ndarray:
        """The bytes of an entry."""
        start = self._offsets[name]
        return self._data[start : start + self._sizes[name]]

    def trainable(self, size: int) -> Floats:
        """The first ``size`` float32 numbers: the trainable parameters."""
        return self._data[: 4 * size].view(np.float32)

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Surrounds changes: readers take none of it, or all; no signal's handler ends one."""
        with self._lock, Unbroken():
            if not self._depth:
                self.header.begin()
            self._depth += 1
            try:
                yield
            finally:
                self._depth -= 1
                if not self._depth:
                    self.header.end()

    def end(self) -> None:
        """Tells readers that the values go on elsewhere, and gives the name up."""
        self.header.ready = ENDED
        self._finalizer()


def _offsets(entries: Sequence[Entry]) -> tuple[dict[str, int], int]:
    offsets: dict[str, int] = {}
    end = 0
    for entry in entries:
        if not entry.trainable:
            end += -end % _ALIGNMENT
        offsets[entry.name] = end
        end += entry.nbytes
    return offsets, max(end, 1)


def _table(entries: Sequence[Entry], offsets: dict[str, int]) -> bytes:
    rows = [
        {
            "name": entry.name,
            "dtype": entry.dtype.str,
            "shape": list(entry.shape),
            "offset": offsets[entry.name],
            "trainable": entry.trainable,
        }
        for entry in entries
    ]
    return json.dumps({"parameters": rows}).encode()


def _refuse_taken(name: str) -> None:
    there = segment.look_up(name)
    if there is None:
        return
    if there.alive and there.pid != os.getpid() and os.path.exists(there.file):
        raise ValueError(
            f"shared memory '{name}' belongs to process {there.pid}, which is running; take "
            "another name, or end that process first"
        )
    if there.path and not there.alive:
        with suppress(OSError):
            os.unlink(there.path)  # left behind by a process that was killed


def _close(number: int, path: str, pid: int, announced: tuple[Path, Place] | None) -> None:
    os.close(number)
    if os.getpid() != pid:
        return  # a child that was forked: the name is its parent's
    if path:
        with suppress(OSError):
            os.unlink(path)
    if announced is not None:
        file, place = announced
        with suppress(OSError):
            if segment.look_up(file.stem) == place:
                file.unlink()


class SharedMemory(Memory):
    """An Arena whose weights, and the parameters that are not trained, are shared; gradients and
    moments stay the process's own.
    """

    def __init__(self, device: SharedDevice) -> None:
        self.name = device.name
        self._device = device
        self._segment: Segment | None = None
        self._entries: dict[str, Entry] = {}

    def prepare(self, entries: Sequence[Entry]) -> None:
        """Makes the segment."""
        self._entries = {entry.name: entry for entry in entries}
        self._segment = self._device.share(entries)

    def weights(self, size: int) -> Floats:
        """The trainable parameters, which lie first and without gaps."""
        if self._segment is None:
            return super().weights(size)
        return self._segment.trainable(size)

    def frozen(self, name: str) -> np.ndarray | None:
        """The place of a parameter that is not trained."""
        entry = self._entries.get(name)
        if entry is None or entry.trainable or self._segment is None:
            return None
        return self._segment.raw(name).view(entry.dtype).reshape(entry.shape)

    @property
    def version(self) -> int:
        """The number of changes completed, as readers see it; 0 before there are parameters."""
        return 0 if self._segment is None else self._segment.version

    def writing(self) -> AbstractContextManager[object]:
        """The seqlock of the segment."""
        return super().writing() if self._segment is None else self._segment.writing()

    def publish(self) -> None:
        """There are values now: readers may attach."""
        if self._segment is not None:
            self._segment.header.ready = READY
