"""The weighted average: the numbers, statistics, and clients that must not get in."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.states import ALL_CASES, save_arrays, trained, values
from support.training import module_of
from support.zoo import ZOO, Artifacts

from edge_train.api import CheckpointState
from edge_train.convert.average import average
from edge_train.convert.difference import compare
from edge_train.errors import CheckpointCorrupt, CheckpointError, NominalStateError

BN = ZOO["conv_bn_maxpool_gap"]
MLP = ZOO["mlp_MSELoss"]


def _clients(folder: Path) -> list[Path]:
    """Two clients whose statistics have moved apart."""
    paths = []
    for seed in (1, 2):
        module = module_of(BN)
        rng = np.random.default_rng(seed)
        x = (seed * rng.standard_normal(BN.feed["x"].shape)).astype(np.float32)
        for _ in range(3):
            module(x, BN.feed["labels"])
        for _, parameter in module.state.parameters:
            if parameter.requires_grad:
                parameter.data[...] += rng.standard_normal(parameter.data.shape)
        paths.append(folder / f"client{seed}")
        CheckpointState.save_checkpoint(module.state, paths[-1])
    return paths


@pytest.mark.parametrize("weights", [None, [1, 1], [120, 80], [0, 3.5]])
def test_u055_weights_and_statistics_are_averaged(
    weights: list[float] | None, tmp_path: Path
) -> None:
    """U055: every float tensor; a variance stays >= 0 and the average evaluates."""
    one, two = _clients(tmp_path)
    average([one, two], tmp_path / "mean", weights=weights)
    a, b = np.array(weights or [1, 1]) / sum(weights or [1, 1])
    ours, theirs, mean = values(one), values(two), values(tmp_path / "mean")
    for name, array in mean.items():
        expected = a * ours[name].astype(np.float64) + b * theirs[name].astype(np.float64)
        np.testing.assert_array_equal(array, expected.astype(np.float32))
    assert not np.array_equal(ours["va"], theirs["va"])
    assert (mean["va"] >= 0).all()
    state = CheckpointState.load_checkpoint(tmp_path / "mean")
    module = module_of(BN)
    for name, parameter in state.parameters:
        module.state.parameters[name].data = parameter.data
    assert np.isfinite(module.eval()(**BN.feed))


def test_u055_statistics_are_kept_where_that_is_asked(tmp_path: Path) -> None:
    one, two = _clients(tmp_path)
    average([one, two], tmp_path / "mean", statistics="keep")
    mean = values(tmp_path / "mean")
    for name in ("mu", "va"):
        np.testing.assert_array_equal(mean[name], values(one)[name])
    assert not np.array_equal(mean["c1"], values(one)["c1"])


@pytest.mark.parametrize("case", ALL_CASES)
def test_of_equal_checkpoints_it_is_that_one(case: Artifacts, tmp_path: Path) -> None:
    average([case.checkpoint] * 3, tmp_path / "mean", weights=[1, 2, 0.7])
    assert compare(case.checkpoint, tmp_path / "mean").equal


def test_a_variance_never_falls_below_0(tmp_path: Path) -> None:
    """U055: also of numbers that round: tiny, huge, zero, of shares that do not add up to 1."""
    rng = np.random.default_rng(0)
    paths = []
    for index in range(7):
        variance = (10.0 ** rng.uniform(-45, 38, 4000) * rng.integers(0, 2, 4000)).astype("f4")
        paths.append(save_arrays(tmp_path / str(index), {"va": variance}, w=np.ones(2, "f4")))
    average(paths, tmp_path / "mean", weights=rng.random(7).tolist())
    mean = values(tmp_path / "mean")["va"]
    assert (mean >= 0).all()
    assert np.isfinite(mean).all()


def test_optimizer_state_is_left_out_and_the_first_ones_properties_kept(tmp_path: Path) -> None:
    path = trained(MLP, tmp_path / "one")
    average([path, MLP.checkpoint], tmp_path / "mean")
    state = CheckpointState.load_checkpoint(tmp_path / "mean")
    assert state.groups == {}
    assert state.properties["epoch"] == 3


def test_half_precision_is_averaged_in_more(tmp_path: Path) -> None:
    paths = [
        save_arrays(tmp_path / str(i), {"h": np.array([v], "f2"), "d": np.array([v], "f8")})
        for i, v in enumerate((60000.0, 60001.0, 59999.0))
    ]
    average(paths, tmp_path / "mean")
    mean = values(tmp_path / "mean")
    assert (mean["h"].dtype, mean["h"][0]) == (np.float16, np.float16(60000))
    assert mean["d"][0] == pytest.approx(60000, rel=1e-15)


def test_integers_have_no_average(tmp_path: Path) -> None:
    one, two, again = (
        save_arrays(tmp_path / name, {"n": np.array([3, value])}, w=np.ones(2, "f4"))
        for name, value in (("one", 4), ("two", 5), ("again", 4))
    )
    with pytest.raises(CheckpointError, match=r"tensor 'n' is int64.*differs between") as caught:
        average([one, two], tmp_path / "mean")
    assert str(one) in str(caught.value)
    assert str(two) in str(caught.value)
    assert not (tmp_path / "mean").exists()
    average([one, two], tmp_path / "mean", statistics="keep")
    average([one, again], tmp_path / "mean")
    assert values(tmp_path / "mean")["n"].tolist() == [3, 4]


@pytest.mark.slow
@pytest.mark.parametrize("model", [BN.training_model, BN.eval_model])
def test_u055_a_client_with_a_variance_below_0_is_refused(model: Path, tmp_path: Path) -> None:
    """U055: where the model tells which tensors are variances; a mean may be below 0."""
    one, two = _clients(tmp_path)
    state = CheckpointState.load_checkpoint(two)
    state.parameters["va"].data[1] = -1e-9
    state.parameters["mu"].data[:] = -5
    CheckpointState.save_checkpoint(state, two)
    with pytest.raises(CheckpointCorrupt, match=r"client2': tensor 'va' is a variance and has"):
        average([one, two], tmp_path / "mean", model=model)
    assert not (tmp_path / "mean").exists()
    average([one, two], tmp_path / "mean", model=model, statistics="keep")
    state.parameters["va"].data[1] = 0
    CheckpointState.save_checkpoint(state, two)
    average([one, two], tmp_path / "mean", model=model)
    assert (values(tmp_path / "mean")["va"] >= 0).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_client_that_diverged_is_named_and_nothing_written(bad: float, tmp_path: Path) -> None:
    arrays = values(MLP.checkpoint)
    arrays["w2"].reshape(-1)[7] = bad
    path = save_arrays(tmp_path / "diverged", **arrays)
    with pytest.raises(CheckpointCorrupt, match=r"diverged': tensor 'w2' has a NaN or infinity"):
        average([MLP.checkpoint, path], tmp_path / "mean")
    assert [p.name for p in tmp_path.iterdir()] == ["diverged"]
    average([MLP.checkpoint, path], tmp_path / "mean", weights=[1, 0])  # it does not count
    assert compare(MLP.checkpoint, tmp_path / "mean").equal


@pytest.mark.parametrize(
    "weights", [[1], [1, 2, 3], [1, -1], [0, 0], [1, float("nan")], [1, float("inf")], []]
)
def test_weights_that_are_none(weights: list[float], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="weights"):
        average([MLP.checkpoint, MLP.checkpoint], tmp_path / "mean", weights=weights)
    with pytest.raises(ValueError, match="nothing to average"):
        average([], tmp_path / "mean")
    with pytest.raises(ValueError, match="statistics is 'drop'"):
        average([MLP.checkpoint], tmp_path / "mean", statistics="drop")  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())


def test_checkpoints_of_other_models(tmp_path: Path) -> None:
    arrays = values(MLP.checkpoint)
    arrays["w1"], extra = np.zeros((5, 5), np.float32), np.zeros(1, np.float32)
    frozen = {"b1": arrays.pop("b1")}
    path = save_arrays(tmp_path / "other", frozen, **arrays, more=extra)
    with pytest.raises(CheckpointError) as caught:
        average([MLP.checkpoint, path], tmp_path / "mean")
    text = str(caught.value)
    for part in (
        "3 differences",
        "'w1' is float32 [5, 4], trained; in",
        "'b1' is float32 [5], trained; in",
        "'more' is missing; in",
    ):
        assert part in text
    with pytest.raises(CheckpointError, match="differences to") as caught:
        average(
            [MLP.checkpoint, ZOO["transformer_LNop_3out_opset17"].checkpoint], tmp_path / "mean"
        )
    assert str(caught.value).count("\n") == 9
    assert str(caught.value).endswith(" more")
    with pytest.raises(NominalStateError, match="an average needs data"):
        average([MLP.checkpoint, MLP.nominal_checkpoint], tmp_path / "mean")
    assert not (tmp_path / "mean").exists()
