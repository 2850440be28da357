"""What tools/bench.py measured, as Markdown tables and as a chart (SVG, drawn by hand)."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape

NAMES = {
    "reference": "onnxruntime-training 1.19.2",
    "reference_part": "the same, artifacts of the part",
    "portable": "edge_train, portable",
    "numba": "edge_train, Numba steps",
    "fused_optimizer": "edge_train, fused optimizer",
    "8bit": "edge_train, 8-bit moments",
    "small_state": "edge_train, fused optimizer and 8-bit moments",
    "lean": "edge_train, least memory",
    "torch": "torch eager",
    "torch_compile": "torch.compile",
}
_COLOURS = {"reference": "#8a8f98", "edge_train": "#2f6fb5", "torch": "#d08a3e"}
_COLUMNS = (
    *("side", "median ms", "best ms", "optimizer ms", "of the reference", "of torch eager"),
    *("peak RSS MiB", "above idle", "above imports", "loss, first", "loss, worst of 8"),
)
_BYTES = 32  # AdamW reads four numbers and writes three of each parameter; the scan reads one


@dataclass(frozen=True)
class Row:
    """One side of one work: times in ms a step, memory in MiB, ratios of time to other sides.

    ``optimizer_ms`` is part of ``median_ms``. ``gigabytes_per_second`` and ``gigaflops`` are this
    machine's own, measured in the same minutes with the same number of threads.
    """

    work: str
    batch: int
    threads: int
    side: str
    median_ms: float
    best_ms: float
    optimizer_ms: float
    ratios: dict[str, float]
    peak_rss_mib: float
    above_idle_mib: float
    above_imports_mib: float
    first_loss_difference: float
    loss_difference: float
    trained: int
    flops: float | None
    gigabytes_per_second: float
    gigaflops: float

    @property
    def streaming_share(self) -> float:
        """The optimizer's rate of bytes, as a share of the streaming loop's."""
        return _BYTES * self.trained / self.optimizer_ms / 1e6 / self.gigabytes_per_second

    @property
    def product_share(self) -> float:
        """The time that the products alone need at this machine's rate, as a share of the step."""
        rate = 1e6 * self.gigaflops
        return 0.0 if self.flops is None else self.flops / rate / self.median_ms


def markdown(rows: list[Row]) -> str:
    """A table for each work and number of threads."""
    groups: dict[tuple[str, int], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.work, row.threads), []).append(row)
    return "\n".join(_table(group) for group in groups.values())


def _table(rows: list[Row]) -> str:
    first = rows[0]
    lines = [
        f"### {first.work}, batch {first.batch}, {first.threads} thread(s)",
        "",
        f"| {' | '.join(_COLUMNS)} |",
        "|---" * len(_COLUMNS) + "|",
    ]
    for row in rows:
        lines.append(
            f"| {NAMES.get(row.side, row.side)} | {row.median_ms:.3f} | {row.best_ms:.3f} "
            f"| {row.optimizer_ms:.3f} | {_part(row, 'reference')} | {_part(row, 'torch')} "
            f"| {row.peak_rss_mib:.0f} | {row.above_idle_mib:.0f} | {row.above_imports_mib:.0f} "
            f"| {row.first_loss_difference:.0e} | {row.loss_difference:.0e} |"
        )
    lines += ["", _limits(rows), ""]
    return "\n".join(lines)


def _part(row: Row, other: str) -> str:
    return f"{row.ratios[other]:.2f}" if other in row.ratios else ""


def _limits(rows: list[Row]) -> str:
    first = rows[0]
    text = (
        f"This machine, measured in between: {first.gigabytes_per_second:.1f} GB/s streaming, "
        f"{first.gigaflops:.0f} GFLOP/s of multiply-adds."
    )
    ours = next((row for row in rows if row.side == "edge_train"), None)
    if ours is not None and ours.flops is not None:
        share = f"{100 * ours.product_share:.0f} %"
        text += f" The products alone would take {share} of edge_train's median at that rate."
    if ours is not None and ours.trained >= 4_000_000:  # less of it fits a cache
        share = f"{100 * ours.streaming_share:.0f} %"
        text += f" The optimizer's pass runs at {share} of the streaming rate."
    return text


# ---- the chart ----------------------------------------------------------------------------------

_WIDTH, _BAR, _GAP, _LEFT = 720, 14, 16, 210


def chart(rows: list[Row]) -> str:
    """Time of a step as a share of the reference's: a group of bars for each work."""
    groups: dict[tuple[str, int], list[Row]] = {}
    for row in rows:
        if "reference" in row.ratios and row.side in _COLOURS:
            groups.setdefault((row.work, row.threads), []).append(row)
    longest = max(
        (row.ratios["reference"] for row in rows if row.ratios.get("reference")), default=1
    )
    scale = (_WIDTH - _LEFT - 70) / max(longest, 1.0)
    parts, y = [], 34
    for (work, threads), group in groups.items():
        parts.append(
            f'<text x="{_LEFT - 10}" y="{y + _BAR * len(group) / 2 + 4:.0f}" text-anchor="end">'
            f"{escape(work)}, {threads} thread{'s' * (threads > 1)}</text>"
        )
        for row in group:
            parts.append(_bar(row, y, scale))
            y += _BAR
        y += _GAP
    whole = f'<line x1="{_LEFT + scale:.1f}" x2="{_LEFT + scale:.1f}" y1="26" y2="{y - _GAP}"/>'
    return "\n".join([*_head(y), *parts, whole, "</svg>", ""])


def _bar(row: Row, y: int, scale: float) -> str:
    share = row.ratios["reference"]
    words = f"{NAMES.get(row.side, row.side)}: {share:.2f}"
    return (
        f'<rect x="{_LEFT}" y="{y}" width="{share * scale:.1f}" height="{_BAR - 2}" '
        f'fill="{_COLOURS[row.side]}"><title>{escape(words)}</title></rect>'
        f'<text x="{_LEFT + share * scale + 5:.1f}" y="{y + 10}" class="n">{share:.2f}</text>'
    )


def _head(height: int) -> list[str]:
    legend, x = [], _LEFT
    for side, colour in _COLOURS.items():
        name = NAMES.get(side, side)
        legend.append(f'<rect x="{x}" y="8" width="10" height="10" fill="{colour}"/>')
        legend.append(f'<text x="{x + 15}" y="17">{escape(name)}</text>')
        x += 40 + 7 * len(name)
    return [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img" '
        'aria-label="Time of a training step as a share of onnxruntime-training\'s">',
        "<style>text{font:12px sans-serif;fill:#333}.n{font-size:11px;fill:#666}"
        "line{stroke:#8a8f98;stroke-dasharray:3 3}</style>",
        f'<rect width="{_WIDTH}" height="{height}" fill="#fff"/>',
        *legend,
    ]
