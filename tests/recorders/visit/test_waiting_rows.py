"""Rows of a batch are gathered after its samples were made. They say what held when each sample was made."""

from __future__ import annotations

import hashlib
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder
from torchvision.transforms import Compose, Lambda, RandomApply, ToTensor

import audit
from audit.recorders.files.origin import ListedFile, absolute_folder
from audit.recorders.stages.discover import find_pipeline
from audit.recorders.visit.item_recorder import ItemRecorder
from audit.recorders.visit.make import MadeVisit, make_lost_visit
from audit.recorders.visit.stage_row import Row
from audit.records import LEVELS, Level
from audit.sources import open_dataset
from audit.values import native as loops
from audit.values.base import Facts

_SAMPLES = "SELECT index, source, source_digest, label, label_name, status, failed_stage FROM samples ORDER BY ALL"
_STAGES = "SELECT index, stage, name, digest, changed, mean FROM stage_outputs ORDER BY ALL"
_FILES = "SELECT index, ordinal, source, digest, bytes FROM sample_sources ORDER BY ALL"


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    for number in range(40):
        folder = tmp_path / "pictures" / ("cat" if number % 2 else "dög")
        folder.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (4, 4), (number, 2 * number, 0)).save(folder / f"{number:02d}.png")
    return tmp_path / "pictures"


def _record(dataset: Any, store: Path, batch_size: int) -> list[list[tuple[Any, ...]]]:
    with audit.record(store, capture="digest", strict=True) as run:
        for _ in run.loader(DataLoader(dataset, batch_size=batch_size)):
            pass
    opened = audit.open(store)
    return [opened.sql(query).fetchall() for query in (_SAMPLES, _STAGES, _FILES)]


def test_rows_do_not_depend_on_the_size_of_batches(pictures: Path, tmp_path: Path) -> None:
    dataset = ImageFolder(str(pictures), Compose([ToTensor(), Lambda(torch.neg)]))
    one, many = _record(dataset, tmp_path / "one", 1), _record(dataset, tmp_path / "many", 40)
    assert one == many
    assert len(one[0]) == 40
    assert {row[4] for row in one[0]} == {"cat", "dög"}


@pytest.mark.parametrize("root", ["pictures", "pictures/", "./pictures", "../here/pictures//", Path("pictures"), None])
def test_rows_do_not_depend_on_how_the_folder_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, root: str | Path | None
) -> None:
    inside = tmp_path / "here" / "pictures" / "cat"
    inside.mkdir(parents=True)
    for number in range(8):
        Image.new("RGB", (4, 4), (number, 0, 0)).save(inside / f"{number}.png")
    gathered_otherwise: list[int] = []
    add_listed = ItemRecorder._add_listed

    def note(recorder: ItemRecorder, index: int, *rest: Any) -> None:
        gathered_otherwise.append(index)
        add_listed(recorder, index, *rest)

    monkeypatch.setattr(ItemRecorder, "_add_listed", note)
    monkeypatch.chdir(inside.parent.parent)
    expected = _record(ImageFolder(str(inside.parent), ToTensor()), tmp_path / "absolute", 4)
    assert [row[1] for row in expected[0]] == [f"cat/{number}.png" for number in range(8)]
    gathered_otherwise.clear()
    folder = "." if root is None else root
    if root is None:
        monkeypatch.chdir(inside.parent)
    assert _record(ImageFolder(folder, ToTensor()), tmp_path / "store", 4) == expected
    roots = audit.open(tmp_path / "store").sql("SELECT DISTINCT root FROM samples").fetchall()
    assert roots == [(str(inside.parent),)]
    if loops.native is not None:
        # The first is made with its calls listed, and gathered by itself.
        assert not gathered_otherwise


def test_the_source_is_the_one_that_was_listed_when_the_sample_was_made(pictures: Path, tmp_path: Path) -> None:
    dataset = ImageFolder(str(pictures), ToTensor())
    expected = _record(dataset, tmp_path / "before", 40)
    made = iter(range(len(dataset)))

    def forget(value: Any) -> Any:
        place = next(made)
        if place:
            dataset.samples[place - 1] = (str(tmp_path / "gone.png"), 7)
        return value

    dataset.transform = Compose([ToTensor(), forget])
    samples, _, files = _record(dataset, tmp_path / "after", 40)
    assert samples == expected[0]
    assert files == expected[2]


