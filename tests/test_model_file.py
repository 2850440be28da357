"""Models opened without their large tensors: small ones too, and what is not written again."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from support.states import save_arrays, values

from edge_train import model_file
from edge_train.convert.onnx_model import from_onnx, to_onnx


def _model(*tensors: onnx.TensorProto) -> onnx.ModelProto:
    """Each tensor goes through a node of its own."""
    names = [tensor.name for tensor in tensors]
    nodes = [helper.make_node("Identity", [name], [f"{name}2"]) for name in names]
    outputs = [helper.make_tensor_value_info(f"{name}2", TensorProto.FLOAT, None) for name in names]
    return helper.make_model(helper.make_graph(nodes, "g", [], outputs, list(tensors)))


def _weights(path: Path) -> dict[str, np.ndarray]:
    return {t.name: numpy_helper.to_array(t) for t in onnx.load(path).graph.initializer}


def test_a_few_half_and_double_weights_that_stand_in_the_graph(tmp_path: Path) -> None:
    """Too small for data of their own: their bytes are no numbers yet."""
    arrays = {kind: np.array([1.5, -2.25, 3.0]).astype(kind) for kind in ("f2", "f8")}
    half = np.array([0x3F80, 0xC010], "<u2")  # bfloat16: 1, -2.25
    model = _model(
        *(numpy_helper.from_array(array, kind) for kind, array in arrays.items()),
        helper.make_tensor("bf", TensorProto.BFLOAT16, [2], half.tobytes(), raw=True),
    )
    from_onnx(model.SerializeToString(), tmp_path / "c", train=["*"])
    got = values(tmp_path / "c")
    for kind, array in arrays.items():
        np.testing.assert_array_equal(got[kind], array.astype(np.float32))
    assert got["bf"].tolist() == [1, -2.25]


def test_replaced_and_cut_off_weights_are_not_written_beside_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The data file has the new weights alone, and the old ones make no file too large."""
    monkeypatch.setattr(model_file, "_PAGE", 1)
    monkeypatch.setattr(model_file, "_LARGE", 16)
    old, new = np.full(2000, 3, "f4"), np.full(2000, 5, "f4")
    model = _model(*(numpy_helper.from_array(old, name) for name in ("w", "v")))
    path, source = save_arrays(tmp_path / "c", w=new, v=new), model.SerializeToString()
    to_onnx(path, source, tmp_path / "x", external_data=True)
    assert (tmp_path / "x.data").read_bytes() == 2 * new.tobytes()
    to_onnx(path, source, tmp_path / "cut", external_data=True, outputs=["v2"])
    assert (tmp_path / "cut.data").read_bytes() == new.tobytes()
    monkeypatch.setattr(model_file, "LARGEST", 2 * new.nbytes)
    to_onnx(path, source, tmp_path / "inside")
    assert not (tmp_path / "inside.data").exists()
    for name in ("x", "inside"):
        np.testing.assert_array_equal(_weights(tmp_path / name)["w"], new)
