"""Module(recompute=...): the same bits from less memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from support.child import MEMORY, run_python, succeed
from support.generated import generate, mlp
from support.training import module_of
from support.zoo import ZOO, ZOO_MODELS, Case

from edge_train import session
from edge_train.api import CheckpointState, Module
from edge_train.graph import ir, recompute_plan
from edge_train.kernels import native

DROPOUT = ZOO["transformer_decomposedLN_erf_dropout"]
BERT = ZOO["transformer_LNop_3out_opset17"]
MLP = ZOO["mlp_act_Tanh"]
LSTM = ZOO["lstm_with_h0c0"]

NEEDS_LIBRARY = pytest.mark.skipif(
    not native.has_ops(), reason="no native library: tools/build_kernels.py makes it"
)


@pytest.fixture
def running(monkeypatch: pytest.MonkeyPatch) -> list[list[ir.Node]]:
    """The nodes of each graph that a session is made of, and no tensor too small to drop."""
    monkeypatch.setattr(recompute_plan, "_SMALL_SHARE", 0)
    graphs: list[list[ir.Node]] = []
    original: Callable[..., ir.Model | None] = session.running_graph

    def recorded(*args: Any) -> ir.Model | None:
        model = original(*args)
        if model is not None:  # a training graph
            graphs.append(model.graph.nodes)
        return model

    monkeypatch.setattr(session, "running_graph", recorded)
    return graphs


def outcome(
    case: Case, recompute: str | Sequence[str], steps: int = 1, kernels: str = "portable"
) -> dict[str, np.ndarray]:
    """Loss, gradients and moved statistics."""
    session.set_seed(7)
    module = module_of(case, recompute=recompute, kernels=kernels)
    for _ in range(steps):
        loss = module(**case.feed)
    found = {"loss": loss}
    for name, parameter in module.state.parameters:
        value = parameter.data if parameter.grad is None else parameter.grad
        found[name] = value.copy()
    return found


def repeated(nodes: list[ir.Node]) -> int:
    """How many forward nodes run again: not counting what belongs to gates."""
    return sum(n.name.startswith("recompute/") and not n.name.endswith(_GATE) for n in nodes)


_GATE = ("/Reshape", "/Slice", "/Cast", "/Shape", "/Where")


def assert_same_bits(got: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    assert got.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(got[name], value, err_msg=name)


@pytest.mark.parametrize("name", [BERT.name, DROPOUT.name, "conv_bn_maxpool_gap", LSTM.name])
def test_automatic_segments_give_the_same_bits(name: str, running: list[list[ir.Node]]) -> None:
    expected = outcome(ZOO[name], "none")
    assert_same_bits(outcome(ZOO[name], "auto"), expected)
    assert repeated(running[0]) == 0
    assert repeated(running[-1]) > 0


@pytest.mark.slow
@pytest.mark.parametrize("name", ZOO_MODELS)
def test_every_model(name: str, running: list[list[ir.Node]]) -> None:
    assert_same_bits(outcome(ZOO[name], "auto", 2), outcome(ZOO[name], "none", 2))
    assert len(running) >= 2


def test_accumulating_steps_recompute_too(running: list[list[ir.Node]]) -> None:
    assert_same_bits(outcome(BERT, "auto", 3), outcome(BERT, "none", 3))
    assert repeated(running[1]) > 0


def test_patterns_name_nodes_or_tensors(running: list[list[ir.Node]]) -> None:
    expected = outcome(MLP, "none")
    for patterns in (["act"], ["r"], ["ac*", "r*"]):
        assert_same_bits(outcome(MLP, patterns), expected)
        # onnxruntime made one node of the Gemm and the Tanh behind it
        assert [n.op_type for n in running[-1] if "recompute/r" in n.outputs] == ["FusedGemm"]


def test_a_name_with_pattern_characters_means_itself(
    running: list[list[ir.Node]], tmp_path: Path
) -> None:
    model = mlp()
    model.graph.node[1].output[0] = model.graph.node[2].input[0] = "W[0]_act"
    case = generate(model, tmp_path, loss="CrossEntropyLoss")
    Module(
        case.training_model,
        CheckpointState.load_checkpoint(case.checkpoint),
        recompute=["W[0]_act"],
        kernels="portable",
    )
    assert any("recompute/W[0]_act" in node.outputs for node in running[-1])
    with pytest.raises(ValueError, match=r"'W\[1\]_act' matches no node or tensor"):
        Module(
            case.training_model,
            CheckpointState.load_checkpoint(case.checkpoint),
            recompute=["W[1]_act"],
            kernels="portable",
        )


def test_a_dropout_is_made_from_its_mask(running: list[list[ir.Node]]) -> None:
    """Another draw would give other gradients; the mask is not drawn again."""
    expected = outcome(DROPOUT, "none")
    assert_same_bits(outcome(DROPOUT, ["drop", "sm"]), expected)
    assert [node.op_type for node in running[-1]].count("Dropout") == 1
    assert repeated(running[-1]) > 1
    session.set_seed(8)
    other = module_of(DROPOUT, kernels="portable")
    other(**DROPOUT.feed)
    assert any(
        not np.array_equal(p.grad, expected[n])
        for n, p in other.state.parameters
        if p.grad is not None
    )


@NEEDS_LIBRARY
def test_a_fused_dropout_is_made_from_its_seed(running: list[list[ir.Node]]) -> None:
    """In the step that overwrites and in those that add: one draw, the same mask three times."""
    expected = outcome(DROPOUT, "none", 3, "fused")
    assert _drops(running[-1]) == ["DrawnDropout", "SeededDropout"]
    assert_same_bits(outcome(DROPOUT, ["drop", "sm"], 3, "fused"), expected)
    for nodes in running[-2:]:
        assert _drops(nodes) == ["DrawnDropout", "SeededDropout", "SeededDropout"]


@NEEDS_LIBRARY
def test_automatic_segments_hold_dropouts(
    tmp_path: Path, running: list[list[ir.Node]], rng: np.random.Generator
) -> None:
    chain(tmp_path, 8, dropout=True)
    x = rng.standard_normal((3, 1024)).astype(np.float32)
    found = []
    for choice in ("none", "auto"):
        state = CheckpointState.load_checkpoint(tmp_path / "checkpoint")
        module = Module(tmp_path / "training_model.onnx", state, recompute=choice, kernels="fused")
        session.set_seed(9)
        steps = []
        for _ in range(2):
            module.lazy_reset_grad()
            module(x)
            steps.append(module.arena.gradients.copy())
        found.append(steps)
    np.testing.assert_array_equal(found[1], found[0])
    assert np.any(found[0][0] != found[0][1])
    again = _drops(running[-1])
    assert again.count("DrawnDropout") == 8
    assert again.count("SeededDropout") > 8 + 3


def _drops(nodes: list[ir.Node]) -> list[str]:
    return sorted(node.op_type for node in nodes if "Dropout" in node.op_type)


@pytest.mark.parametrize("value", [np.nan, np.inf, -0.0])
def test_gates_are_exact_for_every_value(value: float, running: list[list[ir.Node]]) -> None:
    case = ZOO["mlp_act_Sigmoid"]
    found = []
    for choice in ("none", "auto"):
        module = module_of(case, recompute=choice, kernels="portable")
        x = case.feed["x"].copy()
        x[0, 0] = value
        module(**{**case.feed, "x": x})
        found.append({n: p.grad.copy() for n, p in module.state.parameters})
    assert_same_bits(found[1], found[0])
    assert repeated(running[-1]) > 0


@pytest.mark.parametrize(
    ("choice", "error", "text"),
    [
        ("all", ValueError, r"expected 'auto', 'none' or a list of patterns, got 'all'"),
        (["nothing.*"], ValueError, r"'nothing\.\*' matches no node or tensor of the forward"),
        (3, TypeError, "got 3"),
        ([b"x"], TypeError, "list of patterns"),
    ],
)
def test_choices_that_mean_nothing(choice: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        module_of(MLP, recompute=choice)


def chain(folder: Path, layers: int, dropout: bool = False) -> None:
    """y = tanh(y w) again and again over 4 MB tensors; every layer's output is kept."""
    nodes, weights, y = [], [], "x"
    for layer in range(layers):
        weights.append(numpy_helper.from_array(np.full(1024, 0.9, np.float32), f"w{layer}"))
        nodes.append(helper.make_node("Mul", [y, f"w{layer}"], [f"m{layer}"], f"mul{layer}"))
        nodes.append(helper.make_node("Tanh", [f"m{layer}"], [f"t{layer}"], f"tanh{layer}"))
        y = f"t{layer}"
        if dropout:
            nodes.append(helper.make_node("Dropout", [y], [f"d{layer}"], f"drop{layer}"))
            y = f"d{layer}"
    nodes.append(helper.make_node("ReduceMean", [y], ["loss"], "mean", keepdims=0))
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 1024])
    loss = helper.make_tensor_value_info("loss", TensorProto.FLOAT, [])
    graph = helper.make_graph(nodes, "chain", [x], [loss], weights)
    opsets = [helper.make_opsetid("", 17)]
    generate(helper.make_model(graph, opset_imports=opsets, ir_version=8), folder)


