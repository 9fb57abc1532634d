"""Chosen samples for tools that label: Label Studio's tasks and CVAT's annotations, read back by the tools' own packages."""

from __future__ import annotations

import io
import json
import os
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote
from xml.etree import ElementTree as Xml

import pytest
import torch
from annotated_pictures import CLASSES, PIECES, save_pieces
from exported_runs import make_store
from external_tools import run_with_package
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms

import audit
from audit.errors import UsageError
from audit.integrations import export
from audit.integrations.exporters import export_archive, selection_forms

SERVED = "/data/local-files/?d="


class Objects(Dataset):  # type: ignore[type-arg]
    """Picture files with boxes, as torchvision's detectors take them."""

    classes = CLASSES

    def __init__(self, folder: Path) -> None:
        self.paths = [folder / name for name in save_pieces(folder)]
        self.transform = transforms.ToTensor()

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Any:
        objects = PIECES[index][2]
        boxes = torch.tensor([box for _, *box in objects], dtype=torch.float32).reshape(-1, 4)
        target = {"boxes": boxes, "labels": torch.tensor([kind for kind, *_ in objects], dtype=torch.int64)}
        return self.transform(Image.open(self.paths[index]).convert("RGB")), target


class Detector(nn.Module):
    def forward(self, pictures: Any) -> Any:
        box = torch.tensor([[10.0, 5.0, 58.0, 37.0]])
        return [{"boxes": box, "labels": torch.tensor([1]), "scores": torch.tensor([0.75])} for _ in pictures]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("labelling")
    store = make_store(folder)
    with audit.record(store, name="objects") as run:
        loader = run.loader(
            DataLoader(
                Objects(folder / "pieces"), batch_size=2, collate_fn=lambda items: list(zip(*items, strict=True))
            )
        )
        detector = run.model(Detector())
        for pictures, _ in loader:
            detector(pictures)
    return store


@pytest.fixture
def opened(store: Path) -> Iterator[Any]:
    with audit.open(store) as reader:
        yield reader


