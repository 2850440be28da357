"""What shape inference says about the outputs of every training op, against the tables' values."""

from __future__ import annotations

import pytest
from support.lowering import model_of
from support.rows.tables import ROWS, SMOKE, row_of

from edge_train import dtypes
from edge_train.graph.shapes import Shapes

#: a rank that only the values of a fed shape could tell
EVERY = [
    pytest.param(name, marks=[] if name in SMOKE else pytest.mark.slow, id=name) for name in ROWS
]


@pytest.mark.parametrize("name", EVERY)
def test_inferred_types_are_those_of_the_values(name: str) -> None:
    row = row_of(name)
    for dynamic in (False, True):
        model = model_of(row, dynamic)
        model.graph.outputs.clear()
        shapes = Shapes.of(model)
        for output, value in row.expected.items():
            number = dtypes.number_of("f4" if value.dtype == "f8" else value.dtype)
            assert shapes.elem_type(output) in (number, None), output
            dims = shapes.dims(output)
            if dims is None:
                continue
            assert len(dims) == value.ndim, output
            wrong = [
                d for d, n in zip(dims, value.shape, strict=True) if isinstance(d, int) and d != n
            ]
            assert not wrong, (output, dims, value.shape)


@pytest.mark.parametrize("name", SMOKE)
def test_ranks_are_known_without_declared_outputs(name: str) -> None:
    row = row_of(name)
    model = model_of(row, dynamic=False)
    model.graph.outputs.clear()
    shapes = Shapes.of(model)
    unknown = [output for output in row.expected if shapes.rank(output) is None]
    assert not unknown
