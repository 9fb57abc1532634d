"""Folders: what is found, in which order, with which labels, and what is refused."""

from __future__ import annotations

import os
import pickle
import re
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from audit.errors import DatasetError, UsageError
from audit.models.presets import ConvertRGB
from audit.sources import SOURCES, FileDataset, Options, dataset_digest, open_dataset
from audit.sources.decode import sample_suffixes
from audit.sources.files import PackedNames, raw_of, to_printable
from audit.sources.scan import scan


def picture(path: Path | str | bytes, mode: str = "RGB", size: tuple[int, int] = (4, 3)) -> None:
    os.makedirs(os.path.dirname(os.fsencode(path)), exist_ok=True)
    with open(path, "wb") as file:
        Image.new(mode, size).save(file, "PNG")


def sources(dataset: FileDataset) -> list[str]:
    return [dataset.source(index).path for index in range(len(dataset))]


def names_found(root: str) -> list[bytes]:
    return [name for directory in scan(root).directories for name in directory.names(texts=False)]


def test_class_folders_are_sorted_as_text_and_agree_with_torchvision(tmp_path: Path) -> None:
    from torchvision.datasets import ImageFolder

    for name in (
        "10/b.png",
        "10/a.PNG",
        "1/z.png",
        "2/sub/deep/q.png",
        "2/sub-b/r.png",
        "2/sub/c.png",
        "2/x.png",
        "é/1.png",
    ):
        picture(tmp_path / name)
    ours, theirs = open_dataset(tmp_path), ImageFolder(tmp_path)
    assert ours.classes == theirs.classes == ["1", "10", "2", "é"]
    assert sources(ours) == [os.path.relpath(path, tmp_path) for path, _ in theirs.samples]
    assert [ours.label(index) for index in range(len(ours))] == theirs.targets
    value, label = ours[3]
    assert (value.mode, value.size, label) == ("RGB", (4, 3), 2)


def test_digits_fixture_is_a_dataset() -> None:
    root = Path(__file__).parents[2] / "fixtures" / "digits" / "test"
    dataset = open_dataset(str(root))
    assert len(dataset) == 500
    assert dataset.classes == list("0123456789")
    assert dataset.split == dataset.split_of(0) == "test"
    assert dataset[0][0].mode == "L"
    assert dataset.notes == ()


def test_a_file_url_is_the_path() -> None:
    path = Path(__file__).resolve().parent.parent.parent / "fixtures" / "digits" / "test"
    for spec in (f"file://{path}", f"file:{path}"):
        assert open_dataset(spec).root == str(path)


def test_an_empty_class_is_a_class_and_what_is_left_out_is_said(tmp_path: Path) -> None:
    picture(tmp_path / "a" / "1.png")
    picture(tmp_path / "c" / "1.png")
    picture(tmp_path / "stray.png")
    picture(tmp_path / ".hidden" / "1.png")
    (tmp_path / "b").mkdir()
    (tmp_path / "a" / "Thumbs.db").write_bytes(b"")
    (tmp_path / "a" / "notes.txt").write_text("x")
    dataset = open_dataset(tmp_path)
    assert dataset.classes == ["a", "b", "c"]
    assert [dataset.label(0), dataset.label(1)] == [0, 2]
    notes = " ".join(dataset.notes)
    assert "have no pictures, but count as classes: b." in notes
    assert "2 files do not have the ending of a picture" in notes
    assert ".db 1" in notes
    assert "1 files next to the class folders" in notes
    assert "1 hidden" in notes


def test_flat_folder_is_unlabelled(tmp_path: Path) -> None:
    picture(tmp_path / "b.png", "L")
    np.save(tmp_path / "a.npy", np.arange(6).reshape(2, 3))
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "readme.txt").write_text("no sample")
    dataset = open_dataset(tmp_path)
    assert dataset.classes is None
    assert sources(dataset) == ["a.npy", "b.png"]
    assert dataset[0].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert dataset[-1].mode == "L"
    assert dataset.label(0) is None
    assert len(list(dataset)) == 2, "iteration ends at the end"
    with pytest.raises(IndexError):
        dataset[2]


def test_a_kind_is_opened_by_its_name(tmp_path: Path) -> None:
    picture(tmp_path / "a" / "1.png")
    assert SOURCES.get("flat-folder").open_source(str(tmp_path), Options()).label(0) is None
    with pytest.raises(UsageError, match="flat-folder"):
        SOURCES.get("flat-foldr")
    with pytest.raises(DatasetError, match="There is no"):
        open_dataset(tmp_path / "b")


