"""Where an Arena's buffers lie, by the name of a device."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from edge_train.arena_memory import Entry, Floats, Memory
from edge_train.device import native
from edge_train.device.buffer import DeviceBuffer
from edge_train.device.devices import Device, FileDevice, open_device
from edge_train.device.names import parse
from edge_train.device.opencl import OpenClDevice
from edge_train.device.shared import SharedDevice, SharedMemory
from edge_train.kernels.contract import AdamWScalars, LionScalars, MomentumScalars, Steps

if TYPE_CHECKING:
    from edge_train.checkpoint.state import CheckpointState


def choose(state: CheckpointState, device: str | Device) -> None:
    """Lets the Arena of ``state`` lie on ``device``; "cpu" leaves it where it is to be.

    Errors: what ``open_device`` raises; ValueError when the parameters lie on another device
    already, and for a "file" under a state that has values.
    """
    name = device.name if isinstance(device, Device) else str(parse(device))
    placed = state.arena is not None
    if device in ("cpu", "cpu:0") or (name == state.memory.name and (placed or device == name)):
        return
    if placed:
        raise ValueError(
            f"device '{name}': the parameters of this state lie on '{state.memory.name}' already; "
            "load the checkpoint again for another device"
        )
    opened = device if isinstance(device, Device) else open_device(device)
    if isinstance(opened, FileDevice) and not state.is_nominal:
        raise ValueError(
            f"device '{name}' brings all parameters from the file: it needs a nominal checkpoint. "
            "To map the checkpoint itself, use load_checkpoint(path, device='file')"
        )
    state.memory = memory_of(opened)


def memory_named(device: str | Device) -> Memory:
    """The Memory of an Arena on a device or its name. Errors: what ``open_device`` raises."""
    return memory_of(device if isinstance(device, Device) else open_device(device))


def memory_of(device: Device) -> Memory:
    """The Memory of an Arena on ``device``."""
    if isinstance(device, OpenClDevice):
        return OpenClMemory(device)
    if isinstance(device, SharedDevice):
        return SharedMemory(device)
    if isinstance(device, FileDevice):
        return FileMemory(device)
    return BufferMemory(device)


class BufferMemory(Memory):
    """Every buffer is one of the device's; it lives as long as the Arena's arrays."""

    def __init__(self, device: Device) -> None:
        self.name = device.name
        self._device = device

    def weights(self, size: int) -> Floats:
        """A buffer of the device."""
        return self._allocate(size)

    def gradients(self, size: int) -> Floats:
        """A buffer of the device."""
        return self._allocate(size)

    def moment(self, index: int, size: int) -> Floats:
        """A buffer of the device."""
        return self._allocate(size)

    def _allocate(self, size: int) -> Floats:
        return self._device.allocate(size).numpy()


class OpenClMemory(BufferMemory):
    """Weights and gradients belong to the host but for the step; moments stay on the device until
    someone asks for them.
    """

    def __init__(self, device: OpenClDevice) -> None:
        super().__init__(device)
        self._opencl = device
        self._buffers: dict[int, DeviceBuffer] = {}
        self._of: tuple[Steps, Steps] | None = None

    @property
    def buffers(self) -> tuple[DeviceBuffer, ...]:
        """Weights, gradients, moments, as far as they were asked for."""
        return tuple(self._buffers.values())

    def _allocate(self, size: int) -> Floats:
        buffer = self._device.allocate(size)
        array = buffer.numpy()
        self._buffers[array.ctypes.data] = buffer
        return array

    def prepare(self, entries: Sequence[Entry]) -> None:
        """Forgets the buffers of an Arena before."""
        self._buffers.clear()

    def to_host(self) -> None:
        """Gives all buffers to the host."""
        for buffer in self._buffers.values():
            buffer.to_host()

    def steps(self, steps: Steps) -> Steps:
        """AdamW, SGD and the flush on the device; the rest on the host, as ``steps`` does it."""
        if self._of is None or self._of[0] is not steps:
            self._of = (steps, self._make(steps))
        return self._of[1]

    def _make(self, steps: Steps) -> Steps:
        def adamw(w: Floats, g: Floats, m: Floats, v: Floats, scalars: AdamWScalars) -> None:
            kernel = native.ADAMW0 if scalars.mode == 0 else native.ADAMW1
            if not self._run(kernel, (w, g, m, v), scalars.packed):
                steps.adamw(w, g, m, v, scalars)

        def sgd(w: Floats, g: Floats, lr: float) -> None:
            if not self._run(native.SGD, (w, g), np.array([lr], np.float32)):
                steps.sgd(w, g, lr)

        def flush(array: Floats, tiny: float) -> None:
            if not self._run(native.FLUSH, (array,), np.array([tiny], np.float32)):
                steps.flush(array, tiny)

        def momentum(w: Floats, g: Floats, m: Floats, scalars: MomentumScalars) -> None:
            self.to_host()
            steps.momentum(w, g, m, scalars)

        def lion(w: Floats, g: Floats, m: Floats, scalars: LionScalars) -> None:
            self.to_host()
            steps.lion(w, g, m, scalars)

        return replace(
            steps,
            name="opencl",
            adamw=adamw,
            sgd=sgd,
            flush=flush,
            momentum=momentum,
            lion=lion,
        )

    def _run(self, kernel: int, arrays: tuple[Floats, ...], scalars: np.ndarray) -> bool:
        """The step on the device; False, and all is the host's, for a part of a buffer."""
        buffers = [self._buffers.get(array.ctypes.data) for array in arrays]
        whole = [b for b, a in zip(buffers, arrays, strict=True) if b and b.size == a.size]
        if len(whole) < len(arrays):
            self.to_host()
            return False
        try:
            self._opencl.step(kernel, whole, scalars)
        finally:
            if len(whole) > 1:  # weights and gradients go back to onnxruntime
                whole[0].to_host()
                whole[1].to_host()
        return True


