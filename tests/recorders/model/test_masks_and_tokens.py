"""Masks and tokens: recorded from a loop of one's own, each pixel and each position graded against its target."""

from __future__ import annotations

import io
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from recording_material import Questions
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import audit
from audit.metrics.mask_scores import find_counted_pixels, score_mask
from audit.recorders.problems import RecordingWarning

_CLASSES = 3


class Scores(nn.Module):
    """Gives the scores that are its input's own channels, in the form that is asked for."""

    def __init__(self, form: Any = None) -> None:
        super().__init__()
        self.form = form or (lambda scores: scores)

    def forward(self, scores: torch.Tensor) -> Any:
        return self.form(scores)


def record(path: Path, inputs: torch.Tensor, targets: torch.Tensor, model: nn.Module, **options: Any) -> Questions:
    capture = options.pop("capture", "full")
    with audit.record(path / "lineage", capture=capture) as run:
        run.model(model, **options)
        for x, _ in run.loader(DataLoader(TensorDataset(inputs, targets), batch_size=2)):
            model(x)
    return Questions(path / "lineage")


def masks(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(4, _CLASSES, 6, 8, generator=generator)
    return scores, torch.randint(0, _CLASSES, (4, 6, 8), generator=generator)


def read_mask(data: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(data)))


@pytest.mark.parametrize(
    "form", [None, lambda scores: {"out": scores, "aux": scores * 0}], ids=["tensor", "torchvision"]
)
def test_each_class_of_a_mask_is_graded(tmp_path: Path, form: Any) -> None:
    scores, targets = masks()
    targets[0, 0, :3] = 255
    asked = record(tmp_path, scores, targets, Scores(form))
    assert asked("SELECT output, task FROM runs") == [("masks", "segmentation")]
    predicted = scores.argmax(1).numpy()
    for index, number, wanted, guessed, shared, iou, accuracy in asked(
        "SELECT index, class, target_pixels, predicted_pixels, shared_pixels, iou, accuracy FROM mask_scores"
    ):
        counted = targets[index].numpy() != 255
        mine, theirs = predicted[index][counted] == number, targets[index].numpy()[counted] == number
        both, either = int((mine & theirs).sum()), int((mine | theirs).sum())
        assert (wanted, guessed, shared) == (int(theirs.sum()), int(mine.sum()), both)
        assert iou == pytest.approx(both / either)
        assert accuracy == pytest.approx(both / int(theirs.sum()))
    assert asked("SELECT count(*) FROM mask_scores") == [(4 * _CLASSES,)]
    losses = functional.cross_entropy(scores, targets, ignore_index=255, reduction="none")
    counts = (targets != 255).flatten(1).sum(1)
    found = [loss for (loss,) in asked("SELECT loss FROM predictions ORDER BY index")]
    assert found == pytest.approx((losses.flatten(1).sum(1) / counts).tolist(), abs=1e-5)
    for index, kind, data in asked("SELECT index, kind, data FROM masks"):
        expected = predicted[index] if kind == "predicted" else targets[index].numpy()
        np.testing.assert_array_equal(read_mask(data), expected)
    ports = [] if form is None else [("aux",), ("out",)]
    assert asked("SELECT DISTINCT port FROM outputs ORDER BY 1") == ports
    worst = asked("SELECT index, mean_iou, pixel_accuracy FROM worst_masks")
    assert [row[1] for row in worst] == sorted(row[1] for row in worst)
    assert len(asked("FROM per_mask_class")) == _CLASSES


def test_a_mask_is_kept_by_the_capture_level(tmp_path: Path) -> None:
    scores, targets = masks()
    asked = record(tmp_path, scores, targets, Scores(), capture="digest")
    assert asked("SELECT count(*), count(data), count(digest) FROM masks") == [(8, 0, 8)]


def test_a_mask_of_another_size_is_said_and_not_graded(tmp_path: Path) -> None:
    scores, targets = masks()
    with pytest.warns(RecordingWarning, match="target mask is 8 × 6 and the predicted one 4 × 3"):
        asked = record(tmp_path, scores, targets, Scores(lambda x: functional.avg_pool2d(x, 2)))
    assert asked("SELECT count(*) FROM mask_scores") == [(0,)]
    assert asked("SELECT DISTINCT kind, height, width FROM masks ORDER BY kind") == [
        ("predicted", 3, 4),
        ("target", 6, 8),
    ]


