"""Constants computed, no-ops, duplicates and dead nodes removed, formulas fused: same outputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support.forward import check_same, model_of, ops

from edge_train.graph import ir
from edge_train.graph.lowering import lower
from edge_train.graph.prepare import prepare

X = np.random.default_rng(3).normal(size=(2, 4, 6)).astype(np.float32)
SCALE = np.linspace(0.5, 1.5, 6, dtype=np.float32)
FEEDS = {"x": X}
ROOT = float(np.sqrt(2))


class Chain:
    """Writes nodes with one output each; numbers become constants."""

    def __init__(self) -> None:
        self.nodes: list[ir.Node] = []
        self.constants: dict[str, Any] = {}

    def __call__(self, op_type: str, *inputs: Any, **attributes: Any) -> str:
        name = f"t{len(self.nodes)}"
        names = [self._name(value) for value in inputs]
        self.nodes.append(ir.make_node(op_type, names, [name], f"n{name}", **attributes))
        return name

    def _name(self, value: Any) -> str:
        if isinstance(value, str):
            return value
        name = f"c{len(self.constants)}"
        self.constants[name] = np.asarray(value, None if isinstance(value, list) else np.float32)
        return name

    def model(self, end: str, dims: tuple[ir.Dim, ...] = ("N", 4, 6)) -> ir.Model:
        return model_of(self.nodes, {"x": dims}, end, self.constants)


def _gelu(c: Chain, order: str, divided: bool) -> str:
    scaled = c("Div", "x", ROOT) if divided else c("Mul", "x", 1 / ROOT)
    gate = c("Add", c("Erf", scaled), 1.0)
    if order == "outside":
        return c("Mul", c("Mul", "x", gate), 0.5)
    if order == "on x":
        return c("Mul", c("Mul", 0.5, "x"), gate)
    return c("Mul", "x", c("Mul", gate, 0.5))


def _fast_gelu(c: Chain, power: bool) -> str:
    cube = c("Pow", "x", 3.0) if power else c("Mul", c("Mul", "x", "x"), "x")
    angle = c("Mul", c("Add", "x", c("Mul", cube, 0.044715)), float(np.sqrt(2 / np.pi)))
    return c("Mul", c("Mul", "x", 0.5), c("Add", c("Tanh", angle), 1.0))


def _layer_norm(c: Chain, axes: list[int], power: bool, swapped: bool = False) -> str:
    centred = c("Sub", "x", c("ReduceMean", "x", axes=axes))
    square = c("Pow", centred, 2.0) if power else c("Mul", centred, centred)
    deviation = c("Sqrt", c("Add", c("ReduceMean", square, axes=axes), 1e-5))
    shape = X.shape[min(axes) :]
    scale, bias = np.resize(SCALE, shape), np.resize(SCALE - 1, shape)
    c.constants.update(scale=scale, bias=bias)
    product = [c("Div", centred, deviation), "scale"]
    ends = ["bias", c("Mul", *reversed(product))] if swapped else [c("Mul", *product), "bias"]
    return c("Add", *ends)


def _rms_norm(c: Chain, form: str) -> str:
    root = c("Sqrt", c("Add", c("ReduceMean", c("Pow", "x", 2.0), axes=[-1]), 1e-5))
    c.constants["scale"] = SCALE
    if form == "div":
        return c("Mul", c("Div", "x", root), "scale")
    inverse = c("Reciprocal", root) if form == "reciprocal" else c("Div", 1.0, root)
    return c("Mul", "scale", c("Mul", "x", inverse))


def _quick_gelu(c: Chain, alpha: float | None) -> str:
    return c("Mul", "x", c("Sigmoid", c("Mul", "x", alpha) if alpha else "x"))


FORMULAS: dict[str, tuple[str, Callable[[Chain], str]]] = {
    "gelu outside": ("Gelu", lambda c: _gelu(c, "outside", True)),
    "gelu on x": ("Gelu", lambda c: _gelu(c, "on x", False)),
    "gelu on gate": ("Gelu", lambda c: _gelu(c, "on gate", True)),
    "fast gelu": ("FastGelu", lambda c: _fast_gelu(c, True)),
    "fast gelu, product": ("FastGelu", lambda c: _fast_gelu(c, False)),
    "layer norm": ("LayerNormalization", lambda c: _layer_norm(c, [-1], True)),
    "layer norm, two axes": ("LayerNormalization", lambda c: _layer_norm(c, [1, 2], False)),
    "layer norm, swapped": ("LayerNormalization", lambda c: _layer_norm(c, [2], True, True)),
    "rms norm": ("SimplifiedLayerNormalization", lambda c: _rms_norm(c, "div")),
    "rms norm, reciprocal": (
        "SimplifiedLayerNormalization",
        lambda c: _rms_norm(c, "reciprocal"),
    ),
    "rms norm, inverse": ("SimplifiedLayerNormalization", lambda c: _rms_norm(c, "inverse")),
    "quick gelu": ("QuickGelu", lambda c: _quick_gelu(c, 1.702)),
    "silu": ("QuickGelu", lambda c: _quick_gelu(c, None)),
}


@pytest.mark.parametrize("name", FORMULAS)
def test_formula(name: str) -> None:
    op_type, write = FORMULAS[name]
    chain = Chain()
    model = chain.model(write(chain))
    prepared = prepare(model, ["scale", "bias"])
    assert ops(prepared) == {op_type: 1}
    check_same(model, lower(prepared).model, FEEDS)


@pytest.mark.parametrize("name", FORMULAS)
def test_formula_that_something_else_reads_stays(name: str) -> None:
    """Each tensor in between is an output: the op would not make it."""
    op_type, write = FORMULAS[name]
    chain = Chain()
    model = chain.model(write(chain))
    for node in model.graph.nodes[:-1]:
        prepared = prepare(model, ["scale", "bias", node.outputs[0]])
        made = {output for node in prepared.graph.nodes for output in node.outputs}
        assert node.outputs[0] in made
        assert op_type not in ops(prepared)


@pytest.mark.parametrize(
    "change",
    [
        lambda c: c("Mul", c("Mul", "x", c("Add", c("Erf", c("Div", "x", 1.5)), 1.0)), 0.5),
        lambda c: c("Mul", c("Mul", "x", c("Add", c("Erf", c("Div", "x", ROOT)), 2.0)), 0.5),
        lambda c: c("Mul", "x", c("Sigmoid", c("Add", "x", 1.0))),
        lambda c: c("Mul", c("Neg", "x"), c("Sigmoid", "x")),
    ],
)
def test_formula_that_is_another(change: Callable[[Chain], str]) -> None:
    chain = Chain()
    model = chain.model(change(chain))
    prepared = prepare(model, ())
    assert not {"Gelu", "QuickGelu"} & set(ops(prepared))
    check_same(model, prepared, FEEDS)


@pytest.mark.parametrize("place", range(3))
@pytest.mark.parametrize("name", FORMULAS)
def test_a_number_of_more_axes_than_the_operand_stays(name: str, place: int) -> None:
    """The result has them too, which an op in the formula's place would not give it."""
    op_type, write = FORMULAS[name]
    chain = Chain()
    model = chain.model(write(chain))
    tensors = model.graph.initializers
    numbers = [key for key, tensor in tensors.items() if not tensor.dims]
    for key in numbers[place : place + 1]:
        tensors[key] = ir.Tensor.of(key, tensors[key].array().reshape(1, 1, 1, 1))
    prepared = prepare(model, ["scale", "bias"])
    assert (op_type in ops(prepared)) == (place >= len(numbers))
    check_same(model, prepared if numbers[place:] else lower(prepared).model, FEEDS)


