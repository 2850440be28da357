"""One node at an older opset, by op: what tests/graph/test_opset.py raises and compares."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from onnx import TensorProto


@dataclasses.dataclass(frozen=True)
class Case:
    """One node; arrays are fed, ``constants`` (input index -> array) are initializers."""

    op: str
    version: int
    inputs: tuple[Any, ...]
    attributes: dict[str, Any] = dataclasses.field(default_factory=dict)
    constants: dict[int, np.ndarray] = dataclasses.field(default_factory=dict)
    outputs: int = 1
    undeclared: bool = False  # the inputs' ranks are not declared

    def __str__(self) -> str:
        text = ",".join(f"{key}={value}" for key, value in self.attributes.items())
        return f"{self.op}-{self.version}({text})" + ("-no rank" if self.undeclared else "")


def f32(*shape: int) -> np.ndarray:
    return np.random.default_rng(7).normal(size=shape).astype(np.float32)


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


_NORMS = ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")
_REDUCTIONS = [f"Reduce{name}" for name in _NORMS]

CASES: list[Case] = [
    Case("Squeeze", 12, (f32(1, 3, 1),), {"axes": [0]}),
    Case("Squeeze", 12, (f32(1, 3, 1),)),
    Case("Unsqueeze", 12, (f32(2, 3),), {"axes": [0, -1]}),
    *(Case(op, 12, (abs(f32(2, 3, 4)) + 1,), {"axes": [-1], "keepdims": 0}) for op in _REDUCTIONS),
    *(Case(op, 12, (abs(f32(2, 3, 4)) + 1,)) for op in _REDUCTIONS),
    Case("ReduceMean", 17, (f32(2, 3, 4),), {"axes": [0, 2]}),
    Case("Split", 12, (f32(5, 2),), {"split": [2, 3]}, outputs=2),
    Case("Split", 12, (f32(4, 6),), {"axis": 1}, outputs=3),
    Case("Split", 13, (f32(4, 6),), {"axis": -1}, outputs=2),
    Case("Split", 15, (f32(5, 2), ints(1, 4)), outputs=2),
    *(
        Case(op, 12, (f32(2, 3, 4),), attributes, undeclared=undeclared)
        for op in ("Softmax", "LogSoftmax", "Hardmax")
        for attributes in ({}, {"axis": 0}, {"axis": 2}, {"axis": -1}, {"axis": -2})
        for undeclared in (False, True)
    ),
    Case("Softmax", 13, (f32(2, 3, 4),)),
    Case(
        "BatchNormalization",
        12,
        (f32(2, 3, 4), f32(3), f32(3), f32(3), abs(f32(3))),
    ),
    Case(
        "BatchNormalization",
        14,
        (f32(2, 3, 4), f32(3), f32(3), f32(3), abs(f32(3))),
    ),
    Case(
        "RoiAlign",
        12,
        (f32(1, 2, 8, 8), np.array([[0, 0, 5, 6]], np.float32), ints(0)),
        {"output_height": 2, "output_width": 2, "sampling_ratio": 2},
    ),
    *(
        Case(
            "Resize",
            version,
            (f32(1, 1, 3, 3),),
            {"mode": mode, **coordinates},
            {1: f32(0), 2: np.array([1, 1, 2, 2.5], np.float32)},
        )
        for version in (12, 13, 18)
        for mode in ("nearest", "linear", "cubic")
        for coordinates in (
            {},
            {"coordinate_transformation_mode": "asymmetric"},
            {"coordinate_transformation_mode": "align_corners"},
            {"coordinate_transformation_mode": "pytorch_half_pixel"},
        )
    ),
    Case(
        "Resize",
        12,
        (f32(1, 1, 3, 3),),
        {},
        {1: f32(0), 2: f32(0), 3: ints(1, 1, 5, 7)},
    ),
    Case("Resize", 13, (f32(1, 1, 3, 3),), {"mode": "linear"}, {3: ints(1, 1, 5, 7)}),
    *(
        Case(
            "AveragePool",
            version,
            (f32(1, 2, 7, 6),),
            {"kernel_shape": [3, 3], "strides": [2, 2], "pads": pads, "count_include_pad": count},
        )
        for version in (12, 18)
        for pads in ([0, 0, 0, 0], [1, 0, 1, 1])
        for count in (0, 1)
    ),
    Case("AveragePool", 12, (f32(1, 2, 7),), {"kernel_shape": [3], "auto_pad": "SAME_UPPER"}),
    Case(
        "AveragePool",
        12,
        (f32(1, 2, 8),),
        {"kernel_shape": [3], "strides": [2], "ceil_mode": 1},
    ),
    # the last window of an axis lies in the padding; another axis keeps its own, in its padding
    *(
        Case(op, 22, (f32(1, 2, *sizes),), {"ceil_mode": 1, "strides": strides, **more})
        for op in ("AveragePool", "MaxPool", "LpPool")
        for sizes, strides, more in (
            ((5, 5), [2, 2], {"kernel_shape": [2, 2], "pads": [1, 1, 1, 1]}),
            ((9, 7), [3, 3], {"kernel_shape": [2, 2], "auto_pad": "VALID"}),
            ((9, 9), [3, 3], {"kernel_shape": [2, 2]}),
            ((7, 9), [2, 3], {"kernel_shape": [3, 2], "pads": [1, 0, 1, 0]}),
        )
    ),
    Case(
        "AveragePool",
        22,
        (f32(1, 2, 5),),
        {
            "ceil_mode": 1,
            "kernel_shape": [2],
            "strides": [2],
            "pads": [1, 1],
            "count_include_pad": 1,
        },
    ),
    Case("LpPool", 12, (f32(1, 2, 7),), {"kernel_shape": [3], "strides": [2]}),
    Case("QuantizeLinear", 12, (f32(2, 3),), {}, {1: np.float32(0.1), 2: np.uint8(3)}),
    Case(
        "DequantizeLinear",
        12,
        (np.arange(6, dtype=np.uint8).reshape(2, 3),),
        {},
        {1: np.float32(0.5), 2: np.uint8(3)},
    ),
    *(
        Case("GridSample", 16, (f32(1, 1, 4, 4), f32(1, 3, 3, 2)), attributes)
        for attributes in (
            {},
            {"mode": "nearest", "align_corners": 1},
            {"mode": "bicubic", "padding_mode": "border"},
            {"mode": "bilinear", "padding_mode": "reflection"},
        )
    ),
    Case("DFT", 17, (f32(1, 4, 3, 1),)),
    Case("DFT", 17, (f32(1, 4, 3, 1),), {"axis": 2, "onesided": 1}, {1: np.array(4, np.int64)}),
    Case("GroupNormalization", 18, (f32(2, 6, 3), f32(3), f32(3)), {"num_groups": 3}),
    Case(
        "LayerNormalization",
        15,
        (f32(2, 3, 4), f32(4), f32(4)),
        {"epsilon": 1e-3},
        outputs=3,
    ),
    Case("Pad", 12, (f32(2, 3), ints(0, 1, 1, 0)), {"mode": "reflect"}),
    Case("Pad", 13, (f32(2, 3), ints(0, 1, 1, 0), np.float32(2))),
    Case("Clip", 12, (f32(2, 3), np.float32(-0.1), np.float32(0.2))),
    Case("Shape", 12, (f32(2, 3),)),
    Case("Reshape", 12, (f32(2, 3), ints(0, -1))),
    Case("Flatten", 12, (f32(2, 3, 4),), {"axis": -1}),
    Case("CumSum", 12, (f32(2, 3), np.array(1, np.int32)), {"reverse": 1}),
    Case("Cast", 12, (f32(2, 3),), {"to": TensorProto.INT32}),
    Case("ScatterElements", 12, (f32(3, 3), np.array([[1, 0, 2]]), f32(1, 3))),
    Case("ScatterND", 12, (f32(3, 3), np.array([[1], [0]]), f32(2, 3))),
    Case("ScatterND", 16, (f32(3, 3), np.array([[1], [1]]), f32(2, 3)), {"reduction": "add"}),
    Case("Dropout", 12, (f32(2, 3),), {}, outputs=2),
    Case("PRelu", 12, (f32(2, 3), f32(3))),
    Case("IsNaN", 12, (f32(2, 3),)),
    Case("IsInf", 12, (f32(2, 3),), {"detect_negative": 0}),
    Case("ConstantOfShape", 12, (ints(2, 3),)),
    Case(
        "LSTM",
        12,
        (f32(3, 2, 4), f32(1, 8, 4), f32(1, 8, 2)),
        {"hidden_size": 2},
        outputs=3,
    ),
    Case(
        "GRU",
        12,
        (f32(3, 2, 4), f32(1, 6, 4), f32(1, 6, 2)),
        {"hidden_size": 2},
        outputs=2,
    ),
    Case(
        "RNN",
        12,
        (f32(3, 2, 4), f32(1, 2, 4), f32(1, 2, 2)),
        {"hidden_size": 2},
        outputs=2,
    ),
    Case("SoftmaxCrossEntropyLoss", 12, (f32(4, 3), ints(0, 2, 1, 2)), outputs=2),
    Case("Conv", 22, (f32(1, 2, 5), f32(3, 2, 3))),
    Case("TopK", 24, (f32(2, 5), ints(2)), {"axis": 1}, outputs=2),
    Case("Slice", 9, (f32(3, 4),), {"starts": [1, -2], "ends": [3, 100]}),
    Case("Slice", 7, (f32(3, 4),), {"starts": [1], "ends": [-1], "axes": [1]}),
    Case("TopK", 9, (f32(2, 5),), {"k": 2, "axis": 0}, outputs=2),
    Case("TopK", 10, (f32(2, 5), ints(3)), outputs=2),
    Case("Clip", 9, (f32(2, 3),), {"min": -0.1, "max": 0.2}),
    Case("Clip", 10, (f32(2, 3),), {"max": 0.2}),
    Case("Clip", 10, (f32(2, 3),)),
    Case("Pad", 9, (f32(2, 3),), {"pads": [0, 1, 1, 0], "value": 2.5}),
    Case("Pad", 10, (f32(2, 3),), {"pads": [0, 1, 0, 2], "mode": "reflect"}),
    Case("Dropout", 7, (f32(2, 3),), {"ratio": 0.3}),
    Case("Dropout", 10, (f32(2, 3),)),
    Case("Scatter", 9, (f32(3, 3), np.array([[1, 0, 2]]), f32(1, 3)), {"axis": 0}),
    *(
        Case("Upsample", version, (f32(1, 2, 3, 4),), {"mode": mode, **attributes}, constants)
        for version, attributes, constants in (
            (7, {"scales": [1.0, 1.0, 2.0, 1.5]}, {}),
            (9, {}, {1: np.array([1, 1, 2, 2.5], np.float32)}),
        )
        for mode in ("nearest", "linear")
    ),
    *(
        Case("Resize", 10, (f32(1, 2, 5, 6),), {"mode": mode}, {1: np.array(scales, np.float32)})
        for scales in ([1, 1, 2, 1.7], [1, 1, 0.5, 0.7])
        for mode in ("nearest", "linear")
    ),
    Case(
        "Resize",
        11,
        (f32(1, 1, 3, 3),),
        {},
        {1: f32(0), 2: np.array([1, 1, 2, 3], np.float32)},
    ),
    *(Case(op, 9, (abs(f32(2, 3, 4)) + 1,), {"axes": [1], "keepdims": 0}) for op in _REDUCTIONS),
    Case("Squeeze", 9, (f32(1, 3, 1),), {"axes": [2]}),
    Case("Unsqueeze", 9, (f32(2, 3),), {"axes": [0, 3]}),
    Case("Softmax", 9, (f32(2, 3, 4),)),
    Case("Split", 9, (f32(5, 2),), {"split": [2, 3]}, outputs=2),
    Case(
        "BatchNormalization",
        7,
        (f32(2, 3, 4), f32(3), f32(3), f32(3), abs(f32(3))),
    ),
    Case(
        "BatchNormalization",
        9,
        (f32(2, 3, 4), f32(3), f32(3), f32(3), abs(f32(3))),
    ),
    Case("MaxPool", 9, (f32(1, 2, 7),), {"kernel_shape": [3], "pads": [1, 1], "strides": [2]}),
    Case("AveragePool", 9, (f32(1, 2, 7),), {"kernel_shape": [3], "pads": [1, 1]}),
    Case("Gemm", 9, (f32(2, 3), f32(4, 3), f32(4)), {"transB": 1, "alpha": 0.5}),
    Case("ArgMax", 9, (f32(2, 3),), {"axis": 1, "keepdims": 0}),
    Case("Flatten", 9, (f32(2, 3, 4),), {"axis": 2}),
    Case("Gather", 9, (f32(4, 3), ints(2, 0))),
    Case("DepthToSpace", 9, (f32(1, 8, 2, 3),), {"blocksize": 2}),
    Case("PRelu", 7, (f32(2, 3), f32(3))),
    Case("Sum", 8, (f32(2, 3), f32(3))),
    Case("Max", 8, (f32(2, 3), f32(3))),
    Case(
        "LSTM",
        7,
        (f32(3, 2, 4), f32(1, 8, 4), f32(1, 8, 2)),
        {"hidden_size": 2},
        outputs=3,
    ),
    Case("Cast", 9, (f32(2, 3),), {"to": TensorProto.INT32}),
    Case("Concat", 9, (f32(2, 3), f32(2, 1)), {"axis": 1}),
    Case("OneHot", 9, (ints(0, 2), ints(3), np.array([0, 1], np.float32)), {"axis": -1}),
    Case("RMSNormalization", 23, (f32(2, 3, 4), f32(4)), {"epsilon": 1e-3}),
    Case("RMSNormalization", 23, (f32(2, 3, 4), f32(3, 4)), {"axis": 1}),
    Case("Swish", 24, (f32(2, 3),)),
    Case("Swish", 24, (f32(2, 3),), {"alpha": 1.5}),
]
