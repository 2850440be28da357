"""Values and gradients of PyTorch's losses: tests/golden/losses_torch.npz.

Run it with the reference environment, which has torch:
.venv-reference/bin/python tools/make_torch_losses.py tests/golden/losses_torch.npz
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812  (its usual name)

Case = tuple[str, dict[str, Any], dict[str, Tensor], Callable[[Tensor], Tensor]]
REDUCTIONS = ("mean", "sum")


def regression() -> Iterator[Case]:
    target = torch.randn(6, 3)
    for reduction in REDUCTIONS:
        options = {"reduction": reduction}
        feed = {"target": target}
        for name, function in (("MSELoss", F.mse_loss), ("L1Loss", F.l1_loss)):
            yield name, options, feed, lambda x, f=function, r=reduction: f(x, target, reduction=r)
        for delta in (0.5, 1.0):
            yield (
                "HuberLoss",
                {**options, "delta": delta},
                feed,
                lambda x, d=delta, r=reduction: F.huber_loss(x, target, reduction=r, delta=d),
            )


def divergence() -> Iterator[Case]:
    target = torch.softmax(torch.randn(6, 3), 1)
    target[0] = torch.tensor([0.0, 0.25, 0.75])
    for reduction in ("mean", "sum", "batchmean"):
        for log_target in (False, True):
            given = (target + 1e-3).log() if log_target else target
            yield (
                "KLDivLoss",
                {"reduction": reduction, "log_target": log_target},
                {"target": given},
                lambda x, t=given, r=reduction, g=log_target: F.kl_div(
                    x, t, reduction=r, log_target=g
                ),
            )


def binary() -> Iterator[Case]:
    target = torch.rand(6, 3)
    choices: list[tuple[list[float] | None, list[float] | None]] = [
        (None, None),
        ([1.0, 2.0, 0.5], None),
        (None, [3.0, 0.2, 1.0]),
        ([1.0, 2.0, 0.5], [3.0, 0.2, 1.0]),
    ]
    for weight, pos_weight in choices:
        for reduction in REDUCTIONS:
            tensors = [None if v is None else torch.tensor(v) for v in (weight, pos_weight)]
            yield (
                "BCEWithLogitsLoss",
                {"reduction": reduction, "weight": weight, "pos_weight": pos_weight},
                {"target": target},
                lambda x, t=tensors, r=reduction: F.binary_cross_entropy_with_logits(
                    x, target, t[0], reduction=r, pos_weight=t[1]
                ),
            )


def classes(shape: tuple[int, ...]) -> Iterator[Case]:
    labels = torch.randint(0, 3, (shape[0], *shape[2:]))
    marked = labels.clone()
    marked.view(-1)[::4] = -100
    for weight in (None, [1.0, 2.0, 0.5]):
        for ignore, given in ((None, labels), (-100, marked)):
            for smoothing in (0.0, 0.1):
                for reduction in REDUCTIONS:
                    options = {
                        "weight": weight,
                        "ignore_index": ignore,
                        "label_smoothing": smoothing,
                        "reduction": reduction,
                    }
                    factor = None if weight is None else torch.tensor(weight)
                    yield (
                        "CrossEntropyLoss",
                        options,
                        {"labels": given},
                        lambda x, y=given, w=factor, s=smoothing, r=reduction: F.cross_entropy(
                            x, y, w, ignore_index=-100, reduction=r, label_smoothing=s
                        ),
                    )


def sequences() -> Iterator[Case]:
    """Of logits: torch's gradient of ctc_loss alone presumes a log_softmax before it."""
    targets = torch.tensor([[1, 2, 2, 3], [4, 1, 0, 0], [3, 0, 0, 0]])
    lengths, sizes = torch.tensor([10, 7, 4]), torch.tensor([4, 2, 0])
    for blank in (0, 4):
        for reduction in REDUCTIONS:
            given = targets if blank == 0 else (targets - 1).clamp(min=0)
            yield (
                "CTCLoss",
                {"blank": blank, "reduction": reduction},
                {"targets": given, "input_lengths": lengths, "target_lengths": sizes},
                lambda x, t=given, b=blank, r=reduction: F.ctc_loss(
                    torch.log_softmax(x, -1), t, lengths, sizes, blank=b, reduction=r
                ),
            )


def main() -> int:
    torch.manual_seed(11)
    # values worth more digits than what is compared with them
    torch.set_default_dtype(torch.float64)
    arrays: dict[str, np.ndarray] = {}
    table = []
    groups: list[tuple[tuple[int, ...], Iterator[Case]]] = [
        ((6, 3), regression()),
        ((6, 3), divergence()),
        ((6, 3), binary()),
        ((6, 3), classes((6, 3))),
        ((2, 3, 4, 2), classes((2, 3, 4, 2))),
        ((10, 3, 5), sequences()),
    ]
    for shape, cases in groups:
        for name, options, feed, function in cases:
            x = torch.randn(*shape).float().double()
            if name == "KLDivLoss":
                x = torch.log_softmax(x, -1)
            x.requires_grad_()
            loss = function(x)
            loss.backward()
            key = str(len(table))
            arrays[f"{key}.x"] = x.detach().numpy().astype(np.float32)
            arrays[f"{key}.loss"] = loss.detach().numpy()
            assert x.grad is not None
            arrays[f"{key}.grad"] = x.grad.numpy()
            arrays.update({f"{key}.feed.{n}": v.numpy() for n, v in feed.items()})
            table.append([name, options])
    arrays["table"] = np.array(json.dumps(table))
    np.savez_compressed(sys.argv[1], **arrays)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
