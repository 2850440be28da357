"""The optimizers: what each can be set to, and one step of it over a part of the Arena.

A rule is a row of RULES. ``prepare`` works out the scalars of a step once; what it returns is then
called for every part of the buffers, by several threads where they are large.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from edge_train import kernels
from edge_train.kernels import AdamWScalars, Packed, Steps, adamw_scalars
from edge_train.kernels.packed import Floats
from edge_train.optimizer_spec import OptimizerSpec

#: weights, gradients and moments of one part, updated in place
Update = Callable[[Floats, Floats, tuple[Floats, ...]], None]
#: the same for 8-bit moments: those of the whole buffers, and which part it is
Update8 = Callable[[Floats, Floats, Packed, slice], None]
Settings = Mapping[str, Any]
#: kernels, settings, rate and number of a step -> its update
Prepare = Callable[[Steps, Settings, float, int], Update]
Prepare8 = Callable[[Steps, Settings, float, int], Update8]


@dataclass(frozen=True)
class Rule:
    """An optimizer: the op that messages name, how many moments it keeps, its defaults.

    ``prepare(steps, settings, lr, step)`` returns the update of step number ``step``, ``prepare8``
    that on moments of 8 bits, None where there are none.
    """

    name: str
    moments: int
    defaults: Settings
    prepare: Prepare
    prepare8: Prepare8 | None = None


def _adamw_rule(spec: OptimizerSpec) -> Rule:
    mode, correct_bias = spec.mode, spec.correct_bias

    def scalars(settings: Settings, lr: float, step: int) -> AdamWScalars:
        betas, eps, decay = settings["betas"], settings["eps"], settings["weight_decay"]
        return adamw_scalars(lr, betas, eps, decay, step, mode=mode, correct_bias=correct_bias)

    def prepare(steps: Steps, settings: Settings, lr: float, step: int) -> Update:
        s = scalars(settings, lr, step)
        return lambda p, g, moments: steps.adamw(p, g, moments[0], moments[1], s)

    def prepare8(steps: Steps, settings: Settings, lr: float, step: int) -> Update8:
        s = kernels.adamw8_scalars(scalars(settings, lr, step), step)
        return lambda p, g, moments, at: steps.adamw8(p, g, moments, at, s)

    defaults = {"betas": spec.betas, "eps": spec.eps, "weight_decay": spec.weight_decay}
    return Rule("AdamWOptimizer", 2, defaults, prepare, prepare8)


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


def prepare_for(moments: str, rule: Rule) -> Prepare8 | None:
    """What prepares steps on moments of 8 bits; None for float32.

    TypeError, ValueError where there is no such form of the rule's moments.
    """
    if not isinstance(moments, str):
        raise TypeError(f"moments must be a str, got {type(moments).__name__}")
    if moments not in ("float32", "8bit"):
        raise ValueError(f"moments is '{moments}'; it must be float32 or 8bit")
    if moments == "8bit" and rule.prepare8 is None:
        raise ValueError(f"moments='8bit' is for AdamW only; the {rule.name} keeps float32 moments")
    return rule.prepare8 if moments == "8bit" else None
