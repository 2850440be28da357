"""Recurrent layers. LSTM and GRU become their training forms, which also put out their gates; RNN
keeps its op and goes back through time by Scan.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from edge_train.graph import ir
from edge_train.graph.formula import Refuse
from edge_train.graph.gradients.builder import Gradients, attributes_of
from edge_train.graph.gradients.registry import gradient
from edge_train.graph.lowering.recurrent import (
    Cell,
    Timeline,
    before,
    beside,
    cells_of,
    each,
    joined,
    rows,
    state_or_zeros,
    weight_gradient,
)


@gradient("LSTM", cut=(4,))
def lstm(g: Gradients, node: ir.Node, *dys: str) -> Sequence[str | None]:
    saved = _in_training(g, node)
    x, w, r, _, lens, h0, c0, _ = (node.input(index) for index in range(8))
    inputs = (x, w, r, lens, h0, c0, saved[0], *saved[3:], *_padded(dys, 3))
    makes = [g.wants(index) for index in (0, 1, 2, 3, 5, 6, 7)]
    made = g.training_op("LSTMGrad", *inputs, makes=makes, **_attributes(node))
    return *made[:4], None, *made[4:]


@gradient("GRU", cut=(4,))
def gru(g: Gradients, node: ir.Node, *dys: str) -> Sequence[str | None]:
    saved = _in_training(g, node)
    inputs = (*(node.input(index) for index in range(6)), saved[0], saved[2], *_padded(dys, 2))
    makes = [g.wants(index) for index in (0, 1, 2, 3, 5)]
    made = g.training_op("GRUGrad", *inputs, makes=makes, **_attributes(node))
    return *made[:4], None, made[4]


def _padded(names: Sequence[str], count: int) -> list[str]:
    return [*names, *[""] * (count - len(names))]


def _attributes(node: ir.Node) -> dict[str, object]:
    """The node's attributes; the training forms have no layout."""
    if node.attr("layout", 0):
        raise Refuse("layout 1, which onnxruntime does not run either; make time the first axis")
    return {name: value for name, value in attributes_of(node).items() if name != "layout"}


def training_form(node: ir.Node) -> ir.Node:
    """LSTMTraining or GRUTraining for an LSTM or GRU, with a name for each output.

    Refuse for layout 1. The first outputs are those of the node.
    """
    wanted = _OUTPUTS[node.op_type]
    names = [node.output(at) or f"{node.name}_{what}" for at, what in enumerate(wanted)]
    op_type, name = f"{node.op_type}Training", f"{node.name}_training"
    return ir.make_node(op_type, node.inputs, names, name, ir.MICROSOFT, **_attributes(node))


_OUTPUTS = {"LSTM": ("Y", "Y_h", "Y_c", "C_all", "iofc"), "GRU": ("Y", "Y_h", "zrh")}


def _in_training(g: Gradients, node: ir.Node) -> tuple[str, ...]:
    """Puts the training form in the node's place; its outputs."""
    training = training_form(node)
    g.replace(node, training)
    for output in training.outputs:
        g.shapes.learn(output, g.elem_type(node.inputs[0]), None)
    g.shapes.infer_node(training)
    return training.outputs


@gradient("RNN", cut=(4,))
def rnn(g: Gradients, node: ir.Node, dy: str, dy_last: str = "") -> Sequence[str | None]:
    """h = f(x W^T + h' R^T + b) with h' from the step before."""
    x, w, r, _, lens, h0 = (node.input(index) for index in range(6))
    cells = cells_of(g, node, r, ("Tanh",))
    split = ((w, 0), (r, 0), (h0, 0), (_every_state(g, node), 1), (dy, 1), (dy_last, 0))
    parts = zip(*(each(g, name, axis, cells) for name, axis in split), strict=True)
    made = [
        _direction(g, cell, Timeline(g, x, lens, cell.reverse), x, *part)
        for cell, part in zip(cells, parts, strict=True)
    ]
    parts_of_dx, *others = zip(*made, strict=True)
    dx = parts_of_dx[0] if len(cells) == 1 else g.add(*parts_of_dx)
    dw, dr, db, dh0 = (joined(g, parts, 0) for parts in others)
    return dx, dw, dr, db, None, dh0


def _every_state(g: Gradients, node: ir.Node) -> str:
    """Y, added to the forward node if it puts out the last state only."""
    if node.output(0):
        return node.output(0)
    name = f"{node.name}_Y"
    g.replace(node, replace(node, outputs=(name, *node.outputs[1:])))
    g.shapes.set(name, g.elem_type(node.inputs[0]), None)
    g.shapes.infer_node(g.current(node))
    return name


def _direction(
    g: Gradients,
    cell: Cell,
    time: Timeline,
    x: str,
    w: str,
    r: str,
    h0: str,
    states: str,
    dy: str,
    dy_last: str,
) -> tuple[str, str, str, str, str]:
    """dX, dW, dR, dB and dH0 of one direction."""
    own_x, h, dh_all = (time.turned(name) for name in (time.cleared(x), states, time.cleared(dy)))
    h0, last = (state_or_zeros(g, state, own_x, cell.hidden) for state in (h0, dy_last))
    slices = [time.masked(cell.activations[0].slope(g, h))]
    slices += [dh_all] if dh_all else []
    if time.real:
        slices.append(g.sub(1.0, g.cast_like(time.real, h)))

    def step(states: Sequence[str], slices: Sequence[str]) -> tuple[list[str], list[str]]:
        (dh,), (slope, *rest) = states, slices
        if dh_all:
            dh = g.add(dh, rest.pop(0))
        pre = g.mul(dh, slope)
        waiting = [g.mul(dh, padding) for padding in rest]
        return [g.op("Gemm", pre, r, *waiting)], [pre]

    (first,), (pre,) = g.scan(step, [time.none_if_empty(last)], slices, backwards=True)
    flat = rows(g, pre, cell.hidden)
    dw = weight_gradient(g, flat, own_x, g.shape_slice(x, 2, 3))
    dr = weight_gradient(g, flat, before(g, h0, h), cell.hidden)
    db = g.sum(flat, (0,), keepdims=False)
    return time.turned(g.op("MatMul", pre, w)), dw, dr, beside(g, db, db), first
