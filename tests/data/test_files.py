"""Files of data: mapped rather than read, refused with their place."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from edge_train.data import Batches, ImageRows, ItemRows, open_path, read_csv, source_of
from edge_train.data.files import map_npz
from edge_train.errors import DataError

X = np.arange(24, dtype=np.float32).reshape(6, 4)
Y = np.array([0, 1, 2, 0, 1, 2])
SOME = np.array([4, 0, 4])


def _is_mapped(array: np.ndarray) -> bool:
    return isinstance(array, np.memmap)


def test_npz_members_are_mapped(tmp_path: Path) -> None:
    np.savez(tmp_path / "d.npz", x=X, y=Y, f=np.asfortranarray(X), empty=np.empty((0, 3)))
    arrays = map_npz(tmp_path / "d.npz")
    assert list(arrays) == ["x", "y", "f", "empty"]
    assert all(_is_mapped(arrays[name]) for name in ("x", "y", "f"))
    for name, expected in (("x", X), ("y", Y), ("f", X)):
        assert np.array_equal(arrays[name], expected)


def test_compressed_npz_is_read(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "d.npz", x=X)
    array = map_npz(tmp_path / "d.npz")["x"]
    assert not _is_mapped(array)
    assert np.array_equal(array, X)


@pytest.mark.parametrize("kind", ["npz", "npy", "csv"])
def test_a_file_cut_anywhere_is_refused(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"d.{kind}"
    if kind == "npz":
        np.savez(path, x=X, y=Y)
    elif kind == "npy":
        np.save(path, X)
    else:
        path.write_bytes(b"a,b\n1,2\n3")
    data = path.read_bytes()
    for size in [len(data)] if kind == "csv" else range(len(data)):
        path.write_bytes(data[:size])
        with pytest.raises(DataError, match=r"'.*'"):
            open_path(path)


def test_objects_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "d.npz", x=np.array([{}, []], dtype=object))
    np.save(tmp_path / "d.npy", np.array([{}, []], dtype=object))
    for name in ("d.npz", "d.npy"):
        with pytest.raises(DataError, match="no usable"):
            open_path(tmp_path / name)


def test_a_folder_of_arrays(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", X)
    np.save(tmp_path / "y.npy", Y)
    rows = open_path(tmp_path)
    assert len(rows) == 6
    batch: Any = rows.take(SOME)
    assert np.array_equal(batch["x"], X[SOME])


def test_arrays_by_paths(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", X)
    batch: Any = source_of({"x": tmp_path / "x.npy", "y": Y}).take(SOME)  # type: ignore[union-attr]
    assert np.array_equal(batch["x"], X[SOME])


def test_lengths_that_differ() -> None:
    with pytest.raises(ValueError, match=r"need one length, got \{'array 0': 6, 'array 1': 5\}"):
        source_of((X, Y[:5]))


class _Items:
    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        return X[index], int(Y[index])


def test_an_indexable_dataset() -> None:
    rows = source_of(_Items())
    assert isinstance(rows, ItemRows)
    x, y = rows.take(SOME)
    assert np.array_equal(x, X[SOME])
    assert np.array_equal(y, Y[SOME])


def test_an_iterable_and_a_function_of_the_epoch() -> None:
    def epoch(number: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        yield X + number, Y

    made = source_of(epoch)
    assert isinstance(made, Batches)
    assert np.array_equal(next(made.epoch(2))[0], X + 2)  # type: ignore[index]
    assert isinstance(source_of(iter([(X, Y)])), Batches)
    with pytest.raises(TypeError, match="got int"):
        source_of(3)


CSV = "length,width,species\n1.5,2,setosa\n2.5,3,virginica\n0.5,1,setosa\n"


def test_csv_with_words_for_classes(tmp_path: Path) -> None:
    path = tmp_path / "d.csv"
    path.write_text(CSV)
    x, y = read_csv(path).take(np.arange(3))
    assert np.array_equal(x, np.array([[1.5, 2], [2.5, 3], [0.5, 1]], np.float32))
    assert y.tolist() == [0, 1, 0]
    x, y = read_csv(path, label="width", features=["length"]).take(np.arange(3))
    assert x.tolist() == [[1.5], [2.5], [0.5]]
    assert (y.tolist(), y.dtype) == ([2, 3, 1], np.int64)


def test_csv_without_header_and_with_several_targets(tmp_path: Path) -> None:
    path = tmp_path / "d.csv"
    path.write_text("1;2;3\n4;5;6\n")
    x, y = read_csv(path, label=["1", "2"]).take(np.arange(2))
    assert x.tolist() == [[1], [4]]
    assert (y.tolist(), y.dtype) == ([[2, 3], [5, 6]], np.float32)


@pytest.mark.parametrize(
    ("text", "label", "said"),
    [
        ("a,b\n1,2\nx,3\n", -1, "line 3, column 'a': expected a number, got 'x'"),
        ("a,b\n1,2\n3\n", -1, "line 3: 1 columns, expected 2"),
        ("a,b\n1,2\n", "c", r"no column 'c'; it has \['a', 'b'\]"),
        ("a,b\n1,2\n", 7, "has 2 columns, none has number 7"),
        ("", -1, "has no rows"),
        ("a\n1\n", 0, "no column left beside the label"),
    ],
)
def test_csv_faults_are_named(tmp_path: Path, text: str, label: Any, said: str) -> None:
    path = tmp_path / "d.csv"
    path.write_text(text)
    with pytest.raises(DataError, match=said):
        read_csv(path, label=label)


def _image(path: Path, colour: tuple[int, int, int]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (10, 6), colour).save(path)


def test_a_folder_of_images(tmp_path: Path) -> None:
    _image(tmp_path / "cat" / "a.png", (255, 0, 51))
    _image(tmp_path / "ant" / "b.png", (0, 255, 0))
    rows = ImageRows.of(tmp_path, size=(4, 3), mean=(0.0, 0.0, 0.2), std=(1.0, 0.5, 1.0))
    assert rows.classes == ("ant", "cat")
    pixels, labels = rows.take(np.array([0, 1]))
    assert pixels.shape == (2, 3, 4, 3)
    assert pixels.dtype == np.float32
    assert labels.tolist() == [0, 1]
    np.testing.assert_allclose(pixels[:, :, 0, 0], [[0, 2, -0.2], [1, 0, 0]], atol=1e-6)
    grey, _ = ImageRows.of(tmp_path, size=2, channels=1).take(np.array([1]))
    assert grey.shape == (1, 1, 2, 2)


def test_images_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="has no images"):
        ImageRows.of(tmp_path)
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat" / "broken.jpg").write_bytes(b"\xff\xd8\xff nothing")
    with pytest.raises(DataError, match=r"broken.jpg' cannot be read"):
        ImageRows.of(tmp_path, size=2).take(np.array([0]))
    with pytest.raises(DataError, match="channels: expected 1"):
        ImageRows.of(tmp_path, channels=4)


def test_missing_and_unknown_files(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no file or folder"):
        open_path(tmp_path / "missing.npz")
    (tmp_path / "d.xlsx").write_bytes(b"")
    with pytest.raises(DataError, match=r"no \.npz"):
        open_path(tmp_path / "d.xlsx")
