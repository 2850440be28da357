"""LSTM and GRU by our own kernels: all that depends on the step before, a direction at a time.

The products over all steps (x W^T, and the gradients of x, W and R) stay with onnxruntime. Layers
of other activations than ONNX's defaults, and coupled gates, are left to the portable rules.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from edge_train.graph import ir
from edge_train.graph.lowering.builder import Builder
from edge_train.graph.lowering.recurrent import Cell, Timeline, cells_of, rows
from edge_train.graph.lowering.registry import fuses

_LSTM, _GRU = ("Sigmoid", "Tanh", "Tanh"), ("Sigmoid", "Tanh")


@dataclass(frozen=True)
class _Layer:
    """The directions of a layer, and how its kernels are called."""

    b: Builder
    node: ir.Node
    cells: Sequence[Cell]
    lens: str

    def attributes(self, cell: Cell) -> dict[str, Any]:
        """Of the kernels of one direction."""
        given: dict[str, Any] = {"hidden_size": cell.hidden, "reverse": int(cell.reverse)}
        bound, linear = cell.activations[0].bound, self.node.attr("linear_before_reset", 0)
        given |= {} if bound is None else {"clip": float(bound)}
        return given | ({"linear_before_reset": 1} if linear else {})

    def each(self, x: str, axis: int = 0) -> Sequence[str]:
        """The parts of a tensor by direction; the axis stays."""
        if not x or len(self.cells) == 1:
            return [x] * len(self.cells)
        count = len(self.cells)
        return self.b.ops("Split", x, n=count, axis=axis, num_outputs=count)

    def joined(self, parts: Sequence[str], axis: int) -> str:
        """The parts of all directions, "" where they have none."""
        if len(parts) == 1 or not all(parts):
            return parts[0]
        return self.b.op("Concat", *parts, axis=axis)

    def product(self, flat: str, w: str) -> str:
        """x W^T of all steps: (T B, I) and (1, G H, I) to (T B, G H)."""
        return self.b.op("Gemm", flat, self.b.op("Squeeze", w, self.b.ints(0)), transB=1)

    def weight(self, rows_of_gates: str, flat: str) -> str:
        """The gradient of weights (1, G H, N) from (T B, G H) and (T B, N)."""
        product = self.b.op("Gemm", rows_of_gates, flat, transA=1)
        return self.b.op("Unsqueeze", product, self.b.ints(0))

    def of_input(self, gates: Sequence[str], weights: Sequence[str], x: str) -> str:
        """The gradient of x from those of the gates in each direction, (T B, G H)."""
        b = self.b
        parts = [
            b.op("Gemm", made, b.op("Squeeze", w, b.ints(0)))
            for made, w in zip(gates, weights, strict=True)
        ]
        return b.reshape_like(parts[0] if len(parts) == 1 else b.add(*parts), x)


def _layer(b: Builder, node: ir.Node, defaults: Sequence[str], lens: str) -> _Layer | None:
    cells = cells_of(b, node, node.input(2), defaults)
    wanted = [name.lower() for name in defaults]
    if any([item.name for item in cell.activations] != wanted for cell in cells):
        return None
    return None if node.attr("input_forget", 0) else _Layer(b, node, cells, lens)


def _flat(b: Builder, x: str, lens: str) -> str:
    """x (T, B, I) as rows; where it is padding, whatever stood there becomes 0."""
    size = b.shape_slice(x, 2, 3)
    return rows(b, Timeline(b, x, lens, False).cleared(x) if lens else x, size)


def _forward(layer: _Layer, op_type: str, states: Sequence[str], axes: Sequence[int]
             ) -> tuple[str, ...]:  # fmt: skip
    """Every direction's kernel, its outputs joined along ``axes``."""
    b, node = layer.b, layer.node
    x, w, r, bias = (node.input(i) for i in range(4))
    flat = rows(b, x, b.shape_slice(x, 2, 3))
    parts = zip(*map(layer.each, (w, r, bias, *states)), strict=True)
    results = []
    for cell, (own_w, own_r, own_bias, *own_states) in zip(layer.cells, parts, strict=True):
        inputs = (x, layer.product(flat, own_w), own_r, own_bias, layer.lens, *own_states)
        made = b.native(op_type, *inputs, like=("",) * len(axes), **layer.attributes(cell))
        results.append(made)
    pairs = zip(zip(*results, strict=True), axes, strict=True)
    outputs = tuple(layer.joined(made, axis) for made, axis in pairs)
    for output, source in zip(outputs, b.node.outputs, strict=False):
        b.shapes.set(output, b.elem_type(x), b.shapes.dims(source) if source else None)
    return outputs


