"""Gradient rows of arithmetic element by element."""

from __future__ import annotations

import numpy as np
from support.gradients import Array, Arrays, Row, away, chain, node, normals, single

from edge_train import dtypes

A, B, ROW, COLUMN, SCALAR = normals(1, (2, 3), (2, 3), (3,), (2, 1), ())

ROWS: list[Row] = [
    single("Identity", {"x": A}),
    single("Neg", {"x": A}),
    *(
        single(f"{op}{form}", {"a": a, "b": b})
        for op in ("Add", "Sub", "Mul", "Div")
        for form, a, b in (
            ("", A, np.abs(B) + np.float32(0.5)),
            (":row", A, ROW + np.float32(3)),
            (":column", COLUMN, A + np.float32(4)),
            (":outer", ROW, COLUMN + np.float32(3)),
            (":scalar", SCALAR, A + np.float32(4)),
            (":scalars", SCALAR, np.float32(2.5) * np.ones((), np.float32)),
        )
    ),
    chain("Mul:square", [node("Mul", "x x", "y", "")], {"x": A}),
    single("Sum", {"a": A, "b": ROW, "c": COLUMN}),
    single("Sum:one", {"a": A}),
]

# --- powers, extremes, bounds --------------------------------------------------------------------

POSITIVE = np.abs(A) + np.float32(0.3)
SIGNED = away(A, 0, by=0.2)
EXPONENTS = np.array([0, 1, 2], np.float32)


def constant(*values: float) -> dict[str, Array]:
    return {"c": np.array(values[0] if len(values) == 1 else values, np.float32)}


def pow_at_zero(inputs: dict[str, Array], r: dict[str, Array]) -> Arrays:
    """x^0, x^1 and x^2 at 0 have slopes 0, 1 and 0; in the exponent none has one."""
    return {"x": np.array([0, 1, 0]) * r["y"], "e": np.zeros(3)}


POWERS = [
    single("Pow", {"x": POSITIVE, "e": B}),
    single("Pow:square", {"x": A}, constants=constant(2)),
    single("Pow:square_one_axis", {"x": SCALAR}, constants={"c": np.array([2], np.float32)}),
    single("Pow:cube", {"x": SIGNED}, constants=constant(3)),
    single("Pow:root", {"x": POSITIVE}, constants=constant(0.5)),
    single("Pow:inverse", {"x": SIGNED}, constants=constant(-1)),
    single("Pow:nothing", {"x": SIGNED}, constants=constant(0)),
    single("Pow:mixed", {"x": SIGNED}, constants=constant(0, 1, 2)),
    single("Pow:int", {"x": SIGNED}, constants={"c": np.array([3, 2, 1], np.int64)}),
    single("Pow:broadcast_base", {"x": np.abs(ROW) + np.float32(0.5), "e": A}),
    single("Pow:broadcast_exponent", {"x": POSITIVE, "e": COLUMN}),
    single("Pow:scalar_exponent", {"x": POSITIVE, "e": SCALAR}),
    single("Pow:base_of_numbers", {"e": A}, "c e", constants=constant(2)),
    single("Pow:zero", {"x": np.zeros(3, np.float32), "e": EXPONENTS}, expected=pow_at_zero),
]

DIVISOR = np.array([[0.7], [-1.3]], np.float32)
REMAINDERS = [
    single("Mod", {"a": A * 3, "b": np.abs(B) + 1}, attrs={"fmod": 1}),
    single("Mod:column", {"a": A * 3, "b": DIVISOR}, attrs={"fmod": 1}),
]

TIES = np.array([1, 2, 3], np.float32)


def shared(inputs: dict[str, Array], r: dict[str, Array]) -> Arrays:
    """a ties with b at 1, with b and c at 3, and is alone at 2."""
    return {
        "a": r["y"] * [1 / 2, 1, 1 / 3],
        "b": r["y"] * [1 / 2, 0, 1 / 3],
        "c": r["y"] * [0, 0, 1 / 3],
    }


