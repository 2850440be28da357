"""Gradient rows of losses."""

from __future__ import annotations

import numpy as np
from support.gradients import Row, normals, single

(X,) = normals(4, (3, 4))
LABELS = np.array([0, 3, 1], np.int64)

ROWS: list[Row] = [single("SoftmaxCrossEntropyLoss", {"x": X, "labels": LABELS})]
