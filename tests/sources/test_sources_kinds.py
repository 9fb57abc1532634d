"""Every kind besides folders: what it gives, what it refuses, and that all can be sent to a worker."""

from __future__ import annotations

import csv
import io
import json
import os
import pickle
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import click
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from audit.cli.run import run
from audit.errors import DatasetError
from audit.sources import SOURCES, TextDataset, dataset_digest, open_dataset


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    for name in ("a", "b", "c"):
        Image.new("L", (3, 2), ord(name)).save(tmp_path / f"{name}.png")
    return tmp_path


def write(path: Path, text: str) -> str:
    path.write_text(text, encoding="utf-8", errors="surrogateescape")
    return str(path)


def labels(dataset: Any) -> list[int | None]:
    return [dataset.label(index) for index in range(len(dataset))]


MANIFESTS = {
    "m.csv": "path,label,split\na.png,cat,train\nb.png,ant,test\n\nc.png,cat,test\n",
    "m.tsv": "File\tClass\tsplit\na.png\tcat\ttrain\nb.png\tant\ttest\nc.png\tcat\ttest\n",
    "semi.csv": "\ufefffilename;label;split\na.png;cat;train\nb.png;ant;test\nc.png;cat;test\n",
    "m.jsonl": "".join(
        json.dumps({"image": f"{name}.png", "category": label, "split": split}) + "\n"
        for name, label, split in (("a", "cat", "train"), ("b", "ant", "test"), ("c", "cat", "test"))
    ),
}


@pytest.mark.parametrize("name", [*MANIFESTS, "m.parquet"])
def test_every_manifest_format_gives_the_same(pictures: Path, name: str) -> None:
    if name == "m.parquet":
        columns = {
            "path": ["a.png", "b.png", "c.png"],
            "label": ["cat", "ant", "cat"],
            "split": ["train", "test", "test"],
        }
        pq.write_table(pa.table({**columns, "thumbnail": [b"x"] * 3}), pictures / name)
    else:
        write(pictures / name, MANIFESTS[name])
    dataset = pickle.loads(pickle.dumps(open_dataset(pictures / name)))
    assert dataset.classes == ["ant", "cat"]
    assert labels(dataset) == [1, 0, 1]
    assert [dataset.split_of(index) for index in range(3)] == ["train", "test", "test"]
    assert dataset.split is None
    assert [dataset[index][0].getpixel((0, 0)) for index in range(3)] == [97, 98, 99]
    assert dataset.source(0).path == "a.png"
    assert dataset.source(0).root == str(pictures)


@pytest.mark.parametrize(
    ("cells", "expected", "classes"),
    [
        (["0", "7", "-1"], [0, 7, -1], None),
        (["01", "02", "01"], [0, 1, 0], ["01", "02"]),
        (["1", "x", "1"], [0, 1, 0], ["1", "x"]),
        (["", "", ""], [None, None, None], None),
    ],
)
def test_labels_are_numbers_or_names(
    pictures: Path, cells: list[str], expected: list[int], classes: list[str] | None
) -> None:
    rows = "".join(f"a.png,{cell}\n" for cell in cells)
    dataset = open_dataset(write(pictures / "m.csv", "path,label\n" + rows))
    assert labels(dataset) == expected
    assert dataset.classes == classes


def test_a_row_whose_file_is_missing_is_still_a_sample(pictures: Path) -> None:
    spec = write(pictures / "m.csv", f"path,label\na.png,0\ngone.png,1\n,1\nx\0y.png,1\n{pictures / 'b.png'},1\n")
    dataset = open_dataset(spec)
    assert len(dataset) == 5
    for index in (1, 2, 3):
        with pytest.raises(OSError):
            dataset.read(index)
    assert dataset.source(2).path == "dataset://2"
    assert dataset[4][0].getpixel((0, 0)) == 98, "an absolute path is taken as it is"
    assert len(dataset_digest(dataset)) == 64


