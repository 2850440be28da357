"""The op tables against the reference's own kernels: the formulas are what it computes."""

from __future__ import annotations

import numpy as np
import pytest
from support.lowering import WRONG_IN_REFERENCE, Array, Row, check, model_of
from support.reference import Reference, ReferenceError
from support.rows.tables import ROWS, row_of

from edge_train.graph import onnx_codec


def from_reference(reference: Reference, row: Row) -> dict[str, Array]:
    model = onnx_codec.encode(model_of(row, dynamic=False))
    feeds = {name: np.array(value) for name, value in row.feeds.items()}
    values = reference.run_model(model, feeds, list(row.expected))
    return dict(zip(row.expected, values, strict=True))


@pytest.mark.parametrize("name", list(ROWS))
def test_row_is_what_the_reference_computes(reference: Reference, name: str) -> None:
    row = row_of(name)
    if row.reference == WRONG_IN_REFERENCE:
        with pytest.raises((AssertionError, ReferenceError)):
            check(row, from_reference(reference, row))
    elif row.reference:
        pytest.skip(row.reference)
    else:
        check(row, from_reference(reference, row))
