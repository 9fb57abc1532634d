"""`audit run` finds the stages that a dataset of one's own calls, and says which changes it did not see."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import audit

DATASET = """
from pathlib import Path
from PIL import Image, ImageOps
from torch.utils.data import Dataset
from torchvision.transforms import functional

def to_tensor(picture):
    return functional.to_tensor(picture)

class Own(Dataset):
    def __init__(self, root):
        self.files = sorted(Path(root).rglob("*.png"))
        self.steps = {"train": [self.mirror, to_tensor]}
    def mirror(self, picture):
        return ImageOps.mirror(picture) if random.random() < 0.5 else picture
    def __len__(self):
        return len(self.files)
    def __getitem__(self, index):
        value = Image.open(self.files[index]).convert("RGB")
        for step in self.steps["train"]:
            value = step(value)
        return RETURNED, int(self.files[index].parent.name[-1])

def dataset(root):
    return Own(root)
"""


@pytest.mark.workers
@pytest.mark.parametrize("workers", [0, 2])
def test_calls_of_a_dataset_are_stages(
    pictures: Callable[..., Path], write_pipeline: Callable[..., Path], tmp_path: Path, workers: int
) -> None:
    pipeline = write_pipeline(DATASET.replace("RETURNED", "value"))
    store = tmp_path / "lineage"
    run = audit.run(pictures(), pipeline=pipeline, store=store, workers=workers, batch_size=4)
    opened = audit.open(store)
    stages = opened.sql("SELECT name, path FROM stages ORDER BY stage").fetchall()
    assert stages == [("load", "0"), ("mirror", "call.steps.train.1"), ("to_tensor", "call.steps.train.2")]
    assert run.unrecorded == []
    kinds = opened.sql("SELECT DISTINCT stage, kind FROM stage_outputs ORDER BY stage").fetchall()
    assert kinds == [(0, "image"), (1, "image"), (2, "tensor")]
    replay = opened.replay()
    assert (replay.checked, replay.identical) == (12, 12)


def test_a_change_that_no_stage_explains_is_named(
    pictures: Callable[..., Path], write_pipeline: Callable[..., Path], tmp_path: Path
) -> None:
    pipeline = write_pipeline(DATASET.replace("RETURNED", "value * 2"))
    run = audit.run(pictures(), pipeline=pipeline, store=tmp_path / "lineage", workers=0)
    assert run.unrecorded is not None
    [text] = run.unrecorded
    assert "the item" in text
    assert "Own.__getitem__" in text
    assert any("did not see every change" in warning for warning in run.warnings)
    opened = audit.open(tmp_path / "lineage")
    assert opened.check(only=["stage_coverage"]).outcome("stage_coverage").status != "pass"
    assert opened.replay().identical == 12