def test_a_name_that_is_not_utf8_is_read_from_a_manifest(tmp_path: Path) -> None:
    name = b"n\xff.png"
    with open(os.path.join(os.fsencode(tmp_path), name), "wb") as file:
        Image.new("L", (1, 1)).save(file, "PNG")
    dataset = open_dataset(write(tmp_path / "m.csv", "path\n" + os.fsdecode(name) + "\n"))
    assert dataset[0].size == (1, 1)
    assert dataset.source(0).raw == name


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("m.csv", "id,label\n1,2\n", "no column of paths; its columns are: id, label"),
        ("m.csv", "", "is empty"),
        ("m.csv", "path,label\n", "has no rows"),
        ("m.csv", "path,label\na.png,1\nb.png\n", "Line 3 of .* has 1 cells, the header 2"),
        ("m.csv", "path,label\na,b.png,1\n", "Line 2 of .* has 3 cells"),
        ("m.csv", 'path,label\n"a.png,1\n', "line"),
        ("m.csv", "path,label\na.png,1\nb.png,\n", "empty in 1 of 2 rows, first in line 3"),
        ("m.csv", "path,path\na.png,1\n", "two columns called 'path'"),
        ("m.csv", "path,label\na.png,0.5\nb.png,1\n", None),
        ("m.jsonl", '{"path": "a.png"}\n{"path": \n', "line 2 is not JSON"),
        ("m.jsonl", "[1]\n", "line 1 is not a JSON object"),
        ("m.jsonl", '{"path": 3}\n', "must be a path, got 3"),
        ("m.jsonl", '{"path": "a.png", "label": [1, 2]}\n', "which is not a class"),
        ("m.jsonl", '{"path": "a.png", "label": 0.5}\n', "which is not a class"),
        ("m.jsonl", '{"path": "a.png", "label": 1}\n{"path": "b.png"}\n', "empty in 1 of 2 rows"),
        ("m.parquet", "PAR1 or not", "cannot be read"),
    ],
)
def test_manifests_that_are_refused(tmp_path: Path, name: str, content: str, message: str | None) -> None:
    spec = write(tmp_path / name, content)
    if message is None:
        assert open_dataset(spec).classes == ["0.5", "1"]
        return
    with pytest.raises(DatasetError, match=message) as caught:
        open_dataset(spec)
    assert caught.value.hint


def test_a_manifest_of_texts(tmp_path: Path) -> None:
    rows = [{"text": "größer\n", "label": "a"}, {"text": "\ud800", "label": "b"}, {"text": None, "label": "b"}]
    spec = write(tmp_path / "m.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    dataset = pickle.loads(pickle.dumps(open_dataset(spec, transform=len)))
    assert dataset[0] == (7, 0)
    assert dataset.loader(dataset.read(1)) == "\ud800"
    assert dataset.source(1).path == "dataset://1"
    with pytest.raises(OSError, match="no text"):
        dataset.read(2)


@settings(max_examples=examples(40), deadline=None)
@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20), min_size=1, max_size=8))
def test_texts_come_back_exactly_from_csv(tmp_path_factory: pytest.TempPathFactory, texts: list[str]) -> None:
    buffer = io.StringIO(newline="")
    csv.writer(buffer).writerows([["text"], *([text] for text in texts)])
    path = tmp_path_factory.mktemp("csv") / "m.csv"
    path.write_bytes(buffer.getvalue().encode())
    assert list(open_dataset(path)) == texts


def test_a_long_text_is_no_error_in_csv(tmp_path: Path) -> None:
    before = csv.field_size_limit()
    dataset = open_dataset(write(tmp_path / "m.csv", "text\n" + "x" * 300_000 + "\n"))
    assert len(dataset[0]) == 300_000
    assert csv.field_size_limit() == before


