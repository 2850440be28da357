"""generate_artifacts: the files of the zoo, their structure, and training on them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from support.generated import generate, generate_known, mlp
from support.training import GRADIENT, LOSS, golden_step, module_of, session_of, set_parameters
from support.zoo import DETERMINISTIC, STOCHASTIC, ZOO, Case

import edge_train
from edge_train.artifacts import LossType, OptimType, generate_artifacts
from edge_train.checkpoint.files import open_checkpoint
from edge_train.graph import ir, onnx_codec

#: running statistics in neither list: here they reach the checkpoint, and move
MORE_PARAMETERS = ("conv_bn_stats_not_params",)
SMOKE = ("mlp_CrossEntropyLoss", "conv_bn_maxpool_gap", "mlp_BCEWithLogitsLoss")


def made(case: Case, folder: Path) -> Case:
    """The case with artifacts of our own; its run stays the reference's."""
    generate_known(folder, case.folder, nominal_checkpoint=True)
    mine = Case(case.name, folder)
    for name in ("run.npz", "model.onnx", "generate.json"):
        (folder / name).write_bytes((case.folder / name).read_bytes())
    return mine


@pytest.mark.parametrize("name", [name for name in ZOO if name not in MORE_PARAMETERS])
def test_checkpoints_are_the_references_bytes(name: str, tmp_path: Path) -> None:
    case = ZOO[name]
    mine = made(case, tmp_path)
    assert mine.checkpoint.read_bytes() == case.checkpoint.read_bytes()
    assert mine.nominal_checkpoint.read_bytes() == case.nominal_checkpoint.read_bytes()


def check_training(case: Case, steps: int) -> None:
    module, _ = session_of(case)
    for step in range(steps):
        loss, gradients = golden_step(case, module, step)
        assert loss <= LOSS, step
        assert max(gradients.values()) <= GRADIENT, step


@pytest.mark.parametrize("name", SMOKE)
def test_training_follows_the_golden_run(name: str, tmp_path: Path) -> None:
    check_training(made(ZOO[name], tmp_path), 2)


@pytest.mark.slow
@pytest.mark.parametrize("name", DETERMINISTIC)
def test_training_follows_the_whole_golden_run(name: str, tmp_path: Path) -> None:
    case = made(ZOO[name], tmp_path)
    check_training(case, case.steps)
    if name in MORE_PARAMETERS:
        return  # the reference evaluates with the statistics from before the training
    module, _ = session_of(case)
    set_parameters(module, case.final)
    assert float(module.eval()(**case.feed)) == pytest.approx(case.eval_loss, rel=LOSS)


@pytest.mark.slow
def test_a_model_with_dropout_learns(tmp_path: Path) -> None:
    """Ten runs, seeded: each learns, and the reference's end lies within their spread."""
    case = made(ZOO[STOCHASTIC[0]], tmp_path)
    ends = []
    for run in range(10):
        edge_train.set_seed(1_234_567_891 + 7919 * run)
        module, optimizer = session_of(case)
        optimizer.set_learning_rate(case.learning_rate)
        losses = []
        for _ in range(case.steps):
            module.lazy_reset_grad()
            losses.append(float(module(**case.feed)))
            optimizer.step()
        assert losses[-1] < 0.7 * losses[0]
        ends.append(losses[-1])
    assert abs(float(case.losses[-1]) - np.mean(ends)) < 4 * np.std(ends)


def test_other_weights_would_be_noticed(tmp_path: Path) -> None:
    """The measure above can fail: a weight moved by a thousandth is seen."""
    case = made(ZOO["mlp_CrossEntropyLoss"], tmp_path)
    moved = {name: value * 1.001 for name, value in case.params(0).items()}
    case.run.update({f"step0.param.{name}": value for name, value in moved.items()})
    with pytest.raises(AssertionError):
        check_training(case, 1)