def test_folders_of_texts(tmp_path: Path) -> None:
    for name, text in (("neg/1.txt", "bad\r\n"), ("pos/1.txt", "größer")):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(text.encode())
    (tmp_path / "pos" / "2.txt").write_bytes(b"\xff")
    dataset = open_dataset(tmp_path)
    assert (dataset[0], dataset[1]) == (("bad\r\n", 0), ("größer", 1))
    with pytest.raises(UnicodeDecodeError):
        dataset.loader(dataset.read(2))


def test_transforms_are_looked_up_at_call_time_and_survive_pickling(tmp_path: Path) -> None:
    picture(tmp_path / "a" / "1.png", "RGBA")
    dataset = open_dataset(tmp_path, transform=np.asarray, target_transform=str)
    again = pickle.loads(pickle.dumps(dataset))
    assert again[0][0].shape == (3, 4, 4)
    assert again[0][1] == "0"
    assert sources(again) == sources(dataset)
    assert dataset_digest(again) == dataset_digest(dataset)
    seen: list[object] = []

    def note(fact: object, answer: object) -> object:
        seen.append(fact)
        return answer

    dataset.__dict__["read"] = lambda index: note(index, type(dataset).read(dataset, index))
    dataset.__dict__["loader"] = lambda data: note(len(data), 7)
    dataset.__dict__["transform"] = lambda value: note(value, "value")
    dataset.__dict__["target_transform"] = None
    assert dataset[0] == ("value", 0)
    assert seen == [0, os.path.getsize(tmp_path / "a" / "1.png"), 7]
    assert open_dataset(tmp_path, transform=ConvertRGB())[0][0].mode == "RGB"


HOSTILE = [
    b"a\nb.png",
    b'"quo\'te".png',
    b"<script>.png",
    "😀.png".encode(),
    b"not\xffutf8.png",
    b"a\\nb.png",
    b"-rf *.png",
]


def test_hostile_names_are_read_and_shown(tmp_path: Path) -> None:
    for name in HOSTILE:
        picture(os.path.join(os.fsencode(tmp_path), b"cl\xe9", name))
    dataset = open_dataset(tmp_path)
    shown = [dataset.source(index) for index in range(len(dataset))]
    assert len({source.path for source in shown}) == len(HOSTILE)
    assert all(source.path.encode("utf-8") and source.path.isprintable() for source in shown)
    found = [source.raw if source.raw is not None else source.path.encode() for source in shown]
    assert found == sorted(b"cl\xe9/" + name for name in HOSTILE)
    assert all(dataset[index][0].size == (4, 3) for index in range(len(dataset)))
    assert dataset.classes == ["cl\\xe9"]


def test_links_are_followed_but_not_in_circles(tmp_path: Path) -> None:
    picture(tmp_path / "a" / "1.png")
    picture(tmp_path / "b" / "2.png")
    os.symlink(tmp_path, tmp_path / "a" / "up")
    os.symlink(".", tmp_path / "b" / "self")
    os.symlink(tmp_path / "a", tmp_path / "c")
    os.symlink("nowhere.png", tmp_path / "a" / "broken.png")
    os.symlink("round.png", tmp_path / "a" / "round.png")
    dataset = open_dataset(tmp_path)
    assert sources(dataset) == [
        "a/1.png",
        "a/broken.png",
        "a/round.png",
        "b/2.png",
        "c/1.png",
        "c/broken.png",
        "c/round.png",
    ]
    assert "a/up points to a folder that contains it" in " ".join(dataset.notes)
    for index in (1, 2):
        with pytest.raises(OSError):
            dataset.read(index)


def test_links_that_multiply_paths_are_refused(tmp_path: Path) -> None:
    for level in range(12):
        (tmp_path / f"d{level}").mkdir()
        for link in "xy":
            os.symlink(tmp_path / f"d{level + 1}", tmp_path / f"d{level}" / link)
    picture(tmp_path / "d12" / "1.png")
    with pytest.raises(DatasetError, match="More than 100 paths"):
        open_dataset(tmp_path)


@pytest.mark.parametrize(
    ("files", "message", "hint"),
    [
        ([], "contains nothing", "Put pictures"),
        ([".hidden.png"], "1 hidden", "Put pictures"),
        (["a/", "b/"], "2 folders without files", "Put pictures"),
        (["x.zip", "y.zip", "z"], r"3 files, but none.*: \.zip 2, no ending 1", "folder of pictures"),
        (["labels.csv"], "none that is", "Did you mean .*labels.csv"),
        (["dataset_info.json", "data.arrow"], "none that is", "hf:"),
        (["train/a/1.png", "train/b/1.png", "test/a/1.png"], "splits.*: test, train", "Did you mean .*/test[?]"),
        (["Train/a/1.png", "extra/a/1.png"], "splits", "Did you mean .*/Train[?]"),
    ],
)
def test_folders_that_are_refused(tmp_path: Path, files: list[str], message: str, hint: str) -> None:
    for name in files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).mkdir() if name.endswith("/") else (tmp_path / name).write_bytes(b"")
    with pytest.raises(DatasetError, match=message) as caught:
        open_dataset(tmp_path)
    assert re.search(hint, caught.value.hint or "")


