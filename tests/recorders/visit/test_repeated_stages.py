"""Two calls of one transform in one visit are two stage outputs, however the transform is found."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from dataset_shapes import picture
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms

import audit

COUNT = 4


class Views(Dataset):  # type: ignore[type-arg]
    """Several views of each picture by one transform, as SimCLR and DINO take them."""

    views = 2

    def __init__(self) -> None:
        self.transform = transforms.Compose([transforms.RandomCrop(6), transforms.ToTensor()])

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> Any:
        image = picture(index)
        return torch.stack([self.transform(image) for _ in range(self.views)]), index % 2


class ThreeViews(Views):
    views = 3


class PictureAndMask(Views):
    def __getitem__(self, index: int) -> Any:
        return self.transform(picture(index)), self.transform(picture(index + 50))


class Batches(Views):
    """Makes each item twice, in whole batches."""

    def __getitem__(self, index: int) -> Any:
        return self.transform(picture(index)), index % 2

    def __getitems__(self, indices: list[int]) -> Any:
        return [(torch.stack([self[index][0], self[index][0]]), index % 2) for index in indices]


class BatchesOfViews(Views):
    """Makes each item twice, in whole batches, and each time two views of it."""

    def __getitems__(self, indices: list[int]) -> Any:
        return [(torch.stack([self[index][0], self[index][0]]), index % 2) for index in indices]


class Steps:
    """A Compose of one's own, whose steps are found by their calls."""

    def __init__(self) -> None:
        self.steps = [transforms.RandomCrop(6), transforms.ToTensor()]

    def __call__(self, image: Any) -> Any:
        for step in self.steps:
            image = step(image)
        return image


class OwnViews(Views):
    def __init__(self) -> None:
        self.transform = Steps()


class BatchesOfOwnViews(BatchesOfViews):
    def __init__(self) -> None:
        self.transform = Steps()


class NamedViews(Views):
    def __getitem__(self, index: int) -> Any:
        views = []
        for _ in range(2):
            with audit.stage("view") as stage:
                views.append(stage.out(self.transform(picture(index))))
        return torch.stack(views), index % 2


def record(store: Path, dataset: Any, workers: int = 0) -> list[tuple[Any, ...]]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with audit.record(store, strict=True) as run:
            list(run.loader(DataLoader(dataset, batch_size=2, num_workers=workers)))
    with audit.open(store) as lineage:
        query = """SELECT path, o.name, list(digest ORDER BY index), list(params ORDER BY index)
                   FROM stage_outputs o JOIN stages s USING (run_id, stage) GROUP BY stage, path, o.name ORDER BY stage"""
        return lineage.sql(query).fetchall()


@pytest.mark.parametrize(
    ("dataset", "paths"),
    [
        (Views, ["0", "1", "2", "1#2", "2#2"]),
        (ThreeViews, ["0", "1", "2", "1#2", "2#2", "1#3", "2#3"]),
        (PictureAndMask, ["0", "1", "2", "target.1#2", "target.2#2"]),
        (Batches, ["0", "1", "2", "1#2", "2#2"]),
        (BatchesOfViews, ["0", "1", "2", "1#2", "2#2", "1#3", "2#3", "1#4", "2#4"]),
        (OwnViews, ["0", "1.1", "1.2", "1", "1#2.1", "1#2.2", "1#2"]),
        (
            BatchesOfOwnViews,
            [
                *["0", "1.1", "1.2", "1", "1#2.1", "1#2.2", "1#2"],
                *["1.1#2", "1.2#2", "1#3", "1#2.1#2", "1#2.2#2", "1#4"],
            ],
        ),
        (NamedViews, ["0", "1", "2", "inside.view", "1#2", "2#2", "inside.view#2"]),
    ],
)
def test_every_call_has_an_output(dataset: Any, paths: list[str], tmp_path: Path) -> None:
    rows = record(tmp_path / "lineage", dataset())
    assert [path for path, *_ in rows if not path.startswith("inside.item")] == paths
    crops = [params for path, name, _, params in rows if name == "RandomCrop"]
    drawn = [[(json.loads(one)["top"], json.loads(one)["left"]) for one in of_call] for of_call in crops]
    assert len(drawn) == sum(name == "RandomCrop" for _, name, *_ in rows) >= 2
    assert drawn[0] != drawn[1], "each call has what it drew itself"
    with audit.open(tmp_path / "lineage") as lineage:
        replayed = lineage.replay(dataset=dataset())
        assert (replayed.checked, replayed.identical) == (COUNT, COUNT), replayed.different
        trace = lineage.trace(index=1)
        assert [row["path"] for row in trace.stages if not row["path"].startswith("inside.item")] == paths
        for row in trace.stages:
            trace.value(row["stage"])


def test_the_last_stage_of_a_picture_with_a_mask_is_the_pictures(tmp_path: Path) -> None:
    with audit.record(tmp_path / "lineage", strict=True) as run:
        model = run.model(torch.nn.Flatten(), output="embedding")
        for x, _ in run.loader(DataLoader(PictureAndMask(), batch_size=2)):
            model(x)
    with audit.open(tmp_path / "lineage") as lineage:
        query = """SELECT count(*) FROM predictions p JOIN stage_outputs o USING (run_id, epoch, index, visit)
                   JOIN stages s ON s.stage = o.stage WHERE s.path = '2' AND o.digest = p.input_digest"""
        assert lineage.sql(query).fetchall() == [(COUNT,)]


def test_diff_of_two_views(tmp_path: Path) -> None:
    for number in range(2):
        torch.manual_seed(number)
        record(tmp_path / "lineage", Views())
    with audit.open(tmp_path / "lineage") as lineage:
        found = lineage.diff("latest~1", "latest")
        assert set(found.as_json()["first_divergent_stage"]) == {"RandomCrop"}


@pytest.mark.workers
def test_in_workers(tmp_path: Path) -> None:
    assert len(record(tmp_path / "lineage", Views(), workers=2)) == 6
