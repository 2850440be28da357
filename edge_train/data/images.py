"""A folder of images, one subfolder a class, decoded when asked for (extra ``images``: Pillow)."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from edge_train.data.sources import Array, Batch, Indices
from edge_train.errors import DataError

_log = logging.getLogger("edge_train")
_SUFFIXES = frozenset(
    (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
)


#: folders of a data set that are no classes
_SPLITS = frozenset(("train", "training", "test", "testing", "val", "valid", "validation"))
_MOST_TOLD = 20


@dataclass(frozen=True)
class ImageRows:
    """(pixels, label): float32 (n, channels, height, width), and int64 class numbers.

    ``pixel / 255`` less ``mean``, over ``std``, one number a channel. Classes are numbered in the
    sorted order of the subfolders; ``classes`` has their names. Hidden files and folders are none
    of the data. 16 bits a pixel are scaled to 8.

    An image that cannot be read is a DataError; with ``skips`` its row is left out of the batch,
    told to the logger and kept in ``left_out``.
    """

    files: tuple[Path, ...]
    labels: Array
    classes: tuple[str, ...]
    size: tuple[int, int]
    channels: int = 3
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    skips: bool = False
    left_out: dict[Path, str] = field(default_factory=dict, compare=False, repr=False)

    @staticmethod
    def of(
        folder: Path,
        size: int | Sequence[int] = (224, 224),
        channels: int = 3,
        mean: Sequence[float] = (0.0,),
        std: Sequence[float] = (1.0,),
        skips: bool = False,
    ) -> ImageRows:
        """The images below ``folder``; ``size`` is (height, width) or one number for both.

        DataError when there are none, or another argument is wrong.
        """
        _pillow()
        classes = sorted(path.name for path in folder.iterdir() if _is_class(path))
        if classes and _SPLITS.issuperset(name.lower() for name in classes):
            raise DataError(
                f"'{folder}' has the subfolders {classes}: these are parts of a data set, no "
                f"classes; name one of them, like '{folder / classes[-1]}'"
            )
        found = [
            (path, label) for label, name in enumerate(classes) for path in _images(folder / name)
        ]
        if not found:
            raise DataError(
                f"'{folder}' has no images; expected a subfolder for each class with "
                f"{', '.join(sorted(_SUFFIXES))} files"
            )
        if channels not in (1, 3):
            raise DataError(f"channels: expected 1 (grey) or 3 (colour), got {channels}")
        shape = _height_and_width(size)
        _check_numbers("mean", mean, channels)
        _check_numbers("std", std, channels)
        if 0 in std:
            raise DataError(f"std: pixels are divided by it, expected no 0, got {list(std)}")
        labels = np.array([label for _, label in found], np.int64)
        files = tuple(path.absolute() for path, _ in found)  # opened when they are asked for
        named = tuple(classes)
        return ImageRows(files, labels, named, shape, channels, tuple(mean), tuple(std), skips)

    def __len__(self) -> int:
        return len(self.files)

    def take(self, rows: Indices) -> Batch:
        """The images, decoded and resized; fewer than asked for where some are left out."""
        pixels = np.empty((len(rows), self.channels, *self.size), np.float32)
        kept: list[int] = []
        for row in rows:
            if self.files[row] in self.left_out:
                continue
            try:
                pixels[len(kept)] = self._decoded(self.files[row])
            except DataError as error:
                self._leave_out(self.files[row], error)
                continue
            kept.append(row)
        if len(kept) < len(rows):
            pixels, rows = pixels[: len(kept)], np.array(kept, np.int64)
        pixels -= np.asarray(self.mean, np.float32).reshape(-1, 1, 1)
        pixels /= np.asarray(self.std, np.float32).reshape(-1, 1, 1)
        return pixels, self.labels[rows]

    def _leave_out(self, path: Path, error: DataError) -> None:
        if not self.skips:
            raise DataError(
                f"{error}. Repair or remove it, or have such left out: unreadable = 'skip' in the "
                "run file, ImageRows.of(..., skips=True)"
            )
        self.left_out[path] = str(error)
        if len(self.left_out) <= _MOST_TOLD:
            _log.warning("%s; it is left out", error)

    def _decoded(self, path: Path) -> Array:
        image_module = _pillow()
        height, width = self.size
        mode = "L" if self.channels == 1 else "RGB"
        try:
            with image_module.open(path) as image:
                image.draft(mode, (width, height))  # a JPEG is decoded no larger than needed
                small = (
                    _of_8_bits(image)
                    .convert(mode)
                    .resize((width, height), image_module.Resampling.BILINEAR)
                )
        except MemoryError:
            raise
        except Exception as error:  # what Pillow's decoders raise of broken files is no closed list
            raise DataError(f"image '{path}' cannot be read: {error}") from error
        values: Array = np.asarray(small, np.float32).reshape(height, width, self.channels)
        values = values.transpose(2, 0, 1) / np.float32(255)
        return values


def _images(folder: Path) -> list[Path]:
    found = (p for p in folder.rglob("*") if p.suffix.lower() in _SUFFIXES and p.is_file())
    return sorted(p for p in found if not _is_hidden(p.relative_to(folder)))


def _is_class(path: Path) -> bool:
    return path.is_dir() and not _is_hidden(Path(path.name))


def _is_hidden(path: Path) -> bool:
    """Android's .thumbnails, macOS's ._photo.jpg and __MACOSX."""
    return any(part.startswith(".") or part == "__MACOSX" for part in path.parts)


def _height_and_width(size: int | Sequence[int]) -> tuple[int, int]:
    sizes = (size, size) if isinstance(size, int) else tuple(size)
    if len(sizes) != 2 or min(sizes) < 1:
        raise DataError(f"size: expected (height, width) or one number >= 1, got {size}")
    return int(sizes[0]), int(sizes[1])


def _check_numbers(name: str, numbers: Sequence[float], channels: int) -> None:
    if len(numbers) not in (1, channels):
        wanted = "1 number" if channels == 1 else f"1 or {channels} numbers"
        raise DataError(f"{name}: expected {wanted}, got {list(numbers)}")


def _of_8_bits(image: Any) -> Any:
    """16 bits a pixel scaled down: Pillow's convert would cut all above 255 off."""
    if not image.mode.startswith("I"):
        return image
    values = np.asarray(image).astype(np.float32) / 257
    return _pillow().fromarray(values.clip(0, 255).astype(np.uint8))


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError as error:
        raise DataError(
            "images are read with Pillow, which is not installed: pip install 'edge-train[images]'"
        ) from error
    return Image
