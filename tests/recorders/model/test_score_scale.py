"""Scores of labels, pixels and tokens are graded as what they are: logits or probabilities, or not at all where neither shows."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from recording_material import Questions
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import audit
from audit.recorders.problems import RecordingWarning

Form = Callable[[torch.Tensor], torch.Tensor]


class Scores(nn.Module):
    """Returns a form of its input; as its last module it may have one that it does not call."""

    def __init__(self, form: Form, last: nn.Module | None = None) -> None:
        super().__init__()
        self.form = form
        self.last = last or nn.Identity()

    def forward(self, scores: torch.Tensor) -> torch.Tensor:
        return self.form(scores)


def record(
    path: Path,
    scores: torch.Tensor,
    targets: torch.Tensor,
    model: nn.Module,
    *,
    size: int = 2,
    use: Any = None,
    **options: Any,
) -> Questions:
    with warnings.catch_warnings(), audit.record(path / "lineage", capture="digest") as run:
        warnings.simplefilter("ignore", RecordingWarning)
        run.model(model, **options)
        for x, y in run.loader(DataLoader(TensorDataset(scores, targets), batch_size=size)):
            output = model(x)
            if use is not None:
                use(output, y)
    return Questions(path / "lineage")


def masks(classes: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(classes)
    wanted = torch.randint(0, max(classes, 2), (4, 6, 8), generator=generator)
    return 3 * torch.randn(4, classes, 6, 8, generator=generator), wanted


PIXELS = "SELECT index, class, predicted_pixels, iou FROM mask_scores ORDER BY ALL"
LOSSES = "SELECT loss FROM predictions ORDER BY index"


@pytest.mark.parametrize(
    ("classes", "model", "options"),
    [
        (1, Scores(torch.sigmoid, nn.Sigmoid()), {"output": "masks"}),
        (1, Scores(torch.sigmoid), {"output": "sigmoid"}),
        (3, Scores(lambda scores: scores.softmax(1)), {}),
        (3, Scores(lambda scores: scores.log_softmax(1)), {}),
        (3, Scores(lambda scores: scores.softmax(1)), {"output": "probabilities"}),
    ],
    ids=["sigmoid module", "declared sigmoid", "softmax", "log softmax", "declared probabilities"],
)
def test_masks_of_probabilities_are_graded_as_those_of_logits(
    tmp_path: Path, classes: int, model: nn.Module, options: Any
) -> None:
    scores, targets = masks(classes)
    plain = record(tmp_path / "a", scores, targets, Scores(lambda scores: scores), output="masks")
    asked = record(tmp_path / "b", scores, targets, model, **options)
    assert asked("SELECT output FROM runs") == [("masks",)]
    assert asked(PIXELS) == plain(PIXELS) != []
    for (mine,), (theirs,) in zip(asked(LOSSES), plain(LOSSES), strict=True):
        assert mine == pytest.approx(theirs, rel=1e-4)


def test_a_mask_that_may_be_both_is_not_graded(tmp_path: Path) -> None:
    scores, targets = masks(1)
    asked = record(tmp_path, scores, targets, Scores(torch.sigmoid), output="masks")
    assert asked("SELECT count(*) FROM mask_scores") == [(0,)]
    assert "nothing shows whether they are logits or probabilities" in asked.warnings[0]


def test_the_loss_that_the_loop_computes_shows_what_masks_are(tmp_path: Path) -> None:
    scores, targets = masks(1)

    def use(output: torch.Tensor, wanted: torch.Tensor) -> None:
        functional.binary_cross_entropy(output[:, 0], wanted.float())

    asked = record(tmp_path, scores, targets, Scores(torch.sigmoid), output="masks", use=use)
    rows = asked("SELECT index, predicted_pixels FROM mask_scores WHERE class = 1 ORDER BY index")
    assert rows == [(index, int((scores[index] > 0).sum())) for index in (2, 3)]


def test_masks_of_a_sigmoid_for_each_class_have_no_loss(tmp_path: Path) -> None:
    scores, targets = masks(3)
    asked = record(tmp_path, scores, targets, Scores(torch.sigmoid))
    assert asked(LOSSES) == [(None,)] * 4
    assert asked("SELECT sum(predicted_pixels) FROM mask_scores") == [(4 * 6 * 8,)]
    assert any("they have no loss" in text for text in asked.warnings)


def test_tokens_of_probabilities_have_the_loss_of_logits(tmp_path: Path) -> None:
    scores = torch.randn(4, 5, 7, generator=torch.Generator().manual_seed(0))
    targets = torch.arange(20).reshape(4, 5) % 7
    asked = record(tmp_path, scores, targets, Scores(lambda scores: scores.softmax(2)), output="tokens")
    expected = functional.cross_entropy(scores.flatten(0, 1), targets.flatten(), reduction="none")
    found = [loss for (loss,) in asked("SELECT loss FROM tokens ORDER BY index, position")]
    assert found == pytest.approx(expected.tolist(), rel=1e-4)


LABELS = torch.tensor([[1.0, 1.0, 0.0], [0.0, 0.0, 0.0], [0.0, 1.0, 1.0], [1.0, 1.0, 1.0]])


def label_rows(asked: Questions) -> list[Any]:
    return asked("SELECT index, class, score, correct FROM label_scores ORDER BY index, class")


def test_a_batch_of_logits_between_0_and_1_is_still_one_of_logits(tmp_path: Path) -> None:
    """Each batch was judged by itself before: the second one was taken for probabilities."""
    scores = torch.tensor([[2.0, -1.0, 0.5], [0.2, 0.7, 0.4], [-3.0, 1.0, 0.1], [0.9, 0.1, 0.3]])
    rows = label_rows(record(tmp_path, scores, LABELS, Scores(lambda scores: scores), size=1))
    assert [score for _, _, score, _ in rows] == pytest.approx(torch.sigmoid(scores).flatten().tolist())
    expected = (scores > 0) == (LABELS > 0.5)
    assert [correct for *_, correct in rows] == expected.flatten().tolist()


@pytest.mark.parametrize(
    ("last", "options"), [(nn.Sigmoid(), {}), (None, {"output": "sigmoid"})], ids=["module", "declared"]
)
def test_scores_of_several_labels(tmp_path: Path, last: nn.Module | None, options: Any) -> None:
    scores = torch.tensor([[0.9, 0.1, 0.6], [0.2, 0.7, 0.4], [0.3, 1.0, 0.0], [0.9, 0.1, 0.3]])
    asked = record(tmp_path, scores, LABELS, Scores(lambda scores: scores, last), **options)
    assert asked("SELECT output, task FROM runs") == [("multilabel", "multilabel")]
    assert [score for _, _, score, _ in label_rows(asked)] == pytest.approx(scores.flatten().tolist())
    expected = functional.binary_cross_entropy(scores, LABELS, reduction="none").mean(1)
    assert [loss for (loss,) in asked(LOSSES)] == pytest.approx(expected.tolist(), rel=1e-4)


def test_scores_of_several_labels_that_may_be_both_are_not_graded(tmp_path: Path) -> None:
    asked = record(tmp_path, LABELS * 0.5 + 0.2, LABELS, Scores(lambda scores: scores))
    assert asked("SELECT count(logits), count(probabilities), count(correct), count(loss) FROM predictions") == [
        (4, 0, 0, 0)
    ]
    assert "recorded and not graded" in asked.warnings[0]


def test_probabilities_in_evaluation_after_logits_in_training_are_not_taken_for_logits(tmp_path: Path) -> None:
    model = Scores(lambda scores: scores if model.training else scores.softmax(1))
    scores = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    with warnings.catch_warnings(), audit.record(tmp_path / "lineage", capture="digest") as run:
        warnings.simplefilter("ignore", RecordingWarning)
        run.model(model)
        loader = run.loader(DataLoader(TensorDataset(scores, torch.arange(4) % 3), batch_size=2))
        for training in (True, False):
            model.train(training)
            for x, _ in loader:
                model(x)
    asked = Questions(tmp_path / "lineage")
    assert asked("SELECT epoch, count(*) FROM predictions GROUP BY ALL") == [(0, 4)]
    assert "was logits, and now each row lies between 0 and 1 and adds up to 1" in asked.warnings[0]
