"""Boxes of detectors: recorded from a loop of one's own, matched by COCO's rule, and graded against the item's targets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from annotated_pictures import CLASSES, PIECES, pieces
from recording_material import Questions
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms

import audit
from audit.metrics.keypoints import COCO_SIGMAS
from audit.recorders.problems import RecordingWarning
from audit.report.html.environment import environment
from audit.report.html.page_data import overlay_view
from audit.report.trace_text import trace_tree
from audit.web.respond import TEMPLATES


class Objects(Dataset):  # type: ignore[type-arg]
    """Pictures with boxes, as torchvision's detectors take them."""

    classes = CLASSES

    def __init__(self, *, resize: bool = False) -> None:
        self.pictures = pieces()
        self.transform = transforms.Compose([*([transforms.Resize((32, 48))] if resize else []), transforms.ToTensor()])
        self.scale = 0.5 if resize else 1.0

    def __len__(self) -> int:
        return len(self.pictures)

    def target(self, index: int) -> Any:
        objects = PIECES[index][2]
        boxes = torch.tensor([box for _, *box in objects], dtype=torch.float32).reshape(-1, 4) * self.scale
        return {"boxes": boxes, "labels": torch.tensor([kind for kind, *_ in objects], dtype=torch.int64)}

    def __getitem__(self, index: int) -> Any:
        return self.transform(self.pictures[index]), self.target(index)


class Detector(nn.Module):
    """Gives for each picture the boxes that are written down for its content."""

    def __init__(self, answers: dict[float, Any]) -> None:
        super().__init__()
        self.answers = answers

    def forward(self, pictures: Any) -> Any:
        return [self.answers[round(float(picture.mean()), 5)] for picture in pictures]


def answer(*boxes: tuple[int, float, float, float, float, float]) -> dict[str, torch.Tensor]:
    return {
        "boxes": torch.tensor([box[2:] for box in boxes], dtype=torch.float32).reshape(-1, 4),
        "labels": torch.tensor([box[0] for box in boxes], dtype=torch.int64),
        "scores": torch.tensor([box[1] for box in boxes], dtype=torch.float32),
    }


#: For each picture: one found, one found too roughly and one missed, all found, an alarm where nothing is.
ANSWERS = [
    answer((1, 0.9, 12, 6, 78, 60), (2, 0.3, 0, 0, 5, 5)),
    answer((1, 0.8, 0, 0, 30, 30), (1, 0.2, 34, 0, 95, 44)),
    answer((1, 0.7, 20, 24, 88, 52), (2, 0.6, 0, 0, 96, 20)),
    answer((2, 0.5, 10, 10, 20, 20)),
]


def detector_of(data: Objects, answers: list[Any] = ANSWERS) -> Detector:
    return Detector({round(float(data[at][0].mean()), 5): answers[at] for at in range(len(data))})


def collate(items: list[Any]) -> Any:
    return tuple(zip(*items, strict=True))


def record(
    path: Path, data: Objects, model: nn.Module, *, size: int = 2, workers: int = 0, shuffle: bool = True
) -> Questions:
    with audit.record(path / "lineage") as run:
        run.model(model)
        loader = DataLoader(data, batch_size=size, collate_fn=collate, num_workers=workers, shuffle=shuffle)
        for pictures, _ in run.loader(loader):
            model(list(pictures))
    return Questions(path / "lineage")


@pytest.mark.parametrize(("size", "workers"), [(1, 0), (2, 0), pytest.param(3, 2, marks=pytest.mark.workers)])
def test_boxes_are_recorded_for_their_own_picture_and_graded(tmp_path: Path, size: int, workers: int) -> None:
    data = Objects()
    asked = record(tmp_path, data, detector_of(data), size=size, workers=workers)
    rows = asked("SELECT index, kind, box, class, class_name, score, x1, matched, outcome FROM boxes ORDER BY ALL")
    assert [row[:7] for row in rows if row[1] == "target"] == [
        (at, "target", number, kind, CLASSES[kind], None, x1)
        for at, (_, _, objects) in enumerate(PIECES)
        for number, (kind, x1, *_) in enumerate(objects)
    ]
    outcomes = {(row[0], row[1], row[2]): row[7:] for row in rows}
    assert outcomes == {
        (0, "target", 0): (0, "tp"),
        (0, "predicted", 0): (0, "tp"),
        (0, "predicted", 1): (None, "fp"),
        (1, "target", 0): (1, "tp"),
        (1, "target", 1): (None, "fn"),
        (1, "predicted", 0): (None, "fp"),
        (1, "predicted", 1): (0, "tp"),
        (2, "target", 0): (0, "tp"),
        (2, "target", 1): (1, "tp"),
        (2, "predicted", 0): (0, "tp"),
        (2, "predicted", 1): (1, "tp"),
        (3, "predicted", 0): (None, "fp"),
    }
    assert asked("SELECT output, task FROM runs") == [("boxes", "detection")]
    assert asked("SELECT index, label, predicted, correct FROM predictions ORDER BY index") == [
        (at, None, None, None) for at in range(4)
    ]
    assert asked("SELECT count(*) FROM predictions JOIN samples USING (run_id, epoch, index, visit)") == [(4,)]
    assert asked("SELECT DISTINCT samples = rows FROM calls") == [(True,)]
    same = "SELECT count(*) FROM predictions p JOIN stage_outputs o USING (index) WHERE p.input_digest = o.digest"
    assert asked(same) == [(4,)], "the input is the last stage of the same sample"


