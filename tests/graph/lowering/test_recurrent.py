"""LSTM and GRU: the stock ops as witness, lengths and padding, sizes that change, refusals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support.lowering import Array, Arrays, Row, model_of, node, normals, run_lowered, session
from support.recurrent import HIDDEN, gru, lstm
from support.rows import recurrent as rows
from support.rows.tables import row_of

from edge_train.graph import ir
from edge_train.graph.lowering import LoweringRefused, lower

_INPUTS = {
    "LSTM": ["x", "w", "r", "b", "lens", "h0", "c0", "p"],
    "GRU": ["x", "w", "r", "b", "lens", "h0"],
}
_OUTPUTS = {"LSTM": ("h", "h_last", "c_last"), "GRU": ("h", "h_last")}
_FORMS = {
    **{f"LSTM{name}": options for name, options in (rows.LSTM | rows.PEEPHOLES).items()},
    **{f"GRU{name}": options for name, options in rows.GRU.items()},
}
_SMOKE = ("LSTM", "GRU")
FORMS = [pytest.param(n, marks=[] if n in _SMOKE else pytest.mark.slow, id=n) for n in _FORMS]


def _layer(name: str) -> tuple[str, dict[str, Array], dict[str, Array], dict[str, Any]]:
    """Op, inputs of the layer, gradients of its outputs, attributes."""
    op = name.split(":")[0]
    options = {"omit": "" if "peepholes" in name else "p", **_FORMS[name]}
    pool = rows.inputs(4 if op == "LSTM" else 3, **options)
    attrs = {key: value for key, value in options.items() if key not in ("omit", "lens")}
    layer = {key: pool[key] for key in _INPUTS[op] if key in pool}
    weights = {key[1:]: pool[key] for key in ("dh", "dh_last", "dc_last") if key in pool}
    return op, layer, weights, {"hidden_size": HIDDEN, **attrs}


def _stock(op: str, layer: Arrays, attrs: dict[str, Any]) -> Callable[[Arrays], dict[str, Array]]:
    """The stock op as a function of the layer's inputs."""
    names = [key if key in layer else "" for key in _INPUTS[op]]
    forward = ir.make_node(op, names, _OUTPUTS[op], **attrs)
    feeds = {key: value for key, value in layer.items()}
    row = Row("stock", (forward,), feeds, {key: np.zeros(()) for key in _OUTPUTS[op]})
    run = session(model_of(row, dynamic=True))
    return lambda values: dict(zip(_OUTPUTS[op], run.run(None, dict(values)), strict=True))


def _far(got: Array, wanted: Array) -> float:
    return float(np.linalg.norm(got - wanted)) / max(float(np.linalg.norm(wanted)), 1e-6)


@pytest.mark.parametrize("name", FORMS)
def test_the_formulas_are_the_stock_op(name: str) -> None:
    op, layer, _, attrs = _layer(name)
    wanted = _stock(op, layer, attrs)(layer)
    formula = {"LSTM": lstm, "GRU": gru}[op]
    for output, value in formula(layer, **attrs).items():
        if output in wanted:
            assert _far(wanted[output], value) <= 2e-6, output


@pytest.mark.parametrize("name", FORMS)
def test_gradients_are_slopes_of_the_stock_op(name: str) -> None:
    """Along one random direction for each input, by central differences in float32."""
    op, layer, weights, attrs = _layer(name)
    peepholes = "p" in layer
    parts = "both" if peepholes else "backward"
    row = (rows.lstm_row if op == "LSTM" else rows.gru_row)(name, parts, **_options(name))
    lowered = lower(model_of(row, dynamic=False))
    values = session(lowered.model).run(list(lowered.results), dict(row.feeds))
    gradients = dict(zip(lowered.results, values, strict=True))
    run = _stock(op, layer, attrs)

    def total(values: Arrays) -> float:
        made = run(values)
        return sum(float(np.sum(made[k].astype(np.float64) * w)) for k, w in weights.items())

    for key in (key for key in layer if key != "lens"):
        (along,) = normals(72, layer[key].shape)
        along = along / np.float32(np.linalg.norm(along))
        ends = [total({**layer, key: layer[key] + step * along}) for step in _STEPS]
        slope = (ends[0] - ends[1]) / float(_STEPS[0] - _STEPS[1])
        wanted = float(np.sum(gradients[f"g_{key}"].astype(np.float64) * along))
        assert slope == pytest.approx(wanted, rel=5e-3, abs=5e-3 * _size(gradients[f"g_{key}"]))


