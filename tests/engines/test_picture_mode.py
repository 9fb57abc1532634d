"""Pictures of any mode go through a pipeline that was written for ImageFolder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from PIL import Image
from torchvision import transforms
from torchvision.datasets import ImageFolder

import audit
from audit.cli.main import cli
from audit.errors import UsageError

STEPS = """
mode = None
transform = transforms.Compose([
    transforms.Resize(16), transforms.CenterCrop(16), transforms.ToTensor(),
    transforms.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
])
"""
GREY = {"class_1/img_001.png": "L", "class_2/img_005.png": "RGBA", "class_0/img_006.png": "P"}


@pytest.fixture
def images(pictures: Callable[..., Path]) -> Path:
    root = pictures()
    for name, mode in GREY.items():
        with Image.open(root / name) as picture:
            converted = picture.convert(mode)
        converted.save(root / name)
    return root


def test_pictures_are_converted_as_image_folder_does(
    images: Path, write_pipeline: Callable[..., Path], tmp_path: Path
) -> None:
    store = tmp_path / "lineage"
    pipeline = write_pipeline(STEPS)
    run = audit.run(images, pipeline=pipeline, store=store, workers=0, capture="full")
    assert (run.status, run.failed) == ("complete", 0)
    steps = [transforms.Resize(16), transforms.CenterCrop(16), transforms.ToTensor()]
    steps.append(transforms.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]))
    expected = ImageFolder(str(images), transforms.Compose(steps))
    with audit.open(store) as opened:
        names = opened.sql("SELECT name FROM stages ORDER BY stage").fetchall()
        assert [name for (name,) in names] == ["load", "ConvertRGB", "Resize", "CenterCrop", "ToTensor", "Normalize"]
        modes = opened.sql("SELECT DISTINCT mode, changed FROM stage_outputs WHERE stage = 1").fetchall()
        assert {mode for mode, _ in modes} == {"RGB"}
        loaded = opened.sql(
            "SELECT source, mode FROM stage_outputs JOIN samples USING (run_id, epoch, index, visit) WHERE stage = 0"
        ).fetchall()
        assert {source: mode for source, mode in loaded if mode != "RGB"} == GREY
        for index, (value, _) in enumerate(expected):
            trace = opened.trace(index=index)
            assert torch.equal(torch.as_tensor(trace.value(5)), value), index
        assert opened.replay().passed


def test_keep_gives_the_picture_as_it_is_and_names_its_mode(
    images: Path, write_pipeline: Callable[..., Path], tmp_path: Path
) -> None:
    options: list[Any] = ["--pipeline", write_pipeline(STEPS), "--store", tmp_path / "lineage", "--workers", 0]
    arguments = ["run", "--dataset", images, "--mode", "keep", *options]
    done = CliRunner().invoke(cli, [str(argument) for argument in arguments])
    assert done.exit_code == 0
    assert "a picture of mode RGBA" in done.stdout
    with audit.open(tmp_path / "lineage") as opened:
        assert opened.run().failed >= 1
        assert "ConvertRGB" not in [name for (name,) in opened.sql("SELECT name FROM stages").fetchall()]
    with pytest.raises(UsageError, match="mode cannot be 'grey'"):
        audit.run(images, mode="grey", store=tmp_path / "lineage")


@pytest.mark.parametrize("first", ["v2.Grayscale()", "v2.RGB()", "transforms.Grayscale(3)"])
def test_a_pipeline_that_chooses_the_mode_itself_is_left_alone(
    images: Path, write_pipeline: Callable[..., Path], tmp_path: Path, first: str
) -> None:
    pipeline = write_pipeline(f"mode = None\ntransform = [transforms.Compose([{first}, v2.ToImage()])]\n")
    run = audit.run(images, pipeline=pipeline, store=tmp_path / "lineage", workers=0)
    assert run.failed == 0
    with audit.open(tmp_path / "lineage") as opened:
        assert "ConvertRGB" not in [name for (name,) in opened.sql("SELECT name FROM stages").fetchall()]


DRAWS = """
mode = None
def draw(picture):
    picture.load()[0, 0] = (9, 9, 9)
    return picture

transform = transforms.Compose([draw, transforms.ToTensor()])
"""


@pytest.mark.parametrize("capture", ["digest", "full"])
def test_a_stage_that_draws_into_the_picture_changes_no_earlier_stage(
    capture: str, pictures: Callable[..., Path], write_pipeline: Callable[..., Path], tmp_path: Path
) -> None:
    images = pictures()
    audit.run(images, pipeline=write_pipeline(DRAWS), store=tmp_path / "lineage", workers=0, capture=capture)
    with audit.open(tmp_path / "lineage") as opened:
        rows = opened.sql("SELECT index, list(digest ORDER BY stage) FROM stage_outputs GROUP BY index").fetchall()
        assert all(load == converted != drawn for _, (load, converted, drawn, _) in rows)
        changed = opened.sql("SELECT DISTINCT name FROM stage_outputs WHERE changed").fetchall()
        assert {name for (name,) in changed} == {"load", "draw", "ToTensor"}
        assert opened.replay(trust=True).identical == len(rows)
        if capture == "full":
            assert not list(opened.verify())
