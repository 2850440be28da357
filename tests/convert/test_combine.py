"""Merge and transfer: what is taken from whom, and what they say of the rest."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from support.states import save_arrays, trained, values
from support.zoo import SEIZURE, ZOO

from edge_train.checkpoint.format import Property
from edge_train.checkpoint.state import CheckpointState
from edge_train.convert.combine import merge, transfer
from edge_train.convert.difference import compare
from edge_train.convert.rewrite import rename
from edge_train.errors import CheckpointCorrupt, CheckpointError, NominalStateError

MLP = ZOO["mlp_MSELoss"]
ONES, TWOS = np.ones(3, np.float32), np.full(3, 2, np.float32)


def test_a_backbone_and_a_head_become_one(tmp_path: Path) -> None:
    backbone = save_arrays(tmp_path / "backbone", {"mean": TWOS}, w=ONES)
    head = save_arrays(tmp_path / "head", head=TWOS)
    merge([backbone, head], tmp_path / "out")
    state = CheckpointState.load_checkpoint(tmp_path / "out")
    got = {name: (p.requires_grad, p.data.tolist()) for name, p in state.parameters}
    assert got == {"w": (True, [1] * 3), "mean": (False, [2] * 3), "head": (True, [2] * 3)}


def test_of_one_checkpoint_it_is_that_one(tmp_path: Path) -> None:
    path = trained(SEIZURE, tmp_path / "checkpoint")
    merge([path], tmp_path / "out")
    assert (tmp_path / "out").read_bytes() == path.read_bytes()


def test_moments_come_along(tmp_path: Path) -> None:
    """Two parts of one training: names apart, the same step."""
    path = trained(MLP, tmp_path / "one")
    rename(path, tmp_path / "two", {"*": "other.*"})
    merge([path, tmp_path / "two"], tmp_path / "out")
    group = CheckpointState.load_checkpoint(tmp_path / "out").groups["group0"]
    assert set(group.moments) == {
        f"{p}{n}" for p in ("", "other.") for n in ("w1", "b1", "w2", "b2")
    }
    for name in ("w1", "b2"):
        one, two = group.moments[name]["momentum1"], group.moments[f"other.{name}"]["momentum1"]
        np.testing.assert_array_equal(one, two)
    later = trained(MLP, tmp_path / "later", steps=3)
    rename(later, tmp_path / "three", {"*": "third.*"})
    with pytest.raises(CheckpointError, match=r"step 2 and, in .*three', at step 3"):
        merge([path, tmp_path / "three"], tmp_path / "no")
    assert not (tmp_path / "no").exists()
    merge([path, tmp_path / "three"], tmp_path / "out", optimizer=False)
    assert CheckpointState.load_checkpoint(tmp_path / "out").groups == {}


def test_one_name_in_both_is_an_error_or_a_choice(tmp_path: Path) -> None:
    one = save_arrays(tmp_path / "one", w=ONES, a=ONES)
    two = save_arrays(tmp_path / "two", w=TWOS, b=TWOS)
    with pytest.raises(CheckpointError, match=r"parameter 'w' is in .*one' and in .*two'"):
        merge([one, two], tmp_path / "out")
    assert not (tmp_path / "out").exists()
    for prefer, expected in (("first", 1), ("last", 2)):
        merge([one, two], tmp_path / "out", prefer=prefer)  # type: ignore[arg-type]
        got = values(tmp_path / "out")
        assert (got["w"][0], got["a"][0], got["b"][0]) == (expected, 1, 2)


def test_properties_that_differ(tmp_path: Path) -> None:
    paths = []
    for epoch in (3, 4):
        state = CheckpointState()
        state.properties["epoch"] = epoch
        paths.append(tmp_path / str(epoch))
        CheckpointState.save_checkpoint(state, paths[-1])
    with pytest.raises(CheckpointError, match=r"property 'epoch' is 3 and, in .*4', 4"):
        merge(paths, tmp_path / "out")
    merge(paths, tmp_path / "out", prefer="last")
    assert CheckpointState.load_checkpoint(tmp_path / "out").properties["epoch"] == 4


@pytest.mark.parametrize(
    ("one", "two", "same"),
    [
        (math.nan, math.nan, True),
        (math.inf, math.inf, True),
        (math.nan, 1.0, False),
        (1, 1.0, False),
        ("1", 1, False),
    ],
)
def test_merge_and_diff_call_the_same_properties_equal(
    tmp_path: Path, one: Property, two: Property, same: bool
) -> None:
    for name, value in (("a", one), ("b", two)):
        state = CheckpointState()
        state.properties["loss"] = value
        CheckpointState.save_checkpoint(state, tmp_path / name)
    paths = [tmp_path / "a", tmp_path / "b"]
    assert compare(*paths).equal == same
    if same:
        merge(paths, tmp_path / "out")
        assert compare(tmp_path / "out", paths[0]).equal
    else:
        with pytest.raises(CheckpointError, match="property 'loss' is"):
            merge(paths, tmp_path / "out")


def test_there_is_nothing_to_merge(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="nothing to merge"):
        merge([], tmp_path / "out")
    with pytest.raises(NominalStateError, match="a merge needs data"):
        merge([MLP.nominal_checkpoint], tmp_path / "out")
    assert not list(tmp_path.iterdir())


# ---- transfer -------------------------------------------------------------------------------


def test_a_new_classifier_on_a_trained_backbone(tmp_path: Path) -> None:
    """What fits by name, shape and type is taken; the rest is the target's, and named."""
    source = save_arrays(tmp_path / "source", {"bn.mean": ONES}, conv=ONES, fc=ONES, old=ONES)
    target = save_arrays(
        tmp_path / "target",
        {"conv": TWOS, "bn.mean": TWOS.astype("f8")},
        fc=np.full(5, 2),
        new=TWOS,
    )
    done = transfer(source, target, tmp_path / "out")
    assert done.copied == ("conv",)
    assert done.missing == ("new",)
    assert done.unused == ("old",)
    assert done.misfits == (
        "'fc' is float32 [3] in the source, int64 [5] in the target",
        "'bn.mean' is float32 [3] in the source, float64 [3] in the target",
    )
    got, expected = values(tmp_path / "out"), values(target)
    np.testing.assert_array_equal(got.pop("conv"), ONES)
    del expected["conv"]
    for name, array in expected.items():
        np.testing.assert_array_equal(got[name], array)
    state = CheckpointState.load_checkpoint(tmp_path / "out")
    assert not state.parameters["conv"].requires_grad  # the split is the target's


