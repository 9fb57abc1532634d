"""Datasets that read their files by themselves: the file of each sample is known by being opened."""

from __future__ import annotations

import hashlib
import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import safetensors.numpy
from PIL import Image
from pyarrow import csv, feather
from torch.utils.data import DataLoader, Dataset, Subset
from torchvision.datasets import CocoDetection, OxfordIIITPet, VOCSegmentation
from torchvision.transforms.functional import to_tensor

import audit
from audit.recorders.files.opened_files import note_opened_files, stop_noting_files
from audit.recorders.visit.file_load import read_whole


def picture(path: Path, seed: int) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.random.default_rng(seed).integers(0, 256, (6, 5, 3), dtype=np.uint8)).save(path)
    return path


class Own(Dataset):  # type: ignore[type-arg]
    """As people write it: a list of paths, a notes file that is read each time, and Image.open."""

    def __init__(self, paths: list[Path]) -> None:
        self.paths = paths

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Any:
        (self.paths[0].parent / "notes.json").read_text()
        return np.asarray(Image.open(self.paths[index])), index % 2


def coco(root: Path) -> Any:
    pytest.importorskip("pycocotools")
    images = [{"id": n, "file_name": picture(root / f"{n:03d}.jpg", n).name} for n in range(3)]
    annotations = [{"id": n, "image_id": n, "bbox": [0, 0, 2, 2], "category_id": 1} for n in range(3)]
    (root / "a.json").write_text(json.dumps({"images": images, "annotations": annotations, "categories": [{"id": 1}]}))
    return CocoDetection(str(root), str(root / "a.json")), [image["file_name"] for image in images]


def voc(root: Path) -> Any:
    base = root / "VOCdevkit" / "VOC2012"
    names = [f"2007_{n}" for n in range(3)]
    for n, name in enumerate(names):
        picture(base / "JPEGImages" / f"{name}.jpg", n)
        picture(base / "SegmentationClass" / f"{name}.png", n)
    sets = base / "ImageSets" / "Segmentation"
    sets.mkdir(parents=True)
    (sets / "train.txt").write_text("\n".join(names))
    return VOCSegmentation(str(root)), [f"VOCdevkit/VOC2012/JPEGImages/{name}.jpg" for name in names]


def pet(root: Path) -> Any:
    base = root / "oxford-iiit-pet"
    names = [f"Abyssinian_{n}" for n in range(1, 4)]
    for n, name in enumerate(names):
        picture(base / "images" / f"{name}.jpg", n)
        picture(base / "annotations" / "trimaps" / f"{name}.png", n)
    (base / "annotations" / "trainval.txt").write_text("".join(f"{name} 1 1 1\n" for name in names))
    return OxfordIIITPet(str(root), target_types="segmentation"), [f"oxford-iiit-pet/images/{n}.jpg" for n in names]


def own(root: Path) -> Any:
    paths = [picture(root / f"{n}.png", n) for n in range(3)]
    (root / "notes.json").write_text("{}")
    return Own(paths), [path.name for path in paths]


def record(tmp_path: Path, dataset: Any, workers: int = 0, **options: Any) -> list[tuple[Any, ...]]:
    with audit.record(tmp_path / "lineage") as run:
        loader = DataLoader(dataset, batch_size=2, num_workers=workers, collate_fn=list, **options)
        list(run.loader(loader))
    with audit.open(tmp_path / "lineage") as store:
        query = "SELECT source, root, source_digest, source_bytes FROM samples ORDER BY epoch, index"
        return store.sql(query, run="latest").fetchall()


@pytest.mark.parametrize("make", [coco, voc, pet, own])
@pytest.mark.parametrize("workers", [0, 1])
def test_the_picture_is_the_source(tmp_path: Path, make: Any, workers: int) -> None:
    dataset, expected = make(tmp_path / "data")
    rows = record(tmp_path, dataset, workers)
    assert [source for source, *_ in rows] == expected
    for source, root, digest, size in rows:
        content = (Path(root) / source).read_bytes()
        assert (digest, size) == (hashlib.sha256(content).hexdigest(), len(content))


class Tables(Dataset):  # type: ignore[type-arg]
    """Each sample is read from a file of its own, by another function that opens it outside of Python."""

    def __init__(self, root: Path) -> None:
        table = pa.table({"x": [1.0, 2.0]})
        self.readers: list[tuple[Path, Any]] = [
            (root / "0.parquet", pq.read_table),
            (root / "1.parquet", lambda path: pq.ParquetFile(path).read()),
            (root / "2.feather", feather.read_table),
            (root / "3.csv", lambda path: csv.read_csv(path)),
            (root / "4.arrow", lambda path: pa.ipc.open_file(pa.memory_map(str(path))).read_all()),
            (root / "5.safetensors", lambda path: pa.table(safetensors.numpy.load_file(path))),
        ]
        root.mkdir(parents=True)
        for name in ("0.parquet", "1.parquet"):
            pq.write_table(table, root / name)
        feather.write_feather(table, root / "2.feather")
        csv.write_csv(table, root / "3.csv")
        with pa.ipc.new_file(str(root / "4.arrow"), table.schema) as file:
            file.write_table(table)
        safetensors.numpy.save_file({"x": np.array([1.0, 2.0])}, root / "5.safetensors")

    def __len__(self) -> int:
        return len(self.readers)

    def __getitem__(self, index: int) -> Any:
        path, read = self.readers[index]
        return read(path)["x"].to_numpy()


