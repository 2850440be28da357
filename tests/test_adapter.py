"""Low-rank adapters: a base model with slots and an adapter file, both in plain onnxruntime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from edge_train import adapter, artifacts, dtypes
from edge_train.api import CheckpointState, Module, Optimizer
from edge_train.checkpoint.tensor import Tensor
from edge_train.errors import ArtifactError, NominalStateError

RANK, INPUTS, OUTPUTS = 2, 6, 3
NAMES = ["fc.lora_A", "fc.lora_B"]


def _forward() -> onnx.ModelProto:
    """y = x W + (x A) B + b; W frozen, A and B the adapter, B begins at zero."""
    rng = np.random.default_rng(5)
    arrays = {
        "fc.weight": rng.standard_normal((INPUTS, OUTPUTS)),
        "fc.lora_A": rng.standard_normal((INPUTS, RANK)),
        "fc.lora_B": np.zeros((RANK, OUTPUTS)),
        "fc.bias": rng.standard_normal(OUTPUTS),
    }
    tensors = [onnx.numpy_helper.from_array(a.astype(np.float32), n) for n, a in arrays.items()]
    nodes = [
        helper.make_node("MatMul", ["x", "fc.weight"], ["xw"]),
        helper.make_node("MatMul", ["x", "fc.lora_A"], ["xa"]),
        helper.make_node("MatMul", ["xa", "fc.lora_B"], ["xab"]),
        helper.make_node("Add", ["xw", "xab"], ["sum"]),
        helper.make_node("Add", ["sum", "fc.bias"], ["y"]),
    ]
    x, y = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", size])
        for name, size in (("x", INPUTS), ("y", OUTPUTS))
    )
    graph = helper.make_graph(nodes, "lora", [x], [y], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Artifacts in which the adapter alone is trained."""
    made = tmp_path_factory.mktemp("lora")
    artifacts.generate_artifacts(
        _forward(),
        requires_grad=NAMES,
        loss=artifacts.LossType.MSELoss,
        optimizer=artifacts.OptimType.AdamW,
        artifact_directory=made,
        nominal_checkpoint=True,
    )
    return made


@pytest.fixture(scope="module")
def trained(folder: Path) -> Module:
    """The adapter after five steps; the rest of the network is as it was."""
    state = CheckpointState.load_checkpoint(folder / "checkpoint")
    module = Module(folder / "training_model.onnx", state, folder / "eval_model.onnx")
    optimizer = Optimizer(folder / "optimizer_model.onnx", module)
    optimizer.set_learning_rate(0.05)
    rng = np.random.default_rng(1)
    x = rng.standard_normal((16, INPUTS)).astype(np.float32)
    target = rng.standard_normal((16, OUTPUTS)).astype(np.float32)
    for _ in range(5):
        module.lazy_reset_grad()
        module(x, target)
        optimizer.step()
    return module


def _expected(module: Module, x: np.ndarray, with_adapter: bool) -> np.ndarray:
    data = {name: parameter.data for name, parameter in module.state.parameters}
    y = x @ data["fc.weight"] + data["fc.bias"]
    return y + x @ data["fc.lora_A"] @ data["fc.lora_B"] if with_adapter else y


X = np.random.default_rng(2).standard_normal((4, INPUTS)).astype(np.float32)


def test_plain_onnxruntime_runs_base_and_adapter(trained: Module, tmp_path: Path) -> None:
    trained.export_model_for_inferencing(tmp_path / "base.onnx", ["y"], adapter=NAMES)
    trained.export_adapter(tmp_path / "my.onnx_adapter", adapter_version=3, model_version=7)
    onnx.checker.check_model(onnx.load(tmp_path / "base.onnx"), full_check=True)
    session = onnxruntime.InferenceSession(tmp_path / "base.onnx")
    assert [value.name for value in session.get_inputs()] == ["x"]
    base = session.run(None, {"x": X})[0]
    np.testing.assert_allclose(base, _expected(trained, X, False), rtol=1e-5, atol=1e-6)
    loaded = onnxruntime.LoraAdapter()
    loaded.Load(str(tmp_path / "my.onnx_adapter"))
    options = onnxruntime.RunOptions()
    options.add_active_adapter(loaded)
    tuned = session.run(None, {"x": X}, options)[0]
    np.testing.assert_allclose(tuned, _expected(trained, X, True), rtol=1e-5, atol=1e-6)
    assert np.abs(tuned - base).max() > 1e-2  # else the comparisons above say nothing


def test_onnxruntime_reads_names_versions_and_values(trained: Module, tmp_path: Path) -> None:
    trained.export_adapter(tmp_path / "a", NAMES, adapter_version=3, model_version=7)
    told = onnxruntime.AdapterFormat.read_adapter(str(tmp_path / "a"))
    assert (told.get_adapter_version(), told.get_model_version()) == (3, 7)
    read = {name: value.numpy() for name, value in told.get_parameters().items()}
    assert sorted(read) == NAMES
    for name, value in read.items():
        np.testing.assert_array_equal(value, trained.state.parameters[name].data)