def test_a_class_that_the_model_has_no_output_for_is_said(tmp_path: Path) -> None:
    scores, targets = masks()
    targets[1, 2, 2] = 9
    with pytest.warns(RecordingWarning, match="no output for"):
        asked = record(tmp_path, scores, targets, Scores())
    assert asked("SELECT index, target_pixels, predicted_pixels, iou FROM mask_scores WHERE class = 9") == [
        (1, 1, 0, 0.0)
    ]


def test_scores_of_pixels_without_masks_are_not_taken_for_masks(tmp_path: Path) -> None:
    scores, _ = masks()
    with pytest.warns(RecordingWarning):
        asked = record(tmp_path, scores, torch.arange(4), Scores())
    assert asked("SELECT count(*) FROM masks") == [(0,)]
    declared = record(tmp_path / "declared", scores, torch.arange(4), Scores(), output="masks")
    assert declared("SELECT DISTINCT kind FROM masks") == [("predicted",)]
    assert declared("SELECT count(*) FROM mask_scores") == [(0,)]


def test_scores_that_are_not_finite_give_no_mask(tmp_path: Path) -> None:
    scores, targets = masks()
    scores[0, 0, 0, 0] = float("nan")
    with pytest.warns(RecordingWarning, match="NaN or infinite"):
        asked = record(tmp_path, scores, targets, Scores())
    assert asked("SELECT DISTINCT index FROM mask_scores ORDER BY index") == [(1,), (2,), (3,)]


def test_scores_of_masks_are_those_of_sets() -> None:
    target = np.array([[0, 0], [1, 255]])
    scores = score_mask(np.array([[0, 1], [1, 1]]), target, find_counted_pixels(target, 2))
    assert [(one.number, one.iou, one.accuracy) for one in scores] == [(0, 0.5, 0.5), (1, 0.5, 1.0)]


# -- tokens ----------------------------------------------------------------------------------------


