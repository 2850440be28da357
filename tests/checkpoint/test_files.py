"""Writing: old or new at every moment, one file or two, the same bytes each time, streamed."""

from __future__ import annotations

import os
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from support.craft import RawCheckpoint, RawTensor

from edge_train.checkpoint import files
from edge_train.checkpoint.format import Checkpoint, Group
from edge_train.checkpoint.layout import dumps
from edge_train.checkpoint.parameter import Parameter
from edge_train.checkpoint.state import CheckpointState, OptimizerGroup
from edge_train.checkpoint.tensor import Tensor
from edge_train.errors import CheckpointCorrupt, CheckpointError

load, save = CheckpointState.load_checkpoint, CheckpointState.save_checkpoint


def _state(fill: float, *, external: bool = False, size: int = 40) -> CheckpointState:
    arrays = {
        "a": np.full(3, fill, np.uint8),
        "b": np.full((size, 10), fill, np.float32),
        "c": np.full(2, fill, np.float64),
    }
    state = CheckpointState(Parameter(n, n != "c", array) for n, array in arrays.items())
    moments = {"b": {"momentum0": np.full((size, 10), fill / 2, np.float32)}}
    state.groups["group0"] = OptimizerGroup("group0", int(fill), 0.5, moments)
    state._has_external_data = external
    return state


def _fill(path: Path) -> float:
    """The fill of a state if it is whole."""
    state = load(path)
    fill = float(state.parameters["a"].data[0])
    assert all((p.data == fill).all() for _, p in state.parameters)
    assert (state.groups["group0"].moments["b"]["momentum0"] == fill / 2).all()
    assert state.groups["group0"].step == fill
    return fill


names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)
arrays = hnp.arrays(
    st.sampled_from([np.float32, np.int64, np.float64, np.bool_, np.uint8, np.float16]),
    hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4),
)
values = st.one_of(
    st.integers(-(2**63), 2**63 - 1), st.floats(width=32), st.text(st.characters(codec="utf-8"))
)
states = st.builds(
    Checkpoint,
    trainable=st.dictionaries(names, arrays, max_size=4).map(
        lambda d: tuple(Tensor.of(n, a) for n, a in d.items())
    ),
    frozen=st.dictionaries(names, arrays, max_size=2).map(
        lambda d: tuple(Tensor.of(n, a) for n, a in d.items())
    ),
    has_external_data=st.booleans(),
    groups=st.one_of(
        st.none(),
        st.dictionaries(names, arrays, max_size=2).map(
            lambda d: tuple(
                Group(n, len(n) - 2, 0.5, (("w", (Tensor.of("momentum0", a),)),))
                for n, a in d.items()
            )
        ),
    ),
    properties=st.dictionaries(names, values, max_size=4),
)


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(checkpoint=states)
def test_any_checkpoint_round_trips(
    checkpoint: Checkpoint, tmp_path_factory: pytest.TempPathFactory
) -> None:
    _round_trip(checkpoint, tmp_path_factory)


@pytest.mark.slow
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(checkpoint=states)
def test_any_checkpoint_round_trips_at_length(
    checkpoint: Checkpoint, tmp_path_factory: pytest.TempPathFactory
) -> None:
    _round_trip(checkpoint, tmp_path_factory)


