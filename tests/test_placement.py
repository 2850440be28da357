"""Several Modules on the parameters of one state: their graphs may list them in any order."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from support.generated import feed_of, generate, mlp
from support.zoo import Artifacts

from edge_train.api import CheckpointState, Module, Optimizer
from edge_train.device import SharedWeights
from edge_train.errors import ArtifactError
from edge_train.kernels import native

TURNED = ["w2", "b1", "b2", "w1"]


@pytest.fixture(scope="module")
def graphs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Artifacts, Artifacts]:
    """One network twice, with its parameters in two orders."""
    folder = tmp_path_factory.mktemp("orders")
    plain, turned = mlp(), mlp()
    by_name = {tensor.name: tensor for tensor in mlp().graph.initializer}
    del turned.graph.initializer[:]
    turned.graph.initializer.extend(by_name[name] for name in TURNED)
    options = {"loss": "CrossEntropyLoss", "nominal_checkpoint": True}
    return (
        generate(plain, folder / "plain", **options),
        generate(turned, folder / "turned", **options),
    )


def load(artifacts: Artifacts) -> CheckpointState:
    return CheckpointState.load_checkpoint(artifacts.checkpoint)


def module(artifacts: Artifacts, state: CheckpointState, **options: object) -> Module:
    return Module(artifacts.training_model, state, artifacts.eval_model, **options)


def order(of: Module) -> list[str]:
    return [slot.name for slot in of.parameter_layout()]


def values(state: CheckpointState) -> dict[str, np.ndarray]:
    return {name: parameter.data.copy() for name, parameter in state.parameters}


def assert_same(got: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    for name, value in expected.items():
        np.testing.assert_array_equal(got[name], value, err_msg=name)


def trained(
    first: Artifacts, second: Artifacts, path: Path, fuse: bool, moments: str
) -> tuple[list[float], dict[str, np.ndarray]]:
    """Losses, weights and moments of two Modules on one state that step by turns."""
    state, feed = load(first), feed_of(first)
    modules = [module(first, state), module(second, state, fuse_optimizer=fuse)]
    optimizers = [Optimizer(first.optimizer_model, each, moments=moments) for each in modules]
    for optimizer in optimizers:
        optimizer.set_learning_rate(0.05)
    losses = []
    for at in (0, 1, 1, 0, 1):
        losses.append(float(modules[at](**feed)))
        if not fuse:  # a gradient of the other one's too
            losses.append(float(modules[1 - at](**feed)))
        assert optimizers[at].step()
        modules[at].lazy_reset_grad()
    losses += [float(each.eval()(**feed)) for each in modules]
    CheckpointState.save_checkpoint(state, path)
    saved = CheckpointState.load_checkpoint(path)
    kept = saved.groups["group0"].moments
    found = {f"{n}/{kind}": np.asarray(m) for n, own in kept.items() for kind, m in own.items()}
    return losses, found | values(saved)


@pytest.mark.parametrize("moments", ["float32", "8bit"])
@pytest.mark.parametrize(
    "fuse",
    [
        False,
        pytest.param(
            True,
            marks=pytest.mark.skipif(
                not native.has_ops(), reason="no native library: tools/build_kernels.py makes it"
            ),
        ),
    ],
)
def test_another_order_trains_to_the_same_bits(
    graphs: tuple[Artifacts, Artifacts], tmp_path: Path, fuse: bool, moments: str
) -> None:
    plain, turned = graphs
    expected = trained(plain, plain, tmp_path / "a", fuse, moments)
    got = trained(plain, turned, tmp_path / "b", fuse, moments)
    assert got[0] == expected[0]
    assert len(got[1]) == 12
    assert_same(got[1], expected[1])
    assert any(
        np.abs(value - values(load(plain))[n]).max() > 0.01
        for n, value in got[1].items()
        if n in TURNED
    )


def test_each_module_keeps_its_own_flat_buffer(graphs: tuple[Artifacts, Artifacts]) -> None:
    plain, turned = graphs
    state = load(plain)
    one, two = module(plain, state), module(turned, state)
    assert two.arena is one.arena
    assert sorted(order(one)) == sorted(order(two)) != order(one)
    for each in (one, two):
        flat = each.get_contiguous_parameters().numpy()
        expected = [state.parameters[name].data.reshape(-1) for name in order(each)]
        np.testing.assert_array_equal(flat, np.concatenate(expected))
        each.copy_buffer_to_parameters(np.arange(flat.size, dtype=np.float32) / 50)
        start = 0
        for slot in each.parameter_layout(trainable_only=True):
            assert state.parameters[slot.name].data.flat[0] == np.float32(start / 50)
            start += slot.size
    assert one.parameters_checksum() != two.parameters_checksum()


def test_a_nominal_state_is_filled_in_the_order_of_the_module_that_fills_it(
    graphs: tuple[Artifacts, Artifacts],
) -> None:
    plain, turned = graphs
    expected = values(load(plain))
    for filler in (0, 1):
        state = CheckpointState.load_checkpoint(plain.folder / "nominal_checkpoint")
        modules = [module(plain, state), module(turned, state)]
        flat = np.concatenate([expected[name].reshape(-1) for name in order(modules[filler])])
        modules[filler].fill(0, flat)
        assert_same(values(state), expected)
        losses = [float(each(**feed_of(plain))) for each in modules]
        assert losses[0] == losses[1]


def test_the_same_choice_is_shared_too(graphs: tuple[Artifacts, Artifacts]) -> None:
    plain, turned = graphs
    state = load(plain)
    one = module(plain, state, trainable=["w*"])
    arena = one.arena
    again, other = module(turned, state), module(turned, state, trainable=["w2", "w1"])
    assert one.arena is again.arena is other.arena is arena
    assert state.chosen == ("w1", "w2")
    assert float(one(**feed_of(plain))) == float(other(**feed_of(plain)))
    later = module(turned, state, trainable=["w1"])
    assert later.arena.names == ("w1",)
    with pytest.raises(ArtifactError, match=r"trains 2 parameters.*trains 1, and \['w2'\]"):
        one(**feed_of(plain))


def test_a_file_keeps_the_order_in_which_it_was_mapped(
    graphs: tuple[Artifacts, Artifacts], tmp_path: Path
) -> None:
    """Also where another choice moves the parameters."""
    plain, _ = graphs
    expected = values(load(plain))
    state = CheckpointState.load_checkpoint(plain.folder / "nominal_checkpoint")
    flat = module(plain, load(plain)).get_contiguous_parameters().numpy()
    flat.tofile(tmp_path / "flat")
    first = module(plain, state, device=f"file:{tmp_path / 'flat'}")
    assert_same(values(state), expected)
    for at, names in enumerate((["w2", "b1"], ["b*"], ["w1"], ["*"])):
        module(graphs[at % 2], state, trainable=names)(**feed_of(plain))
        assert_same(values(state), expected)
    assert np.isfinite(first(**feed_of(plain)))
    np.testing.assert_array_equal(np.fromfile(tmp_path / "flat", np.float32), flat)


def test_readers_of_shared_memory_find_them_by_name(graphs: tuple[Artifacts, Artifacts]) -> None:
    plain, turned = graphs
    state, name = load(plain), f"orders{os.getpid()}"
    one = module(plain, state, device=f"shm:{name}")
    two = module(turned, state, device=f"shm:{name}")
    optimizer = Optimizer(plain.optimizer_model, two)
    two(**feed_of(plain))
    assert optimizer.step()
    assert_same(SharedWeights(name).read()[0], values(state))
    assert one.arena is two.arena