def test_the_smallest_model_has_the_references_structure(tmp_path: Path) -> None:
    """graphs.md, section 5: ops, node names, what they read and make, in this order."""
    options = {"requires_grad": ["w1", "b1", "w2"], "frozen_params": ["b2"]}
    generate_artifacts(
        mlp(), loss=LossType.CrossEntropyLoss, artifact_directory=tmp_path, **options
    )
    graph = onnx_codec.load(tmp_path / "training_model.onnx").graph
    sce = next(n.name for n in graph.nodes if n.op_type == "SoftmaxCrossEntropyLoss")
    loss, log_prob = next(n.outputs for n in graph.nodes if n.name == sce)
    nodes = [(n.op_type, n.name) for n in graph.nodes]
    assert nodes == [
        ("Gemm", "fc1"),
        ("Relu", "relu"),
        ("Gemm", "fc2"),
        ("SoftmaxCrossEntropyLoss", sce),
        ("SoftmaxCrossEntropyLossGrad", f"{sce}_Grad/SoftmaxCrossEntropyLossGrad_0"),
        *GRADIENT_NODES,
        *(("InPlaceAccumulatorV2", f"GradientAccumulator{k}") for k in (1, 2, 3)),
    ]
    by_name = {node.name: node for node in graph.nodes}
    assert by_name[nodes[4][1]].inputs == (f"{loss}_grad", log_prob, "labels")
    reads = {
        "relu_Grad/ReluGrad_0": ("r_grad", "r"),
        "GradientAccumulator1": ("w1_grad.accumulation.buffer", "w1_grad", "lazy_reset_grad"),
        "GradientAccumulator3": ("w2_grad.accumulation.buffer", "w2_grad", "lazy_reset_grad"),
    }
    for name, inputs in reads.items():
        assert by_name[name].inputs == inputs
    buffers = [f"{name}_grad.accumulation.buffer" for name in ("w1", "b1", "w2")]
    parameters = ["w1", "b1", "w2", "b2"]
    inputs = [value.name for value in graph.inputs]
    assert inputs == ["x", "labels", *parameters, *buffers, "lazy_reset_grad"]
    flags = [f"{name}_grad.accumulation.out" for name in ("w1", "b1", "w2")]
    assert [value.name for value in graph.outputs] == [loss, *flags]
    (labels,) = (value for value in graph.inputs if value.name == "labels")
    assert (labels.elem_type, labels.dims) == (7, ("N",))


#: the order of the products within one layer is the rule's, their names are the reference's
GRADIENT_NODES = [
    ("Gemm", "fc2_Grad/Gemm_0"),
    ("Gemm", "fc2_Grad/Gemm_1"),
    ("ReluGrad", "relu_Grad/ReluGrad_0"),
    ("Gemm", "fc1_Grad/Gemm_0"),
    ("ReduceSum", "fc1_Grad/ReduceSum_2"),
    ("Identity", "fc1_Grad/Identity_3"),
]


def plain_attributes(node: onnx.NodeProto) -> dict[str, object]:
    return {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}


def test_the_optimizer_model_is_the_references(tmp_path: Path) -> None:
    case = ZOO["mlp_CrossEntropyLoss"]
    mine = onnx.load(made(case, tmp_path).optimizer_model)
    golden = onnx.load(case.optimizer_model)
    assert (mine.ir_version, mine.producer_name) == (golden.ir_version, golden.producer_name)
    assert list(mine.graph.input) == list(golden.graph.input)
    assert mine.graph.output[0].type == golden.graph.output[0].type
    (node,), (expected,) = mine.graph.node, golden.graph.node
    assert (node.op_type, node.domain) == (expected.op_type, expected.domain)
    assert list(node.input) == list(expected.input)
    assert plain_attributes(node) == plain_attributes(expected)
    assert mine.graph.output[0].name.startswith("onnx::adamw.updated_flag::")


def test_the_same_arguments_give_the_same_bytes(tmp_path: Path) -> None:
    case = ZOO["conv_nobn"]
    first, second = (made(case, tmp_path / name) for name in ("a", "b"))
    for name in ("training_model.onnx", "eval_model.onnx", "optimizer_model.onnx"):
        assert (first.folder / name).read_bytes() == (second.folder / name).read_bytes(), name


def test_a_model_a_path_and_bytes_give_the_same(tmp_path: Path) -> None:
    model = mlp()
    (tmp_path / "model.onnx").write_bytes(model.SerializeToString())
    path = tmp_path / "model.onnx"
    for name, source in (("p", path), ("s", str(path)), ("b", path.read_bytes()), ("m", model)):
        generate_artifacts(
            source, loss=LossType.MSELoss, artifact_directory=tmp_path / name, prefix="x_"
        )
    for name in "sbm":
        for file in ("x_training_model.onnx", "x_eval_model.onnx", "x_checkpoint"):
            left, right = ((tmp_path / folder / file).read_bytes() for folder in ("p", name))
            assert left == right, (name, file)
    assert not (tmp_path / "p" / "x_optimizer_model.onnx").exists()