@fuses("LSTMTraining")
def lstm_training(b: Builder, node: ir.Node) -> tuple[str, ...] | None:
    """All H, last H, last C, all C and the gates after their activations."""
    layer = _layer(b, node, _LSTM, node.input(4))
    if layer is None:
        return None
    b.saved[b.node.input(7)] = node.input(7)  # LSTMGrad is not given the peepholes
    return _forward(layer, "LSTM", [node.input(i) for i in (5, 6, 7)], (1, 0, 0, 1, 1))


@fuses("GRUTraining")
def gru_training(b: Builder, node: ir.Node) -> tuple[str, ...] | None:
    """All H, the last H and the gates after their activations."""
    layer = _layer(b, node, _GRU, node.input(4))
    return None if layer is None else _forward(layer, "GRU", [node.input(5)], (1, 0, 1))


@fuses("LSTMGrad")
def lstm_grad(b: Builder, node: ir.Node) -> tuple[str, ...] | None:
    """dX, dW, dR, dB, dH0, dC0, dP."""
    layer = _layer(b, node, _LSTM, node.input(3))
    if layer is None or not all(node.input(i) for i in (6, 7, 8)):
        return None
    forward = b.producers.get(b.node.input(8))
    if forward is None and node.output(6):
        return None  # the portable rule says what is missing
    peepholes = b.saved.get(forward.input(7), "") if forward else ""
    x, flat = node.input(0), _flat(b, node.input(0), layer.lens)
    by_axis = [(node.input(i), 0) for i in (1, 2, 4, 5)]
    by_axis += [(node.input(i), 1) for i in (6, 7, 8, 9)]
    by_axis += [(node.input(10), 0), (node.input(11), 0), (peepholes, 0)]
    parts = zip(*(layer.each(*pair) for pair in by_axis), strict=True)
    results, gates, weights = [], [], []
    for cell, (w, r, *states) in zip(layer.cells, parts, strict=True):
        made = b.native_some(
            "LSTMGrad", (x, r, layer.lens, *states), ("",) * 6, _wanted(b, node, 6),
            **layer.attributes(cell),
        )  # fmt: skip
        pre, before, *rest = made
        results.append((layer.weight(pre, flat), layer.weight(pre, before), *rest))
        gates.append(pre)
        weights.append(w)
    dw, dr, db, dp, dh0, dc0 = (layer.joined(p, 0) for p in zip(*results, strict=True))
    return layer.of_input(gates, weights, x), dw, dr, db, dh0, dc0, dp


def _wanted(b: Builder, node: ir.Node, count: int) -> list[bool]:
    """The kernel's outputs that something needs: the first two always, dP where there are P."""
    return [True] * 3 + [bool(node.output(6)), *[True] * (count - 4)]


@fuses("GRUGrad")
def gru_grad(b: Builder, node: ir.Node) -> tuple[str, ...] | None:
    """dX, dW, dR, dB and dH0."""
    layer = _layer(b, node, _GRU, node.input(4))
    if layer is None or not (node.input(6) and node.input(7)):
        return None
    x, flat = node.input(0), _flat(b, node.input(0), layer.lens)
    by_axis = [(node.input(i), 0) for i in (1, 2, 3, 5)]
    by_axis += [(node.input(i), 1) for i in (6, 7, 8)] + [(node.input(9), 0)]
    parts = zip(*(layer.each(*pair) for pair in by_axis), strict=True)
    results, gates, weights = [], [], []
    for cell, (w, r, bias, *states) in zip(layer.cells, parts, strict=True):
        made = b.native(
            "GRUGrad", x, r, bias, layer.lens, *states, like=("",) * 5, **layer.attributes(cell)
        )
        pre, before, inner, *rest = made
        results.append((layer.weight(pre, flat), _of_r(layer, cell, pre, before, inner), *rest))
        gates.append(pre)
        weights.append(w)
    dw, dr, db, dh0 = (layer.joined(p, 0) for p in zip(*results, strict=True))
    return layer.of_input(gates, weights, x), dw, dr, db, dh0


def _of_r(layer: _Layer, cell: Cell, pre: str, before: str, inner: str) -> str:
    """dR: ``inner`` are the gradients of h R^T with linear_before_reset, else r h."""
    if layer.node.attr("linear_before_reset", 0):
        return layer.weight(inner, before)
    b, n = layer.b, cell.hidden
    zr, new = b.ops("Split", pre, b.ints(2 * n, n), n=2, axis=-1)
    of_zr, of_new = layer.weight(zr, before), layer.weight(new, inner)
    return b.op("Concat", of_zr, of_new, axis=1)
