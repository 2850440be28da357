"""The single-tensor optimizers of old graphs against the kernels that stand for them."""

from __future__ import annotations

import numpy as np
import pytest
from support.lowering import Row, model_of, node, normals
from support.reference import Reference

from edge_train.graph import onnx_codec
from edge_train.kernels import adamw_scalars, select

STEPS = select("reference")


def weights_after(reference: Reference, row: Row) -> list[np.ndarray]:
    model = onnx_codec.encode(model_of(row, dynamic=False))
    feeds = {name: np.array(value) for name, value in row.feeds.items()}
    return reference.run_model(model, feeds, list(row.expected))


@pytest.mark.parametrize("step", [1, 7])
@pytest.mark.parametrize(("mode", "corrected"), [(0, 1), (1, 1), (1, 0)])
def test_adam_optimizer(reference: Reference, mode: int, corrected: int, step: int) -> None:
    w, g, m, v = normals(5, *((200, 3),) * 4)
    v = v * v
    # a gradient norm far above max_norm_clip, which only counts beside a given norm
    g *= 30
    attrs = {"weight_decay_mode": mode, "do_bias_correction": corrected, "lambda": 0.1}
    feeds = {
        "rate": np.array([0.02], np.float32), "t": np.array([step], np.int64), "w": w, "g": g,
        "m": m, "v": v,
    }  # fmt: skip
    update = node("AdamOptimizer", " ".join(feeds), "t2 m2 v2 w2", **attrs)
    shape = np.zeros(w.shape)
    expected = {"m2": shape, "v2": shape, "w2": shape}
    got_m, got_v, got_w = weights_after(reference, Row("adam", (update,), feeds, expected))
    flat = [array.reshape(-1).copy() for array in (w, g, m, v)]
    scalars = adamw_scalars(
        0.02, (float(np.float32(0.9)), float(np.float32(0.999))), 1e-8, 0.1, step, mode=mode,
        correct_bias=bool(corrected),
    )  # fmt: skip
    STEPS.adamw(*flat, scalars)
    for ours, theirs in zip((flat[0], flat[2], flat[3]), (got_w, got_m, got_v), strict=True):
        np.testing.assert_allclose(ours, theirs.reshape(-1), rtol=2e-6, atol=1e-6)


def test_sgd_optimizer(reference: Reference) -> None:
    w, g = normals(6, (200, 3), (200, 3))
    feeds = {"rate": np.array([0.3], np.float32), "w": w, "g": g}
    update = node("SGDOptimizer", "rate w g", "w2")
    (got,) = weights_after(reference, Row("sgd", (update,), feeds, {"w2": np.zeros(w.shape)}))
    flat = w.reshape(-1).copy()
    STEPS.sgd(flat, g.reshape(-1), 0.3)
    np.testing.assert_allclose(flat, got.reshape(-1), rtol=1e-6, atol=1e-7)
