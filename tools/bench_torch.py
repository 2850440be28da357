"""The networks of bench_models.py as idiomatic PyTorch modules, with the same weights.

Each takes the weights in the order in which bench_models.py made them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

MOBILENET = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1),
             (6, 160, 3, 2), (6, 320, 1, 1))  # fmt: skip
RESNET = ((64, 1), (64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), (512, 1))


class Weights:
    """The weights that are left, first ones first; scalars of the ONNX graph are not among them."""

    def __init__(self, arrays: dict[str, Any], trainable: set[str]) -> None:
        self._left = [(name, array) for name, array in arrays.items() if "." in name]
        self._trainable = trainable

    def take(self, transpose: bool = False) -> nn.Parameter:
        name, array = self._left.pop(0)
        values = torch.from_numpy(array)
        values = values.t().contiguous() if transpose else values.clone()
        return nn.Parameter(values, requires_grad=name in self._trainable)

    def check_empty(self) -> None:
        if self._left:
            raise ValueError(
                f"the torch network takes no weights {[name for name, _ in self._left]}"
            )


def linear(w: Weights, transpose: bool = False) -> nn.Linear:
    weight, bias = w.take(transpose), w.take()
    layer = nn.utils.skip_init(nn.Linear, weight.shape[1], weight.shape[0])
    layer.weight, layer.bias = weight, bias
    return layer


def conv(w: Weights, stride: int = 1, group: int = 1, bias: bool = True) -> nn.Conv2d:
    weight = w.take()
    c_out, c_in, kernel, _ = weight.shape
    layer = nn.Conv2d(c_in * group, c_out, kernel, stride, kernel // 2, groups=group, bias=bias)
    layer.weight = weight
    if bias:
        layer.bias = w.take()
    return layer


def batch_norm(w: Weights) -> nn.BatchNorm2d:
    weight, bias, _, _ = (w.take() for _ in range(4))
    layer = nn.BatchNorm2d(len(weight))
    layer.weight, layer.bias = weight, bias
    return layer


class Skip(nn.Module):
    """x + f(x)."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return x + self.inner(x)


def mlp(w: Weights) -> nn.Module:
    return nn.Sequential(linear(w), nn.ReLU(), linear(w))


def wide(w: Weights) -> nn.Module:
    return nn.Sequential(linear(w))


def mobilenet(w: Weights, with_bn: bool) -> nn.Module:
    def block(stride: int, group: int, act: bool) -> nn.Sequential:
        layers: list[nn.Module] = [conv(w, stride, group, bias=not with_bn)]
        layers += [batch_norm(w)] if with_bn else []
        return nn.Sequential(*layers, *([nn.ReLU6(inplace=True)] if act else []))

    layers: list[nn.Module] = [block(2, 1, True)]
    channels = 32
    for expand, c_out, repeats, stride in MOBILENET:
        for index in range(repeats):
            group, step = channels * expand, stride if index == 0 else 1
            first = [block(1, 1, True)] if expand > 1 else []
            inner = nn.Sequential(*first, block(step, group, True), block(1, 1, False))
            layers.append(Skip(inner) if step == 1 and channels == c_out else inner)
            channels = c_out
    layers.append(block(1, 1, True))
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), linear(w))


class Residual(nn.Module):
    """A block of ResNet-18."""

    def __init__(self, w: Weights, stride: int) -> None:
        super().__init__()
        self.start = (
            nn.Sequential(conv(w, stride, bias=False), batch_norm(w)) if stride > 1 else None
        )
        self.first = nn.Sequential(conv(w, stride, bias=False), batch_norm(w), nn.ReLU(True))
        self.second = nn.Sequential(conv(w, bias=False), batch_norm(w))

    def forward(self, x: Tensor) -> Tensor:
        start = x if self.start is None else self.start(x)
        return functional.relu(self.second(self.first(x)) + start, inplace=True)


def resnet18(w: Weights) -> nn.Module:
    stem = [conv(w, 2, bias=False), batch_norm(w), nn.ReLU(True), nn.MaxPool2d(3, 2, 1)]
    blocks = [Residual(w, stride) for _, stride in RESNET]
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), linear(w))


class Layer(nn.Module):
    """An encoder layer, normalised after each addition."""

    def __init__(self, w: Weights, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.o = (linear(w, transpose=True) for _ in range(4))
        self.n1 = self._norm(w)
        self.up, self.down = linear(w, transpose=True), linear(w, transpose=True)
        self.n2 = self._norm(w)

    @staticmethod
    def _norm(w: Weights) -> nn.LayerNorm:
        weight, bias = w.take(), w.take()
        layer = nn.LayerNorm(len(weight))
        layer.weight, layer.bias = weight, bias
        return layer

    def forward(self, x: Tensor) -> Tensor:
        b, t, d = x.shape
        q, k, v = (
            part(x).view(b, t, self.heads, -1).transpose(1, 2) for part in (self.q, self.k, self.v)
        )
        mixed = functional.scaled_dot_product_attention(q, k, v)
        x = self.n1(x + self.o(mixed.transpose(1, 2).reshape(b, t, d)))
        return self.n2(x + self.down(functional.gelu(self.up(x))))


class Bert(nn.Module):
    """A BERT-like encoder, the first token classified."""

    def __init__(self, w: Weights, layers: int = 4) -> None:
        super().__init__()
        self.words, self.places = w.take(), w.take()
        self.layers = nn.Sequential(*(Layer(w) for _ in range(layers)))
        self.head = linear(w)

    def forward(self, ids: Tensor) -> Tensor:
        x = functional.embedding(ids, self.words) + self.places
        return self.head(self.layers(x)[:, 0])


class Tagger(nn.Module):
    """A label for every token: embedding, LSTM, linear; scores (B T, classes)."""

    def __init__(self, w: Weights) -> None:
        super().__init__()
        self.words = w.take()
        weights, recurrent, bias = (w.take() for _ in range(3))
        hidden = recurrent.shape[2]
        self.lstm = nn.LSTM(weights.shape[2], hidden)
        trains = weights.requires_grad
        halves = bias.detach()[0].split(4 * hidden)
        own = [weights.detach()[0], recurrent.detach()[0], *halves]
        for name, part in zip(("weight_ih", "weight_hh", "bias_ih", "bias_hh"), own, strict=True):
            i, o, f, c = part.split(hidden)  # ONNX's order of the gates
            setattr(self.lstm, f"{name}_l0", nn.Parameter(torch.cat([i, f, c, o]), trains))
        self.head = linear(w, transpose=True)

    def forward(self, ids: Tensor) -> Tensor:
        x = functional.embedding(ids, self.words).transpose(0, 1)
        return self.head(self.lstm(x)[0]).transpose(0, 1).flatten(0, 1)


NETWORKS: dict[str, Callable[[Weights], nn.Module]] = {
    "mlp": mlp,
    "wide": wide,
    "mobilenet": lambda w: mobilenet(w, False),
    "mobilenet_bn": lambda w: mobilenet(w, True),
    "resnet18": resnet18,
    "bert": Bert,
    "tagger": Tagger,
}


def build(work: str, arrays: dict[str, Any], trainable: list[str]) -> nn.Module:
    """The network called ``work`` with the given weights."""
    weights = Weights(arrays, set(trainable))
    model = NETWORKS[work](weights)
    weights.check_empty()
    return model.train()


def loss_of(model: nn.Module) -> Callable[[Tensor, Tensor], Tensor]:
    """Mean cross-entropy of the network's scores."""
    return lambda x, labels: functional.cross_entropy(model(x), labels)
