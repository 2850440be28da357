"""LSTMTraining and LSTMGrad in standard ops.

Gates lie in the order i, o, f, c as in ONNX. Backward, the factors by which a step's gradients are
multiplied are known for all steps before the Scan; peepholes and clipping are part of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from edge_train.graph import ir
from edge_train.graph.lowering.builder import Builder, Refuse
from edge_train.graph.lowering.recurrent import (
    Cell,
    Timeline,
    as_computed,
    before,
    beside,
    blocks,
    cells_of,
    each,
    joined,
    projected,
    remembered,
    rows,
    state_or_zeros,
    weight_gradient,
)
from edge_train.graph.lowering.registry import lowers

_DEFAULTS = ("Sigmoid", "Tanh", "Tanh")


@lowers("LSTMTraining")
def lstm_training(b: Builder, node: ir.Node) -> tuple[str, ...]:
    """All H, last H, last C, all C and the gates after their activations."""
    cells = cells_of(b, node, node.input(2), _DEFAULTS)
    x, lens = node.input(0), node.input(4)
    b.saved[b.node.input(7)] = node.input(7)  # LSTMGrad is not given the peepholes
    weights = zip(*(each(b, node.input(i), 0, cells) for i in (1, 2, 3, 5, 6, 7)), strict=True)
    coupled = bool(node.attr("input_forget", 0))
    results = []
    for cell, (w, r, bias, *states, peepholes) in zip(cells, weights, strict=True):
        time = Timeline(b, x, lens, cell.reverse)
        turned = time.turned(time.cleared(x))
        if bias:
            bias = b.op("Add", *blocks(b, bias, *(4 * cell.hidden,) * 2))
        product = projected(b, turned, w, bias, 4 * cell.hidden)
        step = _Step(b, cell, r, coupled, peepholes)
        results.append(_forward(b, step, time, product, states))
    made = zip(zip(*results, strict=True), (1, 0, 0, 1, 1), strict=True)
    return remembered(b, tuple(joined(b, parts, axis) for parts, axis in made))


def _forward(
    b: Builder, step: _Step, time: Timeline, product: str, states: Sequence[str]
) -> tuple[str, ...]:
    first = [state_or_zeros(b, state, product, step.cell.hidden) for state in states]
    sequences = [product, time.real] if time.real else [product]
    last, (h, c, *gates) = b.scan(step, first, sequences)
    every = (time.turned(time.masked(sequence)) for sequence in (h, c, beside(b, *gates)))
    h, c, iofc = every
    h_last, c_last = (time.none_if_empty(state) for state in last)
    return h, h_last, c_last, c, iofc


@dataclass(frozen=True)
class _Step:
    """The body of the forward Scan: (h, c) and x W^T + bias to the next (h, c) and the gates."""

    b: Builder
    cell: Cell
    r: str
    coupled: bool  # input_forget: f = 1 - i
    peepholes: str

    def __call__(
        self, states: Sequence[str], slices: Sequence[str]
    ) -> tuple[Sequence[str], Sequence[str]]:
        b, (h, c) = self.b, states
        pre = b.op("Gemm", h, self.r, slices[0], transB=1)
        plain = not (self.coupled or self.peepholes)
        new, gates = self._plain(pre, c) if plain else self._special(pre, c)
        kept = new
        if len(slices) > 1:  # behind the end of a sequence its state stays
            kept = [b.where(slices[1], a, old) for a, old in zip(new, states, strict=True)]
        return kept, (*new, *gates)

    def _plain(self, pre: str, c: str) -> tuple[list[str], list[str]]:
        b, hidden = self.b, self.cell.hidden
        f_of, g_of, _ = self.cell.activations
        three, last = blocks(b, pre, 3 * hidden, hidden)
        iof, g = f_of(b, three), g_of(b, last)
        i, o, f = blocks(b, iof, *(hidden,) * 3)
        c = b.add(b.mul(f, c), b.mul(i, g))
        return self._output(o, c), [iof, g]

    def _special(self, pre: str, c: str) -> tuple[list[str], list[str]]:
        """Peepholes let i and f see the old cell state, o the new one."""
        b, hidden = self.b, self.cell.hidden
        f_of, g_of, _ = self.cell.activations
        i, o, f, g = blocks(b, pre, *(hidden,) * 4)
        see_i = see_o = see_f = ""
        if self.peepholes:
            see_i, see_o, see_f = blocks(b, self.peepholes, *(hidden,) * 3)
        i = f_of(b, self._seeing(i, see_i, c))
        f = b.sub(1.0, i) if self.coupled else f_of(b, self._seeing(f, see_f, c))
        g = g_of(b, g)
        c = b.add(b.mul(f, c), b.mul(i, g))
        o = f_of(b, self._seeing(o, see_o, c))
        return self._output(o, c), [i, o, f, g]

    def _seeing(self, gate: str, peephole: str, c: str) -> str:
        return self.b.add(gate, self.b.mul(peephole, c)) if peephole else gate

    def _output(self, o: str, c: str) -> list[str]:
        return [self.b.mul(o, self.cell.activations[2](self.b, c)), c]


@lowers("LSTMGrad")
def lstm_grad(b: Builder, node: ir.Node) -> tuple[str, ...]:
    """dX, dW, dR, dB, dH0, dC0, dP from dH of all steps, of the last one, and dC of the last."""
    cells = cells_of(b, node, node.input(2), _DEFAULTS)
    x, lens = node.input(0), node.input(3)
    saved = [as_computed(b, node, i) for i in (6, 7, 8)]
    if not all(saved):
        raise Refuse("hidden states, cell states or gates of the forward op are not given")
    by_axis = [(node.input(i), 0) for i in (1, 2)] + [(_peepholes(b, node), 0)]
    by_axis += [(node.input(i), 0) for i in (4, 5, 10, 11)]
    by_axis += [(name, 1) for name in (*saved, node.input(9))]
    parts = zip(*(each(b, name, axis, cells) for name, axis in by_axis), strict=True)
    results = []
    for cell, (w, r, p, *states, h, c, iofc, dh) in zip(cells, parts, strict=True):
        time = Timeline(b, x, lens, cell.reverse)
        own_x = time.turned(time.cleared(x))
        h0, c0, *last = (state_or_zeros(b, state, own_x, cell.hidden) for state in states)
        h, c, iofc, dh = (time.turned(name) for name in (h, c, iofc, time.cleared(dh)))
        run = _Backward(b, cell, time, bool(node.attr("input_forget", 0)), p)
        pre, first = run(r, c0, (c, iofc, dh), last)
        weights = run.weights(pre, own_x, (h0, h), (c0, c))
        results.append((time.turned(b.op("MatMul", pre, w)), *weights, *first))
    return _outputs(b, node, results)


def _peepholes(b: Builder, node: ir.Node) -> str:
    """P of the forward op; "" where it has none."""
    forward = b.producers.get(b.node.input(8))
    if forward is None and node.output(6):
        raise Refuse("a gradient of peepholes without the LSTMTraining that has them")
    return b.saved.get(forward.input(7), "") if forward else ""


def _outputs(b: Builder, node: ir.Node, results: list[tuple[str, ...]]) -> tuple[str, ...]:
    dx, dw, dr, db, dp, dh0, dc0 = zip(*results, strict=True)
    total = dx[0] if len(dx) == 1 else b.add(*dx)
    made = [joined(b, parts, 0) for parts in (dw, dr, db, dh0, dc0)]
    return (total, *made, joined(b, dp, 0) if node.output(6) else "")


@dataclass(frozen=True)
class _Factors:
    """What the gradients of a step are multiplied by, each (T, B, H or 4H).

    d gates = (dc, dh, dc, dc) * ``gates``;  dc += dh * ``output``;  the step before's dc is
    dc * ``cell``.
    """

    gates: str
    output: str
    cell: str


@dataclass(frozen=True)
class _Backward:
    """One direction of LSTMGrad."""

    b: Builder
    cell: Cell
    time: Timeline
    coupled: bool
    peepholes: str

    def __call__(
        self, r: str, c0: str, sequences: Sequence[str], last: Sequence[str]
    ) -> tuple[str, Sequence[str]]:
        """Gradients of the gates before their activations (T, B, 4H), and dH0, dC0."""
        b, time = self.b, self.time
        c, iofc, dh_all = sequences
        factors = self._factors(before(b, c0, c), c, iofc)
        slices = [factors.gates, factors.output, factors.cell]
        slices += [dh_all] if dh_all else []
        if time.real:
            slices.append(b.sub(1.0, b.cast_like(time.real, iofc)))

        def step(states: Sequence[str], slices: Sequence[str]) -> tuple[list[str], list[str]]:
            (dh, dc), (gates, output, cell, *rest) = states, slices
            if dh_all:
                dh = b.add(dh, rest.pop(0))
            dc = b.add(dc, b.mul(dh, output))
            pre = b.mul(beside(b, dc, dh, dc, dc), gates)
            waiting = [b.mul(dh, padding) for padding in rest]
            return [b.op("Gemm", pre, r, *waiting), b.mul(dc, cell)], [pre]

        states = [time.none_if_empty(state) for state in last]
        first, (pre,) = b.scan(step, states, slices, backwards=True)
        return pre, first

    def _factors(self, c_before: str, c: str, iofc: str) -> _Factors:
        b, hidden = self.b, self.cell.hidden
        f_of, g_of, h_of = self.cell.activations
        iof, g = blocks(b, iofc, 3 * hidden, hidden)
        (i, o, f), (di, do, df) = (
            blocks(b, name, *(hidden,) * 3) for name in (iof, f_of.slope(b, iof))
        )
        out = h_of(b, c)
        to_i = b.mul(b.sub(g, c_before) if self.coupled else g, di)
        to_o = b.mul(out, do)
        to_f = b.mul(f, 0.0) if self.coupled else b.mul(c_before, df)
        to_g = b.mul(i, g_of.slope(b, g))
        output, through = b.mul(o, h_of.slope(b, out)), f
        if self.peepholes:
            see_i, see_o, see_f = blocks(b, self.peepholes, *(hidden,) * 3)
            output = b.add(output, b.mul(to_o, see_o))
            through = b.add(through, b.add(b.mul(to_i, see_i), b.mul(to_f, see_f)))
        gates = beside(b, to_i, to_o, to_f, to_g)
        if self.time.real:
            through = b.where(self.time.real, through, 1.0)
        return _Factors(self.time.masked(gates), self.time.masked(output), through)

    def weights(
        self, pre: str, x: str, hidden: tuple[str, str], cell: tuple[str, str]
    ) -> tuple[str, ...]:
        """dW, dR, dB and dP; ``hidden`` and ``cell``: first state and all states."""
        b, size = self.b, self.cell.hidden
        flat = rows(b, pre, 4 * size)
        dw = weight_gradient(b, flat, x, b.shape_slice(x, 2, 3))
        dr = weight_gradient(b, flat, before(b, *hidden), size)
        db = b.sum(flat, (0,), keepdims=False)
        dp = ""
        if self.peepholes:
            to_i, to_o, to_f, _ = blocks(b, pre, *(size,) * 4)
            old = before(b, *cell)
            seen = beside(b, b.mul(to_i, old), b.mul(to_o, cell[1]), b.mul(to_f, old))
            dp = b.sum(seen, (0, 1), keepdims=False)
        return dw, dr, beside(b, db, db), dp
