"""Device memory: the same buffers on every device, with the native library and without."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper
from support.child import MEMORY, run_python, succeed
from support.devices import ctypes_api, native_api, opencl, use_native

from edge_train.device import Device, DeviceBuffer, native, open_device
from edge_train.device.names import parse
from edge_train.errors import NativeError, ShapeMismatch

Opener = Callable[[], Device]
KINDS = (
    "cpu",
    "cpu without native",
    "opencl",
    "opencl with copies",
    *(
        pytest.param(kind, marks=pytest.mark.slow)
        for kind in ("cpu:huge", "cpu by ctypes", "opencl by ctypes")
    ),
)


@pytest.fixture(params=KINDS)
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Device:
    kind = str(request.param)
    use_native(monkeypatch, "without" not in kind)
    if "ctypes" in kind:
        api = ctypes_api()
        monkeypatch.setattr(native, "library", lambda: api)
    if kind.startswith("opencl"):
        return opencl(copies="copies" in kind)
    return open_device(kind.split()[0])


@pytest.fixture(params=["native", "python"])
def cpu(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Device:
    use_native(monkeypatch, request.param == "native")
    return open_device("cpu")


# ---- what every device does -----------------------------------------------------------------


def test_a_new_buffer_is_zeros_on_a_cache_line(device: Device) -> None:
    with device.allocate((3, 5)) as buffer:
        array = buffer.numpy()
        assert array.shape == (3, 5)
        assert array.dtype == np.float32
        assert array.ctypes.data % 64 == 0
        assert not array.any()
        assert (buffer.size, buffer.nbytes, len(buffer)) == (15, 60, 3)


def test_host_and_device_hand_a_buffer_over(device: Device, rng: np.random.Generator) -> None:
    values = rng.random(5000, dtype=np.float32)
    buffer = device.allocate(5000)
    buffer.write(values)
    buffer.to_device()
    np.testing.assert_array_equal(buffer.read(), values)
    np.testing.assert_array_equal(buffer.read(17, 3), values[17:20])
    buffer.write(values[:10], offset=4990)
    buffer.to_host()
    np.testing.assert_array_equal(buffer.numpy()[4990:], values[:10])
    buffer.numpy()[7] = 3
    buffer.to_device()
    assert buffer.read(7, 1)[0] == 3
    device.synchronise()


@pytest.mark.parametrize("owned", [(False, False), (True, False), (False, True), (True, True)])
def test_copies_between_buffers(device: Device, owned: tuple[bool, bool]) -> None:
    first, second = device.allocate(100), device.allocate(300)
    first.write(np.arange(100, dtype=np.float32))
    for buffer, given in zip((first, second), owned, strict=True):
        if given:
            buffer.to_device()
    second.write(first, offset=150)
    expected = np.zeros(300, np.float32)
    expected[150:250] = np.arange(100)
    np.testing.assert_array_equal(second.numpy(), expected)
    np.testing.assert_array_equal(first.numpy(), np.arange(100))


def test_copies_between_devices(device: Device) -> None:
    other = open_device("cpu")
    there, here = device.allocate(64), other.allocate(64)
    there.write(np.arange(64, dtype=np.float32))
    there.to_device()
    here.write(there)
    here.numpy()[0] = 9
    there.write(here)
    np.testing.assert_array_equal(there.read(0, 3), [9, 1, 2])


@pytest.mark.parametrize("dtype", [np.float32, np.int32, np.int64, np.uint8, np.float16])
def test_fill(device: Device, dtype: type) -> None:
    buffer = device.allocate(33, dtype)
    buffer.fill(5)
    np.testing.assert_array_equal(buffer.numpy(), np.full(33, 5, dtype))
    buffer.to_device()
    buffer.fill(6)
    np.testing.assert_array_equal(buffer.read(), np.full(33, 6, dtype))


def test_empty_buffers(device: Device) -> None:
    buffer = device.allocate((0, 7))
    buffer.to_device()
    buffer.fill(1)
    assert buffer.numpy().shape == (0, 7)
    assert buffer.read().size == 0


def test_what_a_device_says_of_itself(device: Device) -> None:
    info = device.info()
    assert info.name == device.name
    assert info.description
    assert device.allocate(4).shares_memory == info.shares_memory


# ---- views ----------------------------------------------------------------------------------


def test_views_share_the_memory(device: Device) -> None:
    buffer = device.allocate((4, 4))
    array = buffer.numpy()
    tensor = np.from_dlpack(buffer)  # type: ignore[arg-type]
    value = buffer.ortvalue()
    assert tensor.ctypes.data == array.ctypes.data == value.data_ptr()
    assert np.asarray(buffer).ctypes.data == array.ctypes.data
    array[2, 2] = 7
    assert tensor[2, 2] == 7
    assert value.numpy()[2, 2] == 7
    assert np.array(buffer, np.float64)[2, 2] == 7


def test_a_session_reads_and_writes_buffers(device: Device) -> None:
    """Bound as they are: nothing is copied in or out."""
    sigmoid = helper.make_node("Sigmoid", ["x"], ["y"])
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [64]) for name in "xy")
    graph = helper.make_graph([sigmoid], "sigmoid", [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    source, target = device.allocate(64), device.allocate(64)
    binding = session.io_binding()
    binding.bind_ortvalue_input("x", source.ortvalue())
    binding.bind_ortvalue_output("y", target.ortvalue())
    for value, expected in ((0, 0.5), (100, 1)):
        source.fill(value)
        session.run_with_iobinding(binding)
        np.testing.assert_array_equal(target.read(), np.full(64, expected, np.float32))


def test_memory_of_others_is_adopted_without_a_copy(cpu: Device) -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    value = onnxruntime.OrtValue.ortvalue_from_numpy(array)
    for source in (array, value, cpu.adopt(array)):
        buffer = cpu.adopt(source)
        assert buffer.shape == (2, 3)
        buffer.numpy()[0, 0] += 1
    assert array[0, 0] == 3
    with pytest.raises(ValueError, match="contiguous"):
        cpu.adopt(array.T)


def test_a_view_outlives_its_buffer(device: Device) -> None:
    buffer = device.allocate(1 << 20)
    array = buffer.numpy()
    value = buffer.ortvalue()
    array[...] = 3
    buffer.free()
    del buffer
    assert array.sum() == 3 * (1 << 20)
    del array
    assert value.numpy()[-1] == 3


# ---- errors ---------------------------------------------------------------------------------

USES: dict[str, Callable[[DeviceBuffer], object]] = {
    "numpy": lambda b: b.numpy(),
    "ortvalue": lambda b: b.ortvalue(),
    "dlpack": lambda b: b.__dlpack__(),
    "dlpack device": lambda b: b.__dlpack_device__(),
    "array": np.asarray,
    "write": lambda b: b.write(np.zeros(3, np.float32)),
    "write of it": lambda b: b.device.allocate(9).write(b),
    "read": lambda b: b.read(),
    "fill": lambda b: b.fill(1),
    "to_device": lambda b: b.to_device(),
    "enter": lambda b: b.__enter__(),
}


@pytest.mark.parametrize("use", USES)
def test_use_after_free_is_refused(device: Device, use: str) -> None:
    buffer = device.allocate(9)
    buffer.free()
    buffer.free()
    assert buffer.freed
    with pytest.raises(ValueError, match=r"DeviceBuffer.*was freed"):
        USES[use](buffer)


def test_narrow_integers_of_numpy_do_not_wrap(device: Device) -> None:
    few, many = np.uint8(100), np.uint8(200)
    buffer = device.allocate((many, many))
    assert buffer.shape == (200, 200)
    assert buffer.nbytes == buffer.numpy().nbytes == 160000
    flat = device.allocate(np.int64(210))
    flat.write(np.ones(10, np.float32), offset=many)
    assert flat.read(many, np.uint8(10)).tolist() == [1.0] * 10
    with pytest.raises(ShapeMismatch, match="has 210 elements: 100 from element 200"):
        flat.write(np.zeros(100, np.float32), offset=many)
    with pytest.raises(ShapeMismatch, match="has 210 elements: 100 from element 200"):
        flat.read(many, few)
    for wrong in (True, 1.0, "1"):
        with pytest.raises(TypeError, match="must be an integer"):
            flat.read(wrong)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="must be an integer, got True"):
        device.allocate(True)
    with pytest.raises(ValueError, match="every size of a shape must be >= 0, got -1"):
        device.allocate((2, -1))


def test_sizes_and_dtypes_are_checked(device: Device) -> None:
    buffer = device.allocate(9)
    for given in (False, True):
        if given:
            buffer.to_device()
        with pytest.raises(ShapeMismatch, match="has 9 elements: 10 from element 0"):
            buffer.write(np.zeros(10, np.float32))
        with pytest.raises(ShapeMismatch, match="has 9 elements: 5 from element 5"):
            buffer.write(np.zeros(5, np.float32), offset=5)
        with pytest.raises(ShapeMismatch, match="9 elements"):
            buffer.read(-1, 2)
        with pytest.raises(TypeError, match="takes float32, got float64"):
            buffer.write(np.zeros(9))
        with pytest.raises(ShapeMismatch, match="9 elements"):
            buffer.write(device.allocate(10))
    with pytest.raises(TypeError, match="DLPack"):
        buffer.write("nine")
    assert not buffer.read().any()


@pytest.mark.parametrize("shape", [-1, (3, -2)])
def test_negative_sizes_are_refused(device: Device, shape: int | tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=">= 0"):
        device.allocate(shape)


def test_more_memory_than_there_is(device: Device) -> None:
    with pytest.raises(NativeError, match="cannot be had"):
        device.allocate(1 << 58)


@pytest.mark.parametrize(
    ("name", "error", "text"),
    [
        ("cuda", ValueError, "CUDA is not part of edge_train"),
        ("cuda:1", ValueError, "'cuda:1'"),
        ("tpu", ValueError, "'opencl:N'"),
        ("cpu:fast", ValueError, "'fast'"),
        ("file:", ValueError, "say which"),
        ("file:/no/such/file", FileNotFoundError, "/no/such/file"),
        ("shm:", ValueError, "letters"),
        ("shm:../x", ValueError, "letters"),
        ("opencl:first", ValueError, "a number"),
        (7, TypeError, "expected a str or a Device"),
    ],
)
def test_names_that_are_none(name: object, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        open_device(name)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("opencl", "opencl:0"),
        ("opencl:07", "opencl:7"),
        ("cpu", "cpu:0"),
        ("cpu:lock,huge", "cpu:huge,lock"),
    ],
)
def test_two_names_of_one_device(name: str, other: str) -> None:
    assert str(parse(name)) == str(parse(other))
    assert parse(name) != parse("shm:x")


def test_opencl_needs_the_library_and_a_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    use_native(monkeypatch, False)
    with pytest.raises(NativeError, match="needs the native library"):
        open_device("opencl:0")
    use_native(monkeypatch, True)
    monkeypatch.setenv("EDGE_TRAIN_OPENCL", "/no/libOpenCL.so")
    with pytest.raises(NativeError, match=r"no OpenCL library \(tried /no/libOpenCL.so\)"):
        open_device("opencl")


def test_an_opencl_device_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    use_native(monkeypatch, True)
    opencl()
    with pytest.raises(NativeError, match=r"'opencl:77' cannot be opened.*No such device"):
        open_device("opencl:77")


# ---- host memory ----------------------------------------------------------------------------


def locked_kb() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmLck"))


@pytest.mark.parametrize("wanted", [True, False])
def test_locked_memory(monkeypatch: pytest.MonkeyPatch, wanted: bool) -> None:
    use_native(monkeypatch, wanted)
    before = locked_kb()
    with open_device("cpu:lock").allocate(1 << 16) as buffer:
        assert locked_kb() - before >= 256
        assert not buffer.numpy().any()
    assert locked_kb() == before


def anonymous_kb() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon"))


@pytest.mark.parametrize("name", ["cpu", "cpu:huge"])
@pytest.mark.parametrize("wanted", [True, False], ids=["native", "python"])
def test_memory_goes_back_to_the_system(
    name: str, wanted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At once, when the last view is gone, and not to an allocator that keeps it."""
    use_native(monkeypatch, wanted)
    buffer = open_device(name).allocate(1 << 24)  # 64 MB
    before = anonymous_kb()
    buffer.fill(1)
    full = anonymous_kb()
    view = buffer.numpy()[5:9]
    buffer.free()
    kept = anonymous_kb()
    assert view.sum() == 4
    del view
    assert full - before > 60_000
    assert full - kept < 1_000
    assert full - anonymous_kb() > 60_000


