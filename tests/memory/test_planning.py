"""Plans within a budget: micro-batches, subsets, refusals; the command that prints them."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
from support.mlp import MLP784
from support.zoo import ZOO

from edge_train import memory
from edge_train.cli import main
from edge_train.errors import ArtifactError, MemoryBudgetExceeded
from edge_train.kernels import native

MLP = ZOO["mlp_CrossEntropyLoss"]
BN = ZOO["conv_bn_maxpool_gap"]
WIDE = MLP784  # 397,510 parameters: gradients and moments count


def _budget_of(folder: Path, rows: int, update: int = 1000, **choices: Any) -> int:
    """The least budget for accumulating steps of ``rows`` rows: a plan leaves 8 % free."""
    total = memory.estimate(folder, rows, accumulates=True, rows=update, **choices).total
    return math.ceil(total / 0.92) + 1


def test_a_budget_for_everything_takes_the_batch_whole() -> None:
    plan = memory.plan(MLP.folder, 64, "1GB")
    assert (plan.micro_batch, plan.parts, plan.notes) == (64, 1, ())
    assert plan.estimate == memory.estimate(MLP.folder, 64)
    assert (plan.module, plan.optimizer) == ({}, {})


@pytest.mark.parametrize("rows", [1, 8, 250, 500])
def test_the_largest_micro_batch_that_fits_is_taken(rows: int) -> None:
    folder, batch = BN.folder, 1000
    budget = _budget_of(folder, rows, kernels="portable")
    plan = memory.plan(folder, batch, budget, kernels="portable")
    assert plan.micro_batch == rows
    assert plan.parts == batch // rows
    assert plan.estimate.total <= budget
    assert plan.module == {"kernels": "portable"}
    assert "BatchNormalization takes its statistics from each micro-batch" in plan.text()


def test_a_byte_less_is_a_smaller_micro_batch() -> None:
    """The search sees the limit exactly: the test above can fail."""
    budget = _budget_of(BN.folder, 500, kernels="portable")
    plan = memory.plan(BN.folder, 1000, budget - 3, kernels="portable")
    assert plan.micro_batch < 500


def test_micro_batches_are_equal_where_that_costs_little() -> None:
    budget = _budget_of(BN.folder, 300, kernels="portable")
    assert memory.plan(BN.folder, 1000, budget, kernels="portable").micro_batch == 250
    budget = _budget_of(BN.folder, 300, 1009, kernels="portable")
    prime = memory.plan(BN.folder, 1009, budget, kernels="portable")
    assert prime.parts == 4
    assert prime.micro_batch == 253


def test_what_does_not_fit_is_refused_with_the_table_and_a_subset_that_fits() -> None:
    names = memory.Footprint(memory.Files.of(WIDE.folder)).nearest_first()
    budget = _budget_of(WIDE.folder, 1, 8, trainable=names[:2])
    with pytest.raises(MemoryBudgetExceeded) as refused:
        memory.plan(WIDE.folder, 8, budget)
    assert "one row at a time needs a budget of" in str(refused.value)
    assert "\n  weights  " in str(refused.value)
    told = re.search(r"trainable=\[(.*?)\]", str(refused.value))
    assert told is not None
    fitting = [name.strip(" '") for name in told[1].split(",")]
    assert fitting == list(names[: len(fitting)])
    assert len(fitting) >= 2
    part = memory.plan(WIDE.folder, 8, budget, trainable=fitting)
    assert part.module["trainable"] == fitting


def test_savings_are_tried_in_turn() -> None:
    """A budget between two choices takes the second; each saves more than the one before."""
    footprint = memory.Footprint(memory.Files.of(WIDE.folder))
    tried = list(memory.planning.savings(footprint))
    words = [sorted({**choices.module(), **choices.optimizer()}) for choices in tried]
    assert words[0] == []
    assert ["recompute"] in words
    assert words[-1][-1] == "recompute"
    assert any("moments" in each for each in words)
    eight = _budget_of(WIDE.folder, 1, 8, recompute="auto", moments="8bit")
    plan = memory.plan(WIDE.folder, 8, eight)
    assert plan.optimizer == {"moments": "8bit"}
    assert "8 bits" in plan.text()
    plain = memory.estimate(WIDE.folder, 1)
    assert plan.estimate.moments < 0.26 * plain.moments + 4096


@pytest.mark.skipif(
    not native.has_ops(), reason="no native library: tools/build_kernels.py makes it"
)
def test_updates_in_the_backward_pass_keep_no_gradients() -> None:
    plain = memory.estimate(WIDE.folder, 8)
    fused = memory.estimate(WIDE.folder, 8, fuse_optimizer=True)
    assert plain.gradients == plain.weights
    assert fused.gradients == 0
    largest = 784 * 500 * 4  # the gradient of one weight is there at a time
    assert largest < fused.activations - plain.activations < 1.2 * largest


def test_what_cannot_fit_at_all_is_said() -> None:
    with pytest.raises(MemoryBudgetExceeded, match=r"No part of the parameters fits"):
        memory.plan(MLP.folder, 8, "1MB")


@pytest.mark.parametrize(
    ("text", "size"),
    [("200MB", 200_000_000), ("1.5 GiB", 3 << 29), ("160 mib", 160 << 20), ("4096", 4096), (7, 7)],
)
def test_budgets_as_users_write_them(text: str | int, size: int) -> None:
    assert memory.parse_budget(text) == size


@pytest.mark.parametrize("text", ["", "MB", "-3MB", "0", "12 parsecs", "1e3"])
def test_other_words_are_no_budget(text: str) -> None:
    with pytest.raises(ValueError, match="expected an amount above 0 like '200MB'"):
        memory.parse_budget(text)


def test_a_budget_of_another_type_is_refused() -> None:
    for budget in (True, 1.5, None):
        with pytest.raises(TypeError, match="expected a number of bytes"):
            memory.parse_budget(budget)  # type: ignore[arg-type]


def test_a_folder_without_artifacts_is_named(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=f"no training_model.onnx in '{tmp_path}'"):
        memory.estimate(tmp_path, 8)


# ---- the command ----------------------------------------------------------------------------


def test_the_command_prints_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["estimate", str(MLP.folder), "--batch", "16"]) == 0
    assert capsys.readouterr().out == memory.estimate(MLP.folder, 16).table() + "\n"


def test_the_command_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["estimate", str(MLP.folder), "--batch", "16", "--json"]
    assert main(words) == 0
    assert json.loads(capsys.readouterr().out)["total"] == memory.estimate(MLP.folder, 16).total
    assert main([*words, "--budget", "1GB"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["fits"] is True
    assert told["micro_batch"] == 16


def test_the_command_refuses_a_budget_with_exit_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["estimate", str(MLP.folder), "--budget", "1MB"]
    assert main(words) == 1
    told = capsys.readouterr()
    assert told.out == ""
    assert "edge-train: training does not fit into 1.0 MB" in told.err
    assert "\n  weights" in told.err
    assert main([*words, "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["fits"] is False


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--budget", "much"], "memory budget 'much'"),
        (["--batch", "0"], "batch: expected a whole number >= 1, got 0"),
        (["--train", "nothing.*"], "name nothing"),
        (["--size", "tokens=3"], "the model has no free axis ['tokens']"),
    ],
)
def test_mistakes_end_with_2_and_one_line(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["estimate", str(MLP.folder), *words]) == 2
    told = capsys.readouterr().err
    assert said in told
    assert told.count("\n") == 1
