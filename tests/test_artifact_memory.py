"""Time and memory of generate_artifacts: large tensors go from file to file."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from support.child import MEMORY, run_python, succeed

from edge_train.checkpoint.files import open_checkpoint

GENERATE = (
    MEMORY
    + """
import sys, time
from edge_train.artifacts import LossType, OptimType, generate_artifacts
start = time.perf_counter()
before = memory("VmHWM")
generate_artifacts(sys.argv[1], loss=LossType.MSELoss, optimizer=OptimType.AdamW,
                   artifact_directory=sys.argv[2], nominal_checkpoint=True)
print(memory("VmHWM") - before, time.perf_counter() - start)
"""
)
LAYERS, ROWS = 12, 8192
MIB = 2**20


def chain_of_products(folder: Path, rows: int, columns: int, layers: int) -> Path:
    """x W1 W1' W2 ...: weights as holes of an external file."""
    nodes, weights, at, end = [], [], "x", 0
    for layer in range(layers):
        dims = (rows, columns) if layer % 2 == 0 else (columns, rows)
        tensor = TensorProto(name=f"w{layer}", data_type=TensorProto.FLOAT, dims=dims)
        tensor.data_location = TensorProto.EXTERNAL
        size = rows * columns * 4
        for key, value in (("location", "w.bin"), ("offset", end), ("length", size)):
            tensor.external_data.add(key=key, value=str(value))
        end += size
        weights.append(tensor)
        nodes.append(helper.make_node("MatMul", [at, f"w{layer}"], [f"h{layer}"], f"mm{layer}"))
        at = f"h{layer}"
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", rows])
    y = helper.make_tensor_value_info(
        at, TensorProto.FLOAT, ["N", rows if layers % 2 == 0 else columns]
    )
    graph = helper.make_graph(nodes, "chain", [x], [y], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    folder.mkdir(exist_ok=True)
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    with (folder / "w.bin").open("wb") as file:
        file.truncate(end)
    return folder / "model.onnx"


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
def test_memory_does_not_grow_with_the_model(tmp_path: Path) -> None:
    path = chain_of_products(tmp_path / "m", 1024, 1024, 20)  # 80 MiB
    grown, seconds = succeed(run_python(GENERATE, path, tmp_path / "out")).split()
    assert int(grown) < 40 * 1024  # KiB
    assert float(seconds) < 3


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
def test_a_model_of_three_gigabytes(tmp_path: Path) -> None:
    path = chain_of_products(tmp_path / "m", ROWS, ROWS, LAYERS)  # 3 GiB
    grown, _ = succeed(run_python(GENERATE, path, tmp_path / "out")).split()
    assert int(grown) < 80 * 1024
    with open_checkpoint(tmp_path / "out" / "checkpoint") as state:
        assert sum(tensor.nbytes for tensor in state.trainable) == 3 * 2**30
        assert not state.trainable[-1].array().any()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
@pytest.mark.parametrize("form", ["ModelProto", "bytes"])
def test_a_model_in_memory_is_copied_once_at_most(form: str, tmp_path: Path) -> None:
    weights = {f"w{i}": np.full((1024, 4096), i, np.float32) for i in range(8)}  # 128 MiB
    path = chain_of_products(tmp_path / "m", 1024, 4096, 8)
    model = onnx.load(path, load_external_data=False)
    for tensor in model.graph.initializer:
        values = weights[tensor.name].reshape(tuple(tensor.dims))
        tensor.CopyFrom(onnx.numpy_helper.from_array(values, tensor.name))
    (tmp_path / "whole.onnx").write_bytes(model.SerializeToString())
    read = "import onnx; model = onnx.load(sys.argv[1])"
    if form == "bytes":
        read = "from pathlib import Path; model = Path(sys.argv[1]).read_bytes()"
    code = GENERATE.replace("start =", f"{read}\nstart =").replace("s(sys.argv[1],", "s(model,")
    grown, _ = succeed(run_python(code, tmp_path / "whole.onnx", tmp_path / "out")).split()
    assert int(grown) < 1.5 * 128 * 1024 + 80 * 1024


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
@pytest.mark.parametrize("form", ["path", "ModelProto"])
def test_weights_in_constant_nodes_stay_in_the_file(form: str, tmp_path: Path) -> None:
    path = chain_of_products(tmp_path / "m", 1024, 4096, 8)  # 128 MiB
    model = onnx.load(path)
    nodes = [
        helper.make_node("Constant", [], [tensor.name], f"c{tensor.name}", value=tensor)
        for tensor in model.graph.initializer
    ]
    nodes += model.graph.node
    del model.graph.initializer[:], model.graph.node[:]
    model.graph.node.extend(nodes)
    (tmp_path / "whole.onnx").write_bytes(model.SerializeToString())
    code = GENERATE
    if form == "ModelProto":
        code = code.replace("start =", "import onnx; model = onnx.load(sys.argv[1])\nstart =")
        code = code.replace("s(sys.argv[1],", "s(model,")
    grown, _ = succeed(run_python(code, tmp_path / "whole.onnx", tmp_path / "out")).split()
    copied = 1.5 * 128 * 1024 if form == "ModelProto" else 0
    assert int(grown) < copied + 80 * 1024
