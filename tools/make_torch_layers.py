"""Gradients of PyTorch's layers: tests/golden/layers_torch.npz.

Run it with the reference environment, which has torch:
.venv-reference/bin/python tools/make_torch_layers.py tests/golden/layers_torch.npz

A case is an ONNX node ("Op" or "Op:form", attributes, what it reads, in order) and the same in
PyTorch. The loss is sum(r * y). Gates of recurrent layers lie in another order there.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  (its usual name)

Case = tuple[str, dict[str, Any], dict[str, Tensor], Callable[..., Tensor]]


def tensors(**shapes: tuple[int, ...]) -> dict[str, Tensor]:
    return {name: torch.randn(shape) for name, shape in shapes.items()}


def convolutions() -> Iterator[Case]:
    image = {"x": (2, 4, 7, 6), "b": (6,)}
    for form, shape, options in (
        ("", (6, 4, 3, 3), {"stride": 2, "padding": 1}),
        (":dilated", (6, 4, 2, 3), {"dilation": (3, 2)}),
        (":groups", (6, 2, 3, 2), {"groups": 2, "padding": (1, 0)}),
    ):
        inputs = tensors(x=image["x"], w=shape, b=image["b"])
        pads = options.get("padding", 0)
        pads = [pads, pads] if isinstance(pads, int) else list(pads)
        attrs = {
            "strides": [options.get("stride", 1)] * 2,
            "pads": pads * 2,
            "dilations": list(options.get("dilation", (1, 1))),
            "group": options.get("groups", 1),
        }
        yield f"Conv{form}", attrs, inputs, lambda x, w, b, o=options: F.conv2d(x, w, b, **o)
    line = tensors(x=(2, 3, 9), w=(2, 3, 4), b=(2,))
    yield "Conv:1-D", {"strides": [2]}, line, lambda x, w, b: F.conv1d(x, w, b, stride=2)
    cube = tensors(x=(1, 2, 4, 3, 4), w=(3, 2, 2, 1, 3))
    yield "Conv:3-D", {"pads": [1] * 6}, cube, lambda x, w: F.conv3d(x, w, padding=1)
    turned = tensors(x=(2, 4, 3, 4), w=(4, 3, 3, 2), b=(6,))
    attrs = {"strides": [2, 3], "pads": [1, 0] * 2, "output_padding": [1, 2], "group": 2}
    options = {"stride": (2, 3), "padding": (1, 0), "output_padding": (1, 2), "groups": 2}
    yield (
        "ConvTranspose",
        attrs,
        turned,
        lambda x, w, b: F.conv_transpose2d(x, w, b, **options),
    )


def pools() -> Iterator[Case]:
    x = tensors(x=(2, 3, 7, 8))
    window = {"kernel_shape": [3, 2], "strides": [2, 2]}
    yield "MaxPool", window, x, lambda x: F.max_pool2d(x, (3, 2), 2)
    yield (
        "MaxPool:ceil",
        {**window, "ceil_mode": 1, "pads": [1, 1, 1, 1]},
        x,
        lambda x: F.max_pool2d(x, (3, 2), 2, 1, ceil_mode=True),
    )
    yield "AveragePool", window, x, lambda x: F.avg_pool2d(x, (3, 2), 2)
    for included in (0, 1):
        attrs = {**window, "pads": [1, 1, 1, 1], "count_include_pad": included}
        yield (
            f"AveragePool:pads, {included}",
            attrs,
            x,
            lambda x, n=included: F.avg_pool2d(x, (3, 2), 2, 1, count_include_pad=bool(n)),
        )
    yield "GlobalAveragePool", {}, x, lambda x: F.adaptive_avg_pool2d(x, 1)
    yield "GlobalMaxPool", {}, x, lambda x: F.adaptive_max_pool2d(x, 1)
    for p in (2, 3):
        yield (
            "LpPool" if p == 2 else "LpPool:p 3",
            {**window, "p": p},
            {"x": x["x"].abs()},  # PyTorch keeps the sign under an odd power
            lambda x, p=p: F.lp_pool2d(x, p, (3, 2), 2),
        )


def norms() -> Iterator[Case]:
    image = tensors(x=(2, 4, 3, 5), scale=(4,), bias=(4,))
    yield (
        "BatchNormalization",
        {},
        {**image, "mean": torch.zeros(4), "var": torch.ones(4)},
        lambda x, scale, bias, mean, var: F.batch_norm(
            x, mean.detach().clone(), var.detach().clone(), scale, bias, training=True
        ),
    )
    yield (
        "InstanceNormalization",
        {},
        image,
        lambda x, scale, bias: F.instance_norm(x, weight=scale, bias=bias),
    )
    yield (
        "GroupNormalization",
        {"num_groups": 2},
        image,
        lambda x, scale, bias: F.group_norm(x, 2, scale, bias),
    )
    rows = tensors(x=(3, 4, 6), scale=(6,), bias=(6,))
    yield (
        "LayerNormalization",
        {},
        rows,
        lambda x, scale, bias: F.layer_norm(x, (6,), scale, bias),
    )
    plain = {name: rows[name] for name in ("x", "scale")}
    yield (
        "SimplifiedLayerNormalization",
        {"epsilon": 1e-5},
        plain,
        lambda x, scale: F.rms_norm(x, (6,), scale, eps=1e-5),
    )
    only = {"x": image["x"]}
    yield (
        "LRN",
        {"size": 3, "alpha": 0.5, "beta": 0.75, "bias": 2.0},
        only,
        lambda x: F.local_response_norm(x, 3, 0.5, 0.75, 2.0),
    )
    for p in (1, 2):
        yield (
            "LpNormalization" if p == 2 else "LpNormalization:p 1",
            {"axis": 1, "p": p},
            only,
            lambda x, p=p: F.normalize(x, p, 1),
        )


def resampling() -> Iterator[Case]:
    x = tensors(x=(1, 2, 4, 5))
    half = {"coordinate_transformation_mode": "pytorch_half_pixel"}
    corners = {"coordinate_transformation_mode": "align_corners"}
    floor = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    for form, mode, attrs, options in (
        ("", "nearest", floor, {}),
        (":linear", "linear", half, {"mode": "bilinear"}),
        (":corners", "linear", corners, {"mode": "bilinear", "align_corners": True}),
        (":cubic", "cubic", {**half, "cubic_coeff_a": -0.75}, {"mode": "bicubic"}),
    ):
        for name, size in (("", (8, 10)), (" down", (3, 4))):
            sizes = torch.tensor([1, 2, *size])
            yield (
                f"Resize{form or ':nearest' if name else form}{name}",
                {"mode": mode, **attrs},
                {**x, "sizes": sizes},
                lambda x, sizes, s=size, o=options: F.interpolate(x, s, **o),
            )
    blocks = tensors(x=(2, 8, 3, 2))
    attrs = {"blocksize": 2, "mode": "CRD"}
    yield "DepthToSpace:CRD", attrs, blocks, lambda x: F.pixel_shuffle(x, 2)


def ordered(gates: int, order: tuple[int, ...], *values: Tensor) -> list[Tensor]:
    """Tensors of ONNX (gates along axis 0) with the gates in PyTorch's order."""
    return [torch.cat([value.chunk(gates)[at] for at in order]) for value in values]


