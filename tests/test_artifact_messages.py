"""What generate_artifacts says of models and arguments that cannot be used: all of it, at once."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from support.child import run_python
from support.generated import generate, mlp
from support.training import module_of, session_of
from support.zoo import ZOO

from edge_train import onnxblock
from edge_train.artifacts import LossType, OptimType, generate_artifacts
from edge_train.checkpoint.files import open_checkpoint
from edge_train.errors import ArtifactError, ShapeMismatch, UnsupportedOp
from edge_train.graph import onnx_codec

FILES = ("training_model.onnx", "eval_model.onnx", "optimizer_model.onnx", "checkpoint")


def refused(folder: Path, model: Any, **options: Any) -> str:
    """The text of the error; nothing was written."""
    options.setdefault("loss", LossType.MSELoss)
    with pytest.raises(ArtifactError) as caught:
        generate_artifacts(model, artifact_directory=folder, **options)
    assert list(folder.iterdir()) == []
    return str(caught.value)


def chain(ops: Sequence[tuple[str, dict[str, Any]]], opset: int = 17) -> onnx.ModelProto:
    """x (N, 4) -> Gemm -> ops one after the other -> y."""
    model = mlp(opset)
    del model.graph.node[1:]
    at = "h"
    for index, (op_type, attributes) in enumerate(ops):
        node = helper.make_node(op_type, [at], [f"t{index}"], f"node{index}", **attributes)
        model.graph.node.append(node)
        at = f"t{index}"
    model.graph.node.append(helper.make_node("Gemm", [at, "w2", "b2"], ["y"], "fc2", transB=1))
    return model


@pytest.mark.parametrize(
    "opset",
    [
        10,
        12,
        22,
        *(pytest.param(n, marks=pytest.mark.slow) for n in (9, 11, 13, 15, 18, 20, 21, 25)),
    ],
)
@pytest.mark.parametrize("loss", ["CrossEntropyLoss", "BCEWithLogitsLoss"])
def test_u005_old_and_new_opsets(opset: int, loss: str, tmp_path: Path) -> None:
    """U005: the same loss and gradients from every opset."""
    results = []
    for version in (17, opset):
        folder = tmp_path / str(version)
        module, _ = session_of(generate(mlp(version), folder, loss=loss))
        rng = np.random.default_rng(0)
        x = rng.standard_normal((6, 4)).astype(np.float32)
        target = rng.integers(0, 3, 6) if loss[0] == "C" else (x[:, :3] > 0).astype(np.float32)
        module.lazy_reset_grad()
        loss_value = float(module(x, target))
        grad = module.state.parameters["w1"].grad
        assert float(module.eval()(x, target)) == pytest.approx(loss_value, rel=1e-6)
        results.append((loss_value, np.array(grad)))
    assert results[0][0] == pytest.approx(results[1][0], rel=1e-6)
    np.testing.assert_allclose(results[0][1], results[1][1], rtol=1e-5, atol=1e-7)


def test_forms_in_which_weights_come(tmp_path: Path) -> None:
    """Typed fields, small and large, and initializers that are inputs too, as old files have."""
    rng = np.random.default_rng(0)
    large = _wide(rng.standard_normal((300, 400)).astype(np.float32))
    old = mlp(12)
    old.ir_version = 3
    for tensor in (*large.graph.initializer, *old.graph.initializer):
        values = numpy_helper.to_array(tensor)
        tensor.CopyFrom(
            helper.make_tensor(tensor.name, tensor.data_type, values.shape, values.ravel())
        )
    large.graph.initializer[0].data_location = TensorProto.DEFAULT  # spelled out
    for tensor in old.graph.initializer:
        old.graph.input.append(
            helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
        )
    for name, model in (("large", large), ("old", old)):
        path = tmp_path / f"{name}.onnx"
        path.write_bytes(model.SerializeToString())
        weights = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
        for form, source in (("path", path), ("bytes", path.read_bytes()), ("proto", model)):
            made = generate(source, tmp_path / name / form, loss="MSELoss")
            with open_checkpoint(made.checkpoint) as state:
                assert [tensor.name for tensor in state.trainable] == list(weights)
                for tensor in state.trainable:
                    np.testing.assert_array_equal(tensor.array(), weights[tensor.name])
            session_of(made)


def test_an_output_without_a_declared_shape(tmp_path: Path) -> None:
    model = mlp()
    model.graph.output[0].type.tensor_type.ClearField("shape")
    for loss, dims in (("MSELoss", ("N", 3)), ("CrossEntropyLoss", ("N",))):
        made = generate(model, tmp_path, loss=loss)
        assert onnx_codec.load(made.training_model).graph.inputs[1].dims == dims


def test_u006_unused_domains_and_folders(tmp_path: Path) -> None:
    """U006: an unknown domain without nodes is ignored; the folder is made; files are replaced."""
    model = mlp()
    model.opset_import.append(helper.make_opsetid("ai.onnx.ml", 99))
    folder = tmp_path / "missing" / "deep"
    for _ in range(2):
        generate(model, folder, loss="MSELoss")
        assert sorted(path.name for path in folder.iterdir()) == sorted(FILES)
    for name in FILES[:2]:
        assert "ai.onnx.ml" not in [d for d, _ in onnx_codec.load(folder / name).opset_imports]


def test_u006_a_failed_run_leaves_the_old_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """U006: whole or not at all, also when the disk refuses in the middle."""
    generate(mlp(), tmp_path, loss="MSELoss")
    before = {name: (tmp_path / name).read_bytes() for name in FILES}

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("edge_train.checkpoint.files.write", full)
    with pytest.raises(OSError, match="No space left"):
        generate(mlp(outputs=2), tmp_path, loss="L1Loss", nominal_checkpoint=True)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize("where", ["external", "in the file", "in memory"])
def test_u023_large_weights_stay_where_they_are(where: str, tmp_path: Path) -> None:
    """U023: weights are not parsed; the checkpoint has their bytes, the models do not."""
    weight = np.random.default_rng(0).standard_normal((300, 400)).astype(np.float32)
    model = _wide(weight)
    path = tmp_path / "model" / "model.onnx"
    path.parent.mkdir()
    source: Any = path
    if where == "external":
        onnx.save(model, path, save_as_external_data=True, size_threshold=0, location="w.bin")
    else:
        onnx.save(model, path)
        source = path.read_bytes() if where == "in memory" else path
    made = generate(source, tmp_path / "out", loss="MSELoss")
    assert made.training_model.stat().st_size < 10_000
    with open_checkpoint(made.checkpoint) as state:
        values = {tensor.name: tensor.array() for tensor in state.trainable}
    np.testing.assert_array_equal(values["w"], weight)
    module, optimizer = session_of(made)
    module.lazy_reset_grad()
    assert np.isfinite(float(module(np.ones((2, 300), np.float32), np.ones((2, 400), np.float32))))
    optimizer.step()


def _wide(weight: np.ndarray) -> onnx.ModelProto:
    rows, columns = weight.shape
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"], "mm")],
        "wide",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", rows])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", columns])],
        [numpy_helper.from_array(weight, "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("where", ["in the file", "in memory"])
def test_large_weights_in_constant_nodes(where: str, tmp_path: Path) -> None:
    """As Paddle's exporter writes them: parameters, and their data stays where it is."""
    weight = np.random.default_rng(0).standard_normal((300, 400)).astype(np.float32)
    model = _wide(weight)
    del model.graph.initializer[:]
    value = numpy_helper.from_array(weight)
    model.graph.node.insert(0, helper.make_node("Constant", [], ["w"], "c", value=value))
    path = tmp_path / "model.onnx"
    onnx.save(model, path)
    made = generate(path if where == "in the file" else model, tmp_path / "out", loss="MSELoss")
    assert made.training_model.stat().st_size < 10_000
    with open_checkpoint(made.checkpoint) as state:
        assert [tensor.name for tensor in state.trainable] == ["w"]
        np.testing.assert_array_equal(state.trainable[0].array(), weight)
    # a constant that is an output stays a node: its data is in the artifacts
    model.graph.node[1].output[0] = "m"
    model.graph.node.append(helper.make_node("Add", ["m", "b"], ["y"], "add"))
    model.graph.initializer.append(numpy_helper.from_array(weight[0], "b"))
    model.graph.output.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, weight.shape))
    onnx.save(model, path)
    options: dict[str, Any] = {"loss": "MSELoss", "loss_input_names": ["y"]}
    module, _ = session_of(
        generate(path, tmp_path / "more", additional_output_names=["w"], **options)
    )
    _, got = module(np.ones((2, 300), np.float32), np.ones((2, 400), np.float32))
    np.testing.assert_array_equal(got, weight)


