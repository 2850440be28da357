"""The walk over small graphs whose peaks can be counted by hand, and the arena in numbers."""

from __future__ import annotations

import pytest

from edge_train.graph import ir
from edge_train.memory.bfc import Arena
from edge_train.memory.liveness import Walk, walk

KB = 1024
FLOAT = 1


def _walk(*lines: str, outputs: str = "", bound: str = "", **sizes: int) -> Walk:
    """Each "Op a b > c d" is a node; sizes are in KB, 4 unless told."""
    nodes = []
    for line in lines:
        reads, _, makes = line.partition(" > ")
        op, *inputs = reads.split()
        nodes.append(ir.make_node(op, inputs, makes.split(), makes))
    values = [ir.Value(name, FLOAT, None) for name in outputs.split()]
    made = {name: sizes.get(name, 4) * KB for node in nodes for name in node.outputs}
    return walk(ir.Graph("g", nodes, [], values), made, bound.split())


def test_a_tensor_lives_until_its_last_reader() -> None:
    """At c both a and b are there; a is gone at d."""
    seen = _walk("Conv x > a", "Conv a > b", "MatMul a b > c", "Conv c > d", outputs="d")
    assert seen.live == 12 * KB
    assert "MatMul 'c'" in seen.at
    assert dict(seen.largest) == {"a": 4 * KB, "b": 4 * KB, "c": 4 * KB}


def test_a_reader_at_the_end_keeps_it() -> None:
    """The test above sees when a tensor dies: kept for d, a is there one node longer."""
    seen = _walk("Conv x > a", "Conv a > b", "Conv b > c", "MatMul a c > d", outputs="d", d=1)
    assert seen.live == 12 * KB
    longer = _walk("Conv x > a", "Conv a > b", "Conv b > c", "MatMul a b c > d", outputs="d", d=1)
    assert longer.live == 13 * KB


def test_elementwise_ops_write_over_an_input_that_nobody_else_reads() -> None:
    end = "Conv c > d"
    assert _walk("Conv x > a", "Relu a > b", "Mul b b > c", end, outputs="d", d=1).live == 5 * KB
    assert _walk("Conv x > a", "Relu a > b", "Mul a b > c", end, outputs="d", d=1).live == 8 * KB
    assert _walk("Conv x > a", "Softmax a > b", "Mul b b > c", end, outputs="d").live == 8 * KB


def test_a_result_has_memory_of_its_own() -> None:
    assert _walk("Conv x > a", "Relu a > b", outputs="b").live == 8 * KB


def test_nothing_is_written_over_an_input_of_another_size() -> None:
    seen = _walk("Conv x > a", "Cast a > b", "Conv b > c", outputs="c", b=1, c=1)
    assert seen.live == 5 * KB


def test_views_take_no_memory_and_keep_what_they_show() -> None:
    seen = _walk("Conv x > a", "Reshape a s > b", "Conv z > c", "MatMul b c > d", outputs="d")
    assert seen.live == 12 * KB
    again = _walk("Conv x > a", "Reshape a s > b", "MatMul b z > c", "Conv c > d", outputs="d")
    assert again.live == 8 * KB


def test_a_view_of_an_input_and_bound_outputs_count_nothing() -> None:
    assert _walk("Reshape x s > a", "Conv a > b", outputs="b", bound="b").live == 0


def test_nothing_is_written_in_place_behind_a_gate() -> None:
    """onnxruntime cannot tell there that two shapes are equal."""
    open_gate = ("Conv x > a", "Reshape a s > b", "Conv b > c", "Relu c > d", "Conv d > e")
    gated = ("Where bit s s > s2", "Conv x > a", "Reshape a s2 > b", *open_gate[2:])
    assert _walk(*open_gate, outputs="e", s2=0).live == 8 * KB
    assert _walk(*gated, outputs="e", s2=0).live == 8 * KB
    deeper = (*gated[:-1], "Conv d > e", "MatMul d e > f")
    assert _walk(*deeper, outputs="f", s2=0).live == 12 * KB


def test_kernels_with_working_memory_take_it_while_they_run() -> None:
    assert _walk("Conv x > a", "BiasGelu a > b", "Conv b > c", outputs="c").live == 12 * KB
    grad = ir.make_node("ConvGrad", ["dy", "x", "w"], ["dw"], "n", ir.NATIVE)
    sizes = {"dy": 4 * KB, "x": 2 * KB, "w": KB, "dw": KB}
    assert walk(ir.Graph("g", [grad], [], []), sizes).live == 8 * KB
    huge = {"dy": 1 << 30, "x": 1 << 30, "dw": KB}
    assert walk(ir.Graph("g", [grad], [], []), huge).live == (16 << 20) + KB


def test_a_body_reads_from_outside() -> None:
    inner = ir.Graph("body", [ir.make_node("Add", ["i", "a"], ["o"])],
                     [ir.Value("i", FLOAT, None)], [ir.Value("o", FLOAT, None)])  # fmt: skip
    nodes = [
        ir.make_node("Conv", ["x"], ["a"]),
        ir.make_node("Conv", ["x"], ["b"]),
        ir.make_node("Loop", ["b"], ["c"], body=inner),
    ]
    graph = ir.Graph("g", nodes, [], [ir.Value("c", FLOAT, None)])
    assert walk(graph, dict.fromkeys("abc", 4 * KB)).live == 12 * KB


# ---- the arena ------------------------------------------------------------------------------

MB = 1 << 20


def test_what_is_freed_is_used_again() -> None:
    arena = Arena()
    for turn in range(5):
        arena.allocate(f"a{turn}", MB)
        arena.free(f"a{turn}")
    assert arena.touched == MB


def test_regions_double_and_only_what_is_handed_out_counts() -> None:
    arena = Arena()
    for number in range(3):
        arena.allocate(f"a{number}", MB)  # regions of 1 and 2 MB
    assert arena.touched == 3 * MB
    arena.allocate("b", MB // 4)  # the start of one of 4 MB
    assert arena.touched == 3 * MB + MB // 4


def test_neighbours_that_are_free_join() -> None:
    arena = Arena()
    arena.allocate("first", 8 * MB)
    arena.free("first")
    for name in "abcd":
        arena.allocate(name, 2 * MB)
    for name in "bcad":
        arena.free(name)
    arena.allocate("whole", 8 * MB)
    assert arena.touched == 8 * MB


def test_a_hole_between_held_chunks_is_too_small() -> None:
    """Joining has its limits: the test above can fail."""
    arena = Arena()
    arena.allocate("first", 8 * MB)
    arena.free("first")
    for name in "abcd":
        arena.allocate(name, 2 * MB)
    for name in "acd":
        arena.free(name)
    arena.allocate("whole", 8 * MB)
    assert arena.touched == 16 * MB


@pytest.mark.parametrize(("size", "taken"), [(1, 256), (256, 256), (257, 512)])
def test_sizes_are_multiples_of_256(size: int, taken: int) -> None:
    arena = Arena()
    arena.allocate("a", size)
    arena.allocate("b", 256)
    assert arena.touched == taken + 256
