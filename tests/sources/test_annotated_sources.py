"""Datasets with boxes and masks: what an item is, and what is said of files that are not in order."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from annotated_pictures import CLASSES, PIECES, make_coco, make_masks, make_voc, make_yolo, mask_of
from torchvision import tv_tensors

import audit
from audit.errors import DatasetError
from audit.metrics.target_boxes import read_target_boxes
from audit.sources import dataset_digest, open_dataset
from audit.sources.absolute_names import absolute_dataset

_BOXED: list[tuple[str, Callable[[Path], Path], str]] = [
    ("coco:", make_coco, ""),
    ("voc:", make_voc, ""),
    ("yolo:", make_yolo, "?first=1"),
]


@pytest.mark.parametrize(("prefix", "make", "query"), _BOXED, ids=[case[0] for case in _BOXED])
def test_the_boxes_of_each_format_are_those_that_were_drawn(
    tmp_path: Path, prefix: str, make: Callable[[Path], Path], query: str
) -> None:
    dataset = open_dataset(f"{prefix}{make(tmp_path)}{query}")
    assert len(dataset) == len(PIECES)
    # VOC numbers the names in text order.
    names = dataset.classes
    assert sorted(names) == sorted(CLASSES)
    for at, (_, _, objects) in enumerate(PIECES):
        picture, target = dataset[at]
        assert picture.size == (96, 64)
        assert isinstance(target["boxes"], tv_tensors.BoundingBoxes)
        assert target["boxes"].canvas_size == (64, 96)
        torch.testing.assert_close(
            target["boxes"].as_subclass(torch.Tensor),
            torch.tensor([box for _, *box in objects]).reshape(-1, 4),
            atol=1e-4,
            rtol=0,
        )
        assert [names[number] for number in target["labels"]] == [CLASSES[kind] for kind, *_ in objects]
    assert dataset.source(0).path.endswith("piece0.png")


def test_the_area_of_an_object_is_the_one_that_its_annotation_has(tmp_path: Path) -> None:
    """COCO's measures of small, medium and large objects go by it, not by the box."""
    path = make_coco(tmp_path)
    content = json.loads(path.read_text())
    for number, one in enumerate(content["annotations"], 1):
        one["area"] = 100.0 * number
    path.write_text(json.dumps(content))
    dataset = open_dataset(f"coco:{path}")
    found = [read_target_boxes(dataset[at][1]) for at in range(len(dataset))]
    areas = [area for boxes in found if boxes is not None and boxes.areas is not None for area in boxes.areas]
    assert areas == pytest.approx([100.0 * number for number in range(1, len(content["annotations"]) + 1)])


def test_a_split_of_voc_keeps_its_order(tmp_path: Path) -> None:
    dataset = open_dataset(f"voc:{make_voc(tmp_path)}?split=val")
    assert [dataset.source(at).path for at in range(len(dataset))] == ["piece2.png", "piece0.png"]


def test_class_numbers_of_yolo_are_those_of_the_files_unless_said_otherwise(tmp_path: Path) -> None:
    dataset = open_dataset(f"yolo:{make_yolo(tmp_path)}")
    assert dataset.classes == ["thing", "stuff"]
    assert dataset[1][1]["labels"].tolist() == [0, 1]


def test_a_mask_is_read_as_class_numbers(tmp_path: Path) -> None:
    dataset = open_dataset(f"masks:{make_masks(tmp_path)}")
    assert dataset.classes == CLASSES
    for at, (_, _, objects) in enumerate(PIECES):
        mask = dataset[at][1]
        assert isinstance(mask, tv_tensors.Mask)
        np.testing.assert_array_equal(mask.numpy(), mask_of(objects))


def test_another_annotation_is_another_dataset(tmp_path: Path) -> None:
    path = make_coco(tmp_path)
    before = dataset_digest(open_dataset(f"coco:{path}"))
    assert dataset_digest(open_dataset(f"coco:{path}")) == before
    content = json.loads(path.read_text())
    content["annotations"][0]["bbox"][0] += 1
    path.write_text(json.dumps(content))
    assert dataset_digest(open_dataset(f"coco:{path}")) != before


def test_annotations_that_cannot_be_used_are_left_out_with_a_note(tmp_path: Path) -> None:
    path = make_coco(tmp_path)
    content = json.loads(path.read_text())
    content["annotations"] += [{"id": 90, "image_id": 999, "category_id": 1, "bbox": [0, 0, 1, 1]}]
    content["annotations"] += [{"id": 91, "image_id": 10, "category_id": 1}]
    path.write_text(json.dumps(content))
    dataset = open_dataset(f"coco:{path}")
    assert len(dataset[0][1]["labels"]) == 1
    assert len(dataset.notes) == 2


