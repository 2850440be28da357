"""The gradient graphs, unlowered, in the reference's own runtime: it can train what we write."""

from __future__ import annotations

from fnmatch import fnmatchcase

import numpy as np
import pytest
from support.gradient_rows.tables import ROWS, answers
from support.gradients import check_slopes, gradient_model
from support.reference import Reference, ReferenceError

from edge_train.graph import onnx_codec

_RECURRENT = "its training ops go forward only, without lengths, clip and other extras"

#: patterns of rows -> what the reference does wrong or lacks; such a row must fail there
DIFFERS = {
    "AveragePool:3-D": "wrong numbers in AveragePoolGrad",
    "AveragePool:dilations": "wrong numbers in AveragePoolGrad",
    "AveragePool:with pads, ceil": "its AveragePool divides by other counts",
    "[GL]*:lengths": _RECURRENT,
    "[GL]*:reverse*": _RECURRENT,
    "[GL]*:both": _RECURRENT,
    "[GL]*:clip": _RECURRENT,
    "[GL]*:activations": _RECURRENT,
    "[GL]*:affine": _RECURRENT,
    "LSTM:input_forget": _RECURRENT,
    "LSTM:peepholes*": "wrong numbers in LSTMGrad",
    "LayerNormalization:one scale": "its LayerNormalization wants a scale a feature",
    "MaxPool:storage_order": "its MaxPoolGrad reads the indices in the other order",
    "RNN:two activations": "its RNN gives both directions one activation",
    "Resize:negative axes": "its Resize refuses them",
    "Resize:not_*": "no kernel for ResizeGrad",
    "Scan:omitted": "its Scan wants a name for every output, as onnxruntime's does",
    "SoftmaxCrossEntropyLoss:log_prob alone": "it wants the loss to have a name too",
}


def differs(name: str) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in DIFFERS)


@pytest.mark.parametrize("name", list(ROWS))
def test_the_reference_runs_the_gradient(reference: Reference, name: str) -> None:
    if differs(name):
        with pytest.raises((AssertionError, ReferenceError)):
            check_in_reference(reference, name)
    else:
        check_in_reference(reference, name)


def check_in_reference(reference: Reference, name: str) -> None:
    row, (weights, slopes) = ROWS[name], answers(name)
    model, table = gradient_model(row, weights, dynamic=False)
    feeds = {value.name: np.array(row.inputs[value.name]) for value in model.graph.inputs}
    values = reference.run_model(onnx_codec.encode(model), feeds, list(table.values()))
    check_slopes(row, dict(zip(table, values, strict=True)), slopes)


def test_every_pattern_has_rows() -> None:
    assert [p for p in DIFFERS if not any(fnmatchcase(name, p) for name in ROWS)] == []
