"""Gradients of PyTorch's ops that move data: tests/golden/moves_torch.npz.

Run it with the reference environment, which has torch:
.venv-reference/bin/python tools/make_torch_moves.py tests/golden/moves_torch.npz

A case is an ONNX node ("Op:form", attributes, float inputs, integer constants in the order read)
and the same in PyTorch. The loss is sum(r * y).
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

Case = tuple[str, dict[str, Any], dict[str, Tensor], Callable[..., Tensor]]


def ints(*values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.int64)


def pads() -> Iterator[Case]:
    image, where = torch.randn(2, 3, 5, 6), ints(0, 0, 2, 1, 0, 0, 1, 3)
    for mode, name in (("reflect", "reflect"), ("edge", "replicate"), ("wrap", "circular")):
        yield (
            f"Pad:{mode}",
            {"mode": mode},
            {"x": image, "pads": where},
            lambda x, pads, n=name: F.pad(x, (1, 3, 2, 1), n),
        )
    cropped = ints(0, 0, -1, 2, 0, 0, 1, -2)
    given = {"x": image, "pads": cropped, "value": torch.tensor(0.5)}
    yield "Pad:crop and value", {}, given, lambda x, pads, value: _padded(x, value)


def _padded(x: Tensor, value: Tensor) -> Tensor:
    """F.pad with a value that has a gradient."""
    inside = F.pad(x, (2, -2, -1, 1))
    outside = 1 - F.pad(torch.ones_like(x), (2, -2, -1, 1))
    return inside + outside * value


def scatters() -> Iterator[Case]:
    data, updates = torch.randn(3, 4), torch.randn(2, 4)
    index = ints([0, 2, 1, 0], [0, 1, 1, 2])
    ties = torch.tensor([[2.0, 1, 0, 3], [1, 1, 5, 3], [0, 2, 1, 1]])
    equal = torch.tensor([[2.0, 2, 5, 0], [2, 1, 5, 1]])
    zeros = torch.tensor([[0.0, 2, 0, 3], [0, 4, 0, 1]])
    for form, name, x, u in (
        ("add", "sum", data, updates),
        ("mul", "prod", data, updates),
        ("mul zeros", "prod", data, zeros),
        ("max", "amax", data, updates),
        ("max ties", "amax", ties, equal),
        ("min ties", "amin", -ties, -equal),
    ):
        yield (
            f"ScatterElements:{form}",
            {"reduction": form.split()[0], "axis": 0},
            {"x": x, "i": index, "u": u},
            lambda x, i, u, n=name: x.scatter_reduce(0, i, u, n, include_self=True),
        )
    yield (
        "ScatterElements:none",
        {"axis": 1},
        {"x": data, "i": ints([0, 2], [1, 3]), "u": updates[:, :2]},
        lambda x, i, u: x.scatter(1, i, u),
    )


def gathers() -> Iterator[Case]:
    x = torch.randn(4, 3, 5)
    yield "Gather:axis 1", {"axis": 1}, {"x": x, "i": ints(2, 0, 2)}, lambda x, i: x[:, i]
    index = ints([[0, 4, 4], [1, 1, 0]])
    yield (
        "GatherElements:axis 2",
        {"axis": 2},
        {"x": x, "i": index},
        lambda x, i: torch.gather(x, 2, i),
    )
    pairs = ints([0, 1], [3, 2], [0, 1])
    yield "GatherND:pairs", {}, {"x": x, "i": pairs}, lambda x, i: x[i[:, 0], i[:, 1]]
    yield "TopK:axis 0", {"axis": 0}, {"x": x, "k": ints(2)}, lambda x, k: x.topk(2, 0).values
    mask = torch.tensor([True, False, True, True, False])
    yield "Compress:axis 2", {"axis": 2}, {"x": x, "c": mask}, lambda x, c: x[:, :, c]


def layouts() -> Iterator[Case]:
    x = torch.randn(2, 3, 4)
    yield "Tile:all axes", {}, {"x": x, "n": ints(2, 1, 3)}, lambda x, n: x.repeat(2, 1, 3)
    ends = {"s": ints(-1), "e": ints(-(2**63)), "a": ints(2), "t": ints(-1)}
    yield "Slice:flip", {}, {"x": x, **ends}, lambda x, s, e, a, t: x.flip(2)
    yield "Trilu:lower", {"upper": 0}, {"x": x, "k": torch.tensor(-1)}, lambda x, k: x.tril(-1)
    yield "Expand:row", {}, {"x": x[0, 0], "s": ints(3, 2, 4)}, lambda x, s: x.expand(3, 2, 4)
    yield "Transpose:no perm", {}, {"x": x}, lambda x: x.permute(2, 1, 0)


def main() -> None:
    table, arrays = [], {}
    for make in (pads, scatters, gathers, layouts):
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
            slopes = {k: v.grad for k, v in leaves.items() if v.grad is not None}
            table.append([name, attrs, list(inputs)])
            arrays[f"{index}.r"] = r.numpy()
            arrays.update({f"{index}.in.{k}": v.detach().numpy() for k, v in inputs.items()})
            arrays.update({f"{index}.grad.{k}": v.float().numpy() for k, v in slopes.items()})
    np.savez_compressed(sys.argv[1], table=np.array(json.dumps(table)), **arrays)


if __name__ == "__main__":
    main()
