"""Feeds and order: what reaches the graph, and in which order over epochs and resumes."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from support.digits import digits, fresh_module, trainer, weights

from edge_train import dtypes
from edge_train.data.images import ImageRows
from edge_train.data.sources import ArrayRows, Batches, Subset
from edge_train.errors import DataError
from edge_train.graph import ir
from edge_train.schedules import constant
from edge_train.training.checks import check_fits, evaluation_notes
from edge_train.training.evaluation import Evaluator
from edge_train.training.feeds import Feeder
from edge_train.training.order import Position, Reader

INPUTS = (
    ir.Value("pixels", dtypes.FLOAT, ("batch", 1, 8, 8)),
    ir.Value("labels", dtypes.INT64, ("batch",)),
)
IMAGES = np.arange(2 * 64, dtype=np.uint8).reshape(2, 8, 8)
LABELS = np.array([3, 4], np.uint8)


def test_names_casts_scales_and_shapes() -> None:
    feeder = Feeder(INPUTS, {"pixels": "images"}, {"pixels": 0.5})
    fed = feeder.feed({"images": IMAGES, "labels": LABELS})
    assert list(fed) == ["pixels", "labels"]
    assert fed["pixels"].dtype == np.float32
    assert np.array_equal(fed["pixels"], IMAGES.astype(np.float32)[:, None] / 2)
    assert (fed["labels"].dtype, fed["labels"].tolist()) == (np.int64, [3, 4])


def test_arrays_without_the_inputs_names_are_taken_in_order() -> None:
    fed = Feeder(INPUTS).feed({"x": IMAGES, "y": LABELS})
    assert list(fed) == ["pixels", "labels"]


@pytest.mark.parametrize(
    ("batch", "said"),
    [
        ((IMAGES,), "has 1 arrays, the model's inputs are"),
        ({"pixels": IMAGES, "y": LABELS}, r"the data has no \['labels'\]"),
        ((IMAGES, LABELS + np.float32(0.5)), "takes int64, the data is float32"),
        ((IMAGES, LABELS * np.float32(np.nan)), "takes int64, the data is float32"),
        ((IMAGES, LABELS * 1e300), "takes int64, the data is float64"),
    ],
)
def test_what_does_not_fit_is_named(batch: Any, said: str) -> None:
    with pytest.raises(DataError, match=said):
        Feeder(INPUTS).feed(batch)


def test_a_scale_that_whole_numbers_cannot_take_is_named() -> None:
    with pytest.raises(DataError, match=r"scale: .* 'labels' takes int64, which 0\.5 would"):
        Feeder(INPUTS, scale={"labels": 0.5})
    fed = Feeder(INPUTS, scale={"labels": 2.0}).feed((IMAGES, LABELS))
    assert fed["labels"].tolist() == [6, 8]


def test_a_fixed_number_of_rows_must_divide_the_batches() -> None:
    fixed = (ir.Value("x", dtypes.FLOAT, (4, 3)), ir.Value("y", dtypes.INT64, (4,)))
    rows = ArrayRows((np.zeros((20, 3)), np.zeros(20)))
    assert Feeder(fixed).for_batches(Reader(rows, 8, 0)).micro_batch == 4
    with pytest.raises(ValueError, match="takes 4 rows at once, batches are of 6 rows"):
        Feeder(fixed).for_batches(Reader(rows, 6, 0))
    with pytest.raises(ValueError, match="micro_batch: the model takes 4"):
        Feeder(fixed, micro_batch=2).for_batches(Reader(rows, 8, 0))


def test_rows_that_a_fixed_graph_cannot_judge_are_told() -> None:
    fixed = (ir.Value("x", dtypes.FLOAT, (4, 3)), ir.Value("y", dtypes.INT64, (4,)))
    rows = ArrayRows((np.zeros((22, 3)), np.zeros(22)))
    module, _ = fresh_module()
    for drop_last, notes in ((True, 1), (False, 0)):
        reader = Reader(rows, 4, 0, drop_last=drop_last)
        found = list(evaluation_notes(Evaluator(module, reader, Feeder(fixed))))
        assert len(found) == notes
        assert all("leaves out the last 2 of 22 rows: the model takes 4" in text for text in found)


def test_a_fixed_graph_and_skipped_images_are_refused(tmp_path: Path) -> None:
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat" / "a.png").write_bytes(b"")
    fixed = (ir.Value("x", dtypes.FLOAT, (4, 3, 2, 2)), ir.Value("y", dtypes.INT64, (4,)))
    free = (ir.Value("x", dtypes.FLOAT, ("n", 3, 2, 2)), ir.Value("y", dtypes.INT64, ("n",)))
    reader = Reader(ImageRows.of(tmp_path, size=2, skips=True), 4, 0)
    for inputs, said in ((fixed, "the model takes 4 rows at once"), (free, "no image of the data")):
        with pytest.raises(DataError, match=said):
            check_fits(Feeder(inputs), reader)


def _seen(reader: Reader, position: Position, count: int) -> list[list[int]]:
    return [batch[0].tolist() for batch, _, _ in islice(reader.read(position), count)]


@pytest.mark.parametrize("drop_last", [False, True])
def test_reading_goes_on_from_any_position(drop_last: bool) -> None:
    reader = Reader(ArrayRows((np.arange(10),)), 4, 7, drop_last=drop_last)
    assert reader.batches == (2 if drop_last else 3)
    whole = list(islice(reader.read(Position()), 8))
    for number, (_, _, after) in enumerate(whole):
        rest = _seen(reader, after, 7 - number)
        assert rest == [batch[0].tolist() for batch, _, _ in whole[number + 1 :]]
    epochs = [
        sorted(row for batch in _seen(reader, Position(epoch), reader.batches) for row in batch)
        for epoch in (0, 1)
    ]
    assert drop_last or epochs == [list(range(10))] * 2
    assert _seen(reader, Position(0), 1) != _seen(reader, Position(1), 1)


def test_batches_are_gone_through_again_up_to_the_position() -> None:
    reader = Reader(Batches([(np.array([n]),) for n in range(3)]), 1, 0)
    assert _seen(reader, Position(1, 2), 3) == [[2], [0], [1]]
    assert _seen(reader, Position(1, 3), 2) == [[0], [1]]


def test_an_iterator_is_one_epoch() -> None:
    training, _ = digits()
    batches = [(training.x[k : k + 8], training.labels[k : k + 8]) for k in (0, 8, 16)]
    result = trainer(data=iter(batches), steps=9).run()
    assert (result.steps, result.detail) == (3, "the data ended after 3 steps")
    with pytest.raises(ValueError, match="an iterator can be gone through once, not 2 times"):
        trainer(data=iter(batches), epochs=2)
    with pytest.raises(ValueError, match="evaluation: an iterator can be gone through once"):
        trainer(steps=1, evaluation=iter(batches))


class _Loader:
    """Like PyTorch's DataLoader: a length, and batches that NumPy makes arrays of."""

    def __len__(self) -> int:
        return 3

    def __iter__(self) -> Any:
        training, _ = digits()
        for start in (0, 8, 16):
            part = slice(start, start + 8)
            yield [training.x[part].tolist(), training.labels[part].tolist()]


