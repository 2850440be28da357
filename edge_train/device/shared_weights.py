"""SharedWeights: a trainer's parameters as another process sees them, live and without a copy.

The trainer runs with ``Module(..., device="shm:NAME")``. A reader binds the shared pages to the
inputs of an ordinary onnxruntime session and runs it; if the trainer changed the weights meanwhile,
the result is dropped and the run repeated, so that a result belongs to one version of the weights.
A reader that is overtaken time and again asks the trainer to wait a moment (at most 0.1 s a step).
"""

from __future__ import annotations

import json
import os
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from edge_train.device import native, segment
from edge_train.device.pages import Host, Wish
from edge_train.device.segment import ENDED, HOLD_MS, READY, TABLE_AT, Header, Place
from edge_train.errors import NativeError, RunError

T = TypeVar("T")

_TABLE_LIMIT = 1 << 28
# so many runs are lost, or looks find it writing, before the trainer is asked to wait
_POLITE_TRIES, _POLITE_WAITS = 3, 10


class SharedWeights(Mapping[str, np.ndarray]):
    """The parameters that a trainer shares as ``name`` (of "shm:NAME"), read-only.

    ``weights["w1"]`` is a live view: it changes while the trainer steps. ``run`` and ``read`` give
    what belongs to one version. Waits up to ``timeout`` seconds for the trainer to begin.

    Errors: NativeError when nobody shares the name in that time, or the memory is no segment.
    """

    def __init__(self, name: str, timeout: float = 10.0) -> None:
        self.name = name
        self._place = _wait(name, timeout)
        self._header, self._arrays = _attach(name, self._place)
        self._wish = 0  # what the trainer was asked for, to be taken back
        self._bindings: weakref.WeakKeyDictionary[Any, _Binding] = weakref.WeakKeyDictionary()

    @property
    def version(self) -> int:
        """The number of changes the trainer has completed; it grows with every step."""
        return self._header.sequence // 2

    @property
    def alive(self) -> bool:
        """Whether the trainer's process is there and goes on with these very weights."""
        there = self._place.alive and self._header.ready == READY
        return there and segment.look_up(self.name) == self._place

    def __getitem__(self, name: str) -> np.ndarray:
        return self._arrays[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)

    def run(
        self,
        session: Any,
        feeds: Mapping[str, np.ndarray],
        output_names: Sequence[str] | None = None,
        timeout: float = 10.0,
    ) -> tuple[list[np.ndarray], int]:
        """The outputs of an onnxruntime session on the present weights, and their version.

        Inputs of the session that are named like a parameter and not fed are bound to the shared
        pages, not copied: an eval graph, or an inference model with its parameters as inputs.

        Errors: ValueError for inputs that neither side has; RunError when the trainer died in the
        middle of a change, or no undisturbed run succeeded within ``timeout`` seconds.
        """
        if session not in self._bindings:
            self._bindings[session] = _Binding(session, self)
        binding = self._bindings[session]
        return self.consistently(lambda: binding.run(session, feeds, output_names), timeout)

    def read(
        self, names: Sequence[str] | None = None, timeout: float = 10.0
    ) -> tuple[dict[str, np.ndarray], int]:
        """Copies of the named parameters (default: all) of one version, and the version.

        Errors: KeyError for another name, RunError as in ``run``.
        """
        wanted = {name: self._arrays[name] for name in (self._arrays if names is None else names)}
        return self.consistently(
            lambda: {name: array.copy() for name, array in wanted.items()}, timeout
        )

    def consistently(self, work: Callable[[], T], timeout: float = 10.0) -> tuple[T, int]:
        """What ``work`` makes of the weights of one version, and the version; it is repeated until
        the weights stood still meanwhile. Errors: RunError as in ``run``.
        """
        end = time.monotonic() + timeout
        tries = 0
        try:
            while True:
                if tries >= _POLITE_TRIES:
                    self._wish = self._header.hold(HOLD_MS)
                before = self._still(end)
                try:
                    result = work()
                except Exception:
                    segment.fence()
                    if self._header.sequence == before:
                        raise  # not for want of whole weights
                else:
                    segment.fence()
                    if self._header.sequence == before:
                        return result, before // 2
                tries += 1
                if time.monotonic() > end:
                    raise RunError(
                        f"shared weights '{self.name}': no run of {tries} was undisturbed within "
                        f"{timeout} s: the trainer changes the weights more often than a run takes"
                    )
        finally:
            self._header.release(self._wish)
            self._wish = 0

    def _still(self, end: float) -> int:
        """The sequence, when the trainer is not writing."""
        waits = 0
        while True:
            sequence = self._header.sequence
            if not sequence % 2:
                segment.fence()
                return sequence
            if not self._place.alive:
                raise RunError(
                    f"shared weights '{self.name}': the trainer (process {self._place.pid}) ended "
                    "in the middle of a change; start it again, then attach again"
                )
            if time.monotonic() > end:
                raise RunError(f"shared weights '{self.name}': the trainer does not end its change")
            waits += 1
            if waits >= _POLITE_WAITS:
                self._wish = self._header.hold(HOLD_MS)
            time.sleep(0.0001)


