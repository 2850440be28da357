"""Dropout's noise, running statistics, and numbers that are none."""

from __future__ import annotations

import numpy as np
import pytest
from support.child import run_python, succeed
from support.snapshot import differences, snapshot
from support.training import module_of, session_of
from support.zoo import ZOO

import edge_train
from edge_train.api import Module
from edge_train.kernels import native

MLP = ZOO["mlp_CrossEntropyLoss"]
BN = ZOO["conv_bn_maxpool_gap"]
DROPOUT = ZOO["transformer_decomposedLN_erf_dropout"]
KERNELS = ["portable", "fused"] if native.has_ops() else ["portable"]


def weights(module: Module) -> dict[str, np.ndarray]:
    return {name: parameter.data.copy() for name, parameter in module.state.parameters}


def test_u077_the_seed_rules_dropout_and_evaluation_has_no_noise() -> None:
    """U077: equal, equal, different; eval draws nothing."""

    def losses(seed: int) -> list[float]:
        module = module_of(DROPOUT)
        edge_train.set_seed(seed)
        taken = []
        for _ in range(3):
            module.lazy_reset_grad()
            taken.append(float(module(**DROPOUT.feed)))
        return taken

    one, again, other = losses(3), losses(3), losses(4)
    assert one == again
    assert one != other
    assert len(set(one)) == 3
    module = module_of(DROPOUT).eval()
    assert len({float(module(**DROPOUT.feed)) for _ in range(3)}) == 1


@pytest.mark.parametrize("kernels", KERNELS)
def test_u077_passes_that_add_up_have_masks_of_their_own(kernels: str) -> None:
    """Three passes without a reset: the sum of three gradients of as many masks."""
    module = module_of(DROPOUT, kernels=kernels)
    single = []
    edge_train.set_seed(31)
    for _ in range(3):
        module.lazy_reset_grad()
        module(**DROPOUT.feed)
        single.append(module.arena.gradients.astype(np.float64))
    edge_train.set_seed(31)
    module.lazy_reset_grad()
    for _ in range(3):
        module(**DROPOUT.feed)
    norm = np.linalg.norm(single[0])
    assert np.linalg.norm(module.arena.gradients - sum(single)) < 1e-5 * norm
    assert np.linalg.norm(single[1] - single[0]) > 1e-2 * norm


LOSSES = """
import sys
import numpy as np
import edge_train
from edge_train.api import CheckpointState, Module
from edge_train.kernels import native
checkpoint, model, run, seed = sys.argv[1:]
if seed:
    edge_train.set_seed(int(seed))
with np.load(run) as stored:
    feed = {name[5:]: stored[name] for name in stored.files if name.startswith("feed.")}
for kernels in ["portable", "fused"][: 1 + native.has_ops()]:
    module = Module(model, CheckpointState.load_checkpoint(checkpoint), kernels=kernels)
    print(float(module(**feed)))
"""


def first_losses(seed: int | str) -> list[float]:
    """In a process of its own, by onnxruntime's kernels and by ours."""
    files = (DROPOUT.checkpoint, DROPOUT.training_model, DROPOUT.folder / "run.npz")
    return [float(line) for line in succeed(run_python(LOSSES, *files, seed)).split()]


@pytest.mark.slow
def test_u077_a_seed_means_the_same_in_every_process() -> None:
    """There it is set before any library is loaded."""
    edge_train.set_seed(6)
    here = [float(module_of(DROPOUT, kernels=kernels)(**DROPOUT.feed)) for kernels in KERNELS]
    assert first_losses(6) == here


@pytest.mark.slow
def test_u077_processes_without_a_seed_have_numbers_of_their_own() -> None:
    found = np.array([first_losses("") for _ in range(3)])
    assert all(len(set(column)) == 3 for column in found.T)


def conv_output(x: np.ndarray, w: np.ndarray, b: np.ndarray) -> np.ndarray:
    """What the zoo's 3x3 convolution with padding 1 makes, in float64."""
    padded = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))
    return np.einsum("ncijkl,ockl->noij", windows, w.astype(np.float64)) + b[:, None, None]


