"""The arena: every trainable float32 parameter in one contiguous buffer, in a given order.

Gradients lie in a second buffer of the same layout, optimizer moments in further ones that are
made when first asked for. The Module lays it out and binds its views to onnxruntime; the optimizer
runs over the flat buffers in one pass.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from edge_train.arena_memory import Floats, Memory


def _slots(layout: Sequence[tuple[str, tuple[int, ...]]]) -> dict[str, slice]:
    slots: dict[str, slice] = {}
    end = 0
    for name, shape in layout:
        if name in slots:
            raise ValueError(f"parameter '{name}' appears twice in the arena's layout")
        if any(dim < 0 for dim in shape):
            raise ValueError(f"parameter '{name}' has shape {shape}; every size must be >= 0")
        slots[name] = slice(end, end + math.prod(shape))
        end = slots[name].stop
    return slots


class Arena:
    """Weights, gradients and moments of the parameters in ``layout``: (name, shape) in order.

    ``memory`` says where they lie: by default in the process's own memory.

    ``reset`` lets the next training step overwrite the gradients instead of adding to them, and
    ``loss_is_finite`` is about the losses they came from. Both belong to the gradients, so they are
    shared by the Modules that share the arena.

    Raises ValueError for a repeated name or a negative size.
    """

    def __init__(
        self, layout: Sequence[tuple[str, tuple[int, ...]]], memory: Memory | None = None
    ) -> None:
        self.memory = memory or Memory()
        self._slots = _slots(layout)
        self._names = tuple(self._slots)
        self._shapes = {name: tuple(shape) for name, shape in layout}
        self._size = sum(math.prod(shape) for shape in self._shapes.values())
        self._weights = self.memory.weights(self._size)
        self._gradients = self.memory.gradients(self._size)
        self._moments: dict[int, Floats] = {}
        self.reset = True  # zeros: the first step may as well overwrite
        self.loss_is_finite = True

    @property
    def names(self) -> tuple[str, ...]:
        """The parameters in buffer order."""
        return self._names

    @property
    def size(self) -> int:
        """Elements of each buffer."""
        return self._size

    @property
    def weights(self) -> Floats:
        """All weights, float32 of shape (size,)."""
        return self._weights

    @property
    def gradients(self) -> Floats:
        """All gradients, float32 of shape (size,)."""
        return self._gradients

    def moment(self, index: int) -> Floats:
        """Optimizer moment ``index``, float32 of shape (size,); zeros when first asked for."""
        if index not in self._moments:
            self._moments[index] = self.memory.moment(index, self._size)
        return self._moments[index]

    def has_moment(self, index: int) -> bool:
        """Whether moment ``index`` has been asked for before."""
        return index in self._moments

    def release_moments(self) -> None:
        """Gives the moments' memory back; they are zeros when next asked for."""
        self._moments.clear()

    def slot(self, name: str) -> slice:
        """The place of a parameter in each buffer; KeyError for a name not in the arena."""
        if name not in self._slots:
            text = "it is frozen, not float32, or not in the model"
            raise KeyError(f"parameter '{name}' is not in the arena: {text}")
        return self._slots[name]

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a parameter; KeyError for a name not in the arena."""
        self.slot(name)
        return self._shapes[name]

    def view(self, buffer: Floats, name: str) -> Floats:
        """The part of ``buffer`` (any of the arena's) that belongs to ``name``, in its shape."""
        return buffer[self.slot(name)].reshape(self._shapes[name])

    def __contains__(self, name: object) -> bool:
        return name in self._slots