def test_a_text_file_has_one_text_per_line(tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_bytes(b"\xef\xbb\xbfone\r\n\ntwo \xff\nthree")
    dataset = pickle.loads(pickle.dumps(open_dataset(tmp_path / "t.txt")))
    assert isinstance(dataset, TextDataset)
    assert [dataset[0], dataset[1], dataset[3]] == ["one", "", "three"]
    with pytest.raises(UnicodeDecodeError):
        dataset[2]
    (tmp_path / "t.txt").write_bytes(b"")
    with pytest.raises(DatasetError, match="is empty"):
        open_dataset(tmp_path / "t.txt")


def test_tensors(tmp_path: Path) -> None:
    import torch

    x, y = torch.arange(12.0).reshape(3, 4), torch.tensor([2, 0, 1])
    np.savez(tmp_path / "a.npz", x=x.numpy(), y=y.numpy())
    contents: dict[str, Any] = {"dict": {"x": x, "y": y, "classes": ["p", "q", "r"]}, "tuple": (x, y), "alone": x}
    for name, content in contents.items():
        torch.save(content, tmp_path / f"{name}.pt")
    for name in ("dict.pt", "tuple.pt", "a.npz"):
        dataset = pickle.loads(pickle.dumps(open_dataset(tmp_path / name, target_transform=str)))
        assert dataset[1][0].tolist() == [4, 5, 6, 7]
        assert dataset[1][1] == "0"
        assert labels(dataset) == [2, 0, 1]
        assert dataset.source(2).path == "dataset://2"
        assert [label for _, label in dataset] == ["2", "0", "1"]
    assert open_dataset(tmp_path / "dict.pt").classes == ["p", "q", "r"]
    alone = open_dataset(tmp_path / "alone.pt")
    alone[0].zero_()
    assert alone[0].tolist() == [0, 1, 2, 3], "an item is a copy"
    assert alone.label(0) is None


def test_tensors_that_are_refused(tmp_path: Path) -> None:
    import torch

    torch.save({"state_dict": {}}, tmp_path / "checkpoint.pt")
    torch.save({"x": torch.zeros(3, 2), "y": torch.zeros(2)}, tmp_path / "uneven.pt")
    torch.save(torch.zeros(()), tmp_path / "scalar.pt")
    torch.save(torch.zeros(0, 3), tmp_path / "none.pt")
    torch.save(torch.utils.data.TensorDataset(torch.zeros(2)), tmp_path / "pickled.pt")
    torch.save("text", tmp_path / "text.pt")
    (tmp_path / "damaged.npz").write_bytes(b"PK\x03\x04")
    np.savez(tmp_path / "objects.npz", x=np.array([object()], dtype=object))
    for name, message in (
        ("checkpoint.pt", "is a checkpoint"),
        ("uneven.pt", "do not fit"),
        ("scalar.pt", "do not fit"),
        ("none.pt", "no samples"),
        ("pickled.pt", "without running code"),
        ("text.pt", "holds a str"),
        ("damaged.npz", "cannot be loaded"),
        ("objects.npz", "cannot be loaded"),
    ):
        with pytest.raises(DatasetError, match=message):
            open_dataset(tmp_path / name)


def test_tensors_that_unpack_to_far_more_or_are_damaged_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    from audit.sources import tensors

    x = np.zeros((3, 2**20), np.uint8)
    np.savez_compressed(tmp_path / "small.npz", x=x)
    torch.save(torch.from_numpy(x), tmp_path / "plain.pt")
    with zipfile.ZipFile(tmp_path / "plain.pt") as plain, zipfile.ZipFile(tmp_path / "small.pt", "w", 8) as packed:
        for member in plain.infolist():
            packed.writestr(member.filename, plain.read(member))
    assert len(open_dataset(tmp_path / "small.npz")) == 3, "arrays of few values compress well"
    monkeypatch.setattr(tensors, "_ALWAYS_UNPACKED", 2**20)
    for name in ("small.npz", "small.pt"):
        with pytest.raises(DatasetError, match=r"would unpack to 3,14"):
            open_dataset(tmp_path / name)
    data = bytearray((tmp_path / "plain.pt").read_bytes())
    data[2**20] ^= 1
    (tmp_path / "flipped.pt").write_bytes(data)
    with pytest.raises(DatasetError, match="damaged archive"):
        open_dataset(tmp_path / "flipped.pt")


CODE = """
class Squares:
    def __init__(self, n=4, transform=None):
        self.n, self.transform = n, transform
    def __len__(self):
        return self.n
    def __getitem__(self, index):
        return index * index

def dataset(transform=None):
    return Squares(transform=transform)

def broken():
    return {}["nothing"]

def three():
    return 3

def needs(root):
    return Squares()

made = Squares(9)
"""


@pytest.fixture
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(sys, "path", list(sys.path))
    name = f"squares_{abs(hash(tmp_path))}.py"
    return write(tmp_path / name, CODE)


def test_python_files(code: str) -> None:
    assert len(open_dataset(code)) == 4
    assert open_dataset(code, transform=abs).transform is abs
    made = open_dataset(f"{code}:made", transform=abs)
    assert (len(made), made.transform) == (9, None), "an object that exists already is left alone"
    assert pickle.loads(pickle.dumps(open_dataset(code)))[3] == 9
    module = Path(code).stem
    assert open_dataset(f"{module}:made") is made


def test_a_file_with_one_dataset_needs_no_name(tmp_path: Path, code: str) -> None:
    spec = write(tmp_path / "only_one.py", CODE.replace("def dataset", "def other"))
    assert len(open_dataset(spec)) == 9


@pytest.mark.parametrize(
    ("suffix", "message"),
    [
        (":broken", r"failed at .*\.py:14: KeyError: 'nothing'"),
        (":three", "returned a int, which is not a Dataset"),
        (":needs", "it needs root"),
        (":absent", "has no 'absent'; it defines made"),
        (":__name__", "is a str, neither"),
    ],
)
def test_python_that_is_refused(code: str, suffix: str, message: str) -> None:
    with pytest.raises(DatasetError, match=message) as caught:
        open_dataset(code + suffix)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("text", "line"), [("x = 1\nraise SystemExit(3)\n", 2), ("\n\ndef f(:\n", 3), ("import nothing_such\n", 1)]
)
def test_a_file_that_raises_is_named_with_its_line(tmp_path: Path, code: str, text: str, line: int) -> None:
    spec = write(tmp_path / f"raises_{line}.py", text)
    with pytest.raises(DatasetError, match=rf"raises_{line}\.py:{line}: "):
        open_dataset(spec)
    with pytest.raises(DatasetError, match="There is no") as caught:
        open_dataset(str(tmp_path / f"raises{line}.py"))
    assert f"raises_{line}.py" in (caught.value.hint or "")


