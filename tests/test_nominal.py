"""Nominal checkpoints and the flat buffer: how a federation moves weights in and out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from support.snapshot import differences, snapshot
from support.training import module_of, session_of
from support.zoo import SEIZURE, ZOO, ZOO_MODELS, Artifacts

from edge_train.api import CheckpointState, Module, Optimizer
from edge_train.convert.nominal import to_nominal
from edge_train.errors import NominalStateError

HEAD = ZOO["frozen_backbone_only_head"]
MLP = ZOO["mlp_CrossEntropyLoss"]
BN = ZOO["conv_bn_maxpool_gap"]
OrtValue = onnxruntime.OrtValue


def nominal_module(case: Artifacts, checkpoint: Path | None = None) -> Module:
    state = CheckpointState.load_checkpoint(checkpoint or case.nominal_checkpoint)
    return Module(case.training_model, state, case.eval_model)


def flat(module: Module, trainable_only: bool = False) -> np.ndarray:
    buffer: np.ndarray = module.get_contiguous_parameters(trainable_only).numpy()
    return buffer


EVERY_USE: dict[str, Callable[[Module, Path], object]] = {
    "train": lambda m, p: m(**MLP.feed),
    "eval": lambda m, p: m.eval()(**MLP.feed),
    "read": lambda m, p: m.state.parameters["w1"].data,
    "write": lambda m, p: m.state.parameters.__setitem__("w1", np.zeros((5, 4), np.float32)),
    "read all": lambda m, p: m.get_contiguous_parameters(),
    "read the trainable": lambda m, p: m.get_contiguous_parameters(True),
    "export": lambda m, p: m.export_model_for_inferencing(p / "x.onnx", ["y"]),
    "step": lambda m, p: Optimizer(MLP.optimizer_model, m).step(),
    "arena": lambda m, p: m.arena,
}


@pytest.mark.parametrize("use", EVERY_USE)
def test_u049_before_the_fill_every_use_says_so(use: str, tmp_path: Path) -> None:
    """U049: names and sizes are known, data is not."""
    module = nominal_module(MLP)
    with pytest.raises(NominalStateError, match="fill"):
        EVERY_USE[use](module, tmp_path)
    assert module.state.is_nominal
    assert module.get_parameters_size() == 43
    assert module.state.parameters["w1"].grad is None
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", [*ZOO_MODELS, "seizure"])
def test_u049_filled_it_equals_a_normal_load(name: str, tmp_path: Path) -> None:
    """U049: bit by bit, in training and evaluation, with an Optimizer made before the fill."""
    case: Artifacts = SEIZURE if name == "seizure" else ZOO[name]
    if name == "transformer_decomposedLN_erf_dropout":
        case = ZOO["transformer_decomposedLN_erf"]  # the same network without noise
    full, full_optimizer = session_of(case)
    to_nominal(case.checkpoint, tmp_path / "nominal")
    nominal = nominal_module(case, tmp_path / "nominal")
    optimizer = Optimizer(case.optimizer_model, nominal)
    nominal.copy_buffer_to_parameters(flat(full), trainable_only=False)
    assert not nominal.state.is_nominal
    for _ in range(2):
        assert nominal.train()(**case.feed) == full.train()(**case.feed)
        assert optimizer.step()
        assert full_optimizer.step()
        assert nominal.eval()(**case.feed) == full.eval()(**case.feed)
        for module in (nominal, full):
            module.lazy_reset_grad()
    assert differences(snapshot(full.state), snapshot(nominal.state)) == []


def test_u049_trainable_only_does_not_fill() -> None:
    """U049: refused, whatever its size, and the state stays nominal."""
    module = nominal_module(HEAD)
    sizes = (module.get_parameters_size(True), module.get_parameters_size(False))
    for size in sizes:
        with pytest.raises(NominalStateError, match="trainable_only=False"):
            module.copy_buffer_to_parameters(np.zeros(size, np.float32), trainable_only=True)
    with pytest.raises(ValueError, match=rf"{sizes[0]} elements, expected {sizes[1]}"):
        module.copy_buffer_to_parameters(np.zeros(sizes[0], np.float32), trainable_only=False)
    assert module.state.is_nominal


def test_a_filled_state_is_saved_as_a_full_one(tmp_path: Path) -> None:
    module = nominal_module(BN)
    module.copy_buffer_to_parameters(flat(module_of(BN)), trainable_only=False)
    CheckpointState.save_checkpoint(module.state, tmp_path / "full")
    state = CheckpointState.load_checkpoint(tmp_path / "full")
    assert not state.is_nominal
    assert (
        differences(snapshot(state), snapshot(CheckpointState.load_checkpoint(BN.checkpoint))) == []
    )
    to_nominal(tmp_path / "full", tmp_path / "nominal")
    state = CheckpointState.load_checkpoint(tmp_path / "nominal")
    expected = CheckpointState.load_checkpoint(BN.nominal_checkpoint)
    assert state.is_nominal
    assert [(n, p.requires_grad) for n, p in state.parameters] == [
        (n, p.requires_grad) for n, p in expected.parameters
    ]


# ---- the flat buffer ------------------------------------------------------------------------


def test_u048_the_trainable_flag_counts() -> None:
    """U048: 2 of 8 frozen apart: both sizes, and the wrong one refused with both numbers."""
    module = module_of(HEAD)
    trainable, every = module.get_parameters_size(True), module.get_parameters_size(False)
    assert trainable == sum(p.data.size for _, p in module.state.parameters if p.requires_grad)
    assert every == sum(p.data.size for _, p in module.state.parameters)
    assert trainable < every
    assert module.get_parameters_size() == trainable
    assert flat(module, True).shape == (trainable,)
    assert flat(module).shape == (every,)
    before = snapshot(module.state)
    for flag, wrong, right in ((True, every, trainable), (False, trainable, every)):
        text = rf"{wrong} elements, expected {right} .*it fits trainable_only={not flag}"
        with pytest.raises(ValueError, match=text):
            module.copy_buffer_to_parameters(np.zeros(wrong, np.float32), trainable_only=flag)
    assert differences(before, snapshot(module.state)) == []
    module.copy_buffer_to_parameters(np.full(trainable, 2, np.float32))
    changed = differences(before, snapshot(module.state))
    assert changed == ["data bf", "data wf"]


@pytest.mark.parametrize("off", [-5, -1, 1, 5])
def test_u051_one_tensor_too_many_or_few(off: int) -> None:
    """U051: layout, expected and got; nothing is written."""
    module = module_of(MLP)
    before = snapshot(module.state)
    with pytest.raises(ValueError, match=rf"{43 + off} elements, expected 43") as caught:
        module.copy_buffer_to_parameters(np.zeros(43 + off, np.float32))
    assert "w1[5, 4], b1[5], w2[3, 5], b2[3]" in str(caught.value)
    assert differences(before, snapshot(module.state)) == []


def test_u052_the_order_of_the_values_is_the_layouts() -> None:
    """U052: graph order, while iteration goes by name; the layout says which."""
    module = module_of(MLP)
    module.state.parameters["b1"].data[...] = 7
    module.state.parameters["w2"].data[...] = 5
    slots = {slot.name: slot for slot in module.parameter_layout()}
    assert list(slots) == ["w1", "b1", "w2", "b2"]
    assert [name for name, _ in module.state.parameters] == ["b1", "b2", "w1", "w2"]
    buffer = flat(module)
    for name, slot in slots.items():
        part = buffer[slot.offset : slot.offset + slot.size].reshape(slot.shape)
        np.testing.assert_array_equal(part, module.state.parameters[name].data)
    assert np.all(buffer[20:25] == 7)
    assert np.all(buffer[25:40] == 5)


def test_u052_offsets_are_those_of_the_buffer_asked_for() -> None:
    module = module_of(HEAD)
    buffer = flat(module, True)
    for slot in module.parameter_layout(trainable_only=True):
        assert slot.trainable
        part = buffer[slot.offset : slot.offset + slot.size].reshape(slot.shape)
        np.testing.assert_array_equal(part, module.state.parameters[slot.name].data)
    assert [s.trainable for s in module.parameter_layout()].count(True) == 2
    assert nominal_module(HEAD).parameter_layout() == module.parameter_layout()


BUFFERS: dict[str, Callable[[np.ndarray], object]] = {
    "array": lambda a: a,
    "OrtValue": OrtValue.ortvalue_from_numpy,
    "the reference's inner OrtValue": lambda a: OrtValue.ortvalue_from_numpy(a)._ortvalue,
    "strided": lambda a: np.repeat(a, 2)[::2],
    "read-only": lambda a: np.frombuffer(a.tobytes(), np.float32),
}


@pytest.mark.parametrize("kind", BUFFERS)
def test_buffers_of_every_kind_are_taken(kind: str) -> None:
    module = module_of(HEAD)
    for flag in (True, False):
        size = module.get_parameters_size(flag)
        values = np.random.default_rng(size).random(size, dtype=np.float32)
        module.copy_buffer_to_parameters(BUFFERS[kind](values), trainable_only=flag)
        np.testing.assert_array_equal(flat(module, flag), values)


@pytest.mark.parametrize(
    "bad",
    [
        np.zeros(43),
        np.zeros(43, np.int32),
        np.zeros(43, ">f4"),
        [0.0] * 43,
        None,
        OrtValue.ortvalue_from_numpy(np.zeros(43)),
    ],
)
def test_buffers_of_another_kind_are_refused(bad: object) -> None:
    module = module_of(MLP)
    before = snapshot(module.state)
    with pytest.raises(TypeError, match="the buffer is"):
        module.copy_buffer_to_parameters(bad)
    assert differences(before, snapshot(module.state)) == []


def test_an_array_outlives_the_ortvalue_it_came_from() -> None:
    """onnxruntime's ortvalue_from_numpy would hand out memory that is freed with the OrtValue."""
    module = module_of(MLP)
    buffers = [module.get_contiguous_parameters().numpy() for _ in range(4)]
    junk = [np.full(43, 9, np.float32) for _ in range(50)]
    for buffer in buffers:
        np.testing.assert_array_equal(buffer[:20], module.state.parameters["w1"].data.ravel())
    feed = {name: OrtValue.ortvalue_from_numpy(value) for name, value in MLP.feed.items()}
    loss = float(module(**MLP.feed))
    module.lazy_reset_grad()
    kept = module(**feed).numpy()
    junk += [np.full((), 9, np.float32) for _ in range(50)]
    assert float(kept) == loss
    assert len(junk) == 100


