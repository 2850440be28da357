"""The exceptions of edge_train.

    EdgeTrainError
    |-- ArtifactError            an ONNX artifact cannot be read or does not fit the others
    |   |-- UnsupportedOp        nodes that nothing here can run (all of them in one message)
    |   `-- ShapeMismatch        a tensor has another shape or dtype than the graph asks for
    |-- CheckpointError          a checkpoint cannot be read or written
    |   |-- CheckpointCorrupt    the bytes break the format (truncated, out of bounds)
    |   `-- CheckpointVersion    a format version this package does not know
    |-- NominalStateError        the parameters have names but no data yet: fill them first
    |-- DataError                training data cannot be read, or does not fit the model's inputs
    |-- HistoryError             there is no log of a run to report on
    |-- RunError                 onnxruntime failed while it ran a graph
    |-- MemoryBudgetExceeded     training does not fit into the memory it was given
    `-- NativeError              the native library is missing, unusable or out of memory

Wrong arguments of a call stay ValueError, TypeError, KeyError or IndexError, as in
onnxruntime.training.api. ShapeMismatch, NominalStateError, DataError and UnsupportedOp derive from
the matching builtin too, so that code written for the reference API keeps its except clauses.
"""

from __future__ import annotations


class EdgeTrainError(Exception):
    """Root of everything this package raises on its own account."""


class ArtifactError(EdgeTrainError):
    """A graph file cannot be used: what, which node or tensor, expected, got, what to do."""


class UnsupportedOp(ArtifactError, NotImplementedError):
    """One or more nodes of a graph have no implementation here; the text lists every one."""


class ShapeMismatch(ArtifactError, ValueError):
    """A tensor's shape or dtype is not the one that the graph or the state asks for."""


class CheckpointError(EdgeTrainError):
    """A checkpoint cannot be read or written."""


class CheckpointCorrupt(CheckpointError):
    """The bytes of a checkpoint break the format; the text names the offset or the tensor."""


class CheckpointVersion(CheckpointError):
    """The checkpoint has a format version this package does not read."""


class NominalStateError(EdgeTrainError, RuntimeError):
    """The state is nominal (names without data); ``copy_buffer_to_parameters`` fills it."""


class DataError(EdgeTrainError, ValueError):
    """Training data cannot be used; the text names the file, the line or the input."""


class HistoryError(EdgeTrainError):
    """There is no history of a run at that place."""


class RunError(EdgeTrainError, RuntimeError):
    """onnxruntime reported an error while it ran a graph; the original is the cause."""


class MemoryBudgetExceeded(EdgeTrainError, MemoryError):
    """Training does not fit into its memory budget; the text has the table and what would fit."""


class NativeError(EdgeTrainError, RuntimeError):
    """The native library cannot be loaded or reported a failure."""
