"""tools/bench.py: its tables and chart, what parts of networks train, a run by itself."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from tools.bench_flops import training_flops
from tools.bench_models import WORKLOADS
from tools.bench_report import Row, chart, markdown

ROOT = Path(__file__).parents[2]


def _row(side: str, ratio: float, work: str = "mlp64", trained: int = 397510) -> Row:
    return Row(
        work=work,
        batch=64,
        threads=1,
        side=side,
        median_ms=2.0 * ratio,
        best_ms=1.9 * ratio,
        optimizer_ms=0.5,
        ratios={"reference": ratio, "torch": ratio / 1.5},
        peak_rss_mib=300,
        above_idle_mib=20,
        above_imports_mib=8,
        first_loss_difference=0,
        loss_difference=1e-7,
        trained=trained,
        flops=1.024e8,
        gigabytes_per_second=40.0,
        gigaflops=80.0,
    )


ROWS = [_row("reference", 1.0), _row("edge_train", 0.6), _row("torch", 1.5)]


def test_the_table_has_a_row_for_each_side() -> None:
    text = markdown(ROWS)
    assert "### mlp64, batch 64, 1 thread(s)" in text
    assert (
        "| edge_train | 1.200 | 1.140 | 0.500 | 0.60 | 0.40 | 300 | 20 | 8 | 0e+00 | 1e-07 |"
        in text
    )
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert {line.count("|") for line in lines} == {12}
    assert "40.0 GB/s" in text
    # 102.4 MFLOP at 80 GFLOP/s take 1.28 ms
    assert "would take 107 % of edge_train's median" in text
    assert "pass" not in text  # the MLP's moments fit a cache


def test_the_optimizers_pass_is_told_in_shares_of_the_streaming_rate() -> None:
    text = markdown([_row("edge_train", 0.5, "wide", 16_000_000)])
    rate = 32 * 16_000_000 / 0.5e-3 / 1e9
    assert f"pass runs at {100 * rate / 40:.0f} % of" in text


def test_the_chart_is_an_image_with_a_bar_for_each_side() -> None:
    root = ElementTree.fromstring(chart(ROWS))
    bars = [each for each in root.iter() if each.tag.endswith("title")]
    words = {each.text for each in bars}
    assert words == {"onnxruntime-training 1.19.2: 1.00", "edge_train: 0.60", "torch eager: 1.50"}
    rectangles = [each for each in root.iter() if each.tag.endswith("rect") and len(each)]
    widths = [float(each.get("width", "")) for each in rectangles]
    assert widths[1] / widths[0] == pytest.approx(0.6, abs=0.01)
    assert widths[2] / widths[0] == pytest.approx(1.5, abs=0.01)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("mlp1", ["fc1.w", "fc1.b", "fc2.w", "fc2.b"]),
        ("mlp1_head", ["fc2.w", "fc2.b"]),
        ("mlp1_biases_head", ["fc1.b", "fc2.w", "fc2.b"]),
    ],
)
def test_what_a_part_trains(name: str, expected: list[str]) -> None:
    work = WORKLOADS[name]()
    assert work.trained == expected
    assert work.feeds()[0][0].shape == (1, 784)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "millions"),
    [("mlp64", 2 * 64 * (2 * 784 * 500 + 3 * 500 * 10) / 1e6), ("wide", 2 * 2 * 4000 * 3999 / 1e6)],
)
def test_the_products_are_counted(name: str, millions: float) -> None:
    assert training_flops(WORKLOADS[name]()) == pytest.approx(millions * 1e6)


def test_the_taggers_labels_can_be_learned() -> None:
    tokens, labels = WORKLOADS["tagger"]().feeds()[0]
    np.testing.assert_array_equal(labels, tokens.reshape(-1) % 12)


@pytest.mark.slow
def test_a_run_without_the_reference(tmp_path: Path) -> None:
    pytest.importorskip("numba", reason="Numba is not installed: the limits are not measured")
    command = [sys.executable, str(ROOT / "tools" / "bench.py"), "mlp1_head", "--alone"]
    files = ["--json", "rows.json", "--chart", "chart.svg", "--markdown", "tables.md"]
    done = subprocess.run(
        [*command, "--rounds", "1", "--sides", "edge_train", "portable", *files],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    rows = json.loads((tmp_path / "rows.json").read_text())
    assert [row["side"] for row in rows] == ["edge_train", "portable"]
    assert rows[1]["loss_difference"] < 1e-4
    assert rows[0]["trained"] == 5010
    assert (tmp_path / "tables.md").read_text() in done.stdout + "\n"
