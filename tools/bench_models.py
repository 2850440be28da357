"""Forward models of the benchmarks, built with the onnx package; seeded He initialisation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from edge_train.patterns import matching


@dataclass(frozen=True)
class Workload:
    """A model to train: its bytes, what is trained, and how a batch looks."""

    name: str
    model: bytes
    trainable: tuple[str, ...]
    frozen: tuple[str, ...]
    batch: int
    steps: int  # of one round
    batches: int  # distinct ones
    feed: Callable[[np.random.Generator, int], list[Any]]
    rate: float = 1e-3
    weights: dict[str, np.ndarray] = field(default_factory=dict)
    subset: tuple[str, ...] | None = None  # patterns of what is trained on the device, None: all

    @property
    def trained(self) -> list[str]:
        """The names of what is trained on the device."""
        patterns = self.subset or ("*",)
        meant = {name for each in patterns for name in matching(each, self.trainable)}
        return [name for name in self.trainable if name in meant]

    def feeds(self) -> list[list[Any]]:
        """The distinct batches."""
        rng = np.random.default_rng(self.batch)
        return [self.feed(rng, self.batch) for _ in range(self.batches)]


@dataclass
class Builder:
    """Collects nodes and weights of an ONNX graph."""

    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))
    nodes: list[Any] = field(default_factory=list)
    weights: dict[str, np.ndarray] = field(default_factory=dict)
    frozen: list[str] = field(default_factory=list)
    count: int = 0

    def add(self, op: str, *inputs: str, **attributes: Any) -> str:
        from onnx import helper

        self.count += 1
        name = f"{op.lower()}{self.count}"
        self.nodes.append(helper.make_node(op, list(inputs), [f"{name}_y"], name, **attributes))
        return f"{name}_y"

    def weight(self, name: str, *shape: int, fan: int = 0) -> str:
        scale = np.sqrt(2.0 / fan) if fan else 0.0
        self.weights[name] = (self.rng.standard_normal(shape) * scale).astype(np.float32)
        return name

    def constant(self, name: str, value: np.ndarray) -> str:
        self.weights[name] = value
        return name

    def conv(self, x: str, c_in: int, c_out: int, kernel: int, stride: int = 1, group: int = 1,
             bias: bool = True) -> str:  # fmt: skip
        name = f"conv{self.count}"
        fan = c_in // group * kernel * kernel
        inputs = [x, self.weight(f"{name}.w", c_out, c_in // group, kernel, kernel, fan=fan)]
        if bias:
            inputs.append(self.weight(f"{name}.b", c_out))
        pad = kernel // 2
        return self.add("Conv", *inputs, kernel_shape=[kernel] * 2, strides=[stride] * 2,
                        pads=[pad] * 4, group=group)  # fmt: skip

    def batch_norm(self, x: str, channels: int) -> str:
        name = f"bn{self.count}"
        ones, zeros = np.ones(channels, np.float32), np.zeros(channels, np.float32)
        inputs = [self.constant(f"{name}.{part}", value.copy())
                  for part, value in zip(("g", "b", "mean", "var"), (ones, zeros, zeros, ones),
                                         strict=True)]  # fmt: skip
        self.frozen += inputs[2:]
        return self.add("BatchNormalization", x, *inputs)

    def linear(self, x: str, name: str, n_in: int, n_out: int) -> str:
        self.weight(f"{name}.w", n_in, n_out, fan=2 * n_in)
        self.weight(f"{name}.b", n_out)
        return self.add("Add", self.add("MatMul", x, f"{name}.w"), f"{name}.b")

    def gemm(self, x: str, name: str, n_in: int, n_out: int) -> str:
        self.weight(f"{name}.w", n_out, n_in, fan=n_in)
        self.weight(f"{name}.b", n_out)
        return self.add("Gemm", x, f"{name}.w", f"{name}.b", transB=1)

    def workload(self, name: str, inputs: Sequence[Any], y: str, *dims: int | str, **options: Any
                 ) -> Workload:  # fmt: skip
        from onnx import TensorProto, helper, numpy_helper

        output = helper.make_tensor_value_info(y, TensorProto.FLOAT, ["batch", *dims])
        constants = [numpy_helper.from_array(value, key) for key, value in self.weights.items()]
        graph = helper.make_graph(self.nodes, name, list(inputs), [output], constants)
        opsets = [helper.make_opsetid("", 17)]
        data = helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()
        trainable = tuple(
            key
            for key, value in self.weights.items()
            if key not in self.frozen and value.dtype == np.float32 and "." in key
        )
        return Workload(
            name, bytes(data), trainable, tuple(self.frozen), weights=self.weights, **options
        )


def _image(name: str, channels: int, size: int) -> Any:
    from onnx import TensorProto, helper

    return helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", channels, size, size])


def _image_feed(channels: int, size: int, classes: int) -> Callable[..., list[Any]]:
    def feed(rng: np.random.Generator, batch: int) -> list[Any]:
        x = rng.standard_normal((batch, channels, size, size), dtype=np.float32)
        return [x, rng.integers(0, classes, batch, dtype=np.int64)]

    return feed


def mlp(batch: int) -> Workload:
    """784-500-10."""
    from onnx import TensorProto, helper

    b = Builder()
    y = b.gemm(b.add("Relu", b.gemm("x", "fc1", 784, 500)), "fc2", 500, 10)
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 784])

    def feed(rng: np.random.Generator, batch: int) -> list[Any]:
        rows = rng.random((batch, 784), dtype=np.float32)
        return [rows, rng.integers(0, 10, batch, dtype=np.int64)]

    # a handful of single rows would be learned by heart at once: subnormal gradients are slow
    few, steps = (1024, 250) if batch == 1 else (32, 60)
    return b.workload("mlp", [x], y, 10, batch=batch, steps=steps, batches=few, feed=feed)


def wide() -> Workload:
    """One layer of 4000 x 4000 weights: 16 million for the optimizer, little for the rest."""
    from onnx import TensorProto, helper

    b = Builder()
    y = b.gemm("x", "fc", 4000, 3999)
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 4000])

    def feed(rng: np.random.Generator, batch: int) -> list[Any]:
        rows = rng.random((batch, 4000), dtype=np.float32)
        return [rows, rng.integers(0, 3999, batch, dtype=np.int64)]

    return b.workload("wide", [x], y, 3999, batch=1, steps=5, batches=16, feed=feed)


_MOBILENET = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1),
              (6, 160, 3, 2), (6, 320, 1, 1))  # fmt: skip


def mobilenet(with_bn: bool, batch: int = 8, size: int = 96) -> Workload:
    """MobileNetV2 (Sandler et al. 2018), width 1, 1000 classes."""
    b = Builder()

    def block(
        x: str, c_in: int, c_out: int, kernel: int, stride: int, group: int, act: bool
    ) -> str:
        x = b.conv(x, c_in, c_out, kernel, stride, group, bias=not with_bn)
        x = b.batch_norm(x, c_out) if with_bn else x
        return b.add("Clip", x, "zero", "six") if act else x

    b.constant("zero", np.float32(0).reshape(()))
    b.constant("six", np.float32(6).reshape(()))
    x, channels = block("x", 3, 32, 3, 2, 1, True), 32
    for expand, c_out, repeats, stride in _MOBILENET:
        for index in range(repeats):
            wide, step, start = channels * expand, stride if index == 0 else 1, x
            if expand > 1:
                x = block(x, channels, wide, 1, 1, 1, True)
            x = block(x, wide, wide, 3, step, wide, True)
            x = block(x, wide, c_out, 1, 1, 1, False)
            if step == 1 and channels == c_out:
                x = b.add("Add", x, start)
            channels = c_out
    x = block(x, channels, 1280, 1, 1, 1, True)
    y = b.gemm(b.add("Flatten", b.add("GlobalAveragePool", x)), "head", 1280, 1000)
    feed, name = _image_feed(3, size, 1000), "mobilenet_bn" if with_bn else "mobilenet"
    return b.workload(
        name, [_image("x", 3, size)], y, 1000, batch=batch, steps=4, batches=4, feed=feed
    )


def resnet18(batch: int = 8, size: int = 64) -> Workload:
    """ResNet-18 (He et al. 2016) with BatchNorm, 1000 classes."""
    b = Builder()

    def block(x: str, c_in: int, c_out: int, kernel: int, stride: int) -> str:
        return b.batch_norm(b.conv(x, c_in, c_out, kernel, stride, bias=False), c_out)

    x = b.add("Relu", block("x", 3, 64, 7, 2))
    x, channels = b.add("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4), 64
    for c_out, stride in (
        (64, 1),
        (64, 1),
        (128, 2),
        (128, 1),
        (256, 2),
        (256, 1),
        (512, 2),
        (512, 1),
    ):
        start = x if stride == 1 else block(x, channels, c_out, 1, stride)
        x = block(b.add("Relu", block(x, channels, c_out, 3, stride)), c_out, c_out, 3, 1)
        x, channels = b.add("Relu", b.add("Add", x, start)), c_out
    y = b.gemm(b.add("Flatten", b.add("GlobalAveragePool", x)), "head", 512, 1000)
    return b.workload("resnet18", [_image("x", 3, size)], y, 1000, batch=batch, steps=4, batches=4,
                      feed=_image_feed(3, size, 1000))  # fmt: skip


def bert(batch: int = 8, layers: int = 4, d: int = 256, length: int = 128) -> Workload:
    """A BERT-like encoder: learned positions, 4 heads, GELU, 2 classes from the first token."""
    from onnx import TensorProto, helper

    b, heads, words = Builder(), 4, 5000
    b.weight("embed.w", words, d, fan=2 * d)
    b.weight("position.w", length, d, fan=2 * d)
    x = b.add("Add", b.add("Gather", "embed.w", "ids"), "position.w")
    b.constant("heads", np.array([0, 0, heads, d // heads], np.int64))
    b.constant("joined", np.array([0, 0, d], np.int64))
    b.constant("root", np.float32(np.sqrt(d // heads)).reshape(()))
    for layer in range(layers):
        q, k, v = (_heads(b, b.linear(x, f"l{layer}.{part}", d, d)) for part in "qkv")
        scores = b.add("Div", b.add("MatMul", q, b.add("Transpose", k, perm=[0, 1, 3, 2])), "root")
        mixed = b.add("MatMul", b.add("Softmax", scores, axis=-1), v)
        mixed = b.add("Reshape", b.add("Transpose", mixed, perm=[0, 2, 1, 3]), "joined")
        x = _norm(b, b.add("Add", x, b.linear(mixed, f"l{layer}.o", d, d)), f"l{layer}.n1", d)
        h = _gelu(b, b.linear(x, f"l{layer}.up", d, 4 * d))
        x = _norm(b, b.add("Add", x, b.linear(h, f"l{layer}.down", 4 * d, d)), f"l{layer}.n2", d)
    b.constant("first", np.int64(0).reshape(()))
    y = b.gemm(b.add("Gather", x, "first", axis=1), "head", d, 2)
    ids = helper.make_tensor_value_info("ids", TensorProto.INT64, ["batch", length])

    def feed(rng: np.random.Generator, batch: int) -> list[Any]:
        tokens = rng.integers(0, words, (batch, length), dtype=np.int64)
        return [tokens, rng.integers(0, 2, batch, dtype=np.int64)]

    return b.workload("bert", [ids], y, 2, batch=batch, steps=4, batches=4, feed=feed)


def tagger(batch: int = 8, length: int = 32, d: int = 64, hidden: int = 128) -> Workload:
    """A label out of 12 for every token: embedding, LSTM, linear."""
    from onnx import TensorProto, helper

    b, words, classes = Builder(), 2000, 12
    b.weight("embed.w", words, d, fan=2 * d)
    x = b.add("Transpose", b.add("Gather", "embed.w", "ids"), perm=[1, 0, 2])
    b.weight("lstm.w", 1, 4 * hidden, d, fan=2 * d)
    b.weight("lstm.r", 1, 4 * hidden, hidden, fan=2 * hidden)
    b.weight("lstm.b", 1, 8 * hidden)
    b.constant("one", np.array([1], np.int64))
    # the reference needs the initial states
    b.constant("zeros", np.zeros((1, batch, hidden), np.float32))
    lstm = (x, "lstm.w", "lstm.r", "lstm.b", "", "zeros", "zeros")
    y = b.add("Squeeze", b.add("LSTM", *lstm, hidden_size=hidden), "one")
    b.constant("rows", np.array([-1, classes], np.int64))
    rows = b.add("Transpose", b.linear(y, "head", hidden, classes), perm=[1, 0, 2])
    scores = b.add("Reshape", rows, "rows")  # the reference refuses labels of two axes
    ids = helper.make_tensor_value_info("ids", TensorProto.INT64, [batch, length])

    def feed(rng: np.random.Generator, batch: int) -> list[Any]:
        tokens = rng.integers(0, words, (batch, length), dtype=np.int64)
        return [tokens, tokens.reshape(-1) % classes]

    return b.workload(
        "tagger", [ids], scores, classes, batch=batch, steps=20, batches=16, feed=feed
    )


def _heads(b: Builder, x: str) -> str:
    return b.add("Transpose", b.add("Reshape", x, "heads"), perm=[0, 2, 1, 3])


def _gelu(b: Builder, x: str) -> str:
    if "gelu_root" not in b.weights:
        for name, value in (("gelu_root", np.sqrt(2.0)), ("gelu_one", 1.0), ("gelu_half", 0.5)):
            b.constant(name, np.float32(value).reshape(()))
    inner = b.add("Add", b.add("Erf", b.add("Div", x, "gelu_root")), "gelu_one")
    return b.add("Mul", b.add("Mul", x, inner), "gelu_half")


def _norm(b: Builder, x: str, name: str, d: int) -> str:
    """LayerNormalization written out: the reference fuses that, and refuses the plain op."""
    b.constant(f"{name}.g", np.ones(d, np.float32))
    b.constant(f"{name}.b", np.zeros(d, np.float32))
    if "norm_eps" not in b.weights:
        b.constant("norm_two", np.float32(2).reshape(()))
        b.constant("norm_eps", np.float32(1e-5).reshape(()))
    centred = b.add("Sub", x, b.add("ReduceMean", x, axes=[-1]))
    var = b.add("ReduceMean", b.add("Pow", centred, "norm_two"), axes=[-1])
    scaled = b.add("Div", centred, b.add("Sqrt", b.add("Add", var, "norm_eps")))
    return b.add("Add", b.add("Mul", scaled, f"{name}.g"), f"{name}.b")


def _part(work: Workload, *patterns: str) -> Workload:
    return replace(work, subset=patterns)


WORKLOADS: dict[str, Callable[[], Workload]] = {
    "mlp64": lambda: mlp(64),
    "mlp1": lambda: mlp(1),
    "mlp1_biases_head": lambda: _part(mlp(1), "fc2.*", "*.b"),
    "mlp1_head": lambda: _part(mlp(1), "fc2.*"),
    "mobilenet": lambda: mobilenet(False),
    "mobilenet_bn": lambda: mobilenet(True),
    "mobilenet_head": lambda: _part(mobilenet(False), "head.*"),
    "mobilenet_biases_head": lambda: _part(mobilenet(False), "head.*", "*.b"),
    "resnet18": resnet18,
    "bert": bert,
    "tagger": tagger,
    "wide": wide,
}
