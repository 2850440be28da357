"""Which initializers of a forward graph are parameters, and which of them are trained.

A model file does not say what a weight is. Here it is a float initializer that some node reads
otherwise than as a setting (a Clip bound, an exponent); single numbers in arithmetic are settings
too. Running statistics are parameters that cannot be trained.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from edge_train import dtypes
from edge_train.graph import ir
from edge_train.graph.passes import outer_reads
from edge_train.patterns import matching

FLOATS = (dtypes.FLOAT, dtypes.FLOAT16, dtypes.DOUBLE, dtypes.BFLOAT16)

#: op -> inputs that set the op up rather than being weights; None: all of them
_SETTINGS: dict[str, tuple[int, ...] | None] = {
    "Clip": (1, 2),
    "ConstantOfShape": None,
    "DequantizeLinear": (1, 2),
    "Dropout": (1,),
    "GRU": (5,),  # the state to begin with, mostly zeros
    "LSTM": (5, 6),
    "NonMaxSuppression": (2, 3, 4),
    "OneHot": (1, 2),
    "Pad": (1, 2),
    "Pow": (1,),
    "QuantizeLinear": (1, 2),
    "RNN": (5,),
    "Range": None,
    "Resize": (1, 2),
    "Upsample": (1,),
}
#: of these ops settings have a gradient: they can be trained by their full name
_TRAINED_BY_NAME = frozenset(("Clip", "GRU", "LSTM", "Pow", "RNN"))
#: op -> inputs that are running statistics
_STATISTICS = {"BatchNormalization": (3, 4)}
#: a single number here is a constant of a formula, unless it follows a product (a bias)
_ARITHMETIC = frozenset(
    {
        *("Add", "Sub", "Mul", "Div", "Mod", "Max", "Min", "Sum", "Mean", "Where"),
        *("Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"),
        *("Identity", "Cast", "Expand", "Concat", "Reshape", "Squeeze", "Unsqueeze"),
    }
)
_PRODUCTS = frozenset(("MatMul", "Conv", "ConvTranspose", "Gemm", "Einsum"))
_PATTERN = frozenset("*?[")
_SHOWN = 24


@dataclass(frozen=True)
class Choice:
    """What a caller wants: names or glob patterns. ``train`` None trains every parameter.

    ``weights``: the initializers that can be parameters without being named; None for all.
    """

    train: tuple[str, ...] | None
    freeze: tuple[str, ...] = ()
    weights: Collection[str] | None = None

    def names(self) -> frozenset[str]:
        """Everything that is asked for by its own name, and the patterns."""
        return frozenset((*(self.train or ()), *self.freeze))


@dataclass(frozen=True)
class Selection:
    """The parameters in the order of the initializers. ``asked`` were trained by their name."""

    trainable: tuple[str, ...]
    frozen: tuple[str, ...]
    asked: frozenset[str]
    statistics: tuple[str, ...]  # asked to be trained, frozen instead
    problems: tuple[str, ...]


def parameter_names(graph: ir.Graph) -> tuple[list[str], list[str]]:
    """The weights and the running statistics of a graph, in the order of the initializers."""
    producers = graph.producers()
    weights: set[str] = set()
    statistics: set[str] = set()
    for node in _all_nodes(graph.nodes):
        settings = _SETTINGS.get(node.op_type, ())
        for index, name in enumerate(node.inputs):
            tensor = graph.initializers.get(name)
            if tensor is None or tensor.data_type not in FLOATS or settings is None:
                continue
            if index in _STATISTICS.get(node.op_type, ()):
                statistics.add(name)
            elif index not in settings and not _is_number(node, tensor, producers):
                weights.add(name)
    names = list(graph.initializers)
    return [n for n in names if n in weights - statistics], [n for n in names if n in statistics]


def _all_nodes(nodes: Iterable[ir.Node]) -> Iterator[ir.Node]:
    for node in nodes:
        yield node
        for body in ir.subgraphs(node):
            yield from _all_nodes(body.nodes)


def _with_gradient(node: ir.Node) -> set[str]:
    """What the node reads but for settings that no gradient is for (a Resize's scales)."""
    if node.op_type in _TRAINED_BY_NAME:
        return outer_reads(node)
    settings = _SETTINGS.get(node.op_type, ())
    if settings is None:
        return set()
    return outer_reads(node) - {node.inputs[at] for at in settings if at < len(node.inputs)}


def _is_number(node: ir.Node, tensor: ir.Tensor, producers: dict[str, ir.Node]) -> bool:
    if any(dim != 1 for dim in tensor.dims) or node.op_type not in _ARITHMETIC:
        return False
    beside = [producers[name].op_type for name in node.inputs if name in producers]
    return not (node.op_type == "Add" and tensor.dims and _PRODUCTS.intersection(beside))


def select(graph: ir.Graph, choice: Choice) -> Selection:
    """Resolves names and patterns; everything wrong with them is in ``problems``."""
    return _Selector(graph, choice).selection()


class _Selector:
    def __init__(self, graph: ir.Graph, choice: Choice) -> None:
        self._graph = graph
        self._choice = choice
        weights, self._statistics = parameter_names(graph)
        can = choice.weights
        self._weights = [name for name in weights if can is None or name in can]
        self._problems: list[str] = []

    def selection(self) -> Selection:
        train, freeze = self._choice.train, self._choice.freeze
        asked = self._exact(train or (), "requires_grad")
        kept = self._exact(freeze, "frozen_params")
        for name in sorted(asked & kept):
            self._problems.append(f"'{name}' is in requires_grad and in frozen_params")
        self._check_trainable(asked)
        by_pattern = self._matching(("*",) if train is None else train, "requires_grad")
        by_pattern -= self._matching(freeze, "frozen_params") | kept
        chosen = (asked | by_pattern) & self._trainable()
        known = {*self._weights, *self._statistics, *kept, *asked}
        moved = tuple(name for name in self._statistics if name in asked)
        if not chosen and not self._problems:
            self._problems.append(self._nothing(train))
        names = list(self._graph.initializers)
        return Selection(
            trainable=tuple(name for name in names if name in chosen),
            frozen=tuple(name for name in names if name in known - chosen),
            asked=frozenset(asked),
            statistics=moved,
            problems=tuple(self._problems),
        )

    def _exact(self, names: Iterable[str], where: str) -> set[str]:
        found = set()
        for name in names:
            if name in self._graph.initializers:
                found.add(name)
            elif not _PATTERN.intersection(name):
                self._problems.append(self._unknown(name, where))
        return found

    def _matching(self, patterns: Sequence[str], where: str) -> set[str]:
        found: set[str] = set()
        parameters = [*self._weights, *self._statistics]
        for pattern in patterns:
            if pattern in self._graph.initializers or not _PATTERN.intersection(pattern):
                continue
            hits = set(matching(pattern, parameters))
            if not hits and pattern != "*":
                self._problems.append(
                    f"the pattern '{pattern}' in {where} matches no parameter; {self._there()}"
                )
            found |= hits
        return found

    def _check_trainable(self, asked: set[str]) -> None:
        read = {name for node in self._graph.nodes for name in outer_reads(node)}
        for name in (name for name in self._graph.initializers if name in asked):
            tensor = self._graph.initializers[name]
            if tensor.data_type not in FLOATS:
                kind = dtypes.name_of(tensor.data_type)
                self._problems.append(
                    f"'{name}' is {kind} {list(tensor.dims)}: only float tensors can be trained; "
                    "take it out of requires_grad"
                )
            elif name not in read:
                self._problems.append(f"'{name}' is read by no node: it cannot be trained")

    def _trainable(self) -> set[str]:
        floats = {n for n, t in self._graph.initializers.items() if t.data_type in FLOATS}
        return floats - set(self._statistics)

    def _unknown(self, name: str, where: str) -> str:
        if any(value.name == name for value in self._graph.inputs):
            return f"'{name}' in {where} is an input of the model, not a parameter"
        lowered = {other.lower(): other for other in self._graph.initializers}
        near = [lowered[n] for n in get_close_matches(name.lower(), lowered, 3, cutoff=0.5)]
        hint = f"did you mean {near}?" if near else self._there()
        return f"'{name}' in {where} is not in the model; {hint}"

    def _there(self) -> str:
        tensors = [self._graph.initializers[name] for name in self._weights]
        shown = ", ".join(f"'{t.name}' {list(t.dims)}" for t in tensors[:_SHOWN])
        more = f" and {len(tensors) - _SHOWN} more" if len(tensors) > _SHOWN else ""
        if not shown:
            return self._none()
        return (
            "its float parameters (an export may have folded and renamed some) are: "
            f"{shown}{more}{self._by_name_only()}"
        )

    def _none(self) -> str:
        named = self._by_name_only()
        if named:
            return f"no float initializer of the model is taken for a weight{named}"
        return "the model has no float weights among its initializers"

    def _by_name_only(self) -> str:
        """Says what else is there: a learned scale looks like a constant, an exponent like one."""
        read = {name for node in self._graph.nodes for name in _with_gradient(node)}
        known, own = {*self._weights, *self._statistics}, self._choice.weights
        tensors = [
            tensor
            for name, tensor in self._graph.initializers.items()
            if tensor.data_type in FLOATS and 0 not in tensor.dims
            if name in read - known and (own is None or name in own)
        ]
        if not tensors:
            return ""
        more = " and more" if len(tensors) > _SHOWN else ""
        shown = ", ".join(f"'{t.name}' {list(t.dims)}" for t in tensors[:_SHOWN])
        return (
            "; single numbers and settings (bounds, exponents, first states) are trained by their "
            f"full name only: {shown}{more}"
        )

    def _nothing(self, train: Sequence[str] | None) -> str:
        if train is not None and not train:
            return (
                "nothing to train: requires_grad is empty; name parameters, or pass None for all "
                f"of them. {self._there()}"
            )
        if not self._weights:
            inner = any(
                body.initializers for node in self._graph.nodes for body in ir.subgraphs(node)
            )
            where = (
                "; those inside the bodies of If, Loop and Scan cannot be trained" if inner else ""
            )
            return f"nothing to train: {self._none()}{where}"
        return f"nothing to train: every parameter asked for is frozen. {self._there()}"
