"""Which forward tensors are made again: by patterns, or segments that hold the least at once.

A chain of n equal layers holds n tensors; cut into segments, only the tensors at the cuts and those
of one segment are held at once: 2 sqrt(n) (Chen et al. 2016). Here sizes differ, so the cuts are
chosen by bytes: for each limit of what one segment may hold, the cheapest cuts.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from edge_train import dtypes
from edge_train.graph import ir
from edge_train.graph.formula import Formula
from edge_train.graph.recompute import ForwardPart, Segment, droppable, outputs_of, recompute
from edge_train.graph.shapes import Shapes
from edge_train.patterns import matching

#: what an unknown size (the batch) counts as
TYPICAL = 8
_MAX_CUTS, _LIMITS = 64, 32
#: auto leaves tensors alone that hold less than this share of all
_SMALL_SHARE = 1 / 2000

Choice = str | Sequence[str]


def check_choice(choice: object) -> Choice:
    """A valid ``recompute`` argument; TypeError, ValueError otherwise."""
    if isinstance(choice, str):
        if choice not in ("auto", "none"):
            raise ValueError(
                f"recompute: expected 'auto', 'none' or a list of patterns, got '{choice}'; a "
                f"single pattern is written ['{choice}']"
            )
        return choice
    if not isinstance(choice, (list, tuple)) or not all(isinstance(p, str) for p in choice):
        raise TypeError(f"recompute: expected 'auto', 'none' or a list of patterns, got {choice!r}")
    return list(choice)


def recompute_rewrite(
    graph: ir.Graph,
    results: Sequence[str],
    parameters: Sequence[str],
    choice: Choice,
    shapes: Shapes | None = None,
) -> Callable[[ir.Model], ir.Model] | None:
    """What turns a lowered training graph, optimized or not, into one that makes activations
    again; None for "none".

    ``results`` are the outputs that are no gradients. ``choice``: "auto", or patterns of forward
    node or tensor names in ``graph``. ``shapes`` is what lowering knew of its tensors. ValueError
    naming a pattern that matches nothing.
    """
    if choice == "none":
        return None
    before = ForwardPart(graph, results, parameters)
    named = None if choice == "auto" else _named(before, choice)
    # ops of onnxruntime's and of our own tell no shapes here
    known = {**tensor_bytes(before, shapes or Shapes()), **tensor_bytes(before)}

    def rewrite(model: ir.Model) -> ir.Model:
        part = ForwardPart(model.graph, results, parameters)
        sizes = {**tensor_bytes(part), **known}
        found = _automatic(part, sizes) if named is None else _chosen(part, sizes, named)
        wanted = [segment for segment in found if segment.dropped]
        return replace(model, graph=recompute(part, wanted))

    return rewrite


def tensor_bytes(part: ForwardPart, shapes: Shapes | None = None) -> dict[str, int]:
    """The bytes of each forward tensor, with TYPICAL for sizes that only the run tells; no entry
    where not even the rank is known. ``shapes``: by default what the graph itself tells."""
    shapes = Shapes.of(part.graph) if shapes is None else shapes
    sizes: dict[str, int] = {}
    for name in outputs_of(part, part.forward):
        dims, kind = shapes.dims(name), shapes.elem_type(name) or dtypes.FLOAT
        if dims is not None and kind in dtypes.NUMPY:
            known = [dim if isinstance(dim, int) else TYPICAL for dim in dims]
            sizes[name] = int(np.prod(known, dtype=np.int64)) * dtypes.NUMPY[kind].itemsize
    return sizes


def _named(part: ForwardPart, patterns: Choice) -> frozenset[str]:
    """The forward tensors that are made by, or are called, what the patterns say."""
    nodes = [part.graph.nodes[index] for index in part.forward]
    called = [_names(node) for node in nodes]
    known = dict.fromkeys(name for names in called for name in names)
    tensors: set[str] = set()
    for pattern in patterns:
        meant = set(matching(pattern, known))
        hits = [node for node, names in zip(nodes, called, strict=True) if meant & names]
        if not hits:
            names = list(dict.fromkeys(node.name for node in nodes if node.name))
            near = difflib.get_close_matches(pattern, names, 3) or names[:8]
            raise ValueError(
                f"recompute: '{pattern}' matches no node or tensor of the forward pass; there "
                f"are {near}"
            )
        tensors.update(name for node in hits for name in node.outputs if name)
    return frozenset(tensors)


def _names(node: ir.Node) -> set[str]:
    source = node.name.split(f"/{Formula.prefix}/")[0]  # the node that it was lowered from
    return {name for name in (node.name, source, *node.outputs) if name}


def _chosen(part: ForwardPart, sizes: dict[str, int], named: frozenset[str]) -> list[Segment]:
    nodes = part.graph.nodes
    matched = {i for i in part.forward if not named.isdisjoint(nodes[i].outputs)}
    return [_segment(part, sizes, group, 1) for group in _connected(part, matched)]


def _connected(part: ForwardPart, nodes: set[int]) -> list[list[int]]:
    """The nodes in groups that hang together."""
    group: dict[int, list[int]] = {}
    for index in sorted(nodes):
        own = [index]
        makers = {part.made_at[name] for name in part.reads[index] if name in part.made_at}
        for maker in makers & nodes:
            if group[maker] is not own:
                own = group[maker] + own
                group.update(dict.fromkeys(own, own))
        group.update(dict.fromkeys(own, own))
    return list({id(found): found for found in group.values()}.values())


def _segment(part: ForwardPart, sizes: dict[str, int], nodes: Sequence[int], least: int) -> Segment:
    names = [name for name in outputs_of(part, nodes) if droppable(part, name, sizes, least)]
    return Segment(frozenset(nodes), frozenset(names))


@dataclass(frozen=True)
class _Held:
    """The forward tensors that matter: where each is made, last read by the forward pass, its
    bytes, and whether the backward pass reads it."""

    made: np.ndarray
    last: np.ndarray
    size: np.ndarray
    back: np.ndarray

    @staticmethod
    def of(part: ForwardPart, sizes: dict[str, int], place: dict[int, int]) -> _Held:
        last = part.last_forward_read()
        end = len(part.forward)
        rows = [
            (
                place[part.made_at[name]],
                place.get(last.get(name, -1), end if name in part.results else -1),
                sizes.get(name, 0),
                name in part.read_by_backward,
            )
            for name in outputs_of(part, part.forward)
            if name not in part.constant
        ]
        columns = np.array(rows, np.int64).reshape(-1, 4).T
        return _Held(columns[0], columns[1], columns[2], columns[3].astype(bool))

    def between(self, start: int, end: int) -> tuple[int, int]:
        """Bytes of the tensors made in (start, end]: those read after it, which are kept, and the
        others that the backward pass reads."""
        inside = (self.made > start) & (self.made <= end)
        later = inside & (self.last > end)
        own = inside & ~later & self.back
        return int(self.size[later].sum()), int(self.size[own].sum())

    def crossing(self, cut: int) -> int:
        """Bytes of what is made up to a cut and read after it."""
        return int(self.size[(self.made <= cut) & (self.last > cut)].sum())


def _automatic(part: ForwardPart, sizes: dict[str, int]) -> list[Segment]:
    place = {index: at for at, index in enumerate(part.forward)}
    held = _Held.of(part, sizes, place)
    cuts = _best_cuts(held, _candidates(held, len(part.forward)))
    later = {name: place.get(i, len(place)) for name, i in part.last_forward_read().items()}
    least = int(held.size[held.back].sum() * _SMALL_SHARE)
    segments = []
    for start, end in pairwise(cuts[:-1]):  # the last one's gradient comes first
        segment = _segment(part, sizes, part.forward[start + 1 : end + 1], least)
        kept = {name for name in segment.dropped if later.get(name, -1) > end}
        segments.append(Segment(segment.nodes, segment.dropped - kept))
    return segments


def _candidates(held: _Held, count: int) -> list[int]:
    """Places to cut: after each node, or the narrowest place in each of a number of stretches."""
    places = range(count - 1)
    if count > _MAX_CUTS:
        bounds = np.linspace(0, count - 1, _MAX_CUTS + 1).astype(int)
        stretches = [range(a, b) for a, b in pairwise(bounds) if b > a]
        return [-1, *(min(s, key=held.crossing) for s in stretches), count - 1]
    return [-1, *places, count - 1]


def _best_cuts(held: _Held, places: list[int]) -> list[int]:
    """The cuts with the least bytes held at once: all that is kept, and the largest segment."""
    costs = {
        (a, b): held.between(places[a], places[b])
        for a in range(len(places))
        for b in range(a + 1, len(places))
    }
    limits = sorted({own for _, own in costs.values()})
    step = max(1, len(limits) // _LIMITS)
    plans = [
        plan
        for limit in {*limits[::step], limits[-1]}
        if (plan := _plan(costs, len(places), limit))
    ]
    best = min(plans, key=lambda plan: plan[0])
    return [places[at] for at in best[1]]


def _plan(
    costs: dict[tuple[int, int], tuple[int, int]], count: int, limit: int
) -> tuple[int, list[int]] | None:
    """Bytes and cuts of the cheapest plan whose segments hold at most ``limit`` each."""
    best: list[tuple[int, int]] = [(0, -1)]  # kept bytes up to here, the cut before
    for end in range(1, count):
        ways = [
            (best[start][0] + costs[start, end][0], start)
            for start in range(end)
            if costs[start, end][1] <= limit and best[start][0] >= 0
        ]
        best.append(min(ways) if ways else (-1, -1))
    if best[-1][0] < 0:
        return None
    cuts = [count - 1]
    while cuts[-1] > 0:
        cuts.append(best[cuts[-1]][1])
    cuts.reverse()
    largest = max(costs[a, b][1] for a, b in pairwise(cuts))
    return best[-1][0] + largest, cuts
