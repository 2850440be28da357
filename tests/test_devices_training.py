"""Training with the parameters on every device, and checkpoints that are mapped."""

from __future__ import annotations

import copy
import os
import weakref
from pathlib import Path

import numpy as np
import pytest
from support.child import run_python, succeed
from support.devices import opencl, use_native
from support.snapshot import differences, snapshot
from support.training import module_of
from support.zoo import ZOO, ZOO_MODELS, Artifacts

from edge_train import demo, frozen
from edge_train.api import CheckpointState, Module, Optimizer
from edge_train.convert.nominal import to_nominal
from edge_train.device import Device, DeviceBuffer, open_device
from edge_train.device.memories import OpenClMemory
from edge_train.device.shared import SharedMemory
from edge_train.errors import CheckpointError
from edge_train.kernels.native import has_ops
from edge_train.optimizer import reset_group

BN = ZOO["conv_bn_maxpool_gap"]
HEAD = ZOO["frozen_backbone_only_head"]
SLOW = pytest.mark.slow
MOST = frozen.MOST
DEVICES = (
    "shm",
    "opencl",
    pytest.param("cpu:huge", marks=SLOW),
    pytest.param("cpu without native", marks=SLOW),
    pytest.param("opencl with copies", marks=SLOW),
)


@pytest.fixture(autouse=True)
def own_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("EDGE_TRAIN_SHM", str(tmp_path / "shared"))


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Device:
    kind = str(request.param)
    use_native(monkeypatch, "without" not in kind)
    if kind.startswith("opencl"):
        return opencl(copies="copies" in kind)
    return open_device("shm:training" if kind == "shm" else kind.split()[0])


def train(module: Module, optimizer: Optimizer, case: Artifacts, steps: int) -> list[float]:
    losses = []
    for _ in range(steps):
        module.lazy_reset_grad()
        losses.append(float(module(**case.feed)))  # type: ignore[attr-defined]
        assert optimizer.step()
    return losses


@pytest.mark.parametrize("case", [BN, pytest.param(HEAD, marks=SLOW)], ids=lambda c: c.name)
def test_training_is_the_same_on_every_device(
    case: Artifacts, device: Device, tmp_path: Path
) -> None:
    """Weights, statistics and moments, the zeroing of tiny moments (step 64), save and resume."""
    states = []
    for place in ("cpu", device):
        module = module_of(case, device=place)
        losses = train(module, Optimizer(case.optimizer_model, module), case, 66)
        CheckpointState.save_checkpoint(module.state, tmp_path / "saved")
        state = CheckpointState.load_checkpoint(tmp_path / "saved")
        resumed = Module(case.training_model, state, case.eval_model, place)
        losses += train(resumed, Optimizer(case.optimizer_model, resumed), case, 2)
        losses.append(float(resumed.eval()(**case.feed)))  # type: ignore[attr-defined]
        CheckpointState.save_checkpoint(state, tmp_path / "end")
        states.append((losses, snapshot(CheckpointState.load_checkpoint(tmp_path / "end"))))
    if device.info().exact:
        assert states[0][0] == states[1][0]
        assert differences(states[0][1], states[1][1]) == []
    else:
        np.testing.assert_allclose(states[0][0], states[1][0], rtol=1e-5)


@pytest.mark.parametrize(
    "algorithm", ["sgd", *(pytest.param(a, marks=SLOW) for a in ("lion", "momentum"))]
)
def test_the_other_optimizers_too(device: Device, algorithm: str) -> None:
    weights = []
    for place in ("cpu", device):
        module = module_of(BN, device=place)
        kind = "sgd" if algorithm == "momentum" else algorithm
        optimizer = Optimizer(BN.optimizer_model, module, algorithm=kind)
        if algorithm == "momentum":
            optimizer.momentum = 0.9
        train(module, optimizer, BN, 3)
        weights.append(snapshot(module.state))
    if device.info().exact:
        assert differences(*weights) == []


@pytest.mark.parametrize("kind", ["fused", "8 bits"])
def test_updates_of_parts_of_buffers_too(device: Device, kind: str) -> None:
    """The optimizer in the backward pass, and moments in 8 bits: the host's kernels, its bits."""
    if kind == "fused" and not has_ops():
        pytest.skip("no native library: tools/build_kernels.py builds it")
    results = []
    for place in ("cpu", device):
        module = module_of(BN, device=place, fuse_optimizer=kind == "fused")
        options = {"moments": "8bit"} if kind == "8 bits" else {}
        if options and module.state.memory.name.startswith("opencl"):
            with pytest.raises(ValueError, match=r"'opencl:0' they are float32"):
                Optimizer(BN.optimizer_model, module, algorithm="adamw", **options)
            return
        optimizer = Optimizer(BN.optimizer_model, module, algorithm="adamw", **options)
        losses = train(module, optimizer, BN, 4)
        results.append((losses, {n: p.data.copy() for n, p in module.state.parameters}))
        if isinstance(module.state.memory, SharedMemory):
            versions = module.state.memory.version
            assert versions == 1 + 4 * (1 if kind == "fused" else 2)  # statistics, then weights
    assert results[0][0] == results[1][0]
    assert differences(results[0][1], results[1][1]) == []