def _round_trip(checkpoint: Checkpoint, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("round") / "checkpoint"
    files.write(checkpoint, path)
    with files.open_checkpoint(path) as got:
        pairs = list(zip(checkpoint.tensors(), got.tensors(), strict=True))
        for (_, sent), (_, back) in pairs:
            assert (sent.name, sent.data_type, sent.dims) == (back.name, back.data_type, back.dims)
            assert back.array().tobytes() == sent.array().tobytes()
        kept = {n: v for n, v in got.properties.items() if n != "edge_train.data"}
        assert repr(sorted(kept.items())) == repr(sorted(checkpoint.properties.items()))
        if checkpoint.groups is not None:
            heads = [(g.name, g.step, g.initial_learning_rate) for g in got.groups or ()]
            assert heads == [(g.name, g.step, g.initial_learning_rate) for g in checkpoint.groups]


@pytest.mark.parametrize("external", [False, True])
def test_the_same_state_gives_the_same_bytes(tmp_path: Path, external: bool) -> None:
    first, second = _state(3, external=external), _state(3, external=external)
    first.properties["x"], first.properties["y"] = 1, 2
    second.properties["y"], second.properties["x"] = 2, 1
    save(first, tmp_path / "one")
    save(second, tmp_path / "two")
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    if external:
        assert (tmp_path / "one.data").read_bytes() == (tmp_path / "two.data").read_bytes()
    load(tmp_path / "one")
    assert sorted(os.listdir(tmp_path)) == sorted(
        ["one", "two", *(["one.data", "two.data"] if external else [])]
    )


def test_arrays_that_are_not_contiguous_or_not_native_are_written_right(tmp_path: Path) -> None:
    base = np.arange(24, dtype=np.float32).reshape(4, 6)
    arrays = {"t": base.T, "s": base[::2, 1::2], "b": base.astype(">f4"), "z": base[:0]}
    save(CheckpointState(Parameter(n, True, a) for n, a in arrays.items()), tmp_path / "saved")
    for name, parameter in load(tmp_path / "saved").parameters:
        np.testing.assert_array_equal(parameter.data, arrays[name])


class Stop(Exception):
    """The process ends here."""


def _stops_at(step: int, monkeypatch: pytest.MonkeyPatch) -> Callable[[], bool]:
    """Let the ``step``-th fsync or rename raise; tells whether it came to that."""
    calls = 0

    def counted(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == step:
                raise Stop
            return real(*arguments)

        return call

    monkeypatch.setattr(os, "fsync", counted(os.fsync))
    monkeypatch.setattr(os, "replace", counted(os.replace))
    return lambda: calls >= step


@pytest.mark.parametrize("external", [False, True])
@pytest.mark.parametrize("step", range(1, 10))
def test_a_stop_between_any_two_steps_leaves_old_or_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int, external: bool
) -> None:
    path = tmp_path / "checkpoint"
    save(_state(1, external=external), path)
    with monkeypatch.context() as patch:
        stopped = _stops_at(step, patch)
        try:
            save(_state(2, external=external, size=7), path)
        except Stop:
            assert stopped()
    assert _fill(path) in ({1, 2} if stopped() else {2})
    assert not [name for name in os.listdir(tmp_path) if name.endswith(".tmp")]
    save(_state(3, external=external, size=90), path)
    assert _fill(path) == 3
    assert len(os.listdir(tmp_path)) == 1 + external


def test_the_moment_between_the_two_renames(tmp_path: Path) -> None:
    path, data = tmp_path / "checkpoint", tmp_path / "checkpoint.data"
    following = tmp_path / "checkpoint.data.next"
    save(_state(1, external=True), path)
    old, old_data = path.read_bytes(), data.read_bytes()
    save(_state(2, external=True), path)
    data.rename(following)
    data.write_bytes(old_data)  # the checkpoint is replaced, its data has the first name still
    assert _fill(path) == 2
    new = path.read_bytes()
    path.write_bytes(old)  # the data is complete, the checkpoint not replaced yet
    assert _fill(path) == 1
    path.write_bytes(new)
    save(_state(2, external=True), path)
    assert _fill(path) == 2
    assert sorted(os.listdir(tmp_path)) == ["checkpoint", "checkpoint.data"]


def test_a_refused_path_leaves_no_data_file(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(CheckpointError, match="is a folder"):
        save(_state(1, external=True), tmp_path / "folder")
    assert os.listdir(tmp_path) == ["folder"]


@pytest.mark.parametrize("external", [False, True])
def test_a_full_disk_is_one_clear_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, external: bool
) -> None:
    path = tmp_path / "checkpoint"
    save(_state(1, external=external), path)

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(CheckpointError, match=r"No space left on device.*saved before"):
            save(_state(2, external=external), path)
    assert _fill(path) == 1


def test_large_states_go_to_a_data_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "INLINE_LIMIT", 3000)
    save(_state(1, size=10), tmp_path / "small")
    assert not (tmp_path / "small.data").exists()
    save(_state(2, size=70), tmp_path / "moments_inline")  # 2819 + 2800 bytes
    save(_state(3, size=90), tmp_path / "all_out")  # 3619 + 3600 bytes
    for name, fill, parameters, moments in (
        ("moments_inline", 2, 2824, 0),
        ("all_out", 3, 3624, 3600),
    ):
        assert _fill(tmp_path / name) == fill
        size = (tmp_path / f"{name}.data").stat().st_size
        assert size == parameters + moments + 16  # 8-aligned doubles, the identity at the end
    state = load(tmp_path / "all_out")
    monkeypatch.undo()
    save(state, tmp_path / "again")  # a state that came in two files is saved in two
    assert _fill(tmp_path / "again") == 3
    assert (tmp_path / "again.data").exists()


