"""A checkpoint <-> one flat buffer: the Module's order, sizes and rules."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.snapshot import differences, snapshot
from support.states import ALL_CASES, save_arrays, trained, values
from support.training import module_of
from support.zoo import ZOO, Artifacts

from edge_train.api import CheckpointState, Module, Optimizer
from edge_train.convert.difference import compare
from edge_train.convert.flat import from_flat, layout, to_flat
from edge_train.convert.nominal import to_nominal
from edge_train.errors import ArtifactError, CheckpointError, NominalStateError

HEAD = ZOO["frozen_backbone_only_head"]
MLP = ZOO["mlp_CrossEntropyLoss"]
BN = ZOO["conv_bn_maxpool_gap"]


@pytest.mark.parametrize("case", ALL_CASES)
def test_u049_the_buffer_is_the_modules_and_fills_a_nominal_checkpoint(
    case: Artifacts, tmp_path: Path
) -> None:
    """U049, U052: the bytes of get_contiguous_parameters; filled: equal to the full checkpoint."""
    module = module_of(case)
    for only in (False, True):
        to_flat(case.checkpoint, tmp_path / "buffer", case.training_model, only)
        expected = module.get_contiguous_parameters(only).numpy()
        assert (tmp_path / "buffer").read_bytes() == expected.astype("<f4").tobytes()
        assert layout(case.checkpoint, case.training_model, only) == module.parameter_layout(only)
    to_nominal(case.checkpoint, tmp_path / "nominal")
    to_flat(case.checkpoint, tmp_path / "buffer.npy", case.training_model)
    assert np.load(tmp_path / "buffer.npy").size == module.get_parameters_size(False)
    from_flat(tmp_path / "nominal", tmp_path / "buffer.npy", tmp_path / "full", case.training_model)
    assert compare(case.checkpoint, tmp_path / "full").equal
    assert layout(tmp_path / "nominal", case.training_model) == module.parameter_layout()


def test_u049_trained_on_from_the_filled_file_it_is_bit_equal(tmp_path: Path) -> None:
    to_flat(MLP.checkpoint, tmp_path / "buffer", MLP.training_model)
    paths = tmp_path / "buffer", tmp_path / "full", MLP.training_model
    from_flat(MLP.nominal_checkpoint, *paths)
    modules = []
    for checkpoint in (MLP.checkpoint, tmp_path / "full"):
        state = CheckpointState.load_checkpoint(checkpoint)
        module = Module(MLP.training_model, state, MLP.eval_model)
        optimizer = Optimizer(MLP.optimizer_model, module)
        for _ in range(3):
            module.lazy_reset_grad()
            module(**MLP.feed)
            optimizer.step()
        modules.append(module)
    assert differences(snapshot(modules[0].state), snapshot(modules[1].state)) == []


def test_u049_trainable_only_does_not_fill(tmp_path: Path) -> None:
    to_flat(HEAD.checkpoint, tmp_path / "buffer", HEAD.training_model, True)
    paths = tmp_path / "buffer", tmp_path / "out", HEAD.training_model
    with pytest.raises(NominalStateError, match="filled whole"):
        from_flat(HEAD.nominal_checkpoint, *paths, True)
    with pytest.raises(NominalStateError, match="a flat buffer needs data"):
        to_flat(HEAD.nominal_checkpoint, tmp_path / "x", HEAD.training_model)
    assert [path.name for path in tmp_path.iterdir()] == ["buffer"]


def test_u048_both_sizes_and_the_wrong_one_with_both_numbers(tmp_path: Path) -> None:
    """U048: the flag counts, the frozen parameters stay as they were."""
    module = module_of(HEAD)
    sizes = module.get_parameters_size(True), module.get_parameters_size(False)
    assert sizes[0] < sizes[1]
    for only, wrong, right in ((True, sizes[1], sizes[0]), (False, sizes[0], sizes[1])):
        buffer = np.zeros(wrong, np.float32).tobytes()
        text = rf"{wrong} elements, expected {right} .*it fits trainable_only={not only}"
        with pytest.raises(ValueError, match=text):
            from_flat(HEAD.checkpoint, buffer, tmp_path / "out", HEAD.training_model, only)
    assert not list(tmp_path.iterdir())
    buffer = np.full(sizes[0], 2, "<f4").tobytes()
    from_flat(HEAD.checkpoint, buffer, tmp_path / "out", HEAD.training_model, True)
    changed = {difference.name for difference in compare(HEAD.checkpoint, tmp_path / "out").values}
    assert changed == {"wf", "bf"}


@pytest.mark.parametrize("off", [-5, -1, 1, 5])
def test_u051_one_tensor_too_many_or_few(off: int, tmp_path: Path) -> None:
    """U051: layout, expected and got; nothing is written."""
    buffer = np.zeros(43 + off, np.float32).tobytes()
    with pytest.raises(ValueError, match=f"{43 + off} elements, expected 43") as caught:
        from_flat(MLP.checkpoint, buffer, tmp_path / "out", MLP.training_model)
    assert "w1[5, 4], b1[5], w2[3, 5], b2[3]" in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_u052_the_order_is_the_graphs(tmp_path: Path) -> None:
    """U052: b1=7, w2=5; graph order, not that of the names."""
    arrays = values(MLP.checkpoint)
    arrays["b1"][:], arrays["w2"][:] = 7, 5
    path = save_arrays(tmp_path / "checkpoint", **arrays)
    to_flat(path, tmp_path / "buffer", MLP.training_model)
    buffer = np.fromfile(tmp_path / "buffer", "<f4")
    assert np.all(buffer[20:25] == 7)
    assert np.all(buffer[25:40] == 5)
    slots = layout(path, MLP.training_model)
    assert [(s.name, s.offset) for s in slots] == [("w1", 0), ("b1", 20), ("w2", 25), ("b2", 40)]


def test_u054_moments_are_kept_unless_asked_otherwise(tmp_path: Path) -> None:
    """U054: as in onnxruntime-training; --reset-optimizer is a fresh optimizer's next step."""
    path = trained(MLP, tmp_path / "checkpoint", steps=3)
    average = np.linspace(-1, 1, 43, dtype="<f4").tobytes()
    from_flat(path, average, tmp_path / "kept", MLP.training_model)
    changed = compare(path, tmp_path / "kept")
    assert {one.name for one in changed.values} == {"w1", "b1", "w2", "b2"}
    assert changed.other == ()
    from_flat(path, average, tmp_path / "reset", MLP.training_model, reset_optimizer=True)
    state = CheckpointState.load_checkpoint(tmp_path / "reset")
    module = Module(MLP.training_model, state)
    optimizer = Optimizer(MLP.optimizer_model, module)
    assert optimizer.step_count == 0
    assert not state.groups["group0"].moments["w1"]["momentum0"].any()
    assert values(tmp_path / "reset")["w1"].reshape(-1)[0] == -1


