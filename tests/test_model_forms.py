"""Graphs in other forms than the zoo's: more outputs, losses of other types, old batch norms."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from support.training import golden_step, module_of, set_parameters
from support.zoo import ZOO, Case

from edge_train.api import CheckpointState, Module
from edge_train.errors import ArtifactError
from edge_train.graph import onnx_codec
from edge_train.graph.passes import evaluation_form
from edge_train.session import run_model

BN = ZOO["conv_bn_maxpool_gap"]
MLP = ZOO["mlp_CrossEntropyLoss"]


def changed(path: Path, change: Callable[[onnx.GraphProto], None]) -> bytes:
    model = onnx.load(path)
    change(model.graph)
    data: bytes = model.SerializeToString()
    return data


def module_with(case: Case, training: bytes | Path, evaluation: bytes | Path) -> Module:
    return Module(training, CheckpointState.load_checkpoint(case.checkpoint), evaluation)


# ---- U060 ----


def keep_statistics(graph: onnx.GraphProto) -> None:
    """What remains of a BatchNormalization that was exported in training mode."""
    for node in graph.node:
        if node.op_type == "BatchNormalization":
            node.output.extend(["moved_mean", "moved_var"])
            node.attribute.append(helper.make_attribute("training_mode", 0))


def read_statistics(graph: onnx.GraphProto) -> None:
    keep_statistics(graph)
    graph.output.append(helper.make_tensor_value_info("moved_var", TensorProto.FLOAT, [None]))


def test_u060_the_eval_graph_of_a_training_mode_export(tmp_path: Path) -> None:
    """U060: outputs that onnxruntime refuses are cut, in evaluation and in the exported file."""
    module = module_with(BN, BN.training_model, changed(BN.eval_model, keep_statistics))
    set_parameters(module, BN.final)
    assert float(module.eval()(**BN.feed)) == pytest.approx(BN.eval_loss, rel=2e-6)
    module.export_model_for_inferencing(tmp_path / "x.onnx", module.output_names())
    onnx.checker.check_model(onnx.load(tmp_path / "x.onnx"), full_check=True)
    loss = run_model(tmp_path / "x.onnx", list(BN.feed.values()))[0]
    assert float(loss) == pytest.approx(BN.eval_loss, rel=2e-6)


def test_statistics_that_are_read_are_the_running_ones() -> None:
    module = module_with(BN, BN.training_model, changed(BN.eval_model, read_statistics))
    set_parameters(module, BN.final)
    loss, variance = module.eval()(**BN.feed)
    assert float(loss) == pytest.approx(BN.eval_loss, rel=2e-6)
    norm = next(n for n in onnx.load(BN.eval_model).graph.node if n.op_type.startswith("Batch"))
    np.testing.assert_array_equal(variance, BN.final[norm.input[4]])


def test_graphs_without_such_norms_stay_as_they_are() -> None:
    model = onnx_codec.load(BN.eval_model)
    assert evaluation_form(model) is model


# ---- outputs and losses ----


def more_outputs(graph: onnx.GraphProto) -> None:
    for place, name in enumerate(("y", "h")):
        value = helper.make_tensor_value_info(name, TensorProto.FLOAT, None)
        graph.output.insert(1 + place, value)


def test_outputs_behind_the_loss_come_back_too() -> None:
    module = module_with(MLP, changed(MLP.training_model, more_outputs), MLP.eval_model)
    assert module.output_names()[1:] == ["y", "h"]
    set_parameters(module, MLP.params(0))
    loss, y, h = module(**MLP.feed)
    assert float(loss) == pytest.approx(float(MLP.losses[0]), rel=2e-6)
    assert (y.shape, h.shape) == ((2, 3), (2, 5))
    alone = module_of(MLP)
    set_parameters(alone, MLP.params(0))
    alone(**MLP.feed)
    for name, parameter in module.state.parameters:
        if parameter.requires_grad:
            np.testing.assert_array_equal(parameter.grad, alone.state.parameters[name].grad)


@pytest.mark.parametrize("kind", [TensorProto.DOUBLE, TensorProto.FLOAT16])
def test_a_loss_of_another_float_type(kind: int) -> None:
    def recast(graph: onnx.GraphProto) -> None:
        loss = graph.output[0]
        graph.node.append(helper.make_node("Cast", [loss.name], ["typed"], "recast", to=kind))
        graph.output[0].CopyFrom(helper.make_tensor_value_info("typed", kind, []))

    module = module_with(MLP, changed(MLP.training_model, recast), MLP.eval_model)
    set_parameters(module, MLP.params(0))
    loss = module(**MLP.feed)
    assert np.asarray(loss).dtype == helper.tensor_dtype_to_np_dtype(kind)
    assert float(loss) == pytest.approx(float(MLP.losses[0]), rel=1e-3)
    assert module.loss_is_finite
    module.state.parameters["w1"].data[...] = np.inf
    module(**MLP.feed)
    assert not module.loss_is_finite


def test_a_module_needs_no_optimizer() -> None:
    module = module_of(MLP)
    loss_error, gradient_errors = golden_step(MLP, module, 0)
    assert loss_error <= 2e-6
    assert max(gradient_errors.values()) <= 1e-5


@pytest.mark.parametrize("kind", ["double", "float16"])
def test_trainable_parameters_of_other_types_are_refused(kind: str) -> None:
    number = {"double": TensorProto.DOUBLE, "float16": TensorProto.FLOAT16}[kind]

    def retype(graph: onnx.GraphProto) -> None:
        for value in graph.input:
            if value.name == "w1":
                value.type.tensor_type.elem_type = number

    with pytest.raises(ArtifactError, match=r"must be float32: 'w1' is float"):
        module_with(MLP, changed(MLP.training_model, retype), MLP.eval_model)