PEAK = (
    MEMORY
    + """
import sys
import numpy as np
from edge_train import session
from edge_train.api import CheckpointState, Module
folder, recompute = sys.argv[1:]
options = session.default_options()
options.enable_cpu_mem_arena = False  # its blocks double in size: they would hide a part
state = CheckpointState.load_checkpoint(f"{folder}/checkpoint")
module = Module(f"{folder}/training_model.onnx", state, session_options=options,
                recompute=recompute, kernels="portable")
x = np.random.default_rng(0).standard_normal((1024, 1024)).astype(np.float32)
before = memory("VmRSS")
module(x)
print((memory("VmHWM") - before) / 1024)
print(state.parameters["w0"].grad.sum())
"""
)


#: glibc keeps freed blocks of some megabytes otherwise
_GIVEN_BACK = {"MALLOC_MMAP_THRESHOLD_": "100000"}


@pytest.mark.slow
def test_the_peak_of_a_chain_falls(tmp_path: Path) -> None:
    """16 layers of 4 MB: 64 MB kept, or four cuts and a segment of four."""
    chain(tmp_path, 16)
    peaks, sums = {}, {}
    for choice in ("none", "auto"):
        text = succeed(run_python(PEAK, tmp_path, choice, env=_GIVEN_BACK))
        peaks[choice], sums[choice] = map(float, text.split())
    print(peaks)
    assert peaks["none"] > 60
    assert peaks["auto"] < 0.65 * peaks["none"]
    assert sums["auto"] == sums["none"]


def test_the_module_says_what_it_cannot_find() -> None:
    with pytest.raises(ValueError, match=r"there are .*'act'"):
        Module(
            MLP.training_model, module_of(MLP).state, recompute=["activation"], kernels="portable"
        )
