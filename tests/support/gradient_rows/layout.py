"""Gradient rows of the ops that move data."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from support.gradients import Row, chain, normals, single

from edge_train.graph import ir

ROW, A, CUBE, ONES, EMPTY = normals(11, (3,), (2, 3), (2, 3, 4), (2, 1, 3, 1), (0, 3))
IMAGE = normals(12, (2, 2, 4, 5))[0]


def ints(*values: int) -> NDArray[np.int64]:
    return np.array(values, np.int64)


def _pad(
    form: str, x: NDArray[np.float32], pads: tuple[int, ...], mode: str, **more: object
) -> Row:
    constants: dict[str, NDArray[np.generic]] = {"pads": ints(*pads)}
    reads = "x pads"
    if "axes" in more:
        reads, constants["axes"] = "x pads _ axes", ints(*more["axes"])  # type: ignore[misc]
    return single(f"Pad:{mode} {form}", {"x": x}, reads, constants=constants, attrs={"mode": mode})


def _slice(form: str, *limits: tuple[int, ...]) -> Row:
    names = ("starts", "ends", "axes", "steps")
    constants = {name: ints(*values) for name, values in zip(names, limits, strict=False)}
    return single(f"Slice{form}", {"x": CUBE}, constants=constants)


ROWS: list[Row] = [
    single("Reshape", {"x": CUBE}, constants={"shape": ints(4, -1)}),
    single("Reshape:zero", {"x": CUBE}, constants={"shape": ints(0, -1)}),
    single("Reshape:scalar", {"x": ROW[:1]}, constants={"shape": ints()}),
    single("Flatten", {"x": CUBE}),
    single("Flatten:axis 0", {"x": CUBE}, attrs={"axis": 0}),
    single("Flatten:axis -1", {"x": CUBE}, attrs={"axis": -1}),
    single("Squeeze", {"x": ONES}, constants={"axes": ints(1, -1)}),
    single("Squeeze:all", {"x": ONES}, symbols=False),  # the rank depends on the sizes
    single("Squeeze:one", {"x": ONES}, constants={"axes": ints(-3)}),
    single("Unsqueeze", {"x": A}, constants={"axes": ints(0, -1)}),
    single(
        "Unsqueeze:scalar",
        {"x": np.float32(3) * np.ones((), np.float32)},
        constants={"axes": ints(0)},
    ),
    single("Transpose", {"x": CUBE}, attrs={"perm": [1, 2, 0]}),
    single("Transpose:no perm", {"x": CUBE}),
    single("Transpose:vector", {"x": ROW}),
    single("Concat", {"a": A, "b": A[:1]}, attrs={"axis": 0}),
    single(
        "Concat:axis -1", {"a": CUBE, "b": CUBE[..., :1], "c": CUBE[..., 1:3]}, attrs={"axis": -1}
    ),
    single("Concat:same", {"a": A}, "a a", attrs={"axis": 1}),
    single("Concat:one", {"a": A}, attrs={"axis": 1}),
    single("Concat:frozen", {"a": A, "b": A}, attrs={"axis": 1}, wanted=("b",)),
    single("Split", {"x": CUBE}, makes="y z", attrs={"axis": -1, "num_outputs": 2}),
    single(
        "Split:sizes", {"x": CUBE}, makes="y z", constants={"split": ints(1, 3)}, attrs={"axis": 2}
    ),
    single("Split:uneven", {"x": CUBE}, makes="y z", attrs={"axis": 1, "num_outputs": 2}),
    single(
        "Split:unused",
        {"x": CUBE},
        makes="y z u",
        constants={"split": ints(1, 2, 1)},
        attrs={"axis": 2},
        outputs=("z",),
    ),
    single("Expand", {"x": ROW}, constants={"shape": ints(2, 1, 3)}),
    single("Expand:own axes", {"x": A[:1]}, constants={"shape": ints(4, 1)}),
    single("Expand:scalar", {"x": np.ones((), np.float32)}, constants={"shape": ints(2, 2)}),
    single("Tile", {"x": A}, constants={"repeats": ints(2, 3)}),
    single("Tile:vector", {"x": ROW}, constants={"repeats": ints(1)}),
    single("Tile:computed", {"x": A, "repeats": ints(2, 3)}, sized=("repeats",)),
    single("Pad", {"x": A}, constants={"pads": ints(1, 0, 0, 2)}),
    _pad("crop", CUBE, (0, -1, 1, -1, 0, -2), "constant"),
    _pad("axes", CUBE, (1, 2, 0, -1), "constant", axes=(-1, 0)),
    single(
        "Pad:value",
        {"x": A, "value": np.float32(0.5) * np.ones((), np.float32)},
        "x pads value",
        constants={"pads": ints(1, -1, 0, 2)},
    ),
    single(
        "Pad:value axes",
        {"x": A, "value": np.float32(0.5) * np.ones((), np.float32)},
        "x pads value axes",
        constants={"pads": ints(1, 2), "axes": ints(1)},
    ),
    single("Pad:computed", {"x": A, "pads": ints(1, 0, 0, 2)}, "x pads", sized=("pads",)),
    *(
        row
        for mode in ("reflect", "edge", "wrap")
        for row in (
            _pad("2d", IMAGE, (0, 0, 1, 2, 0, 0, 3, 1), mode),
            _pad("axes", IMAGE, (2, 1, 0, 3), mode, axes=(-1, 2)),
            _pad("vector", ROW, (2, 1), mode),
        )
    ),
    single(
        "Pad:reflect computed",
        {"x": IMAGE, "pads": ints(0, 0, 1, 2, 0, 0, 3, 1)},
        "x pads",
        sized=("pads",),
        attrs={"mode": "reflect"},
    ),
    _slice("", (1,), (3,), (1,)),
    _slice(":two", (0, 1), (1, 3)),
    _slice(":strided", (0, 3), (3, 0), (1, -1), (2, -2)),
    _slice(":from end", (-3,), (-1,), (2,)),
    _slice(":clamped", (-100, 1), (100, 2**62), (1, 2)),
    _slice(":reversed", (-1,), (-100,), (2,), (-1,)),
    _slice(":reversed to the front", (2**31,), (-(2**63),), (1,), (-1,)),
    _slice(":empty", (2,), (2,), (1,)),
    single("Slice:computed", {"x": CUBE, "s": ints(1), "e": ints(3)}, sized=("s", "e")),
    single("Trilu", {"x": CUBE}),
    single("Trilu:lower", {"x": CUBE}, constants={"k": np.array(-1)}, attrs={"upper": 0}),
    single(
        "ReverseSequence",
        {"x": CUBE},
        constants={"lens": ints(2, 1, 2)},
        attrs={"time_axis": 0, "batch_axis": 1},
    ),
    single(
        "ReverseSequence:batch",
        {"x": CUBE},
        constants={"lens": ints(3, 2)},
        attrs={"time_axis": 1, "batch_axis": 0},
    ),
    *(
        single(
            f"CenterCropPad{form}",
            {"x": IMAGE},
            constants={"shape": ints(*shape)},
            attrs={"axes": axes} if axes else {},
        )
        for form, shape, axes in (
            ("", (2, 2, 3, 8), ()),
            (":odd", (1, 3, 1, 2), ()),
            (":axes", (8, 3), (-1, 2)),
            (":axis", (4,), (3,)),
        )
    ),
    chain(
        "Concat:twice",
        [
            ir.make_node("Concat", ["x", "y"], ["z"], "first", axis=0),
            ir.make_node("Concat", ["z", "x"], ["u"], "second", axis=0),
        ],
        {"x": A, "y": A},
    ),
]
