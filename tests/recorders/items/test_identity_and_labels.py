"""A sample keeps its identity in every part of a split, and a label is not guessed."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset, random_split
from torchvision.transforms import v2
from torchvision.transforms.functional import to_tensor

import audit
from audit.recorders.files.origin import origin_of
from audit.recorders.items.item_parts import label_number, split_item


class Items(Dataset):  # type: ignore[type-arg]
    """Ten items without files, of a form of one's own."""

    def __init__(self, form: Any = lambda n: (torch.full((2,), float(n)), n % 3), targets: Any = None) -> None:
        self.form = form
        if targets is not None:
            self.targets = targets

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> Any:
        return self.form(index)


def labels_of(tmp_path: Path, dataset: Any, **options: Any) -> tuple[list[int | None], list[str]]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with audit.record(tmp_path / "lineage") as run:
            list(run.loader(DataLoader(dataset, batch_size=4), **options))
    with audit.open(tmp_path / "lineage") as store:
        labels = [label for (label,) in store.sql("SELECT label FROM samples ORDER BY index").fetchall()]
        return labels, list(store.runs()[-1].warnings)


def test_the_parts_of_a_split_do_not_share_identities(tmp_path: Path) -> None:
    train, val = random_split(Items(), [6, 4], generator=torch.Generator().manual_seed(0))
    with audit.record(tmp_path / "lineage") as run:
        for split, part in (("train", train), ("val", val)):
            list(run.loader(DataLoader(part, batch_size=4), split=split))
    with audit.open(tmp_path / "lineage") as store:
        rows = store.sql("SELECT split, index, source FROM samples").fetchall()
    expected = {("train", n, f"dataset://{i}") for n, i in enumerate(train.indices)}
    assert set(rows) == expected | {("val", n, f"dataset://{i}") for n, i in enumerate(val.indices)}
    assert len({source for _, _, source in rows}) == 10


def test_identities_through_nested_and_joined_datasets() -> None:
    base = Items()
    assert origin_of(Subset(Subset(base, [3, 7, 9]), [2, 0]), 0).source == "dataset://9"
    joined: Any = ConcatDataset([base, Items()])
    assert [origin_of(joined, index).source for index in (0, 10)] == ["dataset://0", "dataset://10"]
    assert origin_of(Subset(joined, [15]), 0).source == "dataset://15"


def test_of_several_numbers_none_is_taken_for_the_label(tmp_path: Path) -> None:
    dataset = Items(lambda n: (torch.ones(2), n, n % 3))
    labels, reported = labels_of(tmp_path, dataset)
    assert labels == [None] * 10
    assert any("label=" in message for message in reported), reported
    assert labels_of(tmp_path / "named", dataset, label=2)[0] == [n % 3 for n in range(10)]


def test_the_targets_of_the_dataset_say_which_it_is(tmp_path: Path) -> None:
    dataset = Items(lambda n: (torch.ones(2), n, n % 3), targets=[n % 3 for n in range(10)])
    assert labels_of(tmp_path, dataset)[0] == [n % 3 for n in range(10)]
    assert labels_of(tmp_path / "subset", Subset(dataset, [5, 4]))[0] == [2, 1]


def test_a_float_is_no_class(tmp_path: Path) -> None:
    dataset = Items(lambda n: (torch.ones(2), float(n)))
    # Found by itself, it is the target of a regression; named as the label, it is reported.
    assert labels_of(tmp_path, dataset)[0] == [None] * 10
    labels, reported = labels_of(tmp_path / "named", dataset, label=1)
    assert labels == [None] * 10
    assert any("label=1" in message for message in reported), reported


@pytest.mark.parametrize(
    ("label", "number"),
    [
        *((3, 3), (True, 1), (np.int64(2), 2), (torch.tensor(4), 4), (torch.tensor([4]), 4), (np.array([5]), 5)),
        *((3.0, None), (torch.tensor(3.0), None), (np.float32(1), None), ("3", None), (torch.tensor([1, 2]), None)),
    ],
)
def test_class_numbers(label: Any, number: int | None) -> None:
    assert label_number(label) == number


@dataclass
class Labelled:
    image: torch.Tensor
    label: int


@dataclass
class Named:
    signal: torch.Tensor
    species: int


def test_fields_of_a_dataclass_are_found_by_their_names(tmp_path: Path) -> None:
    class Flipped(Items):
        def __init__(self, kind: Any) -> None:
            self.kind, self.aug = kind, v2.RandomHorizontalFlip()

        def __getitem__(self, index: int) -> Any:
            return self.kind(self.aug(torch.rand(3, 4, 4)), index % 3)

    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        for kind in (Labelled, Named):
            with audit.record(tmp_path / kind.__name__) as run:
                list(run.loader(DataLoader(Flipped(kind), 4, collate_fn=list)))
            assert run.run.unrecorded == []  # the item holds what the stage returned
    assert any(
        "a Named with the fields signal, species; candidates: label='species'" in str(one.message) for one in warned
    )
    with audit.open(tmp_path / "Labelled") as store:
        assert store.sql("SELECT list(label ORDER BY index) FROM samples").fetchall() == [([n % 3 for n in range(10)],)]


