"""Outputs and targets that do not fit: the loop goes on, the run says what was wrong, and nothing false is stored."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from recording_material import Questions
from torch import nn
from torch.utils.data import DataLoader, Dataset

import audit

COUNT, BATCH = 4, 2


class Squares(Dataset):  # type: ignore[type-arg]
    def __init__(self, target: Callable[[int], Any]) -> None:
        self.target = target

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> Any:
        return torch.full((3, 8, 8), float(index)), self.target(index)


class Answer(nn.Module):
    """Returns what a function makes of its input and of the number of the call."""

    def __init__(self, answer: Callable[[Any, int], Any]) -> None:
        super().__init__()
        self.answer, self.calls = answer, 0

    def forward(self, x: Any) -> Any:
        self.calls += 1
        return self.answer(x, self.calls)


def boxes(corners: list[float], labels: int = 1) -> dict[str, torch.Tensor]:
    found = torch.tensor(corners).reshape(-1, 4)
    return {"boxes": found, "labels": torch.ones(labels, dtype=torch.long), "scores": torch.ones(len(found))}


def objects(count: int = 1, labels: int = 1) -> Any:
    whole = torch.tensor([[0.0, 0.0, 4.0, 4.0]])
    return {"boxes": whole.repeat(count, 1), "labels": torch.ones(labels, dtype=torch.long)}


def logits(x: Any, width: int = 3) -> torch.Tensor:
    return torch.zeros(len(x), width)


WHOLE = [0.0, 0.0, 4.0, 4.0]
#: By name: the target of a sample, the model's answer, what the run says, and how many predictions are stored.
CASES: dict[str, tuple[Callable[[int], Any], Callable[[Any, int], Any], str, int]] = {
    "none": (lambda n: n % 2, lambda x, call: None, "returned None", 0),
    "a generator": (lambda n: n % 2, lambda x, call: (row for row in x), "returned a generator", 0),
    "a text": (lambda n: n % 2, lambda x, call: "cat", "returned a str", 0),
    "class numbers": (lambda n: n % 2, lambda x, call: torch.zeros(len(x)).long(), "not logits", 0),
    "too few rows": (lambda n: n % 2, lambda x, call: torch.zeros(1, 3), "first axis is not the batch", 0),
    "no classes": (lambda n: n % 2, lambda x, call: logits(x, 0), "it has no classes", 0),
    "another width": (lambda n: n % 2, lambda x, call: logits(x, 2 + call), "gave 3 numbers for each sample, and now 4", 2),
    "another form": (
        lambda n: n % 2,
        lambda x, call: logits(x) if call < 2 else (logits(x), logits(x, 4)),
        "more than one entry",
        2,
    ),
    "a class beyond the list": (lambda n: 99, lambda x, call: logits(x), "not one of its 3 classes", 4),
    "too few pictures": (lambda n: objects(), lambda x, call: [boxes(WHOLE)], "given 2 pictures", 0),
    "too many labels": (lambda n: objects(), lambda x, call: [boxes(WHOLE, 2) for _ in x], "with 2 labels", 0),
    "boxes of NaN": (
        lambda n: objects(),
        lambda x, call: [boxes([0.0, 0.0, float("nan"), 4.0]) for _ in x],
        "recorded and not graded",
        4,
    ),
    "reversed boxes": (
        lambda n: objects(),
        lambda x, call: [boxes([4.0, 4.0, 0.0, 0.0]) for _ in x],
        "recorded and not graded",
        4,
    ),
    "targets of two numbers": (lambda n: objects(2, 1), lambda x, call: [boxes(WHOLE) for _ in x], "2 boxes and 1 labels", 4),
    "a mask of another size": (
        lambda n: torch.zeros(4, 4).long(),
        lambda x, call: torch.zeros(len(x), 3, 8, 8),
        "4 × 4 and the predicted one 8 × 8",
        4,
    ),
    "a mask with unknown classes": (
        lambda n: torch.full((8, 8), 9),
        lambda x, call: torch.zeros(len(x), 3, 8, 8),
        "has no output for",
        4,
    ),
}  # fmt: skip


NAN = float("nan")


def spoiled(value: torch.Tensor, bad: float = NAN) -> torch.Tensor:
    value[:, 0] = bad
    return value


def keypoints(count: int, value: float) -> dict[str, torch.Tensor]:
    return {"keypoints": torch.full((1, count, 3), value)}


#: By name: the target of a sample, the model's answer, what the output is declared as, and what the run says.
UNGRADED: dict[str, tuple[Callable[[int], Any], Callable[[Any, int], Any], str | None, str]] = {
    "an empty class": (lambda n: torch.zeros(0), lambda x, call: logits(x), None, "A target is empty"),
    "a binary target of NaN": (
        lambda n: torch.tensor([NAN]),
        lambda x, call: logits(x, 1),
        "logits",
        "neither a class number",
    ),
    "logits of NaN": (lambda n: -100, lambda x, call: spoiled(logits(x)), None, "no predicted class"),
    "no label of several": (lambda n: torch.zeros(0), lambda x, call: logits(x), "multilabel", "A target is empty"),
    "too many labels of several": (
        lambda n: torch.ones(4),
        lambda x, call: logits(x),
        "multilabel",
        "not 3 numbers from 0",
    ),
    "a class of several": (lambda n: 1, lambda x, call: logits(x), "multilabel", "not 3 numbers from 0"),
    "unknown labels of several": (
        lambda n: torch.tensor([1.0, -1.0, 0.0]),
        lambda x, call: logits(x),
        "multilabel",
        "not 3 numbers from 0",
    ),
    "NaN of several labels": (
        lambda n: torch.tensor([1.0, NAN, 0.0]),
        lambda x, call: logits(x),
        "multilabel",
        "not 3 numbers from 0",
    ),
    "a measured NaN": (
        lambda n: torch.tensor([NAN, 1.0]),
        lambda x, call: logits(x, 2),
        "regression",
        "not 2 finite numbers",
    ),
    "a vector of NaN": (lambda n: 1, lambda x, call: spoiled(logits(x)), "embedding", "recorded as they are"),
    "an empty sequence": (
        lambda n: torch.zeros(0, dtype=torch.long),
        lambda x, call: torch.zeros(len(x), 0, 7),
        "tokens",
        "no position that counts",
    ),
    "only ignored tokens": (
        lambda n: torch.full((5,), -100),
        lambda x, call: torch.zeros(len(x), 5, 7),
        "tokens",
        "no position that counts",
    ),
    "a class beside tokens": (
        lambda n: 1,
        lambda x, call: torch.zeros(len(x), 5, 7),
        "tokens",
        "not a sequence of whole numbers",
    ),
    "an empty mask": (
        lambda n: torch.zeros(0, 0, dtype=torch.long),
        lambda x, call: torch.zeros(len(x), 3, 0, 0),
        "masks",
        "no pixel that counts",
    ),
    "only ignored pixels": (
        lambda n: torch.full((8, 8), (255, -100)[n % 2]),
        lambda x, call: torch.zeros(len(x), 3, 8, 8),
        None,
        "no pixel that counts",
    ),
    "a mask of shares": (
        lambda n: torch.full((8, 8), 0.5),
        lambda x, call: torch.zeros(len(x), 3, 8, 8),
        "masks",
        "not a mask of whole numbers",
    ),
    "a class beside boxes": (
        lambda n: 1,
        lambda x, call: [boxes(WHOLE) for _ in x],
        "boxes",
        "not a dict with boxes and labels",
    ),
}


@pytest.mark.filterwarnings("ignore::audit.RecordingWarning")
@pytest.mark.parametrize("name", UNGRADED)
def test_what_cannot_be_graded_has_no_grade(tmp_path: Path, name: str) -> None:
    target, answer, declared, says = UNGRADED[name]
    ask = record(tmp_path, target, answer, output=declared)
    assert [says in warning for warning in ask.warnings].count(True) == 1, ask.warnings
    assert ask("SELECT count(*), count(loss), count(correct) FROM predictions") == [(COUNT, 0, 0)]
    graded = (
        "(SELECT count(outcome) FROM boxes), (SELECT count(*) FROM mask_scores), (SELECT count(correct) FROM tokens)"
    )
    assert ask(f"SELECT {graded}") == [(0, 0, 0)]


@pytest.mark.filterwarnings("ignore::audit.RecordingWarning")
@pytest.mark.parametrize(
    ("kind", "shape"), [("tokens", (5, 0)), ("masks", (0, 8, 8))], ids=["no vocabulary", "no classes"]
)
def test_scores_without_classes(tmp_path: Path, kind: str, shape: tuple[int, ...]) -> None:
    target = torch.zeros(5 if kind == "tokens" else (8, 8), dtype=torch.long)
    ask = record(tmp_path, lambda n: target, lambda x, call: torch.zeros(len(x), *shape), output=kind)
    assert any("it has no classes" in warning for warning in ask.warnings), ask.warnings
    assert ask("SELECT count(*) FROM predictions") == [(0,)]


@pytest.mark.filterwarnings("ignore::audit.RecordingWarning")
def test_a_score_of_nan_counts_as_wrong(tmp_path: Path) -> None:
    """In DuckDB NaN is above every number: such a score must not pass for a yes."""
    targets = torch.tensor([1.0, 0.0, 1.0])
    ask = record(tmp_path, lambda n: targets, lambda x, call: spoiled(logits(x) + 2), output="multilabel")
    assert any("It has NaN: such scores" in warning for warning in ask.warnings), ask.warnings
    assert ask("SELECT DISTINCT class, correct FROM label_scores ORDER BY class") == [(0, False), (1, False), (2, True)]
    assert ask("SELECT DISTINCT correct FROM predictions") == [(False,)]
    expected = [(0, COUNT, 0, 0, COUNT), (1, 0, 0, COUNT, 0), (2, COUNT, COUNT, 0, 0)]
    assert ask("SELECT class, positives, tp, fp, fn FROM per_label") == expected
    assert ask("SELECT class, positives, tp, fp, fn FROM precision_recall('latest', 0.5)") == expected
    with audit.open(tmp_path) as store:
        assert "its logits are NaN" in store.check(only=["finite"]).outcome("finite").message


@pytest.mark.filterwarnings("ignore::audit.RecordingWarning")
def test_a_label_that_is_not_known_leaves_the_others(tmp_path: Path) -> None:
    ask = record(tmp_path, lambda n: torch.tensor([1.0, -1.0, 0.0]), lambda x, call: logits(x) - 1, output="multilabel")
    assert ask("SELECT DISTINCT class, correct FROM label_scores ORDER BY class") == [(0, False), (1, None), (2, True)]


@pytest.mark.filterwarnings("ignore::audit.RecordingWarning")
@pytest.mark.parametrize(("count", "value"), [(17, NAN), (5, 1.0)], ids=["NaN", "another number"])
def test_keypoints_that_cannot_be_compared(tmp_path: Path, count: int, value: float) -> None:
    ask = record(
        tmp_path,
        lambda n: objects() | keypoints(count, value),
        lambda x, call: [boxes(WHOLE) | keypoints(17, 1.0) for _ in x],
    )
    assert any("keypoints of a box cannot be compared" in warning for warning in ask.warnings), ask.warnings
    assert ask("SELECT count(oks), count(*) FILTER (outcome = 'tp') FROM boxes") == [(0, 2 * COUNT)]


def test_an_empty_list_of_annotations_means_no_object(tmp_path: Path) -> None:
    """As torchvision's CocoDetection gives it: what is found there is a false alarm."""
    annotation = {"bbox": [0.0, 0.0, 4.0, 4.0], "category_id": 1}
    found = lambda x, call: [boxes(WHOLE) for _ in x]  # noqa: E731
    ask = record(tmp_path, lambda n: [annotation] if n else [], found, is_listed=True)
    rows = ask("SELECT index, outcome FROM boxes WHERE kind = 'predicted' ORDER BY index")
    assert rows == [(0, "fp"), (1, "tp"), (2, "tp"), (3, "tp")]