@pytest.mark.filterwarnings("ignore::audit.RecordingWarning")
def test_files_that_arrow_and_safetensors_open_are_noted(tmp_path: Path) -> None:
    record(tmp_path, Tables(tmp_path / "data"))
    with audit.open(tmp_path / "lineage") as store:
        rows = store.sql("SELECT index, parse_filename(source) FROM sample_sources ORDER BY ALL").fetchall()
    names = ["0.parquet", "1.parquet", "2.feather", "3.csv", "4.arrow", "5.safetensors"]
    assert rows == list(enumerate(names))


@pytest.mark.usefixtures("warm_spawn")
def test_in_spawned_workers(tmp_path: Path) -> None:
    dataset, expected = own(tmp_path / "data")
    rows = record(tmp_path, Subset(dataset, [2, 0]), 1, multiprocessing_context="spawn")
    assert [source for source, *_ in rows] == [expected[2], expected[0]]


def test_replay_names_the_file_that_changed(tmp_path: Path) -> None:
    dataset, expected = own(tmp_path / "data")
    record(tmp_path, dataset)
    with audit.open(tmp_path / "lineage") as store:
        assert store.replay("latest", dataset=dataset).identical == 3
        picture(tmp_path / "data" / expected[1], 99)
        (different,) = store.replay("latest", dataset=dataset).different
        assert (different.source, different.reason) == (expected[1], "source changed")


def test_a_file_that_cannot_be_decoded_is_named(tmp_path: Path) -> None:
    dataset, expected = own(tmp_path / "data")
    (tmp_path / "data" / expected[1]).write_bytes(b"no picture")
    with pytest.raises(OSError, match="cannot identify"):
        record(tmp_path, dataset)
    with audit.open(tmp_path / "lineage") as store:
        (run,) = store.runs()
        assert store.sql("SELECT source FROM failures", run=run.run_id).fetchall() == [(expected[1],)]


@pytest.mark.parametrize(
    "form", [str, Path, lambda p: [p, p.with_name("mask.png")], lambda p: {"image": p, "mask": "m"}]
)
def test_a_dataset_may_name_its_sources(tmp_path: Path, form: Any) -> None:
    class Named(Own):
        def __getitem__(self, index: int) -> Any:
            return np.full(2, index), 0

        def source(self, index: int) -> Any:
            return form(self.paths[index])

    rows = record(tmp_path, Named(own(tmp_path / "data")[0].paths))
    assert [(source, root) for source, root, *_ in rows] == [(f"{n}.png", str(tmp_path / "data")) for n in range(3)]
    assert all(digest for _, _, digest, _ in rows)


def test_what_is_in_memory_has_no_file(tmp_path: Path) -> None:
    assert [row[0] for row in record(tmp_path, [1, 2])] == ["dataset://0", "dataset://1"]


class MaskFirst(Own):
    """Opens the mask before the image."""

    def __getitem__(self, index: int) -> Any:
        mask = Image.open(self.paths[index].with_suffix(".mask.png"))
        return to_tensor(Image.open(self.paths[index])), to_tensor(mask)


def test_the_source_is_the_picture_that_was_loaded(tmp_path: Path) -> None:
    paths = [picture(tmp_path / "data" / f"{n}.png", n) for n in range(2)]
    for path in paths:
        picture(path.with_suffix(".mask.png"), 7)
    with audit.record(tmp_path / "lineage") as run:
        list(run.loader(DataLoader(MaskFirst(paths), batch_size=2), label=lambda item: None))
    with audit.open(tmp_path / "lineage") as store:
        assert store.sql("SELECT source FROM samples ORDER BY index").fetchall() == [("0.png",), ("1.png",)]
        files = store.sql("SELECT source FROM sample_sources WHERE index = 0 ORDER BY ordinal").fetchall()
        assert files == [("0.png",), ("0.mask.png",)]


def test_files_that_a_thread_opens_for_reading_are_noted(tmp_path: Path) -> None:
    first, second = picture(tmp_path / "a.png", 0), picture(tmp_path / "b.png", 1)
    outer: list[str] = []
    inner: list[str] = []
    before = note_opened_files(outer)
    try:
        first.read_bytes()
        with open(tmp_path / "written.txt", "w") as file:
            file.write("x")
        with open(bytes(second), "rb"):
            pass
        other = threading.Thread(target=first.read_bytes)
        other.start()
        other.join()
        nested = note_opened_files(inner)
        read_whole(str(second))
        stop_noting_files(nested)
        read_whole(str(first))
    finally:
        stop_noting_files(before)
    second.read_bytes()
    assert [str(path) for path in outer] == [str(first), str(second), str(first)]
    assert inner == [str(second)]


def test_a_file_is_read_as_open_reads_it(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    (tmp_path / "large").write_bytes(bytes(3 * 2**20))
    for path in (tmp_path / "empty", tmp_path / "large", picture(tmp_path / "a.png", 0)):
        assert read_whole(str(path)) == path.read_bytes()
    for path in (tmp_path, tmp_path / "missing"):
        with pytest.raises(OSError) as expected:
            path.read_bytes()
        with pytest.raises(type(expected.value)) as found:
            read_whole(str(path))
        assert str(found.value) == str(expected.value)