def tasks(folder: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((folder / "tasks.json").read_text())
    return found


def test_label_studio_tasks(opened: Any, tmp_path: Path) -> None:
    done = export(opened, "pictures", "label-studio", tmp_path)
    expected = {row["index"]: row for row in opened.sql("FROM lineage", run="pictures").dicts()}
    assert len(tasks(tmp_path)) + done.left_out == len(expected)
    root = dict(line.split("=", 1) for line in (tmp_path / "label-studio.env").read_text().splitlines())[
        "LABEL_STUDIO_LOCAL_FILES_DOCUMENT_ROOT"
    ]
    for task in tasks(tmp_path):
        row = expected[task["meta"]["index"]]
        path = os.path.join(root, unquote(task["data"]["image"].removeprefix(SERVED)))
        assert os.path.isfile(path)
        assert path.encode("unicode_escape").decode().endswith(row["source"]) or "☃" in path  # a line break is escaped
        chosen = {each["model_version"]: each["result"][0]["value"]["choices"] for each in task["predictions"]}
        assert chosen == {"digits.pt": [row["predicted_name"]], "recorded label": [row["label_name"]]}


def test_label_studio_boxes(opened: Any, tmp_path: Path) -> None:
    export(opened, "objects", "label-studio", tmp_path)
    first = tasks(tmp_path)[0]["predictions"]
    assert [each["model_version"] for each in first] == ["Detector", "recorded label"]
    (box,) = first[0]["result"]
    assert (first[0]["score"], box["value"]["rectanglelabels"], box["original_width"]) == (0.75, ["thing"], 96)
    (label, *corners) = PIECES[0][2][0]
    value = first[1]["result"][0]["value"]
    assert value["rectanglelabels"] == [CLASSES[label]]
    found = (
        value["x"] * 0.96,
        value["y"] * 0.64,
        (value["x"] + value["width"]) * 0.96,
        (value["y"] + value["height"]) * 0.64,
    )
    assert found == pytest.approx(corners)


def test_cvat_annotations(opened: Any, tmp_path: Path) -> None:
    export(opened, "objects", "cvat", tmp_path)
    document = Xml.parse(tmp_path / "annotations.xml").getroot()
    listed = (tmp_path / "images.txt").read_text().splitlines()
    images = document.findall("image")
    assert [os.path.basename(path) for path in listed] == [image.get("name") for image in images]
    for image, (_, _, objects) in zip(images, PIECES, strict=True):
        boxes = [box for box in image.findall("box") if box.find("attribute[@name='origin']").text == "recorded"]
        assert [
            (box.get("label"), *(float(box.get(side)) for side in ("xtl", "ytl", "xbr", "ybr"))) for box in boxes
        ] == [(CLASSES[kind], *corners) for kind, *corners in objects]
        assert [box.get("source") for box in image.findall("box")] == ["manual"] * len(objects) + ["auto"]
    declared = {label.findtext("name") for label in document.iter("label")}
    assert {box.get("label") for box in document.iter("box")} <= declared


def test_a_box_that_cannot_be_placed_leaves_its_picture_out(tmp_path: Path) -> None:
    """Behind a stage whose geometry is not known, no box is better than a wrong one, and a picture without its boxes is wrong."""
    dataset = Objects(tmp_path / "pieces")
    dataset.transform = lambda picture: transforms.functional.to_tensor(picture.transpose(Image.Transpose.ROTATE_90))
    with audit.record(tmp_path / "lineage") as run:
        detector = run.model(Detector())
        for pictures, _ in run.loader(DataLoader(dataset, collate_fn=lambda items: list(zip(*items, strict=True)))):
            detector(pictures)
    done = export(tmp_path / "lineage", None, "label-studio", tmp_path / "out")
    assert (done.left_out, tasks(tmp_path / "out")) == (len(PIECES), [])


@pytest.mark.parametrize("form", ["label-studio", "cvat", "fiftyone"])
def test_chosen_samples(opened: Any, tmp_path: Path, form: str) -> None:
    """A condition, a tag and indices choose; all three must hold."""
    run = opened.run("pictures").run_id
    wrong = [index for (index,) in opened.sql("SELECT index FROM wrong_predictions", run=run).fetchall()]
    opened.tag_samples("review", run, indices=wrong[:3], note="look here")

    def chosen(name: str, **choice: Any) -> set[int]:
        export(opened, "pictures", form, tmp_path / name, **choice)
        if form == "label-studio":
            return {task["meta"]["index"] for task in tasks(tmp_path / name)}
        if form == "fiftyone":
            return {sample["index"] for sample in json.loads((tmp_path / name / "samples.json").read_text())["samples"]}
        names = [image.get("name") for image in Xml.parse(tmp_path / name / "annotations.xml").getroot().iter("image")]
        rows = opened.sql("SELECT source, index FROM samples", run=run).fetchall()
        return {index for source, index in rows if source in names}

    everything = chosen("all")
    assert chosen("where", where="NOT correct -- a comment") == set(wrong) & everything
    assert chosen("tag", tag="review") == set(wrong[:3]) & everything
    assert chosen("indices", indices=wrong[1:5]) == set(wrong[1:5]) & everything
    assert chosen("together", where="NOT correct", tag="review", indices=wrong[1:5]) == set(wrong[1:3]) & everything
    assert chosen("nothing", indices=[]) == set()


def test_a_whole_run_format_refuses_a_choice(opened: Any, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"csv holds whole runs.*fiftyone, label-studio, cvat"):
        export(opened, "pictures", "csv", tmp_path / "new", tag="review")
    assert not (tmp_path / "new").exists()


def test_an_archive_for_a_download(opened: Any) -> None:
    assert selection_forms() == ["fiftyone", "label-studio", "cvat"]
    with zipfile.ZipFile(io.BytesIO(export_archive(opened.reader, "pictures", "label-studio", [0, 2]))) as archive:
        assert archive.namelist() == ["label-studio.env", "label_config.xml", "tasks.json"]
        assert [task["meta"]["index"] for task in json.loads(archive.read("tasks.json"))] == [0, 2]


@pytest.mark.workers
@pytest.mark.parametrize("run", ["pictures", "objects"])
def test_label_studio_accepts_it(opened: Any, tmp_path: Path, run: str) -> None:
    """Label Studio's own package reads the interface, and finds each task and prediction valid for it."""
    export(opened, run, "label-studio", tmp_path)
    script = """
import json, sys
from label_studio_sdk.label_interface import LabelInterface
interface = LabelInterface(open(sys.argv[1] + "/label_config.xml").read())
interface.validate()
for task in json.load(open(sys.argv[1] + "/tasks.json")):
    assert interface.validate_task({"data": task["data"]}), task  # given predictions, the package fails by itself
    for prediction in task["predictions"]:
        errors = interface.validate_prediction(prediction, return_errors=True)
        assert not errors, errors
print("valid")
"""
    assert run_with_package("label_studio_sdk", script, str(tmp_path)) == "valid"


@pytest.mark.workers
@pytest.mark.parametrize("run", ["pictures", "objects"])
def test_datumaro_reads_the_cvat_annotations(opened: Any, tmp_path: Path, run: str) -> None:
    """Datumaro, which CVAT itself uses, gives the same pictures with the same labels."""
    export(opened, run, "cvat", tmp_path)
    root = opened.sql("SELECT any_value(root) FROM samples", run=run).fetchone()[0]
    (tmp_path / "images").symlink_to(root)  # where datumaro looks for them
    script = """
import json, sys
import datumaro as dm
dataset = dm.Dataset.import_from(sys.argv[1], "cvat")
names = [label.name for label in dataset.categories()[dm.AnnotationType.label]]
found = {item.id: sorted([names[a.label], str(a.attributes["origin"])] for a in item.annotations) for item in dataset}
print(json.dumps(found, sort_keys=True))
"""
    found = json.loads(run_with_package("datumaro", script, str(tmp_path)))
    expected = {
        os.path.splitext(image.get("name") or "")[0]: sorted(
            [shape.get("label"), shape.findtext("attribute[@name='origin']")] for shape in image
        )
        for image in Xml.parse(tmp_path / "annotations.xml").getroot().iter("image")
    }
    assert found == expected