@pytest.mark.filterwarnings("ignore::audit.RecordingWarning")
def test_a_picture_without_a_target_among_others_is_reported(tmp_path: Path) -> None:
    ask = record(tmp_path, lambda n: objects() if n else {"image_id": 0}, lambda x, call: [boxes(WHOLE) for _ in x])
    assert any("not a dict with boxes and labels" in warning for warning in ask.warnings), ask.warnings
    assert ask("SELECT index, outcome FROM boxes WHERE kind = 'predicted' AND index < 2 ORDER BY index") == [
        (0, None),
        (1, "tp"),
    ]


def test_a_mask_may_be_of_whole_floating_point_numbers(tmp_path: Path) -> None:
    """Losses of binary masks want them so."""
    mask = torch.tensor([[1.0, 0.0], [0.0, 255.0]])[None]
    ask = record(tmp_path, lambda n: mask, lambda x, call: torch.full((len(x), 1, 2, 2), 2.0), output="masks")
    assert ask("SELECT class, target_pixels, shared_pixels FROM mask_scores WHERE index = 0 ORDER BY class") == [
        (0, 2, 0),
        (1, 1, 1),
    ]


@pytest.mark.filterwarnings("ignore::audit.RecordingWarning")
def test_logged_logits_of_nan(tmp_path: Path) -> None:
    with audit.record(tmp_path, capture="digest") as run:
        run.log(indices=[0, 1], logits=spoiled(torch.zeros(2, 3)), labels=[0, 7])
    said = " ".join(Questions(tmp_path).warnings)
    assert "no predicted class" in said
    assert "not one of its 3 classes" in said


