"""A checkpoint through every converter: lossless, and in little memory."""

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
from edge_train.convert.difference import Comparison, compare

pytestmark = pytest.mark.slow
MIB = 2**20
TENSOR = 16 * MIB
COUNT = 64  # with the moments of one parameter: 1 GiB and 32 MiB
QUARTER = COUNT // 4  # three times the limit, and quicker
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

#: what is written to ``out`` must equal ``big``; here one of each way to read and to write
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
#: the others, which go the same ways
LOSSLESS_TOO = {
    "again": "rewrite.rewrite(big, out)",
    "external": "place.move_data(big, folder/'x', external_data=True); "
    "place.move_data(folder/'x', out, external_data=False)",
    "rename": "rewrite.rename(big, folder/'x', {'w*': 'v*'}); "
    "rewrite.rename(folder/'x', out, {'v*': 'w*'})",
    "flat": "flat.to_flat(big, folder/'x', model); flat.from_flat(big, folder/'x', out, model)",
    "onnx": "onnx_model.to_onnx(big, folder/'eval_model.onnx', folder/'x'); "
    "onnx_model.from_onnx(folder/'x', out, like=big)",
    "transfer": "combine.transfer(big, big, out, optimizer=True)",
    "merge": "combine.merge([big], out)",
    "diff": "assert difference.compare(big, big).equal; rewrite.rewrite(big, out)",
}
#: these leave the optimizer state out
WITHOUT_MOMENTS = frozenset(("nominal", "onnx", "onnx external", "average"))


def _tensor(name: str, seed: int) -> Tensor:
    def block(start: int, count: int) -> np.ndarray:
        at = np.arange(start, start + count, dtype=np.uint32)
        return ((at * np.uint32(2654435761 + 2 * seed)) >> 8).astype(np.float32) / 2**24

    like = Tensor(name, dtypes.FLOAT, (TENSOR // 4096, 1024))
    return lazy.computed(like, dtypes.FLOAT, block)


def _graphs(folder: Path, count: int) -> None:
    """Graphs whose inputs are the parameters; they are read, never run."""
    names = [f"w{index}" for index in range(count)]
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


def _folder(made: Path, count: int) -> Iterator[Path]:
    """A folder with a checkpoint of so many tensors, removed at the end."""
    if shutil.disk_usage(made).free < 6 * count * TENSOR:
        pytest.skip(f"needs {6 * count * TENSOR >> 20} MiB of disk")
    tensors = [_tensor(f"w{index}", index) for index in range(count)]
    moments = (("w0", (_tensor("momentum0", 91), _tensor("momentum1", 92))),)
    group = Group("group0", 7, 0.5, moments)
    whole = Checkpoint(tuple(tensors[:-4]), tuple(tensors[-4:]), groups=(group,))
    files.write(whole, made / "big")
    assert (made / "big").stat().st_size > count * TENSOR
    _graphs(made, count)
    yield made
    shutil.rmtree(made)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    yield from _folder(tmp_path_factory.mktemp("big"), COUNT)


@pytest.fixture(scope="module")
def quarter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    yield from _folder(tmp_path_factory.mktemp("quarter"), QUARTER)


def _bare() -> int:
    return int(succeed(run_python(MEMORY + "print(memory('VmHWM'))")))


def _converted(folder: Path, name: str, code: str) -> tuple[int, Comparison]:
    """The peak in kB above the bare interpreter, and what became different."""
    for path in folder.glob("[xyn]*"):
        path.unlink()
    above = int(succeed(run_python(CONVERT, folder, code))) - _bare()
    print(f"{name}: {above / 1024:.1f} MiB above the interpreter")  # shown with -s
    return above, compare(folder / "big", folder / "out")


@pytest.mark.parametrize("name", LOSSLESS)
def test_1_gb_is_converted_in_little_memory(name: str, folder: Path) -> None:
    """Acceptance: less than 64 MB above the bare interpreter, and the largest tensor."""
    above, found = _converted(folder, name, LOSSLESS[name])
    assert above < LIMIT
    assert (found.only_b, found.values) == ((), ())
    assert bool(found.only_a) is (name in WITHOUT_MOMENTS), found.only_a


@pytest.mark.parametrize("name", LOSSLESS_TOO)
def test_the_other_converters_need_no_more_for_256_mb(name: str, quarter: Path) -> None:
    above, found = _converted(quarter, name, LOSSLESS_TOO[name])
    assert above < LIMIT
    assert (found.only_b, found.values) == ((), ())
    assert bool(found.only_a) is (name in WITHOUT_MOMENTS), found.only_a


@pytest.mark.parametrize("size", ["folder", "quarter"])
def test_the_measurement_can_fail(size: str, request: pytest.FixtureRequest) -> None:
    """A converter that held the file would be seen, of the smaller one too."""
    big: Path = request.getfixturevalue(size)
    held = int(succeed(run_python(CONVERT, big, "held = big.read_bytes()")))
    assert held - _bare() > 2 * LIMIT
