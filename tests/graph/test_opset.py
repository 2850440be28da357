"""Raising opsets: every op that changed gives the same result before and after."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from edge_train.errors import ArtifactError, UnsupportedOp
from edge_train.graph import ir, onnx_codec, opset
from edge_train.graph.opset_rules import RULES

ort.set_default_logger_severity(3)


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


def _f(*shape: int) -> np.ndarray:
    return np.random.default_rng(7).normal(size=shape).astype(np.float32)


def _i(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


_NORMS = ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")
_REDUCTIONS = [f"Reduce{name}" for name in _NORMS]

CASES = [
    Case("Squeeze", 12, (_f(1, 3, 1),), {"axes": [0]}),
    Case("Squeeze", 12, (_f(1, 3, 1),)),
    Case("Unsqueeze", 12, (_f(2, 3),), {"axes": [0, -1]}),
    *(Case(op, 12, (abs(_f(2, 3, 4)) + 1,), {"axes": [-1], "keepdims": 0}) for op in _REDUCTIONS),
    *(Case(op, 12, (abs(_f(2, 3, 4)) + 1,)) for op in _REDUCTIONS),
    Case("ReduceMean", 17, (_f(2, 3, 4),), {"axes": [0, 2]}),
    Case("Split", 12, (_f(5, 2),), {"split": [2, 3]}, outputs=2),
    Case("Split", 12, (_f(4, 6),), {"axis": 1}, outputs=3),
    Case("Split", 13, (_f(4, 6),), {"axis": -1}, outputs=2),
    Case("Split", 15, (_f(5, 2), _i(1, 4)), outputs=2),
    *(
        Case(op, 12, (_f(2, 3, 4),), attributes, undeclared=undeclared)
        for op in ("Softmax", "LogSoftmax", "Hardmax")
        for attributes in ({}, {"axis": 0}, {"axis": 2}, {"axis": -1}, {"axis": -2})
        for undeclared in (False, True)
    ),
    Case("Softmax", 13, (_f(2, 3, 4),)),
    Case("BatchNormalization", 12, (_f(2, 3, 4), _f(3), _f(3), _f(3), abs(_f(3)))),
    Case("BatchNormalization", 14, (_f(2, 3, 4), _f(3), _f(3), _f(3), abs(_f(3)))),
    Case(
        "RoiAlign",
        12,
        (_f(1, 2, 8, 8), np.array([[0, 0, 5, 6]], np.float32), _i(0)),
        {"output_height": 2, "output_width": 2, "sampling_ratio": 2},
    ),
    *(
        Case(
            "Resize",
            version,
            (_f(1, 1, 3, 3),),
            {"mode": mode, **coordinates},
            {1: _f(0), 2: np.array([1, 1, 2, 2.5], np.float32)},
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
    Case("Resize", 12, (_f(1, 1, 3, 3),), {}, {1: _f(0), 2: _f(0), 3: _i(1, 1, 5, 7)}),
    Case("Resize", 13, (_f(1, 1, 3, 3),), {"mode": "linear"}, {3: _i(1, 1, 5, 7)}),
    *(
        Case(
            "AveragePool",
            version,
            (_f(1, 2, 7, 6),),
            {"kernel_shape": [3, 3], "strides": [2, 2], "pads": pads, "count_include_pad": count},
        )
        for version in (12, 18)
        for pads in ([0, 0, 0, 0], [1, 0, 1, 1])
        for count in (0, 1)
    ),
    Case("AveragePool", 12, (_f(1, 2, 7),), {"kernel_shape": [3], "auto_pad": "SAME_UPPER"}),
    Case(
        "AveragePool",
        12,
        (_f(1, 2, 8),),
        {"kernel_shape": [3], "strides": [2], "ceil_mode": 1},
    ),
    Case("LpPool", 12, (_f(1, 2, 7),), {"kernel_shape": [3], "strides": [2]}),
    Case("QuantizeLinear", 12, (_f(2, 3),), {}, {1: np.float32(0.1), 2: np.uint8(3)}),
    Case(
        "DequantizeLinear",
        12,
        (np.arange(6, dtype=np.uint8).reshape(2, 3),),
        {},
        {1: np.float32(0.5), 2: np.uint8(3)},
    ),
    *(
        Case("GridSample", 16, (_f(1, 1, 4, 4), _f(1, 3, 3, 2)), attributes)
        for attributes in (
            {},
            {"mode": "nearest", "align_corners": 1},
            {"mode": "bicubic", "padding_mode": "border"},
            {"mode": "bilinear", "padding_mode": "reflection"},
        )
    ),
    Case("DFT", 17, (_f(1, 4, 3, 1),)),
    Case("DFT", 17, (_f(1, 4, 3, 1),), {"axis": 2, "onesided": 1}, {1: np.array(4, np.int64)}),
    Case("GroupNormalization", 18, (_f(2, 6, 3), _f(3), _f(3)), {"num_groups": 3}),
    Case("LayerNormalization", 15, (_f(2, 3, 4), _f(4), _f(4)), {"epsilon": 1e-3}, outputs=3),
    Case("Pad", 12, (_f(2, 3), _i(0, 1, 1, 0)), {"mode": "reflect"}),
    Case("Pad", 13, (_f(2, 3), _i(0, 1, 1, 0), np.float32(2))),
    Case("Clip", 12, (_f(2, 3), np.float32(-0.1), np.float32(0.2))),
    Case("Shape", 12, (_f(2, 3),)),
    Case("Reshape", 12, (_f(2, 3), _i(0, -1))),
    Case("Flatten", 12, (_f(2, 3, 4),), {"axis": -1}),
    Case("CumSum", 12, (_f(2, 3), np.array(1, np.int32)), {"reverse": 1}),
    Case("Cast", 12, (_f(2, 3),), {"to": TensorProto.INT32}),
    Case("ScatterElements", 12, (_f(3, 3), np.array([[1, 0, 2]]), _f(1, 3))),
    Case("ScatterND", 12, (_f(3, 3), np.array([[1], [0]]), _f(2, 3))),
    Case("ScatterND", 16, (_f(3, 3), np.array([[1], [1]]), _f(2, 3)), {"reduction": "add"}),
    Case("Dropout", 12, (_f(2, 3),), {}, outputs=2),
    Case("PRelu", 12, (_f(2, 3), _f(3))),
    Case("IsNaN", 12, (_f(2, 3),)),
    Case("IsInf", 12, (_f(2, 3),), {"detect_negative": 0}),
    Case("ConstantOfShape", 12, (_i(2, 3),)),
    Case("LSTM", 12, (_f(3, 2, 4), _f(1, 8, 4), _f(1, 8, 2)), {"hidden_size": 2}, outputs=3),
    Case("GRU", 12, (_f(3, 2, 4), _f(1, 6, 4), _f(1, 6, 2)), {"hidden_size": 2}, outputs=2),
    Case("RNN", 12, (_f(3, 2, 4), _f(1, 2, 4), _f(1, 2, 2)), {"hidden_size": 2}, outputs=2),
    Case("SoftmaxCrossEntropyLoss", 12, (_f(4, 3), _i(0, 2, 1, 2)), outputs=2),
    Case("Conv", 22, (_f(1, 2, 5), _f(3, 2, 3))),
    Case("TopK", 24, (_f(2, 5), _i(2)), {"axis": 1}, outputs=2),
]

# ops that changed since opset 12 in more than their types, where the older form stays as it is,
# and why
UNCHANGED = {
    "AveragePool": "dilations were added",
    "Cast": "saturate was added, for 8-bit floats",
    "CastLike": "saturate was added, for 8-bit floats",
    "DequantizeLinear": "axis was added, for scales that are not scalars",
    "GRU": "layout was added",
    "LSTM": "layout was added",
    "LpPool": "ceil_mode and dilations were added",
    "OptionalHasElement": "its input became optional",
    "Pad": "the axes input and a mode were added",
    "QuantizeLinear": "options were added; int32 data went, which onnxruntime never took",
    "RNN": "layout was added",
    "Reshape": "allowzero was added",
    "ScatterElements": "reduction was added",
    "ScatterND": "reduction was added",
    "Shape": "start and end were added",
    "Identity": "an input was renamed",
    "QLinearMatMul": "types only",
}


def _model(case: Case) -> onnx.ModelProto:
    count = max([len(case.inputs) - 1, *case.constants]) + 1
    names = [f"x{i}" if i < len(case.inputs) or i in case.constants else "" for i in range(count)]
    fed = [
        helper.make_tensor_value_info(
            names[i],
            helper.np_dtype_to_tensor_dtype(np.asarray(x).dtype),
            None if case.undeclared else np.shape(x),
        )
        for i, x in enumerate(case.inputs)
    ]
    outputs = [f"y{i}" for i in range(case.outputs)]
    node = helper.make_node(case.op, names, outputs, name="n", **case.attributes)
    constants = [numpy_helper.from_array(x, f"x{i}") for i, x in case.constants.items()]
    results = [onnx.ValueInfoProto(name=name) for name in outputs]
    graph = helper.make_graph([node], "g", fed, results, constants)
    imports = [helper.make_opsetid("", case.version)]
    return helper.make_model(graph, opset_imports=imports, ir_version=8)


def _run(model: bytes, case: Case) -> list[np.ndarray]:
    options = ort.SessionOptions()
    options.log_severity_level = 3
    session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    feed = {f"x{i}": np.asarray(x) for i, x in enumerate(case.inputs)}
    return list(session.run(None, feed))


def _raised(data: bytes) -> bytes:
    return onnx_codec.encode(opset.raise_opset(onnx_codec.decode(data)))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_same_result(case: Case) -> None:
    before = _model(case).SerializeToString()
    after = _raised(before)
    raised = onnx.load_from_string(after)
    assert [(o.domain, o.version) for o in raised.opset_import] == [("", 21)]
    wanted = _run(before, case)
    for declared, want, got in zip(raised.graph.output, wanted, _run(after, case), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-7)
        assert got.dtype == want.dtype
        elem_type = helper.np_dtype_to_tensor_dtype(got.dtype)
        declared.CopyFrom(helper.make_tensor_value_info(declared.name, elem_type, got.shape))
    if not case.undeclared:
        onnx.checker.check_model(raised, full_check=True)


def test_comparison_can_fail() -> None:
    case = Case("Softmax", 12, (_f(2, 3, 4),))
    model = _model(case)
    want = _run(model.SerializeToString(), case)[0]
    model.opset_import[0].version = 13  # the number alone: other axis
    assert abs(_run(model.SerializeToString(), case)[0] - want).max() > 1e-3


def _signature(schema: Any) -> tuple[Any, ...]:
    attributes = {name: str(a.default_value) for name, a in schema.attributes.items()}
    return len(schema.inputs), schema.min_input, len(schema.outputs), attributes


def _changed_ops() -> set[str]:
    history: dict[str, list[Any]] = {}
    for schema in onnx.defs.get_all_schemas_with_history():
        if schema.domain == "" and schema.since_version <= opset.TARGET:
            history.setdefault(schema.name, []).append(schema)
    changed = set()
    for name, schemas in history.items():
        schemas.sort(key=lambda schema: schema.since_version)
        old = [s for s in schemas if s.since_version <= opset.OLDEST][-1:]
        forms = old + [s for s in schemas if s.since_version > opset.OLDEST]
        if any(_signature(form) != _signature(forms[0]) for form in forms):
            changed.add(name)
    return changed


def test_every_changed_op_is_judged() -> None:
    judged = set(RULES) | set(UNCHANGED)
    assert _changed_ops() <= judged
    assert not set(RULES) & set(UNCHANGED)
    assert set(RULES) <= {case.op for case in CASES}


def test_ops_newer_than_the_target_are_known() -> None:
    """Opsets above 21 only added types, but for what opset.py lists."""
    for schema in onnx.defs.get_all_schemas_with_history():
        if schema.domain or not opset.TARGET < schema.since_version <= opset.NEWEST:
            continue
        try:
            old = onnx.defs.get_schema(schema.name, opset.TARGET, "")
        except onnx.defs.SchemaError:
            assert schema.name in opset._NEW_OPS
            continue
        added = set(schema.attributes) - set(old.attributes)
        assert added <= {opset._NEW_ATTRIBUTES.get(schema.name)}
        assert len(schema.inputs) == len(old.inputs)


def _plain(nodes: list[ir.Node], version: int) -> ir.Model:
    graph = ir.Graph("g", nodes, [ir.Value("x", 1, (2,))], [ir.Value("y", 1, None)])
    return ir.Model(graph, 8, [("", version)])


@pytest.mark.parametrize(("version", "words"), [(11, "older than 12"), (26, "newer than 25")])
def test_opset_out_of_range(version: int, words: str) -> None:
    with pytest.raises(ArtifactError, match=words):
        opset.raise_opset(_plain([], version))


def test_all_problems_in_one_error() -> None:
    bn = ir.make_node("BatchNormalization", list("xabcd"), ["y", "m", "v"], "bn")
    mode = {"coordinate_transformation_mode": "tf_half_pixel_for_nn"}
    resize = ir.make_node("Resize", ["x", "r", "s"], ["z"], "up", **mode)
    with pytest.raises(UnsupportedOp, match=r"(?s)'bn'.*'up'"):
        opset.raise_opset(_plain([bn, resize], 12))


def test_newer_op_refused() -> None:
    with pytest.raises(UnsupportedOp, match="Swish 's'"):
        opset.raise_opset(_plain([ir.make_node("Swish", ["x"], ["y"], "s")], 24))


def test_functions_refused() -> None:
    model = dataclasses.replace(_plain([], 15), functions=(b"",))
    with pytest.raises(ArtifactError, match="model-local functions"):
        opset.raise_opset(model)


def test_subgraphs_and_shared_constants() -> None:
    """A node in a branch is raised; equal constants are shared with the outer graph."""
    body = ir.Graph(
        "then",
        [ir.make_node("Squeeze", ["x"], ["a"], axes=[0])],
        outputs=[ir.Value("a", 1, None)],
    )
    other = ir.Graph(
        "else",
        [ir.make_node("Squeeze", ["x"], ["b"], axes=[0])],
        outputs=[ir.Value("b", 1, None)],
    )
    nodes = [
        ir.make_node("If", ["c"], ["y"], then_branch=body, else_branch=other),
        ir.make_node("Squeeze", ["x"], ["opset21/ints"], axes=[0]),  # takes the constant's name
    ]
    graph = ir.Graph(
        "g",
        nodes,
        [ir.Value("x", 1, (1, 3)), ir.Value("c", 9, ())],
        [ir.Value("y", 1, None), ir.Value("opset21/ints", 1, None)],
    )
    raised = opset.raise_opset(ir.Model(graph, 8, [("", 12), ("com.microsoft", 1)]))
    assert raised.opset_imports == [("", 21), ("com.microsoft", 1)]
    assert list(raised.graph.initializers) == ["opset21/ints_1"]
    session = ort.InferenceSession(onnx_codec.encode(raised))
    got = session.run(None, {"x": _f(1, 3), "c": np.array(True)})
    np.testing.assert_array_equal(got[0], _f(1, 3)[0])
    np.testing.assert_array_equal(got[1], _f(1, 3)[0])
    assert graph.nodes[1].attr("axes") == (0,)  # the model handed in is as it was


def test_other_domains_untouched() -> None:
    nodes = [
        ir.make_node("SoftmaxGrad", ["x", "x"], ["g"], domain="com.microsoft"),
        ir.make_node("Split", ["x"], ["y"], domain="my.ops", split=[2]),
        ir.make_node("MaxPoolGrad", ["x", "x"], ["m"], kernel_shape=[2]),
    ]
    assert opset.raise_opset(_plain(nodes, 12)).graph.nodes == nodes
