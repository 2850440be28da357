"""Custom optimizer graphs: compositions of known nodes are recognised, others refused by name."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import NodeProto, TensorProto, helper
from support import optimizer_graphs as graphs
from support.optimizer_graphs import FakeModule, node

from edge_train.errors import ArtifactError, UnsupportedOp
from edge_train.optimizer import Optimizer
from edge_train.optimizer_spec import OptimizerSpec, read_spec

LISTS = ["params", "gradients", *graphs.MOMENTS]
SGD_LISTS = LISTS[:3]


def constant(name: str, value: object, kind: int = TensorProto.INT64) -> NodeProto:
    tensor = helper.make_tensor(name, kind, [], [value])
    return helper.make_node("Constant", [], [name], value=tensor)


def picked(names: list[str], count: int) -> list[NodeProto]:
    """SequenceAt of each sequence: <name>_<i>."""
    nodes = [constant(f"at{i}", i) for i in range(count)]
    nodes += [
        helper.make_node("SequenceAt", [name, f"at{i}"], [f"{name}_{i}"])
        for name in names
        for i in range(count)
    ]
    return nodes


def each(op: str, lists: list[str], count: int, **attributes: object) -> list[NodeProto]:
    """One node a tensor."""
    lead = ["learning_rate"] if op == "SGDOptimizer" else ["learning_rate", "step"]
    return [
        node(op, [*lead, *(f"{name}_{i}" for name in lists)], f"new_{i}", **attributes)
        for i in range(count)
    ]


def adamw(lists: list[str], **attributes: object) -> NodeProto:
    return node("AdamWOptimizer", ["learning_rate", "step", *lists], "flag", **attributes)


def test_copies_and_casts_are_looked_through() -> None:
    nodes = [
        helper.make_node("Identity", ["params"], ["p"]),
        helper.make_node("Cast", ["learning_rate"], ["rate"], to=TensorProto.FLOAT),
        helper.make_node("Cast", ["step"], ["t"], to=TensorProto.INT64),
        node("InplaceClipGradNorm", ["gradients"], "clipped", max_norm=0.5),
        helper.make_node("Identity", ["clipped"], ["g"]),
        node("AdamWOptimizer", ["rate", "t", "p", "g", *graphs.MOMENTS], "done"),
        helper.make_node("Identity", ["done"], ["flag"]),
    ]
    assert read_spec(graphs.build(nodes, LISTS)) == read_spec(graphs.adamw(max_norm=0.5))


def test_a_sequence_taken_apart_and_put_together() -> None:
    gather = [
        helper.make_node("SequenceConstruct", [f"{name}_0", f"{name}_1"], [f"{name}_all"])
        for name in LISTS
    ]
    update = adamw([f"{name}_all" for name in LISTS], weight_decay=0.25)
    spec = read_spec(graphs.build([*picked(LISTS, 2), *gather, update], LISTS))
    assert spec.tensors == 2
    assert spec == OptimizerSpec(
        **{**vars(read_spec(graphs.adamw(weight_decay=0.25))), "tensors": 2}
    )


def test_single_tensor_sgd() -> None:
    nodes = [*picked(SGD_LISTS[:2], 3), *each("SGDOptimizer", SGD_LISTS[:2], 3)]
    assert read_spec(graphs.build(nodes, SGD_LISTS)) == OptimizerSpec("SGDOptimizerV2", tensors=3)


def test_single_tensor_adam_behind_a_clip() -> None:
    clip = node("InplaceClipGradNorm", ["gradients"], "clipped", max_norm=2.0)
    lists = ["params", "clipped", *graphs.MOMENTS]
    options = {"alpha": 0.5, "beta": 0.75, "lambda": 0.125, "epsilon": 0.5, "weight_decay_mode": 1}
    nodes = [clip, *picked(lists, 2), *each("AdamOptimizer", lists, 2, **options)]
    spec = read_spec(graphs.build(nodes, LISTS))
    assert spec == OptimizerSpec("AdamWOptimizer", 2.0, 1, True, (0.5, 0.75), 0.5, 0.125, 2)


def test_adam_has_no_decay_of_its_own() -> None:
    nodes = [*picked(LISTS, 1), *each("AdamOptimizer", LISTS, 1)]
    spec = read_spec(graphs.build(nodes, LISTS))
    assert (spec.weight_decay, spec.mode, spec.eps) == (0.0, 0, float(np.float32(1e-8)))


def test_an_update_signal_that_is_always_true() -> None:
    nodes = [
        constant("go", True, TensorProto.BOOL),
        node("SGDOptimizerV2", ["learning_rate", "params", "gradients", "go"], "flag"),
    ]
    assert read_spec(graphs.build(nodes, SGD_LISTS)) == read_spec(graphs.sgd())


def test_the_steps_are_those_of_the_whole() -> None:
    nodes = [*picked(LISTS, 2), *each("AdamOptimizer", LISTS, 2, weight_decay_mode=1)]
    results = []
    attributes = {"adam_mode": 1, "weight_decay": 0.0}
    for model in (graphs.build(nodes, LISTS), graphs.adamw(**attributes)):
        module = FakeModule()
        optimizer = Optimizer(model, module)
        for seed in range(3):
            module.fill(seed)
            optimizer.step()
        results.append(module.arena.weights.copy())
    np.testing.assert_array_equal(results[0], results[1])
    assert np.any(results[0])


def test_another_number_of_parameters_is_refused() -> None:
    nodes = [*picked(SGD_LISTS[:2], 3), *each("SGDOptimizer", SGD_LISTS[:2], 3)]
    with pytest.raises(ArtifactError, match=r"updates 3 tensors one by one.* 2 trainable"):
        Optimizer(graphs.build(nodes, SGD_LISTS), FakeModule())


def _groups() -> list[NodeProto]:
    """Decay for the first tensor, none for the second."""
    decays = [0.01, 0.0]
    nodes = picked(LISTS, 2)
    for i, decay in enumerate(decays):
        parts = [f"{name}_part{i}" for name in LISTS]
        nodes += [
            helper.make_node("SequenceConstruct", [f"{name}_{i}"], [part])
            for name, part in zip(LISTS, parts, strict=True)
        ]
        nodes.append(adamw(parts, weight_decay=decay))
    return nodes


def _scaled() -> list[NodeProto]:
    return [
        constant("half", 0.5, TensorProto.FLOAT),
        helper.make_node("Mul", ["learning_rate", "half"], ["rate"], name="halve"),
        node("AdamWOptimizer", ["rate", "step", *LISTS], "flag"),
    ]


def _twice() -> list[NodeProto]:
    return [*picked(LISTS, 1), *each("AdamOptimizer", LISTS, 1) * 2]


def _two_clips() -> list[NodeProto]:
    clips = [
        node("InplaceClipGradNorm", ["gradients"], "once"),
        node("InplaceClipGradNorm", ["once"], "twice"),
    ]
    return [*clips, adamw(["params", "twice", *graphs.MOMENTS])]


def _narrowed() -> list[NodeProto]:
    cast = helper.make_node("Cast", ["learning_rate"], ["rate"], "narrow", to=TensorProto.FLOAT16)
    return [cast, node("AdamWOptimizer", ["rate", "step", *LISTS], "flag")]


def _mixed() -> list[NodeProto]:
    mix = helper.make_node("SequenceConstruct", ["params_0", "gradients_1"], ["mix"], "mixer")
    return [*picked(LISTS, 2), mix, adamw(["mix", *LISTS[1:]])]


@pytest.mark.parametrize(
    ("nodes", "text"),
    [
        (_groups(), "different settings"),
        (_scaled(), "Mul 'halve'"),
        (_twice(), r"do not update every tensor once \(tensors \[0, 0\]\)"),
        (_two_clips(), "InplaceClipGradNorm.*InplaceClipGradNorm"),
        (_narrowed(), "computed by Cast 'narrow'"),
        (_mixed(), "SequenceConstruct 'mixer'.* mixes tensors"),
    ],
)
def test_other_compositions_are_refused_by_name(nodes: list[NodeProto], text: str) -> None:
    with pytest.raises(UnsupportedOp, match=text):
        read_spec(graphs.build(nodes, LISTS))


def _crossed() -> list[NodeProto]:
    lists = ["params_0", "gradients_1", *(f"{name}_0" for name in graphs.MOMENTS)]
    return [
        *picked(LISTS, 2),
        node("AdamOptimizer", ["learning_rate", "step", *lists], "new"),
    ]


def _whole_to_single() -> list[NodeProto]:
    return [node("AdamOptimizer", ["learning_rate", "step", *LISTS], "new")]


def _scaled_loss() -> list[NodeProto]:
    lists = [f"{name}_0" for name in LISTS]
    inputs = ["learning_rate", "step", *lists, "", "scale"]
    return [*picked(LISTS, 1), node("AdamOptimizer", inputs, "new")]


@pytest.mark.parametrize(
    ("nodes", "text"),
    [
        (_crossed(), "reads the tensors .* same single one of each"),
        (_whole_to_single(), "same single one of each"),
        (_scaled_loss(), "has the inputs .*scale; expected learning_rate"),
    ],
)
def test_wrong_connections_are_refused(nodes: list[NodeProto], text: str) -> None:
    with pytest.raises(ArtifactError, match=text):
        read_spec(graphs.build(nodes, LISTS))


def test_a_graph_that_feeds_itself_is_refused() -> None:
    nodes = [
        helper.make_node("Identity", ["b"], ["a"]),
        helper.make_node("Identity", ["a"], ["b"]),
        adamw(["a", *LISTS[1:]]),
    ]
    with pytest.raises(ArtifactError, match="depends on itself"):
        read_spec(graphs.build(nodes, LISTS))
