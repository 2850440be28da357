"""Optimizer: one pass of a kernel over the Arena per step, AdamW or SGD as the artifact says.

The Module leaves gradients in the Arena; the step counter and the moments belong to the
CheckpointState, so that a save at any time stores them.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar, overload

import numpy as np

from edge_train import kernels, optimizer_state
from edge_train.arena import Arena
from edge_train.checkpoint.state import CheckpointState, OptimizerGroup
from edge_train.errors import ArtifactError, CheckpointError, NominalStateError
from edge_train.graph.onnx_codec import Source
from edge_train.optimizer_spec import read_spec
from edge_train.optimizer_state import reset_group

__all__ = ["Optimizer", "reset_group"]

T = TypeVar("T")

LEARNING_RATE = "edge_train.learning_rate"  # the private property that keeps the current rate

_DEFAULT_RATE = 0.001

# A weight whose gradient stays 0 (a dead unit) lets its moments decay into subnormal numbers, where
# they stick and every step on x86-64 takes twice as long. They are zeroed long before: within 64
# steps m and v decay from these limits to no less than 1e-34, and neither moves a weight by any
# float32 amount as long as eps is not tiny itself.
_FLUSH_EVERY = 64
_FLUSH_BELOW = (2.0**-100, 2.0**-120)
_FLUSH_EPS = 1e-12
_LARGEST = float(np.finfo(np.float32).max)
_log = logging.getLogger("edge_train")


class Trained(Protocol):
    """What an Optimizer needs of a Module."""

    @property
    def state(self) -> CheckpointState: ...
    @property
    def arena(self) -> Arena: ...
    @property
    def loss_is_finite(self) -> bool: ...


def check_number(name: str, value: object) -> float:
    """``value`` as a float >= 0 that float32 can hold; TypeError, ValueError otherwise."""
    if isinstance(value, (bool, str, bytes)) or not hasattr(value, "__float__"):
        raise TypeError(f"{name} must be a number, got {value!r} of type {type(value).__name__}")
    number = float(value)
    if not 0 <= number <= _LARGEST:
        raise ValueError(f"{name} must be a finite float32 number >= 0, got {number}")
    return number


def _check_betas(name: str, value: object) -> tuple[float, float]:
    if not isinstance(value, (tuple, list)) or len(value) != 2:
        raise TypeError(f"{name} must be two numbers, got {value!r}")
    first, second = (check_number(name, beta) for beta in value)
    if not (first < 1 and second < 1):
        raise ValueError(f"{name} must be two numbers in [0, 1), got {value!r}")
    return first, second


def _check_max_norm(name: str, value: object) -> float | None:
    if value is None:
        return None
    norm = check_number(name, value)
    if norm == 0:
        raise ValueError(f"{name} must be greater than 0, or None for no clipping; got 0")
    return norm


def _check_flag(name: str, value: object) -> bool:
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{name} must be True or False, got {value!r}")
    return bool(value)


class _Setting(Generic[T]):
    """An attribute that is validated when set, and exists only if the optimizer has it."""

    def __init__(self, check: Callable[[str, object], T]) -> None:
        self._check = check
        self._name = ""

    def __set_name__(self, owner: type[Any], name: str) -> None:
        self._name = name

    @overload
    def __get__(self, instance: None, owner: type[Any]) -> _Setting[T]: ...
    @overload
    def __get__(self, instance: Optimizer, owner: type[Any]) -> T: ...
    def __get__(self, instance: Optimizer | None, owner: type[Any]) -> _Setting[T] | T:
        if instance is None:
            return self
        self._refuse_missing(instance)
        value: T = instance._settings[self._name]
        return value

    def __set__(self, instance: Optimizer, value: T) -> None:
        self._refuse_missing(instance)
        instance._settings[self._name] = self._check(self._name, value)

    def _refuse_missing(self, instance: Optimizer) -> None:
        if self._name not in instance._settings:
            raise AttributeError(f"the {instance._spec.op_type} has no {self._name}")


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

    Settable, with the artifact's values at first: ``betas`` (two numbers in [0, 1)), ``eps``,
    ``weight_decay`` (AdamW only), ``max_grad_norm`` (None: no clipping), ``skip_nonfinite``: a NaN
    or infinite loss or gradient leaves weights, moments and step counter alone and is counted in
    ``skipped_steps``.

    Moments, step counter and learning rate come from the Module's state if a checkpoint brought
    them. Several Optimizers on one state share moments and step counter.

    Raises UnsupportedOp or ArtifactError for another optimizer graph and CheckpointError for an
    optimizer state that does not fit.
    """

    betas = _Setting(_check_betas)
    eps = _Setting(check_number)
    weight_decay = _Setting(check_number)
    max_grad_norm = _Setting(_check_max_norm)
    skip_nonfinite = _Setting(_check_flag)

    def __init__(
        self, optimizer_uri: Source, module: Trained, *, skip_nonfinite: bool = True
    ) -> None:
        self._spec = spec = read_spec(optimizer_uri)
        if not hasattr(module, "state") or not hasattr(module, "loss_is_finite"):
            raise TypeError(f"module: expected a Module, got {type(module).__name__}")
        self._module = module
        self._steps = kernels.select()
        self._settings: dict[str, Any] = {
            "max_grad_norm": spec.max_grad_norm,
            "skip_nonfinite": True,
        }
        if spec.is_adamw:
            self._settings.update(betas=spec.betas, eps=spec.eps, weight_decay=spec.weight_decay)
        self.skip_nonfinite = skip_nonfinite
        self._skipped = 0
        self._learning_rate = _stored_rate(module.state)
        self._bound: OptimizerGroup | None = None
        if not module.state.is_nominal:
            self._bind()

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
        return optimizer_state.group_of(self._module.state)

    @property
    def step_count(self) -> int:
        """Updates made so far, those before the checkpoint was saved included."""
        return self.group.step

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
        group, arena, settings = self._bind(), self._module.arena, self._settings
        if settings["skip_nonfinite"] and not self._is_finite(arena):
            return False
        if settings["max_grad_norm"] is not None:
            self._steps.clip(arena.gradients, settings["max_grad_norm"])
        self._update(arena, group.step + 1)
        group.step += 1
        return True

    def reset_state(self) -> None:
        """Zero moments and step counter; the learning rate stays."""
        reset_group(self._module.state)

    def _bind(self) -> OptimizerGroup:
        # Late for a nominal state; again if the caller replaced the group.
        group = self.group
        if group is not self._bound:
            self._check_count()
            optimizer_state.bind_moments(group, self._module.arena, self._spec.moments)
            self._bound = group
        return group

    def _check_count(self) -> None:
        named, trained = self._spec.tensors, len(self._module.arena.names)
        if named is not None and named != trained:
            raise ArtifactError(
                f"the optimizer graph updates {named} tensors one by one, the training graph has "
                f"{trained} trainable parameters; pass the optimizer graph of this model"
            )

    def _is_finite(self, arena: Arena) -> bool:
        if self._module.loss_is_finite and self._steps.all_finite(arena.gradients):
            return True
        self._skipped += 1
        if self._skipped == 1:
            names = ", ".join(optimizer_state.nonfinite_names(arena)) or "none"
            _log.warning(
                "optimizer step skipped: a loss or gradient is NaN or infinite (gradients of: %s); "
                "the weights are unchanged. Further ones are counted in skipped_steps only",
                names,
            )
        return False

    def _update(self, arena: Arena, step: int) -> None:
        if not self._spec.is_adamw:
            self._steps.sgd(arena.weights, arena.gradients, self._learning_rate)
            return
        settings, spec = self._settings, self._spec
        scalars = kernels.adamw_scalars(
            self._learning_rate,
            settings["betas"],
            settings["eps"],
            settings["weight_decay"],
            step,
            mode=spec.mode,
            correct_bias=spec.correct_bias,
        )
        moments = arena.moment(0), arena.moment(1)
        if step % _FLUSH_EVERY == 0 and settings["eps"] >= _FLUSH_EPS:
            for moment, tiny in zip(moments, _FLUSH_BELOW, strict=True):
                self._steps.flush(moment, tiny)
        self._steps.adamw(arena.weights, arena.gradients, *moments, scalars)


def _stored_rate(state: CheckpointState) -> float:
    text = state.private.get(LEARNING_RATE)
    if text is None:
        return _DEFAULT_RATE
    try:
        rate = float(text)
    except ValueError:
        rate = math.nan
    if not 0 <= rate <= _LARGEST:
        raise CheckpointError(
            f"the checkpoint's property '{LEARNING_RATE}' is '{text}'; expected a number >= 0. "
            f"Remove it with del state.private['{LEARNING_RATE}'] to start from {_DEFAULT_RATE}"
        )
    return rate
