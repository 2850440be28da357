"""Charts: what is drawn lies inside, spikes survive thinning, gaps stay gaps."""

from __future__ import annotations

import math
import re
from xml.etree import ElementTree

import pytest

from edge_train.charts import HEIGHT, WIDTH, Axis, Chart, Series, draw, number, thinned


def numbers_of(svg: str) -> list[tuple[float, float]]:
    found = []
    for path in re.findall(r' d="([ML][^"]*)"', svg):
        found += [(float(x), float(y)) for x, y in re.findall(r"[ML]([\d.-]+) ([\d.-]+)", path)]
    return found


@pytest.mark.parametrize(
    "ys",
    [
        [1.0, 2.0, 3.0],
        [5.0, 5.0, 5.0],
        [0.0, 0.0],
        [-3.0, 1e-9],
        [1e-8, 1.0, 1e8],
        [math.nan, 1.0, math.inf, 2.0, math.nan],
        [7.0],
        [1e299, -1e299],
    ],
)
@pytest.mark.parametrize("from_zero", [True, False])
def test_everything_lies_inside(ys: list[float], from_zero: bool) -> None:
    points = [(float(x), y) for x, y in enumerate(ys)]
    bands = [(0.5, 1.0, "heat"), (-9.0, 99.0, "all"), (50.0, 60.0, "after")]
    svg = draw(Chart("t", [Series("s", points)], "x", bands=bands, from_zero=from_zero))
    ElementTree.fromstring(svg)
    places = numbers_of(svg)
    assert len(places) >= sum(map(math.isfinite, ys))
    assert all(0 <= x <= WIDTH and 0 <= y <= HEIGHT for x, y in places), places
    assert "nan" not in svg.replace("nan<", "")
    assert "inf" not in svg


def test_a_wide_range_is_logarithmic() -> None:
    svg = draw(Chart("t", [Series("s", [(0, 100.0), (1, 10.0), (2, 1.0)])], "x"))
    heights = [y for _, y in numbers_of(svg)][-3:]
    assert heights[1] - heights[0] == pytest.approx(heights[2] - heights[1])


def test_a_gap_breaks_the_line() -> None:
    points = [(0.0, 1.0), (1.0, 2.0), (2.0, math.nan), (3.0, 4.0), (4.0, 3.0)]
    svg = draw(Chart("t", [Series("s", points)], "x"))
    curve = re.search(r'<path d="(M[^"]*)"/><circle', svg)
    assert curve is not None
    assert re.sub(r"[^ML]", "", curve[1]) == "MLML"


def test_nothing_measured_is_said() -> None:
    assert "nothing was measured" in draw(Chart("Heat", [Series("s", [(0, math.nan)])], "x"))
    assert "nothing was measured" in draw(Chart("Heat", [], "x"))


def test_thinning_keeps_spikes_ends_and_order() -> None:
    points = [(float(x), math.sin(x / 500)) for x in range(20_000)]
    points[12_345] = (12_345.0, 50.0)
    points[777] = (777.0, math.nan)
    few = thinned(points, 400)
    assert 300 <= len(few) <= 420
    assert (12_345.0, 50.0) in few
    assert few[0] == points[0]
    assert few[-1] == points[-1]
    assert [x for x, _ in few] == sorted({x for x, _ in few})
    assert thinned(points[:400], 400) == points[:400]


def test_names_cannot_break_the_page() -> None:
    wrong = '"><script>alert(1)</script>'
    svg = draw(
        Chart(wrong, [Series(wrong, [(0.0, 1.0), (1.0, 2.0)])], wrong, bands=[(0, 1, wrong)])
    )
    assert "<script" not in svg
    ElementTree.fromstring(svg)


def test_a_chart_tells_its_numbers_to_those_who_cannot_see() -> None:
    svg = draw(Chart("Loss", [Series("smoothed", [(0.0, 2.0), (9.0, 0.5)])], "step"))
    assert 'aria-label="Loss: smoothed from 0.5 to 2, at the end 0.5"' in svg


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.00012, "1.2e-4"),
        (0.05, "0.05"),
        (1200, "1200"),
        (12_000, "12k"),
        (2.5e6, "2.5M"),
        (1e12, "1e12"),
    ],
)
def test_numbers_are_short(value: float, text: str) -> None:
    assert number(value) == text


def test_ticks_are_round_and_few() -> None:
    axis = Axis.over([0.0, 97.3], 0, 100)
    assert axis.ticks == (0.0, 50.0, 100.0)
    assert Axis.over([3.0, 24_000.0], 0, 1, tight=True).ticks[:2] == (5000.0, 10000.0)
    assert len(Axis.over([1e-9, 1e9], 0, 1, True).ticks) <= 6