def test_a_label_that_the_dataset_changes_later_is_the_one_of_its_sample(pictures: Path, tmp_path: Path) -> None:
    shared = torch.zeros((), dtype=torch.int64)

    def number(label: int) -> torch.Tensor:
        return shared.fill_(label)

    dataset = ImageFolder(str(pictures), ToTensor(), target_transform=number)
    samples, _, _ = _record(dataset, tmp_path / "store", 40)
    assert [row[3] for row in samples] == [label for _, label in dataset.samples]


def test_the_samples_before_a_failure_are_recorded_with_it(pictures: Path, tmp_path: Path) -> None:
    made = iter(range(40))

    def fail(value: Any) -> Any:
        if next(made) == 20:
            raise ValueError("no")
        return value

    dataset = ImageFolder(str(pictures), Compose([ToTensor(), fail]))
    with pytest.raises(ValueError, match="no"):
        _record(dataset, tmp_path / "store", 40)
    samples = audit.open(tmp_path / "store").sql(_SAMPLES).fetchall()
    assert [(row[0], row[5]) for row in samples] == [*((index, "ok") for index in range(20)), (20, "failed")]


def test_audit_run_names_files_as_its_dataset_does(pictures: Path, tmp_path: Path) -> None:
    for name in ("plain.png", "a b.png", "dög.png", "x\\y.png"):
        Image.new("RGB", (4, 4), "red").save(pictures / "cat" / name)
    names = ["cat/plain.png", "./cat/a b.png", "cat/../cat/dög.png", str(pictures / "cat" / "x\\y.png"), "cat/01.png"]
    manifest = tmp_path / "list.csv"
    manifest.write_text(
        "path,label,split\n" + "".join(f"pictures/{name},{n % 2},test\n" for n, name in enumerate(names[:3]))
    )
    with manifest.open("a") as file:
        file.write(f"{names[3]},1,train\npictures/{names[4]},0,train\n")
    pipeline = tmp_path / "tensors.py"
    pipeline.write_text("from torchvision.transforms import ToTensor\ntransform = [ToTensor()]\n")
    for spec, count in ((pictures, 44), (manifest, 5)):
        audit.run(spec, pipeline=pipeline, store=tmp_path / "stores" / spec.name, capture="digest", workers=0)
        dataset = open_dataset(str(spec))
        expected = []
        for index in range(len(dataset)):
            source = dataset.source(index)
            digest = hashlib.sha256(dataset.read(index)).hexdigest()
            expected.append((index, source.path, source.root, source.raw, dataset.split_of(index), digest))
        assert len(expected) == count
        columns = "SELECT index, source, root, source_raw, {} FROM {} ORDER BY index"
        store = audit.open(tmp_path / "stores" / spec.name)
        assert store.sql(columns.format("split, source_digest", "samples")).fetchall() == expected
        files = store.sql(columns.format("ordinal, digest", "sample_sources")).fetchall()
        assert files == [(*row[:4], 0, row[5]) for row in expected]


def _draw(value: torch.Tensor) -> torch.Tensor:
    return value + torch.rand(1)


def _all_rows(pictures: Path, store: Path, level: Level) -> dict[str, list[tuple[Any, ...]]]:
    """Record files in detours, with names that are not ASCII, and every third sample drawing random numbers."""
    torch.manual_seed(3)
    dataset = ImageFolder(str(pictures), Compose([ToTensor(), lambda value: value, torch.neg, RandomApply([_draw])]))
    for place in range(0, 40, 7):
        path, label = dataset.samples[place]
        dataset.samples[place] = (f"{Path(path).parent}/./{Path(path).name}", label)
    with audit.record(store, capture=level, strict=True) as run:
        for _ in run.loader(DataLoader(dataset, batch_size=40)):
            pass
    opened = audit.open(store)
    left_out = {"stage_outputs": "run_id, microseconds"}
    tables = ("samples", "sample_sources", "stage_outputs", "payloads", "rng")
    return {
        table: opened.sql(f"SELECT * EXCLUDE ({left_out.get(table, 'run_id')}) FROM {table} ORDER BY ALL").fetchall()
        for table in tables
    }


