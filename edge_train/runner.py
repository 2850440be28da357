"""Runs a session with inputs and outputs bound to our memory.

A GraphRunner binds the parameters and gradients once; a step then binds what the user feeds and
runs, without copies of anything large.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np

from edge_train.errors import RunError
from edge_train.graph import ir
from edge_train.runtime import onnxruntime
from edge_train.session import Rewrite, brief, make_session

#: a tensor that goes into or comes out of a graph
Fed: TypeAlias = np.ndarray | onnxruntime.OrtValue

#: inputs of at most so many bytes are copied to memory that stays bound: binding costs more
SMALL = 1 << 15


class GraphRunner:
    """A session with its bindings; bound arrays must stay in place and are kept alive here."""

    def __init__(
        self,
        model: ir.Model,
        what: str,
        options: onnxruntime.SessionOptions | None = None,
        rewrite: Rewrite | None = None,
    ) -> None:
        self._what = what
        self._session = make_session(model, what, options, rewrite)
        self._binding = self._session.io_binding()
        self._kept: dict[str, np.ndarray] = {}
        self._inputs = {value.name for value in self._session.get_inputs()}
        self._outputs = [output.name for output in self._session.get_outputs()]
        self._passed_on = self._inputs.intersection(self._outputs)
        self._memory: dict[str, np.ndarray] = {}
        self._all_bound = not self._outputs
        self._fed: dict[str, np.ndarray] = {}  # small inputs that are bound
        self._order: list[str] = []  # onnxruntime returns outputs in the order they were bound

    def reads(self, name: str) -> bool:
        """Whether the graph has an input ``name``."""
        return name in self._inputs

    def bind_input(self, name: str, array: np.ndarray) -> None:
        """Lets the graph read ``array`` in place from now on (C-contiguous)."""
        self._kept[name] = array
        self._binding.bind_cpu_input(name, array)

    def bind_output(self, name: str, array: np.ndarray) -> None:
        """Lets the graph write output ``name`` straight into ``array`` from now on."""
        self._memory[name] = array
        self._all_bound = len(self._memory) == len(self._outputs)
        address = array.ctypes.data
        self._binding.bind_output(name, "cpu", 0, array.dtype.type, array.shape, address)
        self._note(name)

    def _note(self, name: str) -> None:
        if name not in self._order:
            self._order.append(name)

    def run(self, feeds: Mapping[str, Fed]) -> None:
        """Runs the graph; outputs that are not bound are left for ``fetch``. A small array that is
        fed again is read where it was.

        Errors: RunError with onnxruntime's reason.
        """
        try:
            for name, value in feeds.items():
                if value is not self._fed.get(name):
                    self._feed(name, value)
            if not self._all_bound:
                self._release_outputs()
            self._session.run_with_iobinding(self._binding)
        except Exception as error:
            shapes = {name: shape_of(value) for name, value in feeds.items()}
            raise RunError(
                f"onnxruntime failed in the {self._what} with inputs {shapes}: {brief(error)}"
            ) from error

    def _feed(self, name: str, value: Fed) -> None:
        self._fed.pop(name, None)
        if not isinstance(value, np.ndarray):
            self._binding.bind_ortvalue_input(name, value)
        elif value.nbytes <= SMALL:
            self._binding.bind_cpu_input(name, value)
            self._fed[name] = value
        else:
            self._binding.bind_cpu_input(name, np.ascontiguousarray(value))

    def _release_outputs(self) -> None:
        """Lets onnxruntime allocate the outputs that are not bound: their sizes may change."""
        for name in self._outputs:
            if name not in self._memory:
                self._binding.bind_output(name, "cpu")
                self._note(name)

    def fetch(self, names: Sequence[str]) -> list[Fed]:
        """The named outputs of the last run: copies of bound memory, else OrtValues."""
        made: dict[str, Fed] = {}
        if not (self._all_bound or self._memory.keys() >= set(names)):
            values = dict(zip(self._order, self._binding.get_outputs(), strict=True))
            # an output that is an input comes as the memory that was fed
            made = {**values, **{n: values[n].numpy().copy() for n in self._passed_on}}
        return [self._memory[n].copy() if n in self._memory else made[n] for n in names]


def shape_of(value: Fed) -> tuple[int, ...]:
    """The sizes of an array or an OrtValue."""
    return tuple(value.shape if isinstance(value, np.ndarray) else value.shape())
