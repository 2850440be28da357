"""U046: more than 2 GiB through the converters: 64-bit offsets everywhere."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from edge_train import dtypes
from edge_train.checkpoint import files
from edge_train.checkpoint.format import Checkpoint
from edge_train.checkpoint.tensor import Tensor
from edge_train.convert import lazy
from edge_train.convert.difference import compare
from edge_train.convert.npz import from_npz, to_npz
from edge_train.convert.onnx_model import from_onnx, to_onnx
from edge_train.convert.safetensors import from_safetensors, to_safetensors

MIB = 2**20
NAMES = [f"w{index}" for index in range(36)]
DIMS = (4096, 4096)  # 64 MiB


def _tensor(name: str, seed: int) -> Tensor:
    """Values that say where they belong: every element counts, in float32 exactly."""

    def block(start: int, count: int) -> np.ndarray:
        at = np.arange(start, start + count, dtype=np.uint32)
        return ((at * np.uint32(2654435761) + np.uint32(seed)) >> 8).astype(np.float32)

    return lazy.computed(Tensor(name, dtypes.FLOAT, DIMS), dtypes.FLOAT, block)


def _model(path: Path) -> Path:
    value = helper.make_tensor_value_info
    inputs = [value(name, TensorProto.FLOAT, DIMS) for name in NAMES]
    node = helper.make_node("Sum", NAMES, ["y"])
    graph = helper.make_graph([node], "g", inputs, [value("y", TensorProto.FLOAT, None)])
    path.write_bytes(helper.make_model(graph).SerializeToString())
    return path


@pytest.mark.slow
def test_u046_more_than_2_gib_there_and_back(tmp_path: Path) -> None:
    free = shutil.disk_usage(tmp_path).free
    if free < 9 * 2**30:
        pytest.skip(f"needs 9 GiB of disk, has {free >> 30}")
    path = tmp_path / "checkpoint"
    files.write(Checkpoint(tuple(map(_tensor, NAMES, range(len(NAMES))))), path)
    assert (tmp_path / "checkpoint.data").stat().st_size > 2**31 + 16 * MIB
    model = _model(tmp_path / "model.onnx")
    for there, back in (
        (to_safetensors, from_safetensors),
        (to_npz, from_npz),
        (
            lambda source, out: to_onnx(source, model, out),
            lambda source, out: from_onnx(source, out, like=path),
        ),
    ):
        there(path, tmp_path / "x")
        assert sum(f.stat().st_size for f in tmp_path.glob("x*")) > 2**31 + 16 * MIB
        back(tmp_path / "x", tmp_path / "back")
        assert compare(path, tmp_path / "back").equal
    graph = onnx.load(tmp_path / "x", load_external_data=False).graph
    offsets = [
        int(e.value) for t in graph.initializer for e in t.external_data if e.key == "offset"
    ]
    assert max(offsets) > 2**31
    for file in tmp_path.iterdir():
        file.unlink()
