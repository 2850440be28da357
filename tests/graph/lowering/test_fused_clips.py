"""Clip and ReLU with their gradients as bits, alone and folded into the kernels around them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from support.lowering import Array, Row, model_of, node, session
from support.native_kernels import needs_library

from edge_train.graph import ir
from edge_train.graph.lowering import lower

needs_library()

Curve = Callable[[str, str, str, str], list[ir.Node]]
BOUNDS = {"low": np.float32(-0.5).reshape(()), "high": np.float32(1.0).reshape(())}


def clip_nodes(
    x: str, y: str, dy: str, dx: str, low: str = "low", high: str = "high"
) -> list[ir.Node]:
    """A Clip and its gradient as the reference writes them; "_" leaves a bound out."""
    nodes = [node("Clip", f"{x} {low} {high}".replace(" _ _", ""), y, "")]
    masks = []
    for op, bound in (("GreaterOrEqual", low), ("LessOrEqual", high)):
        if bound != "_":
            masks.append(f"{y}/{op}")
            nodes.append(node(op, f"{x} {bound}", masks[-1], ""))
    if len(masks) == 2:
        nodes.append(node("And", " ".join(masks), f"{y}/and", ""))
        masks = [f"{y}/and"]
    cast = node("Cast", masks[0], f"{y}/cast", "", to=1)
    return [*nodes, cast, node("Mul", f"{dy} {y}/cast", dx, "")]


def both(
    nodes: list[ir.Node], feeds: dict[str, Array], outputs: dict[str, tuple[int, ...]]
) -> set[str]:
    """Asserts that fused and portable graphs agree; returns the kernels of the fused one."""
    nodes = [replace(n, name=f"node{i}") for i, n in enumerate(nodes)]
    expected = {name: np.zeros(shape) for name, shape in outputs.items()}
    row = Row("clip", tuple(nodes), feeds, expected, constants=BOUNDS)
    results, kinds = {}, set()
    for fused in (False, True):
        lowered = lower(model_of(row, dynamic=False), fused)
        results[fused] = session(lowered.model).run(list(lowered.results), feeds)
        kinds = {n.op_type for n in lowered.model.graph.nodes if n.domain == ir.NATIVE}
    for name, got, wanted in zip(outputs, results[True], results[False], strict=True):
        scale = max(float(np.abs(np.nan_to_num(wanted)).max()), 1e-6)
        np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-5 * scale, err_msg=name)
    return kinds


def numbers(*shape: int) -> Array:
    """Normal numbers, some exactly on the bounds, some huge."""
    x = np.random.default_rng(shape[-1]).standard_normal(shape).astype(np.float32)
    flat = x.reshape(-1)
    flat[::5], flat[1::7] = BOUNDS["low"], BOUNDS["high"]
    flat[:: max(flat.size // 3, 1)] = 3e38
    return x


@pytest.mark.parametrize("bounds", [("low", "high"), ("low", "_"), ("_", "high"), ("high", "low")])
@pytest.mark.parametrize(
    "shape", [(1,), (3, 50), (2, 5, 7, 9), (2, 3, 1, 16), (1, 2, 33), (4, 64, 40)]
)
def test_clip_alone(shape: tuple[int, ...], bounds: tuple[str, str]) -> None:
    feeds = {"x": numbers(*shape), "dy": np.ones(shape, np.float32) * 3}
    kinds = both(clip_nodes("x", "y", "dy", "dx", *bounds), feeds, {"y": shape, "dx": shape})
    assert kinds == {"Clip", "ClipGrad"}


def test_a_clip_of_more_axes_than_kernels_take_stays() -> None:
    shape = (1, 2, 1, 3, 1, 1, 1, 2, 5)
    feeds = {"x": numbers(*shape), "dy": np.ones(shape, np.float32)}
    assert not both(clip_nodes("x", "y", "dy", "dx"), feeds, {"y": shape, "dx": shape})


def test_another_comparison_is_no_gradient_of_a_clip() -> None:
    shape = (2, 3, 5)
    feeds = {"x": numbers(*shape), "dy": np.ones(shape, np.float32)}
    nodes = clip_nodes("x", "y", "dy", "dx")
    nodes = [replace(n, op_type="Less") if n.op_type == "LessOrEqual" else n for n in nodes]
    assert not both(nodes, feeds, {"y": shape, "dx": shape})


def relu_nodes(x: str, y: str, dy: str, dx: str) -> list[ir.Node]:
    """A ReLU and its gradient."""
    return [node("Relu", x, y, ""), node("ReluGrad", f"{dy} {y}", dx)]


@pytest.mark.parametrize("curve", [clip_nodes, relu_nodes])
@pytest.mark.parametrize("group", [1, 6])
@pytest.mark.parametrize("size", [(3, 3), (4, 4), (8, 16)])
def test_between_convolutions(size: tuple[int, int], group: int, curve: Curve) -> None:
    """The first convolution clips, the gradient of the second masks."""
    channels, rng = 6, np.random.default_rng(group)
    kernel = (1, 1) if group == 1 else (3, 3)
    attrs = {"group": group, "kernel_shape": kernel, "pads": [kernel[0] // 2] * 4}
    shape = (3, channels, *size)
    weight = (channels, channels // group, *kernel)
    feeds = {
        **{name: rng.standard_normal(shape).astype(np.float32) for name in ("x", "dz")},
        **{name: rng.standard_normal(weight).astype(np.float32) for name in ("w", "v")},
        "b": rng.standard_normal(channels).astype(np.float32),
    }
    nodes = [
        node("Conv", "x w b", "c", "", **attrs),
        *curve("c", "y", "dy", "dc")[:1],
        node("Conv", "y v", "z", "", **attrs),
        node("ConvGrad", "dz y v", "dy dv", **attrs),
        *curve("c", "y", "dy", "dc")[1:],
        node("ConvGrad", "dc x w", "dx dw db", **attrs),
    ]
    outputs = {"y": shape, "z": shape, "dv": weight, "dx": shape, "dw": weight, "db": (channels,)}
    kinds = both(nodes, feeds, outputs)
    name = "PointwiseConv" if group == 1 else "DepthwiseConv"
    assert kinds == {name, f"{name}Grad"}


def test_a_tensor_that_others_read_is_kept() -> None:
    """The convolution's own output is asked for: the Clip stays behind it."""
    shape = (2, 4, 4, 4)
    feeds = {"x": numbers(*shape), "w": np.ones((4, 4, 1, 1), np.float32), "dy": numbers(*shape)}
    feeds["x"][feeds["x"] > 1e30] = 0
    nodes = [node("Conv", "x w", "c", "", kernel_shape=[1, 1]), *clip_nodes("c", "y", "dy", "dc")]
    kinds = both(nodes, feeds, {"c": shape, "y": shape, "dc": shape})
    assert kinds == {"PointwiseConv", "Clip", "ClipGrad"}