def layer(
    kind: str, gates: int, order: tuple[int, ...], x: Tensor, w: Tensor, r: Tensor, b: Tensor
) -> Tensor:
    """All states of both directions as ONNX has them: (T, 2, B, H)."""
    hidden = r.shape[2]
    made = getattr(nn, kind)(x.shape[2], hidden, bidirectional=True)
    own = {}
    for direction, suffix in enumerate(("", "_reverse")):
        inner, outer = b[direction].chunk(2)
        parts = ordered(gates, order, w[direction], r[direction], inner, outer)
        names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        own.update({f"{n}_l0{suffix}": part for n, part in zip(names, parts, strict=True)})
    states, _ = torch.func.functional_call(made, own, (x,))
    return states.reshape(*x.shape[:2], 2, hidden).transpose(1, 2)


def recurrent() -> Iterator[Case]:
    both = {"direction": "bidirectional", "hidden_size": 3}
    for op, gates, order, attrs in (
        ("RNN", 1, (0,), {}),
        ("LSTM", 4, (0, 2, 3, 1), {}),
        ("GRU", 3, (1, 0, 2), {"linear_before_reset": 1}),
    ):
        size = gates * 3
        inputs = tensors(x=(4, 2, 2), w=(2, size, 2), r=(2, size, 3), b=(2, 2 * size))
        yield (
            op,
            {**both, **attrs},
            inputs,
            lambda x, w, r, b, k=op, g=gates, o=order: layer(k, g, o, x, w, r, b),
        )


def quantization() -> Iterator[Case]:
    yield (
        "cm.FakeQuant",
        {"quant_min": 0, "quant_max": 255},
        {**tensors(x=(3, 5)), "s": torch.tensor(0.01), "z": torch.tensor(120.0)},
        lambda x, s, z: torch.fake_quantize_per_tensor_affine(x, s.item(), int(z.item()), 0, 255),
    )


def main() -> None:
    table, arrays = [], {}
    families = (convolutions, pools, norms, resampling, recurrent, quantization)
    for make in families:
        torch.manual_seed(1)
        for name, attrs, inputs, function in make():
            index = len(table)
            leaves = {
                key: value.double().requires_grad_() if value.is_floating_point() else value
                for key, value in inputs.items()
            }
            y = function(**leaves)
            r = torch.randn_like(y).float()
            (y * r).sum().backward()
            slopes = {k: v.grad for k, v in leaves.items() if getattr(v, "grad", None) is not None}
            table.append([name, attrs, list(inputs)])
            arrays[f"{index}.r"] = r.numpy()
            arrays.update({f"{index}.in.{k}": v.detach().numpy() for k, v in inputs.items()})
            arrays.update({f"{index}.grad.{k}": v.float().numpy() for k, v in slopes.items()})
    np.savez_compressed(sys.argv[1], table=np.array(json.dumps(table)), **arrays)


if __name__ == "__main__":
    main()
