"""What a training process loads, writes and needs: no onnx, torch or numba, no noise, 110 MB."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.child import MEMORY, run_python, succeed
from support.mlp import MLP784, write_checkpoint
from support.zoo import SEIZURE, ZOO, Artifacts

SESSION = """
import sys
from pathlib import Path
import numpy as np
import onnxruntime
folder, out = Path(sys.argv[1]), Path(sys.argv[2])
feed = dict(np.load(sys.argv[3]))
bare = set(sys.modules)
import edge_train
from edge_train.api import CheckpointState, LinearLRScheduler, Module, Optimizer
edge_train.set_seed(1)
state = CheckpointState.load_checkpoint(folder / "checkpoint")
module = Module(folder / "training_model.onnx", state, folder / "eval_model.onnx")
optimizer = Optimizer(folder / "optimizer_model.onnx", module)
optimizer.set_learning_rate(0.001)
scheduler = LinearLRScheduler(optimizer, 1, 6, 0.001)
losses = []
for _ in range(4):
    module.lazy_reset_grad()
    module(**feed)
    losses.append(float(module(**feed)))  # accumulates
    optimizer.step()
    scheduler.step()
module.eval()
module(**feed)
module.copy_buffer_to_parameters(module.get_contiguous_parameters(), trainable_only=False)
state.properties["epoch"] = 1
CheckpointState.save_checkpoint(state, out / "saved")
CheckpointState.load_checkpoint(out / "saved")
module.export_model_for_inferencing(out / "inference.onnx", module.output_names())
module.train()(**{name: value * np.nan if value.dtype == np.float32 else value
                  for name, value in feed.items()})
assert losses[-1] < losses[0], losses
"""
LOADED = """
for name in ("onnx", "torch", "numba", "tensorflow", "jax", "pandas", "onnxscript"):
    assert name not in sys.modules, name
"""
#: what costs megabytes in every process (OpenSSL, archives), and a session has no need of
HEAVY = """
for name in ("hashlib", "shutil", "tempfile", "random", "asyncio", "multiprocessing"):
    assert name in bare or name not in sys.modules, name
"""


@pytest.mark.parametrize(
    "name",
    [
        "conv_bn_maxpool_gap",
        pytest.param("transformer_LNop_3out_opset17", marks=pytest.mark.slow),
    ],
)
def test_u002_a_whole_session_imports_no_heavy_package_and_says_nothing(
    name: str, tmp_path: Path
) -> None:
    """U002: train, accumulate, evaluate, save, load, export: sys.modules, stdout, stderr."""
    assert _said_in_a_session(ZOO[name], tmp_path) == ""
    assert (tmp_path / "inference.onnx").stat().st_size > 0


@pytest.mark.slow
def test_u002_a_real_apps_session_too(tmp_path: Path) -> None:
    """U002: the artifacts of a real app."""
    assert _said_in_a_session(SEIZURE, tmp_path) == ""
    assert (tmp_path / "inference.onnx").stat().st_size > 0


def _said_in_a_session(case: Artifacts, tmp_path: Path) -> str:
    """The standard output; whatever is imported or warned of ends the session as a failure."""
    import numpy as np

    np.savez(tmp_path / "feed.npz", **case.feed)  # type: ignore[attr-defined]
    code = SESSION + LOADED + HEAVY
    return succeed(run_python(code, case.folder, tmp_path, tmp_path / "feed.npz"))


def test_the_look_at_loaded_modules_can_fail() -> None:
    done = run_python("import sys, onnx" + LOADED)
    assert done.returncode == 1
    assert "AssertionError: onnx" in done.stderr


def test_u002_importing_costs_little_more_than_onnxruntime() -> None:
    """U002: memory after the import, beside bare onnxruntime and numpy."""
    measure = MEMORY + "print(memory('VmRSS'))"
    bare = int(succeed(run_python("import numpy, onnxruntime" + measure)))
    ours = int(succeed(run_python("import edge_train.api" + measure)))
    assert ours - bare < 16_000, (ours, bare)


TRAINING = (
    MEMORY
    + """
import sys
from pathlib import Path
import numpy as np
from edge_train.api import CheckpointState, Module, Optimizer
graphs = Path(sys.argv[1])
state = CheckpointState.load_checkpoint(sys.argv[2])
module = Module(graphs / "training_model.onnx", state, graphs / "eval_model.onnx")
optimizer = Optimizer(graphs / "optimizer_model.onnx", module)
rng = np.random.default_rng(0)
x = rng.random((64, 784), dtype=np.float32)
labels = rng.integers(0, 10, 64)
losses = []
for _ in range(60):
    losses.append(float(module(x, labels)))
    optimizer.step()
    module.lazy_reset_grad()
assert losses[-1] < 0.5 * losses[0]
print(memory("VmHWM"))
"""
)


@pytest.mark.slow
def test_peak_memory_of_mlp_training(tmp_path: Path) -> None:
    """784-500-10, batch 64, AdamW with NumPy steps: at most 110 MB, interpreter included."""
    write_checkpoint(tmp_path / "checkpoint")
    env = {"EDGE_TRAIN_KERNELS": "numpy"}
    done = run_python(TRAINING, MLP784.folder, tmp_path / "checkpoint", env=env)
    peak = int(succeed(done))
    assert 40_000 < peak <= 110_000, peak