_SLOW_BOTH = [pytest.param("bidirectional", marks=pytest.mark.slow)]
_STEPS = (np.float32(4e-3), np.float32(-4e-3))


def _options(name: str) -> dict[str, Any]:
    return {"omit": "" if "peepholes" in name else "p", **_FORMS[name]}


def _size(gradient: Array) -> float:
    """What a random direction sees of a gradient."""
    return float(np.linalg.norm(gradient)) / np.sqrt(gradient.size)


# --- lengths and sizes -------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["LSTM", "GRU"])
@pytest.mark.parametrize("direction", ["forward", *_SLOW_BOTH])
def test_padding_may_hold_anything(name: str, direction: str) -> None:
    lens = (2, 4, 0)
    parts = (f"{name}Training", "forward"), (f"{name}Grad", "backward")
    for title, part in parts:
        make = rows.lstm_row if name == "LSTM" else rows.gru_row
        row = make(title, part, lens=lens, direction=direction)
        lowered = lower(model_of(row, dynamic=True))
        run, feeds = session(lowered.model), dict(row.feeds)
        clean = run.run(list(lowered.results), feeds)
        for key in ("x", "dh"):
            if key in feeds:
                feeds[key] = feeds[key].copy()
                for sequence, length in enumerate(lens):
                    feeds[key][length:, ..., sequence, :] = np.nan
        for a, b in zip(clean, run.run(list(lowered.results), feeds), strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("direction", ["reverse", *_SLOW_BOTH])
@pytest.mark.parametrize(
    "make", [rows.gru_row, pytest.param(rows.lstm_row, marks=pytest.mark.slow)]
)
def test_full_lengths_are_no_lengths(make: Callable[..., Row], direction: str) -> None:
    lengths = run_lowered(make("all", "backward", lens=(4, 4, 4), direction=direction))
    for name, value in run_lowered(make("none", "backward", direction=direction)).items():
        np.testing.assert_allclose(lengths[name], value, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("op", ["LSTM", "GRU"])
def test_one_graph_takes_every_batch_and_length(op: str) -> None:
    """A step of a batch of one, one step long, and back."""
    row = row_of(f"{op}Training: no initial state{'s' if op == 'LSTM' else ''}")
    lowered = lower(model_of(row, dynamic=True))
    run = session(lowered.model)
    formula = {"LSTM": lstm, "GRU": gru}[op]
    for steps, batch in ((1, 1), (7, 2), (4, 3)):
        (x,) = normals(73, (steps, batch, row.feeds["x"].shape[2]))
        feeds = {**row.feeds, "x": x}
        values = dict(zip(lowered.results, run.run(list(lowered.results), feeds), strict=True))
        for name, wanted in formula(feeds).items():
            assert values[name].shape == wanted.shape
            assert _far(values[name], wanted) <= 1e-5, (steps, batch, name)


def test_two_layers_in_one_graph() -> None:
    """Names inside the Scan bodies stay apart; the lower layer's gradient comes through dX."""
    x, w0, w1, r = normals(74, (5, 2, HIDDEN), (1, 12, HIDDEN), (1, 9, HIDDEN), (1, 12, HIDDEN))
    feeds = {"x": x, "w0": w0, "r0": r, "w1": w1, "r1": r[:, :9].copy()}
    (dh,) = normals(75, (5, 1, 2, HIDDEN))
    nodes = (
        node("LSTMTraining", "x w0 r0", "h hl cl c iofc", hidden_size=HIDDEN),
        node("Squeeze", "h one", "y", ""),
        node("GRUTraining", "y w1 r1", "z zl zrh", hidden_size=HIDDEN),
        node("GRUGrad", "y w1 r1 _ _ _ z zrh dh", "dy dw1 dr1", hidden_size=HIDDEN),
        node("Unsqueeze", "dy one", "dhl", ""),
        node("LSTMGrad", "x w0 r0 _ _ _ h c iofc dhl", "dx dw0 dr0", hidden_size=HIDDEN),
    )
    nothing = {key: np.zeros(()) for key in ("dx", "dw0", "dr0", "dw1", "dr1")}
    row = Row("two", nodes, {**feeds, "dh": dh}, nothing, {"one": np.array([1])})
    lowered = lower(model_of(row, dynamic=True))
    values = session(lowered.model).run(list(lowered.results), {**feeds, "dh": dh})
    names: list[str] = []
    for item in lowered.model.graph.nodes:
        for graph in (lowered.model.graph, *ir.subgraphs(item)):
            names += [n for inner in graph.nodes for n in inner.outputs if graph.name == "step"]
    assert len(names) == len(set(names)) > 40

    def total(values: Arrays) -> float:
        y = lstm({"x": values["x"], "w": values["w0"], "r": values["r0"]})["h"][:, 0]
        z = gru({"x": y, "w": values["w1"], "r": values["r1"]})["h"]
        return float(np.sum(z * dh))

    wide = {key: value.astype(np.float64) for key, value in feeds.items()}
    for name, gradient in zip(lowered.results, values, strict=True):
        key = name[1:]
        (along,) = normals(76, wide[key].shape)
        ends = [total({**wide, key: wide[key] + step * along}) for step in (1e-5, -1e-5)]
        wanted = (ends[0] - ends[1]) / 2e-5
        got = float(np.sum(gradient.astype(np.float64) * along))
        assert got == pytest.approx(wanted, rel=1e-4), key


# --- refused -----------------------------------------------------------------------------------


def _refused(op: str, inputs: str, outputs: str, **attrs: Any) -> str:
    feeds = rows.inputs(4)
    grad = node(op, inputs, outputs, **attrs)
    feeds |= dict(zip(("h", "c", "iofc"), (feeds["dh"],) * 3, strict=True))
    used = {key: value for key, value in feeds.items() if key in grad.inputs}
    row = Row("refused", (grad,), used, {name: np.zeros(()) for name in grad.outputs if name})
    with pytest.raises(LoweringRefused) as caught:
        lower(model_of(row, dynamic=False))
    return str(caught.value)


_GRAD = "x w r _ h0 c0 h c iofc dh"


@pytest.mark.parametrize(
    ("attrs", "words"),
    [
        ({"direction": "sideways"}, "direction 'sideways'; known are forward, reverse"),
        ({"layout": 1}, "layout 1"),
        ({"clip": -1.0}, "clip -1"),
        ({"activations": ["Sigmoid", "Tanh"]}, "2 activations, 3 expected"),
        ({"activations": ["Sigmoid", "Gelu", "Tanh"]}, "activation Gelu is unknown; known are aff"),
        (
            {"activations": ["Sigmoid", "LeakyRelu", "Tanh"], "activation_alpha": [-0.1]},
            "the output of activation leakyrelu with alpha -0.1 does not tell its derivative",
        ),
    ],
)
def test_refused_attributes(attrs: dict[str, Any], words: str) -> None:
    text = _refused("LSTMGrad", _GRAD, "dx", **attrs)
    assert words in text
    assert "LSTMGrad 'LSTMGrad_node'" in text


def test_refused_without_what_it_needs() -> None:
    assert "of the forward op are not given" in _refused("LSTMGrad", "x w r _ h0 c0 h", "dx")
    assert "without the LSTMTraining" in _refused("LSTMGrad", _GRAD, "dx _ _ _ _ _ dp")
    assert "of the forward op are not given" in _refused("GRUGrad", "x w r b _ h0 h", "dx")


def test_activation_names_ignore_case() -> None:
    row = rows.lstm_row("case", "forward", activations=["Sigmoid", "Relu", "Tanh"])
    (training,) = row.nodes
    lower_case = ir.make_node(
        "LSTMTraining",
        training.inputs,
        training.outputs,
        "lower",
        ir.MICROSOFT,
        activations=["sigmoid", "relu", "tanh"],
    )
    made = [
        session((low := lower(model_of(Row("r", (item,), row.feeds, row.expected), False))).model)
        .run(list(low.results), dict(row.feeds))
        for item in (training, lower_case)
    ]  # fmt: skip
    for a, b in zip(*made, strict=True):
        np.testing.assert_array_equal(a, b)


def test_stock_layer_in_double_is_cast() -> None:
    """onnxruntime's LSTM knows float32 only: the eval graph of a double model is cast around it."""
    x, w, r = (value.astype(np.float64) for value in normals(77, (3, 2, 2), (1, 12, 2), (1, 12, 3)))
    forward = ir.make_node("LSTM", ["x", "w", "r"], ["h"], hidden_size=HIDDEN)
    feeds = {"x": x, "w": w, "r": r}
    row = Row("double", (forward,), feeds, {"h": np.zeros(())}, kind=np.float64)
    lowered = lower(model_of(row, dynamic=True))
    (h,) = session(lowered.model).run(list(lowered.results), feeds)
    assert h.dtype == np.float64
    assert _far(h, lstm(feeds)["h"]) <= 1e-6
