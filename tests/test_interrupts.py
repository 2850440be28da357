"""A signal's handler that raises: no change of weights, moments and statistics ends halfway."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
import timeit
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from types import FrameType
from typing import Any

import numpy as np
import pytest
from support.training import session_of
from support.zoo import ZOO

from edge_train import kernels, program
from edge_train.api import Module, Optimizer
from edge_train.checkpoint.parameter import Parameter
from edge_train.interrupts import Unbroken
from edge_train.kernels import native, pool

MLP = ZOO["mlp_CrossEntropyLoss"]
BN = ZOO["conv_bn_maxpool_gap"]


@pytest.fixture(autouse=True)
def _handlers() -> Iterator[None]:
    """SIGINT and SIGALRM raise in these tests, whatever they did before.

    Nothing is collected meanwhile: Python cannot raise out of what a collection calls
    (Hypothesis has a clock there), so that a handler that runs in it is lost with a warning.
    """
    numbers = (signal.SIGINT, signal.SIGALRM)
    gc.disable()
    before = [signal.signal(number, signal.default_int_handler) for number in numbers]
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    gc.enable()
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


def interrupt(number: int = signal.SIGINT) -> None:
    """The handler of a signal runs before the next instruction but one."""
    signal.raise_signal(number)


def after(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function``, with Ctrl-C at its end."""

    def interrupted(*args: Any) -> Any:
        result = function(*args)
        interrupt()
        return result

    return interrupted


def values(module: Module, optimizer: Optimizer) -> dict[str, np.ndarray]:
    """Parameters, moments and step count."""
    found = {name: parameter.data.copy() for name, parameter in module.state.parameters}
    for name, own in optimizer.group.moments.items():
        found |= {f"{name}.{kind}": np.array(moment) for kind, moment in own.items()}
    return {**found, "step": np.array(optimizer.step_count)}


