"""The live reference does what the goldens say it did, and its process fails cleanly."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from support.reference import Reference, ReferenceDied, ReferenceError, reference_python
from support.zoo import SEIZURE, ZOO


def test_versions(reference: Reference) -> None:
    info = reference.info()
    assert info["onnxruntime"].startswith("1.19.2")
    assert info["python"].startswith("3.11")


@pytest.mark.parametrize("name", ["mlp_CrossEntropyLoss", "conv_bn_maxpool_gap"])
def test_golden_run_is_reproduced(reference: Reference, name: str) -> None:
    case = ZOO[name]
    training = reference.load(case)
    training.set_learning_rate(case.learning_rate)
    for step in range(case.steps):
        for key, value in case.params(step).items():
            np.testing.assert_allclose(training.parameters()[key], value, rtol=1e-5, atol=1e-7)
        loss = training.train_step(case.feed)[0]
        np.testing.assert_allclose(loss, case.losses[step], rtol=1e-5)
        for key, value in training.gradients().items():
            np.testing.assert_allclose(value, case.grads(step)[key], rtol=1e-4, atol=1e-6)
        training.optimizer_step()
        training.lazy_reset_grad()
    np.testing.assert_allclose(training.eval_step(case.feed)[0], case.eval_loss, rtol=1e-5)
    training.drop()


def test_comparison_with_golden_can_fail(reference: Reference) -> None:
    case = ZOO["mlp_CrossEntropyLoss"]
    training = reference.load(case)
    moved = {key: value * np.float32(1.01) for key, value in case.params(0).items()}
    training.set_parameters(moved)
    loss = training.train_step(case.feed)[0]
    assert abs(float(loss) - case.losses[0]) > 1e-4 * case.losses[0]


def test_checkpoints_travel(reference: Reference, tmp_path: Path) -> None:
    case = ZOO["frozen_backbone_only_head"]
    training = reference.load(case)
    training.set_property("epoch", 3)
    training.step(case.feed)
    training.save_checkpoint(tmp_path / "saved", include_optimizer_state=True)
    contents = reference.read_checkpoint(tmp_path / "saved")
    assert contents.properties == {"epoch": 3}
    assert contents.requires_grad == training.requires_grad()
    for name, value in training.parameters().items():
        np.testing.assert_array_equal(contents.parameters[name], value)
    buffer = training.get_contiguous()
    assert buffer.size == training.get_parameters_size(trainable_only=False)
    nominal = reference.load(case, checkpoint=case.nominal_checkpoint)
    nominal.copy_buffer(buffer, trainable_only=False)
    np.testing.assert_array_equal(nominal.get_contiguous(), buffer)


def test_nominal_checkpoint_has_names_only(reference: Reference) -> None:
    contents = reference.read_checkpoint(ZOO["mlp_MSELoss"].nominal_checkpoint)
    assert set(contents.parameters) == set(ZOO["mlp_MSELoss"].params(0))
    assert set(contents.parameters.values()) == {None}
    assert contents.requires_grad == {}


def test_generation_and_export(reference: Reference, tmp_path: Path) -> None:
    case = ZOO["mlp_CrossEntropyLoss"]
    options = {key: case.generate[key] for key in ("requires_grad", "frozen_params")}
    made = reference.generate_artifacts(
        case.model, tmp_path, optimizer_options={"weight_decay": 0.5}, clip_grad_norm=2.0, **options
    )
    assert made.nominal_checkpoint.read_bytes() == case.nominal_checkpoint.read_bytes()
    assert made.checkpoint.read_bytes() == case.checkpoint.read_bytes()
    nodes = {node.op_type: node for node in onnx.load(made.optimizer_model).graph.node}
    assert nodes["InplaceClipGradNorm"].attribute[0].f == 2.0
    training = reference.load(made)
    output = onnx.load(case.model).graph.output[0].name
    training.export(tmp_path / "inference.onnx", [output])
    feed = {"x": case.feed["x"]}
    exported = reference.run_model((tmp_path / "inference.onnx").read_bytes(), feed)
    expected = reference.run_model(case.model.read_bytes(), feed)
    np.testing.assert_array_equal(exported[0], expected[0])


def test_training_op_runs_alone(reference: Reference) -> None:
    node = helper.make_node("ReluGrad", ["dy", "x"], ["dx"], domain="com.microsoft")
    ports = [helper.make_tensor_value_info(key, TensorProto.FLOAT, [2, 3]) for key in ("dy", "x")]
    dx = helper.make_tensor_value_info("dx", TensorProto.FLOAT, [2, 3])
    opsets = [helper.make_opsetid("", 15), helper.make_opsetid("com.microsoft", 1)]
    graph = helper.make_graph([node], "relu_grad", ports, [dx])
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    x = np.array([[1, -1, 0], [2, -2, 3]], np.float32)
    dy = np.full_like(x, 5)
    outputs = reference.run_model(model.SerializeToString(), {"dy": dy, "x": x})
    np.testing.assert_array_equal(outputs[0], np.where(x > 0, dy, 0))


def rates_of(reference: Reference, warmup: int, total: int) -> list[float]:
    training = reference.load(ZOO["mlp_MSELoss"])
    assert training.get_learning_rate() == pytest.approx(0.001)
    training.schedule(warmup, total, initial_rate=0.5)
    rates = []
    for _ in range(4):
        training.step(ZOO["mlp_MSELoss"].feed)
        training.schedule_step()
        rates.append(training.get_learning_rate())
    return rates


def test_schedule_takes_its_two_counts_the_other_way_round(reference: Reference) -> None:
    assert rates_of(reference, warmup=2, total=4) == pytest.approx([0.125, 0.25, 0.375, 0.0])
    assert rates_of(reference, warmup=4, total=2) == pytest.approx([0.25, 0.5, 0.25, 0.0])


def test_seizure_first_loss(reference: Reference) -> None:
    training = reference.load(SEIZURE)
    loss = training.train_step(SEIZURE.feed)[0]
    np.testing.assert_allclose(loss, SEIZURE.losses[0], rtol=1e-5)
    for name, grad in training.gradients().items():
        np.testing.assert_allclose(grad, SEIZURE.first_grads[name], rtol=1e-3, atol=1e-7)


def test_error_of_the_reference_keeps_its_text(reference: Reference) -> None:
    with pytest.raises(ReferenceError, match="RuntimeError"):
        reference.read_checkpoint(Path("/nonexistent"))
    assert reference.info()


def _python() -> Path:
    python = reference_python()
    if python is None:
        pytest.skip("no reference venv: make parity builds it")
    return python


def test_death_is_reported_and_mended() -> None:
    reference = Reference(_python())
    assert reference.info()
    assert reference._process is not None
    reference._process.kill()
    reference._process.wait()
    with pytest.raises(ReferenceDied, match="info"):
        reference.info()
    reference.ensure_running()
    assert reference.info()
    reference.close()


def test_hang_is_reported() -> None:
    reference = Reference(_python(), timeout=0.05)  # less than its imports take
    with pytest.raises(ReferenceDied, match=r"did not answer within 0\.05 s"):
        reference.info()
    reference.close()