def test_a_loader_with_a_length_knows_its_steps() -> None:
    made = trainer(data=_Loader(), epochs=4, schedule=lambda total: constant(0.1 / total))
    assert made.total_steps == 12
    assert made.run().steps == 12
    assert made.optimizer.get_learning_rate() == pytest.approx(0.1 / 12)


@pytest.mark.slow
def test_a_list_of_batches_and_a_dataset_train_like_the_arrays(tmp_path: Any) -> None:
    training, _ = digits()
    x, labels = training.x[:24], training.labels[:24]
    batches = Batches([(x[k : k + 8], labels[k : k + 8]) for k in (0, 8, 16)])
    items = list(zip(x, labels, strict=True))
    found = []
    for data in ((x, labels), batches, items):
        made = trainer(data=data, epochs=2, batch_size=8, shuffle=False)
        made.run()
        found.append(weights(made))
    assert np.array_equal(found[0], found[1])
    assert np.array_equal(found[0], found[2])
    for steps in (2, 4, 6):
        made = trainer(data=batches, steps=steps, folder=tmp_path)
        made.run()
    assert np.array_equal(found[0], weights(made))


def test_labels_out_of_range_name_the_step() -> None:
    training, _ = digits()
    made = trainer(data=Batches([(training.x, training.labels + 3)]), steps=3)
    with pytest.raises(DataError, match=r"the batch of step 1 cannot be learned: label 1\d "):
        made.run()


def test_labels_of_arrays_are_all_looked_at_before_the_first_step() -> None:
    training, test = digits()
    labels = training.labels.copy()
    labels[[77, 200]] = 10, -1
    said = r"row 77 of the data: label 10 in 'labels' is outside 0..9 \(10 classes\); so it is in 2"
    for data in ((training.x, labels), {"labels": labels.astype(np.float64), "pixels": training.x}):
        with pytest.raises(DataError, match=said):
            trainer(data=data, steps=3)
    chosen = Subset(ArrayRows((training.x, labels)), np.arange(100, 300))
    with pytest.raises(DataError, match="row 200 of the data: label -1"):
        trainer(data=chosen, steps=3)
    trainer(data=Subset(ArrayRows((training.x, labels)), np.arange(77)), steps=3)
    with pytest.raises(DataError, match="row 0 of the data: label"):
        trainer(steps=3, evaluation=(test.x, test.labels + 10))


def test_a_folder_with_too_many_classes_is_refused(tmp_path: Path) -> None:
    for number in range(12):
        place = tmp_path / f"class {number:02d}" / "a.png"
        place.parent.mkdir()
        Image.fromarray(np.zeros((8, 8), np.uint8)).save(place)
    with pytest.raises(DataError, match=r"class 10/a.png': label 10 in .* so it is in 2 rows"):
        trainer(data=ImageRows.of(tmp_path, size=8, channels=1), steps=3)
