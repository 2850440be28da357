"""The report of a run: one HTML page that needs no script, no font and no network."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timezone
from html import escape
from typing import Any

from edge_train.charts import Chart, Point, Series, draw, number
from edge_train.progress import duration
from edge_train.run_history import Event, History, Sample

_MOST_EVENTS = 100
_MOST_METRICS = 6
_SMOOTH = 0.02

_TOLD_ELSEWHERE = frozenset(
    ("reason", "step", "steps", "stop", "seconds", "at", "loss", "epoch", "peak_memory", "paused")
)
_WORDS = {"detail": "because", "saved": "saved as", "resumed_from": "resumed at step"}

_STYLE = """
:root{--ink:#1c2026;--dim:#666e7a;--line:#dfe3e8;--paper:#fff;--card:#f7f8fa;--a:#1764c0;--b:#c2410c}
@media(prefers-color-scheme:dark){:root{--ink:#e6e9ee;--dim:#98a1ad;--line:#3a414b;--paper:#14171b;
--card:#1c2026;--a:#6cabf5;--b:#f59e6c}}
*{box-sizing:border-box}
body{margin:0 auto;padding:16px;max-width:1080px;font:16px/1.45 system-ui,sans-serif;
color:var(--ink);background:var(--paper)}
h1{font-size:22px;margin:4px 0 2px;overflow-wrap:anywhere}h2{font-size:16px;margin:0 0 6px}
.sub{color:var(--dim);margin:0 0 14px}.none{color:var(--dim)}
main{display:grid;gap:12px;grid-template-columns:repeat(auto-fit,minmax(min(100%,400px),1fr))}
section{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:12px;
min-width:0}
section.wide{grid-column:1/-1}
svg{display:block;width:100%;height:auto}svg text{font:12px system-ui,sans-serif;fill:var(--dim)}
.grid{stroke:var(--line);fill:none}.band{fill:var(--b);opacity:.18}
svg g path{fill:none;stroke-width:1.8;stroke-linejoin:round}
.a path{stroke:var(--a)}.a circle{fill:var(--a)}
.b path{stroke:var(--b)}.b circle{fill:var(--b)}
.raw path{stroke:var(--a);opacity:.35;stroke-width:1}.raw circle{fill:var(--a);opacity:.35}
.key{font-size:14px;color:var(--dim);margin:4px 0 0}.key b{font-weight:600}
.key .a{color:var(--a)}.key .b{color:var(--b)}.key .raw{color:var(--a);opacity:.6}
table{border-collapse:collapse;width:100%}
td,th{padding:4px 8px 4px 0;text-align:left;vertical-align:top;border-top:1px solid var(--line);
overflow-wrap:anywhere}
tr:first-child>td,tr:first-child>th{border-top:0}th{font-weight:400;color:var(--dim);width:38%}
@media(max-width:520px){svg text{font-size:14.5px}body{padding:10px}}
"""


def page(history: History, name: str, now: float) -> str:
    """The whole page; ``name`` is shown as its heading, ``now`` is a time in Unix seconds."""
    made = datetime.fromtimestamp(now, timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
    cards = [_card("Summary", _table(summary(history)))]
    cards += [_chart_card(chart) for chart in charts(history)]
    cards.append(_card("Events", _events(history.events), "wide"))
    return "\n".join(
        (
            '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width,initial-scale=1">',
            f'<title>{escape(name)}</title><link rel="icon" href="data:,">',
            f"<style>{_STYLE}</style></head><body>",
            f'<h1>{escape(name)}</h1><p class="sub">edge-train report, {made}</p><main>',
            *cards,
            "</main></body></html>\n",
        )
    )


def summary(history: History) -> list[tuple[str, str]]:
    """Rows of name and text."""
    rows = [("state", _state(history)), ("steps", _steps(history))]
    rows.append(("time", duration(history.seconds)))
    losses = [point for _, point in smoothed(history.samples) if math.isfinite(point)]
    if losses:
        rows.append(("loss", f"{losses[0]:.4g} at first, {losses[-1]:.4g} at the end (smoothed)"))
    bad = sum(sample.bad for sample in history.samples)
    if bad:
        rows.append(("steps without a finite loss", str(bad)))
    rows += _most("peak memory", history.samples, lambda s: s.rss, _megabytes)
    rows += _most("highest temperature", history.samples, lambda s: s.temperature, _degrees)
    rates = sorted(s.rows_per_second for s in history.samples if s.rows_per_second > 0)
    if rates:
        rows.append(("rows per second", f"{number(rates[len(rates) // 2])} (median)"))
    paused: Counter[str] = Counter()
    for start, end, reason in history.pauses():
        paused[reason] += int(end - start + 0.5)
    told = (history.end or {}).get("paused")
    for reason, seconds in (told if isinstance(told, Mapping) else {}).items():
        if reason not in paused and isinstance(seconds, (int, float)):
            paused[reason] = int(seconds + 0.5)  # the duty cycle has no events
    rows += [(f"paused: {r.replace('_', ' ')}", duration(s)) for r, s in paused.items()]
    if history.attempts > 1:
        killed = f", {history.killed} of them killed" if history.killed else ""
        rows.append(("started", f"{history.attempts} times{killed}"))
    if history.broken:
        rows.append(("unreadable lines", str(history.broken)))
    return rows + list(_ending(history.end or {}))


def _ending(end: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """What a Result tells beyond the curves, and what anyone else closed the run with."""
    for key, value in end.items():
        if key in _TOLD_ELSEWHERE or value in (None, "", 0, {}, []):
            continue
        if key == "best" and isinstance(value, Mapping) and "metric" in value:
            words = f"{_text(value.get('value'))} at step {_text(value.get('step'))}"
            yield f"best {value['metric']}", words
        elif key == "bytes_written" and isinstance(value, (int, float)):
            yield "states written", _megabytes(float(value))
        elif key == "throttled" and isinstance(value, (int, float)):
            yield "throttled for", duration(float(value))
        elif key == "metrics" and isinstance(value, Mapping):
            yield from ((f"last {name}", _text(number)) for name, number in value.items())
        else:
            yield _WORDS.get(key, key.replace("_", " ")), _text(value)


def charts(history: History) -> list[Chart]:
    """Loss, rate, throughput, memory and temperature, and a chart for each metric."""
    samples = history.samples
    unit, scale = _time_unit(history.seconds)
    bands = [(start / scale, end / scale, words) for start, end, words in history.pauses()]

    def over_time(title: str, pick: Callable[[Sample], float], **more: Any) -> Chart:
        points = [(sample.t / scale, pick(sample)) for sample in samples]
        return Chart(title, [Series(title, points)], unit, bands=bands, **more)

    every = [(float(s.step), s.loss) for s in samples]
    metrics = _metrics(history.events)
    loss = [Series("as measured", every, "raw"), Series("smoothed", smoothed(samples))]
    loss += [Series("evaluation", p, "b") for key, p in metrics.items() if key == "loss"]
    rate = [Series("learning rate", [(float(s.step), s.lr) for s in samples])]
    others = [key for key in metrics if key != "loss"][:_MOST_METRICS]
    return [
        Chart("Loss", loss, "step"),
        *(Chart(_title(key), [Series(key, metrics[key], "b")], "step") for key in others),
        Chart("Learning rate", rate, "step", from_zero=True),
        over_time("Rows per second", lambda s: s.rows_per_second, from_zero=True),
        over_time("Memory in MB", lambda s: s.rss / 2**20, from_zero=True),
        over_time("Temperature in °C", lambda s: s.temperature),
    ]


def smoothed(samples: Sequence[Sample]) -> list[Point]:
    """The running mean of the losses over 2 % of the steps, the first ones not pulled to zero."""
    points: list[Point] = []
    total = weight = 0.0
    reach = max(_SMOOTH * sum(sample.steps for sample in samples), 5.0)
    for sample in samples:
        if math.isfinite(sample.loss):
            kept = math.exp(-max(sample.steps, 1) / reach)
            total = kept * total + (1 - kept) * sample.loss
            weight = kept * weight + (1 - kept)
        points.append((float(sample.step), total / weight if weight else math.nan))
    return points


def _metrics(events: Iterable[Event]) -> dict[str, list[Point]]:
    """The numbers of events that tell of an evaluation, by name."""
    found: dict[str, list[Point]] = {}
    for event in events:
        if not event.name.startswith("eval"):
            continue
        nested = event.fields.get("metrics")
        fields = {**event.fields, **(nested if isinstance(nested, Mapping) else {})}
        for key, value in fields.items():
            if key in ("step", "epoch", "at", "seconds") or isinstance(value, bool):
                continue
            if isinstance(value, (int, float)):
                found.setdefault(key, []).append((float(event.step), float(value)))
    return found


def _title(key: str) -> str:
    words = key.replace("_", " ")
    return words[:1].upper() + words[1:]


def _time_unit(seconds: float) -> tuple[str, float]:
    if seconds < 180:
        return "seconds", 1.0
    return ("minutes", 60.0) if seconds < 10800 else ("hours", 3600.0)


def _state(history: History) -> str:
    if history.end is None:
        return "no end was written: it runs still, or it was killed"
    reason = history.end.get("reason") or history.end.get("stop") or "ended"
    return _text(reason).replace("_", " ")


def _steps(history: History) -> str:
    last = max((sample.step for sample in history.samples), default=0)
    return f"{last} of {history.total}" if history.total else str(last)


def _most(
    name: str,
    samples: Iterable[Sample],
    pick: Callable[[Sample], float],
    text: Callable[[float], str],
) -> list[tuple[str, str]]:
    values = [value for value in map(pick, samples) if math.isfinite(value)]
    return [(name, text(max(values)))] if values else []


def _megabytes(value: float) -> str:
    return f"{value / 2**20:.4g} MB"


def _degrees(value: float) -> str:
    return f"{value:.3g} °C"


def _text(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_text(item)}" for key, item in value.items()) or "none"
    if isinstance(value, list):
        return ", ".join(map(_text, value)) or "none"
    if isinstance(value, float):
        return f"{value:.6g}"
    return "none" if value is None else str(value)


def _card(title: str, body: str, kind: str = "") -> str:
    return f'<section class="{kind}"><h2>{escape(title)}</h2>{body}</section>'


def _chart_card(chart: Chart) -> str:
    key = ""
    if len(chart.series) > 1:
        names = " &nbsp; ".join(
            f'<b class="{s.style}">{escape(s.name)}</b>' for s in chart.series if s.points
        )
        key = f'<p class="key">{names}</p>'
    if chart.bands:
        key += '<p class="key">shaded: paused</p>'
    return _card(chart.title, draw(chart) + key)


def _table(rows: Iterable[tuple[str, str]]) -> str:
    body = "".join(f"<tr><th>{escape(a)}</th><td>{escape(b)}</td></tr>" for a, b in rows)
    return f"<table>{body}</table>"


def _events(events: Sequence[Event]) -> str:
    told = [event for event in events if not event.name.startswith("eval")]  # they have charts
    left_out = len(told) - _MOST_EVENTS
    rows = [(f"the first {left_out}", "are not shown")] if left_out > 0 else []
    for event in told[-_MOST_EVENTS:]:
        rows.append((f"{duration(event.t)}, step {event.step}", _event_words(event)))
    return _table(rows) if rows else '<p class="none">none</p>'


def _event_words(event: Event) -> str:
    name = event.name.replace("_", " ")
    if "text" in event.fields:
        reason = _text(event.fields.get("reason", "")).replace("_", " ")
        return f"{name} {reason}".strip() + f": {_text(event.fields['text'])}"
    keys = ("reason",) if event.name == "end" else tuple(event.fields)
    fields = {k: event.fields[k] for k in keys if k in event.fields and k not in ("at", "step")}
    return f"{name}: {_text(fields)}" if fields else name
