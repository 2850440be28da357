"""A checkpoint of 1 GB through every converter: lossless, and in little memory."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper
from support.child import MEMORY, run_python, succeed

from edge_train import dtypes
from edge_train.checkpoint import files
from edge_train.checkpoint.format import Checkpoint, Group
from edge_train.checkpoint.tensor import Tensor
from edge_train.convert import lazy
from edge_train.convert.difference import compare

pytestmark = pytest.mark.slow
MIB = 2**20
TENSOR = 16 * MIB
COUNT = 64  # with the moments of one parameter: 1 GiB and 32 MiB
LIMIT = (64 * MIB + TENSOR) // 1024

CONVERT = (
    """
import sys
from pathlib import Path
from edge_train.convert import (average, combine, difference, flat, foreign, nominal, npz,
                                onnx_model, place, rewrite, safetensors)
folder = Path(sys.argv[1])
big, out, model = folder / "big", folder / "out", folder / "training_model.onnx"
"""
    + MEMORY
    + """
exec(sys.argv[2])
loaded = [name for name in ("onnxruntime", "onnx", "torch", "numba") if name in sys.modules]
assert not loaded, loaded
print(memory("VmHWM"))
"""
)

#: one of each way to read and to write; what is written to ``out`` must equal ``big``
LOSSLESS = {
    "safetensors": "safetensors.to_safetensors(big, folder/'x'); "
    "safetensors.from_safetensors(folder/'x', out)",
    "npz": "npz.to_npz(big, folder/'x'); npz.from_npz(folder/'x', out)",
    "nominal": "nominal.to_nominal(big, folder/'n'); flat.to_flat(big, folder/'x.npy', model); "
    "flat.from_flat(folder/'n', folder/'x.npy', out, model)",
    "onnx external": "onnx_model.to_onnx(big, folder/'eval_model.onnx', folder/'x', "
    "external_data=True); place.move_data(folder/'x', folder/'y', external_data=False); "
    "onnx_model.from_onnx(folder/'y', out, like=big)",
    "average": "average.average([big, big, big], out, weights=[1, 2, 0.5])",
}
#: these leave the optimizer state out
WITHOUT_MOMENTS = frozenset(("nominal", "onnx", "onnx external", "average"))


def _tensor(name: str, seed: int) -> Tensor:
    def block(start: int, count: int) -> np.ndarray:
        at = np.arange(start, start + count, dtype=np.uint32)
        return ((at * np.uint32(2654435761 + 2 * seed)) >> 8).astype(np.float32) / 2**24

    like = Tensor(name, dtypes.FLOAT, (TENSOR // 4096, 1024))
    return lazy.computed(like, dtypes.FLOAT, block)


def _graphs(folder: Path) -> None:
    """Graphs whose inputs are the parameters; they are read, never run."""
    names = [f"w{index}" for index in range(COUNT)]
    value, kind = helper.make_tensor_value_info, TensorProto.FLOAT
    weights = [value(name, kind, [TENSOR // 4096, 1024]) for name in names]
    y = [value("y", kind, None)]
    evaluation = helper.make_graph([helper.make_node("Sum", names, ["y"])], "e", weights, y)
    accumulators = [
        helper.make_node(
            "InPlaceAccumulatorV2",
            [f"{name}_grad.accumulation.buffer", name, "lazy_reset_grad"],
            [f"{name}_grad.accumulation.out"],
            domain="com.microsoft",
        )
        for name in names[:-4]
    ]
    buffers = [value(node.input[0], kind, None) for node in accumulators]
    training = helper.make_graph(accumulators, "t", [*weights, *buffers], [])
    for name, graph in (("eval_model.onnx", evaluation), ("training_model.onnx", training)):
        (folder / name).write_bytes(helper.make_model(graph).SerializeToString())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with the 1 GB checkpoint, removed at the end."""
    made = tmp_path_factory.mktemp("big")
    if shutil.disk_usage(made).free < 6 * 2**30:
        pytest.skip("needs 6 GiB of disk")
    tensors = [_tensor(f"w{index}", index) for index in range(COUNT)]
    moments = (("w0", (_tensor("momentum0", 91), _tensor("momentum1", 92))),)
    group = Group("group0", 7, 0.5, moments)
    whole = Checkpoint(tuple(tensors[:-4]), tuple(tensors[-4:]), groups=(group,))
    files.write(whole, made / "big")
    assert (made / "big").stat().st_size > 1024 * MIB
    _graphs(made)
    yield made
    shutil.rmtree(made)


def _bare() -> int:
    return int(succeed(run_python(MEMORY + "print(memory('VmHWM'))")))


@pytest.mark.parametrize("name", LOSSLESS)
def test_1_gb_is_converted_in_little_memory(name: str, folder: Path) -> None:
    """Acceptance: less than 64 MB above the bare interpreter, and the largest tensor."""
    for path in folder.glob("[xyn]*"):
        path.unlink()
    peak = int(succeed(run_python(CONVERT, folder, LOSSLESS[name])))
    print(f"{name}: {(peak - _bare()) / 1024:.1f} MiB above the interpreter")  # shown with -s
    assert peak - _bare() < LIMIT
    found = compare(folder / "big", folder / "out")
    assert (found.only_b, found.values) == ((), ())
    assert bool(found.only_a) is (name in WITHOUT_MOMENTS), found.only_a


def test_the_measurement_can_fail(folder: Path) -> None:
    """A converter that held the file would be seen."""
    held = int(succeed(run_python(CONVERT, folder, "held = big.read_bytes()")))
    assert held - _bare() > LIMIT
