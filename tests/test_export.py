"""Export: a file for plain onnxruntime with the trained weights, written whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from support.training import module_of, session_of, set_parameters
from support.zoo import SEIZURE, ZOO, ZOO_MODELS, Artifacts

from edge_train import atomic
from edge_train.api import CheckpointState, Module
from edge_train.errors import ArtifactError, NominalStateError
from edge_train.graph import onnx_codec

BN = ZOO["conv_bn_maxpool_gap"]
MLP = ZOO["mlp_CrossEntropyLoss"]
CASES: dict[str, Artifacts] = {**{name: ZOO[name] for name in ZOO_MODELS}, "seizure": SEIZURE}


def plain_session(path: Path) -> onnxruntime.InferenceSession:
    """As any application opens it: no options but silence."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def forward_outputs(module: Module) -> list[str]:
    """What a user names: the input of the loss, else the loss itself."""
    graph = module._eval_source.graph
    read = {name for node in graph.nodes for name in node.inputs}
    loss = [node for node in graph.nodes if "SoftmaxCrossEntropy" in node.op_type]
    return [loss[0].inputs[0]] if loss else [v.name for v in graph.outputs if v.name not in read]


def eval_outputs(module: Module, feed: dict[str, np.ndarray], names: list[str]) -> list[np.ndarray]:
    """The named tensors of the eval graph itself, in plain onnxruntime, parameters fed."""
    model = onnx.load_from_string(onnx_codec.encode(module._eval_source))
    known = {output.name for output in model.graph.output}
    model.graph.output.extend(onnx.ValueInfoProto(name=n) for n in names if n not in known)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    parameters = {name: parameter.data for name, parameter in module.state.parameters}
    asked = {value.name for value in session.get_inputs()}
    fed = {name: value for name, value in {**feed, **parameters}.items() if name in asked}
    outputs: list[np.ndarray] = session.run(names, fed)
    return outputs


@pytest.mark.parametrize("name", CASES)
def test_u065_the_file_needs_the_users_inputs_only(name: str, tmp_path: Path) -> None:
    """U065: after training: no labels, parameters inside, the numbers of the eval graph."""
    case = CASES[name]
    module, optimizer = session_of(case)
    for _ in range(2):
        module.lazy_reset_grad()
        module(**case.feed)
        optimizer.step()
    path, names = tmp_path / "inference.onnx", forward_outputs(module)
    module.export_model_for_inferencing(path, names)
    onnx.checker.check_model(onnx.load(path), full_check=True)
    session = plain_session(path)
    inputs = [value.name for value in session.get_inputs()]
    assert inputs == [n for n in module.input_names() if n in inputs]
    assert "labels" not in inputs
    assert not {n for n, _ in module.state.parameters} & set(inputs)
    assert [value.name for value in session.get_outputs()] == names
    got = session.run(None, {name: case.feed[name] for name in inputs})
    expected = eval_outputs(module, case.feed, names)
    np.testing.assert_allclose(got[0], expected[0], rtol=1e-5, atol=1e-6)


def test_the_comparison_above_can_fail(tmp_path: Path) -> None:
    """Weights after the export are not those of the file."""
    module = module_of(MLP)
    module.export_model_for_inferencing(tmp_path / "y.onnx", ["y"])
    module.state.parameters["b2"].data[0] += 1e-3
    got = plain_session(tmp_path / "y.onnx").run(None, {"x": MLP.feed["x"]})
    expected = eval_outputs(module, MLP.feed, ["y"])
    assert not np.allclose(got[0], expected[0], rtol=1e-5, atol=1e-6)


def test_the_references_final_weights_give_its_eval_loss(tmp_path: Path) -> None:
    module = module_of(BN)
    set_parameters(module, BN.final)
    module.export_model_for_inferencing(tmp_path / "loss.onnx", module.output_names())
    loss = plain_session(tmp_path / "loss.onnx").run(None, BN.feed)[0]
    assert float(loss) == pytest.approx(BN.eval_loss, rel=2e-6)


def test_u059_a_row_has_the_same_result_alone_and_among_others(tmp_path: Path) -> None:
    """U059: BatchNormalization is in inference mode."""
    module = module_of(BN)
    for _ in range(3):
        module(**BN.feed)
    module.export_model_for_inferencing(tmp_path / "x.onnx", forward_outputs(module))
    session = plain_session(tmp_path / "x.onnx")
    x = np.random.default_rng(0).standard_normal((32, 3, 8, 8)).astype(np.float32)
    together = session.run(None, {"x": x})[0]
    for row in (0, 13, 31):
        alone = session.run(None, {"x": x[row : row + 1]})[0]
        np.testing.assert_allclose(alone[0], together[row], rtol=1e-5, atol=1e-6)
    assert np.ptp(together, axis=0).min() > 1e-3


