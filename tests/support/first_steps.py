"""Twenty steps of the demo's network: what x86-64 got, for other machines (U083)."""

from __future__ import annotations

import numpy as np

from edge_train import demo
from edge_train.api import CheckpointState, Module, Optimizer

#: of x86-64 with AVX2, the portable graph, onnxruntime 1.32
LOSSES: tuple[float, ...] = (
    *(3.349475860595703, 3.0690786838531494, 2.2969017028808594, 1.8851263523101807),
    *(1.8588483333587646, 1.2970433235168457, 1.4644792079925537, 1.5484602451324463),
    *(1.2292393445968628, 1.3320988416671753, 1.0634709596633911, 0.8584307432174683),
    *(0.7559505105018616, 0.5895550847053528, 0.6155951023101807, 0.4538874626159668),
    *(0.7452601194381714, 0.54621422290802, 0.2867260277271271, 0.44795921444892883),
)
#: seen: 5e-6 on 32-bit ARM with onnxruntime 1.21, 6e-7 on AArch64
TOLERANCE = 2e-5


def losses(kernels: str = "auto", rate: float = 0.01) -> list[float]:
    """AdamW at one rate on the first 640 digits, in their order, 32 a step."""
    artifacts = demo.HERE / "artifacts"
    state = CheckpointState.load_checkpoint(artifacts / "checkpoint")
    module = Module(
        artifacts / "training_model.onnx", state, artifacts / "eval_model.onnx", kernels=kernels
    )
    optimizer = Optimizer(artifacts / "optimizer_model.onnx", module)
    optimizer.set_learning_rate(rate)
    digits, _ = demo.load_digits()
    found = []
    for start in range(0, 640, 32):
        rows = slice(start, start + 32)
        module.lazy_reset_grad()
        found.append(float(np.asarray(module(digits.x[rows], digits.labels[rows]))))
        optimizer.step()
    return found