def test_what_cannot_be_opened_is_said_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="There is no") as missing:
        open_dataset(f"coco:{tmp_path}/nothing.json")
    assert missing.value.exit_code == 2
    broken = tmp_path / "broken.json"
    broken.write_text("{")
    with pytest.raises(DatasetError, match="cannot be read as JSON"):
        open_dataset(f"coco:{broken}")
    broken.write_text("[1, 2]")
    with pytest.raises(DatasetError, match="not in COCO's format"):
        open_dataset(f"coco:{broken}")
    broken.write_text(json.dumps({"images": [{"id": 1, "file_name": "far/away.jpg"}]}))
    with pytest.raises(DatasetError, match="is not in the folder of that file") as raised:
        open_dataset(f"coco:{broken}")
    assert "?images=" in str(raised.value.hint)
    with pytest.raises(DatasetError, match="no option 'imags'"):
        open_dataset(f"coco:{broken}?imags=x")
    with pytest.raises(DatasetError, match="no folder Annotations"):
        open_dataset(f"voc:{tmp_path}")
    with pytest.raises(DatasetError, match="There is no folder"):
        open_dataset(f"masks:{tmp_path}")
    config = tmp_path / "data.yaml"
    config.write_text("names: [a]\n")
    with pytest.raises(DatasetError, match="has no split 'val'"):
        open_dataset(f"yolo:{config}")


def test_a_bad_line_of_labels_fails_its_own_sample_alone(tmp_path: Path) -> None:
    path = make_yolo(tmp_path)
    (tmp_path / "labels" / "val" / "piece0.txt").write_text("0 0.5 0.5\n")
    dataset = open_dataset(f"yolo:{path}")
    with pytest.raises(ValueError, match="line 1 of its labels"):
        dataset[0]
    assert len(dataset[1][1]["labels"]) == 2


def test_a_polygon_of_yolo_has_the_box_around_it(tmp_path: Path) -> None:
    path = make_yolo(tmp_path)
    (tmp_path / "labels" / "val" / "piece0.txt").write_text("1 0.25 0.5 0.75 0.25 0.5 0.75\n")
    target = open_dataset(f"yolo:{path}")[0][1]
    assert target["boxes"].tolist() == [[24.0, 16.0, 72.0, 48.0]]


def test_a_mask_of_colours_or_none_at_all_fails_its_own_sample(tmp_path: Path) -> None:
    folder = make_masks(tmp_path)
    from PIL import Image

    Image.new("RGB", (96, 64)).save(folder / "masks" / "piece0.png")
    (folder / "masks" / "piece1.png").unlink()
    dataset = open_dataset(f"masks:{folder}")
    assert any("no mask" in note for note in dataset.notes)
    with pytest.raises(ValueError, match="mode RGB"):
        dataset[0]
    with pytest.raises(FileNotFoundError, match="no mask"):
        dataset[1]
    assert dataset[2][1].shape == (64, 96)


@pytest.mark.parametrize(
    ("prefix", "make"),
    [("coco", make_coco), ("voc", make_voc), ("yolo", make_yolo), ("masks", make_masks)],
    ids=["coco", "voc", "yolo", "masks"],
)
def test_a_run_replays_in_another_folder_and_for_another_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prefix: str, make: Callable[[Path], Path]
) -> None:
    made = make(tmp_path / "data")
    monkeypatch.chdir(tmp_path)
    store = tmp_path / "lineage"
    audit.run(f"{prefix}:{made.relative_to(tmp_path)}", store=store, workers=0, limit=2, capture="digest")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "stranger"))
    with audit.open(store) as opened:
        replayed = opened.replay()
    assert (replayed.checked, replayed.identical) == (2, 2)


@pytest.mark.parametrize(
    ("spec", "absolute"),
    [
        ("hf:saved?split=train", "hf:{}/saved?split=train"),
        ("coco:a.json?images=x", "coco:{}/a.json?images=x"),
        ("torchvision:FakeData?size=4", "torchvision:FakeData?size=4"),
        ("torchvision:MNIST?root=my%20data&train=false", "torchvision:MNIST?root={}/my%20data&train=false"),
        ("package.module:build", "package.module:build"),
        ("s3://bucket/images", "s3://bucket/images"),
        ("saved", "{}/saved"),
        ("build.py:dataset", "{}/build.py:dataset"),
    ],
)
def test_a_name_means_the_same_in_another_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spec: str, absolute: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "saved").mkdir()
    (tmp_path / "MNIST").mkdir()
    (tmp_path / "build.py").touch()
    assert absolute_dataset(spec) == absolute.format(tmp_path)
