"""Artifacts as exporters leave them: extra outputs of normalisation, data in other folders."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import external_data_helper
from support.zoo import ZOO, Case

from edge_train import model_file
from edge_train.api import CheckpointState, Module
from edge_train.errors import ArtifactError

NORMALIZED = ZOO["conv_bn_maxpool_gap"]


def _module(case: Case, evaluation: Path | bytes) -> Module:
    state = CheckpointState.load_checkpoint(case.checkpoint)
    return Module(case.training_model, state, evaluation)


def _eval_loss(module: Module, case: Case) -> float:
    for name, value in case.final.items():
        module.state.parameters[name].data[...] = value
    return float(module.eval()(**case.feed))


@pytest.mark.parametrize("version", [14, 15, 21])
def test_statistics_outputs_of_an_eval_graph_are_cut(tmp_path: Path, version: int) -> None:
    """Case U060: an export in training mode leaves outputs that no inference may have."""
    model = onnx.load(NORMALIZED.eval_model)
    (node,) = (node for node in model.graph.node if node.op_type == "BatchNormalization")
    node.output.extend(["new_mean", "new_variance"])
    node.attribute.append(onnx.helper.make_attribute("training_mode", 0))
    del model.opset_import[:]
    model.opset_import.append(onnx.helper.make_opsetid("", version))
    path = tmp_path / "eval_model.onnx"
    onnx.save(model, path)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    with pytest.raises(Exception, match="outputs should be 1"):
        onnxruntime.InferenceSession(str(path), options)
    module = _module(NORMALIZED, path)
    assert _eval_loss(module, NORMALIZED) == pytest.approx(NORMALIZED.eval_loss, rel=2e-6)
    output = model.graph.node[-1].input[0]
    module.export_model_for_inferencing(tmp_path / "inference.onnx", [output])
    session = onnxruntime.InferenceSession(str(tmp_path / "inference.onnx"))
    feed = {value.name: NORMALIZED.feed[value.name] for value in session.get_inputs()}
    assert np.isfinite(session.run(None, feed)[0]).all()


def test_an_export_holds_the_data_that_its_source_had_elsewhere(tmp_path: Path) -> None:
    """Case U063: the eval graph's constants lie in a data file of another folder."""
    case = ZOO["transformer_decomposedLN_erf"]
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    model = onnx.load(case.eval_model)
    external_data_helper.convert_model_to_external_data(
        model, location="weights.bin", size_threshold=0, convert_attribute=True
    )
    onnx.save(model, source / "eval_model.onnx")
    assert (source / "weights.bin").stat().st_size > 0
    module = _module(case, source / "eval_model.onnx")
    assert _eval_loss(module, case) == pytest.approx(case.eval_loss, rel=2e-6)
    output = next(n.input[0] for n in model.graph.node if "CrossEntropy" in n.op_type)
    module.export_model_for_inferencing(target / "inference.onnx", [output])
    (source / "weights.bin").unlink()
    assert [path.name for path in target.iterdir()] == ["inference.onnx"]
    session = onnxruntime.InferenceSession(str(target / "inference.onnx"))
    feed = {value.name: case.feed[value.name] for value in session.get_inputs()}
    assert np.isfinite(session.run(None, feed)[0]).all()
    with pytest.raises(ArtifactError, match=r"weights\.bin' cannot be read"):
        _module(case, source / "eval_model.onnx")


def test_u063_an_export_too_large_for_an_onnx_file_has_a_data_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """U063: weights of 1 KiB and more lie beside the model, where plain onnxruntime finds them."""
    case = ZOO["conv_bn_maxpool_gap"]
    module = _module(case, case.eval_model)
    output = module.eval().output_names()
    module.export_model_for_inferencing(tmp_path / "inline" / "x.onnx", output)
    monkeypatch.setattr(model_file, "LARGEST", 100)
    monkeypatch.setattr(model_file, "_LARGE", 64)
    module.export_model_for_inferencing(tmp_path / "x.onnx", output)
    assert (tmp_path / "x.onnx.data").stat().st_size > 0
    results = []
    for path in (tmp_path / "inline" / "x.onnx", tmp_path / "x.onnx"):
        onnx.checker.check_model(path)
        results.append(onnxruntime.InferenceSession(str(path)).run(None, case.feed)[0])
    assert results[0] == results[1]