def test_the_bytes_are_those_of_onnxruntimes_writer(trained: Module, tmp_path: Path) -> None:
    name = "fc.lora_A"
    trained.export_adapter(tmp_path / "ours", [name], adapter_version=3, model_version=7)
    theirs = onnxruntime.AdapterFormat()
    theirs.set_adapter_version(3)
    theirs.set_model_version(7)
    value = onnxruntime.OrtValue.ortvalue_from_numpy(trained.state.parameters[name].data.copy())
    theirs.set_parameters({name: value})
    theirs.export_adapter(str(tmp_path / "theirs"))
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "theirs").read_bytes()


def test_names_that_are_no_parameters(trained: Module, tmp_path: Path) -> None:
    for names in (["fc.lora_C"], ["fc.lora_A", "*nothing*"], []):
        with pytest.raises(ValueError, match="no parameter is named"):
            trained.export_adapter(tmp_path / "a", names)
    with pytest.raises(TypeError, match="a list of names"):
        trained.export_adapter(tmp_path / "a", "fc.lora_A")
    with pytest.raises(ValueError, match="no parameter is named"):
        trained.export_model_for_inferencing(tmp_path / "m", ["y"], adapter=["x"])
    with pytest.raises(ValueError, match=r"\['fc.lora_B'\], which are no parameters that these"):
        trained.export_model_for_inferencing(tmp_path / "m", ["xa"], adapter=NAMES)
    for version in (2**31, 1.5):
        with pytest.raises(ValueError, match="expected an int32"):
            trained.export_adapter(tmp_path / "a", adapter_version=version)  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())


def test_a_name_with_pattern_characters_means_itself(tmp_path: Path) -> None:
    model = _forward()
    odd = {"fc.weight": "W0", "fc.lora_A": "W[0]", "fc.lora_B": "W*"}
    for tensor in model.graph.initializer:
        tensor.name = odd.get(tensor.name, tensor.name)
    for node in model.graph.node:
        node.input[:] = [odd.get(name, name) for name in node.input]
    folder = tmp_path / "odd"
    artifacts.generate_artifacts(
        model,
        requires_grad=["W[0]", "W*"],
        loss=artifacts.LossType.MSELoss,
        artifact_directory=folder,
    )
    state = CheckpointState.load_checkpoint(folder / "checkpoint")
    assert [name for name, p in state.parameters if p.requires_grad] == ["W*", "W[0]"]
    module = Module(folder / "training_model.onnx", state, folder / "eval_model.onnx")
    for names, meant in ((["W[0]"], ["W[0]"]), (["W*", "W[0]"], ["W*", "W[0]"]), (["W?"], None)):
        module.export_adapter(tmp_path / "a", names)
        told = onnxruntime.AdapterFormat.read_adapter(str(tmp_path / "a"))
        assert sorted(told.get_parameters()) == (meant or ["W*", "W0"])
    module.export_model_for_inferencing(tmp_path / "base.onnx", ["y"], adapter=["W[0]", "W*"])
    written = onnx.load(tmp_path / "base.onnx").graph
    assert {value.name for value in written.input} == {"x", "W[0]", "W*"}


def test_a_nominal_state_has_no_adapter_yet(folder: Path, tmp_path: Path) -> None:
    state = CheckpointState.load_checkpoint(folder / "nominal_checkpoint")
    module = Module(folder / "training_model.onnx", state, folder / "eval_model.onnx")
    with pytest.raises(NominalStateError, match="fill"):
        module.export_adapter(tmp_path / "a")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("number", [*dtypes.NUMPY, dtypes.BFLOAT16])
@pytest.mark.parametrize("dims", [(2,), (0, 3), ()])
def test_what_is_written_onnxruntime_loads(
    number: int, dims: tuple[int, ...], tmp_path: Path
) -> None:
    """Whatever the type and the rank: refused by name and not written, or loaded."""
    kind = dtypes.NUMPY.get(number, np.dtype(np.uint16))
    tensor, path = Tensor("odd.lora_A", number, dims, np.zeros(dims, kind)), tmp_path / "a"
    refused = (dtypes.BOOL, dtypes.COMPLEX64, dtypes.COMPLEX128, dtypes.BFLOAT16)
    if number in refused or not dims:
        with pytest.raises(ArtifactError, match=r"'odd.lora_A' (is of|has no dimensions)"):
            adapter.write([tensor], path)
        assert not list(tmp_path.iterdir())
        return
    adapter.write([tensor], path)
    onnxruntime.LoraAdapter().Load(str(path))
    read = onnxruntime.AdapterFormat.read_adapter(str(path)).get_parameters()
    assert read["odd.lora_A"].shape() == list(dims)