FLAT = (
    MEMORY
    + """
from edge_train.device import native, open_device
if sys.argv[1] == "python":
    native.library = lambda: None
elif sys.argv[1]:
    api = native.load(Path(sys.argv[1]))
    native.library = lambda: api
device = open_device("cpu")
def loop(count):
    for size in range(count):
        with device.allocate(10_000 + size % 7) as buffer:
            buffer.numpy()[::1024] = 1
    for _ in range(3 * count):
        open_device("cpu")
loop(500)
before = memory("VmRSS"), memory("VmSize")
loop(10_000)
print(memory("VmRSS") - before[0], memory("VmSize") - before[1])
"""
)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["native", "python"])
def test_ten_thousand_buffers_leave_nothing(kind: str, tmp_path: Path) -> None:
    from support.devices import compiled

    library = "python"
    if kind == "native":
        library = "" if native.library() else str(compiled(tmp_path))
    code = "import sys\nfrom pathlib import Path\n" + FLAT
    resident, size = map(int, succeed(run_python(code, library)).split())
    assert resident < 256, resident
    assert size < 512, size


# ---- files ----------------------------------------------------------------------------------


@pytest.fixture(params=["native", "python"])
def numbers(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Path:
    use_native(monkeypatch, request.param == "native")
    path = tmp_path / "numbers"
    np.arange(100_000, dtype=np.float32).tofile(path)
    return path


def test_a_mapped_file_is_read_and_never_written(numbers: Path) -> None:
    device = open_device(f"file:{numbers}")
    with device.allocate() as buffer, device.allocate(10, offset=80_004) as part:
        np.testing.assert_array_equal(buffer.numpy(), np.arange(100_000))
        np.testing.assert_array_equal(part.numpy(), np.arange(20_001, 20_011))
        buffer.numpy()[5] = -1
        buffer.fill(2)
        assert part.numpy()[0] == 20_001  # a mapping of its own
    assert np.fromfile(numbers, np.float32)[5] == 5
    assert device.info().memory == 400_000


def test_a_file_that_changes_its_size_is_noticed(numbers: Path) -> None:
    device = open_device(f"file:{numbers}")
    buffer = device.allocate()
    with open(numbers, "ab") as file:
        file.write(b"more")
    for use in (buffer.numpy, buffer.read, lambda: buffer.fill(1), buffer.ortvalue):
        with pytest.raises(ValueError, match="in place"):
            use()
    with pytest.raises(ValueError, match=r"had 400000 bytes, now it has 400004.*in place"):
        device.allocate()
    os.truncate(numbers, 8)
    with pytest.raises(ValueError, match="now it has 8"):
        device.check_pages()


def test_a_file_that_is_overwritten_is_noticed_at_once(numbers: Path) -> None:
    """With as many bytes: the time of its last change tells."""
    os.utime(numbers, (10**9, 10**9))
    device = open_device(f"file:{numbers}")
    buffer = device.allocate()
    assert buffer.numpy()[3] == 3
    with open(numbers, "r+b") as file:
        file.write(bytes(16))
    for use in (buffer.numpy, buffer.read, device.check_pages, device.allocate):
        with pytest.raises(ValueError, match=r"written to since, 400000 bytes as before.*place"):
            use()
    assert open_device(f"file:{numbers}").allocate().numpy()[3] == 0


@pytest.mark.parametrize("what", ["replaced", "removed", "linked", "its mode", "read", "rounded"])
def test_what_is_no_write_is_none(what: str, numbers: Path) -> None:
    os.utime(numbers, ns=(10**18 + 1_900_000_001, 10**18 + 1_900_000_001))
    device = open_device(f"file:{numbers}")
    buffer = device.allocate()
    buffer.numpy()[0] = -1  # a private page: our own writes are none to the file
    if what == "replaced":
        numbers.with_name("new").write_bytes(bytes(8))
        os.replace(numbers.with_name("new"), numbers)
    elif what == "removed":
        numbers.unlink()
    elif what == "linked":
        os.link(numbers, numbers.with_name("more"))
    elif what == "its mode":
        numbers.chmod(0o600)
    elif what == "read":
        numbers.read_bytes()
    else:  # as FAT has it when the card was out of memory for a while: 2 s, rounded down
        os.utime(numbers, ns=(10**18, 10**18))
    device.check_pages()
    assert buffer.numpy()[:2].tolist() == [-1, 1]
    if what == "rounded":
        os.utime(numbers, ns=(10**18 - 200_000_000, 10**18 - 200_000_000))
        with pytest.raises(ValueError, match="written to since"):
            device.check_pages()


def test_an_empty_file_is_an_empty_buffer(numbers: Path) -> None:
    numbers.write_bytes(b"")
    buffer = open_device(f"file:{numbers}").allocate()
    assert buffer.numpy().shape == (0,)


def test_more_than_the_file_has_is_refused(numbers: Path) -> None:
    device = open_device(f"file:{numbers}")
    with pytest.raises(ValueError, match="has 400000 bytes, expected 400004 from byte 0"):
        device.allocate(100_001)
    with pytest.raises(ValueError, match="from byte 400000"):
        device.allocate(1, offset=400_000)  # type: ignore[call-arg]
    with pytest.raises(ValueError, match="no place for float32"):
        device.allocate(1, offset=2)  # type: ignore[call-arg]


# ---- the native library ---------------------------------------------------------------------


def test_bounds_are_checked_in_c_too() -> None:
    api = native_api()
    device = api.new_handle("host", lambda out: api.device_open(native.HOST, 0, 0, 0, out))
    buffer = api.new_handle("new", lambda out: api.buffer_new(device, 64, -1, 0, 0, out))
    room = np.zeros(64, np.uint8)
    for offset, count in ((60, 8), (-4, 4), (65, 0), (0, -1), (2**62, 2**62)):
        assert native.reason(api.buffer_read(buffer, offset, room.ctypes.data, count)) == (
            "Numerical result out of range"
        )
        assert api.buffer_write(buffer, offset, room.ctypes.data, count) == -34
        assert api.buffer_fill(buffer, offset, count, 1) == -34
        assert api.buffer_copy(buffer, offset, buffer, 0, count) == -34
    assert api.buffer_fill(buffer, 1, 4, 1) == -22
    assert api.buffer_copy(buffer, 0, buffer, 8, 16) == -22  # overlapping
    assert api.buffer_free(buffer) == 0
    assert api.device_open(native.HOST + 2, 0, 0, 0, room.ctypes.data) == -38  # CUDA's place
    assert api.device_close(device) == 0