def test_the_views_list_what_was_missed_and_what_was_a_false_alarm(tmp_path: Path) -> None:
    data = Objects()
    asked = record(tmp_path, data, detector_of(data))
    assert asked("SELECT index, class_name, x1, y1, x2, y2 FROM missed_objects") == [
        (1, "stuff", 2.0, 30.0, 30.0, 62.0)
    ]
    assert asked("SELECT index, class_name, round(score, 1) FROM false_alarms") == [
        (1, "thing", 0.8),
        (3, "stuff", 0.5),
        (0, "stuff", 0.3),
    ]
    assert asked("SELECT class_name, objects, tp, fp, fn FROM per_object_class") == [
        ("thing", 3, 3, 1, 0),
        ("stuff", 2, 1, 2, 1),
    ]


def test_places_in_the_source_are_reported_where_the_stages_are_known(tmp_path: Path) -> None:
    small = [answer((1, 0.9, 6, 3, 39, 30)), *ANSWERS[1:]]
    data = Objects(resize=True)
    asked = record(tmp_path, data, detector_of(data, small))
    assert asked("SELECT sx1, sy1, sx2, sy2 FROM boxes WHERE index = 0 AND kind = 'predicted'") == [
        (12.0, 6.0, 78.0, 60.0)
    ]


def test_a_place_that_is_not_known_is_null(tmp_path: Path) -> None:
    data = Objects()
    data.transform = transforms.Compose([transforms.RandomRotation((10, 10)), transforms.ToTensor()])
    asked = record(tmp_path, data, detector_of(data))
    assert asked("SELECT count(sx1), count(*) > 0 FROM boxes") == [(0, True)]


def test_the_mean_average_precision_of_a_run(tmp_path: Path) -> None:
    data = Objects()
    record(tmp_path, data, detector_of(data))
    with audit.open(tmp_path / "lineage") as store:
        found = store.mean_average_precision()
    assert found.at_50 == pytest.approx(
        (_precision([1, 0, 1, 1], [0.9, 0.8, 0.7, 0.2], 3) + _precision([1, 0, 0], [0.6, 0.5, 0.3], 2)) / 2
    )
    assert sorted(found.classes) == [1, 2]


class Areas(Objects):
    def target(self, index: int) -> dict[str, torch.Tensor]:
        found = super().target(index)
        return found | {"area": torch.full((len(found["boxes"]),), 20_000.0)}


def test_an_object_is_as_large_as_its_annotation_says(tmp_path: Path) -> None:
    """As for COCO: its box may be larger."""
    for kind, sizes in ((Objects, (True, False)), (Areas, (False, True))):
        data = kind()
        record(tmp_path / kind.__name__, data, detector_of(data))
        with audit.open(tmp_path / kind.__name__ / "lineage") as store:
            found = store.mean_average_precision()
        assert (found.medium is not None, found.large is not None) == sizes


def _precision(hits: list[int], scores: list[float], wanted: int) -> float:
    """The mean precision at 101 levels of recall, reckoned by hand."""
    order = np.argsort(scores)[::-1]
    right = np.cumsum(np.array(hits)[order])
    precision = right / np.arange(1, len(hits) + 1)
    precision = np.maximum.accumulate(precision[::-1])[::-1]
    return float(
        np.mean(
            [
                next((p for p, r in zip(precision, right / wanted, strict=True) if r >= level), 0.0)
                for level in np.linspace(0, 1, 101)
            ]
        )
    )


def test_a_picture_taken_out_of_the_list_keeps_its_own_sample(tmp_path: Path) -> None:
    data = Objects()
    model = detector_of(data)
    with audit.record(tmp_path / "lineage") as run:
        run.model(model)
        for pictures, _ in run.loader(DataLoader(data, batch_size=3, collate_fn=collate)):
            model([pictures[-1]])
            if len(pictures) > 1:
                model([pictures[1]])
    asked = Questions(tmp_path / "lineage")
    assert asked("SELECT DISTINCT index FROM predictions ORDER BY index") == [(1,), (2,), (3,)]
    assert asked("SELECT count(*) FROM boxes WHERE index = 0") == [(0,)]
    assert asked("SELECT outcome FROM boxes WHERE index = 2 AND kind = 'predicted'") == [("tp",), ("tp",)]


