"""Training graphs run in memory order; where that cannot be prepared they run all the same."""

from __future__ import annotations

import builtins
import json
import os
import tempfile
import threading
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from support.child import run_python
from support.training import module_of
from support.zoo import ZOO

from edge_train import session

CASE = ZOO["conv_bn_maxpool_gap"]


def _gradients(**options: Any) -> tuple[float, np.ndarray]:
    module = module_of(CASE, kernels="portable", **options)
    loss = float(module(**CASE.feed))
    return loss, module.arena.gradients.copy()


def _refuse(*_: object, **__: object) -> Any:
    raise PermissionError(13, "forbidden here")


def _without_memory_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "memfd_create", _refuse, raising=False)


def _without_paths_of_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = builtins.open

    def opened(path: Any, *rest: Any, **more: Any) -> Any:
        if str(path).startswith("/proc/self/fd"):
            _refuse()
        return plain(path, *rest, **more)

    monkeypatch.setattr(builtins, "open", opened)


def _without_any_place(monkeypatch: pytest.MonkeyPatch) -> None:
    _without_memory_files(monkeypatch)
    monkeypatch.setattr(tempfile, "TemporaryDirectory", _refuse)


@pytest.mark.parametrize(
    "limit", [_without_memory_files, _without_paths_of_descriptors, _without_any_place]
)
def test_a_system_that_refuses_files_trains_with_the_same_numbers(
    limit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    loss, gradients = _gradients()
    descriptors = len(os.listdir("/proc/self/fd"))
    limit(monkeypatch)
    there, same = _gradients()
    assert there == loss
    np.testing.assert_allclose(same, gradients, rtol=1e-6, atol=1e-8)
    assert len(os.listdir("/proc/self/fd")) <= descriptors + 2


def _executed(folder: Path, **settings: Any) -> list[str]:
    """The nodes of a training step in the order in which they ran."""
    options = session.default_options()
    options.enable_profiling = True
    options.profile_file_prefix = str(folder / "profile")
    for name, value in settings.items():
        setattr(options, name, value)
    module = module_of(CASE, kernels="portable", session_options=options)
    module(**CASE.feed)
    written = Path(module._train._runner._session.end_profiling())
    suffix = "_kernel_time"
    names = [event["name"] for event in json.loads(written.read_text())]
    return [name.removesuffix(suffix) for name in names if name.endswith(suffix)]


def test_nodes_run_in_memory_order(tmp_path: Path) -> None:
    module = module_of(CASE, kernels="portable")
    planned = session.executed_graph(module._train._lowered.model)
    assert _executed(tmp_path) == [node.name for node in planned.graph.nodes]


def test_an_order_that_the_user_asks_for_is_kept(tmp_path: Path) -> None:
    """And the test above can fail: onnxruntime's own order is another."""
    asked = onnxruntime.ExecutionOrder.PRIORITY_BASED
    ours = _executed(tmp_path)
    theirs = _executed(tmp_path, execution_order=asked)
    assert theirs != ours


def test_options_come_back_as_they_were() -> None:
    options = session.default_options()
    before = (
        options.graph_optimization_level,
        options.execution_order,
        options.optimized_model_filepath,
    )
    module_of(CASE, session_options=options)
    after = (
        options.graph_optimization_level,
        options.execution_order,
        options.optimized_model_filepath,
    )
    assert after == before


def test_threads_may_make_modules_with_one_options_object() -> None:
    """The object is changed while a session is made; it is as it was afterwards."""
    options = session.default_options()
    names = [name for name in dir(options) if not name.startswith("_")]
    values = {n: v for n in names if not callable(v := getattr(options, n))}
    expected = float(module_of(CASE, session_options=options)(**CASE.feed))
    losses: list[float] = []

    def make() -> None:
        for _ in range(4):
            module = module_of(CASE, session_options=options)
            losses.append(float(module(**CASE.feed)))

    threads = [threading.Thread(target=make) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert losses == [expected] * 12
    assert {n: getattr(options, n) for n in values} == values
    assert values["optimized_model_filepath"] == ""


FRESH = """
import sys
import onnxruntime
from edge_train.api import CheckpointState, Module
folder = sys.argv[1]
options = onnxruntime.SessionOptions()
state = CheckpointState.load_checkpoint(folder + "/checkpoint")
Module(folder + "/training_model.onnx", state, folder + "/eval_model.onnx",
       session_options=options)
assert options.log_severity_level == -1
"""


@pytest.mark.slow
def test_fresh_options_warn_of_nothing_that_is_ours() -> None:
    done = run_python(FRESH, CASE.folder)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