@pytest.mark.parametrize("where", ["in the file", "in memory"])
def test_a_large_weight_behind_a_transpose(where: str, tmp_path: Path) -> None:
    """Exporters that store a tied weight once: asked for by its own name it is a parameter."""
    weight = np.random.default_rng(0).standard_normal((400, 300)).astype(np.float32)
    model = _wide(weight.T)
    model.graph.initializer[0].CopyFrom(numpy_helper.from_array(weight, "stored"))
    model.graph.node.insert(0, helper.make_node("Transpose", ["stored"], ["w"], "t", perm=[1, 0]))
    path = tmp_path / "model.onnx"
    onnx.save(model, path)
    source = path if where == "in the file" else model
    made = generate(source, tmp_path / "out", loss="MSELoss", requires_grad=["w"])
    with open_checkpoint(made.checkpoint) as state:
        assert [tensor.name for tensor in state.trainable] == ["w"]
        np.testing.assert_array_equal(state.trainable[0].array(), weight.T)


def test_u023_missing_and_foreign_data(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    out = tmp_path / "out"
    out.mkdir()
    path = folder / "model.onnx"
    weight = np.ones((300, 400), np.float32)
    onnx.save(_wide(weight), path, save_as_external_data=True, size_threshold=0, location="w.bin")
    light = onnx.load(path, load_external_data=False)
    assert "pass the model's path" in refused_source(out, light)
    (folder / "w.bin").write_bytes(b"short")
    assert "'w'" in refused_source(out, path)
    (folder / "w.bin").unlink()
    assert "w.bin" in refused_source(out, path)


def refused_source(folder: Path, model: Any) -> str:
    with pytest.raises(ArtifactError) as caught:
        generate_artifacts(model, loss=LossType.MSELoss, artifact_directory=folder)
    assert list(folder.iterdir()) == []
    return str(caught.value)


def test_u025_a_name_that_is_not_there(tmp_path: Path) -> None:
    text = refused(tmp_path, mlp(), requires_grad=["w1", "fc2_w", "W2"], frozen_params=["b9"])
    assert "'W2' in requires_grad is not in the model; did you mean ['w2'" in text
    assert "'b9' in frozen_params is not in the model; did you mean ['b" in text
    assert "3 problems" in text


def test_u026_nothing_to_train(tmp_path: Path) -> None:
    assert "nothing to train: requires_grad is empty" in refused(tmp_path, mlp(), requires_grad=[])
    assert "nothing to train: every parameter asked for is frozen" in refused(
        tmp_path, mlp(), frozen_params=["*"]
    )


def test_u026_a_model_without_weights(tmp_path: Path) -> None:
    model = mlp()
    del model.graph.initializer[:]
    del model.graph.node[:]
    model.graph.node.append(helper.make_node("Identity", ["x"], ["y"], "id"))
    model.graph.output[0].type.tensor_type.shape.dim[1].dim_value = 4
    assert "the model has no float weights" in refused(tmp_path, model)


@pytest.mark.parametrize("dims", [(), (1, 4), (4,)])
def test_u026_a_model_whose_only_weight_is_an_exponent(
    dims: tuple[int, ...], tmp_path: Path
) -> None:
    """It is told by its name, of whatever shape, and trained by that."""
    model = mlp()
    del model.graph.initializer[:]
    del model.graph.node[:]
    model.graph.node.append(helper.make_node("Abs", ["x"], ["size"], "abs"))
    model.graph.node.append(helper.make_node("Pow", ["size", "a"], ["y"], "pow"))
    model.graph.initializer.append(numpy_helper.from_array(np.ones(dims, np.float32), "a"))
    model.graph.output[0].type.tensor_type.shape.dim[1].dim_value = 4
    text = refused(tmp_path, model)
    assert "no float weights" not in text
    assert f"trained by their full name only: 'a' {list(dims)}" in text
    module, _ = session_of(generate(model, tmp_path, loss="MSELoss", requires_grad=["a"]))
    assert [name for name, _ in module.state.parameters] == ["a"]


def test_settings_without_a_gradient_are_not_told_of(tmp_path: Path) -> None:
    model = mlp()
    del model.graph.initializer[:]
    del model.graph.node[:]
    model.graph.node.append(helper.make_node("Upsample", ["x", "scales"], ["y"], "up"))
    model.graph.initializer.append(numpy_helper.from_array(np.ones(2, np.float32), "scales"))
    del model.opset_import[:]
    model.opset_import.append(helper.make_opsetid("", 9))
    assert "'scales'" not in refused(tmp_path, model)


def test_u027_names_of_the_framework_that_are_gone(tmp_path: Path) -> None:
    """U027: what float parameters there are, with their shapes."""
    text = refused(tmp_path, mlp(), requires_grad=["encoder.layers.0.self_attn.weight"])
    for shown in ("'w1' [5, 4]", "'b1' [5]", "'w2' [3, 5]", "'b2' [3]"):
        assert shown in text


def test_u028_an_integer_is_refused_by_name(tmp_path: Path) -> None:
    model = mlp()
    model.graph.initializer.append(numpy_helper.from_array(np.array([-1, 4]), "shape"))
    text = refused(tmp_path, model, requires_grad=["w1", "shape"])
    assert "'shape' is int64 [2]: only float tensors can be trained" in text


def test_u030_parameters_in_neither_list_are_frozen(tmp_path: Path) -> None:
    """U030: the whole model is in the checkpoint and in the full buffer."""
    module, _ = session_of(generate(mlp(), tmp_path, loss="MSELoss", requires_grad=["w2", "b2"]))
    assert module.get_parameters_size(trainable_only=False) == 20 + 5 + 15 + 3
    assert module.get_parameters_size(trainable_only=True) == 18


def test_u030_settings_stay_in_the_graph(tmp_path: Path) -> None:
    """Bounds, exponents and single numbers of formulas are no parameters."""
    module, _ = session_of(generate(ZOO["depthwise_static_batch"].model, tmp_path, loss="MSELoss"))
    names = [name for name, _ in module.state.parameters]
    assert names == sorted(ZOO["depthwise_static_batch"].generate["requires_grad"])


class TwoOutputs(onnxblock.Block):
    def build(self, output: str, hidden: str) -> str:
        mse = onnxblock.loss.MSELoss()(output, "target")
        bce = onnxblock.loss.BCEWithLogitsLoss()(hidden, "mask")
        return str(onnxblock.blocks.Add()(mse, bce))


def two_outputs() -> onnx.ModelProto:
    model = mlp()
    model.graph.output.append(helper.make_tensor_value_info("h", TensorProto.FLOAT, ["N", 5]))
    return model


def test_u031_a_loss_of_two_outputs(tmp_path: Path) -> None:
    module, _ = session_of(generate(two_outputs(), tmp_path, loss=TwoOutputs()))
    assert module.input_names() == ["x", "target", "mask"]
    assert module(
        np.ones((2, 4), np.float32), np.ones((2, 3), np.float32), np.ones((2, 5), np.float32)
    ).shape in ((), (1,))


@pytest.mark.parametrize("loss", [LossType.MSELoss, LossType.CrossEntropyLoss])
def test_u031_the_second_output_is_not_a_target(loss: LossType, tmp_path: Path) -> None:
    text = refused(tmp_path, two_outputs(), loss=loss)
    assert "the model has 2 outputs ['y', 'h']" in text
    assert "loss_input_names" in text


def test_u031_a_block_of_another_arity(tmp_path: Path) -> None:
    text = refused(tmp_path, mlp(), loss=TwoOutputs())
    assert "TwoOutputs.build(output: 'str', hidden: 'str') -> 'str'" in text
    assert "1 names ['y']" in text


def test_u031_which_outputs_the_loss_takes(tmp_path: Path) -> None:
    made = generate(two_outputs(), tmp_path, loss="MSELoss", loss_input_names=["h"])
    graph = onnx_codec.load(made.training_model).graph
    assert graph.inputs[1].dims == ("N", 5)


def test_u033_a_target_that_would_be_broadcast(tmp_path: Path) -> None:
    """U033: both shapes in the message, at generation and in training."""
    model = mlp()
    model.graph.input.append(helper.make_tensor_value_info("target", TensorProto.FLOAT, [6, 1]))
    text = refused(tmp_path, model)
    assert "the target 'target' has shape (6, 1)" in text
    assert "(N, 3)" in text
    module, _ = session_of(generate(mlp(), tmp_path / "out", loss="MSELoss"))
    x = np.ones((6, 4), np.float32)
    for shape in ((6, 1), (6,), (1, 3)):
        with pytest.raises(ShapeMismatch):
            module(x, np.ones(shape, np.float32))


def test_u034_every_missing_gradient_at_once(tmp_path: Path) -> None:
    """U034: all nodes, each with its name and a way out."""
    model = chain([("Round", {}), ("Det", {}), ("Round", {})])
    with pytest.raises(UnsupportedOp) as caught:
        generate_artifacts(model, loss=LossType.MSELoss, artifact_directory=tmp_path)
    text = str(caught.value)
    assert "3 problems" in text
    for name in ("node0", "node1", "node2"):
        assert f"'{name}' (domain 'ai.onnx')" in text
    assert "straight through" in text


def test_every_kind_of_problem_in_one_report(tmp_path: Path) -> None:
    model = chain([("Round", {})])
    model.graph.initializer.append(numpy_helper.from_array(np.ones(3, np.float32), "spare"))
    text = refused(
        tmp_path, model, requires_grad=["w1", "nothing", "spare", "b1"], frozen_params=["b1"]
    )
    assert "'nothing' in requires_grad" in text
    assert "'spare' is read by no node" in text
    assert "'b1' is in requires_grad and in frozen_params" in text
    assert "Round 'node0'" in text


def test_a_parameter_that_the_loss_does_not_reach(tmp_path: Path) -> None:
    model = two_outputs()
    options: dict[str, Any] = {"loss": LossType.MSELoss, "loss_input_names": ["h"]}
    text = refused(tmp_path, model, requires_grad=["w1", "w2"], **options)
    assert "does not depend on 'w2'" in text
    generate_artifacts(model, artifact_directory=tmp_path, **options)
    with open_checkpoint(tmp_path / "checkpoint") as state:
        assert [tensor.name for tensor in state.trainable] == ["w1", "b1"]
        assert [tensor.name for tensor in state.frozen] == ["w2", "b2"]


def test_a_loss_that_is_not_one_number(tmp_path: Path) -> None:
    assert "expected one number" in refused(tmp_path, mlp(), loss=None)
    text = refused(tmp_path, mlp(), loss=onnxblock.loss.MSELoss(reduction="none"))
    assert "has shape ('N', 3), expected one number" in text


def test_statistics_are_frozen_and_it_is_said(tmp_path: Path) -> None:
    case = ZOO["conv_bn_maxpool_gap"]
    with pytest.warns(UserWarning, match="'mu' is a running statistic"):
        generate(case.model, tmp_path, loss="CrossEntropyLoss", requires_grad=["w1", "mu"])
    with open_checkpoint(tmp_path / "checkpoint") as state:
        assert [tensor.name for tensor in state.trainable] == ["w1"]
        assert "mu" in [tensor.name for tensor in state.frozen]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        generate(case.model, tmp_path, loss="CrossEntropyLoss")


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({"loss": "MSELoss"}, TypeError),
        ({"optimizer": "AdamW"}, TypeError),
        ({"additional_output_names": "y"}, TypeError),
        ({"requires_grad": "w1"}, TypeError),
        ({"frozen_params": "w1"}, TypeError),
        ({"requires_grad": ["w1", 3]}, TypeError),
        ({"loss_input_names": "y"}, TypeError),
        ({"ort_format": True}, ValueError),
        ({"custom_op_library": "no/such.so"}, FileNotFoundError),
    ],
)
def test_wrong_arguments(options: dict[str, Any], kind: type[Exception], tmp_path: Path) -> None:
    with pytest.raises(kind):
        generate_artifacts(mlp(), artifact_directory=tmp_path, **options)


