"""Settings of an Optimizer: attributes that are validated when set.

Which of them an optimizer has is its rule's matter (update_rules.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar, overload

import numpy as np

T = TypeVar("T")

LARGEST = float(np.finfo(np.float32).max)


class Configured(Protocol):
    """What a Setting is an attribute of: a name for messages, the values by name."""

    @property
    def _label(self) -> str: ...
    @property
    def _settings(self) -> dict[str, Any]: ...


def check_number(name: str, value: object) -> float:
    """``value`` as a float >= 0 that float32 can hold; TypeError, ValueError otherwise."""
    if isinstance(value, (bool, str, bytes)) or not hasattr(value, "__float__"):
        raise TypeError(f"{name} must be a number, got {value!r} of type {type(value).__name__}")
    number = float(value)
    if not 0 <= number <= LARGEST:
        raise ValueError(f"{name} must be a finite float32 number >= 0, got {number}")
    return number


def check_betas(name: str, value: object) -> tuple[float, float]:
    if not isinstance(value, (tuple, list)) or len(value) != 2:
        raise TypeError(f"{name} must be two numbers, got {value!r}")
    first, second = (check_number(name, beta) for beta in value)
    if not (first < 1 and second < 1):
        raise ValueError(f"{name} must be two numbers in [0, 1), got {value!r}")
    return first, second


def check_max_norm(name: str, value: object) -> float | None:
    if value is None:
        return None
    norm = check_number(name, value)
    if norm == 0:
        raise ValueError(f"{name} must be greater than 0, or None for no clipping; got 0")
    return norm


def check_momentum(name: str, value: object) -> float:
    momentum = check_number(name, value)
    if momentum >= 1:
        raise ValueError(f"{name} must be a number in [0, 1), got {momentum}")
    return momentum


def check_flag(name: str, value: object) -> bool:
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{name} must be True or False, got {value!r}")
    return bool(value)


class Setting(Generic[T]):
    """An attribute that is validated when set, and exists only if the optimizer has it."""

    def __init__(self, check: Callable[[str, object], T]) -> None:
        self._check = check
        self._name = ""

    def __set_name__(self, owner: type[Any], name: str) -> None:
        self._name = name

    @overload
    def __get__(self, instance: None, owner: type[Any]) -> Setting[T]: ...
    @overload
    def __get__(self, instance: Configured, owner: type[Any]) -> T: ...
    def __get__(self, instance: Configured | None, owner: type[Any]) -> Setting[T] | T:
        if instance is None:
            return self
        self._refuse_missing(instance)
        value: T = instance._settings[self._name]
        return value

    def __set__(self, instance: Configured, value: T) -> None:
        self._refuse_missing(instance)
        instance._settings[self._name] = self._check(self._name, value)

    def _refuse_missing(self, instance: Configured) -> None:
        if self._name not in instance._settings:
            raise AttributeError(f"the {instance._label} has no {self._name}")