def test_the_targets_optimizer_state_goes_unless_it_is_kept(tmp_path: Path) -> None:
    target = trained(MLP, tmp_path / "target")
    transfer(MLP.checkpoint, target, tmp_path / "out")
    state = CheckpointState.load_checkpoint(tmp_path / "out")
    assert state.groups == {}
    assert state.properties["epoch"] == 3
    transfer(MLP.checkpoint, target, tmp_path / "out", optimizer=True)
    assert CheckpointState.load_checkpoint(tmp_path / "out").groups["group0"].step == 2
    moved = {difference.name for difference in compare(target, tmp_path / "out").values}
    assert moved == {"w1", "b1", "w2", "b2"}


def test_a_nominal_target_takes_everything_or_nothing(tmp_path: Path) -> None:
    transfer(MLP.checkpoint, MLP.nominal_checkpoint, tmp_path / "out")
    assert compare(MLP.checkpoint, tmp_path / "out").equal
    part = save_arrays(tmp_path / "part", w1=values(MLP.checkpoint)["w1"])
    with pytest.raises(NominalStateError, match=r"lacks \['b1', 'w2', 'b2'\]"):
        transfer(part, MLP.nominal_checkpoint, tmp_path / "no")
    with pytest.raises(NominalStateError, match="a transfer needs data"):
        transfer(MLP.nominal_checkpoint, MLP.checkpoint, tmp_path / "no")
    assert not (tmp_path / "no").exists()


def test_nothing_fits(tmp_path: Path) -> None:
    source = save_arrays(tmp_path / "source", w=ONES)
    target = save_arrays(tmp_path / "target", v=ONES)
    with pytest.raises(CheckpointError, match=r"it has \['w'\], wanted \['v'\]; rename"):
        transfer(source, target, tmp_path / "out")
    target = save_arrays(tmp_path / "target", w=np.ones(4, "f4"))
    with pytest.raises(CheckpointError, match=r"'w' is float32 \[3\] in the source"):
        transfer(source, target, tmp_path / "out")
    damaged = source.read_bytes()[:-9]
    with pytest.raises(CheckpointCorrupt):
        transfer(damaged, target, tmp_path / "out")
    assert not (tmp_path / "out").exists()
