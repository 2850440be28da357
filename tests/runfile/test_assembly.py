"""Run files end to end: CSV, images, splits, joined schedules, a budget, the documentation's."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from support.digits import digits
from support.runs import run_file
from support.zoo import ZOO

import edge_train
from edge_train.cli import main
from edge_train.demo import HERE
from edge_train.errors import MemoryBudgetExceeded
from edge_train.runfile.assembly import sources, trainer_of
from edge_train.runfile.options import Options
from edge_train.runfile.rates import schedule_of
from edge_train.runfile.reading import RunFileError, parse_value, read

DOCS = Path(__file__).parents[2] / "docs"


def _options(**keys: Any) -> Options:
    """The digits' options with other keys, written with _ for the dot of a section."""
    return read(None, [(key.replace("__", "."), value) for key, value in keys.items()])


@pytest.mark.slow
def test_csv_of_words_trains_a_classifier(
    tmp_path: Path, rng: np.random.Generator, capsys: pytest.CaptureFixture[str]
) -> None:
    case = ZOO["mlp_CrossEntropyLoss"]
    means = {"setosa": 0.0, "versicolor": 2.0, "virginica": 4.0}
    lines = ["a,b,c,d,species"]
    for name, mean in list(means.items()) * 40:
        lines.append(",".join([*(f"{x:.3f}" for x in rng.normal(mean, 0.5, 4)), name]))
    (tmp_path / "flowers.csv").write_text("\n".join(lines))
    words = ["train", "--artifacts", str(case.folder), "--data", str(tmp_path / "flowers.csv")]
    words += ["--epochs", "30", "--rate", "0.02", "--metrics", "accuracy,f1", "--show", "none"]
    words += ["--set", "data.split=0.2", "--folder", str(tmp_path / "run"), "--batch-size", "8"]
    assert main(words) == 0
    found = dict(line.split(None, 1) for line in capsys.readouterr().out.splitlines())
    assert float(found["accuracy"]) >= 0.95
    assert float(found["f1"]) >= 0.9


def test_images_in_folders_train_the_digits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    training, _ = digits()
    for number in range(200):
        label = training.labels[number]
        path = tmp_path / "images" / str(label) / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray((training.x[number, 0] * 255).astype(np.uint8)).save(path)
    words = ["train", "--artifacts", str(HERE / "artifacts"), "--show", "none", "--epochs", "8"]
    words += ["--data", str(tmp_path / "images"), "--rate", "0.01", "--metrics", "accuracy"]
    assert main([*words, "--set", "data.split=0.25", "--set", "evaluation.every=40"]) == 0
    found = dict(line.split(None, 1) for line in capsys.readouterr().out.splitlines())
    assert float(found["accuracy"]) > 0.7


def test_a_split_is_disjoint_and_the_same_each_time() -> None:
    options = _options(data__train=str(HERE / "digits.npz"), data__split=0.2)
    module: Any = None  # an .npz asks nothing of the model
    held, kept = sources(options, module)
    assert held is not None
    chosen = [rows.chosen for rows in (held, kept)]  # type: ignore[attr-defined]
    assert [len(rows) for rows in chosen] == [359, 1438]
    assert sorted(np.concatenate(chosen).tolist()) == list(range(1797))
    again, _ = sources(options, module)
    assert np.array_equal(again.chosen, chosen[0])  # type: ignore[union-attr]


def _trainer(tmp_path: Path, *pairs: tuple[str, Any]) -> edge_train.Trainer:
    return trainer_of(read(run_file(tmp_path), [("progress.show", "none"), *pairs]))


def test_a_join_of_schedules(tmp_path: Path) -> None:
    parts = [
        {"kind": "linear", "rate": 0.1, "warmup": 10, "steps": 10},
        {"kind": "cosine", "rate": 0.1, "steps": 60},
        {"kind": "constant", "rate": 0.001},
    ]
    pairs = [("training.steps", 90), ("schedule.kind", "join"), ("schedule.parts", parts)]
    with pytest.raises(RunFileError, match=r"schedule.rate: means nothing to kind 'join'"):
        _trainer(tmp_path, *pairs)
    path = run_file(tmp_path)
    path.write_text(re.sub(r"\[schedule\][^[]*", "", path.read_text()))
    made = trainer_of(read(path, [("progress.show", "none"), *pairs]))
    assert made._schedule is not None
    rates = [made._schedule.rate(step) for step in (0, 5, 10, 40, 69, 70, 89)]
    assert rates == pytest.approx([0, 0.05, 0.1, 0.05, 0.1 * 0.000685, 0.001, 0.001], abs=1e-6)