class FileMemory(Memory):
    """The parameters are the pages of a file that holds the flat buffer of all of them; a page
    becomes private memory when it is written to.
    """

    has_values = True

    def __init__(self, device: FileDevice) -> None:
        self.name = device.name
        self._device = device
        self._flat = device.allocate().numpy()
        self._entries: dict[str, Entry] = {}

    def prepare(self, entries: Sequence[Entry]) -> None:
        """Holds the file's size against the parameters; ValueError with both."""
        wanted = {entry.name: entry for entry in entries if entry.offset >= 0}
        if wanted.keys() == self._entries.keys():  # the file keeps the order it was read in
            places = {name: entry.offset for name, entry in self._entries.items()}
            wanted = {n: replace(entry, offset=places[n]) for n, entry in wanted.items()}
        self._entries = wanted
        expected = sum(entry.nbytes for entry in self._entries.values())
        if self._device.file_size != expected:
            raise ValueError(
                f"file '{self._device.path}' has {self._device.file_size} bytes, expected "
                f"{expected}: the flat float32 buffer of all {len(self._entries)} parameters, as "
                "get_contiguous_parameters(trainable_only=False) gives it"
            )

    def weights(self, size: int) -> Floats:
        """The file's own pages where no other parameter lies in between, else a copy."""
        trainable = [entry for entry in self._entries.values() if entry.trainable]
        parts = [self._part(entry) for entry in trainable]
        first = trainable[0].offset if trainable else 0
        flat = self._flat[first : first + size]
        ends = [entry.offset + part.size for entry, part in zip(trainable, parts, strict=True)]
        starts = [entry.offset for entry in trainable[1:]]
        return flat if starts == ends[:-1] else np.concatenate(parts)

    def frozen(self, name: str) -> np.ndarray | None:
        """The place of a parameter in the file."""
        entry = self._entries.get(name)
        return None if entry is None else self._part(entry).reshape(entry.shape)

    def writing(self) -> AbstractContextManager[object]:
        """Looks at the file first: a page that is gone cannot be written to."""
        self.check()
        return super().writing()

    def check(self) -> None:
        """ValueError when the file was written to."""
        self._device.check_pages()

    def _part(self, entry: Entry) -> Floats:
        return self._flat[entry.offset : entry.offset + entry.nbytes // 4]
