"""A folder of images, one subfolder a class, decoded when asked for (extra ``images``: Pillow)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from edge_train.data.sources import Array, Batch, Indices
from edge_train.errors import DataError

_SUFFIXES = frozenset(
    (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
)


@dataclass(frozen=True)
class ImageRows:
    """(pixels, label): float32 (n, channels, height, width), and int64 class numbers.

    ``pixel / 255`` less ``mean``, over ``std``, one number a channel. Classes are numbered in the
    sorted order of the subfolders; ``classes`` has their names.
    """

    files: tuple[Path, ...]
    labels: Array
    classes: tuple[str, ...]
    size: tuple[int, int]
    channels: int = 3
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)

    @staticmethod
    def of(
        folder: Path,
        size: int | Sequence[int] = (224, 224),
        channels: int = 3,
        mean: Sequence[float] = (0.0,),
        std: Sequence[float] = (1.0,),
    ) -> ImageRows:
        """The images below ``folder``; ``size`` is (height, width) or one number for both.

        DataError when there are none, or ``channels`` is neither 1 nor 3.
        """
        _pillow()
        classes = sorted(path.name for path in folder.iterdir() if path.is_dir())
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
        height, width = (size, size) if isinstance(size, int) else size
        labels = np.array([label for _, label in found], np.int64)
        files = tuple(path for path, _ in found)
        shape = (int(height), int(width))
        return ImageRows(files, labels, tuple(classes), shape, channels, tuple(mean), tuple(std))

    def __len__(self) -> int:
        return len(self.files)

    def take(self, rows: Indices) -> Batch:
        """The images, decoded and resized."""
        pixels = np.empty((len(rows), self.channels, *self.size), np.float32)
        for place, row in enumerate(rows):
            pixels[place] = self._decoded(self.files[row])
        pixels -= np.asarray(self.mean, np.float32).reshape(-1, 1, 1)
        pixels /= np.asarray(self.std, np.float32).reshape(-1, 1, 1)
        return pixels, self.labels[rows]

    def _decoded(self, path: Path) -> Array:
        image_module = _pillow()
        height, width = self.size
        mode = "L" if self.channels == 1 else "RGB"
        try:
            with image_module.open(path) as image:
                image.draft(mode, (width, height))  # a JPEG is decoded no larger than needed
                small = image.convert(mode).resize(
                    (width, height), image_module.Resampling.BILINEAR
                )
        except (OSError, ValueError, SyntaxError, image_module.DecompressionBombError) as error:
            raise DataError(f"image '{path}' cannot be read: {error}") from error
        values: Array = np.asarray(small, np.float32).reshape(height, width, self.channels)
        values = values.transpose(2, 0, 1) / np.float32(255)
        return values


def _images(folder: Path) -> list[Path]:
    return sorted(p for p in folder.rglob("*") if p.suffix.lower() in _SUFFIXES and p.is_file())


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError as error:
        raise DataError(
            "images are read with Pillow, which is not installed: pip install 'edge-train[images]'"
        ) from error
    return Image
