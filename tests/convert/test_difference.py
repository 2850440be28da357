"""What compare sees: every kind of difference once, and none where there is none."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.states import ALL_CASES, rich, save, save_arrays, trained
from support.zoo import ZOO, Artifacts

from edge_train.checkpoint.state import CheckpointState
from edge_train.convert.difference import Comparison, compare
from edge_train.errors import CheckpointCorrupt

MLP = ZOO["mlp_MSELoss"]


@pytest.mark.parametrize("case", ALL_CASES)
def test_a_checkpoint_equals_itself(case: Artifacts) -> None:
    path = case.checkpoint
    assert compare(path, path.read_bytes()) == Comparison((), (), (), ())


def test_names_shapes_and_the_largest_difference(tmp_path: Path) -> None:
    a = save_arrays(tmp_path / "a", w=[1, 2, 3], v=[1.0], only=[0])
    b = save_arrays(tmp_path / "b", w=[1, 2.5, 1], v=[[1.0]], more=[0])
    found = compare(a, b)
    assert (found.only_a, found.only_b) == (("only",), ("more",))
    assert found.other == ("'v' is float32 [1] in a, float32 [1, 1] in b",)
    (difference,) = found.values
    assert (difference.name, difference.elements, difference.of) == ("w", 2, 3)
    assert (difference.largest, found.largest, found.equal) == (2.0, 2.0, False)


def test_a_tolerance_forgives_what_is_not_above_it(tmp_path: Path) -> None:
    a = save_arrays(tmp_path / "a", w=np.array([1.0, 2.0, np.nan]))
    b = save_arrays(tmp_path / "b", w=np.array([1.25, 2.5, np.nan]))
    assert [d.elements for d in compare(a, b, 0.25).values] == [1]
    assert compare(a, b, 0.5).equal
    for tolerance in (-1.0, math.nan):
        with pytest.raises(ValueError, match="tolerance"):
            compare(a, b, tolerance)


SPECIAL: dict[str, tuple[list[object], list[object], str, float | None]] = {
    "NaN twice": ([np.nan], [np.nan], "f4", None),
    "NaN and 0": ([np.nan], [0], "f4", math.inf),
    "infinity twice": ([np.inf], [np.inf], "f4", None),
    "both infinities": ([np.inf], [-np.inf], "f4", math.inf),
    "zeros of two signs": ([0.0], [-0.0], "f4", None),
    "large neighbours": ([2**62], [2**62 + 1], "i8", 1.0),
    "unsigned": ([0], [2**64 - 1], "u8", float(2**64)),
    "bool": ([True, False], [True, True], "?", 1.0),
    "far apart": ([3e38], [-3e38], "f4", 6e38),
}


@pytest.mark.parametrize("name", SPECIAL)
def test_special_values(name: str, tmp_path: Path) -> None:
    one, two, dtype, largest = SPECIAL[name]
    a = save_arrays(tmp_path / "a", w=np.array(one, dtype))
    b = save_arrays(tmp_path / "b", w=np.array(two, dtype))
    found = compare(a, b)
    assert found.equal is (largest is None)
    if largest is not None:
        assert found.largest == pytest.approx(largest, rel=1e-6)


def test_far_down_in_a_large_tensor(tmp_path: Path) -> None:
    """Blocks: the last element of the last one counts."""
    array = np.zeros(200_001, np.float32)
    a = save_arrays(tmp_path / "a", w=array)
    array[-1] = 1e-30
    b = save_arrays(tmp_path / "b", w=array)
    (difference,) = compare(a, b).values
    assert (difference.elements, difference.of) == (1, 200_001)


def test_everything_beside_the_values(tmp_path: Path) -> None:
    a = save(rich(), tmp_path / "a")
    changed = rich()
    group = replace(changed.groups[0], step=1, moments=())  # type: ignore[index]
    trainable, moved = changed.trainable[1:], changed.trainable[0]
    changed = replace(
        changed,
        trainable=trainable,
        frozen=(*changed.frozen, moved),
        groups=(group,),
        properties={**changed.properties, "epoch": 1.0, "new": "x"},
    )
    found = compare(a, save(changed, tmp_path / "b"))
    assert found.values == ()
    moment = "of 'w' in group 'group0'"
    assert found.only_a == (f"momentum0 {moment}", f"momentum1 {moment}")
    assert list(found.other) == [
        "'w' is trained in a, frozen in b",
        "optimizer group 'group0' is at step 1099511627776 with initial rate 0.25 in a, at step 1 "
        "with initial rate 0.25 in b",
        "optimizer group 'other' is at step 0 with initial rate 0 in a, missing in b",
        f"property 'epoch' is {2**62} in a, 1.0 in b",
        "property 'new' is missing in a, 'x' in b",
    ]


def test_strings_and_nominal_checkpoints(tmp_path: Path) -> None:
    a = save_arrays(tmp_path / "a", words=np.array(["x", "y"], object))
    b = save_arrays(tmp_path / "b", words=np.array(["x", "z"], object))
    assert [(d.name, d.elements, d.of) for d in compare(a, b).values] == [("words", 1, 2)]
    assert compare(MLP.nominal_checkpoint, MLP.nominal_checkpoint).equal
    found = compare(MLP.nominal_checkpoint, MLP.checkpoint)
    assert found.other == ("a is nominal (names without data): values are not compared",)
    assert (found.only_a, found.only_b, found.values) == ((), (), ())


def test_moments_are_compared_too(tmp_path: Path) -> None:
    found = compare(trained(MLP, tmp_path / "a", 1), trained(MLP, tmp_path / "b", 2))
    names = {difference.name for difference in found.values}
    assert "momentum1 of 'w1' in group 'group0'" in names
    assert "w1" in names


def test_a_damaged_file(tmp_path: Path) -> None:
    with pytest.raises(CheckpointCorrupt):
        compare(MLP.checkpoint, MLP.checkpoint.read_bytes()[:-40])
    with pytest.raises(FileNotFoundError):
        compare(MLP.checkpoint, tmp_path / "no")


def test_the_record_of_a_run_is_no_difference(tmp_path: Path) -> None:
    """Two runs to the same weights took other seconds."""
    paths = []
    for seconds in ("1.5", "2.5"):
        state = CheckpointState.load_checkpoint(MLP.checkpoint)
        state.private["edge_train.run"] = f'{{"seconds": {seconds}}}'
        state.private["edge_train.digest"] = seconds
        state.private["edge_train.learning_rate"] = "0.25"
        paths.append(tmp_path / seconds)
        CheckpointState.save_checkpoint(state, paths[-1])
    assert compare(*paths).equal
    (rate,) = compare(paths[0], MLP.checkpoint).other
    assert rate == "property 'edge_train.learning_rate' is '0.25' in a, missing in b"
