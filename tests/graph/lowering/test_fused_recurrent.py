"""LSTM and GRU by our own kernels against the portable nodes; sizes cut vectors and batches."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import onnxruntime
import pytest
from support.lowering import Array, Row, model_of, node
from support.native_kernels import needs_library

from edge_train.graph import ir
from edge_train.graph.lowering import lower
from edge_train.session import make_session

needs_library()

_GATES = {"LSTM": 4, "GRU": 3}


def _row(op: str, sizes: tuple[int, int, int, int], lens: tuple[int, ...], **attrs: Any) -> Row:
    """A layer and its gradient; padding is NaN."""
    (t, batch, width, hidden), gates = sizes, _GATES[op]
    many = 2 if attrs.get("direction") == "bidirectional" else 1
    rng = np.random.default_rng(t * hidden)
    shapes = {
        "x": (t, batch, width),
        "w": (many, gates * hidden, width),
        "r": (many, gates * hidden, hidden),
        "b": (many, 2 * gates * hidden),
        "h0": (many, batch, hidden),
        "dh": (t, many, batch, hidden),
        "dh_last": (many, batch, hidden),
    }
    if op == "LSTM":
        shapes |= dict.fromkeys(("c0", "dc_last"), (many, batch, hidden))
        shapes |= {"p": (many, 3 * hidden)}
    feeds: dict[str, Array] = {
        name: rng.standard_normal(shape).astype(np.float32) / np.float32(shape[-1] ** 0.5)
        for name, shape in shapes.items()
    }
    lengths = "_"
    if lens:
        lengths = "lens"
        feeds["lens"] = np.resize(np.minimum(lens, t), batch).astype(np.int32)
        for b, length in enumerate(feeds["lens"]):
            feeds["x"][length:, b] = feeds["dh"][length:, :, b] = np.nan
    attrs = {"hidden_size": hidden, **attrs}
    if op == "LSTM":
        nodes = (
            node("LSTMTraining", f"x w r b {lengths} h0 c0 p", "h hl cl c gates", **attrs),
            node(
                "LSTMGrad",
                f"x w r {lengths} h0 c0 h c gates dh dh_last dc_last",
                "dx dw dr db dh0 dc0 dp",
                **attrs,
            ),
        )
        shapes |= {"h": shapes["dh"], "c": shapes["dh"], "hl": shapes["h0"], "cl": shapes["h0"]}
        outputs = "h hl cl c dx dw dr db dh0 dc0 dp"
    else:
        nodes = (
            node("GRUTraining", f"x w r b {lengths} h0", "h hl gates", **attrs),
            node("GRUGrad", f"x w r b {lengths} h0 h gates dh dh_last", "dx dw dr db dh0", **attrs),
        )
        shapes |= {"h": shapes["dh"], "hl": shapes["h0"]}
        outputs = "h hl dx dw dr db dh0"
    expected = {name: np.zeros(shapes[name.removeprefix("d")]) for name in outputs.split()}
    return Row("layer", nodes, feeds, expected, sized=("w", "r"))


def _run(row: Row, fused: bool, threads: int = 1, dynamic: bool = True) -> dict[str, Array]:
    lowered = lower(model_of(row, dynamic), fused)
    kinds = {n.op_type for n in lowered.model.graph.nodes if n.domain == ir.NATIVE}
    op = row.nodes[0].op_type.removesuffix("Training")
    assert kinds == ({op, f"{op}Grad"} if fused else set())
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = threads, 3
    values = make_session(lowered.model, "row", options).run(list(lowered.results), row.feeds)
    return dict(zip(lowered.results, values, strict=True))


_FORMS: dict[str, dict[str, Any]] = {
    "plain": {},
    "reverse": {"direction": "reverse"},
    "both, clip": {"direction": "bidirectional", "clip": 0.7},
}
_SIZES = [(3, 1, 2, 1), (4, 9, 5, 37), (2, 5, 3, 16), (6, 4, 7, 64), (3, 33, 4, 20)]


@pytest.mark.parametrize("lens", [(), (2, 0, 3, 1)], ids=["full", "lengths"])
@pytest.mark.parametrize("form", _FORMS)
@pytest.mark.parametrize("op", ["LSTM", "GRU", "GRU, linear"])
def test_fused_is_portable(op: str, form: str, lens: tuple[int, ...]) -> None:
    attrs = {"linear_before_reset": 1} if "linear" in op else {}
    for sizes in _SIZES:
        row = _row(op.split(",")[0], sizes, lens, **attrs, **_FORMS[form])
        got, wanted = _run(row, fused=True), _run(row, fused=False)
        for name, value in wanted.items():
            far = float(np.linalg.norm(got[name] - value))
            assert far <= 1e-5 * max(float(np.linalg.norm(value)), 1e-2), (sizes, name)


@pytest.mark.parametrize("op", _GATES)
def test_any_number_of_threads_gives_the_same_bits(op: str) -> None:
    row = _row(op, (12, 30, 8, 48), (5, 12, 0, 9))
    one, four = (_run(row, fused=True, threads=count) for count in (1, 4))
    for name, value in one.items():
        np.testing.assert_array_equal(four[name], value, err_msg=name)


@pytest.mark.parametrize("length", [-1, 4])
def test_a_length_that_is_none_is_refused(length: int) -> None:
    row = _row("LSTM", (3, 2, 4, 5), (3, 3))
    feeds = {**row.feeds, "lens": np.array([length, 3], np.int32)}
    with pytest.raises(Exception, match="below 0 or above the number of steps"):
        _run(replace(row, feeds=feeds), fused=True)


def test_a_nan_stays_in_its_sequence() -> None:
    """NaN in one sequence reaches all of its later outputs, and no other sequence's."""
    row = _row("LSTM", (4, 3, 2, 6), ())
    row.feeds["x"][1, 2, 0] = np.nan  # type: ignore[index]
    got = _run(row, fused=True)
    assert np.isnan(got["h"][1:, 0, 2]).all()
    assert np.isfinite(got["h"][:, 0, :2]).all()
    assert np.isfinite(got["h"][0]).all()
    assert np.isnan(got["dw"]).any()


def test_an_initial_state_of_another_size_is_refused() -> None:
    row = _row("GRU", (3, 2, 4, 5), ())
    feeds = {**row.feeds, "h0": np.zeros((1, 3, 5), np.float32)}
    with pytest.raises(Exception, match="another size"):
        _run(replace(row, feeds=feeds), fused=True)
