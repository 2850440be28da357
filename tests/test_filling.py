"""Flat buffers of every kind, streamed, and nominal states filled piece by piece."""

from __future__ import annotations

import errno
import io
import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import numpy as np
import onnxruntime
import pytest
from support.child import run_python, succeed
from support.devices import opencl, use_native
from support.mlp import MLP784, write_checkpoint
from support.snapshot import differences, snapshot
from support.training import module_of
from support.zoo import ZOO

from edge_train import filling
from edge_train.api import CheckpointState, Module, Optimizer
from edge_train.convert.nominal import to_nominal
from edge_train.device import open_device
from edge_train.errors import NominalStateError

MLP = ZOO["mlp_CrossEntropyLoss"]
BN = ZOO["conv_bn_maxpool_gap"]
HEAD = ZOO["frozen_backbone_only_head"]
SIZE = 43
OrtValue = onnxruntime.OrtValue


def nominal(case: object = BN) -> Module:
    state = CheckpointState.load_checkpoint(case.nominal_checkpoint)  # type: ignore[attr-defined]
    return Module(case.training_model, state, case.eval_model)  # type: ignore[attr-defined]


def flat(module: Module, trainable_only: bool = False) -> np.ndarray:
    return module.get_contiguous_parameters(trainable_only).numpy().copy()


class Tensor:
    """What another library gives: DLPack and nothing else."""

    def __init__(self, array: np.ndarray, kind: int = 1) -> None:
        self._array, self._kind = array, kind

    def __dlpack__(self, **options: object) -> object:
        return self._array.__dlpack__()

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._kind, 0


class Slow(io.RawIOBase):
    """A link that takes and gives a few bytes at a time, and cannot seek."""

    def __init__(self, data: bytes = b"") -> None:
        self.left, self.written = data, b""

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return True

    def readinto(self, view: memoryview) -> int:  # type: ignore[override]
        count = min(len(view), 7, len(self.left))
        view[:count] = self.left[:count]
        self.left = self.left[count:]
        return count

    def write(self, data: memoryview) -> int:  # type: ignore[override]
        self.written += bytes(data[:7])
        return len(data[:7])


class OnlyRead:
    """The least that a file object can be."""

    def __init__(self, data: bytes) -> None:
        self._file = io.BytesIO(data)

    def read(self, count: int) -> bytes:
        return self._file.read(count)


def device_buffer(values: np.ndarray, name: str = "cpu") -> object:
    device = opencl() if name == "opencl" else open_device(name)
    buffer = device.allocate(values.shape)
    buffer.write(values)
    if name == "opencl":
        buffer.to_device()
    return buffer


SOURCES: dict[str, Callable[[np.ndarray], object]] = {
    "array": lambda a: a,
    "two axes": lambda a: a.reshape(1, -1),
    "OrtValue": OrtValue.ortvalue_from_numpy,
    "DeviceBuffer": device_buffer,
    "buffer on OpenCL": lambda a: device_buffer(a, "opencl"),
    "DLPack": Tensor,
    "BytesIO": lambda a: io.BytesIO(a.tobytes()),
    "slow link": lambda a: Slow(a.tobytes()),
    "read alone": lambda a: OnlyRead(a.tobytes()),
}


@pytest.fixture(autouse=True)
def _library(monkeypatch: pytest.MonkeyPatch) -> None:
    use_native(monkeypatch, True)


@pytest.mark.parametrize("state", ["full", "nominal"])
@pytest.mark.parametrize("kind", SOURCES)
def test_buffers_of_every_kind_are_read(kind: str, state: str) -> None:
    module = module_of(HEAD) if state == "full" else nominal(HEAD)
    for flag in (False, True):
        size = module.get_parameters_size(flag)
        values = np.random.default_rng(size).random(size, dtype=np.float32)
        module.copy_buffer_to_parameters(SOURCES[kind](values), trainable_only=flag)
        np.testing.assert_array_equal(flat(module, flag), values)


TARGETS: dict[str, Callable[[np.ndarray], object]] = {
    name: SOURCES[name]
    for name in ("array", "two axes", "OrtValue", "DeviceBuffer", "buffer on OpenCL", "DLPack")
}


@pytest.mark.parametrize("kind", TARGETS)
def test_buffers_of_every_kind_are_written(kind: str) -> None:
    from edge_train.host_arrays import host_array

    module = module_of(HEAD)
    for flag in (False, True):
        target = TARGETS[kind](np.full(module.get_parameters_size(flag), 9, np.float32))
        module.copy_parameters_to_buffer(target, trainable_only=flag)
        np.testing.assert_array_equal(host_array(target).reshape(-1), flat(module, flag))
        if flag:
            module.copy_buffer_to_parameters(target)


