"""A class has one number, in training, evaluation, and when a run goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from support.digits import fresh_module

from edge_train.data import ArrayRows, ImageRows, Subset, read_csv
from edge_train.data.classes import class_notes, classes_in, classes_of, numbered_like
from edge_train.errors import CheckpointError, DataError
from edge_train.trainer import Trainer

SHADES = {"ant": 0, "bee": 90, "cat": 170, "dog": 250}


def folder_of(place: Path, *names: str, count: int = 3) -> ImageRows:
    for name in names:
        (place / name).mkdir(parents=True)
        for number in range(count):
            shade = np.full((8, 8), SHADES[name] + number, np.uint8)
            Image.fromarray(shade).save(place / name / f"{number}.png")
    return ImageRows.of(place, size=8, channels=1)


def words(place: Path, *names: str) -> ArrayRows:
    place.write_text("x,kind\n" + "".join(f"{SHADES[name]},{name}\n" for name in names))
    return read_csv(place)


def test_an_evaluation_set_that_lacks_a_class_has_the_same_numbers(tmp_path: Path) -> None:
    images = folder_of(tmp_path / "train", *SHADES)
    fewer = folder_of(tmp_path / "test", "ant", "cat", "dog")
    assert fewer.labels.tolist() == [0] * 3 + [1] * 3 + [2] * 3
    found = numbered_like(fewer, classes_of(images))
    assert found.take(np.array([0, 3, 8]))[1].tolist() == [0, 2, 3]  # type: ignore[union-attr]
    table = words(tmp_path / "a.csv", *SHADES)
    part = Subset(words(tmp_path / "b.csv", "cat", "bee"), np.array([1]))
    chosen = numbered_like(part, classes_of(table))
    assert chosen.take(np.array([0]))[1].tolist() == [1]  # type: ignore[union-attr]
    assert classes_of(chosen) == tuple(SHADES)


def test_numbers_stay_and_unknown_classes_are_named(tmp_path: Path) -> None:
    plain = ArrayRows((np.zeros((2, 1)), np.array([1, 0])))
    assert numbered_like(plain, ("a", "b")) is plain
    with pytest.raises(DataError, match=r"has the classes \['dog'\], which the training data has"):
        numbered_like(words(tmp_path / "a.csv", "dog", "ant"), ("ant", "bee"))
    with pytest.raises(DataError, match="it has numbers"):
        numbered_like(words(tmp_path / "a.csv", "dog", "ant"), ())


def digits_trainer(data: Any, **options: Any) -> Trainer:
    module, optimizer = fresh_module()
    options = {"schedule": 0.01, "batch_size": 4, "steps": 2, **options}
    return Trainer(module, optimizer, data, **options)


def test_a_run_keeps_its_classes(tmp_path: Path) -> None:
    data = folder_of(tmp_path / "train", "bee", "cat")
    run = tmp_path / "run"
    made = digits_trainer(data, folder=run, evaluation=data, steps=1)
    result = made.run()
    assert result.saved is not None
    assert classes_in(made.module.state.private["edge_train.classes"]) == ("bee", "cat")
    folder_of(tmp_path / "train", "ant")
    more = ImageRows.of(tmp_path / "train", size=8, channels=1)
    with pytest.raises(CheckpointError, match=r"classes \['bee', 'cat'\], the data has \['ant',"):
        digits_trainer(more, folder=run).run()
    assert digits_trainer(data, folder=run).run().resumed_from == 1


def test_the_numbers_are_told() -> None:
    assert list(class_notes(("ant", "bee"))) == ["the data has 2 classes: 0 ant, 1 bee"]
    assert list(class_notes(())) == []
    assert next(class_notes(["x"] * 60)).endswith("49 x, 10 more")


@pytest.mark.parametrize("text", [None, "", "None", "[1]", '{"a": 1}', "["])
def test_a_damaged_property_names_no_classes(text: str | None) -> None:
    assert classes_in(text) == ()