def test_the_given_model_is_left_alone(tmp_path: Path) -> None:
    model = mlp()
    before = model.SerializeToString(deterministic=True)
    generate_artifacts(model, loss=LossType.MSELoss, artifact_directory=tmp_path)
    assert model.SerializeToString(deterministic=True) == before


def test_every_parameter_and_patterns(tmp_path: Path) -> None:
    def chosen(**options: object) -> tuple[list[str], list[str]]:
        generate_artifacts(mlp(), loss=LossType.MSELoss, artifact_directory=tmp_path, **options)
        with open_checkpoint(tmp_path / "checkpoint") as state:
            return [t.name for t in state.trainable], [t.name for t in state.frozen]

    assert chosen() == (["w1", "b1", "w2", "b2"], [])
    assert chosen(frozen_params=["b*"]) == (["w1", "w2"], ["b1", "b2"])
    assert chosen(requires_grad=["?2"]) == (["w2", "b2"], ["w1", "b1"])
    assert chosen(requires_grad=["w*", "b2"], frozen_params=["w1"]) == (["w2", "b2"], ["w1", "b1"])


def test_additional_outputs_come_after_the_loss(tmp_path: Path) -> None:
    generate_artifacts(
        mlp(),
        loss=LossType.MSELoss,
        optimizer=OptimType.SGD,
        artifact_directory=tmp_path,
        additional_output_names=["y", "h"],
    )
    for name in ("training_model.onnx", "eval_model.onnx"):
        names = [v.name for v in onnx_codec.load(tmp_path / name).graph.outputs]
        assert names[1:3] == ["y", "h"]


@pytest.mark.parametrize("kind", [onnx.TensorProto.FLOAT16, onnx.TensorProto.DOUBLE])
def test_u028_other_precisions_train_in_float32(kind: int, tmp_path: Path) -> None:
    """U028: a master copy in float32, the network in its own type."""
    generate_artifacts(mlp(kind=kind), loss=LossType.MSELoss, artifact_directory=tmp_path)
    graph: ir.Graph = onnx_codec.load(tmp_path / "training_model.onnx").graph
    types = {value.name: value.elem_type for value in graph.inputs}
    assert (types["x"], types["w1"], types["w1_grad.accumulation.buffer"]) == (kind, 1, 1)
    with open_checkpoint(tmp_path / "checkpoint") as state:
        weights = {tensor.name: tensor.array() for tensor in state.trainable}
    original = onnx.numpy_helper.to_array(mlp(kind=kind).graph.initializer[0])
    np.testing.assert_array_equal(weights["w1"], original.astype(np.float32))


