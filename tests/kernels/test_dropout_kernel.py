"""The kernels of Dropout: masks that follow from a seed, the same everywhere, and how random."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from numpy.typing import NDArray
from support.lowering import Array, normals
from support.masks import BLOCK, drawn, hashes, kept
from support.native_kernels import needs_library, run_kernel

from edge_train import dtypes, session
from edge_train.graph import ir, onnx_codec
from edge_train.kernels import draws, native

needs_library()

TRUE = np.array(True)


def number(value: float) -> Array:
    return np.array(value, np.float32)


def seeded(x: Array, seed: int, ratio: Array, threads: int = 1) -> Array:
    wrapped = np.array([seed], np.uint64).view(np.int64)
    return run_kernel("SeededDropout", {"x": x, "seed": wrapped, "ratio": ratio}, threads=threads)[
        0
    ]


class Drawing:
    """A session of one DrawnDropout: each call runs it once, and gives y and the seed."""

    def __init__(self, **attributes: object) -> None:
        inputs = [ir.Value("x", dtypes.FLOAT, (None,)), ir.Value("ratio", dtypes.FLOAT, ())]
        inputs.append(ir.Value("training", dtypes.BOOL, ()))
        names = [value.name for value in inputs]
        node = ir.make_node("DrawnDropout", names, ["y", "seed"], "n", ir.NATIVE, **attributes)
        made = [ir.Value("y", dtypes.FLOAT, None), ir.Value("seed", dtypes.INT64, None)]
        graph = ir.Graph("g", [node], inputs, made)
        options = session.default_options()
        native.register_ops(options)
        draws.start()
        data = onnx_codec.encode(ir.Model(graph, 10, [("", 21), (ir.NATIVE, 1)]))
        self._session = onnxruntime.InferenceSession(data, options, ["CPUExecutionProvider"])

    def __call__(self, x: Array, ratio: float = 0.5, training: bool = True) -> tuple[Array, int]:
        feeds = {"x": x, "ratio": number(ratio), "training": np.array(training)}
        y, seed = self._session.run(None, feeds)
        assert seed.shape == (1,)
        return y, int(seed.view(np.uint64)[0])

    def seeds(self, count: int) -> list[int]:
        return [self(np.ones(1, np.float32))[1] for _ in range(count)]


@pytest.mark.parametrize("ratio", [0.0, 0.1, 0.5, 0.9, 1 - 2**-24])
@pytest.mark.parametrize("count", [0, 1, 7, BLOCK - 1, BLOCK + 1, 100_003])
def test_the_mask_is_that_of_the_formula(count: int, ratio: float) -> None:
    (x,) = normals(count, (count,))
    edge_seed = 2**63 + 977 * count
    scale = np.float32(1) / (np.float32(1) - np.float32(ratio))
    wanted = np.where(kept(edge_seed, count, ratio), x * scale, np.float32(0))
    for threads in (1, 2, 4):
        np.testing.assert_array_equal(seeded(x, edge_seed, number(ratio), threads), wanted)
    if count > BLOCK and ratio == 0.5:
        assert np.any(seeded(x, edge_seed + 1, number(ratio)) != wanted)


def test_what_is_drawn_is_what_the_seed_gives_again() -> None:
    (x,) = normals(3, (9001,))
    session.set_seed(41)
    for index in range(3):
        y, seed = Drawing()(x, 0.3)
        assert seed == drawn(41, index)
        np.testing.assert_array_equal(y, seeded(x, seed, number(0.3)))


def test_values_that_are_no_numbers() -> None:
    """What is dropped is 0 whatever it was; what is kept stays what it was."""
    x = np.resize(np.array([np.nan, np.inf, -np.inf, -0.0], np.float32), 4001)
    y, stays = seeded(x, 5, number(0.5)), kept(5, 4001, 0.5)
    assert not np.any(y[~stays])
    assert not np.any(np.signbit(y[~stays]))
    np.testing.assert_array_equal(y[stays], x[stays] * 2)


@pytest.mark.parametrize(("ratio", "training"), [(0.7, False), (0.0, True), (0.0, False)])
def test_nothing_is_dropped(ratio: float, training: bool) -> None:
    (x,) = normals(8, (5000,))
    y, _ = Drawing()(x, ratio, training)
    np.testing.assert_array_equal(y, x)
    assert np.any(Drawing()(x, 0.7)[0] != x)


def test_options_that_are_left_out() -> None:
    """A ratio of 0.5; the forward op passes on, its gradient trains."""
    (x,) = normals(9, (5000,))
    np.testing.assert_array_equal(run_kernel("DrawnDropout", {"x": x})[0], x)
    seed = np.array([12], np.int64)
    got = run_kernel("SeededDropout", {"x": x, "seed": seed})[0]
    np.testing.assert_array_equal(got, np.where(kept(12, 5000, 0.5), 2 * x, 0))


@pytest.mark.parametrize(
    ("seed", "ratio", "text"),
    [
        ([1], 1.0, r"not in \[0, 1\)"),
        ([1], -0.1, r"not in \[0, 1\)"),
        ([1], math.nan, r"not in \[0, 1\)"),
        ([1], [0.1, 0.2], "the ratio of a Dropout is not one number"),
        ([], 0.1, "the seed of a Dropout is not one number"),
    ],
)
def test_options_that_mean_nothing(seed: list[int], ratio: object, text: str) -> None:
    feeds = {"x": np.ones(3, np.float32), "seed": np.array(seed, np.int64)}
    with pytest.raises(Exception, match=text):
        run_kernel("SeededDropout", {**feeds, "ratio": np.array(ratio, np.float32)})


def test_the_seed_starts_the_draws_over() -> None:
    one, other = Drawing(), Drawing()
    session.set_seed(7)
    first = one.seeds(3) + other.seeds(2)
    session.set_seed(7)
    assert other.seeds(2) + one.seeds(3) == first
    assert len(set(first)) == 5
    session.set_seed(8)
    assert not set(one.seeds(20)) & set(first)


def test_a_node_with_a_seed_has_draws_of_its_own() -> None:
    """As in onnxruntime: it starts at its seed, goes on with every run, nobody sets it again."""
    session.set_seed(7)
    own = Drawing(seed=[3])
    assert own.seeds(2) == [drawn(3, 0), drawn(3, 1)]
    session.set_seed(7)
    assert own.seeds(1) == [drawn(3, 2)]
    assert Drawing().seeds(1) == [drawn(7, 0)]
    assert Drawing(seed=[3]).seeds(1) == [drawn(3, 0)]


class SlowLibrary:
    """Stands in for a library: what its generator is started with."""

    seeds: list[int]

    def __init__(self, path: str) -> None:
        time.sleep(0.05)

        def set_seed(seed: int) -> None:
            self.seeds.append(seed)

        self.et_set_seed = set_seed


def test_threads_that_come_together_start_the_generator_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A second start would undo the seed that a thread has set after the first."""
    SlowLibrary.seeds = []
    monkeypatch.setattr(native, "library_path", lambda: Path("slow"))
    monkeypatch.setattr(draws.ctypes, "CDLL", SlowLibrary)
    threads = [threading.Thread(target=draws.start) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(SlowLibrary.seeds) == 1


# --- how random they are: z is in standard deviations of what independent draws would give

COUNT = 1 << 20
RATIO = 0.25
Bits = Callable[[int, int], NDArray[np.uint32]]


def weak(seed: int, count: int) -> NDArray[np.uint32]:
    """Counters times one odd number: even, and nothing else."""
    return (np.arange(count, dtype=np.uint32) + np.uint32(seed % 2**32)) * np.uint32(0x9E3779B9)


def centred(bits: Bits, seed: int) -> NDArray[np.float64]:
    """Of unit variance and zero mean where the ratio is kept to."""
    dropped = bits(seed, COUNT) < RATIO * 2**32
    return (dropped - RATIO) / math.sqrt(RATIO * (1 - RATIO))


def product_z(a: NDArray[np.float64], b: NDArray[np.float64]) -> float:
    return float(np.dot(a, b) / math.sqrt(a.size))


def counts_z(bits: Bits) -> float:
    """Of the numbers dropped in stretches of 1024: their mean and their variance."""
    sums = centred(bits, drawn(1, 0)).reshape(-1, 1024).sum(1)
    n = sums.size
    mean = sums.mean() / math.sqrt(1024 / n)
    spread = (np.mean(sums**2) / 1024 - 1) / math.sqrt(2 / n)
    return max(abs(mean), abs(spread))


def neighbours_z(bits: Bits) -> float:
    """Of elements 1 to 4096 apart in one mask."""
    x = centred(bits, drawn(1, 0))
    lags = [1, 2, 3, 4, 7, 8, 16, 31, 64, 255, 1024, BLOCK - 1, BLOCK]
    return max(abs(product_z(x[:-lag], x[lag:])) for lag in lags)


def draws_z(bits: Bits) -> float:
    """Of one element in masks of steps and nodes that follow each other, and of near seeds."""
    masks = [centred(bits, drawn(1, index)) for index in range(4)]
    masks += [centred(bits, drawn(seed, 0)) for seed in (2, 3)]
    pairs = [(a, b) for a in range(6) for b in range(a)]
    return max(abs(product_z(masks[a], masks[b])) for a, b in pairs)


def steps_z(bits: Bits) -> float:
    """Chi-square of how often each element is dropped in 512 steps, and from step to step."""
    x = np.array([bits(drawn(1, step), BLOCK) for step in range(512)]) < RATIO * 2**32
    unit = (x - RATIO) / math.sqrt(RATIO * (1 - RATIO))
    chi = float((unit.sum(0) ** 2 / 512).sum())
    follow = product_z(unit[:-1].ravel(), unit[1:].ravel())
    return max(abs(chi - BLOCK) / math.sqrt(2 * BLOCK), abs(follow))


def bits_z(bits: Bits) -> float:
    """Chi-square of the ones in each of the 32 bits, and of each of their bytes' 256 values."""
    found = bits(drawn(1, 0), COUNT)
    ones = np.array([np.count_nonzero(found >> np.uint32(bit) & np.uint32(1)) for bit in range(32)])
    chi = float(((ones - COUNT / 2) ** 2 / (COUNT / 4)).sum())
    values = [np.bincount(found.view(np.uint8)[place::4], minlength=256) for place in range(4)]
    chis = [float(((v - COUNT / 256) ** 2 / (COUNT / 256)).sum()) for v in values]
    return max(abs(chi - 32) / 8, *(abs(c - 255) / math.sqrt(510) for c in chis))


def patterns_z(bits: Bits) -> float:
    """Chi-square of what eight neighbours do together: 256 patterns."""
    dropped = (bits(drawn(1, 0), COUNT) < RATIO * 2**32).reshape(-1, 8)
    found = np.bincount(dropped @ (1 << np.arange(8)), minlength=256)
    ones = np.array([bin(pattern).count("1") for pattern in range(256)])
    wanted = RATIO**ones * (1 - RATIO) ** (8 - ones) * len(dropped)
    chi = float(((found - wanted) ** 2 / wanted).sum())
    return abs(chi - 255) / math.sqrt(510)


MEASURES = [counts_z, neighbours_z, draws_z, steps_z, bits_z, patterns_z]


@pytest.mark.parametrize("measure", MEASURES)
def test_masks_are_as_if_drawn_one_by_one(measure: Callable[[Bits], float]) -> None:
    assert measure(lambda seed, count: hashes(seed, count) ^ np.uint32(1 << 31)) < 4


@pytest.mark.parametrize("measure", MEASURES)
def test_the_measure_can_fail(measure: Callable[[Bits], float]) -> None:
    assert measure(weak) > 6