@pytest.mark.skipif(loops.native is None, reason="the extension is not compiled")
@pytest.mark.parametrize("level", LEVELS)
def test_the_compiled_loops_add_the_same_rows(
    monkeypatch: pytest.MonkeyPatch, pictures: Path, tmp_path: Path, level: Level
) -> None:
    compiled = _all_rows(pictures, tmp_path / "compiled", level)
    monkeypatch.setattr("audit.recorders.visit.item_recorder.find_listed_plan", lambda *_: None)
    assert _all_rows(pictures, tmp_path / "plain", level) == compiled
    assert len(compiled["samples"]) == 40
    assert compiled["rng"]


@pytest.mark.skipif(loops.native is None, reason="the extension is not compiled")
def test_a_visit_that_is_unusual_leaves_nothing_behind() -> None:
    file = ListedFile("/folder/a.png", "/folder", 1)
    row = Row(Facts("tensor", digest="0" * 32), True, None, 1.0)
    made = MadeVisit(make_lost_visit(find_pipeline(None)), label=1)
    visit = made.visit
    visit.error, visit.opened, visit.source_bytes = None, [file.path], 3
    visit.source_digest = "1" * 64
    known = (("load", "stage"), ["cat", "dog"], None, hashlib.sha256, absolute_folder)
    lists: tuple[list[Any], ...] = tuple([] for _ in range(11))

    def add(rows: dict[int, Any], widths: tuple[int, ...] = (14, 9, 21, 7)) -> int:
        visit.rows = rows
        added: int = loops.native.add_visits([(5, made, file)], 0, (*known, widths), lists)  # type: ignore[union-attr]
        return added

    unseen = Row(None, True, None, 1.0)  # type: ignore[arg-type]
    for rows in ({}, {1: row, 0: row}, {0: row, 2: row}, {0: row, 1: None}, {0: row, 1: unseen}):
        assert add(rows) == 0
        assert not any(lists)
    assert add({0: row, 1: row}, (15, 9, 21, 7)) == 0
    assert add({0: row, 1: row}) == 1
    assert [len(one) for one in lists] == [14, 9, 42, 0, 1, 1, 1, 1, 1, 1, 1]
    assert lists[0][:10] == [5, 0, None, "a.png", "/folder", None, "1" * 64, 3, 1, "dog"]


@pytest.mark.parametrize("wide", [0, 1, 2])
def test_the_digests_of_files_that_are_hashed_together_are_those_of_each(tmp_path: Path, wide: int) -> None:
    picture = io.BytesIO()
    Image.new("RGB", (4, 4)).save(picture, "PNG")
    folder = tmp_path / "pictures" / "class"
    folder.mkdir(parents=True)
    # Every number of bytes that a block of SHA-256 can be short of, then lengths that differ much, and what Pillow does not read.
    lengths = [*range(130), 5_000, 200_000, 3, 2**20 + 1, 70_000, 64, 2 * 2**20, 1, 900_000, 900_000, 900_000, 900_000]
    for number, length in enumerate(lengths):
        content = picture.getvalue() + np.random.default_rng(number).bytes(length)
        (folder / f"{number:03d}.png").write_bytes(content)
    dataset = ImageFolder(str(folder.parent), ToTensor())
    before = loops.native.loops(wide) if loops.native is not None else 0
    try:
        samples, _, files = _record(dataset, tmp_path / "store", 50)
    finally:
        if loops.native is not None:
            loops.native.loops(before)
    expected = [hashlib.sha256(Path(path).read_bytes()).hexdigest() for path, _ in dataset.samples]
    assert [row[2] for row in samples] == expected
    assert [row[3] for row in files] == expected