def test_moments_come_back_when_they_are_asked_for(device: Device) -> None:
    expected = module_of(BN)
    optimizer = Optimizer(BN.optimizer_model, expected)
    train(expected, optimizer, BN, 2)
    module = module_of(BN, device=device)
    there = Optimizer(BN.optimizer_model, module)
    train(module, there, BN, 2)
    for name, own in there.group.moments.items():
        for kind, moment in own.items():
            assert moment.any() == optimizer.group.moments[name][kind].any()
            np.testing.assert_allclose(moment, optimizer.group.moments[name][kind], rtol=1e-6)
    reset_group(module.state)
    assert not any(m.any() for own in there.group.moments.values() for m in own.values())
    train(module, there, BN, 1)
    assert there.step_count == 1


def test_another_choice_of_trainable_parameters(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The Arena is made anew on the same device."""
    results = []
    for place in ("cpu", device):
        module = module_of(BN, device=place)
        # frozen weights are constants in ordinary memory alone: a convolution adds in another
        # order there
        ordinary = module.state.memory.name == "cpu"
        monkeypatch.setattr(frozen, "MOST", 0 if ordinary else MOST)
        train(module, Optimizer(BN.optimizer_model, module), BN, 2)
        part = Module(BN.training_model, module.state, trainable=["wf", "bf"])
        assert part.state.memory.name == (place if isinstance(place, str) else place.name)
        train(part, Optimizer(BN.optimizer_model, part, algorithm="adamw"), BN, 2)
        results.append(snapshot(part.state))
    if device.info().exact:
        assert differences(*results) == []


def test_what_an_arena_leaves_goes_back_to_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Moments that became codes of 8 bits, and the buffers of another choice."""
    use_native(monkeypatch, True)
    made: list[weakref.ref[object]] = []

    def allocate(self: Device, shape: int) -> DeviceBuffer:
        buffer = allocates(self, shape)
        made.append(weakref.ref(buffer._alive()))
        return buffer

    allocates = Device.allocate
    monkeypatch.setattr(Device, "allocate", allocate)
    module = module_of(BN, device="cpu:huge")
    Optimizer(BN.optimizer_model, module, algorithm="adamw")
    assert [pages() is not None for pages in made] == [True] * 4
    Optimizer(BN.optimizer_model, module, algorithm="adamw", moments="8bit")
    assert [pages() is not None for pages in made] == [True, True, False, False]
    Module(BN.training_model, module.state, trainable=["wf", "bf"])
    assert [pages() is not None for pages in made[:2]] == [False, False]


def test_nominal_states_are_filled_on_a_device(device: Device, tmp_path: Path) -> None:
    to_nominal(BN.checkpoint, tmp_path / "nominal")
    full = module_of(BN)
    state = CheckpointState.load_checkpoint(tmp_path / "nominal", device=device)
    module = Module(BN.training_model, state, BN.eval_model)
    assert state.memory.name == device.name
    module.copy_buffer_to_parameters(full.get_contiguous_parameters(), trainable_only=False)
    assert module(**BN.feed) == full(**BN.feed)
    assert differences(snapshot(state), snapshot(full.state)) == []


def test_a_state_has_one_device(device: Device) -> None:
    module = module_of(BN)
    if device.name != "cpu":
        with pytest.raises(ValueError, match=r"lie on 'cpu' already"):
            Module(BN.training_model, module.state, device=device)
    module = module_of(BN, device=device)
    again = Module(BN.training_model, module.state, device=device)
    assert again.arena is module.arena
    assert Module(BN.training_model, module.state).arena is module.arena


@pytest.mark.slow
@pytest.mark.parametrize("copies", [False, True], ids=["shared pages", "copies"])
def test_digits_are_learned_with_the_moments_on_the_opencl_device(
    copies: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two passes over the demo's digits: the CPU's losses, and it has learned."""
    use_native(monkeypatch, True)
    training, test = demo.load_digits()
    curves = []
    for device in (opencl(copies=copies), open_device("cpu")):
        graphs = demo.HERE / "artifacts"
        state = CheckpointState.load_checkpoint(graphs / "checkpoint", device=device)
        module = Module(graphs / "training_model.onnx", state, graphs / "eval_model.onnx")
        optimizer = Optimizer(graphs / "optimizer_model.onnx", module)
        optimizer.set_learning_rate(5e-3)
        rng, losses = np.random.default_rng(7), []
        for _ in range(2):
            for x, labels in training.batches(32, rng):
                module.lazy_reset_grad()
                losses.append(float(module(x, labels)))
                assert optimizer.step()
        if isinstance(state.memory, OpenClMemory):
            assert [pages.on_device for pages in state.memory.buffers] == [False, False, True, True]
        losses.append(float(module.eval()(test.x, test.labels)))
        curves.append(losses)
    if opencl().info().exact:
        assert curves[0] == curves[1]
    np.testing.assert_allclose(curves[0], curves[1], rtol=1e-3)
    assert curves[0][-1] < 0.5 < 2 < curves[0][0]


# ---- the flat buffer in a file --------------------------------------------------------------


@pytest.mark.parametrize(
    "wanted", [True, pytest.param(False, marks=SLOW)], ids=["native", "python"]
)
@pytest.mark.parametrize(
    "name", [BN.name, HEAD.name, *(pytest.param(name, marks=SLOW) for name in ZOO_MODELS[:4])]
)
def test_a_nominal_state_on_a_files_pages(
    name: str, wanted: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Bit-equal training, and the file stays as it was."""
    use_native(monkeypatch, wanted)
    case = ZOO[name]
    full = module_of(case)
    flat = full.get_contiguous_parameters().numpy().copy()
    flat.tofile(tmp_path / "flat")
    to_nominal(case.checkpoint, tmp_path / "nominal")
    state = CheckpointState.load_checkpoint(tmp_path / "nominal")
    module = Module(case.training_model, state, case.eval_model, f"file:{tmp_path / 'flat'}")
    assert not state.is_nominal
    optimizer = Optimizer(case.optimizer_model, module)
    losses = [
        train(module, optimizer, case, 3),  # type: ignore[arg-type]
        train(full, Optimizer(case.optimizer_model, full), case, 3),  # type: ignore[arg-type]
    ]
    if not case.stochastic:
        assert losses[0] == losses[1]
        assert differences(snapshot(state), snapshot(full.state)) == []
    np.testing.assert_array_equal(np.fromfile(tmp_path / "flat", np.float32), flat)
    before = optimizer.step_count
    os.truncate(tmp_path / "flat", 0)  # its pages are gone: a bus error for who touches them
    for use in (
        lambda: module(**case.feed),
        optimizer.step,
        lambda: module.copy_buffer_to_parameters(flat, trainable_only=False),
        lambda: Module(case.training_model, state),
    ):
        with pytest.raises(ValueError, match="overwritten in place"):
            use()
    assert optimizer.step_count == before


def test_a_file_of_another_size_is_refused(tmp_path: Path) -> None:
    np.zeros(7, np.float32).tofile(tmp_path / "flat")
    to_nominal(BN.checkpoint, tmp_path / "nominal")
    state = CheckpointState.load_checkpoint(tmp_path / "nominal")
    with pytest.raises(ValueError, match=r"has 28 bytes, expected 712: the flat"):
        Module(BN.training_model, state, device=f"file:{tmp_path / 'flat'}")
    with pytest.raises(ValueError, match="needs a nominal checkpoint"):
        module_of(BN, device=f"file:{tmp_path / 'flat'}")


# ---- mapped checkpoints ---------------------------------------------------------------------


@pytest.mark.parametrize("wanted", [True, False], ids=["native", "python"])
@pytest.mark.parametrize("name", [BN.name, HEAD.name])
def test_a_mapped_checkpoint_trains_as_a_read_one(
    name: str, wanted: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    use_native(monkeypatch, wanted)
    case = ZOO[name]
    path = tmp_path / "checkpoint"
    path.write_bytes(case.checkpoint.read_bytes())
    results = []
    for device in ("cpu", "file", f"file:{path}"):
        state = CheckpointState.load_checkpoint(path, device=device)
        module = Module(case.training_model, state, case.eval_model)
        losses = train(module, Optimizer(case.optimizer_model, module), case, 3)
        results.append((losses, snapshot(state)))
    for losses, values in results[1:]:
        assert losses == results[0][0]
        assert differences(values, results[0][1]) == []
    assert path.read_bytes() == case.checkpoint.read_bytes()


@pytest.mark.parametrize("keep", [False, True])
def test_saving_over_a_mapped_checkpoint(keep: bool, tmp_path: Path) -> None:
    """Our saves replace the file, so that the mapped one lives on."""
    path = tmp_path / "checkpoint"
    path.write_bytes(BN.checkpoint.read_bytes())
    os.utime(path, (10**9, 10**9))
    state = CheckpointState.load_checkpoint(path, device="file")
    module = Module(BN.training_model, state)
    optimizer = Optimizer(BN.optimizer_model, module)
    for _ in range(3):
        train(module, optimizer, BN, 1)
        CheckpointState.save_checkpoint(state, path, keep_previous=keep)
    state.check_pages()
    saved, live = snapshot(CheckpointState.load_checkpoint(path)), snapshot(state)
    assert differences(saved, {name: live[name] for name in saved}) == []


@pytest.mark.parametrize("change", ["shorter", "longer", "as long", "as long, older"])
def test_u047_a_mapped_file_that_is_overwritten_in_place_is_noticed(
    change: str, tmp_path: Path
) -> None:
    """Before its pages are used: no bus error."""
    path = tmp_path / "checkpoint"
    path.write_bytes(BN.checkpoint.read_bytes())
    os.utime(path, (10**9, 10**9))
    state = CheckpointState.load_checkpoint(path, device="file")
    module = Module(BN.training_model, state, BN.eval_model)
    module(**BN.feed)
    flat = module.get_contiguous_parameters()
    if change == "shorter":
        os.truncate(path, 0)
    elif change.startswith("as long"):
        with open(path, "r+b") as file:
            file.write(BN.checkpoint.read_bytes()[::-1])
        if change.endswith("older"):  # as rsync --inplace --times leaves it
            os.utime(path, (10**9 - 60, 10**9 - 60))
    else:
        with open(path, "ab") as file:
            file.write(b"more")
    for use in (
        lambda: module(**BN.feed),
        lambda: CheckpointState.save_checkpoint(state, tmp_path / "other"),
        state.to_checkpoint,
        lambda: copy.deepcopy(state),
        module.get_contiguous_parameters,
        module.parameters_checksum,
        lambda: module.copy_parameters_to_buffer(np.zeros(99, np.float32)),
        lambda: module.copy_buffer_to_parameters(flat, trainable_only=False),
        lambda: Module(BN.training_model, state),
        lambda: module.export_model_for_inferencing(tmp_path / "other", ["y"]),
    ):
        with pytest.raises(CheckpointError, match="overwritten in place"):
            use()
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize("wanted", [True, False], ids=["native", "python"])
@pytest.mark.parametrize("shift", [1, 2, 3, 4, 8])
def test_u047_tensors_at_odd_offsets_are_read_aligned(
    shift: int, wanted: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """U047: a data file whose tensors begin at odd bytes: copied to an aligned place."""
    from edge_train import dtypes
    from edge_train.checkpoint.mapped import MappedFiles
    from edge_train.checkpoint.source import FileSource, Span
    from edge_train.checkpoint.tensor import Tensor

    use_native(monkeypatch, wanted)
    for dtype in (np.float32, np.int64, np.float64, np.float16, np.uint8, np.bool_):
        values = np.arange(6).astype(dtype)
        path = tmp_path / f"{np.dtype(dtype)}"
        path.write_bytes(bytes(shift) + values.tobytes())
        with open(path, "rb") as file:
            span = Span(FileSource(file, "odd", str(path)), shift, values.nbytes)
            tensor = Tensor("t", dtypes.number_of(dtype), (2, 3), span)
            array = MappedFiles().array(tensor)
        np.testing.assert_array_equal(array.reshape(-1), values)
        assert array.flags.aligned
        assert array.flags.writeable


def test_another_file_than_the_checkpoint_is_refused(tmp_path: Path) -> None:
    (tmp_path / "other").write_bytes(b"x")
    with pytest.raises(ValueError, match=r"neither the checkpoint .* nor its data file"):
        CheckpointState.load_checkpoint(BN.checkpoint, device=f"file:{tmp_path / 'other'}")
    with pytest.raises(ValueError, match="by its path"):
        CheckpointState.load_checkpoint(BN.checkpoint.read_bytes(), device="file")
    with pytest.raises(ValueError, match="CUDA"):
        CheckpointState.load_checkpoint(BN.checkpoint, device="cuda:0")


@pytest.mark.slow
def test_training_on_the_cpu_does_not_load_device_memory() -> None:
    code = (
        "import sys, edge_train.api\n"
        "assert 'edge_train.device' not in sys.modules\n"
        "assert 'cffi' not in sys.modules"
    )
    assert succeed(run_python(code)) == ""
