"""Raising opsets: every op that changed gives the same result before and after."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper, numpy_helper
from support.opset_cases import CASES, Case, f32

from edge_train.errors import ArtifactError, UnsupportedOp
from edge_train.graph import ir, onnx_codec, opset
from edge_train.graph.opset_rules import NEWER, RULES

ort.set_default_logger_severity(3)
#: the newest opset that an onnxruntime takes, where it is older than our newest
NEWEST_OPSET = {"1.20": 21, "1.21": 22, "1.22": 22, "1.23": 23, "1.24": 24}


# ops that changed since opset 7 in more than their types, where the older form stays as it is,
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
    "QuantizeLinear": "options were added; int32 data went, which onnxruntime never took",
    "RNN": "layout was added",
    "Reshape": "allowzero was added",
    "ScatterElements": "reduction was added",
    "ScatterND": "reduction was added",
    "Shape": "start and end were added",
    "Identity": "an input was renamed",
    "QLinearMatMul": "types only",
    "ArgMax": "select_last_index was added",
    "ArgMin": "select_last_index was added",
    "Constant": "values of other kinds were added",
    "DepthToSpace": "mode was added",
    "Gemm": "C became optional",
    "Loop": "its first inputs became optional",
    "GatherND": "batch_dims was added",
    "MaxPool": "dilations, ceil_mode and storage_order were added",
    "NonMaxSuppression": "the same from the start",
    "OneHot": "the same from the start",
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


def _as_known(model: bytes, case: Case) -> bytes:
    """The model for an onnxruntime older than its opset: above 21 only types and ops were added."""
    newest = NEWEST_OPSET.get(".".join(ort.__version__.split(".")[:2]), opset.NEWEST)
    message = onnx.load_from_string(model)
    if message.opset_import[0].version <= newest:
        return model
    if case.op in NEWER:
        version = message.opset_import[0].version
        pytest.skip(f"onnxruntime {ort.__version__} has no {case.op} of opset {version}")
    message.opset_import[0].version = newest
    return message.SerializeToString()


def _skip_what_this_onnxruntime_gets_wrong(case: Case) -> None:
    release = tuple(map(int, ort.__version__.split(".")[:2]))
    pads = case.attributes.get("pads", [])
    counted = case.op == "AveragePool" and case.attributes.get("count_include_pad", 0)
    if (
        counted
        and (1, 21) <= release < (1, 24)
        and pads[: len(pads) // 2] != pads[len(pads) // 2 :]
    ):
        pytest.skip(f"onnxruntime {ort.__version__} miscounts the padding; lowering repairs it")


def _run(model: bytes, case: Case) -> list[np.ndarray]:
    options = ort.SessionOptions()
    options.log_severity_level = 3
    session = ort.InferenceSession(_as_known(model, case), options)
    feed = {f"x{i}": np.asarray(x) for i, x in enumerate(case.inputs)}
    return list(session.run(None, feed))


def _raised(data: bytes) -> bytes:
    return onnx_codec.encode(opset.raise_opset(onnx_codec.decode(data)))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_same_result(case: Case) -> None:
    _skip_what_this_onnxruntime_gets_wrong(case)
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
    case = Case("Softmax", 12, (f32(2, 3, 4),))
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
    assert set(RULES) - {"Scan"} <= {case.op for case in CASES}  # an old Scan is only refused


def test_ops_newer_than_the_target_are_known() -> None:
    """Opsets above 21 only added types, but for what opset.py lists."""
    for schema in onnx.defs.get_all_schemas_with_history():
        if schema.domain or not opset.TARGET < schema.since_version <= opset.NEWEST:
            continue
        try:
            old = onnx.defs.get_schema(schema.name, opset.TARGET, "")
        except onnx.defs.SchemaError:
            assert schema.name in opset._NEW_OPS or schema.name in NEWER
            continue
        added = set(schema.attributes) - set(old.attributes)
        assert added <= {opset._NEW_ATTRIBUTES.get(schema.name)}
        assert len(schema.inputs) == len(old.inputs)


def _plain(nodes: list[ir.Node], version: int) -> ir.Model:
    graph = ir.Graph("g", nodes, [ir.Value("x", 1, (2,))], [ir.Value("y", 1, None)])
    return ir.Model(graph, 8, [("", version)])


@pytest.mark.parametrize(("version", "words"), [(6, "older than 7"), (26, "newer than 25")])
def test_opset_out_of_range(version: int, words: str) -> None:
    with pytest.raises(ArtifactError, match=words):
        opset.raise_opset(_plain([], version))


def test_all_problems_in_one_error() -> None:
    bn = ir.make_node("BatchNormalization", list("xabcd"), ["y", "m", "v", "s", "t"], "bn")
    mode = {"coordinate_transformation_mode": "tf_half_pixel_for_nn"}
    resize = ir.make_node("Resize", ["x", "r", "s"], ["z"], "up", **mode)
    reader = ir.make_node("Neg", ["s"], ["n"], "reader")
    with pytest.raises(UnsupportedOp, match=r"(?s)'bn'.*'up'"):
        opset.raise_opset(_plain([bn, resize, reader], 12))


def test_training_form_of_older_batch_normalization() -> None:
    outputs = ["y", "m", "v", "s", "t"]
    bn = ir.make_node("BatchNormalization", list("xabcd"), outputs, "bn", spatial=1)
    raised = opset.raise_opset(_plain([bn], 9)).graph.nodes[0]
    assert raised.outputs == ("y", "m", "v")
    assert {name: raised.attr(name) for name in raised.attributes} == {"training_mode": 1}


@pytest.mark.parametrize(
    ("node", "version", "words"),
    [
        (ir.make_node("BatchNormalization", list("xabcd"), ["y"], spatial=0), 7, "spatial 0"),
        (ir.make_node("Scan", ["", "x"], ["y"]), 8, "Scan over a batch"),
        (ir.make_node("Dropout", ["x"], ["z", "y"]), 9, "its mask"),
    ],
)
def test_older_form_refused(node: ir.Node, version: int, words: str) -> None:
    with pytest.raises(UnsupportedOp, match=words):
        opset.raise_opset(_plain([node], version))


def test_resize_that_shrinks_and_grows_is_refused() -> None:
    model = _plain([ir.make_node("Resize", ["x", "s"], ["y"], "r")], 10)
    model.graph.initializers["s"] = ir.Tensor.of("s", np.array([0.5, 2], np.float32))
    with pytest.raises(UnsupportedOp, match="shrink some axes and grow others"):
        opset.raise_opset(model)


def test_newer_op_refused() -> None:
    with pytest.raises(UnsupportedOp, match="Attention 'a'"):
        opset.raise_opset(_plain([ir.make_node("Attention", list("xxx"), ["y"], "a")], 24))


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
    got = session.run(None, {"x": f32(1, 3), "c": np.array(True)})
    np.testing.assert_array_equal(got[0], f32(1, 3)[0])
    np.testing.assert_array_equal(got[1], f32(1, 3)[0])
    assert graph.nodes[1].attr("axes") == (0,)  # the model handed in is as it was


def test_other_domains_untouched() -> None:
    nodes = [
        ir.make_node("SoftmaxGrad", ["x", "x"], ["g"], domain="com.microsoft"),
        ir.make_node("Split", ["x"], ["y"], domain="my.ops", split=[2]),
        ir.make_node("MaxPoolGrad", ["x", "x"], ["m"], kernel_shape=[2]),
    ]
    assert opset.raise_opset(_plain(nodes, 12)).graph.nodes == nodes
