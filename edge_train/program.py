"""Programs: a lowered graph with its sessions, bound to the memory of a state.

Program runs an eval graph. TrainingProgram adds what a step leaves behind: gradients in the Arena
(overwritten or accumulated) and moved running statistics, the latter only when the loss is finite.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace

import numpy as np

from edge_train import dtypes
from edge_train.arena import Arena
from edge_train.checkpoint.state import CheckpointState
from edge_train.errors import UnsupportedOp
from edge_train.frozen import FrozenConstants
from edge_train.graph import ir
from edge_train.graph.lowering import Lowered, LoweringRefused, accumulating, lower
from edge_train.graph.recompute_plan import Choice, check_choice, recompute_rewrite
from edge_train.graph.roles import Roles
from edge_train.graph.shapes import Shapes
from edge_train.inputs import InputSpec, as_array, label_text
from edge_train.interrupts import Unbroken
from edge_train.kernels.dispatch import fuses_graphs
from edge_train.placement import check_trainable_types
from edge_train.runner import Fed, GraphRunner
from edge_train.runtime import onnxruntime
from edge_train.session import Rewrite, unknown_ops, unsupported_text


def _lower(model: ir.Model, what: str, fused: bool) -> Lowered:
    """The lowered graph; one UnsupportedOp lists what rules refuse and what onnxruntime lacks."""
    try:
        return lower(model, fused)
    except LoweringRefused as refused:
        lines = refused.lines + unknown_ops(refused.passed, refused.model)
        raise UnsupportedOp(unsupported_text(what, lines)) from None


class Program:
    """A graph that reads the parameters of a state."""

    def __init__(
        self,
        model: ir.Model,
        state: CheckpointState,
        what: str,
        options: onnxruntime.SessionOptions | None,
        kernels: str = "auto",
    ) -> None:
        self.what = what
        self.turn = threading.RLock()  # held from the feed to the results: each has one place here
        self.roles = Roles.of(model.graph, {name for name, _ in state.parameters})
        check_trainable_types(self.roles)
        self._state = state
        self._options = options
        self._lowered = _lower(self._source(model), what, fuses_graphs(kernels))
        self._rewriter = self._rewrite()
        self._lowered = replace(self._lowered, shapes=Shapes())  # no more use for what is known
        self._runner = GraphRunner(self._run_model(), what, options, self._rewriter)
        self._lowered = self._without_constants(self._lowered)
        self._bound_to: Arena | None = None
        self.inputs = InputSpec(self.roles.user_inputs, self._lowered.labels)
        self._computed = [label for label in self._lowered.labels if label.observed]

    def _source(self, model: ir.Model) -> ir.Model:
        """The graph that is lowered."""
        return model

    def _without_constants(self, lowered: Lowered) -> Lowered:
        """What is kept of the lowered graph once a session has the constants."""
        return lowered

    def _run_model(self) -> ir.Model:
        """The lowered graph that a session is made of."""
        return self._lowered.model

    def _rewrite(self) -> Rewrite | None:
        """What is changed in the graph after onnxruntime's optimizers."""
        return None

    @property
    def results(self) -> tuple[str, ...]:
        """Names of the graph's own outputs."""
        return self._lowered.results

    def step(self, feeds: Mapping[str, Fed], arena: Arena) -> list[Fed]:
        """Runs the graph once; returns its own outputs."""
        if self._bound_to is not arena:
            self._bind(self._runner)
            self._bound_to = arena
        self._runner.run(feeds)
        if self._computed:
            self._check_computed_labels(self._runner)
        return self._runner.fetch(self.results)

    def _bind(self, runner: GraphRunner) -> None:
        for value in self.roles.parameters:
            if runner.reads(value.name):
                runner.bind_input(value.name, self._state.parameters[value.name].data)

        for value in self._lowered.model.graph.outputs:
            kind = value.elem_type or 0
            if value.name in self.results and value.dims == () and kind in dtypes.NUMPY:
                runner.bind_output(value.name, np.empty((), dtypes.NUMPY[kind]))

    def _check_computed_labels(self, runner: GraphRunner) -> None:
        for label in self._computed:
            low, high, classes = as_array(runner.fetch([label.observed])[0]).tolist()
            if low < 0 or high >= classes:
                bad = low if low < 0 else high
                raise IndexError(label_text(label.labels, bad, classes, None))


def _is_finite(loss: np.ndarray) -> bool:
    return math.isfinite(loss) if loss.ndim == 0 else bool(np.isfinite(loss).all())