class Many(Squares):
    def __len__(self) -> int:
        return 60


@pytest.mark.filterwarnings("ignore::audit.RecordingWarning")
def test_many_bad_targets_leave_room_for_other_sentences(tmp_path: Path) -> None:
    with audit.record(tmp_path, capture="digest") as run:
        model = run.model(Answer(lambda x, call: [boxes(WHOLE) for _ in x] if call < 2 else None))
        for x, _ in run.loader(DataLoader(Many(lambda n: objects(2, 1)), batch_size=30, collate_fn=collate)):
            model(list(x))
    said = Questions(tmp_path).warnings
    assert sum("2 boxes and 1 labels" in text for text in said) == 10
    assert "More than 10 values could not be recorded." in said
    assert any("now it returned None" in text for text in said), said


def collate(items: list[Any]) -> Any:
    return tuple(zip(*items, strict=True))


def record(
    path: Path,
    target: Callable[[int], Any],
    answer: Callable[[Any, int], Any],
    *,
    empty: bool = False,
    output: str | None = None,
    is_listed: bool = False,
) -> Questions:
    has_boxes = is_listed or output == "boxes" or isinstance(target(0), dict)
    with audit.record(path, capture="digest") as run, warnings.catch_warnings():
        warnings.simplefilter("ignore", audit.RecordingWarning)
        loader = run.loader(DataLoader(Squares(target), batch_size=BATCH, collate_fn=collate if has_boxes else None))
        model = run.model(Answer(answer), output=output)
        for x, _ in loader:
            if empty:
                model(x[:0])
            model(list(x) if has_boxes else x)
    assert model.calls == (COUNT // BATCH) * (1 + empty), "the loop went on"
    return Questions(path)


@pytest.mark.filterwarnings("ignore::audit.RecordingWarning")
@pytest.mark.parametrize("name", CASES)
def test_the_run_says_what_does_not_fit(tmp_path: Path, name: str) -> None:
    target, answer, says, stored = CASES[name]
    ask = record(tmp_path, target, answer)
    assert any(says in warning for warning in ask.warnings), ask.warnings
    assert ask("SELECT status FROM runs") == [("complete",)]
    assert ask("SELECT count(*) FROM predictions") == [(stored,)]
    assert ask("SELECT count(*) FROM boxes WHERE outcome = 'tp'") == [(0,)]
    assert ask("SELECT count(*) FROM predictions WHERE correct AND label > 1") == [(0,)]
    assert ask("SELECT count(*) FROM mask_scores WHERE shared_pixels > 0") == [(0,)]


def test_pictures_without_objects(tmp_path: Path) -> None:
    ask = record(tmp_path, lambda n: objects(0, 0), lambda x, call: [boxes([], 0) for _ in x])
    assert ask("SELECT count(*) FROM predictions") == [(COUNT,)]
    assert ask("SELECT count(*) FROM boxes") == [(0,)]


@pytest.mark.filterwarnings("ignore::audit.RecordingWarning")
def test_a_batch_of_no_rows(tmp_path: Path) -> None:
    ask = record(tmp_path, lambda n: n % 2, lambda x, call: logits(x), empty=True)
    assert ask("SELECT index, count(*) FROM predictions GROUP BY index ORDER BY index") == [
        (n, 1) for n in range(COUNT)
    ]
