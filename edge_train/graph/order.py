"""The order in which a training graph runs, chosen so that tensors die early.

Left alone onnxruntime walks back from the outputs, the longest chain first: the gradients of the
weights come last, and all they read stays in memory until then.
"""

from __future__ import annotations

from collections.abc import Sequence

from edge_train.graph import ir
from edge_train.graph.passes import outer_reads

#: draw from one generator of the process: the order among them decides what each draws
_SHARED_DRAWS = frozenset({"Dropout", "BiasDropout", "DrawnDropout", "TrainableDropout"})
#: seeded by their place in the graph
_PLACED_DRAWS = frozenset(
    {
        "Bernoulli",
        "Multinomial",
        "RandomNormal",
        "RandomNormalLike",
        "RandomUniform",
        "RandomUniformLike",
    }
)
#: read no data, and would keep a tensor until they run
_SIZES = frozenset({"Shape", "Size"})


def memory_order(nodes: Sequence[ir.Node]) -> list[ir.Node]:
    """The nodes in an order that computes each output as soon as what it needs is there.

    Outputs follow each other by the length of the longest chain that leads to them, so that the
    backward pass makes the weight gradient of a layer before it goes on to the layer below. Nodes
    that draw random numbers keep their order; where that cannot be, all nodes do.
    """
    if any(node.op_type in _PLACED_DRAWS for node in nodes):
        return list(nodes)
    sources = _sources(nodes)
    levels = _levels(sources)
    read = {index for above in sources for index in above}
    ends = sorted((i for i in range(len(nodes)) if i not in read), key=lambda i: (levels[i], i))
    order = _sizes_first(_depth_first(ends, sources), nodes, sources)
    draws = [index for index in order if nodes[index].op_type in _SHARED_DRAWS]
    return [nodes[index] for index in order] if draws == sorted(draws) else list(nodes)


def reads_of(node: ir.Node) -> list[str]:
    """The tensors a node reads, those of its subgraphs after its own, each once."""
    own = dict.fromkeys(filter(None, node.inputs))
    return [*own, *sorted(outer_reads(node) - own.keys())]


def _sources(nodes: Sequence[ir.Node]) -> list[list[int]]:
    """For each node the nodes whose outputs it reads."""
    makers = {name: index for index, node in enumerate(nodes) for name in node.outputs if name}
    return [
        list(dict.fromkeys(makers[name] for name in reads_of(node) if name in makers))
        for node in nodes
    ]


def _levels(sources: Sequence[Sequence[int]]) -> list[int]:
    """The longest chain above each node; the nodes are in some running order."""
    levels: list[int] = []
    for above in sources:
        levels.append(1 + max((levels[index] for index in above), default=0))
    return levels


def _sizes_first(
    order: Sequence[int], nodes: Sequence[ir.Node], sources: Sequence[Sequence[int]]
) -> list[int]:
    """Asks for the shape of a tensor as soon as it is there, which onnxruntime does in any case."""
    waiting: dict[int, list[int]] = {}
    result: list[int] = []
    for index in order:
        if nodes[index].op_type in _SIZES:
            source = sources[index][0] if sources[index] else -1
            waiting.setdefault(source, []).append(index)
    for index in (-1, *order):
        if index >= 0 and nodes[index].op_type not in _SIZES:
            result.append(index)
        ready = waiting.pop(index, [])
        for size in ready:  # a shape of a shape follows it
            result.append(size)
            ready.extend(waiting.pop(size, []))
    return result


def _depth_first(ends: Sequence[int], sources: Sequence[Sequence[int]]) -> list[int]:
    done: set[int] = set()
    order: list[int] = []
    for end in ends:
        path = [(end, iter(sources[end]))]
        while path:
            index, above = path[-1]
            further = next((source for source in above if source not in done), None)
            if further is not None:
                path.append((further, iter(sources[further])))
                continue
            path.pop()
            if index not in done:
                done.add(index)
                order.append(index)
    return order
