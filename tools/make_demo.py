"""Make what the demo ships: the digits and the training artifacts of a small CNN.

    PYTHON tools/make_demo.py digits       needs scikit-learn and numpy
    PYTHON tools/make_demo.py artifacts    needs the reference venv (make parity builds it)

Both are deterministic: the same versions write the same bytes.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np

DEMO = Path(__file__).parents[1] / "edge_train" / "demo"
SEED = 1998
OPSET = 17


def write_digits() -> None:
    """All 1,797 images in a seeded random order: the first 1,437 train, the last 360 test."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    order = np.random.default_rng(SEED).permutation(len(digits.target))
    np.savez_compressed(
        DEMO / "digits.npz",
        images=digits.images[order].astype(np.uint8),
        labels=digits.target[order].astype(np.uint8),
    )


def weights() -> tuple[dict[str, Any], dict[str, Any]]:
    """Trainable parameters (He initialisation) and the running statistics of BatchNorm."""
    rng = np.random.default_rng(SEED)

    def he(*shape: int) -> Any:
        scale = np.sqrt(2.0 / np.prod(shape[1:]))
        return (scale * rng.standard_normal(shape)).astype(np.float32)

    def full(size: int, value: float) -> Any:
        return np.full(size, value, np.float32)

    trainable: dict[str, Any] = {}
    frozen: dict[str, Any] = {}
    for layer, (channels_in, channels) in enumerate(((1, 16), (16, 32)), 1):
        trainable[f"conv{layer}.weight"] = he(channels, channels_in, 3, 3)
        trainable[f"conv{layer}.bias"] = full(channels, 0)
        trainable[f"norm{layer}.weight"] = full(channels, 1)
        trainable[f"norm{layer}.bias"] = full(channels, 0)
        frozen[f"norm{layer}.running_mean"] = full(channels, 0)
        frozen[f"norm{layer}.running_var"] = full(channels, 1)
    for layer, (features_in, features) in enumerate(((128, 64), (64, 10)), 1):
        trainable[f"dense{layer}.weight"] = he(features, features_in)
        trainable[f"dense{layer}.bias"] = full(features, 0)
    return trainable, frozen


def nodes() -> list[Any]:
    """pixels -> Conv-BatchNorm-Relu-MaxPool twice -> Gemm-Relu-Gemm -> logits."""
    from onnx.helper import make_node

    made = []
    last = "pixels"
    for layer in ("1", "2"):
        conv, norm, relu, pool = (f"{op}{layer}" for op in ("conv", "norm", "relu", "pool"))
        statistics = [f"{norm}.{key}" for key in ("weight", "bias", "running_mean", "running_var")]
        made += [
            make_node(
                "Conv", [last, f"{conv}.weight", f"{conv}.bias"], [conv], conv, pads=[1, 1, 1, 1]
            ),
            make_node("BatchNormalization", [conv, *statistics], [norm], norm),
            make_node("Relu", [norm], [relu], relu),
            make_node("MaxPool", [relu], [pool], pool, kernel_shape=[2, 2], strides=[2, 2]),
        ]
        last = pool
    dense1 = ["flat", "dense1.weight", "dense1.bias"]
    dense2 = ["hidden", "dense2.weight", "dense2.bias"]
    return [
        *made,
        make_node("Flatten", [last], ["flat"], "flatten"),
        make_node("Gemm", dense1, ["dense1"], "dense1", transB=1),
        make_node("Relu", ["dense1"], ["hidden"], "relu3"),
        make_node("Gemm", dense2, ["logits"], "dense2", transB=1),
    ]


def forward_model(values: dict[str, Any]) -> Any:
    from onnx import TensorProto, checker, numpy_helper
    from onnx.helper import make_graph, make_model, make_opsetid, make_tensor_value_info

    graph = make_graph(
        nodes(),
        "digits_cnn",
        [make_tensor_value_info("pixels", TensorProto.FLOAT, ["batch", 1, 8, 8])],
        [make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", 10])],
        [numpy_helper.from_array(value, name) for name, value in values.items()],
    )
    model = make_model(graph, opset_imports=[make_opsetid("", OPSET)], ir_version=8)
    checker.check_model(model, full_check=True)
    return model


def write_artifacts() -> None:
    from onnxruntime.training import artifacts

    trainable, frozen = weights()
    folder = DEMO / "artifacts"
    folder.mkdir(exist_ok=True)
    artifacts.generate_artifacts(
        forward_model({**trainable, **frozen}),
        requires_grad=list(trainable),
        frozen_params=list(frozen),
        loss=artifacts.LossType.CrossEntropyLoss,
        optimizer=artifacts.OptimType.AdamW,
        artifact_directory=folder,
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("digits", "artifacts"))
    (write_digits if parser.parse_args().what == "digits" else write_artifacts)()