def test_the_buffer_read_is_a_copy() -> None:
    module = module_of(MLP)
    buffer = flat(module)
    kept = buffer.copy()
    module.state.parameters["w1"].data[...] = 9
    np.testing.assert_array_equal(buffer, kept)
    given = np.zeros(43, np.float32)
    module.copy_buffer_to_parameters(given)
    given[...] = 3
    assert not module.state.parameters["w1"].data.any()


def test_a_view_of_the_own_weights_is_a_buffer_too() -> None:
    module = module_of(MLP)
    mirrored = flat(module, True)[::-1].copy()
    module.copy_buffer_to_parameters(module.arena.weights[::-1])
    np.testing.assert_array_equal(flat(module, True), mirrored)
    module.copy_buffer_to_parameters(module.arena.weights)
    np.testing.assert_array_equal(flat(module, True), mirrored)


def test_u054_moments_are_kept_unless_asked_otherwise() -> None:
    """U054: as in onnxruntime-training; reset_optimizer=True is another step."""

    def trained() -> tuple[Module, Optimizer]:
        module, optimizer = session_of(MLP)
        for _ in range(3):
            module.lazy_reset_grad()
            module(**MLP.feed)
            optimizer.step()
        return module, optimizer

    average = np.linspace(-1, 1, 43, dtype=np.float32)
    results = []
    for reset in (False, True):
        module, optimizer = trained()
        before = {k: v for k, v in snapshot(module.state).items() if k.startswith("momentum")}
        module.copy_buffer_to_parameters(average, reset_optimizer=reset)
        after = snapshot(module.state)
        assert optimizer.step_count == (0 if reset else 3)
        kept = [np.array_equal(after[name], value) for name, value in before.items()]
        assert all(kept) is not reset
        assert any(after[name].any() for name in before) is not reset
        module.lazy_reset_grad()
        module(**MLP.feed)
        assert optimizer.step()
        results.append(flat(module))
    fresh, fresh_optimizer = session_of(MLP)
    fresh.copy_buffer_to_parameters(average)
    fresh(**MLP.feed)
    fresh_optimizer.step()
    np.testing.assert_array_equal(results[1], flat(fresh))
    assert not np.array_equal(results[0], results[1])