def test_a_data_file_is_read_at_any_offset_and_wins_over_inline_data(tmp_path: Path) -> None:
    tensors = [
        RawTensor("a", raw=None, offset=3),
        RawTensor("b", offset=0),
        RawTensor("c", raw=bytes(4), dims=(1,)),
    ]
    path = tmp_path / "checkpoint"
    path.write_bytes(bytes(RawCheckpoint(trainable=tensors, external=True)))
    content = bytes(range(11))
    (tmp_path / "checkpoint.data").write_bytes(content)
    got = {name: p.data.tobytes() for name, p in load(path).parameters}
    assert got == {"a": content[3:], "b": content[:8], "c": bytes(4)}


def test_a_data_file_missing_short_or_of_another_save_is_refused(tmp_path: Path) -> None:
    path, data = tmp_path / "checkpoint", tmp_path / "checkpoint.data"
    save(_state(1, external=True), path)
    one = data.read_bytes()
    save(_state(2, external=True), path)
    data.write_bytes(one)
    with pytest.raises(CheckpointError, match="are of two saves"):
        load(path)
    data.write_bytes(one[:1000])
    with pytest.raises(CheckpointCorrupt, match="'b' ends at byte 1604 of the data file, which"):
        load(path)
    data.unlink()
    with pytest.raises(CheckpointError, match=r"checkpoint.data', which is missing; copy both"):
        load(path)
    data.mkdir()
    with pytest.raises(CheckpointError, match="is a folder"):
        load(path)
    with pytest.raises(CheckpointError, match="load it by its path"):
        load(path.read_bytes())


def test_a_file_that_shrinks_while_it_is_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    save(_state(1, size=5000), path)
    with files.open_checkpoint(path) as checkpoint:
        os.truncate(path, 4096)
        with pytest.raises(CheckpointCorrupt, match="became shorter while it was read"):
            checkpoint.trainable[1].array()


def test_an_open_checkpoint_can_be_written_back_to_its_own_path(tmp_path: Path) -> None:
    for external in (False, True):
        path = tmp_path / "checkpoint"
        save(_state(5, external=external, size=60_000), path)
        before = path.read_bytes()
        with files.open_checkpoint(path) as checkpoint:
            files.write(checkpoint, path)
        assert path.read_bytes() == before
        assert _fill(path) == 5


def test_two_files_cannot_be_one_bytes_object() -> None:
    with pytest.raises(CheckpointError, match="cannot be one bytes object"):
        dumps(Checkpoint(has_external_data=True))


def test_writing_copies_no_tensor_data(tmp_path: Path) -> None:
    state = _state(1, size=200_000)  # 8 MB, moments 8 MB
    tracemalloc.start()
    save(state, tmp_path / "saved")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 300_000


MEMORY = """
import re, sys
from edge_train.checkpoint.state import CheckpointState
# not ru_maxrss, which a child takes over from its parent
peak = lambda: int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]) / 1024
start = peak()
state = CheckpointState.load_checkpoint(sys.argv[1])
loaded = peak()
CheckpointState.save_checkpoint(state, sys.argv[1])
print(loaded - start, peak() - loaded)
"""


@pytest.mark.slow
@pytest.mark.parametrize("external", [False, True])
def test_memory_of_100_mb(tmp_path: Path, external: bool) -> None:
    """Case U085: loading takes the parameters' memory once, saving takes nothing."""
    arrays = [np.full((655_360, 10), i, np.float32) for i in range(4)]
    state = CheckpointState(Parameter(f"p{i}", i > 0, a) for i, a in enumerate(arrays))
    state._has_external_data = external
    save(state, tmp_path / "big")
    command = [sys.executable, "-c", MEMORY, str(tmp_path / "big")]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    loading, saving = map(float, output.split())
    assert 95 < loading < 110
    assert saving < 5


@pytest.mark.slow
@pytest.mark.parametrize("external", [False, True])
def test_killed_at_random_times(tmp_path: Path, external: bool, rng: np.random.Generator) -> None:
    path = tmp_path / "checkpoint"
    save(_state(1, external=external, size=20_000), path)
    program = (
        "import sys; sys.path[:0] = sys.argv[2:]\n"
        "from pathlib import Path; import test_files as t\n"
        "for i in range(2, 10**6):\n"
        f"    t.save(t._state(i % 200, external={external}, size=20_000), sys.argv[1])\n"
        "    print(i, flush=True)\n"
    )
    here = Path(__file__).parent
    paths = [str(here), str(here.parent), str(here.parents[1])]
    seen = set()
    for _ in range(12):
        with subprocess.Popen(
            [sys.executable, "-c", program, str(path), *paths], stdout=subprocess.PIPE
        ) as process:
            assert process.stdout is not None
            process.stdout.readline()
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(timeout=float(rng.uniform(0, 0.1)))
            process.kill()
        seen.add(_fill(path))
    assert len(seen) > 1
    save(_state(1, external=external), path)
    assert len(os.listdir(tmp_path)) == 1 + external
