"""Module(fuse_optimizer=True): updates in the backward pass, the bits of the separate step."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from support.child import MEMORY, run_python, succeed
from support.generated import generate
from support.native_kernels import needs_library
from support.optimizer_graphs import adamw
from support.training import module_of
from support.zoo import ZOO, ZOO_MODELS, Case

from edge_train import session
from edge_train.api import CheckpointState, Module, Optimizer
from edge_train.arena import Arena
from edge_train.checkpoint.state import OptimizerGroup
from edge_train.errors import ArtifactError, RunError
from edge_train.fused_optimizer import FusedPass
from edge_train.graph import ir, onnx_codec
from edge_train.graph.lowering import lower
from edge_train.graph.release import DONE, release_rewrite
from edge_train.kernels import native, reference

needs_library()

MLP = ZOO["mlp_CrossEntropyLoss"]
BN = ZOO["conv_bn_maxpool_gap"]
SMOKE = (MLP.name, BN.name, "lstm_with_h0c0", "transformer_decomposedLN_erf_dropout")


def trained(case: Case, steps: int = 4, **options: Any) -> dict[str, np.ndarray]:
    """Losses, parameters, moments and step count after some steps."""
    optimizer_options = {k: options.pop(k) for k in ("algorithm", "moments") if k in options}
    session.set_seed(5)
    module = module_of(case, **options)
    optimizer = Optimizer(case.optimizer_model, module, **optimizer_options)
    optimizer.max_grad_norm = None
    optimizer.set_learning_rate(0.01)
    losses = []
    for _ in range(steps):
        losses.append(float(module(**case.feed)))
        assert optimizer.step()
        module.lazy_reset_grad()
    found = {"losses": np.array(losses), "steps": np.array(optimizer.step_count)}
    found |= {name: parameter.data.copy() for name, parameter in module.state.parameters}
    for name, own in optimizer.group.moments.items():
        found |= {f"{name}.{kind}": np.array(moment) for kind, moment in own.items()}
    return found


def assert_same_bits(got: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    assert got.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(got[name], value, err_msg=name)


@pytest.mark.parametrize("name", SMOKE)
def test_the_bits_are_those_of_the_separate_step(name: str) -> None:
    fused = trained(ZOO[name], fuse_optimizer=True)
    assert_same_bits(fused, trained(ZOO[name]))
    assert fused["steps"] == 4


@pytest.mark.slow
@pytest.mark.parametrize("name", ZOO_MODELS)
@pytest.mark.parametrize("options", [{}, {"moments": "8bit"}, {"algorithm": "lion"}], ids=str)
def test_every_model_and_optimizer(name: str, options: dict[str, str]) -> None:
    assert_same_bits(
        trained(ZOO[name], fuse_optimizer=True, **options), trained(ZOO[name], **options)
    )


@pytest.mark.parametrize(
    "options",
    [
        {"moments": "8bit"},
        {"algorithm": "sgd"},
        {"algorithm": "lion"},
        {"recompute": "auto"},
        {"trainable": ["w2", "b*"]},
        {"kernels": "portable", "steps": 65},  # with the moments' flush
    ],
    ids=str,
)
def test_with_everything_else_that_can_be_asked_for(options: dict[str, Any]) -> None:
    assert_same_bits(trained(MLP, fuse_optimizer=True, **options), trained(MLP, **options))


def test_a_resumed_run_goes_on(tmp_path: Path) -> None:
    module = module_of(MLP, fuse_optimizer=True)
    optimizer = Optimizer(MLP.optimizer_model, module)
    for _ in range(2):
        module(**MLP.feed)
        module.lazy_reset_grad()
    assert optimizer.step_count == 2
    CheckpointState.save_checkpoint(module.state, tmp_path / "checkpoint")
    state = CheckpointState.load_checkpoint(tmp_path / "checkpoint")
    again = Module(MLP.training_model, state)
    separate = Optimizer(MLP.optimizer_model, again)
    module(**MLP.feed)
    again(**MLP.feed)
    separate.step()
    for name, parameter in state.parameters:
        np.testing.assert_array_equal(parameter.data, module.state.parameters[name].data)


def test_a_new_optimizer_takes_over_and_settings_count() -> None:
    module = module_of(MLP, fuse_optimizer=True)
    Optimizer(MLP.optimizer_model, module)
    optimizer = Optimizer(MLP.optimizer_model, module, algorithm="sgd")
    optimizer.set_learning_rate(0.0)
    before = {name: parameter.data.copy() for name, parameter in module.state.parameters}
    module(**MLP.feed)
    assert all(np.array_equal(p.data, before[n]) for n, p in module.state.parameters)


def test_evaluation_and_names_stay() -> None:
    module, plain = module_of(MLP, fuse_optimizer=True), module_of(MLP)
    assert module.output_names() == plain.output_names()
    assert module.input_names() == plain.input_names()
    assert module.eval()(**MLP.feed) == plain.eval()(**MLP.feed)


# ---- refusals -------------------------------------------------------------------------------


def test_what_cannot_be_done_is_refused() -> None:
    module = module_of(MLP, fuse_optimizer=True)
    with pytest.raises(ArtifactError, match="make Optimizer"):
        module(**MLP.feed)
    optimizer = Optimizer(MLP.optimizer_model, module)
    with pytest.raises(RuntimeError, match="without a training step before it"):
        optimizer.step()
    module(**MLP.feed)
    with pytest.raises(RuntimeError, match=r"cannot add up.*lazy_reset_grad"):
        module(**MLP.feed)
    assert optimizer.step()
    with pytest.raises(RuntimeError, match="without a training step before it"):
        optimizer.step()
    optimizer.max_grad_norm = 1.0
    module.lazy_reset_grad()
    with pytest.raises(ValueError, match=r"max_grad_norm is 1\.0.*fuse_optimizer"):
        module(**MLP.feed)
    with pytest.raises(TypeError, match="expected True or False, got 1"):
        module_of(MLP, fuse_optimizer=1)


def test_clipping_in_the_artifact_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match=r"max_grad_norm is 2\.0"):
        Optimizer(adamw(max_norm=2.0), module_of(MLP, fuse_optimizer=True))


def test_a_loss_that_is_not_finite_leaves_everything_alone() -> None:
    module = module_of(BN, fuse_optimizer=True)
    optimizer = Optimizer(BN.optimizer_model, module)
    before = {name: parameter.data.copy() for name, parameter in module.state.parameters}
    feed = {name: value.copy() for name, value in BN.feed.items()}
    feed["x"][0] = np.nan
    assert np.isnan(module(**feed))
    assert optimizer.step() is False
    assert (optimizer.skipped_steps, optimizer.step_count) == (1, 0)
    assert all(np.array_equal(p.data, before[n]) for n, p in module.state.parameters)
    module.lazy_reset_grad()
    module(**BN.feed)
    assert optimizer.step()
    optimizer.skip_nonfinite = False
    module.lazy_reset_grad()
    module(**feed)
    assert optimizer.step()
    assert np.isnan(module.state.parameters["wf"].data).any()


def test_a_gradient_that_is_not_finite_leaves_out_its_parameter() -> None:
    arena, group = Arena([("a", (2,)), ("b", (3,))]), OptimizerGroup("group0")

    def update(at: slice, g: np.ndarray) -> None:
        arena.weights[at] -= g

    one = FusedPass(arena, reference.STEPS, group, update, skips_nonfinite=True, threads=1)
    loss = np.zeros(1, np.float32)
    one.update("b", np.ones(3, np.float32), loss)
    one.update("a", np.array([1, np.inf], np.float32), loss)
    one.finish()
    np.testing.assert_array_equal(arena.weights, [0, 0, -1, -1, -1])
    assert one.outcome.left_out == ["a"]
    assert not one.outcome.is_whole
    assert group.step == 1


def test_an_error_in_an_update_arrives_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    module = module_of(MLP, fuse_optimizer=True)
    Optimizer(MLP.optimizer_model, module)
    calls: list[str] = []

    def failing(after: int) -> Callable[..., None]:
        def update(self: FusedPass, name: str, gradient: np.ndarray, loss: np.ndarray) -> None:
            calls.append(name)
            if len(calls) > after:
                raise ZeroDivisionError(name)

        return update

    monkeypatch.setattr(FusedPass, "update", failing(0))
    with pytest.raises(ZeroDivisionError):
        module(**MLP.feed)
    calls.clear()
    monkeypatch.setattr(FusedPass, "update", failing(2))
    with pytest.raises(RunError, match=r"after 2 of 4 parameters were updated.*checkpoint"):
        module(**MLP.feed)
    monkeypatch.undo()
    assert np.isfinite(module(**MLP.feed))


def test_a_model_cannot_name_a_receiver() -> None:
    """A file that has a Release node of its own reaches nobody."""
    node = helper.make_node("Release", ["x", "x"], ["y"], domain="edge_train", owner=10**9, index=0)
    value = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1])
    graph = helper.make_graph([node], "hostile", [value], [result])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("edge_train", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    options = session.default_options()
    native.register_ops(options)
    import onnxruntime

    ran = onnxruntime.InferenceSession(model.SerializeToString(), sess_options=options)
    module_of(MLP, fuse_optimizer=True)  # the receiving function is there
    with pytest.raises(Exception, match="the gradient was not taken"):
        ran.run(None, {"x": np.zeros(1, np.float32)})


# ---- order ----------------------------------------------------------------------------------


def _released(nodes: list[ir.Node], gradients: dict[str, str]) -> dict[str, tuple[str, ...]]:
    """The inputs of the Release node of each parameter."""
    outputs = [ir.Value("loss", ir.FLOAT, ())]
    outputs += [ir.Value(name, ir.FLOAT, (1,)) for name in gradients.values()]
    model = ir.Model(ir.Graph("g", nodes, [], outputs), 10, [("", 21)])
    graph = release_rewrite(gradients, "loss", ["labels"], 3)(model).graph
    assert not {value.name for value in graph.outputs} & set(gradients.values())
    found = [node for node in graph.nodes if node.op_type == "Release"]
    assert [node.attr("owner") for node in found] == [3] * len(gradients)
    return {node.name.removeprefix(f"{DONE}/"): node.inputs for node in found}


def test_a_weight_waits_for_every_reader_that_may_come_later() -> None:
    nodes = [
        ir.make_node("MatMul", ["x", "w"], ["y"], "forward"),
        ir.make_node("Loss", ["y"], ["loss", "dy"], "loss"),
        ir.make_node("MatMul", ["x", "dy"], ["dw"], "gradient"),
        ir.make_node("Reshape", ["w", "shape"], ["flat"], "view"),
        ir.make_node("Identity", ["flat"], ["same"], "view of the view"),
        ir.make_node("MatMul", ["dy", "same"], ["dx"], "backward"),
        ir.make_node("Transpose", ["w"], ["wt"], "copy"),
        ir.make_node("MatMul", ["dy", "wt"], ["dz"], "reads the copy"),
    ]
    gates = _released(nodes, {"w": "dw"})["w"]
    assert gates[:3] == ("dw", "loss", "labels")
    assert sorted(gates[3:]) == ["dx", "flat", "same", "wt"]


def test_a_reader_inside_a_body_is_a_reader() -> None:
    body = ir.Graph("b", [ir.make_node("Mul", ["i", "w"], ["o"])], [], [ir.Value("o", 1, ())])
    nodes = [
        ir.make_node("Loss", ["x"], ["loss", "dw"], "loss"),
        ir.make_node("Scan", ["x"], ["later"], "scan", body=body),
    ]
    assert _released(nodes, {"w": "dw"})["w"] == ("dw", "loss", "labels", "later")


# ---- memory ---------------------------------------------------------------------------------


def wide(folder: Path, layers: int = 6, width: int = 1024) -> None:
    """A perceptron with 4 MB of weights a layer, for batches of one row."""
    rng = np.random.default_rng(0)
    nodes, weights, y = [], [], "x"
    for layer in range(layers):
        values = rng.standard_normal((width, width)) / np.sqrt(width)
        weights.append(numpy_helper.from_array(values.astype(np.float32), f"w{layer}"))
        nodes.append(helper.make_node("MatMul", [y, f"w{layer}"], [f"m{layer}"], f"mul{layer}"))
        nodes.append(helper.make_node("Relu", [f"m{layer}"], [f"r{layer}"], f"relu{layer}"))
        y = f"r{layer}"
    nodes.append(helper.make_node("ReduceMean", [y], ["loss"], "mean", keepdims=0))
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", width])
    loss = helper.make_tensor_value_info("loss", TensorProto.FLOAT, [])
    graph = helper.make_graph(nodes, "wide", [x], [loss], weights)
    opsets = [helper.make_opsetid("", 17)]
    generate(helper.make_model(graph, opset_imports=opsets, ir_version=8), folder)


STATE = (
    MEMORY
    + """
