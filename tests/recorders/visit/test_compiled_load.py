"""The compiled way of stage 0 reads, hashes and notes what `load_path` does."""

from __future__ import annotations

import io
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torchvision
from PIL import Image
from torch.utils.data import Dataset
from torchvision.datasets import ImageFolder
from torchvision.transforms import Compose, Resize, ToTensor

from audit.recorders.activity import Activity
from audit.recorders.randomness.visit_randomness import VisitRequest, WatchedRandomness
from audit.recorders.stages.discover import find_pipeline
from audit.recorders.visit.file_load import load_path, path_loader
from audit.recorders.visit.make import MadeVisit, VisitMaker
from audit.records import LEVELS, Level
from audit.sources import open_dataset
from audit.values import native as loops

compiled_only = pytest.mark.skipif(loops.native is None, reason="the extension is not compiled")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Small and large files, a grey picture, one with a transparency entry, an empty one, and one that is not a picture."""
    Image.init()  # the first picture would open the files of Pillow's plugins
    inside = tmp_path / "pictures" / "class"
    inside.mkdir(parents=True)
    Image.effect_noise((9, 7), 40).save(inside / "0.png")
    Image.merge("RGB", [Image.effect_noise((200, 150), 60)] * 3).save(inside / "1.png")
    Image.new("RGB", (5, 5), (1, 2, 3)).save(inside / "2.png", transparency=(1, 2, 3))
    Image.new("RGB", (64, 48), (9, 8, 7)).save(inside / "3.jpg")
    (inside / "4.jpg").write_bytes(b"")
    (inside / "5.png").write_bytes(b"no picture")
    assert (inside / "1.png").stat().st_size > 16_384 > (inside / "0.png").stat().st_size
    return inside.parent


class PairFolder(ImageFolder):
    """Reads a second file where one cannot be decoded, and two files of every third sample."""

    def __getitem__(self, index: int) -> Any:
        path, label = self.samples[index]
        if index % 3 == 2:
            self.loader(self.samples[0][0])
        try:
            picture = self.loader(path)
        except OSError:
            picture = self.loader(self.samples[1][0])
        return self.transform(picture) if self.transform is not None else picture, label


def make_visits(dataset: Any, level: Level) -> list[MadeVisit]:
    maker = VisitMaker(dataset, find_pipeline(dataset), WatchedRandomness(dataset), activity=Activity())
    return [maker.make(VisitRequest(index), lambda index=index: dataset[index], level) for index in range(len(dataset))]  # type: ignore[misc]


def facts_of(made: MadeVisit) -> tuple[Any, ...]:
    visit = made.visit
    rows = {
        ordinal: (row.facts, row.changed, row.params, row.version, row.shared, row.preview, row.full)
        for ordinal, row in visit.rows.items()
    }
    opened = [path for path in visit.opened if "site-packages" not in path]  # not what the first value imports
    source = visit.source_digest, visit.source_bytes, visit.source_path, visit.has_further_sources, opened
    errors = str(visit.error), str(made.error)
    return rows, source, visit.last_digest, visit.failed_stage, errors, visit.problem


@compiled_only
@pytest.mark.parametrize("kind", [ImageFolder, PairFolder])
@pytest.mark.parametrize("level", LEVELS)
def test_both_ways_note_the_same(
    monkeypatch: pytest.MonkeyPatch, folder: Path, kind: type[ImageFolder], level: Level
) -> None:
    dataset = kind(str(folder), Compose([Resize(8), ToTensor()]), allow_empty=True)
    (folder / "class" / "3.jpg").unlink()
    compiled = make_visits(dataset, level)
    with monkeypatch.context() as patch:
        patch.setattr("audit.recorders.visit.instrument.path_loader", lambda _: load_path)
        plain = make_visits(dataset, level)
    for one, other in zip(compiled, plain, strict=True):
        assert facts_of(one) == facts_of(other)
    assert compiled[0].visit.source_bytes == (folder / "class" / "0.png").stat().st_size


class Decoding(Dataset[Any]):
    """Decodes its files by itself: what its first stage is given is the load."""

    def __init__(self, folder: Path, transform: Any) -> None:
        self.files, self.transform = sorted(folder.rglob("*.*")), transform

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> Any:
        with Image.open(self.files[index]) as picture:
            picture.load()
            return self.transform(picture), index


@compiled_only
@pytest.mark.parametrize("kind", ["of ours", "of the user's own"])
def test_both_ways_note_the_loads_of_other_datasets(monkeypatch: pytest.MonkeyPatch, folder: Path, kind: str) -> None:
    shutil.copy(folder / "class" / "3.jpg", folder / "class" / "6.jpg")
    transform = Compose([Resize(8)])
    dataset: Any = Decoding(folder, transform)
    if kind == "of ours":
        dataset = open_dataset(str(folder), transform=transform)
    noted: list[bool] = []
    note_load = loops.native.note_load  # type: ignore[union-attr]

    def noting(*arguments: Any) -> bool:
        noted.append(note_load(*arguments))
        return noted[-1]

    monkeypatch.setattr(loops.native, "note_load", noting)
    compiled = make_visits(dataset, "digest")
    with monkeypatch.context() as patch:
        patch.setattr(loops.native, "note_load", lambda *_: False)
        plain = make_visits(dataset, "digest")
    for one, other in zip(compiled, plain, strict=True):
        assert facts_of(one) == facts_of(other)
    # The compiled way takes JPEG files, from the second on, and leaves pictures of Pillow's other classes to Python.
    assert noted[-1]
    assert len(noted) > sum(noted)


@compiled_only
def test_a_file_is_read_as_open_reads_it(tmp_path: Path) -> None:
    def read(path: Path) -> bytes:
        plan, loader = path_loader(torchvision.datasets.folder.default_loader).args  # type: ignore[attr-defined]
        decoded: list[bytes] = []
        parts = (*loader[:4], lambda data, _: decoded.append(data), loader[-1])
        loops.native.run_load(plan, parts, visit_of_nothing(tmp_path), None, (str(path),), {})  # type: ignore[union-attr]
        return decoded[0]

    (tmp_path / "empty").touch()
    (tmp_path / "large").write_bytes(os.urandom(3 * 2**20))
    assert read(tmp_path / "empty") == b""
    assert read(tmp_path / "large") == (tmp_path / "large").read_bytes()
    # Its length is not known before it is read.
    assert read(Path("/proc/self/status")).startswith(b"Name:")
    for path in (tmp_path, tmp_path / "missing"):
        with pytest.raises(OSError) as expected:
            path.read_bytes()
        with pytest.raises(type(expected.value)) as found:
            read(path)
        assert str(found.value) == str(expected.value)


def visit_of_nothing(folder: Path) -> Any:
    """Return a visit of a dataset of one picture."""
    shutil.rmtree(folder / "one", ignore_errors=True)
    (folder / "one" / "class").mkdir(parents=True)
    Image.new("RGB", (4, 4)).save(folder / "one" / "class" / "0.png")
    dataset = ImageFolder(str(folder / "one"))
    maker = VisitMaker(dataset, find_pipeline(dataset), WatchedRandomness(dataset))
    return maker.begin(VisitRequest(0), "digest")


@compiled_only
def test_another_backend_of_torchvision_decodes_by_itself(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    dataset = ImageFolder(str(folder))
    shutil.copy(folder / "class" / "3.jpg", folder / "class" / "0.png")
    asked: list[str] = []

    def load(path: str) -> Any:
        asked.append(path)
        return Image.open(io.BytesIO(Path(path).read_bytes())).convert("RGB")

    monkeypatch.setattr("torchvision.datasets.folder.accimage_loader", load)
    monkeypatch.setattr("torchvision._image_backend", "accimage")
    made = make_visits(dataset, "digest")[0]
    assert asked == [path for path, _ in dataset.samples]
    assert made.visit.source_bytes == (folder / "class" / "3.jpg").stat().st_size


@pytest.mark.parametrize("way", ["compiled", "plain"])
def test_a_file_that_is_no_picture_has_the_error_of_the_plain_loader(
    monkeypatch: pytest.MonkeyPatch, folder: Path, way: str
) -> None:
    if way == "plain":
        monkeypatch.setattr("audit.recorders.visit.instrument.path_loader", lambda _: load_path)
    dataset = ImageFolder(str(folder), allow_empty=True)
    for made in make_visits(dataset, "digest")[4:]:
        with pytest.raises(OSError) as plain:
            dataset.loader(dataset.samples[made.visit.index][0])
        assert (type(made.error), str(made.error)) == (type(plain.value), str(plain.value))
        assert f"{dataset.samples[made.visit.index][0]}" in str(made.visit.error)


def test_a_function_that_the_user_has_put_into_torchvision_is_called(
    monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    monkeypatch.setattr("torchvision.datasets.folder.pil_loader", lambda path: Image.new("RGB", (3, 2)))
    dataset = ImageFolder(str(folder), ToTensor())
    assert [made.item[0].shape for made in make_visits(dataset, "digest")] == [(3, 2, 3)] * len(dataset)
