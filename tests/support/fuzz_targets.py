"""What the fuzzer and the replay of its corpus do with bytes: read, and use what was read.

A target returns whether the bytes were accepted. Only errors of this package are caught, each
target its own kind, so anything else that escapes is a finding.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from contextlib import suppress

from edge_train.checkpoint import format as checkpoints
from edge_train.checkpoint import legacy, pbseq
from edge_train.checkpoint.format import Checkpoint
from edge_train.checkpoint.layout import dumps
from edge_train.checkpoint.source import MemorySource, Source
from edge_train.checkpoint.state import CheckpointState
from edge_train.convert import foreign, intake, npz, safetensors
from edge_train.errors import ArtifactError, CheckpointError
from edge_train.graph import ir, onnx_codec, opset
from edge_train.graph.lowering import lower
from edge_train.graph.shapes import Shapes

#: memory that a file may cost: three times its size and this much
MEMORY_FLOOR = 16 * 2**20
_DATA_FILE = bytes(range(256)) * 16


def _open_data(_: str | None) -> Source:
    return MemorySource(_DATA_FILE, "<data>")


def _values(checkpoint: Checkpoint) -> list[bytes]:
    return [tensor.array().tobytes() for _, tensor in checkpoint.tensors() if not tensor.strings]


def checkpoint(data: bytes) -> bool:
    """One file: read, every value used, a state made, saved and read again as the same bytes."""
    try:
        got = checkpoints.read(data, _open_data)
    except CheckpointError:
        return False
    if not got.is_nominal:
        _values(got)
    if got.has_external_data:
        return True
    once = dumps(CheckpointState.load_checkpoint(data).to_checkpoint())
    again = CheckpointState.load_checkpoint(once)
    assert dumps(again.to_checkpoint()) == once, "a saved state does not come back as it was"
    return True


def _converted(got: Checkpoint) -> None:
    """What a converter does with it, but for the disk: everything is read."""
    intake.refuse_repeated(got, "<fuzzed>")
    checkpoints.validate(got, "<fuzzed>")
    dumps(got)


def safetensors_file(data: bytes) -> bool:
    """A safetensors file, as another program's and, where it says so, as our own."""
    try:
        tensors, text = safetensors.read(MemorySource(data))
        _converted(foreign.arranged(tensors, "<fuzzed>", None, ()))
        if text is not None:
            _converted(foreign.restored(tensors, text, "<fuzzed>"))
    except CheckpointError:
        return False
    return True


def npz_file(data: bytes) -> bool:
    """An archive of arrays, every one of them read."""
    try:
        with npz.opened(data) as (archive, label):
            _converted(npz.checkpoint_of(archive, label))
    except CheckpointError:
        return False
    return True


_FOLDER_FILES = (
    "paramtrain_tensors.pbseq",
    "custom_properties.pbseq",
    "optim_group0_properties.pbseq",
    "optim_group0_momentum0_tensors.pbseq",
)


def folder(data: bytes) -> bool:
    """A file of the folder format, in every role that a file has there."""
    try:
        tensors = pbseq.read(MemorySource(data))
    except CheckpointError:
        return False
    accepted = False
    for name in _FOLDER_FILES:
        try:
            got = legacy.assembled({name: tensors}, "folder")
        except CheckpointError:
            continue
        _values(got)
        accepted = True
    return accepted


def _tensors(graph: ir.Graph) -> list[ir.Tensor]:
    inside = [t for node in graph.nodes for body in ir.subgraphs(node) for t in _tensors(body)]
    return [*graph.initializers.values(), *inside]


def onnx(data: bytes) -> bool:
    """A graph file: read, its tensors and shapes used, written and read again as the same."""
    try:
        model = onnx_codec.load(data)
    except ArtifactError:
        return False
    for tensor in _tensors(model.graph):
        with suppress(ArtifactError):
            assert tensor.array().shape == tensor.dims
    Shapes.of(model)
    once = onnx_codec.encode(model)
    assert onnx_codec.encode(onnx_codec.decode(once)) == once, "a written model does not come back"
    for version in (12, 17, 21):
        model.opset_imports = [("", version), (ir.MICROSOFT, 1)]
        with suppress(ArtifactError):
            opset.raise_opset(model)
    return True


def lowering(data: bytes) -> bool:
    """A training graph: lowered to what stock onnxruntime runs, and encoded."""
    try:
        onnx_codec.encode(lower(onnx_codec.load(data)).model)
    except ArtifactError:
        return False
    return True


TARGETS: dict[str, Callable[[bytes], bool]] = {
    "checkpoint": checkpoint,
    "folder": folder,
    "onnx": onnx,
    "lowering": lowering,
    "safetensors": safetensors_file,
    "npz": npz_file,
}


def within_memory(target: Callable[[bytes], bool], data: bytes) -> bool:
    """Run a target; MemoryError if it took more than three times the data and the floor."""
    limit = 3 * len(data) + MEMORY_FLOOR
    tracing = tracemalloc.is_tracing()
    if not tracing:
        tracemalloc.start()
    try:
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        accepted = target(data)
        taken = tracemalloc.get_traced_memory()[1] - before
    finally:
        if not tracing:
            tracemalloc.stop()
    if taken > limit:
        raise MemoryError(f"{taken} bytes taken for {len(data)} bytes, at most {limit}")
    return accepted