class TrainingProgram(Program):
    """A training graph: results, gradients into the Arena, new running statistics."""

    @property
    def moves_statistics(self) -> bool:
        """Whether a step moves running statistics."""
        return bool(self._lowered.updates)

    def __init__(
        self,
        model: ir.Model,
        state: CheckpointState,
        options: onnxruntime.SessionOptions | None,
        kernels: str = "auto",
        recompute: Choice = "none",
        packs_frozen: bool = False,
    ) -> None:
        self._recompute = check_choice(recompute)
        self._packs_frozen = packs_frozen
        self._frozen: FrozenConstants | None = None
        super().__init__(model, state, "training graph", options, kernels)
        self._statistics: dict[str, np.ndarray] = {}
        self._adds = self._lacks_runner = False

    def _source(self, model: ir.Model) -> ir.Model:
        if self._packs_frozen:
            self._frozen = FrozenConstants.of(model, self.roles, self._state)
        return model if self._frozen is None else self._frozen.into(model)

    def _without_constants(self, lowered: Lowered) -> Lowered:
        return lowered if self._frozen is None else self._frozen.out_of(lowered)

    def hold_frozen(self) -> bool:
        """Weights that are constants of the session are written through their Parameter only;
        whether any moved for that: what is bound to the state is then to be bound anew."""
        return self._frozen is not None and self._frozen.hold()

    def _follow_frozen(self) -> None:
        """Makes the session anew if a weight that is its constant was written, or there is none."""
        if self._lacks_runner or (self._frozen is not None and self._frozen.changed()):
            self._make_runner()

    def _make_runner(self) -> None:
        """Makes the session anew, never two at a time; the next step does if this is cut short."""
        self._lacks_runner = True
        with suppress(AttributeError):
            del self._runner
        model = accumulating(self._lowered) if self._adds else self._run_model()
        if self._frozen is not None:
            model = self._frozen.into(model)
        self._runner = GraphRunner(model, self.what, self._options, self._rewriter)
        self._bound_to = None
        self._lacks_runner = False

    def _rewrite(self) -> Rewrite | None:
        lowered = self._lowered
        gradients = set(lowered.gradients.values())
        results = [v.name for v in lowered.model.graph.outputs if v.name not in gradients]
        parameters = [value.name for value in self.roles.parameters]
        return recompute_rewrite(
            lowered.model.graph, results, parameters, self._recompute, lowered.shapes
        )

    def step(self, feeds: Mapping[str, Fed], arena: Arena) -> list[Fed]:
        """One training step: the gradients replace those in the Arena, or add to them."""
        self._follow_frozen()
        if not (arena.reset or self._adds):
            self._start_adding()
        runner = self._runner
        if self._bound_to is not arena:
            self._bind_training(runner, arena)
            self._bound_to = arena
        if self._adds and arena.reset:
            arena.gradients.fill(0.0)
        with Unbroken():  # what tells of the gradients' state changes with them
            self._run_training(runner, feeds, arena)
            return self._conclude(runner.fetch(self.results), arena)

    def _run_training(self, runner: GraphRunner, feeds: Mapping[str, Fed], arena: Arena) -> None:
        try:
            runner.run(feeds)
            if self._computed:
                self._check_computed_labels(runner)
        except Exception:
            # some gradients may be new and some old: leave none, and start over
            arena.gradients.fill(0.0)
            arena.reset = True
            raise

    def _conclude(self, outputs: list[Fed], arena: Arena) -> list[Fed]:
        """What a run leaves behind besides gradients."""
        finite = _is_finite(as_array(outputs[0]))
        arena.loss_is_finite = finite and (arena.reset or arena.loss_is_finite)
        if finite and self._statistics:
            self._move_statistics()
        arena.reset = False
        return outputs

    def _bind_training(self, runner: GraphRunner, arena: Arena) -> None:
        self._bind(runner)
        self._bind_gradients(runner, arena)
        for target, output in self._lowered.updates.items():
            if target not in self._statistics:
                self._statistics[target] = np.empty_like(self._state.parameters[target].data)
            runner.bind_output(output, self._statistics[target])

    def _bind_gradients(self, runner: GraphRunner, arena: Arena) -> None:
        outputs = self._lowered.gradients
        for name, buffer in self.roles.trainable.items():
            gradient = arena.view(arena.gradients, name)
            runner.bind_output(outputs[buffer], gradient)
            if self._adds:
                runner.bind_input(buffer, gradient)

    def _start_adding(self) -> None:
        """Replaces the graph that overwrites gradients by the one that adds to them, for good: side
        by side they would keep memory for the activations twice."""
        self._adds = True
        self._make_runner()

    def _move_statistics(self) -> None:
        """All of them or none: an overflow in one belongs to a batch that is not to be learned."""
        if all(np.isfinite(values).all() for values in self._statistics.values()):
            with self._state.memory.writing():
                for name, values in self._statistics.items():
                    self._state.parameters[name].data[...] = values