def test_files_are_written_and_read(tmp_path: Path) -> None:
    module, other = module_of(HEAD), module_of(HEAD)
    module.state.parameters["wf"].data[...] = 3
    with open(tmp_path / "flat", "wb") as file:
        file.write(b"head")
        module.copy_parameters_to_buffer(file, trainable_only=False)
    assert (tmp_path / "flat").read_bytes() == b"head" + flat(module).tobytes()
    with open(tmp_path / "flat", "rb") as file:
        file.seek(4)
        other.copy_buffer_to_parameters(file, trainable_only=False)
    assert differences(snapshot(module.state), snapshot(other.state)) == []
    slow = Slow()
    module.copy_parameters_to_buffer(slow, trainable_only=False)
    assert slow.written == flat(module).tobytes()


def test_a_socket_between_two_modules() -> None:
    """The reader takes what it needs, and leaves the next message alone."""
    sender, receiver = module_of(BN), nominal(BN)
    left, right = socket.socketpair()
    with left, right, left.makefile("wb") as out, right.makefile("rb") as into:

        def send() -> None:
            sender.copy_parameters_to_buffer(out, trainable_only=False)
            out.write(b"next")
            out.flush()

        thread = threading.Thread(target=send)
        thread.start()
        receiver.copy_buffer_to_parameters(into, trainable_only=False)
        thread.join()
        assert into.read(4) == b"next"
    assert differences(snapshot(sender.state), snapshot(receiver.state)) == []


@pytest.mark.parametrize("state", ["full", "nominal"])
@pytest.mark.parametrize(
    ("source", "error", "text"),
    [
        (lambda n: io.BytesIO(bytes(4 * n - 4)), ValueError, "42 elements, expected 43"),
        (lambda n: io.BytesIO(bytes(4 * n + 4)), ValueError, "44 elements, expected 43"),
        (lambda n: io.BytesIO(bytes(4 * n + 1)), ValueError, "173 bytes, which is no multiple"),
        (lambda n: Slow(bytes(4 * n - 1)), ValueError, "ended after 171 bytes, expected 172"),
        (lambda n: io.StringIO("x"), TypeError, "open as text"),
        (lambda n: Tensor(np.zeros(n, np.float32), kind=2), ValueError, "device type 2 of DLPack"),
        (lambda n: Tensor(np.zeros(n, np.float64)), TypeError, "is float64, expected float32"),
        (lambda n: open_device("cpu").allocate(n + 1), ValueError, "44 elements, expected 43"),
        (lambda n: open_device("cpu").allocate(n, np.int32), TypeError, "is int32"),
    ],
)
def test_bad_buffers_change_nothing(
    source: Callable[[int], object], error: type[Exception], text: str, state: str
) -> None:
    """U051 for streams, tensors and buffers too."""
    module = module_of(MLP) if state == "full" else nominal(MLP)
    before = snapshot(module.state) if state == "full" else {}
    with pytest.raises(error, match=text):
        module.copy_buffer_to_parameters(source(SIZE), trainable_only=False)
    assert module.state.is_nominal is (state == "nominal")
    if state == "full":
        assert differences(before, snapshot(module.state)) == []
    else:
        with pytest.raises(NominalStateError, match="fill"):
            _ = module.state.parameters["w1"].data


class Breaking(Slow):
    def readinto(self, view: memoryview) -> int:  # type: ignore[override]
        if len(self.left) < 40:
            raise ConnectionResetError("the other side is gone")
        return super().readinto(view)


def test_a_link_that_breaks_leaves_the_parameters_alone() -> None:
    for module in (module_of(MLP), nominal(MLP)):
        before = None if module.state.is_nominal else flat(module)
        with pytest.raises(ConnectionResetError):
            module.copy_buffer_to_parameters(Breaking(bytes(172)), trainable_only=False)
        assert module.state.is_nominal is (before is None)
        if before is not None:
            np.testing.assert_array_equal(flat(module), before)