def test_u055_statistics_are_in_the_full_buffer_and_an_average_is_sound() -> None:
    """U055: mean of two clients: variances stay >= 0 and evaluation works; trainable: left out."""
    clients = []
    for seed in (1, 2):
        module = module_of(BN)
        x = np.random.default_rng(seed).standard_normal(BN.feed["x"].shape).astype(np.float32)
        for _ in range(3):
            module(seed * x, BN.feed["labels"])
        clients.append(module)
    sizes = clients[0].get_parameters_size(True), clients[0].get_parameters_size(False)
    assert sizes[1] - sizes[0] == 8  # running mean and variance of four channels
    merged = module_of(BN)
    merged.copy_buffer_to_parameters(
        (flat(clients[0]) + flat(clients[1])) / np.float32(2), trainable_only=False
    )
    variances = [client.state.parameters["va"].data for client in clients]
    np.testing.assert_allclose(
        merged.state.parameters["va"].data, np.mean(variances, axis=0), rtol=1e-6
    )
    assert (merged.state.parameters["va"].data >= 0).all()
    assert np.isfinite(merged.eval()(**BN.feed))
    own = merged.state.parameters["va"].data.copy()
    merged.copy_buffer_to_parameters(flat(clients[1], True))
    np.testing.assert_array_equal(merged.state.parameters["va"].data, own)