def _wait(name: str, timeout: float) -> Place:
    end = time.monotonic() + timeout
    while True:
        place = segment.look_up(name)
        if place is not None and os.path.exists(place.file) and _is_ready(place):
            return place
        if time.monotonic() > end:
            raise NativeError(
                f"nobody shares '{name}' with this user (looked in {segment.folder()}); start the "
                f"trainer with device='shm:{name}', and {segment.FOLDER_VARIABLE} the same in both"
            )
        time.sleep(0.01)


def _is_ready(place: Place) -> bool:
    try:
        with open(place.file, "rb") as file:
            page = np.frombuffer(file.read(TABLE_AT), np.uint8)
    except OSError:
        return False
    header = Header(page) if page.size == TABLE_AT else None
    return (
        header is not None
        and header.valid
        and header.token == place.token
        and header.ready == READY
    )


def _attach(name: str, place: Place) -> tuple[Header, dict[str, np.ndarray]]:
    """The header, writable, and the parameters, read-only."""
    host = Host(native.library())
    label = f"shared memory '{name}'"
    try:
        number = os.open(place.file, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:  # its trainer ended this very moment
        raise NativeError(f"{label} cannot be attached: {error}; attach again") from error
    try:
        header = Header(host.of_file(number, TABLE_AT, 0, Wish(shared=True), label).array())
        if not header.valid or header.token != place.token or header.ready == ENDED:
            raise NativeError(f"{label} was replaced while it was attached; attach again")
        data_at, data_bytes = header.extent
        if header.table_bytes > _TABLE_LIMIT:
            raise NativeError(f"{label} has a table of {header.table_bytes} bytes")
        wish = Wish(shared=True, read_only=True)
        pages = host.of_file(number, data_at + data_bytes, 0, wish, label).array()
    except ValueError as error:  # shorter than its header says
        raise NativeError(str(error)) from None
    finally:
        os.close(number)
    table = pages[TABLE_AT : TABLE_AT + header.table_bytes].tobytes()
    data = pages[data_at:]
    try:
        rows = json.loads(table)["parameters"]
        return header, {str(row["name"]): _view(data, row) for row in rows}
    except (ValueError, KeyError, TypeError) as error:
        raise NativeError(f"{label} has a broken table: {error}") from error


def _view(data: np.ndarray, row: Mapping[str, Any]) -> np.ndarray:
    dtype, shape, start = np.dtype(row["dtype"]), tuple(row["shape"]), int(row["offset"])
    nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    if start < 0 or start + nbytes > data.size:
        raise ValueError(f"'{row['name']}' lies outside of the memory")
    view: np.ndarray = data[start : start + nbytes].view(dtype).reshape(shape)
    return view


class _Binding:
    """The inputs and outputs of a session, the shared pages among them; it does not keep the
    session, which has it by a weak key.
    """

    def __init__(self, session: Any, weights: SharedWeights) -> None:
        self._binding = session.io_binding()
        self._inputs = [value.name for value in session.get_inputs()]
        self._outputs = [value.name for value in session.get_outputs()]
        self._shared = {name: weights[name] for name in self._inputs if name in weights}
        self._bound: set[str] = set()

    def run(
        self,
        session: Any,
        feeds: Mapping[str, np.ndarray],
        output_names: Sequence[str] | None,
    ) -> list[np.ndarray]:
        missing = [n for n in self._inputs if n not in feeds and n not in self._shared]
        unknown = [name for name in feeds if name not in self._inputs]
        if missing or unknown:
            raise ValueError(
                f"inputs of the session are {self._inputs}: nobody gives {missing}, and it does "
                f"not have {unknown}"
            )
        binding = self._binding
        for name, array in self._shared.items():
            if name not in feeds and name not in self._bound:
                binding.bind_cpu_input(name, array)
                self._bound.add(name)
        for name, array in feeds.items():
            self._bound.discard(name)
            binding.bind_cpu_input(name, np.ascontiguousarray(array))
        binding.clear_binding_outputs()
        for name in self._outputs if output_names is None else output_names:
            binding.bind_output(name, "cpu")
        session.run_with_iobinding(binding)
        outputs: list[np.ndarray] = binding.copy_outputs_to_cpu()
        return outputs
