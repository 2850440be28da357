"""Connectionist temporal classification: the loss of a sequence against an unaligned shorter one.

Written in standard ops: a Scan over the time steps, in logarithms.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import TensorProto, helper

from edge_train import dtypes
from edge_train.errors import ArtifactError
from edge_train.onnxblock import blocks, graphs
from edge_train.onnxblock.loss.base import Loss

#: the logarithm of nothing; finite, so that 0 times it is 0
_NEVER = -1e30


class CTCLoss(Loss):
    """-log of the probability of the targets, summed over all alignments, as in PyTorch.

    Inputs: log-probabilities (T, N, C), after LogSoftmax, (N, T, C) with ``batch_first``; targets
    (N, L) INT64, padded with anything; input_lengths and target_lengths (N,) INT64. "mean" divides
    each sample's value by its target's length. ``zero_infinity``: samples whose targets do not fit
    into their inputs count 0 instead of infinity.
    """

    def __init__(
        self,
        blank: int = 0,
        reduction: str = "mean",
        zero_infinity: bool = False,
        batch_first: bool = False,
    ) -> None:
        super().__init__(reduction)
        self._blank = blank
        self._zero_infinity = zero_infinity
        self._batch_first = batch_first

    def build(
        self,
        log_probs_name: str,
        targets_name: str = "targets",
        input_lengths_name: str = "input_lengths",
        target_lengths_name: str = "target_lengths",
    ) -> str:
        """Returns the loss; targets and lengths are inputs unless they exist."""
        if graphs.opset_of(self.base) < 13:
            raise ArtifactError("CTCLoss needs opset 13: convert the model first")
        elem_type, dims = graphs.type_of(self.base, log_probs_name)
        if dims is not None and len(dims) != 3:
            raise ArtifactError(f"CTCLoss: '{log_probs_name}' has shape {dims}; expected (T, N, C)")
        batch = None if dims is None else dims[0 if self._batch_first else 1]
        self._input(targets_name, (batch, "target_length"))
        self._input(input_lengths_name, (batch,))
        self._input(target_lengths_name, (batch,))
        log_probs = log_probs_name
        if elem_type not in (None, dtypes.FLOAT):
            log_probs = str(blocks.Cast(TensorProto.FLOAT)(log_probs))
        if self._batch_first:
            log_probs = self._add_node("Transpose", [log_probs], perm=[1, 0, 2])
        return self._loss(log_probs, targets_name, input_lengths_name, target_lengths_name)

    def _input(self, name: str, dims: tuple[Any, ...]) -> None:
        if not graphs.node_arg_exists(self.base, name):
            self.base.graph.input.append(graphs.value_info(name, dtypes.INT64, dims))

    def _loss(self, log_probs: str, targets: str, times: str, sizes: str) -> str:
        labels = self._labels(targets)  # (N, S)
        length = self._op("Unsqueeze", sizes, self._ints(1))  # (N, 1)
        double = self._op("Mul", length, self._int(2))
        position = self._range(self._op("Gather", self._op("Shape", labels), self._int(1)))
        valid = self._op("LessOrEqual", position, double)
        labels = self._op("Where", valid, labels, self._int(self._blank))
        first = self._op("And", valid, self._op("Equal", position, self._int(0)))
        start = self._op("Where", first, self._float(0.0), self._float(_NEVER))
        last = self._scan(
            start,
            self._emissions(log_probs, labels),
            self._active(log_probs, times),
            self._skips(labels, position),
            position,
        )
        before = self._op("Equal", position, self._op("Sub", double, self._int(1)))
        end = self._op("Or", before, self._op("Equal", position, double))
        return self._finished(self._op("Where", end, last, self._float(_NEVER)), sizes)

    def _finished(self, ends: str, sizes: str) -> str:
        """-log sum exp over the states that may be the last, then the reduction."""
        most = self._reduce("ReduceMax", ends, [1], keepdims=True)
        powers = self._op("Exp", self._op("Sub", ends, most))
        total = self._op("Log", self._reduce("ReduceSum", powers, [1], keepdims=True))
        column = self._op("Neg", self._op("Add", most, total))
        values = self._op("Squeeze", column, self._ints(1))
        impossible = self._op("Greater", values, self._float(-_NEVER / 10))
        instead = self._float(0.0 if self._zero_infinity else np.inf)
        values = self._op("Where", impossible, instead, values)
        if self._reduction == "mean":
            least = self._op("Max", sizes, self._int(1))
            values = self._op("Div", values, str(blocks.Cast(TensorProto.FLOAT)(least)))
        return self._reduced(values)

    def _labels(self, targets: str) -> str:
        """(N, L) -> (N, 2L + 1): a blank before, between and behind the targets."""
        zeros = self._op("Mul", targets, self._int(0))
        blanks = self._op("Add", zeros, self._int(self._blank))
        pairs = [self._op("Unsqueeze", x, self._ints(2)) for x in (blanks, targets)]
        mixed = self._op("Concat", *pairs, axis=2)
        flat = self._op("Flatten", mixed, axis=1)
        ends = self._reduce("ReduceSum", zeros, [1], keepdims=True)
        return self._op("Concat", flat, self._op("Add", ends, self._int(self._blank)), axis=1)

    def _emissions(self, log_probs: str, labels: str) -> str:
        """(T, N, S): the log-probability of each label at each time."""
        times = self._op("Slice", self._op("Shape", log_probs), self._ints(0), self._ints(1))
        shape = self._op("Concat", times, self._ints(1, 1), axis=0)
        index = self._op("Expand", self._op("Unsqueeze", labels, self._ints(0)), shape)
        return self._op("GatherElements", log_probs, index, axis=2)

    def _active(self, log_probs: str, times: str) -> str:
        """(T, N, 1): whether a sample's input still goes on."""
        count = self._op("Gather", self._op("Shape", log_probs), self._int(0))
        clock = self._op("Unsqueeze", self._range(count), self._ints(1, 2))
        return self._op("Less", clock, self._op("Unsqueeze", times, self._ints(1)))

    def _skips(self, labels: str, position: str) -> str:
        """(N, S): whether the blank before a label may be skipped."""
        ends = (self._ints(-2), self._ints(1))
        shifted = self._op("Slice", labels, self._ints(0), *ends)
        head = self._op(
            "Mul", self._op("Slice", labels, self._ints(0), self._ints(2), ends[1]), self._int(0)
        )
        shifted = self._op("Concat", head, shifted, axis=1)
        repeats = self._op("Equal", labels, shifted)
        is_blank = self._op("Equal", labels, self._int(self._blank))
        hindered = self._op(
            "Or", self._op("Or", repeats, is_blank), self._op("Less", position, self._int(2))
        )
        return self._op("Not", hindered)

    def _scan(self, start: str, emissions: str, active: str, skips: str, position: str) -> str:
        """The last state (N, S): log of the sum over all paths that end in each position."""
        one, two = (self._shift(position, by) for by in (1, 2))
        edge = self._op("Equal", position, self._int(0))
        edge = self._op("Where", edge, self._float(_NEVER), self._float(0.0))
        names = [graphs.generate_graph_name("ctc") for _ in range(3)]
        state, emission, goes_on = names
        body = _Body()
        stay, never = state, self._float(_NEVER)
        step = body.add("Add", body.add("MatMul", state, one), edge)
        jump = body.add("Where", skips, body.add("MatMul", state, two), never)
        most = body.add("Max", stay, step, jump)
        powers = [body.add("Exp", body.add("Sub", way, most)) for way in (stay, step, jump)]
        total = body.add("Log", body.add("Add", body.add("Add", *powers[:2]), powers[2]))
        moved = body.add("Add", body.add("Add", most, total), emission)
        after = body.add("Where", goes_on, moved, state)
        kinds = (TensorProto.FLOAT, TensorProto.FLOAT, TensorProto.BOOL)
        inputs = [
            graphs.value_info(name, kind, (None, None))
            for name, kind in zip(names, kinds, strict=True)
        ]
        end = graphs.value_info(after, TensorProto.FLOAT, (None, None))
        graph = helper.make_graph(body.nodes, "ctc_step", inputs, [end])
        return self._op("Scan", start, emissions, active, body=graph, num_scan_inputs=2)

    def _shift(self, position: str, by: int) -> str:
        """(S, S): the matrix that moves a state ``by`` positions on."""
        from_, to = (self._op("Unsqueeze", position, self._ints(axis)) for axis in (1, 0))
        moves = self._op("Equal", self._op("Sub", to, from_), self._int(by))
        return str(blocks.Cast(TensorProto.FLOAT)(moves))

    def _op(self, op_type: str, *inputs: str, **attributes: Any) -> str:
        return self._add_node(op_type, inputs, None, None, **attributes)

    def _int(self, value: int) -> str:
        return self._add_initializer("ctc.int", value, dtypes.INT64)

    def _ints(self, *values: int) -> str:
        return self._add_initializer("ctc.ints", list(values), dtypes.INT64)

    def _float(self, value: float) -> str:
        return self._add_initializer("ctc.float", value)

    def _range(self, count: str) -> str:
        return self._op("Range", self._int(0), count, self._int(1))


class _Body:
    """Nodes of the graph of one time step."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []

    def add(self, op_type: str, *inputs: str) -> str:
        output = graphs.generate_graph_name(f"{op_type.lower()}_output")
        name = graphs.generate_graph_name(op_type)
        self.nodes.append(helper.make_node(op_type, list(inputs), [output], name=name))
        return output
