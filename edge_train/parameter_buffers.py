"""The parameters of a Module as one flat float32 buffer: read, overwritten, completed.

The order is that of the training graph's inputs. A Module gets these methods from its base class.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime

from edge_train import dtypes, optimizer
from edge_train.checkpoint.state import CheckpointState
from edge_train.errors import NominalStateError
from edge_train.inputs import as_ortvalue
from edge_train.placement import ParameterSlot, fill_nominal, gather, scatter
from edge_train.program import TrainingProgram


class ParameterBuffers:
    """What a Module offers of its parameters as one vector."""

    state: CheckpointState
    _train: TrainingProgram
    _layout: tuple[ParameterSlot, ...]

    def parameter_layout(self, trainable_only: bool = False) -> tuple[ParameterSlot, ...]:
        """Name, shape, offset and trainable flag of each parameter in the flat buffer.

        The order is that of the training graph's inputs, which generation fixes. Offsets count
        float32 elements in the buffer of the same ``trainable_only``.
        """
        slots: list[ParameterSlot] = []
        offset = 0
        for slot in self._layout:
            if slot.trainable or not trainable_only:
                slots.append(ParameterSlot(slot.name, slot.shape, offset, slot.trainable))
                offset += slot.size
        return tuple(slots)

    def get_parameters_size(self, trainable_only: bool = True) -> int:
        """The number of elements in the flat buffer."""
        return sum(slot.size for slot in self.parameter_layout(trainable_only))

    def get_contiguous_parameters(self, trainable_only: bool = False) -> onnxruntime.OrtValue:
        """A copy of the parameters as one float32 OrtValue of shape (get_parameters_size,).

        Errors: NominalStateError before a fill; TypeError when a parameter is not float32.
        """
        if self.state.is_nominal:
            raise NominalStateError(
                "a nominal checkpoint has no parameters to read; fill it first with "
                "copy_buffer_to_parameters(buffer, trainable_only=False)"
            )
        flat = gather(self._float_layout(trainable_only), self.state)
        return as_ortvalue(flat)

    def copy_buffer_to_parameters(
        self, buffer: Any, trainable_only: bool = True, *, reset_optimizer: bool = False
    ) -> None:
        """Overwrites the parameters with a flat buffer; completes a nominal state.

        ``buffer`` is a float32 array or OrtValue with exactly ``get_parameters_size`` elements.
        Optimizer moments and step count are kept unless ``reset_optimizer`` is set.

        Errors: TypeError for another dtype, ValueError for another size,
        NominalStateError for ``trainable_only`` on a nominal state.
        """
        flat = _as_flat(buffer)
        if self.state.is_nominal and trainable_only:
            raise NominalStateError(
                "a nominal checkpoint is filled whole: pass every parameter with "
                "trainable_only=False"
            )
        layout = self._float_layout(trainable_only)
        self._check_size(flat, trainable_only)
        if self.state.is_nominal:
            fill_nominal(self._train.roles, self._layout, self.state)
        scatter(flat, layout, self.state)
        if reset_optimizer:
            optimizer.reset_group(self.state)

    def _check_size(self, flat: np.ndarray, trainable_only: bool) -> None:
        expected = self.get_parameters_size(trainable_only)
        if flat.size == expected:
            return
        other = self.get_parameters_size(not trainable_only)
        hint = f"; it fits trainable_only={not trainable_only}" if flat.size == other else ""
        slots = self.parameter_layout(trainable_only)
        shown = ", ".join(f"{slot.name}{list(slot.shape)}" for slot in slots[:8])
        more = f", ... {len(slots) - 8} more" if len(slots) > 8 else ""
        raise ValueError(
            f"the buffer has {flat.size} elements, expected {expected} for "
            f"trainable_only={trainable_only}{hint}. Layout: {shown}{more}"
        )

    def _float_layout(self, trainable_only: bool) -> tuple[ParameterSlot, ...]:
        kinds = {value.name: value.elem_type for value in self._train.roles.parameters}
        layout = self.parameter_layout(trainable_only)
        other = [s.name for s in layout if kinds[s.name] not in (None, dtypes.FLOAT)]
        if other:
            raise TypeError(
                f"the flat buffer holds float32 parameters only; these are not: {other}"
            )
        return layout


def _as_flat(buffer: Any) -> np.ndarray:
    """A 1-D float32 view of an array, an OrtValue or the reference API's C-level OrtValue."""
    values = buffer if isinstance(buffer, np.ndarray) else getattr(buffer, "numpy", None)
    if callable(values):
        values = values()
    if not isinstance(values, np.ndarray):
        raise TypeError(
            f"the buffer is a {type(buffer).__name__}, expected a NumPy array or an OrtValue"
        )
    if values.dtype != np.float32:
        raise TypeError(f"the buffer is {values.dtype}, expected float32")
    return values.reshape(-1)