def test_each_token_is_graded_and_ignored_positions_are_left_out(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(1)
    scores = torch.randn(4, 5, 7, generator=generator)
    targets = torch.randint(0, 7, (4, 5), generator=generator)
    targets[2, 3:] = -100
    asked = record(tmp_path, scores, targets, Scores(), output="tokens")
    assert asked("SELECT output, task FROM runs") == [("tokens", "tokens")]
    losses = functional.cross_entropy(scores.transpose(1, 2), targets, reduction="none")
    rows = asked("SELECT index, position, target, predicted, loss, probability, correct FROM tokens ORDER BY 1, 2")
    assert len(rows) == 18
    for index, position, target, predicted, loss, probability, correct in rows:
        assert (target, predicted) == (int(targets[index, position]), int(scores[index, position].argmax()))
        assert loss == pytest.approx(float(losses[index, position]), abs=1e-5)
        assert probability == pytest.approx(math.exp(-loss), abs=1e-5)
        assert correct == (target == predicted)
    found = {row[0]: row[1:] for row in asked("SELECT index, tokens, perplexity FROM sequences")}
    assert found[2] == (3, pytest.approx(math.exp(float(losses[2, :3].mean())), abs=1e-4))
    worst = asked("SELECT index, position, loss, before, after FROM worst_tokens LIMIT 1")[0]
    assert worst[2] == pytest.approx(float(losses.max()), abs=1e-5)


def test_the_layout_of_torchs_cross_entropy_is_known_by_the_targets(tmp_path: Path) -> None:
    scores = torch.randn(4, 5, 7, generator=torch.Generator().manual_seed(1))
    targets = torch.zeros(4, 5, dtype=torch.int64)
    asked = record(tmp_path, scores, targets, Scores(lambda x: x.transpose(1, 2)), output="tokens")
    assert asked("SELECT predicted FROM tokens WHERE index = 3 ORDER BY position") == [
        (number,) for number in scores[3].argmax(1).tolist()
    ]


def test_a_model_of_the_next_token_is_compared_with_the_next_token(tmp_path: Path) -> None:
    tokens = torch.randint(0, 11, (4, 6), generator=torch.Generator().manual_seed(2))

    class Language(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(11, 11)

        def forward(self, ids: torch.Tensor) -> Any:
            return self.table(ids)

    model = Language()
    asked = record(tmp_path, tokens, tokens, model, output="tokens")
    assert asked("SELECT index, position, target FROM tokens ORDER BY 1, 2") == [
        (index, position, int(tokens[index, position + 1])) for index in range(4) for position in range(5)
    ]


def test_targets_of_another_length_are_said_and_not_graded(tmp_path: Path) -> None:
    scores = torch.randn(4, 5, 7)
    with pytest.warns(RecordingWarning, match="4 targets and 5 outputs"):
        asked = record(tmp_path, scores, torch.zeros(4, 4, dtype=torch.int64), Scores(), output="tokens")
    assert asked("SELECT count(*), count(target), count(loss) FROM tokens") == [(20, 0, 0)]


def test_a_token_beyond_the_outputs_has_no_loss(tmp_path: Path) -> None:
    targets = torch.zeros(4, 5, dtype=torch.int64)
    targets[0, 0] = 99
    with pytest.warns(RecordingWarning, match="beyond the model's 7 outputs"):
        asked = record(tmp_path, torch.randn(4, 5, 7), targets, Scores(), output="tokens")
    assert asked("SELECT correct, loss FROM tokens WHERE index = 0 AND position = 0") == [(False, None)]


@pytest.mark.parametrize("wrapped", ["loader", "dataset"])
def test_targets_are_found_in_items_too(tmp_path: Path, wrapped: str) -> None:
    """A recorded dataset has no batch in which targets could be looked for."""
    tokens = torch.randint(0, 5, (4, 6), generator=torch.Generator().manual_seed(3))
    inputs = functional.one_hot(tokens, 5).float()
    targets = tokens.roll(-1, 1)
    targets[:, -1] = -1  # beyond the outputs: minGPT leaves these out
    data, model = TensorDataset(inputs, targets), Scores()
    with audit.record(tmp_path / "lineage") as run:
        run.model(model, output="tokens")
        loader = DataLoader(run.dataset(data) if wrapped == "dataset" else data, batch_size=2)
        for x, _ in run.loader(loader) if wrapped == "loader" else loader:
            model(x)
    asked = Questions(tmp_path / "lineage")
    rows = asked("SELECT index, position, target, predicted, correct FROM tokens ORDER BY ALL")
    assert len(rows) == 24
    for index, position, target, predicted, correct in rows:
        assert (target, predicted) == (int(targets[index, position]), int(tokens[index, position]))
        assert correct == (None if target < 0 else target == predicted)


class MaskDicts(TensorDataset):
    """Items as dicts without a label, as many segmentation datasets have them."""

    name = "mask"

    def __getitem__(self, index: int) -> Any:
        scores, mask = super().__getitem__(index)
        return {"image": scores, self.name: mask}


@pytest.mark.parametrize("kind", ["int64", "uint8"])
def test_a_mask_beside_a_picture_is_the_target(tmp_path: Path, kind: str) -> None:
    scores, targets = masks()
    model = Scores()
    with audit.record(tmp_path / "lineage", strict=True) as run:
        run.model(model)
        for batch in run.loader(DataLoader(MaskDicts(scores, targets.to(getattr(torch, kind))), batch_size=2)):
            model(batch["image"])
    asked = Questions(tmp_path / "lineage")
    assert asked("SELECT output, task FROM runs") == [("masks", "segmentation")]
    (iou,) = asked("SELECT mean_iou FROM worst_masks WHERE index = 2")[0]
    target = targets[2].numpy()
    own = [score.iou for score in score_mask(scores[2].argmax(0).numpy(), target, find_counted_pixels(target, 3))]
    assert iou == pytest.approx(sum(own) / len(own))


def test_a_mask_that_says_what_counts_is_not_a_target(tmp_path: Path) -> None:
    class Padded(MaskDicts):
        def __getitem__(self, index: int) -> Any:
            found = super().__getitem__(index)
            return {"image": found["image"][:, 0, 0], "mask": torch.tensor([1, 0, 1])}

    def loop() -> None:
        with audit.record(tmp_path / "lineage") as run:
            model = run.model(Scores())
            for batch in run.loader(DataLoader(Padded(*masks()), batch_size=2)):
                model(batch["image"])

    with pytest.warns(RecordingWarning, match="No label was found"):
        loop()
    asked = Questions(tmp_path / "lineage")
    assert asked("SELECT count(*), count(target), count(correct) FROM predictions") == [(4, 0, 0)]