@pytest.mark.parametrize(
    ("target", "error", "text"),
    [
        (np.zeros(42, np.float32), ValueError, "42 elements, expected 43"),
        (np.zeros(43), TypeError, "is float64"),
        (np.zeros(86, np.float32)[::2], ValueError, "not contiguous"),
        (np.frombuffer(bytes(172), np.float32), ValueError, "read-only"),
        (io.StringIO(), TypeError, "open as text"),
        ([0.0] * 43, TypeError, "expected a NumPy array"),
    ],
)
def test_targets_that_cannot_be_written(target: object, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        module_of(MLP).copy_parameters_to_buffer(target, trainable_only=False)


def test_a_nominal_state_has_nothing_to_write() -> None:
    with pytest.raises(NominalStateError, match="fill it first"):
        nominal().copy_parameters_to_buffer(io.BytesIO())
    with pytest.raises(NominalStateError, match="fill it first"):
        nominal().parameters_checksum()


# ---- piece by piece -------------------------------------------------------------------------


def pieces(values: np.ndarray, size: int) -> list[tuple[int, np.ndarray]]:
    return [(at, values[at : at + size]) for at in range(0, values.size, size)]


@pytest.mark.parametrize(
    ("name", "size"),
    [
        (MLP.name, 1),
        (BN.name, 7),
        (HEAD.name, 1000),
        *(
            pytest.param(name, size, marks=pytest.mark.slow)
            for name in (MLP.name, BN.name, HEAD.name)
            for size in (3, 16, 64)
        ),
    ],
)
def test_pieces_in_any_order_fill_a_state(name: str, size: int) -> None:
    full, module = module_of(ZOO[name]), nominal(ZOO[name])
    values = flat(full)
    parts = pieces(values, size)
    order = np.random.default_rng(1).permutation(len(parts))
    received = 0
    for count, index in enumerate(order):
        assert module.state.is_nominal
        with pytest.raises(NominalStateError, match="fill"):
            module(**ZOO[name].feed)
        with pytest.raises(NominalStateError, match="fill"):
            _ = next(iter(module.state.parameters))[1].data
        offset, part = parts[index]
        progress = module.fill(offset, part)
        received += part.size
        assert (progress.received, progress.total) == (received, values.size)
        assert progress.complete is (count == len(order) - 1)
    assert not module.state.is_nominal
    assert differences(snapshot(full.state), snapshot(module.state)) == []
    assert module(**ZOO[name].feed) == full(**ZOO[name].feed)
    with pytest.raises(ValueError, match="has its data"):
        module.fill(0, values[:1])


def test_what_is_missing_is_told_and_pieces_may_overlap() -> None:
    module = nominal(MLP)
    values = np.arange(SIZE, dtype=np.float32)
    assert module.fill(10, values[10:20]).missing == ((0, 10), (20, 43))
    assert module.fill(15, values[15:25]).missing == ((0, 10), (25, 43))
    assert module.fill(30, values[30:31]).missing == ((0, 10), (25, 30), (31, 43))
    assert module.fill(12, values[12:13]).received == 16
    assert module.fill(25, values[25:30]).missing == ((0, 10), (31, 43))
    assert module.fill(0, values[:0]).received == 21
    assert module.fill(5, values[5:]).missing == ((0, 5),)
    assert module.fill(0, values[:6]).complete
    np.testing.assert_array_equal(flat(module), values)


@pytest.mark.parametrize(
    "kind", ["array", "OrtValue", "DeviceBuffer", "buffer on OpenCL", "DLPack"]
)
def test_pieces_of_every_kind(kind: str) -> None:
    module, values = nominal(MLP), np.arange(SIZE, dtype=np.float32)
    for offset, part in pieces(values, 20):
        module.fill(offset, SOURCES[kind](part))
    np.testing.assert_array_equal(flat(module), values)


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_pieces_of_bytes(kind: Callable[[bytes], object]) -> None:
    module, values = nominal(MLP), np.arange(SIZE, dtype=np.float32)
    for offset, part in pieces(values, 20):
        module.fill(offset, kind(part.tobytes()))
    np.testing.assert_array_equal(flat(module), values)


@pytest.mark.parametrize(
    ("offset", "chunk", "error", "text"),
    [
        (40, np.zeros(4, np.float32), ValueError, "4 elements from element 40 on lies outside"),
        (-1, np.zeros(4, np.float32), ValueError, "outside of the buffer, which has 43"),
        (np.uint8(250), np.zeros(20, np.float32), ValueError, "20 elements from element 250 on"),
        (np.int8(-1), np.zeros(4, np.float32), ValueError, "from element -1 on lies outside"),
        (1.0, np.zeros(4, np.float32), TypeError, "offset must be an integer, got 1.0"),
        (True, np.zeros(4, np.float32), TypeError, "offset must be an integer, got True"),
        (np.True_, np.zeros(4, np.float32), TypeError, "offset must be an integer"),
        (0, np.zeros(4), TypeError, "the piece is float64"),
        (0, b"12345", ValueError, "5 bytes: expected a multiple of 4"),
        (0, "text", TypeError, "the piece is a str"),
    ],
)
def test_bad_pieces_are_refused(
    offset: object, chunk: object, error: type[Exception], text: str
) -> None:
    module = nominal(MLP)
    with pytest.raises(error, match=text):
        module.fill(offset, chunk)  # type: ignore[arg-type]
    assert module.fill(0, np.zeros(0, np.float32)).received == 0


@pytest.mark.parametrize("algorithm", ["crc32", "sha256"])
def test_checksums_of_pieces_and_of_the_whole(algorithm: str) -> None:
    full, module = module_of(MLP), nominal(MLP)
    values, whole = flat(full), full.parameters_checksum(algorithm=algorithm)
    assert full.parameters_checksum(trainable_only=True, algorithm=algorithm) == whole
    module.begin_fill(checksum=whole)
    from edge_train.filling import checksum_of

    for offset, part in pieces(values, 20):
        checksum = checksum_of([part], algorithm)
        damaged = part.copy()
        damaged[0] += 1
        with pytest.raises(ValueError, match=rf"from element {offset} on was damaged"):
            module.fill(offset, damaged, checksum=checksum)
        module.fill(offset, part, checksum=checksum)
    assert not module.state.is_nominal
    # a whole that is another one: nothing of it is kept
    module = nominal(MLP)
    module.begin_fill(checksum=whole)
    with pytest.raises(ValueError, match=f"not the one announced: expected {whole}"):
        module.fill(0, values + 1)
    assert module.state.is_nominal
    assert module.fill(0, values[:5]).received == 5
    assert module.fill(5, values[5:]).complete


@pytest.mark.parametrize("checksum", ["md5:00", "crc32:", "00000000", 7])
def test_checksums_that_are_none(checksum: object) -> None:
    module = nominal(MLP)
    with pytest.raises(ValueError, match=r"expected 'crc32:\.\.\.'"):
        module.begin_fill(checksum=checksum)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"expected 'crc32:\.\.\.'"):
        module.fill(0, np.zeros(1, np.float32), checksum=checksum)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="expected one of"):
        module_of(MLP).parameters_checksum(algorithm="md5")