@pytest.mark.parametrize(
    ("x", "w", "h"),
    [("x", "w", "a_grad"), ("x", "a_grad", "h"), ("lazy_reset_grad", "w", "h")],
)
def test_tensors_named_like_gradients(x: str, w: str, h: str, tmp_path: Path) -> None:
    nodes = [
        helper.make_node("MatMul", [x, w], ["a"]),
        helper.make_node("Relu", ["a"], [h]),
        helper.make_node("Neg", [h], ["y"]),
    ]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", 2]) for name in (x, "y")]
    weight = numpy_helper.from_array(np.ones((2, 2), np.float32), w)
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], [weight])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    with pytest.raises(ArtifactError, match=r"named \['(a|lazy_reset)_grad'\].*rename"):
        generate(model, tmp_path, loss="MSELoss")


def test_a_parameter_in_double_that_the_loss_does_not_reach(tmp_path: Path) -> None:
    """It is frozen and keeps its type, in the graphs as in the checkpoint."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("Floor", ["a"], ["f"]),
        helper.make_node("Add", ["f", "c"], ["y"]),
    ]
    ends = [helper.make_tensor_value_info(name, TensorProto.DOUBLE, ["N", 2]) for name in "xy"]
    weights = [
        numpy_helper.from_array(np.ones((2, 2)), "w"),
        numpy_helper.from_array(np.full(2, 0.5), "c"),
    ]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], weights)
    imports = [helper.make_opsetid("", 17)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=8)
    module = module_of(generate(model, tmp_path, loss="MSELoss"))
    assert module.state.parameters["w"].data.dtype == np.float64
    assert float(module(np.ones((1, 2)), np.zeros((1, 2)))) == pytest.approx(2.5**2)


@pytest.mark.parametrize("asked", [None, ["scale*"]])
def test_single_numbers_are_trained_by_name(asked: list[str] | None, tmp_path: Path) -> None:
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", 2]) for name in "xy"]
    scale = numpy_helper.from_array(np.ones(1, np.float32), "scale.alpha")
    nodes = [helper.make_node("Mul", ["x", "scale.alpha"], ["y"])]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], [scale])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    with pytest.raises(ArtifactError, match=r"full name only: 'scale.alpha' \[1\]"):
        generate(model, tmp_path, loss="MSELoss", requires_grad=asked)
    generate(model, tmp_path, loss="MSELoss", requires_grad=["scale.alpha"])


@pytest.mark.parametrize("norm", [0.0, -1.0, float("nan")])
def test_a_norm_to_clip_to(norm: float) -> None:
    with pytest.raises(ValueError, match="above 0"):
        onnxblock.optim.ClipGradNorm(norm)


def test_names_from_a_generator(tmp_path: Path) -> None:
    """They are read once, whatever the model comes from."""
    onnx.save(mlp(), tmp_path / "model.onnx")
    generate_artifacts(
        tmp_path / "model.onnx",
        requires_grad=(name for name in ("w1", "b1")),  # type: ignore[arg-type]
        loss=LossType.MSELoss,
        artifact_directory=tmp_path,
    )
    with open_checkpoint(tmp_path / "checkpoint") as state:
        assert [tensor.name for tensor in state.trainable] == ["w1", "b1"]


@pytest.mark.parametrize("data", [b"", b"\x00\x00\x00\x00ODTC", b"\xff" * 40, b"\x08\x08"])
def test_bytes_that_are_no_model(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(data)
    for source in (path, data):
        with pytest.raises(ArtifactError):
            generate_artifacts(source, loss=LossType.MSELoss, artifact_directory=tmp_path / "o")
    with pytest.raises(FileNotFoundError):
        generate_artifacts(tmp_path / "no.onnx", loss=LossType.MSELoss)
    with pytest.raises(TypeError, match=r"got int"):
        generate_artifacts(3, loss=LossType.MSELoss)  # type: ignore[arg-type]


@pytest.mark.slow
def test_nothing_is_printed(tmp_path: Path) -> None:
    code = """
import sys
from edge_train.artifacts import LossType, OptimType, generate_artifacts
generate_artifacts(sys.argv[1], loss=LossType.CrossEntropyLoss, optimizer=OptimType.AdamW,
                   artifact_directory=sys.argv[2])
for name in ("torch", "numba", "cffi"):
    assert name not in sys.modules, name
"""
    done = run_python(code, ZOO["conv_bn_maxpool_gap"].model, tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert (tmp_path / "checkpoint").exists()


def test_optimizers_with_options(tmp_path: Path) -> None:
    clip = onnxblock.optim.ClipGradNorm(2.5)
    adamw = onnxblock.optim.AdamW(weight_decay=0.01, betas=(0.8, 0.9), clip_grad=clip)
    for optimizer in (adamw, onnxblock.optim.SGD(clip_grad=clip), OptimType.SGD):
        module, update = session_of(generate(mlp(), tmp_path, loss="MSELoss", optimizer=optimizer))
        module(np.ones((2, 4), np.float32), np.ones((2, 3), np.float32))
        assert update.step()