def assert_same(got: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    assert got.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(got[name], value, err_msg=name)


# ---- the block ------------------------------------------------------------------------------


def _interrupted(done: list[str]) -> None:
    with Unbroken():
        interrupt()
        done.append("the rest")


def test_a_handler_runs_after_the_block_and_is_there_again() -> None:
    done: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        _interrupted(done)
    assert done == ["the rest"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_the_outermost_of_nested_blocks_counts() -> None:
    done: list[str] = []

    def nested() -> None:
        with Unbroken():
            with Unbroken():
                interrupt()
            _interrupted(done)
            done.append("and more")

    with pytest.raises(KeyboardInterrupt):
        nested()
    assert done == ["the rest", "and more"]


def test_every_signal_comes_in_its_order_and_the_first_error_is_not_lost() -> None:
    heard: list[int] = []

    def handle(number: int, frame: FrameType | None) -> None:
        heard.append(number)
        if number == signal.SIGINT:
            raise KeyboardInterrupt

    signal.signal(signal.SIGINT, handle)
    signal.signal(signal.SIGALRM, handle)

    def failing() -> None:
        with Unbroken():
            interrupt(signal.SIGINT)
            interrupt(signal.SIGALRM)
            raise ValueError("of the block")

    with pytest.raises(KeyboardInterrupt) as raised:
        failing()
    assert heard == [signal.SIGINT, signal.SIGALRM]
    assert isinstance(raised.value.__context__, ValueError)


def test_a_handler_that_raises_cuts_off_no_other() -> None:
    """A timer that goes off at any moment of the block's end, beside a handler that counts."""
    heard = 0

    def count(number: int, frame: FrameType | None) -> None:
        nonlocal heard
        heard += 1

    signal.signal(signal.SIGUSR1, count)
    for sent, delay in enumerate(np.linspace(1e-6, 4e-5, 400)):
        with suppress(KeyboardInterrupt):
            _noted(float(delay))
            signal.setitimer(signal.ITIMER_REAL, 0)
        assert heard == sent + 1
    signal.signal(signal.SIGUSR1, signal.SIG_DFL)


def _noted(delay: float) -> None:
    with Unbroken():
        interrupt(signal.SIGUSR1)
        signal.setitimer(signal.ITIMER_REAL, delay)
    time.sleep(1e-4)


def test_what_a_handler_sets_stays() -> None:
    """A second Ctrl-C that is to end the process at once is a common pattern."""

    def first(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    signal.signal(signal.SIGINT, first)
    with Unbroken():
        interrupt()
        assert signal.getsignal(signal.SIGINT) is not signal.SIG_DFL
    assert signal.getsignal(signal.SIGINT) is signal.SIG_DFL


def test_a_child_forked_by_another_thread_has_its_handlers() -> None:
    forked: list[int] = []
    ready, done = threading.Event(), threading.Event()

    def fork() -> None:
        ready.wait()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a fork beside threads
            child = os.fork()
        if not child:
            os._exit(7 if signal.getsignal(signal.SIGINT) is signal.default_int_handler else 1)
        forked.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        done.set()

    thread = threading.Thread(target=fork)
    thread.start()
    with Unbroken():
        ready.set()
        assert done.wait(20)
    thread.join()
    assert forked == [7]


def test_what_is_ignored_or_default_stays_so() -> None:
    signal.signal(signal.SIGALRM, signal.SIG_IGN)
    default = signal.getsignal(signal.SIGTERM)
    with Unbroken():
        interrupt(signal.SIGALRM)
        assert signal.getsignal(signal.SIGALRM) is signal.SIG_IGN
        assert signal.getsignal(signal.SIGTERM) is default


def test_in_another_thread_the_handlers_stay_as_they_are() -> None:
    seen = []

    def work() -> None:
        with Unbroken():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [signal.default_int_handler]


def test_at_any_moment_a_block_is_made_whole_or_not_at_all() -> None:
    """A timer goes off before, in, at both ends of, and after the block."""
    once = _seconds_of_a_block()
    hit = 0
    for delay in np.linspace(1e-6, 2 * once + 2e-5, 400):
        made = [0, 0]
        try:
            signal.setitimer(signal.ITIMER_REAL, float(delay))
            _block(made)
            signal.setitimer(signal.ITIMER_REAL, 0)
        except KeyboardInterrupt:
            hit += 1
        assert made[0] == made[1]
        assert signal.getsignal(signal.SIGALRM) is signal.default_int_handler
    assert hit > 20


def _block(made: list[int]) -> None:
    with Unbroken():
        made[0] += 1
        for _ in range(200):
            pass
        made[1] += 1


def _seconds_of_a_block() -> float:
    """The quickest of 20: on a busy machine one may be put aside for milliseconds."""
    return min(timeit.repeat(lambda: _block([0, 0]), number=1, repeat=20))


# ---- training -------------------------------------------------------------------------------


@pytest.mark.parametrize("kernel", ["adamw", "scale", "flush"])
def test_an_interrupted_optimizer_step_is_made_and_counted(
    kernel: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "PIECE", 64)  # several parts even of a small model
    pool.pieces.cache_clear()
    sides = [session_of(MLP) for _ in range(2)]
    for module, optimizer in sides:
        optimizer.max_grad_norm = 1e-3 if kernel == "scale" else None
        optimizer.group.step = 63  # moments are flushed in the 64th
        module(**MLP.feed)
    plain, interrupted = sides
    assert plain[1].step()
    steps = kernels.select()
    breaking = replace(steps, **{kernel: after(getattr(steps, kernel))})
    monkeypatch.setattr(interrupted[1], "_steps", breaking)
    with pytest.raises(KeyboardInterrupt):
        interrupted[1].step()
    pool.pieces.cache_clear()
    assert_same(values(*interrupted), values(*plain))
    assert interrupted[1].step_count == 64


@pytest.mark.parametrize("kernel", ["all_finite", "squares"])
def test_interrupted_before_the_update_nothing_is_changed(
    kernel: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, optimizer = session_of(MLP)
    optimizer.max_grad_norm = 1.0 if kernel == "squares" else None
    module(**MLP.feed)
    before = values(module, optimizer)
    steps = kernels.select()
    monkeypatch.setattr(
        optimizer, "_steps", replace(steps, **{kernel: after(getattr(steps, kernel))})
    )
    with pytest.raises(KeyboardInterrupt):
        optimizer.step()
    assert_same(values(module, optimizer), before)
    assert optimizer.skipped_steps == 0


def test_an_interrupted_training_step_moves_every_statistic() -> None:
    (plain, _), (interrupted, _) = session_of(BN), session_of(BN)
    for module in (plain, interrupted):
        module(**BN.feed)
        module.lazy_reset_grad()
    plain(**BN.feed)
    runner = interrupted._train._runner
    runner.run = after(runner.run)  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        interrupted(**BN.feed)
    for name, parameter in plain.state.parameters:
        np.testing.assert_array_equal(interrupted.state.parameters[name].data, parameter.data)
    np.testing.assert_array_equal(interrupted.arena.gradients, plain.arena.gradients)
    assert not interrupted.arena.reset


def test_interrupted_while_a_session_is_made_anew_the_next_step_makes_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (plain, _), (interrupted, _) = session_of(MLP), session_of(MLP)
    for module in (plain, interrupted):
        module(**MLP.feed)
    plain(**MLP.feed)
    with monkeypatch.context() as patched:
        patched.setattr(program, "GraphRunner", after(lambda *_: None))
        with pytest.raises(KeyboardInterrupt):
            interrupted(**MLP.feed)  # the first one that adds to gradients
    interrupted(**MLP.feed)
    np.testing.assert_array_equal(interrupted.arena.gradients, plain.arena.gradients)


@pytest.mark.skipif(
    not native.has_ops(), reason="no native library: tools/build_kernels.py makes it"
)
def test_with_the_optimizer_in_the_backward_pass_a_step_is_made_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sides = [session_of(MLP, fuse_optimizer=True) for _ in range(2)]
    plain, interrupted = sides
    plain[0](**MLP.feed)
    steps = kernels.select()
    monkeypatch.setattr(interrupted[1], "_steps", replace(steps, adamw=after(steps.adamw)))
    with pytest.raises(KeyboardInterrupt):
        interrupted[0](**MLP.feed)
    assert_same(values(*interrupted), values(*plain))
    assert interrupted[1].step()
    assert interrupted[1].step_count == 1


def test_an_interrupted_fill_writes_every_parameter_and_resets_the_optimizer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module, optimizer = session_of(MLP)
    module(**MLP.feed)
    optimizer.step()
    wanted = np.arange(module.get_parameters_size(trainable_only=False), dtype=np.float32)
    monkeypatch.setattr(Parameter, "writing", after(Parameter.writing))
    with pytest.raises(KeyboardInterrupt):
        module.copy_buffer_to_parameters(wanted, trainable_only=False, reset_optimizer=True)
    assert optimizer.step_count == 0
    assert not any(
        np.any(moment) for own in optimizer.group.moments.values() for moment in own.values()
    )
    filled = np.empty_like(wanted)
    module.copy_parameters_to_buffer(filled, trainable_only=False)
    np.testing.assert_array_equal(filled, wanted)
