"""Objects freed in any order, memory over many steps and rounds, a run that is resumed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.child import MEMORY, run_python, succeed
from support.mlp import MLP784, write_checkpoint
from support.snapshot import differences, snapshot
from support.training import session_of
from support.zoo import ZOO, Case

from edge_train.api import CheckpointState, LinearLRScheduler, Module, Optimizer

BN = ZOO["conv_bn_maxpool_gap"]

FREEING = """
import gc, itertools, sys
from pathlib import Path
import numpy as np
from edge_train.api import CheckpointState, LinearLRScheduler, Module, Optimizer
folder = Path(sys.argv[1])
feed = dict(np.load(sys.argv[2]))

def session():
    kept = {}
    kept["state"] = CheckpointState.load_checkpoint(folder / "checkpoint")
    kept["module"] = Module(
        folder / "training_model.onnx", kept["state"], folder / "eval_model.onnx")
    kept["optimizer"] = Optimizer(folder / "optimizer_model.onnx", kept["module"])
    kept["scheduler"] = LinearLRScheduler(kept["optimizer"], 1, 9, 0.01)
    kept["loss"] = kept["module"](**feed)
    kept["module"](**feed)
    kept["optimizer"].step()
    kept["parameter"] = kept["state"].parameters["w1"]
    return kept

def use(kept):
    if "module" in kept:
        assert np.isfinite(kept["module"](**feed))
    if "optimizer" in kept:
        kept["optimizer"].step()
    if "scheduler" in kept:
        kept["scheduler"].step()
    if "state" in kept:
        CheckpointState.save_checkpoint(kept["state"], sys.argv[3])
    if "parameter" in kept:
        kept["parameter"].data[...] *= 0.5
    if "loss" in kept:
        assert np.isfinite(kept["loss"])

names = ("state", "module", "optimizer", "scheduler", "parameter")
for order in itertools.islice(itertools.permutations(names), 0, None, int(sys.argv[4])):
    kept = session()
    view, grad = kept["parameter"].data, kept["parameter"].grad
    flat = kept["module"].get_contiguous_parameters().numpy()
    held = flat.copy()
    for name in order:
        del kept[name]
        gc.collect()
        use(kept)
        view += 1
        grad[...] = view
    junk = [np.full_like(view, np.nan) for _ in range(20)]
    del junk
    view[...] = 3
    grad += view
    assert view.sum() == 3 * view.size and np.isfinite(grad).all()
    assert np.array_equal(flat, held)
print("done")
"""


@pytest.mark.parametrize(
    "every", [pytest.param(1, id="all 120 orders", marks=pytest.mark.slow), 11]
)
def test_objects_may_be_freed_in_any_order(every: int, tmp_path: Path) -> None:
    """What is left is used after each; views outlive everything."""
    np.savez(tmp_path / "feed.npz", **BN.feed)  # type: ignore[arg-type]
    done = run_python(FREEING, BN.folder, tmp_path / "feed.npz", tmp_path / "saved", every)
    assert succeed(done) == "done\n"


ROUNDS = (
    MEMORY
    + """
import sys
from pathlib import Path
import numpy as np
from edge_train.api import CheckpointState, Module, Optimizer
graphs, checkpoint, rounds = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
x = np.random.default_rng(0).random((32, 784), dtype=np.float32)
labels = np.arange(32) % 10
leak = []
for number in range(rounds):
    state = CheckpointState.load_checkpoint(checkpoint)
    module = Module(graphs / "training_model.onnx", state, graphs / "eval_model.onnx")
    optimizer = Optimizer(graphs / "optimizer_model.onnx", module)
    for _ in range(3):
        module(x, labels)
        module(x, labels)
        optimizer.step()
        module.lazy_reset_grad()
    module.eval()(x, labels)
    CheckpointState.save_checkpoint(state, checkpoint + ".round")
    if len(sys.argv) > 4:
        leak.append(state)
    del module, optimizer, state
    print(memory("VmRSS"))
"""
)


# glibc keeps freed memory back by thresholds that move: 8 MB come and go without a leak
EXACT = {"MALLOC_TRIM_THRESHOLD_": "0"}


def _growth(lines: str, warm: int) -> int:
    """kB from after the first ``warm`` measurements to the end; medians, for the noise."""
    values = [int(line) for line in lines.split()]
    tail = max(1, (len(values) - warm) // 4)
    return int(np.median(values[-tail:]) - np.median(values[warm : warm + tail]))


@pytest.mark.slow
def test_u056_memory_stays_flat_over_rounds_of_load_train_drop(tmp_path: Path) -> None:
    """U056: fifty rounds; the weights alone are 1.6 MB, the moments twice that."""
    write_checkpoint(tmp_path / "checkpoint")
    done = run_python(ROUNDS, MLP784.folder, tmp_path / "checkpoint", 50, env=EXACT)
    assert _growth(succeed(done), warm=2) < 500, done.stdout.split()


@pytest.mark.slow
def test_u056_the_measure_sees_a_leak(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "checkpoint")
    done = run_python(ROUNDS, MLP784.folder, tmp_path / "checkpoint", 20, "leak", env=EXACT)
    assert _growth(succeed(done), warm=2) > 10_000


STEPS = (
    MEMORY
    + """
