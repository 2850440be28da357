"""Small models in forms that few exporters make: batch norm in training mode, several outputs."""

from __future__ import annotations

import numpy as np
from onnx import NodeProto, TensorProto, helper, numpy_helper


def _weight(name: str, *shape: int, seed: int = 0) -> TensorProto:
    rng = np.random.default_rng([seed, *name.encode()])
    return numpy_helper.from_array((0.4 * rng.standard_normal(shape)).astype(np.float32), name)


def _model(
    nodes: list[NodeProto],
    inputs: dict[str, list[str | int]],
    outputs: dict[str, list[str | int]],
    weights: list[TensorProto],
    opset: int,
) -> bytes:
    graph = helper.make_graph(
        nodes,
        "form",
        [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, dims)
            for name, dims in inputs.items()
        ],
        [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, dims)
            for name, dims in outputs.items()
        ],
        weights,
    )
    imports = [helper.make_opsetid("", opset)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=8)
    data: bytes = model.SerializeToString()
    return data


def batch_norm(opset: int, outputs: int) -> bytes:
    """Conv, BatchNormalization in training mode with all its outputs, a linear head."""
    mode = {"training_mode": 1} if opset >= 14 else {}
    names = ["bn", "rm", "rv", "sm", "sv"][:outputs]
    state = [
        numpy_helper.from_array(np.full(4, value, np.float32), name)
        for name, value in (("mean", 0.1), ("var", 0.9))
    ]
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], "conv", kernel_shape=[3, 3]),
        helper.make_node(
            "BatchNormalization", ["c", "scale", "bias", "mean", "var"], names, "norm", **mode
        ),
        helper.make_node("GlobalAveragePool", ["bn"], ["g"], "pool"),
        helper.make_node("Flatten", ["g"], ["f"], "flatten"),
        helper.make_node("Gemm", ["f", "head"], ["y"], "head", transB=1),
    ]
    weights = [
        _weight("w", 4, 3, 3, 3),
        _weight("scale", 4),
        _weight("bias", 4),
        *state,
        _weight("head", 3, 4),
    ]
    return _model(nodes, {"x": ["N", 3, 6, 6]}, {"y": ["N", 3]}, weights, opset)


def two_losses(opset: int = 17) -> bytes:
    """An autoencoder with a classifier: total = reconstruction + classification, each an output."""
    nodes = [
        helper.make_node("Gemm", ["flat", "down"], ["code"], "down"),
        helper.make_node("Tanh", ["code"], ["bent"], "bend"),
        helper.make_node("Gemm", ["bent", "up"], ["again"], "up"),
        helper.make_node("Sub", ["again", "flat"], ["off"], "off"),
        helper.make_node("Mul", ["off", "off"], ["square"], "square"),
        helper.make_node("ReduceMean", ["square"], ["reconstruction"], "mean", keepdims=0),
        helper.make_node("MatMul", ["bent", "head"], ["score"], "head"),
        helper.make_node("Abs", ["score"], ["size"], "size"),
        helper.make_node("ReduceMean", ["size"], ["penalty"], "mean2", keepdims=0),
        helper.make_node("Add", ["reconstruction", "penalty"], ["total"], "total"),
    ]
    weights = [_weight("down", 5, 3), _weight("up", 3, 5), _weight("head", 3, 2)]
    outputs: dict[str, list[str | int]] = {"total": [], "reconstruction": [], "penalty": []}
    outputs["score"] = ["N", 2]
    return _model(nodes, {"flat": ["N", 5]}, outputs, weights, opset)


def two_heads(opset: int = 17) -> bytes:
    """A shared layer with two outputs of one batch."""
    nodes = [
        helper.make_node("Gemm", ["flat", "w1"], ["h"], "first"),
        helper.make_node("Relu", ["h"], ["r"], "relu"),
        helper.make_node("Gemm", ["r", "w2"], ["y"], "second"),
        helper.make_node("Gemm", ["r", "w3"], ["z"], "third"),
    ]
    weights = [_weight("w1", 5, 6), _weight("w2", 6, 3), _weight("w3", 6, 2)]
    return _model(nodes, {"flat": ["N", 5]}, {"y": ["N", 3], "z": ["N", 2]}, weights, opset)


def cast_inside(kind: int, opset: int = 17) -> bytes:
    """float32 weights cast to another type, in which the middle of the network computes."""
    nodes = [
        helper.make_node("Cast", [name], [f"{name}_cast"], f"cast_{name}", to=kind)
        for name in ("flat", "w1", "b1", "scale", "bias", "w2")
    ]
    nodes += [
        helper.make_node("Gemm", ["flat_cast", "w1_cast", "b1_cast"], ["h"], "first"),
        helper.make_node("Relu", ["h"], ["r"], "relu"),
        helper.make_node("Mul", ["r", "scale_cast"], ["scaled"], "scaled"),
        helper.make_node("Add", ["scaled", "bias_cast"], ["moved"], "moved"),
        helper.make_node("Softmax", ["moved"], ["share"], "share", axis=-1),
        helper.make_node("MatMul", ["share", "w2_cast"], ["z"], "second"),
        helper.make_node("Cast", ["z"], ["y"], "back", to=TensorProto.FLOAT),
    ]
    weights = [
        _weight("w1", 5, 6),
        _weight("b1", 6),
        _weight("scale", 6),
        _weight("bias", 6),
        _weight("w2", 6, 3),
    ]
    return _model(nodes, {"flat": ["N", 5]}, {"y": ["N", 3]}, weights, opset)


def upsampling(resize: dict[str, str], sizes: bool, opset: int = 17) -> bytes:
    """Conv, ConvTranspose and Resize, whose gradients the reference writes but cannot run."""
    target = (
        numpy_helper.from_array(np.array([2, 3, 9, 9], np.int64), "target")
        if sizes
        else numpy_helper.from_array(np.array([1, 1, 1.5, 2], np.float32), "target")
    )
    scaled = ["up", "", "", "target"] if sizes else ["up", "", "target"]
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], "conv", kernel_shape=[3, 3]),
        helper.make_node("Tanh", ["c"], ["t"], "tanh"),
        helper.make_node(
            "ConvTranspose", ["t", "v", "b"], ["up"], "transposed", kernel_shape=[3, 2],
            strides=[2, 1], output_padding=[1, 0], pads=[1, 0, 0, 1],
        ),
        helper.make_node("Resize", scaled, ["big"], "resize", **resize),
        helper.make_node("Mul", ["big", "big"], ["square"], "square"),
        helper.make_node("ReduceMean", ["square"], ["loss"], "mean", keepdims=0),
    ]  # fmt: skip
    weights = [_weight("w", 4, 3, 3, 3), _weight("v", 4, 3, 3, 2), _weight("b", 3), target]
    return _model(nodes, {"x": [2, 3, 6, 6]}, {"loss": []}, weights, opset)
