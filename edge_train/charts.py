"""Line charts as inline SVG: no script, no font, no file beside the page.

A chart is 400 units wide, so that its text can be read where a phone shrinks it to 330 pixels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from html import escape

WIDTH, HEIGHT = 400, 230
_LEFT, _RIGHT, _TOP, _BOTTOM = 54, 12, 12, 34
_MOST_POINTS = 500

Point = tuple[float, float]


@dataclass(frozen=True)
class Series:
    """A curve: ``points`` as (x, y), y NaN where there is a gap; ``style`` is a CSS class."""

    name: str
    points: Sequence[Point]
    style: str = "a"


@dataclass(frozen=True)
class Chart:
    """``bands`` are stretches of x that are shaded, each with its words."""

    title: str
    series: Sequence[Series]
    x_label: str
    x_text: Callable[[float], str] = field(default=lambda value: number(value))
    y_text: Callable[[float], str] = field(default=lambda value: number(value))
    bands: Sequence[tuple[float, float, str]] = ()
    from_zero: bool = False


def draw(chart: Chart) -> str:
    """The chart as an SVG element."""
    shown = [Series(s.name, thinned(s.points), s.style) for s in chart.series]
    xs = [x for series in shown for x, _ in series.points]
    ys = [y for series in shown for _, y in series.points if math.isfinite(y)]
    if not ys:
        return '<p class="none">nothing was measured</p>'
    logarithmic = min(ys) > 0 and max(ys) > 50 * min(ys) and not chart.from_zero
    across = Axis.over(xs, _LEFT, WIDTH - _RIGHT, tight=True)
    up = Axis.over([0.0, *ys] if chart.from_zero else ys, HEIGHT - _BOTTOM, _TOP, logarithmic)
    label = f"{chart.title}: {'; '.join(_words(series, chart) for series in shown)}"
    parts = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(label)}">',
        *(_band(band, across) for band in chart.bands),
        *_grid(across, up, chart),
        *(_curve(series, across, up) for series in shown),
        "</svg>",
    ]
    return "\n".join(parts)


@dataclass(frozen=True)
class Axis:
    """Maps low..high to pixels; ``ticks`` are round values within."""

    low: float
    high: float
    start: float
    end: float
    ticks: tuple[float, ...]
    logarithmic: bool = False

    @staticmethod
    def over(
        values: Sequence[float],
        start: float,
        end: float,
        logarithmic: bool = False,
        tight: bool = False,
    ) -> Axis:
        """An axis that holds all values; ``tight`` ends at the first and the last of them."""
        low, high = min(values), max(values)
        if logarithmic:
            decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
            ticks = tuple(10.0**decade for decade in decades)
            return Axis(ticks[0], ticks[-1], start, end, _some(ticks), True)
        if high - low <= 1e-12 * max(abs(high), abs(low)):
            room = abs(high) * 0.1 or 1.0
            low, high = low - (0 if tight else room), high + room
        step = _round_step((high - low) / (5 if tight else 4))
        first, last = math.floor(low / step), math.ceil(high / step)
        ticks = tuple(step * index for index in range(first, last + 1))
        if tight:
            ticks = tuple(tick for tick in ticks if low <= tick <= high)
            return Axis(low, high, start, end, ticks)
        return Axis(ticks[0], ticks[-1], start, end, ticks)

    def at(self, value: float) -> float:
        """The pixel of a value."""
        low, high = self.low, self.high
        if self.logarithmic:
            value, low, high = math.log10(value), math.log10(low), math.log10(high)
        return self.start + (value - low) / (high - low) * (self.end - self.start)


def thinned(points: Sequence[Point], most: int = _MOST_POINTS) -> list[Point]:
    """At most about ``most`` points: of each stretch the lowest and the highest, and gaps."""
    if len(points) <= most:
        return list(points)
    size = 2 * len(points) / most
    kept: list[Point] = [points[0]]
    for index in range(math.ceil(len(points) / size)):
        part = points[int(index * size) : int((index + 1) * size)]
        finite = [point for point in part if math.isfinite(point[1])]
        chosen = [min(finite, key=_height), max(finite, key=_height)] if finite else [part[0]]
        kept += sorted({point for point in chosen if point != kept[-1]})
    return kept if kept[-1] == points[-1] else [*kept, points[-1]]


def number(value: float) -> str:
    """A short number: 1,200 is "1200", 12,000 "12k", 0.0001 "1e-4"."""
    if abs(value) >= 1e10 or 0 < abs(value) < 1e-3:
        mantissa, _, exponent = f"{value:.2e}".partition("e")
        return f"{float(mantissa):g}e{int(exponent)}"
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            return f"{value / (1e3 if unit == 'k' else size):.4g}{unit}"
    return f"{value:.4g}"


def _height(point: Point) -> float:
    return point[1]


def _round_step(rough: float) -> float:
    unit = 10.0 ** math.floor(math.log10(rough))
    return next(unit * factor for factor in (1, 2, 5, 10) if unit * factor >= rough * 0.999)


def _some(ticks: tuple[float, ...]) -> tuple[float, ...]:
    return ticks[:: math.ceil(len(ticks) / 6)]


def _words(series: Series, chart: Chart) -> str:
    ys = [y for _, y in series.points if math.isfinite(y)]
    if not ys:
        return f"{series.name} was not measured"
    low, high = chart.y_text(min(ys)), chart.y_text(max(ys))
    return f"{series.name} from {low} to {high}, at the end {chart.y_text(ys[-1])}"


def _band(band: tuple[float, float, str], across: Axis) -> str:
    start, end, words = band
    left, right = (across.at(min(max(x, across.low), across.high)) for x in (start, end))
    width = max(right - left, 1.5)
    size = f'width="{width:.1f}" height="{HEIGHT - _BOTTOM - _TOP}"'
    title = f"<title>{escape(words)}</title>"
    return f'<rect class="band" x="{left:.1f}" y="{_TOP}" {size}>{title}</rect>'


def _grid(across: Axis, up: Axis, chart: Chart) -> list[str]:
    bottom = HEIGHT - _BOTTOM
    parts = []
    for tick in up.ticks:
        y = up.at(tick)
        parts.append(f'<path class="grid" d="M{_LEFT} {y:.1f}H{WIDTH - _RIGHT}"/>')
        text = escape(chart.y_text(tick))
        parts.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{text}</text>')
    for tick in across.ticks:
        x = across.at(tick)
        parts.append(f'<path class="grid" d="M{x:.1f} {bottom}v4"/>')
        anchor = "end" if x > WIDTH - 30 else "middle"
        text = escape(chart.x_text(tick))
        parts.append(f'<text x="{x:.1f}" y="{bottom + 16}" text-anchor="{anchor}">{text}</text>')
    label = escape(chart.x_label)
    parts.append(f'<text x="{WIDTH / 2}" y="{HEIGHT - 3}" text-anchor="middle">{label}</text>')
    return parts


def _curve(series: Series, across: Axis, up: Axis) -> str:
    pen, parts = "M", []
    places = [(across.at(x), up.at(y) if math.isfinite(y) else math.nan) for x, y in series.points]
    for x, y in places:
        if math.isnan(y):
            pen = "M"
            continue
        parts.append(f"{pen}{x:.1f} {y:.1f}")
        pen = "L"
    dots = ""
    if len(parts) <= 30:
        shown = [place for place in places if not math.isnan(place[1])]
        dots = "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5"/>' for x, y in shown)
    title = f"<title>{escape(series.name)}</title>"
    return f'<g class="{series.style}">{title}<path d="{"".join(parts)}"/>{dots}</g>'