def test_a_picture_that_is_no_sample_has_no_boxes(tmp_path: Path) -> None:
    data = Objects()
    model = detector_of(data)
    stranger = torch.full((3, 64, 96), 0.25)
    model.answers[0.25] = answer((1, 0.9, 0, 0, 50, 50))
    with audit.record(tmp_path / "lineage") as run:
        run.model(model)
        for pictures, _ in run.loader(DataLoader(data, batch_size=4, collate_fn=collate)):
            model([stranger, *pictures])
    asked = Questions(tmp_path / "lineage")
    assert asked("SELECT count(DISTINCT index), count(*) FROM predictions") == [(4, 4)]
    assert asked("SELECT x1 FROM boxes WHERE index = 0 AND kind = 'predicted' ORDER BY box") == [(12.0,), (0.0,)]
    assert asked("SELECT rows, samples FROM calls") == [(5, 4)]


def test_pictures_that_a_collate_function_sorted_keep_their_samples(tmp_path: Path) -> None:
    data = Objects()
    model = detector_of(data)
    with audit.record(tmp_path / "lineage") as run:
        run.model(model)
        loader = DataLoader(data, batch_size=4, collate_fn=lambda items: collate(items[::-1]))
        for pictures, _ in run.loader(loader):
            model([picture.double() for picture in pictures])
    asked = Questions(tmp_path / "lineage")
    assert asked("SELECT count(*) FROM boxes WHERE kind = 'predicted' AND outcome = 'tp'") == [(4,)]
    assert asked("SELECT DISTINCT operations FROM predictions") == [(["double"],)]


def test_pictures_of_a_recorded_dataset_are_known_by_their_content(tmp_path: Path) -> None:
    data = Objects()
    model = detector_of(data)
    with audit.record(tmp_path / "lineage") as run:
        run.model(model)
        for pictures, _ in DataLoader(run.dataset(data), batch_size=2, collate_fn=collate, shuffle=True):
            model(list(pictures))
    asked = Questions(tmp_path / "lineage")
    assert asked("SELECT DISTINCT evidence FROM calls") == [("content",)]
    assert asked("SELECT kind, outcome, count(*) FROM boxes GROUP BY ALL ORDER BY ALL") == [
        ("predicted", "fp", 3),
        ("predicted", "tp", 4),
        ("target", "fn", 1),
        ("target", "tp", 4),
    ]


def test_a_detector_in_training_gives_losses_and_no_predictions(tmp_path: Path) -> None:
    class Training(nn.Module):
        def forward(self, pictures: Any, targets: Any) -> Any:
            return {"loss_classifier": torch.tensor(1.0), "loss_box_reg": torch.tensor(0.5)}

    model = Training()
    with audit.record(tmp_path / "lineage", strict=True) as run:
        run.model(model)
        for pictures, targets in run.loader(DataLoader(Objects(), batch_size=2, collate_fn=collate)):
            model(list(pictures), list(targets))
    asked = Questions(tmp_path / "lineage")
    assert asked("SELECT count(*) FROM predictions") == [(0,)]
    assert asked("SELECT sum(samples) FROM calls") == [(4,)]


# -- bad input -------------------------------------------------------------------------------------


def test_boxes_that_cannot_be_compared_are_recorded_and_not_graded(tmp_path: Path) -> None:
    data = Objects()
    answers = [answer((1, 0.9, float("nan"), 6, 78, 60), (1, 0.8, 50, 50, 10, 10)), *ANSWERS[1:]]
    with pytest.warns(RecordingWarning, match="predicted box has NaN"):
        asked = record(tmp_path, data, detector_of(data, answers))
    assert asked("SELECT outcome FROM boxes WHERE index = 0 AND kind = 'predicted'") == [(None,), (None,)]
    assert asked("SELECT outcome FROM boxes WHERE index = 0 AND kind = 'target'") == [("fn",)]


def test_targets_that_cannot_be_compared_are_recorded_and_not_graded(tmp_path: Path) -> None:
    class Broken(Objects):
        def target(self, index: int) -> Any:
            found = super().target(index)
            if index == 0:
                found["boxes"] = torch.tensor([[5.0, 5.0, float("inf"), 9.0]])
            return found

    data = Broken()
    with pytest.warns(RecordingWarning, match="target box has NaN"):
        asked = record(tmp_path, data, detector_of(data))
    assert asked("SELECT outcome FROM boxes WHERE index = 0 AND kind = 'target'") == [(None,)]
    # What was found of its class may be that object; the box of another class is not.
    found = asked("SELECT class, outcome FROM boxes WHERE index = 0 AND kind = 'predicted' ORDER BY box")
    assert found == [(1, None), (2, "fp")]


