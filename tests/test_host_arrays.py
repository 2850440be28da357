"""Host memory of every owner: what may be written to is written, what may not is left alone."""

from __future__ import annotations

import weakref
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from support.training import module_of
from support.zoo import ZOO

from edge_train.device import open_device
from edge_train.host_arrays import host_array, host_memory, writable_array

MLP = ZOO["mlp_CrossEntropyLoss"]
SIZE = 43
#: NumPy itself says by DLPack whether an array is read-only
VERSIONED = np.lib.NumpyVersion(np.__version__) >= "2.1.0"


class Versioned:
    """A tensor of a library that knows DLPack as NumPy does."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def __dlpack__(self, **options: object) -> object:
        return self.array.__dlpack__(**options)  # type: ignore[call-overload]

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0


class Silent(Versioned):
    """One of a library from before DLPack's versions, which says nothing."""

    def __dlpack__(self, stream: object = None) -> object:  # type: ignore[override]
        return self.array.__dlpack__()


class Ignoring(Versioned):
    """One that takes the version and gives a capsule without."""

    def __dlpack__(self, **options: object) -> object:
        return self.array.__dlpack__()


def immutable(array: np.ndarray) -> Silent:
    return type("ArrayImpl", (Silent,), {"__module__": "jaxlib._jax"})(array)  # type: ignore[no-any-return]


WRITABLE = {
    "versioned": Versioned,
    "silent": Silent,
    "ignoring": Ignoring,
    "OrtValue": onnxruntime.OrtValue.ortvalue_from_numpy,
    "DeviceBuffer": open_device("cpu").adopt,
    "adopted tensor": lambda array: open_device("cpu").adopt(Silent(array)),
}


@pytest.mark.parametrize("kind", WRITABLE)
def test_memory_that_may_be_written_is(kind: str) -> None:
    values = np.zeros(SIZE, np.float32)
    module = module_of(MLP)
    module.copy_parameters_to_buffer(WRITABLE[kind](values), trainable_only=False)
    np.testing.assert_array_equal(values, module.get_contiguous_parameters().numpy())


def read_only(path: Path) -> np.ndarray:
    """Writing to it is a segmentation fault."""
    path.write_bytes(bytes(4 * SIZE))
    return np.asarray(np.memmap(path, np.float32, "r"))


READ_ONLY = {
    "array": lambda array: array,
    "versioned": Versioned,
    "DeviceBuffer": open_device("cpu").adopt,
    "adopted tensor": lambda array: open_device("cpu").adopt(Versioned(array)),
}


@pytest.mark.parametrize("kind", READ_ONLY)
def test_read_only_memory_is_refused(kind: str, tmp_path: Path) -> None:
    array = read_only(tmp_path / "values")
    # an older NumPy does not give a read-only array out by DLPack at all
    told = (ValueError, TypeError) if not VERSIONED else ValueError
    with pytest.raises(told, match=r"(?i)read-?only"):
        module_of(MLP).copy_parameters_to_buffer(READ_ONLY[kind](array), trainable_only=False)
    assert not array.any()


def test_tensors_of_libraries_without_writing_are_refused() -> None:
    values = np.zeros(SIZE, np.float32)
    with pytest.raises(ValueError, match=r"the buffer is read-only \(ArrayImpl\)"):
        module_of(MLP).copy_parameters_to_buffer(immutable(values), trainable_only=False)
    assert not values.any()
    np.testing.assert_array_equal(host_array(immutable(values)), values)


@pytest.mark.parametrize("kind", [Versioned, Silent, Ignoring])
def test_the_view_keeps_the_memory_and_lets_it_go(kind: type[Versioned]) -> None:
    values = np.zeros((2, 3), np.float32)
    kept = weakref.ref(values)
    seen = writable_array(kind(values))
    assert np.shares_memory(seen, values)
    del values
    assert kept() is not None
    seen[...] = 7
    assert kept()[1, 2] == 7  # type: ignore[index]
    del seen
    assert kept() is None


def test_strided_memory_is_not_opened() -> None:
    values = np.arange(6, dtype=np.float32)
    with pytest.raises(ValueError, match="the target is not contiguous"):
        writable_array(Silent(values[::2]))
    assert host_memory(Silent(values[::2])).tolist() == [0, 2, 4]


def test_no_elements_are_no_fault() -> None:
    assert writable_array(Silent(np.zeros((0, 3), np.float32))).shape == (0, 3)
