"""The optimizers: what each can be set to, and one step of it over a part of the Arena.

A rule is a row of RULES. ``prepare`` works out the scalars of a step once; what it returns is then
called for every part of the buffers, by several threads where they are large.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from edge_train import kernels
from edge_train.kernels import Steps
from edge_train.kernels.contract import Floats
from edge_train.optimizer_spec import OptimizerSpec

#: weights, gradients and moments of one part, updated in place
Update = Callable[[Floats, Floats, tuple[Floats, ...]], None]
Settings = Mapping[str, Any]


@dataclass(frozen=True)
class Rule:
    """An optimizer: the op that messages name, how many moments it keeps, its defaults.

    ``prepare(steps, settings, lr, step)`` returns the update of step number ``step``.
    """

    name: str
    moments: int
    defaults: Settings
    prepare: Callable[[Steps, Settings, float, int], Update]


def _adamw(mode: int, correct_bias: bool) -> Callable[[Steps, Settings, float, int], Update]:
    def prepare(steps: Steps, settings: Settings, lr: float, step: int) -> Update:
        scalars = kernels.adamw_scalars(
            lr,
            settings["betas"],
            settings["eps"],
            settings["weight_decay"],
            step,
            mode=mode,
            correct_bias=correct_bias,
        )
        return lambda p, g, moments: steps.adamw(p, g, moments[0], moments[1], scalars)

    return prepare


def _sgd(steps: Steps, settings: Settings, lr: float, step: int) -> Update:
    momentum, decay = settings["momentum"], settings["weight_decay"]
    if not momentum and not decay:
        return lambda p, g, moments: steps.sgd(p, g, lr)
    scalars = kernels.momentum_scalars(lr, momentum, decay, settings["nesterov"])
    return lambda p, g, moments: steps.momentum(p, g, moments[0], scalars)


def _lion(steps: Steps, settings: Settings, lr: float, step: int) -> Update:
    scalars = kernels.lion_scalars(lr, settings["betas"], settings["weight_decay"])
    return lambda p, g, moments: steps.lion(p, g, moments[0], scalars)


_SGD = {"momentum": 0.0, "nesterov": False, "weight_decay": 0.0}
_LION = {"betas": (0.9, 0.99), "weight_decay": 0.0}


def _adamw_rule(spec: OptimizerSpec) -> Rule:
    defaults = {"betas": spec.betas, "eps": spec.eps, "weight_decay": spec.weight_decay}
    return Rule("AdamWOptimizer", 2, defaults, _adamw(spec.mode, spec.correct_bias))


#: by what a user asks for; the numbers of an AdamW are those of the graph or of the op's schema
_RULES: dict[str, Callable[[OptimizerSpec], Rule]] = {
    "adamw": _adamw_rule,
    "sgd": lambda spec: Rule("SGDOptimizerV2", 1, _SGD, _sgd),
    "lion": lambda spec: Rule("Lion", 1, _LION, _lion),
}
ALGORITHMS = tuple(_RULES)


def rule_of(spec: OptimizerSpec, algorithm: str | None) -> Rule:
    """The rule an optimizer graph stands for, or the one called ``algorithm`` instead.

    TypeError, ValueError for an algorithm that is none of ALGORITHMS.
    """
    if algorithm is None:
        algorithm = "adamw" if spec.is_adamw else "sgd"
    if not isinstance(algorithm, str):
        raise TypeError(f"algorithm must be a str, got {type(algorithm).__name__}")
    if algorithm not in _RULES:
        choices = ", ".join(ALGORITHMS)
        raise ValueError(f"algorithm is '{algorithm}'; it must be one of {choices}, or None")
    return _RULES[algorithm](spec)
