"""Files of data: mapped rather than read, refused with their place."""

from __future__ import annotations

import io
import zipfile
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


@pytest.mark.slow
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


HEADERS = {
    "an open bracket": "{'shape': (",
    "an open string": "'''abc",
    "nine thousand signs": "-" * 9000 + "1",
    "five thousand brackets": "[" * 5000,
    "a huge array": "{'descr': '<f4', 'fortran_order': False, 'shape': (4611686018427387904,)}",
    "beyond 64 bits": f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({10**30},)}}",
    "a negative size": "{'descr': '<f4', 'fortran_order': False, 'shape': (-2,)}",
    "no type": "{'descr': '<Q99', 'fortran_order': False, 'shape': (2,)}",
}


@pytest.mark.parametrize("name", HEADERS)
def test_a_damaged_header_is_refused_with_its_file(name: str, tmp_path: Path) -> None:
    text = HEADERS[name].encode()
    data = b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + bytes(8)
    (tmp_path / "d.npy").write_bytes(data)
    for file, kind in (("stored.npz", zipfile.ZIP_STORED), ("packed.npz", zipfile.ZIP_DEFLATED)):
        with zipfile.ZipFile(tmp_path / file, "w", kind) as archive:
            archive.writestr("x.npy", data)
    for file in ("d.npy", "stored.npz", "packed.npz"):
        with pytest.raises(DataError, match=rf"{file}' is no usable"):
            open_path(tmp_path / file)


def test_flipped_bits_of_a_compressed_archive_are_refused(tmp_path: Path) -> None:
    """Or hit what nobody reads, a member's clock."""
    path = tmp_path / "d.npz"
    np.savez_compressed(path, x=X)
    data = path.read_bytes()
    refused = 0
    for at in range(len(data)):
        flipped = bytearray(data)
        flipped[at] ^= 1 << at % 8
        path.write_bytes(flipped)
        try:
            arrays = map_npz(path)
        except DataError:
            refused += 1
        else:
            assert [array.tobytes() for array in arrays.values()] == [X.tobytes()]
    assert refused > len(data) // 2


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


def _image(path: Path, colour: tuple[int, int, int]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (10, 6), colour).save(path)
    return path


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


def test_images_of_a_relative_folder_are_found_from_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _image(tmp_path / "photos" / "cat" / "a.png", (255, 0, 51))
    monkeypatch.chdir(tmp_path)
    rows = source_of("photos")
    monkeypatch.chdir("photos")
    _, labels = rows.take(np.array([0]))
    assert labels.tolist() == [0]


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


def test_hidden_files_are_no_images(tmp_path: Path) -> None:
    for place in ("cat/a.png", ".thumbnails/b.png", "__MACOSX/c.png", "dog/d.png", "dog/.x/e.png"):
        _image(tmp_path / place, (1, 2, 3))
    _image(tmp_path / "cat" / "f.png", (1, 2, 3)).rename(tmp_path / "cat" / "._a.png")
    rows = ImageRows.of(tmp_path, size=2)
    assert rows.classes == ("cat", "dog")
    assert [path.name for path in rows.files] == ["a.png", "d.png"]


def test_16_bits_a_pixel_are_scaled(tmp_path: Path) -> None:
    (tmp_path / "sky").mkdir()
    Image.fromarray(np.full((4, 4), 257 * 100, np.uint16)).save(tmp_path / "sky" / "a.png")
    pixels, _ = ImageRows.of(tmp_path, size=4, channels=1).take(np.array([0]))
    np.testing.assert_allclose(pixels, 100 / 255, rtol=1e-6)


def test_unreadable_images_are_left_out_and_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(4):
        _image(tmp_path / "cat" / f"{number}.png", (number, 0, 0))
    whole = (tmp_path / "cat" / "3.png").read_bytes()
    (tmp_path / "cat" / "1.png").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "cat" / "2.png").write_bytes(b"")
    rows = ImageRows.of(tmp_path, size=2, skips=True)
    for _ in range(2):
        pixels, labels = rows.take(np.array([2, 3, 1, 0]))
        assert np.rint(pixels[:, 0, 0, 0] * 255).tolist() == [3, 0]
        assert labels.tolist() == [0, 0]
    assert len(rows.take(np.array([1, 2]))[0]) == 0
    assert sorted(path.name for path in rows.left_out) == ["1.png", "2.png"]
    assert len(caplog.messages) == 2
    assert all(text.endswith("; it is left out") for text in caplog.messages)


@pytest.mark.parametrize("suffix", ["png", "gif", "tif", "webp", "bmp"])
def test_a_broken_image_is_left_out_whatever_pillow_raises(tmp_path: Path, suffix: str) -> None:
    (tmp_path / "cat").mkdir()
    whole = io.BytesIO()
    Image.effect_noise((9, 9), 50).save(whole, "TIFF" if suffix == "tif" else suffix.upper())
    for place in range(0, len(whole.getvalue()), 7):
        data = bytearray(whole.getvalue())
        data[place] ^= 0xFF
        (tmp_path / "cat" / f"{place}.{suffix}").write_bytes(data)
    rows = ImageRows.of(tmp_path, size=2, skips=True)
    pixels, _ = rows.take(np.arange(len(rows)))
    assert len(pixels) + len(rows.left_out) == len(rows)
    assert rows.left_out


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"size": 0}, "size: expected"),
        ({"size": (4, 4, 3)}, "size: expected"),
        ({"mean": (0.5, 0.5)}, "mean: expected 1 or 3 numbers"),
        ({"std": (1.0, 0.0, 1.0)}, "std: pixels are divided by it"),
        ({"std": (1.0, 1.0, 1.0), "channels": 1}, "std: expected 1 number, got"),
    ],
)
def test_wrong_words_on_images_are_named(
    tmp_path: Path, options: dict[str, Any], said: str
) -> None:
    _image(tmp_path / "cat" / "a.png", (1, 2, 3))
    with pytest.raises(DataError, match=said):
        ImageRows.of(tmp_path, **options)


def test_parts_of_a_data_set_are_no_classes(tmp_path: Path) -> None:
    for place in ("train/cat/a.png", "Test/cat/b.png"):
        _image(tmp_path / place, (1, 2, 3))
    with pytest.raises(DataError, match="parts of a data set, no classes; name one of them"):
        ImageRows.of(tmp_path)
    assert ImageRows.of(tmp_path / "train", size=2).classes == ("cat",)


def test_a_word_among_numbers_is_no_class(tmp_path: Path) -> None:
    path = tmp_path / "d.csv"
    path.write_text("a,label\n1,3\n2,x\n3,10\n")
    with pytest.raises(DataError, match=r"line 3, column 'label': expected a number as most lines"):
        read_csv(path)