def test_a_second_picture_is_not_the_label(tmp_path: Path) -> None:
    pictures = torch.rand(3, 4, 4), torch.rand(3, 4, 4)
    assert split_item((*pictures, 1)) == (pictures[0], None)
    assert split_item(pictures)[1] is pictures[1]  # a picture to be restored, say
    assert split_item((pictures[0], pictures[1][:1], 1))[1] is not None  # a mask
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(48, 2))

    class Pairs(Items):
        def __init__(self) -> None:
            self.aug = v2.RandomHorizontalFlip()

        def __getitem__(self, index: int) -> Any:
            return self.aug(torch.rand(3, 4, 4)), self.aug(torch.rand(3, 4, 4)), index % 2

    with audit.record(tmp_path, strict=True) as run:
        run.model(model)
        for x, _, _ in run.loader(DataLoader(Pairs(), 4), label=2):
            model(x)
    with audit.open(tmp_path) as store:
        assert {one.status for one in store.check(only=["alignment"]).outcomes} == {"pass"}


def test_one_number_among_other_things_is_the_label_at_its_usual_place() -> None:
    assert split_item(("x", 3, "path")) == ("x", 3)
    assert split_item(("x", 3, 4)) == ("x", None)


def test_the_candidates_are_named_and_none_is_graded(tmp_path: Path) -> None:
    dataset = Items(lambda n: (torch.ones(2), n, n % 3))
    model = torch.nn.Linear(2, 3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with audit.record(tmp_path / "lineage") as run:
            run.model(model)
            for x, *_ in run.loader(DataLoader(dataset, batch_size=4)):
                model(x)
    (text,) = [text for text in run.run.warnings if "No label" in text]
    assert "label=1 (0 to 3, equal to the index), label=2 (0 to 2)" in text
    with audit.open(tmp_path / "lineage") as store:
        graded = "SELECT count(label), count(correct), count(*) FROM predictions"
        assert store.sql(graded).fetchall() == [(0, 0, 10)]


@pytest.mark.parametrize(
    ("form", "label"),
    [
        (lambda n, x: (n, x, n % 3), None),
        (lambda n, x: (f"{n}.png", x, n % 3), 0),
        (lambda n, x: (n % 3, x), None),
    ],
    ids=["index", "name", "label"],
)
def test_a_picture_behind_a_number_or_a_name_is_the_input(form: Any, label: int | None, tmp_path: Path) -> None:
    dataset = Items(lambda n: form(n, to_tensor(Image.new("RGB", (4, 4), (n, 0, 0)))))
    labels, warned = labels_of(tmp_path, dataset)
    assert labels[0] == label
    assert any("No label was found" in text for text in warned) == (label is None)
    with audit.open(tmp_path / "lineage") as store:
        # Not under `target.`: that would say that the call worked on the label.
        paths = [path for (path,) in store.sql("SELECT path FROM stages ORDER BY stage").fetchall()]
    assert paths[1] == "call.to_tensor"
    assert not any(path.startswith("target.") for path in paths)


class Joined:
    """A transform of a picture together with its mask, by name."""

    def __call__(self, **parts: Any) -> dict[str, Any]:
        return {name: np.ascontiguousarray(part[:, ::-1]) for name, part in parts.items()}


class PictureWithMask(Dataset):  # type: ignore[type-arg]
    def __init__(self) -> None:
        self.joined = Joined()

    def __len__(self) -> int:
        return 3

    def shift(self, mask: Any) -> Any:
        return mask + 1

    def __getitem__(self, index: int) -> Any:
        made = self.joined(image=np.full((3, 4, 3), index, np.uint8), mask=np.eye(3, 4, dtype=np.uint8))
        return made["image"].transpose(2, 0, 1), self.shift(made["mask"])


def test_a_stage_of_a_picture_and_its_mask_is_not_of_the_mask_alone(tmp_path: Path) -> None:
    _, warned = labels_of(tmp_path, PictureWithMask())
    with audit.open(tmp_path / "lineage") as store:
        paths = [path for (path,) in store.sql("SELECT path FROM stages ORDER BY stage").fetchall()]
    assert paths == ["0", "call.joined", "target.call.shift", "inside.item"]
    assert any("between call.joined" in text for text in warned)


def test_every_further_view_is_one(tmp_path: Path) -> None:
    labels_of(tmp_path, Items(lambda n: tuple(to_tensor(Image.new("RGB", (4, 4), (n, k, 0))) for k in range(3))))
    with audit.open(tmp_path / "lineage") as store:
        paths = [path for (path,) in store.sql("SELECT path FROM stages ORDER BY stage").fetchall()]
    assert paths == ["0", "call.to_tensor", "target.call.to_tensor#2", "target.call.to_tensor#3"]