def test_u066_a_missing_folder_is_made(tmp_path: Path) -> None:
    """U066: also several levels of it, also named as text."""
    path = tmp_path / "no" / "such" / "folder" / "x.onnx"
    module_of(MLP).export_model_for_inferencing(str(path), ["y"])
    assert plain_session(path).get_outputs()[0].name == "y"
    assert list(path.parent.iterdir()) == [path]


def test_graphs_given_as_bytes_export_the_same_file(tmp_path: Path) -> None:
    """Inner outputs too; the state as bytes as well."""
    state = CheckpointState.load_checkpoint(MLP.checkpoint.read_bytes())
    module = Module(MLP.training_model.read_bytes(), state, MLP.eval_model.read_bytes())
    module.export_model_for_inferencing(tmp_path / "bytes.onnx", ["y", "h"])
    module_of(MLP).export_model_for_inferencing(tmp_path / "paths.onnx", ["y", "h"])
    assert (tmp_path / "bytes.onnx").read_bytes() == (tmp_path / "paths.onnx").read_bytes()
    expected = eval_outputs(module, MLP.feed, ["y", "h"])
    for got, value in zip(
        plain_session(tmp_path / "bytes.onnx").run(None, {"x": MLP.feed["x"]}),
        expected,
        strict=True,
    ):
        np.testing.assert_allclose(got, value, rtol=1e-6)


def test_several_outputs_in_the_order_asked(tmp_path: Path) -> None:
    module = module_of(MLP)
    module.export_model_for_inferencing(tmp_path / "x.onnx", ("y", "h"))
    session = plain_session(tmp_path / "x.onnx")
    y, h = session.run(None, {"x": MLP.feed["x"]})
    assert (y.shape, h.shape) == ((2, 3), (2, 5))


def test_weights_that_no_output_needs_stay_out(tmp_path: Path) -> None:
    module_of(MLP).export_model_for_inferencing(tmp_path / "h.onnx", ["h"])
    stored = {tensor.name for tensor in onnx.load(tmp_path / "h.onnx").graph.initializer}
    assert {"w1", "b1"} <= stored
    assert not {"w2", "b2"} & stored


@pytest.mark.parametrize(
    ("names", "error", "text"),
    [
        (["logits"], ValueError, r"no tensor named \['logits'\].*\['h', 'r', 'y'"),
        (["y", "onnx::loss::3"], ValueError, r"near matches: .*onnx::loss::2"),
        (["x"], ValueError, r"no tensor named \['x'\]"),
        (["w1"], ValueError, r"no tensor named \['w1'\]"),
        ([], ValueError, "is empty"),
        (["y", "h", "y"], ValueError, r"\['y'\] more than once"),
        ("y", TypeError, "a list of names, got 'y'"),
        (None, TypeError, "a list of names, got None"),
        ([b"y"], TypeError, "a list of names"),
    ],
)
def test_names_that_cannot_be_exported(
    names: list[str], error: type[Exception], text: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=text):
        module_of(MLP).export_model_for_inferencing(tmp_path / "x.onnx", names)
    assert not list(tmp_path.iterdir())


def test_without_an_eval_graph_or_data_there_is_nothing_to_export(tmp_path: Path) -> None:
    state = CheckpointState.load_checkpoint(MLP.checkpoint)
    with pytest.raises(ArtifactError, match="eval_model_uri"):
        Module(MLP.training_model, state).export_model_for_inferencing(tmp_path / "x", ["y"])
    state = CheckpointState.load_checkpoint(MLP.nominal_checkpoint)
    nominal = Module(MLP.training_model, state, MLP.eval_model)
    with pytest.raises(NominalStateError, match="fill it first"):
        nominal.export_model_for_inferencing(tmp_path / "x", ["y"])
    assert not list(tmp_path.iterdir())


def test_places_that_cannot_be_written(tmp_path: Path) -> None:
    module = module_of(MLP)
    (tmp_path / "file").write_text("")
    for path in (tmp_path, tmp_path / "file" / "x.onnx"):
        with pytest.raises(OSError, match=str(tmp_path)):
            module.export_model_for_inferencing(path, ["y"])
    with pytest.raises(TypeError):
        module.export_model_for_inferencing(None, ["y"])  # type: ignore[arg-type]


@pytest.mark.parametrize("fault", ["fsync", "replace"])
def test_a_fault_on_the_way_leaves_the_old_file(
    fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, module = tmp_path / "x.onnx", module_of(MLP)
    module.export_model_for_inferencing(path, ["y"])
    old = path.read_bytes()
    module.state.parameters["b2"].data[...] = 5

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(atomic.os, fault, fail)
    with pytest.raises(OSError, match="No space left"):
        module.export_model_for_inferencing(path, ["y"])
    monkeypatch.undo()
    assert path.read_bytes() == old
    assert os.listdir(tmp_path) == ["x.onnx"]
    module.export_model_for_inferencing(path, ["y"])
    assert path.read_bytes() != old