import sys
from pathlib import Path
import numpy as np
from edge_train.api import CheckpointState, Module, Optimizer
folder = Path(sys.argv[1])
feed = dict(np.load(sys.argv[2]))
state = CheckpointState.load_checkpoint(folder / "checkpoint")
module = Module(folder / "training_model.onnx", state, folder / "eval_model.onnx")
optimizer = Optimizer(folder / "optimizer_model.onnx", module)
x, labels = feed["x"], feed["labels"]
for step in range(12_000):
    module(x, labels)
    if step % 4 == 0:
        module(x[:1], labels[:1])
    optimizer.step()
    module.lazy_reset_grad()
    if step % 50 == 0:
        module.eval()(x, labels)
        module.train()
    if step % 1000 == 999:
        print(memory("VmRSS"))
"""
)


@pytest.mark.slow
def test_u087_memory_stays_flat_over_twelve_thousand_steps(tmp_path: Path) -> None:
    """U087: plain, adding and evaluation steps of the MLP, two batch sizes."""
    case = ZOO["mlp_CrossEntropyLoss"]
    np.savez(tmp_path / "feed.npz", **case.feed)  # type: ignore[arg-type]
    done = run_python(STEPS, case.folder, tmp_path / "feed.npz", env=EXACT)
    assert _growth(succeed(done), warm=1) < 500, done.stdout.split()


# ---- stop and go on -------------------------------------------------------------------------


class Run:
    """A training session with a schedule, on batches that depend on the step alone."""

    def __init__(self, case: Case, state: CheckpointState | None = None) -> None:
        self.case = case
        if state is None:
            self.module, self.optimizer = session_of(case)
            self.scheduler = LinearLRScheduler(self.optimizer, 2, 8, 0.03)
            return
        self.module = Module(case.training_model, state, case.eval_model)
        self.optimizer = Optimizer(case.optimizer_model, self.module)
        restored = LinearLRScheduler.restore(self.optimizer)
        assert restored is not None
        self.scheduler = restored

    def train(self, first: int, steps: int) -> None:
        for step in range(first, first + steps):
            feed = {name: np.roll(value, step, axis=-1) for name, value in self.case.feed.items()}
            self.module.lazy_reset_grad()
            self.module(**feed)
            self.optimizer.step()
            self.scheduler.step()


@pytest.mark.parametrize(
    "name", ["conv_bn_maxpool_gap", "mlp_MSELoss", "transformer_LNop_3out_opset17"]
)
def test_u036_u037_a_resumed_run_equals_an_uninterrupted_one(name: str, tmp_path: Path) -> None:
    """U036, U037: 4 steps, save, 3 steps; reload, 3 steps: every bit, rate and schedule too."""
    run = Run(ZOO[name])
    run.train(0, 4)
    CheckpointState.save_checkpoint(run.module.state, tmp_path / "saved")
    rate = run.optimizer.get_learning_rate()
    assert 0 < rate < 0.03
    run.train(4, 3)
    again = Run(ZOO[name], CheckpointState.load_checkpoint(tmp_path / "saved"))
    assert again.optimizer.get_learning_rate() == rate
    again.train(4, 3)
    assert again.optimizer.get_learning_rate() == run.optimizer.get_learning_rate() != rate
    assert differences(snapshot(run.module.state), snapshot(again.module.state)) == []


def test_u036_without_the_moments_the_run_is_another(tmp_path: Path) -> None:
    """U036: the comparison above can fail."""
    run = Run(BN)
    run.train(0, 4)
    CheckpointState.save_checkpoint(run.module.state, tmp_path / "bare", False)
    run.train(4, 3)
    again = Run(BN, CheckpointState.load_checkpoint(tmp_path / "bare"))
    again.train(4, 3)
    assert "data w1" in differences(snapshot(run.module.state), snapshot(again.module.state))


def test_u037_the_rate_is_restored_without_a_schedule_too(tmp_path: Path) -> None:
    """U037: set 0.03, save, load, read (the reference says 0.001)."""
    module, optimizer = session_of(BN)
    optimizer.set_learning_rate(0.03)
    CheckpointState.save_checkpoint(module.state, tmp_path / "saved", include_optimizer_state=False)
    state = CheckpointState.load_checkpoint(tmp_path / "saved")
    again = Optimizer(BN.optimizer_model, Module(BN.training_model, state))
    assert again.get_learning_rate() == 0.03


def test_u043_properties_come_back_with_their_types(tmp_path: Path) -> None:
    """U043: from a trained session: an int, floats, texts; the package's own are not among them."""
    run = Run(BN)
    properties = run.module.state.properties
    given = {"epoch": 12, "best": 0.5, "narrow": np.float32(2.5), "tag": "späť", "big": 2**62}
    for name, value in given.items():
        properties[name] = value
    run.train(0, 1)
    CheckpointState.save_checkpoint(run.module.state, tmp_path / "saved")
    stored = dict(CheckpointState.load_checkpoint(tmp_path / "saved").properties)
    assert stored == {**given, "narrow": 2.5}
    assert {name: type(value) for name, value in stored.items()} == {
        "epoch": int, "best": float, "narrow": float, "tag": str, "big": int
    }  # fmt: skip