@pytest.mark.parametrize("curve", [clip_nodes, relu_nodes])
@pytest.mark.parametrize("shape", [(3, 5, 7, 3), (2, 4, 16), (5, 3, 1, 1)])
def test_batch_normalization_clips(shape: tuple[int, ...], curve: Curve) -> None:
    rng, size = np.random.default_rng(3), shape[1:2]
    feeds = {name: rng.standard_normal(shape).astype(np.float32) for name in ("x", "dy")}
    for name in ("scale", "bias", "mean", "var"):
        feeds[name] = np.abs(rng.standard_normal(size)).astype(np.float32)
    nodes = [
        node("BatchNormInternal", "x scale bias mean var", "c m v saved inv", training_mode=1),
        *curve("c", "y", "dy", "dc"),
        node("BatchNormalizationGrad", "dc x scale saved inv", "dx ds db"),
    ]
    outputs = {
        "y": shape,
        "dx": shape,
        **dict.fromkeys(("m", "v", "saved", "inv", "ds", "db"), size),
    }
    assert both(nodes, feeds, outputs) == {"BatchNorm", "ClipGrad", "BatchNormGrad"}


def test_relu_where_the_input_is_not_finite() -> None:
    """Its gradient passes for infinity and is 0 for NaN, 0 and -0."""
    shape = (1, 4, 1, 2)
    x = np.array([np.inf, -np.inf, np.nan, 0.0, -0.0, 1e-45, 1.0, 3e38], np.float32)
    feeds = {"x": x.reshape(shape), "w": np.zeros((4, 4, 1, 1), np.float32)}
    feeds["dy"] = np.ones(shape, np.float32)
    feeds["w"][:] = np.eye(4).reshape(4, 4, 1, 1)
    nodes = [node("Conv", "x w", "c", "", kernel_shape=[1, 1]), *relu_nodes("c", "y", "dy", "dc")]
    # a NaN or an infinity spreads over all channels of its place: one place at a time
    for place in range(2):
        for channel in range(4):
            one = np.zeros(shape, np.float32)
            one[0, channel, 0, place] = feeds["x"][0, channel, 0, place]
            kinds = both(nodes, {**feeds, "x": one}, {"dc": shape})
            assert kinds == {"PointwiseConv", "ClipGrad"}


def test_a_relu_without_a_gradient_stays() -> None:
    shape = (2, 4, 4, 4)
    feeds = {"x": numbers(*shape), "w": np.ones((4, 4, 1, 1), np.float32)}
    feeds["x"][feeds["x"] > 1e30] = 0
    nodes = [node("Conv", "x w", "c", "", kernel_shape=[1, 1]), node("Relu", "c", "y", "")]
    assert both(nodes, feeds, {"y": shape}) == {"PointwiseConv"}
