"""GRUTraining and GRUGrad in standard ops.

Gates lie in the order z, r, h as in ONNX; the new values (h) are called n here. The reset gate
multiplies H before the product with R, or that product plus its bias (linear_before_reset).
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

_DEFAULTS = ("Sigmoid", "Tanh")


@lowers("GRUTraining")
def gru_training(b: Builder, node: ir.Node) -> tuple[str, ...]:
    """All H, the last H and the gates after their activations."""
    cells = cells_of(b, node, node.input(2), _DEFAULTS)
    x, linear = node.input(0), bool(node.attr("linear_before_reset", 0))
    parts = zip(*(each(b, node.input(i), 0, cells) for i in (1, 2, 3, 5)), strict=True)
    results = []
    for cell, (w, r, bias, h0) in zip(cells, parts, strict=True):
        time = Timeline(b, x, node.input(4), cell.reverse)
        own_x = time.turned(time.cleared(x))
        weights = _Weights.of(b, cell, r, bias, linear)
        product = projected(b, own_x, w, weights.outer_bias, 3 * cell.hidden)
        results.append(_forward(b, _Step(b, cell, weights), time, product, h0))
    made = zip(zip(*results, strict=True), (1, 0, 1), strict=True)
    return remembered(b, tuple(joined(b, parts, axis) for parts, axis in made))


@dataclass(frozen=True)
class _Weights:
    """R and the biases of one direction; ``linear``: linear_before_reset."""

    linear: bool
    r: str
    outer_bias: str  # added to x W^T
    inner_bias: str  # added to H R^T

    @staticmethod
    def of(b: Builder, cell: Cell, r: str, bias: str, linear: bool) -> _Weights:
        """Without ``linear`` both biases are added to the same sums."""
        outer = inner = ""
        if bias:
            outer, inner = blocks(b, bias, *(3 * cell.hidden,) * 2)
        if bias and not linear:
            outer, inner = b.add(outer, inner), ""
        return _Weights(linear, r, outer, inner)

    def of_gates(self, b: Builder, hidden: int) -> tuple[str, str]:
        """R of z and r (2H, H), and R of the new values (H, H)."""
        zr, n = b.ops("Split", self.r, b.ints(2 * hidden, hidden), n=2, axis=0)
        return zr, n


def _forward(
    b: Builder, step: _Step, time: Timeline, product: str, h0: str
) -> tuple[str, str, str]:
    hidden = step.cell.hidden
    sequences = list(blocks(b, product, 2 * hidden, hidden))
    sequences += [time.real] if time.real else []
    first = state_or_zeros(b, h0, product, hidden)
    (last,), (h, zr, n) = b.scan(step, [first], sequences)
    h, zrh = (time.turned(time.masked(sequence)) for sequence in (h, beside(b, zr, n)))
    return h, time.none_if_empty(last), zrh


class _Step:
    """The body of the forward Scan: h and x W^T + bias to the next h and the gates."""

    def __init__(self, b: Builder, cell: Cell, weights: _Weights) -> None:
        self.b = b
        self.cell = cell
        self._weights = weights
        self._parts = ("", "") if weights.linear else weights.of_gates(b, cell.hidden)

    def __call__(
        self, states: Sequence[str], slices: Sequence[str]
    ) -> tuple[Sequence[str], Sequence[str]]:
        b, (h,), (x_zr, x_n, *real) = self.b, states, slices
        gates = self._linear if self._weights.linear else self._reset
        zr, z, n = gates(h, x_zr, x_n)
        new = b.add(n, b.mul(z, b.sub(h, n)))
        kept = b.where(real[0], new, h) if real else new  # behind the end the state stays
        return [kept], [new, zr, n]

    def _linear(self, h: str, x_zr: str, x_n: str) -> tuple[str, str, str]:
        b, hidden = self.b, self.cell.hidden
        f_of, g_of = self.cell.activations
        bias = filter(None, [self._weights.inner_bias])
        product = b.op("Gemm", h, self._weights.r, *bias, transB=1)
        h_zr, h_n = blocks(b, product, 2 * hidden, hidden)
        zr = f_of(b, b.add(x_zr, h_zr))
        z, r = blocks(b, zr, hidden, hidden)
        return zr, z, g_of(b, b.add(x_n, b.mul(r, h_n)))

    def _reset(self, h: str, x_zr: str, x_n: str) -> tuple[str, str, str]:
        b, hidden = self.b, self.cell.hidden
        f_of, g_of = self.cell.activations
        r_zr, r_n = self._parts
        zr = f_of(b, b.op("Gemm", h, r_zr, x_zr, transB=1))
        z, r = blocks(b, zr, hidden, hidden)
        return zr, z, g_of(b, b.op("Gemm", b.mul(r, h), r_n, x_n, transB=1))


@lowers("GRUGrad")
def gru_grad(b: Builder, node: ir.Node) -> tuple[str, ...]:
    """dX, dW, dR, dB and dH0 from dH of all steps and of the last one."""
    cells = cells_of(b, node, node.input(2), _DEFAULTS)
    x, lens, dh_all = node.input(0), node.input(4), node.input(8)
    h_all, gates = (as_computed(b, node, i) for i in (6, 7))
    if not (h_all and gates):
        raise Refuse("hidden states or gates of the forward op are not given")
    by_axis = [(node.input(i), 0) for i in (1, 2, 3, 5, 9)] + [(h_all, 1), (gates, 1), (dh_all, 1)]
    parts = zip(*(each(b, name, axis, cells) for name, axis in by_axis), strict=True)
    linear, results = bool(node.attr("linear_before_reset", 0)), []
    for cell, (w, r, bias, *states, h, zrh, dh) in zip(cells, parts, strict=True):
        time = Timeline(b, x, lens, cell.reverse)
        own_x = time.turned(time.cleared(x))
        h0, dh_last = (state_or_zeros(b, state, own_x, cell.hidden) for state in states)
        old = before(b, h0, time.turned(h))
        run = _Backward(b, cell, time, _Weights.of(b, cell, r, bias, linear), old)
        back = run.linear if linear else run.reset
        dh = time.turned(time.cleared(dh))
        last = time.none_if_empty(dh_last)
        first, pre, of_r, inner = back(run.factors(time.turned(zrh)), dh, last)
        weights = run.weights(pre, own_x, inner)
        results.append((time.turned(b.op("MatMul", pre, w)), *weights, of_r, first))
    dx, dw, db, dr, dh0 = zip(*results, strict=True)
    total = dx[0] if len(dx) == 1 else b.add(*dx)
    return (total, *(joined(b, made, 0) for made in (dw, dr, db, dh0)))


@dataclass(frozen=True)
class _Factors:
    """The gates of all steps, and what the gradients are multiplied by, each (T, B, H).

    d z = dh * ``to_z``;  d n = dh * ``to_n``;  ``slope_r``: derivative of the reset gate.
    """

    z: str
    r: str
    to_z: str
    to_n: str
    slope_r: str


#: dH0, gradients of the sums that x W^T is part of (T, B, 3H), dR, dB of its recurrent half or ""
_Result = tuple[str, str, str, str]


@dataclass(frozen=True)
class _Backward:
    """One direction of GRUGrad; ``h``: the states that the steps begin with."""

    b: Builder
    cell: Cell
    time: Timeline
    w: _Weights
    h: str

    def factors(self, zrh: str) -> _Factors:
        """A padded step hands its gradient on: z = 1, and no gate gets any."""
        b, hidden = self.b, self.cell.hidden
        f_of, g_of = self.cell.activations
        zr, n = blocks(b, zrh, 2 * hidden, hidden)
        (z, r), (dz, slope_r) = (blocks(b, v, hidden, hidden) for v in (zr, f_of.slope(b, zr)))
        to_z = b.mul(b.sub(self.h, n), dz)
        to_n = b.mul(b.sub(1.0, z), g_of.slope(b, n))
        if self.time.real:
            z = b.where(self.time.real, z, 1.0)
        return _Factors(z, r, self.time.masked(to_z), self.time.masked(to_n), slope_r)

    def linear(self, factors: _Factors, dh_all: str, last: str) -> _Result:
        """n = g(x W^T + r * (H R^T + bias)): every gradient is a multiple of dh."""
        b, hidden = self.b, self.cell.hidden
        bias = blocks(b, self.w.inner_bias, 2 * hidden, hidden)[1] if self.w.inner_bias else ""
        product = projected(b, self.h, self.w.of_gates(b, hidden)[1], bias, hidden)
        to_r = b.mul(b.mul(factors.to_n, product), factors.slope_r)
        gates = beside(b, factors.to_z, to_r, b.mul(factors.to_n, factors.r))

        def step(states: Sequence[str], slices: Sequence[str]) -> tuple[list[str], list[str]]:
            (dh,), (gates, z, *more) = states, slices
            dh = b.add(dh, more[0]) if more else b.op("Identity", dh)
            inner = b.mul(beside(b, dh, dh, dh), gates)
            return [b.op("Gemm", inner, self.w.r, b.mul(dh, z))], [inner, dh]

        sequences = [gates, factors.z, *filter(None, [dh_all])]
        (first,), (inner, dh) = b.scan(step, [last], sequences, backwards=True)
        zr, _ = blocks(b, inner, 2 * hidden, hidden)
        pre, flat = beside(b, zr, b.mul(dh, factors.to_n)), rows(b, inner, 3 * hidden)
        dr = weight_gradient(b, flat, self.h, hidden)
        return first, pre, dr, b.sum(flat, (0,), keepdims=False)

    def reset(self, factors: _Factors, dh_all: str, last: str) -> _Result:
        """n = g(x W^T + (r * H) R^T): the reset gate's gradient comes through R."""
        b, hidden = self.b, self.cell.hidden
        r_zr, r_n = self.w.of_gates(b, hidden)
        to_r = b.mul(self.h, factors.slope_r)

        def step(states: Sequence[str], slices: Sequence[str]) -> tuple[list[str], list[str]]:
            (dh,), (z, r, to_z, to_n, to_r, *more) = states, slices
            dh = b.add(dh, more[0]) if more else dh
            n = b.mul(dh, to_n)
            through = b.op("Gemm", n, r_n)
            zr = beside(b, b.mul(dh, to_z), b.mul(through, to_r))
            rest = b.add(b.mul(dh, z), b.mul(through, r))
            return [b.op("Gemm", zr, r_zr, rest)], [zr, n]

        sequences = [factors.z, factors.r, factors.to_z, factors.to_n, to_r]
        sequences += [dh_all] if dh_all else []
        (first,), (zr, n) = b.scan(step, [last], sequences, backwards=True)
        of_zr = weight_gradient(b, rows(b, zr, 2 * hidden), self.h, hidden)
        of_n = weight_gradient(b, rows(b, n, hidden), b.mul(factors.r, self.h), hidden)
        return first, beside(b, zr, n), b.op("Concat", of_zr, of_n, axis=0), ""

    def weights(self, pre: str, x: str, inner: str) -> tuple[str, str]:
        """dW and dB."""
        b = self.b
        flat = rows(b, pre, 3 * self.cell.hidden)
        dw = weight_gradient(b, flat, x, b.shape_slice(x, 2, 3))
        outer = b.sum(flat, (0,), keepdims=False)
        return dw, beside(b, outer, inner or outer)