@pytest.mark.parametrize(
    ("part", "said"),
    [
        ({"kind": "plateau", "threshold": "3"}, "threshold: expected a number, got '3'"),
        ({"kind": "plateau", "threshold": -1}, "threshold must be a finite float32 number >= 0"),
        ({"kind": "plateau", "warmup": "3"}, "warmup: expected a whole number, got '3'"),
        ({"kind": 3}, "kind: expected a text in quotes, got 3"),
        ({"kind": ["a"]}, r"kind: expected a text in quotes, got \['a'\]"),
        ({"kind": "cosin"}, "kind: there is no 'cosin'; did you mean 'cosine'"),
        ({"kind": "one_cycle", "rise": "a"}, "rise: expected a number, got 'a'"),
        ({"kind": "cosine", "warmup": 99}, r"warmup: expected at most total \(90\) steps, got 99"),
        ({"kind": "constant", "floor": 0.1}, "floor: means nothing to kind 'constant'"),
        ({"kind": "join"}, "a join cannot hold a join"),
        ({"parts": []}, "a join cannot hold a join"),
        ({"target": 0.9}, "target: is that of the whole run"),
        ({"steps": True}, "steps: expected a whole number >= 1, got True"),
        ({"steps": "9"}, "steps: expected a whole number >= 1, got '9'"),
    ],
)
def test_a_mistake_in_a_part_of_a_join_names_the_part(part: dict[str, Any], said: str) -> None:
    parts = [{"rate": 0.1, "steps": 10}, {"rate": 0.1, **part}]
    pairs = [("schedule.kind", "join"), ("schedule.parts", parts)]
    made = schedule_of(read(None, pairs).schedule)
    with pytest.raises(RunFileError, match=rf"^schedule\.parts\[1\]: {said}"):
        made(100)  # type: ignore[operator]


def test_a_part_of_a_join_without_a_rate_or_steps_left() -> None:
    for parts, said in (
        ([{"kind": "constant"}], r"parts\[0\]: rate: say the learning rate"),
        ([{"rate": 1, "steps": 9}, {"rate": 1}], r"parts\[1\]: steps: .* got the run's 0 that are"),
    ):
        pairs: list[tuple[str, Any]] = [("schedule.kind", "join"), ("schedule.parts", parts)]
        with pytest.raises(RunFileError, match=said):
            schedule_of(read(None, pairs).schedule)(9)  # type: ignore[operator]


@pytest.mark.parametrize(
    ("pair", "expected"),
    [
        ("schedule.rate=.01", 0.01),
        ("schedule.rate=1.", 1.0),
        ("schedule.rate=01", 1.0),
        ("schedule.rate=+.5e-1", 0.05),
        ("training.epochs=01", 1),
        ("data.scale.x=.0625", {"x": 0.0625}),
        ("optimizer.betas=[.9, 0.99]", (0.9, 0.99)),
        ("data.label=01", "01"),
        ("evaluation.best=1.", "1."),
    ],
)
def test_numbers_as_people_write_them_on_a_command_line(pair: str, expected: object) -> None:
    key, _, text = pair.partition("=")
    options = read(None, [(key, parse_value(text))])
    section, name = key.split(".")[:2]
    found = getattr(getattr(options, section), name)
    assert (found, type(found)) == (expected, type(expected)) or found == str(expected)


@pytest.mark.parametrize("pair", ["training.epochs=1.", "training.epochs=x", "schedule.rate=.5.1"])
def test_a_word_that_is_no_such_number(pair: str) -> None:
    key, _, text = pair.partition("=")
    with pytest.raises(RunFileError, match=rf"{key}: expected a .*number, got '{text}'"):
        read(None, [(key, parse_value(text))])


