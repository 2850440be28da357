"""Which label ranges lowering asks the caller to check, and what happens to labels beyond them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.lowering import Row, model_of, node, session
from support.rows.tables import row_of

from edge_train.graph.lowering import Lowered, lower

LOSS = "SoftmaxCrossEntropyLoss"


def lowered_of(row: Row, dynamic: bool = False) -> Lowered:
    return lower(model_of(row, dynamic))


def test_fed_labels_are_checked_before_the_run() -> None:
    (label,) = lowered_of(row_of(LOSS)).labels
    assert (label.labels, label.classes, label.ignore_index, label.observed) == (
        "labels", 4, None, "",
    )  # fmt: skip


@pytest.mark.parametrize("op", [LOSS, f"{LOSS}Internal"])
def test_the_ignored_class_is_told(op: str) -> None:
    (label,) = lowered_of(row_of(f"{op}: mean, ignore -100")).labels
    assert label.ignore_index == -100


def test_forward_and_backward_ask_once() -> None:
    forward, backward = row_of(LOSS), row_of(f"{LOSS}Grad")
    row = replace(
        forward,
        nodes=(
            replace(forward.nodes[0], outputs=("loss", "log_prob")),
            backward.nodes[0],
        ),
        feeds={**forward.feeds, "dy": backward.feeds["dy"]},
        expected={"loss": forward.expected["loss"], "dlogits": backward.expected["dlogits"]},
    )
    assert len(lowered_of(row).labels) == 1


def test_a_class_count_known_at_run_time_is_observed() -> None:
    row = row_of(LOSS)
    lowered = lowered_of(row, dynamic=True)
    (label,) = lowered.labels
    assert label.classes is None
    labels = np.array([0, 3, 9, -2, 1], np.int64)
    seen = session(lowered.model).run([label.observed], {**row.feeds, "labels": labels})[0]
    np.testing.assert_array_equal(seen, [-2, 9, 4])


def test_computed_labels_are_observed() -> None:
    row = row_of(LOSS)
    shifted = node("Add", "raw raw", "labels", "")
    labels = np.array([0, 1, 0, 1, 5], np.int64)
    computed = replace(
        row, nodes=(shifted, *row.nodes), feeds={"logits": row.feeds["logits"], "raw": labels}
    )
    lowered = lowered_of(computed)
    (label,) = lowered.labels
    seen, loss = session(lowered.model).run([label.observed, "loss"], dict(computed.feeds))
    np.testing.assert_array_equal(seen, [0, 10, 4])
    assert np.isfinite(loss)  # the wrong label was not used as an index


def test_labels_seen_through_a_reshape_are_still_the_fed_ones() -> None:
    row = row_of(LOSS)
    flat = node("Squeeze", "column axis", "labels", "")
    fed = replace(
        row,
        nodes=(flat, *row.nodes),
        feeds={"logits": row.feeds["logits"], "column": row.feeds["labels"][:, None]},
        constants={"axis": np.array([1], np.int64)},
    )
    (label,) = lowered_of(fed).labels
    assert (label.labels, label.classes) == ("column", 4)
