"""Every row of the op tables by name. A row named like its op, without more, is its smoke row."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from support.lowering import Row
from support.rows import (
    activations,
    arithmetic,
    convolution,
    dropouts,
    forwards,
    indexing,
    legacy_losses,
    losses,
    normalization,
    pooling,
    quantization,
    recurrent,
    resizing,
    scattering,
    tensor_lists,
    transposed_convolution,
)

_TABLES: list[dict[str, Callable[[], Row]]] = [
    module.TABLE
    for module in (
        activations,
        arithmetic,
        convolution,
        dropouts,
        forwards,
        indexing,
        legacy_losses,
        losses,
        normalization,
        pooling,
        quantization,
        recurrent,
        resizing,
        scattering,
        tensor_lists,
        transposed_convolution,
    )
]

ROWS: dict[str, Callable[[], Row]] = {name: row for table in _TABLES for name, row in table.items()}
SMOKE = [name for name in ROWS if ":" not in name]


@cache
def row_of(name: str) -> Row:
    """The row, made when first asked for."""
    return ROWS[name]()
