"""Gradient rows of Dropout. What it drops is random, so these drop next to nothing; the mask is
tested in tests/graph/gradients/test_dropout.py."""

from __future__ import annotations

import numpy as np
from support.gradients import Row, node, normals, single

(X,) = normals(31, (3, 4))
RATIO, TRAINING = np.array(1e-7, np.float32), np.array(True)
KEPT = (node("Identity", "x", "y", ""),)

ROWS: list[Row] = [
    single("Dropout", {"x": X}, constants={"ratio": RATIO, "training": TRAINING}, forward=KEPT),
    single("Dropout:off", {"x": X}, constants={"ratio": RATIO}, forward=KEPT),
    single(
        "Dropout:mask",
        {"x": X},
        makes="y m",
        outputs=("y",),
        constants={"ratio": RATIO, "training": TRAINING},
        forward=KEPT,
    ),
    single("Dropout:none", {"x": X}, constants={"ratio": np.array(0, np.float32)}, forward=KEPT),
]