# ---- the journal ----------------------------------------------------------------------------


@pytest.mark.parametrize("step", [7, pytest.param(1, marks=pytest.mark.slow)])
def test_a_journal_goes_on_where_it_ended(step: int, tmp_path: Path) -> None:
    """At every byte that a crash may leave: what is whole before it is there, the rest missing."""
    values = np.random.default_rng(3).random(SIZE, dtype=np.float32)
    path = tmp_path / "journal"
    module = nominal(MLP)
    module.begin_fill(journal=path)
    parts = pieces(values, 10)
    ends = [path.stat().st_size]
    for offset, part in parts[:-1]:
        module.fill(offset, part)
        ends.append(path.stat().st_size)
    data = path.read_bytes()
    for cut in range(0, len(data) + 1, step):
        path.write_bytes(data[:cut])
        module = module if module.state.is_nominal else nominal(MLP)
        whole = sum(end <= cut for end in ends[1:])
        progress = module.begin_fill(journal=path)
        assert progress.received == 10 * whole
        if cut // step % 20 == 0:
            for offset, part in parts[whole:]:
                module.fill(offset, part)
            np.testing.assert_array_equal(flat(module), values)
            again = nominal(MLP)
            assert again.begin_fill(journal=path).complete  # until the caller deletes it
            np.testing.assert_array_equal(flat(again), values)


def test_a_journal_by_a_relative_path_is_that_of_the_beginning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = np.random.default_rng(3).random(SIZE, dtype=np.float32)
    monkeypatch.chdir(tmp_path)
    module = nominal(MLP)
    module.begin_fill(journal="journal")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    for offset, part in pieces(values, 10)[:2]:
        module.fill(offset, part)
    assert nominal(MLP).begin_fill(journal=tmp_path / "journal").received == 20


def test_a_damaged_piece_in_a_journal_is_missing(tmp_path: Path) -> None:
    path, values = tmp_path / "journal", np.arange(SIZE, dtype=np.float32)
    module = nominal(MLP)
    module.begin_fill(journal=path)
    module.fill(0, values[:10])
    start = path.stat().st_size
    module.fill(10, values[10:20])
    whole = path.read_bytes()
    for at in (*range(start, start + 20), *range(start + 20, len(whole), 5)):
        for bit in (0x01, 0x40):  # an offset or a count that would fit, too
            data = bytearray(whole)
            data[at] ^= bit
            path.write_bytes(data)
            assert module.begin_fill(journal=path).missing == ((10, 43),)