def test_a_parameter_is_no_constant_of_a_formula() -> None:
    chain = Chain()
    model = chain.model(_quick_gelu(chain, 1.5))
    assert ops(prepare(model, ["c0"])) == {"Mul": 2, "Sigmoid": 1}


def test_pads_computed_from_sizes_are_folded() -> None:
    """As exporters write a pad: lists joined, turned and cast."""
    c = Chain()
    half = c("Concat", c("Shape", "x", start=2), [0], axis=0)
    zeros = c("ConstantOfShape", [4], value=ir.Tensor.of("value", np.zeros(1, np.int64)))
    pads = c(
        "Reshape", c("Transpose", c("Reshape", c("Concat", half, zeros, axis=0), [-1, 2])), [-1]
    )
    model = c.model(c("Pad", "x", c("Cast", pads, to=7)))
    prepared = prepare(model, ())
    assert ops(prepared) == {"Pad": 1}
    assert prepared.graph.initializers[prepared.graph.nodes[0].inputs[1]].array().size == 6
    check_same(model, prepared, FEEDS)


def test_large_and_unknown_results_are_not_computed() -> None:
    c = Chain()
    end = c("Add", "x", c("Expand", np.ones(6), [9000, 1, 1]))
    assert ops(prepare(c.model(end), ())) == {"Add": 1, "Expand": 1}


def test_no_ops_duplicates_and_dead_nodes() -> None:
    c = Chain()
    first, second = c("Exp", c("Identity", "x")), c("Exp", c("Cast", "x", to=1))
    c("Tanh", first)
    turned = c("Transpose", second, perm=[0, 1, 2])
    model = c.model(c("Add", first, c("Sum", turned)))
    prepared = prepare(model, ())
    assert ops(prepared) == {"Exp": 1, "Add": 1}
    check_same(model, prepared, FEEDS)


def test_random_nodes_are_no_duplicates() -> None:
    c = Chain()
    model = c.model(c("Sub", c("RandomNormalLike", "x"), c("RandomNormalLike", "x")))
    assert ops(prepare(model, ()))["RandomNormalLike"] == 2


def test_outputs_keep_their_names() -> None:
    c = Chain()
    copied = c("Identity", c("Exp", "x"))
    model = c.model(copied)
    check_same(model, prepare(model, ()), FEEDS)
