"""What a mapped checkpoint costs: a frozen backbone of 300 MB on a board that has less to spare."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from support.child import MEMORY, run_python, succeed

from edge_train.artifacts import LossType, OptimType, generate_artifacts

SIDE, LAYERS = 5120, 3  # 3 x 100 MB
LIMIT = 200 * 2**20

LOAD = (
    MEMORY
    + """
import sys
import numpy as np
from edge_train.api import CheckpointState, Module, Optimizer
folder, device = sys.argv[1:]
before = memory("RssAnon")
state = CheckpointState.load_checkpoint(folder + "/checkpoint", device=device)
module = Module(folder + "/training_model.onnx", state)
print(memory("RssAnon") - before)
"""
)

TRAIN = (
    """
import os, sys
group = sys.argv.pop()
if group:
    with open(group + "/cgroup.procs", "w") as file:
        file.write(str(os.getpid()))
"""
    + LOAD
    + """
optimizer = Optimizer(folder + "/optimizer_model.onnx", module)
rng = np.random.default_rng(0)
x, labels = rng.random((2, 5120), dtype=np.float32), rng.integers(0, 4, 2)
losses = []
for _ in range(4):
    module.lazy_reset_grad()
    losses.append(float(module(x, labels)))
    optimizer.step()
assert losses[-1] < losses[0], losses
print(*losses)
"""
)


@pytest.fixture(scope="module")
def artifacts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """x @ B1 @ B2 @ B3 @ head: three frozen matrices, a head of four classes."""
    folder = tmp_path_factory.mktemp("backbone")
    rng = np.random.default_rng(0)
    names = [f"b{layer}" for layer in range(LAYERS)]
    weights = {}
    for name in names:  # sparse enough to be quick to make
        weights[name] = np.zeros((SIDE, SIDE), np.float32)
        weights[name][:, ::64] = rng.standard_normal((SIDE, SIDE // 64)) / np.sqrt(SIDE)
        weights[name] += np.eye(SIDE, dtype=np.float32)
    weights["head"] = (rng.standard_normal((SIDE, 4)) / np.sqrt(SIDE)).astype(np.float32)
    values, nodes = ["x"], []
    for name in [*names, "head"]:
        nodes.append(helper.make_node("MatMul", [values[-1], name], [f"y_{name}"]))
        values.append(f"y_{name}")
    graph = helper.make_graph(
        nodes,
        "backbone",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ("batch", SIDE))],
        [helper.make_tensor_value_info("y_head", TensorProto.FLOAT, ("batch", 4))],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, folder / "model.onnx")
    del model, graph, weights
    generate_artifacts(
        folder / "model.onnx",
        requires_grad=["head"],
        loss=LossType.CrossEntropyLoss,
        optimizer=OptimType.AdamW,
        artifact_directory=folder,
    )
    assert (folder / "checkpoint").stat().st_size > 300_000_000
    return folder


@pytest.mark.slow
def test_a_mapped_backbone_costs_no_private_memory(artifacts: Path) -> None:
    mapped = int(succeed(run_python(LOAD, artifacts, "file")))
    read = int(succeed(run_python(LOAD, artifacts, "cpu")))
    assert mapped < 40_000, mapped
    assert read > 300_000, read  # the measure sees what is not mapped


@pytest.fixture
def group() -> Iterator[Path]:
    """A cgroup that gives its processes 200 MB, swap included where that is counted."""
    root = Path("/sys/fs/cgroup")
    parent = root / "memory" if (root / "memory").is_dir() else root
    path = parent / f"edge-train-{os.getpid()}"
    try:
        path.mkdir()
    except OSError as error:
        pytest.skip(f"no cgroup can be made here: {error}")
    limits = ("memory.limit_in_bytes", "memory.max")
    present = [path / name for name in limits if (path / name).exists()]
    try:
        if not present:
            pytest.skip("this cgroup has no memory controller")
        present[0].write_text(str(LIMIT))
        for name, value in (("memory.memsw.limit_in_bytes", LIMIT), ("memory.swap.max", 0)):
            with suppress(OSError):
                if (path / name).exists():
                    (path / name).write_text(str(value))
        yield path
    finally:
        path.rmdir()


@pytest.mark.slow
def test_a_head_is_trained_within_200_mb(artifacts: Path, group: Path) -> None:
    """The kernel takes the file's clean pages back; read into memory, the process is killed."""
    free = succeed(run_python(TRAIN, artifacts, "cpu", "")).split()
    bounded = succeed(run_python(TRAIN, artifacts, "file", group)).split()
    assert bounded[1:] == free[1:]
    killed = run_python(TRAIN, artifacts, "cpu", group)
    assert killed.returncode == -9