def test_boxes_and_labels_of_different_number_are_no_target(tmp_path: Path) -> None:
    class Broken(Objects):
        def target(self, index: int) -> Any:
            found = super().target(index)
            return found | {"labels": found["labels"][:-1]} if index == 1 else found

    data = Broken()
    with pytest.warns(RecordingWarning, match="2 boxes and 1 labels"):
        asked = record(tmp_path, data, detector_of(data))
    assert asked("SELECT kind, outcome FROM boxes WHERE index = 1") == [("predicted", None), ("predicted", None)]
    assert asked("SELECT count(*) FROM boxes WHERE index = 0 AND outcome = 'tp'") == [(2,)]


def test_a_class_beyond_the_list_has_no_name(tmp_path: Path) -> None:
    data = Objects()
    answers = [answer((17, 0.9, 12, 6, 78, 60)), *ANSWERS[1:]]
    with pytest.warns(RecordingWarning, match="beyond the 3 known classes"):
        asked = record(tmp_path, data, detector_of(data, answers))
    assert asked("SELECT class, class_name, outcome FROM boxes WHERE index = 0 AND kind = 'predicted'") == [
        (17, None, "fp")
    ]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda boxes: None, "now it returned None"),
        (lambda boxes: (one for one in boxes), "now it returned a generator"),
        (lambda boxes: boxes[:-1], "was given 2 pictures and returned boxes of 1"),
        (lambda boxes: torch.zeros(2, 3), "now it returned a tensor of shape"),
    ],
    ids=["none", "generator", "fewer", "another form"],
)
def test_an_output_that_is_not_boxes_is_said_and_the_loop_goes_on(tmp_path: Path, wrong: Any, said: str) -> None:
    data = Objects()

    class Changing(Detector):
        calls = 0

        def forward(self, pictures: Any) -> Any:
            self.calls += 1
            found = super().forward(pictures)
            return wrong(found) if self.calls == 2 else found

    model = Changing(detector_of(data).answers)
    with pytest.warns(RecordingWarning, match=said):
        asked = record(tmp_path, data, model, shuffle=False)
    assert model.calls == 2
    assert asked("SELECT index FROM predictions ORDER BY index") == [(0,), (1,)]
    assert asked("SELECT DISTINCT index FROM boxes ORDER BY index") == [(0,), (1,)]
    assert asked("SELECT count(*) FROM samples WHERE status = 'ok'") == [(4,)]


def test_keypoints_are_recorded_compared_and_shown(tmp_path: Path) -> None:
    class Posed(Objects):
        def target(self, index: int) -> Any:
            found = super().target(index)
            place = found["boxes"][:, None, :2] + torch.arange(17.0)[None, :, None]
            points = torch.cat([place, torch.full((len(place), 17, 1), 2.0)], dim=2)
            return found | {"keypoints": points, "area": torch.full((len(place),), 900.0)}

    data = Posed()
    answers = []
    for at in range(len(data)):
        target = data.target(at)
        scores = torch.full((len(target["boxes"]),), 0.9)
        marks = torch.full(target["keypoints"].shape[:2], 5.0)
        points = target["keypoints"] + torch.tensor([3.0, 0.0, 0.0])
        found = {"boxes": target["boxes"], "labels": target["labels"], "scores": scores}
        answers.append(found | {"keypoints": points, "keypoints_scores": marks})
    ask = record(tmp_path, data, detector_of(data, answers))
    expected = float(np.exp(-(9.0 / (2 * COCO_SIGMAS) ** 2 / 900.0 / 2)).mean())
    rows = ask("SELECT kind, oks, len(keypoints), len(keypoint_scores), outcome FROM boxes")
    assert {row[0] for row in rows} == {"target", "predicted"}
    for kind, oks, points, marks, outcome in rows:
        assert (outcome, points, marks) == ("tp", 51, 17 if kind == "predicted" else None)
        assert oks == pytest.approx(expected, abs=1e-6)
    trace = audit.open(tmp_path / "lineage").trace(index=0)
    box = trace.overlays[-1].boxes[0]
    assert box.keypoints is not None
    assert len(box.keypoints) == 51
    assert {"keypoints", "oks"} <= trace.as_json()["boxes"][0].keys()
    from rich.console import Console

    console = Console(record=True, width=160)
    console.print(trace_tree(trace))
    assert "17 keypoints, OKS 0." in console.export_text()
    trace.export(tmp_path / "out")
    assert (tmp_path / "out" / "overlay.png").exists()
    view = overlay_view(trace.overlays[-1])
    assert view is not None
    assert all(len(box["points"]) == 17 for box in view["boxes"])
    drawn = environment(TEMPLATES).get_template("overlay.svg").render(o=view)
    assert drawn.count("<circle") == 17 * len(view["boxes"])
