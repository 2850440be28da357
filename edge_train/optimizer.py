"""Optimizer: one pass of a kernel over the Arena per step, AdamW or SGD as the artifact says.

The Module leaves gradients in the Arena; the step counter and the moments belong to the
CheckpointState, so that a save at any time stores them.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

from edge_train import fused_optimizer, kernels, optimizer_state
from edge_train.arena import Arena
from edge_train.arena_memory import Floats
from edge_train.checkpoint.state import CheckpointState, OptimizerGroup
from edge_train.errors import NominalStateError
from edge_train.graph.onnx_codec import Source
from edge_train.kernels import pool
from edge_train.optimizer_fit import check_tensors
from edge_train.optimizer_settings import (
    Setting,
    check_betas,
    check_flag,
    check_max_norm,
    check_momentum,
    check_number,
)
from edge_train.optimizer_spec import read_spec
from edge_train.optimizer_state import LEARNING_RATE, reset_group, stored_rate
from edge_train.packed_moments import PackedMoments, form_of
from edge_train.session import thread_count
from edge_train.update_rules import prepare_for, rule_of

T = TypeVar("T")

__all__ = ["Optimizer", "check_number", "reset_group"]

# A weight whose gradient stays 0 (a dead unit) lets its moments decay into subnormal numbers, where
# they stick and every step on x86-64 takes twice as long. They are zeroed long before: within 64
# steps m and v decay from these limits to no less than 1e-34, and neither moves a weight by any
# float32 amount as long as eps is not tiny itself. (Lion's sign of such an m is noise.)
_FLUSH_EVERY = 64
_FLUSH_BELOW = (2.0**-100, 2.0**-120)
_FLUSH_EPS = 1e-12
_log = logging.getLogger("edge_train")


class Trained(Protocol):
    """What an Optimizer needs of a Module."""

    @property
    def state(self) -> CheckpointState: ...
    @property
    def arena(self) -> Arena: ...
    @property
    def loss_is_finite(self) -> bool: ...


class _Bound(NamedTuple):
    """What a step works on; ``packed``: moments of 8 bits."""

    group: OptimizerGroup
    arena: Arena
    packed: PackedMoments | None


class Optimizer:
    """Updates a Module's trainable parameters from the gradients its training steps left.

    ``optimizer_uri`` is the optimizer_model.onnx (path or bytes): AdamW (adam_mode 0 or 1) or SGD,
    optionally with clipping of the gradients' global norm. With t the step, counted from 1:

    AdamW (Loshchilov & Hutter 2019; moments of Kingma & Ba 2015)::

        m = b1 m + (1 - b1) g            c1 = 1 - b1^t
        v = b2 v + (1 - b2) g^2          c2 = 1 - b2^t
        mode 1: w = w - lr sqrt(c2) / c1 m / (sqrt(v) + eps), then w = w - lr wd w
        mode 0: w = w - lr wd w, then w = w - lr m / (c1 (sqrt(v / c2) + eps))

    SGD: ``w = w - lr g``. Clipping, in place on the gradients (Pascanu et al. 2013):
    ``g = g min(1, max_grad_norm / (norm + 1e-6))``.

    ``algorithm`` asks for another optimizer than the graph's: "adamw", "sgd" or "lion". SGD with
    ``momentum`` mu and weight decay (Sutskever et al. 2013, in PyTorch's form)::

        d = g + wd w;  m = mu m + d;  w = w - lr m, with ``nesterov`` w = w - lr (d + mu m)

    Lion (Chen et al. 2023), whose rate is a third to a tenth of AdamW's::

        c = b1 m + (1 - b1) g;  m = b2 m + (1 - b2) g;  w = w - lr wd w, then w = w - lr sign(c)

    ``moments="8bit"`` keeps AdamW's m and v in 8 bits each (2.1 instead of 8 bytes a parameter);
    in a checkpoint they are float32 moments as ever, and a resumed run goes on bit for bit.

    Settable, with the artifact's values at first: ``betas`` (two numbers in [0, 1)) and ``eps`` of
    AdamW, ``betas`` of Lion (0.9, 0.99), ``momentum`` (0) and ``nesterov`` (False) of SGD,
    ``weight_decay``, ``max_grad_norm`` (None: no clipping), ``skip_nonfinite``: a NaN or infinite
    loss or gradient leaves weights, moments and step counter alone and is counted in
    ``skipped_steps``.

    Moments, step counter and learning rate come from the Module's state if a checkpoint brought
    them. Several Optimizers on one state share moments and step counter.

    Raises UnsupportedOp or ArtifactError for another optimizer graph and CheckpointError for an
    optimizer state that does not fit.
    """

    betas = Setting(check_betas)
    eps = Setting(check_number)
    momentum = Setting(check_momentum)
    nesterov = Setting(check_flag)
    weight_decay = Setting(check_number)
    max_grad_norm = Setting(check_max_norm)
    skip_nonfinite = Setting(check_flag)

    def __init__(
        self,
        optimizer_uri: Source,
        module: Trained,
        *,
        algorithm: str | None = None,
        moments: str = "float32",
        skip_nonfinite: bool = True,
    ) -> None:
        self._spec = spec = read_spec(optimizer_uri)
        self._rule = rule = rule_of(spec, algorithm)
        self._prepare8 = prepare_for(moments, rule)
        self._label = rule.name
        if not hasattr(module, "state") or not hasattr(module, "loss_is_finite"):
            raise TypeError(f"module: expected a Module, got {type(module).__name__}")
        self._module = module
        self._steps = kernels.select()
        self._threads = thread_count()
        self._settings: dict[str, Any] = {
            "max_grad_norm": spec.max_grad_norm,
            "skip_nonfinite": True,
            **rule.defaults,
        }
        self.skip_nonfinite = skip_nonfinite
        self._skipped = 0
        self._learning_rate = stored_rate(module.state)
        self._bound: _Bound | None = None
        if not module.state.is_nominal:
            self._bind()
        elif (layout := getattr(module, "parameter_layout", None)) is not None:
            check_tensors(spec, {slot.name: slot.shape for slot in layout(trainable_only=True)})
        self._fused = fused_optimizer.attached(self, module)

    def __setattr__(self, name: str, value: object) -> None:
        """Refuses names that mean nothing here: a mistyped setting would change nothing."""
        if not name.startswith("_") and not hasattr(type(self), name):
            settings = [*self._settings, "set_learning_rate(...)"]
            raise AttributeError(f"an Optimizer has no setting '{name}'; it has {settings}")
        super().__setattr__(name, value)

    @property
    def state(self) -> CheckpointState:
        """The state of the Module that this optimizer trains."""
        return self._module.state

    @property
    def group(self) -> OptimizerGroup:
        """The optimizer state: step counter, initial rate, moments by parameter."""
        self._module.state.memory.to_host()
        return optimizer_state.group_of(self._module.state)

    @property
    def step_count(self) -> int:
        """Updates made so far, those before the checkpoint was saved included."""
        return optimizer_state.group_of(self._module.state).step

    @property
    def skipped_steps(self) -> int:
        """Steps left out because of a NaN or infinity, since this object was made."""
        return self._skipped

    def get_learning_rate(self) -> float:
        """The current rate: as last set, or from the checkpoint, or 0.001."""
        return self._learning_rate

    def set_learning_rate(self, learning_rate: float) -> None:
        """Sets the rate and keeps it in the state; ValueError unless finite and >= 0.

        The arithmetic of a step uses it rounded to float32.
        """
        self._learning_rate = check_number("learning_rate", learning_rate)
        self._module.state.private[LEARNING_RATE] = repr(self._learning_rate)

    def step(self) -> bool:
        """One update in place from the gradients; returns whether it was made.

        False: ``skip_nonfinite`` is on and a loss or gradient since the last gradient reset is NaN
        or infinite. Raises NominalStateError before a nominal state is filled.
        """
        if self._module.state.is_nominal:
            raise NominalStateError(
                "the optimizer cannot step: the state is nominal (names without data); fill it "
                "first with Module.copy_buffer_to_parameters(buffer, trainable_only=False)"
            )
        if self._fused is not None:
            return self._fused.result()
        bound = self._bind()
        factor = self._clip_factor(bound.arena)
        if factor is None:
            return False
        with bound.arena.memory.writing():  # the count too: moments and weights go by it
            self._update(bound, factor)
            bound.group.step += 1
        return True

    def reset_state(self) -> None:
        """Zero moments and step counter; the learning rate stays."""
        reset_group(self._module.state)

    def _bind(self) -> _Bound:
        # Late for a nominal state; again if somebody replaced the group or the moments' form, or
        # threw the moments away.
        state, bound = self._module.state, self._bound
        group, arena = optimizer_state.group_of(state), state.arena
        if arena is None or bound is None or bound.arena is not arena:
            arena = self._module.arena  # which checks that it is the Module's own
        if (
            bound is not None
            and bound.group is group
            and bound.arena is arena
            and bound.packed is form_of(group)
            and group.moments
        ):
            return bound
        check_tensors(self._spec, {name: arena.shape(name) for name in arena.names})
        packed: PackedMoments | None = None
        if self._prepare8 is not None:
            packed = optimizer_state.pack_moments(group, arena)
        else:
            optimizer_state.bind_moments(group, arena, self._rule.moments)
        self._bound = bound = _Bound(group, arena, packed)
        return bound

    def _clip_factor(self, arena: Arena) -> float | None:
        """What the gradients are to be scaled by; None: the step is skipped."""
        steps, gradients = self._steps, arena.gradients
        skips, max_norm = self._settings["skip_nonfinite"], self._settings["max_grad_norm"]
        factor, finite = 1.0, self._module.loss_is_finite
        if max_norm is not None:
            # the sum of squares in double tells of NaN and infinity too: one pass for both
            parts = pool.pieces(arena.size)
            squares = sum(self._each(lambda at: steps.squares(gradients[at]), parts, False))
            _, factor = kernels.clip_factor(squares, max_norm)
            finite = finite and math.isfinite(squares)
        elif skips and finite:
            finite = self._all_finite(arena)
        if skips and not finite:
            self.note_skip(optimizer_state.nonfinite_names(arena))
            return None
        return factor

    def _all_finite(self, arena: Arena) -> bool:
        steps, gradients = self._steps, arena.gradients
        if self._is_alone(arena):
            return steps.all_finite(gradients)
        parts = pool.pieces(arena.size)
        return all(self._each(lambda at: steps.all_finite(gradients[at]), parts, True))

    def _is_alone(self, arena: Arena) -> bool:
        """Whether there is nobody to share a pass with, or nothing to share."""
        return self._threads == 1 or arena.size <= pool.PIECE

    def note_skip(self, gradients: Iterable[str]) -> None:
        """Counts a step that was left out; the first one is logged with what was not finite."""
        self._skipped += 1
        if self._skipped == 1:
            names = ", ".join(gradients) or "none"
            _log.warning(
                "optimizer step skipped: a loss or gradient is NaN or infinite (gradients of: %s); "
                "the weights are unchanged. Further ones are counted in skipped_steps only",
                names,
            )

    def begin_pass(self, arena: Arena) -> fused_optimizer.FusedPass:
        """The updates of a training step that are made while it runs (``fuse_optimizer=True``)."""
        bound, skips = self._bind(), self._settings["skip_nonfinite"]
        work = self._part_update(bound)
        return fused_optimizer.FusedPass(
            arena, self._steps, bound.group, work, skips, self._threads
        )

    def _update(self, bound: _Bound, factor: float) -> None:
        """Scales, flushes and updates part by part, while a part is in the cache."""
        arena, packed = bound.arena, bound.packed
        gradients, update = arena.gradients, self._part_update(bound)
        if factor == 1.0 and self._is_alone(arena):
            update(slice(0, arena.size), gradients)
            return
        steps = arena.memory.steps(self._steps)

        def work(at: slice) -> None:
            g = gradients[at]
            if factor != 1.0:
                steps.scale(g, factor)
            update(at, g)

        parts: Sequence[slice] = pool.pieces(arena.size) if packed is None else packed.parts
        if steps is not self._steps and packed is None:
            parts = (slice(0, arena.size),)  # a device of its own takes the buffers whole
        self._each(work, parts, factor == 1.0)

    def _each(self, work: Callable[[slice], T], parts: Sequence[slice], joins: bool) -> list[T]:
        return pool.shared(self._threads).each(work, parts, joins)

    def _part_update(self, bound: _Bound) -> fused_optimizer.PartUpdate:
        """What flushes and updates a part of the arena, given the gradients of that part."""
        group, arena, packed = bound
        step = group.step + 1
        weights, settings, steps = arena.weights, self._settings, self._steps
        if packed is not None and self._prepare8 is not None:
            packed.settle()
            codes = packed.packed
            update8 = self._prepare8(steps, settings, self._learning_rate, step)
            return lambda at, g: update8(weights[at], g, codes, at)
        steps = arena.memory.steps(steps)
        moments = tuple(map(arena.moment, range(self._rule.moments)))
        update = self._rule.prepare(steps, settings, self._learning_rate, step)
        flushed = step % _FLUSH_EVERY == 0 and settings.get("eps", 1.0) >= _FLUSH_EPS
        flushed = flushed and settings.get("momentum", 1.0) > 0  # else nobody reads the moment

        def work(at: slice, g: Floats) -> None:
            parts = tuple([moment[at] for moment in moments])
            if flushed:
                for moment, tiny in zip(parts, _FLUSH_BELOW, strict=False):
                    steps.flush(moment, tiny)
            update(weights[at], g, parts)

        return work