import sys
import numpy as np
from edge_train.api import CheckpointState, Module, Optimizer
folder, fused, moments = sys.argv[1:]
state = CheckpointState.load_checkpoint(f"{folder}/checkpoint")
module = Module(f"{folder}/training_model.onnx", state, fuse_optimizer=fused == "True")
x = np.random.default_rng(0).standard_normal((1, 1024)).astype(np.float32)
before = memory("VmRSS")
optimizer = Optimizer(f"{folder}/optimizer_model.onnx", module, moments=moments)
for _ in range(3):
    module(x)
    optimizer.step()
    module.lazy_reset_grad()
print((memory("VmHWM") - before) / 1024)
"""
)


def test_gradients_and_moments_take_less_than_two_fifths(tmp_path: Path) -> None:
    """6.3 M parameters: 72 MB of gradients and moments, or two bytes each and one layer's
    gradient."""
    wide(tmp_path)
    taken = {}
    for fused, moments in ((False, "float32"), (True, "float32"), (True, "8bit")):
        text = succeed(run_python(STATE, tmp_path, fused, moments))
        taken[fused, moments] = float(text)
    print(taken)
    assert taken[False, "float32"] > 70
    assert taken[True, "float32"] < 0.8 * taken[False, "float32"]
    assert taken[True, "8bit"] < 0.4 * taken[False, "float32"]


def test_there_are_no_gradients_to_read() -> None:
    module = module_of(MLP, fuse_optimizer=True)
    Optimizer(MLP.optimizer_model, module)
    module(**MLP.feed)
    assert all(parameter.grad is None for _, parameter in module.state.parameters)


# ---- gradients without a copy ---------------------------------------------------------------


@pytest.mark.parametrize("name", [MLP.name, BN.name, "transformer_LNop_3out_opset17"])
def test_gradients_are_made_in_their_place_by_the_kernel_that_computes_them(name: str) -> None:
    """Outputs are bound to the Arena: a Reshape or Identity before them would copy."""
    lowered = lower(onnx_codec.load(ZOO[name].training_model), True)
    producers = session.executed_graph(lowered.model).graph.producers()
    makers = {producers[output].op_type for output in lowered.gradients.values()}
    assert not makers & {"Identity", "Reshape", "Cast"}
