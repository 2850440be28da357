"""Whole models: tidied and prepared they compute what they computed before."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.forward import check_same, feeds_of, ops, run
from support.zoo import GOLDEN, ZOO

from edge_train.graph import onnx_codec
from edge_train.graph.lowering import lower
from edge_train.graph.prepare import prepare, tidy

REFUSED = sorted((GOLDEN / "refused").glob("*/model.onnx"))
TRAINED = [ZOO[name].model for name in sorted(ZOO)]
#: what the formulas of a model become
FUSED = {
    "transformer_decomposedLN_erf": {"LayerNormalization": 2, "Gelu": 1},
    "transformer_decomposedLN_tanhgelu": {"LayerNormalization": 2, "FastGelu": 1},
    "transformer_LNop_1out_opset17": {"LayerNormalization": 2, "Gelu": 1},
    "llama_rmsnorm_silu": {"SimplifiedLayerNormalization": 1, "QuickGelu": 1},
    "efficientnet_swish_se": {"QuickGelu": 1, "Sigmoid": 1, "Mul": 1},
}
SPELT_OUT = ("Erf", "Tanh", "Sqrt", "ReduceMean")


def _name(path: Path) -> str:
    return path.parent.name


def _parameters(path: Path) -> list[str]:
    given = json.loads((path.parent / "generate.json").read_text())
    return [*given["requires_grad"], *given["frozen_params"]]


@pytest.mark.parametrize("path", [*TRAINED, *REFUSED], ids=_name)
def test_same_outputs(path: Path) -> None:
    model = onnx_codec.load(path)
    before, feeds = path.read_bytes(), feeds_of(model)
    tidied = tidy(model, _parameters(path))
    prepared = prepare(tidied, _parameters(path))
    assert prepared.opset() == 21
    assert set(_parameters(path)) <= set(prepared.graph.initializers)
    assert len({node.name for node in prepared.graph.nodes}) == len(prepared.graph.nodes)
    if "Dropout" in ops(model) or "BatchNormalization" in ops(model):
        run(lower(prepared).model, feeds)  # in training mode now: other numbers
    else:
        check_same(before, lower(prepared).model, feeds)
    if "Dropout" not in ops(model):
        check_same(before, tidied, feeds)


@pytest.mark.parametrize("name", FUSED)
def test_formulas_become_ops(name: str) -> None:
    path = next(p for p in [*TRAINED, *REFUSED] if _name(p) == name)
    model = tidy(onnx_codec.load(path))
    prepared = ops(prepare(model, _parameters(path)))
    assert {op: prepared.get(op) for op in FUSED[name]} == FUSED[name]
    if name != "efficientnet_swish_se":
        assert not set(SPELT_OUT) & set(prepared)


def test_without_names_nothing_is_taken_away() -> None:
    path = ZOO["transformer_decomposedLN_erf"].model
    model = onnx_codec.load(path)
    made = {name for node in model.graph.nodes for name in node.outputs}
    prepared = prepare(model)
    assert made <= {name for node in prepared.graph.nodes for name in node.outputs}
