"""What stands around a kernel goes into it, and the numbers stay those of the separate nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from support.lowering import Array, Row, check, model_of, node, normals, nudged, run_lowered
from support.native_kernels import needs_library

from edge_train.graph import ir
from edge_train.graph.lowering import lower

needs_library()

_B, _S, _H, _D = 2, 5, 3, 7
_WIDE = _H * _D


def _row(
    nodes: Sequence[ir.Node], feeds: dict[str, Array], outputs: str, constants: dict[str, Array]
) -> Row:
    """The nodes with what the portable rules make of them as the expectation."""
    open_row = Row("chain", tuple(nodes), feeds, _placeholders(outputs), constants)
    expected = run_lowered(open_row, dynamic=True)
    wide = {name: np.asarray(value, np.float64) for name, value in expected.items()}
    return replace(open_row, expected=wide)


def _placeholders(outputs: str) -> dict[str, Array]:
    return {name: np.zeros(1) for name in outputs.split()}


def _kernels(row: Row) -> list[str]:
    return [item.op_type for item in lower(model_of(row, False), fused=True).model.graph.nodes]


def _stock(op_type: str, inputs: str, outputs: str, **attrs: object) -> ir.Node:
    made = node(op_type, inputs, outputs, domain="", **attrs)
    return replace(made, name=f"{op_type}_{outputs.split()[0]}")


def _curve(forward: str, gradient: str) -> Row:
    x, bias, dy = normals(1, (_B, _S, _WIDE), (_WIDE,), (_B, _S, _WIDE))
    nodes = [
        _stock("Add", "bias x", "total"),
        replace(node(forward, "total", "y"), name="forward"),
        replace(node(gradient, "dy total", "dx"), name="backward"),
        _stock("ReduceSum", "dx axes", "dbias", keepdims=0),
    ]
    constants = {"axes": np.array([0, 1])}
    return _row(nodes, {"x": x, "bias": bias, "dy": dy}, "y dx dbias", constants)


def _norm() -> Row:
    sizes = [(_B, _S, _WIDE)] * 4 + [(_WIDE,)] * 3
    a, residual, dy, more, bias, scale, shift = normals(2, *sizes)
    nodes = [
        _stock("Add", "a bias", "biased"),
        _stock("Add", "residual biased", "x"),
        _stock("LayerNormalization", "x scale shift", "y mean inv_std", axis=-1, epsilon=1e-5),
        _stock("Sum", "dy more", "arrived"),
        node("LayerNormalizationGrad", "arrived x scale mean inv_std", "dx dscale dshift", axis=-1),
        _stock("Identity", "dx", "copied"),
        _stock("ReduceSum", "copied axes", "dbias", keepdims=0),
    ]
    feeds = {
        "a": a, "residual": residual, "dy": dy, "more": more,
        "bias": bias, "scale": scale, "shift": shift,
    }  # fmt: skip
    return _row(nodes, feeds, "y dx dscale dshift dbias", {"axes": np.array([0, 1])})


def _attention() -> Row:
    sizes = [(_B, _S, _WIDE)] * 2 + [(_WIDE,)] + [(_B, _H, _S, _S)]
    q, k, bias, dy = normals(3, *sizes)
    nodes = [
        _stock("Add", "q bias", "q_biased"),
        _stock("Reshape", "q_biased split", "q_split"),
        _stock("Transpose", "q_split", "q_heads", perm=[0, 2, 1, 3]),
        _stock("Reshape", "k split", "k_split"),
        _stock("Transpose", "k_split", "k_heads", perm=[0, 2, 1, 3]),
        _stock("Transpose", "k_heads", "k_turned", perm=[0, 1, 3, 2]),
        _stock("MatMul", "q_heads k_turned", "scores"),
        _stock("Softmax", "scores", "p", axis=-1),
        node("SoftmaxGrad_13", "dy p", "dp", axis=-1),
        _stock("Div", "dp root", "dscores"),
        replace(node("FusedMatMul", "dscores k_turned", "dq_heads", transB=1), name="dq"),
        _stock("Transpose", "dq_heads", "dq_split", perm=[0, 2, 1, 3]),
        _stock("Reshape", "dq_split join", "dq"),
        _stock("ReduceSum", "dq axes", "dbias", keepdims=0),
        replace(node("FusedMatMul", "q_heads dscores", "dk_turned", transA=1), name="dk"),
        _stock("Transpose", "dk_turned", "dk_heads", perm=[0, 1, 3, 2]),
        _stock("Transpose", "dk_heads", "dk_split", perm=[0, 2, 1, 3]),
        _stock("Reshape", "dk_split join", "dk"),
    ]
    constants = {
        "split": np.array([0, 0, _H, _D]),
        "join": np.array([0, 0, _WIDE]),
        "root": np.array(np.sqrt(_D), np.float32),
        "axes": np.array([0, 1]),
    }
    return _row(nodes, {"q": q, "k": k, "bias": bias, "dy": dy}, "p dq dk dbias", constants)


CHAINS = {
    "gelu": (lambda: _curve("Gelu", "GeluGrad"), ["Gelu", "GeluGrad"]),
    "fast gelu": (lambda: _curve("FastGelu", "FastGeluGrad"), ["FastGelu", "FastGeluGrad"]),
    "quick gelu": (lambda: _curve("QuickGelu", "QuickGeluGrad"), ["QuickGelu", "QuickGeluGrad"]),
    "norm": (_norm, ["AddedLayerNormalization", "LayerNormalizationGrad"]),
    "attention": (
        _attention,
        [
            *("Reshape", "Heads", "Reshape", "Heads", "FusedMatMul", "Softmax", "SoftmaxGrad"),
            *("FusedMatMul", "HeadsGrad", "Reshape", "FusedMatMul", "Heads", "Reshape"),
        ],
    ),
}


@pytest.mark.parametrize("name", CHAINS)
def test_a_chain_becomes_its_kernels(name: str) -> None:
    make, kernels = CHAINS[name]
    assert sorted(_kernels(make())) == sorted(kernels)


@pytest.mark.parametrize("name", CHAINS)
def test_a_chain_computes_what_its_nodes_do(name: str) -> None:
    row = CHAINS[name][0]()
    got = run_lowered(row, fused=True)
    check(row, got)
    with pytest.raises(AssertionError):
        check(nudged(row), got)


def test_a_sum_that_is_an_output_stays() -> None:
    row = _curve("Gelu", "GeluGrad")
    outputs = {**row.expected, "total": row.feeds["x"].astype(np.float64) + row.feeds["bias"]}
    row = replace(row, expected=outputs)
    assert "Add" in _kernels(row)
    check(row, run_lowered(row, fused=True))


def test_a_sum_read_before_the_norm_stays() -> None:
    """The kernel would make x where the norm stands, after its first reader."""
    row = _norm()
    early = _stock("Relu", "x", "early")
    nodes = (*row.nodes[:2], early, *row.nodes[2:])
    x = sum(row.feeds[name].astype(np.float64) for name in ("a", "residual", "bias"))
    row = replace(row, nodes=nodes, expected={**row.expected, "early": np.maximum(x, 0)})
    assert "AddedLayerNormalization" not in _kernels(row)
    check(row, run_lowered(row, fused=True))


def test_gradients_of_other_sizes_are_summed_apart() -> None:
    row = _norm()
    feeds = {**row.feeds, "more": row.feeds["more"][:1, :1]}
    row = _row(row.nodes, feeds, "y dx dscale dshift dbias", dict(row.constants))
    assert "Sum" in _kernels(row)
    check(row, run_lowered(row, fused=True))


def test_a_bias_over_rows_is_added_apart() -> None:
    """Shape (S, 1) broadcasts along the last axis: no bias of the kernel's."""
    row = _curve("Gelu", "GeluGrad")
    feeds = {**row.feeds, "bias": normals(4, (_S, 1))[0]}
    row = _row(row.nodes, feeds, "y dx dbias", dict(row.constants))
    assert "Add" in _kernels(row)
    check(row, run_lowered(row, fused=True))
