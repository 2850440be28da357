"""Streams that take or give less than they were asked for, nothing, or too much."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from contextlib import suppress

import numpy as np
import pytest
from support.training import module_of
from support.zoo import ZOO

from edge_train.streams import read_into, write_from

MLP = ZOO["mlp_CrossEntropyLoss"]
VALUES = np.arange(43, dtype=np.float32)


class Odd:
    """A file object of someone's own; ``answers`` are what its calls return in turn."""

    def __init__(self, *answers: object) -> None:
        self._answers, self.taken = list(answers), b""

    def write(self, data: memoryview) -> object:
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        self.taken += bytes(data[: answer if isinstance(answer, int) else len(data)])
        return answer

    def read(self, count: int) -> object:
        return self._answers.pop(0)

    def close(self) -> None:
        pass


class Raw(io.RawIOBase):
    """Answers as a file that does not block and is not ready."""

    def readinto(self, view: object) -> None:
        return None

    def write(self, data: object) -> None:
        return None


def test_a_full_pipe_that_does_not_block_is_an_error() -> None:
    read, write = os.pipe()
    os.set_blocking(write, False)
    with os.fdopen(read, "rb", buffering=0), os.fdopen(write, "wb", buffering=0) as sink:
        with suppress(BlockingIOError):
            while True:
                os.write(write, bytes(4096))
        with pytest.raises(BlockingIOError, match=r"\(FileIO\) does not block and takes no more"):
            module_of(MLP).copy_parameters_to_buffer(sink)


@pytest.mark.parametrize("buffering", [0, -1])
def test_an_empty_pipe_that_does_not_block_is_an_error(buffering: int) -> None:
    read, write = os.pipe()
    os.set_blocking(read, False)
    module = module_of(MLP)
    before = module.get_contiguous_parameters().numpy().copy()
    with os.fdopen(write, "wb", buffering=0) as sink, os.fdopen(read, "rb", buffering) as source:
        sink.write(bytes(40))
        with pytest.raises(BlockingIOError, match="does not block and has no data yet"):
            module.copy_buffer_to_parameters(source, trainable_only=False)
    np.testing.assert_array_equal(module.get_contiguous_parameters().numpy(), before)


def test_nothing_is_not_the_end() -> None:
    with pytest.raises(BlockingIOError, match=r"the stream \(Raw\) .* has no data yet"):
        read_into(Raw(), [VALUES.copy()])
    with pytest.raises(BlockingIOError, match="has no data yet"):
        read_into(Odd(None), [VALUES.copy()])
    with pytest.raises(BlockingIOError, match="takes no more data now"):
        write_from(Raw(), VALUES)


def test_a_writer_that_never_takes_anything_ends() -> None:
    sink = Odd(0)
    with pytest.raises(OSError, match=r"\(Odd\) takes nothing: 100 writes in a row"):
        module_of(MLP).copy_parameters_to_buffer(sink)
    assert sink.taken == b""


@pytest.mark.parametrize("answers", [(None,), (0, 0, 7, 0, 165), (1,)])
def test_writers_may_take_their_time(answers: tuple[object, ...]) -> None:
    sink = Odd(*answers)
    write_from(sink, VALUES)
    assert sink.taken == VALUES.tobytes()


@pytest.mark.parametrize("written", [-1, 173])
def test_a_writer_that_cannot_count_is_refused(written: int) -> None:
    with pytest.raises(OSError, match=f"says that it wrote {written} of 172 bytes"):
        write_from(Odd(written), VALUES)


@pytest.mark.parametrize("make", [Odd, lambda data: Long()])
def test_a_reader_that_gives_too_much_is_refused(make: Callable[[bytes], object]) -> None:
    with pytest.raises(OSError, match="gave 180 bytes where 172 were asked for"):
        read_into(make(bytes(180)), [VALUES.copy()])


class Long(Raw):
    def readinto(self, view: object) -> int:  # type: ignore[override]
        return 180
