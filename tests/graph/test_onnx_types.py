"""Types that a graph declares, whole and damaged."""

from __future__ import annotations

import pytest
from onnx import TensorProto, helper

from edge_train.errors import ArtifactError
from edge_train.graph import ir
from edge_train.graph.onnx_types import tensors_of

_SEQUENCE = helper.make_sequence_type_proto(
    helper.make_tensor_type_proto(TensorProto.FLOAT, ["n", 3])
).SerializeToString()


def _value(data: bytes | None) -> ir.Value:
    return ir.Value("weights", None, None, data)


def test_the_tensors_of_a_sequence() -> None:
    assert tensors_of(_value(_SEQUENCE)) == (TensorProto.FLOAT, ("n", 3))
    assert tensors_of(_value(None)) is None


def test_every_bit_flip_is_read_or_refused_by_name() -> None:
    refused: list[str] = []
    for bit in range(8 * len(_SEQUENCE)):
        data = bytearray(_SEQUENCE)
        data[bit // 8] ^= 1 << bit % 8
        try:
            tensors_of(_value(bytes(data)))
        except ArtifactError as error:
            refused.append(str(error))
    assert 0 < len(refused) < 8 * len(_SEQUENCE)
    assert all("'weights'" in message for message in refused)


def test_a_name_that_is_no_text() -> None:
    with pytest.raises(ArtifactError, match="'weights' cannot be read"):
        tensors_of(_value(_SEQUENCE.replace(b"n", b"\xff")))