TIED = {
    "Max": {"a": TIES, "b": TIES - [0, 1, 0], "c": TIES - [1, 1, 0]},
    "Min": {"a": TIES, "b": TIES - [0, -1, 0], "c": TIES - [-1, -1, 0]},
}

EXTREMES = [
    *(single(op, {"a": A, "b": B}) for op in TIED),
    *(single(f"{op}:three", {"a": A, "b": ROW, "c": COLUMN}) for op in TIED),
    *(single(f"{op}:one", {"a": A}) for op in TIED),
    *(single(f"{op}:constant", {"a": away(A, 0)}, constants=constant(0)) for op in TIED),
    *(
        single(
            f"{op}:ties",
            {name: value.astype(np.float32) for name, value in tied.items()},
            expected=shared,
        )
        for op, tied in TIED.items()
    ),
    single("Mean", {"a": A, "b": ROW, "c": COLUMN}),
    single("Mean:one", {"a": A}),
    chain("Mean:twice", [node("Mean", "a a b", "y", "")], {"a": A, "b": B}),
]

WIDE = away(3 * A, -1, 1)
LOW, HIGH = np.float32(-1) * np.ones((), np.float32), np.ones((), np.float32)


def bounds_inside(inputs: dict[str, Array], r: dict[str, Array]) -> Arrays:
    return {"x": r["y"] * [1, 1, 0, 0]}


CUTS = [
    single("Clip", {"x": WIDE}, constants={"low": LOW, "high": HIGH}),
    single("Clip:low", {"x": WIDE}, constants={"low": LOW}),
    single("Clip:high", {"x": WIDE}, "x _ high", constants={"high": HIGH}),
    single("Clip:free", {"x": WIDE}),
    single("Clip:trained", {"x": WIDE, "low": np.asarray(LOW), "high": np.asarray(HIGH)}),
    single(
        "Clip:bounds",
        {"x": np.array([-1, 1, 1.5, -1.5], np.float32)},
        constants={"low": LOW, "high": HIGH},
        expected=bounds_inside,
    ),
]

FLAGS = np.array([[True, False, True], [False, False, True]])
CHOICES = [
    single("Where", {"c": FLAGS, "a": A, "b": B}),
    single("Where:row", {"c": FLAGS, "a": ROW, "b": B}),
    single("Where:column", {"c": FLAGS, "a": A, "b": COLUMN}),
    single("Where:scalars", {"c": FLAGS, "a": SCALAR, "b": SCALAR + 1}),
    single("Where:small_condition", {"c": FLAGS[:1], "a": A, "b": B}),
    single("Where:constant", {"c": FLAGS, "b": B}, "c k b", constants={"k": SCALAR}),
]

WHOLE = dtypes.FLOAT
CASTS = [
    chain(
        "Cast",
        [node("Cast", "x", "h", "", to=WHOLE), node("Mul", "h h", "y", "")],
        {"x": A},
    ),
    chain(
        "CastLike",
        [node("CastLike", "x like", "h", ""), node("Mul", "h h", "y", "")],
        {"x": A, "like": ROW},
        zero=("like",),
    ),
    chain(
        "Cast:integers",
        [node("Cast", "x", "i", "", to=dtypes.INT64), node("Cast", "i", "f", "", to=WHOLE),
         node("Mul", "f x", "y", "")],
        {"x": 3 * A},
        expected=lambda inputs, r: {"x": r["y"] * np.trunc(inputs["x"])},
    ),
]  # fmt: skip

CUT_OFF = [
    chain(
        f"Mul:{op}",
        [node(op, "x", "h", ""), node("Mul", "h x", "y", "")],
        {"x": 3 * A},
        expected=lambda inputs, r, f=function: {"x": r["y"] * f(inputs["x"])},
    )
    for op, function in (("Sign", np.sign), ("Floor", np.floor), ("Ceil", np.ceil))
]

ROWS += [*POWERS, *REMAINDERS, *EXTREMES, *CUTS, *CHOICES, *CASTS, *CUT_OFF]