def test_two_files_of_one_name_are_two_modules(tmp_path: Path, code: str) -> None:
    for number in (1, 2):
        (tmp_path / str(number)).mkdir()
        write(tmp_path / str(number) / "json.py", CODE.replace("n=4", f"n={number}"))
    assert [len(open_dataset(tmp_path / str(number) / "json.py")) for number in (1, 2)] == [1, 2]
    assert sys.modules["json"] is json
    write(tmp_path / "antigravity.py", CODE)  # of the standard library, and not imported yet
    assert len(open_dataset(tmp_path / "antigravity.py")) == 4
    assert "antigravity" not in sys.modules, "a name that means something else is not taken"


@pytest.mark.usefixtures("warm_spawn")
@pytest.mark.workers
def test_spawned_workers_can_load_a_python_dataset(code: str) -> None:
    from torch.utils.data import DataLoader

    loader = DataLoader(open_dataset(code), batch_size=2, num_workers=1, multiprocessing_context="spawn")
    assert [batch.tolist() for batch in loader] == [[0, 1], [4, 9]]


def test_torchvision_by_name(pictures: Path) -> None:
    dataset = open_dataset("torchvision:FakeData?size=20&image_size=(3,8,8)&num_classes=4", transform=np.asarray)
    assert (len(dataset), dataset[0][0].shape) == (20, (8, 8, 3))
    assert type(pickle.loads(pickle.dumps(dataset))).__name__ == "FakeData"
    (pictures / "k").mkdir()
    os.rename(pictures / "a.png", pictures / "k" / "a.png")
    folder = open_dataset(f"torchvision:ImageFolder?root={pictures}")
    assert folder.classes == ["k"]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("torchvision:CIFAR11?root=x", "no dataset called 'CIFAR11'.*CIFAR10"),
        ("torchvision:FakeData?sise=20", "takes no argument 'sise'.*size"),
        ("torchvision:ImageFolder", "needs root"),
        ("torchvision:FakeData?size", "cannot be read"),
        ("torchvision:CIFAR10?root=nowhere&train=false", "cannot open .*not found or corrupted"),
        ("torchvision:CIFAR10?root=nowhere&download=true", "does not download"),
    ],
)
def test_torchvision_that_is_refused(spec: str, message: str) -> None:
    with pytest.raises(DatasetError, match=message):
        open_dataset(spec)


