"""A trainer and an inference process on the same weights: whole versions, at once, no copy."""

from __future__ import annotations

import errno
import gc
import json
import os
import subprocess
import sys
import threading
import time
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from support.child import MEMORY, ROOT, run_python, succeed
from support.devices import use_native
from support.mlp import MLP784, write_checkpoint
from support.training import module_of
from support.zoo import ZOO

from edge_train.api import CheckpointState, Module, Optimizer
from edge_train.device import SharedWeights, open_device, segment, shared_weights
from edge_train.device.shared import SharedMemory
from edge_train.errors import NativeError, RunError

BN = ZOO["conv_bn_maxpool_gap"]


@pytest.fixture(autouse=True)
def shared_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("EDGE_TRAIN_SHM", str(tmp_path / "shared"))
    return tmp_path / "shared"


@pytest.fixture(params=["native", pytest.param("python", marks=pytest.mark.slow)], autouse=True)
def _library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    use_native(monkeypatch, request.param == "native")


@pytest.fixture
def module() -> Module:
    return module_of(BN, device="shm:test")


def session() -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(BN.eval_model, providers=["CPUExecutionProvider"])


def memory(module: Module) -> SharedMemory:
    shared = module.state.memory
    assert isinstance(shared, SharedMemory)
    return shared


def test_a_relative_folder_is_found_from_elsewhere(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("EDGE_TRAIN_SHM", "relative")
    monkeypatch.chdir(tmp_path)
    assert segment.folder() == tmp_path / "relative"


# ---- one process ----------------------------------------------------------------------------


def test_a_reader_sees_what_the_trainer_has(module: Module) -> None:
    """After every step, statistics of BatchNorm too: the trainer's own evaluation."""
    weights = SharedWeights("test")
    assert set(weights) == {name for name, _ in module.state.parameters}
    optimizer, reader = Optimizer(BN.optimizer_model, module), session()
    seen = [weights.version]
    for _ in range(4):
        module.lazy_reset_grad()
        module.train()(**BN.feed)
        optimizer.step()
        outputs, version = weights.run(reader, BN.feed)
        # a plain session computes what ours does but for the last bits
        assert float(outputs[0]) == pytest.approx(float(module.eval()(**BN.feed)), rel=1e-6)
        seen.append(version)
    assert seen == sorted(set(seen))
    assert weights.alive
    for name, parameter in module.state.parameters:
        np.testing.assert_array_equal(weights[name], parameter.data)


def test_the_pages_cannot_be_written_by_a_reader(module: Module) -> None:
    weights = SharedWeights("test")
    with pytest.raises(ValueError, match="read-only"):
        weights["w1"][...] = 0
    with pytest.raises(ValueError, match="WRITEABLE"):
        weights["w1"].flags.writeable = True


def test_every_change_is_a_version(module: Module) -> None:
    weights = SharedWeights("test")
    start = weights.version
    module.copy_buffer_to_parameters(module.get_contiguous_parameters(), trainable_only=False)
    assert weights.version == start + 1
    with module.state.memory.writing(), module.state.memory.writing():
        module.state.parameters["w1"].data[...] = 7
    assert weights.version == start + 2
    values, version = weights.read(["w1"])
    assert version == start + 2
    assert (values["w1"] == 7).all()


def test_nothing_is_read_while_it_changes(module: Module) -> None:
    weights = SharedWeights("test")
    with memory(module).writing():
        with pytest.raises(RunError, match="does not end its change"):
            weights.read(timeout=0.05)
        with pytest.raises(RunError, match="does not end its change"):
            weights.run(session(), BN.feed, timeout=0.05)
    assert weights.read(timeout=0.05)[1] == weights.version


def test_what_changed_meanwhile_is_read_again(module: Module) -> None:
    """A change in the middle of the work: its result is dropped."""
    weights, calls = SharedWeights("test"), []

    def work() -> float:
        before = float(weights["be"][0])
        if len(calls) < 2:
            with memory(module).writing():
                module.state.parameters["be"].data[0] += 1
        calls.append(before)
        return before

    value, version = weights.consistently(work)
    assert len(calls) == 3
    assert value == calls[0] + 2 == weights["be"][0]
    assert version == weights.version


def test_an_error_on_half_written_weights_is_no_error(module: Module) -> None:
    """Work that fails is repeated if the weights changed meanwhile, and only then."""
    weights, calls = SharedWeights("test"), []

    def work() -> str:
        calls.append(1)
        if len(calls) == 1:
            with memory(module).writing():
                raise RuntimeError("half")
        if len(calls) == 3:
            raise RuntimeError("whole")
        return "done"

    assert weights.consistently(work)[0] == "done"
    with pytest.raises(RuntimeError, match="whole"):
        weights.consistently(work)
    assert len(calls) == 3


def test_a_trainer_that_never_rests_is_told(module: Module) -> None:
    weights = SharedWeights("test")

    def work() -> None:
        with memory(module).writing():
            time.sleep(0.01)

    with pytest.raises(RunError, match=r"no run of \d+ was undisturbed within 0.15 s"):
        weights.consistently(work, timeout=0.15)


def test_the_trainer_waits_for_a_reader_that_is_overtaken_again_and_again(module: Module) -> None:
    """The work takes longer than the pause between changes: only the courtesy lets it end."""
    weights, stop = SharedWeights("test"), threading.Event()

    def trainer() -> None:
        while not stop.is_set():
            with memory(module).writing():
                module.state.parameters["be"].data[0] += 1

    thread = threading.Thread(target=trainer)
    thread.start()
    try:
        for _ in range(3):
            value, _ = weights.consistently(lambda: (time.sleep(0.02), weights["be"][0])[1])
            assert np.isfinite(value)
    finally:
        stop.set()
        thread.join()


def test_a_reader_that_died_holds_the_trainer_up_once_and_shortly(module: Module) -> None:
    SharedWeights("test")._header.hold(segment.HOLD_MS)
    start = time.monotonic()
    for _ in range(50):
        with memory(module).writing():
            pass
    assert 0.05 < time.monotonic() - start < 1


def test_readers_that_never_let_go_hold_the_trainer_up_shortly(module: Module) -> None:
    header, stop = SharedWeights("test")._header, threading.Event()

    def reader() -> None:
        while not stop.is_set():
            header.hold(segment.HOLD_MS)

    thread = threading.Thread(target=reader)
    thread.start()
    timer = threading.Timer(5, stop.set)
    timer.start()
    start = time.monotonic()
    try:
        with memory(module).writing():
            pass
        assert 0.05 < time.monotonic() - start < 4
    finally:
        stop.set()
        timer.cancel()
        thread.join()


def test_a_session_is_not_kept(module: Module) -> None:
    weights, reader = SharedWeights("test"), session()
    weights.run(reader, BN.feed)
    assert len(weights._bindings) == 1
    del reader
    gc.collect()
    assert len(weights._bindings) == 0


def test_feeds_and_outputs_are_checked(module: Module) -> None:
    weights, reader = SharedWeights("test"), session()
    with pytest.raises(ValueError, match=r"nobody gives \['labels'\]"):
        weights.run(reader, {"x": BN.feed["x"]})
    with pytest.raises(ValueError, match=r"does not have \['y'\]"):
        weights.run(reader, {**BN.feed, "y": BN.feed["x"]})
    name = reader.get_outputs()[0].name
    (loss,), _ = weights.run(reader, BN.feed, [name])
    # a parameter that is fed is the caller's
    own = {**BN.feed, "bf": np.full_like(weights["bf"], 3)}
    (other,), _ = weights.run(reader, own, [name])
    assert other != loss
    assert weights.run(reader, BN.feed, [name])[0][0] == loss


# ---- finding each other ---------------------------------------------------------------------


def test_nobody_shares_the_name() -> None:
    with pytest.raises(NativeError, match=r"nobody shares 'nothing'.*device='shm:nothing'"):
        SharedWeights("nothing", timeout=0.05)


def test_a_nominal_state_can_be_attached_once_it_is_filled(tmp_path: Path) -> None:
    state = CheckpointState.load_checkpoint(BN.nominal_checkpoint, device="shm:test")
    module = Module(BN.training_model, state)
    with pytest.raises(NativeError, match="nobody shares"):
        SharedWeights("test", timeout=0.05)
    module.copy_buffer_to_parameters(
        module_of(BN).get_contiguous_parameters(), trainable_only=False
    )
    weights = SharedWeights("test", timeout=0.05)
    np.testing.assert_array_equal(weights["w1"], state.parameters["w1"].data)


@pytest.mark.parametrize("backing", ["memfd", "file"])
def test_both_kinds_of_memory(backing: str, shared_folder: Path) -> None:
    device = open_device("shm:raw", backing=backing)
    buffer = device.allocate((3, 4))
    buffer.numpy()[1, 2] = 5
    weights = SharedWeights("raw")
    assert weights["data"][1, 2] == 5
    place = segment.look_up("raw")
    assert place is not None
    assert bool(place.path) is (backing == "file")
    assert place.pid == os.getpid()
    del device, buffer
    gc.collect()
    assert not list(shared_folder.iterdir())
    assert not place.path or not os.path.exists(place.path)
    assert weights["data"][1, 2] == 5  # who has it keeps it


def test_without_dev_shm_and_memfd(monkeypatch: pytest.MonkeyPatch, shared_folder: Path) -> None:
    """An old Android: a file in the folder of temporary files."""
    monkeypatch.delattr(os, "memfd_create")
    access = os.access
    monkeypatch.setattr(
        os, "access", lambda path, mode: str(path) != "/dev/shm" and access(path, mode)
    )
    module = module_of(BN, device="shm:test")
    place = segment.look_up("test")
    assert place is not None
    assert Path(place.path).parent == shared_folder
    weights = SharedWeights("test")
    np.testing.assert_array_equal(weights["w1"], module.state.parameters["w1"].data)
    with pytest.raises(ValueError, match="backing 'ram'"):
        open_device("shm:test", backing="ram").allocate(1)


def test_a_full_file_system_is_an_error_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, shared_folder: Path
) -> None:
    """Else the first write to a page that cannot be had ends the process."""

    def full(descriptor: int, offset: int, size: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    access = os.access
    monkeypatch.setattr(
        os, "access", lambda path, mode: str(path) != "/dev/shm" and access(path, mode)
    )
    with pytest.raises(NativeError, match=r"no shared memory can be had for 'x'.*No space left"):
        open_device("shm:x", backing="file").allocate(9)
    assert not list(shared_folder.iterdir())


def test_another_segment_of_the_name_takes_its_place(module: Module) -> None:
    weights = SharedWeights("test")
    part = Module(BN.training_model, module.state, trainable=["wf"])
    assert not weights.alive
    again = SharedWeights("test")
    assert again.alive
    np.testing.assert_array_equal(again["w1"], part.state.parameters["w1"].data)


def test_another_state_of_the_process_takes_the_name(module: Module) -> None:
    weights = SharedWeights("test")
    other = module_of(BN, device="shm:test")
    assert not weights.alive
    other.state.parameters["w1"].data[...] = 5
    assert (SharedWeights("test")["w1"] == 5).all()
    assert not (weights["w1"] == 5).all()
    assert module.state.memory.name == other.state.memory.name


def test_a_folder_of_someone_else_is_refused(shared_folder: Path) -> None:
    shared_folder.mkdir(mode=0o700)
    shared_folder.chmod(0o777)
    with pytest.raises(NativeError, match="yours alone"):
        module_of(BN, device="shm:test")
    shared_folder.rmdir()
    shared_folder.symlink_to(shared_folder.parent)
    with pytest.raises(NativeError, match="yours alone"):
        module_of(BN, device="shm:test")


@pytest.mark.parametrize("damage", ["magic", "token", "json", "short"])
def test_a_broken_announcement_is_nobody(damage: str, module: Module, shared_folder: Path) -> None:
    place, file = segment.look_up("test"), shared_folder / "test.json"
    assert place is not None
    if damage == "json":
        file.write_text("{")
    elif damage == "token":
        file.write_text(json.dumps({**place.__dict__, "token": place.token ^ 1}))
    else:
        other = shared_folder / "other"
        other.write_bytes(bytes(9000 if damage == "magic" else 9))
        file.write_text(json.dumps({**place.__dict__, "path": str(other)}))
    with pytest.raises(NativeError, match="nobody shares"):
        SharedWeights("test", timeout=0.05)


def test_a_trainer_that_ends_while_it_is_attached(
    module: Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = shared_weights._wait

    def late(name: str, timeout: float) -> segment.Place:
        place = find(name, timeout)
        memory(module)._segment.end()  # type: ignore[union-attr]
        return replace(place, path=f"{place.file}/gone")

    monkeypatch.setattr(shared_weights, "_wait", late)
    with pytest.raises(NativeError, match="'test' cannot be attached"):
        SharedWeights("test")


@pytest.mark.parametrize(
    ("word", "value", "text"),
    [
        (6, 0x7FFFFFFF, "expected"),  # data bytes
        (4, 0x7FFF0000, "expected"),  # data offset
        (8, 5, "broken table"),
        (8, 0x7FFFFFFF, "a table of 2147483647 bytes"),
    ],
)
def test_a_header_that_lies_is_refused(word: int, value: int, text: str, module: Module) -> None:
    memory(module)._segment.header._words[word] = value  # type: ignore[union-attr]
    with pytest.raises(NativeError, match=text):
        SharedWeights("test")


# ---- two processes --------------------------------------------------------------------------

IMPORTS = (
    "import json, sys, time, zlib\nimport numpy as np\n"
    "from edge_train.device import SharedWeights, native\n"
    "if sys.argv[1] == 'python':\n    native.library = lambda: None\n"
)

READER = (
    IMPORTS
    + """
import onnxruntime
weights = SharedWeights("test", timeout=30)
session = onnxruntime.InferenceSession(sys.argv[2], providers=["CPUExecutionProvider"])
x = np.random.default_rng(1).random((4, 784), dtype=np.float32)
labels = np.arange(4, dtype=np.int64)
def checksum():
    total = 0
    for name in sorted(weights):
        total = zlib.crc32(weights[name], total)
    return total
reads, runs = [], []
sys.stdout.write("ready\\n"); sys.stdout.flush()
while weights.alive:
    start = time.monotonic()
    total, version = weights.consistently(checksum)
    reads.append((start, version, total))
    start = time.monotonic()
    outputs, version = weights.run(session, {"x": x, "labels": labels})
    runs.append((start, version, float(outputs[0])))
print(json.dumps({"reads": reads, "runs": runs}))
"""
)


@pytest.fixture
def trainer(tmp_path: Path) -> Module:
    write_checkpoint(tmp_path / "checkpoint")
    state = CheckpointState.load_checkpoint(tmp_path / "checkpoint", device="shm:test")
    return Module(MLP784.training_model, state, MLP784.eval_model)


def start(code: str, *arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-W", "error", "-c", code, *map(str, arguments)]
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
    )


def checksum(module: Module) -> int:
    total = 0
    for _, parameter in module.state.parameters:
        total = zlib.crc32(parameter.data.tobytes(), total)
    return total


def train_beside(module: Module, steps: int) -> list[tuple[float, int, int, float]]:
    """Time, version and checksum after each step, and the loss that a reader has to find: for the
    steps asked for, and at least a second."""
    optimizer = Optimizer(MLP784.optimizer_model, module)
    rng = np.random.default_rng(0)
    header, log = memory(module)._segment.header, []  # type: ignore[union-attr]
    x = np.random.default_rng(1).random((4, 784), dtype=np.float32)
    labels = np.arange(4, dtype=np.int64)
    end = time.monotonic() + 1
    while len(log) < steps or time.monotonic() < end:
        log.append(
            (
                time.monotonic(),
                header.sequence // 2,
                checksum(module),
                float(module.eval()(x, labels)),
            )
        )
        module.train().lazy_reset_grad()
        module(rng.random((8, 784), dtype=np.float32), rng.integers(0, 10, 8))
        assert optimizer.step()
    return log


def beside(module: Module, kind: str, steps: int) -> tuple[list, dict[str, list]]:
    reader = start(READER, kind, MLP784.eval_model)
    assert reader.stdout is not None
    assert reader.stdout.readline() == "ready\n"
    log = train_beside(module, steps)
    memory(module)._segment.end()  # type: ignore[union-attr]
    out, err = reader.communicate(timeout=60)
    assert (reader.returncode, err) == (0, "")
    return log, json.loads(out)


def check_beside(log: list, found: dict[str, list]) -> None:
    by_version = {version: (total, loss) for _, version, total, loss in log}
    completed = [(moment, version) for moment, version, _, _ in log]
    for kind, index in (("reads", 0), ("runs", 1)):
        for moment, version, value in found[kind]:
            if version in by_version:  # the last step's is not in the log
                expected = by_version[version][index]
                assert value == pytest.approx(expected, rel=1e-5 if index else 0), version
            newest = max((v for at, v in completed if at <= moment), default=0)
            assert version >= newest, (version, newest)


@pytest.mark.slow
def test_a_second_process_reads_whole_versions_at_once(trainer: Module) -> None:
    """Each read and each run has the weights of one version, and none is older than the newest."""
    log, found = beside(trainer, "native", 60)
    assert len(found["reads"]) > 5
    check_beside(log, found)
    # the checks can fail
    known = {version for _, version, _, _ in log}
    next(read for read in found["reads"] if read[1] in known)[2] ^= 1
    with pytest.raises(AssertionError):
        check_beside(log, found)


@pytest.mark.slow
def test_a_thousand_steps_beside_an_inference_process(
    trainer: Module, request: pytest.FixtureRequest
) -> None:
    kind = "python" if "python" in request.node.name else "native"
    log, found = beside(trainer, kind, 1000)
    assert len(log) >= 1000
    versions = {version for _, version, _ in found["reads"] + found["runs"]}
    assert len(found["runs"]) > 100
    assert len(versions) > 100
    check_beside(log, found)


KILLED = (
    IMPORTS
    + """
import os, signal
from edge_train.device import open_device
device = open_device("shm:test")
buffer = device.allocate(4)
if sys.argv[2] == "half":
    device.segment.header.begin()
print("ready", flush=True)
time.sleep(60)
"""
)


@pytest.mark.parametrize("moment", ["half", "whole"])
def test_a_trainer_that_was_killed(moment: str, shared_folder: Path) -> None:
    """Whole weights stay usable, half-written ones are refused; the name can be taken again."""
    child = start(KILLED, "native", moment)
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    weights = SharedWeights("test")
    with pytest.raises(ValueError, match=f"belongs to process {child.pid}, which is running"):
        open_device("shm:test").allocate(1)
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # its parent has not asked for it yet
    assert not segment.is_alive(child.pid)
    assert not weights.alive
    if moment == "whole":
        assert not weights.read()[0]["data"].any()
    else:
        with pytest.raises(RunError, match=rf"process {child.pid}\) ended in the middle"):
            weights.read()
    child.communicate()
    assert not weights.alive
    with pytest.raises(NativeError, match="nobody shares"):
        SharedWeights("test", timeout=0.05)
    assert open_device("shm:test").allocate(1).numpy()[0] == 0


MATMUL = (
    MEMORY
    + """
import sys
import numpy as np, onnxruntime
from edge_train.device import SharedWeights
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = 1
session = onnxruntime.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
before = memory("RssAnon")
weights = SharedWeights("test")
for _ in range(3):
    (y,), version = weights.run(session, {"x": np.ones((1, 4096), np.float32)})
assert y.shape == (1, 4096) and (y == 4096).all(), y
rss = pss = private = 0
inside = False
with open("/proc/self/smaps") as file:
    lines = file.read().splitlines()
for line in lines:
    key, value = line.split()[:2]
    if not key.endswith(":"):
        inside = "edge_train-test" in line
    elif inside and line.endswith(" kB"):
        rss += int(value) * (key == "Rss:")
        pss += int(value) * (key == "Pss:")
        private += int(value) * key.startswith("Private_")
print(memory("RssAnon") - before, rss, pss, private)
"""
)


@pytest.mark.slow
def test_the_weights_are_not_copied(tmp_path: Path) -> None:
    """64 MB of weights: the reader maps them once and adds next to nothing of its own."""
    import onnx
    from onnx import TensorProto, helper

    shape, size = (4096, 4096), 65536
    values = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, dims)
        for name, dims in (("x", (1, 4096)), ("data", shape), ("y", (1, 4096)))
    ]
    node = helper.make_node("MatMul", ["x", "data"], ["y"])
    graph = helper.make_graph([node], "matmul", values[:2], values[2:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, tmp_path / "model.onnx")
    buffer = open_device("shm:test").allocate(shape)
    buffer.fill(1)
    out = succeed(run_python(MATMUL, tmp_path / "model.onnx"))
    anonymous, rss, pss, private = map(int, out.split())
    assert rss >= size
    assert pss < 0.55 * rss  # shared with this process
    assert private < 1024
    assert anonymous < 8192