@pytest.mark.parametrize(
    ("pairs", "said"),
    [
        ([("schedule.kind", "join")], "schedule.parts: a join needs"),
        (
            [("schedule.kind", "join"), ("schedule.parts", [{"kind": "cosine", "rat": 1}])],
            r"schedule.parts\[0\]: there is no key 'rat'",
        ),
        ([("schedule.kind", "step"), ("schedule.warmup", 0)], "schedule.every: say after how"),
        ([("schedule.warmup", 9999)], "schedule.warmup: expected at most total"),
        ([("training.micro_batch", "big")], "training.micro_batch: expected a whole number"),
        ([("data.scale", {"pixels": "x"})], "data.scale: expected a table, got"),
        ([("data.size", [8.5])], "data.size: expected a whole number or a list, each a whole"),
        ([("training.trainable", "dense*")], "training.trainable: expected a list, each a text"),
    ],
)
def test_mistakes(tmp_path: Path, pairs: list[tuple[str, Any]], said: str) -> None:
    with pytest.raises(RunFileError, match=said):
        _trainer(tmp_path, *pairs)


@pytest.mark.slow
def test_u086_a_budget_chooses_the_micro_batch_or_refuses(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(run_file(tmp_path))
    words = ["train", path, "--epochs", "1", "--set", "training.batch_size=512"]
    words += ["--set", "schedule.warmup=0"]
    assert main([*words, "--memory-budget", "34MB"]) == 0
    said = capsys.readouterr().err
    assert re.search(r"note: \d+ micro-batches of \d+ rows make an update of 512 rows", said)
    assert "BatchNormalization takes its statistics from each micro-batch" in said
    with pytest.raises(MemoryBudgetExceeded, match="does not fit into"):
        _trainer(tmp_path, ("memory.budget", "5MB"))


def test_the_documentations_run_file_and_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (DOCS / "training.md").read_text()
    (script,) = re.findall(r"```python\n(.*?)```", text, re.S)
    (toml,) = re.findall(r"```toml\n(.*?)```", text, re.S)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "artifacts").symlink_to(HERE / "artifacts")
    (tmp_path / "digits.npz").symlink_to(HERE / "digits.npz")
    (tmp_path / "run.toml").write_text(toml)
    assert main(["train", "run.toml", "--epochs", "2", "--show", "none"]) == 0
    training, test = digits()
    for name, rows in (("train", training), ("test", test)):
        np.savez(tmp_path / f"{name}.npz", pixels=rows.x[:96], labels=rows.labels[:96])
    exec(compile(script.replace('"run"', '"scripted"'), "training.md", "exec"), {})
    assert "StopReason.COMPLETED" in capsys.readouterr().out
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert json.loads(lines[-1])["reason"] == "completed"


@pytest.mark.slow
def test_evaluation_has_the_classes_of_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A test folder without the class 0 numbers all others differently."""
    training, test = digits()
    for name, rows, first in (("train", training, 0), ("test", test, 1)):
        for number in range(200):
            label = int(rows.labels[number])
            if label >= first:
                place = tmp_path / name / f"digit {label}"
                place.mkdir(parents=True, exist_ok=True)
                pixels = np.uint8(rows.x[number, 0] * 255)
                Image.fromarray(pixels).save(place / f"{number}.png")
    (tmp_path / "train" / "digit 3" / "broken.png").write_bytes(b"")
    words = ["--artifacts", str(HERE / "artifacts"), "--folder", str(tmp_path / "run")]
    words += ["--evaluation", str(tmp_path / "test"), "--metrics", "accuracy"]
    more = ["--data", str(tmp_path / "train"), "--epochs", "10", "--rate", "0.01"]
    more += ["--set", "evaluation.every=70"]
    assert main(["train", *words, *more]) == 2
    assert "broken.png' cannot be read" in capsys.readouterr().err
    assert main(["train", *words, *more, "--set", "data.unreadable=skip"]) == 0
    out, err = capsys.readouterr()
    assert "note: the data has 10 classes: 0 digit 0, 1 digit 1, 2 digit 2" in err
    assert "left out  1 images that cannot be read" in out
    assert float(out.split("best  accuracy ")[1].split()[0]) > 0.5
    assert main(["eval", *words]) == 0
    assert float(capsys.readouterr().out.split("accuracy")[1]) > 0.5