def test_u078_statistics_move_and_evaluation_uses_them() -> None:
    """U078: five steps: new = momentum old + (1 - momentum) of the batch; eval reads them."""
    module = module_of(BN)
    parameters = module.state.parameters
    made = conv_output(BN.feed["x"], parameters["w1"].data, parameters["c1"].data)
    mean, var = made.mean(axis=(0, 2, 3)), made.var(axis=(0, 2, 3))
    expected = {name: parameters[name].data.astype(np.float64) for name in ("mu", "va")}
    untrained = float(module.eval()(**BN.feed))
    module.train()
    for _ in range(5):
        module(**BN.feed)
        expected["mu"] = 0.9 * expected["mu"] + 0.1 * mean
        expected["va"] = 0.9 * expected["va"] + 0.1 * var
    np.testing.assert_allclose(parameters["mu"].data, expected["mu"], rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(parameters["va"].data, expected["va"], rtol=1e-4)
    assert float(module.eval()(**BN.feed)) != untrained


def test_u079_training_output_does_not_depend_on_statistics_or_constants() -> None:
    """U079: stock BatchNormalization shares equal constants and overwrites what it is fed."""
    module = module_of(BN)
    parameters = module.state.parameters
    parameters["g"], parameters["be"] = np.ones(4, np.float32), np.zeros(4, np.float32)
    parameters["mu"], parameters["va"] = np.zeros(4, np.float32), np.ones(4, np.float32)
    first = float(module(**BN.feed))
    held = parameters["mu"].data.copy()
    for _ in range(3):
        assert float(module(**BN.feed)) == pytest.approx(first, rel=1e-6)
    assert not np.array_equal(parameters["mu"].data, held)
    for name, value in (("g", 1), ("be", 0)):
        assert np.all(parameters[name].data == value)
    parameters["mu"] = np.full(4, 1e3, np.float32)
    parameters["va"] = np.full(4, 1e-3, np.float32)
    assert float(module(**BN.feed)) == pytest.approx(first, rel=1e-6)


# ---- not a number ---------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_u070_a_nan_is_reported_and_skipped(bad: float) -> None:
    """U070: weights, moments, counter and running statistics stay; the next step is a good one."""
    module, optimizer = session_of(BN)
    module(**BN.feed)
    assert optimizer.step()
    x = BN.feed["x"].copy()
    x[0, 0, 3, 3] = bad
    before = snapshot(module.state)
    module.lazy_reset_grad()
    assert np.isnan(module(x, BN.feed["labels"]))
    assert not module.loss_is_finite
    assert optimizer.step() is False
    changed = differences(before, snapshot(module.state))
    assert changed
    assert all(name.startswith("grad ") for name in changed)
    assert optimizer.skipped_steps == 1
    module.lazy_reset_grad()
    assert np.isfinite(module(**BN.feed))
    assert optimizer.step()
    assert all(np.isfinite(value).all() for value in snapshot(module.state).values())


def test_u070_one_bad_part_spoils_the_sum_it_is_added_to() -> None:
    """The loss of the last part is finite, the sum of gradients is not."""
    module, optimizer = session_of(BN)
    before = weights(module)
    for x in (BN.feed["x"], BN.feed["x"] * np.float32("nan"), BN.feed["x"]):
        loss = module(x, BN.feed["labels"])
    assert np.isfinite(loss)
    assert optimizer.step() is False
    module.lazy_reset_grad()
    module(**BN.feed)
    assert optimizer.step() is True
    assert np.any(weights(module)["w1"] != before["w1"])


def test_u070_without_the_guard_the_weights_are_ruined() -> None:
    """What the guard is for (the reference's behaviour, on request)."""
    module, optimizer = session_of(MLP)
    optimizer.skip_nonfinite = False
    module(MLP.feed["x"] * np.float32("nan"), MLP.feed["labels"])
    assert optimizer.step() is True
    assert np.isnan(module.state.parameters["b2"].data).any()


def test_u070_statistics_stay_where_only_the_loss_is_not_finite() -> None:
    """The batch's statistics are fine, but the step that they belong to is left out."""
    module, optimizer = session_of(BN)
    bias = module.state.parameters["bf"].data
    bias[0] = np.inf
    before = snapshot(module.state)
    assert not np.isfinite(module(**BN.feed))
    assert optimizer.step() is False
    assert all(name.startswith("grad ") for name in differences(before, snapshot(module.state)))


def test_u070_statistics_that_overflow_are_not_kept() -> None:
    """Variance inf: the loss is finite or NaN, by version; mean and variance stay."""
    module = module_of(BN)
    before = weights(module)
    module(BN.feed["x"] * np.float32(1e25), BN.feed["labels"])
    assert all(np.array_equal(value, before[name]) for name, value in weights(module).items())


def test_u070_an_infinite_loss_with_finite_gradients_is_skipped() -> None:
    """A squared error overflows, its gradient does not; the sum with a good part is bad too."""
    case = ZOO["mlp_MSELoss"]
    module, optimizer = session_of(case)
    before = weights(module)
    assert np.isinf(module(case.feed["x"], case.feed["target"] + np.float32(1e25)))
    assert np.isfinite(module(**case.feed))
    assert all(np.isfinite(p.grad).all() for _, p in module.state.parameters)
    assert optimizer.step() is False
    assert all(np.array_equal(value, before[name]) for name, value in weights(module).items())
    module.lazy_reset_grad()
    module(**case.feed)
    assert optimizer.step() is True