def test_a_piece_that_could_not_be_written_hides_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk, which the user then makes room on: what came afterwards survives a crash."""
    path, values = tmp_path / "journal", np.arange(SIZE, dtype=np.float32)
    module = nominal(MLP)
    module.begin_fill(journal=path)
    module.fill(0, values[:10])
    with monkeypatch.context() as patch:

        def full(file: BinaryIO) -> None:
            file.flush()
            file.truncate(file.tell() - 7)
            raise OSError(errno.ENOSPC, "No space left on device")

        patch.setattr(filling, "_sync", full)
        with pytest.raises(OSError, match="No space left"):
            module.fill(10, values[10:30])
    module.fill(30, values[30:35])
    module.fill(10, values[10:12])
    assert nominal(MLP).begin_fill(journal=path).missing == ((12, 30), (35, 43))


def test_a_journal_of_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    nominal(MLP).begin_fill(journal=path)
    with pytest.raises(ValueError, match="not the journal of this transfer"):
        nominal(BN).begin_fill(journal=path)
    with pytest.raises(ValueError, match="not the journal of this transfer"):
        nominal(MLP).begin_fill(journal=path, checksum="crc32:12345678")
    notes = tmp_path / "notes"
    notes.write_text("mine\n")
    with pytest.raises(ValueError, match="take another file, or delete it"):
        nominal(MLP).begin_fill(journal=notes)
    assert notes.read_text() == "mine\n"
    with pytest.raises(ValueError, match="only a nominal state"):
        module_of(MLP).begin_fill(journal=tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_a_wrong_whole_empties_the_journal(tmp_path: Path) -> None:
    module, values = nominal(MLP), np.arange(SIZE, dtype=np.float32)
    path, whole = tmp_path / "journal", module_of(MLP).parameters_checksum()
    module.begin_fill(journal=path, checksum=whole)
    with pytest.raises(ValueError, match="not the one announced"):
        module.fill(0, values)
    assert nominal(MLP).begin_fill(journal=path, checksum=whole).received == 0


RECEIVER = """
import os, sys
import numpy as np
from edge_train.api import CheckpointState, Module
graph, nominal, journal, buffer = sys.argv[1:5]
module = Module(graph, CheckpointState.load_checkpoint(nominal))
values = np.fromfile(buffer, np.float32)
progress = module.begin_fill(journal=journal)
chunk = 65536 // 4
for count, at in enumerate(range(progress.received, values.size, chunk)):
    if count == 11:
        os.abort()
    module.fill(at, values[at : at + chunk])
"""


def test_u049_filled_in_pieces_with_a_crash_in_between(tmp_path: Path) -> None:
    """U049: 64 KB at a time, the process is killed: then training is bit-equal to a full one's."""
    write_checkpoint(tmp_path / "full")
    to_nominal(tmp_path / "full", tmp_path / "nominal")
    full = Module(MLP784.training_model, CheckpointState.load_checkpoint(tmp_path / "full"))
    values = flat(full)
    values.tofile(tmp_path / "buffer")
    paths = [tmp_path / name for name in ("nominal", "journal", "buffer")]
    crashed = run_python(RECEIVER, MLP784.training_model, *paths)
    assert crashed.returncode < 0
    assert 0 < os.path.getsize(tmp_path / "journal") < values.nbytes
    state = CheckpointState.load_checkpoint(tmp_path / "nominal")
    module = Module(MLP784.training_model, state, MLP784.eval_model)
    progress = module.begin_fill(journal=tmp_path / "journal")
    assert progress.received == 11 * 16384
    ((start, stop),) = progress.missing
    for at in range(start, stop, 16384):
        progress = module.fill(at, values[at : at + 16384])
    assert progress.complete
    rng = np.random.default_rng(0)
    batches = [(rng.random((8, 784), dtype=np.float32), rng.integers(0, 10, 8)) for _ in range(5)]
    for one in (full, module):
        optimizer = Optimizer(MLP784.optimizer_model, one)
        for x, labels in batches:
            one.lazy_reset_grad()
            one(x, labels)
            optimizer.step()
    assert differences(snapshot(full.state), snapshot(state)) == []


@pytest.mark.slow
def test_the_receiver_can_end_well(tmp_path: Path) -> None:
    """The crash above is the abort's: with fewer pieces the same code ends."""
    to_nominal(MLP.checkpoint, tmp_path / "nominal")
    np.zeros(SIZE, np.float32).tofile(tmp_path / "buffer")
    paths = [tmp_path / name for name in ("nominal", "journal", "buffer")]
    assert succeed(run_python(RECEIVER, MLP.training_model, *paths)) == ""
