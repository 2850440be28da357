"""Parameters of a checkpoint state: one persistent object per name, the storage may move.

Before a Module exists each parameter owns a plain array. The Module moves the data of what it
trains into its arena and calls ``attach``, and ``hold`` moves what its session has a copy of. A
view taken earlier keeps the old memory and is detached from then on. Others stay in place.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Any

import numpy as np

from edge_train.errors import NominalStateError

Array = np.ndarray[Any, Any]


def unknown_name(kind: str, name: object, known: list[str]) -> KeyError:
    """KeyError that names what is there."""
    near = get_close_matches(str(name), known, 3, cutoff=0.5)
    there = f"did you mean {near}?" if near else f"there are {len(known)}: {known[:8]}"
    return KeyError(f"{kind} '{name}' not found; {there}")


class Parameter:
    """A model parameter; made by CheckpointState, not by users."""

    __slots__ = ("_array", "_chosen", "_grad", "_has_gradient", "_held", "_name", "version")

    def __init__(
        self, name: str, requires_grad: bool, array: Array | None = None, chosen: bool = True
    ) -> None:
        self._name = name
        self._has_gradient = requires_grad
        self._chosen = chosen
        self._held = False
        self.version = 0  # counts what is written through the parameter
        self._array = array
        self._grad: Array | None = None

    @property
    def name(self) -> str:
        """The name of the parameter."""
        return self._name

    @property
    def requires_grad(self) -> bool:
        """Whether the parameter is trained: by its artifacts, and by what was chosen of them."""
        return self._has_gradient and self._chosen

    @property
    def has_gradient(self) -> bool:
        """Whether its artifacts can train the parameter; how a checkpoint file lists it."""
        return self._has_gradient

    def choose(self, chosen: bool) -> None:
        """Sets whether it is among those to be trained (the Module's ``trainable``)."""
        self._chosen = chosen
        self._held = self._held and not chosen

    def hold(self) -> bool:
        """Sessions keep a copy of the values from now on: views of them cannot be written, and
        those taken before are detached. Whether the values moved for that."""
        moves = not self._held
        if moves:
            self._array = np.array(self._filled())
        self._held = True
        return moves

    @property
    def data(self) -> Array:
        """A writable view: writing into it changes the model.

        A Module detaches the views taken before it of what it trains, and of weights that its
        ``trainable`` froze and that it made constants; of these a view is read-only: assign to
        ``data``, or to ``state.parameters[name]``.

        Raises NominalStateError while the state is nominal.
        """
        view = self._filled()[...]
        if self._held:
            view.flags.writeable = False
        return view

    @data.setter
    def data(self, value: Array) -> None:
        """Copy ``value`` in; ValueError for another shape, TypeError for another dtype."""
        array = self._filled()
        if not isinstance(value, np.ndarray):
            raise TypeError(
                f"parameter '{self._name}' takes a numpy array of {array.dtype} "
                f"{list(array.shape)}, got {type(value).__name__}"
            )
        if value.dtype != array.dtype:
            raise TypeError(
                f"parameter '{self._name}' has dtype {array.dtype}, got {value.dtype}; convert "
                f"with .astype('{array.dtype}')"
            )
        if value.shape != array.shape:
            raise ValueError(
                f"parameter '{self._name}' has shape {list(array.shape)}, got {list(value.shape)}"
            )
        np.copyto(self.writing(), value)

    def writing(self) -> Array:
        """The array to write new values into, which sessions with copies of it are told of."""
        self.version += 1
        return self._filled()

    @property
    def grad(self) -> Array | None:
        """A view of the gradient; None for a frozen parameter or without a Module."""
        return None if self._grad is None else self._grad.view()

    def __reduce__(self) -> tuple[type[Parameter], tuple[str, bool, Array | None, bool]]:
        """A copy has values of its own and belongs to no Module."""
        return Parameter, (self._name, self._has_gradient, self._array, self._chosen)

    def attach(self, array: Array, grad: Array | None = None) -> None:
        """Use this storage from now on; the values are the caller's business."""
        self._array = array
        self._grad = grad

    def _filled(self) -> Array:
        if self._array is None:
            raise NominalStateError(
                f"parameter '{self._name}' has no data: the checkpoint is nominal (names without "
                "data); fill it with Module.copy_buffer_to_parameters first"
            )
        return self._array

    def __repr__(self) -> str:
        return f"Parameter(name={self._name}, requires_grad={self.requires_grad})"


class Parameters:
    """The parameters by name; iteration yields (name, Parameter) in the order of the names."""

    def __init__(self, parameters: Mapping[str, Parameter]) -> None:
        self._parameters = {name: parameters[name] for name in sorted(parameters)}

    def __getitem__(self, name: str) -> Parameter:
        """The parameter; KeyError with the nearest names."""
        if name not in self._parameters:
            raise unknown_name("parameter", name, list(self._parameters))
        return self._parameters[name]

    def __setitem__(self, name: str, value: Array) -> None:
        """Copy values in: KeyError, ValueError (shape), TypeError (dtype), NominalStateError."""
        self[name].data = value

    def __contains__(self, name: object) -> bool:
        return name in self._parameters

    def __iter__(self) -> Iterator[tuple[str, Parameter]]:
        return iter(self._parameters.items())

    def __len__(self) -> int:
        return len(self._parameters)

    def __repr__(self) -> str:
        return f"Parameters({list(self._parameters)})"