def test_u055_statistics_are_in_the_full_buffer_alone(tmp_path: Path) -> None:
    for only, count in ((False, 8), (True, 0)):
        slots = layout(BN.checkpoint, BN.training_model, only)
        assert sum(slot.size for slot in slots if slot.name in ("mu", "va")) == count


# ---- what does not fit ----------------------------------------------------------------------


def test_a_model_of_another_network(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(ArtifactError, match="'c1' is missing from the checkpoint"):
        to_flat(MLP.checkpoint, out, BN.training_model)
    with pytest.raises(ArtifactError, match="makes no gradients"):
        to_flat(MLP.checkpoint, out, MLP.eval_model)
    arrays = values(MLP.checkpoint)
    arrays["b1"] = np.zeros(6, np.float32)
    path = save_arrays(tmp_path / "shape", **arrays)
    with pytest.raises(ArtifactError, match=r"'b1' has shape \[6\], the model wants \[5\]"):
        to_flat(path, out, MLP.training_model)
    arrays["b1"] = np.zeros(5, np.float64)
    path = save_arrays(tmp_path / "type", **arrays)
    with pytest.raises(ArtifactError, match="'b1' is float64: a flat buffer holds float32 alone"):
        to_flat(path, out, MLP.training_model)
    frozen = {"b1": np.zeros(5, np.float32)}
    del arrays["b1"]
    path = save_arrays(tmp_path / "split", frozen, **arrays)
    with pytest.raises(ArtifactError, match="'b1' is frozen there, trained in the model"):
        to_flat(path, out, MLP.training_model)
    assert not out.exists()


def _npy(array: np.ndarray, path: Path) -> bytes:
    np.save(path, array)
    return path.read_bytes()


def test_buffers_of_another_kind(tmp_path: Path) -> None:
    good = _npy(np.zeros(43, "<f4"), tmp_path / "x.npy")
    for buffer, error, text in (
        (bytes(43 * 4 - 1), ValueError, "no whole number of float32"),
        (_npy(np.zeros(43), tmp_path / "x.npy"), CheckpointError, "<f8 of shape"),
        (_npy(np.zeros(43, ">f4"), tmp_path / "x.npy"), CheckpointError, ">f4 of shape"),
        (_npy(np.zeros((1, 43), "<f4"), tmp_path / "x.npy"), CheckpointError, "one row"),
        (good[:-1], CheckpointError, "171 bytes of data, expected 172: truncated"),
        (good[:20], CheckpointError, "a damaged .npy"),
        (good[:12] + b"(" * 50, CheckpointError, "a damaged .npy"),
        (good[:6] + b"\x09" + good[7:], CheckpointError, r"version \(9, 0\)"),
        (b"", ValueError, "0 elements, expected 43"),
    ):
        with pytest.raises(error, match=text):
            from_flat(MLP.checkpoint, buffer, tmp_path / "out", MLP.training_model)
    assert not (tmp_path / "out").exists()
    from_flat(MLP.checkpoint, good, tmp_path / "out", MLP.training_model)
    assert not values(tmp_path / "out")["w1"].any()