def test_hugging_face_on_disk(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["ant", "bee"])})
    rows = {"image": [Image.new("L", (3, 2), value) for value in (10, 20)], "label": [1, 0]}
    pictures = datasets.Dataset.from_dict(rows, features=features)
    texts = datasets.Dataset.from_dict({"text": ["one", None]})
    datasets.DatasetDict({"train": pictures, "test": pictures.select([1])}).save_to_disk(tmp_path / "splits")
    texts.save_to_disk(tmp_path / "texts")

    dataset = pickle.loads(pickle.dumps(open_dataset(f"hf:{tmp_path}/splits?split=train")))
    assert dataset.classes == ["ant", "bee"]
    assert labels(dataset) == [1, 0]
    assert dataset.split_of(0) == "train"
    assert dataset.read(0).startswith(b"\x89PNG")
    value, label = dataset[0]
    assert (value.getpixel((0, 0)), label) == (10, 1)
    assert dataset.source(1).path == "dataset://1"
    assert dataset_digest(dataset) == dataset_digest(open_dataset(f"hf:{tmp_path}/splits?split=train"))
    text = open_dataset(f"hf:{tmp_path}/texts", transform=str.upper)
    assert text[0] == "ONE"
    with pytest.raises(OSError, match="has no text"):
        text.read(1)
    for spec, message in (
        (f"hf:{tmp_path}/splits", "several splits; its splits are train, test"),
        (f"hf:{tmp_path}/splits?split=val", "no split 'val'"),
        (f"hf:{tmp_path}/text", "There is no"),
        (f"hf:{tmp_path}", "not a dataset saved on disk"),
    ):
        with pytest.raises(DatasetError, match=message):
            open_dataset(spec)


def test_every_kind_describes_itself() -> None:
    assert {"class-folders", "flat-folder", "manifest", "python", "torchvision", "hf", "tensors", "text-file"} <= set(
        SOURCES
    )
    assert all(kind.description and not kind.recognise("no such thing") for kind in SOURCES.values())


def test_the_help_names_the_page_that_lists_every_kind() -> None:
    (shown,) = (
        str(option.help) for option in run.params if isinstance(option, click.Option) and option.name == "dataset"
    )
    (page,) = re.findall(r"docs/\S+\.md", shown)
    guide = (Path(__file__).parents[2] / page).read_text(encoding="utf-8")
    for kind in SOURCES.values():
        assert f"\n- {kind.description}\n" in guide, "run docs/make_datasets.py"
        assert vars(kind)["__doc__"], "begin the file with what it opens"


@pytest.mark.workers
def test_importing_and_folders_load_no_torch(pictures: Path) -> None:
    script = (
        "import sys; from audit.sources import open_dataset; before = set(sys.modules); "
        f"d = open_dataset({str(pictures)!r}); d[0]; "
        "print(*sorted({'torch', 'torchvision', 'datasets', 'pyarrow', 'duckdb'} & set(sys.modules)), 'PIL' in before)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_a_module_whose_name_is_taken_does_not_change_the_digest() -> None:
    """Another process, such as a worker of Ray, may find the name free."""
    free, taken = (
        type("Own", (), {"__len__": lambda _: 3, "__module__": name}) for name in ("calls", "calls@/a/calls.py")
    )
    assert dataset_digest(free()) == dataset_digest(taken())


@pytest.mark.parametrize(
    ("text", "labels", "classes"),
    [
        ("path,label,label_name\na.png,4,cat\nb.png,1,ant\n", [4, 1], ["0", "ant", "2", "3", "cat"]),
        ("path,label,label_name\na.png,1,cat\nb.png,1,ant\n", [1, 1], None),
        ("path,label,label_name\na.png,0,cat\nb.png,1,cat\n", [0, 1], None),
        ("path,label,label_name\na.png,0,cat\nb.png,1,\n", [0, 1], None),
        ("path,label,label_name\na.png,,cat\nb.png,,ant\n", [1, 0], ["ant", "cat"]),
    ],
)
def test_numbers_and_names_of_classes(pictures: Path, text: str, labels: list[int], classes: list[str] | None) -> None:
    dataset = open_dataset(write(pictures / "m.csv", text))
    assert [dataset[n][1] for n in range(2)] == labels
    assert dataset.classes == classes
