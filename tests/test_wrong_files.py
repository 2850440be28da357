"""Files that are not there, not what they should be, or not of one model: refused at load."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.training import module_of
from support.zoo import ZOO

from edge_train.api import CheckpointState, Module, Optimizer
from edge_train.errors import ArtifactError, CheckpointError, UnsupportedOp
from edge_train.graph import ir, onnx_codec

MLP = ZOO["mlp_CrossEntropyLoss"]
BN = ZOO["conv_bn_maxpool_gap"]


def with_unknown_node(path: Path) -> bytes:
    model = onnx_codec.load(path)
    unknown = [
        ir.make_node("FlashGrad", ["x"], [f"unused{i}"], f"flash{i}", ir.MICROSOFT) for i in (1, 2)
    ]
    graph = replace(model.graph, nodes=[*unknown, *model.graph.nodes])
    graph.outputs = [*graph.outputs, *(ir.Value(f"unused{i}", None, None) for i in (1, 2))]
    imports = [*model.opset_imports, *([] if model.opset(ir.MICROSOFT) else [(ir.MICROSOFT, 1)])]
    return onnx_codec.encode(replace(model, graph=graph, opset_imports=imports))


def test_u022_unknown_ops_are_all_named_at_load() -> None:
    """U022: name, op, domain and imported version of every such node, in one message."""
    state = CheckpointState.load_checkpoint(MLP.checkpoint)
    for which in ("training_model", "eval_model"):
        graphs = {"training_model": MLP.training_model, "eval_model": MLP.eval_model}
        graphs[which] = with_unknown_node(graphs[which])
        with pytest.raises(UnsupportedOp) as caught:
            Module(graphs["training_model"], state, graphs["eval_model"])
        text = str(caught.value)
        for part in ("flash1", "flash2", "FlashGrad", "com.microsoft", "version 1", "2 node"):
            assert part in text, (part, text)
    assert state.arena is None  # nothing was moved for a Module that never was


def test_u004_a_newer_ir_version_loads() -> None:
    """U004: what onnxruntime gets is ours; a file with IR 10, 11 or 12 is no reason to refuse."""
    expected = float(module_of(MLP)(**MLP.feed))
    for version in (10, 11, 12):
        graphs = []
        for path in (MLP.training_model, MLP.eval_model, MLP.optimizer_model):
            model = onnx_codec.load(path)
            graphs.append(onnx_codec.encode(replace(model, ir_version=version)))
        state = CheckpointState.load_checkpoint(MLP.checkpoint)
        module = Module(graphs[0], state, graphs[1])
        assert float(module(**MLP.feed)) == expected
        assert Optimizer(graphs[2], module).step()


@pytest.mark.parametrize("stored", ["checkpoint", "nominal_checkpoint"])
@pytest.mark.parametrize(
    ("graph", "state", "listed"),
    [
        ("conv_bn_maxpool_gap", "mlp_CrossEntropyLoss", ["missing", "'g'", "'va'", "'b2'"]),
        ("mlp_CrossEntropyLoss", "conv_bn_maxpool_gap", ["missing", "'w2'", "'g' is trainable"]),
        ("conv_bn_maxpool_gap", "frozen_backbone_only_head", ["'w1' is frozen", "'be' is frozen"]),
        ("frozen_backbone_only_head", "conv_bn_maxpool_gap", ["'w1' is trainable", "no gradient"]),
        ("conv_bn_maxpool_gap", "conv_nobn", ["missing", "'mu'", "'va'", "'g'"]),
        ("conv_nobn", "conv_bn_maxpool_gap", ["'g' is trainable", "'be' is trainable"]),
    ],
)
def test_u042_a_foreign_checkpoint(graph: str, state: str, listed: list[str], stored: str) -> None:
    """U042: everything missing, extra or of another shape in one message."""
    foreign = CheckpointState.load_checkpoint(getattr(ZOO[state], stored))
    with pytest.raises(ArtifactError, match="does not belong to the training graph") as caught:
        Module(ZOO[graph].training_model, foreign, ZOO[graph].eval_model)
    assert all(part in str(caught.value) for part in listed), str(caught.value)


def test_u042_other_shapes_and_dtypes_are_listed() -> None:
    state = CheckpointState.load_checkpoint(MLP.checkpoint)
    state.parameters["w1"].attach(np.zeros((5, 6), np.float32))
    state.parameters["b2"].attach(np.zeros(3, np.float64))
    with pytest.raises(ArtifactError, match="2 mismatches") as caught:
        Module(MLP.training_model, state)
    assert "'w1': the graph wants shape (5, 4), got (5, 6)" in str(caught.value)
    assert "'b2': the graph wants float32, the checkpoint has float64" in str(caught.value)


def test_u042_the_eval_graph_of_another_model() -> None:
    state = CheckpointState.load_checkpoint(MLP.checkpoint)
    with pytest.raises(ArtifactError, match=r"(?s)eval graph.*missing from the checkpoint: 'va'"):
        Module(MLP.training_model, state, BN.eval_model)


def modules(first: object, second: object = None, **options: object) -> Module:
    state = CheckpointState.load_checkpoint(MLP.checkpoint)
    return Module(first, state, second, **options)  # type: ignore[arg-type]


ORT_FORMAT = b"\x20\0\0\0ORTM" + bytes(64)


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda p: modules(p / "no.onnx"), FileNotFoundError, r"no\.onnx"),
        (lambda p: modules(MLP.training_model, p / "no.onnx"), FileNotFoundError, r"no\.onnx"),
        (lambda p: modules(p), ArtifactError, "is a folder"),
        (lambda p: modules(b""), ArtifactError, "empty"),
        (lambda p: modules(b"\xff\x00" * 99), ArtifactError, "not an ONNX model"),
        (lambda p: modules(b"\x00"), ArtifactError, "not an ONNX model"),
        (lambda p: modules(MLP.training_model.read_bytes()[:-40]), ArtifactError, "damaged"),
        (lambda p: modules(ORT_FORMAT), ArtifactError, "ORT format"),
        (lambda p: modules(MLP.training_model, ORT_FORMAT), ArtifactError, "ORT format"),
        (lambda p: modules(MLP.checkpoint), ArtifactError, "is a training checkpoint"),
        (lambda p: modules(MLP.eval_model), ArtifactError, r"no gradients.*training_model\.onnx"),
        (lambda p: modules(MLP.model), ArtifactError, r"no gradients.*training_model\.onnx"),
        (lambda p: modules(MLP.optimizer_model), ArtifactError, "AdamWOptimizer"),
        (lambda p: modules(MLP.training_model, MLP.training_model), ArtifactError, "eval_model"),
        (lambda p: modules(MLP.training_model, MLP.model), ArtifactError, "eval graph"),
        (lambda p: modules(None), TypeError, "NoneType"),
        (lambda p: modules(MLP.training_model, device="cuda"), ValueError, "'cuda'"),
        (lambda p: modules(MLP.training_model, device=None), TypeError, "device"),
        (lambda p: modules(MLP.training_model, session_options={}), TypeError, "SessionOptions"),
        (lambda p: Module(MLP.training_model, str(p)), TypeError, r"load_checkpoint"),
        (lambda p: Module(MLP.training_model, None), TypeError, r"load_checkpoint"),
        (lambda p: CheckpointState.load_checkpoint(p / "no"), FileNotFoundError, "no"),
        (lambda p: CheckpointState.load_checkpoint(p), CheckpointError, "folder"),
        (lambda p: CheckpointState.load_checkpoint(b"\xff" * 99), CheckpointError, "ODTC"),
        (lambda p: CheckpointState.load_checkpoint(MLP.model), CheckpointError, "ODTC"),
        (lambda p: Optimizer(p / "no.onnx", module_of(MLP)), FileNotFoundError, r"no\.onnx"),
        (lambda p: Optimizer(p, module_of(MLP)), ArtifactError, "is a folder"),
        (lambda p: Optimizer(ORT_FORMAT, module_of(MLP)), ArtifactError, "ORT format"),
        (lambda p: Optimizer(b"\xff\x00", module_of(MLP)), ArtifactError, "not an ONNX model"),
        (lambda p: Optimizer(MLP.training_model, module_of(MLP)), ArtifactError, "Gemm 'fc1'"),
    ],
)
def test_files_that_are_not_there_or_something_else(
    make: Callable[[Path], object], error: type[Exception], text: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=text):
        make(tmp_path)