def declaring_everything(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with its types as torch's newer exporter writes them: those of the weights too."""
    made = onnx.shape_inference.infer_shapes(model)
    for weight in model.graph.initializer:
        value = onnx.helper.make_tensor_value_info(weight.name, weight.data_type, weight.dims)
        made.graph.value_info.append(value)
    return made


@pytest.mark.parametrize("constants", [False, True], ids=["initializers", "constants"])
@pytest.mark.parametrize("kind", [onnx.TensorProto.FLOAT16, onnx.TensorProto.DOUBLE])
def test_u028_types_declared_beside_the_weights(kind: int, constants: bool, tmp_path: Path) -> None:
    """The same losses and gradients as without them, in training and in evaluation."""
    plain = mlp(kind=kind)
    declared = declaring_everything(plain)
    if constants:
        weights = [
            onnx.helper.make_node("Constant", [], [w.name], value=w)
            for w in declared.graph.initializer
        ]
        nodes = [*weights, *declared.graph.node]
        del declared.graph.node[:], declared.graph.initializer[:]
        declared.graph.node.extend(nodes)
    dtype = onnx.helper.tensor_dtype_to_np_dtype(kind)
    feed = np.ones((2, 4), dtype), np.zeros((2, 3), dtype)
    seen = []
    for name, model in (("plain", plain), ("declared", declared)):
        module = module_of(generate(model, tmp_path / name, loss="MSELoss"))
        losses = [float(module.train()(*feed)), float(module.eval()(*feed))]
        seen.append((losses, {n: p.grad.copy() for n, p in module.state.parameters}))
    assert seen[0][0] == seen[1][0]
    assert seen[0][1].keys() == {"w1", "b1", "w2", "b2"}
    for name, gradient in seen[0][1].items():
        assert gradient.any() or name == "b1", name
        np.testing.assert_array_equal(gradient, seen[1][1][name])


@pytest.mark.parametrize("opset", [10, 11, 17])
def test_a_mask_as_an_additional_output(opset: int, tmp_path: Path) -> None:
    """What is dropped in training, and nothing in evaluation."""
    node = onnx.helper.make_node
    nodes = [node("Mul", ["x", "w"], ["u"])]
    if opset < 12:
        nodes.append(node("Dropout", ["u"], ["y", "mask"], ratio=0.5))
    else:
        nodes.append(node("Dropout", ["u", "ratio"], ["y", "mask"]))
    ends = [onnx.helper.make_tensor_value_info(name, 1, ["N", 64]) for name in "xy"]
    weights = {"w": np.ones(64, np.float32), "ratio": np.float32(0.5)}
    tensors = [onnx.numpy_helper.from_array(np.asarray(v), n) for n, v in weights.items()]
    graph = onnx.helper.make_graph(nodes, "g", ends[:1], ends[1:], tensors[: 1 + (opset > 11)])
    imports = [onnx.helper.make_opsetid("", opset)]
    model = onnx.helper.make_model(graph, opset_imports=imports, ir_version=6)
    options = {"additional_output_names": ["mask", "y"]}
    module = module_of(generate(model, tmp_path, loss="MSELoss", **options))
    x, target = np.full((4, 64), 2, np.float32), np.zeros((4, 64), np.float32)
    _, mask, y = module.train()(x, target)
    assert 0 < np.mean(mask) < 1
    np.testing.assert_array_equal(y, 4.0 * mask)
    _, mask, y = module.eval()(x, target)
    assert np.all(mask)
    np.testing.assert_array_equal(y, x)
    onnx.checker.check_model(onnx.load(tmp_path / "eval_model.onnx"))


def test_moved_statistics_as_additional_outputs(tmp_path: Path) -> None:
    """They move in training; in evaluation they are those that were."""
    names = ["s", "b", "mean", "var"]
    make = onnx.helper.make_node
    norm = make("BatchNormalization", ["x", *names], ["y", "new", "new_var"], training_mode=1)
    ends = [onnx.helper.make_tensor_value_info(name, 1, ["N", 2]) for name in "xy"]
    values = ([1, 1], [0, 0], [3, 4], [1, 1])
    tensors = [
        onnx.numpy_helper.from_array(np.asarray(value, np.float32), name)
        for name, value in zip(names, values, strict=True)
    ]
    graph = onnx.helper.make_graph([norm], "g", ends[:1], ends[1:], tensors)
    imports = [onnx.helper.make_opsetid("", 17)]
    model = onnx.helper.make_model(graph, opset_imports=imports, ir_version=8)
    options = {"requires_grad": ["s", "b"], "additional_output_names": ["new", "y"]}
    module = module_of(generate(model, tmp_path, loss="MSELoss", **options))
    x = np.array([[1, 0], [3, 0]], np.float32)
    np.testing.assert_array_equal(module.eval()(x, x)[1], [3, 4])
    np.testing.assert_allclose(module.train()(x, x)[1], [0.9 * 3 + 0.1 * 2, 0.9 * 4], rtol=1e-6)


def test_a_frozen_exponent_that_changes_later_counts(tmp_path: Path) -> None:
    """Its value in the file is no constant of the gradient: y = (x w)^e, e from 2 to 3."""
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17]>
        g (float[N, 4] x) => (float[N, 4] y) <float[4] w = {1, 1, 1, 1}, float e = {2}>
        { h = Mul(x, w)  y = Pow(h, e) }"""
    )
    options = {"requires_grad": ["w"], "frozen_params": ["e"]}
    module = module_of(generate(model, tmp_path, loss="MSELoss", **options))
    module.state.parameters["e"].data = np.array(3, np.float32)
    module(np.full((2, 4), 1.5, np.float32), np.zeros((2, 4), np.float32))
    gradient = module.state.parameters["w"].grad
    assert gradient is not None
    np.testing.assert_allclose(gradient, np.full(4, 2 * 3 * 1.5**6 / 4), rtol=1e-6)