def test_nested_classes_and_a_class_called_train_are_taken(tmp_path: Path) -> None:
    picture(tmp_path / "n01" / "images" / "1.png")
    picture(tmp_path / "n02" / "images" / "1.png")
    assert open_dataset(tmp_path).classes == ["n01", "n02"]
    picture(tmp_path / "train" / "locomotive.png")
    assert open_dataset(tmp_path).classes == ["n01", "n02", "train"]


def test_a_missing_path_names_the_nearest(tmp_path: Path) -> None:
    (tmp_path / "Images").mkdir()
    with pytest.raises(DatasetError, match=r"There is no .*imges") as caught:
        open_dataset(tmp_path / "imges" / "train")
    assert "Images?" in (caught.value.hint or "")
    for bad in ("", "a\0b"):
        with pytest.raises(DatasetError):
            open_dataset(bad)


def test_a_file_of_no_known_kind_lists_what_is_taken(tmp_path: Path) -> None:
    (tmp_path / "a.zip").write_bytes(b"PK")
    with pytest.raises(DatasetError, match="not a known kind") as caught:
        open_dataset(tmp_path / "a.zip")
    assert "manifest" in (caught.value.hint or "")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may list every folder")
def test_a_folder_that_cannot_be_listed_is_an_error(tmp_path: Path) -> None:
    picture(tmp_path / "a" / "1.png")
    (tmp_path / "b").mkdir(mode=0)
    with pytest.raises(DatasetError, match="cannot be listed"):
        open_dataset(tmp_path)


def test_the_digest_tells_files_labels_and_sizes(tmp_path: Path) -> None:
    picture(tmp_path / "a" / "1.png")
    first = dataset_digest(open_dataset(tmp_path))
    assert dataset_digest(open_dataset(tmp_path)) == first
    picture(tmp_path / "a" / "1.png", size=(40, 30))
    second = dataset_digest(open_dataset(tmp_path))
    picture(tmp_path / "A" / "1.png")
    third = dataset_digest(open_dataset(tmp_path))
    assert len({first, second, third}) == 3
    assert dataset_digest([1, 2]) != dataset_digest([1, 2, 3])


component = st.sampled_from(["a", "b", "a-b", "x.png", "Y.JPG", "z.txt", "q.zip", ".h.png", ".git", "n\n.png", "é"])
tree = st.lists(st.lists(component, min_size=1, max_size=4).map(tuple), max_size=12)


@settings(max_examples=examples(60), deadline=None)
@given(tree)
def test_the_scan_finds_what_a_walk_finds_each_once(paths: list[tuple[str, ...]]) -> None:
    with tempfile.TemporaryDirectory() as root:
        for parts in paths:
            path = os.path.join(root, *parts)
            try:
                os.makedirs(os.path.dirname(path), exist_ok=True)
                with open(path, "xb"):
                    pass
            except OSError:
                continue  # a name that is a folder already, or whose parent is a file
        expected: list[Any] = []
        for folder, folders, files in os.walk(root):
            folders[:] = [name for name in folders if not name.startswith(".")]
            expected.extend(
                os.fsencode(os.path.relpath(os.path.join(folder, name), root))
                for name in files
                if not name.startswith(".") and os.path.splitext(name)[1].lower().encode() in sample_suffixes()
            )
        found = names_found(root)
        assert sorted(found) == sorted(expected)
        assert found == names_found(root)
        assert found == sorted(found, key=lambda name: (os.path.dirname(name), os.path.basename(name)))


@given(st.lists(st.binary(max_size=12), min_size=2, max_size=8, unique=True))
def test_printable_names_are_distinct_valid_text_and_never_lose_the_name(names: list[bytes]) -> None:
    shown = [to_printable(name) for name in names]
    assert len(set(shown)) == len(names)
    for name, text in zip(names, shown, strict=True):
        assert "\n" not in text
        raw = raw_of(name, text)
        assert (text.encode("utf-8") if raw is None else raw) == name


@given(st.lists(st.binary(max_size=5)))
def test_names_are_a_sequence(names: list[bytes]) -> None:
    packed = pickle.loads(pickle.dumps(PackedNames(names)))
    assert list(packed) == [packed[index] for index in range(len(packed))] == names
